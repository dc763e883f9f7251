"""The sub-chunks of shards that a request touches: a second plan, over the grid of sub-chunks.

The segments of the second plan are grouped by shard, once for each dimension; the cells of a shard are the product of
its groups.  Sub-chunks are numbered in the order of the shard's index, which is the order of the array as the sharding
codec sees it: transposes before the codec permute the dimensions.

Shards may hold shards.  The sub-chunks are the innermost ones; they have a number at every level, and the source of
entries is a source of shards over another.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import reduce
from itertools import chain, product
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from fsstore.chunk.columns import CellRun
from fsstore.chunk.model import Axis, ChunkModel, Segment, SliceSegments
from fsstore.chunk.planner import AnyCell, Cell, CellPlan, ChunkBox, Plan, PlanComponent, chunks_along, plan_cells
from fsstore.chunk.request import OutputMap, Points
from fsstore.chunk.shard_source import EntryRun, Numbering, ShardGrid, shard_grid
from fsstore.codec.sharding import NO_SIZE, grid_boxes
from fsstore.kvstore.contract.batch import Ints
from fsstore.runtime.tuning import COLUMNS_FROM

Number: TypeAlias = "int | tuple[int, ...]"


class ShardEntries:
    """The sub-chunks that a request touches, by shard.  `plan` is the request over the grid of sub-chunks.

    With a `depth`, shards at that level of nesting count as sub-chunks.
    """

    __slots__ = ("_kept_groups", "_levels", "grid", "plan")

    def __init__(self, grid: ShardGrid, touched: CellPlan) -> None:
        self.grid, self.plan = grid, touched
        outputs = sum([len(component.outputs) for component in touched.components])
        self._levels = grid.numbering(outputs - len(grid.shape))
        self._kept_groups: list[_Groups] | None = None

    @classmethod
    def touched_by(
        cls, maps: Sequence[OutputMap], shape: tuple[int, ...], model: ChunkModel, depth: int | None = None
    ) -> ShardEntries:
        """Return the sub-chunks that a request touches."""
        grid = shard_grid(model.chain, depth)
        return cls(grid, plan_cells(maps, shape, entry_axes(grid, model)))

    @property
    def _groups(self) -> list[_Groups]:
        """The segments by component and shard; requests for listed positions do not need them."""
        if self._kept_groups is None:
            self._kept_groups = [_group(component, self._levels) for component in self.plan.components]
        return self._kept_groups

    def of(self, shard: AnyCell) -> tuple[Sequence[Cell], Sequence[Any] | Ints]:
        """Return the cells of a shard, and the number of each in the index, or one for each of several levels."""
        if isinstance(shard, ChunkBox):
            chunks: Iterator[tuple[int, ...]] = ((number,) for number in shard.numbers)
        else:
            chunks = map(_chunk, shard.segments)
        groups = [group[chunk] for group, chunk in zip(self._groups, chunks, strict=True)]
        cells, numbers = self._product(groups)
        return cells, numbers.reshape(-1) if isinstance(numbers, np.ndarray) else numbers

    def all_of_few(self, model: ChunkModel) -> tuple[Sequence[Cell], list[Any]]:
        """Return all cells, with identities made one by one."""
        cells = CellRun(self.plan, range(self.plan.cell_count))
        if not (self.plan.separable and len(self._levels) == 1):
            return cells, [entry_at(self.plan.chunk_numbers(cell), self.grid, model) for cell in cells]
        [level] = self._levels
        shards, added = [], []
        for component, size, stride in zip(self.plan.components, level.shard, level.stride, strict=True):
            numbers = chunks_along(component.segments)
            shards.append([number // size for number in numbers])
            added.append([number % size * stride for number in numbers])
        keys = {shard: model.key(shard) for shard in set(product(*shards))}
        pairs = zip(product(*shards), map(sum, product(*added)), strict=True)
        return cells, [(keys[shard], number) for shard, number in pairs]

    def boxes(self, shard_plan: Plan, model: ChunkModel, most: int) -> Iterator[tuple[Sequence[Cell], Sequence[Any]]]:
        """Yield the cells of adjacent shards, about `most` bytes at a time, with their identities.

        `shard_plan` is the plan over the grid of shards.
        """
        if isinstance(shard_plan, ChunkBox):
            cells, numbers = self.of(shard_plan)
            yield cells, self.identities(model.key(shard_plan.numbers), numbers)
            return
        counts = [len(component.segments) for component in shard_plan.components]
        share = max(1, self.touched_bytes // shard_plan.cell_count)
        for index in grid_boxes(counts, max(1, most // share)):
            whole = (*index, *[slice(None)] * (len(counts) - len(index)))
            chosen = [_some(component.segments, at) for component, at in zip(shard_plan.components, whole, strict=True)]
            yield self._box(shard_plan, model, chosen)

    def _box(
        self, shard_plan: CellPlan, model: ChunkModel, chosen: Sequence[Sequence[Segment | Points]]
    ) -> tuple[Sequence[Cell], Sequence[Any]]:
        """Return the cells of some shards, given by component, and their identities."""
        keys = CellRun(shard_plan, range(math.prod(map(len, chosen))), chosen).keys(model)
        found = [
            groups.among(list(map(_chunk, segments))) for groups, segments in zip(self._groups, chosen, strict=True)
        ]
        cells, numbers = self._product([group for group, _ in found])
        steps = [math.prod(map(len, chosen[axis + 1 :])) for axis in range(len(chosen))]
        owners = _sums([np.multiply(each, step) for (_, each), step in zip(found, steps, strict=True)])
        if isinstance(numbers, np.ndarray):
            return cells, EntryRun(keys, owners, numbers)
        keyed = map(keys.__getitem__, owners.tolist())
        return cells, [_identity(key, number) for key, number in zip(keyed, numbers, strict=True)]

    def _product(self, groups: Sequence[_Numbered]) -> tuple[Sequence[Cell], Sequence[Any] | Ints]:
        """Return the cells of segments by component, and their numbers."""
        numbers = [group.numbers for group in groups]
        count = math.prod(map(len, numbers))
        single = len(self.grid.layouts) == 1
        cells = CellRun(self.plan, range(count), [group.segments for group in groups])
        if single and count > COLUMNS_FROM:
            return cells, _sums([np.array(each, np.int64) for each in numbers])
        added: Iterator[Any] = product(*numbers)
        if single:
            return cells, list(map(sum, added))
        levels = range(len(self.grid.layouts))
        return cells, [tuple([sum([number[level] for number in each]) for level in levels]) for each in added]

    def identities(self, key: str, numbers: Sequence[Any] | Ints) -> Sequence[Any]:
        """Return the identities of the entries of a shard: pairs, nested if shards are."""
        if isinstance(numbers, np.ndarray):
            return EntryRun.within(key, numbers)
        return [_identity(key, number) for number in numbers]

    @property
    def touched_bytes(self) -> int:
        """The decoded size of the sub-chunks."""
        return self.plan.cell_count * self.grid.layout.inner.decoded_size


def entry_axes(grid: ShardGrid, model: ChunkModel) -> list[Axis]:
    """Return the boundaries of sub-chunks, and of dimensions inside the elements, which are never divided."""
    return [*grid.axes, *model.axes[len(grid.axes) :]]


def entry_at(numbers: Sequence[int], grid: ShardGrid, model: ChunkModel) -> Any:
    """Return the identity of the sub-chunk with the given numbers along the dimensions of the array."""
    outer = grid.levels[0].shard
    key = model.key([number // size for number, size in zip(numbers, outer, strict=False)])
    added = [sum([level.add(axis, numbers[axis]) for axis in range(len(outer))]) for level in grid.levels]
    return _identity(key, tuple(added))


def entries_at(columns: Sequence[Ints], grid: ShardGrid, model: ChunkModel) -> Sequence[Any]:
    """Return the identities of sub-chunks, given by a column of their numbers along each dimension of the array."""
    shards = [column // size for column, size in zip(columns, grid.levels[0].shard, strict=False)]
    firsts, owners = _distinct(shards)
    keys = model.keys_of([column[firsts] for column in shards])
    numbers = [
        reduce(np.add, [level.add(axis, columns[axis]) for axis in range(len(level.stride))]) for level in grid.levels
    ]
    if len(numbers) == 1:
        return EntryRun(keys, owners, numbers[0])
    keyed = map(keys.__getitem__, owners.tolist())
    return [
        _identity(key, each)
        for key, each in zip(keyed, zip(*[level.tolist() for level in numbers], strict=True), strict=True)
    ]


def _distinct(columns: Sequence[Ints]) -> tuple[Ints, Ints]:
    """Return the first place of each distinct row, and for each row the number of its distinct row."""
    if not columns[0].size:
        return columns[0], columns[0]
    spans = [int(column.max()) - int(column.min()) + 1 for column in columns]
    if math.prod(spans) == 1:
        return np.zeros(1, np.int64), np.zeros(len(columns[0]), np.int64)
    if math.prod(spans) < NO_SIZE:
        key = reduce(
            lambda key, pair: key * pair[1] + (pair[0] - pair[0].min()),
            zip(columns, spans, strict=True),
            np.zeros((), np.int64),
        )
        _, firsts, owners = np.unique(key, return_index=True, return_inverse=True)
    else:
        _, firsts, owners = np.unique(np.stack(columns), axis=1, return_index=True, return_inverse=True)
    return firsts, owners.reshape(-1)


def _chunk(segment: Segment | Points) -> tuple[int, ...]:
    return segment.chunk if isinstance(segment, Points) else (segment.chunk,)


def _some(segments: Sequence[Segment | Points], at: int | slice) -> Sequence[Segment | Points]:
    return segments[at] if isinstance(at, slice) else [segments[at]]


def _sums(columns: Sequence[Ints]) -> Ints:
    """Return the sums over the product of the columns."""
    return reduce(np.add.outer, columns, np.zeros((), np.int64)).reshape(-1)


def _identity(key: str, number: int | tuple[int, ...]) -> Any:
    """Return the identity of an entry with a number, or with one for each level of nested shards."""
    identity: Any = key
    for level in (number,) if isinstance(number, int) else number:
        identity = (identity, level)
    return identity


class _Numbered(NamedTuple):
    """Segments along a component, and the contribution of each to the number of its sub-chunk."""

    segments: Sequence[Any]
    numbers: Sequence[Number]


class _Groups(dict[tuple[int, ...], _Numbered]):
    """The segments along a component by shard."""

    def among(self, shards: Sequence[tuple[int, ...]]) -> tuple[_Numbered, Ints]:
        """Return the segments of consecutive shards, and the shard of each."""
        found = [self[shard] for shard in shards]
        segments = list(chain.from_iterable([group.segments for group in found]))
        numbers = list(chain.from_iterable([group.numbers for group in found]))
        owners = np.repeat(np.arange(len(found)), [len(group.numbers) for group in found])
        return _Numbered(segments, numbers), owners


class _SliceGroups(_Groups):
    """The segments of a slice: those of consecutive shards are a slice, too, and are not made one by one."""

    def __init__(self, output: int, segments: SliceSegments, levels: Sequence[Numbering]) -> None:
        super().__init__()
        self._output, self._segments, self._levels = output, segments, levels
        self._size = levels[0].shard[output]

    def __missing__(self, shard: tuple[int, ...]) -> _Numbered:
        """Compute the segments of a shard."""
        found = self[shard] = self._with_numbers(self._between(shard[0], shard[0]))
        return found

    def among(self, shards: Sequence[tuple[int, ...]]) -> tuple[_Numbered, Ints]:
        """Return the segments of consecutive shards, and the shard of each."""
        segments = self._between(shards[0][0], shards[-1][0])
        own = np.array(segments.chunks, np.int64) // self._size
        return self._with_numbers(segments), np.searchsorted(np.array(shards)[:, 0], own)

    def _between(self, first: int, last: int) -> SliceSegments:
        """Return the segments in consecutive shards."""
        low, high = [bisect_left(self._segments.chunks, number * self._size) for number in (first, last + 1)]
        return self._segments[low:high]

    def _with_numbers(self, segments: SliceSegments) -> _Numbered:
        output, levels, size = self._output, self._levels, self._size
        if len(levels) > 1:
            added = [tuple([level.add(output, chunk) for level in levels]) for chunk in segments.chunks]
            return _Numbered(segments, added)
        stride = levels[0].stride[output]
        return _Numbered(segments, [chunk % size * stride for chunk in segments.chunks])


def _group(component: PlanComponent, levels: Sequence[Numbering]) -> _Groups:
    """Return segments by shard, each with its contribution to the number of its sub-chunk."""
    outputs, _, segments = component
    if isinstance(segments, SliceSegments):
        return _SliceGroups(outputs[0], segments, levels)
    found: dict[tuple[int, ...], tuple[list[Any], list[Number]]] = {}
    outer, single = levels[0], len(levels) == 1
    for segment in segments:
        pairs = list(zip(outputs, _chunk(segment), strict=True))
        added = [sum([level.add(output, number) for output, number in pairs]) for level in levels]
        here, numbers = found.setdefault(tuple([number // outer.shard[output] for output, number in pairs]), ([], []))
        here.append(segment)
        numbers.append(added[0] if single else tuple(added))
    return _Groups({shard: _Numbered(*each) for shard, each in found.items()})
