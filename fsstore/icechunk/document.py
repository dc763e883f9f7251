"""The documents of an Icechunk repository: its root, snapshots, and manifests.

The description of an array in a snapshot is read when the array is touched; until then a node is its path, its
document as a view, and where the rest lies.  Shapes are only good for refusing keys outside the grid: what an array
is, its document says.

The references of an array are sorted by chunk index, so one is found by bisection over the payload, without making
anything of the others.  For many, and for listings, they become columns: a manifest has few distinct vtables, and all
references of one have a field at the same distance from where their table begins, so NumPy gathers it.

A reference that makes no sense is an error when that chunk is read, not of the manifest.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from fsstore.errors import DataLossError
from fsstore.icechunk.encoding import (
    OBJECT_BYTES,
    FlatTable,
    Vector,
    containers_of_flexbuffer,
    damaged,
    encode_identifier,
    open_envelope,
    root_table,
    table_at,
)

# Snapshots: groups and arrays of a hierarchy, their documents, and the manifests that hold the chunks of an array.

NODE_BYTES = 8
_ARRAY, _GROUP = 1, 2


@dataclass(frozen=True, slots=True)
class ManifestRef:
    """A manifest and the box of chunks it covers: where it begins and ends along each axis."""

    id: bytes
    start: tuple[int, ...]
    stop: tuple[int, ...]

    def covers(self, index: tuple[int, ...]) -> bool:
        """Return whether a chunk lies in the box; one of another rank never does."""
        return len(index) == len(self.start) and all(
            low <= at < high for low, at, high in zip(self.start, index, self.stop, strict=True)
        )


@dataclass(frozen=True, slots=True)
class ArrayChunks:
    """How many chunks an array may have along each axis, and the manifests that hold them."""

    counts: tuple[int, ...]
    manifests: tuple[ManifestRef, ...]

    def inside(self, index: tuple[int, ...]) -> bool:
        """Return whether an index is one of the grid; that of an empty axis has one chunk, which is missing."""
        return len(index) == len(self.counts) and all(
            at < max(count, 1) for at, count in zip(index, self.counts, strict=True)
        )

    def manifest(self, index: tuple[int, ...]) -> ManifestRef | None:
        """Return the manifest whose box holds a chunk; boxes do not overlap, and come in any order."""
        return next((each for each in self.manifests if each.covers(index)), None)


@dataclass(frozen=True, slots=True)
class SnapshotNode:
    """A group or an array.  `path` has no slash at its ends."""

    path: str
    id: bytes
    is_array: bool
    document: memoryview
    _table: FlatTable = field(repr=False)

    def chunks(self) -> ArrayChunks:
        """Return where the chunks of an array are found."""
        data = self._table.table(4)
        if data is None:
            raise damaged("An array does not say where its chunks are", self._table.at)
        counts = _counts(data)
        manifests = tuple(_manifest_ref(each) for each in data.need(2, 4).tables())
        return ArrayChunks(counts, manifests)


@dataclass(frozen=True, slots=True)
class HierarchySnapshot:
    """The nodes by path, in the order of their paths."""

    id: bytes
    nodes: Mapping[str, SnapshotNode]
    nbytes: int

    @property
    def name(self) -> str:
        """The name of the object."""
        return encode_identifier(self.id)


def decode_snapshot(data: bytes, expected: bytes) -> HierarchySnapshot:
    """Return the snapshot in an object `snapshots/...`, which must say that it is the one expected."""
    payload = open_envelope(data, "snapshot").payload
    root = root_table(payload)
    found = root.raw(0, OBJECT_BYTES)
    if found != expected:
        other = "none" if found is None else encode_identifier(found)
        raise damaged(f"The object holds another snapshot, {other}", root.at)
    nodes: dict[str, SnapshotNode] = {}
    last = b""
    for table in root.need(2, 4).tables():
        node, raw = _node(table)
        if raw <= last:  # also bounds how often offsets may lead to the same node
            raise damaged("The nodes are not in the order of their paths", table.at)
        last = raw
        nodes[node.path] = node
    return HierarchySnapshot(expected, nodes, len(payload) + 500 * len(nodes))


def _node(table: FlatTable) -> tuple[SnapshotNode, bytes]:
    path, identifier, kind = table.text(1), table.raw(0, NODE_BYTES), table.u8(3)
    if path is None or identifier is None or kind not in (_ARRAY, _GROUP):
        raise damaged("A node has no path, no identifier, or an unknown type", table.at)
    parts = path[1:].split("/") if path != "/" else []
    if path[:1] != "/" or any(part in ("", ".", "..") for part in parts) or "\0" in path:
        raise damaged(f"{path[:100]!r} is no path", table.at)
    document = table.need(2, 1).view()
    return SnapshotNode(path[1:], identifier, kind == _ARRAY, document, table), path.encode()


def _counts(data: FlatTable) -> tuple[int, ...]:
    newer = data.vector(3, 4)
    if newer is not None:
        return tuple(each.u32(1) for each in newer.tables())
    older = data.need(0, 16)
    pairs = np.frombuffer(older.view(), "<u8").reshape(-1, 2).tolist()
    return tuple(-(-length // chunk) if chunk else 0 for length, chunk in pairs)


def _manifest_ref(table: FlatTable) -> ManifestRef:
    identifier = table.raw(0, OBJECT_BYTES)
    extents: Vector = table.need(1, 8)
    if identifier is None:
        raise damaged("A manifest is referred to without its identifier", table.at)
    box = np.frombuffer(extents.view(), "<u4").reshape(-1, 2)
    return ManifestRef(identifier, tuple(box[:, 0].tolist()), tuple(box[:, 1].tolist()))


# Manifests: where the chunks of arrays are, looked up in place or as columns.

_U32 = struct.Struct("<I").unpack_from
_LONGEST_LOCATION = 64 * 1024
_MOST_LOCATIONS = 4096  # whose text is kept
_LARGEST_CHUNK = 2**62
_MOST_VTABLES = 512  # writers need five at most
_INDEX, _INLINE, _OFFSET, _LENGTH, _CHUNK, _LOCATION, _ETAG, _MODIFIED, _COMPRESSED = range(9)

Ints: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
Kind = Literal["inline", "native", "virtual"]


class Reference(NamedTuple):
    """Where a chunk is: `value` in the manifest, or `length` bytes at `offset` of the object or URL called `place`.

    The object behind a URL must have the entity tag `etag`, if there is one, and must not be modified after `modified`
    (seconds since 1970, 0: any time).
    """

    kind: Kind
    length: int
    offset: int = 0
    place: str = ""
    value: bytes | memoryview = b""
    etag: str | None = None
    modified: int = 0


@dataclass(frozen=True)
class ReferenceColumns:
    """The references of an array: chunk indexes, a row each, in ascending order, and where their tables are.

    `lengths` are the sizes of chunks, -1 where the reference is damaged.
    """

    index: Ints
    tables: Ints
    lengths: Ints

    @property
    def nbytes(self) -> int:
        """The memory they take."""
        return int(self.index.nbytes * 2 + self.tables.nbytes + self.lengths.nbytes)

    @cached_property
    def _sizes(self) -> list[int]:
        return (self.index.max(axis=0) + 1).tolist() if len(self.index) else []

    @cached_property
    def _keys(self) -> Any:
        return self._key(self.index)

    def _key(self, index: Ints) -> Any:
        """Return what orders indexes as one number each, or as bytes where that would be too large."""
        total = 1
        for size in self._sizes:
            total *= size
        if total < 2**62:
            out = np.zeros(len(index), np.int64)
            for axis, size in enumerate(self._sizes):
                out = out * size + index[:, axis]
            return out
        width = 4 * index.shape[1]
        return np.ascontiguousarray(index.astype(">u4")).view(f"S{width}")[:, 0]

    def find(self, wanted: Ints) -> Ints:
        """Return where the tables of chunks are, -1 for those that are not there."""
        if not len(self.index) or not len(wanted):
            return np.full(len(wanted), -1, np.int64)
        inside = np.all(wanted < np.array(self._sizes, np.int64), axis=1)
        keys = self._key(np.where(inside[:, None], wanted, 0))
        at = np.minimum(np.searchsorted(self._keys, keys), len(self.index) - 1)
        found: Ints = np.where(inside & (self._keys[at] == keys), self.tables[at], -1)
        return found

    def is_ascending(self) -> bool:
        """Return whether the references are sorted, each chunk once."""
        keys = self._keys if len(self.index) else np.zeros(0)
        return bool((keys[1:] > keys[:-1]).all())


class ArrayManifest:
    """The references of one array in a manifest."""

    def __init__(self, refs: Vector, dictionary: bytes | None) -> None:
        self._data, self._start, self.count = refs.data, refs.start, refs.count
        self._locations = Locations(dictionary)
        self._columns: dict[int, ReferenceColumns] = {}

    def bisect(self, wanted: tuple[int, ...]) -> int:
        """Return where the table of a chunk is, or -1."""
        low, high = 0, self.count
        while low < high:
            middle = (low + high) // 2
            at = self._start + 4 * middle
            at += int(_U32(self._data, at)[0])
            index = self._index(table_at(self._data, at))
            if index == wanted:
                return at
            if index < wanted:
                low = middle + 1
            else:
                high = middle
        return -1

    def _index(self, table: FlatTable) -> tuple[int, ...]:
        found = table.need(_INDEX, 4)
        return struct.unpack_from(f"<{min(found.count, 64)}I", self._data, found.start)

    def find(self, wanted: Ints) -> Ints:
        """Return where the tables of chunks are, -1 for those that are not there; few are looked up one by one."""
        rank = wanted.shape[1]
        if rank and (rank in self._columns or len(wanted) * 40 > self.count):
            return self.columns(rank).find(wanted)
        return np.array([self.bisect(tuple(row)) for row in wanted.tolist()], np.int64)

    def columns(self, rank: int) -> ReferenceColumns:
        """Return the references of chunks that have indexes of this rank."""
        found = self._columns.get(rank)
        if found is None:
            found = self._columns[rank] = gather(self._data, self._start, self.count, rank)
        return found

    @property
    def nbytes(self) -> int:
        """The memory of the columns that were made."""
        return sum(each.nbytes for each in self._columns.values())

    def reference(self, at: int) -> Reference:
        """Return the reference in the table at an offset."""
        table = table_at(self._data, at)
        offset, length = table.u64(_OFFSET), table.u64(_LENGTH)
        if offset + length > _LARGEST_CHUNK:
            raise damaged(f"A chunk is said to be {length} bytes at {offset}", at)
        chunk = table.raw(_CHUNK, OBJECT_BYTES)
        if chunk is not None:
            return Reference("native", length, offset, encode_identifier(chunk))
        location = self._location(table)
        if location is not None:
            etag, modified = table.text(_ETAG), table.u32(_MODIFIED)
            return Reference("virtual", length, offset, location, etag=etag, modified=modified)
        inline = table.vector(_INLINE, 1)
        if inline is None:
            raise damaged("A reference says of no place where its chunk is", at)
        return Reference("inline", inline.count, value=inline.view())

    def _location(self, table: FlatTable) -> str | None:
        packed = table.vector(_COMPRESSED, 1)
        if packed is None:
            return table.text(_LOCATION)
        return self._locations.text(bytes(packed.view()), packed.start)


class Locations:
    """The locations of a manifest, compressed with its dictionary; those of chunks of one file are the same frame, and
    are decompressed once.
    """

    def __init__(self, dictionary: bytes | None) -> None:
        self._dictionary = dictionary
        self._known: dict[bytes, str] = {}

    @cached_property
    def _made(self) -> Any:
        import zstandard  # on first use: it takes 3 ms

        return zstandard.ZstdCompressionDict(self._dictionary or b"")

    def text(self, frame: bytes, at: int) -> str:
        """Return the location in a frame, which stands at an offset of the manifest."""
        known = self._known.get(frame)
        if known is None:
            known = self._unpacked(frame, at)
            if len(self._known) >= _MOST_LOCATIONS:
                self._known.clear()
            self._known[frame] = known
        return known

    def _unpacked(self, frame: bytes, at: int) -> str:
        import zstandard

        try:
            size = zstandard.frame_content_size(frame)
            if self._dictionary is None or not 0 <= size <= _LONGEST_LOCATION:
                raise damaged("A compressed location has no dictionary, or too many characters", at)
            text = zstandard.ZstdDecompressor(dict_data=self._made).decompress(frame, max_output_size=size)
            return text.decode()
        except (zstandard.ZstdError, UnicodeDecodeError) as error:
            raise damaged(f"A compressed location is damaged: {error}", at) from error


@dataclass(frozen=True, slots=True)
class ChunkManifest:
    """The references of arrays, by the identifiers of their nodes."""

    arrays: Mapping[bytes, ArrayManifest]
    payload_bytes: int

    @property
    def nbytes(self) -> int:
        """The memory it takes."""
        return self.payload_bytes + sum(each.nbytes for each in self.arrays.values())


def decode_manifest(data: bytes, expected: bytes) -> ChunkManifest:
    """Return the manifest in an object `manifests/...`, which must say that it is the one expected."""
    payload = open_envelope(data, "manifest").payload
    payload += bytes(-len(payload) % 4)
    root = root_table(payload)
    found = root.raw(0, OBJECT_BYTES)
    if found != expected:
        other = "none" if found is None else encode_identifier(found)
        raise damaged(f"The object holds another manifest, {other}", root.at)
    algorithm, words = root.u8(3, 1), root.vector(2, 1)
    if algorithm not in (0, 1):
        raise damaged(f"Locations are compressed in the unknown way {algorithm}", root.at)
    dictionary = bytes(words.view()) if algorithm == 1 and words is not None and words.count else None
    arrays: dict[bytes, ArrayManifest] = {}
    for table in root.need(1, 4).tables():
        node = table.raw(0, NODE_BYTES)
        if node is None or node in arrays:
            raise damaged("The references of an array have no identifier, or that of another array", table.at)
        arrays[node] = ArrayManifest(table.need(1, 4), dictionary)
    return ChunkManifest(arrays, len(payload))


def gather(data: bytes, start: int, count: int, rank: int) -> ReferenceColumns:
    """Return the columns of `count` references, whose offsets begin at `start`."""
    words = np.frombuffer(data, "<u4")
    tables = start + 4 * np.arange(count, dtype=np.int64)
    tables += words[start // 4 : start // 4 + count]
    _check(tables, len(data), "A table")
    vtables = tables - words[tables // 4].view("<i4")
    index = np.full(count, -1, np.int64)
    lengths = np.full(count, -1, np.int64)
    distinct = np.unique(vtables).tolist()
    if len(distinct) > _MOST_VTABLES:
        raise damaged(f"The references have {len(distinct)} different vtables", start)
    for vtable in distinct:
        members = np.flatnonzero(vtables == vtable)
        mine = tables[members]
        largest = table_at(data, int(mine.max()))  # its vtable is that of all of them, and it reaches furthest
        index[members] = _follow(words, mine, largest, _INDEX, len(data))
        lengths[members] = _lengths(words, mine, largest, len(data))
    return _columns(words, tables, index, lengths, rank)


def _columns(words: Any, tables: Ints, index: Ints, lengths: Ints, rank: int) -> ReferenceColumns:
    if (index < 0).any():
        raise damaged("A reference has no chunk index", int(tables[index < 0][0]))
    if len(index) and int(index.max()) + 4 > 4 * len(words):
        raise damaged("The index of a chunk lies outside the document", int(index.max()))
    fits = words[index // 4] == rank
    index, tables, lengths = index[fits], tables[fits], lengths[fits]
    if len(index) and int(index.max()) + 4 + 4 * rank > 4 * len(words):
        raise damaged("The index of a chunk lies outside the document", int(index.max()))
    rows = np.empty((len(index), rank), np.int64)
    for axis in range(rank):
        rows[:, axis] = words[index // 4 + 1 + axis]
    found = ReferenceColumns(rows, tables, lengths)
    if not found.is_ascending():
        raise DataLossError("The references of an array are not in the order of their chunks")
    return found


def _check(positions: Ints, size: int, what: str) -> None:
    if len(positions) and (int(positions.max()) > size - 4 or (positions % 4).any()):
        bad = int(positions[(positions > size - 4) | (positions % 4 != 0)][0])
        raise damaged(f"{what} is said to be at {bad}, in {size} bytes", min(bad, size))


def _follow(words: Any, tables: Ints, one: FlatTable, field: int, size: int) -> Ints:
    """Return where the offsets of a field lead, -1 if these tables do not have it."""
    slot = one.slot(field, 4)
    if not slot:
        return np.full(len(tables), -1, np.int64)
    at = tables + (slot - one.at)
    _check(at, size, "A field")
    leads: Ints = at + words[at // 4]
    _check(leads, size, "A vector")
    return leads


def _lengths(words: Any, tables: Ints, one: FlatTable, size: int) -> Ints:
    inline = _follow(words, tables, one, _INLINE, size)
    if not one.slot(_CHUNK, OBJECT_BYTES) and not one.slot(_LOCATION, 4) and not one.slot(_COMPRESSED, 4):
        return np.where(inline < 0, -1, words[np.maximum(inline, 0) // 4].astype(np.int64))
    slot = one.slot(_LENGTH, 8)
    if not slot:
        return np.zeros(len(tables), np.int64)
    at = tables + (slot - one.at)
    _check(at, size - 4, "A length")
    low, high = words[at // 4].astype(np.int64), words[at // 4 + 1].astype(np.int64)
    return np.where(high >= 2**30, -1, low + (high << 32))


@dataclass(frozen=True, slots=True)
class Repo:
    """Identifiers of snapshots by the names of branches and tags, and URL prefixes by the names of containers."""

    branches: Mapping[str, bytes]
    tags: Mapping[str, bytes]
    containers: Mapping[str, str]


def decode_repo(data: bytes) -> Repo:
    """Return what an object `repo` says."""
    root = root_table(open_envelope(data, "repository").payload)
    snapshots = root.need(4, 4)
    config = root.vector(9, 1)
    containers = {} if config is None else containers_of_flexbuffer(bytes(config.view()))
    return Repo(_refs(root, 2, snapshots), _refs(root, 1, snapshots), containers)


def _refs(root: FlatTable, field: int, snapshots: Vector) -> dict[str, bytes]:
    out: dict[str, bytes] = {}
    for ref in root.need(field, 4).tables():
        name, number = ref.text(0), ref.u32(1)
        if name is None or number >= snapshots.count or name in out:
            raise damaged("A branch or tag has no name, the name of another, or no snapshot", ref.at)
        identifier = snapshots.table(number).raw(0, OBJECT_BYTES)
        if identifier is None:
            raise damaged("A snapshot has no identifier", ref.at)
        out[name] = identifier
    return out
