"""Object headers, as far as it takes to find where a chunk index begins.

A header is a list of messages, which may go on in other places.  Version 1 aligns messages to eight bytes, version 2
(`OHDR`) packs them.  The message of type 8 says how a dataset is laid out: for chunks, the kind of their index, its
parameters and its address.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from fsstore.errors import DataLossError
from fsstore.kvstore.scan.source import ScanSource

__all__ = ["UNDEFINED", "IndexPlace", "index_place"]

UNDEFINED = 2**64 - 1
_LAYOUT, _CONTINUES = 8, 0x10
_MOST_PIECES = 10_000
_MOST_BYTES = 64 * 2**20

Kind = Literal["tree1", "single", "implicit", "fixed", "extensible", "tree2"]
_KINDS: dict[int, Kind] = {1: "single", 2: "implicit", 3: "fixed", 4: "extensible", 5: "tree2"}


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


async def index_place(source: ScanSource, base: int, address: int) -> IndexPlace:
    """Return where the chunk index of the dataset is whose header is at `address`."""
    start = base + address
    head = await _bytes(source, start, 64)
    if head[:4] == b"OHDR":
        prefix, size, step = _begin_2(head)
    elif head[0] == 1:
        prefix, size, step = 16, int.from_bytes(head[8:12], "little"), 8
    else:
        raise _damaged(source, start, "there is no object header")
    pieces, packed = [(start + prefix, size)], head[:4] == b"OHDR"
    for number in range(_MOST_PIECES):
        if number >= len(pieces):
            raise _damaged(source, start, "the object header has no layout of chunks")
        where, length = pieces[number]
        if length > _MOST_BYTES:
            raise _damaged(source, start, f"an object header of {length} bytes")
        data = await _bytes(source, where, length)
        if packed and number:
            data = data[4:-4]
        for kind, body in _messages(data, step if packed else 0):
            if kind == _LAYOUT:
                return _parse(source, where, body)
            if kind == _CONTINUES and len(body) >= 16:
                place = int.from_bytes(body[:8], "little")
                pieces.append((base + place, int.from_bytes(body[8:16], "little")))
    raise _damaged(source, start, "an object header without end")


async def _bytes(source: ScanSource, start: int, length: int) -> bytes:
    return (await source.read([(start, min(start + length, max(source.size, start)))]))[0]


def _damaged(source: ScanSource, offset: int, why: str) -> DataLossError:
    return DataLossError(f"{source.describe(offset)}: {why}")


def _begin_2(head: bytes) -> tuple[int, int, int]:
    """Return where the messages of a header of version 2 begin, their length, and how long the head of each is."""
    flags = head[5]
    at = 6 + (16 if flags & 0x20 else 0) + (4 if flags & 0x10 else 0)
    width = 1 << (flags & 3)
    return at + width, int.from_bytes(head[at : at + width], "little"), 6 if flags & 4 else 4


def _messages(data: bytes, head: int) -> Iterator[tuple[int, bytes]]:
    """Yield type and body of messages; `head` is the length of what stands before each, 0 for version 1."""
    at = 0
    while at + (head or 8) <= len(data):
        if head:
            kind, size, begin = data[at], int.from_bytes(data[at + 1 : at + 3], "little"), at + head
        else:
            kind, begin = int.from_bytes(data[at : at + 2], "little"), at + 8
            size = int.from_bytes(data[at + 2 : at + 4], "little")
        yield kind, data[begin : begin + size]
        at = begin + size


def _parse(source: ScanSource, offset: int, body: bytes) -> IndexPlace:
    """Return what a layout message says of chunks."""
    version = body[0] if body else 0
    if version == 3 and len(body) > 11 and body[1] == 2:
        return IndexPlace("tree1", int.from_bytes(body[3:11], "little"))
    if version not in (4, 5) or len(body) < 6 or body[1] != 2:
        raise _damaged(source, offset, f"a layout of version {version}, which is not one of chunks")
    flags, rank, width = body[2], body[3], body[4]
    at = 5 + rank * width
    kind = _KINDS.get(body[at]) if at < len(body) else None
    if kind is None:
        raise _damaged(source, offset, "a chunk index of an unknown kind")
    at += 1
    size, mask = None, 0
    if kind == "single" and flags & 2:
        size, mask = (
            int.from_bytes(body[at : at + 8], "little"),
            int.from_bytes(body[at + 8 : at + 12], "little"),
        )
        at += 12
    at += {"single": 0, "implicit": 0, "fixed": 1, "extensible": 5, "tree2": 6}[kind]
    return IndexPlace(kind, int.from_bytes(body[at : at + 8], "little"), size, mask, bool(flags & 1))
