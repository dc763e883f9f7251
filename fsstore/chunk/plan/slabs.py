"""Boxes cut into slabs: the pieces in which arrays are copied, a part of a box or several boxes at a time.

How large a box may be is decided by memory, and how long it takes is not known before.  So boxes are cut into the
thinnest slabs that read nothing twice, and whoever copies them takes as many at a time as suits the store.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from fsstore.chunk.plan.regions import Region, Regions, covered

__all__ = ["BoxSlabs"]

_SHORTEST, _LONGEST = 0.7, 1.4  # of a run that ends with a box, by the length that was asked for


@dataclass(frozen=True, slots=True)
class BoxSlabs:
    """Boxes cut into slabs along one dimension, which are numbered so that neighbours along it follow each other.

    A run of numbers is then a part of a box, a box, or several of them; so a job can be handed out in runs of any
    length, and what is finished is noted by numbers that do not depend on it.
    """

    boxes: Regions
    dimension: int = 0
    side: int = 0
    """How thick a slab is; it divides the boxes' side."""

    @classmethod
    def whole(cls, boxes: Regions) -> BoxSlabs:
        """Return boxes as they are, by their number."""
        return cls(boxes, len(boxes.step) - 1, boxes.step[-1]) if boxes.step else cls(boxes)

    @classmethod
    def thinnest(cls, boxes: Regions, chunk: Sequence[int], read: Sequence[int]) -> BoxSlabs:
        """Return the thinnest slabs of whole chunks for which no more is read than for the boxes."""
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
        """How many pieces a box has that is not cut off."""
        return self.boxes.step[self.dimension] // self.side if self.boxes.step else 1

    def __len__(self) -> int:
        """Return how many pieces there are."""
        return len(self.grid)

    def end(self, begin: int, length: int) -> int:
        """Return where a run from a piece on ends that is so long, or, if a box ends near there, with the box."""
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
        """Return the number after those that lie in the same box."""
        if not self.boxes.step:
            return number + 1
        row = self.grid.counts[self.dimension]
        at, first = number % row, self._first
        return number - at + min(row, ((first + at) // self.in_box + 1) * self.in_box - first)

    @property
    def _first(self) -> int:
        """How many slabs there would be before the first one, in the box that it lies in."""
        start, anchor = self.boxes.start[self.dimension], self.boxes.anchor[self.dimension]
        return (start - anchor) // self.side % self.in_box

    def _region(self, begin: int, end: int) -> Region:
        """Return the pieces of a run that lies in one box, as one."""
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
    """Return the divisors of a number, the smallest first."""
    small = [each for each in range(1, math.isqrt(count) + 1) if count % each == 0]
    return small + [count // each for each in reversed(small) if each * each != count]
