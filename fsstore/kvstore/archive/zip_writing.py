"""Writing ZIP archives: every change makes the archive anew, and replaces the old one under a condition.

The directory stands at the end of an archive, so a single key costs as much as all of them: changes belong together, in
one batch or, better, one transaction.  Stored members stay as they are, byte by byte.  The condition is that the file
is still the one that was read, so no change of another writer is lost; then all is read and made again.

The new archive goes to the store in portions where that can write while values are made, as local files can;
elsewhere it is held in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from fsstore.errors import AbortedError, UnimplementedError
from fsstore.kvstore.archive.zip_build import ArchivePlan, check_name, plan_archive
from fsstore.kvstore.archive.zip_source import Archive, ZipSource
from fsstore.kvstore.contract.ability import WritesAtOnce, WritesLate, able
from fsstore.kvstore.contract.driver import (
    NO_VALUE,
    UNKNOWN,
    Buffer,
    Features,
    KvPrefix,
    LateWrite,
    Stamp,
    Write,
    now,
)
from fsstore.kvstore.contract.request import KeyRange, key_text
from fsstore.kvstore.tuning import ARCHIVE_PORTION_BYTES
from fsstore.runtime import execution
from fsstore.runtime.attempt import ChangedError, until_unchanged
from fsstore.values.json_value import quote

__all__ = ["ZipWriting", "archive_features"]


def archive_features(below: Features) -> Features:
    """Return what an archive in a store can do: it is written where that can be guarded by a condition."""
    guarded = below.writable and below.conditional_write
    return Features(
        waits=below.waits,
        writable=guarded,
        create_only=guarded,
        conditional_write=guarded,
        atomic_transactions=guarded,
        sorted_scan=True,
        coarse_generations=below.coarse_generations,
        written_as_one=True,
        slow_writes=below.slow_writes,
    )


class ZipWriting(WritesAtOnce):
    """The writing half of the driver of archives."""

    base: KvPrefix
    source: ZipSource
    features: Features
    method: str

    async def write_many(self, writes: Sequence[Write]) -> list[Stamp]:
        """Apply `writes` together, in one new archive."""
        stamps: list[Stamp] = []

        def decide(archive: Archive | None) -> dict[str, Buffer | None]:
            held = [_holds(archive, write) for write in writes]
            stamps[:] = [Stamp(NO_VALUE if hold else UNKNOWN, now()) for hold in held]
            return {write.key: write.value for write, hold in zip(writes, held, strict=True) if hold}

        stamp = await self._change(decide, writes)
        return [
            stamp if write.value is not None and own.generation == NO_VALUE else own
            for write, own in zip(writes, stamps, strict=True)
        ]

    async def write_atomic(
        self, writes: Sequence[Write], *, unchanged: Mapping[str, bytes], deleted: Sequence[KeyRange]
    ) -> list[str]:
        """Apply everything in one new archive, or nothing; return the keys whose condition does not hold."""
        failed: list[str] = []

        def decide(archive: Archive | None) -> dict[str, Buffer | None]:
            for key, generation in unchanged.items():
                if _generation(archive, key) != generation:
                    place = f"{quote(key)} in {self.base.describe()}"
                    raise AbortedError(f"Error reading {place}: Generation mismatch")
            failed[:] = [write.key for write in writes if not _holds(archive, write)]
            if failed:
                return {}
            found = [] if archive is None else map(archive.directory.names, deleted)
            gone = [key_text(name) for names in found for name in names]
            return {**dict.fromkeys(gone), **{write.key: write.value for write in writes}}

        await self._change(decide, writes)
        return failed

    async def delete_range(self, keys: KeyRange) -> None:
        """Delete the keys of a range, in one new archive."""
        if not keys.empty:
            await self.write_atomic([], unchanged={}, deleted=[keys])

    async def _change(
        self, decide: Callable[[Archive | None], dict[str, Buffer | None]], writes: Sequence[Write]
    ) -> Stamp:
        """Make the archive anew with what `decide` says of the one that is there, until nobody comes between."""
        if not self.features.writable:
            raise UnimplementedError(
                f"KeyValueStore does not support writing: {self.base.describe()} would be replaced as a whole, which"
                " needs a store that is writable under conditions"
            )
        for write in writes:
            check_name(write.key)
        return await until_unchanged(partial(self._change_once, decide), self.base.describe)

    async def _change_once(self, decide: Callable[[Archive | None], dict[str, Buffer | None]]) -> Stamp:
        archive = await self.source.load(self.source.archive)
        wanted = decide(archive)
        index = {} if archive is None else archive.directory.index
        changes = {key: value for key, value in wanted.items() if value is not None or key in index}
        if not changes:
            return Stamp(NO_VALUE if archive is None else archive.generation, now())
        try:
            stamp = await self._replace(archive, changes)
        finally:
            self.source.archive = None
        if stamp.generation == UNKNOWN:
            raise ChangedError
        return stamp

    async def _replace(self, archive: Archive | None, changes: Mapping[str, Buffer | None]) -> Stamp:
        """Write a new archive in place of one, unless another has replaced it; then the stamp is `UNKNOWN`."""
        old = None if archive is None else await self.source.raw(archive)
        plan = await execution.offload(plan_archive, old, changes, self.method, kind="compute")
        condition = NO_VALUE if archive is None else archive.generation
        late = able(self.base.driver, WritesLate)
        if late is not None and not self.features.waits:
            portions = self._portions(archive, plan)
            [stamp] = await late.write_late([lambda: LateWrite(self.base.path, portions, condition)], 1)
            return stamp
        kept = [] if archive is None else await self.source.ranges(archive, plan.spans)
        value = await execution.offload(_joined, kept, plan, kind="compute")
        return await self.base.write("", value, condition)

    def _portions(self, archive: Archive | None, plan: ArchivePlan) -> Any:
        """Yield the new archive piece by piece; for stores that never wait."""
        for low, high in plan.spans:
            assert archive is not None
            for start in range(low, high, ARCHIVE_PORTION_BYTES):
                yield execution.drive(
                    self.source.ranges(archive, [(start, min(start + ARCHIVE_PORTION_BYTES, high))])
                )
        yield from _new_portions(plan)


def _new_portions(plan: ArchivePlan) -> Iterator[list[Buffer]]:
    yield from plan.new_members()
    yield [plan.directory()]


def _joined(kept: Sequence[Buffer], plan: ArchivePlan) -> bytes:
    return b"".join([*kept, *(part for portion in _new_portions(plan) for part in portion)])


def _generation(archive: Archive | None, key: str) -> bytes:
    return NO_VALUE if archive is None or key not in archive.directory.index else archive.generation


def _holds(archive: Archive | None, write: Write) -> bool:
    return write.if_equal in (UNKNOWN, _generation(archive, write.key))
