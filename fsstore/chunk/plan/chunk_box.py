"""Boxes of elements, each within one chunk, that know by themselves where they go.

Most requests touch one chunk, or a few: a `ChunkBox` for each is a few integers and a view, where the cells of a
`CellPlan` need a placement that looks up where they go.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from fsstore.chunk.plan.model import ChunkModel

__all__ = ["BoxSide", "ChunkBox", "ChunkBoxes"]

_tuple = tuple.__new__  # makes a named tuple in a third of the time
BoxSide: TypeAlias = "tuple[int, int | slice, slice | None, bool]"
"""A box along one dimension: the number of its chunk, what it selects there, where that goes, and if that is all.

Where a number selects, it goes to no dimension.
"""


class ChunkBox(NamedTuple):
    """A cell that knows by itself where it goes: the numbers of its chunk, the index of the elements there, the target.

    `covers`: they are the whole chunk, in its shape.  It is also the plan of a request that touches nothing else.
    """

    numbers: Sequence[int]
    inside: tuple[Any, ...]
    covers: bool
    target: np.ndarray[Any, np.dtype[Any]]

    @property
    def cell_count(self) -> int:
        """The number of cells: it is a plan of one."""
        return 1

    @property
    def covers_some(self) -> bool:
        """Whether all of some chunk is wanted."""
        return self.covers

    def cells(self) -> Sequence[ChunkBox]:
        """Return the cell."""
        return [self]

    def even(self, size: int) -> int:
        """Return how many cells, up to `size`, are taken at a time."""
        return 1

    def keys(self, model: ChunkModel) -> list[str]:
        """Return the key of its chunk."""
        return [model.key(self.numbers)]

    def chunk_numbers(self, cell: Any) -> Sequence[int]:
        """Return the numbers of the chunk along each output dimension."""
        return self.numbers

    def chunks(self, rank: int | None) -> list[tuple[int, ...]]:
        """Return the numbers of the chunks that are touched, along the first `rank` dimensions."""
        return [tuple(self.numbers[:rank])]

    def onto(self, array: np.ndarray[Any, np.dtype[Any]]) -> ChunkBox:
        """Return the plan of the same request with another array for its elements."""
        return self._replace(target=array)


class ChunkBoxes(NamedTuple):
    """The plan of a box over a few chunks: its sides in each along each dimension, and the array of its elements."""

    sides: Sequence[Sequence[BoxSide]]
    array: np.ndarray[Any, np.dtype[Any]]

    @property
    def cell_count(self) -> int:
        """The number of cells."""
        return math.prod(map(len, self.sides))

    def cells(self) -> Sequence[ChunkBox]:
        """Return the boxes in the order of their chunks."""
        array, found = self.array, []
        for sides in product(*self.sides):
            numbers, inside, outside, covers = zip(*sides, strict=True)
            target = array[(*filter(None, outside), ...)]
            found.append(_tuple(ChunkBox, (numbers, (*inside, ...), False not in covers, target)))
        return found

    def even(self, size: int) -> int:
        """Return how many cells, up to `size`, are taken at a time."""
        return size

    def keys(self, model: ChunkModel) -> list[str]:
        """Return the keys of the chunks."""
        return model.keys_of_product([[side[0] for side in each] for each in self.sides])

    def chunk_numbers(self, cell: ChunkBox) -> Sequence[int]:
        """Return the numbers of a cell's chunk along each output dimension."""
        return cell.numbers

    def chunks(self, rank: int | None) -> list[tuple[int, ...]]:
        """Return the numbers of the chunks that are touched, along the first `rank` dimensions."""
        return list(product(*[[side[0] for side in each] for each in self.sides[:rank]]))

    def onto(self, array: np.ndarray[Any, np.dtype[Any]]) -> ChunkBoxes:
        """Return the plan of the same request with another array for its elements."""
        return self._replace(array=array)
