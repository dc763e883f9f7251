"""The keys of a node: stored as what each does not share with the one before it.

A column of 100,000 keys is rebuilt by one loop over slices and everything else (lengths, shared prefixes, order) by
array operations.  The total length of the keys is checked before they are built, because a few bytes of
prefix lengths can stand for gigabytes of keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from operator import lt

import numpy as np

from fsstore.errors import ResourceExhaustedError
from fsstore.kvstore.ocdbt.envelope import BODY_LIMIT
from fsstore.kvstore.ocdbt.varint import U16, Cursor, Ints, encode_column

__all__ = ["KEY_LIMIT", "encode_keys", "key_lengths", "shared_prefixes", "take_keys"]

KEY_LIMIT = U16
"""The greatest length of a key."""

_BLOCK = 4 * 1024 * 1024


def key_lengths(keys: Sequence[bytes]) -> Ints:
    """Return the length of each key."""
    return np.fromiter(map(len, keys), np.int64, len(keys))


def shared_prefixes(keys: Sequence[bytes], lengths: Ints) -> Ints:
    """Return how many bytes each key but the first shares with the one before it."""
    count = len(keys)
    if count < 2:
        return np.zeros(0, np.int64)
    width = max(1, int(lengths.max()))
    rows = max(2, _BLOCK // width)
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
    ends = np.cumsum(sizes).tolist()
    data = cursor.take_bytes(ends[-1])
    keys = _expand(data, [0, *ends[:-1]], ends, [0, *shared.tolist()])
    if not all(map(lt, keys, islice(keys, 1, None))):
        raise cursor.corrupt("keys are not strictly increasing")
    return keys, omitted


def _expand(data: bytes, starts: list[int], ends: list[int], shared: list[int]) -> list[bytes]:
    key = b""
    return [key := key[:cut] + data[start:end] for start, end, cut in zip(starts, ends, shared, strict=True)]
