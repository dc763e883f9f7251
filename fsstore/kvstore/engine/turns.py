"""How many requests of an engine are under way at once, and the turns in which a batch makes its requests.

A number given by the user is exact.  The default is 32, as in TensorStore, and more for a far server: see
`RequestWindow`.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from fsstore.errors import UnavailableError
from fsstore.kvstore.contract.driver import Read, ReadResult
from fsstore.kvstore.engine.contract import Retry
from fsstore.runtime import execution, fork, observer
from fsstore.runtime.future import Flag
from fsstore.runtime.tuning import FAR_REQUESTS, FAR_S, FEWEST_REQUESTS, FLIGHT_BYTES, MOMENT_S, REQUESTS, SOON_S

S = TypeVar("S")
T = TypeVar("T")


class RequestWindow:
    """The number of requests under way, `limit`: the user's, or one that adapts to the server.

    It grows by one with each late answer of a far server: if the quickest answer so far was late, too, and this one not
    much later, then the server is not busy and the line is not full.  More than two rounds of requests must be waiting,
    because a new connection costs a round, and all requests together must fit into the bytes allowed in flight; an
    answer for which they do not fit shrinks the number by one.  A quick answer shows that the server is near and
    earlier late answers came from a busy machine: then the number is the default for good.  A server that asks for
    fewer requests halves the number, once a round; afterwards it grows by one a round.
    """

    def __init__(self, limit: int | None) -> None:
        self.is_fixed = limit is not None
        self.limit, self.most = (REQUESTS, FAR_REQUESTS) if limit is None else (limit, limit)
        self.listens = not self.is_fixed
        """Whether answers may change the limit; not for a near server."""
        self._soonest = math.inf
        self._refused_at = -math.inf
        self._part = 0.0  # the fraction of a further request, after a refusal

    def answered(self, elapsed_s: float, nbytes: int, waiting: int) -> int:
        """Record an answer, and the number of waiting requests; return the change of the limit."""
        if self.is_fixed:
            return 0
        before, self._soonest = self.limit, min(self._soonest, elapsed_s)
        if before < REQUESTS:  # after refusals
            self.limit += self._share()
        elif self._soonest < FAR_S:
            self.limit, self.listens = REQUESTS, False
        elif nbytes * before > FLIGHT_BYTES:
            self.limit = max(REQUESTS, before - 1)
        elif before < self.most and waiting > 2 * before and elapsed_s <= 2 * self._soonest:
            self.limit += self._share()
        return self.limit - before

    def _share(self) -> int:
        """Return 1 if this answer allows one more request: each answer does, or one a round after a refusal."""
        self._part += 1.0 if self._refused_at < 0 else 1 / self.limit
        more, self._part = int(self._part), self._part % 1
        return more

    def refused(self, now_s: float) -> int:
        """Record that the server wants fewer requests; return the change of the limit."""
        before = self.limit
        one_round = FAR_S if self._soonest == math.inf else max(FAR_S, 2 * self._soonest)
        if not self.is_fixed and now_s - self._refused_at > one_round:
            self.limit = max(FEWEST_REQUESTS, before // 2)
            self._refused_at, self.listens = now_s, True
        return self.limit - before


class Turns:
    """The turns of one engine, shared by all its batches; `window` sets their number.

    Coroutines wait for a turn; a thread that must not wait takes a free one.
    """

    def __init__(self, limit: int | None) -> None:
        self.window = RequestWindow(limit)
        self._lock = fork.brief_lock()
        self._begin()

    def _begin(self) -> None:
        self._forks = fork.process.forks
        self._free = self.window.limit  # negative while some are owed: a turn ends with its request
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._driving: set[int] = set()  # threads that each make a request of their own

    def _stay(self) -> None:
        """Free all turns in a forked process."""
        if self._forks != fork.process.forks:
            self._lock = fork.brief_lock()
            self._begin()

    async def take(self) -> None:
        """Wait for a turn."""
        self._stay()
        with self._lock:
            if self._is_free():
                self._free -= 1
                return
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            self._leave(waiter)
            raise

    def _is_free(self) -> bool:
        return self._free > len(self._driving) and not self._waiting

    def drive(self, call: Callable[[], T]) -> T:
        """Return `call()`, run by this thread in a turn; raise `MayWait` unless one is free at once.

        A thread that Ctrl-C interrupts at any moment keeps no turn.
        """
        self._stay()
        mine = threading.get_ident()
        try:
            free = self._has_room(mine)
            if not free:
                raise execution.MayWait
            return call()
        finally:
            self._driving.discard(mine)
            if self._waiting:
                self.give(0)

    def _has_room(self, mine: int) -> bool:
        with self._lock:
            free = self._is_free()
            self._driving.add(mine)
            return free

    def _leave(self, waiter: asyncio.Future[None]) -> None:
        """Stop waiting; a turn received meanwhile goes back."""
        with self._lock:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
            else:
                self._change(1)

    def give(self, count: int = 1) -> None:
        """Give turns back, from any thread."""
        with self._lock:
            self._change(count)

    def answered(self, elapsed_s: float, nbytes: int, waiting: int) -> None:
        """Report an answer to the window."""
        with self._lock:
            self._change(self.window.answered(elapsed_s, nbytes, waiting))

    def failed(self, error: UnavailableError) -> None:
        """Report a failure to the window, from any thread: the server may want fewer requests."""
        if error.busy:
            with self._lock:
                self._change(self.window.refused(time.monotonic()))

    def _change(self, more: int) -> None:
        """Change the number of free turns, and pass free ones on; the caller holds the lock."""
        self._free += more
        while self._free > len(self._driving) and self._waiting:
            waiter = self._waiting.popleft()
            loop = waiter.get_loop()
            if loop.is_closed():
                continue
            self._free -= 1
            if asyncio._get_running_loop() is loop:
                _begin_turn(waiter)
            else:
                loop.call_soon_threadsafe(_begin_turn, waiter)


def _begin_turn(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


async def each(
    function: Callable[[S], Awaitable[T]], items: Sequence[S], turns: Turns, *, weigh: Callable[[T], int] | None = None
) -> list[T]:
    """Return `[await function(item) for item in items]`, each in one of `turns`.

    As many tasks as there are turns take items one after another, which is cheaper than a task for each item.  The
    first error cancels the rest.  `function` must not take a turn itself: all turns could be held by tasks that wait
    for one.  `weigh` returns the bytes of an answer, for a number of turns that adapts to the server.
    """
    function, window = observer.timed(function), turns.window
    if len(items) == 1:
        await turns.take()
        try:
            return [await function(items[0])]
        finally:
            turns.give()
    results: list[Any] = [None] * len(items)
    numbers = iter(range(len(items)))
    crew = min(window.limit, len(items))

    async def work() -> None:
        nonlocal crew
        for number in numbers:
            await turns.take()
            began = time.monotonic()
            try:
                results[number] = await function(items[number])
            finally:
                turns.give()
            if weigh is None or not window.listens:
                continue
            turns.answered(time.monotonic() - began, weigh(results[number]), len(items) - number)
            if crew < window.limit:
                crew += 1
                await execution.gather([work(), work()])

    await execution.gather([work() for _ in range(crew)])
    return results


async def each_by_threads(
    function: Callable[[S], T],
    items: Sequence[S],
    turns: Turns,
    *,
    weigh: Callable[[T], int] | None = None,
    offload: Callable[..., Coroutine[Any, Any, Any]] = execution.offload,
) -> list[T]:
    """Return `[function(item) for item in items]`, computed by pool threads that draw items until there are none.

    Each thread has one of `turns`.  A few threads suffice for a near server, and more would only compete for the
    interpreter lock.  Unless each of the few has answered an item within a short time, all allowed threads begin.
    After an error, or if the caller is cancelled, no thread begins another item.
    """
    if len(items) == 1:
        return [await _one(partial(function, items[0]), turns, offload)]
    job = _Shared(function, items, turns, weigh)
    crew: list[asyncio.Task[None]] = []

    def hire(count: int) -> None:
        crew.extend(asyncio.ensure_future(_one(job.work, turns, offload)) for _ in range(count))

    def hire_all() -> None:
        if job.answered < few:
            hire(min(turns.window.limit, len(items)) - len(crew))

    job.grown = lambda: hire(1) if len(crew) < turns.window.limit else None
    few = min(FEWEST_REQUESTS, len(items), turns.window.limit)
    hire(few)
    timer = asyncio.get_running_loop().call_later(FAR_S / 2, hire_all)
    try:
        while busy := [task for task in crew if not task.done()]:
            await asyncio.wait(busy, return_when=asyncio.FIRST_EXCEPTION)
            _raise_failure(crew)  # also of threads hired meanwhile, which may have ended already
    except BaseException:
        job.stopped.set()
        for task in crew:
            task.cancel()
        await asyncio.gather(*crew, return_exceptions=True)
        raise
    finally:
        timer.cancel()
    return job.results


def _raise_failure(crew: Sequence[asyncio.Task[None]]) -> None:
    for task in crew:
        if task.done():
            task.result()


async def _one(work: Callable[[], T], turns: Turns, offload: Callable[..., Coroutine[Any, Any, T]]) -> T:
    await turns.take()
    try:
        return await offload(work, limit=turns.window.most)
    finally:
        turns.give()


class _Shared(Generic[S, T]):
    """Items that threads draw, and their results."""

    def __init__(
        self, function: Callable[[S], T], items: Sequence[S], turns: Turns, weigh: Callable[[T], int] | None
    ) -> None:
        self._function, self._items, self._turns, self._weigh = function, items, turns, weigh
        self._loop = asyncio.get_running_loop()
        self._numbers = iter(range(len(items)))
        self.results: list[Any] = [None] * len(items)
        self.answered = 0  # approximate: several threads count
        self.stopped = Flag()
        self.grown: Callable[[], object] = bool
        self._unreported = deque[tuple[float, int, int]]()
        self._reporting = False  # a call is on its way to the event loop, which it wakes

    def work(self) -> None:
        """Draw items until there are none, on a thread."""
        for number in self._numbers:
            if self.stopped.is_set():
                return
            began = time.monotonic()
            try:
                found = self.results[number] = self._function(self._items[number])
            except BaseException:
                self.stopped.set()
                raise
            self.answered += 1
            if self._weigh is None or not self._turns.window.listens:
                continue
            self._unreported.append((time.monotonic() - began, self._weigh(found), len(self._items) - number))
            if not self._reporting:
                self._reporting = True
                self._loop.call_soon_threadsafe(self._report)

    def _report(self) -> None:
        """Report the new answers to the window, on the event loop."""
        self._reporting = False  # first, so that later answers are reported by another call
        while self._unreported:
            before = self._turns.window.limit
            self._turns.answered(*self._unreported.popleft())
            if self._turns.window.limit > before:
                self.grown()


def read_bytes(result: ReadResult) -> int:
    """Return the number of bytes in an answer."""
    return len(result.value)


# Single reads made by the waiting thread.


class SoonReads:
    """The duration of the last answer of a server, and reads driven in its turns without an event loop."""

    def __init__(self, retry: Retry, turns: Turns) -> None:
        self._retry, self._turns = retry, turns
        self._took_s = math.inf

    @property
    def expected(self) -> bool:
        """Whether the last answer came so soon that the next is expected within a moment."""
        return self._took_s < SOON_S

    def answered(self, began_s: float) -> None:
        """Record an answer to a request that began at `began_s` of `time.monotonic`."""
        self._took_s = time.monotonic() - began_s

    def drive(self, reads: list[Read], ask: Callable[[Read], ReadResult]) -> list[ReadResult]:
        """Return the answer to a single read by `ask`, which calls `answered` or raises a `StoreError`.

        Raises `MayWait` for several reads, without a free turn, and for failures that the event loop has to handle.
        """
        if len(reads) > 1:
            raise execution.MayWait
        return [self._turns.drive(partial(self._ask, ask, reads[0]))]

    def _ask(self, ask: Callable[[Read], ReadResult], read: Read) -> ReadResult:
        began = time.monotonic()
        try:
            return ask(read)
        except UnavailableError as error:
            self._took_s = math.inf
            is_late = time.monotonic() - began >= MOMENT_S
            if not (is_late or self._retry.max_retries):
                raise
            self._turns.failed(error)
            raise execution.MayWait from error
        except Exception:
            self._took_s = math.inf
            raise
