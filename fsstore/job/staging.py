"""Copies that appear at once: in databases and sets, and in stores that are written as one, as ZIP archives are.

Workers write where nobody looks, and one commit takes all of it.  The target must be able to refer to what lies
elsewhere below its directory: an OCDBT database takes databases, of which each worker writes its own; a reference set
in one document takes files.  No value is copied by the commit: it takes the keys of what was written, the documents,
and the deletion of what was there, as one step.  Readers see the old or the new; a job that is killed leaves the old.

The next run of a job must not write over files that a set refers to, so each job has a directory of its own, whose
name it keeps until it is done.  Its notes of finished work count for that directory only.

A copy into an archive is made in a directory and packed in one step, if nobody has written to the archive meanwhile.
The members that the archive has already are unpacked first, so the copy finds them as it would anywhere else.
"""

from __future__ import annotations

import hashlib
import mmap
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar
from uuid import uuid4

import numpy as np

from fsstore.arrays.store import TensorStore
from fsstore.arrays.store import open as open_array
from fsstore.chunk.model import ChunkModel
from fsstore.chunk.regions import BoxSlabs, Region
from fsstore.context.context import Context
from fsstore.dataset.place import remove_directory
from fsstore.driver.chunked_array import ChunkedDriver
from fsstore.driver.contract import ArrayDriver, leaves_of
from fsstore.errors import AbortedError, StoreError, UnimplementedError
from fsstore.index.transform import IndexTransform
from fsstore.job.passes import Order, OwnDatabase, chunk_keys, finished_keys, opened_database, unsynced
from fsstore.job.scratch import SCRATCH_MARK, around, is_of_job
from fsstore.kvstore.contract.ability import ListsNames, SweepsUnfinished, TakesAllAtOnce, WritesAtOnce, able
from fsstore.kvstore.contract.driver import NO_VALUE, UNKNOWN, Buffer, KvPrefix, Read, ReadResult, Write
from fsstore.kvstore.contract.request import KeyRange, key_bytes
from fsstore.kvstore.kv_store import KvStore
from fsstore.kvstore.spec_parse import OpenKv, as_directory, kv_spec, open_kv
from fsstore.ocdbt.commit import DATA_NAME, NodeLayout
from fsstore.runtime import execution
from fsstore.runtime.tuning import KEPT_BYTES, PAGE, PIECE_BYTES

# A job believes of an earlier run only what is there, beside the very target it was made for.
#
# * A fingerprint of the source is a part of the job's name: the keys of its chunks, their sizes, and their generations
#   where asking for them costs no request.  A source that was written meanwhile makes another job, which begins anew.
# * A mark, a random value, stands among the chunks and in the journal.  Where they differ, or one is missing, the
#   target is not the one that the journal tells of: it was emptied, restored from a backup, or put in the place of
#   another.
# * Of the tasks that the journal calls finished, those count whose chunks are all stored.


async def fingerprint(source: TensorStore) -> str:
    """Return a digest of the stored chunks from which an array comes; it changes when they are written."""
    total = 0
    for leaf in await leaves_of(source._driver):
        if leaf.kvstore is None:
            continue
        opened = leaf.kvstore.within(None)
        is_chunked = isinstance(leaf, ChunkedDriver)
        place = KvPrefix(opened.driver, as_directory(opened.path) if is_chunked else opened.path)
        reach = _reach(leaf, source._transform if leaf is source._driver else None)
        async for keys, sizes in _listed(place, reach):
            total += await _entries_digest(place, keys, sizes)
    return f"{total % (1 << 96):024x}"


async def _entries_digest(place: KvPrefix, keys: list[str], sizes: list[int | None]) -> int:
    """Return a number for some entries that does not depend on their order."""
    generations: list[bytes] = [b""] * len(keys)
    if not place.driver.features.waits:
        answers = await execution.offload(lambda: execution.drive(place.read_many([Read(key, 0, 0) for key in keys])))
        generations = [answer.generation for answer in answers]
    total = 0
    for key, size, generation in zip(keys, sizes, generations, strict=True):
        text = f"{key}\0{size}\0".encode("utf-8", "surrogateescape") + generation
        total += int.from_bytes(hashlib.blake2b(text, digest_size=12).digest())
    return total


async def _listed(
    place: KvPrefix, reach: tuple[ChunkModel, list[range]] | None
) -> AsyncIterator[tuple[list[str], list[int | None]]]:
    """Yield the stored chunks within reach, a portion at a time; of an image, its file."""
    if not place.driver.features.listable:
        return
    async for batch in place.scan():
        sizes = batch.sizes if place.driver.features.waits else [None] * len(batch)  # generations tell more
        found = [
            (key, size)
            for key, size in zip(batch.names, sizes, strict=True)
            if not is_of_job(key) and (reach is None or _is_within(key, *reach))
        ]
        for at in range(0, len(found), PAGE):
            part = found[at : at + PAGE]
            yield [key for key, _ in part], [size for _, size in part]


def _reach(leaf: ArrayDriver, view: IndexTransform | None) -> tuple[ChunkModel, list[range]] | None:
    """Return the chunks of an array that a view of it touches at most: what is appended meanwhile is not among them."""
    if not isinstance(leaf, ChunkedDriver):
        return None
    model, shape = leaf.array.model, leaf.array.shape
    hull = [(0, size) for size in shape]
    if view is not None:
        for number, each in enumerate(view.output[: len(hull)]):
            at = each.input_dimension
            if at is not None:
                stride = each.stride or 0
                first = each.offset + stride * view.input_inclusive_min[at]
                last = each.offset + stride * (view.input_exclusive_max[at] - 1)
                hull[number] = (max(0, min(first, last)), min(shape[number], max(first, last) + 1))
    return model, [
        range(axis.chunk_of(low), axis.chunk_of(high - 1) + 1) if high > low else range(0)
        for (low, high), axis in zip(hull, model.axes, strict=False)
    ]


def _is_within(key: str, model: ChunkModel, reach: list[range]) -> bool:
    numbers = model.numbers(key)
    return numbers is not None and all(number in some for number, some in zip(numbers, reach, strict=False))


async def is_marked(place: KvPrefix, journal: KvStore) -> bool:
    """Whether a target has the mark of a journal."""
    own, told = await place.read(SCRATCH_MARK), await journal.read(SCRATCH_MARK)
    return own.state == "value" and told.state == "value" and bytes(own.value) == bytes(told.value)


async def mark(place: KvPrefix, journal: KvStore) -> None:
    """Give a target and a journal the same mark."""
    value = uuid4().hex.encode()
    await journal.write(SCRATCH_MARK, value)
    await place.write(SCRATCH_MARK, value)


async def unmark(place: KvPrefix) -> None:
    """Take the mark away from a target, and what a killed writer of it has left."""
    await place.write(SCRATCH_MARK, None)
    sweeper = able(place.driver, SweepsUnfinished)
    if sweeper is not None:
        await sweeper.sweep_unfinished(place.path, SCRATCH_MARK)


async def still_there(finished: dict[str, set[int]], order: Order, chunk_bytes: int) -> dict[str, set[int]]:
    """Return those of the tasks that an earlier run has finished whose chunks are all stored.

    Which of a worker's own databases has which chunk is not asked.
    """
    if isinstance(order.target, OwnDatabase):
        return finished if await order.target.base.list() else {}
    array = None if isinstance(order.target, KvStore) else order.target
    stored, found = await _StoredKeys.at(order.target.prefix if array is None else _directory_of(array)), {}
    for kind, done in finished.items():
        if kind == "spilled":
            assert order.scratch is not None
            found[kind] = done & {int(key) for key in await order.scratch.list()}
        elif array is None:
            found[kind] = await finished_keys(order.source.prefix, chunk_bytes, done, stored.all)
        else:
            pieces = BoxSlabs.whole(order.targets) if kind == "gathered" else order.pieces
            found[kind] = {number for number in done if stored.box(array, next(pieces.split(number, number + 1))[1])}
    return found


def _directory_of(array: TensorStore) -> KvPrefix:
    opened = array._driver.kvstore
    assert opened is not None
    return opened.as_directory().prefix


class _StoredKeys:
    """The keys that are stored at a place, as numbers: eight bytes each."""

    def __init__(self, hashes: np.ndarray[Any, np.dtype[np.int64]]) -> None:
        self._hashes = hashes

    @classmethod
    async def at(cls, place: KvPrefix) -> _StoredKeys:
        """Return the keys below a place."""
        parts = [np.fromiter(map(hash, batch.names), np.int64, len(batch)) async for batch in place.scan()]
        parts.append(np.zeros(0, np.int64))
        return cls(np.unique(np.concatenate(parts)))

    def all(self, keys: Iterable[str]) -> bool:
        """Whether all of some keys are stored."""
        wanted = np.fromiter(map(hash, keys), np.int64)
        if not len(self._hashes):
            return not len(wanted)
        at = np.searchsorted(self._hashes, wanted).clip(max=len(self._hashes) - 1)
        return bool(np.all(self._hashes[at] == wanted))

    def box(self, target: TensorStore, box: Region) -> bool:
        """Whether all chunks of a box of an array are stored."""
        return isinstance(target._driver, ChunkedDriver) and self.all(chunk_keys(target, box))


_STAGED = "fsstore-data"
_MANIFEST = b"manifest.ocdbt"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Stage:
    """The directory below which workers of one job write."""

    store: OpenKv
    """The target, in the database or set that will take all."""
    directory: OpenKv
    name: str

    @classmethod
    async def of(cls, store: OpenKv, notes: KvStore) -> Stage:
        """Return the stage of a job, named in its `notes`."""
        name = uuid4().hex[:16]
        if not (await notes.write("stage", name, if_equal=NO_VALUE)).generation:
            name = bytes((await notes.read("stage")).value).decode()
        return cls.named(store, name)

    @classmethod
    def named(cls, store: OpenKv, name: str) -> Stage:
        """Return the stage of a name."""
        outside = around(store)
        assert outside is not None  # a target that takes stores lies in a directory
        return cls(store, outside.at(f"{outside.path}{_STAGED}/{name}/"), name)

    @property
    def _taking(self) -> TakesAllAtOnce:
        taking = able(self.store.driver, TakesAllAtOnce)
        assert taking is not None
        return taking

    async def own(self, order: Order, target: TensorStore, path: str, *, untouched: bool) -> Order:
        """Return the order of a job whose workers write below the stage."""
        place = KvStore.of(await unsynced(self.directory) or self.directory)
        spec = target.spec().to_json()
        spec.pop("kvstore")
        if self._taking.takes_stores == "own":
            return replace(order, target=OwnDatabase(spec, place, path, untouched))
        if untouched:
            return replace(order, target=place / path)
        made = await open_array({**spec, "kvstore": place / path}, assume_metadata=True, open=True)
        return replace(order, target=made)

    async def own_database(self) -> OpenKv:
        """Return a database of the stage, at the path that the target has in its own."""
        made = await opened_database(KvStore.of(self.directory) / "whole/")
        return made._open.at(self.store.path)

    async def commit(
        self, documents: Mapping[str, bytes], *, unchanged: Mapping[str, bytes], deleted: Sequence[KeyRange]
    ) -> None:
        """Take what all workers have written, with the documents, in one commit.

        Raises `AbortedError` if a key of `unchanged` has another generation by now.
        """
        if self._taking.takes_stores == "files":
            files = [self.directory.prefix]
            await self._taking.take_all(files, documents, unchanged=unchanged, deleted=deleted)
            return
        others = []
        for key in await self._manifests():
            directory = KvStore.of(self.directory) / key.decode().removesuffix(_MANIFEST.decode())
            others.append(KvPrefix((await opened_database(directory))._open.driver))
        await self._taking.take_all(others, documents, unchanged=unchanged, deleted=deleted)

    async def clear(self) -> None:
        """Leave only data in the directory: what was taken is no database by itself any more."""
        for key in await self._manifests():
            await KvStore.of(self.directory).write(key, None)
        await self._sweep()

    async def _sweep(self) -> None:
        """Remove what killed workers had begun to write: nobody opens their databases again, and so writes over it."""
        driver, path = self.directory.driver, self.directory.path
        sweeper, listing = able(driver, SweepsUnfinished), able(driver, ListsNames)
        if sweeper is None or listing is None or self._taking.takes_stores != "own":
            return
        for name in await listing.names(path):
            database = KvPrefix(driver, f"{path}{name}/")
            await sweeper.sweep_unfinished(database.path, re.escape(_MANIFEST.decode()))
            for prefix in NodeLayout().prefixes():
                below = database.path + prefix.decode()
                await sweeper.sweep_unfinished(below, DATA_NAME)
                await remove_directory(KvPrefix(driver, below))
            await remove_directory(database)

    async def _manifests(self) -> list[bytes]:
        if self._taking.takes_stores != "own":
            return []
        return [key for key in await KvStore.of(self.directory).list() if key.endswith(b"/" + _MANIFEST)]


async def check_takes(store: OpenKv, documents: Mapping[str, bytes], deleted: Sequence[KeyRange]) -> None:
    """Raise if a store cannot take arrays with these documents in one step, before anything is written for it."""
    await check_is_taking(store).check_taking(documents, deleted)


def check_is_taking(store: OpenKv) -> TakesAllAtOnce:
    """Return what takes arrays in one step; raises if the store has no such thing."""
    taking = able(store.driver, TakesAllAtOnce)
    if taking is None or taking.takes_stores is None or around(store) is None:
        raise UnimplementedError(
            f"{store.driver.describe_key(store.path)} cannot take a copy in one step; copy into an OCDBT database"
            " (`|ocdbt:`), a reference set (`|reference:`) or a virtual dataset (`|mosaic:`), or without"
            " atomic=True, which writes the metadata of new arrays last"
        )
    return taking


def only_takes(store: OpenKv) -> bool:
    """Return whether new arrays can be made in a store in no other way than in one step."""
    taking = able(store.driver, TakesAllAtOnce)
    return taking is not None and taking.only_takes


def packs(store: OpenKv) -> bool:
    """Return whether a store is written as one."""
    return store.driver.features.written_as_one and store.driver.features.writable


async def made_apart(store: OpenKv, context: Context, make: Callable[[OpenKv], Awaitable[T]]) -> T:
    """Have `make` write into a directory what stands at a store, and write all of it there in one step."""
    together = able(store.driver, WritesAtOnce)
    assert together is not None
    with TemporaryDirectory(prefix="fsstore-") as directory:
        place = await open_kv(kv_spec({"driver": "file", "path": f"{directory}/"}), context)
        seen = await _unpack(store, Path(directory))
        try:
            made = await make(place)
        except StoreError as error:
            shown = error.without(f"{directory}/")
            raise shown.within(f"While {store.prefix.describe()} is made in a directory") from error
        values = await execution.offload(_values, Path(directory))
        writes = [Write(store.path + key, value, UNKNOWN if seen else NO_VALUE) for key, value in values]
        failed = await together.write_atomic(
            writes, unchanged=seen, deleted=[KeyRange.prefix(store.path)] if seen else []
        )
    if failed:
        raise AbortedError(f"{store.prefix.describe()} was written by somebody else while it was made")
    return made


async def _unpack(store: OpenKv, directory: Path) -> dict[str, bytes]:
    """Write what stands at a store into a directory; return the generation of one of its keys, if there is any."""
    seen: dict[str, bytes] = {}
    batch: list[str] = []
    size = 0
    async for entries in store.prefix.scan():
        for key, length in entries:
            batch.append(key)
            size += length or 0
            if size >= KEPT_BYTES:
                seen |= await _unpacked(store, directory, batch)
                batch, size = [], 0
    if batch:
        seen |= await _unpacked(store, directory, batch)
    return dict(list(seen.items())[-1:])


async def _unpacked(store: OpenKv, directory: Path, keys: Sequence[str]) -> dict[str, bytes]:
    answers = await store.prefix.read_many([Read(key) for key in keys])
    await execution.offload(_write_files, directory, keys, answers)
    return {store.path + keys[-1]: answers[-1].generation}


def _write_files(directory: Path, keys: Sequence[str], answers: Sequence[ReadResult]) -> None:
    for key, answer in zip(keys, answers, strict=True):
        path = directory / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(answer.value)


def _values(directory: Path) -> list[tuple[str, Buffer]]:
    """Return the files of a directory by their keys, large ones mapped."""
    values: list[tuple[str, Buffer]] = []
    for path in sorted(directory.rglob("*"), key=lambda each: key_bytes(str(each))):
        if path.is_file():
            with path.open("rb") as file:
                large = path.stat().st_size >= PIECE_BYTES
                value = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if large else file.read())
            values.append((path.relative_to(directory).as_posix(), value))
    return values
