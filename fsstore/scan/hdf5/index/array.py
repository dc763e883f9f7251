"""The indexes that are arrays: fixed (`FAHD`) and extensible (`EAHD`).

Elements are numbered by ordinals.  A fixed array is one block, in pages if it is large.  An extensible array keeps its
first elements in its index block, then blocks of growing size: super block `u` has `2^(u//2)` data blocks of
`2^((u+1)//2)` times the smallest; the first few hang directly from the index block.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from fsstore.errors import DataLossError
from fsstore.scan.contract import Numbers
from fsstore.scan.hdf5.format.layout import UNDEFINED
from fsstore.scan.hdf5.index.value import Chunked, Chunks, check_sum, elements, nodes, verified
from fsstore.scan.source import ScanSource

__all__ = ["extensible", "fixed"]

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


async def _super_blocks(
    source: ScanSource, base: int, pointers: list[int], first: int, shape: _Shape
) -> list[_Data]:
    """Return the data blocks that hang from super blocks."""
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
            out.append(
                _Data(address, begin + number * length, length, None if bits is None else bits[number])
            )
    return out


async def _data_blocks(
    source: ScanSource, base: int, data: list[_Data], shape: _Shape
) -> list[tuple[int, bytes]]:
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
