r"""The inside of a transaction: its state, the changes of every store, and the operations still running.

    open --commit--> waiting for operations begun inside --> writing --> done or failed
      \--abort--> aborted

A commit includes the operations that have begun when it is asked for: `track` counts them, and the last to end starts
the writing.  Coroutines of stores that never wait are driven on a pool thread for computing, because writing may block
and functions compute; the pool for I/O is left to the stores.  `commit_changes` writes the changes of one store.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence, Set
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeVar

from fsstore.errors import AbortedError, StoreError, TransactionCancelledError
from fsstore.kvstore.contract.ability import Modify, WritesAtOnce, able
from fsstore.kvstore.contract.driver import (
    NO_VALUE,
    UNKNOWN,
    Buffer,
    KvDriver,
    Read,
    ReadResult,
    Stamp,
    Write,
    begin_creating,
    now,
)
from fsstore.kvstore.contract.request import EntryColumns, KeyRange, key_bytes
from fsstore.runtime import execution, fork
from fsstore.runtime import future as futures
from fsstore.runtime.future import Future
from fsstore.runtime.together import until_settled
from fsstore.runtime.tuning import FAR_REQUESTS

# The changes of one store, without I/O.

_SERIALS = itertools.count(1)  # shared by all transactions: no generation may appear in two of them
_NONE_YET = b"\4" + bytes(8)
_NOT_HERE: Any = object()


class Pending(NamedTuple):
    """The change of one key.

    The change starts from the stored value if `stored` (then `value` means nothing), otherwise from `value`;
    `functions` are applied in order.  `generation` is what readers inside the transaction get for a value that does not
    depend on the stored one.  `if_equal` is the condition on the stored value; `refused` means that a condition on a
    pending value did not hold, so the transaction cannot be committed.
    """

    stored: bool
    value: Buffer | None
    generation: bytes
    functions: tuple[Modify, ...] = ()
    if_equal: bytes = UNKNOWN
    refused: bool = False

    @property
    def computed(self) -> bool:
        """Whether the new value depends on the stored one, or on functions."""
        return self.stored or bool(self.functions)

    def generation_over(self, found: ReadResult | None) -> bytes:
        """Return the generation of the value computed from the stored value `found`, which may change."""
        return self.generation + (found.generation if found is not None and self.stored else b"")

    def meets(self, if_equal: bytes) -> bool:
        """Return whether a condition holds for the pending value; a modified value is never known to be absent."""
        if if_equal in (UNKNOWN, NO_VALUE):
            missing = not self.stored and not self.functions and self.value is None
            return missing or if_equal == UNKNOWN
        return if_equal.startswith(self.generation)


def _fresh() -> bytes:
    """Return a new, unique generation of a pending value."""
    return b"\4" + next(_SERIALS).to_bytes(8, "little")


@dataclass(slots=True)
class PendingChanges:
    """The pending changes of one store.

    `plain` holds the new values (or None) of keys changed once and without condition, `by_key` all other changes.
    """

    plain: dict[str, Buffer | None] = field(default_factory=dict)
    by_key: dict[str, Pending] = field(default_factory=dict)
    deleted: list[KeyRange] = field(default_factory=list)
    observed: dict[str, bytes] = field(default_factory=dict)
    """Generations returned by reads, which must still be stored at the commit."""
    lock: fork.Lock = field(default_factory=fork.lock)
    first: Pending = field(default_factory=lambda: Pending(stored=False, value=None, generation=_fresh()))
    """The change that all plain keys share, except for the value."""

    def find(self, key: str) -> Pending | None:
        """Return the change of a key, or None if readers see the stored value."""
        # in this order, because readers take no lock: a change enters `by_key` before it leaves `plain`
        value = self.plain.get(key, _NOT_HERE)
        if value is not _NOT_HERE:
            return self.first._replace(value=value)
        found = self.by_key.get(key)
        if found is None and self.deleted:
            data = key_bytes(key)
            if any(keys.contains(data) for keys in self.deleted):
                return Pending(stored=False, value=None, generation=_NONE_YET)
        return found

    def put(self, key: str, value: Buffer | None, if_equal: bytes) -> bytes:
        """Set a key to a value, or delete it; return its generation for readers inside the transaction."""
        with self.lock:
            if if_equal or self.deleted or key in self.plain or key in self.by_key:
                change = self._put(key, value, if_equal)
            else:
                change = self.first
                self.plain[key] = value
        return NO_VALUE if value is None else change.generation

    def _put(self, key: str, value: Buffer | None, if_equal: bytes) -> Pending:
        old = self.find(key)
        new = Pending(stored=False, value=value, generation=_fresh(), if_equal=if_equal)
        if old is not None:
            refused = old.refused or not old.meets(if_equal)
            condition = old.if_equal or (if_equal.removeprefix(old.generation) if old.stored else UNKNOWN)
            new = new._replace(if_equal=condition, refused=refused)
        return self._keep(key, new)

    def _keep(self, key: str, change: Pending) -> Pending:
        self.by_key[key] = change
        self.plain.pop(key, None)
        return change

    def modify(self, key: str, function: Modify) -> Pending:
        """Change a key by a function of its value."""
        with self.lock:
            old = self.find(key) or Pending(stored=True, value=None, generation=_NONE_YET)
            return self._keep(key, old._replace(functions=(*old.functions, function), generation=_fresh()))

    def delete(self, keys: KeyRange) -> None:
        """Delete a range; conditions on its keys remain."""
        with self.lock:
            self.deleted.append(keys)  # first, because readers take no lock and must not see stored values in between
            for key in self.keys_in(keys):
                self.plain.pop(key, None)
                old = self.by_key.pop(key, None)
                if old is not None and (old.if_equal or old.refused):
                    self.by_key[key] = old._replace(stored=False, value=None, functions=(), generation=_fresh())

    def observe(self, key: str, generation: bytes) -> None:
        """Record the generation returned by a read; raise if an earlier read returned another."""
        if self.observed.setdefault(key, generation) != generation:
            raise AbortedError("Generation mismatch in repeatable_read transaction")

    def keys_in(self, keys: KeyRange) -> list[str]:
        """Return the changed keys of a range."""
        return [key for key in {**self.plain, **self.by_key} if keys.contains(key)]

    def unchanged(self, entries: EntryColumns, changed: Set[str]) -> EntryColumns:
        """Return the entries that are neither `changed` nor in a deleted range."""
        if self.deleted:
            gone = {key for key in entries.names if any(keys.contains(key) for keys in self.deleted)}
            return entries.without(gone.union(changed))
        return entries.without(changed)

    @property
    def empty(self) -> bool:
        """Whether there is nothing to write or to check."""
        return not (self.plain or self.by_key or self.deleted or self.observed)

    def writes(self) -> list[Write]:
        """Return the writes whose value is known, with their conditions."""
        plain = map(Write._make, zip(self.plain, self.plain.values(), itertools.repeat(UNKNOWN), strict=False))
        fixed = [(key, change) for key, change in self.by_key.items() if not change.computed]
        return [*plain, *(Write(key, change.value, change.if_equal) for key, change in fixed)]

    def computed(self) -> list[str]:
        """Return the keys whose new value depends on the stored one, or on functions."""
        return [key for key, change in self.by_key.items() if change.computed]


async def evaluate(functions: Iterable[Modify], start: ReadResult) -> Buffer | None:
    """Return the value after all functions, applied to the value of `start`."""
    result = start
    for function in functions:
        value = await function(result)
        result = ReadResult("missing") if value is None else ReadResult("value", value)
    return result.value if result.state == "value" else None


# The commit: writing the changes to a store.


async def commit_changes(driver: KvDriver, pending: PendingChanges) -> None:
    """Write all changes, or raise `AbortedError` when a condition does not hold."""
    for key, change in pending.by_key.items():
        if change.refused:
            raise _mismatch(driver, key)
    await _check_observed(driver, pending.observed)
    if not (pending.plain or pending.by_key or pending.deleted):
        return
    begin_creating(driver)
    together = able(driver, WritesAtOnce) if driver.features.atomic_transactions else None
    if together is not None:
        await _commit_as_one(driver, together, pending)
        return
    for keys in pending.deleted:
        await _delete_range(driver, pending, keys)
    values = pending.writes()
    guarded = [write for write in values if write.if_equal != UNKNOWN]
    plain = [write for write in values if write.if_equal == UNKNOWN]
    for writes in (guarded, plain):
        for start in range(0, len(writes), FAR_REQUESTS):
            await _write_values(driver, writes[start : start + FAR_REQUESTS])
    computed = pending.computed()
    for start in range(0, len(computed), FAR_REQUESTS):
        await _write_computed(driver, pending, computed[start : start + FAR_REQUESTS])


def _mismatch(driver: KvDriver, key: str) -> AbortedError:
    return AbortedError(f"Error writing {driver.describe_key(key)}: Generation mismatch")


async def _check_observed(driver: KvDriver, observed: Mapping[str, bytes]) -> None:
    if not observed:
        return
    results = await driver.read_many([Read(key, if_not_equal=seen) for key, seen in observed.items()])
    for (key, seen), result in zip(observed.items(), results, strict=True):
        if result.generation != seen:
            place = f"Error reading {driver.describe_key(key)}"
            raise AbortedError(f"{place}: Generation mismatch in repeatable_read transaction")


async def _delete_range(driver: KvDriver, pending: PendingChanges, keys: KeyRange) -> None:
    """Delete a range, but not keys that are about to be written: readers must not miss them meanwhile."""
    kept = set(pending.keys_in(keys))
    if not kept:
        await driver.delete_range(keys)
        return
    async for batch in driver.scan(keys):
        gone = [Write(entry.key, None) for entry in batch if entry.key not in kept]
        if gone:
            await driver.write_many(gone)


async def _write_values(driver: KvDriver, writes: Sequence[Write]) -> None:
    for key in _failed(writes, await driver.write_many(writes)):
        raise _mismatch(driver, key)


async def _compute(driver: KvDriver, pending: PendingChanges, keys: Sequence[str]) -> list[Write]:
    """Return the writes of computed keys, each on condition that its input is still stored."""
    read = [key for key in keys if pending.by_key[key].stored]
    stored = dict(zip(read, await driver.read_many([Read(key) for key in read]), strict=True))
    guarded = driver.features.conditional_write
    writes = []
    for key in keys:
        change = pending.by_key[key]
        start = stored.get(key)
        if start is None:
            missing = change.value is None
            start = ReadResult("missing", b"", NO_VALUE) if missing else ReadResult("value", change.value or b"")
        elif change.if_equal not in (UNKNOWN, start.generation):
            raise _mismatch(driver, key)
        condition = start.generation if change.stored and guarded else change.if_equal
        writes.append(Write(key, await evaluate(change.functions, start), condition))
    return writes


async def _write_computed(driver: KvDriver, pending: PendingChanges, keys: Iterable[str]) -> None:
    async def attempt(keys: list[str]) -> list[str]:
        writes = await _compute(driver, pending, keys)
        failed = _failed(writes, await driver.write_many(writes))
        for key in failed:
            if not pending.by_key[key].stored:
                raise _mismatch(driver, key)
        return failed

    await until_settled(attempt, list(keys), lambda left: driver.describe_key(left[0]))


def _failed(writes: Sequence[Write], stamps: Sequence[Stamp]) -> list[str]:
    pairs = zip(writes, stamps, strict=True)
    return [key for (key, _, if_equal), stamp in pairs if if_equal != UNKNOWN and stamp.generation == UNKNOWN]


async def _commit_as_one(driver: KvDriver, together: WritesAtOnce, pending: PendingChanges) -> None:
    fixed, computed = pending.writes(), pending.computed()

    async def attempt(_: list[str]) -> list[str]:
        writes = fixed + await _compute(driver, pending, computed) if computed else fixed
        failed = await together.write_atomic(writes, unchanged=pending.observed, deleted=pending.deleted)
        for key in failed:
            if not pending.by_key[key].stored:
                raise _mismatch(driver, key)
        return failed

    await until_settled(attempt, computed, lambda left: driver.describe_key(left[0]))


Phase = Literal["open", "waiting", "writing", "aborted"]
T = TypeVar("T")
_starting: ContextVar[tuple[Ledger, ...]] = ContextVar("_starting", default=())
"""The transactions around the operation that is being started here, and around the task that runs it."""


class Ledger:
    """The writes of a transaction, and its phase.

    Equal stores share their pending changes.  All methods may be called from any thread.
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
        """Start an operation that the commit will wait for; it fails if the transaction is no longer open.

        Operations started by a tracked one, as a copy starts reads, may join even after the commit was asked for.
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
        future.force()  # small reads wait until one of them is asked for, and the commit would wait for ever
        return future

    def _end(self) -> None:
        """Note the end of an operation; the last one lets a waiting commit proceed."""
        with self._lock:
            self._running -= 1
        self._write_when_quiet()

    def require_open(self) -> None:
        """Raise if the transaction is no longer open."""
        if self.phase != "open":
            raise self._closed()

    def pending_changes(self, driver: KvDriver) -> PendingChanges:
        """Return the pending changes of a store, or raise if the transaction takes no more changes."""
        with self._lock:
            if self.phase in ("writing", "aborted"):
                raise self._closed()
            return self._pending(driver)

    def _pending(self, driver: KvDriver) -> PendingChanges:
        last, pending = self._last
        if driver is not last:  # comparing drivers takes longer than a write
            pending = self._pending_of.setdefault(driver, PendingChanges())
            self._last = driver, pending
        return pending

    def put(self, driver: KvDriver, write: Write) -> Stamp:
        """Add a write of `bytes`; no commit can start in the middle of it."""
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
        """Raise, and abort, if an atomic transaction cannot change this key together with its first one."""
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
        """Call `callback` after the commit with whether everything was written, before `future` is done; once for each
        key.
        """
        self._after[key] = callback

    def commit(self) -> None:
        """Start the commit; no effect after a commit or an abort."""
        with self._lock:
            if self.phase != "open":
                return
            self.phase = "waiting"
        self._write_when_quiet()

    def abort(self) -> None:
        """Drop all changes; no effect once the commit was asked for."""
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
        # omit stores that were only read: writing to a missing database would create it
        self._pending_of = {driver: pending for driver, pending in self._pending_of.items() if not pending.empty}
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
