"""A pool of threads that always gives work to the thread that became idle last.

What a thread works with is in the processor's caches then: its part of the heap, and the contexts of codecs, which are
megabytes.  The pools of the standard library let their threads take turns: writing parts of eight chunks then takes a
tenth longer in a process that has used six threads than in one that has used two.
"""

from __future__ import annotations

import atexit
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Executor
from concurrent.futures import Future as ThreadFuture
from concurrent.futures.thread import BrokenThreadPool
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, TypeVar

__all__ = ["Pool"]

T = TypeVar("T")
_LOOK = object()  # in place of a job: there may be one
_STOP = object()  # in place of a job: there will be none


class Pool(Executor):
    """Threads that do jobs.  A limit on threads, or the exit of the interpreter, keeps no job from being done.

    `begin` is called in each thread before its first job.  A thread is started when a job finds none idle.
    """

    def __init__(self, threads: int, name: str, begin: Callable[[], object]) -> None:
        self._jobs, self._begin, self._name = _Jobs(), begin, name
        self._threads: list[threading.Thread] = []
        self._allowed: SimpleQueue[int] = SimpleQueue()  # numbers of threads that may be started
        for number in range(threads):
            self._allowed.put(number)
        self._broken = self._closed = False
        _pools.add(self)

    def submit(self, function: Callable[..., T], /, *args: Any, **options: Any) -> ThreadFuture[T]:
        """Begin a job; where there is no thread at all it is done here and now."""
        job = _Job(ThreadFuture(), partial(function, *args, **options))
        if not self._closed:
            self._jobs.put(job)
            if not self._jobs.none_waits():
                self._add_thread()
            if self._broken:
                self._fail_all()
            if (self._threads and not self._closed) or not job.future.cancel():
                return job.future
        return _done(function, *args, **options)

    def _add_thread(self) -> None:
        """Start a thread; if none can be had, the job is queued, and one of those there are will take it."""
        try:
            number = self._allowed.get_nowait()
        except Empty:
            return
        thread = threading.Thread(target=self._work, name=f"{self._name}_{number}", daemon=True)
        self._threads.append(thread)
        try:
            thread.start()
        except BaseException as error:  # after Ctrl-C it may have been started, which does no harm
            self._threads.remove(thread)
            self._allowed.put(number)
            if not isinstance(error, RuntimeError):
                raise

    def _work(self) -> None:
        try:
            self._begin()
        except BaseException:  # noqa: BLE001  # who waits for a job is told
            self._broken = True
            self._fail_all()
            return
        while (job := self._jobs.get()) is not _STOP:
            _do(job)
            del job
        self._jobs.put(_STOP)  # for the next thread

    def _fail_all(self) -> None:
        while not self._jobs.none_waits():
            with suppress(Empty):
                future = self._jobs.get_nowait().future
                if future.set_running_or_notify_cancel():
                    future.set_exception(BrokenThreadPool("A thread of the pool could not begin"))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Let the threads end when all jobs are done; later ones are done by those who bring them."""
        del cancel_futures  # none is left undone
        self._closed = True
        self._jobs.put(_STOP)
        for thread in list(self._threads) if wait else ():
            thread.join()


_pools: weakref.WeakSet[Pool] = weakref.WeakSet()


def _finish() -> None:
    """Have what was begun done before the interpreter exits."""
    for pool in list(_pools):
        pool.shutdown()


atexit.register(_finish)


class _Job(NamedTuple):
    """What is to be called, and who is told of its end."""

    future: ThreadFuture[Any]
    call: Callable[[], Any]


def _do(job: _Job) -> None:
    """Do a job; its end is told when the thread is idle again.

    Who hears of it may have the next job at once.  That would wake another thread, and each has a heap of its own
    that keeps what was freed: reading chunks of 16 MB took 66 MB under load instead of 50.
    """
    future, call = job
    if not future.set_running_or_notify_cancel():
        return
    try:
        _ended.told.append(partial(future.set_result, call()))
    except BaseException as error:  # noqa: BLE001  # the future carries it
        _ended.told.append(partial(future.set_exception, error))
        del job, future, call  # which the traceback of the error would keep, and they the error


def _done(function: Callable[..., T], *args: Any, **options: Any) -> ThreadFuture[T]:
    future: ThreadFuture[T] = ThreadFuture()
    try:
        future.set_result(function(*args, **options))
    except Exception as error:  # noqa: BLE001  # the future carries it
        future.set_exception(error)
    return future


class _Ended(threading.local):
    """The ends of jobs that a thread has to tell of, once it is idle again or before it does another one."""

    def __init__(self) -> None:
        self.told: list[Callable[[], None]] = []

    def tell(self) -> None:
        """Tell of them.  Who is told must not wait for a job: this thread may be the one that has been given it."""
        while self.told:
            self.told.pop()()


_ended = _Ended()


class _Jobs:
    """The jobs that no thread does yet.  They leave in the order in which they came.

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
