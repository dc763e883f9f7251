"""Which layer serves which part of a request to a stack of layers.

The layers are boxes, later ones above earlier ones.  An input dimension of the request is cut wherever any output
coordinate that depends on it crosses the side of a box; within the pieces that result one layer serves everything, the
topmost whose box holds them.  Only coordinates along single dimensions and index arrays are looked at, never elements.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise, product
from typing import Any

import numpy as np

from fsstore.errors import StoreError
from fsstore.index import IndexDomain, IndexTransform
from fsstore.index.compose import check_index
from fsstore.schema.constraint import braced

__all__ = ["LayerParts", "at_corner", "coordinates", "cuts", "within"]

_Vector = np.ndarray[Any, np.dtype[np.int64]]
_Box = tuple[slice, ...]


class LayerParts:
    """The boxes of layers, bottom first."""

    def __init__(self, domains: Sequence[IndexDomain], rank: int) -> None:
        self._low = np.array([domain.inclusive_min for domain in domains], np.int64).reshape(-1, rank)
        self._high = np.array([domain.exclusive_max for domain in domains], np.int64).reshape(-1, rank)
        self._edges = [
            np.unique(np.concatenate([self._low[:, dimension], self._high[:, dimension]]))
            for dimension in range(rank)
        ]

    def of(self, transform: IndexTransform) -> Iterator[tuple[int, _Box]]:
        """Yield the pieces of a request: the number of a layer, and the box of result positions it serves.

        Raises `StoreError` for a piece that no layer covers.
        """
        shape = transform.domain.shape
        if 0 in shape:
            return
        places = [coordinates(transform, dimension) for dimension in range(transform.output_rank)]
        cells = [
            np.searchsorted(edges, place, side="right")
            for edges, place in zip(self._edges, places, strict=True)
        ]
        sides = [cuts(cells, axis, size) for axis, size in enumerate(shape)]
        for box in product(*(list(pairwise(cut)) for cut in sides)):
            corner = tuple(begin for begin, _ in box)
            yield (
                self._layer_at([at_corner(place, corner) for place in places]),
                tuple(slice(*side) for side in box),
            )

    def _layer_at(self, point: Sequence[int]) -> int:
        where = np.array(point, np.int64)
        holding = np.nonzero(np.all((self._low <= where) & (where < self._high), axis=1))[0]
        if not len(holding):
            raise StoreError(f'Cell with origin={braced(point)} missing layer mapping in "stack" driver')
        return int(holding[-1])


def coordinates(transform: IndexTransform, dimension: int) -> _Vector:
    """Return the coordinates of an output dimension, of size 1 along the input dimensions that do not matter.

    Raises `OutOfRangeError` for listed positions outside the view that was indexed, which may be less than the array.
    """
    output = transform.output[dimension]
    domain = transform.domain
    if output.index_array is not None:
        allowed = output.index_range
        assert allowed is not None
        for index in (output.index_array.min(), output.index_array.max()) if output.index_array.size else ():
            check_index(int(index), (allowed.inclusive_min, allowed.exclusive_max))
        return np.asarray(output.offset + (output.stride or 1) * output.index_array, np.int64)
    shape = [1] * domain.rank
    axis = output.input_dimension
    if axis is None:
        return np.full(shape, output.offset, np.int64)
    shape[axis] = domain.shape[axis]
    steps = np.arange(domain.inclusive_min[axis], domain.exclusive_max[axis], dtype=np.int64)
    return (output.offset + (output.stride or 1) * steps).reshape(shape)


def cuts(cells: Sequence[_Vector], axis: int, size: int) -> list[int]:
    """Return where an input dimension of `size` is to be cut: where any cell number changes along it."""
    found = {0, size}
    for cell in cells:
        if cell.shape[axis] > 1:
            changes = np.diff(cell, axis=axis).any(axis=tuple(n for n in range(cell.ndim) if n != axis))
            found.update((np.nonzero(changes)[0] + 1).tolist())
    return sorted(found)


def within(place: _Vector, box: _Box) -> _Vector:
    """Return the coordinates of a box of the request; axes of size one repeat."""
    return place[
        tuple(side if size > 1 else slice(0, 1) for side, size in zip(box, place.shape, strict=True))
    ]


def at_corner(place: _Vector, corner: Sequence[int]) -> int:
    """Return the coordinate at one position of the request."""
    return int(
        place[tuple(position if size > 1 else 0 for position, size in zip(corner, place.shape, strict=True))]
    )
