"""Wrappers around any key-value store driver, for tests: count what is asked, fail on purpose, answer late.

Each has the contract of a driver and passes everything on to the driver it wraps, so any test may put one between a
store and the code under test.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Literal, TypeAlias

from fsstore.kvstore.contract.ability import MayBeMissing, PassesOn
from fsstore.kvstore.contract.driver import Entry, Features, KvDriver, Read, ReadResult, Stamp, Write
from fsstore.kvstore.contract.request import KeyRange, key_text
from fsstore.runtime import fork
from fsstore.values.json_value import Json

__all__ = ["Faulty", "Operation", "Recording", "Slow"]

Operation: TypeAlias = Literal["read", "write", "delete_range", "scan"]


class _Wrapped(PassesOn):
    """A driver that does what another does."""

    id: ClassVar[str] = "double"
    passes_on: ClassVar[frozenset[type]] = frozenset({MayBeMissing})
    inner: KvDriver

    def __init__(self, inner: KvDriver) -> None:
        self.inner = inner

    async def read_many(self, reads: Sequence[Read]) -> Sequence[ReadResult]:
        """Return the answers of the driver inside."""
        return await self.inner.read_many(reads)

    async def write_many(self, writes: Sequence[Write]) -> list[Stamp]:
        """Apply `writes` to the driver inside."""
        return await self.inner.write_many(writes)

    async def delete_range(self, keys: KeyRange) -> None:
        """Delete a range of the driver inside."""
        await self.inner.delete_range(keys)

    async def scan(self, keys: KeyRange) -> AsyncIterator[Sequence[Entry]]:
        """Yield what the driver inside lists."""
        async for batch in self.inner.scan(keys):
            yield batch

    def describe_key(self, key: str) -> str:
        """Return the name the driver inside gives the key."""
        return self.inner.describe_key(key)

    def spec(self) -> Mapping[str, Json]:
        """Return the members of the driver inside."""
        return self.inner.spec()

    @property
    def features(self) -> Features:
        """The abilities of the driver inside; atomic transactions are not passed on."""
        return replace(self.inner.features, atomic_transactions=False)


class Recording(_Wrapped):
    """A driver that remembers what it was asked.

    `calls` counts calls of each operation (a batch is one), `reads` and `writes` hold every single request,
    `scans` and `deleted` the ranges; `bytes_read` and `bytes_written` count the values.

    >>> from fsstore.kvstore.memory import MemoryDriver
    >>> Recording(MemoryDriver()).calls
    {'read': 0, 'write': 0, 'delete_range': 0, 'scan': 0}
    """

    def __init__(self, inner: KvDriver) -> None:
        super().__init__(inner)
        self._lock = fork.lock()
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self.calls: dict[Operation, int] = {"read": 0, "write": 0, "delete_range": 0, "scan": 0}
        self.reads: list[Read] = []
        self.writes: list[Write] = []
        self.scans: list[KeyRange] = []
        self.deleted: list[KeyRange] = []
        self.bytes_read = self.bytes_written = 0

    async def read_many(self, reads: Sequence[Read]) -> Sequence[ReadResult]:
        """Return the answers of the driver inside; remember requests and bytes."""
        with self._lock:
            self.calls["read"] += 1
            self.reads += reads
        results = await super().read_many(reads)
        with self._lock:
            self.bytes_read += sum(len(result.value) for result in results)
        return results

    async def write_many(self, writes: Sequence[Write]) -> list[Stamp]:
        """Apply `writes` to the driver inside; remember them and their bytes."""
        with self._lock:
            self.calls["write"] += 1
            self.writes += writes
            self.bytes_written += sum(memoryview(write.value or b"").nbytes for write in writes)
        return await super().write_many(writes)

    async def delete_range(self, keys: KeyRange) -> None:
        """Delete a range of the driver inside; remember it."""
        with self._lock:
            self.calls["delete_range"] += 1
            self.deleted.append(keys)
        await super().delete_range(keys)

    async def scan(self, keys: KeyRange) -> AsyncIterator[Sequence[Entry]]:
        """Yield what the driver inside lists; remember the range."""
        with self._lock:
            self.calls["scan"] += 1
            self.scans.append(keys)
        async for batch in super().scan(keys):
            yield batch


class Faulty(_Wrapped):
    """A driver that fails, or answers something else, on purpose.

    `fails(operation, key)` returns the error to raise, or None; a range is asked with its lower end.  It is asked for
    every request of a batch before the driver inside sees any.  `change(read, result)` replaces an answer: make it
    shorter, flip a bit, lose it.
    """

    def __init__(
        self,
        inner: KvDriver,
        fails: Callable[[Operation, str], Exception | None] = lambda _operation, _key: None,
        change: Callable[[Read, ReadResult], ReadResult] = lambda _read, result: result,
    ) -> None:
        super().__init__(inner)
        self._fails = fails
        self._change = change

    def _check(self, operation: Operation, key: str) -> None:
        error = self._fails(operation, key)
        if error is not None:
            raise error

    async def read_many(self, reads: Sequence[Read]) -> Sequence[ReadResult]:
        """Return changed answers of the inner driver, or fail."""
        for read in reads:
            self._check("read", read.key)
        results = await super().read_many(reads)
        return [self._change(read, result) for read, result in zip(reads, results, strict=True)]

    async def write_many(self, writes: Sequence[Write]) -> list[Stamp]:
        """Apply `writes` to the driver inside, or fail before the first."""
        for write in writes:
            self._check("write", write.key)
        return await super().write_many(writes)

    async def delete_range(self, keys: KeyRange) -> None:
        """Delete a range of the driver inside, or fail before."""
        self._check("delete_range", key_text(keys.inclusive_min))
        await super().delete_range(keys)

    async def scan(self, keys: KeyRange) -> AsyncIterator[Sequence[Entry]]:
        """Yield what the driver inside lists, or fail before the first batch."""
        self._check("scan", key_text(keys.inclusive_min))
        async for batch in super().scan(keys):
            yield batch


async def _next_turn(_operation: Operation) -> None:
    await asyncio.sleep(0)


class Slow(_Wrapped):
    """A driver whose coroutines suspend, as those of a network store do.

    `pause(operation)` is awaited before each call: by default one turn of the event loop, or wait for an event that
    the test sets.
    """

    def __init__(self, inner: KvDriver, pause: Callable[[Operation], Awaitable[None]] = _next_turn) -> None:
        super().__init__(inner)
        self._pause = pause

    async def read_many(self, reads: Sequence[Read]) -> Sequence[ReadResult]:
        """Return the answers of the driver inside, later."""
        await self._pause("read")
        return await super().read_many(reads)

    async def write_many(self, writes: Sequence[Write]) -> list[Stamp]:
        """Apply `writes` to the driver inside, later."""
        await self._pause("write")
        return await super().write_many(writes)

    async def delete_range(self, keys: KeyRange) -> None:
        """Delete a range of the driver inside, later."""
        await self._pause("delete_range")
        await super().delete_range(keys)

    async def scan(self, keys: KeyRange) -> AsyncIterator[Sequence[Entry]]:
        """Yield what the driver inside lists, later."""
        await self._pause("scan")
        async for batch in super().scan(keys):
            yield batch

    @property
    def features(self) -> Features:
        """The abilities of the driver inside, and that it waits."""
        return replace(super().features, waits=True)
