"""Results that may not be there yet, as their consumers see them; `promise` and the functions here produce them.

A future is resolved once, from any thread, and can be waited for in three ways: `result()` blocks, `await` works in
any event loop, `add_done_callback` calls back.  It holds only its state and its value; waiting creates what it needs.

Blocking on the thread that runs fsstore's own event loop would wait for itself; it raises instead.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator
from contextlib import suppress
from itertools import repeat
from queue import Empty, SimpleQueue
from typing import Any, Generic, NoReturn, TypeAlias, TypeVar, cast

from fsstore.errors import FailedPreconditionError, OutcomeUnknownError, StoreError, brief, refuse_pickling
from fsstore.runtime import fork
from fsstore.runtime.tuning import MOMENT_S
from fsstore.values.json_value import as_callable, as_seconds

# Waiting that Ctrl-C may interrupt at any moment; fsstore uses no conditions and events of `threading`.

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
        deadline, held = None if timeout is None else time.monotonic() + timeout, None
        try:
            if _LOCK._is_owned():  # type: ignore[attr-defined]  # a signal handler, which waits for another thread
                held = _LOCK._release_save()  # type: ignore[attr-defined]  # as those of the standard library do
            self.waiting.append(mine)
            while not over():
                left = MOMENT_S if deadline is None else min(deadline - time.monotonic(), MOMENT_S)
                if left <= 0:
                    return False
                with suppress(Empty):
                    mine.get(timeout=left)
        finally:
            with suppress(ValueError):
                self.waiting.remove(mine)
            if held is not None:
                _LOCK._acquire_restore(held)  # type: ignore[attr-defined]  # see above
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


class Awaited:
    """An object with a result to come: names that only the result has are refused in words that say so."""

    __slots__ = ()

    def __getattr__(self, name: str) -> NoReturn:
        """Refuse a name that a future lacks."""
        kind = type(self).__name__
        if name.startswith("_"):
            raise AttributeError(f"{kind!r} object has no attribute {name!r}", name=name, obj=self)
        said = f"{kind!r} has no attribute {name!r}; await it or call .result() first, and ask what comes"
        raise AttributeError(said, name=name, obj=self)

    def __getitem__(self, key: object) -> NoReturn:
        """Refuse: the result may be indexed."""
        raise TypeError(f"{type(self).__name__!r} cannot be indexed; await it or call .result() first")


T = TypeVar("T")
F = TypeVar("F", bound="Future[Any]")

# guards the transition to done and the hooks; reentrant, because a signal handler or destructor may resolve others
_LOCK = fork.lock()
PENDING, RESULT, ERROR, CANCELLED = range(4)
ANYWHERE = -1  # the process of a future that the user resolves
_LEFT_BEHIND = "The operation was begun before the process forked, by its parent; begin it again in the child"
_blocking_is_refused: Callable[[], bool] = bool


def refuse_blocking_when(predicate: Callable[[], bool]) -> None:
    """Tell futures how to recognise the thread that must not block; `runtime.execution` calls this."""
    global _blocking_is_refused  # noqa: PLW0603  # one process-wide rule, set once at import of the runtime
    _blocking_is_refused = predicate


class Future(Awaited, Generic[T]):
    """The result of an operation, now or later.

    `Future(x)` returns `x` itself if it is a future, and is done with `x` at once if that is a plain value.
    A coroutine runs on an event loop (`loop`, or the running one) as soon as somebody waits for the future or
    forces it.

    >>> Future(3).result()
    3
    """

    __module__ = "fsstore"
    __slots__ = ("__weakref__", "_hooks", "_process", "_state", "_value")

    __reduce__ = refuse_pickling
    _state: int
    _value: Any
    _hooks: Hooks | None
    _process: int

    def __new__(cls, future: FutureLike[T], *, loop: asyncio.AbstractEventLoop | None = None) -> Future[T]:
        """Return `future` as a `Future`."""
        if isinstance(future, Future):
            return future
        if isinstance(future, WriteFutures):
            return cast("Future[T]", future.commit)
        if not (asyncio.iscoroutine(future) or hasattr(future, "__await__")):
            return ready(future)
        if (loop := loop or asyncio._get_running_loop()) is None:
            raise StoreError("no event loop specified and thread does not have a default event loop")
        self: Future[T] = pending()
        _run_on(loop, cast("Awaitable[T]", future), self)
        return self

    def done(self) -> bool:
        """Return whether there is a result, an error or a cancellation."""
        return self._state != PENDING

    def cancelled(self) -> bool:
        """Return whether the operation was cancelled."""
        return bool(self._state == CANCELLED)

    def cancel(self) -> bool:
        """Ask the operation to stop; return False if it was done before."""
        return _resolve(self, CANCELLED, None)

    def force(self) -> None:
        """Start the operation if it waits to be started; what a parent process is still doing fails in its child."""
        with _LOCK:
            hooks = self._hooks or Hooks()
            start, hooks.start = hooks.start, None
            born, self._process = self._process, fork.process.forks
        if start is not None:
            start()
        elif born not in (ANYWHERE, fork.process.forks) and self._state == PENDING:
            fail(self, FailedPreconditionError(_LEFT_BEHIND))

    def __repr__(self) -> str:
        """Return what the result is of, how far it is, and how to have it."""
        state, value, work = self._state, self._value, ""
        if state == RESULT:
            comes = f"done; .result() returns {type(value).__name__.removesuffix('Type')}"
        elif state == ERROR:
            comes = f"failed; .result() raises {type(value).__name__}"
        else:
            comes = "cancelled" if state == CANCELLED else ".result() waits for it, and so does await"
            work = value.partition(".<")[0].lstrip("_") if isinstance(value, str) else ""
        return f"<{type(self).__name__}{work and ' of ' + work}: {comes}>"

    def result(self, timeout: float | None = None, deadline: float | None = None) -> T:
        """Block until the operation is done; return its result or raise its error.

        Raises `TimeoutError` after `timeout` seconds or at `deadline` (seconds since the epoch).  Ctrl-C cancels.
        """
        if self._state == PENDING or timeout is not deadline:
            self._wait(timeout, deadline)
        if self._state == ERROR:
            self._asked()
            raise brief(cast("BaseException", self._value))
        return self._get()

    def exception(self, timeout: float | None = None, deadline: float | None = None) -> BaseException | None:
        """Block until the operation is done; return its error, or None.  Raises `CancelledError` if cancelled."""
        if self._state == PENDING or timeout is not deadline:
            self._wait(timeout, deadline)
        if self._state == CANCELLED:
            raise asyncio.CancelledError
        return cast("BaseException", self._value) if self._state == ERROR else None

    def add_done_callback(self, callback: Callable[[Future[T]], Any]) -> None:
        """Call `callback(self)` when done, from any thread; at once if done already."""
        with _LOCK:
            if self._state == PENDING:
                _hooks(self).callbacks.append(as_callable("callback", callback))
                return
        _call(as_callable("callback", callback), self)

    def remove_done_callback(self, callback: Callable[[Future[T]], Any]) -> int:
        """Remove every registration of `callback`; return how many there were."""
        with _LOCK:
            hooks = self._hooks or Hooks()
            before = hooks.callbacks
            hooks.callbacks = [other for other in before if other != callback]
            return len(before) - len(hooks.callbacks)

    def __await__(self) -> Generator[Any, None, T]:
        """Wait without blocking the event loop; cancelling the waiting task cancels the operation."""
        if self._state == PENDING:
            self.force()
        if self._state == PENDING:
            loop = asyncio.get_running_loop()
            waiter: asyncio.Future[None] = loop.create_future()
            self.add_done_callback(lambda _: loop.is_closed() or loop.call_soon_threadsafe(_wake, waiter))
            try:
                yield from waiter
            except asyncio.CancelledError:
                self.cancel()
                raise
        return self._get()

    def _asked(self) -> None:
        """Note that the result was asked for, before its error is raised."""

    def _get(self) -> T:
        if self._state == RESULT:
            return cast("T", self._value)
        if self._state == CANCELLED:
            raise asyncio.CancelledError
        raise cast("BaseException", self._value)

    def _wait(self, timeout: float | None, deadline: float | None) -> None:
        if timeout is not None or deadline is not None:
            timeout, deadline = as_seconds("timeout", timeout), as_seconds("deadline", deadline)
        if self._state == PENDING and _blocking_is_refused():
            raise FailedPreconditionError(
                "result() was called on the thread that has to produce the result, which would wait forever; use await"
            )
        try:
            if (hooks := self._hooks) is not None and hooks.here is not None and timeout is deadline is None:
                hooks.start = None  # this makes it, or begins it
                hooks.here()
            self.force()  # of one that is done nothing is left to start
            if self._state == PENDING:
                self._block(timeout, deadline)
        except BaseException as error:
            if not isinstance(error, TimeoutError):  # Ctrl-C: a program that is told to end does not write on
                self.cancel()
            raise

    def _block(self, timeout: float | None, deadline: float | None) -> None:
        with _LOCK:
            if self._state != PENDING:
                return
            hooks = _hooks(self)
            bell = hooks.bell = hooks.bell or Bell()
        if deadline is not None:
            timeout = min(max(0.0, deadline - time.time()), float("inf") if timeout is None else timeout)
        if not bell.wait_until(self.done, timeout):
            raise TimeoutError(f"The operation was not done within {timeout:g} s")


FutureLike: TypeAlias = Future[T] | Awaitable[T] | T


def make(kind: type[F], state: int, value: Any = None) -> F:
    """Return a future of a class of futures in a state: `PENDING`, or `RESULT` or `ERROR` with their value."""
    future = object.__new__(kind)
    future._state = state
    future._value = value
    future._hooks = None
    future._process = fork.process.forks
    return future


def pending(**hooks: Callable[[], Any]) -> Future[Any]:
    """Return a future to be resolved with `resolve` or `fail`, with the hooks that `Hooks` takes."""
    future: Future[Any] = make(Future, PENDING)
    if hooks:
        future._hooks = Hooks(**hooks)
    return future


def ready(value: T) -> Future[T]:
    """Return a future that is done with `value`."""
    return make(Future, RESULT, value)


def failed(error: BaseException) -> Future[Any]:
    """Return a future that is done with `error`."""
    return make(Future, ERROR, error)


def follow(outer: Future[T], inner: Future[Any], form: Callable[[Any], T] | None = None) -> None:
    """Resolve `outer` as `inner` is, or with `form` of its result; cancelling `outer` cancels `inner`."""

    def finish(done: Future[Any]) -> None:
        value = done._get() if done._state == RESULT else done._value
        _resolve(outer, done._state, form(value) if form is not None and done._state == RESULT else value)

    on_cancel(outer, inner.cancel)
    inner.add_done_callback(finish)


def mapped(inner: Future[Any], value: T) -> Future[T]:
    """Return a future that is done with `value` when `inner` is done, and fails and is cancelled with it."""
    if inner._state == RESULT:
        return ready(value)
    outer: Future[T] = pending(start=inner.force)
    follow(outer, inner, lambda _: value)
    return outer


def unless(inner: Future[T], instead: Callable[[], Future[T] | None]) -> Future[T]:
    """Return a future that ends as `inner` does, or as the one that `instead` returns when that is done."""
    if inner._state in (RESULT, ERROR):
        return instead() or inner
    outer: Future[T] = pending(start=inner.force)

    def finish(done: Future[T]) -> None:
        other = None if done._state == CANCELLED else instead()
        if other is None:
            _resolve(outer, done._state, done._get() if done._state == RESULT else done._value)
        else:
            follow(outer, other)

    on_cancel(outer, inner.cancel)
    inner.add_done_callback(finish)
    return outer


def resolve(future: Future[T], value: T) -> bool:
    """Set the result; return False if the future was done before."""
    return _resolve(future, RESULT, value)


def fail(future: Future[Any], error: BaseException) -> bool:
    """Set the error; return False if the future was done before."""
    cancelled = isinstance(error, asyncio.CancelledError)
    return _resolve(future, CANCELLED if cancelled else ERROR, None if cancelled else error)


def error_of(future: Future[Any]) -> BaseException | None:
    """Return the error of a future that is done, a `CancelledError` for a cancellation, or None."""
    if future._state == CANCELLED:
        return asyncio.CancelledError()
    return cast("BaseException", future._value) if future._state == ERROR else None


def on_cancel(future: Future[Any], cancel: Callable[[], Any]) -> None:
    """Have `cancel` called when the future is cancelled: now, if it was."""
    with _LOCK:
        if future._state == PENDING:
            _hooks(future).cancel = cancel
            return
    if future._state == CANCELLED:
        cancel()


def held(waiting: Iterable[Future[Any]]) -> list[Any]:
    """Return the values that pending futures were made with, None for those that were cancelled since."""
    return [future._value for future in waiting]


def resolve_all(waiting: Iterable[Future[Any]], values: Iterable[Any]) -> None:
    """Set the results of many futures; those that were done before stay as they are."""
    awaited = []
    with _LOCK:
        for future, value in zip(waiting, values, strict=True):
            if future._state != PENDING:
                continue
            if future._hooks is None:
                future._value, future._state = value, RESULT
            else:  # of thousands hardly any has one
                awaited.append((future, value))
    for future, value in awaited:
        _resolve(future, RESULT, value)


def _hooks(future: Future[Any]) -> Hooks:
    """Return the hooks of a pending future; the caller holds the lock."""
    if future._hooks is None:
        future._hooks = Hooks()
    return future._hooks


def _resolve(future: Future[Any], state: int, value: Any) -> bool:
    with _LOCK:
        if future._state != PENDING:
            return False
        hooks = future._hooks
        if hooks is None or not (hooks.bell or hooks.callbacks or hooks.cancel):  # nobody is to be told
            future._value, future._state, future._hooks = value, state, None
            return True
        ringing = iter(()) if hooks.bell is None else hooks.bell.ringing()
        callbacks = iter(hooks.callbacks)
        future._value, future._state, future._hooks = value, state, None
        any(ringing)  # in the same step: no Ctrl-C comes between, and nobody waits for ever
    try:
        _tell(future, callbacks, hooks)
    except BaseException:  # Ctrl-C: the remaining callbacks run all the same
        _tell(future, callbacks, hooks)
        raise
    return True


def _tell(future: Future[Any], callbacks: Iterator[Callable[[Any], Any]], hooks: Hooks) -> None:
    for callback in callbacks:
        _call(callback, future)
    cancel, hooks.cancel = hooks.cancel, None
    if future._state == CANCELLED and cancel is not None:
        cancel()


def _call(callback: Callable[[Future[Any]], Any], future: Future[Any]) -> None:
    try:
        callback(future)
    except Exception as error:  # noqa: BLE001  # a callback's failure belongs to its author, not to the producer
        sys.excepthook(type(error), error, error.__traceback__)


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _run_on(loop: asyncio.AbstractEventLoop, awaitable: Awaitable[T], future: Future[T]) -> None:
    async def run() -> None:
        try:
            resolve(future, await awaitable)
        except BaseException as error:
            fail(future, error)
            if not isinstance(error, Exception):
                raise

    def begin() -> None:
        task = loop.create_task(run())
        on_cancel(future, lambda: loop.call_soon_threadsafe(task.cancel))

    _hooks(future).start = lambda: loop.call_soon_threadsafe(begin)
    if asyncio.iscoroutine(awaitable):
        on_cancel(future, awaitable.close)


class Copied(Future[None]):
    """The commit of a write whose source may be changed already."""

    __slots__ = ()


class WriteFutures:
    """The ends of a write: `copy` (the source may be changed) and `commit` (the data is durable): it is this."""

    __module__ = "fsstore"
    __slots__ = ("commit", "copy")
    __reduce__ = refuse_pickling

    def __init__(self, commit: Future[None]) -> None:
        self.copy, self.commit = (ready(None) if isinstance(commit, Copied) else commit), commit

    def __repr__(self) -> str:
        """Return how far the commit is, and how to wait for it."""
        return f"<WriteFutures: {repr(self.commit).partition(': ')[2]}"

    def __await__(self) -> Generator[Any, None, None]:
        """Wait for the commit."""
        return self.commit.__await__()

    def result(self, timeout: float | None = None, deadline: float | None = None) -> None:
        """Block until the data is durable, or raise why it is not."""
        self.commit.result(timeout, deadline)

    def exception(self, timeout: float | None = None, deadline: float | None = None) -> BaseException | None:
        """Block until the commit is done; return its error, or None."""
        return self.commit.exception(timeout, deadline)

    def done(self) -> bool:
        """Return whether the commit is done."""
        return self.commit.done()

    def force(self) -> None:
        """Start the write if it waits to be started."""
        self.commit.force()

    def cancel(self) -> bool:
        """Ask the write to stop; chunks already written stay written."""
        return self.commit.cancel()

    def cancelled(self) -> bool:
        """Return whether the write was cancelled."""
        return self.commit.cancelled()

    def add_done_callback(self, callback: Callable[[Future[None]], Any]) -> None:
        """Call `callback` with the commit future when it is done."""
        self.commit.add_done_callback(callback)

    def remove_done_callback(self, callback: Callable[[Future[None]], Any]) -> int:
        """Remove every registration of `callback`; return how many there were."""
        return self.commit.remove_done_callback(callback)


# `Promise`: the producing end of a future, for users; fsstore itself calls the functions of `future`.

T_contra = TypeVar("T_contra", contravariant=True)


class Promise(Generic[T_contra]):
    """The producing end of a future, which fails when its promise is dropped unfulfilled.

    >>> promise, future = Promise.new()
    >>> promise.set_result(5)
    >>> future.result()
    5
    """

    __module__ = "fsstore"
    __slots__ = ("__weakref__", "_future")
    __reduce__ = refuse_pickling

    _future: Future[Any]

    def __new__(cls) -> Promise[Any]:
        """Refuse: a promise comes with its future."""
        raise TypeError("Promise has no constructor; Promise.new() returns a promise and its future")

    @staticmethod
    def new() -> tuple[Promise[Any], Future[Any]]:
        """Return a promise and the future it resolves."""
        promise: Promise[Any] = object.__new__(Promise)
        promise._future = pending()
        promise._future._process = ANYWHERE
        return promise, promise._future

    def __del__(self, fail: Any = fail, error: Any = OutcomeUnknownError) -> None:
        """Fail the future, because no holder is left to resolve it; at exit the names of this module are gone."""
        fail(self._future, error("The promise of this future was dropped without a result"))

    def set_result(self, result: T_contra) -> None:
        """Resolve the future with `result`; without effect if it is done."""
        resolve(self._future, result)

    def set_exception(self, exception: Any) -> None:
        """Resolve the future with an error; without effect if it is done."""
        if not isinstance(exception, BaseException):
            exception = TypeError(f"not an exception: {exception!r}")
        fail(self._future, exception)
