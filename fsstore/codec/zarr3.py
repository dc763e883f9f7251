"""The codecs of zarr v3 that need no library: `bytes`, `transpose`, `vlen-utf8`, `vlen-bytes` and `crc32c`."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar, Self

import google_crc32c
import numpy as np

from fsstore.codec.contract import (
    Array,
    Buffer,
    ByteSpec,
    ChunkSpec,
    Configured,
    Kind,
    Member,
    Members,
    Options,
    too_long,
    too_short,
)
from fsstore.errors import DataLossError, FailedPreconditionError, JsonError, StoreError
from fsstore.schema.constraint import braced
from fsstore.values.json_value import Json, array_of, integer, one_of, quote

_TEXTS = 4096  # whose bytes are counted together: an eighth of the time that decoding them takes

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


# The `transpose` codec.

Order = tuple[int, ...] | str


def _parse_order(value: Any) -> Order:
    try:
        return _parse_permutation(value)
    except JsonError as error:
        try:
            return one_of("C", "F")(value)
        except JsonError as other:
            raise JsonError(f"No matching value binder: {error}; {other}") from None


def _parse_permutation(value: Any) -> tuple[int, ...]:
    order = tuple(array_of(integer())(value))
    if sorted(order) != list(range(len(order))):
        raise JsonError(f"{braced(order)} is not a valid permutation")
    return order


def permutation(order: Order, rank: int) -> tuple[int, ...]:
    """Return `order` as a permutation of `rank` dimensions, or raise `StoreError` when it is none."""
    if isinstance(order, str):
        return tuple(range(rank)) if order == "C" else tuple(range(rank))[::-1]
    if len(order) != rank:
        raise StoreError(f"{braced(order)} is not a valid dimension permutation for a rank {rank} array")
    return order


@dataclass(frozen=True, slots=True)
class TransposeCodec(Configured):
    """Permutes dimensions by `order`: a permutation, `"C"` (none) or `"F"` (reversal)."""

    order: Order

    name: ClassVar[str] = "transpose"
    kind: ClassVar[Kind] = "array_to_array"
    members: ClassVar[Members] = {"order": Member(_parse_order, stored=True)}
    always: ClassVar[frozenset[str]] = frozenset({"order"})

    @classmethod
    def complete(cls, options: Options, decoded: ChunkSpec) -> Self:
        """Return the codec with `"C"` and `"F"` spelled out for the rank of `decoded`."""
        return cls(permutation(options["order"], len(decoded.shape)))

    def to_json(self) -> dict[str, Json]:
        """Return the configuration as stored."""
        return {"order": self.order if isinstance(self.order, str) else list(self.order)}

    def bind(self, decoded: ChunkSpec | ByteSpec) -> BoundTranspose:
        """Return the codec for chunks like `decoded`."""
        if not isinstance(decoded, ChunkSpec):
            raise StoreError('"transpose" codec requires an array')
        return BoundTranspose(decoded, permutation(self.order, len(decoded.shape)))


class BoundTranspose:
    """The permutation of chunks of one rank."""

    __slots__ = ("encoded", "inverse", "order")

    def __init__(self, decoded: ChunkSpec, order: tuple[int, ...]) -> None:
        self.order = order
        self.inverse = tuple(sorted(range(len(order)), key=order.__getitem__))
        shape = tuple(decoded.shape[axis] for axis in order)
        self.encoded = ChunkSpec(decoded.dtype, shape, decoded.fill_value)

    def encode(self, data: Array) -> Array:
        """Return a view of `data` with its dimensions permuted."""
        return data.transpose(self.order)

    def decode(self, data: Array) -> Array:
        """Return a view of `data` with its dimensions put back."""
        return data.transpose(self.inverse)


# The `vlen-utf8` and `vlen-bytes` codecs.

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
        for start in range(0, len(array), _TEXTS):
            items = array[start : start + _TEXTS].tolist()
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
            raise StoreError(f"{quote(self.name)} codec requires elements of type {wanted.__name__}, not {found}")
        return BoundVlen(self.name, decoded.shape)


@dataclass(frozen=True, slots=True)
class VlenUtf8Codec(_VlenCodec):
    """Unicode strings as UTF-8."""

    name: ClassVar[str] = "vlen-utf8"


@dataclass(frozen=True, slots=True)
class VlenBytesCodec(_VlenCodec):
    """Byte strings."""

    name: ClassVar[str] = "vlen-bytes"


# The `crc32c` codec.

# the checksum of anything followed by its own checksum
_RESIDUE = 0x48674BC7


def checksum(data: Any) -> int:
    """Return the CRC-32C of a buffer."""
    value: int = google_crc32c.value(_acceptable(data))
    return value


def _acceptable(data: Any) -> Any:
    """Return a buffer as the library takes it: bytes and arrays, but neither bytearray nor memoryview."""
    if isinstance(data, bytes):
        return data
    return np.frombuffer(data, np.uint8) if len(data) else b""


class BoundCrc32c:
    """The checksum bound to bytes of one size or of any size."""

    effort: ClassVar[float] = 0.1
    is_exact: ClassVar[bool] = True

    __slots__ = ("encoded", "size")

    def __init__(self, decoded: ByteSpec) -> None:
        self.size = decoded.size
        size = None if decoded.size is None else decoded.size + 4
        self.encoded = ByteSpec(size, 0, None if decoded.max_size is None else decoded.max_size + 4)

    def encode(self, data: Any) -> bytes:
        """Return `data` and its checksum."""
        return b"".join(self.pass_pieces((data,)))

    def pass_pieces(self, pieces: Iterable[Buffer]) -> Iterator[Buffer]:
        """Yield pieces and then the checksum of all."""
        value = 0
        for piece in pieces:
            value = google_crc32c.extend(value, _acceptable(piece))
            yield piece
        yield value.to_bytes(4, "little")

    def decode(self, data: Any) -> memoryview:
        """Return a view of `data` without its checksum, which must be right."""
        view = memoryview(data)
        self._check_length(len(view))
        if checksum(data) != _RESIDUE:
            stored, computed = int.from_bytes(view[-4:], "little"), checksum(view[:-4])
            raise DataLossError(
                f"Digest mismatch, stored digest is {stored:#010x} but computed digest is {computed:#010x}"
            )
        return view[:-4]

    def decode_joined(self, parts: Sequence[Buffer], out: Any) -> bool:
        """Put parts without their checksums one after the other; return False if one is not right."""
        size = len(out) // len(parts)
        if any(len(part) != size + 4 or checksum(part) != _RESIDUE for part in parts):
            return False
        rows = np.frombuffer(b"".join(parts), np.uint8).reshape(len(parts), size + 4)
        out.reshape(len(parts), size)[...] = rows[:, :-4]
        return True

    def _check_length(self, length: int) -> None:
        """Raise unless the data and their checksum are there, and no more."""
        if self.size is None:
            if length < 4:
                raise DataLossError(f"Input size of {length} is less than digest size of 4")
        elif length < self.size:
            raise too_short(self.size, length)
        elif length < self.size + 4:
            raise DataLossError(f"Unexpected end of input; at byte {self.size}")
        elif length > self.size + 4:
            raise too_long(self.size + 4, length)


@dataclass(frozen=True, slots=True)
class Crc32cCodec(Configured):
    """A CRC-32C after the data.  No configuration."""

    name: ClassVar[str] = "crc32c"
    kind: ClassVar[Kind] = "bytes_to_bytes"
    members: ClassVar[Members] = {}

    def bind(self, decoded: ChunkSpec | ByteSpec) -> BoundCrc32c:
        """Return the codec for bytes like `decoded`."""
        if not isinstance(decoded, ByteSpec):
            raise StoreError('"crc32c" codec requires bytes')
        return BoundCrc32c(decoded)
