"""Many small boxes of one array planned together, by columns of integers; and chunks fetched ahead of consecutive
reads.

Two reads of the same size, the second beginning where the first ends, announce a third.  From then on the next chunks
in that direction are read into the cache: as many chunks (or boxes, if these are larger) as `read_ahead` of the cache
pool says.  A read of chunks under way waits for them instead of requesting them again.

Chunks fetched ahead are ordinary cached chunks: a write drops them, and the recheck options decide whether one may be
used.  Nothing is read ahead if every use asks the storage again, nor from storage that answers at once.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from fsstore.chunk.columns import BoxParts, chunk_ends, cut_boxes, rows_by_chunk
from fsstore.chunk.model import ChunkModel, IntArray
from fsstore.chunk.open_chunks import CACHED_CHUNK_OVERHEAD, OpenChunks, Source
from fsstore.chunk.place import BoxPlacement
from fsstore.chunk.planner import ChunkBox
from fsstore.chunk.read.window import ChunkReader
from fsstore.chunk.request import Affine, OutputMap, new_array
from fsstore.chunk.shard_entries import entries_at
from fsstore.chunk.shard_source import ShardGrid, shard_grid
from fsstore.codec.chain import BoundChain
from fsstore.codec.contract import Array
from fsstore.index import IndexTransform
from fsstore.kvstore.contract.driver import ReadResult
from fsstore.runtime import fork
from fsstore.runtime import future as futures
from fsstore.runtime.future import Future


class BoxView(NamedTuple):
    """A read of a box that is not planned yet: its shape, and its maps into the array."""

    chunks: OpenChunks
    shape: tuple[int, ...]
    maps: Sequence[OutputMap]
    order: str


class _Wanted(NamedTuple):
    """The divided boxes of some reads: the number of each box's read (`numbers`), and its destination (`targets`)."""

    part: ChunkReader
    numbers: Sequence[int]
    targets: Sequence[Array]
    pieces: BoxParts


class BoxRun:
    """The parts of boxes in one chunk, which `chain` decodes; cells are made on demand.

    `rows` are the rows of the chunk among the pieces.  `apart` means that decoding for each part alone is less work
    than decoding the whole chunk.
    """

    __slots__ = ("_rows", "_wanted", "apart", "chain")

    def __init__(self, wanted: _Wanted, rows: slice, chain: BoundChain, *, apart: bool) -> None:
        self._wanted, self._rows, self.chain, self.apart = wanted, rows, chain, apart

    @property
    def part(self) -> ChunkReader:
        """The reader of the chunk."""
        return self._wanted.part

    def __iter__(self) -> Iterator[tuple[int, ChunkReader, ChunkBox]]:
        """Yield the number of the read, its reader, and its cell."""
        part, numbers, targets, pieces = self._wanted
        rows: list[list[Any]] = [column[self._rows].tolist() for column in pieces]
        for box, chunk, low, high, begin, end, covers in zip(*rows, strict=True):
            piece = targets[box][tuple(map(slice, begin, end))]
            yield numbers[box], part, ChunkBox(chunk, tuple(map(slice, low, high)), covers, piece)

    def place(self, identity: Any, answer: ReadResult) -> None:
        """Copy all parts of the chunk to their places."""
        cells = list(self)
        if answer.state != "value" or self.apart or len(cells) == 1:
            for _, part, cell in cells:
                part.decode(cell, identity, answer)
        else:
            self.copy_out(self.part.decode_all_to_scratch(cells[0][2], answer))

    def copy_out(self, chunk: Array) -> None:
        """Copy all parts from the chunk to their destinations."""
        _, _, targets, (box, _, low, high, begin, end, _) = self._wanted
        parts = [column[self._rows].tolist() for column in (box, low, high, begin, end)]
        for number, first, stop, to, until in zip(*parts, strict=True):
            place = tuple(map(slice, to, until))
            targets[number][place] = chunk[tuple(map(slice, first, stop))]


class BoxPlans(NamedTuple):
    """Planned boxes: the result of each read, by its number, and the parts in each chunk, by its identity.

    `touched_bytes` is the number of bytes to decode.
    """

    part: ChunkReader
    outs: dict[int, Array]
    runs: dict[Any, BoxRun]
    touched_bytes: int


def plan_boxes(views: Mapping[int, BoxView]) -> list[BoxPlans]:
    """Return the plans of box views, given by the numbers of their reads.

    A view that is in no plan has to be planned alone: it permutes or repeats dimensions.
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
    """Boxes of one array that are read in one memory order: `sources` holds the box's dimension for each of the
    array's, or -1.

    `corners` holds the origin in the array, and the shape, of each box.
    """

    chunks: OpenChunks
    sources: tuple[int, ...]
    order: str
    numbers: list[int]
    corners: list[tuple[Sequence[Any], tuple[int, ...]]]

    @property
    def in_order(self) -> bool:
        """Whether the box's dimensions are the array's, in order, perhaps with some omitted."""
        kept = [source for source in self.sources if source >= 0]
        _, shape = self.corners[0]
        return kept == list(range(len(shape)))

    def bounds(self) -> tuple[IntArray, IntArray]:
        """Return the origins of the boxes in the array, and their sizes, 1 in an omitted dimension."""
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
    grid = None if chunks.model.shard is None else shard_grid(chunks.model.chain)
    source: Source = chunks.source
    return ChunkReader(chunks, BoxPlacement(), source if grid is None else grid.source(source), grid)


def _identities(model: ChunkModel, grid: ShardGrid | None, touched: IntArray) -> list[Any]:
    """Return the identities of the chunks, or sub-chunks of shards, with the given numbers."""
    if grid is None:
        return model.keys_of(list(touched.T))
    return list(entries_at(list(touched.T), grid, model))


def _elements_decoded(part: ChunkReader, pieces: BoxParts) -> IntArray:
    """Return the number of elements decoded for each part of a chunk if it is decoded alone."""
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


Box: TypeAlias = tuple[tuple[int, int], ...]
"""The half-open range of each dimension of an array."""


def box_of(transform: IndexTransform) -> Box | None:
    """Return the box that a view selects, from whichever dimensions; None if it does not select a box."""
    domain, ranges = transform.domain, []
    for _, offset, stride, source, index_array, _ in transform.maps:
        if index_array is not None or (source >= 0 and stride != 1):
            return None
        low = offset if source < 0 else offset + domain.inclusive_min[source]
        ranges.append((low, low + (1 if source < 0 else domain.shape[source])))
    return tuple(ranges)


class _Course(NamedTuple):
    """The dimension along which reads follow each other, and the direction: 1 upwards, -1 downwards.

    `side` is the length of the parts that are read ahead: whole chunks, as many as a box is long.
    """

    dimension: int
    step: int
    side: int = 0


def _course(last: Box | None, box: Box) -> _Course | None:
    """Return the course from the last read to this one, if they are adjacent."""
    if last is None:
        return None
    moved = [number for number, pair in enumerate(zip(last, box, strict=True)) if pair[0] != pair[1]]
    if len(moved) != 1:
        return None
    (old_low, old_high), (low, high) = last[moved[0]], box[moved[0]]
    if high - low > old_high - old_low:  # the last box of an array may be smaller
        return None
    if low == old_high:
        return _Course(moved[0], 1)
    return _Course(moved[0], -1) if high == old_low else None


class ReadAhead:
    """The reads of one open array, and their course.  Thread-safe."""

    __slots__ = ("__weakref__", "_course", "_depth", "_last", "_lock", "_reached", "_under_way")

    def __init__(self, depth: int) -> None:
        self._depth, self._lock = depth, fork.lock()
        self._forget()
        fork.tell_child(self)

    def _forget(self) -> None:
        self._last: Box | None = None
        self._course: _Course | None = None
        self._reached = 0  # how far along the course has been read
        self._under_way: dict[Box, Future[Any]] = {}

    def after_fork(self) -> None:
        """Forget the parent's reads."""
        self._forget()

    def note(self, box: Box, chunks: OpenChunks, begin: Callable[[Box], Future[Any]]) -> set[Future[Any]]:
        """Record a read and begin the reads ahead of it; return the fetches under way that it needs."""
        cache = chunks.cache
        waits = chunks.store.driver.features.waits
        if cache is None or not waits or cache.fresh_after > time.time() or not _has_elements(box):
            return set()
        with self._lock:
            self._under_way = {each: end for each, end in self._under_way.items() if not end.done()}
            needed = {end for each, end in self._under_way.items() if _meet(each, box)}
            wanted = self._wanted(box, chunks, cache.pool.total_bytes_limit // 2)
        begun = {each: futures.mapped(begin(each), None) for each in wanted}  # their values are in the cache
        with self._lock:
            self._under_way |= begun
        return needed

    def _wanted(self, box: Box, chunks: OpenChunks, room: int) -> list[Box]:
        """Return the boxes to read ahead now; all boxes ahead have `room` in bytes."""
        found, known = _course(self._last, box), self._course
        self._last, self._course = box, None
        if found is None:
            return []
        portion = _portion(box, found.dimension, chunks)
        dimension, step, _ = self._course = found._replace(side=portion.side)
        low, high = box[dimension]
        here = portion.number(high - 1 if step > 0 else low)
        size, out = chunks.bounds.domain.shape[dimension], []
        if self._course != known or (self._reached - here) * step < 0:
            self._reached = here
            out = [portion.rest(low, high, step)]
        depth = min(self._depth, room // portion.bytes_touched)
        while (here + step * depth - self._reached) * step > 0:
            self._reached += step
            out.append(portion.span(self._reached))
        spans = [(max(0, begin), min(size, end)) for begin, end in out] if depth else []
        before, behind = box[:dimension], box[dimension + 1 :]
        wanted = [(*before, (begin, end), *behind) for begin, end in spans if begin < end]
        return [each for each in wanted if each not in self._under_way]


class _Portion(NamedTuple):
    """The parts of a dimension that are read ahead one by one, each of whole chunks."""

    chunk: int
    side: int
    bytes_touched: int

    def number(self, index: int) -> int:
        return index // self.side

    def span(self, number: int) -> tuple[int, int]:
        return number * self.side, (number + 1) * self.side

    def rest(self, low: int, high: int, step: int) -> tuple[int, int]:
        """Return the rest of the last portion of a box, without the chunk that the box touches."""
        if step > 0:
            return -(-high // self.chunk) * self.chunk, -(-high // self.side) * self.side
        return low // self.side * self.side, low // self.chunk * self.chunk


def _has_elements(box: Box) -> bool:
    return all(low < high for low, high in box)


def _meet(one: Box, other: Box) -> bool:
    return all(low < high_ and low_ < high for (low, high), (low_, high_) in zip(one, other, strict=True))


def _portion(box: Box, dimension: int, chunks: OpenChunks) -> _Portion:
    sides: Sequence[int] = chunks.model.chain.read_shape
    if len(sides) != len(box):  # elements with dimensions of their own
        sides = (1,) * len(box)
    counts = [-(-high // side) - low // side for (low, high), side in zip(box, sides, strict=True)]
    low, high = box[dimension]
    counts[dimension] = -(-(high - low) // sides[dimension])
    chunk = math.prod(sides) * chunks.model.dtype.itemsize + CACHED_CHUNK_OVERHEAD
    return _Portion(sides[dimension], counts[dimension] * sides[dimension], math.prod(counts) * chunk)
