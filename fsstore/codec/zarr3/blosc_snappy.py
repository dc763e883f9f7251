"""Blosc buffers with snappy inside, which the blosc library of numcodecs is built without.

imagecodecs decompresses such buffers whole.  Its own blosc stores what snappy should compress as it is, so the buffer
is put together here from its snappy: a header, a table of where each block begins, and each block as one stream after
its length.  A block that does not shrink is stored as it is, and so is everything when the buffer would not be smaller.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from fsstore.codec.contract import Array
from fsstore.errors import UnimplementedError

__all__ = ["compress", "decompress"]

_HEADER = struct.Struct("<BBBBIII")
_LENGTH = struct.Struct("<I")
_VERSIONS = (2, 1)
_SHUFFLE_FLAGS = (0, 1, 4)
_IS_COPY, _ONE_STREAM, _SNAPPY = 2, 16, 2 << 5
_BLOCK_BYTES = 1 << 18


def _imagecodecs(verb: str) -> Any:
    try:
        import imagecodecs
    except ImportError:
        raise UnimplementedError(f'This build of blosc cannot {verb} "snappy"; install imagecodecs') from None
    return imagecodecs


def decompress(data: Any) -> Any:
    """Return what a buffer holds; raises `RuntimeError` or `ValueError` if it is damaged."""
    return _imagecodecs("decompress").blosc_decode(bytes(data))


def _encoder() -> Callable[[bytes], bytes]:
    encode: Callable[..., bytes] = _imagecodecs("compress with").snappy_encode
    try:
        encode(b"")
    except TypeError:  # some versions ask for a level, of which snappy has one
        return lambda data: encode(data, 1)
    return encode


def compress(octets: Array, clevel: int, shuffle: int, blocksize: int, typesize: int) -> bytes:
    """Return a buffer of `octets`: 0 does not shuffle them, 1 shuffles bytes, 2 bits of elements of `typesize`."""
    snappy = _encoder()
    step = 8 * typesize
    size = max(1, min(octets.size, max(step, (blocksize or _BLOCK_BYTES) // step * step)))
    flags = _SHUFFLE_FLAGS[shuffle] | _ONE_STREAM | _SNAPPY
    at = _HEADER.size + _LENGTH.size * -(-octets.size // size)
    starts, blocks = [], []
    for first in range(0, octets.size if clevel else 0, size):
        plain = _shuffled(octets[first : first + size], shuffle, typesize)
        packed = snappy(plain)
        block = packed if len(packed) < len(plain) else plain
        starts.append(_LENGTH.pack(at))
        blocks += [_LENGTH.pack(len(block)), block]
        at += _LENGTH.size + len(block)
    if not blocks or at >= _HEADER.size + octets.size:
        flags, starts, blocks, at = flags | _IS_COPY, [], [octets.tobytes()], _HEADER.size + octets.size
    return b"".join([_HEADER.pack(*_VERSIONS, flags, typesize, octets.size, size, at), *starts, *blocks])


def _shuffled(block: Array, shuffle: int, typesize: int) -> bytes:
    """Return a block by the places of bytes or of bits in elements; bits need elements in eights."""
    count = len(block) // typesize
    if shuffle == 0 or (shuffle == 2 and count % 8):
        return block.tobytes()
    elements = block[: count * typesize].reshape(count, typesize)
    if shuffle == 2:
        planes = np.unpackbits(elements, axis=1, bitorder="little").T
        elements = np.packbits(planes, axis=1, bitorder="little").T
    return elements.T.tobytes() + block[count * typesize :].tobytes()
