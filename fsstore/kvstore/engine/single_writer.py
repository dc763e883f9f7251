"""Conditions for stores that have none, on the word of the user that no other process writes: `"single_writer": true`.

A condition needs somebody who compares and writes in one step.  Where the storage cannot, this wrapper can, but only
for the writers of this process: it claims the keys of a batch, reads those with conditions, and applies the writes
whose conditions hold.  All drivers of a process share the claims, by what their keys are called in messages, so the
same place opened twice is still guarded.  A writer in another process is not seen, and its writes may be lost; that
is what the user promised not to have.

Reads are claimed too.  Most storages that need this wrapper replace a value in place (a WebDAV server empties a file
and then receives it), so a read beside a write would find half of it.

A value of a storage without generations gets the digest of its bytes for one, whenever it is read as a whole.

Conditions the storage can check by itself are checked here all the same: two referees would not see each other.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, ClassVar

from fsstore.kvstore.contract.ability import IsMetered, ListsDocuments, MayBeMissing, PassesOn
from fsstore.kvstore.contract.driver import (
    NO_VALUE,
    UNKNOWN,
    Entry,
    Features,
    KvDriver,
    Read,
    ReadResult,
    Stamp,
    Write,
    now,
)
from fsstore.kvstore.contract.request import KeyRange, resolve_range
from fsstore.kvstore.tuning import DELETED_AT_ONCE
from fsstore.runtime import fork
from fsstore.runtime import future as futures
from fsstore.runtime.future import Future
from fsstore.runtime.state import OfProcess
from fsstore.values.json_value import Fields, Json, boolean

__all__ = ["SingleWriterDriver", "digest", "guarded", "take_single_writer"]


def take_single_writer(fields: Fields) -> dict[str, Json]:
    """Take `single_writer`: the promise that no other process writes where this store does."""
    return {"single_writer": True} if fields.take("single_writer", boolean, default=False) else {}


def guarded(driver: KvDriver, members: Mapping[str, Json]) -> KvDriver:
    """Return the driver, with conditions checked here if the members promise a single writer."""
    if not members.get("single_writer") or not driver.features.writable:
        return driver
    return SingleWriterDriver(driver)


def digest(value: Any) -> bytes:
    """Return the generation of a value that has nothing but its bytes."""
    return b"\0" + hashlib.blake2b(value, digest_size=16).digest()


class _KeyClaim:
    """The keys that one batch reads, or writes; `ended` is done when it has left them."""

    __slots__ = ("ended", "reads", "writes")

    def __init__(self, reads: set[str], writes: set[str]) -> None:
        self.reads, self.writes = reads, writes
        self.ended: Future[None] = futures.pending()

    def keeps_out(self, later: _KeyClaim) -> bool:
        """Return whether a later claim has to wait for this one; those who only read do not mind each other."""
        return not (
            self.writes.isdisjoint(later.writes)
            and self.writes.isdisjoint(later.reads)
            and self.reads.isdisjoint(later.writes)
        )


class _Claims:
    """Which batches are under way.  Each waits for those that came before it only, so none waits in a circle."""

    def __init__(self) -> None:
        self._lock = fork.lock()
        self._begun: dict[_KeyClaim, None] = {}  # in the order in which they came

    @asynccontextmanager
    async def on(
        self, *, reads: Iterable[str] = (), writes: Iterable[str] = (), waits: bool
    ) -> AsyncIterator[None]:
        """Run a block when nothing that came before it writes what it reads, or uses what it writes."""
        mine = _KeyClaim(set(reads), set(writes))
        with self._lock:
            before = [claim for claim in self._begun if claim.keeps_out(mine)]
            self._begun[mine] = None
        try:
            for claim in before:
                if waits:
                    await claim.ended
                else:
                    claim.ended.result()
            yield
        finally:
            with self._lock:
                self._begun.pop(mine, None)
            futures.resolve(mine.ended, None)


_claims = OfProcess(_Claims)


class SingleWriterDriver(PassesOn):
    """A driver over `inner` that honours every condition, against the writers of this process.

    Its keys and its JSON are those of `inner`.
    """

    id: ClassVar[str] = "single_writer"
    passes_on: ClassVar[frozenset[type]] = frozenset({IsMetered, ListsDocuments, MayBeMissing})
    inner: KvDriver

    def __init__(self, inner: KvDriver) -> None:
        self.inner = inner
        self.id = inner.id  # type: ignore[misc]  # it stands for the driver it wraps, whichever that is
        self._coarse = inner.features.coarse_generations
        self.features: Features = replace(
            inner.features, create_only=True, conditional_write=True, conditional_delete=True
        )

    async def read_many(self, reads: Sequence[Read]) -> list[ReadResult]:
        """Return one result for each of `reads`, of which none is in the middle of a write of this process."""
        names = map(self.inner.describe_key, {read.key for read in reads})
        async with _claims.now.on(reads=names, waits=self.features.waits):
            return await self._read_all(reads)

    async def _read_all(self, reads: Sequence[Read]) -> list[ReadResult]:
        found = [self._known(result) for result in await self.inner.read_many(reads)]
        doubtful = [
            place
            for place, read in enumerate(reads)
            if found[place][:3:2] == ("value", UNKNOWN) and (_is_whole(read) or read.if_not_equal != UNKNOWN)
        ]
        whole = {place: found[place] for place in doubtful if _is_whole(reads[place])}
        asked = [place for place in doubtful if place not in whole]
        if asked:  # only the whole value tells whether it is still the one the caller knows
            values = await self.inner.read_many([Read(reads[place].key) for place in asked])
            whole |= dict(zip(asked, values, strict=True))
        for place, result in whole.items():
            found[place] = _stamped(reads[place], result)
        return found

    def _known(self, result: ReadResult) -> ReadResult:
        """Return the result without a generation too coarse to tell two writes apart."""
        return result._replace(generation=UNKNOWN) if self._coarse and result.state == "value" else result

    async def write_many(self, writes: Sequence[Write]) -> list[Stamp]:
        """Apply the writes whose conditions hold; return one stamp for each."""
        if not writes:
            return []
        names = [self.inner.describe_key(write.key) for write in writes]
        async with _claims.now.on(writes=names, waits=self.features.waits):
            return await self._write_all(writes)

    async def _write_all(self, writes: Sequence[Write]) -> list[Stamp]:
        stamps = dict.fromkeys(range(len(writes)), Stamp(UNKNOWN, now()))
        refused = await self._refused(writes)
        doing = [place for place in range(len(writes)) if place not in refused]
        plain = [writes[place]._replace(if_equal=UNKNOWN) for place in doing]
        for place, write, stamp in zip(doing, plain, await self._apply(plain), strict=True):
            known = UNKNOWN if self._coarse else stamp.generation
            known = NO_VALUE if write.value is None else known or digest(write.value)
            stamps[place] = Stamp(known, stamp.time)
        return list(stamps.values())

    async def _refused(self, writes: Sequence[Write]) -> set[int]:
        """Return the places of writes whose conditions do not hold; what was read for it is let go."""
        asked = [place for place, write in enumerate(writes) if write.if_equal != UNKNOWN]
        if not asked:
            return set()
        found = await self._read_all([Read(writes[place].key) for place in asked])
        return {
            place
            for place, result in zip(asked, found, strict=True)
            if writes[place].if_equal != (NO_VALUE if result.state == "missing" else result.generation)
        }

    async def _apply(self, writes: list[Write]) -> list[Stamp]:
        return await self.inner.write_many(writes) if writes else []

    async def delete_range(self, keys: KeyRange) -> None:
        """Delete every key in the range, claimed as other writes are: none comes back by a condition checked before."""
        found = [entry.key async for batch in self.inner.scan(keys) for entry in batch]
        for start in range(0, len(found), DELETED_AT_ONCE):
            await self.write_many([Write(key, None) for key in found[start : start + DELETED_AT_ONCE]])

    def scan(self, keys: KeyRange) -> AsyncIterator[Sequence[Entry]]:
        """Yield the keys in the range."""
        return self.inner.scan(keys)

    def describe_key(self, key: str) -> str:
        """Return how messages call the key."""
        return self.inner.describe_key(key)

    def spec(self) -> Mapping[str, Json]:
        """Return the members of the spec."""
        return self.inner.spec()


def _is_whole(read: Read) -> bool:
    return read.start == 0 and read.stop is None


def _stamped(read: Read, result: ReadResult) -> ReadResult:
    """Return the answer to `read` that a whole value is, with its digest for a generation."""
    if result.state != "value":
        return result
    generation = digest(result.value)
    if generation == read.if_not_equal:
        return ReadResult("unspecified", b"", generation, result.time)
    start, stop = resolve_range(read.start, read.stop, len(result.value))
    part = memoryview(result.value)[start:stop]
    return ReadResult("value", part, generation, result.time, len(result.value))
