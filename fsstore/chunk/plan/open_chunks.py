"""The chunks of one open array: what is constant from one read or write to the next."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from fsstore.chunk.cache import ChunkCache
from fsstore.chunk.plan.grid import RegularAxis
from fsstore.chunk.plan.model import ChunkModel
from fsstore.chunk.tuning import JOINT_BYTES, WINDOW_BYTES
from fsstore.index import IndexTransform
from fsstore.kvstore.contract.driver import KvPrefix
from fsstore.runtime import execution
from fsstore.runtime.observer import Meter

__all__ = ["OpenChunks"]


@dataclass(frozen=True, slots=True)
class OpenChunks:
    """Where the chunks of an array are, what they hold, and how they are read and written.

    `bounds` is the identity over the array, with explicit bounds.  `threads` is how many workers were asked for.
    `reach`: a box with no longer sides may wait, unplanned, for others to be read with; None where none may.
    """

    bounds: IndexTransform
    model: ChunkModel
    store: KvPrefix
    fill_missing: bool = True
    threads: int | None = None
    cache: ChunkCache | None = None
    meter: Meter | None = field(default=None, compare=False)
    reach: tuple[int, ...] | None = field(init=False, compare=False)

    def __post_init__(self) -> None:
        """Find the reach: such a box touches two chunks a dimension at most (sub-chunks of shards), not too large."""
        model = self.model
        chain, shard = model.chain, model.shard
        regular = all(isinstance(axis, RegularAxis) for axis in model.axes)
        plain = regular and len(chain.chunk.shape) == len(model.axes) and not model.is_partial
        alone = self.store.driver.features.waits or self.cache is not None
        shards = chain.shard is not None and (shard is None or shard.inner.shard is not None)
        reach = chain.read_shape
        touched = chain.chunk.dtype.itemsize * math.prod([2 * side for side in reach])
        may_wait = plain and not alone and not shards and touched <= JOINT_BYTES
        object.__setattr__(self, "reach", (reach or None) if may_wait else None)

    def workers(self, each: int, fewest: int = 1) -> int:
        """Return how many threads may work at a request, each on chunks that take `each` bytes.

        As many as were asked for; else one a core, or the `fewest` that are of use, as far as the window has room.
        """
        return self.threads or max(1, min(max(execution.core_count(), fewest), WINDOW_BYTES // each))

    def window(self, each: int) -> int:
        """Return how many bytes a request may have under way, if a chunk takes `each`."""
        return max(WINDOW_BYTES, (self.threads or 1) * each)
