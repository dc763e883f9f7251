"""Reading a request: it is cut into windows of cells, and these are handed to whom they suit.

A window has a bounded number of bytes, so that memory is bounded by the windows in flight and not by the request.
Over a store that never waits, worker threads take windows one after another and do all of it.  Over a store that
waits, the event loop keeps a few windows in flight and hands each to a worker thread for decoding.  Workers write
disjoint parts of the result, so no lock guards it.

A cell of a shard that is wanted whole is an ordinary chunk; of a partly wanted shard, the sub-chunks are the cells.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from typing import Any, NamedTuple, TypeAlias

from fsstore.chunk.plan.cell_run import batches
from fsstore.chunk.plan.open_chunks import OpenChunks
from fsstore.chunk.plan.place import Placement, placement_of
from fsstore.chunk.plan.planner import CellPlan, FewPlan
from fsstore.chunk.read.gather import Gather, boxes, split
from fsstore.chunk.read.parts import in_parts
from fsstore.chunk.read.shard_window import entries_of, entry_windows
from fsstore.chunk.read.window import Answers, ChunkReader, Planned, ReadRequest, Window, decode, fetch
from fsstore.chunk.tuning import (
    COPIED_IN_FLIGHT_BYTES,
    COPIED_PER_DECODED,
    FAR_SHARD_BYTES,
    FAR_WINDOW_BYTES,
    FEW_CELLS,
    FEW_LARGE_CELLS,
    INLINE_READ_BYTES,
    JOINT_BYTES,
    LOOP_COPY_BYTES,
    LOOP_DECODE_BYTES,
    NEAR_WINDOW_BYTES,
    READ_WINDOW_CELLS,
    SHARED_CHUNK_BYTES,
    SLOW_WINDOW_BYTES,
    SLOW_WINDOWS,
    THREAD_WORTH_BYTES,
    TOGETHER_BYTES,
    TURN_S,
    WINDOW_BYTES,
    WINDOW_COST_BYTES,
)
from fsstore.codec.chain import BoundChain
from fsstore.errors import UnimplementedError
from fsstore.runtime import execution, fork
from fsstore.runtime import future as futures
from fsstore.runtime.fan_out import run_bounded
from fsstore.runtime.future import Future

__all__ = [
    "Later",
    "is_one_quick",
    "is_python_mostly",
    "plan_alone",
    "read",
    "read_here",
    "read_spread",
    "read_waiting",
]

_NOT_FOUND_ALONE = "Finding missing parts of shards is not supported in a grid of varying chunks"


Later: TypeAlias = Callable[[Planned], Future[Any]]
"""Takes a small read that is planned, to make it together with others."""


def _bytes_touched(window: Window) -> int:
    """Return how many bytes the chunks (sub-chunks of shards) of a window have, decoded."""
    return len(window.cells) * window.part.usual_chain.decoded_size


def is_one_quick(windows: Sequence[Window]) -> bool:
    """Return whether a read is of one chunk that no other thread can help with, and that is decoded soon."""
    one = len(windows) == 1 and len(windows[0].cells) == 1
    return one and windows[0].part.usual_chain.effort <= INLINE_READ_BYTES


def is_python_mostly(windows: Sequence[Window]) -> bool:
    """Return whether little is wanted of each chunk, and that is soon decoded: threads would wait for each other."""
    if not windows or not isinstance(windows[0].part.placement, Gather):
        return False
    chain = windows[0].part.usual_chain
    return chain.effort + chain.decoded_size // COPIED_PER_DECODED < SHARED_CHUNK_BYTES


def _bytes_decoded(windows: Sequence[Window], touched: int) -> int:
    """Return how many bytes of the chunks that windows touch are decoded; of a small read, at most."""
    if touched <= INLINE_READ_BYTES or not windows or not windows[0].part.chunks.model.chain.decodes_spans:
        return touched
    if isinstance(windows[0].part.placement, Gather):
        return touched  # positions are listed: all of a chunk is decoded
    total = 0
    for part, cell in ((window.part, cell) for window in windows for cell in window.cells):
        chain, span = part.chain(cell), part.span(cell)
        total += chain.decoded_size if span is None else (span[1] - span[0]) * chain.chunk.dtype.itemsize
    return total


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


class ReadWay(Enum):
    """How a read is made: decided once, before it is cut into windows."""

    TASKS = "as tasks of the event loop: the store waits"
    QUEUED = "with others, when somebody asks for a result, or as tasks of the event loop"
    HERE = "on the thread that asks"
    SPREAD = "by pool threads, which take windows in turns"


def read(request: ReadRequest, later: Later | None = None) -> Future[Any]:
    """Begin to read; the future's result is `request.out`, filled.

    Small reads over stores that never wait go to `later`, which makes them with others.
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
    if waits and entries is not None and model.chain.decoded_size > FAR_SHARD_BYTES:
        queued = False  # its parts have to be of one generation
    way = _way(chunks, later, small=small, queued=queued)
    if entries is None:  # where nothing is decoded, nothing is to be done while more is fetched
        at_once = small or (waits and model.chain.flat_dtype is not None)
        windows = _chunk_windows(request, found, at_once=at_once)
    else:
        windows = entry_windows(request, *entries, small=small, near=not waits and not queued)
    return _CutRead(windows, chain, touched).begin(way, request, later)


def _way(chunks: OpenChunks, later: Later | None, *, small: bool, queued: bool) -> ReadWay:
    if queued and later is not None:
        return ReadWay.QUEUED
    if chunks.store.driver.features.waits:
        return ReadWay.TASKS
    return ReadWay.HERE if small else ReadWay.SPREAD


class _CutRead(NamedTuple):
    """A read in windows: the codecs of their chunks, and the bytes they touch."""

    windows: Iterable[Window]
    chain: BoundChain
    touched: int

    def begin(self, way: ReadWay, request: ReadRequest, later: Later | None) -> Future[Any]:
        """Make the read, now or later."""
        windows, chain, touched = self
        if way is ReadWay.QUEUED and later is not None:
            made = list(windows)
            return later(Planned(made, request.out, _bytes_decoded(made, touched)))
        threads = request.chunks.workers(chain.working_size)
        if way is ReadWay.TASKS:
            done = execution.start(_read_waiting(windows, threads, chain))
        elif way is ReadWay.HERE:
            done = execution.start(read_here(windows), waits=False)
        else:
            done = read_spread(windows, threads)
        return futures.mapped(done, request.out)


def _chunk_windows(request: ReadRequest, outline: FewPlan, *, at_once: bool) -> Iterable[Window]:
    """Return windows of chunks: as few as may be if all are read `at_once`, else a few for each thread."""
    chunks = request.chunks
    if not isinstance(outline, CellPlan):
        part = ChunkReader(chunks, placement_of(outline, request.out), chunks.source)
        keys = outline.keys(chunks.model)
        return [Window(part, outline.cells(), chunks.source.identities(keys))]
    cells = outline.cell_count
    chain = chunks.model.chain
    threads = chunks.workers(chain.working_size)
    share = cells if at_once else math.ceil(cells / (4 * threads))
    size = _cells_at_once(chunks, outline, share, cells * chain.decoded_size // threads)
    return _windows(request, outline, size, threads)


def _cells_at_once(chunks: OpenChunks, outline: CellPlan, share: int, touched: int) -> int:
    """Return how many chunks a window has, up to a share, if a worker decodes `touched` bytes."""
    return outline.even(
        max(1, min(share, READ_WINDOW_CELLS, _most_cells(chunks, touched, listed=outline.listed)))
    )


def _most_cells(chunks: OpenChunks, touched: int, *, listed: bool) -> int:
    """Return how many chunks a window may have, if a worker decodes `touched` bytes.

    Where nothing waits, a large one is decoded before the next is fetched, into the memory that it leaves: several at
    once make the heap so large that the system gets it back.  256 MB of zstd in chunks of 1 MB then take 172 ms instead
    of 239 with eight at once, and 49,000 page faults.  But a megabyte of HDF5, by itself, costs 0.2 ms of Python beside
    3 ms of decoding.
    """
    size = chunks.model.chain.decoded_size
    if chunks.store.driver.features.waits:
        return FAR_WINDOW_BYTES // size
    if chunks.model.chain.effort > size:
        return max(NEAR_WINDOW_BYTES, min(touched // SLOW_WINDOWS, SLOW_WINDOW_BYTES)) // size
    return NEAR_WINDOW_BYTES // size if listed or size <= TOGETHER_BYTES else 1


def _taking_turns() -> Callable[[Window], None]:
    """Return what workers do with a window, such that one decodes while the other fetches.

    Fetching many small values is Python between short system calls; two threads that do it at once pass the
    interpreter lock to and fro, and take a tenth longer than in turns.  Where values come slowly, nobody waits long.
    Windows of a few cells take no turns, nor do parts of shards, which are read as one.
    """
    turn = fork.brief_lock()

    def run(window: Window) -> None:
        small = len(window.cells) > FEW_LARGE_CELLS and window.guard is None
        mine = False
        try:
            mine = small and turn.acquire(timeout=TURN_S)
            answers = execution.drive(fetch(window))
        finally:
            if mine:
                turn.release()
        decode(window, answers)
        again = None if window.guard is None else window.guard.over()
        if again is not None:
            decode(again, execution.drive(fetch(again)))

    return run


def read_spread(windows: Iterable[Window], threads: int) -> Future[None]:
    """Begin a read of a store that never waits on as many pool threads."""
    return execution.spread(_taking_turns(), windows, workers=threads)


async def read_here(windows: Iterable[Window]) -> None:
    """Make a read of a store that never waits on this thread, with the help of workers where decoding takes long.

    This thread does its share, so that a worker that comes late, or not at all, is not waited for: two workers, while
    it sleeps, are two threads to wake up, and take 1.2 times as long for 4 MB of zstd.  It fetches everything first:
    threads that fetch and decode in turns wait for the interpreter at every system call of each other, and a part of
    eight chunks of 200 KB takes 1.25 times as long.
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


def _sharers(windows: Sequence[Window]) -> int:
    """Return how many threads should make a read together: what a cache has is not decoded at all."""
    if not windows or (len(windows) == 1 and len(windows[0].cells) == 1):
        return 1
    chain = windows[0].part.usual_chain
    if windows[0].part.chunks.cache is not None or _most_effort(windows, chain) < 2 * THREAD_WORTH_BYTES:
        return 1
    effort = sum(map(_effort_of, windows))
    threads = windows[0].part.chunks.workers(chain.working_size)
    return min(threads, int(effort // THREAD_WORTH_BYTES))


def _most_effort(windows: Sequence[Window], chain: BoundChain) -> float:
    """Return how long windows are decoded if all of each chunk is."""
    return chain.effort * sum([len(window.cells) for window in windows])


def _effort_of(window: Window) -> float:
    """Return how long a window is decoded; of few cells only as far as they are decoded."""
    chain, cells = window.part.usual_chain, window.cells
    if not chain.decodes_spans or len(cells) > FEW_CELLS or isinstance(window.part.placement, Gather):
        return len(cells) * chain.effort
    size = math.prod(chain.chunk.shape)
    spans = [window.part.span(cell) or (0, size) for cell in cells]
    return chain.effort * sum([stop - first for first, stop in spans]) / size


async def read_waiting(windows: Sequence[Window]) -> None:
    """Make a read of a store that waits."""
    if windows:
        chain = windows[0].part.usual_chain
        await _read_waiting(windows, windows[0].part.chunks.workers(chain.working_size), chain)


async def _read_waiting(windows: Iterable[Window], threads: int, chain: BoundChain) -> None:
    """Read windows of chunks that `chain` decodes, those that take long by `threads`.

    Copying alone costs less than handing it over: 2000 chunks of 4 KB over HTTP took 9.1 ms with workers, 7.3
    without.
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
    budget = COPIED_IN_FLIGHT_BYTES if copied else max(fewest, WINDOW_BYTES - threads * chain.working_size)
    await run_bounded(make, windows, cost=_bytes_of, budget=budget)


def _is_soon_decoded(window: Window, *, copied: bool) -> bool:
    """Return whether the event loop decodes a window itself: handing it over would take as long."""
    if window.part.chunks.cache is not None:
        return False
    if copied and _bytes_of(window) <= LOOP_COPY_BYTES:
        return True
    return len(window.cells) * window.part.usual_chain.effort <= LOOP_DECODE_BYTES


def _bytes_of(window: Window) -> int:
    """Return what a window weighs while it is under way; a small one costs its tasks and requests."""
    return max(WINDOW_COST_BYTES, _bytes_touched(window))


def _pieces(
    window: Window, answers: Answers, count: int, least: int = FEW_LARGE_CELLS
) -> Iterator[tuple[Window, Answers]]:
    """Yield `count` parts of a window and of what was fetched, or fewer that have `least` cells."""
    begin = 0
    for cells in split(window.cells, max(least, math.ceil(len(window.cells) / count))):
        end = begin + len(cells)
        yield Window(window.part, cells, window.identities[begin:end]), answers[begin:end]
        begin = end


def _windows(request: ReadRequest, outline: CellPlan, size: int, threads: int = 1) -> Iterator[Window]:
    """Yield windows of `size` chunks; in such an order that threads have large ones far from each other."""
    chunks = request.chunks
    apart = chunks.model.chain.decoded_size > TOGETHER_BYTES and not chunks.store.driver.features.waits
    lanes, source = threads if apart else 1, chunks.source
    if outline.listed:
        part = ChunkReader(chunks, Gather(outline, request.out), source)
        for box in boxes(outline, size, lanes):
            yield Window(part, box, source.identities(box.keys(chunks.model)))
        return
    part = ChunkReader(chunks, Placement(outline, request.out), source)
    for cells, keys in batches(outline, chunks.model, size, lanes):
        yield Window(part, cells, source.identities(keys))
