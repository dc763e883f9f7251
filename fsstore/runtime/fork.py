"""Locks and queues when the process forks; nothing else in fsstore listens to forks.

A forked child has one thread, the one that forked.  In the child, a lock that another thread held would stay locked
forever, and the work of other threads would never finish.  So every object that outlives one operation gets its lock
here, from `lock`, and everything that hands work to threads forgets its state in the child: a module with `in_child`,
an object with `tell_child`.  Objects are held weakly.

Before a fork, the functions of `before_fork` run (they finish small writes), and then every lock is briefly acquired,
so that no thread is in the middle of a change: the child sees complete transactions in memory and sound caches.  The
locks are tried in turns, so that one that is held for long does not delay the others.  The fork does not wait longer
than `MOMENT_S` for a lock; such a lock is free in the child.

A module that another thread is importing would stay locked in the child too, and half made.  Codecs and clients are
imported when they are first used, so a fork first waits until these imports are over, but not longer than `IMPORT_S`.

The state of a single operation gets its lock from `brief_lock`: forks neither wait for it nor free it, because the
operation does not exist in the child.

Locks are reentrant.  The garbage collector may call a finalizer at any allocation, even while a lock is held, and that
finalizer may use the same store; with a plain lock it would wait for its own thread.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Generic, Protocol, TypeAlias, TypeVar
from weakref import WeakValueDictionary, ref

from fsstore.runtime.tuning import HOP_S, IMPORT_S, MOMENT_S

try:
    from importlib._bootstrap import _module_locks  # type: ignore[attr-defined]  # there is no public name
except ImportError:
    _module_locks = {}

T = TypeVar("T")
Lock: TypeAlias = threading.RLock


class WeakGroup(Generic[T]):
    """Objects that are held weakly, for groups that are joined far more often than looked at.

    Joining and leaving a `WeakSet` are functions in Python, and take ten times as long.
    """

    def __init__(self) -> None:
        self._refs: set[ref[T]] = set()

    def add(self, item: T) -> None:
        """Hold an object, as long as something else does."""
        self._refs.add(ref(item, self._refs.discard))

    def __iter__(self) -> Iterator[T]:
        """Yield the objects that are alive."""
        found = [each() for each in self._refs.copy()]  # a copy is one step, which nobody interrupts
        return iter([each for each in found if each is not None])


class ForkedState(Protocol):
    """An object with state that a forked child must not take over."""

    def after_fork(self) -> None:
        """Forget what the threads of the parent had under way; called in the child, which has one thread."""
        ...


def _others_import() -> bool:
    """Whether a thread other than this one is importing a module."""
    me = threading.get_ident()
    locks = [found() for found in list(_module_locks.values())]
    return any(each is not None and each.owner not in (None, me) for each in locks)


class ForkRegistry:
    """All that has to be done at a fork."""

    def __init__(self) -> None:
        self.locks: WeakGroup[threading.RLock] = WeakGroup()
        self.objects: WeakGroup[ForkedState] = WeakGroup()
        self.before: list[Callable[[], object]] = []
        self.child: list[Callable[[], object]] = []
        self.taken: dict[int, list[threading.RLock]] = {}  # by thread: several may fork at once

    def prepare(self) -> None:
        """Wait for imports, finish what the child could not, then wait until no thread holds a lock."""
        deadline = time.monotonic() + IMPORT_S
        while _others_import() and time.monotonic() <= deadline:
            time.sleep(20 * HOP_S)
        for call in self.before:
            call()
        taken = self.taken[threading.get_ident()] = []
        deadline = time.monotonic() + MOMENT_S
        wanted, patience = list(self.locks), 0.0
        while wanted and time.monotonic() <= deadline:
            held = []
            for each in wanted:
                taken.append(each)  # first: Ctrl-C may come between any two steps
                if not each.acquire(timeout=patience):
                    taken.pop()
                    held.append(each)
            wanted, patience = held, 20 * HOP_S

    def go_on(self) -> list[threading.RLock]:
        """Give the locks back in the parent; return which they were."""
        taken = self.taken.pop(threading.get_ident(), [])
        for each in reversed(taken):
            with suppress(RuntimeError):  # it was not taken after all
                each.release()
        return taken

    def begin_anew(self) -> None:
        """Free every lock in the child, and forget what other threads had under way."""
        taken = set(map(id, self.go_on()))
        self.taken.clear()
        for each in list(self.locks):
            if id(each) not in taken:
                each._at_fork_reinit()  # type: ignore[attr-defined]  # as the standard library does with its own
        for call in self.child:
            call()
        for state in list(self.objects):
            state.after_fork()


class _Process:
    """This process; `forks` is the number of forks between it and the first."""

    forks = 0

    def after_fork(self) -> None:
        """Count."""
        self.forks += 1


process = _Process()
_registry = ForkRegistry()
_registry.objects.add(process)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_registry.prepare, after_in_parent=_registry.go_on, after_in_child=_registry.begin_anew)


def lock() -> Lock:
    """Return a new reentrant lock that is free in a forked child."""
    made = threading.RLock()
    _registry.locks.add(made)
    return made


def brief_lock() -> Lock:
    """Return a new reentrant lock for what lasts no longer than one operation."""
    return threading.RLock()


def before_fork(call: Callable[[], object]) -> None:
    """Have a function called in the parent before it forks."""
    _registry.before.append(call)


def in_child(call: Callable[[], object]) -> None:
    """Have a function called in each forked child."""
    _registry.child.append(call)


def tell_child(state: ForkedState) -> None:
    """Have `state.after_fork()` called in each forked child, as long as the object is alive."""
    _registry.objects.add(state)


# Values that modules keep between calls: for the process, or for each of its threads.


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
        tell_child(self)
        if finish is not None:
            before_fork(lambda: finish(self.now))

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


# In which process something lives: what a pickle of it says, and what the other end makes of that.


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
        self.lock = lock()


_origin = _Origin()
tell_child(_origin)


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
