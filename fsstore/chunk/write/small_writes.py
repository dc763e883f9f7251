"""Small writes made together: begun one by one, carried out in the order in which they were begun.

A small durable write is waiting for the disk, and the disk takes many files in little more than the time of one.
In every store that never waits, writes that change the same chunk share its decoding and its encoding.
Nothing is faster for one alone than to make it at once, on the thread that begins it.  A caller that begins another
before it has asked for the result of the one before wants several: from then on its writes wait, with a copy of their
values.  A pool thread makes them in batches when a caller asks for one of the results, when many wait, or after a
moment: batches are as large as they can be, and the caller who begins more has the interpreter to itself.  Where
writing waits for a disk it begins at once, since the disk and the caller do not stand in each other's way.

One batch of a store is under way at a time.  Within a batch the changes of a chunk are made in the order in which their
writes were begun, and the chunk is read, encoded and stored once.  Boxes wait unplanned, and are planned when they are
written, all those of an array at once (`written_boxes`).  Reads of the array see what was begun before: they finish it
first, with `settle`.  A batch that fails is written again one by one: the same values again change nothing.

All is written before a process forks, because the child has no thread for it, and before the interpreter exits.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from fsstore.chunk.columns import PlainBox
from fsstore.chunk.planner import FewPlan
from fsstore.chunk.tuning import BATCH_BYTES, HELD_BYTES, SMALL_GATHER_S, WINDOW_CELLS
from fsstore.chunk.write.encode import WriteRequest
from fsstore.chunk.write.writer import BegunWrite, Changed, RequestChanges, Writer, changed_by
from fsstore.errors import FailedPreconditionError
from fsstore.kvstore.contract.driver import KvDriver, KvPrefix
from fsstore.runtime import execution, fork
from fsstore.runtime import future as futures
from fsstore.runtime.fork import OfProcess, OfThread
from fsstore.runtime.future import Bell, Copied, Flag, Future
from fsstore.runtime.together import Outcome, outcomes, tell

_lock = fork.lock()  # guards the queues


class _Own:
    """The last write of a thread: the one it began, until its result is asked for, and whether it is carrying one out.

    The garbage collector or a signal may call a function of the user's in the middle of that, which may use the same
    array.  It must not wait for what its own thread has under way: its writes wait for their turn, and its reads see
    what is stored.
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
        """Have the write made now, if it waits."""
        super().force()
        if self.queue is not None:
            self.queue.awaited()

    def _get(self) -> None:
        if _own.now.future is self:
            _own.now.future = None
        return super()._get()


class _StoreQueue:
    """The small writes of one store: those that wait, and those under way.  It lives while there are any."""

    def __init__(self, driver: KvDriver) -> None:
        self._driver = driver
        self._finished = Bell()
        self._waiting: deque[BegunWrite] = deque()
        self._waiting_bytes = self._begun = 0
        self._has_job = False
        self._awaited = Flag()  # set when what waits is to be made
        self._paths: dict[int, str] = {}  # of writes that are not finished
        self._maker: int | None = None  # the thread that makes a batch

    def add(self, future: Future[None], request: WriteRequest, cut: FewPlan | PlainBox, cells: int) -> None:
        """Have a write wait for its turn."""
        self._begun += 1
        write = BegunWrite(future, request, cut, cells, self._begun)
        size, number, path = write.size, write.number, request.chunks.store.path
        # no call comes between these steps, and so no Ctrl-C
        self._paths[number] = path
        self._waiting_bytes += size
        self._waiting.append(write)

    def work_on(self) -> None:
        """See that what waits is carried out: by a pool thread, and by the caller too if too much waits."""
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
        """Have what waits made now."""
        self._awaited.set()

    def awaited(self) -> None:
        """Have what waits made for a thread that waits; the one that makes a batch would wait for itself."""
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
        """Finish what was begun at a path, or anywhere, up to now."""
        with _lock:
            begun = [number for number, other in self._paths.items() if path in (None, other)]
        if begun:
            self._help(lambda: self._paths.keys().isdisjoint(begun))

    def _help(self, over: Callable[[], bool]) -> None:
        """Work on what waits, or on the main thread, where Ctrl-C comes between any two steps, have another do it."""
        work = partial(self._work, is_job=False)
        self.hurry()
        if threading.current_thread() is threading.main_thread():
            execution.hand_over(work, kind="request")
        else:
            work()
        self._finished.wait_until(over)

    def _work(self, *, is_job: bool = True) -> None:
        """Carry out what waits, unless another thread is at it, which will go on with the rest."""
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
        """Return the next writes, none while others are under way; none ends a job."""
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
    """Make the writes of a batch."""

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
    """Yield parts of a batch, each of chunks that are in memory together."""
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
    """Return whether this thread has begun a small write before whose result it has not asked for, or is at one."""
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
    """Begin to write a box or what has a plan, of few chunks, on a pool thread, with a copy of the values."""
    future, driver = _remembered(), request.chunks.store.driver
    request = request._replace(values=request.values.copy())
    with _lock:
        queue = _queues.now.get(driver) or _queues.now.setdefault(driver, _StoreQueue(driver))
        future.queue = queue
        queue.add(future, request, cut, cells)
    queue.work_on()
    return future


def _remembered() -> _WriteFuture:
    """Return the future of a write that this thread begins."""
    future = futures.make(_WriteFuture, futures.PENDING)
    future.queue = None
    _own.now.future = future
    return future


def unfinished() -> set[KvDriver]:
    """Return the stores that have small writes of this process that are not over."""
    return set(_queues.now)


def settle(store: KvPrefix) -> None:
    """Finish the small writes that were begun at a place up to now."""
    queue = _queues.now.get(store.driver) if _queues.now else None
    if queue is not None and not _own.now.is_busy:
        queue.settle(store.path)
