"""Waiting that Ctrl-C may interrupt at any moment; the conditions and events of `threading` are not used in fsstore.

Those of `threading` are Python over a lock: a `KeyboardInterrupt` between two of their steps leaves the lock taken, so
that the next thread waits for ever, or raises `RuntimeError: release unlocked lock` in its own place.  Here a thread
waits in one call into C, at a queue of its own that holds no more than the news, and is woken by another one.

A thread that changes what others wait for does it in one assignment and rings then; a waiter is listed before it
looks whether it has to.  So no ring is missed.  A signal that comes in the moment before a thread waits does not wake
it, so it looks again after a while.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import repeat
from queue import Empty, SimpleQueue
from typing import Any

from fsstore.runtime.tuning import LOOK_AGAIN_S

__all__ = ["Bell", "Flag", "Hooks"]

_NEWS = repeat(None)


class Bell:
    """Threads that wait for something to become true, and look whenever the bell rings."""

    __slots__ = ("waiting",)

    def __init__(self) -> None:
        self.waiting: list[SimpleQueue[None]] = []

    def ring(self) -> None:
        """Have those who wait look again."""
        any(self.ringing())

    def ringing(self) -> Iterator[None]:
        """Return what rings when it is drawn with `any`: in one step, before or after which Ctrl-C comes."""
        return map(SimpleQueue.put, self.waiting, _NEWS)

    def wait_until(self, over: Callable[[], bool], timeout: float | None = None) -> bool:
        """Return whether `over()` is true, as soon as it is or after `timeout` seconds."""
        if over():
            return True
        mine: SimpleQueue[None] = SimpleQueue()
        deadline = None if timeout is None else time.monotonic() + timeout
        try:
            self.waiting.append(mine)
            while not over():
                left = LOOK_AGAIN_S if deadline is None else min(deadline - time.monotonic(), LOOK_AGAIN_S)
                if left <= 0:
                    return False
                with suppress(Empty):
                    mine.get(timeout=left)
        finally:
            with suppress(ValueError):
                self.waiting.remove(mine)
        return True


class Flag:
    """Something that happens once."""

    __slots__ = ("_bell", "_is_set")

    def __init__(self) -> None:
        self._bell = Bell()
        self._is_set = False

    def is_set(self) -> bool:
        """Return whether it has happened."""
        return self._is_set

    def set(self) -> None:
        """Say that it has happened."""
        ringing = self._bell.ringing()
        self._is_set = True  # and nothing, also no Ctrl-C, before those who wait hear of it
        any(ringing)

    def wait(self, timeout: float | None = None) -> bool:
        """Return whether it has happened, as soon as it has or after `timeout` seconds."""
        return self._bell.wait_until(self.is_set, timeout)


class Hooks:
    """The state of a future while it is pending: the bell is made when a thread waits.

    `start` begins the operation; `here` may make it on a thread that waits for its end without a time limit.
    """

    __slots__ = ("bell", "callbacks", "cancel", "here", "start")

    def __init__(
        self,
        start: Callable[[], Any] | None = None,
        cancel: Callable[[], Any] | None = None,
        here: Callable[[], Any] | None = None,
    ) -> None:
        self.callbacks: list[Callable[[Any], Any]] = []
        self.bell: Bell | None = None
        self.start, self.cancel, self.here = start, cancel, here
