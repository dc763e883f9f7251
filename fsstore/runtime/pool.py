"""A pool of threads that always gives work to the thread that became idle last.

What a thread works with is in the processor's caches then: its part of the heap, and the contexts of codecs, which are
megabytes.  The pools of the standard library let their threads take turns: writing parts of eight chunks then takes a
tenth longer in a process that has used six threads than in one that has used two.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future as ThreadFuture
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

__all__ = ["Pool"]

T = TypeVar("T")
_LOOK = object()  # in place of a job: there may be one


class Pool(ThreadPoolExecutor):
    """Threads that do jobs.  A limit on threads, or the exit of the interpreter, keeps no job from being done."""

    def __init__(self, threads: int, name: str, begin: Callable[[], object]) -> None:
        super().__init__(threads, name, begin)
        jobs = _Jobs()
        self._work_queue: Any = jobs
        self._idle_semaphore: Any = _Need(jobs)

    def _adjust_thread_count(self) -> None:
        with suppress(RuntimeError):  # the job is queued, and one of the threads there are will take it
            super()._adjust_thread_count()

    def submit(self, function: Callable[..., T], /, *args: Any, **options: Any) -> ThreadFuture[T]:
        """Begin a job; where there is no thread at all it is done here and now."""
        try:
            job = super().submit(_ended.work, function, *args, **options)
        except RuntimeError:  # the interpreter exits
            return _done(function, *args, **options)
        if self._threads or not job.cancel():
            return job
        return _done(function, *args, **options)


def _done(function: Callable[..., T], *args: Any, **options: Any) -> ThreadFuture[T]:
    future: ThreadFuture[T] = ThreadFuture()
    try:
        future.set_result(function(*args, **options))
    except Exception as error:  # noqa: BLE001  # the future carries it
        future.set_exception(error)
    return future


class _Need:
    """What an executor asks whether a thread is idle, so that it need not start one.

    Here it is asked what it wants to know: whether every job has found a thread.  A count of those that are idle is
    wrong for ever after a signal between two of its steps, and then too few are started.
    """

    def __init__(self, jobs: _Jobs) -> None:
        self._jobs = jobs

    def acquire(self, timeout: float | None = None) -> bool:  # nobody waits
        """Return whether no further thread is needed."""
        return self._jobs.none_waits()

    def release(self) -> None:
        """Hear that a thread is idle."""


class _Ended(threading.local):
    """The ends of jobs that a thread has to tell of, once it is idle again or before it does another one."""

    def __init__(self) -> None:
        self._works = False
        self._told: list[Callable[[], None]] = []

    def work(self, function: Callable[..., T], /, *args: Any, **options: Any) -> T:
        """Do a job whose end is told later."""
        self._works = True
        return function(*args, **options)

    def say(self, tell: Callable[[], None]) -> None:
        """Have something told."""
        if self._works:
            self._told.append(tell)
        else:
            tell()

    def tell(self) -> None:
        """Tell of them.  Who is told must not wait for a job: this thread may be the one that has been given it."""
        self._works = False
        while self._told:
            self._told.pop()()


_ended = _Ended()


class _Future(ThreadFuture[Any]):
    """The future of a job: its end is told when the thread that did it is idle again.

    Who hears of it may have the next job at once.  That would wake another thread, and each has a heap of its own
    that keeps what was freed: reading chunks of 16 MB took 66 MB under load instead of 50.
    """

    def set_result(self, result: Any) -> None:
        """Have a result told."""
        _ended.say(partial(super().set_result, result))

    def set_exception(self, exception: BaseException | None) -> None:
        """Have an error told."""
        _ended.say(partial(super().set_exception, exception))


class _Jobs:
    """What an executor asks of its queue.  Jobs leave it in the order in which they came.

    There is no lock: a signal that interrupts who brings a job would leave it taken.
    """

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Any] = SimpleQueue()
        self._idle: list[SimpleQueue[Any]] = []  # where threads wait for one job each, the latest last

    def none_waits(self) -> bool:
        """Return whether each job was given to a thread."""
        return self._jobs.empty()

    def put(self, job: Any) -> None:
        """Give a job to the thread that became idle last, or keep it for the first that asks."""
        future = getattr(job, "future", None)
        if future is not None:  # the job is no request to stop
            future.__class__ = _Future
        try:
            self._hand(job)
        except IndexError:
            try:
                self._jobs.put(job)
            finally:  # a thread that became idle between the two has not seen it
                with suppress(IndexError):
                    self._hand(_LOOK)

    def _hand(self, job: Any) -> None:
        """Give a job to an idle thread.

        That is one call into C, which no signal interrupts: a thread that is taken from the list gets its job.
        """
        list(map(SimpleQueue.put, map(list.pop, (self._idle,)), (job,)))

    def get(self, block: bool = True) -> Any:
        """Return the next job; raise `queue.Empty` if there is none and `block` is not set."""
        job = self._next(block=block)
        _ended.tell()
        return job

    def _next(self, *, block: bool) -> Any:
        while True:
            try:
                return self._jobs.get_nowait()
            except Empty:
                if not block:
                    raise
            job = self._wait()
            if job is not _LOOK:
                return job

    def _wait(self) -> Any:
        mine: SimpleQueue[Any] = SimpleQueue()
        self._idle.append(mine)
        _ended.tell()
        try:  # who brought it before we were seen to wait did not wake us
            job = self._jobs.get_nowait()
        except Empty:
            return mine.get()
        try:
            self._idle.remove(mine)
        except ValueError:  # we were given another one meanwhile
            self.put(job)
            return mine.get()
        return job

    def get_nowait(self) -> Any:
        """Return the next job, or raise `queue.Empty`."""
        return self.get(block=False)
