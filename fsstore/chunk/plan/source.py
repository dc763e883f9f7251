"""Where the bytes of chunks come from: values of a key-value store, or entries of the shards in it.

A source answers a batch of byte ranges of opaque identities.  A shard is a source over another source, so nested
shards need nothing more: the index of every shard in a batch is read in one call below, the entries in another.  An
index and the entries it points to must be of one generation; a shard rewritten in between is read again.  As both calls
go through the index of the same outer shard, a source of shards within shards remembers it for the second.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any, NamedTuple, Protocol, overload

import numpy as np

from fsstore.chunk.tuning import SHARD_READ_ATTEMPTS, WHOLE_SHARD_SHARE
from fsstore.codec.chain.shard_layout import MISSING, Entries, ShardLayout, shard_damage
from fsstore.errors import AbortedError, DataLossError, OutOfRangeError, StoreError
from fsstore.kvstore.contract.ability import ReadsWhole, able
from fsstore.kvstore.contract.answer_columns import AnswerColumns
from fsstore.kvstore.contract.byte_range import resolve_range
from fsstore.kvstore.contract.coalesce import REMOTE, Ints, Spans, coalesce
from fsstore.kvstore.contract.driver import UNKNOWN, KvPrefix, Read, ReadResult, now

__all__ = ["ByteRange", "EntriesInParts", "EntryRun", "KvSource", "ShardSource", "Source"]

_NONE = np.full((1, 2), MISSING, np.uint64)


class ByteRange(NamedTuple):
    """A range of the bytes behind an identity; a negative start counts from the end.

    `if_not_equal` names a generation the caller has: the answer then may be "unspecified".
    """

    identity: Any
    start: int = 0
    stop: int | None = None
    if_not_equal: bytes = UNKNOWN


class EntryRun(Sequence[tuple[Any, int]]):
    """Identities of many entries of one shard: pairs of the shard's and a number, made when they are asked for."""

    __slots__ = ("numbers", "shard")

    def __init__(self, shard: Any, numbers: Ints) -> None:
        self.shard, self.numbers = shard, numbers

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self.numbers)

    @overload
    def __getitem__(self, place: int) -> tuple[Any, int]: ...

    @overload
    def __getitem__(self, place: slice) -> EntryRun: ...

    def __getitem__(self, place: int | slice) -> tuple[Any, int] | EntryRun:
        """Return one identity, or a run of some."""
        if isinstance(place, slice):
            return EntryRun(self.shard, self.numbers[place])
        return self.shard, int(self.numbers[place])

    def __iter__(self) -> Iterator[tuple[Any, int]]:
        """Yield the identities."""
        return zip(repeat(self.shard), self.numbers.tolist(), strict=False)


class _Body(NamedTuple):
    """A range to read after the index: for which request, and of which generation it must be."""

    number: int
    range: ByteRange
    generation: bytes

    def is_answered_by(self, answer: ReadResult | None) -> bool:
        """Return whether an answer is of the generation of the index."""
        return answer is not None and answer.state == "value" and answer.generation == self.generation


class _Head(NamedTuple):
    """The first read of a shard, all of it or its index, and the rows of the index, none where it is missing."""

    answer: ReadResult
    whole: bool
    rows: Entries


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
        whole = able(driver, ReadsWhole)
        if whole is not None:
            return await whole.read_whole(keys)
        return await driver.read_many(list(map(Read, keys)))

    def describe(self, identity: Any) -> str:
        """Return how messages call a key, which says where in the array the chunk lies: it is made of that."""
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
        if isinstance(identities, EntryRun):
            return await self._read_run(identities)
        return await self.read_many(list(map(ByteRange, identities)))

    async def _read_run(self, run: EntryRun) -> Sequence[ReadResult]:
        """Return what `read_many` does, by columns: entries that lie next to each other are read as one."""
        source = self._for_one_operation()
        for _ in range(SHARD_READ_ATTEMPTS):
            head = (await source._heads({run.shard: run.numbers}))[run.shard]
            rows = source._rows(head, run.shard, run.numbers)
            places = np.flatnonzero(self._layout.present(rows))
            spans, lengths = _spans(rows[places], whole=head.whole)
            sources = [head.answer] if head.whole else await source._spans(run.shard, spans, head)
            if sources is not None:
                return _answer_columns(sources, spans, lengths).among(places, len(run))
            source._forget(run.shard)
        raise self._never_at_rest([run.shard])

    async def _spans(self, shard: Any, spans: Spans, head: _Head) -> Sequence[ReadResult] | None:
        """Return what lies in parts of a shard, None if the shard has changed since its index was read."""
        pairs = zip(spans.starts.tolist(), spans.stops.tolist(), strict=True)
        bodies = [_Body(0, ByteRange(shard, low, high), head.answer.generation) for low, high in pairs]
        found = zip(bodies, await self._bodies(bodies), strict=True)
        answers = [answer for body, answer in found if answer is not None and body.is_answered_by(answer)]
        return answers if len(answers) == len(bodies) else None

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
        source = self._for_one_operation()
        for _ in range(SHARD_READ_ATTEMPTS):
            if not wanted:
                return answers
            wanted = await source._attempt(wanted, ranges, answers)
        raise self._never_at_rest(wanted)

    def _for_one_operation(self) -> ShardSource:
        return self if self._known is not None else ShardSource(self._base.remembering(), self._layout)

    def _never_at_rest(self, shards: Iterable[Any]) -> AbortedError:
        names = ", ".join(map(self._base.describe, shards))
        return AbortedError(f"{names} was rewritten again and again while it was read; try again")

    async def _attempt(
        self, wanted: dict[Any, list[int]], ranges: Sequence[ByteRange], answers: list[Any]
    ) -> dict[Any, list[int]]:
        """Answer what is wanted of each shard; return the shards that changed meanwhile."""
        entries = {
            shard: [ranges[number].identity[1] for number in numbers] for shard, numbers in wanted.items()
        }
        heads = await self._heads(entries, {shard: _known(ranges, wanted[shard]) for shard in wanted})
        bodies: list[_Body] = []
        for shard, numbers in wanted.items():
            head, whole, _ = heads[shard]
            absent = head if head.state != "value" else ReadResult("missing", b"", *head[2:])
            data = memoryview(head.value)
            rows = self._rows(heads[shard], shard, entries[shard]).tolist()
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
            if not body.is_answered_by(answer):
                changed[body.range.identity] = wanted[body.range.identity]
        for shard in changed:
            self._forget(shard)
        return changed

    async def _heads(
        self, wanted: Mapping[Any, Sequence[int] | Ints], known: Mapping[Any, bytes] | None = None
    ) -> dict[Any, _Head]:
        """Return what is read of each shard first, or was read of it before.

        `known` are generations the caller has.
        """
        heads = dict(self._known or {})
        asked = {shard: self._is_whole(numbers) for shard, numbers in wanted.items() if shard not in heads}
        if not asked:
            return heads
        known = known or {}
        firsts = [self._head(shard, known.get(shard, UNKNOWN), whole=whole) for shard, whole in asked.items()]
        try:
            found = await self._base.read_many(firsts)
        except OutOfRangeError as error:
            raise self._cut_off(list(asked), error) from error
        for (shard, whole), answer in zip(asked.items(), found, strict=True):
            heads[shard] = _Head(answer, whole, self._index(answer, shard, whole=whole))
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
        return shard_damage(f"Error reading {names}: the shard is cut off: {error.message}")

    def _is_whole(self, numbers: Sequence[int] | Ints) -> bool:
        least = WHOLE_SHARD_SHARE * self._layout.count
        return len(numbers) >= least and len(set(numbers)) >= least

    def _head(self, shard: Any, known: bytes, *, whole: bool) -> ByteRange:
        """Return what is read of a shard first: all of it, or its index; nothing if the caller has it all."""
        if whole:
            return ByteRange(shard, if_not_equal=known)
        if self._layout.at_start:
            return ByteRange(shard, 0, self._layout.index_size, known)
        return ByteRange(shard, -self._layout.index_size, None, known)

    def _index(self, head: ReadResult, shard: Any, *, whole: bool) -> Entries:
        """Return the index of a shard, not checked; all entries are missing when the shard is."""
        if head.state != "value":
            return _NONE
        data = memoryview(head.value)
        try:
            start, stop = self._layout.index_span(len(data)) if whole else (0, len(data))
            return self._layout.unpacked(data[start:stop])
        except StoreError as error:
            raise error.within(f"Error reading {self._base.describe(shard)}") from error

    def _rows(self, head: _Head, shard: Any, numbers: Sequence[int] | Ints) -> Entries:
        """Return offset and length of entries, all of them valid."""
        if head.answer.state != "value":
            return np.broadcast_to(_NONE, (len(numbers), 2))
        return self._checked(
            head.rows[numbers], numbers, shard, len(head.answer.value) if head.whole else None
        )

    def _checked(self, rows: Entries, numbers: Sequence[int] | Ints, shard: Any, size: int | None) -> Entries:
        try:
            return self._layout.checked(rows, numbers, size)
        except StoreError as error:
            raise error.within(f"Error reading {self._base.describe(shard)}") from error


class EntriesInParts(ShardSource):
    """Entries of one shard that is read part by part: its index is read once, unless the shard changes.

    `generations` are those in which the shard was found.  If it is `complete`, every entry will be asked for, so every
    row of the index has to be valid.
    """

    __slots__ = ("_complete", "generations")

    def __init__(self, base: Source, layout: ShardLayout, *, complete: bool) -> None:
        super().__init__(base, layout, {})
        self._complete = complete
        self.generations: set[bytes] = set()

    def remembering(self) -> EntriesInParts:
        """Return the source itself."""
        return self

    def _is_whole(self, numbers: Sequence[int] | Ints) -> bool:
        return False

    def _index(self, head: ReadResult, shard: Any, *, whole: bool) -> Entries:
        self.generations.add(head.generation)
        rows = super()._index(head, shard, whole=whole)
        if self._complete and head.state == "value":
            self._checked(rows, range(len(rows)), shard, head.size)
        return rows


def _known(ranges: Sequence[ByteRange], numbers: Sequence[int]) -> bytes:
    """Return the generation the caller has of the entries of a shard, if it is one."""
    known = {ranges[number].if_not_equal for number in numbers}
    return known.pop() if len(known) == 1 else UNKNOWN


def _spans(rows: Entries, *, whole: bool) -> tuple[Spans, Ints]:
    """Return what is read of a shard for some entries, and how long these are; nothing if all of the shard is there."""
    starts, lengths = rows.astype(np.int64).T
    if whole:
        zero = np.zeros_like(starts)
        return Spans(zero, zero, zero, starts), lengths
    return coalesce(starts, starts + lengths, 0, REMOTE.max_size), lengths


def _answer_columns(sources: Sequence[ReadResult], spans: Spans, lengths: Ints) -> AnswerColumns:
    def stamp(number: int) -> tuple[bytes, int | None]:
        return sources[number].generation, sources[number].size

    time = sources[0].time if sources else now()
    return AnswerColumns(sources, spans.where, spans.offset, spans.offset + lengths, spans.where, stamp, time)
