"""The `neuroglancer_uint64_sharded` key-value store: values by 64-bit numbers, in the shards of Neuroglancer.

A key is the eight bytes of a number, most significant first.  Eight bytes more, the length of something, ask for what
lies that far before the value in the file (multi-resolution meshes are found so); such keys are only read.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from fsstore.errors import AbortedError, OutOfRangeError, StoreError, UnimplementedError
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
from fsstore.kvstore.shard.rewriting import Changes, Rewriting, shard_features
from fsstore.kvstore.shard.uint64_layout import (
    Sharding,
    build_shard,
    entries_of,
    gunzip,
    gzip,
    parse_sharding,
)
from fsstore.kvstore.shard.uint64_read import Index, Indexes, missing
from fsstore.kvstore.spec.opening import as_directory
from fsstore.kvstore.tuning import CHANGED_SHARD_ATTEMPTS
from fsstore.runtime import execution
from fsstore.values.json_value import Fields, Json, quote

__all__ = ["KIND", "Uint64ShardedDriver", "Uint64ShardedKind", "key_of"]

_Spots = list[tuple[int, Any]]


def key_of(number: int) -> str:
    """Return the key of a value."""
    return key_text(number.to_bytes(8, "big"))


class Uint64ShardedDriver(Rewriting):
    """The values in the shards below `base`.

    `filling` says how many values fill a file, given its number; files that a batch of writes fills are not read.
    """

    id: ClassVar[str] = "neuroglancer_uint64_sharded"

    def __init__(
        self, base: KvPrefix, sharding: Sharding, filling: Callable[[int], int | None] | None = None
    ) -> None:
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
        left, fresh = list(range(len(reads))), False
        for _ in range(CHANGED_SHARD_ATTEMPTS):
            indexes = await self._indexes.find([places[at] for at in left], fresh=fresh)
            spots = _found(indexes, left, places, ids)
            wanted: _Spots = []
            left = []
            for at, index, row in spots:
                answer = self._answer(reads[at], keys[at][1], places[at][0], (index, row))
                if isinstance(answer, Read):
                    wanted.append((at, (answer, index)))
                elif index.is_kept:
                    left.append(at)
                else:
                    results[at] = answer
            left += await self._values(wanted, keys, results)
            if not left:
                return self._decoded(reads, results)
            fresh = True
        raise AbortedError(f"{self.describe_key(reads[left[0]].key)} was changed at every attempt to read it")

    def _answer(
        self, read: Read, before: int | None, shard: int, found: tuple[Index, int]
    ) -> Read | ReadResult:
        """Return the read that is needed for an answer, or the answer."""
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

    async def _values(
        self, wanted: _Spots, keys: Sequence[Any], results: list[ReadResult | None]
    ) -> list[int]:
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

    def to_url(self, path: str, members: Mapping[str, Json]) -> str:
        """Refuse: no URL says a sharding."""
        raise UnimplementedError("URL representation not supported")

    async def open(self, opening: KvOpening) -> Uint64ShardedDriver:
        """Return the driver over the base store."""
        if opening.base is None:
            raise StoreError('"base" must be specified')
        metadata: Any = opening.members["metadata"]
        return Uint64ShardedDriver(opening.base, Sharding.of(metadata))


KIND = Uint64ShardedKind()
"""The kind of `{"driver": "neuroglancer_uint64_sharded"}`."""
