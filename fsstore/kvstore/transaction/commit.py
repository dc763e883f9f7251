"""Writing the changes of a transaction to a store.

A store that can write several keys as one gets everything in a single step (`WritesAtOnce`); the others
get ranges to delete, then values, those under a condition first.  Keys changed by functions are read, computed and
written under the condition that nobody wrote in between, again and again until that holds.

Nothing is written when a condition is known to fail beforehand.  On stores without atomic writes a condition that
fails later leaves the keys written by then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from fsstore.errors import AbortedError
from fsstore.kvstore.contract.ability import WritesAtOnce, able
from fsstore.kvstore.contract.driver import (
    NO_VALUE,
    UNKNOWN,
    KvDriver,
    Read,
    ReadResult,
    Stamp,
    Write,
    begin_creating,
)
from fsstore.kvstore.contract.request import KeyRange
from fsstore.kvstore.transaction.pending_changes import PendingChanges, evaluate
from fsstore.kvstore.tuning import COMMIT_ATTEMPTS, COMMITTED_AT_ONCE

__all__ = ["commit_changes"]


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
        for start in range(0, len(writes), COMMITTED_AT_ONCE):
            await _write_values(driver, writes[start : start + COMMITTED_AT_ONCE])
    computed = pending.computed()
    for start in range(0, len(computed), COMMITTED_AT_ONCE):
        await _write_computed(driver, pending, computed[start : start + COMMITTED_AT_ONCE])


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
    """Delete a range, but not the keys that are about to be written: readers should not miss them meanwhile."""
    kept = set(pending.keys_in(keys))
    if not kept:
        await driver.delete_range(keys)
        return
    async for batch in driver.scan(keys):
        gone = [Write(entry.key, None) for entry in batch if entry.key not in kept]
        if gone:
            await driver.write_many(gone)


async def _write_values(driver: KvDriver, writes: Sequence[Write]) -> None:
    stamps = await driver.write_many(writes)
    for write, stamp in zip(writes, stamps, strict=True):
        if write.if_equal != UNKNOWN and stamp.generation == UNKNOWN:
            raise _mismatch(driver, write.key)


async def _compute(driver: KvDriver, pending: PendingChanges, keys: Sequence[str]) -> list[Write]:
    """Return the writes of keys that functions change, each under the condition that its input is still stored."""
    read = [key for key in keys if pending.by_key[key].stored]
    stored = dict(zip(read, await driver.read_many([Read(key) for key in read]), strict=True))
    guarded = driver.features.conditional_write
    writes = []
    for key in keys:
        change = pending.by_key[key]
        start = stored.get(key)
        if start is None:
            missing = change.value is None
            start = (
                ReadResult("missing", b"", NO_VALUE) if missing else ReadResult("value", change.value or b"")
            )
        elif change.if_equal not in (UNKNOWN, start.generation):
            raise _mismatch(driver, key)
        condition = start.generation if change.stored and guarded else change.if_equal
        writes.append(Write(key, await evaluate(change.functions, start), condition))
    return writes


async def _write_computed(driver: KvDriver, pending: PendingChanges, keys: Iterable[str]) -> None:
    left = list(keys)
    for _ in range(COMMIT_ATTEMPTS):
        writes = await _compute(driver, pending, left)
        stamps = await driver.write_many(writes)
        failed = _failed(writes, stamps)
        left = [key for key in left if key in failed]
        if not left:
            return
        for key in left:
            if not pending.by_key[key].stored:
                raise _mismatch(driver, key)
    raise _mismatch(driver, left[0])


def _failed(writes: Sequence[Write], stamps: Sequence[Stamp]) -> set[str]:
    return {
        write.key
        for write, stamp in zip(writes, stamps, strict=True)
        if write.if_equal != UNKNOWN and stamp.generation == UNKNOWN
    }


async def _commit_as_one(driver: KvDriver, together: WritesAtOnce, pending: PendingChanges) -> None:
    fixed, computed = pending.writes(), pending.computed()
    for _ in range(COMMIT_ATTEMPTS):
        writes = fixed + await _compute(driver, pending, computed) if computed else fixed
        failed = await together.write_atomic(writes, unchanged=pending.observed, deleted=pending.deleted)
        if not failed:
            return
        for key in failed:
            if not pending.by_key[key].stored:
                raise _mismatch(driver, key)
    raise _mismatch(driver, computed[0])
