"""The inside of a transaction: its state, the changes of every store, and the operations still running.

    open --commit--> waiting for operations begun inside --> writing --> done or failed
      \\--abort--> aborted

Operations that were begun when the commit is asked for belong to it: `track` counts them, and the last to end starts
the writing.  Coroutines of stores that never wait are driven on a pool thread for computing, because
writing may block and functions compute; the pool for input and output is left to the stores.  `commit` decides what
is written, and how.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from contextvars import ContextVar
from typing import Any, Literal, TypeVar

from fsstore.errors import StoreError, TransactionCancelledError
from fsstore.kvstore.contract.driver import KvDriver, Stamp, Write, now
from fsstore.kvstore.transaction.commit import commit_changes
from fsstore.kvstore.transaction.pending_changes import PendingChanges
from fsstore.runtime import execution, fork
from fsstore.runtime import future as futures
from fsstore.runtime.future import Future

__all__ = ["Ledger", "Phase"]

Phase = Literal["open", "waiting", "writing", "aborted"]
T = TypeVar("T")
_starting: ContextVar[tuple[Ledger, ...]] = ContextVar("_starting", default=())
"""The transactions of the operation that is being started here, and of the task that carries it out."""


class Ledger:
    """The writes of a transaction, and whether it may still make them.

    Stores that are equal share their pending changes.  All methods may be called from any thread.
    """

    __slots__ = (
        "_after",
        "_first",
        "_last",
        "_lock",
        "_pending_of",
        "_running",
        "_writing",
        "atomic",
        "error",
        "future",
        "phase",
        "repeatable_read",
    )

    def __init__(self, *, atomic: bool = False, repeatable_read: bool = False) -> None:
        self.atomic, self.repeatable_read = atomic, repeatable_read
        self.phase: Phase = "open"
        self.error: StoreError | None = None
        self.future: Future[None] = futures.pending(start=self.commit)
        self._lock = fork.lock()
        self._running = 0
        self._pending_of: dict[KvDriver, PendingChanges] = {}
        self._last: tuple[KvDriver | None, PendingChanges] = (None, PendingChanges())
        self._first: tuple[KvDriver, str] | None = None
        self._writing: Any = None
        self._after: dict[Hashable, Callable[[bool], None]] = {}

    def track(self, start: Callable[[], Future[T]]) -> Future[T]:
        """Start an operation, for which the commit will wait; it fails when the transaction is no longer open.

        Operations that another one starts, as a copy does reads, belong to it also after the commit was asked for.
        """
        around = _starting.get()
        with self._lock:
            if self.phase != "open" and not (self.phase == "waiting" and self in around):
                return futures.failed(self._closed())
            self._running += 1
        token = _starting.set((*around, self))
        try:
            future = start()
        except BaseException:
            self._end()
            raise
        finally:
            _starting.reset(token)
        future.add_done_callback(lambda _: self._end())
        future.force()  # small reads wait for others until somebody asks for one, and the commit would for ever
        return future

    def _end(self) -> None:
        """Take leave of an operation; the last one lets a waiting commit go on."""
        with self._lock:
            self._running -= 1
        self._write_when_quiet()

    def require_open(self) -> None:
        """Raise when the transaction is no longer open."""
        if self.phase != "open":
            raise self._closed()

    def pending_changes(self, driver: KvDriver) -> PendingChanges:
        """Return the pending changes of a store, or raise when the transaction no longer takes any."""
        with self._lock:
            if self.phase in ("writing", "aborted"):
                raise self._closed()
            return self._pending(driver)

    def _pending(self, driver: KvDriver) -> PendingChanges:
        last, pending = self._last
        if driver is not last:  # telling whether drivers are equal takes longer than a write
            pending = self._pending_of.setdefault(driver, PendingChanges())
            self._last = driver, pending
        return pending

    def put(self, driver: KvDriver, write: Write) -> Stamp:
        """Take a write of `bytes` as one step, between which and the commit nothing can come."""
        key, value, if_equal = write
        if self.atomic:
            self.require_open()
            self.admit(driver, key)
        with self._lock:
            if self.phase != "open":
                raise self._closed()
            generation = self._pending(driver).put(key, value, if_equal)
        return tuple.__new__(Stamp, (generation, now()))

    def admit(self, driver: KvDriver, key: str) -> None:
        """Raise, and abort, if an atomic transaction cannot change this key besides what it changes already."""
        if not self.atomic:
            return
        with self._lock:
            first = self._first = self._first or (driver, key)
        if first == (driver, key) or (first[0] == driver and driver.features.atomic_transactions):
            return
        one, other = first[0].describe_key(first[1]), driver.describe_key(key)
        error = StoreError(f"Cannot read/write {one} and read/write {other} as single atomic transaction")
        with self._lock:
            self._give_up(error)
        futures.fail(self.future, error)
        raise error

    def after_commit(self, key: Hashable, callback: Callable[[bool], None]) -> None:
        """Have `callback` told whether everything was written, before anybody else learns of it; once for each key."""
        self._after[key] = callback

    def commit(self) -> None:
        """Begin to commit; without effect after a commit or an abort."""
        with self._lock:
            if self.phase != "open":
                return
            self.phase = "waiting"
        self._write_when_quiet()

    def abort(self) -> None:
        """Drop all changes; without effect once the commit was asked for."""
        error = TransactionCancelledError("Transaction aborted")
        with self._lock:
            if self.phase != "open":
                return
            self._give_up(error)
        futures.fail(self.future, error)

    def _give_up(self, error: StoreError) -> None:
        if self.phase in ("open", "waiting"):
            self.phase, self.error = "aborted", error
            self._forget()

    def _forget(self) -> None:
        self._pending_of, self._after = {}, {}
        self._last = None, PendingChanges()

    def _closed(self) -> StoreError:
        if self.error is not None and not isinstance(self.error, TransactionCancelledError):
            return self.error
        why = "aborted" if self.phase == "aborted" else "commit already started"
        return StoreError(f"Transaction not open ({why})")

    def _write_when_quiet(self) -> None:
        with self._lock:
            if self.phase != "waiting" or self._running:
                return
            self.phase = "writing"
        # a store that was only read is left alone: a database that does not exist would be made
        self._pending_of = {
            driver: pending for driver, pending in self._pending_of.items() if not pending.empty
        }
        if not self._pending_of:
            futures.resolve(self.future, None)
        elif any(driver.features.waits for driver in self._pending_of):
            self._writing = execution.start(self._write())
        else:
            self._writing = execution.submit(execution.drive, self._write())

    async def _write(self) -> None:
        try:
            for driver, pending in self._pending_of.items():
                work = commit_changes(driver, pending)
                if driver.features.waits:
                    await work
                else:
                    await execution.offload(execution.drive, work, kind="compute")
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  # the future carries it
            self._tell(written=False)
            futures.fail(self.future, error)
        else:
            self._tell(written=True)
            futures.resolve(self.future, None)
        finally:
            self._forget()
            self._writing = None

    def _tell(self, *, written: bool) -> None:
        for callback in self._after.values():
            callback(written)
