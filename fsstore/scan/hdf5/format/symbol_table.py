"""Links of groups of the first kind: a tree of names, which lie in a local heap."""

from __future__ import annotations

from fsstore.scan.hdf5.format.link import ObjectLink
from fsstore.scan.hdf5.format.reader import Reader
from fsstore.scan.tuning import LINKS_AHEAD_BYTES

__all__ = ["links_of_table"]

_LEVELS = 64
_SOFT = 2
_MOST_BYTES = 2**30


def links_of_table(reader: Reader, body: bytes, address: int) -> list[ObjectLink]:
    """Return the links of the group whose message of a symbol table is `body`, by name."""
    width = reader.width
    if len(body) < 2 * width:
        raise reader.damaged(address, "a symbol table is cut off")
    tree, heap = reader.address(body, 0), reader.address(body, width)
    head = 8 + 2 * reader.lengths + width
    reader.ahead(heap, head)
    reader.ahead(tree, 8 + 2 * width)
    names = _names(reader, heap, head)
    out: list[ObjectLink] = []
    for place in _leaves(reader, tree):
        out += _symbols(reader, place, names)
    return out


def _names(reader: Reader, address: int, size: int) -> bytes:
    """Return the data of a local heap."""
    head = reader.read(address, size)
    if head[:5] != b"HEAP\0":
        raise reader.damaged(address, "there is no local heap")
    length, place = reader.length(head, 8), reader.address(head, 8 + 2 * reader.lengths)
    if length > _MOST_BYTES:
        raise reader.damaged(address, f"a local heap of {length} bytes")
    return reader.read(place, length)


def _leaves(reader: Reader, tree: int) -> list[int]:
    """Return the addresses of the nodes with links, in order."""
    places, level, seen = [tree], -1, 0
    head = 8 + 2 * reader.width
    step = reader.lengths + reader.width
    for _ in range(_LEVELS):
        seen += len(places)
        if seen * head > 2 * reader.size:
            raise reader.damaged(tree, "the nodes of a tree of names refer to each other")
        for place in places:
            reader.ahead(place, head)
        below, found = list[int](), 0
        for place in places:
            node = reader.read(place, head)
            if node[:5] != b"TREE\0" or (level >= 0 and node[5] != level):
                raise reader.damaged(place, "there is no node of a tree of names")
            count = int.from_bytes(node[6:8], "little")
            entries = reader.read(place + head, count * step)
            below += [reader.address(entries, at + reader.lengths) for at in range(0, len(entries), step)]
            found = node[5]
        places = below
        level = found - 1
        if not found or not places:
            return places
    raise reader.damaged(tree, "a tree of names without leaves")


def _symbols(reader: Reader, address: int, names: bytes) -> list[ObjectLink]:
    for_each = 2 * reader.width + 24
    reader.ahead(address, LINKS_AHEAD_BYTES)
    head = reader.read(address, 8)
    if head[:5] != b"SNOD\1":
        raise reader.damaged(address, "there is no node with links")
    data = reader.read(address + 8, int.from_bytes(head[6:8], "little") * for_each)
    out = []
    for at in range(0, len(data), for_each):
        name = _text(reader, address, names, reader.address(data, at))
        kind = int.from_bytes(data[at + 2 * reader.width : at + 2 * reader.width + 4], "little")
        if kind == _SOFT:
            scratch = at + 2 * reader.width + 8
            place = int.from_bytes(data[scratch : scratch + 4], "little")
            out.append(ObjectLink(name, "soft", target=_text(reader, address, names, place)))
        else:
            out.append(ObjectLink(name, "hard", reader.address(data, at + reader.width)))
    return out


def _text(reader: Reader, address: int, names: bytes, at: int) -> bytes:
    end = names.find(b"\0", at)
    if end < 0 or at >= len(names):
        raise reader.damaged(address, "a name lies outside of its local heap")
    return names[at:end]
