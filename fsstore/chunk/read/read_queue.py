"""Small reads of one array that have begun and wait for others.

Many small reads are often begun before the first result is asked for, and often touch the same chunks.  A `ReadQueue`
holds those that were begun until somebody waits for one of them, or the event loop has time for them, then makes them
all at once.  Boxes are not even planned before that: to begin one is to remember it.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from fsstore.chunk.read.box_columns import BoxView
from fsstore.chunk.read.joint_reads import JointReads, planned_alone
from fsstore.chunk.read.reader import (
    is_one_quick,
    is_python_mostly,
    read_here,
    read_spread,
    read_waiting,
)
from fsstore.chunk.read.window import Planned, Window
from fsstore.chunk.tuning import (
    INLINE_READ_BYTES,
    QUEUE_LIMIT,
)
from fsstore.codec.contract import Array
from fsstore.kvstore.contract.ability import AnswersSoon, able
from fsstore.kvstore.contract.driver import KvDriver
from fsstore.runtime import execution, fork
from fsstore.runtime import future as futures
from fsstore.runtime.future import Future
from fsstore.runtime.together import asks_at_once, has_asked, tell

__all__ = ["ReadQueue"]

Waiting: TypeAlias = "tuple[Future[Any], Planned | BoxView]"
"""A read that waits to be made, and its future."""


class ReadQueue:
    """Reads of one array that have begun and not started.

    Over a store that never waits they start when somebody waits for one of them.  Over one that waits, the event loop
    starts them as soon as it gets to it, with those that were begun until then; one alone is made by a thread that asks
    for each result at once, while the store answers soon.
    """

    __slots__ = ("_job", "_lock", "_process", "_soon", "_waiting", "_waits")

    def __init__(self, driver: KvDriver) -> None:
        self._lock = fork.lock()
        self._waiting: list[Waiting] = []
        self._waits = driver.features.waits
        self._soon = able(driver, AnswersSoon)
        self._job: Future[None] = futures.ready(None)
        self._process = -1  # that has asked its event loop to start what waits

    def add(self, wanted: Planned | BoxView) -> Future[Any]:
        """Return the future of a read that is made when this or another future of the queue is waited for."""
        soon = self._soon is not None and self._soon.answers_soon
        hooks = {"here": lambda: self._make_here(future)} if soon else {}
        future: Future[Any] = futures.pending(start=self.flush, **hooks)
        with self._lock:
            self._waiting.append((future, wanted))
            full = len(self._waiting) >= QUEUE_LIMIT
        if full or (self._waits and not (soon and asks_at_once())):
            self.flush()
        return future

    def flush(self) -> None:
        """Make the reads that wait: here if that is quick, otherwise on pool threads or the event loop."""
        if self._waits:
            self._ask_loop()
            return
        waiting: list[Waiting] = []
        try:
            with self._lock:
                waiting, self._waiting = self._waiting, []
            waiting = [each for each in waiting if not each[0].cancelled()]
            if waiting and (len(waiting) > 1 or not _made_alone(*waiting[0])):
                JointReads([future for future, _ in waiting]).begin([wanted for _, wanted in waiting])
        except BaseException as error:  # Ctrl-C: nobody waits for ever
            for future, _ in waiting:
                futures.fail(future, error)
            raise

    def _make_here(self, future: Future[Any]) -> None:
        """Make a read that waits alone on the thread that asks for it, unless that may take long."""
        has_asked()
        taken: Waiting | None = None
        with self._lock:
            if [each[0] for each in self._waiting] == [future] and self._process != fork.process.forks:
                taken = self._waiting.pop()
        if taken is not None and not _made_soon(*taken):
            with self._lock:
                self._waiting.append(taken)
        self.flush()

    def _ask_loop(self) -> None:
        """See that the event loop of this process starts what waits."""
        with self._lock:
            if not self._waiting or self._process == fork.process.forks:
                return
            self._job = execution.start(self._make_on_loop())  # waits for the lock
            self._process = fork.process.forks
            error = futures.error_of(self._job)
            if error is not None:  # no thread can be had
                waiting, self._waiting, self._process = self._waiting, [], -1
                tell([future for future, _ in waiting], [error] * len(waiting))

    async def _make_on_loop(self) -> None:
        with self._lock:
            job, waiting, self._waiting, self._process = self._job, self._waiting, [], -1
        waiting = [each for each in waiting if not each[0].cancelled()]
        begun = [future for future, _ in waiting]

        def stop() -> None:
            if all(future.done() for future in begun):
                job.cancel()

        for future in begun:
            futures.on_cancel(future, stop)
        try:
            if len(waiting) == 1:
                futures.resolve(begun[0], await _made_waiting(waiting[0][1]))
            elif waiting:
                await JointReads(begun).make_waiting([wanted for _, wanted in waiting])
        except BaseException as error:
            for future in begun:
                futures.fail(future, error)
            if not isinstance(error, Exception):
                raise


def _made_alone(future: Future[Any], wanted: Planned | BoxView) -> bool:
    """Make a single read, on this thread if that is quick; return False if its chunks have to be handed out first.

    Waiting for a pool thread to wake others up takes a fortieth longer for four large chunks.
    """
    try:
        windows, out, touched_bytes = planned_alone(wanted) if isinstance(wanted, BoxView) else wanted
        if touched_bytes <= INLINE_READ_BYTES or is_one_quick(windows):
            execution.drive(read_here(windows))
            futures.resolve(future, out)
        elif is_python_mostly(windows) and execution.must_not_wait():
            for window in windows:
                execution.drive(read_here([window]))
            futures.resolve(future, out)
        elif len(windows) > 1 and not execution.on_worker("compute"):
            chunks = windows[0].part.chunks
            threads = chunks.workers(chunks.model.chain.working_size)
            futures.follow(future, read_spread(windows, threads), lambda _: out)
        else:
            return False
    except BaseException as error:  # noqa: BLE001  # the future carries it
        futures.fail(future, error)
    return True


def _made_soon(future: Future[Any], wanted: Planned | BoxView) -> bool:
    """Make a single read of a store that answers soon, on this thread; return False if that may take long."""
    try:
        windows, out, _ = planned_alone(wanted) if isinstance(wanted, BoxView) else wanted
        if not all(map(_is_soon_made, windows)) or len(windows) > 1:
            return False
        execution.drive(read_here(windows))
        futures.resolve(future, out)
    except execution.MayWait:
        return False
    except Exception as error:  # noqa: BLE001  # the future carries it
        futures.fail(future, error)
    return True


def _is_soon_made(window: Window) -> bool:
    """Return whether a window is of one chunk, of a store that may answer soon."""
    single = len(window.cells) == 1 and window.guard is None
    return single and able(window.part.chunks.store.driver, AnswersSoon) is not None


async def _made_waiting(wanted: Planned | BoxView) -> Array:
    """Make a single read of a store that waits."""
    windows, out, _ = planned_alone(wanted) if isinstance(wanted, BoxView) else wanted
    await read_waiting(windows)
    return out
