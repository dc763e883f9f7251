"""Encodings of the chunks that a request writes.

A covered chunk is encoded; a partly written chunk is decoded, changed and encoded again.  In a shard, only the touched
sub-chunks are decoded and encoded; the others keep their bytes, and a stored shard is read little by little, because
memory for all of it may be missing.  A chunk whose elements all equal the fill value, bit by bit, is not stored.
Chunks that were just changed are remembered decoded for the next change.

An encoding is made when it is asked for, portion by portion: a shard may be under way to the disk before its last
sub-chunks are encoded.  Nothing here knows of keys or stores.
"""

from __future__ import annotations

import io
import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple, Self, TypeAlias

import numpy as np

from fsstore.chunk.model import ChunkModel
from fsstore.chunk.open_chunks import OpenChunks
from fsstore.chunk.place import Placement, Sending
from fsstore.chunk.planner import AnyCell
from fsstore.chunk.request import OutputMap, new_array
from fsstore.chunk.shard_entries import ShardEntries
from fsstore.chunk.shard_source import ShardGrid, shard_grid
from fsstore.codec.buffers import equals_fill, missing_element, rows_equal_fill
from fsstore.codec.chain import BoundChain, encode_rows, in_rows
from fsstore.codec.contract import Array, Buffer
from fsstore.codec.sharding import (
    MISSING,
    Run,
    ShardLayout,
    StoredParts,
    in_portions,
    portions_of_runs,
    present_in,
    run_of_one,
)
from fsstore.errors import AbortedError, OutOfRangeError
from fsstore.kvstore.contract.batch import Ints
from fsstore.kvstore.contract.driver import KvDriver, Read, ReadResult
from fsstore.runtime import execution, fork
from fsstore.runtime.cache import CachePool
from fsstore.runtime.fork import OfProcess
from fsstore.runtime.tuning import BATCH_BYTES, FLIGHT_BYTES, HOP_BYTES, REQUEST_BYTES, STORED_BLOCK_BYTES

_TAIL = 16  # bytes by which an encoding is looked up: they are compressed, or a checksum

# Elements of recently changed and encoded chunks.

_Key: TypeAlias = tuple[BoundChain, int, bytes]
pool = OfProcess(lambda: CachePool(BATCH_BYTES))
"""The chunks of this process; a forked child that writes little would keep its parent's for ever."""


def is_kept(chain: BoundChain) -> bool:
    """Return whether the chunks of a chain are cached."""
    return chain.is_exact and chain.decoded_size <= BATCH_BYTES // 2 and chain.effort >= HOP_BYTES // 4


def keep(chain: BoundChain, data: Buffer, chunk: Array) -> None:
    """Cache the chunk that `data` decodes to, if such chunks are; the caller must not change `chunk` afterwards."""
    if is_kept(chain) and isinstance(data, bytes):  # other buffers may be views of reused memory
        pool.now.put(_key(chain, data), (data, chunk), len(data) + chunk.nbytes)


def taken(chain: BoundChain, data: Buffer) -> Array | None:
    """Return the cached chunk that `data` decodes to, or None; the caller owns it and may change it."""
    found = pool.now.take(_key(chain, data)) if is_kept(chain) else None
    # compares memory, even for a view; `==` would compare its elements one by one
    return found[1] if found is not None and found[0].startswith(data) else None


def _key(chain: BoundChain, data: Buffer) -> _Key:
    return chain, len(data), bytes(data[-_TAIL:])


# Stored chunks are decoded to be changed, and encoded again.

Portions: TypeAlias = Iterator[Sequence[Buffer]]


def joined(portions: Portions, usual: int) -> Buffer:
    """Return an encoding in one piece, usually of at most about `usual` bytes.

    Joined parts may be large, so each is freed at once, unless all of them are so small that memory suffices for both.
    The memory for a whole chunk is allocated at once: growing would leave outgrown blocks behind.  Shards may be far
    larger than their encoding.
    """
    first: list[Buffer] = []
    left = REQUEST_BYTES
    for portion in portions:
        first += portion
        left -= sum([memoryview(part).nbytes for part in portion])
        if left < 0:
            break
    else:
        return first[0] if len(first) == 1 else b"".join(first)
    second = next(portions, None)
    if second is None and len(first) == 1:
        return first[0]
    whole = io.BytesIO()
    whole.seek(min(usual + usual // 64, FLIGHT_BYTES))
    whole.write(b"\0")
    whole.seek(0)
    whole.writelines(itertools.chain(first, second or ()))
    del first, second, portion
    whole.writelines(itertools.chain.from_iterable(portions))
    whole.truncate()
    return whole.getvalue()


def decoded(data: Buffer | None, chain: BoundChain) -> Array:
    """Return a chunk that may be changed: decoded from `data`, or filled with the fill value."""
    known = None if data is None else taken(chain, data)
    if known is not None:
        return known
    if data is not None and not chain.decodes_in_place:
        borrowed = chain.decode_to_scratch(data)  # before allocating the chunk, which may be large
        chunk = _as_encoded(chain)
        np.copyto(chunk, borrowed, casting="equiv")
        return chunk
    chunk = _as_encoded(chain)
    if data is None:
        chunk[...] = missing_element(chain.chunk.dtype, chain.chunk.fill_value)
    else:
        chain.decode(data, chunk)
    return chunk


def decoded_run(olds: Sequence[ReadResult | None], chain: BoundChain) -> Array | None:
    """Return small chunks along a new first dimension, which may be changed, in the memory order of their encoding.

    `olds` holds the stored bytes of each; chunks without any are left unset.  The result is None if they cannot be
    decoded together.
    """
    chunks = _as_encoded(chain, (len(olds),))
    values = [at for at, old in enumerate(olds) if old is not None and old.state == "value"]
    if values:
        found = chain.decode_run_to_scratch([old.value for old in olds if old is not None and old.state == "value"])
        if found is None:
            return None
        chunks[values if len(values) < len(olds) else slice(None)] = found
    missing = [at for at, old in enumerate(olds) if old is not None and old.state != "value"]
    if missing:
        chunks[missing] = missing_element(chain.chunk.dtype, chain.chunk.fill_value)
    return chunks


def portions_of(chunk: Array, chain: BoundChain, *, elide: bool) -> Portions:
    """Return the encoding of a chunk after its last change, in portions."""
    if is_kept(chain):
        yield [encoded(chunk, chain)]
        return
    portions = chain.portions(chunk, elide=elide)
    del chunk  # it may be large
    yield from portions


def encoded(chunk: Array, chain: BoundChain) -> Buffer:
    """Return the encoding of a chunk after its last change."""
    data = chain.encode(chunk)
    keep(chain, data, chunk)
    return data


def _as_encoded(chain: BoundChain, lead: tuple[int, ...] = ()) -> Array:
    """Return memory for a chunk, or for several along `lead`, in the memory order of their encoding."""
    spec, order = chain.chunk, chain.order
    if order is None or sorted(order) == [*order]:
        return new_array((*lead, *spec.shape), spec.dtype, passing=True)
    laid_out = new_array((*lead, *[spec.shape[axis] for axis in order]), spec.dtype, passing=True)
    behind = len(lead)
    return laid_out.transpose([*range(behind), *[behind + order.index(axis) for axis in range(len(order))]])


# A stored shard that is partly rewritten, read piece by piece.


class ShardChangedError(AbortedError):
    """The shard was rewritten during the write of a part; writing that part again uses the new shard."""


class StoredShard:
    """The encoded sub-chunks of a shard by number, None for a missing one; `generation` is the shard's.

    It may be used by several threads at once, and only over stores that never wait.
    """

    state = "value"

    def __init__(self, driver: KvDriver, key: str, layout: ShardLayout, index: ReadResult) -> None:
        self._driver, self._key, self.generation = driver, key, index.generation
        entries = layout.decode_index(index.value, index.size)
        self._entries: list[list[int]] = entries.tolist()
        length = np.where(present_in(entries), entries[:, 1], 0).astype(np.int64)
        self._blocks: list[int] = (np.cumsum(length) // STORED_BLOCK_BYTES).tolist()
        self._kept: dict[int, dict[int, Buffer]] = {}
        self._lock = fork.brief_lock()

    @classmethod
    def read(cls, driver: KvDriver, key: str, layout: ShardLayout) -> Self | ReadResult:
        """Return a shard after reading its index; or the stored value if it is missing or too short for an index."""
        size = layout.index_size
        first = Read(key, 0, size) if layout.at_start else Read(key, -size)
        try:
            [index] = execution.drive(driver.read_many([first]))
        except OutOfRangeError:
            [index] = execution.drive(driver.read_many([Read(key)]))
            return index
        return index if index.state == "missing" else cls(driver, key, layout, index)

    def __getitem__(self, number: int) -> Buffer | None:
        if self._entries[number][0] == MISSING:
            return None
        block = self._blocks[number]
        kept = self._kept.get(block)
        return (self._taken(block) if kept is None else kept)[number]

    def runs(self, first: int, stop: int, changed: Mapping[int, Buffer | None]) -> Iterator[Run]:
        """Yield the encoded sub-chunks of a range, from `changed` or read on demand."""
        for number in range(first, stop):
            yield run_of_one(changed[number] if number in changed else self[number])

    def _taken(self, block: int) -> dict[int, Buffer]:
        """Return the sub-chunks of a block by number, and cache them."""
        with self._lock:
            if block not in self._kept:
                self._kept[block] = self._read(block)
                if len(self._kept) > 4:
                    del self._kept[next(iter(self._kept))]
            return self._kept[block]

    def _read(self, block: int) -> dict[int, Buffer]:
        first, stop = bisect_left(self._blocks, block), bisect_right(self._blocks, block)
        numbers = [each for each in range(first, stop) if self._entries[each][0] != MISSING]
        entries = [self._entries[number] for number in numbers]
        low, high = min(offset for offset, _ in entries), max(sum(entry) for entry in entries)
        if high - low > 2 * STORED_BLOCK_BYTES + max(length for _, length in entries):  # they lie far apart
            values = self._values([Read(self._key, offset, offset + length) for offset, length in entries])
            return dict(zip(numbers, values, strict=True))
        view = memoryview(self._values([Read(self._key, low, high)])[0])
        return {
            number: view[offset - low : offset - low + length]
            for number, (offset, length) in zip(numbers, entries, strict=True)
        }

    def _values(self, reads: Sequence[Read]) -> list[Buffer]:
        try:
            answers = execution.drive(self._driver.read_many(reads))
        except OutOfRangeError:  # the new shard may be shorter
            if execution.drive(self._driver.read_many([Read(self._key)]))[0].generation == self.generation:
                raise
            raise self._changed() from None
        if any(answer.generation != self.generation for answer in answers):
            raise self._changed()
        return [answer.value for answer in answers]

    def _changed(self) -> ShardChangedError:
        name = self._driver.describe_key(self._key)
        return ShardChangedError(f"{name} was rewritten, without its lock, while a part of it was written")


# The changed sub-chunks of a shard, each decoded and encoded once.

Stored: TypeAlias = ReadResult | StoredShard
_Parts: TypeAlias = StoredParts | StoredShard


class ShardParts(NamedTuple):
    """Written cells of sub-chunks of a shard, and their numbers in its index, perhaps one for each level."""

    cells: Sequence[AnyCell]
    numbers: Sequence[Any] | Ints


class ShardChange(NamedTuple):
    """The change of some parts of one shard, and their placement."""

    grid: ShardGrid
    placement: Sending
    model: ChunkModel
    elide: bool
    parts: ShardParts

    def is_whole(self, cell: AnyCell) -> bool:
        """Return whether the change replaces a whole stored sub-chunk."""
        return not self.model.is_partial and self.placement.has_target(cell)

    def covering(self, cell: AnyCell) -> Array:
        """Return the values of a covered sub-chunk."""
        chunk = self.placement.target(cell)
        assert chunk is not None, "a covered cell has a target"
        return np.ascontiguousarray(self.grid.in_stored_order(chunk))

    def copy_in(self, cell: AnyCell, chunk: Array) -> None:
        """Change a part of a sub-chunk."""
        self.placement.copy_in(cell, self.model.view(self.grid.in_array_order(chunk)))

    def encoded(self, chunk: Array, chain: BoundChain, *, is_own: bool) -> Buffer | None:
        """Return the encoding of a sub-chunk after its last change; `is_own` if no one else changes its memory."""
        fill = chain.chunk.fill_value
        if not self.elide:
            return chain.encode_all(chunk)
        if fill is not None and equals_fill(chunk, fill):
            return None
        return encoded(chunk, chain) if is_own else chain.encode(chunk)


_Touched: TypeAlias = list[tuple[ShardChange, AnyCell, tuple[int, ...]]]


def changed_shard(changes: Sequence[ShardChange], old: Stored | None, *, may_vanish: bool) -> Portions | None:
    """Return the encoding of a shard after ordered changes; None if it is empty and `may_vanish`."""
    touched: _Touched = []
    for change in changes:
        for cell, number in zip(*change.parts, strict=True):
            touched.append((change, cell, number if isinstance(number, tuple) else (number,)))
    layouts = changes[0].grid.layouts
    before: _Parts
    if isinstance(old, StoredShard):
        before = old
    else:
        before = StoredParts.of(None if old is None or old.state == "missing" else old.value, layouts[0])
    return _joined_runs(layouts[0], _changed_runs(layouts, touched, before), may_vanish=may_vanish)


def _joined_runs(layout: ShardLayout, runs: Iterable[Run], *, may_vanish: bool) -> Portions | None:
    if may_vanish:
        runs = list(runs)
        if all(length < 0 for lengths, _ in runs for length in lengths):
            return None
    return portions_of_runs(layout, runs)


def _changed_runs(layouts: Sequence[ShardLayout], touched: _Touched, before: _Parts) -> Iterator[Run]:
    """Yield the parts of a shard, which may be shards themselves: the touched ones changed."""
    layout, *inside = layouts
    by_part: dict[int, _Touched] = {}
    for one in touched:
        by_part.setdefault(one[2][-len(layouts)], []).append(one)

    def change(number: int) -> Buffer | None:
        if not inside:
            return _changed_part(by_part[number], before, number, layout.inner)
        runs = _changed_runs(inside, by_part[number], StoredParts.of(before[number], inside[0]))
        portions = _joined_runs(inside[0], runs, may_vanish=True)
        return None if portions is None else b"".join(chain.from_iterable(portions))

    numbers = sorted(by_part)
    made = layout.map_parts(change, numbers, layout.inner.decoded_size)
    first = 0
    for some in in_portions(numbers, layout):
        stop = some[-1] + 1 if some[-1] < numbers[-1] else layout.count
        changed = dict(zip(some, made))  # noqa: B905  # later ones are not made yet
        yield from before.runs(first, stop, changed)
        first = stop


def _changed_part(touched: _Touched, before: _Parts, number: int, chain: BoundChain) -> Buffer | None:
    """Return the encoding of a sub-chunk after its changes; changes before a whole replacement are ignored."""
    whole = [at for at, (change, cell, _) in enumerate(touched) if change.is_whole(cell)]
    if not whole:
        chunk = decoded(before[number], chain)
    else:
        first, cell, _ = touched[whole[-1]]
        touched = touched[whole[-1] + 1 :]
        if not touched:
            return first.encoded(first.covering(cell), chain, is_own=False)
        chunk = first.covering(cell).copy()
    for change, cell, _ in touched:
        change.copy_in(cell, chunk)
    return touched[-1][0].encoded(chunk, chain, is_own=True)


WrittenCell: TypeAlias = AnyCell | ShardParts
"""A written part of a chunk: a cell of a request, or separate parts of a shard."""


class WriteRequest(NamedTuple):
    """A write: the selected elements of chunks, and their values.

    `values` has the dtype of the model; `maps` and the shape of `values` are those of `plan.plan`.  `elide` deletes
    chunks that equal the fill value.
    """

    chunks: OpenChunks
    maps: Sequence[OutputMap]
    values: Array
    elide: bool = True


class ChunkEncoder:
    """Encodes the chunks of one request.  Several threads may use it at once.

    `is_sharded`: parts of chunks are encoded separately.  `keeps`: partly written chunks that become all fill values
    are stored nevertheless.
    """

    def __init__(self, request: WriteRequest, placement: Sending, *, keeps: bool) -> None:
        self._model, self._placement = request.chunks.model, placement
        self._elide, self._keeps = request.elide, keeps
        self._request = request
        self.is_sharded = self._model.shard is not None

    @cached_property
    def _entries(self) -> ShardEntries:
        """The touched sub-chunks; whole shards do not need them, and computing them twice does no harm."""
        return ShardEntries.touched_by(self._request.maps, self._request.values.shape, self._model)

    @cached_property
    def _entry_placement(self) -> Placement:
        return Placement(self._entries.plan, self._request.values)

    def shard_change(self, shard: WrittenCell) -> ShardChange:
        """Return the change of the parts of a shard: the given ones, or those that the request touches."""
        grid, placement = shard_grid(self._model.chain), self._placement
        if not isinstance(shard, ShardParts):
            shard, placement = ShardParts(*self._entries.of(shard)), self._entry_placement
        return ShardChange(grid, placement, self._model, self._elide, shard)

    def changed_shard(self, shard: WrittenCell, changes: Sequence[ShardChange], old: Stored | None) -> Portions | None:
        """Return the encoding of a shard after changes, the last one by this request; None if it vanishes."""
        was_stored = old is not None and old.state != "missing"
        may_vanish = self._may_vanish(shard, self._model.chain, was_stored=was_stored)
        return changed_shard(changes, old, may_vanish=may_vanish)

    def portions(self, cell: WrittenCell, old: Stored | None) -> Portions | None:
        """Return the encoding of a chunk as consecutive lists of buffers, made on demand."""
        chain = self._chain(cell)
        if old is None:
            chunk = self._placement.target(cell)
            assert chunk is not None, "a covered cell has a target"
            return None if self._elides(chunk, chain) else chain.portions(chunk, elide=self._elide)
        if self.is_sharded:
            return self.changed_shard(cell, [self.shard_change(cell)], old)
        may_vanish = self._may_vanish(cell, chain, was_stored=old.state != "missing")
        assert isinstance(old, ReadResult), "only shards are read little by little"
        if not may_vanish:
            return self._portions_of_changed(cell, old, chain)
        chunk = self._changed(cell, old, chain)
        return None if self._elides(chunk, chain) else portions_of(chunk, chain, elide=self._elide)

    def changed(self, cell: WrittenCell, old: ReadResult | None) -> Array:
        """Return a chunk after its first change, for further changes."""
        if old is not None:
            return self._changed(cell, old, self._chain(cell))
        chunk = self._placement.target(cell)
        assert chunk is not None, "a covered cell has a target"
        return chunk.copy()

    def change(self, cell: WrittenCell, chunk: Array) -> None:
        """Apply a further change to a chunk."""
        self._placement.copy_in(cell, self._model.view(chunk))

    def encoded(self, cell: WrittenCell, chunk: Array, *, was_stored: bool) -> Buffer | None:
        """Return the encoding of a chunk after its last change in one piece, None if it is not to be stored."""
        chain = self._chain(cell)
        if self._may_vanish(cell, chain, was_stored=was_stored) and self._elides(chunk, chain):
            return None
        if is_kept(chain) or chain.is_in_one_piece:
            return encoded(chunk, chain)
        return joined(chain.portions(chunk, elide=self._elide), chain.decoded_size)

    def run(self, cells: Sequence[WrittenCell]) -> list[Buffer | None] | None:
        """Return the encodings of consecutive covered chunks; None if they must be made one by one."""
        chain = self._model.chain
        blocks = self._placement.blocks(cells, chain.chunk.shape) if self._makes_runs else None
        return None if blocks is None else self.encoded_run(blocks)

    def decoded_run(self, olds: Sequence[ReadResult | None]) -> Array | None:
        """Return chunks along a new first dimension, which may be changed; None if they must be made one by one.

        `olds` holds the stored bytes of each, None if the whole chunk will be changed.
        """
        chain = self._model.chain
        return decoded_run(olds, chain) if self._makes_runs and not is_kept(chain) else None

    def encodes_as(self, other: ChunkEncoder) -> bool:
        """Return whether this encoder may change chunks that another one has decoded."""
        return self._model is other._model and self._elide == other._elide

    def encoded_run(self, chunks: Array, were_stored: Sequence[bool] = ()) -> list[Buffer | None]:
        """Return the encodings of chunks, the last dimensions of an array; None for each that is not to be stored."""
        chain = self._model.chain
        fill, rows = chain.chunk.fill_value, in_rows(chain, chunks)
        if not self._elide or fill is None or not (vanish := rows_equal_fill(rows, fill)).any():
            return list(encode_rows(chain, rows))
        if self._keeps and were_stored:
            vanish &= ~np.array(were_stored)
        encoded = encode_rows(chain, rows[~vanish])
        return [None if is_gone else next(encoded) for is_gone in vanish.tolist()]

    @property
    def _makes_runs(self) -> bool:
        chain = self._model.chain
        return self._model.bind is None and chain.shard is None and not np.ndim(chain.chunk.fill_value)

    def _may_vanish(self, cell: WrittenCell, chain: BoundChain, *, was_stored: bool) -> bool:
        """Return whether a partly written chunk may become all fill values, because the written values are.

        Parts of shards are not examined: the shard itself knows whether anything is left.
        """
        fill = chain.chunk.fill_value
        if not self._elide or fill is None or (self._keeps and was_stored):
            return False
        known = not self._model.is_partial and not isinstance(cell, ShardParts)
        written = self._placement.source(cell) if known else None
        return written is None or equals_fill(written, fill)

    def _chain(self, cell: WrittenCell) -> BoundChain:
        if self._model.bind is None:
            return self._model.chain
        return self._model.chain_of(self._placement.numbers(cell))

    def _elides(self, chunk: Array, chain: BoundChain) -> bool:
        fill = chain.chunk.fill_value
        return self._elide and fill is not None and equals_fill(chunk, fill)

    def _portions_of_changed(self, cell: WrittenCell, old: ReadResult, chain: BoundChain) -> Portions:
        portions = portions_of(self._changed(cell, old, chain), chain, elide=self._elide)
        del old  # it may be as large as the chunk
        yield from portions

    def _changed(self, cell: WrittenCell, old: ReadResult, chain: BoundChain) -> Array:
        chunk = decoded(None if old.state == "missing" else old.value, chain)
        self._placement.copy_in(cell, self._model.view(chunk))
        return chunk
