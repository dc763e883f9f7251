"""The chunks of one open array: the source of their bytes, and the cache of decoded chunks.

Cached chunks are kept under the byte budget of a cache pool.  `OpenChunks` holds everything that is constant from one
read or write to the next.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from sys import getsizeof
from typing import Any, NamedTuple, Protocol

import numpy as np

from fsstore.chunk.model import Axis, ChunkModel, ClippedAxis, RegularAxis
from fsstore.codec.chain import BoundChain, is_raw, part_of
from fsstore.codec.contract import Array
from fsstore.index import IndexTransform
from fsstore.kvstore.contract.ability import ReadsWhole, able
from fsstore.kvstore.contract.batch import any_missing
from fsstore.kvstore.contract.driver import UNKNOWN, KvPrefix, Read, ReadResult
from fsstore.runtime import execution
from fsstore.runtime.cache import CachePool
from fsstore.runtime.observer import Meter
from fsstore.runtime.together import ChangedError, until_unchanged
from fsstore.runtime.tuning import (
    GAP_BYTES,
    INLINE_READ_BYTES,
    JOINT_BYTES,
    PARTS_FROM_BYTES,
    WINDOW_BYTES,
    WINDOW_CELLS,
)

CACHED_CHUNK_OVERHEAD = 256  # bytes that a cached chunk counts for besides its elements

# The sources of chunks' bytes: values of a key-value store here, entries of shards elsewhere.


class ByteRange(NamedTuple):
    """A range of the bytes behind an identity; a negative start counts from the end.

    `if_not_equal` names a generation the caller has: the answer then may be "unspecified".
    """

    identity: Any
    start: int = 0
    stop: int | None = None
    if_not_equal: bytes = UNKNOWN


class Source(Protocol):
    """Bytes by identity."""

    async def read_many(self, ranges: Sequence[ByteRange]) -> Sequence[ReadResult]:
        """Return an answer for each range, in order."""
        ...

    async def read_whole(self, identities: Sequence[Any]) -> Sequence[ReadResult]:
        """Return the whole bytes behind each identity, in order."""
        ...

    def describe(self, identity: Any) -> str:
        """Return the name of an identity for messages."""
        ...

    def remembering(self) -> Source:
        """Return a source for one operation: it may remember the way to the bytes, such as indexes."""
        ...


class ChunkSource(Source, Protocol):
    """Bytes by the keys of chunks."""

    def identities(self, keys: Sequence[str]) -> Sequence[Any]:
        """Return the identities of the chunks with these keys."""
        ...


class Presence(Protocol):
    """The metadata of an array, for the check after a missing chunk."""

    @property
    def generation(self) -> bytes:
        """The generation of the known metadata."""
        ...

    async def is_as(self, known: bytes) -> bool:
        """Whether the stored metadata still have a generation; raise if the array is gone."""
        ...


class KvSource:
    """Values of a key-value store; identities are keys below the prefix.

    A missing key may belong to an array that was moved or deleted since it was opened, and would read as fill values.
    Metadata are removed before chunks, so `presence` checks them after such an answer; if they were written anew, by a
    move away and back, the chunks are read again.
    """

    __slots__ = ("_presence", "_store", "_whole")

    def __init__(self, store: KvPrefix, presence: Presence | None = None) -> None:
        self._store, self._presence = store, presence
        self._whole = able(store.driver, ReadsWhole)

    def identities(self, keys: Sequence[str]) -> Sequence[str]:
        """Return the keys."""
        return keys

    async def read_many(self, ranges: Sequence[ByteRange]) -> Sequence[ReadResult]:
        """Return an answer for each range, in order."""
        driver, path = self._store
        reads = [Read(path + key, start, stop, known) for key, start, stop, known in ranges]
        return await self._certain(lambda: driver.read_many(reads))

    async def read_whole(self, identities: Sequence[str]) -> Sequence[ReadResult]:
        """Return an answer for each key, in order."""
        (driver, path), whole = self._store, self._whole
        keys = [path + key for key in identities]
        if whole is not None:
            return await self._certain(lambda: whole.read_whole(keys))
        return await self._certain(lambda: driver.read_many(list(map(Read, keys))))

    async def _certain(self, ask: Callable[[], Awaitable[Sequence[ReadResult]]]) -> Sequence[ReadResult]:
        """Return answers; if one is missing, the metadata were the same before and after the read."""
        presence = self._presence
        if presence is None:
            return await ask()

        async def attempt() -> Sequence[ReadResult]:
            seen = presence.generation
            answers = await ask()
            if any_missing(answers) and not await presence.is_as(seen):
                raise ChangedError
            return answers

        try:
            return await attempt()
        except ChangedError:
            return await until_unchanged(attempt, self._store.describe, reads=True)

    def describe(self, identity: Any) -> str:
        """Return the name of a key for messages; the key tells the position of the chunk."""
        return self._store.describe(identity)

    def remembering(self) -> KvSource:
        """Return the source itself: it holds no indexes to remember."""
        return self


# Decoded chunks under the byte budget of a cache pool, and when they are fresh enough.


def _bytes_of(array: Array) -> int:
    """Return the memory that the elements of an array take, including Python objects."""
    return array.nbytes + (sum(map(getsizeof, array.ravel().tolist())) if array.dtype.hasobject else 0)


def _held(array: Array) -> int:
    """Return the size of the memory that an array is a view of, which lives as long as the array."""
    owner: Any = array
    while (below := getattr(owner, "base" if isinstance(owner, np.ndarray) else "obj", None)) is not None:
        owner = below
    return memoryview(owner).nbytes if not isinstance(owner, np.ndarray) else owner.nbytes


class CachedChunk(NamedTuple):
    """A decoded chunk (None for a missing one), with its generation and the time of the answer."""

    array: Array | None
    generation: bytes
    time: float


@dataclass(frozen=True, slots=True)
class ChunkCache:
    """The chunks of one view of an array in a pool.

    `owner` identifies the view and `place` the stored chunks.  Chunks known at `fresh_after` or later need no recheck.
    """

    pool: CachePool
    owner: Hashable
    place: Hashable
    fresh_after: float

    @property
    def epoch(self) -> int:
        """A number that changes when chunks are dropped; it is taken before chunks are read for the cache."""
        return self.pool.epoch

    def find(self, identity: Any) -> CachedChunk | None:
        """Return the kept chunk, if any."""
        found: CachedChunk | None = self.pool.get((self.owner, identity))
        return found

    def is_fresh(self, chunk: CachedChunk) -> bool:
        """Return whether a kept chunk may be used without asking the store."""
        return chunk.time >= self.fresh_after

    def keep(self, identity: Any, chunk: CachedChunk, epoch: int) -> None:
        """Cache a chunk that was read since `epoch`, unless it was dropped meanwhile."""
        size = CACHED_CHUNK_OVERHEAD
        if chunk.array is not None and self.pool.total_bytes_limit:
            size += _bytes_of(chunk.array)
            if _held(chunk.array) > 2 * chunk.array.nbytes:  # the budget counts the part, not the shard around it
                chunk = chunk._replace(array=chunk.array.copy(order="K"))
        key = identity
        while isinstance(key, tuple):  # a part of a shard: the identity of the shard, and a number in it
            key = key[0]
        self.pool.put((self.owner, identity), chunk, size, group=(self.place, key), epoch=epoch)

    def forget(self, key: str) -> None:
        """Drop everything decoded from a written key: a chunk, or the parts of a shard."""
        self.pool.discard_group((self.place, key))


# The chunks of one open array.


@dataclass(frozen=True, slots=True)
class OpenChunks:
    """Where the chunks of an array are, what they hold, and how they are read and written.

    `bounds` is the identity over the array, with explicit bounds.  `threads` is how many workers were asked for.
    `steps` are the sides of chunks, or sub-chunks of shards, if small boxes may wait, unplanned, for others to be read
    with, else None; such a box touches at most `most_chunks`, and has at most `most_elements`.  Reads ask `source`.
    `part_bytes` are how many bytes of a chunk have to be spared for a part of it to be read, None if that cannot be.
    """

    bounds: IndexTransform
    model: ChunkModel
    store: KvPrefix
    fill_missing: bool = True
    threads: int | None = None
    cache: ChunkCache | None = None
    meter: Meter | None = field(default=None, compare=False)
    presence: Presence | None = field(default=None, compare=False)
    steps: tuple[int, ...] | None = field(init=False, compare=False)
    most_chunks: int = field(init=False, compare=False)
    most_elements: int = field(init=False, compare=False)
    part_bytes: int | None = field(init=False, compare=False)
    source: ChunkSource = field(init=False, compare=False)
    _part: list[BoundChain] = field(init=False, compare=False, repr=False, default_factory=list)

    def __post_init__(self) -> None:
        """Compute which boxes may wait: columns must be able to plan them, and they must not touch too much."""
        model = self.model
        chain, shard = model.chain, model.shard
        cut = all(isinstance(axis, RegularAxis | ClippedAxis) for axis in model.axes)
        plain = cut and len(chain.chunk.shape) == len(model.axes) and not model.is_partial
        shards = chain.shard is not None and (shard is None or shard.inner.shard is not None)
        steps = chain.read_shape if plain and self.cache is None and not shards else ()
        size = max(1, chain.chunk.dtype.itemsize) * math.prod(steps)
        object.__setattr__(self, "steps", steps or None)
        object.__setattr__(self, "most_chunks", min(JOINT_BYTES // size, WINDOW_CELLS))
        object.__setattr__(self, "source", KvSource(self.store, self.presence))
        features = self.store.driver.features
        parts = features.reads_parts and is_raw(chain) and model.bind is None and self.cache is None
        least = 2 * PARTS_FROM_BYTES if features.waits else GAP_BYTES
        object.__setattr__(self, "part_bytes", least if parts else None)
        object.__setattr__(self, "most_elements", INLINE_READ_BYTES // max(1, chain.chunk.dtype.itemsize))

    def in_parts(self, axes: tuple[Axis, ...], shape: tuple[int, ...], source: ChunkSource) -> OpenChunks:
        """Return the same chunks as their parts of a shape, which a grid of `axes` has, and which `source` finds."""
        chain = self._part[0] if self._part else None
        if chain is None or chain.chunk.shape != shape:  # nearly always the part of the previous request
            chain = part_of(self.model.chain, shape)
            self._part[:] = [chain]
        model = replace(self.model, axes=axes, chain=chain)
        found = replace(self, model=model)
        object.__setattr__(found, "part_bytes", None)
        object.__setattr__(found, "source", source)
        return found

    def workers(self, each: int, fewest: int = 1) -> int:
        """Return how many threads may work at a request, each on chunks that take `each` bytes.

        As many as the user asked for; otherwise one a core, or at least `fewest`, within the room of the window.
        """
        return self.threads or max(1, min(max(execution.core_count(), fewest), WINDOW_BYTES // each))

    def window(self, each: int) -> int:
        """Return how many bytes a request may have under way, if a chunk takes `each`."""
        return max(WINDOW_BYTES, (self.threads or 1) * each)
