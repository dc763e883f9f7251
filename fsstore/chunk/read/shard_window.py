"""The windows of a read of shards: what is touched of many where that is little, parts of large ones.

The parts of one shard are of one generation, as if it had been read at once: if it is rewritten in between, all of it
is read again when the last part has been put in its place.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import accumulate

from fsstore.chunk.plan.cell_run import CellRun
from fsstore.chunk.plan.chunk_box import ChunkBox
from fsstore.chunk.plan.place import Placement, placement_of
from fsstore.chunk.plan.planner import Plan, plan
from fsstore.chunk.plan.request import as_lists
from fsstore.chunk.read.gather import CellBox, Gather, split
from fsstore.chunk.read.window import ChunkReader, ReadRequest, ShardGuard, Window
from fsstore.chunk.shard.shard_entries import ShardEntries, entries_at, entry_at, entry_axes
from fsstore.chunk.shard.shard_grid import ShardGrid, shard_grid
from fsstore.chunk.tuning import (
    FAR_SHARD_BYTES,
    FAR_SHARD_PART_BYTES,
    FAR_WINDOW_BYTES,
    FEW_CELLS,
    GATHERED_ELEMENTS,
    INLINE_READ_BYTES,
    NEAR_SHARD_BYTES,
    NEAR_SHARDS_BYTES,
    NEAR_WINDOW_BYTES,
    READ_WINDOW_CELLS,
    THREAD_WORTH_BYTES,
)
from fsstore.codec.sharding import grid_boxes

__all__ = ["entries_of", "entry_windows"]


def entries_of(request: ReadRequest) -> tuple[ShardGrid, Plan]:
    """Return the grid of the sub-chunks of shards, and the plan of a request over it."""
    model = request.chunks.model
    grid = shard_grid(model.chain)
    return grid, plan(request.maps, request.out, entry_axes(grid, model))


def entry_windows(
    request: ReadRequest, grid: ShardGrid, found: Plan, *, small: bool, near: bool
) -> Iterable[Window]:
    """Return windows of sub-chunks of shards; `near` says that all are read by threads that never wait."""
    chunks, maps, out = request
    if isinstance(found, ChunkBox):
        part = ChunkReader(chunks, placement_of(found, out), grid.source(chunks.source), grid)
        return [Window(part, [found], [entry_at(found.numbers, grid, chunks.model)])]
    entries = ShardEntries(grid, found)
    waits = chunks.store.driver.features.waits
    threads = chunks.workers(grid.layout.inner.working_size)
    most = min(NEAR_SHARD_BYTES, NEAR_SHARDS_BYTES // threads) if near else FAR_SHARD_BYTES
    together = INLINE_READ_BYTES if small else FAR_WINDOW_BYTES if waits else NEAR_WINDOW_BYTES
    if entries.plan.listed:
        return _listed_windows(request, entries, NEAR_SHARD_BYTES)
    if found.cell_count <= FEW_CELLS and entries.touched_bytes <= min(most, together):
        part = ChunkReader(chunks, Placement(found, out), grid.source(chunks.source), grid)
        return [Window(part, *entries.all_of_few(chunks.model))]
    little = 1 < out.size <= GATHERED_ELEMENTS * found.cell_count and len(maps) == len(grid.shape)
    if little and grid.layout.inner.run_length > 1 and not found.covers_some:
        listed = ShardEntries.touched_by(as_lists(maps, out.shape), out.shape, chunks.model)
        return _listed_windows(request, listed, NEAR_SHARD_BYTES)
    shard_plan = plan(maps, out, chunks.model.axes)
    worth = shard_plan.cell_count < threads and (small or waits)
    few = worth and _worth_dividing(request, entries, small=small)
    return _shard_windows(request, shard_plan, entries, most=most, together=together, few=few)


def _worth_dividing(request: ReadRequest, entries: ShardEntries, *, small: bool) -> bool:
    """Return whether the sub-chunks of a few shards are handed out one by one, so that threads can share a shard."""
    if not small:
        return entries.grid.worth_sharing
    model, store = request.chunks.model, request.chunks.store
    return model.chain.effort >= 2 * THREAD_WORTH_BYTES and not store.driver.features.waits


def _listed_windows(request: ReadRequest, entries: ShardEntries, most: int) -> Iterator[Window]:
    """Yield windows of listed positions in shards: what is touched of whole shards, about `most` bytes at a time.

    A shard of which more is touched has several windows.
    """
    chunks, _, out = request
    grid, touched = entries.grid, entries.plan
    part = ChunkReader(chunks, Gather(touched, out), grid.source(chunks.source), grid)
    shards = [
        [range(1)] if component.listed is None else component.listed.by_shard
        for component in touched.components
    ]
    counts = list(map(len, shards))
    share = max(1, entries.touched_bytes // math.prod(counts))
    at_once = min(most // share, READ_WINDOW_CELLS * math.prod(counts) // touched.cell_count)
    for index in grid_boxes(counts, max(1, at_once)):
        chosen = [slice(None)] * len(counts)
        chosen[: len(index)] = [each if isinstance(each, slice) else slice(each, each + 1) for each in index]
        runs = [ranges[at] for ranges, at in zip(shards, chosen, strict=True)]
        box = CellBox(touched, tuple([range(run[0].start, run[-1].stop) for run in runs]))
        window = Window(part, box, entries_at(box.chunks, grid, chunks.model))
        large = len(box) * grid.layout.inner.decoded_size > most
        alone = all(len(run) == 1 for run in runs)
        yield from _cut(window, grid, most, complete=False) if large and alone else [window]


def _shard_windows(
    request: ReadRequest, shard_plan: Plan, entries: ShardEntries, *, most: int, together: int, few: bool
) -> Iterator[Window]:
    """Yield windows of several shards, of whose sub-chunks they touch `together` bytes.

    Where a shard is more than half of that, there is a window a shard: the shard as one chunk when all of it is wanted,
    else the sub-chunks touched.
    With `few` the sub-chunks are wanted one by one always, so that several workers can share a shard.  Those of a shard
    of more than `most` bytes are several windows, so that no thread has all of it in memory.
    """
    chunks, maps, out = request
    chain, source = chunks.model.chain, chunks.source
    part = ChunkReader(chunks, Placement(entries.plan, out), entries.grid.source(source), entries.grid)
    as_chunks = not few and chunks.cache is None and chunks.fill_missing
    # many sub-chunks at once are decoded by what decodes a shard
    apart = as_chunks and entries.grid.layouts[0].count > FEW_CELLS and shard_plan.covers_some
    if not apart and entries.touched_bytes <= min(most, together // 2) * shard_plan.cell_count:
        for cells, identities in entries.boxes(shard_plan, chunks.model, together):
            yield Window(part, cells, identities)
        return
    whole = ChunkReader(chunks, placement_of(shard_plan, out), source)
    large = chain.decoded_size > most
    coarse, coarse_part = entries, part
    if large and as_chunks and (depth := entries.grid.depth(most)) < len(entries.grid.layouts):
        coarse = ShardEntries.touched_by(maps, out.shape, chunks.model, depth)
        coarse_part = ChunkReader(
            chunks, Placement(coarse.plan, out), coarse.grid.source(source), coarse.grid
        )
    for cell in shard_plan.cells():
        key = chunks.model.key(shard_plan.chunk_numbers(cell))
        covers = cell.covers and as_chunks
        if covers and not large:
            yield Window(whole, [cell], [key])
            continue
        here, reader = (coarse, coarse_part) if covers else (entries, part)
        cells, numbers = here.of(cell)
        window = Window(reader, cells, here.identities(key, numbers))
        yield from (
            _cut(window, here.grid, min(most, FAR_SHARD_PART_BYTES), complete=covers) if large else [window]
        )


def _cut(window: Window, grid: ShardGrid, most: int, *, complete: bool) -> Iterator[Window]:
    """Yield a window in parts of a bounded number of bytes, which read the index of the shard once.

    Those of its two halves in turn, and as many of each: threads that write to neighbouring parts of new memory at once
    both clear the same large page.
    """
    part, cells, identities, _ = window
    size = max(1, most // grid.layout.inner.decoded_size)
    if size >= len(cells):
        yield window
        return
    size = math.ceil(len(cells) / (2 * math.ceil(len(cells) / (2 * size))))
    if isinstance(cells, CellRun):
        size = cells.even(size)
    source = grid.source_of_parts(part.chunks.source, complete=complete)
    pieces = list(split(cells, size))
    ends = list(accumulate(map(len, pieces)))
    guard = ShardGuard(window, source, len(pieces)) if part.chunks.cache is None else None
    part = part._replace(source=source)
    half = math.ceil(len(pieces) / 2)
    for number in sorted(range(len(pieces)), key=lambda number: number % half):
        some, end = pieces[number], ends[number]
        yield Window(part, some, identities[end - len(some) : end], guard=guard)
