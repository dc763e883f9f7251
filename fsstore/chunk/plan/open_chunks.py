"""The chunks of one open array: what is constant from one read or write to the next."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from fsstore.chunk.cache import ChunkCache
from fsstore.chunk.plan.grid import ClippedAxis, RegularAxis
from fsstore.chunk.plan.model import ChunkModel
from fsstore.chunk.plan.source import KvSource
from fsstore.chunk.tuning import INLINE_READ_BYTES, JOINT_BYTES, READ_WINDOW_CELLS, WINDOW_BYTES
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
    source: KvSource = field(init=False, compare=False)

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
        object.__setattr__(self, "most_elements", INLINE_READ_BYTES // max(1, chain.chunk.dtype.itemsize))

    def workers(self, each: int, fewest: int = 1) -> int:
        """Return how many threads may work at a request, each on chunks that take `each` bytes.

        As many as were asked for; else one a core, or the `fewest` that are of use, as far as the window has room.
        """
        return self.threads or max(1, min(max(execution.core_count(), fewest), WINDOW_BYTES // each))

    def window(self, each: int) -> int:
        """Return how many bytes a request may have under way, if a chunk takes `each`."""
        return max(WINDOW_BYTES, (self.threads or 1) * each)
