"""Copy-on-write over a reference set: new values, deletions, and saving them.

The state is one immutable value (the set, what changed since, the generation of the document), replaced as a whole, so
readers need no lock.  A batch of writes is checked, merged and saved under the condition that the document still has
the generation known; when somebody else was faster, the document is loaded again and the batch tried again.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fsstore.errors import AbortedError, StoreError, UnimplementedError
from fsstore.kvstore.contract import NO_VALUE, UNKNOWN, KvDriver, Read, Stamp, Write, now
from fsstore.kvstore.key_range import KeyRange
from fsstore.kvstore.reference.keys import check_key
from fsstore.kvstore.reference.refset import ReferenceSet, Resolved
from fsstore.kvstore.reference.table import ABSENT, INLINE, Row, Rows

__all__ = ["Document", "Overlay", "State"]

_TRIES = 50


@dataclass(frozen=True, slots=True)
class State:
    """A set, the values that replace its own (None deletes), and the generation of its document."""

    base: ReferenceSet
    changes: Mapping[str, bytes | None] = field(default_factory=dict)
    generation: bytes = NO_VALUE

    async def resolve(self, keys: Sequence[str]) -> Resolved:
        """Return the references of `keys`."""
        found = await self.base.resolve(keys)
        if not self.changes:
            return found
        inline = list(found.inline) if any(key in self.changes for key in keys) else found.inline
        for position, key in enumerate(keys):
            if key in self.changes:
                _put(found.rows, position, self.changes[key], inline)
        return found._replace(inline=inline)

    async def scan(self, keys: KeyRange) -> AsyncIterator[tuple[list[str], Resolved]]:
        """Yield the keys in a range, those of the set before the new ones."""
        changes = self.changes
        async for names, found in self.base.scan(keys):
            if changes and any(name in changes for name in names):
                kept = [position for position, name in enumerate(names) if name not in changes]
                yield [names[position] for position in kept], found._replace(rows=found.rows.take(kept))
            else:
                yield names, found
        new = {name: value for name, value in changes.items() if value is not None and keys.contains(name)}
        if new:
            rows = Rows.of([Row(INLINE, number, len(value)) for number, value in enumerate(new.values())])
            yield list(new), Resolved(rows, (), list(new.values()))


def _put(rows: Rows, position: int, value: bytes | None, inline: Any) -> None:
    if value is None:
        rows.url[position] = ABSENT
        return
    rows.url[position], rows.offset[position], rows.length[position] = INLINE, len(inline), len(value)
    inline.append(value)


@dataclass(frozen=True, slots=True)
class Document:
    """Where a set is stored: `load` reads its state, `save` writes one and answers the new generation, or `UNKNOWN`."""

    load: Callable[[], Awaitable[State]]
    save: Callable[[State], Awaitable[bytes]]


class Overlay:
    """The state of an opened set.  Without a document, changes stay in memory."""

    def __init__(self, state: State, document: Document | None, *, writable: bool) -> None:
        self.state = state
        self.writable = writable
        self.conditional = writable
        self._document = document
        self._lock = threading.Lock()

    async def resolve(self, keys: Sequence[str]) -> Resolved:
        """Return the references of `keys`."""
        return await self.state.resolve(keys)

    def scan(self, keys: KeyRange) -> AsyncIterator[tuple[list[str], Resolved]]:
        """Yield the keys in a range with their references."""
        return self.state.scan(keys)

    async def write(self, writes: Sequence[Write], driver: KvDriver) -> list[Stamp]:
        """Apply a batch of writes and save it; conditions are checked against what is saved."""
        if not self.writable:
            raise UnimplementedError(f"KeyValueStore does not support writing: {driver.describe_key('')}")
        for write in writes:
            why = check_key(write.key)
            if why is not None:
                raise StoreError(f"Error writing {driver.describe_key(write.key)}: {why}")
        for _ in range(_TRIES):
            before = self.state
            held = await self._held(writes, driver)
            changes = {write.key: _bytes(write) for write, holds in zip(writes, held, strict=True) if holds}
            after = State(before.base, {**before.changes, **changes}, before.generation)
            if await self._commit(before, after if changes else before):
                return [_stamp(write, holds=holds) for write, holds in zip(writes, held, strict=True)]
        raise AbortedError(f"Too many writers compete for {driver.describe_key('')}")

    async def _held(self, writes: Sequence[Write], driver: KvDriver) -> list[bool]:
        """Return whether the condition of each write holds."""
        conditional = [write for write in writes if write.if_equal != UNKNOWN]
        if not conditional:
            return [True] * len(writes)
        found = await driver.read_many([Read(write.key) for write in conditional])
        current = {write.key: result.generation for write, result in zip(conditional, found, strict=True)}
        return [write.if_equal == UNKNOWN or write.if_equal == current[write.key] for write in writes]

    async def _commit(self, before: State, after: State) -> bool:
        if self._document is None or after is before:
            return self._swap(before, after)
        saved = await self._document.save(after)
        if saved == UNKNOWN:
            self._swap(before, await self._document.load())
            return False
        self._swap(before, State(after.base, after.changes, saved))
        return True

    def _swap(self, before: State, after: State) -> bool:
        with self._lock:
            if self.state is not before:
                return False
            self.state = after
            return True


def _bytes(write: Write) -> bytes | None:
    return None if write.value is None else bytes(write.value)


def _stamp(write: Write, *, holds: bool) -> Stamp:
    if not holds:
        return Stamp(UNKNOWN, now())
    if write.value is None:
        return Stamp(NO_VALUE, now())
    return Stamp(inline_generation(bytes(write.value)), now())


def inline_generation(value: bytes) -> bytes:
    """Return the generation of an inline value: what it is."""
    import hashlib

    return b"inline:" + hashlib.blake2b(value, digest_size=16).digest()
