"""The grid of the sub-chunks of shards: what is true of all requests to an array.

Sub-chunks are numbered in the order of the shard's index, which is the order of the array as the sharding codec sees
it: transposes before the codec permute the dimensions.  Shards may hold shards; the sub-chunks are the innermost ones,
and have a number at every level.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from fsstore.chunk.plan.grid import RegularAxis
from fsstore.chunk.plan.source import Source
from fsstore.chunk.shard.shard_source import EntriesInParts, ShardSource
from fsstore.chunk.tuning import SHARED_ENTRY_BYTES
from fsstore.codec.chain import BoundChain
from fsstore.codec.contract import Array
from fsstore.codec.sharding import ShardLayout, shard_of

__all__ = ["Numbering", "ShardGrid", "shard_grid"]


class ShardGrid(NamedTuple):
    """Sub-chunks, by dimension of the array.

    `layouts` are those of shards within shards, outermost first, `orders` the order of the array's dimensions as each
    sees them, and `levels` how sub-chunks are numbered at each.  `shape` is that of a sub-chunk, `axes` are the
    boundaries of sub-chunks, and `order` that of the array's dimensions in the bytes of one, None where these are more
    than transposed.
    """

    layouts: list[ShardLayout]
    orders: list[tuple[int, ...]]
    levels: list[Numbering]
    shape: tuple[int, ...]
    axes: list[RegularAxis]
    order: tuple[int, ...] | None

    @property
    def layout(self) -> ShardLayout:
        """The layout of what holds the sub-chunks."""
        return self.layouts[-1]

    def numbering(self, inside: int = 0) -> list[Numbering]:
        """Return how sub-chunks are numbered at each level; there are dimensions `inside` the elements, never cut."""
        return [level.followed_by(inside) for level in self.levels] if inside else self.levels

    def source(self, base: Source) -> Source:
        """Return where the entries come from, over a source of shards."""
        for layout in self.layouts:
            base = ShardSource(base, layout)
        return base

    def source_of_parts(self, base: Source, *, complete: bool) -> EntriesInParts:
        """Return where the entries of one shard come from that is read part by part, all of it if it is `complete`."""
        for layout in self.layouts[:-1]:
            base = EntriesInParts(base, layout, complete=complete)
        return EntriesInParts(base, self.layout, complete=complete)

    def depth(self, most: int) -> int:
        """Return how many shards within shards are to be opened for parts of up to `most` bytes, at most all."""
        sizes = [layout.inner.decoded_size for layout in self.layouts[:-1]]
        return 1 + next((level for level, size in enumerate(sizes) if size <= most), len(sizes))

    @property
    def worth_sharing(self) -> bool:
        """Whether decoding sub-chunks is work enough to divide a shard between workers: not copying alone."""
        size = self.layout.inner.encoded_size
        return size is None or size >= SHARED_ENTRY_BYTES

    @property
    def in_order(self) -> bool:
        """Whether sub-chunks have their dimensions in the array's order."""
        order = self.orders[-1]
        return order == tuple(range(len(order)))

    def in_array_order(self, chunk: Array, lead: int = 0) -> Array:
        """Return a view of a sub-chunk with the dimensions in the array's order; others may follow them, or `lead`."""
        if self.in_order:
            return chunk
        order = lead + np.argsort(self.orders[-1])
        return chunk.transpose(*range(lead), *order.tolist(), *range(lead + len(order), chunk.ndim))

    def in_stored_order(self, part: Array) -> Array:
        """Return a view of a part of the array with the dimensions in the order of sub-chunks."""
        order = self.orders[-1]
        return part if self.in_order else part.transpose(*order, *range(len(order), part.ndim))


@lru_cache(maxsize=64)
def shard_grid(chain: BoundChain, depth: int | None = None) -> ShardGrid:
    """Return the grid of the sub-chunks of a chain; those within `depth` shards, if it has more levels."""
    layouts: list[ShardLayout] = []
    orders: list[tuple[int, ...]] = []
    order = tuple(range(len(chain.chunk.shape)))
    while len(layouts) != depth and (shard := shard_of(chain)) is not None and chain.order is not None:
        order = tuple([order[axis] for axis in chain.order])
        layouts.append(shard)
        orders.append(order)
        chain = shard.inner
    sizes = dict(zip(order, layouts[-1].sub_shape, strict=True))
    inner = None if chain.order is None else tuple([order[axis] for axis in chain.order])
    shape = tuple([sizes[axis] for axis in range(len(sizes))])
    levels = [Numbering.of(*level, shape) for level in zip(layouts, orders, strict=True)]
    return ShardGrid(layouts, orders, levels, shape, list(map(RegularAxis, shape, levels[0].shard)), inner)


class Numbering(NamedTuple):
    """By dimension of the array, in sub-chunks of the finest level: the extent of a shard, of an entry, and what a
    step of one entry adds to its number.
    """

    shard: list[int]
    entry: list[int]
    stride: list[int]

    @classmethod
    def of(cls, layout: ShardLayout, order: Sequence[int], sizes: Sequence[int]) -> Numbering:
        """Return the numbers of one level."""
        place = np.argsort(order)
        entry = [layout.sub_shape[at] // size for at, size in zip(place, sizes, strict=True)]
        shard = [layout.grid[at] * each for at, each in zip(place, entry, strict=True)]
        stride = [math.prod(layout.grid[at + 1 :]) for at in place]
        return cls(shard, entry, stride)

    def followed_by(self, inside: int) -> Numbering:
        """Return the numbers with dimensions inside the elements, which are never cut."""
        return Numbering(
            [*self.shard, *[1] * inside], [*self.entry, *[1] * inside], [*self.stride, *[0] * inside]
        )

    def add(self, output: int, number: Any) -> Any:
        """Return what a position along a dimension of the array, or each of many, adds to the number of its entry."""
        return number % self.shard[output] // self.entry[output] * self.stride[output]
