"""B-trees of version 2: records in nodes of one size."""

from __future__ import annotations

from fsstore.scan.hdf5.format.reader import Reader, UnknownError

__all__ = ["ahead_of_tree", "child_pointers", "tree_records"]

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
    """Return how many bytes hold a number up to a limit."""
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
    node, record, depth = (
        int.from_bytes(head[at:end], "little") for at, end in ((6, 10), (10, 12), (12, 14))
    )
    root, count = (
        reader.address(head, 16),
        int.from_bytes(head[16 + reader.width : 18 + reader.width], "little"),
    )
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
                below += _children(reader, data[_HEAD + count * record :], count + 1, pointers[level])
        level_nodes = below
    return records


def _records(reader: Reader, address: int, data: bytes, record: int, count: int, pointer: int) -> list[bytes]:
    end = _HEAD + count * record
    stop = end + (count + 1) * pointer + 4 if pointer else end + 4
    if data[:4] != (b"BTIN" if pointer else b"BTLF") or stop > len(data):
        raise reader.damaged(address, "there is no node of a B-tree")
    reader.verify(address, data[:stop], "a node of a B-tree")
    return [data[at : at + record] for at in range(_HEAD, end, record)]


def _children(reader: Reader, data: bytes, count: int, sizes: tuple[int, int]) -> list[tuple[int, int]]:
    pointer, width = sizes
    out = []
    for at in range(0, min(count * pointer, len(data) - pointer + 1), pointer):
        start = at + reader.width
        out.append((reader.address(data, at), int.from_bytes(data[start : start + width], "little")))
    return out
