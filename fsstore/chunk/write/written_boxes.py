"""Boxes that small writes put into one array: what they change of each chunk, from columns of integers.

Such boxes are begun one by one and carried out together.  Which parts of which chunks they touch, and of which
sub-chunks of shards, are a few array operations for all of them, where a plan of each takes longer than to encode what
it changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np

from fsstore.chunk.plan.box_parts import BoxParts, PlainBox, chunk_ends, cut_boxes, plain_box, rows_by_chunk
from fsstore.chunk.plan.chunk_box import ChunkBox
from fsstore.chunk.plan.grid import IntArray
from fsstore.chunk.plan.open_chunks import OpenChunks
from fsstore.chunk.plan.place import BoxPlacement
from fsstore.chunk.shard.shard_grid import shard_grid
from fsstore.chunk.write.changed_shard import ShardParts
from fsstore.chunk.write.encode import WriteRequest
from fsstore.chunk.write.writer import Change, Changed, Changes
from fsstore.codec.contract import Array

__all__ = ["changed_by_boxes", "written_box"]


def written_box(request: WriteRequest) -> PlainBox | None:
    """Return the box that a request writes, if it need not be planned by itself: a grid cuts it into regular parts."""
    return None if request.chunks.steps is None else plain_box(request.maps, request.values.shape)


def changed_by_boxes(
    chunks: OpenChunks, requests: Sequence[WriteRequest], boxes: Sequence[PlainBox]
) -> Iterator[Changed]:
    """Yield what requests, each of a box, write to each chunk, in order; what a whole chunk replaces is left out."""
    model, path = chunks.model, chunks.store.path
    first, sizes = (np.array(column, np.int64) for column in zip(*[box[:2] for box in boxes], strict=True))
    extent = np.array(chunks.bounds.domain.exclusive_max)
    parts = cut_boxes(first, sizes, np.array(model.chain.chunk.shape), chunk_ends(model.axes, extent))
    sources = [
        request.values[tuple([slice(None) if each else None for each in box.kept])]
        for request, box in zip(requests, boxes, strict=True)
    ]
    of = Changes(requests[0], BoxPlacement())
    edges = rows_by_chunk(parts)
    keys = model.keys_of(list(parts.chunk[edges[:-1]].T))
    found = (_changes_of_chunks if model.shard is None else _changes_of_shards)(of, parts, edges, sources)
    for key, changes in zip(keys, found, strict=True):
        yield path + key, changes


def _cells(parts: BoxParts, sources: Sequence[Array]) -> Iterator[ChunkBox]:
    """Yield the cells of parts of boxes."""
    rows = zip(*[column.tolist() for column in parts], strict=True)
    for box, numbers, low, high, begin, end, covers in rows:
        source = sources[box][tuple(map(slice, begin, end))]
        yield ChunkBox(numbers, tuple(map(slice, low, high)), covers, source)


def _changes_of_chunks(
    of: Changes, parts: BoxParts, edges: IntArray, sources: Sequence[Array]
) -> Iterator[list[Change]]:
    """Yield what is written to each chunk, whose rows begin at `edges`."""
    cells = _cells(parts, sources)
    for count in np.diff(edges).tolist():
        changes: list[Change] = []
        for cell in islice(cells, count):
            if cell.covers:
                changes.clear()
            changes.append(Change(of, cell, cell.covers))
        yield changes


def _changes_of_shards(
    of: Changes, parts: BoxParts, edges: IntArray, sources: Sequence[Array]
) -> Iterator[list[Change]]:
    """Yield what is written to each shard, whose rows begin at `edges`: all of it, or to some of its sub-chunks."""
    chunks = of.request.chunks
    grid, counts = shard_grid(chunks.model.chain), np.diff(edges)
    rows, shard = np.arange(len(parts.box)), np.repeat(np.arange(len(counts)), counts)
    last = np.maximum.reduceat(np.where(parts.covers, rows, -1), edges[:-1])  # that covers the shard
    is_whole = last == edges[1:] - 1
    row, inner = parts.cut(
        rows[(rows >= last[shard]) & ~is_whole[shard]],
        np.array(chunks.model.chain.chunk.shape),
        np.array(chunks.steps),
    )
    order = np.argsort(shard[row], kind="stable")
    numbers = sum([grid.levels[0].add(axis, column) for axis, column in enumerate(inner.chunk.T)])[order]
    columns = zip(
        _cells(inner.rows(order), sources), numbers.tolist(), parts.covers[row[order]].tolist(), strict=True
    )
    whole = _cells(parts.rows(last[is_whole]), sources)
    for count in np.bincount(shard[row], minlength=len(counts)).tolist():
        if not count:
            yield [Change(of, next(whole), is_whole=True)]
            continue
        written = list(islice(columns, count))
        yield [
            Change(of, ShardParts([cell for cell, *_ in some], [number for _, number, _ in some]), replaces)
            for replaces in (True, False)
            if (some := [each for each in written if each[2] == replaces])
        ]
