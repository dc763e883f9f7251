"""From a request to cells: which chunks are touched, and which elements of each go where.

A request maps the positions of a result (input dimensions) to positions of the array (output dimensions).  `plan` cuts
it along the grid of chunks, for reads and writes alike, into one of three shapes:

* `ChunkBox`: a box within one chunk, which small requests are nearly always; a few integers, made at once
* `ChunkBoxes`: a box, also with steps, over a few chunks
* `CellPlan`: everything else.  Output dimensions that share no input dimension with others are cut into chunks
  independently, and the cells are the product of their segments: so millions of elements cost a few numbers each
  dimension.  Output dimensions that share input dimensions (diagonals, point lists) are cut together, by sorting the
  points (`listed`).

Pure: knows nothing of keys, bytes or stores.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from fsstore.chunk.model import Axis, ChunkModel, IntArray, Segment, SliceSegments, even, point_segment, slice_segments
from fsstore.chunk.request import (
    Affine,
    Constant,
    Indexed,
    ListedSegments,
    OutputMap,
    Points,
    listed_segments,
    map_ends,
)

_tuple = tuple.__new__  # makes a named tuple in a third of the time
BoxSide: TypeAlias = "tuple[int, int | slice, slice | None, bool]"
"""A box along one dimension: the number of its chunk, the selection there, the destination, and whether it is the
whole.

A number as the selection has no destination.
"""


class ChunkBox(NamedTuple):
    """A cell that holds its own target: the numbers of its chunk, the index of its elements there, and the target.

    `covers`: they are the whole chunk, in its shape.  It is also the plan of a request that touches no other chunk.
    """

    numbers: Sequence[int]
    inside: tuple[Any, ...]
    covers: bool
    target: np.ndarray[Any, np.dtype[Any]]

    @property
    def cell_count(self) -> int:
        """One: it is a plan of a single cell."""
        return 1

    @property
    def covers_some(self) -> bool:
        """Whether all of some chunk is wanted."""
        return self.covers

    def cells(self) -> Sequence[ChunkBox]:
        """Return the cell."""
        return [self]

    def even(self, size: int) -> int:
        """Return how many cells, at most `size`, are taken at a time."""
        return 1

    def keys(self, model: ChunkModel) -> list[str]:
        """Return the key of its chunk."""
        return [model.key(self.numbers)]

    def chunk_numbers(self, cell: Any) -> Sequence[int]:
        """Return the numbers of the chunk along each output dimension."""
        return self.numbers

    def chunks(self, rank: int | None) -> list[tuple[int, ...]]:
        """Return the numbers of the touched chunks along the first `rank` dimensions."""
        return [tuple(self.numbers[:rank])]

    def onto(self, array: np.ndarray[Any, np.dtype[Any]]) -> ChunkBox:
        """Return the plan of the same request with another array for its elements."""
        return self._replace(target=array)


class ChunkBoxes(NamedTuple):
    """The plan of a box over a few chunks: its sides in each chunk by dimension, and the array of its elements."""

    sides: Sequence[Sequence[BoxSide]]
    array: np.ndarray[Any, np.dtype[Any]]

    @property
    def cell_count(self) -> int:
        """The number of cells."""
        return math.prod(map(len, self.sides))

    def cells(self) -> Sequence[ChunkBox]:
        """Return the boxes in the order of their chunks."""
        array, found = self.array, []
        for sides in product(*self.sides):
            numbers, inside, outside, covers = zip(*sides, strict=True)
            target = array[(*filter(None, outside), ...)]
            found.append(_tuple(ChunkBox, (numbers, (*inside, ...), False not in covers, target)))
        return found

    def even(self, size: int) -> int:
        """Return how many cells, at most `size`, are taken at a time."""
        return size

    def keys(self, model: ChunkModel) -> list[str]:
        """Return the keys of the chunks."""
        return model.keys_of_product([[side[0] for side in each] for each in self.sides])

    def chunk_numbers(self, cell: ChunkBox) -> Sequence[int]:
        """Return the numbers of a cell's chunk along each output dimension."""
        return cell.numbers

    def chunks(self, rank: int | None) -> list[tuple[int, ...]]:
        """Return the numbers of the touched chunks along the first `rank` dimensions."""
        return list(product(*[[side[0] for side in each] for each in self.sides[:rank]]))

    def onto(self, array: np.ndarray[Any, np.dtype[Any]]) -> ChunkBoxes:
        """Return the plan of the same request with another array for its elements."""
        return self._replace(array=array)


_covers = attrgetter("covers")


class PlanComponent(NamedTuple):
    """Output dimensions that are planned together, the input dimensions they depend on, and the segments.

    A component of one output dimension that depends on at most one input dimension has `Segment`s, a larger one has
    `Points`.
    """

    outputs: tuple[int, ...]
    inputs: tuple[int, ...]
    segments: Sequence[Any]

    @property
    def is_joint(self) -> bool:
        """Whether the segments are `Points`."""
        return len(self.outputs) > 1 or len(self.inputs) > 1

    @property
    def covers_some(self) -> bool:
        """Whether some segment covers a chunk along its dimensions."""
        segments = self.segments
        return segments.covers_some if isinstance(segments, SliceSegments) else any(map(_covers, segments))

    @property
    def listed(self) -> ListedSegments | None:
        """The segments, if their positions are listed."""
        return self.segments if isinstance(self.segments, ListedSegments) else None


class Cell(NamedTuple):
    """One chunk as touched by one request: one segment for each component."""

    segments: tuple[Any, ...]
    covers: bool

    @classmethod
    def of(cls, segments: tuple[Any, ...]) -> Cell:
        """Return the cell of some segments."""
        return cls(segments, all(map(_covers, segments)))


AnyCell: TypeAlias = Cell | ChunkBox


class CellPlan(NamedTuple):
    """The cells of a request, as the product of segments; the array itself is in a placement.

    `separable`: every component is one output dimension that depends on at most one input dimension; then `axes` orders
    the input dimensions as the result must be transposed to match chunks (unused dimensions first). `basic`: moreover
    no positions are listed.  `listed`: nothing but listed positions and constants.
    """

    shape: tuple[int, ...]
    components: tuple[PlanComponent, ...]
    axes: tuple[int, ...]
    unused: int
    separable: bool
    basic: bool
    listed: bool

    @property
    def cell_count(self) -> int:
        """The number of cells."""
        count = 1
        for component in self.components:
            count *= len(component.segments)
        return count if 0 not in self.shape else 0

    def even(self, size: int) -> int:
        """Return a number of cells, at most `size` and not much smaller, whose multiples end with rows of the grid."""
        return even([len(component.segments) for component in self.components], size)

    def cells(self) -> Iterator[Cell]:
        """Yield the cells in the order of their chunks."""
        if 0 in self.shape:
            return
        for segments in product(*(component.segments for component in self.components)):
            yield Cell.of(segments)

    @property
    def covers_some(self) -> bool:
        """Whether all of some chunk is wanted."""
        return all(component.covers_some for component in self.components)

    def chunk_numbers(self, cell: Any) -> Sequence[int]:
        """Return the numbers of a cell's chunk along each output dimension."""
        if self.separable:
            return [segment.chunk for segment in cell.segments]
        numbers = [0] * sum(len(component.outputs) for component in self.components)
        for component, segment in zip(self.components, cell.segments, strict=True):
            chunk = segment.chunk if isinstance(segment, Points) else (segment.chunk,)
            for output, number in zip(component.outputs, chunk, strict=True):
                numbers[output] = number
        return numbers

    def chunks(self, rank: int | None) -> list[tuple[int, ...]]:
        """Return the numbers of the touched chunks along the first `rank` dimensions."""
        if not self.separable:
            return [tuple(self.chunk_numbers(cell)[:rank]) for cell in self.cells()]
        return list(product(*[chunks_along(component.segments) for component in self.components[:rank]]))

    def onto(self, array: np.ndarray[Any, np.dtype[Any]]) -> CellPlan:
        """Return the plan of the same request with another array for its elements: itself."""
        return self


def chunks_along(segments: Sequence[Any]) -> Sequence[int]:
    """Return the numbers of the chunks of segments along one dimension."""
    if isinstance(segments, SliceSegments):
        return segments.chunks
    if isinstance(segments, ListedSegments):
        listed: list[int] = segments.chunks[0].tolist()
        return listed
    return [segment.chunk for segment in segments]


Plan: TypeAlias = ChunkBox | CellPlan
FewPlan: TypeAlias = Plan | ChunkBoxes


def plan(maps: Sequence[OutputMap], array: np.ndarray[Any, np.dtype[Any]], axes: Sequence[Axis]) -> Plan:
    """Return the plan of a request whose elements `array` holds or receives.

    `maps` has one entry for each output dimension; `axes` are the chunk boundaries.
    """
    return _box(maps, array, axes) or plan_cells(maps, array.shape, axes)


def plan_few(
    maps: Sequence[OutputMap], array: np.ndarray[Any, np.dtype[Any]], axes: Sequence[Axis], most: int
) -> FewPlan:
    """Return the result of `plan`, or for a box over at most `most` chunks its boxes, which take less time."""
    return _box(maps, array, axes) or _boxes(maps, array, axes, most) or plan_cells(maps, array.shape, axes)


def _box(maps: Sequence[OutputMap], out: np.ndarray[Any, np.dtype[Any]], axes: Sequence[Axis]) -> ChunkBox | None:
    """Return the plan of a request that is a box in one chunk with its dimensions in order, else None.

    Small requests are nearly always such boxes, and a few integers take a quarter of the time of a plan.
    """
    shape = out.shape
    if 0 in shape:  # an empty request may touch no chunk
        return None
    numbers: list[int] = []
    inside: list[Any] = []
    rank, covers = 0, True
    for output_map, axis in zip(maps, axes, strict=True):
        if isinstance(output_map, Constant):
            number, start, _ = axis.chunk_around(output_map[0])
            inside.append(output_map[0] - start)
            covers = False
        elif isinstance(output_map, Indexed) or output_map.axis != rank or output_map.step < 1:
            return None
        else:
            position, step, _ = output_map
            number, start, size = axis.chunk_around(position)
            low = position - start
            stop = low + (shape[rank] - 1) * step + 1
            if stop > size:
                return None
            inside.append(slice(low, stop, step))
            covers = covers and shape[rank] == size
            rank += 1
        numbers.append(number)
    if rank < len(shape):
        return None
    inside.append(...)
    return _tuple(ChunkBox, (numbers, tuple(inside), covers, out))


def _boxes(
    maps: Sequence[OutputMap], out: np.ndarray[Any, np.dtype[Any]], axes: Sequence[Axis], most: int
) -> ChunkBoxes | None:
    """Return the plan of a request that is a box in at most `most` chunks with its dimensions in order, else None."""
    shape = out.shape
    if 0 in shape or most < 2:
        return None
    rows: list[list[BoxSide]] = []
    count, rank = 1, 0
    for output_map, axis in zip(maps, axes, strict=True):
        sides: list[BoxSide] | None = None
        if isinstance(output_map, Constant):
            number, start, _ = axis.chunk_around(output_map[0])
            sides = [(number, output_map[0] - start, None, False)]
        elif isinstance(output_map, Affine) and output_map.axis == rank and output_map.step > 0:
            sides = _sides(axis, output_map[0], output_map[1], shape[rank], most // count)
            rank += 1
        if sides is None:
            return None
        rows.append(sides)
        count *= len(sides)
    return None if rank < len(shape) else ChunkBoxes(rows, out)


def _sides(axis: Axis, position: int, step: int, count: int, most: int) -> list[BoxSide] | None:
    """Return the segments of each chunk along a dimension that some positions select; None for more than `most`."""
    sides: list[BoxSide] = []
    done = 0
    while done < count:
        if len(sides) == most:
            return None
        number, start, size = axis.chunk_around(position)
        low = position - start
        taken = min(count - done, (size - low - 1) // step + 1)
        covers = taken == size and (step == 1 or size == 1)
        sides.append((number, slice(low, low + (taken - 1) * step + 1, step), slice(done, done + taken), covers))
        done += taken
        position += taken * step
    return sides


def plan_cells(maps: Sequence[OutputMap], shape: tuple[int, ...], axes: Sequence[Axis]) -> CellPlan:
    """Return the cells of a request, even of one within a single chunk, without the array of its elements.

    `maps` has one entry for each output dimension, `shape` is the shape of the result, `axes` are the chunk boundaries.
    """
    groups = _connected(maps, shape)
    components = tuple([_component(group, maps, shape, axes) for group in groups])
    separable = True not in [component.is_joint for component in components]
    used = [axis for component in components for axis in component.inputs]
    unused = [axis for axis in range(len(shape)) if axis not in used]
    listed = [component.listed is not None for component in components]
    only = any(listed) and all(each or not one.inputs for each, one in zip(listed, components, strict=True))
    return CellPlan(shape, components, (*unused, *used), len(unused), separable, True not in listed, only)


def _depends(output_map: OutputMap, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the input dimensions that the positions depend on."""
    if isinstance(output_map, Affine):
        return (output_map.axis,)
    if isinstance(output_map, Indexed):
        positions = output_map.positions
        lead = len(shape) - positions.ndim
        return tuple(lead + axis for axis, size in enumerate(positions.shape) if size != 1)
    return ()


def _connected(maps: Sequence[OutputMap], shape: tuple[int, ...]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Return groups of output dimensions that share input dimensions, with these, ordered by first output dimension."""
    inputs = [_depends(output_map, shape) for output_map in maps]
    used = [axis for each in inputs for axis in each]
    if len(set(used)) == len(used):  # nothing is shared, the common case
        return [((output,), each) for output, each in enumerate(inputs)]
    groups: list[tuple[list[int], set[int]]] = []
    for output, each in enumerate(inputs):
        outputs, joined = [output], set(each)
        apart = []
        for others, theirs in groups:
            if joined & theirs:
                outputs, joined = others + outputs, joined | theirs
            else:
                apart.append((others, theirs))
        groups = [*apart, (outputs, joined)]
    return sorted((tuple(sorted(outputs)), tuple(sorted(joined))) for outputs, joined in groups)


def _component(
    group: tuple[tuple[int, ...], tuple[int, ...]],
    maps: Sequence[OutputMap],
    shape: tuple[int, ...],
    axes: Sequence[Axis],
) -> PlanComponent:
    outputs, inputs = group
    if len(outputs) > 1 or len(inputs) > 1:
        positions = [_positions(maps[output], inputs, shape) for output in outputs]
        sizes = tuple([shape[axis] for axis in inputs])
        cut = [axes[output] for output in outputs]
        ends = [map_ends(maps[output], shape) for output in outputs]
        return PlanComponent(outputs, inputs, listed_segments(cut, positions, sizes, ends))
    output_map, axis = maps[outputs[0]], axes[outputs[0]]
    if isinstance(output_map, Affine):
        segments: Sequence[Segment] = slice_segments(axis, output_map.first, output_map.step, shape[output_map.axis])
    elif isinstance(output_map, Constant):
        segments = [point_segment(axis, output_map.position)]
    elif inputs:
        column = output_map.positions.reshape(-1)
        segments = listed_segments([axis], [column], (len(column),), [output_map.ends])
    else:
        segments = [point_segment(axis, int(output_map.positions.reshape(-1)[0]))]
    return PlanComponent(outputs, inputs, segments)


def _positions(output_map: OutputMap, inputs: tuple[int, ...], shape: tuple[int, ...]) -> IntArray:
    """Return the positions of one output dimension at every point of the given input dimensions, flat."""
    sizes = tuple(shape[axis] for axis in inputs)
    if isinstance(output_map, Affine):
        values = output_map.first + output_map.step * np.arange(shape[output_map.axis], dtype=np.int64)
        place = [1] * len(inputs)
        place[inputs.index(output_map.axis)] = len(values)
        return np.broadcast_to(values.reshape(place), sizes).reshape(-1)
    if isinstance(output_map, Constant):
        return np.full(int(np.prod(sizes)), output_map.position, dtype=np.int64)
    if output_map.positions.size == math.prod(sizes):
        return output_map.positions.reshape(-1)
    lead = len(shape) - output_map.positions.ndim
    own = output_map.positions.shape
    place = [own[axis - lead] if axis >= lead else 1 for axis in inputs]
    return np.broadcast_to(output_map.positions.reshape(place), sizes).reshape(-1)
