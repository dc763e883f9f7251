"""The `shuffle` filter of numcodecs and HDF5: the first bytes of all elements, then their second bytes, and so on.

Blosc knows the same filter, and undoes it with the vector instructions of the processor, without the interpreter lock.
So shuffled bytes are put into a buffer of Blosc in which nothing is compressed: blocks, each of which has the planes of
bytes of some elements.  4 MB of numbers of four bytes take 0.35 ms so, the copy included; NumPy takes 1.0 ms to put
planes together byte by byte, numcodecs as long, and holds the lock.

Bytes so few that a call costs more are put together by NumPy, and elements for which Blosc has no such instructions.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np

from fsstore.codec.contract import Array, ByteSpec
from fsstore.codec.numcodecs.flat import size_of
from fsstore.codec.scratch import passing, scratch
from fsstore.codec.size import check_size
from fsstore.codec.tuning import SHUFFLE_BLOCK_BYTES, SHUFFLE_BLOCKS, SHUFFLE_MANY

__all__ = ["BoundShuffle"]

_WIDTHS = frozenset({2, 4, 8, *range(16, 256)})  # bytes of an element that Blosc puts together quickly
_HEADER = struct.Struct("<4B3I")
_FORM = (2, 1, 0x11)  # versions of Blosc and its compressor; flags: bytes are shuffled, no block is split


@cache
def _decompress() -> Callable[[Any, Any], Any]:
    from numcodecs.blosc import decompress

    return decompress  # type: ignore[no-any-return]  # numcodecs is not typed


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
        if len(out) < SHUFFLE_MANY or self.width not in _WIDTHS:
            elements = out.reshape(len(parts), -1, self.width)
            for number in range(self.width):
                elements[..., number] = planes[:, number]
            return True
        start = 0
        for blocks in [planes] if len(parts) > 1 else _blocks(planes[0]):
            _put_together(blocks, out[start : start + blocks.size])
            start += blocks.size
        return True


def _blocks(planes: Array) -> Iterator[Array]:
    """Yield the planes of bytes of a few elements after the other: by block, by place in the element, by element."""
    width, count = planes.shape
    some = SHUFFLE_BLOCK_BYTES // width
    for start in range(0, count, SHUFFLE_BLOCKS * some):
        part = planes[:, start : start + SHUFFLE_BLOCKS * some]
        whole = part.shape[1] // some
        if whole:
            yield part[:, : whole * some].reshape(width, whole, some).swapaxes(0, 1)
        if whole < SHUFFLE_BLOCKS and part.shape[1] > whole * some:
            yield part[None, :, whole * some :]


def _put_together(planes: Array, out: Array) -> None:
    """Put the elements of blocks of planes of bytes together in `out`."""
    count, width, _ = planes.shape
    size = planes[0].size
    head = _HEADER.size + 4 * count
    buffer = scratch(head + count * (4 + size), step=-1)  # steps of chains count from 0
    _HEADER.pack_into(buffer.data, 0, *_FORM, width, planes.size, size, len(buffer))
    body = buffer[head:].reshape(count, 4 + size)
    buffer[_HEADER.size : head].view("<u4")[:] = np.arange(head, len(buffer), 4 + size)
    body[:, :4].view("<u4")[:] = size
    np.copyto(body[:, 4:].reshape(planes.shape), planes)
    _decompress()(buffer, out)
