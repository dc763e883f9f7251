"""The public class of transactions, and the driver that shows a store inside one; `ledger` holds the state."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import ClassVar, Self

from fsstore.errors import StoreError, UnimplementedError, refuse_pickling
from fsstore.kvstore.contract.ability import CopiesRanges, MayBeMissing, Modifies, Modify, able
from fsstore.kvstore.contract.driver import (
    NO_VALUE,
    Buffer,
    Entry,
    Features,
    KvDriver,
    Read,
    ReadResult,
    Stamp,
    Write,
    begin_creating,
    now,
)
from fsstore.kvstore.contract.request import EntryColumns, KeyRange, key_bytes, key_text, merged, resolve_range
from fsstore.kvstore.ledger import Ledger, Pending, PendingChanges, evaluate
from fsstore.runtime.future import Future
from fsstore.values.json_value import Json, as_flag


class Transaction:
    """Changes of key-value stores and arrays that are seen inside, and written together when committed.

    Bind stores with `with_transaction`, or open them with `transaction=`.  `atomic` requires that everything is
    written in one step; on a store that cannot do that, changing a second key fails.  `repeatable_read` requires that
    values read inside are still stored at the commit.  Nothing is visible outside before the commit, and a transaction
    that is dropped without one leaves nothing.

    As a context manager, synchronous or not, it commits at the end and aborts on an exception.

    >>> with Transaction() as transaction:
    ...     transaction.open
    True
    >>> transaction.open, transaction.commit_started
    (False, True)
    """

    __module__ = "fsstore"
    __slots__ = ("__weakref__", "ledger")
    __reduce__ = refuse_pickling

    def __init__(self, atomic: bool = False, repeatable_read: bool = False) -> None:
        self.ledger = Ledger(
            atomic=as_flag("atomic", atomic), repeatable_read=as_flag("repeatable_read", repeatable_read)
        )

    @property
    def atomic(self) -> bool:
        """Whether all changes must be made in one step."""
        return self.ledger.atomic

    @property
    def open(self) -> bool:
        """Whether more operations may join."""
        return self.ledger.phase == "open"

    @property
    def commit_started(self) -> bool:
        """Whether the commit was asked for."""
        return self.ledger.phase in ("waiting", "writing")

    @property
    def aborted(self) -> bool:
        """Whether the transaction was aborted."""
        return self.ledger.phase == "aborted"

    @property
    def future(self) -> Future[None]:
        """The outcome: done when everything is written; fails with the first failed write, or with the abort.

        Waiting for it starts the commit.
        """
        return self.ledger.future

    def commit_async(self) -> Future[None]:
        """Start the commit and return `future`; no effect after a commit or an abort."""
        self.ledger.commit()
        return self.ledger.future

    def commit_sync(self) -> None:
        """Commit and wait until everything is written."""
        self.commit_async().result()

    def abort(self) -> None:
        """Drop all changes; no effect once the commit was asked for."""
        self.ledger.abort()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Commit, or abort after an exception."""
        if kind is None:
            self.commit_sync()
        else:
            self.abort()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            await self.commit_async()
        else:
            self.abort()


def check_transaction(transaction: object) -> None:
    """Raise unless the argument is a transaction or None."""
    if transaction is not None and not isinstance(transaction, Transaction):
        raise TypeError(f"transaction must be a Transaction or None, not {type(transaction).__name__}")


def check_rebinding(bound: Transaction | None, transaction: object) -> None:
    """Raise unless a store bound to one transaction may be bound to another, or to none."""
    if bound is not None and not (bound.aborted or bound.future.done()):
        raise StoreError("Cannot rebind transaction when existing transaction is uncommitted")
    check_transaction(transaction)


# A store in its state after a commit.


class TransactionalDriver(CopiesRanges, MayBeMissing, Modifies):
    """`base` as a transaction sees and changes it; equal to other views of the same store and transaction."""

    id: ClassVar[str] = "transaction"
    base: KvDriver

    def __init__(self, base: KvDriver, ledger: Ledger) -> None:
        self.base = base
        self.ledger = ledger

    async def read_many(self, reads: Sequence[Read]) -> list[ReadResult]:
        """Return the answers that the store would give after the commit."""
        pending = self._pending()
        changes = [pending.find(read.key) for read in reads]
        below = [self._below(read, change) for read, change in zip(reads, changes, strict=True)]
        asked = [read for read in below if read is not None]
        answers = iter(await self.base.read_many(asked) if asked else ())
        results = []
        for read, change, needed in zip(reads, changes, below, strict=True):
            found = None if needed is None else next(answers)
            if found is not None and self.ledger.repeatable_read:
                self._observe(pending, read.key, found)
            results.append(await self._answer(read, change, found))
        return results

    def _pending(self) -> PendingChanges:
        pending = self.ledger.pending_changes(self.base)
        if not pending.empty:
            self.begin_creating()
        return pending

    def begin_creating(self) -> None:
        """Announce to the store that it is about to be written."""
        begin_creating(self.base)

    def _below(self, read: Read, change: Pending | None) -> Read | None:
        if change is None:
            return read
        return Read(read.key, staleness_bound=read.staleness_bound) if change.stored else None

    def _observe(self, pending: PendingChanges, key: str, found: ReadResult) -> None:
        try:
            pending.observe(key, found.generation)
        except StoreError as error:
            raise error.within(f"Error reading {self.base.describe_key(key)}") from None

    async def _answer(self, read: Read, change: Pending | None, found: ReadResult | None) -> ReadResult:
        if change is None:
            return found or ReadResult("missing", b"", NO_VALUE, now())
        start = found or _as_result(change.value)
        value = await evaluate(change.functions, start) if change.functions else change.value
        if value is None:
            return ReadResult("missing", b"", NO_VALUE, math.inf)
        generation = change.generation_over(found)
        if read.if_not_equal == generation:
            return ReadResult("unspecified", b"", generation, math.inf)
        try:
            low, high = resolve_range(read.start, read.stop, len(value))
        except StoreError as error:
            raise error.within(f"Error reading {self.base.describe_key(read.key)}") from None
        part = value if high - low == len(value) else memoryview(value)[low:high]
        return ReadResult("value", part, generation, math.inf, len(value))

    async def write_many(self, writes: Sequence[Write]) -> list[Stamp]:
        """Record `writes`; their values are copied unless they are `bytes`."""
        pending = self.ledger.pending_changes(self.base)
        stamps = []
        for key, value, if_equal in writes:
            self.ledger.admit(self.base, key)
            generation = pending.put(key, None if value is None else bytes(value), if_equal)
            stamps.append(Stamp(generation, now()))
        return stamps

    def modify(self, key: str, function: Modify) -> None:
        """Change a key by `function` of its value: now for readers inside, and again at the commit.

        The function must not suspend if the store never waits, and must return the same result for the same value.
        """
        pending = self.ledger.pending_changes(self.base)
        self.ledger.admit(self.base, key)
        pending.modify(key, function)

    async def delete_range(self, keys: KeyRange) -> None:
        """Record the deletion of a range."""
        pending = self.ledger.pending_changes(self.base)
        if not self.base.features.atomic_transactions:
            self.ledger.admit(self.base, key_text(keys.inclusive_min))
        pending.delete(keys)

    def copies_from(self, other: KvDriver) -> bool:
        """Return whether the store accepts keys of `other` in `copy_range`."""
        copies = able(self.base, CopiesRanges)
        return copies is not None and copies.copies_from(other)

    async def copy_range(self, other: KvDriver, keys: KeyRange, cut: int, target: str) -> None:
        """Record copies of a range of `other`, if the store accepts them in `copy_range`.

        `target` replaces the first `cut` bytes of the keys.
        """
        if not self.copies_from(other):
            raise UnimplementedError("CopyRange not supported")
        async for batch in other.scan(keys):
            results = await other.read_many([Read(entry.key) for entry in batch])
            names = [target + key_text(key_bytes(entry.key)[cut:]) for entry in batch]
            found = [(name, one.value) for name, one in zip(names, results, strict=True) if one.state == "value"]
            await self.write_many([Write(name, value) for name, value in found])

    async def scan(self, keys: KeyRange) -> AsyncIterator[Sequence[Entry]]:
        """Yield the keys that the store would have after the commit."""
        pending = self._pending()
        changed = pending.keys_in(keys)
        present = [
            Entry(read.key, len(result.value))
            for read, result in await self._read_changed(changed)
            if result.state == "value"
        ]
        pages = [EntryColumns.of(present)] if present else []
        is_merged = bool(present) and self.base.features.sorted_scan
        async for batch in self.base.scan(keys):
            shown = pending.unchanged(EntryColumns.of(batch), set(changed))
            if is_merged:
                pages.append(shown)
            else:
                yield shown
        if pages:
            yield merged(pages)

    async def _read_changed(self, keys: Sequence[str]) -> list[tuple[Read, ReadResult]]:
        reads = [Read(key) for key in keys]
        return list(zip(reads, await self.read_many(reads), strict=True))

    def describe_key(self, key: str) -> str:
        """Return the store's name of the key."""
        return self.base.describe_key(key)

    def spec(self) -> Mapping[str, Json]:
        """Return the members of the store."""
        return self.base.spec()

    @property
    def features(self) -> Features:
        """The features of the store; conditions are recorded here and decided at the commit."""
        return replace(self.base.features, atomic_transactions=False)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TransactionalDriver):
            return False
        return self.ledger is other.ledger and self.base == other.base

    def __hash__(self) -> int:
        return hash((self.base, id(self.ledger)))


def _as_result(value: Buffer | None) -> ReadResult:
    return ReadResult("missing", b"", NO_VALUE) if value is None else ReadResult("value", value)
