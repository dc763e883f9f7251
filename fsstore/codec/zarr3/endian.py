"""The `bytes` codec: the elements of a chunk in C order, little or big endian.

Every dtype of fixed size passes, structured ones included.  One-byte elements have no byte order and store none.
Booleans must be 0 or 1; types narrower than a byte take one byte each with the high bits zero.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np

from fsstore.codec.configuration import Configured, Member, Members, Options
from fsstore.codec.contract import Array, ByteSpec, ChunkSpec, Kind
from fsstore.codec.size import too_long, too_short
from fsstore.errors import FailedPreconditionError, StoreError
from fsstore.values.json_value import one_of

__all__ = ["BoundBytes", "BytesCodec", "stored_dtype"]

_NARROW = {"int2": 0x03, "uint2": 0x03, "int4": 0x0F, "uint4": 0x0F, "float4_e2m1fn": 0x0F,
           "float6_e2m3fn": 0x3F, "float6_e3m2fn": 0x3F}  # fmt: skip


def _has_byte_order(dtype: np.dtype[Any]) -> bool:
    """Return whether swapping the bytes of the elements makes a difference."""
    # the one-byte types of ml_dtypes claim an order that they do not have
    return dtype.itemsize > 1 and not dtype.hasobject and dtype.newbyteorder("<") != dtype.newbyteorder(">")


def stored_dtype(dtype: np.dtype[Any], endian: str | None) -> np.dtype[Any]:
    """Return `dtype` in the byte order that `endian` names, or as it is for None."""
    if endian is None or not _has_byte_order(dtype):
        return dtype
    native = endian == sys.byteorder
    return dtype.newbyteorder("=" if native else ">" if endian == "big" else "<")


@dataclass(frozen=True, slots=True)
class BytesCodec(Configured):
    """Elements in C order.  `endian` is `"little"`, `"big"`, or None for elements without a byte order."""

    endian: str | None = None

    name: ClassVar[str] = "bytes"
    kind: ClassVar[Kind] = "array_to_bytes"
    members: ClassVar[Members] = {"endian": Member(one_of("little", "big"))}

    @classmethod
    def complete(cls, options: Options, decoded: ChunkSpec) -> Self:
        """Return the codec with the native byte order where none is asked for and one is needed."""
        # of structures TensorStore always wants it
        if not _has_byte_order(decoded.dtype) and decoded.dtype.fields is None:
            return cls(None)
        return cls(options.get("endian", sys.byteorder))

    def bind(self, decoded: ChunkSpec | ByteSpec) -> BoundBytes:
        """Return the codec for chunks like `decoded`."""
        if not isinstance(decoded, ChunkSpec) or decoded.dtype.hasobject:
            raise StoreError('"bytes" codec requires elements of fixed size')
        endian = self.endian
        if endian is None and _has_byte_order(decoded.dtype):
            if decoded.dtype.fields is None:
                raise StoreError(
                    f'"bytes" codec requires that "endian" option is specified for data type {decoded.dtype.name}'
                )
            endian = "little"
        bound = BoundBytes(decoded.dtype, stored_dtype(decoded.dtype, endian), decoded.shape)
        if decoded.dtype.fields is not None:  # which TensorStore shuffles byte by byte
            bound.encoded = replace(bound.encoded, itemsize=1)
        return bound


class BoundBytes:
    """The codec bound to chunks of `dtype` and `shape`, stored as `stored` is ordered."""

    __slots__ = ("dtype", "encoded", "flat_dtype", "mask", "shape", "size", "stored", "verify")

    def __init__(self, dtype: np.dtype[Any], stored: np.dtype[Any], shape: tuple[int, ...]) -> None:
        if dtype.itemsize == 0:
            raise StoreError(f"Elements of data type {dtype} have no bytes")
        self.dtype, self.stored, self.shape = dtype, stored, shape
        self.flat_dtype = stored
        self.size = stored.itemsize * math.prod(shape)
        self.encoded = ByteSpec(self.size, itemsize=stored.itemsize)
        self.mask = _NARROW.get(dtype.name)
        self.verify = _verify_bool if dtype == np.dtype(bool) else None

    def encode(self, data: Array) -> Any:
        """Return the elements of `data` as one contiguous buffer, a view where it is one already."""
        flat = np.ascontiguousarray(data, dtype=self.stored).reshape(-1)
        octets = flat.view(np.uint8)
        if self.mask is not None:
            octets = np.bitwise_and(octets, np.uint8(self.mask))
        return octets.data

    def decode(self, data: Any) -> Array:
        """Return the elements as an array, a view of `data` unless bytes have to be swapped."""
        array = self.view(data)
        return array if self.stored == self.dtype else array.astype(self.dtype)

    def view(self, data: Any) -> Array:
        """Return the elements as an array that views `data` in the byte order it is stored in."""
        try:
            array = np.frombuffer(data, self.stored).reshape(self.shape)
        except ValueError:
            raise self._wrong_size(data) from None
        if self.verify is not None:
            self.verify(array)
        return array

    def _wrong_size(self, data: Any) -> FailedPreconditionError:
        length = memoryview(data).nbytes
        return too_short(self.size, length) if length < self.size else too_long(self.size, length)


def _verify_bool(array: Array) -> None:
    octets = array.view(np.uint8)
    if octets.size and octets.max() > 1:
        flat = octets.reshape(-1)
        position = int(np.argmax(flat > 1))
        raise FailedPreconditionError(f"Invalid bool value: {flat[position]}; at byte {position}")
