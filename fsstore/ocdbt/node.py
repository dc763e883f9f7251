"""Nodes of the B+tree: their stored form, held by column, and how entries are divided into nodes.

`Leaf` serves decoded nodes, whose keys omit the prefix that the path to them implies, and entries to be written, whose
keys are whole.

The division is TensorStore's, so both libraries write the same tree for the same entries; any other would be just as
readable.  `Builder` works upwards, level by level, until one node is left.  It does no I/O: a `Place` returns the
future location of a node's bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np

from fsstore.ocdbt.encoding import (
    BTREE_NODE,
    U32,
    U64,
    Cursor,
    DataFile,
    Ints,
    Location,
    UInts,
    decode_files,
    encode,
    encode_column,
    encode_files,
    encode_keys,
    key_lengths,
    seal,
    shared_prefixes,
    sorted_files,
    take_keys,
    unseal,
)
from fsstore.ocdbt.manifest import EMPTY, MAX_INLINE, Config, TreeStatistics

# Interior nodes of the B+tree: the first key of each child, its location and the sums over its subtree, by column.


class Child(NamedTuple):
    """A node as its parent records it, with whole keys: the node omits the first `prefix_length` bytes of `key`."""

    key: bytes
    prefix_length: int
    location: Location
    statistics: TreeStatistics


@dataclass(frozen=True, slots=True, eq=False)
class Interior:
    """A decoded node.  Keys are relative; child i omits `omitted[i]` more bytes of key i."""

    height: int
    keys: list[bytes]
    omitted: Ints
    files: Sequence[DataFile]
    file_ids: Ints
    offsets: Ints
    lengths: Ints
    sums: tuple[UInts, UInts, UInts]

    @property
    def size_bytes(self) -> int:
        """The approximate size in memory."""
        return len(self.keys) * 130 + sum(map(len, self.keys))

    def location(self, row: int) -> Location:
        """Return the place of a child."""
        return Location(self.files[int(self.file_ids[row])], int(self.offsets[row]), int(self.lengths[row]))

    def child(self, row: int, prefix: bytes) -> Child:
        """Return a child; `prefix` is the part of keys that the path to this node implies."""
        sums = TreeStatistics(*(int(column[row]) for column in self.sums))
        size = len(prefix) + int(self.omitted[row])
        return Child(prefix + self.keys[row], size, self.location(row), sums)


def encode_interior(children: Sequence[Child], height: int, *, omit: int, shared: Ints, lengths: Ints) -> bytes:
    """Return the body of a node that omits `omit` bytes; `shared` and `lengths` are those of the whole keys."""
    table, index = sorted_files(child.location.file for child in children)
    keys = [child.key[omit:] for child in children]
    sizes, suffixes = encode_keys(keys, shared - omit, lengths - omit)
    places = [child.location for child in children]
    parts = (
        bytes([height]),
        encode_files(table),
        encode(len(children)),
        sizes,
        encode_column([child.prefix_length - omit for child in children]),
        suffixes,
        encode_column([index[place.file] for place in places]),
        encode_column([place.offset for place in places]),
        encode_column([place.length for place in places]),
        *(encode_column(np.array([child.statistics[i] for child in children], np.uint64)) for i in range(3)),
    )
    return b"".join(parts)


def take_interior(cursor: Cursor, height: int, keys: list[bytes], omitted: Ints, files: Sequence[DataFile]) -> Interior:
    """Return the node whose child columns are at the cursor."""
    count = len(keys)
    ids, offsets, lengths = (cursor.take_column(count) for _ in range(3))
    if int(ids.max()) >= len(files):
        raise cursor.corrupt(f"data file {int(ids.max())} of {len(files)} does not exist")
    limit = np.uint64(2**63 - 1)
    if ((offsets > limit) | (lengths > limit - np.minimum(offsets, limit))).any():
        raise cursor.corrupt("the byte range of a child is out of range")
    sums = (cursor.take_column(count), cursor.take_column(count), cursor.take_column(count))
    signed = [column.astype(np.int64) for column in (ids, offsets, lengths)]
    return Interior(height, keys, omitted, files, signed[0], signed[1], signed[2], sums)


# Leaves of the B+tree: keys with their values, inline or as locations in data files, held by column.

INLINE = -1
"""The file number of inline values."""


@dataclass(frozen=True, slots=True, eq=False)
class Leaf:
    """Entries in the order of their keys.

    `file_ids` indexes `files`, or is `INLINE`; `offsets` counts in the file, or in `payload` for inline values.
    """

    keys: list[bytes]
    lengths: Ints
    file_ids: Ints
    offsets: Ints
    files: Sequence[DataFile]
    payload: bytes

    height = 0

    @property
    def size_bytes(self) -> int:
        """The approximate size in memory."""
        return len(self.keys) * 80 + len(b"".join(self.keys)) + len(self.payload)  # takes a third of the time of a sum

    def value(self, row: int) -> bytes | Location:
        """Return the value of an entry, or its location."""
        file_id, offset, length = int(self.file_ids[row]), int(self.offsets[row]), int(self.lengths[row])
        if file_id == INLINE:
            return self.payload[offset : offset + length]
        return Location(self.files[file_id], offset, length)

    def statistics(self, node_bytes: int) -> TreeStatistics:
        """Return the statistics of a node of `node_bytes` that holds the leaf."""
        total = sum(self.lengths[self.file_ids != INLINE].tolist())
        return TreeStatistics(len(self.keys), node_bytes, min(total, 2**64 - 1))


def cut_leaf(leaf: Leaf, start: int, stop: int, omit: int) -> Leaf:
    """Return rows `[start, stop)` as a node holds them: keys without their first `omit` bytes, no unused data.

    The result equals the decoded node, so a writer may cache it.
    """
    file_ids, lengths = leaf.file_ids[start:stop], leaf.lengths[start:stop]
    indirect = file_ids != INLINE
    used = np.unique(file_ids[indirect])
    table, index = sorted_files(leaf.files[i] for i in used.tolist())
    remap = np.array([index[leaf.files[i]] for i in used.tolist()], np.int64)
    ids, offsets = np.full(stop - start, INLINE, np.int64), leaf.offsets[start:stop].copy()
    ids[indirect] = remap[np.searchsorted(used, file_ids[indirect])]
    inline = ~indirect
    sizes = lengths[inline]
    payload = _inline_bytes(leaf.payload, offsets[inline], sizes)
    offsets[inline] = np.cumsum(sizes) - sizes
    keys = leaf.keys[start:stop]
    return Leaf([key[omit:] for key in keys] if omit else keys, lengths, ids, offsets, table, payload)


def encode_leaf(leaf: Leaf, shared: Ints, lengths: Ints) -> bytes:
    """Return the body of the node that holds a leaf from `cut_leaf`.

    `lengths` are the lengths of its keys; `shared` is how many bytes each key but the first shares with the key before.
    """
    indirect = leaf.file_ids != INLINE
    sizes, suffixes = encode_keys(leaf.keys, shared, lengths)
    parts = (
        b"\0",
        encode_files(leaf.files),
        encode(len(leaf.keys)),
        sizes,
        suffixes,
        encode_column(leaf.lengths),
        indirect.astype(np.uint8).tobytes(),
        encode_column(leaf.file_ids[indirect]),
        encode_column(leaf.offsets[indirect]),
        leaf.payload,
    )
    return b"".join(parts)


def _inline_bytes(payload: bytes, offsets: Ints, lengths: Ints) -> bytes:
    """Return the concatenated values; adjacent ones are copied as one."""
    if not len(offsets):
        return b""
    ends = offsets + lengths
    heads = np.flatnonzero(np.concatenate(([True], offsets[1:] != ends[:-1])))
    tails = np.append(heads[1:], len(offsets)) - 1
    runs = zip(offsets[heads].tolist(), ends[tails].tolist(), strict=True)
    return b"".join([payload[start:end] for start, end in runs])


def take_leaf(cursor: Cursor, keys: list[bytes], files: Sequence[DataFile]) -> Leaf:
    """Return the leaf whose value columns are at the cursor."""
    count = len(keys)
    lengths = cursor.take_column(count)
    kinds = np.frombuffer(cursor.take_bytes(count), np.uint8)
    if (kinds > 1).any():
        raise cursor.corrupt("Unknown value kind")
    indirect = kinds == 1
    number = int(indirect.sum())
    ids, places = cursor.take_column(number), cursor.take_column(number)
    if number and int(ids.max()) >= len(files):
        raise cursor.corrupt(f"data file {int(ids.max())} of {len(files)} does not exist")
    limit = np.uint64(2**63 - 1)
    if number and ((places > limit) | (lengths[indirect] > limit - np.minimum(places, limit))).any():
        raise cursor.corrupt("the byte range of a value is out of range")
    inline = lengths[~indirect]
    if len(inline) and int(inline.max()) > MAX_INLINE:
        raise cursor.corrupt(f"an inline value is longer than {MAX_INLINE} bytes")
    file_ids, offsets = np.full(count, INLINE, np.int64), np.zeros(count, np.int64)
    file_ids[indirect], offsets[indirect] = ids.astype(np.int64), places.astype(np.int64)
    ends = np.cumsum(inline.astype(np.int64))
    offsets[~indirect] = ends - inline.astype(np.int64)
    payload = cursor.take_bytes(int(ends[-1]) if len(ends) else 0)
    return Leaf(keys, lengths.astype(np.int64), file_ids, offsets, files, payload)


# Decoding B+tree nodes of either sort.

Node: TypeAlias = Leaf | Interior

MAX_ENTRIES = 2**20
"""The greatest number of entries in a node."""


def decode_node(data: bytes, context: bytes) -> Node:
    """Return the node stored as `data`, read in the context of a base path."""
    what = "B+tree node"
    cursor = Cursor(unseal(BTREE_NODE, data, what), what)
    height = cursor.take_u8()
    files = decode_files(cursor, context)
    count = cursor.take(U32)
    if not 1 <= count <= MAX_ENTRIES:
        raise cursor.corrupt(f"Expected 1 to {MAX_ENTRIES} entries but received: {count}")
    keys, omitted = take_keys(cursor, count, subtrees=height > 0)
    node = take_interior(cursor, height, keys, omitted, files) if height else take_leaf(cursor, keys, files)
    cursor.finish()
    return node


Place = Callable[[bytes], Location]
"""Takes the bytes of a node and returns their future location."""


class Root(NamedTuple):
    """The root of a tree; `location` is None for an empty one."""

    height: int
    location: Location | None
    statistics: TreeStatistics


def pieces(estimates: Ints, common: int, limit: int, least: int) -> Iterator[tuple[int, int]]:
    """Yield the rows `[start, stop)` of each node.

    `estimates` are the sizes of the entries, `common` the number of bytes that all adjacent keys share, `limit` the
    greatest size of a node (0: any), `least` the smallest number of entries.
    """
    count = len(estimates)
    sums = np.concatenate((np.zeros(1, np.int64), np.cumsum(estimates - common)))
    start = 0
    while start < count:
        total = int(sums[count] - sums[start]) + common
        wanted = max(-(-(count - start) // MAX_ENTRIES), -(-total // limit) if limit else 1)
        target = -(-total // wanted)
        stop = int(np.searchsorted(sums, int(sums[start]) + target - common))
        stop = max(stop, start + max(least, 1))
        if stop >= count or stop - start >= MAX_ENTRIES:
            stop = min(count, start + MAX_ENTRIES)
        elif 0 < limit < int(sums[stop] - sums[start]) + common and stop - start > least:
            stop -= 1
        yield start, stop
        start = stop


class Builder:
    """Makes nodes under a configuration and places them.

    `keep` receives every new leaf in its decoded form.
    """

    def __init__(self, config: Config, place: Place, keep: Callable[[Location, Leaf], None] | None = None) -> None:
        self._config = config
        self._place = place
        self._keep = keep

    def leaves(self, leaf: Leaf, *, may_be_root: bool) -> list[Child]:
        """Place the nodes for all entries of the leaf level, and return them as children."""
        lengths = key_lengths(leaf.keys)
        shared = shared_prefixes(leaf.keys, lengths)
        inline = leaf.file_ids == INLINE
        paths = np.array([len(file.name) for file in leaf.files] or [0], np.int64)
        estimates = 16 + lengths + np.where(inline, leaf.lengths, 16 + paths[np.where(inline, 0, leaf.file_ids)])
        out: list[Child] = []
        for start, stop in self._divide(estimates, shared, lengths, least=1):
            inner = shared[start : stop - 1]
            whole = may_be_root and stop - start == len(leaf.keys)
            omit = 0 if whole else int(inner.min()) if len(inner) else int(lengths[start])
            node = cut_leaf(leaf, start, stop, omit)
            location = self._store(encode_leaf(node, inner - omit, lengths[start:stop] - omit))
            if self._keep is not None:
                self._keep(location, node)
            out.append(Child(leaf.keys[start], omit, location, node.statistics(location.length)))
        return out

    def interiors(self, children: Sequence[Child], height: int, *, may_be_root: bool) -> list[Child]:
        """Place the nodes of `height` above `children` and return them as children of the next level.

        A node that holds all of them and may be the root omits no prefix.
        """
        keys = [child.key for child in children]
        lengths = key_lengths(keys)
        shared = shared_prefixes(keys, lengths)
        paths = np.array([len(child.location.file.name) for child in children], np.int64)
        out: list[Child] = []
        for start, stop in self._divide(56 + lengths + paths, shared, lengths, least=2):
            group, inner = children[start:stop], shared[start : stop - 1]
            whole = may_be_root and stop - start == len(children)
            omit = 0 if whole else int(inner.min()) if len(inner) else int(lengths[start])
            omit = min(omit, *(child.prefix_length for child in group), omit)
            body = encode_interior(group, height, omit=omit, shared=inner, lengths=lengths[start:stop])
            location = self._store(body)
            out.append(Child(keys[start], omit, location, _total(group, location.length)))
        return out

    def root(self, children: list[Child], height: int) -> Root:
        """Return the root of the tree above `children`, nodes of `height`."""
        if not children:
            return Root(0, None, EMPTY)
        while len(children) > 1:
            height += 1
            children = self.interiors(children, height, may_be_root=True)
        return Root(height, children[0].location, children[0].statistics)

    def _divide(self, estimates: Ints, shared: Ints, lengths: Ints, *, least: int) -> Iterator[tuple[int, int]]:
        common = int(shared.min()) if len(shared) else int(lengths[0])
        return pieces(estimates, common, self._config.max_decoded_node_bytes, least)

    def _store(self, body: bytes) -> Location:
        return self._place(seal(BTREE_NODE, body, self._config.level))


def _total(children: Sequence[Child], node_bytes: int) -> TreeStatistics:
    columns = list(zip(*(child.statistics for child in children), strict=True))
    return TreeStatistics(min(sum(columns[0]), U64), min(sum(columns[1]) + node_bytes, U64), min(sum(columns[2]), U64))
