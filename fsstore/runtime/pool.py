"""A pool of threads that always gives work to the thread that became idle last.

Its data are still in the processor's caches then: its part of the heap, and the contexts of codecs, which are
megabytes.  The pools of the standard library let their threads take turns: writing parts of eight chunks then takes a
tenth longer in a process that has used six threads than in one that has used two.

There is no lock, as those pools have: whoever brings a job may be interrupted by Ctrl-C, or by the garbage collector,
which calls a finalizer that brings another one.  Every step that others rely on is one call into C.
"""

from __future__ import annotations

import _thread
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Generic, Self, TypeAlias, TypeVar

from fsstore.runtime import fork
from fsstore.runtime import future as futures
from fsstore.runtime.fork import OfProcess
from fsstore.runtime.future import Bell, Future
from fsstore.runtime.tuning import KEPT

T = TypeVar("T")
_Told: TypeAlias = "list[Callable[[], object]]"


class Job(Future[T]):
    """The result of a job, now or later.  It can be cancelled until it begins, and is never cancelled by waiting."""

    __slots__ = ("_work",)

    _work: list[Callable[[], T]]

    def cancel(self) -> bool:
        """Have the job not done; return False if it has begun."""
        try:
            self._work.pop()
        except IndexError:
            return False
        return super().cancel()

    def _wait(self, timeout: float | None, deadline: float | None) -> None:
        self._block(timeout, deadline)

    def work(self, failure: BaseException | None = None) -> _Told:
        """Do the job, unless it was begun or cancelled before, or fail it; return what tells of its end, if any."""
        try:
            function = self._work.pop()
        except IndexError:
            return []
        error, value = (failure, None) if failure is not None else _outcome(function)
        if error is not None:
            return [partial(futures.fail, self, error)]
        return [partial(_resolve, self, value)]


def _resolve(job: Job[Any], value: Any) -> None:
    futures.resolve(job, value)


def _outcome(function: Callable[[], Any]) -> tuple[BaseException | None, Any]:
    try:
        return None, function()
    except BaseException as error:  # noqa: BLE001  # the job carries it
        return error, None


def _tell(told: _Told) -> None:
    """Say that a job has ended.  The hearer must not wait for a job: this thread may be the one to do it."""
    while told:
        told.pop()()


class Pool:
    """Threads that do jobs.  A limit on threads, or the exit of the interpreter, keeps no job from being done.

    `begin` is called in each thread; if it fails, so do the jobs that the thread is given.
    """

    def __init__(self, threads: int, name: str, begin: Callable[[], object]) -> None:
        self.size, self._name, self._begin = threads, name, begin
        self._free = [None] * threads  # one for each thread that may still be started
        self._jobs = Jobs()
        self._ended: SimpleQueue[None] = SimpleQueue()
        self._is_closed = False

    @property
    def count(self) -> int:
        """How many threads there are."""
        return self.size - len(self._free)

    def submit(self, function: Callable[..., T], /, *args: Any, **options: Any) -> Job[T]:
        """Begin a job; where there is no thread at all it is done here and now."""
        job: Job[T] = futures.make(Job, futures.PENDING)
        job._work = [partial(function, *args, **options)]
        if not self._is_closed:
            self._jobs.put(job)
            if self._jobs.some_wait():
                self._add_thread()
        if self._is_closed or not self.count:
            _tell(job.work())
        return job

    def _add_thread(self) -> None:
        try:
            self._free.pop()
            begin_thread(self._run, f"{self._name}_{len(self._free)}")
        except IndexError:  # there are as many as may be
            return
        except BaseException as error:
            self._free.append(None)
            if not isinstance(error, RuntimeError):  # Ctrl-C; else those there are do the job
                raise

    def _run(self) -> None:
        failure, told = _outcome(self._begin)[0], list[Callable[[], object]]()
        while (job := self._jobs.get(told)) is not None:
            told = job.work(failure)
            del job  # what it holds is not kept until the next
        self._ended.put(None)

    def close(self) -> None:
        """Return when every job is done and every thread has ended; jobs brought later are done where they come."""
        if self._is_closed:
            return
        self._is_closed = True
        count = self.count
        for _ in range(count):
            self._jobs.put(None)
        for _ in range(count):
            self._ended.get()
        while (job := self._jobs.left()) is not None:  # brought meanwhile
            _tell(job.work())

    def __enter__(self) -> Self:
        """Return the pool."""
        return self

    def __exit__(self, *_error: object) -> None:
        """Close the pool."""
        self.close()


class Jobs:
    """The jobs that no thread has yet, and the threads that have none.  Jobs leave in the order in which they came.

    None in place of a job ends a thread.
    """

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Job[Any] | None] = SimpleQueue()
        self._idle: list[SimpleQueue[Any]] = []  # where threads wait for one job each, the latest last

    def some_wait(self) -> bool:
        """Return whether there is a job that no thread has."""
        return not self._jobs.empty()

    def put(self, job: Job[Any] | None) -> None:
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
        any(map(SimpleQueue.put, map(list.pop, (self._idle,)), (job,)))

    def left(self) -> Job[Any] | None:
        """Return a job that no thread has, or None."""
        while True:
            try:
                job = self._jobs.get_nowait()
            except Empty:
                return None
            if job is not None:
                return job

    def get(self, told: _Told) -> Job[Any] | None:
        """Return the next job for this thread; what it has to tell is told before it has another one, or is idle.

        The caller that hears of its end may have the next job at once.  Another thread would be woken for that, and
        each has a heap of its own that keeps what was freed: reading chunks of 16 MB took 66 MB instead of 50.
        """
        while True:
            try:
                job = self._jobs.get_nowait()
            except Empty:
                job = self._wait(told)
            _tell(told)
            if job is not _LOOK:
                return job

    def _wait(self, told: _Told) -> Any:
        mine: SimpleQueue[Any] = SimpleQueue()
        self._idle.append(mine)
        _tell(told)
        try:  # a job that came before this thread was seen to wait woke nobody
            job = self._jobs.get_nowait()
        except Empty:
            return mine.get()
        try:
            self._idle.remove(mine)
        except ValueError:  # we were given another one meanwhile
            self.put(job)
            return mine.get()
        return job


_LOOK: Any = object()  # in place of a job: there may be one


def begin_thread(work: Callable[[], object], name: str) -> None:
    """Start a thread; raise `RuntimeError` if none can be had.

    `Thread.start` waits for the thread on an event of `threading`, which Ctrl-C may leave locked.  Ctrl-C comes to the
    main thread alone, so that one has another thread start the thread.
    """
    thread = threading.Thread(target=work, name=name, daemon=True)
    if threading.current_thread() is threading.main_thread():
        _thread.start_new_thread(_start, (thread, work))
    else:
        thread.start()


def _start(thread: threading.Thread, work: Callable[[], object]) -> None:
    try:
        thread.start()
    except RuntimeError:  # only one more could be had, and that is this one
        work()


# Results in the order of their items, while several threads work at them and none gets far ahead of the
# consumer.

S = TypeVar("S")

_NOTHING = object()


class InOrder(Generic[S, T]):
    """The results of `function` for `items`.  The thread that makes this draws them, any number of others `work`.

    No more than `ahead` are begun beyond what is drawn, and one a thread, so that they do not pile up where drawing
    takes long.  The bell rings for those who wait and not at every item, which would cost microseconds.
    """

    def __init__(self, function: Callable[[S], T], items: Sequence[S], ahead: int) -> None:
        self._function, self._items, self._ahead = function, items, ahead
        self._results: list[Any] = [_NOTHING] * len(items)
        self._numbers = iter(range(len(items)))  # of those that are not begun
        self._begun = self._drawn = 0
        self._stopped = False
        self._failure: BaseException | None = None
        self._drawer = threading.get_ident()
        self._bell = Bell()
        self._wanted = -1  # what the drawer waits for

    def work(self) -> None:
        """Do what is left to begin, in turns with others; a failure is raised in the consumer."""
        try:
            if threading.get_ident() == self._drawer:  # no thread could be had
                return
            for number in self._numbers:
                if number >= self._drawn + self._ahead:
                    self._wait_for_draws(number)
                if self._stopped:
                    return
                self._do(number)
        except BaseException as error:  # noqa: BLE001  # raised where the results are drawn
            self._failure = self._failure or error
            self.stop()

    def stop(self) -> None:
        """Have nothing more begun."""
        self._stopped = True
        self._bell.ring()

    def results(self) -> Iterator[T]:
        """Yield the results; the consumer computes those that no thread has begun.  The first error is raised."""
        for number in range(len(self._items)):
            while self._results[number] is _NOTHING and self._begun < number + self._ahead and not self._stopped:
                following = next(self._numbers, None)
                if following is None:
                    break
                self._do(following)
            if self._results[number] is _NOTHING:
                self._wait_for(number)
            yield self._results[number]
            self._results[number] = None  # the consumer may not keep them
            self._drawn = number + 1
            if self._bell.waiting:
                self._bell.ring()

    def _do(self, number: int) -> None:
        self._begun = max(self._begun, number + 1)
        self._results[number] = self._function(self._items[number])
        if number == self._wanted:
            self._bell.ring()

    def _wait_for_draws(self, number: int) -> None:
        self._bell.wait_until(lambda: number < self._drawn + self._ahead or self._stopped)

    def _wait_for(self, number: int) -> None:
        """Wait for a result that somebody else has begun, or taken to be begun next."""
        self._wanted = number
        self._bell.wait_until(lambda: self._results[number] is not _NOTHING or self._stopped)
        if self._results[number] is _NOTHING:
            assert self._failure is not None, "only a failure stops a thread that is waited for"
            raise self._failure


# Values that a process keeps by name for work that is sent to it in many small pieces; the names used last
# stay.

_values: OfProcess[OrderedDict[str, Any]] = OfProcess(OrderedDict)
_lock = fork.lock()


def keep(name: str, value: Any) -> Any:
    """Keep a value under a name unless there is one; return the one that is kept."""
    with _lock:
        found = _values.now.setdefault(name, value)
        _values.now.move_to_end(name)
        while len(_values.now) > KEPT:
            _values.now.popitem(last=False)
        return found


def kept(name: str) -> Any:
    """Return the value of a name, or None."""
    with _lock:
        return _values.now.get(name)


def shares_memory(executor: Executor) -> bool:
    """Return whether an executor works in this process, where nothing has to be sent."""
    return isinstance(executor, ThreadPoolExecutor)
