"""The codecs that kerchunk's scanners name: messages of GRIB, tables of FITS, members of zip files, parts of records.

GRIB is decoded by ecCodes, the rest by NumPy and zlib; kerchunk itself is not needed to read.  Values of GRIB that the
message marks as missing become NaN, and only those: kerchunk makes NaN of every value that is equal to 9999 as well.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any, ClassVar

import numpy as np

from fsstore.codec.contract import BoundCodec, ByteSpec, Kind
from fsstore.codec.grib_header import check_grib
from fsstore.codec.numcodecs.flat import FlatSpec, fixed_dtype, octets
from fsstore.codec.numcodecs.foreign_v2 import BoundReader, fixed_size
from fsstore.codec.zarr3.deflate import BoundDeflate
from fsstore.errors import FailedPreconditionError, JsonError, StoreError, UnimplementedError
from fsstore.runtime import fork
from fsstore.values.json_value import Json, integer, quote, string

__all__ = ["FitsAscii", "Grib", "HdfStrings", "RecordMember", "ZipMember"]

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
        self._dtype = (
            np.dtype("f4" if self._key == "values" else "f8") if kind is None else _dtype(name, kind)
        )
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
            raise UnimplementedError(
                f"Codec {quote(self._name)} needs ecCodes: pip install 'fsstore[grib]'"
            ) from None

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
        return BoundReader(
            self._name, decoded, spec, lambda data: read(np.frombuffer(data, record)), _FAILURES
        )


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
    """Return what is deflated in a member of a zip file."""
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
