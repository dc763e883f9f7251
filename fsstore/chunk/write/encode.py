"""Encodings of the chunks that a request writes.

A chunk that is covered is encoded; one of which a part is written is decoded, changed and encoded again.  In a
shard, only the sub-chunks touched are decoded and encoded; the others keep their bytes.  A chunk whose elements all
equal the fill value, bit by bit, is not stored.

An encoding is made when it is asked for, portion by portion: a shard may be under way to the disk before its last
sub-chunks are encoded.  Nothing here knows of keys or stores.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from fsstore.chunk.plan.allocation import new_array
from fsstore.chunk.plan.open_chunks import OpenChunks
from fsstore.chunk.plan.place import Placement, Sending
from fsstore.chunk.plan.planner import AnyCell, Cell, OutputMap
from fsstore.chunk.shard.shard_entries import ShardEntries
from fsstore.chunk.tuning import SHARD_AT_ONCE_BYTES
from fsstore.chunk.write.recent_chunks import is_kept, keep, taken
from fsstore.chunk.write.stored_shard import StoredShard
from fsstore.codec.chain.bound_chain import BoundChain
from fsstore.codec.chain.shard_layout import ShardLayout
from fsstore.codec.contract import Array, Buffer
from fsstore.codec.fill import equals_fill, missing_element
from fsstore.kvstore.contract.driver import ReadResult

__all__ = ["ChunkEncoder", "Portions", "Stored", "WriteRequest", "joined"]

Portions: TypeAlias = Iterator[Sequence[Buffer]]
Stored: TypeAlias = ReadResult | StoredShard
_Parts: TypeAlias = Sequence[Buffer | None] | StoredShard
_Touched: TypeAlias = list[tuple[Cell, tuple[int, ...]]]


class WriteRequest(NamedTuple):
    """A write: which elements of which chunks are stored, and their values.

    `values` has the dtype of the model; `maps` and the shape of `values` are those of `plan.plan`.
    `elide`: delete chunks that equal the fill value.
    """

    chunks: OpenChunks
    maps: Sequence[OutputMap]
    values: Array
    elide: bool = True


class ChunkEncoder:
    """Encodes the chunks of one request.  It may be used by several threads at once.

    `keeps`: chunks that become all fill values when a part is written are stored as such.
    """

    def __init__(self, request: WriteRequest, placement: Sending, *, keeps: bool) -> None:
        self._model, self._placement = request.chunks.model, placement
        self._elide, self._keeps = request.elide, keeps
        self._entries: ShardEntries | None = None
        if self._model.shard is not None:
            self._entries = ShardEntries.touched_by(request.maps, request.values.shape, self._model)
            self._entry_placement = Placement(self._entries.plan, request.values)

    def portions(self, cell: AnyCell, old: Stored | None) -> Portions | None:
        """Return the encoding of a chunk as lists of buffers that follow each other, made when they are asked for."""
        chain = self._chain(cell)
        if old is None:
            chunk = self._placement.target(cell)
            if chunk is None:
                raise ValueError("a covered cell has a target")
            return None if self._elides(chunk, chain) else chain.portions(chunk, elide=self._elide)
        may_vanish = self._may_vanish(cell, old, chain)
        if self._entries is not None:
            return self._shard_portions(self._entries, cell, old, may_vanish=may_vanish)
        assert isinstance(old, ReadResult), "only shards are read little by little"
        if not may_vanish:
            return self._portions_of_changed(cell, old, chain)
        chunk = self._changed(cell, old, chain)
        return None if self._elides(chunk, chain) else _portions(chunk, chain, elide=self._elide)

    def _may_vanish(self, cell: AnyCell, old: Stored, chain: BoundChain) -> bool:
        """Return whether a chunk of which a part is written may be all fill values then, as what is written is."""
        fill = chain.chunk.fill_value
        if not self._elide or fill is None or self._must_store(old):
            return False
        written = None if self._model.is_partial else self._placement.source(cell)
        return written is None or equals_fill(written, fill)

    def _must_store(self, old: Stored) -> bool:
        return self._keeps and old.state != "missing"

    def _chain(self, cell: AnyCell) -> BoundChain:
        if self._model.bind is None:
            return self._model.chain
        return self._model.chain_of(self._placement.numbers(cell))

    def _elides(self, chunk: Array, chain: BoundChain) -> bool:
        fill = chain.chunk.fill_value
        return self._elide and fill is not None and equals_fill(chunk, fill)

    def _portions_of_changed(self, cell: AnyCell, old: ReadResult, chain: BoundChain) -> Portions:
        portions = _portions(self._changed(cell, old, chain), chain, elide=self._elide)
        del old  # which may be as large as the chunk
        yield from portions

    def _changed(self, cell: AnyCell, old: ReadResult, chain: BoundChain) -> Array:
        """Return a chunk of which a part is written."""
        chunk = _decoded(None if old.state == "missing" else old.value, chain)
        self._placement.copy_in(cell, self._model.view(chunk))
        return chunk

    def _shard_portions(
        self, entries: ShardEntries, cell: AnyCell, old: Stored, *, may_vanish: bool
    ) -> Portions | None:
        touched = [
            (sub_cell, number if isinstance(number, tuple) else (number,))
            for sub_cell, number in zip(*entries.of(cell), strict=True)
        ]
        before: _Parts
        if isinstance(old, StoredShard):
            before = old
        else:
            before = _split(None if old.state == "missing" else old.value, entries.grid.layouts[0])
        parts: Iterable[Buffer | None] = self._changed_parts(entries, touched, before)
        if may_vanish:
            parts = list(parts)
            if all(part is None for part in parts):
                return None
        return entries.grid.layouts[0].portions(parts)

    def _changed_parts(
        self, entries: ShardEntries, touched: _Touched, before: _Parts, level: int = 0
    ) -> Iterator[Buffer | None]:
        """Yield the parts of a shard, whatever the level it is on: changed where they are touched."""
        layout = entries.grid.layouts[level]
        by_part: dict[int, _Touched] = {}
        for pair in touched:
            by_part.setdefault(pair[1][level], []).append(pair)

        def change(number: int) -> Buffer | None:
            if level + 1 == len(entries.grid.layouts):
                cell = by_part[number][0][0]
                return self._changed_part(entries, cell, None if self._is_whole(cell) else before[number])
            inner = entries.grid.layouts[level + 1]
            old = _split(before[number], inner)
            parts = list(self._changed_parts(entries, by_part[number], old, level + 1))
            return None if all(part is None for part in parts) else inner.assemble(parts)

        numbers = sorted(by_part)
        changed = layout.map_parts(change, numbers)
        for number in range(layout.count):
            yield next(changed) if number in by_part else before[number]

    def _is_whole(self, cell: Cell) -> bool:
        """Return whether nothing of what is stored of a sub-chunk is left."""
        return cell.covers and not self._model.is_partial

    def _changed_part(self, entries: ShardEntries, cell: Cell, before: Buffer | None) -> Buffer | None:
        chain = entries.grid.layout.inner
        chunk = _decoded(before, chain)
        self._entry_placement.copy_in(cell, self._model.view(entries.grid.in_array_order(chunk)))
        if self._elides(chunk, chain):
            return None
        return _encoded(chunk, chain) if self._elide else chain.encode_all(chunk)


def joined(portions: Portions, usual: int) -> Buffer:
    """Return an encoding in one piece, of about `usual` bytes at most.

    Joined parts may be large, so each is released.  The memory for all of a chunk is had at once: growing
    would leave behind what was outgrown.  Shards may be far larger than their encoding.
    """
    first = next(portions)
    second = next(portions, None)
    if second is None:
        return first[0] if len(first) == 1 else b"".join(first)
    whole = io.BytesIO()
    whole.seek(min(usual + usual // 64, SHARD_AT_ONCE_BYTES))
    whole.write(b"\0")
    whole.seek(0)
    whole.writelines(itertools.chain(first, second))
    del first, second
    whole.writelines(itertools.chain.from_iterable(portions))
    whole.truncate()
    return whole.getvalue()


def _split(shard: Buffer | None, layout: ShardLayout) -> Sequence[Buffer | None]:
    """Return the encoded sub-chunks of a shard, none if there is no shard."""
    return [None] * layout.count if shard is None else layout.split(shard)


def _decoded(data: Buffer | None, chain: BoundChain) -> Array:
    """Return a chunk that may be changed: what `data` encodes, or else the fill value."""
    known = None if data is None else taken(chain, data)
    if known is not None:
        return known
    if data is not None and not chain.decodes_in_place:
        borrowed = chain.decode_to_scratch(data)  # before there is memory for the chunk, which may be large
        chunk = _as_encoded(chain)
        np.copyto(chunk, borrowed, casting="equiv")
        return chunk
    chunk = _as_encoded(chain)
    if data is None:
        chunk[...] = missing_element(chain.chunk.dtype, chain.chunk.fill_value)
    else:
        chain.decode(data, chunk)
    return chunk


def _portions(chunk: Array, chain: BoundChain, *, elide: bool) -> Portions:
    """Return the encoding of a chunk that nobody changes any more, in portions."""
    if is_kept(chain):
        yield [_encoded(chunk, chain)]
        return
    portions = chain.portions(chunk, elide=elide)
    del chunk  # which may be large
    yield from portions


def _encoded(chunk: Array, chain: BoundChain) -> Buffer:
    """Return the encoding of a chunk that nobody changes any more."""
    data = chain.encode(chunk)
    keep(chain, data, chunk)
    return data


def _as_encoded(chain: BoundChain) -> Array:
    """Return a chunk, whose elements are not set, with the memory order that it will be encoded in."""
    spec, order = chain.chunk, chain.order
    if order is None or sorted(order) == [*order]:
        return new_array(spec.shape, spec.dtype, passing=True)
    laid_out = new_array(tuple([spec.shape[axis] for axis in order]), spec.dtype, passing=True)
    return laid_out.transpose([order.index(axis) for axis in range(len(order))])
