"""The codecs that kerchunk's scanners name (GRIB, FITS tables, zip members, parts of records), and HDF5 filters.

GRIB is decoded by ecCodes, the rest by NumPy and zlib; kerchunk itself is not needed to read.  Values of GRIB that the
message marks as missing become NaN, and only those: kerchunk makes NaN of every value that is equal to 9999 as well.
EcCodes trusts the images in a message, so they are checked first.  The HDF5 filters are those that nothing else has:
szip, scale-offset, bitshuffle and LZ4 in blocks, shuffle of odd sizes.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np

from fsstore.codec.contract import BoundCodec, ByteSpec, Kind, check_size, encoded_bound
from fsstore.codec.deflate import BoundDeflate
from fsstore.codec.numcodecs.filters import BoundReader, FlatSpec, fixed_dtype, fixed_size, octets
from fsstore.errors import DataLossError, FailedPreconditionError, JsonError, StoreError, UnimplementedError
from fsstore.runtime import fork
from fsstore.values.json_value import Json, array_of, integer, quote, string

_START = b"\xff\x4f\xff\x51"  # of a code stream of JPEG 2000: the size comes at once
_SIZES = struct.Struct(">IIII").unpack_from  # the lower right and the upper left corner
_SIZES_AT = 8
_PNG = b"\x89PNG\r\n\x1a\n"
_PNG_SIZES = struct.Struct(">II").unpack_from
_PNG_SIZES_AT = 16
_JPEG_2000 = frozenset((40, 40000))  # templates of section 5, as ecCodes knows them
_PNG_TEMPLATES = frozenset((41, 40010))


def check_grib(message: bytes) -> None:
    """Raise `DataLossError` if a message has an image of more elements than it says it has values.

    So does one of edition 1 that lacks the vertical coordinates of its grid: ecCodes 2.50 crashes there.
    """
    if message[7:8] != b"\x02":
        _check_verticals(message)
        return
    count = template = 0
    for number, section in _sections(message):
        if number == 5 and len(section) >= 11:
            count, template = int.from_bytes(section[5:9], "big"), int.from_bytes(section[9:11], "big")
        elif number == 7:
            elements = _elements(template, section[5:])
            if elements is not None and elements > count:
                raise DataLossError(f"Invalid GRIB message: an image of {elements} elements for {count} values")


def _check_verticals(message: bytes) -> None:
    at = 8 + int.from_bytes(message[8:11], "big")
    if message[7:8] != b"\x01" or len(message) < at + 5 or not message[15] & 0x80:
        return
    size, count, place = int.from_bytes(message[at : at + 3], "big"), message[at + 3], message[at + 4]
    if count and (place == 255 or place - 1 + 4 * count > size):  # places count from 1, and 255 is none
        raise DataLossError(f"Invalid GRIB message: its grid of {size} bytes lacks {count} vertical coordinates")


def _sections(message: bytes) -> Iterator[tuple[int, bytes]]:
    at = 16
    while at + 5 <= len(message) and message[at : at + 4] != b"7777":
        size = int.from_bytes(message[at : at + 4], "big")
        if size < 5 or at + size > len(message):
            raise DataLossError(f"Invalid GRIB message: a section of {size} bytes")
        yield message[at + 4], message[at : at + size]
        at += size


def _elements(template: int, data: bytes) -> int | None:
    """Return the count of elements in the image of a section, or None without an image."""
    if template in _JPEG_2000 and data:
        at = data.find(_START)
        if at < 0 or len(data) < at + _SIZES_AT + 16:
            raise DataLossError("Invalid GRIB message: its JPEG 2000 image has no header")
        right, bottom, left, top = _SIZES(data, at + _SIZES_AT)
        return int(max(0, right - left) * max(0, bottom - top))
    if template in _PNG_TEMPLATES and data:
        if not data.startswith(_PNG) or len(data) < _PNG_SIZES_AT + 8:
            raise DataLossError("Invalid GRIB message: its PNG image has no header")
        width, height = _PNG_SIZES(data, _PNG_SIZES_AT)
        return int(width * height)
    return None


_ABSENT = -1.7e308  # marks missing values while they are decoded: nothing that is measured is so small
_ECCODES = fork.lock()  # for builds of ecCodes that cannot be called from several threads
_FAILURES = (ValueError, TypeError, KeyError, OverflowError)
_ZIP_TAILS = ((16, 8, "<I"), (12, 4, "<I"), (24, 8, "<Q"), (20, 4, "<Q"))  # length, and where the size stands
_ZIP_HEAD = struct.Struct("<4s5H3I2H")


def _dtype(name: str, value: Json) -> np.dtype[Any]:
    """Return the data type of an element or record whose fields have a fixed size."""
    if not isinstance(value, list):
        return fixed_dtype(name, _letters(value))
    if not all(isinstance(field, list) and len(field) > 1 for field in value):
        raise JsonError(f"Invalid data type of codec {quote(name)}: a field is a list of a name and a type")
    return fixed_dtype(name, [(string(field[0]), _letters(field[1]), *field[2:]) for field in value])


def _letters(value: Json) -> str:
    """Return the name of a type; FITS calls bytes `a`."""
    text = string(value)
    return f"S{text[1:]}" if text.startswith("a") else text


class Grib:
    """A GRIB message: its values, or the latitudes or longitudes of its points."""

    kind: ClassVar[Kind] = "array_to_bytes"

    def __init__(self, name: str, options: Mapping[str, Json]) -> None:
        self._name = name
        variable = string(options.get("var"))
        self._key = f"{variable}s" if variable in ("latitude", "longitude") else "values"
        self._row = integer(1, 2**31)(options.get("row", 1))
        kind = options.get("dtype")
        self._dtype = np.dtype("f4" if self._key == "values" else "f8") if kind is None else _dtype(name, kind)
        if self._dtype.kind != "f":
            raise JsonError(f"Invalid data type of codec {quote(name)}: {self._dtype}")

    def encoded(self, decoded: FlatSpec) -> FlatSpec:
        """Return a message: no packing takes more than twelve bytes a value."""
        return FlatSpec(None, 0, max_size=12 * decoded.count + (1 << 20))

    def bind(self, decoded: FlatSpec) -> BoundCodec:
        """Return the codec for chunks like `decoded`."""
        wanted = decoded.dtype
        if wanted is None or wanted.kind != "f":
            raise StoreError(f"Codec {quote(self._name)} requires chunks of floating point numbers")
        try:
            import eccodes
        except (ImportError, RuntimeError):
            raise UnimplementedError(f"Codec {quote(self._name)} needs ecCodes: pip install 'fsstore[grib]'") from None

        guard = nullcontext() if "ECCODES_THREADS" in eccodes.codes_get_features() else _ECCODES

        def read(data: Any) -> Any:
            with guard:
                values = _grib_values(eccodes, bytes(data), self._key, decoded.count)
            if self._row > 1:  # every other row was scanned the other way
                rows = values.reshape(-1, self._row)
                rows[1::2] = rows[1::2, ::-1].copy()
            return values.astype(self._dtype, copy=False).astype(wanted, copy=False)

        spec = ByteSpec(itemsize=0, max_size=self.encoded(decoded).max_size)
        return BoundReader(self._name, decoded, spec, read, (*_FAILURES, eccodes.CodesInternalError))


def _grib_values(eccodes: Any, message: bytes, key: str, count: int) -> Any:
    """Return the values of a message, `count` of them, NaN where they are missing."""
    edition = message[7] if len(message) > 7 else 0
    length = int.from_bytes(message[8:16] if edition == 2 else message[4:7], "big")
    if message[:4] != b"GRIB" or message[-4:] != b"7777" or (edition == 2 and length != len(message)):
        raise FailedPreconditionError("Invalid grib data: it is not one whole message")
    check_grib(message)
    handle = eccodes.codes_new_from_message(message)
    try:
        found = eccodes.codes_get_size(handle, key)
        if found != count:
            raise FailedPreconditionError(f"Invalid grib data: {found} values in a chunk of {count}")
        if key == "values":
            eccodes.codes_set(handle, "missingValue", _ABSENT)
        values = eccodes.codes_get_array(handle, key)
    finally:
        eccodes.codes_release(handle)
    if key == "values":
        values[values == _ABSENT] = np.nan
    return values


class _Records:
    """A codec whose encoding is one record an element, of a type that the options name."""

    kind: ClassVar[Kind] = "array_to_bytes"
    _record: np.dtype[Any]
    _name: str

    def encoded(self, decoded: FlatSpec) -> FlatSpec:
        """Return the records as bytes."""
        return octets(decoded.count * self._record.itemsize)

    def _reader(self, decoded: FlatSpec, read: Callable[[Any], Any]) -> BoundReader:
        record = self._record
        spec = self.encoded(decoded).as_bytes
        return BoundReader(self._name, decoded, spec, lambda data: read(np.frombuffer(data, record)), _FAILURES)


class FitsAscii(_Records):
    """The rows of an ASCII table of FITS: text of a fixed width, to be read as `outdtypes`."""

    def __init__(self, name: str, options: Mapping[str, Json]) -> None:
        self._name = name
        self._record = _dtype(name, options.get("indtypes"))
        self._out = _dtype(name, options.get("outdtypes"))

    def bind(self, decoded: FlatSpec) -> BoundCodec:
        """Return the codec for rows like `decoded`."""
        if fixed_size(self._name, decoded) != decoded.count * self._out.itemsize:
            raise StoreError(f"Codec {quote(self._name)} does not fit data type {decoded.dtype}")
        return self._reader(decoded, lambda rows: rows.astype(self._out))


class RecordMember(_Records):
    """One `member` of records of a `dtype`."""

    def __init__(self, name: str, options: Mapping[str, Json]) -> None:
        self._name, self._member = name, string(options.get("member"))
        self._record = _dtype(name, options.get("dtype"))
        if self._member not in (self._record.names or ()):
            raise JsonError(f"Codec {quote(name)}: {quote(self._member)} is not a member of {self._record}")

    def bind(self, decoded: FlatSpec) -> BoundCodec:
        """Return the codec for elements like `decoded`."""
        if fixed_size(self._name, decoded) != decoded.count * self._record[self._member].itemsize:
            raise StoreError(f"Codec {quote(self._name)} does not fit data type {decoded.dtype}")
        return self._reader(decoded, lambda rows: np.ascontiguousarray(rows[self._member]).reshape(-1))


class HdfStrings(_Records):
    """The strings of an HDF5 heap: elements are identifiers, and `id_map` says what they stand for.

    Where `id_map` is a text or null, every element is that text (null: the empty one).
    """

    def __init__(self, name: str, options: Mapping[str, Json]) -> None:
        self._name = name
        self._record = _dtype(name, options.get("dtype"))
        if self._record.kind != "S":
            raise UnimplementedError(
                f"Codec {quote(name)} of records is not supported; scan the file with vlen_encode='embed'"
            )
        texts = options.get("id_map")
        if isinstance(texts, Mapping):
            self._texts: Mapping[str, str] | str = {key: string(text) for key, text in texts.items()}
        else:
            self._texts = "" if texts is None else string(texts)

    def bind(self, decoded: FlatSpec) -> BoundCodec:
        """Return the codec for strings."""
        if decoded.dtype is None or not decoded.dtype.hasobject:
            raise StoreError(f"Codec {quote(self._name)} requires an array of strings")
        return self._reader(decoded, self._strings)

    def _strings(self, rows: Any) -> Any:
        out = np.empty(rows.shape, object)
        texts = self._texts
        out[:] = texts if isinstance(texts, str) else [texts[row.decode()] for row in rows.tolist()]
        return out


class ZipMember:
    """A deflated member of a zip file, with its local header before it."""

    kind: ClassVar[Kind] = "bytes_to_bytes"

    def __init__(self, name: str, options: Mapping[str, Json]) -> None:
        self._name = name

    def encoded(self, decoded: FlatSpec) -> FlatSpec:
        """Return bytes of any size; names in headers take up to 64 KiB each."""
        size = decoded.size if decoded.size is not None else decoded.max_size
        return FlatSpec(None, 0, max_size=None if size is None else 2 * size + (1 << 18))

    def bind(self, decoded: FlatSpec) -> BoundCodec:
        """Return the codec for bytes like `decoded`."""
        inner = BoundDeflate(decoded.as_bytes, "raw", 6)
        spec = self.encoded(decoded).as_bytes
        return BoundReader(self._name, decoded, spec, lambda data: inner.decode(_zip_member(data)), _FAILURES)


def _zip_member(data: Any) -> memoryview:
    if len(data) < _ZIP_HEAD.size:
        raise FailedPreconditionError("Invalid deflate data: the header of the zip member is cut off")
    signature, _, _, method, _, _, _, stored, _, name, extra = _ZIP_HEAD.unpack_from(data)
    if signature != b"PK\3\4" or method != 8:
        raise FailedPreconditionError("Invalid deflate data: it is not a deflated member of a zip file")
    start = _ZIP_HEAD.size + name + extra
    if stored:
        return memoryview(data)[start : start + stored]
    packed = memoryview(data)[start:]
    for length, at, form in _ZIP_TAILS:  # sizes that were not known before may follow
        size = len(packed) - length
        if size >= 0 and struct.unpack_from(form, packed, size + at)[0] == size:
            return packed[:size]
    return packed


# The filters of HDF5 that nothing else has.

_SKIPPED = b"\xff" * 8
_FILTER_FAILURES = (RuntimeError, ValueError, TypeError, IndexError, OverflowError, MemoryError, struct.error)
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

        return BoundReader(self._name, decoded, self.encoded(decoded).as_bytes, read, _FILTER_FAILURES)


def _imagecodecs(name: str) -> Any:
    try:
        import imagecodecs
    except ImportError:
        raise UnimplementedError(f"Codec {quote(name)} needs imagecodecs: pip install 'fsstore[hdf5]'") from None
    return imagecodecs


def _szip(library: Any, data: memoryview, values: Sequence[int], size: int) -> Any:
    """Return the bytes that szip packed: the size, then the packed bytes."""
    check_size(int.from_bytes(data[:4], "little"), size)
    return library.szip_decode(data, *values[:4], header=True, out=bytearray(size))


def _bitshuffle(library: Any, data: memoryview, values: Sequence[int], size: int) -> Any:
    """Undo bitshuffle, which transposes bits in blocks that may be compressed."""
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
    from numcodecs import lz4

    plain: bytes = lz4.decompress(struct.pack("<i", size) + bytes(packed))
    check_size(len(plain), size)
    return plain


def _lz4(data: memoryview, _: Sequence[int], size: int) -> Any:
    """Return the bytes that LZ4 packed block by block; a block as long as its content is stored raw."""
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
        numbers[packed == np.uint64(2**bits - 1)] = np.frombuffer(words.ljust(width, b"\0"), "<" + stored.str[1:])[0]
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
