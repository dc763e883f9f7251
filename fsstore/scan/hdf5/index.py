"""Where the chunks of a dataset lie: B-trees of both versions, fixed and extensible arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fsstore.errors import DataLossError
from fsstore.scan.contract import Numbers, ScanSource, Span
from fsstore.scan.hdf5.heap import child_pointers, children
from fsstore.scan.hdf5.layout import UNDEFINED, IndexPlace
from fsstore.scan.hdf5.structure import checksum

# The values around a chunk index: what reading it takes, and the chunks it lists, as columns.


@dataclass(frozen=True, slots=True)
class Chunked:
    """The facts needed to read an index: the shape, the largest shape (0: no limit), the chunk, and its bytes."""

    shape: tuple[int, ...]
    maxshape: tuple[int, ...]
    chunks: tuple[int, ...]
    nbytes: int
    filtered: bool

    @property
    def grid(self) -> tuple[int, ...]:
        """The shape in chunks."""
        return _grid(self.shape, self.chunks)

    @property
    def largest(self) -> tuple[int, ...]:
        """The largest shape in chunks; 0 where there is no limit."""
        return _grid(self.maxshape, self.chunks)


def _grid(shape: Sequence[int], chunks: Sequence[int]) -> tuple[int, ...]:
    return tuple(-(-size // step) for size, step in zip(shape, chunks, strict=True))


class Chunks(NamedTuple):
    """Chunks as columns: their places in the grid, a row each; addresses relative to the base; sizes; masks."""

    coords: Numbers
    address: Any
    size: Any
    mask: Any

    @classmethod
    def none(cls, rank: int) -> Chunks:
        """Return no chunks."""
        nothing = np.zeros(0, np.uint64)
        return cls(np.zeros((0, rank), np.int64), nothing, nothing, nothing)


async def nodes(source: ScanSource, spans: Sequence[Span]) -> list[bytes]:
    """Return the bytes of nodes: those that are cached, and the others in one round, which are not cached."""
    for span in spans:
        source.check(*span)
    found: list[Any] = [source.cached(*span) for span in spans]
    missing = [number for number, each in enumerate(found) if each is None]
    fetched = await source.fetch([spans[number] for number in missing]) if missing else []
    for number, data in zip(missing, fetched, strict=True):
        found[number] = bytes(data)
    return found


def verified(source: ScanSource, data: bytes, signature: bytes, offset: int, size: int = 0) -> bytes:
    """Return the bytes of a part of an index, which has a signature and ends, after `size` bytes or all of them, with
    its checksum.
    """
    data = data[:size] if size else data
    if data[:4] != signature:
        raise DataLossError(
            f"{source.describe(offset)}: expected {signature.decode()} of a chunk index, but found {data[:4]!r}"
        )
    check_sum(source, data, offset, size)
    return data


def check_sum(source: ScanSource, data: bytes, offset: int, size: int = 0) -> None:
    """Raise unless data of `size` bytes, or of any length, end with their checksum."""
    if len(data) < max(size, 4) or checksum(data[:-4]) != int.from_bytes(data[-4:], "little"):
        raise DataLossError(
            f"{source.describe(offset)}: the checksum of a part of a chunk index is not that of its bytes; "
            "the file is damaged: get an intact copy"
        )


def elements(source: ScanSource, data: bytes, width: int, chunked: Chunked) -> tuple[Any, Any, Any]:
    """Return addresses, sizes and masks of the elements of an array index: the address, and what filters made of it."""
    if width < 8 or width > 20 or (chunked.filtered and width < 13):
        raise DataLossError(f"{source.describe()} is damaged: a chunk index with elements of {width} bytes")
    rows = np.frombuffer(data, np.uint8)[: len(data) // width * width].reshape(-1, width)
    address = _number(rows[:, :8])
    if not chunked.filtered:
        return address, np.full(len(rows), chunked.nbytes, np.uint64), np.zeros(len(rows), np.uint64)
    return address, _number(rows[:, 8 : width - 4]), _number(rows[:, width - 4 :])


def _number(octets: Any) -> Any:
    """Return little-endian numbers of any width up to eight bytes, a row each."""
    wide = np.zeros((len(octets), 8), np.uint8)
    wide[:, : octets.shape[1]] = octets
    return wide.view("<u8").reshape(-1)


# The indexes that are arrays: fixed (`FAHD`) and extensible (`EAHD`).
#
# Elements are numbered by ordinals. A fixed array is one block, in pages if it is large. An extensible
# array keeps its first elements in its index block, then blocks of growing size: super block `u` has
# `2^(u//2)` data blocks of `2^((u+1)//2)` times the smallest; the first few hang directly from the index
# block.

_PREFIX = 14  # signature, version, client, address of the header


def _word(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 8], "little")


async def fixed(source: ScanSource, base: int, address: int, chunked: Chunked) -> Chunks:
    """Return the chunks of a fixed array."""
    at = base + address
    head = verified(source, (await nodes(source, [(at, at + 28)]))[0], b"FAHD", at)
    width, bits, count, block = head[6], head[7], _word(head, 8), _word(head, 16)
    if block == UNDEFINED:
        return Chunks.none(len(chunked.chunks))
    if not width:
        raise DataLossError(f"{source.describe(at)}: the entries of a chunk index have no bytes")
    start = base + block
    source.check(start, start + count * width)
    page = 1 << bits
    if count <= page:
        data = (await nodes(source, [(start, start + _PREFIX + count * width + 4)]))[0]
        found = elements(source, verified(source, data, b"FADB", start)[_PREFIX:-4], width, chunked)
    else:
        pages = -(-count // page)
        bitmap = -(-pages // 8)
        first = _PREFIX + bitmap + 4
        size = first + count * width + 4 * pages
        data = (await nodes(source, [(start, start + size)]))[0]
        written = _bits(verified(source, data, b"FADB", start, first)[_PREFIX : _PREFIX + bitmap], pages)
        parts = _pages(source, data[first:], start + first, page * width, written)
        found = elements(source, parts, width, chunked)
    largest = chunked.largest
    ordinals = np.arange(len(found[0]))
    known = ordinals < math.prod(largest)
    coords = np.stack(np.unravel_index(ordinals[known], largest), axis=1).astype(np.int64)
    return _present(coords, *(column[known] for column in found))


def _bits(data: bytes, count: int) -> Any:
    return np.unpackbits(np.frombuffer(data, np.uint8))[:count].astype(bool)


def _pages(source: ScanSource, data: bytes, offset: int, size: int, written: Any) -> bytes:
    """Return the elements of pages of a size, the last of which may be shorter, without the checksum behind each; those
    of unwritten pages are undefined.
    """
    pieces = []
    for number, is_written in enumerate(written.tolist()):
        start = number * (size + 4)
        page = data[start : start + size + 4]
        if is_written:
            check_sum(source, page, offset + start)
        pieces.append(page[:-4] if is_written else b"\xff" * (len(page) - 4))
    return b"".join(pieces)


def _present(coords: Numbers, address: Any, size: Any, mask: Any) -> Chunks:
    known = address != np.uint64(UNDEFINED)
    return Chunks(coords[known], address[known], size[known], mask[known])


class _Shape(NamedTuple):
    """The parameters of an extensible array."""

    width: int
    max_bits: int
    in_index: int
    smallest: int
    pointers: int
    page: int
    used: int

    @property
    def offset_size(self) -> int:
        return -(-self.max_bits // 8)

    def blocks(self, super_block: int) -> tuple[int, int]:
        """Return how many data blocks a super block has, and how many elements each."""
        return 1 << (super_block // 2), self.smallest << ((super_block + 1) // 2)


class _Data(NamedTuple):
    """A data block: where it is, its first ordinal, its length, and which of its pages are written, if it has pages."""

    address: int
    first: int
    length: int
    written: Any


async def extensible(source: ScanSource, base: int, address: int, chunked: Chunked) -> Chunks:
    """Return the chunks of an extensible array."""
    at = base + address
    head = verified(source, (await nodes(source, [(at, at + 72)]))[0], b"EAHD", at)
    shape = _Shape(head[6], head[7], head[8], head[9], head[10], 1 << min(head[11], 40), _word(head, 12 + 32))
    block = _word(head, 60)
    if block == UNDEFINED or not shape.used:
        return Chunks.none(len(chunked.chunks))
    if not (shape.smallest and shape.pointers >= 2) or shape.used > source.size:
        raise DataLossError(f"{source.describe(at)}: the parameters of a chunk index make no sense")
    direct = 2 * (shape.pointers - 1)
    skipped = 2 * (shape.pointers.bit_length() - 1)
    supers = max(0, 1 + shape.max_bits - (shape.smallest.bit_length() - 1) - skipped)
    start = base + block
    size = _PREFIX + shape.in_index * shape.width + 8 * (direct + supers) + 4
    index = verified(source, (await nodes(source, [(start, start + size)]))[0], b"EAIB", start)
    own = _PREFIX + shape.in_index * shape.width
    parts = [(0, index[_PREFIX:own])]
    pointers = np.frombuffer(index[own:-4], "<u8").tolist()
    data: list[_Data] = []
    first = shape.in_index
    for super_block in range(skipped):
        blocks, length = shape.blocks(super_block)
        for _ in range(blocks):
            data.append(_Data(pointers[len(data)], first, length, None))
            first += length
    data += await _super_blocks(source, base, pointers[direct:], first, shape)
    parts += await _data_blocks(source, base, data, shape)
    return _swizzled(source, parts, shape, chunked)


async def _super_blocks(source: ScanSource, base: int, pointers: list[int], first: int, shape: _Shape) -> list[_Data]:
    wanted, skipped = [], 2 * (shape.pointers.bit_length() - 1)
    for number, address in enumerate(pointers):
        blocks, length = shape.blocks(skipped + number)
        if first >= shape.used:
            break
        paged = length > shape.page
        bitmap = blocks * -(-(length // shape.page) // 8) if paged else 0
        if address != UNDEFINED:
            size = _PREFIX + shape.offset_size + bitmap + 8 * blocks + 4
            wanted.append((base + address, size, bitmap, blocks, length, first))
        first += blocks * length
    found = await nodes(source, [(each[0], each[0] + each[1]) for each in wanted])
    out = []
    for (start, _, bitmap, blocks, length, begin), data in zip(wanted, found, strict=True):
        at = _PREFIX + shape.offset_size
        verified(source, data, b"EASB", start)
        addresses = np.frombuffer(data[at + bitmap : -4], "<u8").tolist()
        pages = length // shape.page
        bits = _bits(data[at : at + bitmap], blocks * pages).reshape(blocks, pages) if bitmap else None
        for number, address in enumerate(addresses):
            out.append(_Data(address, begin + number * length, length, None if bits is None else bits[number]))
    return out


async def _data_blocks(source: ScanSource, base: int, data: list[_Data], shape: _Shape) -> list[tuple[int, bytes]]:
    """Return the elements of data blocks, each with its first ordinal."""
    wanted = [each for each in data if each.address != UNDEFINED and each.first < shape.used]
    head, spans = _PREFIX + shape.offset_size, []
    for each in wanted:
        sums = 4 + 4 * (0 if each.written is None else len(each.written))
        start = base + each.address
        spans.append((start, start + head + each.length * shape.width + sums))
    out = []
    for each, (start, _), block in zip(wanted, spans, await nodes(source, spans), strict=True):
        if each.written is None:
            out.append((each.first, verified(source, block, b"EADB", start)[head:-4]))
            continue
        verified(source, block, b"EADB", start, head + 4)
        size = shape.page * shape.width
        out.append((each.first, _pages(source, block[head + 4 :], start + head + 4, size, each.written)))
    return out


def _swizzled(source: ScanSource, parts: list[tuple[int, bytes]], shape: _Shape, chunked: Chunked) -> Chunks:
    """Return chunks by their ordinals: over the largest grid, with the dimension without limit first."""
    ordinals, columns = [], []
    for first, data in parts:
        found = elements(source, data, shape.width, chunked)
        ordinals.append(np.arange(first, first + len(found[0])))
        columns.append(found)
    joined = [np.concatenate(column) for column in zip(*columns, strict=True)]
    rest = np.concatenate(ordinals)
    kept = rest < shape.used
    largest = chunked.largest
    axis = largest.index(0) if 0 in largest else 0
    coords = np.zeros((int(kept.sum()), len(largest)), np.int64)
    rest = rest[kept]
    for dim in reversed([each for each in range(len(largest)) if each != axis]):
        rest, coords[:, dim] = np.divmod(rest, max(largest[dim], 1))
    coords[:, axis] = rest
    return _present(coords, *(column[kept] for column in joined))


# The indexes that are B-trees: version 1 (`TREE`), as all older files have, and version 2 (`BTHD`).
#
# A level of the tree is one round.

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
        raise _damaged(source, at, f"its chunk index lists a chunk at {which}, where none can be; get an intact copy")
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
                below += children(data[end:], count + 1, pointers[level], 8)
        places = below
    return _records(source, b"".join(records), record, chunked)


def _records(source: ScanSource, data: bytes, record: int, chunked: Chunked) -> Chunks:
    rank = len(chunked.chunks)
    rows = np.frombuffer(data, np.uint8).reshape(-1, record)
    head = record - 8 * rank
    address, size, mask = elements(source, rows[:, :head].tobytes(), head, chunked)
    coords = np.ascontiguousarray(rows[:, head:]).view("<u8").reshape(-1, rank).astype(np.int64)
    return Chunks(coords, address, size, mask)


async def load_index(source: ScanSource, base: int, place: IndexPlace, chunked: Chunked) -> Chunks:
    """Return the chunks of a dataset."""
    rank = len(chunked.chunks)
    if place.address == UNDEFINED:
        return Chunks.none(rank)
    if place.kind == "single":
        size = chunked.nbytes if place.size is None else place.size
        columns = (np.array([each], np.uint64) for each in (place.address, size, place.mask))
        return Chunks(np.zeros((1, rank), np.int64), *columns)
    if place.kind == "implicit":
        return _implicit(source, base, place, chunked)
    if place.kind == "tree1":
        return await version_1(source, base, place.address, chunked)
    if place.kind == "tree2":
        return await version_2(source, base, place.address, chunked)
    load = fixed if place.kind == "fixed" else extensible
    return await load(source, base, place.address, chunked)


def _implicit(source: ScanSource, base: int, place: IndexPlace, chunked: Chunked) -> Chunks:
    count = math.prod(chunked.largest)
    source.check(base + place.address, base + place.address + count * chunked.nbytes)
    coords = np.stack(np.unravel_index(np.arange(math.prod(chunked.grid)), chunked.grid), axis=1)
    ordinals = np.ravel_multi_index(tuple(coords.T), chunked.largest).astype(np.uint64)
    address = np.uint64(place.address) + ordinals * np.uint64(chunked.nbytes)
    size = np.full(len(coords), chunked.nbytes, np.uint64)
    return Chunks(coords.astype(np.int64), address, size, np.zeros(len(coords), np.uint64))
