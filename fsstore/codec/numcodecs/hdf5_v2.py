"""The filters of HDF5 that nothing else has: szip, scale-offset, bitshuffle and LZ4 in blocks, shuffle of odd sizes.

Each has its name in zarr v2, `hdf5_szip` and so on, with the `parameters` of the filter as HDF5 stores them.  A chunk
for which the filter was skipped stands behind eight bytes of ones, which no encoded chunk begins with: they would be
a size.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np

from fsstore.codec.contract import BoundCodec, Kind
from fsstore.codec.numcodecs.flat import FlatSpec
from fsstore.codec.numcodecs.foreign_v2 import BoundReader, fixed_size
from fsstore.codec.size import check_size, encoded_bound
from fsstore.errors import FailedPreconditionError, JsonError, UnimplementedError
from fsstore.values.json_value import Json, array_of, integer, quote

__all__ = ["Hdf5Filter"]

_SKIPPED = b"\xff" * 8
_FAILURES = (RuntimeError, ValueError, TypeError, IndexError, OverflowError, MemoryError, struct.error)
_BLOCK = 8192  # bytes of a block of bitshuffle, unless said otherwise
_OFFSET_HEAD = 21
_MOST_BITS = 64


class Hdf5Filter:
    """One of these filters, as configured."""

    kind: ClassVar[Kind] = "bytes_to_bytes"

    def __init__(self, name: str, options: Mapping[str, Json]) -> None:
        self._name = name
        self._values = tuple(array_of(integer(0, 2**32 - 1))(options.get("parameters", [])))
        least = _LEAST.get(name)
        if least is None or len(self._values) < least:
            raise JsonError(f"Codec {quote(name)} needs at least {least} parameters")

    def encoded(self, decoded: FlatSpec) -> FlatSpec:
        """Return bytes of any size."""
        limit = encoded_bound(decoded.as_bytes)
        return FlatSpec(None, 0, max_size=None if limit is None else limit + len(_SKIPPED))

    def bind(self, decoded: FlatSpec) -> BoundCodec:
        """Return the codec for bytes like `decoded`."""
        size = fixed_size(self._name, decoded)
        decode: Callable[[Any, Sequence[int], int], Any] = _DECODERS[self._name]
        if self._name in _BY_IMAGECODECS:
            decode = partial(decode, _imagecodecs(self._name))

        def read(data: Any) -> Any:
            found = memoryview(data).cast("B")
            if found[:8] == _SKIPPED:
                return found[8:]
            return decode(found, self._values, size)

        return BoundReader(self._name, decoded, self.encoded(decoded).as_bytes, read, _FAILURES)


def _imagecodecs(name: str) -> Any:
    try:
        import imagecodecs
    except ImportError:
        raise UnimplementedError(
            f"Codec {quote(name)} needs imagecodecs: pip install 'fsstore[hdf5]'"
        ) from None
    return imagecodecs


def _szip(library: Any, data: memoryview, values: Sequence[int], size: int) -> Any:
    """Return what szip packed: the size, then the packed bytes."""
    check_size(int.from_bytes(data[:4], "little"), size)
    return library.szip_decode(data, *values[:4], header=True, out=bytearray(size))


def _bitshuffle(library: Any, data: memoryview, values: Sequence[int], size: int) -> Any:
    """Return what bitshuffle transposed: in blocks, each of them compressed perhaps."""
    width, block, method = values[2], values[3], values[4] if len(values) > 4 else 0
    if not 0 < width <= size:
        raise FailedPreconditionError(f"Invalid bitshuffle data: elements of {width} bytes")
    if not method:
        block = block or max(_BLOCK // width // 8 * 8, 128)
        check_size(len(data), size)
        return _transposed(library, data, width, block)
    total, block_bytes = struct.unpack_from(">QI", data)
    check_size(total, size)
    if not block_bytes or block_bytes % (8 * width):
        raise FailedPreconditionError(f"Invalid bitshuffle data: blocks of {block_bytes} bytes")
    out, at, done = [], 12, 0
    whole = size // (8 * width) * 8 * width
    while done < whole:
        count = min(block_bytes, whole - done)
        (length,) = struct.unpack_from(">I", data, at)
        packed = data[at + 4 : at + 4 + length]
        if len(packed) != length:
            raise FailedPreconditionError("Invalid bitshuffle data: a block is cut off")
        plain = _unpacked(packed, count, method, library)
        out.append(_transposed(library, plain, width, count // width))
        at, done = at + 4 + length, done + count
    out.append(bytes(data[at : at + size - done]))
    return b"".join(out)


def _unpacked(packed: memoryview, size: int, method: int, library: Any) -> Any:
    if method == 2:
        return _lz4_block(packed, size)
    plain = library.zstd_decode(packed, out=bytearray(size))
    check_size(len(plain), size)
    return plain


def _transposed(library: Any, data: Any, width: int, block: int) -> bytes:
    """Return elements whose bits were sorted by their place; those behind a multiple of eight are as they were."""
    count = len(data) // width // 8 * 8 * width
    head = library.bitshuffle_decode(bytes(data[:count]), itemsize=width, blocksize=block) if count else b""
    return bytes(head) + bytes(data[count:])


def _lz4_block(packed: Any, size: int) -> bytes:
    """Return the bytes of one block of LZ4."""
    from numcodecs import lz4

    plain: bytes = lz4.decompress(struct.pack("<i", size) + bytes(packed))
    check_size(len(plain), size)
    return plain


def _lz4(data: memoryview, _: Sequence[int], size: int) -> Any:
    """Return what LZ4 packed block by block; a block as long as what it holds is stored as it is."""
    total, block = struct.unpack_from(">QI", data)
    check_size(total, size)
    out, at, done = [], 12, 0
    while done < size:
        count = min(block, size - done)
        (length,) = struct.unpack_from(">I", data, at)
        packed = data[at + 4 : at + 4 + length]
        if len(packed) != length or not count:
            raise FailedPreconditionError("Invalid lz4 data: a block is cut off")
        out.append(bytes(packed) if length == count else _lz4_block(packed, count))
        at, done = at + 4 + length, done + count
    return b"".join(out)


def _scaleoffset(data: memoryview, values: Sequence[int], size: int) -> Any:
    """Return numbers stored as small differences from the least: integers exactly, floats as HDF5 rounds them."""
    form, factor, count, is_float, width, signed, big = values[:7]
    if count * width != size or width not in (1, 2, 4, 8) or len(data) < _OFFSET_HEAD:
        raise FailedPreconditionError(f"Invalid scale-offset data: {count} numbers of {width} bytes")
    bits = int.from_bytes(data[:4], "little")
    order: Literal["<", ">"] = ">" if big else "<"
    stored = np.dtype(f"{'f' if is_float else 'i' if signed else 'u'}{width}")
    if bits >= 8 * width:
        return bytes(data[_OFFSET_HEAD : _OFFSET_HEAD + size])
    low = bytes(data[5:13])
    packed = _bits(data[_OFFSET_HEAD:], count, bits)
    if is_float:
        if form != 0:
            raise FailedPreconditionError("Invalid scale-offset data: floats scaled by exponents")
        numbers = packed.astype(stored) / stored.type(math.pow(10.0, _signed(factor)))
        numbers = numbers + np.frombuffer(low, "<" + stored.str[1:], 1)[0]
    else:
        numbers = (packed + np.frombuffer(low, "<u8")[0]).astype(f"u{width}").view(stored)
    if values[7] and bits:
        words = struct.pack(f"<{len(values) - 8}I", *values[8:])[:width]
        numbers[packed == np.uint64(2**bits - 1)] = np.frombuffer(
            words.ljust(width, b"\0"), "<" + stored.str[1:]
        )[0]
    return numbers.astype(stored.newbyteorder(order)).tobytes()


def _signed(value: int) -> int:
    return value - 2**32 if value >= 2**31 else value


def _bits(data: memoryview, count: int, bits: int) -> Any:
    """Return numbers of so many bits each, one behind the other, the highest bit first."""
    if not bits:
        return np.zeros(count, np.uint64)
    if len(data) * 8 < count * bits:
        raise FailedPreconditionError("Invalid scale-offset data: it is cut off")
    digits = np.unpackbits(np.frombuffer(data, np.uint8), count=count * bits).reshape(count, bits)
    out = np.zeros(count, np.uint64)
    for column in range(bits):
        out = out << np.uint64(1) | digits[:, column]
    return out


def _shuffle(data: memoryview, values: Sequence[int], size: int) -> Any:
    """Return elements whose bytes were sorted by their place; what fills no element is as it was."""
    check_size(len(data), size)
    width = max(values[0], 1)
    whole = size // width * width
    planes = np.frombuffer(data, np.uint8)[:whole].reshape(width, -1)
    return planes.T.tobytes() + bytes(data[whole:])


_LEAST = {"hdf5_shuffle": 1, "hdf5_szip": 4, "hdf5_bitshuffle": 4, "hdf5_lz4": 0, "hdf5_scaleoffset": 8}
_DECODERS: dict[str, Callable[..., Any]] = {
    "hdf5_szip": _szip,
    "hdf5_bitshuffle": _bitshuffle,
    "hdf5_lz4": _lz4,
    "hdf5_scaleoffset": _scaleoffset,
    "hdf5_shuffle": _shuffle,
}
_BY_IMAGECODECS = frozenset(("hdf5_szip", "hdf5_bitshuffle"))
