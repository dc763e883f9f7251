"""Values that modules keep between calls: for the process, or for each of its threads.

A module binds such a value to a name once, as `OfProcess` or `OfThread`, and reads it as `now`.  A forked child begins
with a new value of the process, because the work of its parent's threads does not exist there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from fsstore.runtime import fork

__all__ = ["OfProcess", "OfThread"]

T = TypeVar("T")


def _nothing(_: Any) -> None:
    pass


class OfProcess(Generic[T]):
    """A value of this process, in `now`.

    `finish` is called with it in a process that is about to fork, and `leave` with the parent's in the child, which
    then lets it go; `outlives` says that it must not, because finalizers of it would disturb the parent.
    """

    __slots__ = ("__weakref__", "_leave", "_make", "_outlives", "_parents", "now")

    def __init__(
        self,
        make: Callable[[], T],
        *,
        finish: Callable[[T], object] | None = None,
        leave: Callable[[T], object] = _nothing,
        outlives: bool = False,
    ) -> None:
        self._make, self._leave, self._outlives = make, leave, outlives
        self._parents: list[T] = []
        self.now = make()
        fork.tell_child(self)
        if finish is not None:
            fork.before_fork(lambda: finish(self.now))

    def after_fork(self) -> None:
        """Begin anew, in a forked child."""
        self._leave(self.now)
        if self._outlives:
            self._parents.append(self.now)
        self.now = self._make()


class OfThread(threading.local, Generic[T]):
    """A value of each thread, in `now`, made when the thread first asks for it."""

    def __init__(self, make: Callable[[], T]) -> None:
        self.now = make()
