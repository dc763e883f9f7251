"""Cells and boxes in bulk, as columns of integers.

A `CellRun` is many consecutive cells of a plan, made on demand.  Boxes of one array are divided into parts that lie
within one chunk, all of them at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product, zip_longest
from typing import Any, NamedTuple, overload

import numpy as np

from fsstore.chunk.model import Axis, ChunkModel, ClippedAxis, IntArray, Segment, even
from fsstore.chunk.planner import AnyCell, Cell, CellPlan, FewPlan, chunks_along
from fsstore.chunk.request import Affine, Constant, Indexed, OutputMap, Points, chunk_columns
from fsstore.runtime.tuning import COLUMNS_FROM, FEW


def batches(
    plan: FewPlan, model: ChunkModel, size: int, lanes: int = 1
) -> Iterator[tuple[Sequence[AnyCell], list[str]]]:
    """Yield the cells of a plan, `size` at a time, with the keys of their chunks, from each of `lanes` in turn.

    Lanes are parts of the plan that lie far apart.  If two threads write to neighbouring parts of new memory at once,
    both clear the same large page, one of them in vain.
    """
    if not isinstance(plan, CellPlan):
        yield from _cut(plan.cells(), plan.keys(model), size)
        return
    count = plan.cell_count
    share = size * math.ceil(count / (size * lanes))
    spans = [range(begin, min(begin + share, count)) for begin in range(0, count, share)]
    if count <= COLUMNS_FROM:
        run = CellRun(plan, range(count), [list(component.segments) for component in plan.components])
        cells = run if min(count, size) >= FEW else list(run)
        keys = list(map(model.key, plan.chunks(None)))
        parts = [_cut(cells[span.start : span.stop], keys[span.start : span.stop], size) for span in spans]
    else:
        parts = [_made(plan, model, span, size) for span in spans]
    for turn in zip_longest(*parts):
        yield from filter(None, turn)


def _made(
    plan: CellPlan, model: ChunkModel, numbers: range, size: int
) -> Iterator[tuple[Sequence[AnyCell], list[str]]]:
    step = size if size > COLUMNS_FROM else size * (4 * COLUMNS_FROM // size)
    for begin in numbers[::step]:
        run = CellRun(plan, range(begin, min(begin + step, numbers.stop)))
        yield from _cut(run if size > 1 else list(run), run.keys(model), size)


def _cut(cells: Sequence[AnyCell], keys: list[str], size: int) -> Iterator[tuple[Sequence[AnyCell], list[str]]]:
    for begin in range(0, len(cells), size):
        yield cells[begin : begin + size], keys[begin : begin + size]


class CellRun(Sequence[Cell]):
    """The cells of a plan with the given `numbers`, in the order of their chunks.

    With `segments`, a selection of the plan's by component, the cells are the products of these.
    """

    __slots__ = ("_numbers", "_plan", "_segments")

    def __init__(
        self, plan: CellPlan, numbers: range, segments: Sequence[Sequence[Segment | Points]] | None = None
    ) -> None:
        self._plan, self._numbers = plan, numbers
        self._segments = segments or [component.segments for component in plan.components]

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, place: int) -> Cell: ...

    @overload
    def __getitem__(self, place: slice) -> CellRun: ...

    def __getitem__(self, place: int | slice) -> Cell | CellRun:
        if isinstance(place, slice):
            return CellRun(self._plan, self._numbers[place], self._segments)
        number = self._numbers[place]
        if len(self._segments) == 1:
            return Cell.of((self._segments[0][number],))
        chosen = []
        for segments in reversed(self._segments):
            number, at = divmod(number, len(segments))
            chosen.append(segments[at])
        return Cell.of(tuple(reversed(chosen)))

    def __iter__(self) -> Iterator[Cell]:
        if len(self) == math.prod(map(len, self._segments)):
            return map(Cell.of, product(*self._segments))
        chosen = []
        if not self._numbers:
            return iter(())
        for segments, places in zip(self._segments, self._places(), strict=True):
            wanted = sorted(set(places))  # of 64 cells in a cube, 12 instead of 192
            first, stop = wanted[0], wanted[-1] + 1
            some = segments[first:stop] if stop - first == len(wanted) else [segments[place] for place in wanted]
            made = dict(zip(wanted, some, strict=True))
            chosen.append(list(map(made.__getitem__, places)))
        return map(Cell.of, zip(*chosen, strict=True)) if chosen else iter([Cell.of(())] * len(self))

    def _places(self) -> list[Sequence[int]]:
        """Return the segment number of each cell by component."""
        if len(self._segments) == 1:
            return [self._numbers]
        if not self._segments:
            return []
        shape = [len(segments) for segments in self._segments]
        return [places.tolist() for places in np.unravel_index(np.array(self._numbers, np.int64), shape)]

    def _chunks(self) -> list[IntArray]:
        """Return the numbers of the chunks, one column for each output dimension."""
        columns: dict[int, IntArray] = {}
        rows = zip(self._plan.components, self._segments, self._places(), strict=True)
        for component, segments, places in rows:
            numbers = chunk_columns(segments) if component.is_joint else [np.array(chunks_along(segments))]
            for output, each in zip(component.outputs, numbers, strict=True):
                columns[output] = each[np.array(places, np.int64)]
        return [columns[output] for output in range(len(columns))]

    def boxes(self) -> Iterator[tuple[CellRun, list[Sequence[Segment | Points]]]]:
        """Yield the run as a few runs that are products of segments, with their segments by component."""
        begin, counts = 0, list(map(len, self._segments))
        for box in _boxes(counts, self._numbers.start, self._numbers.stop):
            end = begin + math.prod(map(len, box))
            some = [each[places.start : places.stop] for each, places in zip(self._segments, box, strict=True)]
            yield self[begin:end], some
            begin = end

    def of_one_shape(self, model: ChunkModel) -> Iterator[tuple[tuple[int, ...], list[int], Sequence[Cell]]]:
        """Yield the cells grouped by the shape of their chunks: the shape, and their places."""
        if not self._plan.separable:
            shaped: dict[tuple[int, ...], list[int]] = {}
            for place, cell in enumerate(cells := list(self)):
                shaped.setdefault(model.chunk_shape(self._plan.chunk_numbers(cell)), []).append(place)
            yield from ((shape, some, [cells[place] for place in some]) for shape, some in shaped.items())
            return
        begin = 0
        for run, segments in self.boxes():
            for sizes, places, some in _of_one_shape(model.axes, segments):
                yield sizes, (places + begin).tolist(), CellRun(self._plan, range(len(places)), some)
            begin += len(run)

    def even(self, size: int) -> int:
        """Return a number of cells, at most `size` and not much smaller, whose multiples end with rows of the grid."""
        return even(list(map(len, self._segments)), size)

    def keys(self, model: ChunkModel) -> list[str]:
        """Return the keys of the chunks."""
        if not (self._plan.separable and model.keys.is_joined):
            return model.keys_of(self._chunks())
        texts: list[list[str]] = []
        for segments, places in zip(self._segments[: model.key_rank], self._places(), strict=False):
            low = min(places)
            chunks = chunks_along(segments)[low : max(places) + 1]
            parts = model.keys.parts(chunks, len(texts))
            texts.append([parts[place - low] for place in places])
        if len(texts) == 1:
            return texts[0]
        return list(map("".join, zip(*texts, strict=True))) if texts else [model.key(())] * len(self)


def _boxes(counts: Sequence[int], low: int, high: int) -> Iterator[tuple[range, ...]]:
    """Yield boxes of a grid, as places by dimension, that together hold the cells `[low, high)`, in order."""
    if not counts:
        yield ()
        return
    row = math.prod(counts[1:])
    (first, begin), (last, end) = divmod(low, row), divmod(high, row)
    if first == last or begin:
        for rest in _boxes(counts[1:], begin, end if first == last else row):
            yield (range(first, first + 1), *rest)
        first += 1
    if first < last:
        yield (range(first, last), *map(range, counts[1:]))
    if first <= last and end:
        for rest in _boxes(counts[1:], 0, end):
            yield (range(last, last + 1), *rest)


def _of_one_shape(
    axes: Sequence[Axis], segments: Sequence[Sequence[Any]]
) -> Iterator[tuple[tuple[int, ...], IntArray, list[Sequence[Any]]]]:
    """Yield the products of segments whose chunks have one shape: the shape, their places, and the segments."""
    apart = [_by_size(axis, each) for axis, each in zip(axes, segments, strict=True)]
    for sizes in product(*apart):
        places, some = np.zeros(1, np.int64), []
        for own, size, each in zip(apart, sizes, segments, strict=True):
            along = own[size]
            places = np.add.outer(places * len(each), along).reshape(-1)
            is_row = along[-1] - along[0] < len(along)
            some.append(each[along[0] : along[-1] + 1] if is_row else [each[place] for place in along])
        yield sizes, places, some


def _by_size(axis: Axis, segments: Sequence[Any]) -> dict[int, list[int]]:
    """Return the places of segments along one dimension by the size of their chunks."""
    sizes = axis.sizes_of(np.array(chunks_along(segments)))
    if sizes is None:
        return {axis.size(0): list(range(len(segments)))}
    places: dict[int, list[int]] = {}
    for place, size in enumerate(sizes.tolist()):
        places.setdefault(size, []).append(place)
    return places


class PlainBox(NamedTuple):
    """A box of an array: its origin, its sizes, and whether each dimension is kept in the result."""

    first: list[int]
    sizes: list[int]
    kept: list[bool]

    def chunk_count(self, steps: Sequence[int]) -> int:
        """Return how many chunks with sides of `steps` the box touches."""
        return math.prod(
            [
                (low + size - 1) // step - low // step + 1
                for low, size, step in zip(self.first, self.sizes, steps, strict=True)
            ]
        )


def plain_box(maps: Sequence[OutputMap], shape: Sequence[int]) -> PlainBox | None:
    """Return the box that a request selects; None if it is empty, lists positions, has gaps or permutes dimensions."""
    first: list[int] = []
    sizes: list[int] = []
    kept: list[bool] = []
    rank = 0
    for output_map in maps:
        if isinstance(output_map, Indexed):
            return None
        first.append(output_map[0])
        kept.append(isinstance(output_map, Affine))
        if isinstance(output_map, Constant):
            sizes.append(1)
            continue
        _, step, source = output_map
        if step != 1 or source != rank:
            return None
        sizes.append(shape[rank])
        rank += 1
    return PlainBox(first, sizes, kept) if rank == len(shape) and 0 not in sizes else None


class BoxParts(NamedTuple):
    """Parts of boxes, each within one chunk, as columns.

    A row holds the numbers of the box and of the chunk, the position of the part in the chunk (`low` to `high`) and in
    the box (`begin` to `end`), and whether it is the whole chunk (`covers`).
    """

    box: IntArray
    chunk: IntArray
    low: IntArray
    high: IntArray
    begin: IntArray
    end: IntArray
    covers: Any

    def rows(self, chosen: IntArray) -> BoxParts:
        """Return some rows."""
        return BoxParts(*[column[chosen] for column in self])

    def cut(self, chosen: IntArray, steps: IntArray, inner: IntArray) -> tuple[IntArray, BoxParts]:
        """Return some rows divided into chunks of sides `inner`, given chunks of sides `steps`, and the original row of
        each.
        """
        first = self.chunk[chosen] * steps + self.low[chosen]
        ends = np.full(len(steps), np.iinfo(np.int64).max)
        found = cut_boxes(first, (self.high - self.low)[chosen], inner, ends)
        row = chosen[found.box]
        origin = self.begin[row]
        return row, found._replace(box=self.box[row], begin=found.begin + origin, end=found.end + origin)


def chunk_ends(axes: Sequence[Axis], extent: IntArray) -> IntArray:
    """Return the latest end of the last chunk along each dimension."""
    clipped = [isinstance(axis, ClippedAxis) for axis in axes]
    return np.where(clipped, extent, np.iinfo(np.int64).max)


def cut_boxes(first: IntArray, sizes: IntArray, steps: IntArray, ends: IntArray) -> BoxParts:
    """Return the parts of boxes in each chunk, sorted by chunk, and within a chunk in the order of their boxes."""
    low = first // steps
    counts = (first + sizes - 1) // steps - low + 1
    each = counts.prod(1)
    box = np.repeat(np.arange(len(first)), each)
    rest = np.arange(len(box)) - np.repeat(np.cumsum(each) - each, each)
    chunk = low[box]
    for axis in range(len(steps)):
        rest, place = np.divmod(rest, counts[box, axis])
        chunk[:, axis] += place
    order = np.lexsort(chunk.T)
    box, chunk = box[order], chunk[order]
    start, origin = chunk * steps, first[box]
    begin = np.maximum(origin, start)
    end = np.minimum(origin + sizes[box], start + steps)
    covers = (end - begin == np.minimum(steps, ends - start)).all(1)
    return BoxParts(box, chunk, begin - start, end - start, begin - origin, end - origin, covers)


def rows_by_chunk(parts: BoxParts) -> IntArray:
    """Return the first row of each chunk, and the end of the last."""
    chunk = parts.chunk
    changed = np.flatnonzero((chunk[1:] != chunk[:-1]).any(1)) + 1
    return np.concatenate(([0], changed, [len(chunk)]))
