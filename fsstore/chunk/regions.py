"""A domain divided into boxes of whole chunks that fit into memory, and boxes divided into slabs: the pieces of a copy.

Memory decides how large a box may be, and its time is unknown in advance.  So boxes are divided into the thinnest slabs
that read nothing twice, and a copy takes as many slabs at a time as suits the store.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter

# Boxes along a dimension that are examined one by one; columns take longer for fewer.
_SUMMED = 256
# Chunks by which a box of a copy grows one at a time: trying all remainders finds better boxes, but takes longer.
_ADDED_ALONE = 16

# Dividing a domain into boxes of whole chunks that fit into memory.


@dataclass(frozen=True, slots=True)
class Region:
    """A box of indices: its start and stop along each dimension."""

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

    Chunks begin at multiples of their size, counted from `anchor`; boxes have sides of `step`, which are whole chunks.
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
        return math.prod(self.counts)

    def __getitem__(self, number: int) -> Region:
        if not 0 <= number < len(self):
            raise IndexError(number)
        places = []
        for count in reversed(self.counts):
            number, place = divmod(number, count)
            places.append(place)
        return self.at(tuple(reversed(places)))

    def at(self, places: tuple[int, ...]) -> Region:
        """Return a box by its place along each dimension."""
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
    """Return how many elements are read for all boxes together if only whole chunks of a grid from zero can be read."""
    total = 1
    for dimension, size in enumerate(chunk):
        total *= _covered_along(regions, dimension, size)
    return total


def _covered_along(regions: Regions, dimension: int, size: int) -> int:
    """Return how many positions are read along a dimension; for very many boxes, within a chunk or two.

    Away from the ends, where chunks are cut off, the position of boxes in the grid of chunks follows a repeating
    pattern.  Over each repetition a box reads its length and a chunk, less their greatest common divisor if that
    divides `anchor`.
    """
    start, stop = regions.start[dimension], regions.stop[dimension]
    step, anchor = regions.step[dimension], regions.anchor[dimension]
    if size <= 1 or start >= stop:
        return max(0, stop - start)
    first, last = (start - anchor) // step, -(-(stop - anchor) // step)

    def one(number: int) -> int:
        low, high = max(start, anchor + number * step), min(stop, anchor + (number + 1) * step)
        return min(-(-high // size) * size, max(stop, high)) - max(low // size * size, min(start, low))

    edge = min(size // step + 2, _SUMMED)
    if last - first <= 2 * edge + _SUMMED:
        return sum(map(one, range(first, last)))
    ends = sum(map(one, range(first, first + edge))) + sum(map(one, range(last - edge, last)))
    common = math.gcd(step, size)
    period = size // common
    repeated, rest = divmod(last - first - 2 * edge, period)
    read = step + size - (0 if anchor % common else common)  # by a box, over a repetition
    if rest > _SUMMED:
        return ends + (repeated * period + rest) * read
    return ends + repeated * period * read + sum(map(one, range(first + edge, first + edge + rest)))


def most_covered(regions: Regions, chunk: Sequence[int]) -> int:
    """Return the greatest number of elements read for one box if only whole chunks of a grid from zero can be read."""
    total = 1
    for dimension, size in enumerate(chunk):
        step, stop = regions.step[dimension], regions.stop[dimension]
        # a box starts at a multiple of the greatest common divisor behind the start of a chunk
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
    """Return boxes of whole chunks with at most `most` elements each, or of a single larger chunk.

    `source` are the chunks that are read, in the coordinates of the target.  `held` returns how many elements are in
    memory for one of these boxes.
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

    The increment halves each time while it is many chunks, so that the longest fitting length is approached in a few
    steps; a few chunks are added one by one, because each leaves another remainder of the source's chunks.
    """
    chunk = max(1, chunk)
    if side >= size:
        return
    longest = -(-source // chunk) * chunk if source > side else _end(size, chunk)
    added = max(chunk, min(2 * side, longest) - side)
    if added > chunk:
        yield side + added
    while (added := added // 2 // chunk * chunk) > _ADDED_ALONE * chunk:
        yield side + added
    yield side + chunk


_SHORTEST, _LONGEST = 0.7, 1.4  # of a run that ends with a box, relative to the requested length


@dataclass(frozen=True, slots=True)
class BoxSlabs:
    """Boxes divided into slabs along one dimension, numbered so that neighbours along it are consecutive.

    A run of numbers is then a part of a box, a box, or several of them; so a job can be handed out in runs of any
    length, and finished work is recorded by numbers that do not depend on it.
    """

    boxes: Regions
    dimension: int = 0
    side: int = 0
    """The thickness of a slab; it divides the boxes' side."""

    @classmethod
    def whole(cls, boxes: Regions) -> BoxSlabs:
        """Return undivided boxes, by their number."""
        return cls(boxes, len(boxes.step) - 1, boxes.step[-1]) if boxes.step else cls(boxes)

    @classmethod
    def thinnest(cls, boxes: Regions, chunk: Sequence[int], read: Sequence[int]) -> BoxSlabs:
        """Return the thinnest slabs of whole chunks that read no more than the boxes."""
        best, most = cls.whole(boxes), covered(boxes, read)
        for dimension, (step, side) in enumerate(zip(boxes.step, chunk, strict=True)):
            for thin in _divisors(step // max(1, side)):
                slab = max(1, side) * thin
                if step // slab <= best.in_box:
                    break
                if step % slab == 0 and covered(_with_side(boxes, dimension, slab), read) <= most:
                    best = cls(boxes, dimension, slab)
                    break
        return best

    @property
    def grid(self) -> Regions:
        """All pieces, in another order."""
        return _with_side(self.boxes, self.dimension, self.side) if self.boxes.step else self.boxes

    @property
    def in_box(self) -> int:
        """How many pieces a full box has."""
        return self.boxes.step[self.dimension] // self.side if self.boxes.step else 1

    def __len__(self) -> int:
        return len(self.grid)

    def end(self, begin: int, length: int) -> int:
        """Return the end of a run from a piece on, of the given length, or of a similar one that ends with a box."""
        exact = min(len(self), begin + length)
        after = self._box_end(exact - 1)
        before = max(begin, after - self.in_box)
        near = [each for each in (before, after) if _SHORTEST <= (each - begin) / length <= _LONGEST]
        return min(near, key=lambda each: abs(each - exact), default=exact)

    def split(self, begin: int, end: int) -> Iterator[tuple[int, Region]]:
        """Yield a run of pieces as boxes, or parts of boxes, each with the number of its first piece."""
        while begin < end:
            until = min(end, self._box_end(begin))
            yield begin, self._region(begin, until)
            begin = until

    def _box_end(self, number: int) -> int:
        """Return the number behind the last piece in the same box."""
        if not self.boxes.step:
            return number + 1
        row = self.grid.counts[self.dimension]
        at, first = number % row, self._first
        return number - at + min(row, ((first + at) // self.in_box + 1) * self.in_box - first)

    @property
    def _first(self) -> int:
        """How many slabs would precede the first one in its box."""
        start, anchor = self.boxes.start[self.dimension], self.boxes.anchor[self.dimension]
        return (start - anchor) // self.side % self.in_box

    def _region(self, begin: int, end: int) -> Region:
        """Return the pieces of a run within one box as one region."""
        slabs = self.grid
        if not slabs.step:
            return slabs[begin]
        counts = slabs.counts
        number, at = divmod(begin, counts[self.dimension])
        places: list[int] = []
        for other in reversed([count for each, count in enumerate(counts) if each != self.dimension]):
            number, place = divmod(number, other)
            places.insert(0, place)
        one = slabs.at((*places[: self.dimension], at, *places[self.dimension :]))
        last = slabs.at((*places[: self.dimension], at + end - begin - 1, *places[self.dimension :]))
        return Region(one.start, last.stop)


def _with_side(boxes: Regions, dimension: int, side: int) -> Regions:
    return replace(boxes, step=(*boxes.step[:dimension], side, *boxes.step[dimension + 1 :]))


def _divisors(count: int) -> list[int]:
    small = [each for each in range(1, math.isqrt(count) + 1) if count % each == 0]
    return small + [count // each for each in reversed(small) if each * each != count]
