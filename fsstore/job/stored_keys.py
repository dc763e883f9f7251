"""Checking what is stored of an array by its keys and sizes, without reading a value.

Keys are compared as they are listed, a batch at a time, so the check of a hundred million chunks takes no memory.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from math import prod

from fsstore.arrays.store import TensorStore
from fsstore.chunk.model import ChunkModel
from fsstore.driver.chunked_array import ChunkedDriver
from fsstore.job.array_copy import same_layout
from fsstore.job.passes import chunks_at
from fsstore.job.report import Finding
from fsstore.job.tuning import KEYS_ASKED
from fsstore.kvstore.contract.driver import KvPrefix, Read
from fsstore.kvstore.spec.parse import as_directory

__all__ = ["StoredChunks", "stored_chunks"]

_PLAIN = ("zarr3", "zarr", "n5")


@dataclass(slots=True)
class StoredChunks:
    """How many chunks are stored, how many are not, and what is wrong with them."""

    chunks: int = 0
    absent: int = 0
    findings: list[Finding] = field(default_factory=list)
    compared: frozenset[str] = frozenset()
    """Whether `keys` and `sizes` were those of an array of the same layout."""


@dataclass(frozen=True, slots=True)
class _KeyGrid:
    path: str
    shape: tuple[int, ...]
    model: ChunkModel
    place: KvPrefix

    @property
    def count(self) -> int:
        sides = zip(self.model.axes, self.shape, strict=False)  # fields have dimensions that are not cut
        return prod(axis.chunk_of(size - 1) + 1 if size else 0 for axis, size in sides)

    def box(self, key: str) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """Return where the chunk of a key begins and ends; None for keys that are none of the array's."""
        numbers = self.model.numbers(key)
        if numbers is None:
            return None
        low, high = [], []
        for number, axis, size in zip(numbers, self.model.axes, self.shape, strict=False):
            begin = axis.start(number)
            if begin >= size:
                return None
            low.append(begin)
            high.append(min(begin + axis.size(number), size))
        return tuple(low), tuple(high)

    def finding(self, key: str, what: str, kind: str) -> Finding:
        low, high = self.box(key) or ((), ())
        return Finding(self.path, low, high, what, kind, key)


async def stored_chunks(
    path: str, store: TensorStore, other: TensorStore | None, *, sizes: bool, most: int
) -> StoredChunks | None:
    """Return what the keys of an array say; None for a view, or an array of a format that has no keys of chunks."""
    grid = _grid_of(path, store)
    if grid is None:
        return None
    theirs = _grid_of(path, other) if other is not None and same_layout(store, other) else None
    found = StoredChunks()
    if theirs is not None:
        found.compared = frozenset(("keys", "sizes") if sizes else ("keys",))
    async for batch in chunks_at(grid.place):
        for entries in _portions(batch):
            keys = [key for key, _ in entries if grid.box(key) is not None]
            strangers = [key for key, _ in entries if grid.box(key) is None]
            found.chunks += len(keys)
            found.findings += [
                grid.finding(key, f"{key!r} is stored, and no part of the array", "extra")
                for key in strangers
            ]
            if sizes:
                found.findings += [each async for each in _wrong_sizes(grid, theirs, entries, keys)]
            del found.findings[most:]
    found.absent = max(0, grid.count - found.chunks)
    if theirs is not None:
        found.findings += [each async for each in _missing(grid, theirs)]
        del found.findings[most:]
    return found


def _grid_of(path: str, store: TensorStore) -> _KeyGrid | None:
    driver = store._driver
    if not isinstance(driver, ChunkedDriver) or driver.kind.id not in _PLAIN:
        return None
    if store.domain.shape != driver.domain().shape or not driver.kvstore.driver.features.listable:
        return None
    place = driver.kvstore.at(as_directory(driver.kvstore.path)).prefix
    return _KeyGrid(path, driver.array.shape, driver.array.model, place)


def _portions(batch: list[tuple[str, int]]) -> list[list[tuple[str, int]]]:
    return [batch[at : at + KEYS_ASKED] for at in range(0, len(batch), KEYS_ASKED)]


async def _wrong_sizes(
    grid: _KeyGrid, theirs: _KeyGrid | None, entries: list[tuple[str, int]], keys: Sequence[str]
) -> AsyncIterator[Finding]:
    listed = dict(entries)
    ours = await _sizes(grid.place, keys, listed)
    others = [None] * len(keys) if theirs is None else await _sizes(theirs.place, keys, {})
    for key, size, other in zip(keys, ours, others, strict=True):
        numbers = grid.model.numbers(key)
        chain = grid.model.chain_of(numbers) if numbers is not None else grid.model.chain
        wanted = chain.encoded_size
        if size is not None and wanted is not None and size != wanted:
            yield grid.finding(key, f"{key!r} has {size} bytes, not {wanted}", "damaged")
        elif size == 0 and wanted is None:
            yield grid.finding(key, f"{key!r} is empty", "damaged")
        elif size is not None and other is not None and size != other:
            yield grid.finding(key, f"{key!r} has {size} bytes, and {other} in the other array", "differs")


async def _sizes(place: KvPrefix, keys: Sequence[str], listed: dict[str, int]) -> list[int | None]:
    """Return the sizes of values, None for those that are missing or whose size is not told."""
    known = {key: listed[key] for key in keys if listed.get(key)}
    asked = [key for key in keys if key not in known]
    answers = await place.read_many([Read(key, 0, 0) for key in asked])
    told = {key: answer.size for key, answer in zip(asked, answers, strict=True) if answer.state == "value"}
    return [known.get(key, told.get(key)) for key in keys]


async def _missing(grid: _KeyGrid, theirs: _KeyGrid) -> AsyncIterator[Finding]:
    async for batch in chunks_at(theirs.place):
        for entries in _portions(batch):
            keys = [key for key, _ in entries if grid.box(key) is not None]
            for key in await _not_stored(grid.place, keys):
                yield grid.finding(key, f"{key!r} is not stored, and is in the other array", "missing")


async def _not_stored(place: KvPrefix, keys: Sequence[str]) -> list[str]:
    answers = await place.read_many([Read(key, 0, 0) for key in keys])
    return [key for key, answer in zip(keys, answers, strict=True) if answer.state == "missing"]
