"""One function for many items: by several threads, or as tasks of an event loop within a budget."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar

from fsstore.runtime import fork
from fsstore.runtime import future as futures
from fsstore.runtime.future import Future
from fsstore.runtime.wake import Flag

__all__ = ["Spread", "WorkEnd", "run_bounded"]

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
        self,
        function: Callable[[S], Any],
        items: Iterable[S],
        workers: int,
        ended: WorkEnd,
        stopped: Flag,
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
