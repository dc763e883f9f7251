"""Cutting a domain into boxes of whole chunks that fit into memory: the pieces in which arrays are copied.

A box is a block of chunks of the target, so that no two boxes share one.  Its sides grow, a chunk at a time, along the
dimension that saves most reading, until the memory is used: where chunks of source and target lie differently, a box
reads whole chunks of the source, and what lies beside the box was read in vain.

Boxes are numbered and computed from their number: a plan of a hundred million of them takes no more memory than one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter

from fsstore.chunk.tuning import CHUNKS_ADDED_ALONE, SUMMED_BOXES

__all__ = ["Region", "Regions", "covered", "cut", "most_covered"]


@dataclass(frozen=True, slots=True)
class Region:
    """A box of indices: where it begins, and where it ends, along each dimension."""

    start: tuple[int, ...]
    stop: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """The size along each dimension."""
        return tuple(stop - start for start, stop in zip(self.start, self.stop, strict=True))

    @property
    def slices(self) -> tuple[slice, ...]:
        """The box as an index expression."""
        return tuple(map(slice, self.start, self.stop))


@dataclass(frozen=True, slots=True)
class Regions:
    """All boxes of a domain, by number, the last dimension fastest.

    Chunks begin at multiples of their size, counted from `anchor`; boxes are `step` long, which is whole chunks.
    """

    start: tuple[int, ...]
    stop: tuple[int, ...]
    step: tuple[int, ...]
    anchor: tuple[int, ...]

    @property
    def counts(self) -> tuple[int, ...]:
        """How many boxes there are along each dimension."""
        sides = zip(self.start, self.stop, self.step, self.anchor, strict=True)
        return tuple(
            -(-(stop - anchor) // step) - (start - anchor) // step if stop > start else 0
            for start, stop, step, anchor in sides
        )

    def __len__(self) -> int:
        """Return how many boxes there are."""
        return math.prod(self.counts)

    def __getitem__(self, number: int) -> Region:
        """Return a box by its number."""
        if not 0 <= number < len(self):
            raise IndexError(number)
        places = []
        for count in reversed(self.counts):
            number, place = divmod(number, count)
            places.append(place)
        return self.at(tuple(reversed(places)))

    def at(self, places: tuple[int, ...]) -> Region:
        """Return a box by its place among the others along each dimension."""
        low, high = [], []
        for dimension, place in enumerate(places):
            step, anchor = self.step[dimension], self.anchor[dimension]
            first = (self.start[dimension] - anchor) // step
            begin = anchor + (first + place) * step
            low.append(max(begin, self.start[dimension]))
            high.append(min(begin + step, self.stop[dimension]))
        return Region(tuple(low), tuple(high))

    def touched(self, box: Region) -> list[range]:
        """Return the places, along each dimension, of the boxes that a box touches."""
        found = []
        for dimension, (low, high) in enumerate(zip(box.start, box.stop, strict=True)):
            step, anchor = self.step[dimension], self.anchor[dimension]
            first = (self.start[dimension] - anchor) // step
            found.append(range((low - anchor) // step - first, -(-(high - anchor) // step) - first))
        return found


def covered(regions: Regions, chunk: Sequence[int]) -> int:
    """Return how many elements are read for all boxes together if whole chunks of a grid that begins at zero are."""
    total = 1
    for dimension, size in enumerate(chunk):
        total *= _covered_along(regions, dimension, size)
    return total


def _covered_along(regions: Regions, dimension: int, size: int) -> int:
    """Return how many positions are read along a dimension; of very many boxes, to within a chunk or two.

    Away from the ends, where chunks are cut off, boxes lie to the grid of chunks in a pattern that repeats, and over
    each repetition a box reads its length and a chunk; less their greatest common divisor, if that divides `anchor`.
    """
    start, stop = regions.start[dimension], regions.stop[dimension]
    step, anchor = regions.step[dimension], regions.anchor[dimension]
    if size <= 1 or start >= stop:
        return max(0, stop - start)
    first, last = (start - anchor) // step, -(-(stop - anchor) // step)

    def one(number: int) -> int:
        low, high = max(start, anchor + number * step), min(stop, anchor + (number + 1) * step)
        return min(-(-high // size) * size, max(stop, high)) - max(low // size * size, min(start, low))

    edge = min(size // step + 2, SUMMED_BOXES)
    if last - first <= 2 * edge + SUMMED_BOXES:
        return sum(map(one, range(first, last)))
    ends = sum(map(one, range(first, first + edge))) + sum(map(one, range(last - edge, last)))
    common = math.gcd(step, size)
    period = size // common
    repeated, rest = divmod(last - first - 2 * edge, period)
    read = step + size - (0 if anchor % common else common)  # by a box, over a repetition
    if rest > SUMMED_BOXES:
        return ends + (repeated * period + rest) * read
    return ends + repeated * period * read + sum(map(one, range(first + edge, first + edge + rest)))


def most_covered(regions: Regions, chunk: Sequence[int]) -> int:
    """Return how many elements are read for one box, at most, if whole chunks of a grid that begins at zero are."""
    total = 1
    for dimension, size in enumerate(chunk):
        step, stop = regions.step[dimension], regions.stop[dimension]
        # what a box begins after the beginning of a chunk is a multiple of the greatest common divisor
        late = size - math.gcd(step, regions.anchor[dimension], size) if size else 0
        total *= min(-(-(late + step) // max(1, size)) * max(1, size), max(stop, step))
    return total


def cut(
    domain: Region,
    chunk: Sequence[int],
    source: Sequence[int],
    anchor: Sequence[int],
    most: int,
    held: Callable[[Regions], int] | None = None,
) -> Regions:
    """Return boxes of whole chunks with at most `most` elements each, or of one chunk where that is larger.

    `source` are the chunks that are read, in the coordinates of the target.  `held` says what else counts: how many
    elements are in memory for one of these boxes.
    """
    sizes = [max(1, size) for size in domain.shape]
    step = [min(max(1, side), _end(size, side)) for side, size in zip(chunk, sizes, strict=True)]

    def regions(sides: list[int]) -> Regions:
        return Regions(domain.start, domain.stop, tuple(sides), tuple(anchor))

    def with_side(dimension: int, side: int) -> list[int]:
        return [*step[:dimension], side, *step[dimension + 1 :]]

    def fits(sides: list[int]) -> bool:
        return (math.prod(sides) if held is None else held(regions(sides))) <= most

    while True:
        grown = []
        for dimension in reversed(range(len(step))):
            lengths = _longer(step[dimension], chunk[dimension], source[dimension], sizes[dimension])
            longer = next((each for each in lengths if fits(with_side(dimension, each))), None)
            if longer is not None:
                sides = with_side(dimension, longer)
                grown.append((covered(regions(sides), source), longer / step[dimension], sides))
        if not grown:
            return regions(step)
        step = min(grown, key=itemgetter(0, 1))[2]


def _end(size: int, side: int) -> int:
    return -(-size // max(1, side)) * max(1, side)


def _longer(side: int, chunk: int, source: int, size: int) -> Iterator[int]:
    """Yield lengths worth trying along a dimension, the longest first: whole chunks of the source, at most double.

    The addition halves each time where it is many chunks, so that the longest length that fits is near after a few
    steps; a few chunks are added one by one, where each leaves another remainder of the source's chunks.
    """
    chunk = max(1, chunk)
    if side >= size:
        return
    longest = -(-source // chunk) * chunk if source > side else _end(size, chunk)
    added = max(chunk, min(2 * side, longest) - side)
    if added > chunk:
        yield side + added
    while (added := added // 2 // chunk * chunk) > CHUNKS_ADDED_ALONE * chunk:
        yield side + added
    yield side + chunk
