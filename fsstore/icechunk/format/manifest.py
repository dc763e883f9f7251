"""Manifests: where the chunks of arrays are, looked up in place or as columns.

The references of an array are sorted by chunk index, so one is found by bisection over the payload, without making
anything of the others.  For many, and for listings, they become columns: a manifest has few distinct vtables, and all
references of one have a field at the same distance from where their table begins, so NumPy gathers it.

A reference that makes no sense is an error when that chunk is read, not of the manifest.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from fsstore.errors import DataLossError
from fsstore.icechunk.format.envelope import open_envelope
from fsstore.icechunk.format.flatbuffer import FlatTable, Vector, damaged, root_table, table_at
from fsstore.icechunk.format.identifier import OBJECT_BYTES, encode_identifier
from fsstore.icechunk.format.snapshot import NODE_BYTES

__all__ = ["ArrayManifest", "ChunkManifest", "Reference", "ReferenceColumns", "decode_manifest"]

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
            raise damaged("The references of an array have no identifier, or that of another", table.at)
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
        largest = table_at(
            data, int(mine.max())
        )  # its vtable is that of all of them, and it reaches furthest
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
