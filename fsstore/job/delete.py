"""`delete`, and what groups do to their members: deleting them, and moving them to another path of the hierarchy.

A deletion claims the place and everything below, so that no job writes there meanwhile.  All documents go first, so a
reader finds nothing there rather than an array whose chunks are missing.  A note says that the rest is to follow, so a
delete that was killed is finished by calling it again.  Only arrays and groups are deleted, and what is in them: a
directory that is neither may hold files of others.

A move claims both places and everything below, notes at the old one where it goes, and copies: chunks first, documents
last.  Then it deletes the old documents, and then the old chunks.  So there are readers of the old place, and later of
the new one; a reader that finds a chunk missing asks whether the document is still there.  Both places show the whole
array for the moment between the two documents.

The same call continues a move that was killed.  As long as the new place has no document nobody can have changed
anything there, and everything is copied again.  If both places have documents they must be equal: somebody may have
written to either since.  Once the old place has none, what is left of it is removed.

Writers do not hold claims.  A chunk that is written to the old place after it was copied is lost, as it is where an
array is deleted; documents that were changed meanwhile are copied again.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import sys
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

from fsstore.context.context import Context, context_of
from fsstore.dataset.group import Group
from fsstore.dataset.members import exists, make_groups, missing, refuse_inside_array
from fsstore.dataset.place import (
    Place,
    delete_documents,
    levels_above,
    look,
    remove_directory,
    remove_tree,
    renew,
    store_spec,
)
from fsstore.driver.auto import hierarchy
from fsstore.errors import AlreadyExistsError, FailedPreconditionError, NotFoundError, PermissionDeniedError, StoreError
from fsstore.format.attributes import BESIDE, is_document
from fsstore.job.array_copy import ArrayCopy
from fsstore.job.ends import opened_source
from fsstore.job.passes import Order, key_pass, packed_keys, root_of, unsynced
from fsstore.job.scratch import APPEND, WHOLE, Scratch, all_claimed, beside
from fsstore.job.staging import unmark
from fsstore.job.work import WORK, work_on
from fsstore.kvstore.contract.ability import KeepsDirectories, WritesAtOnce, able
from fsstore.kvstore.contract.driver import UNKNOWN, KvPrefix, Read, Write
from fsstore.kvstore.contract.request import KeyRange
from fsstore.kvstore.kv_store import KvStore
from fsstore.kvstore.spec_parse import OpenKv, as_directory, open_kv
from fsstore.runtime import execution
from fsstore.runtime.future import Future
from fsstore.runtime.together import until_settled
from fsstore.runtime.tuning import AT_ONCE
from fsstore.task.claim import Claim
from fsstore.task.runner import Task, reporter_of
from fsstore.values.json_value import quote

# Replacing what stands at a place: the new array or dataset is made elsewhere, whole and checked, and then put in its
# place.
#
# Until then readers see the old one. How it is put there depends on the store:
#
# * Local directories: the new one is made in a directory beside the old, and the system exchanges the two in one step.
# * Memory: one step takes the new keys for the old.
# * Everything else (a bucket, a directory that is a mount, a system without that step): the new one is made below the
#   target, in `.fsstore-job/new/`.  A note says that it is whole; then the documents of the old one go, its chunks, and
#   the new ones are copied inside the store, documents last.  After a kill meanwhile there is nothing at the place
#   until the next job there, which finds the note and ends this.
#
# A job that is killed before leaves the old array, and what it has made so far is taken up by the same
# call.

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
    apart = replace(job, store=await room_for(job.store, await job.name(untouched=False)), existing=None)
    is_made = (await look(apart.place, job.words)).kind == "array"
    if is_made:
        await unmark(apart.place)
        await apart.scratch.clear()
    return Elsewhere(apart, is_made)


async def room_for(store: OpenKv, name: str) -> OpenKv:
    """Return the directory where a job makes what will take the place of something: as an earlier run has left it."""
    told = await _told(store)
    if told and told["job"] != name:
        await remove_tree(_at(store, told["directory"]).prefix)
        told = {}
    if not told:
        await Scratch.of(store).clear()
        told = await _noted(store, name)
    return _at(store, told["directory"])


async def settle_replacing(store: OpenKv) -> None:
    """End a replacement that was killed in its switch, and remove what one has made that was killed before."""
    scratch = Scratch.of(store)
    if not await scratch.holds_others(""):
        return
    await scratch.begin()
    if not await end_replacing(store) and (told := await _told(store)):
        await remove_tree(_at(store, told["directory"]).prefix)
        await scratch.clear(_NEW)


async def _told(store: OpenKv) -> dict[str, str]:
    """Return what the note of a replacement says; nothing if there is none."""
    answer = await Scratch.of(store).store.read(_NEW)
    found: dict[str, str] = json.loads(bytes(answer.value) or b"{}") if answer.state == "value" else {}
    return found


def _at(store: OpenKv, directory: str) -> OpenKv:
    """Return a directory beside a target, or, without a name, the one below it."""
    if not directory:
        scratch = Scratch.of(store).opened
        return scratch.at(f"{scratch.path}new/")
    return beside(store, Path(store.path), directory)


async def _noted(store: OpenKv, name: str) -> dict[str, str]:
    """Note which job makes what is new, and where: in a directory beside a local one, if there can be one."""
    is_local = store.driver.id == "file" and store.base is None and not _is_mount(store.path)
    told, notes = ({"job": name, "directory": f"{BESIDE}-{uuid4().hex[:12]}" if is_local else ""}, Scratch.of(store))
    await notes.store.write(_NEW, json.dumps(told))
    if is_local:
        try:
            await Scratch.of(_at(store, told["directory"])).store.write(_NEW, b"")
        except PermissionDeniedError:
            told["directory"] = ""
            await notes.store.write(_NEW, json.dumps(told))
    return told


def _is_mount(path: str) -> bool:
    """Return whether a directory is a mount, which cannot be moved."""
    real = Path(os.path.realpath(path))
    return real.stat().st_dev != real.parent.stat().st_dev


async def put_in_place(store: OpenKv, apart: OpenKv, claim: Claim) -> None:
    """Put what was made apart in the place of the old, which goes."""
    await claim.check()
    scratch, together = Scratch.of(store), able(store.driver, WritesAtOnce)
    if store.driver.id == "memory" and together is not None and store.driver.features.atomic_transactions:
        await _take_all(together, store, apart)
    elif apart.path.startswith(scratch.opened.path) or not await _were_exchanged(store, apart, claim):
        await scratch.store.write(WHOLE, (await scratch.store.read(_NEW)).value)
        await end_replacing(store)
    await scratch.clear()


async def _take_all(together: WritesAtOnce, store: OpenKv, apart: OpenKv) -> None:
    place, target = apart.prefix, as_directory(store.path)
    keys = [key async for batch in place.scan() for key in batch.names]
    answers = await place.read_many([Read(key) for key in keys])
    writes = [Write(target + key, bytes(each.value)) for key, each in zip(keys, answers, strict=True)]
    await together.write_atomic(writes, unchanged={}, deleted=Scratch.around(target))
    await place.delete_range(KeyRange())
    await Scratch.of(store).store.delete_range(KeyRange.prefix(APPEND))


async def _were_exchanged(store: OpenKv, apart: OpenKv, claim: Claim) -> bool:
    """Exchange two directories, and remove the one that is the old one then; return false if the system cannot.

    The claim and a note of what is to be removed come along: they are in the new directory before.
    """
    own = Scratch.of(apart)
    await claim.also_at(own.store)
    await own.note_exchange(Path(apart.path).name)
    if not await execution.offload(exchanged, store.path, apart.path):
        return False
    await Scratch.of(store).begin()
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
    """Copy what is new over what is left of the old, if a note says that this was begun; return whether it was.

    The end of the copy is noted before the new one goes, so that a run after a kill does not copy the rest of it.
    """
    scratch, place = Scratch.of(store), store.as_directory().prefix
    answer = await scratch.store.read(WHOLE)
    if answer.state != "value":
        return False
    note = json.loads(bytes(answer.value))
    new = _at(store, note["directory"])
    if not note.get("copied"):
        await scratch.delete_around(place)
        await _copied_inside(new, store.as_directory())
        found = [key async for batch in new.prefix.documents() for key in batch.names]
        documents = [key for key in found if is_document(key) and not key.startswith(f"{BESIDE}/")]
        for key in sorted(documents, key=_inner_first):
            await place.write(key, bytes((await new.prefix.read(key)).value))
        await scratch.store.write(WHOLE, json.dumps({**note, "copied": True}))
    await remove_tree(new.prefix)
    await scratch.store.delete_range(KeyRange.prefix(APPEND))
    await scratch.clear()
    return True


_IN_TURN = (".zattrs", "attributes.json", ".zgroup", ".zarray", "zarr.json", ".zmetadata")
"""Documents of one node in the order in which they are written: what makes it one, or shows all below it, last."""


def _inner_first(key: str) -> tuple[int, int]:
    """Sort the documents of members before those of their group."""
    return -key.count("/"), _IN_TURN.index(key.rpartition("/")[2])


async def _copied_inside(new: OpenKv, store: OpenKv) -> None:
    """Copy new chunks to their place, by the store itself where it can."""
    quick = await unsynced(store)
    order = Order(f"replace-{uuid4().hex}", KvStore.of(new), KvStore.of(quick or store), unseen=True)
    if quick is not None:
        order = replace(order, durable=KvStore.of(root_of(store)))
    todo = await key_pass("keys", new.prefix, 1 << 20, chunks=1, counted=True)
    await work_on(order, todo, None, reporter_of(None, "replace", 1, 0), lambda _task, _answers: None)


_GOES = "moves-to"


def delete(
    place: Any, *, executor: Executor | None = None, progress: Any = None, context: Context | None = None
) -> Future[int]:
    """Begin to delete an array, or a group with everything in it; the result is how many keys there were.

    Raises an error where there is neither an array nor a group.  In an OCDBT database it is one commit.

    >>> import fsstore as ts
    >>> store = ts.open("memory://a/|zarr3:", create=True, dtype="int16", shape=[4]).result()
    >>> store[:] = 1
    >>> delete(store.kvstore).result()
    2
    """
    spec, chosen = store_spec(place), context_of(context)

    async def run() -> int:
        store = (await open_kv(spec, chosen)).as_directory()
        count = await _count(store.prefix)
        if not count:
            if able(store.driver, KeepsDirectories) is not None:  # of a delete that was killed at its end
                await remove_tree(store.prefix)
            raise NotFoundError(f"There is no array or group at {store.prefix.describe()}")
        if not await Scratch.of(store).deletes_old():
            await _check_node(place, store, chosen)
        async with all_claimed([store], _named(store)):
            if store.driver.features.atomic_transactions:
                await store.prefix.delete_range(KeyRange())
            else:
                await _delete_all(store, count, executor, progress)
        return count

    return execution.start(run())


async def delete_member(place: Place, at: str) -> None:
    """Delete an array, or a group with everything in it; readers of consolidated metadata miss it first."""
    store = place.store.at(place.below(at).path)
    nodes = [""]
    if not await Scratch.of(store).deletes_old():
        if not await exists(place, at):
            raise NotFoundError(await missing(place, at))
        if (await place.look(at)).kind is None:
            nodes = await _outermost(store.prefix)
    await renew(place.prefix, place.words, at, gone=True)
    for path in nodes:
        await _delete_node(store.at(as_directory(f"{store.path}{path}")))
        for above in reversed(levels_above(path)):
            await remove_directory(store.prefix.join(as_directory(above)))
    await renew(place.prefix, place.words, at)


async def _outermost(place: KvPrefix) -> list[str]:
    """Return the paths of arrays and groups that lie in no other one."""
    found = sorted((await hierarchy(place, consolidated=False)).nodes)
    return [path for path in found if not any(path.startswith(f"{other}/") for other in found)]


async def _delete_node(store: OpenKv) -> None:
    async with all_claimed([store], _named(store)):
        if not store.driver.features.atomic_transactions:
            await Scratch.of(store).note_deletion()
            await delete_documents(store.prefix)
        await remove_tree(store.prefix)


def _named(store: OpenKv) -> str:
    return f"a deletion of {store.prefix.describe()}"


async def _count(place: KvPrefix) -> int:
    """Return how many keys there are below a place, but for those of jobs."""
    return sum([not each.key.startswith(f"{BESIDE}/") async for batch in place.scan() for each in batch])


async def _check_node(place: Any, store: OpenKv, context: Context) -> None:
    """Raise an error where no array or group stands: other files are not ours to delete."""
    if (await look(store.prefix)).kind is None and isinstance(await opened_source(place, context), Group):
        raise FailedPreconditionError(
            f"{store.prefix.describe()} is neither an array nor a group, though there are arrays below it; delete"
            " these, since other files there may be those of others"
        )


async def _delete_all(store: OpenKv, count: int, executor: Executor | None, progress: Any) -> None:
    scratch = Scratch.of(store)
    await scratch.note_deletion()
    await delete_documents(store.prefix)
    quick = await unsynced(store)
    order = Order(f"delete-{uuid4().hex}", target=KvStore.of(quick or store))
    if quick is not None:
        order = replace(order, durable=KvStore.of(root_of(store)))
    keys = await key_pass("delete", store.prefix, 1, chunks=count, counted=progress is not None)
    reporter = reporter_of(progress, "delete", keys.pieces, 0)

    def forget(_task: Task, _answers: Any) -> None:
        """Note nothing: what is deleted is not listed again."""

    await work_on(order, keys, executor, reporter, forget)
    await scratch.delete_old(store.prefix)  # what came meanwhile
    await remove_tree(store.prefix)  # lock files of killed writers, and directories
    reporter.ended()


async def move(place: Place, source: str, target: str) -> None:
    """Move an array, or a group with everything in it, to another path; continue if a move to there was killed."""
    if f"{target}/".startswith(f"{source}/"):
        raise StoreError(f"{quote(source)} cannot be moved to {quote(target)}, which is itself or lies inside it")
    job = _Move(place, source, target)
    if not (await exists(place, source) or await job.noted()):
        raise NotFoundError(await missing(place, source))
    await refuse_inside_array(place, target)
    try:
        async with all_claimed([place.store.at(place.below(path).path) for path in (source, target)], job.name):
            await job.run()
    finally:
        for path in (source, target):
            await remove_directory(place.below(path))


@dataclass(frozen=True, slots=True)
class _Move:
    """One move in a hierarchy."""

    place: Place
    source: str
    target: str

    @property
    def name(self) -> str:
        """The move as a part of a sentence."""
        return f"a move of {self.old.describe()} to {quote(self.target)}"

    @property
    def old(self) -> KvPrefix:
        return self.place.below(self.source)

    @property
    def new(self) -> KvPrefix:
        return self.place.below(self.target)

    def scratch(self, path: str) -> Scratch:
        """Return where jobs keep what is theirs at a path."""
        return Scratch.of(self.place.store.at(self.place.below(path).path))

    async def noted(self) -> bytes | None:
        """Return where a move of the array that was killed has gone to."""
        answer = await self.scratch(self.source).store.read(_GOES)
        return bytes(answer.value) if answer.state == "value" else None

    async def run(self) -> None:
        """Do what is left of the move."""
        own, before = self.new.path.encode("utf-8", "surrogateescape"), await self.noted()
        if before is not None and before != own:
            raise FailedPreconditionError(
                f"A move of {self.old.describe()} to {before.decode(errors='replace')!r} was killed; call that again"
                " before it is moved elsewhere"
            )
        keys, there = await self._keys(self.old), await self._keys(self.new)
        if before is None:
            if not any(map(is_document, keys)):
                raise NotFoundError(await missing(self.place, self.source))
            if there:
                raise AlreadyExistsError(f"There is something at {self.new.describe()} already; delete it first")
            await self.scratch(self.source).store.write(_GOES, own)
        if any(map(is_document, keys)):
            await make_groups(self.place, self.target.rpartition("/")[0], {})
            if any(map(is_document, there)):
                self._check_copied([key for key in sorted({*keys} - {*there}) if not is_document(key)])
                await self._check_equal(sorted({*keys} & {*there}))
            else:
                await self._copy(keys)
            await until_settled(self._switched, keys, lambda _: self.old.describe())
        await renew(self.place.prefix, self.place.words, self.source)
        await renew(self.place.prefix, self.place.words, self.target.partition("/")[0])
        await self._remove_old()

    async def _keys(self, at: KvPrefix) -> list[str]:
        """Return the keys below a place, but for those of jobs; what tells of appends belongs to the array."""
        keys = [entry.key async for batch in at.scan() for entry in batch]
        return [key for key in keys if f"/{BESIDE}" not in f"/{key}" or f"/{BESIDE}/{APPEND}" in f"/{key}"]

    async def _copy(self, keys: Sequence[str]) -> None:
        keys = [key for key in keys if not is_document(key)]
        source, target = [KvStore.of(self.place.store.at(each.path)) for each in (self.old, self.new)]
        order = Order(f"move-{uuid4().hex}", source, target)
        for begin in range(0, len(keys), AT_ONCE):
            await WORK["keys"](order, [(packed_keys(keys[begin : begin + AT_ONCE]), 0)])

    async def _switched(self, keys: list[str]) -> list[str]:
        """Switch documents; if others have changed some, copy what they have written, and return the keys."""
        if not await self._switch(keys):
            return []
        keys = await self._keys(self.old)
        await self._copy(keys)
        return keys

    def _check_copied(self, missing: Sequence[str]) -> None:
        """Raise if chunks are missing at the new place, which has documents: the old one got them since."""
        if missing:
            raise self._changed(missing[0])

    def _changed(self, key: str) -> FailedPreconditionError:
        return FailedPreconditionError(
            f"A move of {self.old.describe()} to {quote(self.target)} was killed, and {quote(key)} was changed at one"
            " of them since; delete the one that is not wanted"
        )

    async def _check_equal(self, keys: Sequence[str]) -> None:
        """Raise unless both places, which have documents, hold the same."""
        for begin in range(0, len(keys), AT_ONCE):
            reads = [Read(key) for key in keys[begin : begin + AT_ONCE]]
            for read, one, other in zip(
                reads, await self.old.read_many(reads), await self.new.read_many(reads), strict=True
            ):
                if bytes(one.value) != bytes(other.value):
                    raise self._changed(read.key)

    async def _switch(self, keys: Sequence[str]) -> bool:
        """Write the new documents, the outermost last, and delete the old ones; return whether some have changed."""
        names = sorted(filter(is_document, keys), key=lambda key: key.count("/"))
        answers = dict(zip(names, await self.old.read_many([Read(key) for key in names]), strict=True))
        found = {key: answer for key, answer in answers.items() if answer.state == "value"}
        writes = [Write(self.new.path + key, bytes(found[key].value)) for key in reversed(found)]
        driver, features = self.old.driver, self.old.driver.features
        together = able(driver, WritesAtOnce) if features.atomic_transactions else None
        if together is not None:
            unchanged = {self.old.path + key: answer.generation for key, answer in found.items()}
            await together.write_atomic(writes, unchanged=unchanged, deleted=Scratch.around(self.old.path))
            return False
        for write in writes:
            await driver.write_many([write])
        guarded = features.conditional_write and features.conditional_delete
        deletes = [Write(key, None, each.generation if guarded else UNKNOWN) for key, each in found.items()]
        stamps = await self.old.write_many(deletes)
        return guarded and any(stamp.generation == UNKNOWN for stamp in stamps)

    async def _remove_old(self) -> None:
        """Remove what is left at the old place: the note comes last."""
        for keys in Scratch.around(self.old.path):
            await self.old.driver.delete_range(keys)
        await self.old.delete_range(KeyRange())  # lock files of killed writers, too
