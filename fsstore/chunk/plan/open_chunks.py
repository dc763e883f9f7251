"""The chunks of one open array: what is constant from one read or write to the next."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from fsstore.chunk.cache import ChunkCache
from fsstore.chunk.plan.grid import Axis, ClippedAxis, RegularAxis
from fsstore.chunk.plan.model import ChunkModel
from fsstore.chunk.plan.source import ChunkSource, KvSource
from fsstore.chunk.tuning import (
    FAR_PART_BYTES,
    INLINE_READ_BYTES,
    JOINT_BYTES,
    NEAR_PART_BYTES,
    READ_WINDOW_CELLS,
    WINDOW_BYTES,
)
from fsstore.codec.chain import BoundChain, is_raw, part_of
from fsstore.index import IndexTransform
from fsstore.kvstore.contract.driver import KvPrefix
from fsstore.runtime import execution
from fsstore.runtime.observer import Meter

__all__ = ["OpenChunks"]


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
    steps: tuple[int, ...] | None = field(init=False, compare=False)
    most_chunks: int = field(init=False, compare=False)
    most_elements: int = field(init=False, compare=False)
    part_bytes: int | None = field(init=False, compare=False)
    source: ChunkSource = field(init=False, compare=False)
    _part: list[BoundChain] = field(init=False, compare=False, repr=False, default_factory=list)

    def __post_init__(self) -> None:
        """Find out which boxes may wait: columns plan them, and what they touch is not too large."""
        model = self.model
        chain, shard = model.chain, model.shard
        cut = all(isinstance(axis, RegularAxis | ClippedAxis) for axis in model.axes)
        plain = cut and len(chain.chunk.shape) == len(model.axes) and not model.is_partial
        shards = chain.shard is not None and (shard is None or shard.inner.shard is not None)
        steps = chain.read_shape if plain and self.cache is None and not shards else ()
        size = max(1, chain.chunk.dtype.itemsize) * math.prod(steps)
        object.__setattr__(self, "steps", steps or None)
        object.__setattr__(self, "most_chunks", min(JOINT_BYTES // size, READ_WINDOW_CELLS))
        object.__setattr__(self, "source", KvSource(self.store))
        features = self.store.driver.features
        parts = features.reads_parts and is_raw(chain) and model.bind is None and self.cache is None
        least = FAR_PART_BYTES if features.waits else NEAR_PART_BYTES
        object.__setattr__(self, "part_bytes", least if parts else None)
        object.__setattr__(self, "most_elements", INLINE_READ_BYTES // max(1, chain.chunk.dtype.itemsize))

    def in_parts(self, axes: tuple[Axis, ...], shape: tuple[int, ...], source: ChunkSource) -> OpenChunks:
        """Return the same chunks as their parts of a shape, which a grid of `axes` has, and which `source` finds."""
        chain = self._part[0] if self._part else None
        if chain is None or chain.chunk.shape != shape:  # as nearly always those of the request before
            chain = part_of(self.model.chain, shape)
            self._part[:] = [chain]
        model = replace(self.model, axes=axes, chain=chain)
        found = replace(self, model=model)
        object.__setattr__(found, "part_bytes", None)
        object.__setattr__(found, "source", source)
        return found

    def workers(self, each: int, fewest: int = 1) -> int:
        """Return how many threads may work at a request, each on chunks that take `each` bytes.

        As many as were asked for; else one a core, or the `fewest` that are of use, as far as the window has room.
        """
        return self.threads or max(1, min(max(execution.core_count(), fewest), WINDOW_BYTES // each))

    def window(self, each: int) -> int:
        """Return how many bytes a request may have under way, if a chunk takes `each`."""
        return max(WINDOW_BYTES, (self.threads or 1) * each)
