"""Conditions for stores that have none, on the word of the user that no other process writes: `"single_writer": true`.

A condition needs somebody who compares and writes in one step.  Where the storage cannot, this wrapper can, but only
for the writers of this process: it claims the keys of a batch that has conditions, reads them, and applies the writes
whose conditions hold.  All drivers of a process share the claims, by what their keys are called in messages, so the
same place opened twice is still guarded.  A writer in another process is not seen, and its writes may be lost; that
is what the user promised not to have.

A value of a storage without generations gets the digest of its bytes for one, whenever it is read as a whole.

Conditions the storage can check by itself are checked here all the same: two referees would not see each other.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, ClassVar

from fsstore.kvstore.contract.ability import ListsDocuments, ListsKeys, MayBeMissing, PassesOn
from fsstore.kvstore.contract.byte_range import resolve_range
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
from fsstore.kvstore.contract.key_range import KeyRange
from fsstore.values.json_value import Fields, Json, boolean

__all__ = ["SingleWriterDriver", "digest", "guarded", "take_single_writer"]

_DELETE_BATCH = 1000


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


class _Claims:
    """Which keys somebody is writing under a condition.  Claims are for whole batches, so nobody waits in a circle."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken: set[str] = set()
        self._waiting: list[Future[None]] = []

    def _try(self, names: set[str]) -> Future[None] | None:
        """Claim `names` and return None, or return a future of the moment to try again."""
        with self._lock:
            if self._taken.isdisjoint(names):
                self._taken |= names
                return None
            turn: Future[None] = Future()
            self._waiting.append(turn)
            return turn

    async def take(self, names: set[str], *, waits: bool) -> None:
        """Return when the names are claimed for the caller."""
        while (turn := self._try(names)) is not None:
            if waits:
                await asyncio.wrap_future(turn)
            else:
                turn.result()

    def give(self, names: set[str]) -> None:
        """End a claim."""
        with self._lock:
            self._taken -= names
            woken, self._waiting = self._waiting, []
        for turn in woken:
            if turn.set_running_or_notify_cancel():
                turn.set_result(None)


_claims = _Claims()


def _forget_claims() -> None:
    global _claims  # noqa: PLW0603  # the claims of a forked child's parent are nobody's
    _claims = _Claims()


os.register_at_fork(after_in_child=_forget_claims)


class SingleWriterDriver(PassesOn):
    """A driver over `inner` that honours every condition, against the writers of this process.

    Its keys and its JSON are those of `inner`.
    """

    id: ClassVar[str] = "single_writer"
    passes_on: ClassVar[frozenset[type]] = frozenset({ListsDocuments, ListsKeys, MayBeMissing})
    inner: KvDriver

    def __init__(self, inner: KvDriver) -> None:
        self.inner = inner
        self.id = inner.id  # type: ignore[misc]  # it stands for the driver it wraps, whichever that is
        self._coarse = inner.features.coarse_generations
        self.features: Features = replace(
            inner.features, create_only=True, conditional_write=True, conditional_delete=True
        )

    async def read_many(self, reads: Sequence[Read]) -> list[ReadResult]:
        """Return one result for each of `reads`."""
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
        claims, names = _claims, {self.inner.describe_key(write.key) for write in writes}
        await claims.take(names, waits=self.features.waits)
        try:
            return await self._write_all(writes)
        finally:
            claims.give(names)

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
        found = await self.read_many([Read(writes[place].key) for place in asked])
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
        for start in range(0, len(found), _DELETE_BATCH):
            await self.write_many([Write(key, None) for key in found[start : start + _DELETE_BATCH]])

    def scan(self, keys: KeyRange) -> AsyncIterator[list[Entry]]:
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
