"""Which piece of an array holds what: a grid of cells of any sizes, and a piece, or none, in each.

Pieces of files lie side by side, not over each other.  Along the axes where there are several, cells are intervals in
order, with gaps between them where nothing is.  A piece is a number of a source and where its values begin there: 12
bytes and 8 for each axis.  Finding the pieces of a box is two binary searches an axis.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from fsstore.errors import JsonError

__all__ = ["CellAxis", "PiecePart", "Pieces"]

Ints: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]


class CellAxis(NamedTuple):
    """The cells along a dimension: ascending intervals that do not overlap."""

    dimension: int
    start: Ints
    stop: Ints

    def check(self, shape: Sequence[int]) -> None:
        """Raise `JsonError` for cells that are empty, overlap or lie outside the array."""
        start, stop = self.start, self.stop
        if not 0 <= self.dimension < len(shape):
            raise JsonError(f"There is no dimension {self.dimension} to be cut into pieces")
        inside = not len(start) or (start[0] >= 0 and stop[-1] <= shape[self.dimension])
        if len(start) != len(stop) or not inside or (start >= stop).any() or (start[1:] < stop[:-1]).any():
            raise JsonError(f"The pieces along dimension {self.dimension} overlap, are empty or lie outside")

    def within(self, low: int, high: int) -> tuple[int, int]:
        """Return which cells touch `[low, high)`."""
        first = int(np.searchsorted(self.stop, low, side="right"))
        last = int(np.searchsorted(self.start, high, side="left"))
        return first, max(first, last)


class PiecePart(NamedTuple):
    """A part of a box that one source serves: where its values lie in the source, and in the box."""

    source: int
    inside: tuple[slice, ...]
    box: tuple[slice, ...]


@dataclass(frozen=True, slots=True)
class Pieces:
    """The pieces of an array of `shape`.

    `cell` numbers the cells that have a piece in C order, ascending; None means all of them.  `origin` has, for each
    piece and axis, the coordinate in its source where the cell begins.
    """

    shape: tuple[int, ...]
    axes: tuple[CellAxis, ...]
    source: Ints
    origin: Ints
    cell: Ints | None = None

    @property
    def grid(self) -> tuple[int, ...]:
        """How many cells there are along each axis."""
        return tuple(len(axis.start) for axis in self.axes)

    @property
    def nbytes(self) -> int:
        """The memory of the columns."""
        cells = sum(axis.start.nbytes + axis.stop.nbytes for axis in self.axes)
        return int(
            self.source.nbytes + self.origin.nbytes + (0 if self.cell is None else self.cell.nbytes) + cells
        )

    def check(self, sources: Sequence[Sequence[int]]) -> None:
        """Raise `JsonError` unless pieces are of known sources (of these shapes), in distinct cells, and inside."""
        for axis in self.axes:
            axis.check(self.shape)
        if len({axis.dimension for axis in self.axes}) != len(self.axes):
            raise JsonError("A dimension is cut into pieces twice")
        count, total = len(self.source), math.prod(self.grid)
        if self.origin.shape != (count, len(self.axes)):
            raise JsonError("The pieces of an array have columns of several lengths")
        cell = np.arange(count) if self.cell is None else self.cell
        if len(cell) != count or (self.cell is None and count != total):
            raise JsonError("The pieces of an array have columns of several lengths")
        if count and (cell[0] < 0 or cell[-1] >= total or (cell[1:] <= cell[:-1]).any()):
            raise JsonError("Two pieces of an array are in one place, or one is outside")
        if count and not (int(self.source.min()) >= 0 and int(self.source.max()) < len(sources)):
            raise JsonError("A piece names a source that is not there")
        self._check_inside(cell, sources)

    def _check_inside(self, cell: Ints, sources: Sequence[Sequence[int]]) -> None:
        for shape in sources:
            if len(shape) != len(self.shape):
                raise JsonError("A source has another number of dimensions than its array")
            if any(
                size != own
                for at, (size, own) in enumerate(zip(shape, self.shape, strict=True))
                if at not in {axis.dimension for axis in self.axes}
            ):
                raise JsonError("A source has another size than its array")
        places = np.unravel_index(cell, self.grid) if self.axes and len(cell) else ()
        for at, (axis, place) in enumerate(zip(self.axes, places, strict=False)):
            limits = np.array([shape[axis.dimension] for shape in sources], np.int64)[self.source]
            begin = self.origin[:, at]
            if (
                (begin < 0) | (begin > limits) | (axis.stop[place] - axis.start[place] > limits - begin)
            ).any():
                raise JsonError("A piece lies outside its source")

    def find(self, box: Sequence[slice]) -> Iterator[PiecePart]:
        """Yield the parts of a box (slices with both ends, step 1) that pieces serve, in C order."""
        spans = [axis.within(box[axis.dimension].start, box[axis.dimension].stop) for axis in self.axes]
        for place in product(*(range(*span) for span in spans)):
            number = self._number(place)
            if number is None:
                continue
            inside, where = list(box), [slice(0, side.stop - side.start) for side in box]
            for at, (axis, cell) in enumerate(zip(self.axes, place, strict=True)):
                side = box[axis.dimension]
                start, stop = int(axis.start[cell]), int(axis.stop[cell])
                low, high = max(side.start, start), min(side.stop, stop)
                begin = int(self.origin[number, at]) - start
                inside[axis.dimension] = slice(low + begin, high + begin)
                where[axis.dimension] = slice(low - side.start, high - side.start)
            yield PiecePart(int(self.source[number]), tuple(inside), tuple(where))

    def _number(self, place: Sequence[int]) -> int | None:
        """Return the piece in a cell."""
        linear = 0
        for at, count in zip(place, self.grid, strict=True):
            linear = linear * count + at
        if self.cell is None:
            return linear
        found = int(np.searchsorted(self.cell, linear))
        return found if found < len(self.cell) and self.cell[found] == linear else None
