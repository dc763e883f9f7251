"""Work that is begun one by one and made together: what all queues of such work have in common.

Queues differ in when they make what waits: when somebody asks for a result, when a batch is submitted, when a job of
the pool is free, when the commit before is over, at the next turn of an event loop.  The rest is here.  A batch that
fails as a whole is made again item by item, so each item has its own error.  Futures are told all at once.  Callers
wait for a moment in the same way whether they may suspend or not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from time import monotonic
from typing import Any, TypeAlias, TypeVar

from fsstore.runtime import execution
from fsstore.runtime import future as futures
from fsstore.runtime.future import Future
from fsstore.runtime.state import OfThread
from fsstore.runtime.tuning import ASKED_SOON_S
from fsstore.runtime.wake import Flag

__all__ = [
    "Moment", "Outcome", "asks_at_once", "each_outcome", "has_asked", "outcomes", "start_or_drive", "tell",
]  # fmt: skip

T = TypeVar("T")
R = TypeVar("R")
Outcome: TypeAlias = R | BaseException
"""A result, or the error in its place."""


async def outcomes(
    make: Callable[[Sequence[T]], Awaitable[Sequence[R]]],
    items: Sequence[T],
    caught: type[Exception] = Exception,
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
    make: Callable[[Sequence[T]], Awaitable[Sequence[R]]],
    items: Sequence[T],
    caught: type[Exception] = Exception,
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
    future: Future[T] = futures.pending(
        start=lambda: _begin(makes, future), here=lambda: _drive(makes, future)
    )
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
