"""Merging of changes into a leaf, by column: 10,000 writes into 100,000 entries are a few array operations."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence

import numpy as np

from fsstore.kvstore.key_range import KeyRange
from fsstore.kvstore.ocdbt.data_file import DataFile
from fsstore.kvstore.ocdbt.leaf import INLINE, Leaf
from fsstore.kvstore.ocdbt.mutation import Stored, rows_between

__all__ = ["leaf_of", "merge"]


def leaf_of(entries: Sequence[tuple[bytes, Stored]]) -> Leaf:
    """Return the leaf with these entries, sorted by key."""
    files: dict[DataFile, int] = {}
    rows: list[tuple[int, int, int]] = []
    inline: list[bytes] = []
    used = 0
    for _, value in entries:
        if isinstance(value, bytes):
            rows.append((len(value), INLINE, used))
            inline.append(value)
            used += len(value)
        else:
            rows.append((value.length, files.setdefault(value.file, len(files)), value.offset))
    table = np.array(rows, np.int64).reshape(len(rows), 3)
    keys = [key for key, _ in entries]
    return Leaf(keys, table[:, 0], table[:, 1], table[:, 2], list(files), b"".join(inline))


def merge(
    old: Leaf, prefix: bytes, points: Mapping[bytes, Stored | None], ranges: Sequence[KeyRange]
) -> Leaf | None:
    """Return the entries after the changes, with whole keys, or None if nothing changes.

    A point counts as a change even if it deletes what is not there: TensorStore makes a new version then.
    """
    full = [prefix + key for key in old.keys] if prefix else old.keys
    keep = np.ones(len(full), bool)
    for keys in ranges:
        start, stop = rows_between(full, keys.inclusive_min, keys.exclusive_max)
        keep[start:stop] = False
    if not points and keep.all():
        return None
    written: list[tuple[bytes, Stored]] = []
    before: list[int] = []
    for key, value in points.items():
        row = bisect_left(full, key)
        if row < len(full) and full[row] == key:
            keep[row] = False
        if value is not None:
            written.append((key, value))
            before.append(row)
    kept = np.flatnonzero(keep)
    new = leaf_of(written)
    # old row i sorts at 2 i + 1, and what is inserted before it at 2 i; equal places keep their order
    places = np.concatenate((2 * kept + 1, 2 * np.array(before, np.int64)))
    order = np.argsort(places, kind="stable")
    return _joined(old, full, kept, new, order)


def _joined(old: Leaf, full: list[bytes], kept: np.ndarray, new: Leaf, order: np.ndarray) -> Leaf:
    """Return the rows `kept` of `old` and all of `new`, in `order`."""
    shift_ids, shift_bytes = len(old.files), len(old.payload)
    inline = new.file_ids == INLINE
    ids = np.where(inline, INLINE, new.file_ids + shift_ids)
    offsets = np.where(inline, new.offsets + shift_bytes, new.offsets)
    keys = np.empty(len(full) + len(new.keys), object)
    keys[:] = full + new.keys
    rows = np.concatenate((kept, np.arange(len(full), len(keys))))[order]
    return Leaf(
        keys[rows].tolist(),
        np.concatenate((old.lengths, new.lengths))[rows],
        np.concatenate((old.file_ids, ids))[rows],
        np.concatenate((old.offsets, offsets))[rows],
        [*old.files, *new.files],
        old.payload + new.payload if new.payload else old.payload,
    )
