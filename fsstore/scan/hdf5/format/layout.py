"""Where and how the values of a dataset are stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fsstore.scan.hdf5.format.object_header import messages_of
from fsstore.scan.hdf5.format.reader import Reader, UnknownError

__all__ = ["UNDEFINED", "IndexPlace", "Layout", "index_place", "layout_of"]

UNDEFINED = 2**64 - 1
_LAYOUT = 0x08
_COMPACT, _CONTIGUOUS, _CHUNKED = 0, 1, 2

Kind = Literal["tree1", "single", "implicit", "fixed", "extensible", "tree2"]
_KINDS: dict[int, Kind] = {1: "single", 2: "implicit", 3: "fixed", 4: "extensible", 5: "tree2"}
_PARAMETERS = {"single": 0, "implicit": 0, "fixed": 1, "extensible": 5, "tree2": 6}


@dataclass(frozen=True, slots=True)
class IndexPlace:
    """Where a chunk index is, relative to the base of the file.

    `size` and `mask` are those of a single filtered chunk.  `edges_plain`: chunks at the edge are stored unfiltered.
    """

    kind: Kind
    address: int
    size: int | None = None
    mask: int = 0
    edges_plain: bool = False


@dataclass(frozen=True, slots=True)
class Layout:
    """A layout.  `address` is None where nothing was written; `size` is that of one run of bytes."""

    kind: Literal["compact", "contiguous", "chunked"]
    address: int | None = None
    size: int = 0
    chunks: tuple[int, ...] = ()
    index: IndexPlace | None = None


def index_place(reader: Reader, address: int) -> IndexPlace:
    """Return where the chunk index of the dataset is whose header is at an address."""
    for message in messages_of(reader, address):
        if message.kind == _LAYOUT:
            found = layout_of(reader, message.body, message.address, 0).index
            if found is not None:
                return found
    raise reader.damaged(address, "the object header has no layout of chunks")


def layout_of(reader: Reader, body: bytes, address: int, nbytes: int) -> Layout:
    """Return the layout of a message of a dataset of `nbytes`, which the oldest kind does not say."""
    if len(body) < 3:
        raise reader.damaged(address, "a layout is cut off")
    if body[0] in (1, 2):
        return _old(reader, body, address, nbytes)
    if body[0] not in (3, 4, 5):
        raise UnknownError
    if body[1] == _COMPACT:
        return Layout("compact")
    if body[1] == _CONTIGUOUS:
        _long_enough(reader, body, 2 + reader.width + reader.lengths, address)
        place = reader.address(body, 2)
        if place == reader.undefined:
            return Layout("contiguous")
        return Layout("contiguous", place, reader.length(body, 2 + reader.width))
    if body[1] != _CHUNKED:
        raise UnknownError
    return _tree(reader, body, address) if body[0] == 3 else _indexed(reader, body, address)


def _long_enough(reader: Reader, body: bytes, need: int, address: int) -> None:
    if len(body) < need:
        raise reader.damaged(address, "a layout is cut off")


def _numbers(body: bytes, at: int, count: int, width: int) -> tuple[int, ...]:
    return tuple(
        int.from_bytes(body[each : each + width], "little") for each in range(at, at + count * width, width)
    )


def _old(reader: Reader, body: bytes, address: int, nbytes: int) -> Layout:
    """Return a layout of version 1 or 2: a shape stands behind its class and its address."""
    rank, kind, at = body[1], body[2], 8
    if kind == _COMPACT:
        return Layout("compact")
    _long_enough(reader, body, at + reader.width + 4 * rank, address)
    place = reader.address(body, at)
    shape = _numbers(body, at + reader.width, rank, 4)
    if kind == _CONTIGUOUS:
        return Layout("contiguous") if place == reader.undefined else Layout("contiguous", place, nbytes)
    if kind != _CHUNKED or not rank:
        raise UnknownError
    return _chunked(reader, shape[:-1], IndexPlace("tree1", _defined(reader, place)), address)


def _tree(reader: Reader, body: bytes, address: int) -> Layout:
    """Return a layout of version 3 for chunks."""
    rank, at = body[2], 3 + reader.width
    _long_enough(reader, body, at + 4 * rank, address)
    place = IndexPlace("tree1", _defined(reader, reader.address(body, 3)))
    if not rank:
        raise reader.damaged(address, "chunks without a shape")
    return _chunked(reader, _numbers(body, at, rank - 1, 4), place, address)


def _indexed(reader: Reader, body: bytes, address: int) -> Layout:
    """Return a layout of version 4 or 5 for chunks."""
    _long_enough(reader, body, 6, address)
    flags, rank, width = body[2], body[3], body[4]
    at = 5 + rank * width
    _long_enough(reader, body, at + 1, address)
    kind = _KINDS.get(body[at])
    if kind is None or not rank or not 0 < width <= 8:
        raise reader.damaged(address, "a chunk index of an unknown kind")
    at += 1
    size, mask = None, 0
    if kind == "single" and flags & 2:
        size = reader.length(body, at)
        mask = int.from_bytes(body[at + reader.lengths : at + reader.lengths + 4], "little")
        at += reader.lengths + 4
    at += _PARAMETERS[kind]
    _long_enough(reader, body, at + reader.width, address)
    place = IndexPlace(kind, _defined(reader, reader.address(body, at)), size, mask, bool(flags & 1))
    return _chunked(reader, _numbers(body, 5, rank - 1, width), place, address)


def _defined(reader: Reader, address: int) -> int:
    return UNDEFINED if address == reader.undefined else address


def _chunked(reader: Reader, chunks: tuple[int, ...], index: IndexPlace, address: int) -> Layout:
    if not all(chunks):
        raise reader.damaged(address, "chunks without an extent")
    return Layout("chunked", chunks=chunks, index=index)
