"""In which process something lives: what a pickle of it says, and what the other end makes of that.

Contents of memory stay in the process that made them.  A pickle carries the name of that process and of the thing; here
it is the thing itself again, and anywhere else, in a forked child too, it is known to be elsewhere, so that nobody
takes an empty store for the one that was sent.
"""

from __future__ import annotations

import itertools
import uuid
from typing import Any
from weakref import WeakValueDictionary

from fsstore.runtime import fork

__all__ = ["found", "keep", "process_name"]


class _Origin:
    """The name of this process, and what was named in it."""

    __slots__ = ("__weakref__", "counter", "lock", "name", "things")

    def __init__(self) -> None:
        self.after_fork()

    def after_fork(self) -> None:
        """Begin anew: a forked child is another process, with memory of its own."""
        self.name = uuid.uuid4().hex
        self.counter = itertools.count()
        self.things: WeakValueDictionary[str, Any] = WeakValueDictionary()
        self.lock = fork.lock()


_origin = _Origin()
fork.tell_child(_origin)


def process_name() -> str:
    """Return a name that no other process has."""
    return _origin.name


def keep(thing: Any) -> str:
    """Return a new name for a thing of this process; it is found by that as long as anything else holds it."""
    origin = _origin
    with origin.lock:
        name = f"{origin.name}-{next(origin.counter)}"
        origin.things[name] = thing
    return name


def found(name: str) -> Any:
    """Return the thing of a name; None in any other process, and of what is gone."""
    return _origin.things.get(name)
