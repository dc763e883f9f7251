"""Callers that want the same thing for the first time, at the same time, share one read of it.

The first caller reads; those that come meanwhile wait for that read instead of beginning their own, and get its
error if it fails.  If it is cancelled, the next of them reads.  Nothing is kept here: that is the caller's.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from typing import Generic, TypeVar

from fsstore.runtime import fork
from fsstore.runtime.execution import must_not_wait
from fsstore.runtime.together import Moment

__all__ = ["FirstTouch"]

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


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

    async def all(
        self, keys: Sequence[K], load: Callable[[Sequence[K]], Awaitable[Sequence[T]]]
    ) -> Mapping[K, T]:
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
        self,
        keys: Sequence[K],
        mine: Mapping[K, _UnderWay[T]],
        load: Callable[[Sequence[K]], Awaitable[Sequence[T]]],
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
