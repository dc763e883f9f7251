"""Shapes."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from fsstore.scan.hdf5.format.reader import NonsenseError, Reader, UnknownError

__all__ = ["Dataspace", "dataspace_of"]

_DEEPEST = 32
_MOST_BYTES = 8 + 2 * 8 * _DEEPEST  # of a shape, whatever follows it
_SCALAR, _SIMPLE, _NULL = 0, 1, 2


class Dataspace(NamedTuple):
    """A shape and the largest one (0: no limit); None if there are no values, not even one."""

    shape: tuple[int, ...] | None
    most: tuple[int, ...] = ()


def dataspace_of(reader: Reader, body: bytes, address: int) -> Dataspace:
    """Return the shape that a message says, of which it takes the beginning of `body`."""
    try:
        return _known(body[:_MOST_BYTES], reader.lengths)
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
