"""From index transforms to the requests of the engine, and listed positions by chunk.

A request maps each dimension of the array to positions of the result.  Listed positions (of one dimension, or points of
several) are grouped by chunk once for the whole request.  The part in one chunk is a run of the columns; a segment, an
object for one chunk, is made only on demand.

A failed allocation is an error that names the shape and the bytes: NumPy has three errors for it, two of them not a
`MemoryError`.  Large arrays begin with a cache line of the processor.  NumPy's own begin 16 bytes after one, so that
every row copied to them writes to lines that it shares with its neighbours: copying chunks into a result takes half as
long again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import reduce
from operator import sub
from typing import Any, Literal, NamedTuple, TypeAlias, overload

import numpy as np

from fsstore.chunk.model import Axis, IntArray, Segment
from fsstore.codec.buffers import passing as passing_memory
from fsstore.codec.contract import Array
from fsstore.errors import OutOfRangeError, ResourceExhaustedError, StoreError
from fsstore.index import IndexTransform
from fsstore.index.compose import compose
from fsstore.index.interval import interval_text
from fsstore.index.output_map import ARRAY, CONSTANT, SINGLE
from fsstore.index.output_map import OutputMap as IndexMap
from fsstore.runtime.tuning import PIECE_BYTES

_LINE = 64  # bytes of a cache line of the processor
_tuple = tuple.__new__  # makes a named tuple in a third of the time


class Constant(NamedTuple):
    """The output dimension has one position."""

    position: int


class Affine(NamedTuple):
    """The output position is `first + step * i`, `i` counted from the start of input dimension `axis`."""

    first: int
    step: int
    axis: int


class Indexed(NamedTuple):
    """The output positions are listed, in an array that broadcasts against the shape of the result.

    `ends` are the least and the greatest, if they are known.
    """

    positions: IntArray
    ends: tuple[int, int] | None = None


OutputMap: TypeAlias = Constant | Affine | Indexed


def located(transform: IndexTransform, bounds: IndexTransform) -> tuple[tuple[int, ...], list[OutputMap]]:
    """Return the shape of a view, and its positions in the array.

    `bounds` is the identity over the array, with explicit bounds.
    """
    extent = bounds.domain.exclusive_max  # arrays begin at zero
    found = maps_within(transform, extent)
    if found is not None:
        return found
    bounded = compose(transform, bounds)
    return bounded.domain.shape, plan_maps(bounded, extent)


def plan_maps(transform: IndexTransform, shape: Sequence[int]) -> list[OutputMap]:
    """Return the output maps of a transform with finite bounds, as positions from the start of its domain.

    Listed positions are checked against the shape of the array; affine ones were when the bounds were resolved.
    """
    origin = transform.domain.inclusive_min
    empty = 0 in transform.domain.shape
    maps: list[OutputMap] = []
    for dimension, output in enumerate(transform.maps):
        if output.method == SINGLE:
            source = output.input_dimension
            maps.append(Affine(output.offset + output.stride * origin[source], output.stride, source))
        elif output.method == CONSTANT or output.index_array is None:
            maps.append(Constant(output.offset))
        else:
            maps.append(_indexed(output, None if empty else (dimension, shape[dimension])))
    return maps


def maps_within(transform: IndexTransform, shape: Sequence[int]) -> tuple[tuple[int, ...], list[OutputMap]] | None:
    """Return the result of `located` for a transform whose positions lie within the array, else None.

    Nearly all do, and composing them with the bounds of the array takes as long as a small read from memory.  An
    implicit bound is the end of the array.
    """
    domain = transform.domain
    if True in domain.implicit_lower_bounds:
        return None
    low, high, open_ended = domain.inclusive_min, [*domain.exclusive_max], [*domain.implicit_upper_bounds]
    maps: list[OutputMap] = []
    for output, extent in zip(transform.maps, shape, strict=True):
        method, offset, stride, source, _, _ = output
        first = last = offset if method != ARRAY else 0
        if method == SINGLE:
            if open_ended[source] and stride > 0:
                high[source], open_ended[source] = (extent - 1 - offset) // stride + 1, False
            if low[source] >= high[source]:
                return None
            first += stride * low[source]
            last += stride * (high[source] - 1)
            maps.append(_tuple(Affine, (first, stride, source)))
        elif method == ARRAY:
            found = _listed_within(output, extent)
            if found is None:
                return None
            maps.append(found)
        else:
            maps.append(_tuple(Constant, (offset,)))
        if not (0 <= first < extent and 0 <= last < extent):
            return None
    return None if True in open_ended else (tuple(map(sub, high, low)), maps)


def _listed_within(output: IndexMap, extent: int) -> Indexed | None:
    _, offset, stride, _, values, (low, high) = output
    if values is None or not values.size:
        return None
    least, most = int(np.minimum.reduce(values, None)), int(np.maximum.reduce(values, None))
    ends = sorted((offset + stride * least, offset + stride * most))
    if not (low <= least and most < high and ends[0] >= 0 and ends[1] < extent):
        return None
    positions = values if (offset, stride) == (0, 1) else offset + stride * values
    return Indexed(positions, (ends[0], ends[1]))


def _indexed(output: IndexMap, checked: tuple[int, int] | None) -> Indexed:
    """Return a map of listed positions; `checked` are a dimension and its size, unless nothing is read.

    The values must lie within the indexed view, which may be smaller than the array.
    """
    _, offset, stride, _, values, (low, high) = output
    assert values is not None
    positions = values if (offset, stride) == (0, 1) else offset + stride * values
    if checked is None or not values.size:
        return Indexed(positions)
    dimension, size = checked
    least, most = int(np.minimum.reduce(values, None)), int(np.maximum.reduce(values, None))
    for index in (least, most):
        if not low <= index < high or not 0 <= offset + stride * index < size:
            raise OutOfRangeError(
                f"Index {index} is outside valid range {interval_text(low, high)} of dimension {dimension}"
            )
    ends = sorted((offset + stride * least, offset + stride * most))
    return Indexed(positions, (ends[0], ends[1]))


def as_lists(maps: Sequence[OutputMap], shape: tuple[int, ...]) -> list[OutputMap]:
    """Return the maps of a request with the positions of slices listed."""
    return [_list_of(each, shape) if isinstance(each, Affine) else each for each in maps]


def _list_of(output_map: Affine, shape: tuple[int, ...]) -> Indexed:
    first, step, axis = output_map
    positions = first + step * np.arange(shape[axis], dtype=np.int64)
    return Indexed(positions.reshape((-1, *[1] * (len(shape) - axis - 1))), map_ends(output_map, shape))


def map_ends(output_map: OutputMap, shape: tuple[int, ...]) -> tuple[int, int] | None:
    """Return the least and the greatest position along an output dimension, None if they are unknown."""
    if isinstance(output_map, Indexed):
        return output_map.ends
    if isinstance(output_map, Constant):
        return output_map.position, output_map.position
    ends = output_map.first, output_map.first + output_map.step * (shape[output_map.axis] - 1)
    return min(ends), max(ends)


_Grouped: TypeAlias = "tuple[IntArray | None, IntArray]"


class Points(NamedTuple):
    """A segment of dimensions planned together: positions inside the chunk by output, outside by input dimension."""

    chunk: tuple[int, ...]
    inside: tuple[IntArray, ...]
    outside: tuple[slice | IntArray, ...]
    covers: bool = False


class ListedSegments(Sequence[Any]):
    """The segments of listed positions, in order of chunks: `Segment`s of one dimension, or `Points` of several.

    Positions are columns, one for each output dimension.  `order` sorts them by chunk, and holds the place of each in
    the result, counted along the input dimensions of `sizes`; None if they are sorted already.  The rows from
    `bounds[n]` to `bounds[n + 1]` lie in one chunk, with its numbers in `chunks` and its start in `starts`, both by
    output dimension.  The chunks of the segments in each range of `uniform` have one shape.
    """

    __slots__ = (
        "_axes", "_counts", "_flat", "_given", "_inside",
        "bounds", "chunks", "order", "sizes", "starts", "uniform",
    )  # fmt: skip

    def __init__(
        self, axes: Sequence[Axis], positions: Sequence[IntArray], sizes: tuple[int, ...], grouped: _Grouped
    ) -> None:
        self.order, self.bounds = grouped
        self.sizes, self._axes, self._given = sizes, axes, positions
        firsts = self.bounds[:-1] if self.order is None else self.order[self.bounds[:-1]]
        self.chunks = [axis.locate(each[firsts]) for axis, each in zip(axes, positions, strict=True)]
        self.starts = [axis.starts(each) for axis, each in zip(axes, self.chunks, strict=True)]
        known = [axis.sizes_of(each) for axis, each in zip(axes, self.chunks, strict=True)]
        # ranges of segments in which chunks have one shape
        self.uniform = _alike([each for each in known if each is not None], len(self.chunks[0]))
        self._counts = self.bounds[1:] - self.bounds[:-1]
        self._inside: Sequence[IntArray] | None = None
        self._flat: tuple[tuple[int, ...], IntArray, IntArray] | None = None

    def __len__(self) -> int:
        return len(self.bounds) - 1

    @property
    def inside(self) -> Sequence[IntArray]:
        """The positions, in the order of chunks, each counted from the start of its chunk."""
        if self._inside is None:  # for all at once, so that a segment is only slices
            ordered = self._given if self.order is None else [each[self.order] for each in self._given]
            pairs = zip(ordered, self.starts, strict=True)
            self._inside = [each - starts.repeat(self._counts) for each, starts in pairs]
        return self._inside

    @property
    def by_shard(self) -> list[range]:
        """The ranges of segments whose chunks lie in one shard."""
        pairs = zip(self.chunks, self._axes, strict=True)
        return _alike([chunks // axis.together for chunks, axis in pairs], len(self))

    @overload
    def __getitem__(self, place: int) -> Segment | Points: ...

    @overload
    def __getitem__(self, place: slice) -> list[Segment | Points]: ...

    def __getitem__(self, place: int | slice) -> Segment | Points | list[Segment | Points]:
        if not isinstance(place, slice):
            place = range(len(self))[place]
            return self[place : place + 1][0]
        columns = [column[place].tolist() for column in (self.bounds[:-1], self.bounds[1:], *self.chunks)]
        return list(map(self._made, columns[0], columns[1], zip(*columns[2:], strict=True)))

    def __iter__(self) -> Iterator[Segment | Points]:
        return iter(self[:])

    def _made(self, begin: int, end: int, chunk: tuple[int, ...]) -> Segment | Points:
        inside = tuple([each[begin:end] for each in self.inside])
        outside = self._outside(begin, end)
        if len(chunk) == len(outside) == 1:
            return Segment(chunk[0], inside[0], outside[0], False, end - begin)
        return Points(chunk, inside, outside)

    def outside(self, first: int, stop: int) -> tuple[slice | IntArray, ...]:
        """Return the destinations of some segments in the result, along each input dimension."""
        return self._outside(int(self.bounds[first]), int(self.bounds[stop]))

    def _outside(self, begin: int, end: int) -> tuple[slice | IntArray, ...]:
        """Return the destinations of some rows in the result, along each input dimension."""
        if len(self.sizes) == 1:
            return (slice(begin, end) if self.order is None else self.order[begin:end],)
        flat = np.arange(begin, end) if self.order is None else self.order[begin:end]
        return np.unravel_index(flat, self.sizes)

    def slices(self, span: range) -> list[slice]:
        """Return the rows of each of some segments, counted from their first row."""
        edges = self.bounds[span.start : span.stop + 1]
        places: list[int] = (edges - edges[0]).tolist()
        return list(map(slice, places[:-1], places[1:]))

    def addresses(self, span: range, strides: tuple[int, ...], step: int) -> tuple[int, IntArray]:
        """Return the addresses of the elements of some segments, in elements: a base, and an offset for each.

        `strides` are those of a chunk, by output dimension of the segments; consecutive chunks are `step` apart.
        """
        first, stop = span.start, span.stop
        begin, end = int(self.bounds[first]), int(self.bounds[stop])
        if self._flat is None:  # most chunks have the strides of the first, so these are computed once
            addresses = _sum(self._given, strides)  # one column is sorted instead of all
            ordered = addresses if self.order is None else addresses[self.order]
            self._flat = strides, ordered, _sum(self.starts, strides)
        known, flat, starts = self._flat
        if known == strides:
            column, shifts = flat[begin:end], -starts[first:stop]
        else:
            column = _sum([values[begin:end] for values in self.inside], strides)
            shifts = np.zeros(len(span), np.int64)
        if len(span) == 1:
            return int(shifts[0]), column
        shifts += step * np.arange(len(span))
        return 0, column + shifts.repeat(self._counts[first:stop])


def chunk_columns(segments: Sequence[Any]) -> Sequence[IntArray]:
    """Return the numbers of the chunks of segments along dimensions planned together, one column for each dimension."""
    if isinstance(segments, ListedSegments):
        return segments.chunks
    return list(np.array([points.chunk for points in segments]).T)


def _sum(columns: Sequence[IntArray], strides: Sequence[int]) -> IntArray:
    """Return the sum of columns, each times its stride."""
    parts = [values if stride == 1 else values * stride for values, stride in zip(columns, strides, strict=True)]
    return reduce(np.add, parts)


def listed_segments(
    axes: Sequence[Axis], positions: Sequence[IntArray], sizes: tuple[int, ...], ends: Sequence[tuple[int, int] | None]
) -> Sequence[Any]:
    """Return the segments of positions that are listed together, one column for each output dimension.

    `sizes` are those of the input dimensions along which they are listed; `ends` are the least and the greatest
    position along each output dimension, if known.
    """
    count = len(positions[0])
    if not count:
        return ()
    cut = [each for each in map(_Stretch.of, axes, positions, ends) if each.first < each.last]
    grouped: _Grouped | None = (None, np.array([0, count])) if not cut else None
    if len(cut) == 1:
        grouped = _cut_up(*cut[0])
    return ListedSegments(axes, positions, sizes, grouped or _grouped(list(_sorted_by(cut))))


class _Stretch(NamedTuple):
    """Positions along one dimension, and the numbers of the first and the last chunk that they touch."""

    axis: Axis
    positions: IntArray
    first: int
    last: int

    @classmethod
    def of(cls, axis: Axis, positions: IntArray, ends: tuple[int, int] | None) -> _Stretch:
        """Return the chunks of positions; unknown `ends` are computed."""
        low, high = ends or (int(positions.min()), int(positions.max()))
        return cls(axis, positions, axis.chunk_of(low), axis.chunk_of(high))


class _SortedBy(NamedTuple):
    """Values to sort positions by, the least and the greatest."""

    values: IntArray
    low: int
    high: int


def _sorted_by(cuts: Sequence[_Stretch]) -> Iterator[_SortedBy]:
    """Yield columns to sort positions by, for dimensions along which several chunks are touched.

    Chunks of one shape stay together, and among them those of one shard.
    """
    numbers = [axis.locate(values) for axis, values, _, _ in cuts]
    for (axis, _, _, _), each in zip(cuts, numbers, strict=True):
        sizes = axis.sizes_of(each)
        if sizes is not None:
            yield _SortedBy(sizes, int(sizes.min()), int(sizes.max()))
    whole = zip(cuts, numbers, strict=True)
    if len(cuts) == 1 or all(axis.together == 1 for axis, _, _, _ in cuts):
        yield from [_SortedBy(each, first, last) for (_, _, first, last), each in whole]
        return
    inside: list[_SortedBy] = []
    for (axis, _, first, last), each in whole:
        shards, entries = np.divmod(each, axis.together)
        yield _SortedBy(shards, first // axis.together, last // axis.together)
        inside.append(_SortedBy(entries, 0, axis.together - 1))
    yield from inside


def _alike(columns: Sequence[IntArray], count: int) -> list[range]:
    """Return the ranges of rows, `count` in all, in which no column changes."""
    if not columns or count == 1:
        return [range(count)]
    changed = reduce(np.logical_or, [each[1:] != each[:-1] for each in columns])
    return list(map(range, *(_edges(changed)[part].tolist() for part in (slice(-1), slice(1, None)))))


def _cut_up(axis: Axis, positions: IntArray, first: int, last: int) -> _Grouped | None:
    """Return the rows at which ascending positions enter other chunks; None if they do not ascend, or lie far apart."""
    if last - first >= len(positions) or (positions[1:] < positions[:-1]).any():
        return None
    cuts = positions.searchsorted(axis.starts(np.arange(first + 1, last + 1)))
    bounds = np.concatenate(([0], cuts, [len(positions)]))
    filled = np.concatenate(([True], bounds[1:] > bounds[:-1]))
    return None, bounds[filled]


def _grouped(columns: Sequence[_SortedBy]) -> _Grouped:
    """Return the order that groups equal rows, and the start of each group with the end of the last.

    If they fit, the columns become one key, and key and place one number to sort: that takes a seventh of the time of
    sorting places by keys.
    """
    size, count = len(columns[0].values), math.prod([high - low + 1 for _, low, high in columns])
    bits = size.bit_length()
    if count < 2 ** (63 - bits):
        key: Any = 0
        for values, low, high in columns:
            key = key * (high - low + 1) + (values - low)
        if not (key[1:] < key[:-1]).any():
            return None, _edges(key[1:] != key[:-1])
        key = (key << bits) | np.arange(size)
        key.sort()
        ordered = key >> bits
        return key & ((1 << bits) - 1), _edges(ordered[1:] != ordered[:-1])
    order = np.lexsort([values for values, _, _ in reversed(columns)])
    changed = np.zeros(size - 1, dtype=bool)
    for values, _, _ in columns:
        changed |= values[order][1:] != values[order][:-1]
    return order, _edges(changed)


def _edges(changed: np.ndarray[Any, np.dtype[np.bool_]]) -> IntArray:
    """Return the starts of runs and the end of the last; `changed` marks the rows at which a new run begins."""
    return np.concatenate(([0], changed.nonzero()[0] + 1, [len(changed) + 1]))


# The arrays of requests: results that are not filled yet, and values in the shape of a request.


def _too_large(shape: tuple[int, ...], native: np.dtype[Any]) -> ResourceExhaustedError:
    size = math.prod(shape) * native.itemsize
    return ResourceExhaustedError(
        f"An array of shape {list(shape)} and data type {native} has {size} bytes, more than memory can hold"
    )


def new_array(shape: tuple[int, ...], native: np.dtype[Any], order: str = "C", *, passing: bool = False) -> Array:
    """Return an uninitialised array in the memory order `C` or `F`; `passing` if it is freed soon."""
    memory: Literal["C", "F"] = "F" if order == "F" else "C"
    try:
        size = math.prod(shape) * native.itemsize
        if size < PIECE_BYTES or native.hasobject:
            return np.empty(shape, native, order=memory)
        if passing:
            return np.ndarray(shape, native, passing_memory(size).data, order=memory)
        octets = np.empty(size + _LINE, np.uint8)
        first = -octets.__array_interface__["data"][0] % _LINE
        return np.ndarray(shape, native, octets.data, first, order=memory)
    except (MemoryError, ValueError, OverflowError) as error:
        raise _too_large(shape, native) from error


def broadcast(values: Array, shape: tuple[int, ...]) -> Array:
    """Return `values` broadcast to a shape: new dimensions come first, dimensions of size one are repeated."""
    if values.shape == shape:  # NumPy takes 3 µs for this check
        return values
    if values.ndim > len(shape):
        raise StoreError(f"Expected array of rank {len(shape)}, but received array of rank {values.ndim}")
    try:
        return np.broadcast_to(values, shape)
    except ValueError as error:
        if math.prod(shape) * values.itemsize >= 2**63:
            raise _too_large(shape, values.dtype) from error
        raise StoreError(
            f"Cannot broadcast array of shape {list(values.shape)} to target shape {list(shape)}"
        ) from None
