"""Merging of changes into a leaf, by column: 10,000 writes into 100,000 entries are a few array operations."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import compress

import numpy as np

from fsstore.kvstore.contract.request import KeyRange
from fsstore.ocdbt.format.data_file import DataFile
from fsstore.ocdbt.format.leaf import INLINE, Leaf
from fsstore.ocdbt.mutation import Stored, rows_between

__all__ = ["leaf_of", "merge"]


def leaf_of(keys: Sequence[bytes], values: Sequence[Stored]) -> Leaf:
    """Return the leaf with these sorted keys and their values."""
    count = len(keys)
    inline = np.fromiter((isinstance(value, bytes) for value in values), bool, count)
    lengths, ids, offsets = np.empty(count, np.int64), np.full(count, INLINE), np.empty(count, np.int64)
    held = [value for value in values if isinstance(value, bytes)]
    sizes = np.fromiter(map(len, held), np.int64, len(held))
    lengths[inline], offsets[inline] = sizes, np.cumsum(sizes) - sizes
    files: dict[DataFile, int] = {}
    places = [value for value in values if not isinstance(value, bytes)]
    if places:
        ids[~inline] = [files.setdefault(place.file, len(files)) for place in places]
        offsets[~inline], lengths[~inline] = zip(
            *((place.offset, place.length) for place in places), strict=True
        )
    return Leaf(list(keys), lengths, ids, offsets, list(files), b"".join(held))


def merge(
    old: Leaf,
    prefix: bytes,
    keys: Sequence[bytes],
    values: Sequence[Stored | None],
    *,
    deleted: Sequence[KeyRange] = (),
) -> Leaf | None:
    """Return the entries after the changes, with whole keys, or None if nothing changes.

    Ranges are `deleted`, then the sorted `keys` get `values`; None deletes.

    A point counts as a change even if it deletes what is not there: TensorStore makes a new version then.
    """
    full = [prefix + key for key in old.keys] if prefix else old.keys
    keep = np.ones(len(full), bool)
    for span in deleted:
        start, stop = rows_between(full, span.inclusive_min, span.exclusive_max)
        keep[start:stop] = False
    if not keys and keep.all():
        return None
    rows = [bisect_left(full, key) for key in keys]
    replaced = [row for row, key in zip(rows, keys, strict=True) if full[row : row + 1] == [key]]
    keep[np.array(replaced, np.int64)] = False
    kept = np.flatnonzero(keep)
    written = [value is not None for value in values]
    new = leaf_of(list(compress(keys, written)), [value for value in values if value is not None])
    before = np.array(list(compress(rows, written)), np.int64)
    # old row i sorts at 2 i + 1, and what is inserted before it at 2 i; equal places keep their order
    places = np.concatenate((2 * kept + 1, 2 * before))
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
