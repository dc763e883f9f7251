"""Results that may not be there yet: `Future` to consume them, `Promise` to produce them.

A future is resolved once, from any thread, and can be waited for in three ways: `result()` blocks, `await` works
in any event loop, `add_done_callback` calls back.  It stays cheap for results that are there at once: no lock or
event is created until somebody has to wait.

Blocking on the thread that runs fsstore's own event loop would wait for itself; it raises instead.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Generator
from typing import Any, Generic, TypeAlias, TypeVar, cast

from fsstore.errors import FailedPreconditionError

__all__ = ["Future", "FutureLike", "Promise", "WriteFutures"]

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)

_LOCK = threading.Lock()  # guards the transition to done and the callback lists; never held while waiting
_PENDING, _RESULT, _ERROR, _CANCELLED = range(4)
_blocking_is_refused: Callable[[], bool] = bool


def refuse_blocking_when(predicate: Callable[[], bool]) -> None:
    """Tell futures how to recognise the thread that must not block; `_runtime` calls this."""
    global _blocking_is_refused  # noqa: PLW0603  # one process-wide rule, set once at import of the runtime
    _blocking_is_refused = predicate


class Future(Generic[T]):
    """The result of an operation, now or later.

    `Future(x)` returns `x` itself if it is a future, and is done with `x` at once if that is a plain value.
    A coroutine runs on an event loop (`loop`, or the running one) as soon as somebody waits for the future or
    forces it.

    >>> Future(3).result()
    3
    """

    __slots__ = ("__weakref__", "_callbacks", "_cancel", "_event", "_start", "_state", "_value")

    _state: int
    _value: Any
    _callbacks: list[Callable[[Any], Any]]
    _event: threading.Event | None
    _start: Callable[[], None] | None
    _cancel: Callable[[], Any] | None

    def __new__(cls, future: FutureLike[T], *, loop: asyncio.AbstractEventLoop | None = None) -> Future[T]:
        """Return `future` as a `Future`."""
        if isinstance(future, Future):
            return future
        if isinstance(future, WriteFutures):
            return cast("Future[T]", future.commit)
        self: Future[T] = pending()
        if asyncio.iscoroutine(future) or hasattr(future, "__await__"):
            _run_on(loop or asyncio.get_running_loop(), cast("Awaitable[T]", future), self)
        else:
            _resolve(self, _RESULT, future)
        return self

    def done(self) -> bool:
        """Return whether there is a result, an error or a cancellation."""
        return self._state != _PENDING

    def cancelled(self) -> bool:
        """Return whether the operation was cancelled."""
        return bool(self._state == _CANCELLED)

    def cancel(self) -> bool:
        """Ask the operation to stop; return False if it was done before."""
        if not _resolve(self, _CANCELLED, None):
            return False
        if self._cancel is not None:
            self._cancel()
        return True

    def force(self) -> None:
        """Start the operation if it waits to be started."""
        with _LOCK:
            start, self._start = self._start, None
        if start is not None:
            start()

    def result(self, timeout: float | None = None, deadline: float | None = None) -> T:
        """Block until the operation is done; return its result or raise its error.

        Raises `TimeoutError` after `timeout` seconds or at `deadline` (seconds since the epoch).
        """
        if self._state == _PENDING:
            self._wait(timeout, deadline)
        return self._get()

    def exception(self, timeout: float | None = None, deadline: float | None = None) -> BaseException | None:
        """Block until the operation is done; return its error, or None.

        Raises `CancelledError` if it was cancelled.
        """
        if self._state == _PENDING:
            self._wait(timeout, deadline)
        if self._state == _CANCELLED:
            raise asyncio.CancelledError
        return cast("BaseException", self._value) if self._state == _ERROR else None

    def add_done_callback(self, callback: Callable[[Future[T]], Any]) -> None:
        """Call `callback(self)` when done, from any thread; at once if done already."""
        with _LOCK:
            if self._state == _PENDING:
                self._callbacks.append(callback)
                return
        _call(callback, self)

    def remove_done_callback(self, callback: Callable[[Future[T]], Any]) -> int:
        """Remove every registration of `callback`; return how many there were."""
        with _LOCK:
            before = len(self._callbacks)
            self._callbacks[:] = [other for other in self._callbacks if other != callback]
            return before - len(self._callbacks)

    def __await__(self) -> Generator[Any, None, T]:
        """Wait without blocking the event loop; cancelling the waiting task cancels the operation."""
        if self._state == _PENDING:
            self.force()
        if self._state == _PENDING:
            loop = asyncio.get_running_loop()
            waiter: asyncio.Future[None] = loop.create_future()
            self.add_done_callback(lambda _: _wake(loop, waiter))
            try:
                yield from waiter
            except asyncio.CancelledError:
                self.cancel()
                raise
        return self._get()

    def _get(self) -> T:
        if self._state == _RESULT:
            return cast("T", self._value)
        if self._state == _CANCELLED:
            raise asyncio.CancelledError
        raise cast("BaseException", self._value)

    def _wait(self, timeout: float | None, deadline: float | None) -> None:
        if _blocking_is_refused():
            raise FailedPreconditionError(
                "result() was called on the thread that has to produce the result, which would wait forever; use await"
            )
        self.force()
        with _LOCK:
            if self._state != _PENDING:
                return
            if self._event is None:
                self._event = threading.Event()
            event = self._event
        if deadline is not None:
            left = max(0.0, deadline - time.time())
            timeout = left if timeout is None else min(timeout, left)
        if not event.wait(timeout):
            raise TimeoutError(f"The operation was not done within {timeout:g} s")


FutureLike: TypeAlias = "Future[T] | Awaitable[T] | T"


def pending(
    *, start: Callable[[], None] | None = None, cancel: Callable[[], Any] | None = None
) -> Future[Any]:
    """Return a future to be resolved with `resolve` or `fail`.

    `start` begins the operation when somebody forces or waits; `cancel` is called on cancellation.
    """
    future: Future[Any] = object.__new__(Future)
    future._state = _PENDING
    future._value = None
    future._callbacks = []
    future._event = None
    future._start = start
    future._cancel = cancel
    return future


def ready(value: T) -> Future[T]:
    """Return a future that is done with `value`."""
    future: Future[T] = pending()
    future._state, future._value = _RESULT, value
    return future


def failed(error: BaseException) -> Future[Any]:
    """Return a future that is done with `error`."""
    future = pending()
    future._state, future._value = _ERROR, error
    return future


def follow(outer: Future[T], inner: Future[T]) -> None:
    """Resolve `outer` as `inner` is; cancelling `outer` cancels `inner`."""

    def finish(done: Future[T]) -> None:
        _resolve(outer, done._state, done._value)

    outer._cancel = inner.cancel
    inner.add_done_callback(finish)


def mapped(inner: Future[Any], value: T) -> Future[T]:
    """Return a future that is done with `value` when `inner` is done, and fails and is cancelled with it."""
    if inner._state == _RESULT:
        return ready(value)
    outer: Future[T] = pending(start=inner.force, cancel=inner.cancel)

    def finish(done: Future[Any]) -> None:
        _resolve(outer, done._state, value if done._state == _RESULT else done._value)

    inner.add_done_callback(finish)
    return outer


def resolve(future: Future[T], value: T) -> bool:
    """Set the result; return False if the future was done before."""
    return _resolve(future, _RESULT, value)


def fail(future: Future[Any], error: BaseException) -> bool:
    """Set the error; return False if the future was done before."""
    if isinstance(error, asyncio.CancelledError):
        return _resolve(future, _CANCELLED, None)
    return _resolve(future, _ERROR, error)


def error_of(future: Future[Any]) -> BaseException | None:
    """Return the error of a future that is done, a `CancelledError` for a cancellation, or None."""
    if future._state == _CANCELLED:
        return asyncio.CancelledError()
    return cast("BaseException", future._value) if future._state == _ERROR else None


def on_cancel(future: Future[Any], cancel: Callable[[], Any]) -> None:
    """Have `cancel` called when the future is cancelled."""
    future._cancel = cancel


def _resolve(future: Future[Any], state: int, value: Any) -> bool:
    with _LOCK:
        if future._state != _PENDING:
            return False
        future._value = value
        future._state = state
        callbacks, future._callbacks = future._callbacks, []
        event = future._event
        future._start = None
    if event is not None:
        event.set()
    for callback in callbacks:
        _call(callback, future)
    return True


def _call(callback: Callable[[Future[Any]], Any], future: Future[Any]) -> None:
    try:
        callback(future)
    except Exception as error:  # noqa: BLE001  # a callback's failure belongs to its author, not to the producer
        sys.excepthook(type(error), error, error.__traceback__)


def _wake(loop: asyncio.AbstractEventLoop, waiter: asyncio.Future[None]) -> None:
    def set_unless_done() -> None:
        if not waiter.done():
            waiter.set_result(None)

    if not loop.is_closed():
        loop.call_soon_threadsafe(set_unless_done)


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

    def start() -> None:
        loop.call_soon_threadsafe(begin)

    future._start = start
    if asyncio.iscoroutine(awaitable):
        on_cancel(future, awaitable.close)


class Promise(Generic[T_contra]):
    """The producing end of a future.

    >>> promise, future = Promise.new()
    >>> promise.set_result(5)
    >>> future.result()
    5
    """

    __slots__ = ("_future",)

    _future: Future[Any]

    def __init__(self) -> None:
        raise TypeError("Promise has no constructor; Promise.new() returns a promise and its future")

    @staticmethod
    def new() -> tuple[Promise[Any], Future[Any]]:
        """Return a promise and the future it resolves."""
        promise: Promise[Any] = object.__new__(Promise)
        promise._future = pending()
        return promise, promise._future

    def set_result(self, result: T_contra) -> None:
        """Resolve the future with `result`; without effect if it is done."""
        resolve(self._future, result)

    def set_exception(self, exception: Any) -> None:
        """Resolve the future with an error; without effect if it is done."""
        error = (
            exception
            if isinstance(exception, BaseException)
            else TypeError(f"not an exception: {exception!r}")
        )
        fail(self._future, error)


class WriteFutures:
    """The two ends of a write: `copy` (the source may be changed again) and `commit` (the data is durable).

    Used as a future itself it is `commit`.
    """

    __slots__ = ("commit", "copy")

    def __init__(self, copy: Future[None], commit: Future[None]) -> None:
        self.copy = copy
        self.commit = commit

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
