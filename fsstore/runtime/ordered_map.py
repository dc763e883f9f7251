"""Results in the order of their items, while several threads work at them and none gets far ahead of the consumer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from fsstore.runtime.wake import Bell

__all__ = ["InOrder"]

S = TypeVar("S")
T = TypeVar("T")

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
            while (
                self._results[number] is _NOTHING and self._begun < number + self._ahead and not self._stopped
            ):
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
        """Wait until an item may be begun."""
        self._bell.wait_until(lambda: number < self._drawn + self._ahead or self._stopped)

    def _wait_for(self, number: int) -> None:
        """Wait for a result that somebody else has begun, or taken to be begun next."""
        self._wanted = number
        self._bell.wait_until(lambda: self._results[number] is not _NOTHING or self._stopped)
        if self._results[number] is _NOTHING:
            assert self._failure is not None, "only a failure stops a thread that is waited for"
            raise self._failure
