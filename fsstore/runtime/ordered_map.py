"""Results in the order of their items, while several threads work at them and none gets far ahead of the consumer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

__all__ = ["InOrder"]

S = TypeVar("S")
T = TypeVar("T")

_NOTHING = object()


class InOrder(Generic[S, T]):
    """The results of `function` for `items`.  The thread that makes this draws them, any number of others `work`.

    No more than `ahead` are begun beyond what is drawn, and one a thread, so that they do not pile up where drawing
    takes long.  The lock is for those who wait, and for who sees that somebody does: taken at every item it costs 8
    microseconds.
    """

    def __init__(self, function: Callable[[S], T], items: Sequence[S], ahead: int) -> None:
        self._function, self._items, self._ahead = function, items, ahead
        self._results: list[Any] = [_NOTHING] * len(items)
        self._numbers = iter(range(len(items)))  # of those that are not begun
        self._begun = self._drawn = 0
        self._stopped = False
        self._failure: BaseException | None = None
        self._drawer = threading.get_ident()
        self._turn = threading.Condition(threading.Lock())
        self._early = 0  # threads that wait for the consumer
        self._wanted = -1  # what he waits for

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
        with self._turn:
            self._stopped = True
            self._turn.notify_all()

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
            if self._early:
                with self._turn:
                    self._turn.notify_all()

    def _do(self, number: int) -> None:
        self._begun = max(self._begun, number + 1)
        self._results[number] = self._function(self._items[number])
        if number == self._wanted:
            with self._turn:
                self._turn.notify_all()

    def _wait_for_draws(self, number: int) -> None:
        """Wait until an item may be begun."""
        with self._turn:
            self._early += 1
            while number >= self._drawn + self._ahead and not self._stopped:
                self._turn.wait()
            self._early -= 1

    def _wait_for(self, number: int) -> None:
        """Wait for a result that somebody else has begun, or taken to be begun next."""
        with self._turn:
            self._wanted = number
            while self._results[number] is _NOTHING and not self._stopped:
                self._turn.wait()
        if self._results[number] is _NOTHING:
            assert self._failure is not None, "only a failure stops a thread that is waited for"
            raise self._failure
