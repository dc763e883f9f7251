"""The `delta` filter of numcodecs for numbers that keep their data type: the first, and then by what each one differs.

numcodecs makes all differences before it puts them behind the first, in memory that the C library keeps: writing parts
of chunks of 16 MB took 46 MB more by that.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fsstore.codec.contract import Array
from fsstore.codec.numcodecs.flat import FlatSpec, as_array, size_of
from fsstore.codec.scratch import passing
from fsstore.codec.size import check_size

__all__ = ["BoundDelta"]


class BoundDelta:
    """The filter bound to elements of a data type."""

    __slots__ = ("_dtype", "_size", "encoded")

    def __init__(self, decoded: FlatSpec, dtype: np.dtype[Any]) -> None:
        self._dtype, self._size, self.encoded = dtype, decoded.size, decoded.as_bytes

    def encode(self, data: Any) -> Array:
        """Return the differences of flat elements."""
        flat: Array = as_array(data, self._dtype)
        out = self._as_large(flat)
        out[:1] = flat[:1]
        np.subtract(flat[1:], flat[:-1], out=out[1:])
        return out

    def decode(self, data: Any) -> Array:
        """Return the elements of which `data` are the differences."""
        check_size(size_of(data), self._size)
        flat: Array = as_array(data, self._dtype)
        out = self._as_large(flat)
        np.cumsum(flat, out=out)
        return out

    def _as_large(self, flat: Array) -> Array:
        return passing(flat.nbytes).view(self._dtype)
