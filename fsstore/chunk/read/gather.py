"""Reading listed positions: one gather for many chunks.

The cells of such a request are boxes of the plan: some segments along each component, and all their products.  Where
small chunks of a box are decoded next to each other, the address of every wanted element in that memory is a sum, a
column of integers a component; so one gather takes the wanted elements of all, and no object is made for a point or
a chunk.  A large chunk is a box of one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from itertools import product
from typing import Any, NamedTuple, TypeAlias, overload

import numpy as np

from fsstore.chunk.model import ChunkModel, IntArray
from fsstore.chunk.planner import CellPlan, chunks_along

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Spans: TypeAlias = tuple[range, ...]


class _Cut(NamedTuple):
    """How a box of cells is divided into smaller, consecutive ones: along one component, with later ones whole."""

    spans: Spans
    axis: int
    step: int

    @classmethod
    def of(cls, spans: Spans, size: int) -> _Cut:
        """Return the division into boxes of at most `size` cells."""
        axis, whole = len(spans), 1
        while axis and whole * len(spans[axis - 1]) <= size:
            axis -= 1
            whole *= len(spans[axis])
        return cls(spans, axis - 1, max(1, size // whole))

    @property
    def pieces(self) -> int:
        """The number of boxes."""
        if self.axis < 0:
            return 1
        return math.prod(map(len, self.spans[: self.axis])) * self._rows

    @property
    def _rows(self) -> int:
        return -(-len(self.spans[self.axis]) // self.step)

    def box(self, number: int) -> Spans:
        """Return one of the boxes."""
        if self.axis < 0:
            return self.spans
        number, row = divmod(number, self._rows)
        chosen = [self.spans[self.axis][row * self.step : (row + 1) * self.step]]
        for span in reversed(self.spans[: self.axis]):
            number, at = divmod(number, len(span))
            chosen.append(span[at : at + 1])
        return (*reversed(chosen), *self.spans[self.axis + 1 :])


class CellBox(Sequence["CellBox"]):
    """Cells of a plan of listed positions: the products of the segments in `spans`, a range a component.

    A cell is a box of one.
    """

    __slots__ = ("plan", "spans")
    covers = False

    def __init__(self, plan: CellPlan, spans: Spans) -> None:
        self.plan, self.spans = plan, spans

    def __len__(self) -> int:
        return math.prod(map(len, self.spans))

    @overload
    def __getitem__(self, place: int) -> CellBox: ...

    @overload
    def __getitem__(self, place: slice) -> list[CellBox]: ...

    def __getitem__(self, place: int | slice) -> CellBox | list[CellBox]:
        if len(self) == 1 and place == 0:
            return self
        cut = _Cut.of(self.spans, 1)
        if isinstance(place, slice):
            return [CellBox(self.plan, cut.box(number)) for number in range(len(self))[place]]
        return CellBox(self.plan, cut.box(range(len(self))[place]))

    def __iter__(self) -> Iterator[CellBox]:
        return iter([self] if len(self) == 1 else self[:])

    @property
    def chunks(self) -> list[IntArray]:
        """The numbers of the chunks, one column for each output dimension."""
        shape = tuple(map(len, self.spans))
        count, columns = math.prod(shape), {}
        places = np.unravel_index(np.arange(count), shape) if count not in shape else ()
        for axis, (component, span) in enumerate(zip(self.plan.components, self.spans, strict=True)):
            listed = component.listed
            chunks: Sequence[Any] = [[component.segments[0].chunk]] if listed is None else listed.chunks
            for output, numbers in zip(component.outputs, chunks, strict=True):
                own = np.asarray(numbers[span.start : span.stop])
                if len(own) < count:
                    own = own[places[axis]] if places else own.repeat(count)
                columns[output] = own
        return [columns[output] for output in range(len(columns))]

    @property
    def numbers(self) -> list[int]:
        """The numbers of the first chunk."""
        numbers = [0] * sum([len(component.outputs) for component in self.plan.components])
        for component, span in zip(self.plan.components, self.spans, strict=True):
            if component.listed is None:
                numbers[component.outputs[0]] = component.segments[0].chunk
                continue
            for output, chunks in zip(component.outputs, component.listed.chunks, strict=True):
                numbers[output] = int(chunks[span.start])
        return numbers

    def keys(self, model: ChunkModel) -> list[str]:
        """Return the keys of the chunks."""
        if len(self) == 1:
            return [model.key(self.numbers)]
        if not self.plan.separable:
            return model.keys_of(self.chunks)
        pairs = zip(self.plan.components, self.spans, strict=True)
        return model.keys_of_product([chunks_along(each.segments)[span.start : span.stop] for each, span in pairs])

    def of_one_shape(self) -> Iterator[tuple[CellBox, Sequence[int]]]:
        """Yield boxes whose chunks have one shape, and the numbers of their cells in this one."""
        parts = [
            [span] if component.listed is None else _common(span, component.listed.uniform)
            for component, span in zip(self.plan.components, self.spans, strict=True)
        ]
        whole = range(len(self))
        if max(map(len, parts)) == 1:
            yield self, whole
            return
        numbers = np.array(whole).reshape(list(map(len, self.spans)))
        for spans in product(*parts):
            pairs = zip(spans, self.spans, strict=True)
            here = [slice(span.start - own.start, span.stop - own.start) for span, own in pairs]
            yield CellBox(self.plan, spans), numbers[tuple(here)].reshape(-1).tolist()


def boxes(plan: CellPlan, size: int, lanes: int = 1) -> Iterator[CellBox]:
    """Yield the cells of a plan of listed positions in boxes of at most `size`, from `lanes` parts of the plan in turn.

    Lanes lie far apart in the plan.
    """
    if not plan.cell_count:
        return
    cut = _Cut.of(tuple([range(len(component.segments)) for component in plan.components]), size)
    share = -(-cut.pieces // lanes)
    for turn in range(share):
        for number in range(turn, cut.pieces, share):
            yield CellBox(plan, cut.box(number))


def split(cells: Sequence[Any], size: int) -> Iterator[Any]:
    """Yield consecutive cells, at most `size` at a time; smaller boxes if they are a box."""
    if not isinstance(cells, CellBox):
        for begin in range(0, len(cells), size):
            yield cells[begin : begin + size]
        return
    if len(cells) <= size:
        yield cells
        return
    cut = _Cut.of(cells.spans, size)
    for number in range(cut.pieces):
        yield CellBox(cells.plan, cut.box(number))


class Gather:
    """The result array of a request for listed positions, addressed by boxes of cells.

    Several workers may use it at once, because cells are disjoint.
    """

    __slots__ = ("_lead", "_view", "plan")

    def __init__(self, plan: CellPlan, array: Array) -> None:
        self.plan = plan
        self._view = array.transpose(plan.axes)
        self._lead = (slice(None),) * plan.unused

    def target(self, cell: CellBox) -> None:
        """Return None: no cell is a whole chunk."""

    def copy_out_run(self, cells: Sequence[CellBox], chunks: Array) -> None:
        """Copy the selected elements of chunks, given as rows of an array, to the result."""
        for cell, chunk in zip(cells, chunks, strict=True):
            self.copy_out(cell, chunk)

    def numbers(self, cell: CellBox) -> Sequence[int]:
        """Return the numbers of a cell's chunk."""
        return cell.numbers

    def span(self, cell: CellBox, shape: Sequence[int], order: Sequence[int]) -> None:
        """Return None: listed positions form no span."""

    def fill(self, cell: CellBox, value: Any) -> None:
        """Set the selected elements of the result to one value."""
        self._view[self._outside(cell)] = value

    def copy_out(self, cell: CellBox, chunk: Array) -> None:
        """Copy the selected elements of the chunk to the result."""
        self.gather(cell, chunk[np.newaxis])

    def gather(self, cells: CellBox, run: Array) -> None:
        """Copy the selected elements of all chunks of a box, consecutive in `run`, to the result."""
        flat, (step, *strides) = _in_memory(run)
        base, columns = self._columns(cells, strides, _steps([len(span) for span in cells.spans], step))
        address = reduce(np.add.outer, columns)
        self._view[self._outside(cells)] = flat.take(address + base if base else address)

    def pick(self, cells: CellBox, chunks: Iterable[Array | None], fill: Any) -> None:
        """Copy the selected elements of the chunks of a box, each of which is valid until the next is drawn.

        Their addresses are computed for all of them at once.  `fill` takes the place of a chunk that is None.
        """
        listed = [
            (component.listed, span)
            for component, span in zip(self.plan.components, cells.spans, strict=True)
            if component.listed is not None
        ]
        places = [each.slices(span) for each, span in listed]
        index = self._outside(cells)
        is_view = all(isinstance(each, slice) for each in index)
        shape = [each[-1].stop for each in places]
        picked = self._view[index] if is_view else np.empty(shape, self._view.dtype)
        known: tuple[int, ...] | None = None
        order: Sequence[int] | None = None
        columns: list[IntArray] = []
        for chunk, place in zip(chunks, product(*places), strict=True):
            here: tuple[Any, ...] = (..., *place)
            if chunk is None:
                picked[here] = fill
                continue
            if chunk.strides != known:
                known = chunk.strides
                order, strides = _memory_order(chunk)
                base, columns = self._columns(cells, strides, [0] * len(cells.spans))
                columns[0] = columns[0] + base
                columns = [_along(each, axis, len(columns)) for axis, each in enumerate(columns)]
            flat = (chunk if order is None else chunk.transpose(order)).reshape(-1)
            picked[here] = flat.take(_sum_of(columns, place))
        if not is_view:
            self._view[index] = picked

    def _columns(self, cells: CellBox, strides: Sequence[int], steps: Sequence[int]) -> tuple[int, list[IntArray]]:
        """Return the addresses of the selected elements in memory: a base, and a column for each listed component."""
        columns: list[IntArray] = []
        base = 0
        for component, span, apart in zip(self.plan.components, cells.spans, steps, strict=True):
            own = tuple([strides[output] for output in component.outputs])
            if component.listed is None:
                base += component.segments[0].inside * own[0]
            else:
                first, column = component.listed.addresses(span, own, apart)
                base += first
                columns.append(column)
        return base, columns

    def _outside(self, cells: CellBox) -> tuple[Any, ...]:
        """Return the index of a box's elements in the result."""
        chosen = [
            component.listed.outside(span.start, span.stop)
            for component, span in zip(self.plan.components, cells.spans, strict=True)
            if component.listed is not None
        ]
        if all(isinstance(each[0], slice) for each in chosen):
            return (*self._lead, *[each[0] for each in chosen])
        index: list[Any] = [*self._lead]
        for place, each in enumerate(chosen):
            index += [_along(_as_array(values), place, len(chosen)) for values in each]
        return tuple(index)


def _common(span: range, ranges: Sequence[range]) -> list[range]:
    """Return the overlap of a range with each of several consecutive ranges around it."""
    if len(ranges) == 1:
        return [span]
    common = [range(max(span.start, each.start), min(span.stop, each.stop)) for each in ranges]
    return [each for each in common if each]


def _steps(counts: Sequence[int], step: int) -> list[int]:
    """Return the distances between the chunks of a grid along each dimension; `step` is the distance along the last."""
    steps = [step]
    for count in reversed(counts[1:]):
        steps.append(steps[-1] * count)
    return steps[::-1]


def _in_memory(run: Array) -> tuple[Array, list[int]]:
    """Return the elements of an array in memory order, and its strides in elements."""
    order, strides = _memory_order(run)
    return (run if order is None else run.transpose(order)).reshape(-1), strides


def _memory_order(run: Array) -> tuple[Sequence[int] | None, list[int]]:
    """Return the memory order of an array's dimensions, and its strides in that order, in elements.

    The order is None if it is the order of the dimensions, or if the array has to be copied.
    """
    order: Sequence[int] | None = None
    if not run.flags.c_contiguous:
        order = sorted(range(run.ndim), key=lambda axis: -run.strides[axis])
        if not run.transpose(order).flags.c_contiguous:  # a field of structures
            order = None
    strides, step = [0] * run.ndim, 1
    for axis in reversed(range(run.ndim) if order is None else order):
        strides[axis] = step
        step *= run.shape[axis]
    return order, strides


def _sum_of(columns: Sequence[IntArray], place: Sequence[slice]) -> IntArray:
    """Return the sum of parts of columns, each along a dimension of its own."""
    rank = len(columns)
    parts = [
        column[(slice(None),) * axis + (part,) + (slice(None),) * (rank - axis - 1)] if rank > 1 else column[part]
        for axis, (column, part) in enumerate(zip(columns, place, strict=True))
    ]
    return reduce(np.add, parts)


def _along(values: IntArray, place: int, rank: int) -> IntArray:
    """Return a column as an array of the given rank that extends along one dimension."""
    return values.reshape((1,) * place + (-1,) + (1,) * (rank - place - 1)) if rank > 1 else values


def _as_array(selection: slice | IntArray) -> IntArray:
    return np.arange(selection.start, selection.stop) if isinstance(selection, slice) else selection
