"""Work that is begun one by one and made together: what all queues of such work have in common.

Queues differ in when they make what waits: when somebody asks for a result, when a batch is submitted, when a job of
the pool is free, when the commit before is over, at the next turn of an event loop.  The rest is here.  A batch that
fails as a whole is made again item by item, so each item has its own error.  Futures are told all at once.  Callers
wait for a moment in the same way whether they may suspend or not.
"""

from __future__ import annotations

import asyncio
import copy
import threading
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Mapping, Sequence
from time import monotonic
from typing import Any, Generic, TypeAlias, TypeVar

from fsstore.runtime import execution, fork
from fsstore.runtime import future as futures
from fsstore.runtime.execution import must_not_wait
from fsstore.runtime.fork import OfThread
from fsstore.runtime.future import Flag, Future
from fsstore.runtime.tuning import ASKED_SOON_S

T = TypeVar("T")
R = TypeVar("R")
Outcome: TypeAlias = R | BaseException
"""A result, or the error in its place."""


async def outcomes(
    make: Callable[[Sequence[T]], Awaitable[Sequence[R]]], items: Sequence[T], caught: type[Exception] = Exception
) -> Sequence[Outcome[R]]:
    """Return the result of each item: of all made together or, if that fails, each alone with its own error.

    Making an item again must do no harm.  Where nothing suspends, they are made in their order.  Errors of other kinds
    than `caught` are raised.
    """
    try:
        return await make(items)
    except caught as error:
        if len(items) == 1:
            return [error]
    return await each_outcome(make, items, caught)


async def each_outcome(
    make: Callable[[Sequence[T]], Awaitable[Sequence[R]]], items: Sequence[T], caught: type[Exception] = Exception
) -> Sequence[Outcome[R]]:
    """Return the result of each item, or its error, each made alone."""
    alone = await execution.gather(outcomes(make, [item], caught) for item in items)
    return [outcome for (outcome,) in alone]


def tell(waiting: Sequence[Future[Any]], found: Sequence[Outcome[Any]]) -> None:
    """Give each future its result or its error; those that were done before stay as they are."""
    good = [not isinstance(outcome, BaseException) for outcome in found]
    if all(good):
        futures.resolve_all(waiting, found)
        return
    for future, outcome in zip(waiting, found, strict=True):
        if isinstance(outcome, BaseException):
            futures.fail(future, outcome)
        else:
            futures.resolve(future, outcome)


class Moment:
    """Something that happens once, for those who may suspend, on any event loop, and those who may not.

    It has happened by one assignment, and a waiter is listed before it looks: no Ctrl-C comes between.
    """

    __slots__ = ("_flag", "_waiting")

    def __init__(self) -> None:
        self._flag = Flag()
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []

    async def wait(self) -> None:
        """Return when it has happened."""
        if execution.must_not_wait():
            self._flag.wait()
            return
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._waiting.append((loop, future))
        if not self._flag.is_set():
            await future

    def come(self) -> None:
        """Say that it has happened."""
        self._flag.set()
        for loop, future in self._waiting:
            if not loop.is_closed():
                loop.call_soon_threadsafe(_finish, future)


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class _Habit:
    """The habit of a thread: when it began something last, and whether it asked for that result at once."""

    begun_s = 0.0
    at_once = False


_habit = OfThread(_Habit)


def asks_at_once() -> bool:
    """Return whether this thread, which begins something, asked at once for the result of what it began before."""
    now = _habit.now
    at_once, now.at_once, now.begun_s = now.at_once, False, monotonic()
    return at_once


def has_asked() -> None:
    """Hear that this thread asks for a result."""
    now = _habit.now
    now.at_once = monotonic() - now.begun_s < ASKED_SOON_S


def start_or_drive(make: Callable[[], Coroutine[Any, Any, T]]) -> Future[T]:
    """Begin a coroutine that may be driven without an event loop, or raises `MayWait` there before it changes anything.

    A thread that has asked at once for its results so far will drive it itself when it asks for this one: to wake the
    event loop, and be woken by it, costs more than a near server.  For all others it is begun on the loop.
    """
    makes = [make]  # taken by who begins it
    future: Future[T] = futures.pending(start=lambda: _begin(makes, future), here=lambda: _drive(makes, future))
    if not asks_at_once():
        future.force()
    return future


def _begin(makes: list[Callable[[], Coroutine[Any, Any, T]]], future: Future[T]) -> None:
    """Begin on the event loop what nobody has begun."""
    make = _taken(makes)
    if make is not None and not future.done():
        futures.follow(future, execution.start(make()))


def _drive(makes: list[Callable[[], Coroutine[Any, Any, T]]], future: Future[T]) -> None:
    """Make here what nobody has begun, unless that would wait."""
    has_asked()
    make = _taken(makes)
    if make is None or future.done():
        return
    try:
        futures.resolve(future, execution.drive(make()))
    except execution.MayWait:
        futures.follow(future, execution.start(make()))
    except Exception as error:  # noqa: BLE001  # the future carries it
        futures.fail(future, error)


def _taken(makes: list[R]) -> R | None:
    """Return what is to be made to the one thread that comes first, and None to all others."""
    try:
        return makes.pop()
    except IndexError:
        return None


# Callers that want the same thing for the first time, at the same time, share one read of it.

K = TypeVar("K", bound=Hashable)


class _UnderWay(Generic[T]):
    """A read under way, and those who wait for it."""

    def __init__(self) -> None:
        self.values: list[T] = []
        self.error: Exception | None = None
        self.over = Moment()
        self.thread = threading.get_ident() if must_not_wait() else 0


class FirstTouch(Generic[K, T]):
    """Reads by key, of which one is under way at most."""

    def __init__(self) -> None:
        self._lock = fork.lock()
        self._under_way: dict[K, _UnderWay[T]] = {}
        fork.tell_child(self)

    def after_fork(self) -> None:
        """Forget the reads of the parent's threads."""
        self._under_way = {}

    async def all(self, keys: Sequence[K], load: Callable[[Sequence[K]], Awaitable[Sequence[T]]]) -> Mapping[K, T]:
        """Return values by key: `load` reads those that nobody reads at the moment, together and in order."""
        found: dict[K, T] = {}
        left = list(dict.fromkeys(keys))
        while left:
            mine, others = self._claim(left)
            if mine:
                found.update(await self._load(list(mine), mine, load))
            for key, read in others.items():
                await read.over.wait()
                if read.error is not None:
                    raise copy.copy(read.error)
                if read.values:
                    found[key] = read.values[0]
            left = [key for key in left if key not in found]
        return found

    def _claim(self, keys: Sequence[K]) -> tuple[dict[K, _UnderWay[T]], dict[K, _UnderWay[T]]]:
        """Return the reads that are the caller's to make, and those under way."""
        mine: dict[K, _UnderWay[T]] = {}
        others: dict[K, _UnderWay[T]] = {}
        with self._lock:
            for key in keys:
                known = self._under_way.get(key)
                if known is None:
                    mine[key] = self._under_way[key] = _UnderWay()
                elif known.thread == threading.get_ident() and must_not_wait():
                    mine[key] = known  # a finalizer or signal handler: its own thread would wait for ever
                else:
                    others[key] = known
        return mine, others

    async def _load(
        self, keys: Sequence[K], mine: Mapping[K, _UnderWay[T]], load: Callable[[Sequence[K]], Awaitable[Sequence[T]]]
    ) -> dict[K, T]:
        try:
            values = dict(zip(keys, await load(keys), strict=True))
            for key, value in values.items():
                mine[key].values.append(value)
        except Exception as error:
            for read in mine.values():
                read.error = error
            raise
        finally:
            self._end(mine)
        return values

    def _end(self, mine: Mapping[K, _UnderWay[T]]) -> None:
        with self._lock:
            over = [key for key, read in mine.items() if self._under_way.get(key) is read]
            for key in over:
                del self._under_way[key]
        for read in mine.values():
            read.over.come()
