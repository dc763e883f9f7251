"""The sub-chunks of shards that a request touches: a second plan, over the grid of sub-chunks.

The segments of the second plan are grouped by shard once a dimension; the cells of a shard are the product of the
groups its cell names.  Sub-chunks are numbered in the order of the shard's index, which is the order of the array as
the sharding codec sees it: transposes before the codec permute the dimensions.

Shards may hold shards.  The sub-chunks are the innermost ones; they have a number at every level, and the source of
entries is a source of shards over another.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache, reduce
from itertools import product
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from fsstore.chunk.plan.cell_run import CellRun
from fsstore.chunk.plan.grid import RegularAxis
from fsstore.chunk.plan.listed import Points
from fsstore.chunk.plan.model import ChunkModel
from fsstore.chunk.plan.planner import AnyCell, Cell, ChunkBox, OutputMap, PlanComponent, plan
from fsstore.chunk.plan.source import EntriesInParts, EntryRun, ShardSource, Source
from fsstore.chunk.tuning import FEW_CELLS, SHARED_ENTRY_BYTES
from fsstore.codec.chain.bound_chain import BoundChain
from fsstore.codec.chain.shard_layout import ShardLayout, shard_of
from fsstore.codec.contract import Array
from fsstore.kvstore.contract.coalesce import Ints

__all__ = ["ShardEntries"]


Number: TypeAlias = "int | tuple[int, ...]"


class ShardEntries:
    """The sub-chunks a request touches, by shard.  `plan` is the request over the grid of sub-chunks.

    `layouts` are those of shards within shards, outermost first; `layout` is the last, of the sub-chunks.
    With a `depth`, shards within so many shards are the sub-chunks.
    """

    __slots__ = ("_groups", "_restore", "layout", "layouts", "plan")

    def __init__(
        self, maps: Sequence[OutputMap], shape: tuple[int, ...], model: ChunkModel, depth: int | None = None
    ) -> None:
        rank = len(model.chain.chunk.shape)
        inside = model.axes[rank:]  # dimensions inside the elements, which are never cut
        self.layouts, self._restore, axes, numbering = _grid(model.chain, len(inside), depth)
        self.layout = self.layouts[-1]
        self.plan = plan(maps, shape, [*axes, *inside])
        self._groups = [_group(component, numbering) for component in self.plan.components]

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

    def of(self, shard: AnyCell) -> tuple[Sequence[Cell], Sequence[Any] | Ints]:
        """Return the cells of a shard, and the number of each in the index: one a level, if there are more."""
        chunks: list[tuple[int, ...]]
        if isinstance(shard, ChunkBox):
            chunks = [(number,) for number in shard.numbers]
        else:
            chunks = [
                segment.chunk if isinstance(segment, Points) else (segment.chunk,)
                for segment in shard.segments
            ]
        groups = [group[chunk] for group, chunk in zip(self._groups, chunks, strict=True)]
        segments = [[segment for segment, _ in group] for group in groups]
        numbers = [[number for _, number in group] for group in groups]
        count = math.prod(map(len, groups))
        if count > FEW_CELLS and len(self.layouts) == 1:
            sums = reduce(np.add.outer, [np.array(each, np.int64) for each in numbers])
            return CellRun(self.plan, range(count), segments), sums.reshape(-1)
        cells = [Cell.of(each) for each in product(*segments)]
        added: Iterator[Any] = product(*numbers)
        if len(self.layouts) == 1:
            return cells, list(map(sum, added))
        levels = range(len(self.layouts))
        return cells, [tuple([sum([number[level] for number in each]) for level in levels]) for each in added]

    def identities(self, key: str, numbers: Sequence[Any] | Ints) -> Sequence[Any]:
        """Return what `source` calls the entries of a shard: pairs, nested where shards are."""
        if isinstance(numbers, np.ndarray):
            return EntryRun(key, numbers)
        if len(self.layouts) == 1:
            return [(key, number) for number in numbers]
        found = []
        for number in numbers:
            identity: Any = key
            for level in number:
                identity = (identity, level)
            found.append(identity)
        return found

    @property
    def touched_bytes(self) -> int:
        """How many bytes the sub-chunks have, decoded."""
        return self.plan.cell_count * self.layout.inner.decoded_size

    @property
    def worth_sharing(self) -> bool:
        """Whether decoding sub-chunks is work enough to divide a shard between workers: not copying alone."""
        size = self.layout.inner.encoded_size
        return size is None or size >= SHARED_ENTRY_BYTES

    @property
    def in_order(self) -> bool:
        """Whether sub-chunks have their dimensions in the array's order."""
        return self._restore is None

    def in_array_order(self, chunk: Array) -> Array:
        """Return a view of a sub-chunk with the dimensions in the array's order; others may follow them."""
        if self._restore is None:
            return chunk
        return chunk.transpose(*self._restore, *range(len(self._restore), chunk.ndim))


class _Grid(NamedTuple):
    """Facts about all requests: the layouts of shards within shards, how an encoded sub-chunk is transposed
    to the array's order (None: not at all), its extent along each dimension, and its numbers at every level.
    """

    layouts: list[ShardLayout]
    restore: tuple[int, ...] | None
    axes: list[RegularAxis]
    numbering: list[_Numbering]


@lru_cache(maxsize=64)
def _grid(chain: BoundChain, inside: int, depth: int | None) -> _Grid:
    """Return the grid of sub-chunks of a chain, in an array with a number of dimensions inside its elements."""
    levels = _levels(chain)[:depth]
    layout, order = levels[-1]
    place = np.argsort(order).tolist()  # dimension d of the array is dimension place[d] of the encoded array
    restore = tuple(place) if place != sorted(place) else None
    sizes = [layout.sub_shape[at] for at in place]
    numbering = [_Numbering.of(each, order, sizes, inside) for each, order in levels]
    return _Grid([each for each, _ in levels], restore, list(map(RegularAxis, sizes)), numbering)


def _levels(chain: BoundChain) -> list[tuple[ShardLayout, tuple[int, ...]]]:
    """Return the layouts of shards within shards, outermost first, each with its order of the array's dimensions."""
    levels: list[tuple[ShardLayout, tuple[int, ...]]] = []
    order = tuple(range(len(chain.chunk.shape)))
    while (shard := shard_of(chain)) is not None and chain.order is not None:
        order = tuple(order[axis] for axis in chain.order)
        levels.append((shard, order))
        chain = shard.inner
    return levels


class _Numbering(NamedTuple):
    """By dimension of the array, in sub-chunks of the finest level: the extent of a shard, of an entry, and what a
    step of one entry adds to its number.
    """

    shard: list[int]
    entry: list[int]
    stride: list[int]

    @classmethod
    def of(cls, layout: ShardLayout, order: Sequence[int], sizes: Sequence[int], inside: int) -> _Numbering:
        place = np.argsort(order)
        entry = [layout.sub_shape[at] // size for at, size in zip(place, sizes, strict=True)]
        shard = [layout.grid[at] * each for at, each in zip(place, entry, strict=True)]
        stride = [math.prod(layout.grid[at + 1 :]) for at in place]
        return cls([*shard, *[1] * inside], [*entry, *[1] * inside], [*stride, *[0] * inside])

    def add(self, output: int, number: int) -> int:
        """Return what a sub-chunk's position along a dimension of the array adds to the number of its entry."""
        return number % self.shard[output] // self.entry[output] * self.stride[output]


def _group(
    component: PlanComponent, levels: Sequence[_Numbering]
) -> dict[tuple[int, ...], list[tuple[Any, Number]]]:
    """Return segments by the shard they fall into, each with what it adds to the number of its sub-chunk."""
    groups: dict[tuple[int, ...], list[tuple[Any, Number]]] = {}
    outputs, _, segments = component
    outer, single = levels[0], len(levels) == 1
    if single and not component.is_joint:  # one dimension, as nearly always: half the time
        size, stride = outer.shard[outputs[0]], outer.stride[outputs[0]]
        for segment in segments:
            shard, place = divmod(segment.chunk, size)
            groups.setdefault((shard,), []).append((segment, place * stride))
        return groups
    for segment in segments:
        chunk = segment.chunk if isinstance(segment, Points) else (segment.chunk,)
        pairs = list(zip(outputs, chunk, strict=True))
        shard = tuple([number // outer.shard[output] for output, number in pairs])
        added = [sum([level.add(output, number) for output, number in pairs]) for level in levels]
        groups.setdefault(shard, []).append((segment, added[0] if single else tuple(added)))
    return groups
