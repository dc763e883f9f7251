"""Batches of reads: reads that wait until the batch is submitted, and are then made together.

All reads of one store become a single `read_many`, so that ranges of the same key are merged and a network store sees
them at once.  Other operations join with `add`: a function that starts them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self, TypeVar

from fsstore import _runtime
from fsstore import future as futures
from fsstore.errors import StoreError
from fsstore.future import Future
from fsstore.kvstore.contract import KvDriver, Read, ReadResult

__all__ = ["Batch"]

T = TypeVar("T")
_Waiting = list[tuple[Read, Future[Any], Callable[[ReadResult], Any]]]


class Batch:
    """Reads to be made together.  They begin with `submit`, or when a `with` block of the batch ends.

    A batch that is dropped is submitted too, so that no future waits for ever.
    """

    __slots__ = ("__weakref__", "_last", "_lock", "_reads", "_starts", "_submitted")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._submitted = False
        self._reads: dict[KvDriver, _Waiting] = {}
        self._last: tuple[KvDriver | None, _Waiting] = (None, [])
        self._starts: list[Callable[[], object]] = []

    def submit(self) -> None:
        """Begin everything that joined; a second call does nothing."""
        with self._lock:
            if self._submitted:
                return
            self._submitted = True
            reads, self._reads, self._last = self._reads, {}, (None, [])
            starts, self._starts = self._starts, []
        for driver, waiting in reads.items():
            _begin(driver, waiting)
        begun = [
            start() for start in starts
        ]  # all, before any is made to run: reads of one array are made together
        for future in begun:
            if isinstance(future, Future):
                future.force()

    def add(self, start: Callable[[], object]) -> None:
        """Have `start` called when the batch is submitted; it must not raise."""
        with self._lock:
            self._check()
            self._starts.append(start)

    def later(self, start: Callable[[], Future[T]]) -> Future[T]:
        """Return the future result of an operation that `start` begins when the batch is submitted."""
        future: Future[T] = futures.pending()

        def begin() -> Future[T] | None:
            try:
                begun = start()
            except Exception as error:  # noqa: BLE001  # the future carries it
                futures.fail(future, error)
                return None
            futures.follow(future, begun)
            return begun

        self.add(begin)
        return future

    def read(self, driver: KvDriver, read: Read, form: Callable[[ReadResult], T]) -> Future[T]:
        """Return the future answer to a read, as `form` makes it of the driver's."""
        future: Future[T] = futures.pending()
        with self._lock:
            self._check()
            if driver is not self._last[0]:  # telling whether drivers are equal takes longer
                self._last = driver, self._reads.setdefault(driver, [])
            self._last[1].append((read, future, form))
        return future

    def _check(self) -> None:
        if self._submitted:
            raise StoreError("batch was already submitted")

    def __enter__(self) -> Self:
        """Return the batch."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Submit."""
        self.submit()

    def __del__(self) -> None:
        """Submit what nobody can submit any more."""
        if not self._submitted:
            self.submit()


def _begin(driver: KvDriver, waiting: _Waiting) -> None:
    together = _runtime.start(_read_together(driver, waiting), waits=driver.features.waits)
    together.add_done_callback(lambda done: _pass_on(done, waiting))


def _pass_on(done: Future[None], waiting: _Waiting) -> None:
    """Give the reads that got no answer the reason: the batch as a whole was stopped."""
    error = futures.error_of(done)
    if error is not None:
        for _, future, _ in waiting:
            futures.fail(future, error)


async def _read_together(driver: KvDriver, waiting: _Waiting) -> None:
    try:
        results = await driver.read_many([read for read, _, _ in waiting])
    except StoreError:
        await _runtime.gather(_read_alone(driver, *one) for one in waiting)
        return
    for (_, future, form), result in zip(waiting, results, strict=True):
        futures.resolve(future, form(result))


async def _read_alone(
    driver: KvDriver, read: Read, future: Future[T], form: Callable[[ReadResult], T]
) -> None:
    """Read one key for itself: an error belongs to the read that has it."""
    try:
        futures.resolve(future, form((await driver.read_many([read]))[0]))
    except StoreError as error:
        futures.fail(future, error)
