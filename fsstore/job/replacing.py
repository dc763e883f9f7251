"""Replacing what stands at a place: the new array is made elsewhere, whole and checked, and then put in its place.

Until then readers see the old one.  How it is put there depends on the store:

* Local directories: the new one is made in a directory beside the old, and the system exchanges the two in one step.
* Memory: one step takes the new keys for the old.
* Everything else (a bucket, a directory that is a mount, a system without that step): the new one is made below the
  target, in `.fsstore-job/new/`.  A note says that it is whole; then the documents of the old one go, its chunks, and
  the new ones are copied inside the store, documents last.  After a kill meanwhile there is no array at the place until
  the next copy to it, which finds the note and ends this.

A job that is killed before leaves the old array, and what it has made so far is taken up by the same call.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

from fsstore.dataset.place import look
from fsstore.dataset.removal import remove_tree
from fsstore.errors import PermissionDeniedError
from fsstore.format.attributes import BESIDE, is_document
from fsstore.job.array_copy import ArrayCopy
from fsstore.job.earlier import unmark
from fsstore.job.order import Order, root_of, unsynced
from fsstore.job.passes import key_pass
from fsstore.job.scratch import APPEND, WHOLE, Scratch, beside
from fsstore.job.work import work_on
from fsstore.kvstore.contract.ability import WritesAtOnce, able
from fsstore.kvstore.contract.driver import Read, Write
from fsstore.kvstore.contract.request import KeyRange
from fsstore.kvstore.spec.parse import OpenKv
from fsstore.kvstore.store.kv_store import KvStore
from fsstore.runtime import execution
from fsstore.task.claim import Claim
from fsstore.task.progress import reporter_of

__all__ = ["Elsewhere", "end_replacing", "exchanged", "made_elsewhere", "put_in_place"]

_NEW = "replacement"
"""The key of a note that says which job makes a new array, and where."""
_EXCHANGE = 2  # of Linux and of macOS
_HERE = -100
_UNABLE = frozenset((errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EXDEV, errno.EBUSY, errno.EPERM))


class Elsewhere(NamedTuple):
    """The copy that makes the new array, and whether it was made already."""

    job: ArrayCopy
    is_made: bool


async def made_elsewhere(job: ArrayCopy) -> Elsewhere:
    """Return the copy that makes the new array where nobody looks; an earlier run of the same job is gone on with."""
    name = await job.name(untouched=False)
    answer = await job.scratch.store.read(_NEW)
    told = json.loads(bytes(answer.value)) if answer.state == "value" else {}
    if told and told["job"] != name:
        await remove_tree(_at(job.store, told["directory"]).prefix)
        told = {}
    if not told:
        await job.scratch.clear()
        told = await _noted(job, name)
    apart = replace(job, store=_at(job.store, told["directory"]), existing=None)
    is_made = (await look(apart.place, job.words)).kind == "array"
    if is_made:
        await unmark(apart.place)
        await apart.scratch.clear()
    return Elsewhere(apart, is_made)


def _at(store: OpenKv, directory: str) -> OpenKv:
    """Return a directory beside a target, or, without a name, the one below it."""
    if not directory:
        scratch = Scratch.of(store).opened
        return scratch.at(f"{scratch.path}new/")
    return beside(store, Path(store.path), directory)


async def _noted(job: ArrayCopy, name: str) -> dict[str, str]:
    """Note which job makes a new array, and where: in a directory beside a local one, if there can be one."""
    is_local = job.store.driver.id == "file" and job.store.base is None and not _is_mount(job.store.path)
    told = {"job": name, "directory": f"{BESIDE}-{uuid4().hex[:12]}" if is_local else ""}
    await job.scratch.store.write(_NEW, json.dumps(told))
    if is_local:
        try:
            await Scratch.of(_at(job.store, told["directory"])).store.write(_NEW, b"")
        except PermissionDeniedError:
            told["directory"] = ""
            await job.scratch.store.write(_NEW, json.dumps(told))
    return told


def _is_mount(path: str) -> bool:
    """Return whether a directory is a mount, which cannot be moved."""
    real = Path(os.path.realpath(path))
    return real.stat().st_dev != real.parent.stat().st_dev


async def put_in_place(job: ArrayCopy, apart: ArrayCopy, claim: Claim) -> None:
    """Put the new array in the place of the old, which goes."""
    await claim.check()
    together = able(job.store.driver, WritesAtOnce)
    if (
        job.store.driver.id == "memory"
        and together is not None
        and job.store.driver.features.atomic_transactions
    ):
        await _take_all(together, job, apart)
    elif apart.store.path.startswith(job.scratch.opened.path) or not await _were_exchanged(job, apart, claim):
        told = (await job.scratch.store.read(_NEW)).value
        await job.scratch.store.write(WHOLE, told)
        await end_replacing(job.store)
    await job.scratch.clear()


async def _take_all(together: WritesAtOnce, job: ArrayCopy, apart: ArrayCopy) -> None:
    place = apart.place
    keys = [key async for batch in place.scan() for key in batch.names]
    answers = await place.read_many([Read(key) for key in keys])
    writes = [Write(job.place.path + key, bytes(each.value)) for key, each in zip(keys, answers, strict=True)]
    await together.write_atomic(writes, unchanged={}, deleted=job.scratch.around(job.place.path))
    await place.delete_range(KeyRange())
    await job.scratch.store.delete_range(KeyRange.prefix(APPEND))


async def _were_exchanged(job: ArrayCopy, apart: ArrayCopy, claim: Claim) -> bool:
    """Exchange two directories, and remove the one that is the old one then; return false if the system cannot.

    The claim and a note of what is to be removed come along: they are in the new directory before.
    """
    await claim.also_at(apart.scratch.store)
    await apart.scratch.note_exchange(Path(apart.store.path).name)
    if not await execution.offload(exchanged, job.store.path, apart.store.path):
        return False
    await job.scratch.begin()
    return True


def exchanged(one: str, two: str) -> bool:
    """Exchange two directories in one step, durably; return false if the system cannot."""
    system, real = ctypes.CDLL(None, use_errno=True), os.path.realpath(one)
    paths = os.fsencode(real), os.fsencode(two)
    try:
        if sys.platform == "darwin":
            failed = system.renamex_np(*paths, _EXCHANGE)
        else:
            failed = system.renameat2(_HERE, paths[0], _HERE, paths[1], _EXCHANGE)
    except AttributeError:
        return False
    if failed:
        number = ctypes.get_errno()
        if number in _UNABLE:
            return False
        raise OSError(number, os.strerror(number), one)
    parent = os.open(Path(real).parent, os.O_RDONLY)
    try:
        os.fsync(parent)
    finally:
        os.close(parent)
    return True


async def end_replacing(store: OpenKv) -> bool:
    """Copy a whole new array over what is left of the old, if a note says that this was begun; return whether it was.

    Doing it again does no harm: the new one goes last.
    """
    scratch, place = Scratch.of(store), store.as_directory().prefix
    answer = await scratch.store.read(WHOLE)
    if answer.state != "value":
        return False
    new = _at(store, json.loads(bytes(answer.value))["directory"])
    await scratch.delete_around(place)
    await _copied_inside(new, store.as_directory())
    documents = [key for key in await KvStore.of(new).list() if is_document(key.decode()) and b"/" not in key]
    for key in sorted(documents, key=lambda key: key in (b"zarr.json", b".zarray")):
        name = key.decode()
        await place.write(name, bytes((await new.prefix.read(name)).value))
    await remove_tree(new.prefix)
    await scratch.store.delete_range(KeyRange.prefix(APPEND))
    await scratch.clear()
    return True


async def _copied_inside(new: OpenKv, store: OpenKv) -> None:
    """Copy chunks of the new array to their place, by the store itself where it can."""
    quick = await unsynced(store)
    order = Order(f"replace-{uuid4().hex}", KvStore.of(new), KvStore.of(quick or store), unseen=True)
    if quick is not None:
        order = replace(order, durable=KvStore.of(root_of(store)))
    todo = await key_pass("keys", new.prefix, 1 << 20, chunks=1, counted=True)
    await work_on(order, todo, None, reporter_of(None, "replace", 1, 0), lambda _task, _answers: None)
