"""The superblock, links and symbol tables, layouts, raw files and filters of datasets, and global heaps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from fsstore.scan.hdf5.structure import DamagedError, FileBytes, Reader, UnknownError, messages_of

_USUAL_HEAP = 4096  # bytes of a heap of values as the library makes it, unless a value needs more

# Filter pipelines, in the order of writing.

_NAMED = 256  # the first number of a filter that is not of HDF5 itself
_NAMES = {1: "deflate", 2: "shuffle", 3: "fletcher32", 4: "szip", 5: "nbit", 6: "scaleoffset"}


class Filter(NamedTuple):
    """A filter of the pipeline, in the order of writing."""

    id: int
    values: tuple[int, ...]
    name: str


def filters_of(reader: Reader, body: bytes, address: int) -> tuple[Filter, ...]:
    """Return the filters of a message."""
    if len(body) < 2 or body[0] not in (1, 2):
        raise UnknownError
    version, count = body[0], body[1]
    at = 8 if version == 1 else 2
    out = []
    for _ in range(count):
        code = int.from_bytes(body[at : at + 2], "little")
        at += 2
        size = 0
        if version == 1 or code >= _NAMED:
            size, at = int.from_bytes(body[at : at + 2], "little"), at + 2
        number, at = int.from_bytes(body[at + 2 : at + 4], "little"), at + 4
        end = at + (-(-size // 8) * 8 if version == 1 else size)
        name = body[at : at + size].split(b"\0")[0].decode("utf-8", "replace")
        stop = end + 4 * number
        if stop > len(body):
            raise reader.damaged(address, "a pipeline of filters is cut off")
        values = tuple(int.from_bytes(body[each : each + 4], "little") for each in range(end, stop, 4))
        out.append(Filter(code, values, name or _NAMES.get(code, "")))
        at = stop + (4 if version == 1 and number % 2 else 0)
    return tuple(out)


# Where and how the values of a dataset are stored.

UNDEFINED = 2**64 - 1
_LAYOUT = 0x08
_COMPACT, _CONTIGUOUS, _CHUNKED, _VIRTUAL = 0, 1, 2, 3

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
    """A layout. `address` is None before the first write.

    The mapping of a virtual dataset is value `number` of the global heap at that address.
    """

    kind: Literal["compact", "contiguous", "chunked", "virtual"]
    address: int | None = None
    number: int = 0
    chunks: tuple[int, ...] = ()
    index: IndexPlace | None = None


def layout_of(reader: Reader, body: bytes, address: int) -> Layout:
    """Return the layout of a message of a dataset."""
    if len(body) < 3:
        raise reader.damaged(address, "a layout is cut off")
    if body[0] in (1, 2):
        return _old(reader, body, address)
    if body[0] not in (3, 4, 5):
        raise UnknownError
    if body[1] == _COMPACT:
        return Layout("compact")
    if body[1] == _CONTIGUOUS:
        _long_enough(reader, body, 2 + reader.width + reader.lengths, address)
        place = reader.address(body, 2)
        return Layout("contiguous", None if place == reader.undefined else place)
    if body[1] == _VIRTUAL:
        _long_enough(reader, body, 6 + reader.width, address)
        place, number = (reader.address(body, 2), int.from_bytes(body[2 + reader.width : 6 + reader.width], "little"))
        return Layout("virtual", None if place == reader.undefined else place, number)
    if body[1] != _CHUNKED:
        raise UnknownError
    return _tree(reader, body, address) if body[0] == 3 else _indexed(reader, body, address)


def _long_enough(reader: Reader, body: bytes, need: int, address: int) -> None:
    if len(body) < need:
        raise reader.damaged(address, "a layout is cut off")


def _numbers(body: bytes, at: int, count: int, width: int) -> tuple[int, ...]:
    return tuple(int.from_bytes(body[each : each + width], "little") for each in range(at, at + count * width, width))


def _old(reader: Reader, body: bytes, address: int) -> Layout:
    """Return a layout of version 1 or 2: a shape stands behind its class and its address."""
    rank, kind, at = body[1], body[2], 8
    if kind == _COMPACT:
        return Layout("compact")
    _long_enough(reader, body, at + reader.width + 4 * rank, address)
    place = reader.address(body, at)
    shape = _numbers(body, at + reader.width, rank, 4)
    if kind == _CONTIGUOUS:
        return Layout("contiguous", None if place == reader.undefined else place)
    if kind != _CHUNKED or not rank:
        raise UnknownError
    return _chunked(reader, shape[:-1], IndexPlace("tree1", _defined(reader, place)), address)


def _tree(reader: Reader, body: bytes, address: int) -> Layout:
    rank, at = body[2], 3 + reader.width
    _long_enough(reader, body, at + 4 * rank, address)
    place = IndexPlace("tree1", _defined(reader, reader.address(body, 3)))
    if not rank:
        raise reader.damaged(address, "chunks without a shape")
    return _chunked(reader, _numbers(body, at, rank - 1, 4), place, address)


def _indexed(reader: Reader, body: bytes, address: int) -> Layout:
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


class External(NamedTuple):
    """A part of a dataset's values in another file."""

    name: str
    offset: int
    size: int


def external_of(reader: Reader, body: bytes, address: int) -> tuple[External, ...]:
    """Return the files of a message that hold the values of a dataset."""
    first, count = 8 + reader.width, int.from_bytes(body[6:8], "little")
    if body[:1] != b"\1":
        raise UnknownError
    if len(body) < first + 3 * reader.lengths * count:
        raise reader.damaged(address, "a list of raw files is cut off")
    names = _names(reader, reader.address(body, 8), 8 + 2 * reader.lengths + reader.width)
    found = []
    for number in range(count):
        at = first + 3 * reader.lengths * number
        name, offset, size = (reader.length(body, at + reader.lengths * part) for part in range(3))
        found.append(External(_text(reader, address, names, name).decode("utf-8", "surrogateescape"), offset, size))
    return tuple(found)


# Links as messages.

_HARD, _SOFT, _EXTERNAL = 0, 1, 64


class ObjectLink(NamedTuple):
    """A link: a hard one leads to an address, others to a name, those to other files to one in `file`."""

    name: bytes
    kind: Literal["hard", "soft", "external", "other"]
    address: int = 0
    target: bytes = b""
    file: bytes = b""
    order: int = 0


def link_of(reader: Reader, body: bytes, address: int) -> ObjectLink:
    """Return the link of a message."""
    if len(body) < 3 or body[0] != 1:
        raise UnknownError
    flags, at, kind, order = body[1], 2, _HARD, 0
    if flags & 8:
        kind, at = body[at], at + 1
    if flags & 4:
        order, at = int.from_bytes(body[at : at + 8], "little", signed=True), at + 8
    if flags & 16:
        at += 1
    width = 1 << (flags & 3)
    size = int.from_bytes(body[at : at + width], "little")
    at += width
    name, at = body[at : at + size], at + size
    need = reader.width if kind == _HARD else 2
    if at + need > len(body) or not name:
        raise reader.damaged(address, "a link is cut off")
    if kind == _HARD:
        return ObjectLink(name, "hard", reader.address(body, at), order=order)
    size = int.from_bytes(body[at : at + 2], "little")
    value = body[at + 2 : at + 2 + size]
    if len(value) < size:
        raise reader.damaged(address, "the target of a link is cut off")
    if kind == _SOFT:
        return ObjectLink(name, "soft", target=value, order=order)
    if kind != _EXTERNAL:
        return ObjectLink(name, "other", order=order)
    if value[:1] != b"\0":
        raise UnknownError
    file, _, target = value[1:].partition(b"\0")
    return ObjectLink(name, "external", target=target.partition(b"\0")[0], file=file, order=order)


# Links of groups of the first kind: a tree of names, which lie in a local heap.

_LEVELS = 64
_SOFT_ENTRY = 2
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
    reader.ahead(address, 8 + 8 * for_each)  # of eight links, as the library makes them
    head = reader.read(address, 8)
    if head[:5] != b"SNOD\1":
        raise reader.damaged(address, "there is no node with links")
    data = reader.read(address + 8, int.from_bytes(head[6:8], "little") * for_each)
    out = []
    for at in range(0, len(data), for_each):
        name = _text(reader, address, names, reader.address(data, at))
        kind = int.from_bytes(data[at + 2 * reader.width : at + 2 * reader.width + 4], "little")
        if kind == _SOFT_ENTRY:
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


# Global heaps: values of any length, numbered in collections.

COLLECTION = b"GCOL\1"


def ends(heap: bytes, lengths: int) -> bool:
    """Return whether a walk through the objects of a collection comes to an end; HDF5 does not see to that.

    An object of number 0 is what is left, and its size counts its header too.
    """
    head, at = 8 + lengths, 8 + lengths
    end = int.from_bytes(heap[8:at], "little")
    while at + head <= min(end, len(heap)):
        size = int.from_bytes(heap[at + 8 : at + head], "little")
        step = head + -(-size // 8) * 8 if heap[at] or heap[at + 1] else size
        if not 0 < step <= end - at:
            return False
        at += step
    return True


def heap_value(reader: Reader, address: int, number: int) -> bytes:
    """Return a value of the collection at an address."""
    values: dict[int, bytes] = reader.once(("heap", address), lambda: _values(reader, address))
    found = values.get(number)
    if found is None:
        raise reader.damaged(address, f"the global heap has no value {number}")
    return found


def _values(reader: Reader, address: int) -> dict[int, bytes]:
    data = reader.upto(address, _USUAL_HEAP)
    if data[:5] != COLLECTION:
        raise reader.damaged(address, "there is no global heap")
    size, head = reader.length(data, 8), 8 + reader.lengths
    if size > _MOST_BYTES:
        raise reader.damaged(address, f"a global heap of {size} bytes")
    data = data[:size] if size <= len(data) else reader.read(address, size)
    if len(data) < size or not ends(data, reader.lengths):
        where = reader.base + address
        raise reader.damaged(address, f"the global heap at offset {where} is damaged: a size leads nowhere")
    found: dict[int, bytes] = {}
    at = head
    while at + head <= size:
        number, length = int.from_bytes(data[at : at + 2], "little"), reader.length(data, at + 8)
        if not number:
            break
        found[number] = data[at + head : at + head + length]
        at += head + -(-length // 8) * 8
    return found


SIGNATURE = b"\x89HDF\r\n\x1a\n"
_HARMLESS = frozenset(
    {0x00, 0x02, 0x0A, 0x0F, 0x10, 0x12, 0x13, 0x17}
)  # nothing, what any group has, shared messages, what goes on elsewhere, a time, sizes of trees, free space


def begin(place: FileBytes) -> tuple[Reader, int]:
    """Return a reader of the file, and the address of the header of its root group.

    Raises `DamagedError` if it is no HDF5 file or is cut off, and `UnknownError` if its superblock is not known.
    """
    for start in _starts(place.size):
        if place.octets(start, start + 8) == SIGNATURE:
            break
    else:
        raise DamagedError(f"{place.describe(0)}: there is no signature of an HDF5 file")
    head = place.octets(start, min(start + 128, place.size)).ljust(128, b"\0")
    version = head[8]
    if version > 3:
        raise UnknownError(f"its superblock has version {version}, which is not known")
    width, lengths = (head[13], head[14]) if version < 2 else (head[9], head[10])
    if width not in (2, 4, 8) or lengths not in (2, 4, 8):
        raise UnknownError(f"its addresses have {width} bytes and its lengths {lengths}")
    reader = Reader(place, start, width, lengths)
    return reader, (_first if version < 2 else _second)(reader, head)


def _starts(size: int) -> Iterator[int]:
    start = 0
    while start + 8 <= size:
        yield start
        start = start * 2 or 512


def _first(reader: Reader, head: bytes) -> int:
    """Return the address of the root group by a superblock of version 0 or 1."""
    at = 24 + 4 * (head[8] == 1)
    base, extension, end, driver = (reader.address(head, at + number * reader.width) for number in range(4))
    if driver != reader.undefined or extension != reader.undefined:
        raise UnknownError("it is one of several files that make up an HDF5 file together")
    _is_whole(reader, base, end)
    return reader.address(head, at + 5 * reader.width)


def _second(reader: Reader, head: bytes) -> int:
    """Return the address of the root group by a superblock of version 2 or 3."""
    size = 12 + 4 * reader.width + 4
    reader.verify(0, head[:size], "the superblock")
    base, extension, end, root = (reader.address(head, 12 + number * reader.width) for number in range(4))
    if head[8] == 3 and head[11]:
        raise DamagedError(
            f"{reader.place.describe(reader.base)}: it is marked as open for writing; close its writer, "
            "or, if that is gone, clear the mark with h5clear"
        )
    _is_whole(reader, base, end)
    if extension != reader.undefined and any(each.kind not in _HARMLESS for each in messages_of(reader, extension)):
        raise UnknownError("its superblock has an extension that is not known")
    return root


def _is_whole(reader: Reader, base: int, end: int) -> None:
    """Raise if the file is shorter than its superblock says."""
    stop = end + reader.base - base
    if reader.size < stop:
        raise DamagedError(
            f"{reader.place.describe(reader.base)}: it is cut off: it should have {stop} bytes, but has {reader.size}"
        )
