"""Copying what a request selects of many chunks as few boxes.

A slice selects the same of each chunk along a dimension, but for the first and the last.  So the cells of a box of
chunks fall into a few groups, and each group is copied at once: a copy takes as long by itself as a thousand elements.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import Any, NamedTuple

from fsstore.chunk.plan.grid import Segment, SliceSegments
from fsstore.codec.contract import Array
from fsstore.codec.element_copy import copy_elements

__all__ = ["copy_boxes"]


class _Neighbours(NamedTuple):
    """Segments side by side along a dimension of which the same is selected: which, what of each, and where it goes.

    `outside` is None where a number selects: then there is one, and it goes to no dimension.
    """

    places: slice | int
    inside: Any
    outside: slice | None
    length: int


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
        going: tuple[Any, ...] = (*[each.outside for each in box if each.outside is not None], ...)
        lengths = [each.length for each in box if each.outside is not None]
        copy_elements(_cut(target[going], lengths), cells[selected])
    return True


def _alike(segments: Sequence[Segment]) -> list[_Neighbours]:
    """Return the segments along a dimension, those together that select the same and go side by side."""
    known = segments.inner if isinstance(segments, SliceSegments) else range(0)
    places = sorted({0, known[0], known[-1], known.stop}) if known else range(len(segments))
    found: list[_Neighbours] = []
    first, begin = 0, 0  # of those that are looked at: the place, and where they go
    for place in places:
        _, inside, outside, _, length = segments[place]
        if not isinstance(outside, slice):
            found.append(_Neighbours(place, inside, None, 1))
            continue
        stop = begin + (place - first) * length
        if found and found[-1].inside == inside and stop == outside.start:
            found.pop()
        else:
            first, begin = place, outside.start
        found.append(_Neighbours(slice(first, place + 1), inside, slice(begin, outside.stop), length))
    return found


def _cut(part: Array, lengths: Sequence[int]) -> Array:
    """Return a view of an array cut into pieces of some lengths: the first dimensions count the pieces."""
    rank = len(lengths)
    sizes = [cut for size, each in zip(part.shape, lengths, strict=False) for cut in (size // each, each)]
    cut = part.reshape((*sizes, *part.shape[rank:]))
    return cut.transpose([*range(0, 2 * rank, 2), *range(1, 2 * rank, 2), *range(2 * rank, cut.ndim)])
