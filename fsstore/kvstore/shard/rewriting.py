"""Changing values that share a file: the file is read, the changes are merged in, and it is written as a whole.

The write has the condition that the file is still the one that was read, so no update of another writer is lost.
A condition on a value holds if the value is absent (`NO_VALUE`) or if the file has that generation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from fsstore.errors import UnimplementedError
from fsstore.kvstore.contract.driver import (
    NO_VALUE,
    UNKNOWN,
    Buffer,
    Features,
    KvPrefix,
    Read,
    ReadResult,
    Stamp,
    Write,
)
from fsstore.kvstore.contract.request import KeyRange
from fsstore.runtime import execution
from fsstore.runtime.attempt import until_settled

_MISSING = ReadResult("missing", b"", NO_VALUE)

Changes: TypeAlias = Mapping[str, Buffer | None]
"""Values to be stored under keys of one file; None deletes."""
_Job: TypeAlias = tuple[str, ReadResult | None, list[Write]]


def shard_features(below: Features) -> Features:
    """Return what a store of shards over another store can do."""
    return replace(below, atomic_transactions=False, sorted_scan=False, empty_key=False)


class Rewriting:
    """The base of drivers of shards.  They say which file a key is in, and how a file is changed."""

    base: KvPrefix
    features: Features

    def file_of(self, key: str) -> str:
        """Return the key of the file, or raise `StoreError` for what is no key."""
        raise NotImplementedError  # every driver has one

    def present(self, file: str, data: Buffer | None, keys: Sequence[str]) -> set[str]:
        """Return which of the keys have a value in a file."""
        raise NotImplementedError  # every driver has one

    def merged(self, file: str, data: Buffer | None, changes: Changes) -> Buffer | None:
        """Return a file with changes merged in, None if nothing is left."""
        raise NotImplementedError  # every driver has one

    def fills(self, file: str, writes: Sequence[Write]) -> bool:
        """Return whether writes without conditions leave nothing of what is stored in a file."""
        return False

    async def write_many(self, writes: Sequence[Write]) -> list[Stamp]:
        """Apply `writes`; those of one file together, in one write."""
        groups: dict[str, list[int]] = {}
        for place, write in enumerate(writes):
            groups.setdefault(self.file_of(write.key), []).append(place)
        stamps = [Stamp()] * len(writes)

        async def attempt(left: dict[str, list[Write]]) -> dict[str, list[Write]]:
            done = await self._attempt(left)
            for file, made in done.items():
                for place, stamp in zip(groups[file], made, strict=True):
                    stamps[place] = stamp
            return {file: changes for file, changes in left.items() if file not in done}

        jobs = {file: [writes[place] for place in places] for file, places in groups.items()}
        await until_settled(attempt, jobs, lambda left: self.base.describe(next(iter(left))))
        return stamps

    async def _attempt(self, left: Mapping[str, list[Write]]) -> dict[str, list[Stamp]]:
        """Return the stamps of the files that were written or need not be."""
        read = [file for file, writes in left.items() if not self.fills(file, writes)]
        if read and not self.base.driver.features.conditional_write:
            raise UnimplementedError(
                f"Writing a part of {self.base.describe(read[0])} needs conditional writes, which this store does not"
                ' have: another writer\'s data could be lost.  If only this process writes here, say "single_writer":'
                " true in the spec of the base"
            )
        answers = await self.base.read_many([Read(file) for file in read]) if read else []
        found = dict(zip(read, answers, strict=True))
        jobs = [(file, found.get(file), writes) for file, writes in left.items()]
        made = await execution.offload(self._make_all, jobs, kind="compute")
        changed = [write for write, _ in made if write is not None]
        stamps = iter(await self.base.write_many(changed) if changed else [])
        done: dict[str, list[Stamp]] = {}
        for (file, old, writes), (write, holds) in zip(jobs, made, strict=True):
            stamp = Stamp((old or _MISSING).generation, (old or _MISSING).time)
            if write is not None:
                stamp = next(stamps)
                if write.if_equal != UNKNOWN and stamp.generation == UNKNOWN:
                    continue
            done[file] = [stamp if held else Stamp(UNKNOWN, stamp.time) for held in holds]
            assert len(done[file]) == len(writes)
        return done

    def _make_all(self, jobs: Sequence[_Job]) -> list[tuple[Write | None, list[bool]]]:
        return execution.map_blocking(self._make, list(jobs))

    def _make(self, job: _Job) -> tuple[Write | None, list[bool]]:
        """Return the write of a file, None if it stays as it is, and which of its conditions hold."""
        file, old, writes = job
        if old is None:
            value = self.merged(file, None, {write.key: write.value for write in writes})
            return Write(file, value), [True] * len(writes)
        data = old.value if old.state == "value" else None
        asked = [write.key for write in writes if write.if_equal == NO_VALUE or write.value is None]
        present = self.present(file, data, asked) if asked else set()
        holds = [
            write.if_equal == UNKNOWN
            or (write.key not in present if write.if_equal == NO_VALUE else write.if_equal == old.generation)
            for write in writes
        ]
        changes = {
            write.key: write.value
            for write, held in zip(writes, holds, strict=True)
            if held and (write.value is not None or write.key in present)
        }
        if not changes:
            return None, holds
        condition = NO_VALUE if data is None else old.generation
        return Write(file, self.merged(file, data, changes), condition), holds

    async def delete_range(self, keys: KeyRange) -> None:
        """Delete the keys of a range, file by file."""
        async for batch in self.scan(keys):  # type: ignore[attr-defined]  # every driver has one
            if batch:
                await self.write_many([Write(entry.key, None) for entry in batch])
