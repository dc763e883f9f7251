"""Copying what a request selects of many chunks as few boxes.

A slice selects the same of each chunk along a dimension, but for the first and the last; with a step, of every so many
chunks.  So the cells of a box of chunks fall into a few groups, and each group is copied at once: a copy takes as long
by itself as a thousand elements.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import Any, NamedTuple

from numpy.lib.stride_tricks import as_strided

from fsstore.chunk.plan.grid import Segment, SliceSegments
from fsstore.codec.buffers import copy_elements
from fsstore.codec.contract import Array

__all__ = ["copy_boxes"]


class _Repeated(NamedTuple):
    """Segments at equal distances along a dimension of which the same is selected: which, what, and where it goes.

    There are `times` of them, `length` elements of each, which go `apart` from each other, the first to `begin`.
    `begin` is None where a number selects: then there is one, and it goes to no dimension.
    """

    places: slice | int
    inside: Any
    begin: int | None
    times: int = 1
    length: int = 1
    apart: int = 1

    @property
    def outside(self) -> slice:
        """From where they go to where, with what lies between."""
        begin = self.begin or 0
        return slice(begin, begin + (self.times - 1) * self.apart + self.length)


def copy_boxes(target: Array, segments: Sequence[Sequence[Any]], chunks: Array) -> bool:
    """Copy what is selected of `chunks`, which are the product of segments by dimension, to `target`.

    The dimensions of `target` are those that segments go to, in their order.  Return False, with nothing copied, if it
    would take more than half as many copies as there are chunks.
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
    """Return the segments along a dimension, those together that select the same and go as far apart as they stand."""
    known, period, apart = range(0), 1, 0
    places: Sequence[int] = range(len(segments))
    if isinstance(segments, SliceSegments) and (whole := segments.whole) is not None:
        times, (goes_to, size) = len(segments), whole
        return [_Repeated(slice(0, times), slice(0, size), goes_to, times, size, size)]
    if isinstance(segments, SliceSegments) and segments.inner:
        known, (period, apart) = segments.inner, segments.period
        places = sorted({0, *known[:period], *known[-period:], known.stop})
    found: list[_Repeated] = []
    # the last place where the same is selected, and its number in `found`
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
    """Return a view of what segments go to, cut into a piece for each: the first dimensions count the pieces."""
    counts = [each.times for each in alike]
    if all(each.apart == each.length for each in alike):
        rank = len(alike)
        sizes = [size for each in alike for size in (each.times, each.length)]
        cut = part.reshape((*sizes, *part.shape[rank:]))
        return cut.transpose([*range(0, 2 * rank, 2), *range(1, 2 * rank, 2), *range(2 * rank, cut.ndim)])
    steps = [stride * each.apart for stride, each in zip(part.strides, alike, strict=False)]
    shape = (*counts, *[each.length for each in alike], *part.shape[len(alike) :])
    return as_strided(part, shape, (*steps, *part.strides))
