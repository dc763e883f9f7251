"""Flatbuffers read in place: tables, vectors and strings, every offset checked before it is followed.

A `FlatTable` knows its vtable; its fields are asked for by number, and absent ones answer None or the default.
Positions are from the start of the payload.  Nothing is copied but scalars, strings and what `bytes` is asked for.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from fsstore.errors import DataLossError

__all__ = ["FlatTable", "Vector", "damaged", "root_table", "table_at"]

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
