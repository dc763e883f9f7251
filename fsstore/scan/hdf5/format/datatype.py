"""Data types as they are described in the file.

Files have few types, and files of one kind the same, so those with short descriptions are kept: the same description
gives the same object, and types are equal only to themselves.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

from fsstore.scan.hdf5.format.reader import NonsenseError, Reader, UnknownError

__all__ = ["Datatype", "RecordPart", "datatype_of"]

FIXED, FLOAT, TIME, STRING, BITFIELD, OPAQUE, COMPOUND, REFERENCE, ENUM, VLEN, ARRAY = range(11)
_DEEPEST = 32
_MOST_MEMBERS = 65_536
_SHORT = 256  # bytes of a description that is kept


@dataclass(frozen=True, slots=True, eq=False)
class RecordPart:
    """A member of a record, at an offset."""

    name: bytes
    offset: int
    type: Datatype


@dataclass(frozen=True, slots=True, eq=False)
class Datatype:
    """A type: its class, the bits that say more, its size in bytes, and what depends on the class.

    `fields` are the offset and precision in bits of numbers, and of floats the places and sizes of exponent and
    mantissa, and the bias.
    """

    kind: int
    flags: int
    size: int
    fields: tuple[int, ...] = ()
    base: Datatype | None = None
    shape: tuple[int, ...] = ()
    members: tuple[RecordPart, ...] = ()
    values: dict[bytes, bytes] = field(default_factory=dict)
    tag: bytes = b""

    @property
    def is_text(self) -> bool:
        """Whether it is a string of any length."""
        return self.kind == VLEN and self.flags & 0xF == 1

    @property
    def is_reference(self) -> bool:
        """Whether it is a reference to an object, as NetCDF names dimensions with."""
        return self.kind == REFERENCE and self.flags & 0xF == 0


def datatype_of(reader: Reader, body: bytes, address: int) -> Datatype:
    """Return the type that a message says, of which it takes the beginning of `body`."""
    try:
        if len(body) <= _SHORT:
            return _known(body)
        found: Datatype = reader.once(body, lambda: _Description(body).parse(0)[0])
    except NonsenseError as error:
        raise reader.damaged(address, str(error)) from None
    return found


@lru_cache(maxsize=256)
def _known(body: bytes) -> Datatype:
    return _Description(body).parse(0)[0]


class _Description:
    """Takes apart one description."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    def _number(self, at: int, width: int) -> int:
        if at + width > len(self._body):
            raise NonsenseError("a data type is cut off")
        return int.from_bytes(self._body[at : at + width], "little")

    def parse(self, at: int, depth: int = 0) -> tuple[Datatype, int]:
        """Return the type that begins at a place, and where it ends."""
        if depth > _DEEPEST:
            raise NonsenseError("data types lie too deep in each other")
        head, flags, size = self._number(at, 1), self._number(at + 1, 3), self._number(at + 4, 4)
        kind, version = head & 0xF, head >> 4
        if not 1 <= version <= 5:
            raise UnknownError
        at += 8
        if kind in (FIXED, BITFIELD):
            return Datatype(kind, flags, size, (self._number(at, 2), self._number(at + 2, 2))), at + 4
        if kind == FLOAT:
            places = tuple(self._number(at + 4 + each, 1) for each in range(4))
            fields = (self._number(at, 2), self._number(at + 2, 2), *places, self._number(at + 8, 4))
            return Datatype(kind, flags, size, fields), at + 12
        if kind == TIME:
            return Datatype(kind, flags, size), at + 2
        if kind in (STRING, REFERENCE):
            return Datatype(kind, flags, size), at
        if kind == OPAQUE:
            end = at + (flags & 0xFF)
            return Datatype(kind, flags, size, tag=self._body[at:end].split(b"\0")[0]), end
        if kind == VLEN:
            base, end = self.parse(at, depth + 1)
            return Datatype(kind, flags, size, base=base), end
        if kind == ARRAY:
            return self._array(at, version, flags, size, depth)
        if kind == COMPOUND:
            return self._record(at, version, flags, size, depth)
        if kind == ENUM:
            return self._enumeration(at, version, flags, size, depth)
        raise UnknownError

    def _array(self, at: int, version: int, flags: int, size: int, depth: int) -> tuple[Datatype, int]:
        rank = self._number(at, 1)
        at += 4 if version < 3 else 1
        shape = tuple(self._number(at + 4 * axis, 4) for axis in range(rank))
        at += 4 * rank * (2 if version < 3 else 1)
        base, end = self.parse(at, depth + 1)
        return Datatype(ARRAY, flags, size, base=base, shape=shape), end

    def _name(self, at: int, version: int) -> tuple[bytes, int]:
        end = self._body.find(b"\0", at)
        if end < 0:
            raise NonsenseError("a name in a data type does not end")
        size = end + 1 - at
        return self._body[at:end], at + (size if version >= 3 else -(-size // 8) * 8)

    def _record(self, at: int, version: int, flags: int, size: int, depth: int) -> tuple[Datatype, int]:
        count = flags & 0xFFFF
        width = 4 if version < 3 else (max(size, 1).bit_length() - 1) // 8 + 1
        members = []
        for _ in range(min(count, _MOST_MEMBERS)):
            name, at = self._name(at, version)
            offset = self._number(at, width)
            at += width
            if version == 1:
                if self._number(at, 1):
                    raise UnknownError  # an array of old
                at += 28
            kind, at = self.parse(at, depth + 1)
            members.append(RecordPart(name, offset, kind))
            if offset + kind.size > size:
                raise NonsenseError("a member lies outside of its record")
        return Datatype(COMPOUND, flags, size, members=tuple(members)), at

    def _enumeration(self, at: int, version: int, flags: int, size: int, depth: int) -> tuple[Datatype, int]:
        base, at = self.parse(at, depth + 1)
        names = []
        for _ in range(flags & 0xFFFF):
            name, at = self._name(at, version)
            names.append(name)
        end = at + base.size * len(names)
        if end > len(self._body):
            raise NonsenseError("an enumeration is cut off")
        steps = range(at, end, base.size) if base.size else ()
        values = {name: self._body[step : step + base.size] for name, step in zip(names, steps, strict=False)}
        return Datatype(ENUM, flags, size, base=base, values=values), end
