"""Encodings of the chunks that a request writes.

A chunk that is covered is encoded; one of which a part is written is decoded, changed and encoded again.  In a
shard, only the sub-chunks touched are decoded and encoded; the others keep their bytes.  A chunk whose elements all
equal the fill value, bit by bit, is not stored.

An encoding is made when it is asked for, portion by portion: a shard may be under way to the disk before its last
sub-chunks are encoded.  Nothing here knows of keys or stores.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple, TypeAlias

import numpy as np

from fsstore.chunk.plan.open_chunks import OpenChunks
from fsstore.chunk.plan.place import Placement, Sending
from fsstore.chunk.plan.planner import AnyCell
from fsstore.chunk.plan.request import OutputMap
from fsstore.chunk.shard.shard_entries import ShardEntries
from fsstore.chunk.shard.shard_grid import shard_grid
from fsstore.chunk.write.changed_chunk import Portions, decoded, decoded_run, encoded, joined, portions_of
from fsstore.chunk.write.changed_shard import ShardChange, ShardParts, Stored, changed_shard
from fsstore.chunk.write.recent_chunks import is_kept
from fsstore.codec.buffers import equals_fill, rows_equal_fill
from fsstore.codec.chain import BoundChain, encode_rows, in_rows
from fsstore.codec.contract import Array, Buffer
from fsstore.kvstore.contract.driver import ReadResult

__all__ = ["ChunkEncoder", "WriteRequest", "WrittenCell"]

WrittenCell: TypeAlias = AnyCell | ShardParts
"""A part of a chunk that is written: a cell of a request, or parts of a shard by themselves."""


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

    `is_sharded`: parts of chunks are encoded alone.
    `keeps`: chunks that become all fill values when a part is written are stored as such.
    """

    def __init__(self, request: WriteRequest, placement: Sending, *, keeps: bool) -> None:
        self._model, self._placement = request.chunks.model, placement
        self._elide, self._keeps = request.elide, keeps
        self._request = request
        self.is_sharded = self._model.shard is not None

    @cached_property
    def _entries(self) -> ShardEntries:
        """The sub-chunks that are touched; whole shards do not ask for them, and making them twice does no harm."""
        return ShardEntries.touched_by(self._request.maps, self._request.values.shape, self._model)

    @cached_property
    def _entry_placement(self) -> Placement:
        return Placement(self._entries.plan, self._request.values)

    def shard_change(self, shard: WrittenCell) -> ShardChange:
        """Return the change of the parts of a shard, those given or those that the request touches."""
        grid, placement = shard_grid(self._model.chain), self._placement
        if not isinstance(shard, ShardParts):
            shard, placement = ShardParts(*self._entries.of(shard)), self._entry_placement
        return ShardChange(grid, placement, self._model, self._elide, shard)

    def changed_shard(
        self, shard: WrittenCell, changes: Sequence[ShardChange], old: Stored | None
    ) -> Portions | None:
        """Return the encoding of a shard after changes, of which this request makes the last; None if it vanishes."""
        was_stored = old is not None and old.state != "missing"
        may_vanish = self._may_vanish(shard, self._model.chain, was_stored=was_stored)
        return changed_shard(changes, old, may_vanish=may_vanish)

    def portions(self, cell: WrittenCell, old: Stored | None) -> Portions | None:
        """Return the encoding of a chunk as lists of buffers that follow each other, made when they are asked for."""
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
        """Return a chunk after its first change, which may be changed again."""
        if old is not None:
            return self._changed(cell, old, self._chain(cell))
        chunk = self._placement.target(cell)
        assert chunk is not None, "a covered cell has a target"
        return chunk.copy()

    def change(self, cell: WrittenCell, chunk: Array) -> None:
        """Change a part of a chunk again."""
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
        """Return the encodings of covered chunks that follow each other; None if they must be made one by one."""
        chain = self._model.chain
        blocks = self._placement.blocks(cells, chain.chunk.shape) if self._makes_runs else None
        return None if blocks is None else self.encoded_run(blocks)

    def decoded_run(self, olds: Sequence[ReadResult | None]) -> Array | None:
        """Return chunks along a new first dimension, which may be changed; None if they must be made one by one.

        Given is what is stored of each, None where all of it will be changed.
        """
        chain = self._model.chain
        return decoded_run(olds, chain) if self._makes_runs and not is_kept(chain) else None

    def encodes_as(self, other: ChunkEncoder) -> bool:
        """Return whether chunks that another encoder has decoded may be changed by this one."""
        return self._model is other._model and self._elide == other._elide

    def encoded_run(self, chunks: Array, were_stored: Sequence[bool] = ()) -> list[Buffer | None]:
        """Return the encodings of chunks, the last dimensions of an array, None for each that is not to be stored."""
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
        """Whether small chunks may be encoded together."""
        chain = self._model.chain
        return self._model.bind is None and chain.shard is None and not np.ndim(chain.chunk.fill_value)

    def _may_vanish(self, cell: WrittenCell, chain: BoundChain, *, was_stored: bool) -> bool:
        """Return whether a chunk of which a part is written may be all fill values then, as what is written is.

        Parts of shards are not looked at: they know themselves whether anything is left of them.
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
        del old  # which may be as large as the chunk
        yield from portions

    def _changed(self, cell: WrittenCell, old: ReadResult, chain: BoundChain) -> Array:
        """Return a chunk of which a part is written."""
        chunk = decoded(None if old.state == "missing" else old.value, chain)
        self._placement.copy_in(cell, self._model.view(chunk))
        return chunk
