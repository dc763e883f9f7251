"""Batches of reads: reads that wait until the batch is submitted, and are then made together.

All reads of one store become a single `read_many`, so that ranges of the same key are merged and a network store sees
them at once.  Other operations join with `add`: a function that starts them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import TracebackType
from typing import Self, TypeVar

from fsstore.errors import StoreError, refuse_pickling
from fsstore.kvstore.contract.driver import KvDriver, Read
from fsstore.kvstore.store.result import ReadFuture
from fsstore.runtime import execution, fork
from fsstore.runtime import future as futures
from fsstore.runtime.future import PENDING, Future, make
from fsstore.runtime.together import outcomes, tell

__all__ = ["Batch", "checked", "refused"]

T = TypeVar("T")
_SUBMITTED = "batch was already submitted"


class Batch:
    """Reads to be made together.  They begin with `submit`, or when a `with` block of the batch ends.

    A batch that is dropped is submitted too, so that no future waits for ever.
    """

    __module__ = "fsstore"
    __slots__ = ("__weakref__", "_last", "_lock", "_reads", "_starts", "_submitted")
    __reduce__ = refuse_pickling

    def __init__(self) -> None:
        self._lock = fork.lock()
        self._submitted = False
        self._reads: dict[KvDriver, list[ReadFuture]] = {}
        self._last: tuple[KvDriver | None, list[ReadFuture]] = (None, [])
        self._starts: list[Callable[[], object]] = []

    def submit(self) -> None:
        """Begin everything that joined; a second call does nothing."""
        with self._lock:
            if self._submitted:
                return
            self._submitted = True
            starts, self._starts = self._starts, []
        self._begin_reads()
        begun = [
            start() for start in starts
        ]  # all, before any is made to run: reads of one array are made together
        for future in begun:
            if isinstance(future, Future):
                future.force()

    def add(self, start: Callable[[], object]) -> None:
        """Have `start` called when the batch is submitted; it must not raise."""
        with self._lock:
            if self._submitted:
                raise StoreError(_SUBMITTED)
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

    def read(self, driver: KvDriver, read: Read) -> ReadFuture:
        """Return the future answer to a read; until it is made, the future holds the request.

        Reads join by the thousand, so nothing is locked here.  A read that joins while another thread submits begins
        with the others, or, if they have been taken already, alone.
        """
        last, waiting = self._last
        if driver is not last:  # telling whether drivers are equal takes longer
            waiting = self._reads.setdefault(driver, [])
            self._last = driver, waiting
        if self._submitted:
            raise StoreError(_SUBMITTED)
        future = make(ReadFuture, PENDING, read)
        waiting.append(future)
        if self._submitted:
            self._begin_reads()
        return future

    def _begin_reads(self) -> None:
        with self._lock:
            taken = [(driver, _take(waiting)) for driver, waiting in list(self._reads.items())]
        try:
            for driver, begun in taken:
                if begun:
                    _begin(driver, begun)
        except BaseException:  # Ctrl-C: what has no answer by now will get none
            for _, begun in taken:
                for future in begun:
                    future.cancel()
            raise

    def __enter__(self) -> Self:
        """Return the batch."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Submit."""
        self.submit()

    def __del__(self) -> None:
        """Submit what nobody can submit any more.

        On another thread: the garbage collector may come in the middle of what holds a lock that reads take too.
        """
        made = hasattr(self, "_starts")  # unless it was refused its arguments
        if made and (self._reads or self._starts) and not self._submitted and not sys.is_finalizing():
            execution.loop().call_soon_threadsafe(lambda: execution.submit(self.submit, kind="request"))


def checked(batch: object) -> Batch:
    """Return a batch that was given as an argument; raise `TypeError` for anything else."""
    if not isinstance(batch, Batch):
        raise TypeError(f"batch must be a Batch or None, not {type(batch).__name__}")
    return batch


def refused(batch: object) -> StoreError:
    """Return the error about a batch for a write of values, which has nothing to read."""
    checked(batch)
    return StoreError("Invalid batch: batch can only be specified when copying from a TensorStore source")


def _take(waiting: list[ReadFuture]) -> list[ReadFuture]:
    """Return what waits, and leave what joins meanwhile."""
    taken = waiting.copy()
    del waiting[: len(taken)]
    return taken


def _begin(driver: KvDriver, waiting: list[ReadFuture]) -> None:
    together = execution.start(_read_together(driver, waiting), waits=driver.features.waits)
    together.add_done_callback(lambda done: _pass_on(done, waiting))


def _pass_on(done: Future[None], waiting: list[ReadFuture]) -> None:
    """Give the reads that got no answer the reason: the batch as a whole was stopped."""
    error = futures.error_of(done)
    if error is not None:
        for future in waiting:
            futures.fail(future, error)


async def _read_together(driver: KvDriver, waiting: list[ReadFuture]) -> None:
    held: list[Read | None] = futures.held(waiting)
    reads = [read for read in held if read is not None]
    if len(reads) < len(held):  # some were cancelled meanwhile
        waiting = [future for future, read in zip(waiting, held, strict=True) if read is not None]
    tell(waiting, await outcomes(driver.read_many, reads))
