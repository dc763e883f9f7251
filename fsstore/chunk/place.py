"""Moving elements between a chunk and the array of a request, cell by cell.

There are three ways, chosen once for each request.  Slices only: one strided copy of views.  Slices and one list of
positions: the same with one index array, which NumPy keeps in its place.  Anything else: an open mesh, an index array a
dimension on both sides, all broadcast to the same shape.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.lib.stride_tricks import as_strided

from fsstore.chunk.columns import CellRun
from fsstore.chunk.model import Segment, SliceSegments
from fsstore.chunk.planner import Cell, CellPlan, ChunkBox, ChunkBoxes, FewPlan
from fsstore.chunk.request import Points
from fsstore.codec.buffers import copy_elements
from fsstore.codec.contract import Array
from fsstore.codec.sharding import blocks_of
from fsstore.runtime.tuning import FEW


class _Repeated(NamedTuple):
    """Equidistant segments along a dimension with the same selection: their places, the selection, and its destination.

    There are `times` segments of `length` elements each; their destinations are `apart` from each other, the first at
    `begin`.  `begin` is None if a number selects: then there is one segment, and its dimension is dropped.
    """

    places: slice | int
    inside: Any
    begin: int | None
    times: int = 1
    length: int = 1
    apart: int = 1

    @property
    def outside(self) -> slice:
        """The range of their destinations, including gaps."""
        begin = self.begin or 0
        return slice(begin, begin + (self.times - 1) * self.apart + self.length)


def copy_boxes(target: Array, segments: Sequence[Sequence[Any]], chunks: Array) -> bool:
    """Copy the selections of `chunks`, which are the product of segments by dimension, to `target`.

    The dimensions of `target` are the segments' destinations, in order.  Return False, without copying, if that would
    take more than half as many copies as there are chunks.
    """
    alike = [_alike(each) for each in segments]
    counts = list(map(len, segments))
    if 2 * math.prod(map(len, alike)) > math.prod(counts):
        return False
    cells = chunks.reshape(*counts, *chunks.shape[1:])
    for box in product(*alike):
        selected: tuple[Any, ...] = (*[each.places for each in box], *[each.inside for each in box], ...)
        going = [each for each in box if each.begin is not None]
        part: tuple[Any, ...] = (*[each.outside for each in going], ...)
        copy_elements(_cut(target[part], going), cells[selected])
    return True


def _alike(segments: Sequence[Segment]) -> list[_Repeated]:
    """Return the segments along a dimension, combined if they have the same selection at equal distances."""
    known, period, apart = range(0), 1, 0
    places: Sequence[int] = range(len(segments))
    if isinstance(segments, SliceSegments) and (whole := segments.whole) is not None:
        times, (goes_to, size) = len(segments), whole
        return [_Repeated(slice(0, times), slice(0, size), goes_to, times, size, size)]
    if isinstance(segments, SliceSegments) and segments.inner:
        known, (period, apart) = segments.inner, segments.period
        places = sorted({0, *known[:period], *known[-period:], known.stop})
    found: list[_Repeated] = []
    # the last place with the same selection, and its number in `found`
    latest: dict[Any, tuple[int, int]] = {}
    for place in places:
        _, inside, outside, _, length = segments[place]
        if not isinstance(outside, slice) or not isinstance(inside, slice):
            found.append(_Repeated(place, inside, None))
            continue
        key = (inside.start, inside.stop, inside.step)
        last, number = latest.get(key, (-1, -1))
        steps, pace = (place - last) // period, apart if known else length
        is_next = last >= 0 and (place - last == period or (last in known and place in known))
        if is_next and outside.stop == found[number].outside.stop + steps * pace:
            times, begin = found[number].times + steps, found[number].begin
            first = place - (times - 1) * period
            found[number] = _Repeated(slice(first, place + 1, period), inside, begin, times, length, pace)
        else:
            number = len(found)
            found.append(_Repeated(slice(place, place + 1), inside, outside.start, 1, length, length))
        latest[key] = (place, number)
    return found


def _cut(part: Array, alike: Sequence[_Repeated]) -> Array:
    """Return a view of the segments' target, divided into one piece for each: the first dimensions count the pieces."""
    counts = [each.times for each in alike]
    if all(each.apart == each.length for each in alike):
        rank = len(alike)
        sizes = [size for each in alike for size in (each.times, each.length)]
        cut = part.reshape((*sizes, *part.shape[rank:]))
        return cut.transpose([*range(0, 2 * rank, 2), *range(1, 2 * rank, 2), *range(2 * rank, cut.ndim)])
    steps = [stride * each.apart for stride, each in zip(part.strides, alike, strict=False)]
    shape = (*counts, *[each.length for each in alike], *part.shape[len(alike) :])
    return as_strided(part, shape, (*steps, *part.strides))


Index: TypeAlias = tuple[Any, ...]


class Placing(Protocol):
    """The part of a placement that reading needs; each cell is one that it places."""

    def target(self, cell: Any) -> Array | None:
        """Return the part of the array that corresponds exactly to the cell's chunk, or None."""
        ...

    def numbers(self, cell: Any) -> Sequence[int]:
        """Return the numbers of a cell's chunk."""
        ...

    def span(self, cell: Any, shape: Sequence[int], order: Sequence[int]) -> tuple[int, int] | None:
        """Return the first and last selected element of a chunk with a shape and a memory order, as a range.

        The result is None for listed positions.
        """
        ...

    def copy_out(self, cell: Any, chunk: Array) -> None:
        """Copy the selected elements of the chunk to the array."""
        ...

    def copy_out_run(self, cells: Sequence[Any], chunks: Array) -> None:
        """Copy the selected elements of chunks, rows of an array, to the array."""
        ...

    def fill(self, cell: Any, value: Any) -> None:
        """Set the elements of the array to one value."""
        ...


class Sending(Placing, Protocol):
    """A placement whose array is also written from."""

    def has_target(self, cell: Any) -> bool:
        """Return whether a part of the array corresponds exactly to the cell's chunk."""
        ...

    def blocks(self, cells: Sequence[Any], shape: tuple[int, ...]) -> Array | None:
        """Return the part of the array that chunks of one shape fill, divided into them; None if they do not fill a
        box.
        """
        ...

    def copy_in(self, cell: Any, chunk: Array) -> None:
        """Copy the elements of the array to their places in the chunk."""
        ...

    def source(self, cell: Any) -> Array | None:
        """Return the elements that `copy_in` copies; None if positions are listed, perhaps twice."""
        ...


class Placement:
    """The array of a request, addressed by its chunks.  Cells are disjoint, so several workers may use it at once."""

    __slots__ = ("_array", "_free", "_has_targets", "_lead", "_pointwise", "_rank", "_view", "plan")

    def __init__(self, plan: CellPlan, array: Array) -> None:
        self.plan = plan
        self._array = array
        self._view = array.transpose(plan.axes) if plan.separable else array
        self._lead = (slice(None),) * plan.unused
        self._free = plan.axes[: plan.unused]
        self._rank = sum([len(component.outputs) for component in plan.components])
        self._has_targets = not plan.unused and all(component.inputs for component in plan.components)
        # One list of points for all dimensions: its index arrays are the index on both sides.
        self._pointwise = len(plan.components) == 1 and not plan.separable and not plan.unused

    def target(self, cell: Cell) -> Array | None:
        """Return the part of the array that corresponds exactly to the cell's chunk, or None."""
        if not self.has_target(cell):
            return None
        target: Array = self._view[(*[segment.outside for segment in cell.segments], ...)]
        return target

    def has_target(self, cell: Cell) -> bool:
        """Return whether a part of the array corresponds exactly to the cell's chunk."""
        return cell.covers and self._has_targets

    def blocks(self, cells: Sequence[Cell], shape: tuple[int, ...]) -> Array | None:
        """Return the part of the array that chunks of one shape fill, divided into them; None if they do not fill a
        box.

        The cells are consecutive in the plan: if the outer ones cover their chunks and the box has the total size, the
        ones between cover theirs.
        """
        low, high = cells[0], cells[-1]
        if len(shape) != len(low.segments) or not (self.has_target(low) and self.has_target(high)):
            return None
        spans = [
            slice(first.outside.start, last.outside.stop)
            for first, last in zip(low.segments, high.segments, strict=True)
        ]
        return _blocks(self._view[tuple(spans)], len(cells), shape)

    def numbers(self, cell: Cell) -> Sequence[int]:
        """Return the numbers of a cell's chunk."""
        return self.plan.chunk_numbers(cell)

    def span(self, cell: Cell, shape: Sequence[int], order: Sequence[int]) -> tuple[int, int] | None:
        """Return the first and last selected element of a chunk with a shape and a memory order, as a range.

        The result is None for listed positions.
        """
        if not self.plan.separable:
            return None
        return _span([segment.inside for segment in cell.segments], shape, order)

    def copy_out(self, cell: Cell, chunk: Array) -> None:
        """Copy the selected elements of the chunk to the array."""
        if self.plan.basic:
            chosen = [segment.inside for segment in cell.segments]
            copy_elements(self._view[(*self._outside(cell), ...)], chunk[(*chosen, ...)])
            return
        chunk, inside, view, outside = self._sides(cell, chunk)
        view[outside] = chunk[inside]

    def copy_out_run(self, cells: Sequence[Cell], chunks: Array) -> None:
        """Copy the selected elements of chunks, rows of an array, to the array: as boxes if these are fewer."""
        if len(cells) < FEW or not (isinstance(cells, CellRun) and self.plan.basic) or self._lead:
            self._copy_out_each(cells, chunks)
            return
        begin = 0
        for some, segments in cells.boxes():
            end = begin + len(some)
            if len(some) < FEW or not copy_boxes(self._view, segments, chunks[begin:end]):
                self._copy_out_each(some, chunks[begin:end])
            begin = end

    def _copy_out_each(self, cells: Sequence[Cell], chunks: Array) -> None:
        for cell, chunk in zip(cells, chunks, strict=True):
            self.copy_out(cell, chunk)

    def copy_in(self, cell: Cell, chunk: Array) -> None:
        """Copy the elements of the array to their places in the chunk."""
        chunk, inside, view, outside = self._sides(cell, chunk)
        values = view[outside]
        if self._lead:
            values = values[(0,) * len(self._lead)]
        chunk[inside] = values

    def source(self, cell: Cell) -> Array | None:
        """Return the elements that `copy_in` copies; None if positions are listed, perhaps twice."""
        if not self.plan.basic:
            return None
        values: Array = self._view[(*self._outside(cell), ...)]  # an array even for a single element
        first: Index = (*[0] * len(self._lead), ...)
        return values[first] if self._lead else values

    def fill(self, cell: Cell, value: Any) -> None:
        """Set the elements of the array to one value."""
        view, outside = self._target_index(cell)
        view[outside] = value

    def _target_index(self, cell: Cell) -> tuple[Array, Index]:
        if self.plan.basic:
            return self._view, self._outside(cell)
        if self.plan.separable and _listed(cell) == 1:
            return self._view, self._outside(cell)
        return self._array, self._mesh(cell)[1]

    def _outside(self, cell: Cell) -> Index:
        chosen = [segment.outside for segment in cell.segments if segment.outside is not None]
        return (*self._lead, *chosen)

    def _sides(self, cell: Cell, chunk: Array) -> tuple[Array, Index, Array, Index]:
        """Return views and indexes such that `view[outside]` and `chunk[inside]` are the same elements."""
        if self.plan.basic:
            return (chunk, tuple([segment.inside for segment in cell.segments]), self._view, self._outside(cell))
        if self.plan.separable and _listed(cell) == 1:
            # Slices first, so that the one index array stands alone and NumPy keeps its dimension in place.
            sliced = tuple([_unless_listed(segment.inside) for segment in cell.segments])
            kept = [segment for segment in cell.segments if segment.outside is not None]
            inside = tuple([_if_listed(segment.inside) for segment in kept])
            return chunk[sliced], inside, self._view, self._outside(cell)
        inside, outside = self._mesh(cell)
        return chunk, inside, self._array, outside

    def _mesh(self, cell: Cell) -> tuple[Index, Index]:
        plan = self.plan
        if self._pointwise:
            points = cell.segments[0]
            return points.inside, points.outside
        inside: list[Any] = [0] * self._rank
        outside: list[Any] = [0] * len(plan.shape)
        ndim = plan.unused + len(plan.components)

        def along(axis: int, values: Any) -> Array:
            return np.asarray(values).reshape((1,) * axis + (-1,) + (1,) * (ndim - axis - 1))

        for axis, dimension in enumerate(self._free):
            outside[dimension] = along(axis, np.arange(plan.shape[dimension]))
        for axis, (component, segment) in enumerate(zip(plan.components, cell.segments, strict=True), plan.unused):
            if isinstance(segment, Points):
                for output, values in zip(component.outputs, segment.inside, strict=True):
                    inside[output] = along(axis, values)
                for dimension, where in zip(component.inputs, segment.outside, strict=True):
                    outside[dimension] = along(axis, _as_array(where))
                continue
            inside[component.outputs[0]] = along(axis, _as_array(segment.inside))
            if component.inputs:
                outside[component.inputs[0]] = along(axis, _as_array(segment.outside))
        return tuple(inside), tuple(outside)


class BoxPlacement:
    """A `Placement` of boxes, which hold their own target."""

    __slots__ = ()

    def target(self, box: ChunkBox) -> Array | None:
        """Return the target of a box that covers its chunk, otherwise None."""
        return box.target if box.covers else None

    def has_target(self, box: ChunkBox) -> bool:
        """Return whether the box covers its chunk."""
        return box.covers

    def blocks(self, boxes: Sequence[ChunkBox], shape: tuple[int, ...]) -> Array | None:
        """Return None: boxes have separate targets."""
        return None

    def numbers(self, box: ChunkBox) -> Sequence[int]:
        """Return the numbers of the chunk."""
        return box.numbers

    def span(self, box: ChunkBox, shape: Sequence[int], order: Sequence[int]) -> tuple[int, int] | None:
        """Return the first and last selected element of a chunk with a shape and a memory order, as a range."""
        return _span(box.inside, shape, order)

    def copy_out(self, box: ChunkBox, chunk: Array) -> None:
        """Copy the selected elements of the chunk to the target."""
        copy_elements(box.target, chunk[box.inside])

    def copy_out_run(self, boxes: Sequence[ChunkBox], chunks: Array) -> None:
        """Copy the selected elements of chunks, rows of an array, to their targets."""
        for (_, inside, _, target), chunk in zip(boxes, chunks, strict=True):
            copy_elements(target, chunk[inside])

    def copy_in(self, box: ChunkBox, chunk: Array) -> None:
        """Copy the values of the box to their place in the chunk."""
        chunk[box.inside] = box.target

    def source(self, box: ChunkBox) -> Array:
        """Return the elements of the box."""
        return box.target

    def fill(self, box: ChunkBox, value: Any) -> None:
        """Set the elements to one value."""
        box.target[...] = value


_BOXES = BoxPlacement()


class _FewPlacement(BoxPlacement):
    """A `BoxPlacement` for the boxes of one plan, whose targets lie in one array."""

    __slots__ = ("_plan",)

    def __init__(self, plan: ChunkBoxes) -> None:
        self._plan = plan

    def blocks(self, boxes: Sequence[ChunkBox], shape: tuple[int, ...]) -> Array | None:
        """Return the part of the array that chunks of one shape fill, as `Placement.blocks` does."""
        low, high = boxes[0], boxes[-1]
        if not (low.covers and high.covers):
            return None
        spans: list[slice] = []
        for sides, first, last in zip(self._plan.sides, low.numbers, high.numbers, strict=True):
            places = {number: place for number, _, place, _ in sides if place is not None}
            spans.append(slice(places[first].start, places[last].stop))
        return _blocks(self._plan.array[tuple(spans)], len(boxes), shape)


def _blocks(part: Array, count: int, shape: tuple[int, ...]) -> Array | None:
    """Return a part of an array divided into `count` chunks of a shape; None if its size differs."""
    return blocks_of(part, shape) if part.size == count * math.prod(shape) else None


def placement_of(plan: FewPlan, array: Array) -> Sending:
    """Return the placement of the cells of a request in its array."""
    if isinstance(plan, CellPlan):
        return Placement(plan, array)
    return _FewPlacement(plan) if isinstance(plan, ChunkBoxes) else _BOXES


def _span(inside: Sequence[Any], shape: Sequence[int], order: Sequence[int]) -> tuple[int, int] | None:
    """Return the first and last selected element of a chunk with a shape and a memory order, as a range."""
    first = last = 0
    for axis in order:
        chosen = inside[axis]
        if isinstance(chosen, int):
            low = high = chosen
        elif not isinstance(chosen, slice):
            return None
        elif chosen.step is None or chosen.step > 0:
            low, high = chosen.start, chosen.stop - 1
        else:
            low, high = 0 if chosen.stop is None else chosen.stop + 1, chosen.start
        first, last = first * shape[axis] + low, last * shape[axis] + high
    return first, last + 1


def _listed(cell: Cell) -> int:
    return sum(isinstance(segment, Points) or isinstance(segment.inside, np.ndarray) for segment in cell.segments)


def _if_listed(selection: Any) -> Any:
    return selection if isinstance(selection, np.ndarray) else slice(None)


def _unless_listed(selection: Any) -> Any:
    return slice(None) if isinstance(selection, np.ndarray) else selection


def _as_array(selection: Any) -> Any:
    if isinstance(selection, slice):
        stop = selection.stop if selection.stop is not None else -1
        return np.arange(selection.start, stop, selection.step or 1)
    return selection
