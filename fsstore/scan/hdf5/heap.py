"""Trees of version 2, fractal heaps, and the attributes and links that are stored in them."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import NamedTuple

from fsstore.scan.hdf5.structure import (
    Dataspace,
    Datatype,
    Message,
    Reader,
    UnknownError,
    committed,
    dataspace_of,
    datatype_of,
)

# B-trees of version 2: records in nodes of one size.

_HEAD = 6
_DEEPEST = 40


def child_pointers(node: int, record: int, depth: int, address: int) -> list[tuple[int, int]]:
    """Return how a node refers to its children, by its level: bytes of a pointer, and of the number of records in it.

    Given are the bytes of a node, of a record and of an address, and the depth of the tree.
    """
    below = most = (node - 10) // record
    width, totals, pointers = _width(most), 0, [(0, 0)]
    for _ in range(depth):
        pointer = address + width + totals
        pointers.append((pointer, width))
        inside = (node - 10 - pointer) // (record + pointer)
        below = (inside + 1) * below + inside
        totals = _width(below)
    return pointers


def _width(limit: int) -> int:
    """Return the count of bytes that hold any number up to a limit."""
    return (max(limit, 1).bit_length() - 1) // 8 + 1


def _header_size(reader: Reader) -> int:
    return 22 + reader.width + reader.lengths


def ahead_of_tree(reader: Reader, address: int) -> None:
    """Say that a tree will be read."""
    reader.ahead(address, _header_size(reader))


def tree_records(reader: Reader, address: int, kind: int) -> list[bytes]:
    """Return the records of the tree at an address, which must be of a kind, in no order."""
    head = reader.read(address, _header_size(reader))
    if head[:4] != b"BTHD":
        raise reader.damaged(address, "there is no B-tree")
    reader.verify(address, head, "a B-tree")
    if head[4] or head[5] != kind:
        raise UnknownError
    node, record, depth = (int.from_bytes(head[at:end], "little") for at, end in ((6, 10), (10, 12), (12, 14)))
    root, count = (reader.address(head, 16), int.from_bytes(head[16 + reader.width : 18 + reader.width], "little"))
    if not record or node < 64 or node > reader.size or depth > _DEEPEST:
        raise reader.damaged(address, "the sizes of a B-tree make no sense")
    if root == reader.undefined:
        return []
    pointers = child_pointers(node, record, depth, reader.width)
    level_nodes, records, seen = [(root, count)], list[bytes](), 0
    for level in range(depth, -1, -1):
        seen += len(level_nodes)
        if seen * node > reader.size + node:
            raise reader.damaged(address, "the nodes of a B-tree refer to each other")
        for place, _ in level_nodes:
            reader.ahead(place, node)
        below: list[tuple[int, int]] = []
        for place, count in level_nodes:
            data = reader.read(place, node)
            records += _records(reader, place, data, record, count, pointers[level][0])
            if level:
                below += children(data[_HEAD + count * record :], count + 1, pointers[level], reader.width)
        level_nodes = below
    return records


def _records(reader: Reader, address: int, data: bytes, record: int, count: int, pointer: int) -> list[bytes]:
    end = _HEAD + count * record
    stop = end + (count + 1) * pointer + 4 if pointer else end + 4
    if data[:4] != (b"BTIN" if pointer else b"BTLF") or stop > len(data):
        raise reader.damaged(address, "there is no node of a B-tree")
    reader.verify(address, data[:stop], "a node of a B-tree")
    return [data[at : at + record] for at in range(_HEAD, end, record)]


def children(data: bytes, count: int, sizes: tuple[int, int], address: int) -> list[tuple[int, int]]:
    """Return the addresses of the children of a node, and how many records each has.

    `sizes` are the bytes of a pointer and of the number in it, `address` those of an address.
    """
    pointer, width = sizes
    out = []
    for at in range(0, min(count * pointer, len(data) - pointer + 1), pointer):
        end = at + address
        out.append((int.from_bytes(data[at:end], "little"), int.from_bytes(data[end : end + width], "little")))
    return out


# Fractal heaps: objects of any size in blocks that double.
#
# Objects lie in a space of addresses of their own, which is cut into rows of blocks: those of the first two
# rows are equally large, those of each further row twice as large as before. Blocks up to a size hold
# objects, larger ones are cut into rows themselves. The tiniest objects stand in the ids that name them,
# and huge ones outside of the heap.

_DEEPEST_HEAP = 64
_HUGE_RECORDS = 1
_CHECKED = 2
_MANAGED, _HUGE, _TINY = (0, 1, 2)  # how an object is stored: the high bits of its id, of which the version is 0


class _Block(NamedTuple):
    """A block of objects: where it is in the file, and its place and size in the space of the heap."""

    address: int
    start: int
    size: int


def _heap_header_size(reader: Reader) -> int:
    return 26 + 12 * reader.lengths + 3 * reader.width


def ahead_of_heap(reader: Reader, address: int) -> None:
    """Say that a heap will be read."""
    reader.ahead(address, _heap_header_size(reader))


def heap_at(reader: Reader, address: int) -> FractalHeap:
    """Return the heap at an address."""
    size = _heap_header_size(reader)
    head = reader.read(address, size)
    if head[:4] != b"FRHP":
        raise reader.damaged(address, "there is no fractal heap")
    if head[4] or int.from_bytes(head[7:9], "little"):  # its blocks are filtered
        raise UnknownError
    reader.verify(address, head, "a fractal heap")
    return FractalHeap(reader, address, head)


class FractalHeap:
    """A heap by its header."""

    def __init__(self, reader: Reader, address: int, head: bytes) -> None:
        self._reader, self._address = reader, address
        width, lengths = reader.width, reader.lengths
        self._id_size, self._flags = int.from_bytes(head[5:7], "little"), head[9]
        most_managed = int.from_bytes(head[10:14], "little")
        self._huge = reader.address(head, 14 + lengths)
        at = 14 + 10 * lengths + 2 * width
        self._columns = int.from_bytes(head[at : at + 2], "little")
        self._smallest, self._largest = reader.length(head, at + 2), reader.length(head, at + 2 + lengths)
        at += 2 + 2 * lengths
        self._bits = int.from_bytes(head[at : at + 2], "little")
        self._root = reader.address(head, at + 4)
        self._rows = int.from_bytes(head[at + 4 + width : at + 6 + width], "little")
        for size in (self._columns, self._smallest, self._largest):
            if size < 1 or size & (size - 1):
                raise reader.damaged(address, "the sizes of a fractal heap make no sense")
        if self._smallest > self._largest or self._largest > 2**31 or not 0 < self._bits <= 64:
            raise reader.damaged(address, "the sizes of a fractal heap make no sense")
        self._offset_size = -(-self._bits // 8)
        # how many bytes hold the length of an object
        by_block = (self._largest.bit_length() - 1 + 7) // 8
        self._length_size = min(by_block, (max(most_managed, 1).bit_length() - 1) // 8 + 1)
        self._direct_rows = self._largest.bit_length() - self._smallest.bit_length() + 2
        self._latest = _Block(reader.undefined, 0, 0), b""  # a block of objects, most of which lie in one

    def ahead(self) -> None:
        """Say that objects will be read."""
        if self._root != self._reader.undefined:
            size = self._indirect_size(self._rows) if self._rows else self._smallest
            self._reader.ahead(self._root, size)

    def objects(self, ids: list[bytes]) -> list[bytes]:
        """Return objects by their ids."""
        kinds = [each[0] >> 4 for each in ids]
        if any(kind > _TINY for kind in kinds):
            raise UnknownError
        if self._reader.waits:
            for kind, each in zip(kinds, ids, strict=True):
                if kind == _MANAGED:
                    block = self._block(self._offset(each))
                    self._reader.ahead(block.address, block.size)
        places = self._huge_places() if _HUGE in kinds else {}
        out = []
        for kind, each in zip(kinds, ids, strict=True):
            if kind == _MANAGED:
                out.append(self._managed(each))
            else:
                out.append(self._huge_object(each, places) if kind == _HUGE else self._tiny(each))
        return out

    def _tiny(self, name: bytes) -> bytes:
        if self._id_size - 1 > 16:
            raise UnknownError
        size = (name[0] & 0xF) + 1
        if size > len(name) - 1:
            raise self._reader.damaged(self._address, "an object of a fractal heap is cut off")
        return name[1 : 1 + size]

    def _huge_places(self) -> dict[int, tuple[int, int]]:
        """Return address and length of huge objects by their numbers."""
        width, lengths = self._reader.width, self._reader.lengths
        if self._id_size - 1 >= width + lengths:
            return {}
        places = {}
        for record in tree_records(self._reader, self._huge, _HUGE_RECORDS):
            number = self._reader.length(record, width + lengths)
            places[number] = self._reader.address(record, 0), self._reader.length(record, width)
        return places

    def _huge_object(self, name: bytes, places: dict[int, tuple[int, int]]) -> bytes:
        reader = self._reader
        if self._id_size - 1 >= reader.width + reader.lengths:
            place = reader.address(name, 1), reader.length(name, 1 + reader.width)
        else:
            number = int.from_bytes(name[1 : 1 + min(reader.lengths, self._id_size - 1)], "little")
            if number not in places:
                raise reader.damaged(self._address, f"a fractal heap has no huge object {number}")
            place = places[number]
        return reader.read(*place)

    def _offset(self, name: bytes) -> int:
        return int.from_bytes(name[1 : 1 + self._offset_size], "little")

    def _managed(self, name: bytes) -> bytes:
        at = 1 + self._offset_size
        offset = int.from_bytes(name[1:at], "little")
        length = int.from_bytes(name[at : at + self._length_size], "little")
        block, data = self._latest
        start = offset - block.start
        if not 0 <= start < block.size:
            block = self._block(offset)
            start = offset - block.start
            data = self._direct(block)
            self._latest = block, data
        if start + length > block.size:
            raise self._reader.damaged(block.address, "an object lies outside of its block of a fractal heap")
        return data[start : start + length]

    def _direct(self, block: _Block) -> bytes:
        def load() -> bytes:
            reader, data = self._reader, self._reader.read(block.address, block.size)
            end = 5 + reader.width + self._offset_size
            if data[:5] != b"FHDB\0" or int.from_bytes(data[end - self._offset_size : end], "little") != block.start:
                raise reader.damaged(block.address, "there is no block of a fractal heap")
            if self._flags & _CHECKED:  # the checksum counts as zeros
                stored = data[end : end + 4]
                reader.verify(block.address, data[:end] + bytes(4) + data[end + 4 :] + stored, "a block of a heap")
            return data

        found: bytes = self._reader.once(("block", block.address, block.size), load)
        return found

    def _block(self, offset: int) -> _Block:
        address, rows, start = self._root, self._rows, 0
        if not rows:
            return self._known(_Block(address, 0, self._smallest))
        first = self._smallest * self._columns
        for _ in range(_DEEPEST_HEAP):
            children = self._indirect(address, rows, start)
            inside = offset - start
            row = 0 if inside < first else (inside // first).bit_length()
            size = self._smallest << max(row - 1, 0)
            above = 0 if not row else first << (row - 1)
            column = (inside - above) // size
            if inside < 0 or row >= rows:
                break
            child, start = children[row * self._columns + column], start + above + column * size
            if row < self._direct_rows:
                return self._known(_Block(child, start, size))
            address, rows = child, size.bit_length() - first.bit_length() + 1
            if address == self._reader.undefined:
                break
        raise self._reader.damaged(self._address, f"a fractal heap has no place {offset}")

    def _known(self, block: _Block) -> _Block:
        if block.address == self._reader.undefined:
            raise self._reader.damaged(self._address, f"a fractal heap has no place {block.start}")
        return block

    def _indirect_size(self, rows: int) -> int:
        return 5 + self._reader.width + self._offset_size + self._reader.width * rows * self._columns + 4

    def _indirect(self, address: int, rows: int, start: int) -> list[int]:
        """Return the addresses of the blocks of a block that is cut into rows."""
        reader = self._reader

        def load() -> list[int]:
            size = self._indirect_size(rows)
            data = reader.read(address, size)
            at = 5 + reader.width
            if data[:5] != b"FHIB\0" or int.from_bytes(data[at : at + self._offset_size], "little") != start:
                raise reader.damaged(address, "there is no block of a fractal heap")
            reader.verify(address, data, "a block of a fractal heap")
            return [reader.address(data, each) for each in range(at + self._offset_size, size - 4, reader.width)]

        found: list[int] = reader.once(("rows", address, rows), load)
        return found


# Attributes and links outside of the header of their object: in a heap, found by a tree.

ATTRIBUTES, LINKS = 8, 5
"""The kinds of records of the trees."""

_SHARED = 2


class Dense(NamedTuple):
    """Where messages are; `tracked`: the order of creation is known."""

    heap: int
    tree: int
    tracked: bool


def dense_of(reader: Reader, message: Message) -> Dense:
    """Return what an information message says of attributes (0x15) or links (0x02)."""
    body = message.body
    if len(body) < 2 or body[0]:
        raise UnknownError
    tracked = bool(body[1] & 1)
    at = 2 + ((2 if message.kind == 0x15 else 8) if tracked else 0)
    if len(body) < at + 2 * reader.width:
        raise reader.damaged(message.address, "where attributes or links are is cut off")
    return Dense(reader.address(body, at), reader.address(body, at + reader.width), tracked)


def ahead_of_dense(reader: Reader, place: Dense) -> None:
    """Say that the messages of an object will be read."""
    if reader.undefined not in (place.heap, place.tree):
        ahead_of_heap(reader, place.heap)
        ahead_of_tree(reader, place.tree)


def dense_messages(reader: Reader, place: Dense, kind: int) -> Sequence[tuple[bytes, int]]:
    """Return messages and the address of the heap that holds them."""
    if reader.undefined in (place.heap, place.tree):
        return ()
    ahead_of_dense(reader, place)
    heap = heap_at(reader, place.heap)
    heap.ahead()
    records = tree_records(reader, place.tree, kind)
    if kind == ATTRIBUTES:
        if any(record[8] & _SHARED for record in records):
            raise UnknownError
        ids = [record[:8] for record in records]
    else:
        ids = [record[4:11] for record in records]
    return [(each, place.heap) for each in heap.objects(ids)]


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
        raise reader.damaged(address, f"the attribute {name!r} has {len(data)} bytes instead of {form.nbytes}")
    return Attribute(name, form.type, form.space, data, address)


def _form(reader: Reader, described: bytes, shape: bytes, shared: int, address: int) -> _Common:
    """Return a type and a shape by their messages."""
    kind = datatype_of(reader, committed(reader, described, _DATATYPE) if shared else described, address)
    space = dataspace_of(reader, shape, address)
    return _Common(kind, space, 0 if space.shape is None else math.prod(space.shape) * kind.size)
