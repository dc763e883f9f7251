"""The grid of the sub-chunks of shards, and shards as a source of chunks.

Sub-chunks are numbered in the order of the shard's index, which is the order of the array as the sharding codec sees
it: transposes before the codec permute the dimensions.  Shards may hold shards; the sub-chunks are the innermost ones,
and have a number at every level.  Entries are columns: the shard of each, and its number there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from fsstore.chunk.model import RegularAxis
from fsstore.chunk.open_chunks import ByteRange, Source
from fsstore.codec.chain import BoundChain
from fsstore.codec.contract import Array
from fsstore.codec.sharding import MISSING, NO_SIZE, Entries, ShardLayout, are_sound, present_in, shard_damage, shard_of
from fsstore.errors import DataLossError, OutOfRangeError, StoreError
from fsstore.kvstore.contract.batch import REMOTE, AnswerColumns, Ints, Spans, coalesce
from fsstore.kvstore.contract.driver import UNKNOWN, ReadResult, now
from fsstore.kvstore.contract.request import resolve_range
from fsstore.runtime.together import until_settled
from fsstore.runtime.tuning import COLUMNS_FROM, HOP_BYTES

_NEAR = 2**62  # the sum of two such numbers is a number


class EntryRun(Sequence[tuple[Any, int]]):
    """Identities of many entries: entry `i` is number `numbers[i]` of the shard `shards[owners[i]]`."""

    __slots__ = ("numbers", "owners", "shards")

    def __init__(self, shards: Sequence[Any], owners: Ints, numbers: Ints) -> None:
        self.shards, self.owners, self.numbers = shards, owners, numbers

    @classmethod
    def within(cls, shard: Any, numbers: Ints) -> EntryRun:
        """Return entries of one shard."""
        return cls([shard], np.zeros_like(numbers), numbers)

    @classmethod
    def of(cls, identities: Sequence[tuple[Any, int]]) -> EntryRun:
        """Return the run of some identities."""
        places: dict[Any, int] = {}
        owners = [places.setdefault(shard, len(places)) for shard, _ in identities]
        numbers = [number for _, number in identities]
        return cls(list(places), np.array(owners, np.int64), np.array(numbers, np.int64))

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, place: int) -> tuple[Any, int]: ...

    @overload
    def __getitem__(self, place: slice) -> EntryRun: ...

    def __getitem__(self, place: int | slice) -> tuple[Any, int] | EntryRun:
        if isinstance(place, slice):
            return EntryRun(self.shards, self.owners[place], self.numbers[place])
        return self.shards[self.owners[place]], int(self.numbers[place])

    def __iter__(self) -> Iterator[tuple[Any, int]]:
        return zip(map(self.shards.__getitem__, self.owners.tolist()), self.numbers.tolist(), strict=True)

    def by_shard(self) -> dict[Any, Ints]:
        """Return the places of the entries in the run by shard."""
        owners = self.owners
        if len(self.shards) == 1:
            return {self.shards[0]: np.arange(len(owners))} if len(owners) else {}
        order = np.argsort(owners, kind="stable")
        ordered = owners[order]
        edges = [0, *(np.flatnonzero(ordered[1:] != ordered[:-1]) + 1).tolist(), len(order)]
        begins = edges[:-1] if len(order) else []
        shards = map(self.shards.__getitem__, ordered[begins].tolist())
        return {shard: order[begin:end] for shard, begin, end in zip(shards, begins, edges[1:], strict=False)}


class EntryParts(NamedTuple):
    """Parts of larger pieces of bytes, as columns: the place in a run, the piece, the start and the length."""

    places: Ints
    owners: Ints
    starts: Ints
    lengths: Ints

    def among(self, chosen: npt.NDArray[np.bool_]) -> EntryParts:
        """Return the chosen parts."""
        return self if chosen.all() else EntryParts(*[column[chosen] for column in self])

    def spans(self, count: int, limit: int) -> tuple[Spans, Ints]:
        """Return spans that cover the parts of `count` pieces, merging adjacent ones, and the piece of each span.

        The pieces are laid out one behind the other, so that one sort serves them all.
        """
        owners, starts, stops = self.owners, self.starts, self.starts + self.lengths
        if count == 1:
            spans = coalesce(starts, stops, 0, limit)
            return spans, np.zeros_like(spans.starts)
        sizes = np.zeros(count, np.int64)
        np.maximum.at(sizes, owners, stops + 1)  # parts of two pieces never touch
        if float(sizes.sum(dtype=np.float64)) >= _NEAR:  # some lie so far out that there is no room behind them
            return Spans(starts, stops, np.arange(len(starts)), np.zeros_like(starts)), owners
        base = np.cumsum(sizes) - sizes
        shift = base[owners]
        spans = coalesce(starts + shift, stops + shift, 0, limit)
        whose = np.searchsorted(base, spans.starts, side="right") - 1
        shift = base[whose]
        return spans._replace(starts=spans.starts - shift, stops=spans.stops - shift), whose


class RunAnswers:
    """The answers to a run of entries; entries without an answer are missing."""

    __slots__ = ("_sources", "_starts", "_stops", "_where")

    def __init__(self, count: int) -> None:
        self._sources: list[ReadResult] = []
        self._where = np.full(count, -1)
        self._starts, self._stops = np.zeros((2, count), np.int64)

    def give(self, sources: Sequence[ReadResult], pieces: EntryParts) -> None:
        """Answer some entries, each with a part of one of the sources."""
        places, owners, starts, lengths = pieces
        self._where[places] = owners + len(self._sources)
        self._starts[places], self._stops[places] = starts, starts + lengths
        self._sources += sources

    def columns(self) -> AnswerColumns:
        """Return the answers."""
        sources, where = self._sources, self._where

        def generation(number: int) -> bytes:
            return sources[number].generation

        sizes = np.full(len(where), -1)
        time = sources[0].time if sources else now()
        return AnswerColumns(sources, where, self._starts, self._stops, sizes, where, generation, time)


# Entries of shards as a source of chunks, over the source of the shards.

_NONE = np.full((1, 2), MISSING, np.uint64)


class _Body(NamedTuple):
    """A range to read after the index: the number of its request, and the generation that it must have."""

    number: int
    range: ByteRange
    generation: bytes

    def is_answered_by(self, answer: ReadResult | None) -> bool:
        """Return whether an answer has the generation of the index."""
        return answer is not None and answer.state == "value" and answer.generation == self.generation


class _Head(NamedTuple):
    """The first read of a shard: the whole or its index, and the rows of the index, none if the shard is missing."""

    answer: ReadResult
    whole: bool
    rows: Entries


class ShardSource:
    """Entries of shards; an identity is a pair of a shard's identity and an entry's number."""

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
        if len(identities) >= COLUMNS_FROM:
            return await self._read_run(EntryRun.of(identities))
        return await self.read_many(list(map(ByteRange, identities)))

    async def _read_run(self, run: EntryRun) -> Sequence[ReadResult]:
        """Return the result of `read_many` by columns; adjacent entries are read together."""
        source = self._for_one_operation()
        found = RunAnswers(len(run))
        attempt = partial(source._attempt_run, run.numbers, found)
        await until_settled(attempt, run.by_shard(), self.named, reads=True)
        return found.columns()

    async def _attempt_run(self, numbers: Ints, found: RunAnswers, wanted: dict[Any, Ints]) -> dict[Any, Ints]:
        """Answer the wanted entries of each shard, places in a run; return the shards that changed meanwhile."""
        known = await self._heads({shard: numbers[places] for shard, places in wanted.items()})
        heads = [known[shard] for shard in wanted]
        pieces = self._pieces(heads, wanted, numbers)
        is_whole = np.array([head.whole for head in heads])
        if is_whole.any():
            whole = is_whole[pieces.owners]
            found.give([head.answer for head in heads], pieces.among(whole))
            pieces = pieces.among(~whole)
        spans, owners = pieces.spans(len(heads), REMOTE.max_size)
        shards = list(wanted)
        bodies = [
            _Body(number, ByteRange(shards[owner], low, high), heads[owner].answer.generation)
            for number, (owner, low, high) in enumerate(
                zip(owners.tolist(), spans.starts.tolist(), spans.stops.tolist(), strict=True)
            )
        ]
        answers = await self._bodies(bodies)
        pairs = zip(bodies, answers, strict=True)
        changed = dict.fromkeys(body.range.identity for body, got in pairs if not body.is_answered_by(got))
        self._forget(changed)
        same = np.array([shard not in changed for shard in shards])[pieces.owners]
        pieces = EntryParts(pieces.places, spans.where, spans.offset, pieces.lengths).among(same)
        found.give([answer for answer in answers if answer is not None], pieces)
        return {shard: wanted[shard] for shard in changed}

    def _pieces(self, heads: Sequence[_Head], wanted: Mapping[Any, Ints], numbers: Ints) -> EntryParts:
        """Return the positions of present entries in their shards; all rows of the indexes are checked."""
        columns = [numbers[places] for places in wanted.values()]
        rows = np.concatenate(
            [
                head.rows[column] if head.answer.state == "value" else np.broadcast_to(_NONE, (len(column), 2))
                for head, column in zip(heads, columns, strict=True)
            ]
        )
        owners = np.repeat(np.arange(len(heads)), list(map(len, columns)))
        sizes = [len(head.answer.value) if head.whole else NO_SIZE for head in heads]
        if not are_sound(rows, owners, sizes):  # checking one by one finds the damaged entry
            for head, shard, column in zip(heads, wanted, columns, strict=True):
                self._rows(head, shard, column)
        present = present_in(rows)
        starts, lengths = rows.view(np.int64).T
        return EntryParts(np.concatenate(list(wanted.values())), owners, starts, lengths).among(present)

    def describe(self, identity: Any) -> str:
        """Return the name of an entry for messages."""
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
        await until_settled(partial(source._attempt, ranges, answers), wanted, self.named, reads=True)
        return answers

    def _for_one_operation(self) -> ShardSource:
        return self if self._known is not None else ShardSource(self._base.remembering(), self._layout)

    def named(self, shards: Iterable[Any]) -> str:
        """Return the names of shards, for messages."""
        return ", ".join(map(self._base.describe, shards))

    async def _attempt(
        self, ranges: Sequence[ByteRange], answers: list[Any], wanted: dict[Any, list[int]]
    ) -> dict[Any, list[int]]:
        """Answer the wanted entries of each shard; return the shards that changed meanwhile."""
        entries = {shard: [ranges[number].identity[1] for number in numbers] for shard, numbers in wanted.items()}
        heads = await self._heads(entries, {shard: _known(ranges, wanted[shard]) for shard in wanted})
        bodies: list[_Body] = []
        for shard, numbers in wanted.items():
            head, whole, _ = heads[shard]
            absent = head if head.state != "value" else ReadResult("missing", b"", *head[2:])
            data = memoryview(head.value)
            rows = _sound_rows(heads[shard], entries[shard])
            if rows is None:
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
                    bodies.append(_Body(number, ByteRange(shard, offset + low, offset + high), head.generation))
        changed: dict[Any, list[int]] = {}
        for body, answer in zip(bodies, await self._bodies(bodies), strict=True):
            answers[body.number] = answer
            if not body.is_answered_by(answer):
                changed[body.range.identity] = wanted[body.range.identity]
        self._forget(changed)
        return changed

    async def _heads(
        self, wanted: Mapping[Any, Sequence[int] | Ints], known: Mapping[Any, bytes] | None = None
    ) -> dict[Any, _Head]:
        """Return the first read of each shard, new or remembered.

        `known` are generations that the caller has.
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
        indexes = self._indexes(asked, found)
        for (shard, whole), answer, rows in zip(asked.items(), found, indexes, strict=True):
            heads[shard] = _Head(answer, whole, rows)
        if self._known is not None:
            self._known.update((shard, head) for shard, head in heads.items() if head.answer.state == "value")
        return heads

    def _forget(self, shards: Iterable[Any]) -> None:
        known = {} if self._known is None else self._known
        for shard in shards:
            known.pop(shard, None)

    async def _bodies(self, bodies: Sequence[_Body]) -> Sequence[ReadResult | None]:
        """Return an answer for each entry; None for all if a shard was rewritten and now ends before its entry."""
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
        least = 0.5 * self._layout.count
        return len(numbers) >= least and len(set(numbers)) >= least

    def _head(self, shard: Any, known: bytes, *, whole: bool) -> ByteRange:
        """Return the first range to read of a shard: the whole, or its index; none if the caller has the whole."""
        if whole:
            return ByteRange(shard, if_not_equal=known)
        if self._layout.at_start:
            return ByteRange(shard, 0, self._layout.index_size, known)
        return ByteRange(shard, -self._layout.index_size, None, known)

    def _indexes(self, asked: Mapping[Any, bool], heads: Sequence[ReadResult]) -> list[Entries]:
        """Return the unchecked indexes of shards; all entries of a missing shard are missing."""
        encoded: dict[Any, memoryview] = {}
        shard: Any = None
        try:
            for (shard, whole), head in zip(asked.items(), heads, strict=True):
                if head.state == "value":
                    data = memoryview(head.value)
                    encoded[shard] = data[slice(*self._layout.index_span(len(data)))] if whole else data
            together = self._layout.unpacked_together(list(encoded.values())) if len(encoded) > 1 else None
            found = dict(zip(encoded, together or (), strict=False))
            for shard in asked if together is None else ():
                found[shard] = self._layout.unpacked(encoded[shard]) if shard in encoded else _NONE
        except StoreError as error:
            raise error.within(f"Error reading {self._base.describe(shard)}") from error
        return [found.get(shard, _NONE) for shard in asked]

    def _rows(self, head: _Head, shard: Any, numbers: Sequence[int] | Ints) -> Entries:
        if head.answer.state != "value":
            return np.broadcast_to(_NONE, (len(numbers), 2))
        return self._checked(head.rows[numbers], numbers, shard, len(head.answer.value) if head.whole else None)

    def _checked(self, rows: Entries, numbers: Sequence[int] | Ints, shard: Any, size: int | None) -> Entries:
        try:
            return self._layout.checked(rows, numbers, size)
        except StoreError as error:
            raise error.within(f"Error reading {self._base.describe(shard)}") from error


class EntriesInParts(ShardSource):
    """Entries of one shard that is read part by part: its index is read once, unless the shard changes.

    `generations` are those seen of the shard.  `complete` means that every entry will be read, so every row of the
    index has to be valid.
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

    def _indexes(self, asked: Mapping[Any, bool], heads: Sequence[ReadResult]) -> list[Entries]:
        found = super()._indexes(asked, heads)
        for shard, head, rows in zip(asked, heads, found, strict=True):
            self.generations.add(head.generation)
            if self._complete and head.state == "value":
                self._checked(rows, range(len(rows)), shard, head.size)
        return found


def _sound_rows(head: _Head, numbers: Sequence[int]) -> list[Any] | None:
    """Return offset and length of a few entries, checked one by one; None if something may be wrong."""
    if head.answer.state != "value":
        return [(MISSING, MISSING)] * len(numbers)
    rows: list[Any] = head.rows[numbers].tolist()
    size, behind = len(head.answer.value) if head.whole else NO_SIZE, 0
    for offset, length in sorted(rows) if head.whole else rows:
        if offset == length == MISSING:
            continue
        if offset + length > size or (head.whole and offset < behind):
            return None
        behind = offset + length
    return rows


def _known(ranges: Sequence[ByteRange], numbers: Sequence[int]) -> bytes:
    """Return the generation that the caller has of all entries of a shard, if it is a single one."""
    known = {ranges[number].if_not_equal for number in numbers}
    return known.pop() if len(known) == 1 else UNKNOWN


class ShardGrid(NamedTuple):
    """Sub-chunks, by dimension of the array.

    `layouts` are those of nested shards, outermost first; `orders` is the order of the array's dimensions in each;
    `levels` is the numbering of sub-chunks at each.  `shape` is the shape of a sub-chunk, `axes` are the boundaries of
    sub-chunks, and `order` is the order of the array's dimensions in the bytes of one, None if these are more than
    transposed.
    """

    layouts: list[ShardLayout]
    orders: list[tuple[int, ...]]
    levels: list[Numbering]
    shape: tuple[int, ...]
    axes: list[RegularAxis]
    order: tuple[int, ...] | None

    @property
    def layout(self) -> ShardLayout:
        """The layout of the shards that hold the sub-chunks."""
        return self.layouts[-1]

    def numbering(self, inside: int = 0) -> list[Numbering]:
        """Return the numbering of sub-chunks at each level, with dimensions `inside` the elements, which are never
        divided.
        """
        return [level.followed_by(inside) for level in self.levels] if inside else self.levels

    def source(self, base: Source) -> Source:
        """Return the source of entries over a source of shards."""
        for layout in self.layouts:
            base = ShardSource(base, layout)
        return base

    def source_of_parts(self, base: Source, *, complete: bool) -> EntriesInParts:
        """Return the source of a shard that is read part by part; with `complete`, all of it."""
        for layout in self.layouts[:-1]:
            base = EntriesInParts(base, layout, complete=complete)
        return EntriesInParts(base, self.layout, complete=complete)

    def depth(self, most: int) -> int:
        """Return the number of levels to open for parts of at most `most` bytes."""
        sizes = [layout.inner.decoded_size for layout in self.layouts[:-1]]
        return 1 + next((level for level, size in enumerate(sizes) if size <= most), len(sizes))

    @property
    def worth_sharing(self) -> bool:
        """Whether decoding sub-chunks is enough work to divide a shard between workers, more than copying."""
        size = self.layout.inner.encoded_size
        return size is None or size >= 2 * HOP_BYTES

    @property
    def in_order(self) -> bool:
        """Whether sub-chunks have their dimensions in the array's order."""
        order = self.orders[-1]
        return order == tuple(range(len(order)))

    def in_array_order(self, chunk: Array, lead: int = 0) -> Array:
        """Return a view of a sub-chunk with its dimensions in the array's order; others may follow, or `lead`."""
        if self.in_order:
            return chunk
        order = lead + np.argsort(self.orders[-1])
        return chunk.transpose(*range(lead), *order.tolist(), *range(lead + len(order), chunk.ndim))

    def in_stored_order(self, part: Array) -> Array:
        """Return a view of a part of the array with its dimensions in the order of sub-chunks."""
        order = self.orders[-1]
        return part if self.in_order else part.transpose(*order, *range(len(order), part.ndim))


@lru_cache(maxsize=64)
def shard_grid(chain: BoundChain, depth: int | None = None) -> ShardGrid:
    """Return the grid of the sub-chunks of a chain, at most `depth` levels deep."""
    layouts: list[ShardLayout] = []
    orders: list[tuple[int, ...]] = []
    order = tuple(range(len(chain.chunk.shape)))
    while len(layouts) != depth and (shard := shard_of(chain)) is not None and chain.order is not None:
        order = tuple([order[axis] for axis in chain.order])
        layouts.append(shard)
        orders.append(order)
        chain = shard.inner
    sizes = dict(zip(order, layouts[-1].sub_shape, strict=True))
    inner = None if chain.order is None else tuple([order[axis] for axis in chain.order])
    shape = tuple([sizes[axis] for axis in range(len(sizes))])
    levels = [Numbering.of(*level, shape) for level in zip(layouts, orders, strict=True)]
    return ShardGrid(layouts, orders, levels, shape, list(map(RegularAxis, shape, levels[0].shard)), inner)


class Numbering(NamedTuple):
    """By dimension of the array, in sub-chunks of the finest level: the extent of a shard and of an entry, and the
    increase of an entry's number along the dimension.
    """

    shard: list[int]
    entry: list[int]
    stride: list[int]

    @classmethod
    def of(cls, layout: ShardLayout, order: Sequence[int], sizes: Sequence[int]) -> Numbering:
        """Return the numbering of one level."""
        place = np.argsort(order)
        entry = [layout.sub_shape[at] // size for at, size in zip(place, sizes, strict=True)]
        shard = [layout.grid[at] * each for at, each in zip(place, entry, strict=True)]
        stride = [math.prod(layout.grid[at + 1 :]) for at in place]
        return cls(shard, entry, stride)

    def followed_by(self, inside: int) -> Numbering:
        """Return the numbering with dimensions inside the elements, which are never divided."""
        return Numbering([*self.shard, *[1] * inside], [*self.entry, *[1] * inside], [*self.stride, *[0] * inside])

    def add(self, output: int, number: Any) -> Any:
        """Return the contribution of a position, or of many, along a dimension to an entry's number."""
        return number % self.shard[output] // self.entry[output] * self.stride[output]
