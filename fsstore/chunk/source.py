"""Where the bytes of chunks come from: values of a key-value store, or entries of the shards in it.

A source answers a batch of byte ranges of opaque identities.  A shard is a source over another source, so nested
shards need nothing more: the index of every shard in a batch is read in one call below, the entries in another.  An
index and the entries it points to must be of one generation; a shard rewritten in between is read again.  As both calls
go through the index of the same outer shard, a source of shards within shards remembers it for the second.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from fsstore.codec.shard_layout import MISSING, ShardLayout
from fsstore.errors import AbortedError, DataLossError, OutOfRangeError, StoreError
from fsstore.kvstore.byte_range import resolve_range
from fsstore.kvstore.contract import UNKNOWN, KvPrefix, Read, ReadResult

__all__ = ["ByteRange", "KvSource", "ShardSource", "Source"]

_ATTEMPTS = 20  # at a shard that is rewritten while it is read
_WHOLE_SHARE = 0.5  # from this share of a shard's entries on, one read of the whole shard is cheaper


class ByteRange(NamedTuple):
    """A range of the bytes behind an identity; a negative start counts from the end.

    `if_not_equal` names a generation the caller has: the answer then may be "unspecified".
    """

    identity: Any
    start: int = 0
    stop: int | None = None
    if_not_equal: bytes = UNKNOWN


class _Body(NamedTuple):
    """A range to read after the index: for which request, and of which generation it must be."""

    number: int
    range: ByteRange
    generation: bytes


class _Head(NamedTuple):
    """What was read of a shard first: all of it, or its index."""

    answer: ReadResult
    whole: bool


class Source(Protocol):
    """Bytes by identity."""

    async def read_many(self, ranges: Sequence[ByteRange]) -> Sequence[ReadResult]:
        """Return an answer for each range, in order."""
        ...

    async def read_whole(self, identities: Sequence[Any]) -> Sequence[ReadResult]:
        """Return an answer for all the bytes behind each identity, in order."""
        ...

    def describe(self, identity: Any) -> str:
        """Return how messages call what an identity stands for."""
        ...

    def remembering(self) -> Source:
        """Return the same source for the calls of one operation: it may remember what leads to the bytes."""
        ...


class KvSource:
    """Values of a key-value store; identities are keys below the prefix."""

    __slots__ = ("_store",)

    def __init__(self, store: KvPrefix) -> None:
        self._store = store

    async def read_many(self, ranges: Sequence[ByteRange]) -> Sequence[ReadResult]:
        """Return an answer for each range, in order."""
        path = self._store.path
        return await self._store.driver.read_many(
            [Read(path + key, start, stop, known) for key, start, stop, known in ranges]
        )

    async def read_whole(self, identities: Sequence[str]) -> Sequence[ReadResult]:
        """Return an answer for each key, in order."""
        driver, path = self._store
        keys = [path + key for key in identities]
        if hasattr(driver, "read_whole"):
            answers: Sequence[ReadResult] = await driver.read_whole(keys)
            return answers
        return await driver.read_many(list(map(Read, keys)))

    def describe(self, identity: Any) -> str:
        """Return how messages call a key."""
        return self._store.describe(identity)

    def remembering(self) -> KvSource:
        """Return the source itself: keys lead to values."""
        return self


class ShardSource:
    """Entries of shards; identities are pairs of a shard's identity below and an entry's number."""

    __slots__ = ("_base", "_known", "_layout")

    def __init__(self, base: Source, layout: ShardLayout, known: dict[Any, _Head] | None = None) -> None:
        self._base, self._layout, self._known = base, layout, known

    def remembering(self) -> ShardSource:
        """Return a source that reads the index of a shard once, unless the shard changes."""
        return ShardSource(self._base.remembering(), self._layout, {})

    async def read_whole(self, identities: Sequence[Any]) -> Sequence[ReadResult]:
        """Return an answer for each entry, in order."""
        return await self.read_many(list(map(ByteRange, identities)))

    def describe(self, identity: Any) -> str:
        """Return how messages call an entry."""
        shard, entry = identity
        position = []
        for size in reversed(self._layout.grid):
            position.append(entry % size)
            entry //= size
        return f"{self._layout.describe(position[::-1])} in {self._base.describe(shard)}"

    async def read_many(self, ranges: Sequence[ByteRange]) -> Sequence[ReadResult]:
        """Return an answer for each range, in order."""
        wanted: dict[Any, list[int]] = {}
        for number, each in enumerate(ranges):
            wanted.setdefault(each.identity[0], []).append(number)
        answers: list[Any] = [None] * len(ranges)
        source = self if self._known is not None else ShardSource(self._base.remembering(), self._layout)
        for _ in range(_ATTEMPTS):
            if not wanted:
                return answers
            wanted = await source._attempt(wanted, ranges, answers)
        names = ", ".join(self._base.describe(shard) for shard in wanted)
        raise AbortedError(f"{names} was rewritten again and again while it was read; try again")

    async def _attempt(
        self, wanted: dict[Any, list[int]], ranges: Sequence[ByteRange], answers: list[Any]
    ) -> dict[Any, list[int]]:
        """Answer what is wanted of each shard; return the shards that changed meanwhile."""
        heads = await self._heads(wanted, ranges)
        bodies: list[_Body] = []
        for shard, numbers in wanted.items():
            head, whole = heads[shard]
            absent = head if head.state != "value" else ReadResult("missing", b"", *head[2:])
            data = memoryview(head.value)
            rows = self._rows(head, shard, [ranges[number].identity[1] for number in numbers], whole=whole)
            for number, (offset, length) in zip(numbers, rows, strict=True):
                _, start, stop, _ = ranges[number]
                if offset == MISSING:
                    answers[number] = absent
                    continue
                low, high = resolve_range(start, stop, length)
                if whole:
                    answers[number] = head._replace(value=data[offset + low : offset + high])
                else:
                    bodies.append(
                        _Body(number, ByteRange(shard, offset + low, offset + high), head.generation)
                    )
        changed: dict[Any, list[int]] = {}
        for body, answer in zip(bodies, await self._bodies(bodies), strict=True):
            answers[body.number] = answer
            if answer is None or answer.generation != body.generation or answer.state != "value":
                changed[body.range.identity] = wanted[body.range.identity]
        for shard in changed:
            self._forget(shard)
        return changed

    async def _heads(self, wanted: dict[Any, list[int]], ranges: Sequence[ByteRange]) -> dict[Any, _Head]:
        """Return what is read of each shard first, or was read of it before."""
        heads = dict(self._known or {})
        asked = []
        for shard, numbers in wanted.items():
            if shard not in heads:
                whole = self._is_whole(len({ranges[number].identity[1] for number in numbers}))
                asked.append((shard, whole, self._head(shard, ranges, numbers, whole=whole)))
        try:
            found = await self._base.read_many([first for _, _, first in asked]) if asked else []
        except OutOfRangeError as error:
            raise self._cut_off([shard for shard, _, _ in asked], error) from error
        for (shard, whole, _), answer in zip(asked, found, strict=True):
            heads[shard] = _Head(answer, whole)
        if self._known is not None:
            self._known.update((shard, head) for shard, head in heads.items() if head.answer.state == "value")
        return heads

    def _forget(self, shard: Any) -> None:
        if self._known is not None:
            self._known.pop(shard, None)

    async def _bodies(self, bodies: Sequence[_Body]) -> Sequence[ReadResult | None]:
        """Return an answer for each entry, or None for each if a shard was rewritten and ends before its entry."""
        if not bodies:
            return []
        try:
            return await self._base.read_many([body.range for body in bodies])
        except OutOfRangeError as error:
            now = await self._base.read_many([body.range._replace(start=0, stop=0) for body in bodies])
            if all(answer.generation == body.generation for body, answer in zip(bodies, now, strict=True)):
                raise self._cut_off([body.range.identity for body in bodies], error) from error
            return [None] * len(bodies)

    def _cut_off(self, shards: Sequence[Any], error: OutOfRangeError) -> DataLossError:
        names = ", ".join(dict.fromkeys(self._base.describe(shard) for shard in shards[:3]))
        return DataLossError(f"Error reading {names}: the shard is cut off: {error.message}")

    def _is_whole(self, count: int) -> bool:
        return count >= _WHOLE_SHARE * self._layout.count

    def _head(
        self, shard: Any, ranges: Sequence[ByteRange], numbers: Sequence[int], *, whole: bool
    ) -> ByteRange:
        """Return what is read of a shard first: all of it, or its index; nothing if the caller has it all."""
        known = {ranges[number].if_not_equal for number in numbers}
        if_not_equal = known.pop() if len(known) == 1 else UNKNOWN
        if whole:
            return ByteRange(shard, if_not_equal=if_not_equal)
        if self._layout.at_start:
            return ByteRange(shard, 0, self._layout.index_size, if_not_equal)
        return ByteRange(shard, -self._layout.index_size, None, if_not_equal)

    def _rows(self, head: ReadResult, shard: Any, entries: list[int], *, whole: bool) -> list[list[int]]:
        """Return offset and length of entries; all are missing when the shard is."""
        if head.state != "value":
            return [[MISSING, 0]] * len(entries)
        layout, data = self._layout, memoryview(head.value)
        try:
            start, stop = layout.index_span(len(data)) if whole else (0, len(data))
            rows: list[list[int]] = layout.decode_rows(
                data[start:stop], entries, len(data) if whole else None
            ).tolist()
        except StoreError as error:
            raise error.within(f"Error reading {self._base.describe(shard)}") from error
        return rows
