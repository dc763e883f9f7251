"""The `vlen-utf8` and `vlen-bytes` codecs: strings of any length, as zarr-python and numcodecs store them.

The encoding is the number of elements and then each element after its length, all as 32-bit little-endian numbers.
The count must be that of the chunk, so damaged bytes cannot ask for memory, and nothing may follow the last element.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import numpy as np

from fsstore.codec.configuration import Configured, Members
from fsstore.codec.contract import Array, ByteSpec, ChunkSpec, Kind
from fsstore.codec.size import too_long
from fsstore.codec.tuning import VLEN_TOGETHER
from fsstore.errors import FailedPreconditionError, StoreError
from fsstore.values.json_value import quote

__all__ = ["BoundVlen", "VlenBytesCodec", "VlenUtf8Codec"]

_TYPES: Mapping[str, type[Any]] = {"vlen-utf8": str, "vlen-bytes": bytes, "vlen-array": np.ndarray}


@cache
def _library(name: str, dtype: str | None) -> Any:
    from numcodecs import vlen

    if name == "vlen-array":
        return vlen.VLenArray(dtype)
    return vlen.VLenUTF8() if name == "vlen-utf8" else vlen.VLenBytes()


class BoundVlen:
    """Strings, byte strings or arrays (of `dtype`, only in zarr v2) in chunks of one shape; `name` says which."""

    __slots__ = ("count", "dtype", "encoded", "name", "shape")

    def __init__(self, name: str, shape: tuple[int, ...], dtype: str | None = None) -> None:
        self.name, self.shape, self.dtype = name, shape, dtype
        self.count = math.prod(shape)
        self.encoded = ByteSpec(itemsize=0)

    def encode(self, data: Array) -> Any:
        """Return the elements with their lengths; an element of another type is an error."""
        flat = np.array(data, object, order="C").reshape(-1)
        wanted = _TYPES[self.name]
        # the missing element of an array without a fill value is 0, which stands for the empty string
        items = [item if type(item) is wanted else self._plain(item) for item in flat.tolist()]
        for position, item in enumerate(items):
            flat[position] = item
        try:
            return _library(self.name, self.dtype).encode(flat)
        except UnicodeEncodeError as error:
            raise StoreError(f'"vlen-utf8" codec cannot encode {error.object!a}: {error.reason}') from None
        except (TypeError, ValueError) as error:
            raise StoreError(f"{quote(self.name)} codec cannot encode: {error}") from None

    def _plain(self, item: Any) -> Any:
        """Return an element of a derived type, such as `numpy.str_`, or a missing one as the library wants it."""
        if isinstance(item, str | bytes) and isinstance(item, _TYPES[self.name]):
            return _TYPES[self.name](item)
        if item is None or (isinstance(item, int) and item == 0):
            return np.zeros(0, self.dtype) if self.dtype else _TYPES[self.name]()
        wanted, found = _TYPES[self.name].__name__, type(item).__name__
        raise StoreError(f"{quote(self.name)} codec requires elements of type {wanted}, not {found}")

    def decode(self, data: Any) -> Array:
        """Return the elements as an object array."""
        length = len(data)
        if length < 4:
            raise FailedPreconditionError(
                f"Not enough data: expected at least 4 or {4 - length} more; at byte {length}"
            )
        count = int.from_bytes(bytes(data[:4]), "little")
        if count != self.count:
            raise FailedPreconditionError(f"Expected {self.count} elements, but found {count}; at byte 0")
        if length < 4 + 4 * count:
            raise FailedPreconditionError(f"Not enough data for {count} elements; at byte {length}")
        try:
            array: Array = _library(self.name, self.dtype).decode(data)
        except (ValueError, SystemError, OverflowError) as error:
            raise FailedPreconditionError(f"Invalid {self.name} data: {error}") from None
        end = 4 + 4 * count + self._size_of(array)
        if end != length:
            raise too_long(end, length)
        return array.reshape(self.shape)

    def _size_of(self, array: Array) -> int:
        """Return how many bytes the elements have that were decoded; the library does not say where they end."""
        if self.name == "vlen-array":
            return sum(item.nbytes for item in array)
        total = 0
        for start in range(0, len(array), VLEN_TOGETHER):
            items = array[start : start + VLEN_TOGETHER].tolist()
            total += len("".join(items).encode() if self.name == "vlen-utf8" else b"".join(items))
        return total


@dataclass(frozen=True, slots=True)
class _VlenCodec(Configured):
    """The base of both codecs: an empty configuration."""

    name: ClassVar[str] = ""
    kind: ClassVar[Kind] = "array_to_bytes"
    members: ClassVar[Members] = {}

    def bind(self, decoded: ChunkSpec | ByteSpec) -> BoundVlen:
        """Return the codec for chunks like `decoded`, whose elements must be objects; the fill value tells which."""
        if not isinstance(decoded, ChunkSpec) or decoded.dtype != np.dtype(object):
            raise StoreError(f"{quote(self.name)} codec requires elements of variable size")
        fill, wanted = decoded.fill_value, _TYPES[self.name]
        if isinstance(fill, str | bytes) and not isinstance(fill, wanted):
            found = "str" if isinstance(fill, str) else "bytes"
            raise StoreError(
                f"{quote(self.name)} codec requires elements of type {wanted.__name__}, not {found}"
            )
        return BoundVlen(self.name, decoded.shape)


@dataclass(frozen=True, slots=True)
class VlenUtf8Codec(_VlenCodec):
    """Unicode strings as UTF-8."""

    name: ClassVar[str] = "vlen-utf8"


@dataclass(frozen=True, slots=True)
class VlenBytesCodec(_VlenCodec):
    """Byte strings."""

    name: ClassVar[str] = "vlen-bytes"
