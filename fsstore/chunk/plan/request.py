"""Requests of the engine: where in the array the positions of a result lie, as an index transform says."""

from __future__ import annotations

from collections.abc import Sequence
from operator import sub
from typing import NamedTuple, TypeAlias

import numpy as np

from fsstore.chunk.plan.grid import IntArray
from fsstore.errors import OutOfRangeError
from fsstore.index import IndexTransform
from fsstore.index.compose import compose
from fsstore.index.interval import interval_text
from fsstore.index.output_map import ARRAY, CONSTANT, SINGLE
from fsstore.index.output_map import OutputMap as IndexMap

__all__ = [
    "Affine",
    "Constant",
    "Indexed",
    "OutputMap",
    "as_lists",
    "located",
    "map_ends",
    "maps_within",
    "plan_maps",
]

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

    `ends` are the least and the largest, if they are known.
    """

    positions: IntArray
    ends: tuple[int, int] | None = None


OutputMap: TypeAlias = Constant | Affine | Indexed


def located(transform: IndexTransform, bounds: IndexTransform) -> tuple[tuple[int, ...], list[OutputMap]]:
    """Return the shape of a view, and where in the array its positions lie.

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


def maps_within(
    transform: IndexTransform, shape: Sequence[int]
) -> tuple[tuple[int, ...], list[OutputMap]] | None:
    """Return what `located` does of a transform whose positions lie within the array, else None.

    Nearly all do, and composing them with the bounds of the array takes as long as a small read from memory.  A bound
    that is implicit is where the array ends.
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
    """Return a map of listed positions that lie within the array, or None."""
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
    """Return a map of listed positions; `checked` are a dimension and its size, if something is read there.

    The values must lie within the view that was indexed, which may be less than the array.
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
    """Return the least and the largest position along an output dimension, None if they are not known."""
    if isinstance(output_map, Indexed):
        return output_map.ends
    if isinstance(output_map, Constant):
        return output_map.position, output_map.position
    ends = output_map.first, output_map.first + output_map.step * (shape[output_map.axis] - 1)
    return min(ends), max(ends)
