"""The `neuroglancer_uint64_sharded` key-value store: values by 64-bit numbers, in the shards of Neuroglancer.

A key is the eight bytes of a number, most significant first.  Eight bytes more, the length of something, ask for what
lies that far before the value in the file (multi-resolution meshes are found so); such keys are only read.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain, repeat
from typing import Any, ClassVar, NamedTuple, TypeAlias, TypeVar

import numpy as np

from fsstore.errors import OutOfRangeError, StoreError
from fsstore.kvstore.contract.driver import (
    UNKNOWN,
    AdapterKind,
    Buffer,
    Entry,
    KvOpening,
    KvPrefix,
    Read,
    ReadResult,
    Write,
)
from fsstore.kvstore.contract.request import KeyRange, key_bytes, key_text, resolve_range
from fsstore.kvstore.shard import Changes, Rewriting, shard_features
from fsstore.kvstore.spec_parse import as_directory
from fsstore.precomputed.shard_layout import (
    Minishard,
    Sharding,
    build_shard,
    decode_entry,
    decode_index,
    entries_of,
    gunzip,
    gzip,
    parse_sharding,
)
from fsstore.runtime import execution, fork
from fsstore.runtime.together import ChangedError, until_settled, until_unchanged
from fsstore.runtime.tuning import KEPT, KEPT_BYTES, ROWS_AT_ONCE
from fsstore.values.json_value import Fields, Json, quote

# Reading: entries, indexes and values, each step one batch for all files.

T = TypeVar("T")
_EMPTY = Minishard(np.zeros(0, np.uint64), np.zeros(0, np.uint64), np.zeros(0, np.uint64))

Place: TypeAlias = tuple[int, int]
"""The numbers of a file and of a minishard."""


class Index(NamedTuple):
    """An index as read: its generation is that of the file."""

    minishard: Minishard
    generation: bytes
    time: float
    is_kept: bool = False


class Indexes:
    """The indexes of the files below `base`.  Thread-safe."""

    def __init__(self, base: KvPrefix, sharding: Sharding) -> None:
        self.base, self.sharding = base, sharding
        self._kept: OrderedDict[Place, Index] = OrderedDict()
        self._bytes = 0
        self._blocks: OrderedDict[Place, ReadResult] = OrderedDict()
        self._lock = fork.lock()

    async def find(self, places: Iterable[Place], *, fresh: bool) -> dict[Place, Index]:
        """Return the indexes at some places; unless `fresh`, those that are kept are not looked at again."""
        found: dict[Place, Index] = {}
        wanted = []
        for place in dict.fromkeys(places):
            kept = self._known(place)
            if kept is not None and not fresh:
                found[place] = kept._replace(is_kept=True)
            else:
                wanted.append((place, kept))
        if wanted:
            found |= await self._read(wanted)
        return found

    async def _read(self, wanted: Sequence[tuple[Place, Index | None]]) -> dict[Place, Index]:
        file = self.sharding.file_name(wanted[0][0][0])
        return await until_unchanged(partial(self._attempt, wanted), partial(self.base.describe, file), reads=True)

    async def _attempt(self, wanted: Sequence[tuple[Place, Index | None]]) -> dict[Place, Index]:
        """Return the indexes; raise `ChangedError` if a file changed between the steps."""
        entries, kept = await self._entries(wanted)
        found: dict[Place, Index] = {}
        spans: dict[Place, tuple[int, int]] = {}
        for place, known in wanted:
            answer = entries[place]
            if answer.state == "unspecified" and known is not None:
                found[place] = known._replace(time=answer.time)
                continue
            found[place] = Index(_EMPTY, answer.generation, answer.time)
            if answer.state == "value":
                span = self._located(place, decode_entry, answer.value)
                if span[0] < span[1]:
                    spans[place] = span
        reads = [Read(self._file(place), *span) for place, span in spans.items()]
        try:
            answers = await self.base.read_many(reads) if reads else []
        except StoreError as error:
            if kept:  # entries that were kept may be of a file that is gone
                self._forget_blocks(kept)
                raise ChangedError from None
            raise error.within(f"Error reading minishard {next(iter(spans))[1]}") from None
        for (place, _), answer in zip(spans.items(), answers, strict=True):
            if answer.state != "value" or answer.generation != found[place].generation:
                self._forget_blocks(kept)
                raise ChangedError
            index = self._located(place, decode_index, answer.value)
            found[place] = Index(index, answer.generation, answer.time)
        for place, read in found.items():
            self._keep(place, read)
        return found

    async def _entries(
        self, wanted: Sequence[tuple[Place, Index | None]]
    ) -> tuple[dict[Place, ReadResult], set[Place]]:
        """Return the entries of places, and the blocks that were known before, as others look at their file."""
        entries: dict[Place, ReadResult] = {}
        kept: set[Place] = set()
        left: dict[Place, Read] = {}
        for place, known in wanted:
            block = place[0], place[1] // ROWS_AT_ONCE
            entry = None if known is not None else self._kept_entry(block, place[1] % ROWS_AT_ONCE)
            if entry is not None:
                entries[place] = entry
                kept.add(block)
            elif known is None:
                low = 16 * ROWS_AT_ONCE * block[1]
                left[place] = Read(self._file(place), low, min(low + 16 * ROWS_AT_ONCE, self.sharding.index_size))
            else:
                left[place] = self._entry(place, known.generation)
        reads = dict.fromkeys(left.values())
        try:
            answers = dict(zip(reads, await self.base.read_many(list(reads)), strict=True)) if reads else {}
        except OutOfRangeError:  # a file whose index is cut off: what is left of it may be asked for
            found = await self.base.read_many([self._entry(place, UNKNOWN) for place in left])
            return entries | dict(zip(left, found, strict=True)), kept
        for place, read in left.items():
            answer = answers[read]
            if answer.state == "value" and read.if_not_equal == UNKNOWN:
                block = place[0], place[1] // ROWS_AT_ONCE
                self._keep_block(block, answer)
                answer = _part(answer, place[1] % ROWS_AT_ONCE)
            entries[place] = answer
        return entries, kept

    def _kept_entry(self, block: Place, number: int) -> ReadResult | None:
        """Return an entry that is known, unless it points nowhere: then nothing that is read next would confirm it."""
        with self._lock:
            answer = self._blocks.get(block)
        if answer is None:
            return None
        entry = _part(answer, number)
        low, high = (int.from_bytes(entry.value[at : at + 8], "little") for at in (0, 8))
        return entry if low < high else None

    def _keep_block(self, block: Place, answer: ReadResult) -> None:
        if answer.generation == UNKNOWN:
            return
        with self._lock:
            self._blocks[block] = answer._replace(value=bytes(answer.value))
            while len(self._blocks) > KEPT:
                self._blocks.popitem(last=False)

    def _forget_blocks(self, blocks: Iterable[Place]) -> None:
        with self._lock:
            for block in blocks:
                self._blocks.pop(block, None)

    def _file(self, place: Place) -> str:
        return self.sharding.file_name(place[0])

    def _entry(self, place: Place, known: bytes) -> Read:
        return Read(self._file(place), 16 * place[1], 16 * place[1] + 16, known)

    def _located(self, place: Place, decode: Callable[[Sharding, Buffer], T], data: Buffer) -> T:
        try:
            return decode(self.sharding, data)
        except StoreError as error:
            where = f"Error reading minishard {place[1]} in {self.base.describe(self._file(place))}"
            raise error.within(where) from None

    def _known(self, place: Place) -> Index | None:
        with self._lock:
            found = self._kept.get(place)
            if found is not None:
                self._kept.move_to_end(place)
            return found

    def _keep(self, place: Place, index: Index) -> None:
        if index.generation == UNKNOWN or not len(index.minishard.ids):
            return
        with self._lock:
            old = self._kept.pop(place, None)
            self._bytes += _size(index) - (0 if old is None else _size(old))
            self._kept[place] = index
            while self._bytes > KEPT_BYTES and len(self._kept) > 1:
                self._bytes -= _size(self._kept.popitem(last=False)[1])


def _part(answer: ReadResult, number: int) -> ReadResult:
    """Return the answer for one entry out of that for a block."""
    return answer._replace(value=answer.value[16 * number : 16 * number + 16])


def _size(index: Index) -> int:
    return 24 * len(index.minishard.ids) + 200


def missing(index: Index) -> ReadResult:
    """Return the answer for a value that an index has not: with the generation of the file."""
    return ReadResult("missing", b"", index.generation, index.time)


_Spots = list[tuple[int, Any]]


def key_of(number: int) -> str:
    """Return the key of a value."""
    return key_text(number.to_bytes(8, "big"))


class Uint64ShardedDriver(Rewriting):
    """The values in the shards below `base`.

    `filling` says how many values fill a file, given its number; files that a batch of writes fills are not read.
    """

    id: ClassVar[str] = "neuroglancer_uint64_sharded"

    def __init__(self, base: KvPrefix, sharding: Sharding, filling: Callable[[int], int | None] | None = None) -> None:
        self.base, self.sharding, self._filling = base, sharding, filling
        self.features = shard_features(base.driver.features)
        self._indexes = Indexes(base, sharding)

    def __eq__(self, other: object) -> bool:
        """Return whether `other` shows the same values."""
        if not isinstance(other, Uint64ShardedDriver):
            return False
        return self.base == other.base and self.sharding == other.sharding

    def __hash__(self) -> int:
        """Return a hash that agrees with equality."""
        return hash((self.base, self.sharding))

    # --- reading

    async def read_many(self, reads: Sequence[Read]) -> list[ReadResult]:
        """Return one result for each of `reads`; the values come in one batch, after their indexes in two."""
        results: list[ReadResult | None] = [None] * len(reads)
        keys = [self._parsed(read.key) for read in reads]
        ids = np.array([key[0] for key in keys], np.uint64)
        shards, minishards = self.sharding.locate(ids)
        places = list(zip(shards.tolist(), minishards.tolist(), strict=True))

        async def attempt(asked: list[int]) -> list[int]:
            indexes = await self._indexes.find([places[at] for at in asked], fresh=next(fresh))
            wanted: _Spots = []
            left = []
            for at, index, row in _found(indexes, asked, places, ids):
                answer = self._answer(reads[at], keys[at][1], places[at][0], (index, row))
                if isinstance(answer, Read):
                    wanted.append((at, (answer, index)))
                elif index.is_kept:
                    left.append(at)
                else:
                    results[at] = answer
            return left + await self._values(wanted, keys, results)

        fresh = chain((False,), repeat(True))
        everything = list(range(len(reads)))
        await until_settled(attempt, everything, lambda left: self.describe_key(reads[left[0]].key), reads=True)
        return self._decoded(reads, results)

    def _answer(self, read: Read, before: int | None, shard: int, found: tuple[Index, int]) -> Read | ReadResult:
        index, row = found
        if row < 0:
            return missing(index)
        if read.if_not_equal == index.generation != UNKNOWN:
            return ReadResult("unspecified", b"", index.generation, index.time)
        start, stop = int(index.minishard.starts[row]), int(index.minishard.stops[row])
        if before is not None:
            if before > start:
                raise OutOfRangeError(f"Requested size {before} exceeds chunk offset {start}")
            start, stop = start - before, start
        size = stop - start
        plain = self.sharding.data_encoding == "raw" or before is not None
        if plain and (read.start or read.stop is not None):
            try:
                low, high = resolve_range(read.start, read.stop, size)
            except StoreError as error:
                if index.is_kept:  # which may be of another size by now
                    return missing(index)
                raise error.within(f"Error reading {self.describe_key(read.key)}") from None
            start, stop = start + low, start + high
        if start == stop:
            return ReadResult("value", b"", index.generation, index.time, size)
        return Read(self.sharding.file_name(shard), start, stop, staleness_bound=read.staleness_bound)

    def _shard(self, number: int) -> int:
        return int(self.sharding.locate(np.array([number], np.uint64))[0][0])

    async def _values(self, wanted: _Spots, keys: Sequence[Any], results: list[ReadResult | None]) -> list[int]:
        """Read values; return which must be looked up again because their file is another by now."""
        if not wanted:
            return []
        try:
            answers = await self.base.read_many([read for _, (read, _) in wanted])
        except StoreError as error:
            if any(index.is_kept for _, (_, index) in wanted):
                return [at for at, _ in wanted]
            raise error.within(f"Error reading {self._describe(keys[wanted[0][0]][0])}") from None
        again = []
        for (at, (_, index)), answer in zip(wanted, answers, strict=True):
            if answer.state != "value" or answer.generation != index.generation:
                again.append(at)
            else:
                results[at] = answer._replace(size=None)
        return again

    def _decoded(self, reads: Sequence[Read], results: Sequence[ReadResult | None]) -> list[ReadResult]:
        found = [result for result in results if result is not None]
        if self.sharding.data_encoding == "raw":
            return found
        return execution.map_blocking(self._inflated, list(zip(reads, found, strict=True)))

    def _inflated(self, pair: tuple[Read, ReadResult]) -> ReadResult:
        read, answer = pair
        if answer.state != "value" or len(key_bytes(read.key)) > 8:
            return answer
        try:
            value = gunzip(answer.value)
            low, high = resolve_range(read.start, read.stop, len(value))
        except StoreError as error:
            raise error.within(f"Error reading {self.describe_key(read.key)}") from None
        return answer._replace(value=memoryview(value)[low:high], size=len(value))

    def _parsed(self, key: str) -> tuple[int, int | None]:
        """Return the number that a key is, and how far before the value is asked for."""
        data = key_bytes(key)
        if len(data) not in (8, 16):
            raise StoreError(f"Invalid key: {quote(key)}")
        return int.from_bytes(data[:8], "big"), int.from_bytes(data[8:], "big") if len(data) > 8 else None

    async def scan(self, keys: KeyRange) -> AsyncIterator[Sequence[Entry]]:
        """Yield the keys in the range, file by file in order of their numbers; each file is read."""
        names: list[str] = []
        async for batch in self.base.scan():
            names += [entry.key for entry in batch if self.sharding.shard_of_name(entry.key) is not None]
        for name in sorted(names):
            answer = await self.base.read(name)
            if answer.state != "value":
                continue
            for _, index in self._entries(name, answer.value):
                known = [key_of(number) for number in np.sort(index.ids).tolist()]
                yield [Entry(key) for key in known if keys.contains(key)]

    def _entries(self, file: str, data: Buffer) -> list[tuple[int, Any]]:
        try:
            return list(entries_of(self.sharding, data))
        except StoreError as error:
            raise error.within(f"Error reading {self.base.describe(file)}") from None

    # --- writing

    def file_of(self, key: str) -> str:
        """Return the file of a key."""
        number, before = self._parsed(key)
        if before is not None:
            raise StoreError("size_before_chunk not supported for this operation")
        return self.sharding.file_name(self._shard(number))

    def present(self, file: str, data: Buffer | None, keys: Sequence[str]) -> set[str]:
        """Return which of the keys have a value in a file."""
        if data is None:
            return set()
        known: set[int] = set()
        for _, index in self._entries(file, data):
            known.update(index.ids.tolist())
        return {key for key in keys if self._parsed(key)[0] in known}

    def merged(self, file: str, data: Buffer | None, changes: Changes) -> Buffer | None:
        """Return a file with changes merged in; values that stay keep their bytes."""
        values: dict[int, dict[int, Buffer]] = {}
        if data is not None:
            view = memoryview(data)
            for minishard, index in self._entries(file, data):
                rows = zip(index.ids.tolist(), index.starts.tolist(), index.stops.tolist(), strict=True)
                values[minishard] = {number: view[start:stop] for number, start, stop in rows}
        numbers = [self._parsed(key)[0] for key in changes]
        minishards = self.sharding.locate(np.array(numbers, np.uint64))[1].tolist()
        for number, minishard, value in zip(numbers, minishards, changes.values(), strict=True):
            group = values.setdefault(minishard, {})
            if value is None:
                group.pop(number, None)
            else:
                group[number] = gzip(value) if self.sharding.data_encoding == "gzip" else value
        return build_shard(self.sharding, values) if any(values.values()) else None

    def fills(self, file: str, writes: Sequence[Write]) -> bool:
        """Return whether unconditional writes leave nothing of what is stored in a file."""
        shard = self.sharding.shard_of_name(file)
        count = None if self._filling is None or shard is None else self._filling(shard)
        return count == len(writes) and all(write.if_equal == UNKNOWN for write in writes)

    # --- what it is

    def describe_key(self, key: str) -> str:
        """Return the number of a value, its minishard, and how the base calls its file."""
        try:
            return self._describe(self._parsed(key)[0])
        except StoreError:
            return f"{quote(key)} in {self.base.describe()}"

    def _describe(self, number: int) -> str:
        shards, minishards = self.sharding.locate(np.array([number], np.uint64))
        file = self.base.describe(self.sharding.file_name(int(shards[0])))
        return f"chunk {number} in minishard {minishards[0]} in {file}"

    def spec(self) -> Mapping[str, Json]:
        """Return the member `metadata`."""
        return {"metadata": self.sharding.to_json()}


def _found(
    indexes: Mapping[tuple[int, int], Index], left: Sequence[int], places: Sequence[tuple[int, int]], ids: Any
) -> list[tuple[int, Index, int]]:
    """Return for each read its index, and its row there or -1."""
    groups: dict[tuple[int, int], list[int]] = {}
    for at in left:
        groups.setdefault(places[at], []).append(at)
    found = []
    for place, members in groups.items():
        index = indexes[place]
        rows = index.minishard.find(ids[members]).tolist()
        found += [(at, index, row) for at, row in zip(members, rows, strict=True)]
    return found


class Uint64ShardedKind(AdapterKind):
    """`{"driver": "neuroglancer_uint64_sharded", "base": ..., "metadata": {...}}`; it has no URL."""

    id: str = "neuroglancer_uint64_sharded"
    schemes: tuple[str, ...] = ()
    resources: tuple[str, ...] = ("cache_pool", "data_copy_concurrency")

    def members(self, fields: Fields) -> dict[str, Json]:
        """Take the sharding."""
        return {"metadata": fields.require("metadata", parse_sharding)}

    def base_path(self, path: str) -> str:
        """Return the path of the directory of the files, with a slash at the end."""
        return as_directory(path)

    async def open(self, opening: KvOpening) -> Uint64ShardedDriver:
        """Return the driver over the base store."""
        metadata: Any = opening.members["metadata"]
        return Uint64ShardedDriver(opening.below, Sharding.of(metadata))


KIND = Uint64ShardedKind()
"""The kind of `{"driver": "neuroglancer_uint64_sharded"}`."""
