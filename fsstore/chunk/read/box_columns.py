"""Planning many small boxes of one array at once, by columns of integers.

Reads that were begun together are boxes nearly always, and small ones.  Where each begins and which parts of
which chunks, or sub-chunks of shards, it touches are a few array operations for all of them; the cells, a few objects
each, are made when their chunk is there, by the worker that puts them in their place.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from fsstore.chunk.plan.allocation import new_array
from fsstore.chunk.plan.box_parts import BoxParts, chunk_ends, cut_boxes, rows_by_chunk
from fsstore.chunk.plan.chunk_box import ChunkBox
from fsstore.chunk.plan.grid import IntArray
from fsstore.chunk.plan.model import ChunkModel
from fsstore.chunk.plan.open_chunks import OpenChunks
from fsstore.chunk.plan.place import BoxPlacement
from fsstore.chunk.plan.request import Affine, Constant, Indexed, OutputMap
from fsstore.chunk.plan.source import Source
from fsstore.chunk.read.window import ChunkReader
from fsstore.chunk.shard.shard_entries import entries_at
from fsstore.chunk.shard.shard_grid import ShardGrid, shard_grid
from fsstore.codec.chain import BoundChain
from fsstore.codec.contract import Array
from fsstore.kvstore.contract.driver import ReadResult

__all__ = ["BoxPlans", "BoxRun", "BoxView", "may_wait", "plan_boxes"]


class BoxView(NamedTuple):
    """A read of a box that is not planned yet: its shape, and where in the array it lies."""

    chunks: OpenChunks
    shape: tuple[int, ...]
    maps: Sequence[OutputMap]
    order: str


def may_wait(shape: tuple[int, ...], maps: Sequence[OutputMap], chunks: OpenChunks) -> bool:
    """Return whether a request is a box of the array so small that it may wait for others."""
    if chunks.steps is None:
        return False
    touched = 1
    for output_map, step in zip(maps, chunks.steps, strict=True):
        if isinstance(output_map, Constant):
            continue
        if isinstance(output_map, Indexed) or output_map[1] != 1:
            return False
        touched *= (shape[output_map[2]] + step - 2) // step + 1
    return touched <= chunks.most_chunks and 0 < math.prod(shape) <= chunks.most_elements


class _Wanted(NamedTuple):
    """The boxes of some reads, cut: which read each belongs to (`numbers`), and which array it goes to (`targets`)."""

    part: ChunkReader
    numbers: Sequence[int]
    targets: Sequence[Array]
    pieces: BoxParts


class BoxRun:
    """The parts of boxes in one chunk, which `chain` decodes; cells are made when they are asked for.

    `rows` are the rows of the chunk among the pieces.
    `apart`: it is less work to decode for each part by itself than to decode the chunk.
    """

    __slots__ = ("_rows", "_wanted", "apart", "chain")

    def __init__(self, wanted: _Wanted, rows: slice, chain: BoundChain, *, apart: bool) -> None:
        self._wanted, self._rows, self.chain, self.apart = wanted, rows, chain, apart

    @property
    def part(self) -> ChunkReader:
        """How the chunk is read."""
        return self._wanted.part

    def __iter__(self) -> Iterator[tuple[int, ChunkReader, ChunkBox]]:
        """Yield the number of the read, how it is read, and its cell."""
        part, numbers, targets, pieces = self._wanted
        rows: list[list[Any]] = [column[self._rows].tolist() for column in pieces]
        for box, chunk, low, high, begin, end, covers in zip(*rows, strict=True):
            piece = targets[box][tuple(map(slice, begin, end))]
            yield numbers[box], part, ChunkBox(chunk, tuple(map(slice, low, high)), covers, piece)

    def place(self, identity: Any, answer: ReadResult) -> None:
        """Put all parts of the chunk in their places."""
        cells = list(self)
        if answer.state != "value" or self.apart or len(cells) == 1:
            for _, part, cell in cells:
                part.decode(cell, identity, answer)
        else:
            self.copy_out(self.part.decode_all_to_scratch(cells[0][2], answer))

    def copy_out(self, chunk: Array) -> None:
        """Copy all parts from the chunk to where they go."""
        _, _, targets, (box, _, low, high, begin, end, _) = self._wanted
        parts = [column[self._rows].tolist() for column in (box, low, high, begin, end)]
        for number, first, stop, to, until in zip(*parts, strict=True):
            place = tuple(map(slice, to, until))
            targets[number][place] = chunk[tuple(map(slice, first, stop))]


class BoxPlans(NamedTuple):
    """Planned boxes: the result of each read, by its number, and the parts in each chunk, by its identity.

    `touched_bytes` are decoded for them.
    """

    part: ChunkReader
    outs: dict[int, Array]
    runs: dict[Any, BoxRun]
    touched_bytes: int


def plan_boxes(views: Mapping[int, BoxView]) -> list[BoxPlans]:
    """Return the plans of views, which are boxes, known by the numbers of their reads.

    A view that is in none of them has to be planned by itself: it turns or repeats dimensions.
    """
    groups: dict[Any, _Alike] = {}
    for number, (chunks, shape, maps, order) in views.items():
        sources = tuple([output_map[2] if isinstance(output_map, Affine) else -1 for output_map in maps])
        group = groups.get(key := (id(chunks), sources, len(shape), order))
        if group is None:
            group = groups[key] = _Alike(chunks, sources, order, [], [])
        group.numbers.append(number)
        group.corners.append(([output_map[0] for output_map in maps], shape))
    return [_planned(group) for group in groups.values() if group.in_order]


class _Alike(NamedTuple):
    """Boxes of one array: for each of its dimensions the one of the box, or -1; read in one memory order.

    `corners`: of each box where it begins by dimension of the array, and its shape.
    """

    chunks: OpenChunks
    sources: tuple[int, ...]
    order: str
    numbers: list[int]
    corners: list[tuple[Sequence[Any], tuple[int, ...]]]

    @property
    def in_order(self) -> bool:
        """Whether the dimensions are those of the array, in their order, but for some that are left out."""
        kept = [source for source in self.sources if source >= 0]
        _, shape = self.corners[0]
        return kept == list(range(len(shape)))

    def bounds(self) -> tuple[IntArray, IntArray]:
        """Return where in the array the boxes begin, and their sizes, one where a dimension is left out."""
        kept = [axis for axis, source in enumerate(self.sources) if source >= 0]
        rank, count = len(self.sources), len(self.corners)
        flat = chain.from_iterable(chain.from_iterable(self.corners))
        columns = np.fromiter(flat, np.int64).reshape(count, rank + len(kept))
        first, shapes = np.split(columns, [rank], axis=1)
        sizes = np.ones_like(first)
        sizes[:, kept] = shapes
        return first, sizes


def _planned(alike: _Alike) -> BoxPlans:
    chunks, sources, order, numbers, _ = alike
    first, sizes = alike.bounds()
    extent = np.array(chunks.bounds.domain.exclusive_max)
    dtype, kept = chunks.model.dtype, [source >= 0 for source in sources]
    outs = [new_array(tuple(shape), dtype, order) for shape in sizes[:, kept].tolist()]
    spread = tuple([slice(None) if each else None for each in kept])
    targets = outs if all(kept) else [out[spread] for out in outs]
    part = _reader(chunks)
    pieces = cut_boxes(first, sizes, np.array(chunks.steps), chunk_ends(chunks.model.axes, extent))
    edges = rows_by_chunk(pieces)
    codecs, shape, _ = part.layout
    size = math.prod(shape)
    wanted = np.add.reduceat(_elements_decoded(part, pieces), edges[:-1])
    apart = 2 * wanted <= size
    spans = map(slice, edges[:-1].tolist(), edges[1:].tolist())
    first_rows, wanted_of = pieces.chunk[edges[:-1]], _Wanted(part, numbers, targets, pieces)
    runs = [
        BoxRun(wanted_of, rows, chain, apart=each)
        for rows, chain, each in zip(spans, part.chains(list(first_rows.T)), apart.tolist(), strict=False)
    ]
    touched = int(np.minimum(wanted, size).sum()) * codecs.chunk.dtype.itemsize
    identities = _identities(chunks.model, part.grid, first_rows)
    outs_of = dict(zip(numbers, outs, strict=True))
    return BoxPlans(part, outs_of, dict(zip(identities, runs, strict=True)), touched)


def _reader(chunks: OpenChunks) -> ChunkReader:
    """Return what reads boxes, of chunks or of the sub-chunks of shards."""
    grid = None if chunks.model.shard is None else shard_grid(chunks.model.chain)
    source: Source = chunks.source
    return ChunkReader(chunks, BoxPlacement(), source if grid is None else grid.source(source), grid)


def _identities(model: ChunkModel, grid: ShardGrid | None, touched: IntArray) -> list[Any]:
    """Return what the source calls chunks, or sub-chunks of shards, of given numbers."""
    if grid is None:
        return model.keys_of(list(touched.T))
    return list(entries_at(list(touched.T), grid, model))


def _elements_decoded(part: ChunkReader, pieces: BoxParts) -> IntArray:
    """Return how many elements are decoded for each part of a chunk if it is decoded by itself."""
    codecs, shape, order = part.layout
    elements = np.full(len(pieces.box), math.prod(shape))
    if codecs.decodes_spans and order is not None:
        weights = np.ones(len(order), np.int64)
        for outer, inner in zip(order[-2::-1], order[:0:-1], strict=True):
            weights[outer] = weights[inner] * shape[inner]
        first = 0 if codecs.spans_from_start else pieces.low
        spans = (pieces.high - 1 - first) @ weights + 1
        elements = np.where(2 * spans > elements, elements, spans)
    return elements
