"""Leaves of the B+tree: keys with their values, inline or as places in data files, held by column.

`Leaf` serves decoded nodes, whose keys leave out the prefix the path to them implies, and entries to be written,
whose keys are whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fsstore.ocdbt.format.config import MAX_INLINE
from fsstore.ocdbt.format.data_file import DataFile, Location, encode_files, sorted_files
from fsstore.ocdbt.format.key_column import encode_keys
from fsstore.ocdbt.format.varint import Cursor, Ints, encode, encode_column
from fsstore.ocdbt.format.version import TreeStatistics

__all__ = ["INLINE", "Leaf", "cut_leaf", "encode_leaf", "take_leaf"]

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
        """About how much memory the leaf takes."""
        return len(self.keys) * 80 + len(b"".join(self.keys)) + len(self.payload)  # a third of a sum's time

    def value(self, row: int) -> bytes | Location:
        """Return an entry's value, or its place."""
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

    It equals what decoding the node gives, so a writer may keep it in place of that.
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

    `lengths` are those of its keys, and `shared` how much of each but the first is that of the one before.
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
    """Return the values joined; what lies side by side already is copied as one."""
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
