"""The `shuffle` filter of numcodecs and HDF5: the first bytes of all elements, then their second bytes, and so on.

numcodecs shuffles while it holds the interpreter lock: undoing it for 64 MB takes 37 ms, whatever the number of
threads.  NumPy copies a plane of bytes at a time without the lock, 13 ms on two threads.

Elements of two or four bytes, if there are many of them, are put together as numbers instead, which takes a third and
two thirds of that time: bytes are joined in pairs, and these again, as many at a time as caches of processors hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fsstore.codec.contract import Array, ByteSpec
from fsstore.codec.numcodecs.flat import size_of
from fsstore.codec.scratch import passing
from fsstore.codec.size import check_size
from fsstore.codec.tuning import SHUFFLE_AT_ONCE, SHUFFLE_MANY

__all__ = ["BoundShuffle"]

_PAIRED = (2, 4)


class BoundShuffle:
    """The filter bound to a number of bytes that is a multiple of `width`, the size of the elements it knows."""

    __slots__ = ("encoded", "width")

    def __init__(self, decoded: ByteSpec, width: int) -> None:
        self.encoded, self.width = decoded, width

    def encode(self, data: Any) -> memoryview:
        """Return the bytes of `data` by their place in elements."""
        octets = np.frombuffer(data, np.uint8)
        planes = passing(len(octets)).reshape(self.width, -1)
        np.copyto(planes, octets.reshape(-1, self.width).T)
        return planes.reshape(-1).data

    def decode(self, data: Any) -> memoryview:
        """Return the bytes of each element together again."""
        check_size(size_of(data), self.encoded.size)
        out = passing(size_of(data))
        self.decode_into(data, out)
        return out.data

    def decode_into(self, data: Any, out: Array) -> bool:
        """Decode into `out`, which has the exact size; return False if `data` has not."""
        return self.decode_joined((data,), out)

    def decode_joined(self, parts: Sequence[Any], out: Array) -> bool:
        """Decode parts of one size into `out`, one after the other; return False if one has another size."""
        size = len(out) // len(parts)
        if any(size_of(part) != size for part in parts):
            return False
        joined = parts[0] if len(parts) == 1 else b"".join(parts)
        planes = np.frombuffer(joined, np.uint8).reshape(len(parts), self.width, -1)
        if len(parts) == 1 and self.width in _PAIRED and size >= SHUFFLE_MANY * self.width:
            _paired(planes[0], out)
            return True
        elements = out.reshape(len(parts), -1, self.width)
        for number in range(self.width):
            elements[..., number] = planes[:, number]
        return True


def _paired(planes: Array, out: Array) -> None:
    """Put the elements of two or four planes of bytes together in `out`."""
    width, count = planes.shape
    elements = out.view(f"<u{width}")
    low, high = (np.empty(SHUFFLE_AT_ONCE if width == 4 else 0, "<u2") for _ in range(2))
    for start in range(0, count, SHUFFLE_AT_ONCE):
        some, target = planes[:, start : start + SHUFFLE_AT_ONCE], elements[start : start + SHUFFLE_AT_ONCE]
        if width == 2:
            _join(some[0], some[1], 8, target)
            continue
        _join(some[0], some[1], 8, low[: len(target)])
        _join(some[2], some[3], 8, high[: len(target)])
        _join(low[: len(target)], high[: len(target)], 16, target)


def _join(low: Array, high: Array, bits: int, out: Array) -> None:
    """Put numbers together of their lower and their higher bits."""
    np.copyto(out, high)
    np.left_shift(out, bits, out=out)
    np.bitwise_or(out, low, out=out)
