"""The chunks of one open array: what is constant from one read or write to the next."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

from fsstore.chunk.cache import ChunkCache
from fsstore.chunk.plan.grid import RegularAxis
from fsstore.chunk.plan.model import ChunkModel
from fsstore.chunk.tuning import INLINE_READ_BYTES, JOINT_BYTES, WINDOW_BYTES
from fsstore.index import IndexTransform
from fsstore.kvstore.contract.driver import KvPrefix
from fsstore.runtime import execution
from fsstore.runtime.observer import Meter

__all__ = ["BoxReach", "OpenChunks"]


class BoxReach(NamedTuple):
    """Boxes that touch few chunks, or sub-chunks of shards: the sides of one, and how many a box may touch."""

    sides: tuple[int, ...]
    most: int


@dataclass(frozen=True, slots=True)
class OpenChunks:
    """Where the chunks of an array are, what they hold, and how they are read and written.

    `bounds` is the identity over the array, with explicit bounds.  `threads` is how many workers were asked for.
    `reach`: which boxes may wait, unplanned, for others to be read with; None where none may.
    """

    bounds: IndexTransform
    model: ChunkModel
    store: KvPrefix
    fill_missing: bool = True
    threads: int | None = None
    cache: ChunkCache | None = None
    meter: Meter | None = field(default=None, compare=False)
    reach: BoxReach | None = field(init=False, compare=False)

    def __post_init__(self) -> None:
        """Find the reach: such boxes may wait, unplanned, for others to be read with."""
        model = self.model
        chain, shard = model.chain, model.shard
        sides = chain.read_shape
        regular = all(isinstance(axis, RegularAxis) for axis in model.axes)
        plain = regular and len(sides) == len(model.axes) > 0 and not model.is_partial
        alone = self.store.driver.features.waits or self.cache is not None
        shards = chain.shard is not None and (shard is None or shard.inner.shard is not None)
        size, corner = chain.chunk.dtype.itemsize * math.prod(sides), 2 ** len(sides)
        most = max(INLINE_READ_BYTES // max(1, size), corner if corner * size <= JOINT_BYTES else 0)
        object.__setattr__(
            self, "reach", BoxReach(sides, most) if plain and not alone and not shards else None
        )

    def workers(self, each: int, fewest: int = 1) -> int:
        """Return how many threads may work at a request, each on chunks that take `each` bytes.

        As many as were asked for; else one a core, or the `fewest` that are of use, as far as the window has room.
        """
        return self.threads or max(1, min(max(execution.core_count(), fewest), WINDOW_BYTES // each))

    def window(self, each: int) -> int:
        """Return how many bytes a request may have under way, if a chunk takes `each`."""
        return max(WINDOW_BYTES, (self.threads or 1) * each)
