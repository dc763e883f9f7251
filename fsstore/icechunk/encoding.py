"""The small parts of stored documents of Icechunk: flatbuffers, frames, names of objects, and the configuration.

A `FlatTable` knows its vtable; its fields are asked for by number, and absent ones answer None or the default.
Positions are from the start of the payload.  Nothing is copied but scalars, strings and what `bytes` is asked for.

A document begins with 39 bytes: a magic of 12, the name of the writer (24), the version of the format, the kind of the
document, and how it is compressed.  Nothing carries a checksum, so the frame is walked block by block before it is
decompressed: that bounds what comes out, and finds what is cut off or follows it.

The configuration is read for the containers that `vcc://NAME/...` names.  Anything else in it (endpoints, credentials,
anonymous access) is never followed: whoever wrote the repository would decide where requests of the reader go.
Version 1 writes YAML, of which the few lines looked for have a fixed form; version 2 writes a FlexBuffer.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from fsstore.errors import DataLossError, ResourceExhaustedError, StoreError, UnimplementedError
from fsstore.values.json_value import quote

# Flatbuffers read in place: tables, vectors and strings, every offset checked before it is followed.

_U16 = struct.Struct("<H").unpack_from
_U32 = struct.Struct("<I").unpack_from
_I32 = struct.Struct("<i").unpack_from
_U64 = struct.Struct("<Q").unpack_from
_IDENTIFIER = b"Ichk"


def damaged(what: str, at: int) -> DataLossError:
    """Return the error for damage at an offset of the decompressed document."""
    return DataLossError(f"{what}; at offset {at} of the decompressed document")


@dataclass(frozen=True, slots=True)
class Vector:
    """`count` elements of `width` bytes from `start` on."""

    data: bytes
    start: int
    count: int
    width: int

    def tables(self) -> Iterator[FlatTable]:
        """Yield the tables of a vector of tables."""
        for number in range(self.count):
            yield self.table(number)

    def table(self, number: int) -> FlatTable:
        """Return one table of a vector of tables."""
        at = self.start + 4 * number
        return table_at(self.data, at + _U32(self.data, at)[0])

    def view(self) -> memoryview:
        """Return the bytes of the elements."""
        return memoryview(self.data)[self.start : self.start + self.count * self.width]


@dataclass(frozen=True, slots=True)
class FlatTable:
    """A table: where it is, where its vtable is, and the sizes of both."""

    data: bytes
    at: int
    vtable: int
    vtable_size: int
    size: int

    def slot(self, field: int, width: int) -> int:
        """Return where a field of `width` bytes lies, 0 if it is absent."""
        entry = 4 + 2 * field
        if entry + 2 > self.vtable_size:
            return 0
        offset: int = _U16(self.data, self.vtable + entry)[0]
        if not offset:
            return 0
        if offset < 4 or offset + width > self.size:
            raise damaged(f"Field {field} lies outside its table", self.at)
        return self.at + offset

    def u8(self, field: int, default: int = 0) -> int:
        """Return a scalar of one byte."""
        at = self.slot(field, 1)
        return self.data[at] if at else default

    def u32(self, field: int) -> int:
        """Return a scalar of four bytes."""
        at = self.slot(field, 4)
        return int(_U32(self.data, at)[0]) if at else 0

    def u64(self, field: int) -> int:
        """Return a scalar of eight bytes."""
        at = self.slot(field, 8)
        return int(_U64(self.data, at)[0]) if at else 0

    def raw(self, field: int, width: int) -> bytes | None:
        """Return a struct of `width` bytes."""
        at = self.slot(field, width)
        return self.data[at : at + width] if at else None

    def target(self, field: int) -> int:
        """Return where the offset of a field leads, 0 if it is absent."""
        at = self.slot(field, 4)
        return at + int(_U32(self.data, at)[0]) if at else 0

    def vector(self, field: int, width: int) -> Vector | None:
        """Return a vector of elements of `width` bytes."""
        at = self.target(field)
        return vector_at(self.data, at, width) if at else None

    def need(self, field: int, width: int) -> Vector:
        """Return a vector that must be there."""
        found = self.vector(field, width)
        if found is None:
            raise damaged(f"Field {field} is missing", self.at)
        return found

    def table(self, field: int) -> FlatTable | None:
        """Return the table a field leads to."""
        at = self.target(field)
        return table_at(self.data, at) if at else None

    def text(self, field: int) -> str | None:
        """Return a string."""
        found = self.vector(field, 1)
        if found is None:
            return None
        try:
            return str(found.view(), "utf-8")
        except UnicodeDecodeError as error:
            raise damaged("A string is not UTF-8", found.start) from error


def table_at(data: bytes, at: int) -> FlatTable:
    """Return the table at an offset."""
    if at % 4 or not 4 <= at <= len(data) - 4:
        raise damaged(f"A table is said to be at {at}, in {len(data)} bytes", min(at, len(data)))
    vtable = at - _I32(data, at)[0]
    if vtable % 2 or not 4 <= vtable <= len(data) - 4:
        raise damaged(f"A vtable is said to be at {vtable}", at)
    vtable_size, size = _U16(data, vtable)[0], _U16(data, vtable + 2)[0]
    if vtable_size < 4 or vtable_size % 2 or vtable + vtable_size > len(data):
        raise damaged(f"A vtable has {vtable_size} bytes", vtable)
    if size < 4 or at + size > len(data):
        raise damaged(f"A table has {size} bytes", at)
    return FlatTable(data, at, vtable, vtable_size, size)


def vector_at(data: bytes, at: int, width: int) -> Vector:
    """Return the vector at an offset."""
    if at % 4 or not 4 <= at <= len(data) - 4:
        raise damaged(f"A vector is said to be at {at}, in {len(data)} bytes", min(at, len(data)))
    count = _U32(data, at)[0]
    if at + 4 + count * width > len(data):
        raise damaged(f"A vector is said to have {count} elements of {width} bytes", at)
    return Vector(data, at + 4, count, width)


def root_table(data: bytes) -> FlatTable:
    """Return the root of a document."""
    if len(data) < 12 or data[4:8] != _IDENTIFIER:
        raise damaged("The document is no flatbuffer of Icechunk", 0)
    return table_at(data, _U32(data, 0)[0])


# The header around every document of a repository, and the single zstd frame that follows it.

MAGIC = "ICE🧊CHUNK".encode()
Kind = Literal["snapshot", "manifest", "repository"]

_KINDS: dict[Kind, int] = {"snapshot": 1, "manifest": 2, "repository": 6}
_HEADER = 39
_BLOCK = 128 * 1024
_LARGEST = 2**30
"""Bytes a document may have when it is decompressed; the format ends at twice that."""


class Enveloped(NamedTuple):
    """The version of the format a document is written in, and its flatbuffer."""

    version: int
    payload: bytes


def open_envelope(data: bytes, kind: Kind, largest: int = _LARGEST) -> Enveloped:
    """Return the document in an object of a repository; raises `DataLossError` if it is none of this kind."""
    if len(data) < _HEADER or data[:12] != MAGIC:
        raise DataLossError(f"The {len(data)} bytes do not begin with the header of Icechunk; at offset 0")
    version, number, compression = data[36:_HEADER]
    if version not in (1, 2):
        raise UnimplementedError(f"Version {version} of the Icechunk format is not supported; at offset 36")
    if number != _KINDS[kind]:
        raise DataLossError(f"Expected a {kind}, but found a document of type {number}; at offset 37")
    if compression != 1:
        raise DataLossError(f"Unknown compression {compression}; at offset 38")
    return Enveloped(version, _decompress(data, largest))


def _decompress(data: bytes, largest: int) -> bytes:
    import zstandard  # on first use: it takes 3 ms

    frame = data[_HEADER:]
    try:
        header = zstandard.get_frame_parameters(frame)
        begin = zstandard.frame_header_size(frame)
    except zstandard.ZstdError as error:
        raise DataLossError(f"No zstd frame follows the header; at offset {_HEADER}") from error
    bound = _bound(frame, begin, has_checksum=bool(header.has_checksum))
    known = header.content_size not in (zstandard.CONTENTSIZE_UNKNOWN, zstandard.CONTENTSIZE_ERROR)
    size = header.content_size if known else bound
    if size > largest or header.window_size > largest:
        raise ResourceExhaustedError(f"The document has more than {largest} bytes when it is decompressed")
    if size > bound:
        raise DataLossError(f"The frame claims {size} bytes, but cannot hold them; at offset {_HEADER}")
    try:
        return zstandard.ZstdDecompressor(max_window_size=largest).decompress(frame, max_output_size=max(size, 1))
    except (zstandard.ZstdError, MemoryError) as error:
        raise DataLossError(f"The zstd frame is damaged: {error}; at offset {_HEADER}") from error


def _bound(frame: bytes, at: int, *, has_checksum: bool) -> int:
    """Return how many bytes come out of a frame at most, once its blocks are seen to fill it exactly."""
    total, last = 0, False
    while not last:
        header = int.from_bytes(frame[at : at + 3], "little")
        last, kind, size = bool(header & 1), header >> 1 & 3, header >> 3
        if at + 3 > len(frame) or kind == 3:
            raise DataLossError(f"The zstd frame is damaged or cut off; at offset {_HEADER + at}")
        total += size if kind != 2 else _BLOCK
        at += 3 + (1 if kind == 1 else size)
    at += 4 if has_checksum else 0
    if at != len(frame):
        what = "is cut off" if at > len(frame) else "is followed by other bytes"
        raise DataLossError(f"The zstd frame {what}; at offset {_HEADER + min(at, len(frame))}")
    return total


# Names of objects: their bytes in Crockford's base 32, upper case, unpadded, with zero bits at the end.

OBJECT_BYTES = 12
"""The size of the identifiers of snapshots, manifests and chunks."""

_DIGITS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_VALUES = {digit: value for value, digit in enumerate(_DIGITS)} | {"O": 0, "I": 1, "L": 1}


def encode_identifier(raw: bytes) -> str:
    """Return the name of an identifier.

    >>> encode_identifier(bytes.fromhex("0b1cc8d6787580f0e33a6534"))
    '1CECHNKREP0F1RSTCMT0'
    """
    count = -(-len(raw) * 8 // 5)
    number = int.from_bytes(raw, "big") << (count * 5 - len(raw) * 8)
    return "".join(_DIGITS[number >> (5 * place) & 31] for place in reversed(range(count)))


def decode_identifier(text: str) -> bytes:
    """Return the bytes of the identifier of an object; lower case and the letters O, I and L are read as digits.

    >>> encode_identifier(decode_identifier("1cechnkrep0f1rstcmt1"))
    '1CECHNKREP0F1RSTCMT0'
    """
    digits = [_VALUES.get(char, -1) for char in text.upper()] if text.isascii() else []
    if len(digits) != 20 or min(digits) < 0:
        raise StoreError(f"Expected the 20 characters of an Icechunk identifier, but received: {quote(text)}")
    number = 0
    for digit in digits:
        number = number << 5 | digit
    return (number >> 4).to_bytes(OBJECT_BYTES, "big")


_MEMBER = re.compile(r"    (name|url_prefix): *(.*?)\s*\Z")
_DEEPEST = 64
_MOST_VALUES = 100_000
_FORMATS = {1: "B", 2: "H", 4: "I", 8: "Q"}
_NULL, _INT, _UINT, _FLOAT, _KEY, _STRING, _MAP, _VECTOR, _BOOL = 0, 1, 2, 3, 4, 5, 9, 10, 26


def containers_of_yaml(text: str) -> dict[str, str]:
    """Return URL prefixes by name.

    >>> containers_of_yaml("virtual_chunk_containers:\\n  s3://b/:\\n    name: b\\n    url_prefix: s3://b/\\n")
    {'b': 's3://b/'}
    """
    out: dict[str, str] = {}
    inside, found = False, dict[str, str]()
    for line in [*text.splitlines(), "end:"]:
        if inside and (match := _MEMBER.match(line)):
            found[match[1]] = match[2].strip("'\"")
        elif line[:3].strip():  # the next container, or the next member of the configuration
            _put(out, found)
            found = {}
            if line[0] != " ":
                inside = line.startswith("virtual_chunk_containers:")
    return out


def containers_of_flexbuffer(data: bytes) -> dict[str, str]:
    """Return URL prefixes by name."""
    config = _Flex(data).root() if data else None
    containers = config.get("virtual_chunk_containers") if isinstance(config, Mapping) else None
    out: dict[str, str] = {}
    if isinstance(containers, Mapping):
        for each in containers.values():
            if isinstance(each, Mapping):
                _put(out, each)
    return out


def _put(out: dict[str, str], container: Mapping[str, Any]) -> None:
    name, prefix = container.get("name"), container.get("url_prefix")
    if isinstance(name, str) and isinstance(prefix, str) and name not in ("", "null", "~"):
        out[name] = prefix


class _Flex:
    """A FlexBuffer: the types that configurations are written with; others are None."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._values = 0

    def root(self) -> Any:
        """Return the value."""
        data = self._data
        if len(data) < 3 or data[-1] not in _FORMATS:
            raise self._damaged(len(data))
        return self._value(len(data) - 2 - data[-1], data[-1], data[-2], 0)

    def _value(self, at: int, width: int, packed: int, depth: int) -> Any:
        self._values += 1
        if depth > _DEEPEST or self._values > _MOST_VALUES:
            raise self._damaged(at)
        kind, inner = packed >> 2, 1 << (packed & 3)
        if kind in (_NULL, _INT, _FLOAT):
            return None
        number = self._uint(at, width)
        if kind in (_UINT, _BOOL):
            return number
        start = at - number
        if kind == _KEY:
            return self._text(start, self._data.find(b"\0", max(start, 0)))
        if kind == _STRING:
            return self._text(start, start + self._uint(start - inner, inner))
        if kind == _VECTOR:
            return self._vector(start, inner, depth)
        if kind == _MAP:
            keys_at = start - 3 * inner
            keys = keys_at - self._uint(keys_at, inner)
            key_width = self._uint(start - 2 * inner, inner)
            values = self._vector(start, inner, depth)
            names = [
                self._value(keys + key_width * number, key_width, _KEY << 2, depth + 1) for number in range(len(values))
            ]
            return dict(zip(names, values, strict=True))
        return None

    def _vector(self, start: int, width: int, depth: int) -> list[Any]:
        count = self._uint(start - width, width)
        types = start + count * width
        if types + count > len(self._data):
            raise self._damaged(start)
        return [
            self._value(start + width * number, width, self._data[types + number], depth + 1) for number in range(count)
        ]

    def _uint(self, at: int, width: int) -> int:
        if width not in _FORMATS or not 0 <= at <= len(self._data) - width:
            raise self._damaged(at)
        return int(struct.unpack_from("<" + _FORMATS[width], self._data, at)[0])

    def _text(self, start: int, stop: int) -> str:
        if not 0 <= start <= stop <= len(self._data):
            raise self._damaged(start)
        return self._data[start:stop].decode("utf-8", "replace")

    @staticmethod
    def _damaged(at: int) -> DataLossError:
        return DataLossError(f"The configuration in the repository is damaged; at offset {max(at, 0)} of it")
