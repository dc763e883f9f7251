"""Flat data, as codecs of zarr v2 see them, and filters of numcodecs that are written out here.

numcodecs is slower or trusts its input.  Elementwise filters run block by block.  `shuffle` stores the first bytes of
all elements, then their second bytes, and so on.  `json2` and `msgpack2` store the elements as one list that ends in
their dtype and shape: numcodecs allocates whatever shape and dtype the data state.  The list is nested as the chunk is
shaped, whatever its order in memory.

Parsing makes an object of a byte or two, `[]` or `{}`, which takes as much memory as dozens of them.  So the memory of
the objects is limited: by a sum over the text before JSON is parsed, and during the parsing of MessagePack, whose
extension types are refused, timestamps among them."""

from __future__ import annotations

import binascii
import json
import math
import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Protocol, Self

import numpy as np

from fsstore.codec.buffers import DIRECT_BYTES, passing, scratch
from fsstore.codec.contract import (
    FREE_BYTES,
    Array,
    BoundCodec,
    Buffer,
    ByteSpec,
    Kind,
    check_size,
    encoded_bound,
    output_limit,
    too_large,
)
from fsstore.errors import FailedPreconditionError, JsonError, StoreError, UnimplementedError
from fsstore.runtime.tuning import CACHE_BYTES, PIECE_BYTES
from fsstore.values.json_value import Json, quote

# Flat data: codecs of zarr v2 see elements in a row, or bytes.


@dataclass(frozen=True, slots=True)
class FlatSpec:
    """Flat data on its way through filters: `count` elements of `dtype`, or bytes where that is None.

    `shape` is that of the chunk as it lies in memory; `size` is the exact number of bytes where it is fixed.
    """

    dtype: np.dtype[Any] | None
    count: int
    shape: tuple[int, ...] = ()
    reverse: bool = False
    max_size: int | None = None

    @property
    def size(self) -> int | None:
        """The number of bytes, or None when it is not fixed."""
        if self.dtype is None or self.dtype.hasobject:
            return None
        return self.count * self.dtype.itemsize

    @property
    def as_bytes(self) -> ByteSpec:
        """The same as bytes."""
        return ByteSpec(self.size, 0 if self.dtype is None else self.dtype.itemsize, self.max_size)


def fixed_dtype(codec: str, value: Any) -> np.dtype[Any]:
    """Return the data type that an option of a codec names; raises `JsonError` unless elements have a fixed size."""
    try:
        found: np.dtype[Any] = np.dtype(value)
    except (TypeError, ValueError, SyntaxError) as error:  # NumPy runs Python's parser over text with commas
        raise JsonError(f"Invalid data type of codec {quote(codec)}: {error}") from None
    if found.hasobject or found.itemsize == 0:
        raise JsonError(f"Invalid data type of codec {quote(codec)}: elements must have a fixed size")
    return found


def octets(count: int) -> FlatSpec:
    """Return the description of a number of bytes."""
    return FlatSpec(np.dtype(np.uint8), count)


def size_of(data: Any) -> int:
    """Return the number of bytes of an array or buffer."""
    return int(data.nbytes) if isinstance(data, np.ndarray) else memoryview(data).nbytes


def as_array(data: Any, dtype: np.dtype[Any]) -> Any:
    """Return flat data as an array of `dtype`; only the bytes count, unless elements are objects."""
    if isinstance(data, np.ndarray):
        flat = data.reshape(-1)
        return flat if flat.dtype == dtype or dtype.hasobject or flat.dtype.hasobject else flat.view(dtype)
    return np.frombuffer(data, dtype)


# The contract of codecs that other packages bring into zarr v2, most of which are read, never written.


class ForeignCodec(Protocol):
    """A codec of another file format, as configured."""

    kind: ClassVar[Kind]

    def __init__(self, name: str, options: Mapping[str, Json]) -> None:
        """Take a configuration; raises `JsonError` when it is malformed."""
        ...

    def encoded(self, decoded: FlatSpec) -> FlatSpec:
        """Return the form that encoding `decoded` would give."""
        ...

    def bind(self, decoded: FlatSpec) -> BoundCodec:
        """Return the codec for data like `decoded`; raises `UnimplementedError` when its library is missing."""
        ...


@dataclass(frozen=True, slots=True)
class BoundReader:
    """A decoder between checks: what comes out has the size of `decoded`, and `failures` say that data is damaged."""

    name: str
    decoded: FlatSpec
    encoded: ByteSpec
    read: Callable[[Any], Any]
    failures: tuple[type[BaseException], ...]

    def encode(self, data: Any) -> Any:
        """Refuse: these encodings belong to files that something else writes."""
        raise UnimplementedError(f"Codec {quote(self.name)} can be read, not written")

    def decode(self, data: Any) -> Any:
        """Return the decoded array or buffer."""
        check_size(size_of(data), self.encoded.size)
        try:
            out = self.read(data)
        except StoreError:
            raise
        except self.failures as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            raise FailedPreconditionError(f"Invalid {self.name} data: {reason}") from None
        if not (isinstance(out, np.ndarray) and out.dtype.hasobject):
            check_size(size_of(out), self.decoded.size)
        return out


def fixed_size(name: str, decoded: FlatSpec) -> int:
    """Return the size of decoded data, or raise `StoreError` when it is not fixed."""
    if decoded.size is None:
        raise StoreError(f"Codec {quote(name)} requires data of a fixed size")
    return decoded.size


_ELEMENTWISE = frozenset({"bitround", "fixedscaleoffset", "quantize"})
_ELEMENTS = CACHE_BYTES // 8  # of a block
_TEXT_BYTES = CACHE_BYTES // 4 * 3  # that become text at once
_BLOCKS = PIECE_BYTES // CACHE_BYTES * 4  # of one call of Blosc
BLOCKS_BYTES = 3 * 8 * _ELEMENTS  # what the steps take for one block


def is_elementwise(name: str, options: Mapping[str, Any]) -> bool:
    """Return whether a codec with these options does the same to every element; numcodecs takes a list for each."""
    return name in _ELEMENTWISE and not any(np.ndim(option) for option in options.values())


def in_blocks(function: Callable[[Array], Any], elements: Array, dtype: np.dtype[Any]) -> Any:
    """Return the result of `function` for flat `elements`, as many of `dtype`."""
    if len(elements) <= _ELEMENTS:
        return function(elements)
    out: Array = passing(len(elements) * dtype.itemsize).view(dtype)
    for start in range(0, len(elements), _ELEMENTS):
        block = slice(start, start + _ELEMENTS)
        out[block] = as_array(function(elements[block]), dtype)
    return out


# The `delta` filter of numcodecs for numbers that keep their data type.


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


# The `shuffle` filter of numcodecs and HDF5.

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
        if len(out) < DIRECT_BYTES or self.width not in _WIDTHS:
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
    some = CACHE_BYTES // 4 // width
    for start in range(0, count, _BLOCKS * some):
        part = planes[:, start : start + _BLOCKS * some]
        whole = part.shape[1] // some
        if whole:
            yield part[:, : whole * some].reshape(width, whole, some).swapaxes(0, 1)
        if whole < _BLOCKS and part.shape[1] > whole * some:
            yield part[None, :, whole * some :]


def _put_together(planes: Array, out: Array) -> None:
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


# The numcodecs `base64` codec.


def _length(size: int) -> int:
    """Return the length of the text of so many bytes."""
    return 4 * math.ceil(size / 3)


class BoundBase64:
    """The codec bound to bytes of one size or of any size."""

    __slots__ = ("decoded", "encoded")

    def __init__(self, decoded: ByteSpec) -> None:
        self.decoded = decoded
        size, most = [None if of is None else _length(of) for of in (decoded.size, decoded.max_size)]
        self.encoded = ByteSpec(size, 0, most)

    def encode(self, data: Any) -> Buffer:
        """Return `data` as text."""
        view = memoryview(data).cast("B")
        if len(view) <= _TEXT_BYTES:
            return binascii.b2a_base64(view, newline=False)
        text = passing(_length(len(view)))
        for at in range(0, len(view), _TEXT_BYTES):
            _put(text, at // 3 * 4, binascii.b2a_base64(view[at : at + _TEXT_BYTES], newline=False))
        return text.data

    def decode(self, data: Any) -> Buffer:
        """Return the bytes of the text."""
        check_size(len(data), self.encoded.size)
        size = self.decoded.size
        if size is None or size <= _TEXT_BYTES:
            octets = _octets(data)
            check_size(len(octets), size)
            return octets
        out, view, filled = passing(size), memoryview(data).cast("B"), 0
        for at in range(0, len(view), _TEXT_BYTES // 3 * 4):
            octets = _octets(view[at : at + _TEXT_BYTES // 3 * 4])
            check_size(len(octets), min(_TEXT_BYTES, size - filled))  # less is padding inside the text
            filled = _put(out, filled, octets)
        return out.data


def _octets(text: Any) -> bytes:
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except binascii.Error as error:
        raise FailedPreconditionError(f"Invalid base64 data: {error}") from None


def _put(memory: Array, at: int, piece: bytes) -> int:
    """Put a piece at a place in memory; return where it ends."""
    end = at + len(piece)
    memory[at:end] = np.frombuffer(piece, np.uint8)
    return end


# LZ4 as numcodecs frames it.


class BoundLz4:
    """LZ4 bound to bytes of one size or of any size."""

    __slots__ = ("_acceleration", "decoded", "encoded")

    def __init__(self, decoded: ByteSpec, acceleration: int) -> None:
        self.decoded, self._acceleration = decoded, acceleration
        self.encoded = ByteSpec(itemsize=0, max_size=encoded_bound(decoded))

    def encode(self, data: Any) -> bytes:
        """Return `data` compressed."""
        from numcodecs import lz4

        return bytes(lz4.compress(data, self._acceleration))

    def decode(self, data: Any) -> Any:
        """Return the bytes decompressed; the size that the header states is checked first."""
        from numcodecs import lz4

        if len(data) < 5:
            raise FailedPreconditionError(f"Invalid lz4-compressed data; at byte {len(data)}")
        size = int.from_bytes(bytes(data[:4]), "little")
        check_size(size, self.decoded.size)
        limit = output_limit(self.decoded, len(data))
        if size > limit:
            raise too_large(limit)
        try:
            return lz4.decompress(data)
        except (RuntimeError, ValueError, SystemError) as error:
            raise FailedPreconditionError(f"Invalid lz4-compressed data: {error}") from None


_ENCODINGS = ("utf-8", "utf8", "ascii", "utf-16", "utf-32", "latin-1")
_TEXT = re.compile(r'"(?:[^"\\]|\\.)*+"', re.DOTALL)
# what CPython takes at most for a list, a dict and a short text, and for a number with its place in a list
_LIST, _DICT, _SHORT, _PLACE = 88, 232, 64, 41
_ELEMENT = 128  # bytes that an element may take besides
_LONGEST = 1 << 20  # entries of a list, unless the chunk has more


class Notation(Protocol):
    """How lists are written."""

    @property
    def name(self) -> str:
        """The name of the codec."""
        ...

    def write(self, items: list[Any]) -> bytes:
        """Return `items` encoded."""
        ...

    def read(self, data: Any, limit: int, shape: tuple[int, ...]) -> Any:
        """Return the values in `data`, or raise `ResourceExhaustedError` if it takes more than `limit` bytes."""
        ...


@dataclass(frozen=True, slots=True)
class Json2:
    """JSON text."""

    encoding: str
    name: str = "json2"

    @classmethod
    def from_options(cls, options: Mapping[str, Json]) -> Self:
        """Return the notation of the options of numcodecs."""
        encoding = str(options.get("encoding", "utf-8"))
        if encoding.lower() not in _ENCODINGS:
            raise StoreError(f'"json2" codec does not support the encoding {encoding}')
        return cls(encoding)

    def write(self, items: list[Any]) -> bytes:
        """Return `items` as text."""
        return json.dumps(items, separators=(",", ":"), sort_keys=True).encode(self.encoding)

    def read(self, data: Any, limit: int, shape: tuple[int, ...]) -> Any:
        """Return the values of the text."""
        text = str(data, self.encoding)
        # texts within the text may hold any of the signs that are counted; leaving them out takes longer
        if parsed_size(text) > limit and parsed_size(_TEXT.sub('""', text)) > limit:
            raise too_large(limit)
        return json.loads(text)


def parsed_size(text: str) -> int:
    """Return how much memory the objects in a JSON text take at most, but for the characters of long texts."""
    lists, dicts = text.count("["), text.count("{")
    values = 1 + lists + dicts + text.count(",")
    return values * _PLACE + lists * _LIST + dicts * _DICT + text.count('"') // 2 * _SHORT


@dataclass(frozen=True, slots=True)
class MsgPack2:
    """MessagePack, by the package `msgpack`."""

    single: bool
    binary: bool
    raw: bool
    name: str = "msgpack2"

    @classmethod
    def from_options(cls, options: Mapping[str, Json]) -> Self:
        """Return the notation of the options of numcodecs; raises `UnimplementedError` without the package."""
        cls.require()
        return cls(
            bool(options.get("use_single_float", False)),
            bool(options.get("use_bin_type", True)),
            bool(options.get("raw", False)),
        )

    @staticmethod
    def require() -> None:
        """Raise `UnimplementedError` unless the package is there."""
        try:
            import msgpack  # noqa: F401  only whether it is there counts
        except ImportError:
            raise UnimplementedError("Codec \"msgpack2\" needs msgpack: pip install 'fsstore[codecs]'") from None

    def write(self, items: list[Any]) -> bytes:
        """Return `items` packed."""
        import msgpack

        packed: bytes = msgpack.packb(items, use_bin_type=self.binary, use_single_float=self.single)
        return packed

    def read(self, data: Any, limit: int, shape: tuple[int, ...]) -> Any:
        """Return the packed values; a list inside an element has at most a million items."""
        import msgpack

        left = limit

        def spend(size: int) -> None:
            nonlocal left
            left -= size
            if left < 0:
                raise too_large(limit)

        def counted_list(items: list[Any]) -> list[Any]:
            spend(_LIST + _PLACE * len(items))
            return items

        def counted_dict(items: dict[Any, Any]) -> dict[Any, Any]:
            spend(_DICT + (_SHORT + _PLACE) * len(items))
            return items

        return msgpack.unpackb(
            data,
            raw=self.raw,
            list_hook=counted_list,
            object_hook=counted_dict,
            ext_hook=_refuse_extension,
            max_ext_len=0,
            # a list is allocated when its length is read
            max_array_len=min(len(data), max((_LONGEST, *(size + 2 for size in shape)))),
        )


def _refuse_extension(code: int, _: bytes) -> Any:
    raise FailedPreconditionError(f"Invalid msgpack2 data: extension type {code} is refused")


class BoundObjectList:
    """The codec for chunks whose shape in memory is `shape`, the reverse of the chunk's own with `reverse`."""

    __slots__ = ("_notation", "_shape", "_step", "encoded")

    def __init__(self, shape: tuple[int, ...], notation: Notation, *, reverse: bool) -> None:
        self._step = -1 if reverse else 1
        self._shape = shape[:: self._step]
        self._notation = notation
        self.encoded = ByteSpec(itemsize=0)

    def encode(self, data: Any) -> bytes:
        """Return the elements as a list."""
        stored = np.asarray(data).reshape(self._shape[:: self._step])
        array = stored.transpose() if self._step == -1 else stored
        items = array.tolist() if array.ndim else [array.item()]
        try:
            return self._notation.write([*items, array.dtype.str, list(self._shape)])
        except (TypeError, ValueError, OverflowError) as error:
            raise StoreError(f'"{self._notation.name}" codec cannot encode: {error}') from None

    def decode(self, data: Any) -> Array:
        """Return the elements as a flat object array in the order in memory."""
        count = math.prod(self._shape)
        limit = 4 * (FREE_BYTES + len(data)) + _ELEMENT * count
        try:
            *rows, _, shape = self._notation.read(data, limit, self._shape)
        except StoreError:
            raise
        except (ValueError, TypeError, RecursionError, LookupError, MemoryError) as error:
            raise self._invalid(str(error) or type(error).__name__) from None
        if shape != list(self._shape):
            raise self._invalid(f"expected shape {list(self._shape)}")
        out = np.empty(count, object)
        flat: list[Any] = rows
        for size in self._shape[1:]:
            if not all(isinstance(row, list) and len(row) == size for row in flat):
                raise self._invalid("elements do not fill the shape")
            flat = [item for row in flat for item in row]
        if len(flat) != count:
            raise self._invalid("elements do not fill the shape")
        for position, item in enumerate(flat):
            out[position] = item
        array = out.reshape(self._shape)
        return (array.transpose() if self._step == -1 else array).reshape(-1)

    def _invalid(self, reason: str) -> FailedPreconditionError:
        return FailedPreconditionError(f"Invalid {self._notation.name} data: {reason}")
