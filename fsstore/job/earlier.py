"""A job believes of an earlier run only what is there, beside the very target it was made for.

* A fingerprint of the source is a part of the job's name: the keys of its chunks, their sizes, and their generations
  where asking for them costs no request.  A source that was written meanwhile makes another job, which begins anew.
* A mark, a random value, stands among the chunks and in the journal.  Where they differ, or one is missing, the target
  is not the one that the journal tells of: it was emptied, restored from a backup, or put in the place of another.
* Of the tasks that the journal calls finished, those count whose chunks are all stored.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Iterable
from typing import Any
from uuid import uuid4

import numpy as np

from fsstore.arrays.store import TensorStore
from fsstore.chunk.model import ChunkModel
from fsstore.chunk.regions import BoxSlabs, Region
from fsstore.dataset.same_place import leaves_of
from fsstore.driver.chunked_array import ChunkedDriver
from fsstore.driver.contract import ArrayDriver
from fsstore.index.transform import IndexTransform
from fsstore.job.order import Order, OwnDatabase
from fsstore.job.passes import finished_keys
from fsstore.job.scratch import MARK, is_of_job
from fsstore.job.tuning import KEYS_ASKED
from fsstore.kvstore.contract.ability import SweepsUnfinished, able
from fsstore.kvstore.contract.driver import KvPrefix, Read
from fsstore.kvstore.spec.parse import as_directory
from fsstore.kvstore.store.kv_store import KvStore
from fsstore.runtime import execution

__all__ = ["fingerprint", "is_marked", "mark", "still_there", "unmark"]


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
        answers = await execution.offload(
            lambda: execution.drive(_all_read(place, [Read(key, 0, 0) for key in keys]))
        )
        generations = [answer.generation for answer in answers]
    total = 0
    for key, size, generation in zip(keys, sizes, generations, strict=True):
        text = f"{key}\0{size}\0".encode("utf-8", "surrogateescape") + generation
        total += int.from_bytes(hashlib.blake2b(text, digest_size=12).digest())
    return total


async def _all_read(place: KvPrefix, reads: list[Read]) -> Any:
    return await place.read_many(reads)


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
        for at in range(0, len(found), KEYS_ASKED):
            part = found[at : at + KEYS_ASKED]
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
    own, told = await place.read(MARK), await journal.read(MARK)
    return own.state == "value" and told.state == "value" and bytes(own.value) == bytes(told.value)


async def mark(place: KvPrefix, journal: KvStore) -> None:
    """Give a target and a journal the same mark."""
    value = uuid4().hex.encode()
    await journal.write(MARK, value)
    await place.write(MARK, value)


async def unmark(place: KvPrefix) -> None:
    """Take the mark away from a target, and what a killed writer of it has left."""
    await place.write(MARK, None)
    sweeper = able(place.driver, SweepsUnfinished)
    if sweeper is not None:
        await sweeper.sweep_unfinished(place.path, MARK)


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
            found[kind] = {
                number for number in done if stored.box(array, next(pieces.split(number, number + 1))[1])
            }
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
        driver = target._driver
        if not isinstance(driver, ChunkedDriver):
            return False
        numbers = [
            np.arange(axis.chunk_of(low), axis.chunk_of(high - 1) + 1) if high > low else np.arange(0)
            for low, high, axis in zip(box.start, box.stop, driver.array.model.axes, strict=False)
        ]
        return self.all(driver.array.model.keys_of_product([each.tolist() for each in numbers]))
