"""The sub-chunks of a shard that requests change, each decoded and encoded once; the others keep their bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from fsstore.chunk.plan.model import ChunkModel
from fsstore.chunk.plan.place import Sending
from fsstore.chunk.plan.planner import AnyCell
from fsstore.chunk.shard.shard_grid import ShardGrid
from fsstore.chunk.write.changed_chunk import Portions, decoded, encoded
from fsstore.chunk.write.stored_shard import StoredShard
from fsstore.codec.buffers import equals_fill
from fsstore.codec.chain import BoundChain
from fsstore.codec.contract import Array, Buffer
from fsstore.codec.sharding import Run, ShardLayout, StoredParts, in_portions, portions_of_runs
from fsstore.kvstore.contract.batch import Ints
from fsstore.kvstore.contract.driver import ReadResult

__all__ = ["ShardChange", "ShardParts", "Stored", "changed_shard"]

Stored: TypeAlias = ReadResult | StoredShard
_Parts: TypeAlias = StoredParts | StoredShard


class ShardParts(NamedTuple):
    """Cells of sub-chunks of a shard that are written, and their numbers in its index, perhaps one a level."""

    cells: Sequence[AnyCell]
    numbers: Sequence[Any] | Ints


class ShardChange(NamedTuple):
    """The change of some parts of one shard, and their placement."""

    grid: ShardGrid
    placement: Sending
    model: ChunkModel
    elide: bool
    parts: ShardParts

    def is_whole(self, cell: AnyCell) -> bool:
        """Return whether nothing of what is stored of a sub-chunk is left."""
        return not self.model.is_partial and self.placement.has_target(cell)

    def covering(self, cell: AnyCell) -> Array:
        """Return a sub-chunk that is covered: the values themselves."""
        chunk = self.placement.target(cell)
        assert chunk is not None, "a covered cell has a target"
        return np.ascontiguousarray(self.grid.in_stored_order(chunk))

    def copy_in(self, cell: AnyCell, chunk: Array) -> None:
        """Change a part of a sub-chunk."""
        self.placement.copy_in(cell, self.model.view(self.grid.in_array_order(chunk)))

    def encoded(self, chunk: Array, chain: BoundChain, *, is_own: bool) -> Buffer | None:
        """Return the encoding of a sub-chunk after its last change; if it `is_own` nobody changes it any more."""
        fill = chain.chunk.fill_value
        if not self.elide:
            return chain.encode_all(chunk)
        if fill is not None and equals_fill(chunk, fill):
            return None
        return encoded(chunk, chain) if is_own else chain.encode(chunk)


_Touched: TypeAlias = list[tuple[ShardChange, AnyCell, tuple[int, ...]]]


def changed_shard(changes: Sequence[ShardChange], old: Stored | None, *, may_vanish: bool) -> Portions | None:
    """Return the encoding of a shard after changes in their order; None if nothing is left of one that `may_vanish`."""
    touched: _Touched = []
    for change in changes:
        for cell, number in zip(*change.parts, strict=True):
            touched.append((change, cell, number if isinstance(number, tuple) else (number,)))
    layouts = changes[0].grid.layouts
    before: _Parts
    if isinstance(old, StoredShard):
        before = old
    else:
        before = StoredParts.of(None if old is None or old.state == "missing" else old.value, layouts[0])
    return _joined_runs(layouts[0], _changed_runs(layouts, touched, before), may_vanish=may_vanish)


def _joined_runs(layout: ShardLayout, runs: Iterable[Run], *, may_vanish: bool) -> Portions | None:
    if may_vanish:
        runs = list(runs)
        if all(length < 0 for lengths, _ in runs for length in lengths):
            return None
    return portions_of_runs(layout, runs)


def _changed_runs(layouts: Sequence[ShardLayout], touched: _Touched, before: _Parts) -> Iterator[Run]:
    """Yield the parts of a shard, which may be shards: changed where they are touched."""
    layout, *inside = layouts
    by_part: dict[int, _Touched] = {}
    for one in touched:
        by_part.setdefault(one[2][-len(layouts)], []).append(one)

    def change(number: int) -> Buffer | None:
        if not inside:
            return _changed_part(by_part[number], before, number, layout.inner)
        runs = _changed_runs(inside, by_part[number], StoredParts.of(before[number], inside[0]))
        portions = _joined_runs(inside[0], runs, may_vanish=True)
        return None if portions is None else b"".join(chain.from_iterable(portions))

    numbers = sorted(by_part)
    made = layout.map_parts(change, numbers, layout.inner.decoded_size)
    first = 0
    for some in in_portions(numbers, layout):
        stop = some[-1] + 1 if some[-1] < numbers[-1] else layout.count
        changed = dict(zip(some, made))  # noqa: B905  # those behind are not made yet
        yield from before.runs(first, stop, changed)
        first = stop


def _changed_part(touched: _Touched, before: _Parts, number: int, chain: BoundChain) -> Buffer | None:
    """Return the encoding of a sub-chunk after its changes; what a whole one replaces is not looked at."""
    whole = [at for at, (change, cell, _) in enumerate(touched) if change.is_whole(cell)]
    if not whole:
        chunk = decoded(before[number], chain)
    else:
        first, cell, _ = touched[whole[-1]]
        touched = touched[whole[-1] + 1 :]
        if not touched:
            return first.encoded(first.covering(cell), chain, is_own=False)
        chunk = first.covering(cell).copy()
    for change, cell, _ in touched:
        change.copy_in(cell, chunk)
    return touched[-1][0].encoded(chunk, chain, is_own=True)
