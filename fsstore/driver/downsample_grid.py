"""The geometry of `downsample`: which elements below belong to which element of the view.

Element `c` of a dimension with factor `f` covers `[c * f, (c + 1) * f)` below, as far as the base reaches.  The method
`stride` shows `c * f` alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fsstore.errors import UnimplementedError
from fsstore.index import IndexDomain, IndexTransform, OutputIndexMap, inf
from fsstore.index.interval import INF

__all__ = ["covering", "groups_of", "members_of", "reduced_domain", "strided"]


def reduced_domain(domain: IndexDomain, factors: Sequence[int], method: str) -> IndexDomain:
    """Return the domain of the view; bounds stay implicit where those below are."""
    low, high = [], []
    for begin, end, factor in zip(domain.inclusive_min, domain.exclusive_max, factors, strict=True):
        first = begin if begin == -INF else -(-begin // factor) if method == "stride" else begin // factor
        last = end if end == INF + 1 else -(-end // factor)
        low.append(first)
        high.append(max(first, last) if begin < end else first)
    return IndexDomain(
        inclusive_min=low,
        exclusive_max=high,
        implicit_lower_bounds=domain.implicit_lower_bounds,
        implicit_upper_bounds=domain.implicit_upper_bounds,
        labels=domain.labels,
    )


def strided(transform: IndexTransform, factors: Sequence[int]) -> IndexTransform:
    """Return the transform with its output coordinates multiplied: from a view to the elements it is about."""
    maps = []
    for dimension, factor in enumerate(factors):
        output = transform.output[dimension]
        if output.index_array is not None:
            array = (output.offset + (output.stride or 1) * output.index_array) * factor
            maps.append(OutputIndexMap(index_array=array))
        elif output.input_dimension is not None:
            maps.append(
                OutputIndexMap(
                    input_dimension=output.input_dimension,
                    offset=output.offset * factor,
                    stride=(output.stride or 1) * factor,
                )
            )
        else:
            maps.append(OutputIndexMap(offset=output.offset * factor))
    return IndexTransform(domain=transform.domain, output=maps)


def members_of(coordinates: Any, factor: int, low: int, high: int) -> Any:
    """Return the elements below that sorted coordinates of the view cover, in order."""
    below = (np.asarray(coordinates)[:, None] * factor + np.arange(factor)).reshape(-1)
    return below[(below >= low) & (below < high)]


def groups_of(coordinates: Any, factor: int, low: int, high: int) -> list[int]:
    """Return how many elements below each coordinate covers."""
    first = np.maximum(np.asarray(coordinates) * factor, low)
    last = np.minimum(np.asarray(coordinates) * factor + factor, high)
    sizes: list[int] = (last - first).tolist()
    return sizes


def covering(transform: IndexTransform, factors: Sequence[int], base: IndexDomain) -> IndexTransform:
    """Return the view of the base that a view of the reduced array is about.

    Dimensions that a constant fixes come last, as the elements it covers.  Raises `UnimplementedError` for index
    arrays and strides other than 1 and -1, where such a view would not be regular.
    """
    domain = transform.domain
    low, high = list(domain.inclusive_min), list(domain.exclusive_max)
    implicit_low, implicit_high = list(domain.implicit_lower_bounds), list(domain.implicit_upper_bounds)
    labels, maps = list(domain.labels), []
    for dimension, factor in enumerate(factors):
        output = transform.output[dimension]
        begin, end = base.inclusive_min[dimension], base.exclusive_max[dimension]
        axis, stride = output.input_dimension, output.stride or 1
        if factor == 1 and output.index_array is None:
            maps.append(output)
        elif output.index_array is not None or (axis is not None and abs(stride) != 1):
            raise UnimplementedError("The base of an irregular view of a downsampled array is not a view")
        elif axis is None:
            first, last = max(begin, output.offset * factor), min(end, (output.offset + 1) * factor)
            maps.append(OutputIndexMap(input_dimension=len(low), offset=first))
            for column, value in ((low, 0), (high, last - first)):
                column.append(value)
            labels.append("")
            implicit_low.append(False)
            implicit_high.append(False)
        else:
            sides = _covered(low[axis], high[axis], (output.offset, stride, factor), (begin, end))
            low[axis], high[axis], offset = sides
            maps.append(OutputIndexMap(input_dimension=axis, offset=offset, stride=stride))
    covered = IndexDomain(
        inclusive_min=low,
        exclusive_max=high,
        implicit_lower_bounds=implicit_low,
        implicit_upper_bounds=implicit_high,
        labels=labels,
    )
    return IndexTransform(domain=covered, output=maps)


def _covered(low: int, high: int, along: tuple[int, int, int], base: tuple[int, int]) -> tuple[int, int, int]:
    """Return bounds and offset of a dimension that runs along the base, forwards or backwards."""
    offset, stride, factor = along
    first, last = sorted((offset + stride * low, offset + stride * (high - 1)))
    begin = first if abs(first) >= inf else max(base[0], first * factor)
    end = last + 1 if abs(last) >= inf else min(base[1], (last + 1) * factor)
    if stride == 1:
        shift = offset * factor
        return begin - shift, end - shift, shift
    shift = offset * factor + factor - 1
    return shift - end + 1, shift - begin + 1, shift
