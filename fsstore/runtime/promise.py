"""`Promise`: the producing end of a future, for users; fsstore itself calls the functions of `future`."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from fsstore.errors import OutcomeUnknownError, refuse_pickling
from fsstore.runtime import future as futures
from fsstore.runtime.future import Future

__all__ = ["Promise"]

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
        promise._future = futures.pending()
        promise._future._process = futures.ANYWHERE
        return promise, promise._future

    def __del__(self, fail: Any = futures.fail, error: Any = OutcomeUnknownError) -> None:
        """Fail the future: nobody is left who could resolve it; at the end the names of this module are gone."""
        fail(self._future, error("The promise of this future was dropped without a result"))

    def set_result(self, result: T_contra) -> None:
        """Resolve the future with `result`; without effect if it is done."""
        futures.resolve(self._future, result)

    def set_exception(self, exception: Any) -> None:
        """Resolve the future with an error; without effect if it is done."""
        error = (
            exception
            if isinstance(exception, BaseException)
            else TypeError(f"not an exception: {exception!r}")
        )
        futures.fail(self._future, error)
