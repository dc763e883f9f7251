"""Work that is begun one by one and made together: what all queues of such work have in common.

Queues differ in when they make what waits: when somebody asks for a result, when a batch is submitted, when a job of
the pool is free, when the commit before is over, at the next turn of an event loop.  The rest is here.  A batch that
fails as a whole is made again item by item, so each item has its own error.  Futures are told all at once.  Callers
wait for a moment in the same way whether they may suspend or not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias, TypeVar

from fsstore.runtime import execution
from fsstore.runtime import future as futures
from fsstore.runtime.future import Future
from fsstore.runtime.wake import Flag

__all__ = ["Moment", "Outcome", "each_outcome", "outcomes", "tell"]

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
