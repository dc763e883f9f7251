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
from fsstore.kvstore.contract.key_range import KeyRange
from fsstore.kvstore.transaction.pending_changes import PendingChanges, evaluate

__all__ = ["commit_overlay"]

_ATTEMPTS = 1000  # at a key that others write
_BATCH = 256  # keys that are written at once


async def commit_overlay(driver: KvDriver, overlay: PendingChanges) -> None:
    """Write all changes, or raise `AbortedError` when a condition does not hold."""
    for key, change in overlay.pending.items():
        if change.refused:
            raise _mismatch(driver, key)
    await _check_observed(driver, overlay.observed)
    if not (overlay.plain or overlay.pending or overlay.deleted):
        return
    begin_creating(driver)
    together = able(driver, WritesAtOnce) if driver.features.atomic_transactions else None
    if together is not None:
        await _commit_as_one(driver, together, overlay)
        return
    for keys in overlay.deleted:
        await _delete_range(driver, overlay, keys)
    values = overlay.writes()
    guarded = [write for write in values if write.if_equal != UNKNOWN]
    plain = [write for write in values if write.if_equal == UNKNOWN]
    for writes in (guarded, plain):
        for start in range(0, len(writes), _BATCH):
            await _write_values(driver, writes[start : start + _BATCH])
    computed = overlay.computed()
    for start in range(0, len(computed), _BATCH):
        await _write_computed(driver, overlay, computed[start : start + _BATCH])


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


async def _delete_range(driver: KvDriver, overlay: PendingChanges, keys: KeyRange) -> None:
    """Delete a range, but not the keys that are about to be written: readers should not miss them meanwhile."""
    kept = set(overlay.keys_in(keys))
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


async def _compute(driver: KvDriver, overlay: PendingChanges, keys: Sequence[str]) -> list[Write]:
    """Return the writes of keys that functions change, each under the condition that its input is still stored."""
    read = [key for key in keys if overlay.pending[key].stored]
    stored = dict(zip(read, await driver.read_many([Read(key) for key in read]), strict=True))
    guarded = driver.features.conditional_write
    writes = []
    for key in keys:
        change = overlay.pending[key]
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


async def _write_computed(driver: KvDriver, overlay: PendingChanges, keys: Iterable[str]) -> None:
    left = list(keys)
    for _ in range(_ATTEMPTS):
        writes = await _compute(driver, overlay, left)
        stamps = await driver.write_many(writes)
        failed = _failed(writes, stamps)
        left = [key for key in left if key in failed]
        if not left:
            return
        for key in left:
            if not overlay.pending[key].stored:
                raise _mismatch(driver, key)
    raise _mismatch(driver, left[0])


def _failed(writes: Sequence[Write], stamps: Sequence[Stamp]) -> set[str]:
    return {
        write.key
        for write, stamp in zip(writes, stamps, strict=True)
        if write.if_equal != UNKNOWN and stamp.generation == UNKNOWN
    }


async def _commit_as_one(driver: KvDriver, together: WritesAtOnce, overlay: PendingChanges) -> None:
    fixed, computed = overlay.writes(), overlay.computed()
    for _ in range(_ATTEMPTS):
        writes = fixed + await _compute(driver, overlay, computed) if computed else fixed
        failed = await together.write_atomic(writes, unchanged=overlay.observed, deleted=overlay.deleted)
        if not failed:
            return
        for key in failed:
            if not overlay.pending[key].stored:
                raise _mismatch(driver, key)
    raise _mismatch(driver, computed[0])
