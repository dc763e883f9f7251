"""The structures of HDF5 that all others use: the reader of checked bytes, object headers, dataspaces, datatypes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any, NamedTuple, Protocol

from fsstore.errors import DataLossError, UnimplementedError
from fsstore.scan.contract import HEADER_BYTES

# How structures are read: by addresses relative to the base of the file, each checked against its size.
#
# A read of what is not in memory raises; `ahead` says what will be needed, so that all of it is fetched
# together.


class UnknownError(UnimplementedError):
    """It is of a kind that is not parsed here."""

    def __init__(self, message: str = "its header has parts of a kind that is not known") -> None:
        super().__init__(message)


class NonsenseError(Exception):
    """A description makes no sense, wherever it stands."""


class DamagedError(DataLossError):
    """The bytes make no sense."""


class FileBytes(Protocol):
    """The file, as far as it is in memory."""

    @property
    def size(self) -> int:
        """The size of the file."""
        ...

    @property
    def waits(self) -> bool:
        """Whether what is not in memory comes from far away."""
        ...

    def octets(self, start: int, stop: int) -> bytes:
        """Return the bytes `[start, stop)` of the file; raises if they are not in memory."""
        ...

    def ahead(self, start: int, stop: int) -> None:
        """Say that bytes will be read."""
        ...

    def describe(self, offset: int) -> str:
        """Return how messages call a place in the file."""
        ...


class Reader:
    """A file at `place` whose addresses count from `base` and have `width` bytes; lengths have `lengths`.

    `known` keeps what was parsed, by what it was parsed from: many objects of a file have the same types.  `budget` is
    how many bytes of attributes there may be: more than the file has only if some of them are shown again and again.
    """

    def __init__(self, place: FileBytes, base: int, width: int, lengths: int) -> None:
        self.place, self.base, self.width, self.lengths = place, base, width, lengths
        self.size, self.waits = place.size, place.waits
        self.undefined = 256**width - 1
        self.known: dict[Any, Any] = {}
        self.budget = 4 * self.size + 2**24

    def read(self, address: int, length: int) -> bytes:
        """Return bytes, all of which must lie in the file."""
        start = self.base + address
        stop = start + length
        if address < 0 or length < 0 or stop > self.size:
            raise DamagedError(
                f"{self.place.describe(start)}: {length} bytes are expected, but the file has {self.size} bytes"
            )
        return self.place.octets(start, stop)

    def upto(self, address: int, length: int) -> bytes:
        """Return bytes, as many of them as the file has."""
        return self.read(address, max(1, min(length, self.size - self.base - address)))

    def ahead(self, address: int, length: int) -> None:
        """Say that bytes will be read, wherever they are: of a file that is far away."""
        if not self.waits:
            return
        start = self.base + address
        stop = min(start + length, self.size)
        if 0 <= start < stop:
            self.place.ahead(start, stop)

    def address(self, data: bytes, at: int) -> int:
        """Return the address in `data` at `at`."""
        return int.from_bytes(data[at : at + self.width], "little")

    def length(self, data: bytes, at: int) -> int:
        """Return the length in `data` at `at`."""
        return int.from_bytes(data[at : at + self.lengths], "little")

    def damaged(self, address: int, why: str) -> DamagedError:
        """Return the error for damage at an address."""
        return DamagedError(f"{self.place.describe(self.base + address)}: {why}")

    def verify(self, address: int, data: bytes, what: str) -> None:
        """Raise unless `data`, which was read at an address, ends with its checksum."""
        if checksum(data[:-4]) != int.from_bytes(data[-4:], "little"):
            raise self.damaged(address, f"the checksum of {what} is not that of its bytes")

    def spend(self, address: int, length: int) -> None:
        """Take bytes of attributes from the budget; raises if there are more than a file can have."""
        self.budget -= length
        if self.budget < 0:
            raise self.damaged(address, "attributes refer to the same bytes again and again")

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        """Return what `make` returned for an equal key."""
        found = self.known.get(key)
        if found is None:
            found = self.known[key] = make()
        return found


def checksum(data: bytes) -> int:
    """Return the checksum that HDF5 puts behind structures: lookup3 of Jenkins."""
    return _lookup3()(data, 0)


@cache
def _lookup3() -> Callable[[bytes, int], int]:
    from numcodecs.checksum32 import jenkins_lookup3

    return jenkins_lookup3  # type: ignore[no-any-return]  # numcodecs is not typed


# The messages of an object.
#
# A header is a list of messages, which may go on in other places. Version 1 aligns messages to eight bytes,
# version 2 (`OHDR`) packs them, and has checksums. A message may stand elsewhere: its body says where then.

_NOTHING, _CONTINUES, _LAST = 0x00, 0x10, 0x18
_MOST_PIECES = 10_000
_MOST_BYTES = 64 * 2**20
_SHARED, _ESSENTIAL = 0x02, 0x80


class Message(NamedTuple):
    """A message: its type, its body, the address of that, and whether the body stands elsewhere."""

    kind: int
    body: bytes
    address: int
    shared: bool


def messages_of(reader: Reader, address: int) -> list[Message]:
    """Return the messages of the header at an address."""
    head = reader.upto(address, HEADER_BYTES)
    if head[:4] == b"OHDR":
        if head[4] != 2:
            raise UnknownError
        start, size, step = _begin_2(head)
        tail = 4
    elif head[:1] == b"\1":
        start, size, step, tail = 16, int.from_bytes(head[8:12], "little"), 0, 0
    else:
        raise reader.damaged(address, "there is no object header")
    if size > _MOST_BYTES:
        raise reader.damaged(address, f"an object header of {size} bytes")
    whole = start + size + tail
    data = head[:whole] if whole <= len(head) else reader.read(address, whole)
    if step:
        reader.verify(address, data, "an object header")
    first = (address + start, data[start : start + size])
    return _all(reader, first, step)


def _all(reader: Reader, first: tuple[int, bytes], step: int) -> list[Message]:
    """Return the messages in the first piece of a header, and in those in which it goes on."""
    found: list[Message] = []
    pieces, seen, total = [first], {first[0]}, 0
    limit = min(_MOST_BYTES, 2 * reader.size)
    while pieces:
        for message in _cut(*pieces.pop(), step):
            if message.kind != _CONTINUES:
                found.append(message)
                continue
            at, length = _continued(reader, message, step)
            total += length
            if at in seen or total > limit or len(seen) > _MOST_PIECES:
                raise reader.damaged(message.address, "an object header without end")
            seen.add(at)
            pieces.append(_piece(reader, at, length, step))
    return found


def _begin_2(head: bytes) -> tuple[int, int, int]:
    """Return where the messages of a header of version 2 begin, their length, and how long the head of each is."""
    flags = head[5]
    at = 6 + (16 if flags & 0x20 else 0) + (4 if flags & 0x10 else 0)
    width = 1 << (flags & 3)
    return at + width, int.from_bytes(head[at : at + width], "little"), 6 if flags & 4 else 4


def _continued(reader: Reader, message: Message, step: int) -> tuple[int, int]:
    if len(message.body) < reader.width + reader.lengths:
        raise reader.damaged(message.address, "an object header goes on nowhere")
    at, length = reader.address(message.body, 0), reader.length(message.body, reader.width)
    if length > _MOST_BYTES or (step and length < 8):
        raise reader.damaged(message.address, f"an object header goes on for {length} bytes")
    return at, length


def _piece(reader: Reader, address: int, length: int, step: int) -> tuple[int, bytes]:
    data = reader.read(address, length)
    if not step:
        return address, data
    if data[:4] != b"OCHK":
        raise reader.damaged(address, "an object header does not go on here")
    reader.verify(address, data, "a part of an object header")
    return address + 4, data[4:-4]


def _cut(address: int, data: bytes, step: int) -> list[Message]:
    """Return the messages in `data` that say something; `step` is the length of what stands before each, 0 for version
    1.
    """
    found: list[Message] = []
    at, end = 0, len(data)
    before = step or 8
    while at + before <= end:
        if step:
            kind, size, flags = data[at], data[at + 1] | data[at + 2] << 8, data[at + 3]
        else:
            kind, size, flags = data[at] | data[at + 1] << 8, data[at + 2] | data[at + 3] << 8, data[at + 4]
        start = at + before
        at = start + size
        if at > end:
            break
        if kind > _LAST and flags & _ESSENTIAL:
            raise UnknownError
        if kind != _NOTHING:
            found.append(Message(kind, data[start:at], address + start, bool(flags & _SHARED)))
    return found


def unshared(reader: Reader, message: Message) -> bytes:
    """Return the body of a message, that of a committed type from the header of the type."""
    return committed(reader, message.body, message.kind) if message.shared else message.body


def committed(reader: Reader, body: bytes, kind: int) -> bytes:
    """Return the body of the message that stands in the header to which `body` leads."""
    version, place = body[:2].ljust(2, b"\0")
    if version == 1:
        address = reader.address(body, 8)
    elif version == 2 or (version == 3 and place == 2):
        address = reader.address(body, 2)
    else:
        raise UnknownError

    def find() -> bytes:
        for message in messages_of(reader, address):
            if message.kind == kind and not message.shared:
                return message.body
        raise reader.damaged(address, "a message that should stand here does not")

    found: bytes = reader.once((kind, address), find)
    return found


# Shapes.

_DEEPEST = 32
_LARGEST_SPACE = 8 + 2 * 8 * _DEEPEST  # of a shape, whatever follows it
_SCALAR, _SIMPLE, _NULL = 0, 1, 2


class Dataspace(NamedTuple):
    """A shape and the largest one (0: no limit); None if there are no values, not even one."""

    shape: tuple[int, ...] | None
    most: tuple[int, ...] = ()


def dataspace_of(reader: Reader, body: bytes, address: int) -> Dataspace:
    """Return the shape that a message says, of which it takes the beginning of `body`."""
    try:
        return _known(body[:_LARGEST_SPACE], reader.lengths)
    except NonsenseError as error:
        raise reader.damaged(address, str(error)) from None


@lru_cache(maxsize=256)  # files of one kind have the same
def _known(body: bytes, width: int) -> Dataspace:
    version, rank, flags = body[:3].ljust(3, b"\0")
    if version == 1:
        at, kind = 8, _SIMPLE if rank else _SCALAR
    elif version == 2:
        at, kind = 4, body[3] if len(body) > 3 else _NULL
    else:
        raise UnknownError
    if kind == _NULL:
        return Dataspace(None)
    if kind not in (_SCALAR, _SIMPLE) or flags & 2:
        raise UnknownError
    if rank > _DEEPEST or (kind == _SCALAR and rank):
        raise NonsenseError(f"a shape of {rank} dimensions")
    if len(body) < at + width * rank * (2 if flags & 1 else 1):
        raise NonsenseError("a shape is cut off")
    shape = _lengths(body, at, width, rank)
    if not flags & 1:
        return Dataspace(shape, shape)
    at += width * rank
    endless = 256**width - 1
    most = _lengths(body, at, width, rank)
    return Dataspace(shape, tuple(0 if each == endless else each for each in most))


def _lengths(body: bytes, at: int, width: int, count: int) -> tuple[int, ...]:
    stop = at + width * count
    return tuple(int.from_bytes(body[start : start + width], "little") for start in range(at, stop, width))


FIXED, FLOAT, TIME, STRING, BITFIELD, OPAQUE, COMPOUND, REFERENCE, ENUM, VLEN, ARRAY, COMPLEX = range(12)
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
            return _known_type(body)
        found: Datatype = reader.once(body, lambda: _Description(body).parse(0)[0])
    except NonsenseError as error:
        raise reader.damaged(address, str(error)) from None
    return found


@lru_cache(maxsize=256)
def _known_type(body: bytes) -> Datatype:
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
        if kind in (VLEN, COMPLEX):
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
            sides: tuple[int, ...] = ()  # of an array, as the first version has it
            if version == 1:
                sides = tuple(self._number(at + 12 + 4 * axis, 4) for axis in range(min(self._number(at, 1), 4)))
                at += 28
            kind, at = self.parse(at, depth + 1)
            if sides:
                kind = Datatype(ARRAY, 0, kind.size * math.prod(sides), base=kind, shape=sides)
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
