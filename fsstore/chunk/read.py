"""Reading a request: windows of cells are fetched, decoded and placed in the caller's array.

A window is a batch of cells of a bounded number of bytes, so that memory is bounded by the windows in flight and not
by the request.  Over a store that never waits, worker threads take windows one after another and do all of it.  Over
a store that waits, the event loop keeps a few windows in flight and hands each to a worker thread for decoding.
Workers write disjoint parts of the result, so no lock guards it.

A cell of a shard that is wanted whole is an ordinary chunk; of a partly wanted shard, the sub-chunks are the cells.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fsstore import _runtime
from fsstore import future as futures
from fsstore.chunk.cache import CachedChunk, ChunkCache
from fsstore.chunk.cell_run import batches
from fsstore.chunk.model import ChunkModel
from fsstore.chunk.place import BoxPlacement, Placement, Placing
from fsstore.chunk.plan import AnyCell, Box, OutputMap, Plan, box_in_chunk, chunk_numbers, plan
from fsstore.chunk.shard_entries import ShardEntries
from fsstore.chunk.source import ByteRange, KvSource, Source
from fsstore.codec.bound_chain import Array, BoundChain, Span
from fsstore.errors import NotFoundError, ResourceExhaustedError, StoreError, UnimplementedError
from fsstore.future import Future
from fsstore.kvstore.contract import UNKNOWN, KvPrefix, ReadResult
from fsstore.kvstore.excerpt import values_of

if TYPE_CHECKING:
    from fsstore.chunk.joint import ReadQueue

__all__ = ["INLINE_BYTES", "ReadPart", "ReadRequest", "Window", "locate_error", "read", "read_here"]

_WINDOW_BYTES = 16 * 1024 * 1024
_WINDOW_CELLS = 512
_NEAR_BYTES = 1024 * 1024  # of stores that never wait: still in the processor's cache when it is decoded
_TURN_S = 0.005
INLINE_BYTES = 4 * 1024 * 1024  # reading this much takes about as long as waking the workers a few times
_JOINT_BYTES = 64 * 1024 * 1024  # reads that touch more are made by themselves, in windows
_IN_FLIGHT_BYTES = 3 * _WINDOW_BYTES
_WAITING_BYTES = 4 * 1024 * 1024  # far stores answer many small windows sooner than a few large ones
_WINDOW_COST = 256 * 1024


class ReadRequest(NamedTuple):
    """A read: the array's layout, where its chunks are, what is wanted and where it goes.

    `maps` and the shape of `out` are those of `plan.plan`.  `threads` limits the workers.
    """

    model: ChunkModel
    store: KvPrefix
    maps: Sequence[OutputMap]
    out: Array
    fill_missing: bool = True
    threads: int | None = None
    cache: ChunkCache | None = None


class ReadPart(NamedTuple):
    """One way in which cells of a request are found and decoded: as stored chunks, or as entries of shards."""

    request: ReadRequest
    placement: Placing
    source: Source
    entries: ShardEntries | None = None

    def decode(self, cell: AnyCell, identity: Any, answer: ReadResult) -> None:
        """Put the selected elements of one chunk in their place."""
        if answer.state != "value":
            self._fill(cell, identity)
            return
        target = self.placement.target(cell) if self._seen_as_decoded else None
        if target is not None:
            self.chain(cell).decode(answer.value, target)
        else:
            self.placement.copy_out(cell, self.borrow(cell, answer))

    def borrow(self, cell: AnyCell, answer: ReadResult) -> Array:
        """Return the decoded chunk, at least what is selected of it, good until this thread decodes the next one."""
        return self._view(self.chain(cell).borrow(answer.value, self.span(cell)))

    def borrow_all(self, cell: AnyCell, answer: ReadResult) -> Array:
        """Return all of the decoded chunk, good until this thread decodes the next one."""
        return self._view(self.chain(cell).borrow(answer.value))

    def span(self, cell: AnyCell) -> Span | None:
        """Return which elements of the encoding have to be decoded, None for all."""
        chain = self.chain(cell)
        if not chain.decodes_spans or chain.order is None:
            return None
        span = self.placement.span(cell, chain.chunk.shape, chain.order)
        return None if span is None or 2 * (span[1] - span[0]) > math.prod(chain.chunk.shape) else span

    def decode_together(
        self, cells: Sequence[AnyCell], identities: Sequence[Any], answers: Sequence[ReadResult]
    ) -> bool:
        """Do the same for small chunks, many at a time; return False if they must be taken one by one."""
        if self.request.model.bind is not None or len(cells) < 2:
            return False
        chain = self.chain(cells[0])
        present, values = values_of(answers)
        missing = set(range(len(cells))).difference(present) if len(present) < len(cells) else set()
        here = [cells[number] for number in present] if missing else cells
        size = chain.run_length
        for begin in range(0, len(here), size):
            run = chain.borrow_run(values[begin : begin + size]) if size > 1 else None
            if run is None:
                return False
            self._place(here[begin : begin + size], run, gaps=bool(missing))
        for number in sorted(missing):
            self._fill(cells[number], identities[number])
        return True

    def _place(self, cells: Sequence[AnyCell], run: Array, *, gaps: bool) -> None:
        # where chunks are missing, as many others may be in the box
        boxed = self._seen_as_decoded and not gaps
        blocks = self.placement.blocks(cells, run.shape[1:]) if boxed else None
        if blocks is not None:  # one copy for all
            np.copyto(blocks, run.reshape(blocks.shape), casting="equiv")
            return
        for cell, chunk in zip(cells, run, strict=True):
            self.placement.copy_out(cell, self._view(chunk))

    def decode_new(self, cell: AnyCell, answer: ReadResult) -> Array:
        """Return the decoded chunk."""
        return self._view(self.chain(cell).decode(answer.value))

    def chain(self, cell: AnyCell) -> BoundChain:
        """Return what decodes the chunk of a cell."""
        if self.entries is not None:
            return self.entries.layout.inner
        model = self.request.model
        return model.chain if model.bind is None else model.chain_of(self.placement.numbers(cell))

    @property
    def _seen_as_decoded(self) -> bool:
        return not self.request.model.is_partial and (self.entries is None or self.entries.in_order)

    def _view(self, chunk: Array) -> Array:
        """Return a decoded chunk as the array sees it."""
        return self.request.model.view(chunk if self.entries is None else self.entries.in_array_order(chunk))

    def _fill(self, cell: AnyCell, identity: Any) -> None:
        if not self.request.fill_missing:
            numbers = ", ".join(map(str, self.placement.numbers(cell)))
            raise NotFoundError(f"chunk {{{numbers}}} stored at {self.source.describe(identity)} is missing")
        fill = self.request.model.fill
        if not (isinstance(fill, np.ndarray) and fill.ndim):
            self.placement.fill(cell, fill)
            return
        chunk = np.broadcast_to(fill, (*self.chain(cell).chunk.shape, *fill.shape))
        self.placement.copy_out(cell, chunk if self.entries is None else self.entries.in_array_order(chunk))

    def decode_cached(self, cell: AnyCell, identity: Any, answer: ReadResult) -> None:
        """Do the same through the cache: decode the whole chunk and keep it."""
        cache = self.request.cache
        if cache is None:
            raise ValueError("no cache")
        kept = cache.find(identity)
        if answer.state == "unspecified" and kept is None:  # dropped from the pool since it was asked for
            answer = _runtime.call(self._read_again(identity), waits=self.request.store.driver.features.waits)
        if answer.state != "unspecified" or kept is None:
            array = self.decode_new(cell, answer) if answer.state == "value" else None
            kept = CachedChunk(array, answer.generation, answer.time)
        else:
            kept = kept._replace(time=answer.time)
        cache.keep(identity, kept)
        if kept.array is None:
            self._fill(cell, identity)
        else:
            self.placement.copy_out(cell, kept.array)

    async def _read_again(self, identity: Any) -> ReadResult:
        return (await self.source.read_whole([identity]))[0]


class Window(NamedTuple):
    """Cells fetched together: how, which, and what they are called; `answers` when they are fetched already."""

    part: ReadPart
    cells: Sequence[AnyCell]
    identities: list[Any]
    answers: Sequence[ReadResult] | None = None


def _bytes_touched(model: ChunkModel, outline: Plan, entries: ShardEntries | None) -> int:
    """Return how many bytes of decoded chunks (sub-chunks of shards) a request touches."""
    if entries is not None:
        return entries.plan.cell_count * _size_of(entries.layout.inner)
    return outline.cell_count * _size_of(model.chain)


def _bytes_decoded(windows: Sequence[Window], touched: int) -> int:
    """Return how many bytes of the chunks that windows touch are decoded."""
    if not windows[0].part.request.model.chain.decodes_spans:
        return touched
    total = 0
    for part, cell in ((window.part, cell) for window in windows for cell in window.cells):
        chain, span = part.chain(cell), part.span(cell)
        total += _size_of(chain) if span is None else (span[1] - span[0]) * chain.chunk.dtype.itemsize
    return total


def _size_of(chain: BoundChain) -> int:
    return max(1, math.prod(chain.chunk.shape) * chain.chunk.dtype.itemsize)


def read(request: ReadRequest, queue: ReadQueue | None = None) -> Future[Any]:
    """Begin to read; the future's result is `request.out`, filled.

    Small reads over stores that never wait go to `queue`, to be made with others.
    """
    model = request.model
    box = None if model.chain.shard is not None else box_in_chunk(request.maps, request.out.shape, model.axes)
    if box is not None:
        return _read_box(request, box, queue)
    if not request.fill_missing and model.shard is not model.chain.shard:
        told = "Finding missing parts of shards is not supported in a grid of varying chunks"
        return futures.failed(UnimplementedError(told))
    outline = plan(request.maps, request.out.shape, model.axes)
    cells = outline.cell_count
    if not cells:
        return futures.ready(request.out)
    entries = None if model.shard is None else ShardEntries(request.maps, request.out.shape, model)
    waits = request.store.driver.features.waits
    touched = _bytes_touched(model, outline, entries)
    small = touched <= INLINE_BYTES or (cells == 1 and entries is None)
    joint = small or (touched <= _JOINT_BYTES and request.out.nbytes <= INLINE_BYTES)
    threads = request.threads or _runtime.core_count()
    copied = waits and model.chain.flat_dtype is not None  # nothing to decode while more is fetched
    share = cells if small or copied else math.ceil(cells / (4 * threads))
    most = _WAITING_BYTES if waits else _NEAR_BYTES
    size = outline.even(max(1, min(share, _WINDOW_CELLS, most // _size_of(model.chain))))
    few = cells < threads and not small and entries is not None and entries.worth_sharing
    windows = _windows(request, outline, size)
    if entries is not None:
        windows = _shard_windows(request, outline, entries, few=few)
    if waits:
        done = _runtime.start(_read_waiting(windows, threads))
    elif joint and queue is not None and request.cache is None:
        return queue.add(made := list(windows), _bytes_decoded(made, touched))
    elif small:
        done = _runtime.start(read_here(windows), waits=False)
    else:
        if few:
            windows = _fetched(windows, threads)
        done = _runtime.spread(_taking_turns(), windows, workers=threads)
    return futures.mapped(done, request.out)


def _read_box(request: ReadRequest, box: Box, queue: ReadQueue | None) -> Future[Any]:
    """Begin to read a part of one chunk."""
    model = request.model
    part = ReadPart(request, BoxPlacement(request.out), KvSource(request.store))
    window = Window(part, [box], [model.key(box.numbers)])
    if request.store.driver.features.waits:
        done = _runtime.start(_read_waiting(iter([window]), 1))
    elif queue is not None and request.cache is None:
        return queue.add([window], _bytes_decoded([window], _size_of(model.chain)))
    else:
        done = _runtime.start(read_here([window]), waits=False)
    return futures.mapped(done, request.out)


def _taking_turns() -> Callable[[Window], None]:
    """Return what workers do with a window, such that one decodes while the other fetches.

    Fetching many small values is Python between short system calls; two threads that do it at once pass the
    interpreter lock to and fro, and take a tenth longer than in turns.  Where values come slowly, nobody waits long.
    """
    turn = threading.Lock()

    def run(window: Window) -> None:
        answers = window.answers
        if answers is None:
            mine = len(window.cells) > 1 and turn.acquire(timeout=_TURN_S)
            try:
                answers = _runtime.drive(_fetch(window))
            finally:
                if mine:
                    turn.release()
        _decode(window, answers)

    return run


async def read_here(windows: Iterable[Window]) -> None:
    """Make a read of a store that never waits on this thread."""
    for window in windows:
        _decode(window, await _fetch(window))


async def _read_waiting(windows: Iterator[Window], threads: int) -> None:
    async def make(window: Window) -> None:
        answers = await _fetch(window)
        pieces = _pieces(window, answers, threads)
        await _runtime.gather(
            [_runtime.offload(_decode, piece, piece.answers, kind="compute") for piece in pieces]
        )

    await _runtime.flow(make, windows, cost=_bytes_of, budget=_IN_FLIGHT_BYTES)


def _bytes_of(window: Window) -> int:
    """Return how many bytes the chunks of a window have, decoded; a small one costs its tasks and requests."""
    part = window.part
    chain = part.request.model.chain if part.entries is None else part.entries.layout.inner
    return max(_WINDOW_COST, len(window.cells) * _size_of(chain))


def _fetched(windows: Iterator[Window], threads: int) -> Iterator[Window]:
    """Yield pieces of windows that are fetched already: for fewer shards than workers."""
    for window in windows:
        yield from _pieces(window, _runtime.drive(_fetch(window)), 4 * threads)


def _pieces(window: Window, answers: Sequence[ReadResult], count: int) -> Iterator[Window]:
    size = max(16, math.ceil(len(window.cells) / count))
    for begin in range(0, len(window.cells), size):
        end = begin + size
        yield Window(window.part, window.cells[begin:end], window.identities[begin:end], answers[begin:end])


def _windows(request: ReadRequest, outline: Plan, size: int) -> Iterator[Window]:
    """Yield windows of `size` chunks."""
    part = ReadPart(request, Placement(outline, request.out), KvSource(request.store))
    for cells, keys in batches(outline, request.model, size):
        yield Window(part, cells, keys)


def _shard_windows(
    request: ReadRequest, outline: Plan, entries: ShardEntries, *, few: bool
) -> Iterator[Window]:
    """Yield a window a shard: the shard as one chunk when all of it is wanted, else the sub-chunks touched.

    With `few` the sub-chunks are wanted one by one always, so that several workers can share a shard.
    """
    model, out = request.model, request.out
    source = KvSource(request.store)
    whole = ReadPart(request, Placement(outline, out), source)
    part = ReadPart(request, Placement(entries.plan, out), entries.source(source), entries)
    for cell in outline.cells():
        key = model.key(chunk_numbers(outline, cell))
        if cell.covers and not few and request.cache is None and request.fill_missing:
            yield Window(whole, [cell], [key])
            continue
        cells, numbers = entries.of(cell)
        yield Window(part, cells, entries.identities(key, numbers))


async def _fetch(window: Window) -> Sequence[ReadResult]:
    cache = window.part.request.cache
    if cache is None:
        return await window.part.source.read_whole(window.identities)
    answers: list[ReadResult | None] = []
    for identity in window.identities:
        kept = cache.find(identity)
        fresh = kept is not None and cache.is_fresh(kept)
        answers.append(ReadResult("unspecified", b"", kept.generation, kept.time) if kept and fresh else None)
    asked = [number for number, answer in enumerate(answers) if answer is None]
    ranges = []
    for number in asked:
        kept = cache.find(window.identities[number])
        ranges.append(
            ByteRange(window.identities[number], 0, None, UNKNOWN if kept is None else kept.generation)
        )
    found = await window.part.source.read_many(ranges) if ranges else []
    for number, answer in zip(asked, found, strict=True):
        answers[number] = answer
    return [answer for answer in answers if answer is not None]


def _decode(window: Window, answers: Sequence[ReadResult]) -> None:
    part = window.part
    if part.request.cache is None and part.decode_together(window.cells, window.identities, answers):
        return
    decode = part.decode if part.request.cache is None else part.decode_cached
    for cell, identity, answer in zip(window.cells, window.identities, answers, strict=True):
        try:
            decode(cell, identity, answer)
        except StoreError as error:
            raise locate_error(part.source, identity, error) from error
        except MemoryError as error:
            large = ResourceExhaustedError(f"There is not enough memory for a chunk: {error}")
            raise locate_error(part.source, identity, large) from error


def locate_error(source: Source, identity: Any, error: StoreError) -> StoreError:
    """Return an error of decoding with the key in front; a missing chunk names it already."""
    if isinstance(error, NotFoundError):
        return error
    return error.within(f"Error reading {source.describe(identity)}")
