"""From index transforms to the requests of the engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fsstore.chunk.grid import Axis, IntArray
from fsstore.chunk.plan import Affine, Box, Constant, Indexed, OutputMap
from fsstore.errors import OutOfRangeError
from fsstore.index import IndexTransform
from fsstore.index.output_map import ARRAY, CONSTANT, SINGLE

__all__ = ["box_in_chunk", "plan_maps"]


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
            positions = output.offset + output.stride * output.index_array
            if not empty:
                _check(positions, dimension, shape[dimension])
            maps.append(Indexed(positions))
    return maps


def box_in_chunk(transform: IndexTransform, shape: Sequence[int], axes: Sequence[Axis]) -> Box | None:
    """Return what a transform selects of an array, if it is a box within one chunk with its dimensions in order.

    Small reads are such boxes nearly always, and planning them with a few integers takes a third of the time.  None
    for everything else: also for what lies outside the array and for bounds that follow those of the array.
    """
    domain = transform.domain
    low, high = domain.inclusive_min, domain.exclusive_max
    if True in domain.implicit_lower_bounds or True in domain.implicit_upper_bounds:
        return None
    numbers: list[int] = []
    inside: list[Any] = []
    covers, rank = True, 0
    for (method, offset, stride, source, _, _), extent, axis in zip(transform.maps, shape, axes, strict=True):
        first = last = offset
        if method == SINGLE:
            if source != rank or stride < 1:
                return None
            first += stride * low[rank]
            last += stride * (high[rank] - 1)
            rank += 1
        if not (0 <= first <= last < extent) or method == ARRAY:
            return None
        number = axis.chunk_of(first)
        start, size = axis.start(number), axis.size(number)
        if last >= start + size:
            return None
        numbers.append(number)
        inside.append(slice(first - start, last - start + 1, stride) if method == SINGLE else first - start)
        covers = covers and method == SINGLE and last - first == size - 1 and (stride == 1 or size == 1)
    return Box(tuple(numbers), (*inside, ...), covers) if rank == len(low) else None


def _check(positions: IntArray, dimension: int, extent: int) -> None:
    for index in (int(positions.min()), int(positions.max())) if positions.size else ():
        if not 0 <= index < extent:
            raise OutOfRangeError(
                f"Index {index} is outside valid range [0, {extent}) of dimension {dimension}"
            )
