"""The keys of a node: stored as what each does not share with the one before it.

Lengths, shared prefixes and order are array operations, and so is rebuilding thousands of short keys, letter by letter;
few or long keys are rebuilt by a loop over slices.  The total length of the keys is checked before they are built,
because a few bytes of prefix lengths can stand for gigabytes of keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from operator import lt

import numpy as np
import numpy.typing as npt

from fsstore.errors import ResourceExhaustedError
from fsstore.ocdbt.format.envelope import BODY_LIMIT
from fsstore.ocdbt.format.varint import U16, Cursor, Ints, encode_column
from fsstore.ocdbt.tuning import COLUMN_LETTERS, COMPARED_KEY_BYTES

__all__ = ["KEY_LIMIT", "encode_keys", "key_lengths", "shared_prefixes", "take_keys"]

KEY_LIMIT = U16
"""The greatest length of a key."""

"""Longer keys, and fewer keys for each letter, are rebuilt sooner by the loop."""


def key_lengths(keys: Sequence[bytes]) -> Ints:
    """Return the length of each key."""
    return np.fromiter(map(len, keys), np.int64, len(keys))


def shared_prefixes(keys: Sequence[bytes], lengths: Ints) -> Ints:
    """Return how many bytes each key but the first shares with the one before it."""
    count = len(keys)
    if count < 2:
        return np.zeros(0, np.int64)
    width = max(1, int(lengths.max()))
    rows = max(2, COMPARED_KEY_BYTES // width)
    out = np.minimum(lengths[1:], lengths[:-1])
    for start in range(0, count - 1, rows - 1):
        block = keys[start : start + rows]
        table = np.array(block, f"S{width}").view(np.uint8).reshape(len(block), width)
        differs = table[1:] != table[:-1]
        first = differs.argmax(axis=1)
        # rows that differ nowhere are padded copies of each other: the shorter key is a prefix
        first[(first == 0) & ~differs[:, 0]] = width
        part = out[start : start + len(block) - 1]
        np.minimum(part, first, out=part)
    return out


def encode_keys(keys: Sequence[bytes], shared: Ints, lengths: Ints) -> tuple[bytes, bytes]:
    """Return the columns of lengths, and the suffixes."""
    cuts = np.concatenate((np.zeros(1, np.int64), shared))
    sizes = encode_column(shared) + encode_column(lengths - cuts)
    return sizes, b"".join([key[cut:] for key, cut in zip(keys, cuts.tolist(), strict=True)])


def take_keys(cursor: Cursor, count: int, *, subtrees: bool) -> tuple[list[bytes], Ints]:
    """Return the relative keys at the cursor, and the lengths of what subtrees leave out (if they are stored)."""
    shared = cursor.take_column(count - 1, U16).astype(np.int64)
    sizes = cursor.take_column(count, U16).astype(np.int64)
    omitted = cursor.take_column(count if subtrees else 0, U16).astype(np.int64)
    lengths = sizes.copy()
    lengths[1:] += shared
    if (shared > lengths[:-1]).any():
        raise cursor.corrupt("a key prefix is longer than the previous key")
    if int(lengths.max()) > KEY_LIMIT:
        raise cursor.corrupt(f"a key is longer than {KEY_LIMIT} bytes")
    if subtrees and (omitted > lengths).any():
        raise cursor.corrupt("a subtree common prefix is longer than its key")
    if int(lengths.sum()) > BODY_LIMIT:
        raise ResourceExhaustedError(
            f"Error decoding {cursor.what}: its keys take more than {BODY_LIMIT} bytes"
        )
    data = cursor.take_bytes(int(sizes.sum()))
    keys, rising = _expand(data, sizes, lengths)
    if not rising:
        raise cursor.corrupt("keys are not strictly increasing")
    return keys, omitted


def _expand(data: bytes, sizes: Ints, lengths: Ints) -> tuple[list[bytes], bool]:
    """Return the keys of these lengths whose last `sizes` bytes are `data`, and whether they rise."""
    starts, shared = np.cumsum(sizes) - sizes, lengths - sizes
    width = int(lengths.max())
    # numpy takes zeros at the end of a text for padding
    if 0 < width <= min(COLUMN_LETTERS, len(sizes) // COLUMN_LETTERS) and b"\0" not in data:
        table = _table(np.frombuffer(data, np.uint8), starts - shared, shared, lengths)
        return table.tolist(), bool((table[1:] > table[:-1]).all())
    key = b""
    rows = zip(starts.tolist(), (starts + sizes).tolist(), shared.tolist(), strict=True)
    keys = [key := key[:cut] + data[start:end] for start, end, cut in rows]
    return keys, all(map(lt, keys, islice(keys, 1, None)))


def _table(
    letters: npt.NDArray[np.uint8], origins: Ints, shared: Ints, lengths: Ints
) -> npt.NDArray[np.bytes_]:
    """Return the keys whose letter n is `letters[origin + n]`, or that of the key before where it is shared.

    The letters at one place of all keys are runs, of which each begins with a key that does not share it.  So 100,000
    keys of 8 letters take 7 ms, which the loop makes in 20.
    """
    count, width = len(lengths), int(lengths.max())
    columns = np.empty((width, count), np.uint8)
    for place, column in enumerate(columns):
        heads = np.flatnonzero(shared <= place)
        found = letters[np.minimum(origins[heads] + place, len(letters) - 1)]
        column[:] = np.repeat(found, np.diff(heads, append=count))
        column[lengths <= place] = 0
    return np.ascontiguousarray(columns.T).view(f"S{width}").ravel()
