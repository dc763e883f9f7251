"""Attribute messages."""

from __future__ import annotations

import math
import struct
from typing import NamedTuple

from fsstore.kvstore.scan.hdf5.format.dataspace import Dataspace, dataspace_of
from fsstore.kvstore.scan.hdf5.format.datatype import Datatype, datatype_of
from fsstore.kvstore.scan.hdf5.format.object_header import committed
from fsstore.kvstore.scan.hdf5.format.reader import Reader, UnknownError

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
    """Where the parts of a message are, and which of them stand elsewhere."""

    name: int
    type: int
    space: int
    data: int
    name_size: int
    shared: int


def _form(reader: Reader, body: bytes, address: int) -> _Parts:
    version = body[0] if len(body) > 8 else 0
    if version not in (1, 2, 3):
        raise UnknownError
    flags = body[1] if version > 1 else 0
    if flags & ~1:
        raise UnknownError
    name, kind, space = _SIZES.unpack_from(body, 2)
    at, last = (
        9 if version == 3 else 8,
        7 if version == 1 else 0,
    )  # aligned to eight bytes in the first version
    first = at + (name + last & ~last)
    second = first + (kind + last & ~last)
    third = second + (space + last & ~last)
    if third > len(body):
        raise reader.damaged(address, "an attribute is cut off")
    return _Parts(at, first, second, third, name, flags)


def attribute_of(reader: Reader, body: bytes, address: int) -> Attribute:
    """Return the attribute of a message."""
    reader.spend(address, len(body))
    form = _form(reader, body, address)
    name = body[form.name : form.name + form.name_size].split(b"\0")[0]
    described = body[form.type : form.space]
    if form.shared:
        described = committed(reader, described, _DATATYPE)
    kind = datatype_of(reader, described, address)
    key = ("space", body[form.space : form.data])
    space: Dataspace = reader.once(key, lambda: dataspace_of(reader, key[1], address))
    need = 0 if space.shape is None else math.prod(space.shape) * kind.size
    data = body[form.data : form.data + need]
    if len(data) < need:
        raise reader.damaged(address, f"the attribute {name!r} has {len(data)} bytes instead of {need}")
    return Attribute(name, kind, space, data, address)
