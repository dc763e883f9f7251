"""Writing a request: it is divided into windows of chunks, and `Writer.store` encodes and stores each window.

Windows of chunks bound the memory, as in `read`.  There are four ways to pass windows to the writer:

* on this thread (`_write_here`): the plain way, for a write that is encoded in less time than a thread takes to wake
* with others (`write_small`): small writes that are begun one by one are made together
* as tasks of the event loop (`_LargeWrite.by_tasks`): for a store that waits
* on pool threads (`_LargeWrite.by_threads`): each thread reads, encodes and writes windows one after the other; large
  chunks, and the few of a request of one window, are handed to the disk and written while the next is encoded

Writes of one chunk keep the order of their calls (`queue`).
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from fsstore.chunk.columns import PlainBox
from fsstore.chunk.open_chunks import OpenChunks
from fsstore.chunk.planner import FewPlan, plan, plan_few
from fsstore.chunk.write.encode import WriteRequest
from fsstore.chunk.write.queue import before, in_order, over, touched, write_far, write_gathered
from fsstore.chunk.write.writer import BegunWrite, Changed, RequestChanges, Writer, changed_by, written_box
from fsstore.codec.chain import BoundChain
from fsstore.codec.sharding import shard_of
from fsstore.errors import FailedPreconditionError
from fsstore.kvstore.contract.ability import Modifies, WritesLate, able
from fsstore.kvstore.contract.driver import KvDriver, KvPrefix
from fsstore.runtime import execution, fork
from fsstore.runtime import future as futures
from fsstore.runtime.execution import WorkEnd, run_bounded
from fsstore.runtime.fork import OfProcess, OfThread
from fsstore.runtime.future import Bell, Copied, Flag, Future, ready
from fsstore.runtime.together import Outcome, outcomes, tell
from fsstore.runtime.tuning import (
    AT_ONCE,
    BATCH_BYTES,
    COPIED_PER_DECODED,
    DISK_THREADS,
    FEW,
    HELD_BYTES,
    HOP_BYTES,
    INLINE_EFFORT_BYTES,
    JOINT_BYTES,
    PIECE_BYTES,
    REQUEST_BYTES,
    SMALL_GATHER_S,
    STORED_BLOCK_BYTES,
    WINDOW_BYTES,
    WINDOW_CELLS,
    WINDOWS,
)

# Small writes made together.
#
# A small durable write is waiting for the disk, and the disk takes many files in little more than the time of one.  In
# every store that never waits, writes that change the same chunk share its decoding and its encoding.  A write alone is
# quickest when the thread that begins it makes it at once.  A caller that begins another write before it has asked for
# the result of the first wants several: from then on its writes wait, with a copy of their values.  A pool thread makes
# them in batches when a caller asks for one of the results, when many wait, or after a moment.  Where writing waits for
# a disk the thread begins at once, since the disk and the caller do not stand in each other's way.
#
# One batch of a store is under way at a time.  Within a batch the changes of a chunk are made in the order in which
# their writes were begun, and the chunk is read, encoded and stored once.  Boxes are planned when they are written, all
# those of an array at once.  Reads of the array first finish the writes begun before (`settle`).  A batch that fails is
# written again one by one: the same values again change nothing.  Everything is written before a process forks, because
# the child has no thread for it, and before the interpreter exits.

_lock = fork.lock()  # guards the queues


class _Own:
    """The last write of a thread until its result is asked for, and whether the thread is carrying out a write.

    The garbage collector or a signal may call a user's function in the middle of a write, and that function may use the
    same array.  It must not wait for work of its own thread: its writes wait for their turn, and its reads see the
    stored values.
    """

    future: Future[None] | None = None
    is_busy = False


_own = OfThread(_Own)
_NESTED = (
    "A finalizer or a signal handler waits for a write that its own thread cannot make before it returns;"
    " begin the write without waiting for it, or have another thread write"
)


@contextmanager
def _busy() -> Iterator[None]:
    before, _own.now.is_busy = _own.now.is_busy, True
    try:
        yield
    finally:
        _own.now.is_busy = before


class _WriteFuture(Copied):
    """The future of a small write.  A thread remembers its latest until its result is asked for."""

    __slots__ = ("queue",)
    queue: _StoreQueue | None

    def force(self) -> None:
        """Make the write now, if it waits."""
        super().force()
        if self.queue is not None:
            self.queue.awaited()

    def _asked(self) -> None:
        if _own.now.future is self:
            _own.now.future = None

    def _get(self) -> None:
        self._asked()
        return super()._get()


class _StoreQueue:
    """The small writes of one store: the waiting ones, and those under way.  It lives while there are any."""

    def __init__(self, driver: KvDriver) -> None:
        self._driver = driver
        self._finished = Bell()
        self._waiting: deque[BegunWrite] = deque()
        self._waiting_bytes = self._begun = 0
        self._has_job = False
        self._awaited = Flag()  # set when the waiting writes are to be made
        self._paths: dict[int, str] = {}  # of unfinished writes
        self._maker: int | None = None  # the thread that makes a batch

    def add(self, future: Future[None], request: WriteRequest, cut: FewPlan | PlainBox, cells: int) -> None:
        """Queue a write."""
        self._begun += 1
        write = BegunWrite(future, request, cut, cells, self._begun)
        size, number, path = write.size, write.number, request.chunks.store.path
        # no call between these steps, and so no Ctrl-C
        self._paths[number] = path
        self._waiting_bytes += size
        self._waiting.append(write)

    def work_on(self) -> None:
        """Ensure that the waiting writes are made: by a pool thread, and by the caller, too, if too much waits."""
        try:
            with _lock:
                is_first, self._has_job = not self._has_job, True
                if is_first:
                    self._awaited = Flag()
            if is_first:
                at_once = self._driver.features.slow_writes
                execution.hand_over(self._work if at_once else self._work_when_awaited, kind="request")
        except BaseException:  # Ctrl-C: the next write begins a job, and two do no harm
            self._has_job = False
            raise
        if len(self._waiting) >= WINDOW_CELLS:
            self.hurry()
        if self._waiting_bytes > HELD_BYTES and not _own.now.is_busy:
            self._help(lambda: self._waiting_bytes <= HELD_BYTES)

    def hurry(self) -> None:
        """Make the waiting writes now."""
        self._awaited.set()

    def awaited(self) -> None:
        """Make the waiting writes for a waiting thread; raise if that thread is the one that makes a batch."""
        if self._maker == threading.get_ident():
            raise FailedPreconditionError(_NESTED)
        self.hurry()

    def _work_when_awaited(self) -> None:
        begun = -1
        for _ in range(10):
            if begun == self._begun:
                break
            begun = self._begun
            if self._awaited.wait(SMALL_GATHER_S):
                break
        self._work()

    def settle(self, path: str | None = None) -> None:
        """Finish the writes begun so far, at a path or anywhere."""
        with _lock:
            begun = [number for number, other in self._paths.items() if path in (None, other)]
        if begun:
            self._help(lambda: self._paths.keys().isdisjoint(begun))

    def _help(self, over: Callable[[], bool]) -> None:
        """Make the waiting writes; on the main thread, which Ctrl-C may interrupt anywhere, let a pool thread do it."""
        work = partial(self._work, is_job=False)
        self.hurry()
        if threading.current_thread() is threading.main_thread():
            execution.hand_over(work, kind="request")
        else:
            work()
        self._finished.wait_until(over)

    def _work(self, *, is_job: bool = True) -> None:
        """Make the waiting writes, unless another thread is making them and will continue with the rest."""
        while batch := self._take(is_job=is_job):
            with _busy():
                found = _make(self._driver, batch)
            with _lock:
                for write in batch:
                    del self._paths[write.number]
                self._maker = None
                if not self._paths:
                    _queues.now.pop(self._driver, None)
            self._finished.ring()
            tell([write.future for write in batch], found)

    def _take(self, *, is_job: bool) -> list[BegunWrite]:
        """Return the next writes; none while others are under way; none also ends a job."""
        batch: list[BegunWrite] = []
        cells = 0
        with _lock:
            while self._waiting and self._maker is None and cells < WINDOW_CELLS:
                write = self._waiting.popleft()
                batch.append(write)
                cells += write.cells
                self._waiting_bytes -= write.size
            if batch:
                self._maker = threading.get_ident()
            if is_job and not batch:
                self._has_job = False
        return batch


def _make(driver: KvDriver, batch: Sequence[BegunWrite]) -> Sequence[Outcome[None]]:
    async def store(writes: Sequence[BegunWrite]) -> list[None]:
        threads = writes[0].request.chunks.threads
        for window in _windows(changed_by([write for write in writes if not write.future.cancelled()])):
            await Writer(driver, threads=threads, late=len(window) > 1).store(window)
        return [None] * len(writes)

    try:
        return execution.drive(outcomes(store, batch))
    except BaseException as error:  # noqa: BLE001  # the futures carry it
        return [error] * len(batch)


def _windows(changed: Iterable[Changed]) -> Iterator[list[Changed]]:
    """Yield parts of a batch, each with as many chunks as memory can hold together."""
    window: list[Changed] = []
    size = 0
    for pair in changed:
        chunk_bytes = pair[1][0].of.chunk_bytes
        if window and size + chunk_bytes > BATCH_BYTES:
            yield window
            window, size = [], 0
        window.append(pair)
        size += chunk_bytes
    if window:
        yield window


def _finish(queues: dict[KvDriver, _StoreQueue]) -> None:
    for queue in [] if _own.now.is_busy else [*queues.values()]:
        queue.settle()


_queues: OfProcess[dict[KvDriver, _StoreQueue]] = OfProcess(dict, finish=_finish)


def are_begun_together() -> bool:
    """Return whether this thread has a small write whose result it has not asked for, or is carrying one out."""
    own = _own.now
    return own.future is not None or own.is_busy


def write_small(request: WriteRequest, cut: FewPlan, *, late: bool, here: bool) -> Future[None]:
    """Begin to write few chunks: `here` and at once, perhaps `late`, or on a pool thread with a copy of the values."""
    if not here or are_begun_together():
        return write_together(request, cut, cut.cell_count)
    future = _remembered()
    settle(request.chunks.store)
    writer, window = Writer(request.chunks.store.driver, late=late), RequestChanges(request, cut).window()
    with _busy():
        done = execution.start(writer.store(window), waits=False)
    tell([future], [futures.error_of(done)])
    return future


def write_together(request: WriteRequest, cut: FewPlan | PlainBox, cells: int) -> Future[None]:
    """Begin to write a box or a planned request, of few chunks, on a pool thread, with a copy of the values."""
    future, driver = _remembered(), request.chunks.store.driver
    request = request._replace(values=request.values.copy())
    with _lock:
        queue = _queues.now.get(driver) or _queues.now.setdefault(driver, _StoreQueue(driver))
        future.queue = queue
        queue.add(future, request, cut, cells)
    queue.work_on()
    return future


def _remembered() -> _WriteFuture:
    future = futures.make(_WriteFuture, futures.PENDING)
    future.queue = None
    _own.now.future = future
    return future


def unfinished() -> set[KvDriver]:
    """Return the stores with unfinished small writes of this process."""
    return set(_queues.now)


def settle(store: KvPrefix) -> None:
    """Finish the small writes begun at a place so far."""
    queue = _queues.now.get(store.driver) if _queues.now else None
    if queue is not None and not _own.now.is_busy:
        queue.settle(store.path)


def write(request: WriteRequest) -> Future[Any]:
    """Begin to write; the future is done when everything is stored as durably as the store promises.

    Earlier writes of the same chunks are stored first.
    """
    model, store = request.chunks.model, request.chunks.store
    joined = _join_small_writes(request)
    if joined is not None:
        return joined
    cut = plan_few(request.maps, request.values, model.axes, FEW)
    cells = cut.cell_count
    if not cells:
        return ready(None)
    at_once = _way_at_once(request, cut)
    if at_once is not None and not before(store, lambda: touched(cut, model)):
        return at_once()
    chunks = touched(cut, model)
    if able(store.driver, Modifies) is not None:
        return in_order(store, chunks, partial(_write_alone, request, cut))
    if store.driver.features.waits:
        return write_far(BegunWrite(futures.pending(), request, cut, cells), chunks, _write_together)
    if not before(store, lambda: chunks):
        return in_order(store, chunks, partial(_write_alone, request, cut))
    return write_gathered(BegunWrite(futures.pending(), request, cut, cells), chunks, _write_together)


def _way_at_once(request: WriteRequest, cut: FewPlan) -> Callable[[], Future[Any]] | None:
    """Return a way to write quick or small requests; None if threads or the event loop have to."""
    (driver, _), chain = request.chunks.store, request.chunks.model.chain
    is_soon_made = cut.cell_count == 1 or _is_soon_made(request, cut.cell_count)
    if _is_small(request, cut.cell_count):
        return partial(write_small, request, cut, late=_is_late(driver, chain), here=is_soon_made)
    if is_soon_made and not driver.features.waits:
        return partial(_write_here, request, cut)
    return None


def _write_alone(request: WriteRequest, cut: FewPlan, ended: WorkEnd) -> Future[Any]:
    at_once = _way_at_once(request, cut)
    if at_once is None:
        return _write_without_others(request, cut, ended)
    future = at_once()
    future.add_done_callback(lambda _: ended())
    return future


def _join_small_writes(request: WriteRequest) -> Future[None] | None:
    """Begin to write a small box together with others, unplanned; None if it is not such a box, or waits for a large
    write.
    """
    box = written_box(request) if are_begun_together() else None
    if box is None:
        return None
    model, store = request.chunks.model, request.chunks.store
    cells = box.chunk_count(model.chain.chunk.shape)
    if not _is_small(request, cells):
        return None
    if before(store, lambda: touched(plan(request.maps, request.values, model.axes), model)):
        return None
    return write_together(request, box, cells)


async def finish(store: KvPrefix) -> None:
    """Wait until all writes begun at a place so far are over."""
    settle(store)
    await over(store)


def _write_here(request: WriteRequest, cut: FewPlan) -> Future[Any]:
    store = request.chunks.store
    settle(store)
    if able(store.driver, Modifies) is not None:
        request = _kept(request)
    writer = Writer(store.driver, late=_is_late(store.driver, request.chunks.model.chain))
    return execution.start(writer.store(RequestChanges(request, cut).window()), waits=False)


def _kept(request: WriteRequest) -> WriteRequest:
    """Return the request with a copy of its values, for the commit of a transaction."""
    return request._replace(values=request.values.copy())


def _write_together(writes: Sequence[BegunWrite], ended: WorkEnd) -> Future[Any]:
    """Write requests of one array that share a turn, or the single one of a turn."""
    if len(writes) == 1:
        return _write_alone(writes[0].request, writes[0].plan, ended)
    boxes = [box for write in writes if (box := written_box(write.request)) is not None]
    if len(boxes) == len(writes):
        writes = [write._replace(cut=box) for write, box in zip(writes, boxes, strict=True)]
    changed = list(changed_by(writes))

    def windows(size: int) -> Iterator[list[Changed]]:
        return (changed[at : at + size] for at in range(0, len(changed), size))

    return _write_large(writes[0].request.chunks, len(changed), windows, ended)


def _write_without_others(request: WriteRequest, cut: FewPlan, ended: WorkEnd) -> Future[Any]:
    if able(request.chunks.store.driver, Modifies) is not None:
        request = _kept(request)
    return _write_large(request.chunks, cut.cell_count, RequestChanges(request, cut).windows, ended)


def _write_large(chunks: OpenChunks, cells: int, windows: _Windows, ended: WorkEnd) -> Future[Any]:
    """Write on threads, or on the event loop if the store waits."""
    driver, chain = chunks.store.driver, chunks.model.chain
    settle(chunks.store)
    late = _is_late(driver, chain)
    large = _LargeWrite(chunks, cells, windows, _memory_of_chunk(chain, late=late), ended)
    if driver.features.waits:
        return large.by_tasks()
    return large.by_threads(ahead_of_disk=late or _is_one_window(cells, chain.decoded_size))


_Windows: TypeAlias = Callable[[int], Iterator[list[Changed]]]
"""The changes of a write, in parts of about the given number of chunks."""


class _LargeWrite(NamedTuple):
    """A large write.  A chunk takes `each` bytes; `ended` is called at the end."""

    chunks: OpenChunks
    cells: int
    windows: _Windows
    each: int
    ended: WorkEnd

    @property
    def _encoders(self) -> int:
        """The number of encoding threads: shards that use every core themselves are encoded one at a time."""
        shard = shard_of(self.chunks.model.chain)
        return 1 if shard is not None and shard.shares_cores else self.chunks.workers(self.each)

    def by_tasks(self) -> Future[None]:
        """Write windows as tasks of the event loop, as many as memory allows, to a store that waits."""
        chunks, chain = self.chunks, self.chunks.model.chain
        # a view, which is copied for sending
        each = self.each + (chain.decoded_size if chain.flat_dtype is not None else 0)
        windows = self.windows(_window_size(self.cells, REQUEST_BYTES // chain.decoded_size, WINDOWS))
        writer = Writer(chunks.store.driver, threads=chunks.workers(each))
        writing = _write_waiting(writer, windows, each, chunks.window(each))
        return execution.start(writing, ended=self.ended)

    def by_threads(self, *, ahead_of_disk: bool) -> Future[None]:
        """Read, encode and write windows, one after the other on each of several threads.

        With `ahead_of_disk` encoding uses every core, and no thread waits until the disk has a chunk.
        """
        chunks, each, chain = self.chunks, self.each, self.chunks.model.chain
        if ahead_of_disk:
            writer = Writer(chunks.store.driver, threads=self._encoders, late=True)
            windows = self.windows(AT_ONCE)
            return _spread(writer, windows, workers=1, kind="request", ended=self.ended)
        if chunks.threads:
            workers = self._encoders
        elif chunks.store.driver.features.slow_writes:
            workers = chunks.workers(each, DISK_THREADS)
        else:  # so little encoding is mostly Python: threads would wait for each other
            workers = self._encoders if _effort(chain) >= HOP_BYTES // 64 else 1
        windows = self.windows(_window_size(self.cells, WINDOW_BYTES // (workers * each), 4 * WINDOWS))
        writer = Writer(chunks.store.driver)
        return _spread(writer, windows, workers=min(self.cells, workers), kind="io", ended=self.ended)


def _memory_of_chunk(chain: BoundChain, *, late: bool) -> int:
    """Return the bytes that a written chunk takes, including its stored bytes if it is written in part."""
    shard = shard_of(chain)
    if late and shard is not None and not shard.at_start:  # then it is written piece by piece
        return 6 * STORED_BLOCK_BYTES + shard.inner.working_size
    return chain.working_size + chain.decoded_size // 2


def _window_size(cells: int, affordable: int, windows: int) -> int:
    """Return how many cells are read, encoded and written at once: so few that all workers get windows."""
    return max(1, min(math.ceil(cells / windows), AT_ONCE, affordable))


def _is_late(driver: KvDriver, chain: BoundChain) -> bool:
    """Return whether chunks are so large that each is written before the next is encoded, if the store can do that."""
    return chain.decoded_size >= PIECE_BYTES and able(driver, WritesLate) is not None


def _is_soon_made(request: WriteRequest, cells: int) -> bool:
    """Return whether encoding all chunks of a request takes hardly longer than waking a thread."""
    chain = request.chunks.model.chain
    if request.chunks.store.driver.features.slow_writes:
        return cells * chain.decoded_size <= 2 * HOP_BYTES
    return cells * _effort(chain) <= INLINE_EFFORT_BYTES


def _effort(chain: BoundChain) -> float:
    """Return the effort to encode and copy a chunk, as bytes that zstd decodes in that time."""
    return chain.effort + chain.decoded_size / COPIED_PER_DECODED


def _is_small(request: WriteRequest, cells: int) -> bool:
    """Return whether a write may wait for others with a copy of its values; values with Python objects may not."""
    values, chunks = request.values, request.chunks
    size = chunks.model.chain.decoded_size
    if values.nbytes >= PIECE_BYTES or size > BATCH_BYTES or cells * size > JOINT_BYTES:
        return False
    driver = chunks.store.driver
    return not (driver.features.waits or values.dtype.hasobject or able(driver, Modifies) is not None)


def _is_one_window(cells: int, chunk_bytes: int) -> bool:
    """Return whether a request is read, encoded and written at once: a few small chunks.

    Windows of one chunk would compete for the interpreter with system calls while others encode: parts of eight chunks
    of 200 KB take 0.85 of the time together.
    """
    return cells <= AT_ONCE and chunk_bytes < PIECE_BYTES and cells * chunk_bytes <= BATCH_BYTES


def _spread(writer: Writer, windows: Iterator[list[Changed]], **how: Any) -> Future[None]:
    return execution.spread(
        lambda window: execution.drive(writer.store(window)), windows, stopped=writer.stopped, **how
    )


async def _write_waiting(writer: Writer, windows: Iterator[list[Changed]], each: int, budget: int) -> None:
    """Write windows, as many together as the budget allows, if a chunk takes `each` bytes.

    The old and the new encoding of a partly written chunk are in memory together for a while.
    """

    def cost(window: list[Changed]) -> int:
        return each * len(window) + each // 2 * sum(not changes[0].is_whole for _, changes in window)

    await run_bounded(writer.store, windows, cost=cost, budget=budget)
