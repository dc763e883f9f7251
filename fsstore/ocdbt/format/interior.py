"""Interior nodes of the B+tree: the first key of every child, its place and the sums over its subtree, by column."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fsstore.ocdbt.format.data_file import DataFile, Location, encode_files, sorted_files
from fsstore.ocdbt.format.key_column import encode_keys
from fsstore.ocdbt.format.varint import Cursor, Ints, UInts, encode, encode_column
from fsstore.ocdbt.format.version import TreeStatistics

__all__ = ["Child", "Interior", "encode_interior", "take_interior"]


class Child(NamedTuple):
    """A node as its parent knows it, with whole keys: `prefix_length` bytes of `key` are left out in the node."""

    key: bytes
    prefix_length: int
    location: Location
    statistics: TreeStatistics


@dataclass(frozen=True, slots=True, eq=False)
class Interior:
    """A decoded node.  Keys are relative; `omitted[i]` bytes of key i are left out in child i too."""

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
        """About how much memory the node takes."""
        return len(self.keys) * 130 + sum(map(len, self.keys))

    def location(self, row: int) -> Location:
        """Return the place of a child."""
        return Location(self.files[int(self.file_ids[row])], int(self.offsets[row]), int(self.lengths[row]))

    def child(self, row: int, prefix: bytes) -> Child:
        """Return a child, `prefix` being what the path to this node implies."""
        sums = TreeStatistics(*(int(column[row]) for column in self.sums))
        size = len(prefix) + int(self.omitted[row])
        return Child(prefix + self.keys[row], size, self.location(row), sums)


def encode_interior(
    children: Sequence[Child], height: int, *, omit: int, shared: Ints, lengths: Ints
) -> bytes:
    """Return the body of a node; the arguments are those of `encode_leaf`."""
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


def take_interior(
    cursor: Cursor, height: int, keys: list[bytes], omitted: Ints, files: Sequence[DataFile]
) -> Interior:
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
