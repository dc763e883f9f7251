"""How many requests of an engine are under way at once, and the requests of a batch in their turns.

A number that a user gives is exact.  Without one there are 32, as in TensorStore, and more for a server that is far:
`RequestWindow` says when.
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
    """The number of requests under way, `limit`: that of the user, or one that follows the server.

    It grows by one with each answer that comes late from a server that is far: the quickest answer so far was late
    too, and this one not much later, so the server is not busy and the line is not full.  More than two rounds of
    requests must be waiting, because a new connection costs a round, and together the requests must fit into what may
    be in flight.  With each answer for which they do not fit, it shrinks by one.  A quick answer tells that the server
    is near, and that the late ones before it came from a busy machine: then it is the usual number for good.  A server
    that wants fewer requests has it halved, once a round; after that it grows by one in a round.
    """

    def __init__(self, limit: int | None) -> None:
        self.is_fixed = limit is not None
        self.limit, self.most = (REQUESTS, FAR_REQUESTS) if limit is None else (limit, limit)
        self.listens = not self.is_fixed
        """Whether answers may change the limit: those of a near server do not."""
        self._soonest = math.inf
        self._refused_at = -math.inf
        self._part = 0.0  # of a further request, after a refusal

    def answered(self, elapsed_s: float, nbytes: int, waiting: int) -> int:
        """Hear of an answer, and of how many requests wait to begin; return by how many the limit has changed."""
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
        """Return 1 for an answer after which one request more may begin: any, or, after a refusal, one in a round."""
        self._part += 1.0 if self._refused_at < 0 else 1 / self.limit
        more, self._part = int(self._part), self._part % 1
        return more

    def refused(self, now_s: float) -> int:
        """Hear that a server wants fewer requests; return by how many the limit has changed."""
        before = self.limit
        one_round = FAR_S if self._soonest == math.inf else max(FAR_S, 2 * self._soonest)
        if not self.is_fixed and now_s - self._refused_at > one_round:
            self.limit = max(FEWEST_REQUESTS, before // 2)
            self._refused_at, self.listens = now_s, True
        return self.limit - before


class Turns:
    """The turns of one engine, whatever the number of batches that they go to; `window` says how many there are.

    Event loops wait for a turn; a thread that must not wait takes one that is free.
    """

    def __init__(self, limit: int | None) -> None:
        self.window = RequestWindow(limit)
        self._lock = fork.brief_lock()
        self._begin()

    def _begin(self) -> None:
        self._forks = fork.process.forks
        self._free = self.window.limit  # fewer than none while some are owed: they end with what has them
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._driving: set[int] = set()  # threads, each of which makes a request by itself

    def _stay(self) -> None:
        """In a process that was forked off all turns are free."""
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
        """Return `call()`, made by this thread in a turn; raise `MayWait` unless one is free at once.

        A thread that Ctrl-C interrupts at any moment keeps none.
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
        """Wait no longer; a turn that has come meanwhile goes back."""
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
        """Have the window hear of an answer."""
        with self._lock:
            self._change(self.window.answered(elapsed_s, nbytes, waiting))

    def failed(self, error: UnavailableError) -> None:
        """Have the window hear of a failure, on any thread: the server may want fewer requests."""
        if error.busy:
            with self._lock:
                self._change(self.window.refused(time.monotonic()))

    def _change(self, more: int) -> None:
        """Have more turns, or fewer, and pass those that are free on; the caller holds the lock."""
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

    As many tasks as there are turns take items one after another: cheaper than one task an item.  The first error
    cancels the rest.  `function` must not take a turn itself: all could be taken by those that wait for one.  `weigh`
    says how many bytes came, where the number of turns may follow that.
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

    Each thread has one of `turns`.  A near server keeps a few threads busy, and more of them would only pass the
    interpreter lock around.  Where the few have not answered an item each within a short time, all that may be begin.
    After an error, or when the caller is cancelled, no thread begins another item.
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
            _raise_failure(crew)  # also of those hired meanwhile, which may be done already
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
    """Items that threads draw, and what they made of them."""

    def __init__(
        self, function: Callable[[S], T], items: Sequence[S], turns: Turns, weigh: Callable[[T], int] | None
    ) -> None:
        self._function, self._items, self._turns, self._weigh = function, items, turns, weigh
        self._loop = asyncio.get_running_loop()
        self._numbers = iter(range(len(items)))
        self.results: list[Any] = [None] * len(items)
        self.answered = 0  # about: several threads count
        self.stopped = Flag()
        self.grown: Callable[[], object] = bool
        self._told = deque[tuple[float, int, int]]()
        self._telling = False  # a call is on its way to the event loop: each wakes it

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
            self._told.append((time.monotonic() - began, self._weigh(found), len(self._items) - number))
            if not self._telling:
                self._telling = True
                self._loop.call_soon_threadsafe(self._tell)

    def _tell(self) -> None:
        """Have the window hear of the answers that came since, on the event loop."""
        self._telling = False  # first: what comes from now on is told again
        while self._told:
            before = self._turns.window.limit
            self._turns.answered(*self._told.popleft())
            if self._turns.window.limit > before:
                self.grown()


def read_bytes(result: ReadResult) -> int:
    """Return how many bytes an answer brought."""
    return len(result.value)


# Single reads made by the thread that waits for them.


class SoonReads:
    """The time of the last answer of a server, and reads driven in its turns without an event loop."""

    def __init__(self, retry: Retry, turns: Turns) -> None:
        self._retry, self._turns = retry, turns
        self._took_s = math.inf

    @property
    def expected(self) -> bool:
        """Whether the last answer came so soon that a moment is enough for the next."""
        return self._took_s < SOON_S

    def answered(self, began_s: float) -> None:
        """Hear of an answer to a request that began at a time of `time.monotonic`."""
        self._took_s = time.monotonic() - began_s

    def drive(self, reads: list[Read], ask: Callable[[Read], ReadResult]) -> list[ReadResult]:
        """Return the answer to a single read by `ask`, which says that it was `answered` or raises a `StoreError`.

        Raises `MayWait` for several reads, where no turn is free, and for what is left to the event loop.
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
