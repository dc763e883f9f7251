"""The indexes that are B-trees: version 1 (`TREE`), as all older files have, and version 2 (`BTHD`).

A level of the tree is one round.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fsstore.errors import DataLossError
from fsstore.scan.hdf5.format.layout import UNDEFINED
from fsstore.scan.hdf5.format.tree2 import child_pointers
from fsstore.scan.hdf5.index.value import Chunked, Chunks, elements, nodes, verified
from fsstore.scan.source import ScanSource, Span

__all__ = ["version_1", "version_2"]

_HEAD_1 = 24
_HEAD_2 = 6
_LEVELS = 64
_ENTRIES = 64  # of a node of version 1, unless its file was made with other parameters


def _damaged(source: ScanSource, offset: int, why: str) -> DataLossError:
    return DataLossError(f"{source.describe(offset)}: {why}")


async def version_1(source: ScanSource, base: int, address: int, chunked: Chunked) -> Chunks:
    """Return the chunks of a B-tree of version 1."""
    rank = len(chunked.chunks)
    entry = np.dtype([("size", "<u4"), ("mask", "<u4"), ("offset", "<u8", (rank + 1,)), ("child", "<u8")])
    size = _HEAD_1 + _ENTRIES * entry.itemsize
    level, places, seen = None, np.array([address], np.uint64), 0
    for _ in range(_LEVELS):
        seen += len(places)
        if seen * size > 2 * source.size + 2 * size:
            raise _damaged(source, base + address, "the nodes of a B-tree refer to each other")
        spans, data = await _nodes_1(source, [base + int(place) for place in places], size)
        most = max(int.from_bytes(each[6:8], "little") for each in data)
        if most > _ENTRIES:
            size = _HEAD_1 + most * entry.itemsize
            spans, data = await _nodes_1(source, [start for start, _ in spans], size)
        level, found = _level(source, spans, data, entry, level)
        if level == 0:
            coords = _coordinates(source, base + address, found["offset"], chunked)
            columns = (found[name].astype(np.uint64) for name in ("child", "size", "mask"))
            return Chunks(coords, *columns)
        places = found["child"]
        if not len(places):
            return Chunks.none(rank)
    raise _damaged(source, base + address, "a B-tree without leaves")


def _coordinates(source: ScanSource, at: int, offsets: Any, chunked: Chunked) -> Any:
    """Return the places of chunks in the grid by the elements they begin with.

    Nodes of version 1 have no checksum, but each chunk begins at a multiple of its shape, inside the array, and at the
    beginning of an element; chunks follow each other in the order of the grid.
    """
    coords, rest = np.divmod(offsets[:, :-1], np.array(chunked.chunks, np.uint64))
    grid = np.array(chunked.grid, np.uint64)
    wrong = rest.any(axis=1) | (offsets[:, -1] != 0) | (coords >= grid).any(axis=1)
    if not wrong.any() and len(coords) > 1:
        step = coords[1:].astype(np.int64) - coords[:-1].astype(np.int64)
        first = np.take_along_axis(step, (step != 0).argmax(axis=1)[:, None], axis=1)[:, 0]
        wrong[1:] = first <= 0
    if wrong.any():
        which = offsets[int(np.flatnonzero(wrong)[0])].tolist()
        raise _damaged(
            source, at, f"its chunk index lists a chunk at {which}, where none can be; get an intact copy"
        )
    return coords.astype(np.int64)


async def _nodes_1(source: ScanSource, starts: list[int], size: int) -> tuple[list[Span], list[bytes]]:
    spans = [(start, max(min(start + size, source.size), start)) for start in starts]
    return spans, await nodes(source, spans)


def _level(
    source: ScanSource, spans: list[Span], data: list[bytes], entry: np.dtype[Any], above: int | None
) -> tuple[int, Any]:
    """Return the level of nodes, all of one, and their entries: taken apart together, as a node alone costs most."""
    if len(data) == 1:
        return _level_of_one(source, spans[0][0], data[0], entry, above)
    room = max(len(each) for each in data) - _HEAD_1
    most = room // entry.itemsize
    size = _HEAD_1 + most * entry.itemsize
    joined = b"".join(each[:size].ljust(size, b"\0") for each in data)
    rows = np.frombuffer(joined, np.uint8).reshape(len(data), size)
    used = rows[:, 6].astype(np.int64) | rows[:, 7].astype(np.int64) << 8
    ends = _HEAD_1 + used * entry.itemsize
    signed = (rows[:, :5] == np.frombuffer(b"TREE\1", np.uint8)).all(axis=1)
    wrong = np.flatnonzero(~signed | (ends > [len(each) for each in data]))
    if len(wrong):
        raise _damaged(source, spans[int(wrong[0])][0], "there is no node of a chunk index")
    level = int(rows[0, 5])
    if (rows[:, 5] != level).any() or (above is not None and level != above - 1):
        raise _damaged(source, spans[0][0], "a node of a chunk index is on the wrong level")
    entries = np.ascontiguousarray(rows[:, _HEAD_1:]).reshape(-1).view(entry).reshape(len(data), most)
    return level, entries[np.arange(most) < used[:, None]]


def _level_of_one(
    source: ScanSource, start: int, node: bytes, entry: np.dtype[Any], above: int | None
) -> tuple[int, Any]:
    """Return the level of a node and its entries: most indexes of small files have no other."""
    used = int.from_bytes(node[6:8], "little")
    if node[:5] != b"TREE\1" or _HEAD_1 + used * entry.itemsize > len(node):
        raise _damaged(source, start, "there is no node of a chunk index")
    level = node[5]
    if above is not None and level != above - 1:
        raise _damaged(source, start, "a node of a chunk index is on the wrong level")
    return level, np.frombuffer(node, entry, used, _HEAD_1)


async def version_2(source: ScanSource, base: int, address: int, chunked: Chunked) -> Chunks:
    """Return the chunks of a B-tree of version 2."""
    at, rank = base + address, len(chunked.chunks)
    head = verified(source, (await nodes(source, [(at, at + 38)]))[0], b"BTHD", at)
    kind, node, record = head[5], int.from_bytes(head[6:10], "little"), int.from_bytes(head[10:12], "little")
    depth, root = int.from_bytes(head[12:14], "little"), int.from_bytes(head[16:24], "little")
    least = 8 + 8 * rank + (5 if chunked.filtered else 0)
    if kind not in (10, 11) or record < least or node < 64 or depth > 40:
        raise _damaged(source, at, "there is no B-tree of chunks")
    if root == UNDEFINED:
        return Chunks.none(rank)
    pointers = child_pointers(node, record, depth, 8)
    places = [(root, int.from_bytes(head[24:26], "little"))]
    records: list[bytes] = []
    seen = 0
    for level in range(depth, -1, -1):
        seen += len(places)
        if seen * node > source.size + node:
            raise _damaged(source, at, "the nodes of a B-tree refer to each other")
        spans = [(base + place, base + place + node) for place, _ in places]
        found = await nodes(source, [(start, min(stop, max(source.size, start))) for start, stop in spans])
        below: list[tuple[int, int]] = []
        for (_, count), span, data in zip(places, spans, found, strict=True):
            end = _HEAD_2 + count * record
            size = end + (count + 1) * pointers[level][0] * bool(level) + 4
            verified(source, data, b"BTIN" if level else b"BTLF", span[0], size)
            records.append(data[_HEAD_2:end])
            if level:
                below += _children(data[end:], count + 1, pointers[level])
        places = below
    return _records(source, b"".join(records), record, chunked)


def _children(data: bytes, count: int, sizes: tuple[int, int]) -> list[tuple[int, int]]:
    pointer, width = sizes
    out = []
    for at in range(0, min(count * pointer, len(data) - pointer + 1), pointer):
        place = int.from_bytes(data[at : at + 8], "little")
        out.append((place, int.from_bytes(data[at + 8 : at + 8 + width], "little")))
    return out


def _records(source: ScanSource, data: bytes, record: int, chunked: Chunked) -> Chunks:
    rank = len(chunked.chunks)
    rows = np.frombuffer(data, np.uint8).reshape(-1, record)
    head = record - 8 * rank
    address, size, mask = elements(source, rows[:, :head].tobytes(), head, chunked)
    coords = np.ascontiguousarray(rows[:, head:]).view("<u8").reshape(-1, rank).astype(np.int64)
    return Chunks(coords, address, size, mask)
