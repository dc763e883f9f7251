"""Reading a request: it is cut into windows of cells, and each window is fetched, decoded and placed.

The plain way is the loop in `read_here`: for each window, `decode(window, await fetch(window))`.  The other ways make
the same windows sooner.  A window has a bounded number of bytes, so that memory is bounded by the windows in flight and
not by the request.  Over a store that never waits, pool threads take windows one after another (`read_spread`).  Over a
store that waits, the event loop keeps a few windows in flight and hands each to a pool thread for decoding
(`read_waiting`).  Threads write disjoint parts of the result, so no lock guards it.

A fully wanted shard is an ordinary chunk; of a partly wanted shard, the sub-chunks are the cells.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any, TypeAlias

from fsstore.chunk.columns import CellRun, batches
from fsstore.chunk.open_chunks import OpenChunks
from fsstore.chunk.place import Placement, placement_of
from fsstore.chunk.planner import CellPlan, ChunkBox, FewPlan, Plan, plan
from fsstore.chunk.read.gather import CellBox, Gather, boxes, split
from fsstore.chunk.read.window import (
    THREAD_WORTH,
    Answers,
    ChunkReader,
    Planned,
    ReadRequest,
    ShardGuard,
    Window,
    decode,
    fetch,
    in_parts,
)
from fsstore.chunk.request import as_lists
from fsstore.chunk.shard_entries import ShardEntries, entries_at, entry_at, entry_axes
from fsstore.chunk.shard_source import ShardGrid, shard_grid
from fsstore.codec.chain import BoundChain
from fsstore.codec.sharding import grid_boxes
from fsstore.errors import UnimplementedError
from fsstore.runtime import execution, fork
from fsstore.runtime import future as futures
from fsstore.runtime.execution import run_bounded
from fsstore.runtime.future import Future
from fsstore.runtime.tuning import (
    BATCH_BYTES,
    COLUMNS_FROM,
    COPIED_PER_DECODED,
    FEW_LARGE_CELLS,
    FLIGHT_BYTES,
    GATHERED_ELEMENTS,
    HELD_BYTES,
    HOP_BYTES,
    HOP_S,
    INLINE_READ_BYTES,
    JOINT_BYTES,
    PIECE_BYTES,
    REQUEST_BYTES,
    WINDOW_BYTES,
    WINDOW_CELLS,
    WINDOWS,
)

_NOT_FOUND_ALONE = "Finding missing parts of shards is not supported in a grid of varying chunks"

Later: TypeAlias = Callable[[Planned], Future[Any]]
"""Accepts a planned small read, to make it together with others."""


def read(request: ReadRequest, later: Later | None = None) -> Future[Any]:
    """Begin to read; the future's result is `request.out`, filled.

    Small reads go to `later`, which makes them with others.  Any other read runs as tasks of the event loop if the
    store waits; otherwise on the calling thread if it is small, and on pool threads if it is large.
    """
    chunks, _, out = request = in_parts(request)
    model = chunks.model
    if not chunks.fill_missing and model.shard is not model.chain.shard:
        return futures.failed(UnimplementedError(_NOT_FOUND_ALONE))
    entries = None if model.shard is None else entries_of(request)
    found = request.outline() if entries is None else entries[1]
    chain = model.chain if entries is None else entries[0].layout.inner
    cells = found.cell_count
    if not cells:
        return futures.ready(out)
    touched = cells * chain.decoded_size
    small = touched <= INLINE_READ_BYTES or (cells == 1 and entries is None)
    queued = small or (touched <= JOINT_BYTES and out.nbytes <= INLINE_READ_BYTES)
    waits = chunks.store.driver.features.waits
    if waits and entries is not None and model.chain.decoded_size > FLIGHT_BYTES:
        queued = False  # its parts have to be of one generation
    windows: Iterable[Window]
    if entries is None:  # without decoding there is no work to overlap with fetching
        windows = _chunk_windows(request, found, at_once=small or (waits and model.chain.flat_dtype is not None))
    else:
        windows = entry_windows(request, *entries, small=small, near=not waits and not queued)
    if queued and later is not None:
        windows = list(windows)
        return later(Planned(windows, out, _bytes_decoded(windows, touched)))
    threads = chunks.workers(chain.working_size)
    if waits:
        return futures.mapped(execution.start(_read_waiting(windows, threads, chain)), out)
    if small:
        return futures.mapped(execution.start(read_here(windows), waits=False), out)
    return futures.mapped(read_spread(windows, threads), out)


def plan_alone(request: ReadRequest) -> Planned:
    """Return the plan of a read that touches few chunks, or few sub-chunks of shards."""
    chunks, _, out = request = in_parts(request)
    model = chunks.model
    if 0 in out.shape:
        return Planned([], out, 0)
    if model.shard is None:
        outline = request.outline()
        touched = outline.cell_count * model.chain.decoded_size
        windows = list(_chunk_windows(request, outline, at_once=touched <= INLINE_READ_BYTES))
    else:
        grid, found = entries_of(request)
        touched = found.cell_count * grid.layout.inner.decoded_size
        windows = list(entry_windows(request, grid, found, small=True, near=False))
    return Planned(windows, out, _bytes_decoded(windows, touched))


async def read_here(windows: Iterable[Window]) -> None:
    """Make a read of a store that never waits on this thread, with the help of workers if decoding takes long.

    This thread does its share, so that it never waits for a late worker: two workers while it sleeps would mean waking
    two threads, which takes 1.2 times as long for 4 MB of zstd.  It fetches everything first: threads that fetch and
    decode in turns wait for the interpreter at each other's system calls, and a part of eight chunks of 200 KB takes
    1.25 times as long.
    """
    windows = list(windows)
    count = _sharers(windows)
    if count < 2:
        for window in windows:
            decode(window, await fetch(window))
        return
    fetched = [(window, await fetch(window)) for window in windows]
    if len(fetched) < count:
        fetched = [piece for pair in fetched for piece in _pieces(*pair, count, least=1)]
    execution.map_blocking(lambda pair: decode(*pair), fetched, limit=windows[0].part.chunks.threads)


def read_spread(windows: Iterable[Window], threads: int) -> Future[None]:
    """Begin a read of a store that never waits on `threads` pool threads."""
    return execution.spread(_taking_turns(), windows, workers=threads)


def _taking_turns() -> Callable[[Window], None]:
    """Return the function that workers call with a window, so that one decodes while the other fetches.

    Fetching many small values is Python between short system calls; two threads that do it at once keep passing the
    interpreter lock, and take a tenth longer than in turns.  If values come slowly, no thread waits long.  Windows of a
    few cells take no turns, nor do parts of shards, which are read together.
    """
    turn = fork.brief_lock()

    def run(window: Window) -> None:
        small = len(window.cells) > FEW_LARGE_CELLS and window.guard is None
        mine = False
        try:
            mine = small and turn.acquire(timeout=50 * HOP_S)
            answers = execution.drive(fetch(window))
        finally:
            if mine:
                turn.release()
        decode(window, answers)
        again = None if window.guard is None else window.guard.over()
        if again is not None:
            decode(again, execution.drive(fetch(again)))

    return run


async def read_waiting(windows: Sequence[Window]) -> None:
    """Make a read of a store that waits."""
    if windows:
        chain = windows[0].part.usual_chain
        await _read_waiting(windows, windows[0].part.chunks.workers(chain.working_size), chain)


async def _read_waiting(windows: Iterable[Window], threads: int, chain: BoundChain) -> None:
    """Read windows of chunks that `chain` decodes; `threads` decode those that take long.

    Handing over costs more than a mere copy: 2000 chunks of 4 KB over HTTP took 9.1 ms with workers, 7.3 without.
    """
    room = asyncio.Semaphore(threads)
    copied = chain.flat_dtype is not None

    async def decode_apart(piece: tuple[Window, Answers]) -> None:
        async with room:
            await execution.offload(decode, *piece, kind="compute")

    async def make(window: Window) -> None:
        answers = await fetch(window)
        if _is_soon_decoded(window, copied=copied):
            decode(window, answers)
        else:
            await execution.gather(list(map(decode_apart, _pieces(window, answers, threads))))
        again = None if window.guard is None else window.guard.over()
        if again is not None:
            await make(again)

    fewest = threads * chain.decoded_size
    budget = FLIGHT_BYTES if copied else max(fewest, WINDOW_BYTES - threads * chain.working_size)
    await run_bounded(make, windows, cost=_weight, budget=budget)


def _is_soon_decoded(window: Window, *, copied: bool) -> bool:
    """Return whether the event loop decodes a window itself, because handing it over would take as long."""
    if window.part.chunks.cache is not None:
        return False
    if copied and _bytes_touched(window) <= 2 * PIECE_BYTES:
        return True
    return len(window.cells) * window.part.usual_chain.effort <= HOP_BYTES


def _weight(window: Window) -> int:
    """Return the bytes that a window counts for while under way; a small one counts for its tasks and requests."""
    return max(2 * HOP_BYTES, _bytes_touched(window))


def _pieces(
    window: Window, answers: Answers, count: int, least: int = FEW_LARGE_CELLS
) -> Iterator[tuple[Window, Answers]]:
    """Yield `count` parts of a window and of its answers, or fewer parts of at least `least` cells."""
    begin = 0
    for cells in split(window.cells, max(least, math.ceil(len(window.cells) / count))):
        end = begin + len(cells)
        yield Window(window.part, cells, window.identities[begin:end]), answers[begin:end]
        begin = end


def _sharers(windows: Sequence[Window]) -> int:
    """Return how many threads should make a read together; cached chunks are not decoded at all."""
    if not windows or (len(windows) == 1 and len(windows[0].cells) == 1):
        return 1
    chain = windows[0].part.usual_chain
    if (
        windows[0].part.chunks.cache is not None
        or chain.effort * sum([len(window.cells) for window in windows]) < 2 * THREAD_WORTH
    ):
        return 1
    effort = sum(map(_effort_of, windows))
    threads = windows[0].part.chunks.workers(chain.working_size)
    return min(threads, int(effort // THREAD_WORTH))


def _effort_of(window: Window) -> float:
    """Return the decoding effort of a window; of few cells, only for the part to decode."""
    chain, cells = window.part.usual_chain, window.cells
    if not chain.decodes_spans or len(cells) > COLUMNS_FROM or isinstance(window.part.placement, Gather):
        return len(cells) * chain.effort
    size = math.prod(chain.chunk.shape)
    spans = [window.part.span(cell) or (0, size) for cell in cells]
    return chain.effort * sum([stop - first for first, stop in spans]) / size


def _bytes_touched(window: Window) -> int:
    """Return the decoded size of the chunks (or sub-chunks of shards) of a window."""
    return len(window.cells) * window.part.usual_chain.decoded_size


def _bytes_decoded(windows: Sequence[Window], touched: int) -> int:
    """Return how many bytes of the touched chunks are decoded; an upper bound for a small read."""
    if touched <= INLINE_READ_BYTES or not windows or not windows[0].part.chunks.model.chain.decodes_spans:
        return touched
    if isinstance(windows[0].part.placement, Gather):
        return touched  # listed positions need the whole chunk
    total = 0
    for part, cell in ((window.part, cell) for window in windows for cell in window.cells):
        chain, span = part.chain(cell), part.span(cell)
        total += chain.decoded_size if span is None else (span[1] - span[0]) * chain.chunk.dtype.itemsize
    return total


def is_one_quick(windows: Sequence[Window]) -> bool:
    """Return whether a read is of one chunk that no other thread can help with, and that is decoded soon."""
    one = len(windows) == 1 and len(windows[0].cells) == 1
    return one and windows[0].part.usual_chain.effort <= INLINE_READ_BYTES


def is_python_mostly(windows: Sequence[Window]) -> bool:
    """Return whether each chunk contributes little and is decoded soon: threads would wait for each other."""
    if not windows or not isinstance(windows[0].part.placement, Gather):
        return False
    chain = windows[0].part.usual_chain
    return chain.effort + chain.decoded_size // COPIED_PER_DECODED < HOP_BYTES // 2


# Windows of chunks.


def _chunk_windows(request: ReadRequest, outline: FewPlan, *, at_once: bool) -> Iterable[Window]:
    """Return windows of chunks: as few as possible if all are read `at_once`, otherwise a few for each thread."""
    chunks = request.chunks
    if not isinstance(outline, CellPlan):
        part = ChunkReader(chunks, placement_of(outline, request.out), chunks.source)
        keys = outline.keys(chunks.model)
        return [Window(part, outline.cells(), chunks.source.identities(keys))]
    cells = outline.cell_count
    chain = chunks.model.chain
    threads = chunks.workers(chain.working_size)
    share = cells if at_once else math.ceil(cells / (4 * threads))
    most = _most_cells(chunks, cells * chain.decoded_size // threads, listed=outline.listed)
    return _windows(request, outline, outline.even(max(1, min(share, WINDOW_CELLS, most))), threads)


def _most_cells(chunks: OpenChunks, touched: int, *, listed: bool) -> int:
    """Return how many chunks a window may have, if a worker decodes `touched` bytes.

    If the store never waits, a large chunk is decoded before the next is fetched, into the memory that it frees:
    several at once make the heap so large that it is returned to the system.  256 MB of zstd in chunks of 1 MB then
    take 172 ms instead of 239 with eight at once, and 49,000 page faults.  But a single megabyte of HDF5 costs 0.2 ms
    of Python besides 3 ms of decoding.
    """
    size = chunks.model.chain.decoded_size
    if chunks.store.driver.features.waits:
        return REQUEST_BYTES // size
    if chunks.model.chain.effort > size:
        return max(PIECE_BYTES, min(touched // WINDOWS, HELD_BYTES)) // size
    return PIECE_BYTES // size if listed or size <= HOP_BYTES else 1


def _windows(request: ReadRequest, outline: CellPlan, size: int, threads: int = 1) -> Iterator[Window]:
    """Yield windows of `size` chunks, in an order that keeps the large chunks of different threads far apart."""
    chunks = request.chunks
    apart = chunks.model.chain.decoded_size > HOP_BYTES and not chunks.store.driver.features.waits
    lanes, source = threads if apart else 1, chunks.source
    if outline.listed:
        part = ChunkReader(chunks, Gather(outline, request.out), source)
        for box in boxes(outline, size, lanes):
            yield Window(part, box, source.identities(box.keys(chunks.model)))
        return
    part = ChunkReader(chunks, Placement(outline, request.out), source)
    for cells, keys in batches(outline, chunks.model, size, lanes):
        yield Window(part, cells, source.identities(keys))


# Windows of sub-chunks of shards.


def entries_of(request: ReadRequest) -> tuple[ShardGrid, Plan]:
    """Return the grid of the sub-chunks of shards, and the plan of a request over it."""
    model = request.chunks.model
    grid = shard_grid(model.chain)
    return grid, plan(request.maps, request.out, entry_axes(grid, model))


def entry_windows(request: ReadRequest, grid: ShardGrid, found: Plan, *, small: bool, near: bool) -> Iterable[Window]:
    """Return windows of sub-chunks of shards; `near` means that threads which never wait read them all."""
    chunks, maps, out = request
    if isinstance(found, ChunkBox):
        part = ChunkReader(chunks, placement_of(found, out), grid.source(chunks.source), grid)
        return [Window(part, [found], [entry_at(found.numbers, grid, chunks.model)])]
    entries = ShardEntries(grid, found)
    waits = chunks.store.driver.features.waits
    threads = chunks.workers(grid.layout.inner.working_size)
    most = min(REQUEST_BYTES, HELD_BYTES // threads) if near else FLIGHT_BYTES
    together = INLINE_READ_BYTES if small else REQUEST_BYTES if waits else PIECE_BYTES
    if entries.plan.listed:
        return _listed_windows(request, entries, REQUEST_BYTES)
    if found.cell_count <= COLUMNS_FROM and entries.touched_bytes <= min(most, together):
        part = ChunkReader(chunks, Placement(found, out), grid.source(chunks.source), grid)
        return [Window(part, *entries.all_of_few(chunks.model))]
    little = 1 < out.size <= GATHERED_ELEMENTS * found.cell_count and len(maps) == len(grid.shape)
    if little and grid.layout.inner.run_length > 1 and not found.covers_some:
        listed = ShardEntries.touched_by(as_lists(maps, out.shape), out.shape, chunks.model)
        return _listed_windows(request, listed, REQUEST_BYTES)
    shard_plan = plan(maps, out, chunks.model.axes)
    worth = shard_plan.cell_count < threads and (small or waits)
    few = worth and _worth_dividing(request, entries, small=small)
    return _shard_windows(request, shard_plan, entries, most=most, together=together, few=few)


def _worth_dividing(request: ReadRequest, entries: ShardEntries, *, small: bool) -> bool:
    """Return whether to hand out the sub-chunks of a few shards one by one, so that threads can share a shard."""
    if not small:
        return entries.grid.worth_sharing
    model, store = request.chunks.model, request.chunks.store
    return model.chain.effort >= 2 * THREAD_WORTH and not store.driver.features.waits


def _listed_windows(request: ReadRequest, entries: ShardEntries, most: int) -> Iterator[Window]:
    """Yield windows of listed positions in shards: the touched sub-chunks of whole shards, about `most` bytes at a
    time.

    A shard with more touched bytes has several windows.
    """
    chunks, _, out = request
    grid, touched = entries.grid, entries.plan
    part = ChunkReader(chunks, Gather(touched, out), grid.source(chunks.source), grid)
    shards = [[range(1)] if component.listed is None else component.listed.by_shard for component in touched.components]
    counts = list(map(len, shards))
    share = max(1, entries.touched_bytes // math.prod(counts))
    at_once = min(most // share, WINDOW_CELLS * math.prod(counts) // touched.cell_count)
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
    """Yield windows of several shards, with about `together` bytes of touched sub-chunks.

    If a shard has more than half of that, it gets a window of its own: as one chunk if all of it is wanted, otherwise
    with the touched sub-chunks.

    With `few`, sub-chunks are always separate, so that several workers can share a shard.  Those of a shard of more
    than `most` bytes are divided into several windows, so that no thread has all of it in memory.
    """
    chunks, maps, out = request
    chain, source = chunks.model.chain, chunks.source
    part = ChunkReader(chunks, Placement(entries.plan, out), entries.grid.source(source), entries.grid)
    as_chunks = not few and chunks.cache is None and chunks.fill_missing
    # many sub-chunks together are decoded by the shard's own decoder
    apart = as_chunks and entries.grid.layouts[0].count > COLUMNS_FROM and shard_plan.covers_some
    if not apart and entries.touched_bytes <= min(most, together // 2) * shard_plan.cell_count:
        for cells, identities in entries.boxes(shard_plan, chunks.model, together):
            yield Window(part, cells, identities)
        return
    whole = ChunkReader(chunks, placement_of(shard_plan, out), source)
    large = chain.decoded_size > most
    coarse, coarse_part = entries, part
    if large and as_chunks and (depth := entries.grid.depth(most)) < len(entries.grid.layouts):
        coarse = ShardEntries.touched_by(maps, out.shape, chunks.model, depth)
        coarse_part = ChunkReader(chunks, Placement(coarse.plan, out), coarse.grid.source(source), coarse.grid)
    for cell in shard_plan.cells():
        key = chunks.model.key(shard_plan.chunk_numbers(cell))
        covers = cell.covers and as_chunks
        if covers and not large:
            yield Window(whole, [cell], [key])
            continue
        here, reader = (coarse, coarse_part) if covers else (entries, part)
        cells, numbers = here.of(cell)
        window = Window(reader, cells, here.identities(key, numbers))
        yield from (_cut(window, here.grid, min(most, BATCH_BYTES), complete=covers) if large else [window])


def _cut(window: Window, grid: ShardGrid, most: int, *, complete: bool) -> Iterator[Window]:
    """Yield a window in parts of a bounded size, which read the index of the shard once.

    Parts of its two halves alternate, equally many of each: threads that write to neighbouring parts of new memory at
    once both clear the same large page.
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
    guard = ShardGuard(window, source, len(pieces))
    part = part._replace(source=source)
    half = math.ceil(len(pieces) / 2)
    for number in sorted(range(len(pieces)), key=lambda number: number % half):
        some, end = pieces[number], ends[number]
        yield Window(part, some, identities[end - len(some) : end], guard=guard)
