"""Results in the order of their items, while several threads work at them and none gets far ahead of who draws them."""

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

    No more than `ahead` are begun beyond what is drawn, so that they do not pile up where drawing takes long.
    """

    def __init__(self, function: Callable[[S], T], items: Sequence[S], ahead: int) -> None:
        self._function, self._items, self._ahead = function, items, ahead
        self._results: list[Any] = [_NOTHING] * len(items)
        self._begun = self._drawn = 0
        self._stopped = False
        self._failure: BaseException | None = None
        self._turn = threading.Condition(threading.Lock())
        self._drawer = threading.get_ident()

    def work(self) -> None:
        """Do what is left to begin, in turns with others; what fails is raised to who draws."""
        wait = threading.get_ident() != self._drawer  # who draws does this himself if no thread can be had
        try:
            while self._step(wait=wait):
                pass
        except BaseException as error:  # noqa: BLE001  # raised where the results are drawn
            self._failure = self._failure or error
            self.stop()

    def stop(self) -> None:
        """Have nothing more begun."""
        with self._turn:
            self._stopped = True
            self._turn.notify_all()

    def results(self) -> Iterator[T]:
        """Yield the results; who draws them does those that nobody else has begun.  The first error is raised."""
        for number in range(len(self._items)):
            while self._results[number] is _NOTHING and self._step(wait=False):
                pass
            yield self._awaited(number)
            self._results[number] = None  # who draws them may not keep them
            with self._turn:
                self._drawn = number + 1
                self._turn.notify_all()

    def _step(self, *, wait: bool) -> bool:
        """Do the next item; return False if none may be begun, or, if told to `wait`, none ever."""
        with self._turn:
            while wait and self._is_far_ahead():
                self._turn.wait()
            number = self._begun
            if self._stopped or number == len(self._items) or self._is_far_ahead():
                return False
            self._begun = number + 1
        self._results[number] = self._function(self._items[number])
        with self._turn:
            if number == self._drawn:
                self._turn.notify_all()
        return True

    def _is_far_ahead(self) -> bool:
        return self._drawn + self._ahead <= self._begun < len(self._items) and not self._stopped

    def _awaited(self, number: int) -> T:
        """Return a result that somebody has begun."""
        with self._turn:
            while self._results[number] is _NOTHING and not self._stopped:
                self._turn.wait()
        if self._results[number] is _NOTHING:
            assert self._failure is not None, "only a failure stops who is waited for"
            raise self._failure
        result: T = self._results[number]
        return result
