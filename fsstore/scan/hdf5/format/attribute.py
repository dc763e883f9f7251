"""Attribute messages."""

from __future__ import annotations

import math
import struct
from typing import NamedTuple

from fsstore.scan.hdf5.format.dataspace import Dataspace, dataspace_of
from fsstore.scan.hdf5.format.datatype import Datatype, datatype_of
from fsstore.scan.hdf5.format.object_header import committed
from fsstore.scan.hdf5.format.reader import Reader, UnknownError

__all__ = ["Attribute", "attribute_of"]

_DATATYPE = 0x03
_SIZES = struct.Struct("<HHH")


class Attribute(NamedTuple):
    """An attribute as it is stored; `address` is where, for messages."""

    name: bytes
    type: Datatype
    space: Dataspace
    data: bytes
    address: int


class _Parts(NamedTuple):
    """Where the parts of a message are, and whether its type stands elsewhere."""

    name: int
    type: int
    space: int
    data: int
    name_size: int
    shared: int


class _Common(NamedTuple):
    """A type and a shape that many attributes have in common, and how many bytes values of these take."""

    type: Datatype
    space: Dataspace
    nbytes: int


def _parts(reader: Reader, body: bytes, address: int) -> _Parts:
    version = body[0] if len(body) > 8 else 0
    if version not in (1, 2, 3):
        raise UnknownError
    flags = body[1] if version > 1 else 0
    if flags & ~1:
        raise UnknownError
    name, kind, space = _SIZES.unpack_from(body, 2)
    at = 9 if version == 3 else 8
    last = 7 if version == 1 else 0  # parts are aligned to eight bytes in the first version
    first = at + (name + last & ~last)
    second = first + (kind + last & ~last)
    third = second + (space + last & ~last)
    if third > len(body):
        raise reader.damaged(address, "an attribute is cut off")
    return _Parts(at, first, second, third, name, flags)


def attribute_of(reader: Reader, body: bytes, address: int) -> Attribute:
    """Return the attribute of a message."""
    reader.spend(address, len(body))
    start, at, middle, end, name_size, shared = _parts(reader, body, address)
    name = body[start : start + name_size].partition(b"\0")[0]
    key = (body[at:middle], body[middle:end], shared)
    form: _Common | None = reader.known.get(key)
    if form is None:
        form = reader.known[key] = _form(reader, *key, address)
    data = body[end : end + form.nbytes]
    if len(data) < form.nbytes:
        raise reader.damaged(
            address, f"the attribute {name!r} has {len(data)} bytes instead of {form.nbytes}"
        )
    return Attribute(name, form.type, form.space, data, address)


def _form(reader: Reader, described: bytes, shape: bytes, shared: int, address: int) -> _Common:
    """Return a type and a shape by their messages."""
    kind = datatype_of(reader, committed(reader, described, _DATATYPE) if shared else described, address)
    space = dataspace_of(reader, shape, address)
    return _Common(kind, space, 0 if space.shape is None else math.prod(space.shape) * kind.size)
