"""Decoded chunks kept under the byte budget of a cache pool, and when they are good enough.

A kept chunk remembers the generation and the time of the bytes it was decoded from.  Whether it may be used without
asking is the user's choice (`recheck_cached_data`); otherwise it is revalidated by its generation, which costs a
request but no data.

Views of one array, such as its fields, keep chunks of their own, but all are dropped when the stored chunk is written.
A read that overlaps the write keeps nothing of it: the `epoch` it took before it asked the store has gone by.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from sys import getsizeof
from typing import Any, NamedTuple

import numpy as np

from fsstore.chunk.tuning import KEPT_CHUNK_BYTES
from fsstore.codec.contract import Array
from fsstore.runtime.cache_pool import CachePool

__all__ = ["CachedChunk", "ChunkCache"]


def _bytes_of(array: Array) -> int:
    """Return how much memory the elements of an array take, those that are objects too."""
    return array.nbytes + (sum(map(getsizeof, array.ravel().tolist())) if array.dtype.hasobject else 0)


def _held(array: Array) -> int:
    """Return how large what an array is a view of is, which lives as long as the array."""
    owner: Any = array
    while (below := getattr(owner, "base" if isinstance(owner, np.ndarray) else "obj", None)) is not None:
        owner = below
    return memoryview(owner).nbytes if not isinstance(owner, np.ndarray) else owner.nbytes


class CachedChunk(NamedTuple):
    """A decoded chunk (None where the chunk is missing) and what it was decoded from."""

    array: Array | None
    generation: bytes
    time: float


@dataclass(frozen=True, slots=True)
class ChunkCache:
    """The chunks of one view of an array in a pool.

    `owner` stands for the view and `place` for where the chunks are stored.  `fresh_after`: chunks known at that time
    or later need no recheck.
    """

    pool: CachePool
    owner: Hashable
    place: Hashable
    fresh_after: float

    @property
    def epoch(self) -> int:
        """The number that moves on when chunks are dropped; taken before chunks are read that are to be kept."""
        return self.pool.epoch

    def find(self, identity: Any) -> CachedChunk | None:
        """Return the kept chunk, if any."""
        found: CachedChunk | None = self.pool.get((self.owner, identity))
        return found

    def is_fresh(self, chunk: CachedChunk) -> bool:
        """Return whether a kept chunk may be used without asking the store."""
        return chunk.time >= self.fresh_after

    def keep(self, identity: Any, chunk: CachedChunk, epoch: int) -> None:
        """Keep a chunk that was read since `epoch`, unless it was dropped meanwhile."""
        size = KEPT_CHUNK_BYTES
        if chunk.array is not None and self.pool.total_bytes_limit:
            size += _bytes_of(chunk.array)
            if (
                _held(chunk.array) > 2 * chunk.array.nbytes
            ):  # the budget counts the part, not the shard around it
                chunk = chunk._replace(array=chunk.array.copy(order="K"))
        key = identity
        while isinstance(key, tuple):  # a part of a shard: the identity of the shard, and its number there
            key = key[0]
        self.pool.put((self.owner, identity), chunk, size, group=(self.place, key), epoch=epoch)

    def forget(self, key: str) -> None:
        """Drop what was decoded from a key that was written: a chunk, or the parts of a shard."""
        self.pool.discard_group((self.place, key))
