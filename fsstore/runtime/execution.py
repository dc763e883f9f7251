"""The threads and the event loop of fsstore; nothing else creates any.

Coroutines of stores that wait (network) run on one background loop.  Coroutines of stores that never wait (memory,
local files) are driven inline on whichever thread asks, because a thread hop costs more than a small read.
`drive` relies on the promise of `Features.waits`: a coroutine that suspends there is a bug and raises.

Blocking work is handed to pools: `offload` awaits it on the loop, `map_blocking` spreads it over worker threads.
The pools are sized by context resources; "shared" means one a core for decoding, and a few dozen for input and output.
Threads that see to whole requests ("request") are of a third kind, because they hand work to both.
If no thread can be started, the existing threads do the work, or the caller does.
A forked child starts with no threads: the state is reset and made anew on first use.
"""

from __future__ import annotations

import asyncio
import atexit
import itertools
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import suppress
from contextvars import copy_context
from functools import cache, partial
from typing import Any, Generic, Literal, TypeVar

from fsstore.errors import FailedPreconditionError, ResourceExhaustedError, StoreError, brief
from fsstore.runtime import fork, observer
from fsstore.runtime import future as futures
from fsstore.runtime.future import Flag, Future
from fsstore.runtime.pool import InOrder, Job, Pool, begin_thread
from fsstore.runtime.tuning import REQUESTS

# One function for many items: by several threads, or as tasks of an event loop within a budget.

S = TypeVar("S")

_NOTHING: Any = object()


class WorkEnd:
    """A call for the moment when no part of a piece of work goes on; `is_due` from when that is sure to come."""

    __slots__ = ("_ended", "is_due")

    def __init__(self, ended: Callable[[], object] = bool) -> None:
        self._ended, self.is_due = ended, False

    def __call__(self) -> None:
        """Say so; it may be said again."""
        self._ended()


class Spread(Generic[S]):
    """`function` of each of `items`, as many at once as there are threads that `work`.

    The first error fails `future` and stops the drawing of items, and so does cancelling it, which sets `stopped`.  The
    last of as many `workers` calls `ended`, and then the future is done.
    """

    def __init__(
        self, function: Callable[[S], Any], items: Iterable[S], workers: int, ended: WorkEnd, stopped: Flag
    ) -> None:
        self._function, self._source, self._ended, self._stopped = function, iter(items), ended, stopped
        self.future: Future[None] = futures.pending(cancel=stopped.set)
        self._lock = fork.brief_lock()
        self._shares = [None] * workers  # one for each, taken by the worker that begins
        self._left = itertools.count(workers - 1, -1)
        self._failure: BaseException | None = None

    def work(self) -> None:
        """Do what is left, one item after the other."""
        if not self._took_share():
            return
        try:
            while not self._stopped.is_set() and (item := self._draw()) is not _NOTHING:
                self._function(item)
        except BaseException as error:  # noqa: BLE001  # the future carries it
            self._fail(error)
        self._leave()

    def give_up(self, error: BaseException) -> None:
        """Return when nobody works any more, now or later."""
        self._fail(error)
        while self._took_share():
            self._leave()
        with suppress(BaseException):
            self.future.result()

    def _draw(self) -> Any:
        with self._lock:
            return next(self._source, _NOTHING)

    def _took_share(self) -> bool:
        try:
            self._shares.pop()
        except IndexError:
            return False
        return True

    def _fail(self, error: BaseException) -> None:
        self._failure = self._failure or error
        self._stopped.set()

    def _leave(self) -> None:
        if next(self._left) > 0:
            return
        self._ended()
        if self._failure is None:
            futures.resolve(self.future, None)
        else:
            futures.fail(self.future, self._failure)


async def run_bounded(
    function: Callable[[S], Awaitable[None]], items: Iterable[S], *, cost: Callable[[S], int], budget: int
) -> None:
    """Await `function` of each item: as many together as their costs fit into the budget, and one in any case.

    Items are drawn when there is room for them.  The first error cancels the others.  A single one needs no task.
    """
    if isinstance(items, Sequence) and len(items) == 1:
        await function(items[0])
        return
    under_way: dict[asyncio.Future[None], int] = {}

    async def settle() -> None:
        done, _ = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            del under_way[task]
            task.result()

    try:
        for item in items:
            price = cost(item)
            while under_way and sum(under_way.values()) + price > budget:
                await settle()
            under_way[asyncio.ensure_future(function(item))] = price
        while under_way:
            await settle()
    except BaseException:
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
        raise


T = TypeVar("T")
PoolKind = Literal["compute", "io", "request"]


class _State:
    """Everything that lives in threads; replaced as a whole after a fork."""

    def __init__(self) -> None:
        self.lock = fork.lock()
        self.loop: asyncio.AbstractEventLoop | None = None
        self.thread_id: int | None = None
        self.pools: dict[tuple[PoolKind, int], Pool] = {}
        self.is_over = False


_state = _State()
_worker = threading.local()


def _reset() -> None:
    global _state  # noqa: PLW0603  # a forked child has none of its parent's threads
    _state = _State()
    _worker.__dict__.clear()


fork.in_child(_reset)


@cache
def core_count() -> int:
    """Return the number of cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def loop() -> asyncio.AbstractEventLoop:
    """Return the background event loop, started on first use."""
    state = _state
    if state.loop is None:
        with state.lock:
            if state.loop is None:
                state.loop = _start_loop(state)
    return state.loop


def _start_loop(state: _State) -> asyncio.AbstractEventLoop:
    new = asyncio.new_event_loop()
    started = Flag()

    def run() -> None:
        state.thread_id = threading.get_ident()
        asyncio.set_event_loop(new)
        new.call_soon(started.set)
        while True:  # a task that ends in `KeyboardInterrupt` or `SystemExit` of offloaded work ends the run too
            with suppress(KeyboardInterrupt, SystemExit):
                new.run_forever()

    try:
        begin_thread(run, "fsstore-loop")
    except RuntimeError as error:
        new.close()
        raise ResourceExhaustedError(f"no thread can be had for the event loop: {error}") from error
    started.wait()
    return new


def on_loop_thread() -> bool:
    """Return whether the caller runs on the background loop's thread."""
    return _state.thread_id == threading.get_ident()


futures.refuse_blocking_when(on_loop_thread)


def pool(kind: PoolKind, limit: int | None = None) -> Pool:
    """Return the shared pool of a kind, or the one of `limit` threads."""
    size = limit or (core_count() if kind == "compute" else REQUESTS)
    pools = _state.pools
    found = pools.get((kind, size))
    if found is None:
        made = Pool(size, f"fsstore-{kind}", partial(setattr, _worker, "kind", kind))
        if _state.is_over:
            made.close()
        found = pools.setdefault((kind, size), made)
        _close_at_the_end()
    return found


def _close_at_the_end() -> None:
    """See that all jobs are done before the process ends; those that `multiprocessing` forks do not exit as others."""
    known = sys.modules.get("multiprocessing.util")
    if known is not None and sys.modules["multiprocessing"].parent_process() is not None:
        known.Finalize(None, _close, exitpriority=0)


def before_the_end(call: Callable[[], object]) -> None:
    """Have a function called when the process ends, while there are threads for what it waits for."""
    _endings.append(call)


_endings: list[Callable[[], object]] = []


def _close() -> None:
    for call in _endings:
        call()
    _state.is_over = True
    for each in [*_state.pools.values()]:
        each.close()


atexit.register(_close)


def on_worker(kind: PoolKind) -> bool:
    """Return whether the caller runs on a pool thread of that kind, which must not wait for its pool."""
    return getattr(_worker, "kind", None) == kind


def drive(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never waits to its end, on this thread, without an event loop."""
    if asyncio._get_running_loop() is not None and not getattr(_worker, "drives", False):
        return _drive_apart(coroutine)
    try:
        coroutine.send(None)
    except StopIteration as stop:
        value: T = stop.value
        return value
    coroutine.close()
    raise FailedPreconditionError("a store declared that it never waits, but its coroutine suspended")


def _drive_apart(coroutine: Coroutine[Any, Any, T]) -> T:
    """Do what `drive` does below a running event loop: that is the caller's, and nothing below may wait on it."""
    _worker.drives = True
    try:
        return drive(coroutine)
    finally:
        _worker.drives = False


def start(coroutine: Coroutine[Any, Any, T], *, waits: bool = True, ended: WorkEnd | None = None) -> Future[T]:
    """Begin a coroutine and return its future: on the loop if it waits, otherwise here and at once.

    `ended` is called on the loop when nothing of the coroutine runs any more, also some time after it was cancelled.
    """
    if not waits:
        try:
            return futures.ready(drive(coroutine))
        except Exception as error:  # noqa: BLE001  # the future carries it
            return futures.failed(error)
    ended = ended or WorkEnd()
    name: str = coroutine.__qualname__  # type: ignore[attr-defined]  # which the types of the library leave out
    future = futures.make(Future, futures.PENDING, name)
    try:
        target = loop()
    except StoreError as error:
        coroutine.close()
        ended()
        return futures.failed(error)
    _start_on(target, coroutine, future, ended)
    return future


def _start_on(
    target: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any], future: Future[Any], ended: WorkEnd
) -> None:
    waiting = [coroutine]

    async def run() -> None:
        try:
            futures.resolve(future, await coroutine)
        except asyncio.CancelledError as error:
            futures.fail(future, error)
            raise
        except BaseException as error:  # noqa: BLE001  # the future carries it, `KeyboardInterrupt` of a callback too
            futures.fail(future, error)
        finally:
            ended()

    def begin() -> None:
        if not waiting:
            return
        waiting.clear()
        if future.done():
            coroutine.close()
            ended()
            return
        task = target.create_task(run())
        futures.on_cancel(future, lambda: target.call_soon_threadsafe(task.cancel))

    try:
        ended.is_due = True
        target.call_soon_threadsafe(begin)
    except BaseException:  # Ctrl-C: it may have begun
        future.cancel()
        target.call_soon_threadsafe(begin)
        raise


class MayWait(Exception):
    """Raised by a coroutine that is driven without an event loop when it finds that it may have to wait."""


def must_not_wait() -> bool:
    """Return whether the caller is driven without an event loop, where a coroutine that waits is a bug."""
    return _running() is None


def _running() -> asyncio.AbstractEventLoop | None:
    """Return the event loop on which the caller may wait; none while a coroutine is driven without one."""
    running = asyncio._get_running_loop()  # get_running_loop costs an exception where there is none
    return None if running is None or getattr(_worker, "drives", False) else running


def start_here(begin: Callable[[], Coroutine[Any, Any, T]]) -> Future[T]:
    """Begin a coroutine here and at once; if it raises `MayWait`, begin it again on the loop.

    For what seldom has to wait and finds out before it has changed anything: the hop costs as much as a small read.
    """
    future = start(begin(), waits=False)
    return start(begin()) if isinstance(futures.error_of(future), MayWait) else future


def call(coroutine: Coroutine[Any, Any, T], *, waits: bool = True) -> T:
    """Run a coroutine and block until it is done."""
    if not waits:
        return drive(coroutine)
    if on_loop_thread():
        coroutine.close()
        raise FailedPreconditionError("blocking on the event loop's own thread would wait forever; use await")
    future = start(coroutine)
    try:
        return future.result()
    except StoreError as error:
        raise brief(error) from error.__cause__


def submit(function: Callable[..., T], *args: Any, kind: PoolKind = "compute", limit: int | None = None) -> Job[T]:
    """Run `function(*args)` on a pool thread, or here where no thread can be had."""
    return pool(kind, limit).submit(function, *args)


def hand_over(
    function: Callable[..., object], *args: Any, kind: PoolKind = "compute", limit: int | None = None
) -> None:
    """Have `function(*args)` run on a pool thread; nobody asks what becomes of it, so it tells that itself."""
    _ = submit(function, *args, kind=kind, limit=limit)


async def offload(function: Callable[..., T], *args: Any, kind: PoolKind = "io", limit: int | None = None) -> T:
    """Run blocking `function(*args)` on a pool thread and wait for it; inline when driven without an event loop."""
    running = _running()
    if running is None:
        return function(*args)
    if observer.is_acting():  # what it does is counted for the same meter
        return await pool(kind, limit).submit(partial(copy_context().run, function, *args))
    return await pool(kind, limit).submit(function, *args)


def map_blocking(
    function: Callable[[S], T], items: Sequence[S], *, kind: PoolKind = "compute", limit: int | None = None
) -> list[T]:
    """Return `[function(item) for item in items]`, spread over pool threads; the first error is raised.

    The calling thread works too, so that one item costs no hop and a pool thread may call this without deadlock.
    """
    return list(map_in_order(function, items, kind=kind, limit=limit))


def map_in_order(
    function: Callable[[S], T],
    items: Sequence[S],
    *,
    kind: PoolKind = "compute",
    limit: int | None = None,
    ahead: int | None = None,
) -> Iterator[T]:
    """Yield what `map_blocking` returns, one after the other, while pool threads go on with those that follow.

    They go on with all of them, or, so that what they make has a place, with no more than `ahead` that are not drawn.
    """
    workers = min(limit or (core_count() if kind == "compute" else REQUESTS), len(items))
    if workers <= 1 or on_worker(kind):
        yield from map(function, items)
        return
    job = InOrder(function, items, ahead or len(items))
    others: list[Job[None]] = []
    try:  # a caller that is interrupted while it asks for help stops the helpers
        others.extend(submit(job.work, kind=kind, limit=limit) for _ in range(workers - 1))
        yield from job.results()
    finally:
        job.stop()
        for other in others:  # those that have begun are waited for, the rest are dropped
            other.cancel() or other.result()


def spread(
    function: Callable[[S], Any],
    items: Iterable[S],
    *,
    workers: int,
    kind: PoolKind = "compute",
    ended: WorkEnd | None = None,
    stopped: Flag | None = None,
) -> Future[None]:
    """Call `function` with each of `items` on pool threads; the future is done when all are.

    Items are drawn one at a time, so they may be made lazily.  The first error fails the future and stops the drawing,
    and so does cancelling it, which sets `stopped`; calls under way run to their end first.  Then `ended` is called,
    before the future is done: callbacks may wait for what waits for the end.
    """
    ended = ended or WorkEnd()
    job = Spread(function, items, workers, ended, stopped or Flag())
    try:
        ended.is_due = True
        for _ in range(workers):
            hand_over(job.work, kind=kind)
    except BaseException as error:  # Ctrl-C: some may have begun
        job.give_up(error)
        raise
    return job.future


async def pause(seconds: float) -> None:
    """Wait a while: on the event loop, or blocking when driven without one."""
    if must_not_wait():
        time.sleep(seconds)  # noqa: ASYNC251  # there is no loop to block
    else:
        await asyncio.sleep(seconds)


async def gather(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Await all, in order when driven inline, together on an event loop; the first error cancels the others."""
    calls = list(coroutines)
    if len(calls) == 1 or must_not_wait():  # see offload; one alone begins at once
        try:
            return [await call for call in calls]
        finally:  # after an error the others never begin
            for call in calls:
                call.close()
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
