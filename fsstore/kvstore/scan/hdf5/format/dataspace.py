"""Shapes."""

from __future__ import annotations

from typing import NamedTuple

from fsstore.kvstore.scan.hdf5.format.reader import Reader, UnknownError

__all__ = ["Dataspace", "dataspace_of"]

_DEEPEST = 32
_SCALAR, _SIMPLE, _NULL = 0, 1, 2


class Dataspace(NamedTuple):
    """A shape and the largest one (0: no limit); None if there are no values, not even one."""

    shape: tuple[int, ...] | None
    most: tuple[int, ...] = ()


def dataspace_of(reader: Reader, body: bytes, address: int) -> Dataspace:
    """Return the shape that a message says, of which it takes the beginning of `body`."""
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
        raise reader.damaged(address, f"a shape of {rank} dimensions")
    width = reader.lengths
    if len(body) < at + width * rank * (2 if flags & 1 else 1):
        raise reader.damaged(address, "a shape is cut off")
    shape = tuple(reader.length(body, at + width * axis) for axis in range(rank))
    if not flags & 1:
        return Dataspace(shape, shape)
    at += width * rank
    endless = 256**width - 1
    most = (reader.length(body, at + width * axis) for axis in range(rank))
    return Dataspace(shape, tuple(0 if each == endless else each for each in most))
