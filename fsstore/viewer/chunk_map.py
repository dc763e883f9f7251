"""Which chunks of an array are stored, in a window of the chunk grid of two dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fsstore.errors import StoreError, UnimplementedError
from fsstore.viewer.tuning import MAPPED_CHUNKS

__all__ = ["MISSING", "STORED", "UNKNOWN", "chunk_map"]

MISSING, STORED, UNKNOWN = 0, 1, 2


def chunk_map(store: Any, at: Sequence[int], along: Sequence[int], window: Sequence[tuple[int, int]]) -> Any:
    """Return one byte for each chunk of a window (in numbers of chunks): missing, stored, or not known.

    Every chunk is asked for by itself, all at once.  Raises `ValueError` if the window has too many.
    """
    sides = store.chunk_layout.read_chunk.shape or (None,) * store.rank
    counts = [high - low for low, high in window]
    if min(counts, default=0) < 0 or int(np.prod(counts)) > MAPPED_CHUNKS:
        raise ValueError(f"A map has at most {MAPPED_CHUNKS} chunks")
    found = np.full(counts, UNKNOWN, "u1")
    begun = []
    for place in np.ndindex(*counts):
        key: list[Any] = [slice(each, each + 1) for each in at]
        for dimension, (low, _), number in zip(along, window, place, strict=True):
            side = sides[dimension] or store.shape[dimension]
            first = min((low + number) * side, store.shape[dimension] - 1)
            key[dimension] = slice(first, first + 1)
        try:
            begun.append((place, store[tuple(key)].storage_statistics(query_not_stored=True)))
        except UnimplementedError:
            return found
    for place, future in begun:
        try:
            found[place] = MISSING if future.result().not_stored else STORED
        except StoreError:  # what cannot be asked is not known
            found[place] = UNKNOWN
    return found
