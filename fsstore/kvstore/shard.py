"""The `zarr3_sharding_indexed` key-value store: one shard of zarr v3 as a store of its encoded sub-chunks.

The path of the base is the key of the shard.  A key is the grid position of a sub-chunk: a 32-bit number for each
dimension, most significant byte first.
"""

from __future__ import annotations

import math
import struct
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Self, TypeAlias

import numpy as np

from fsstore.errors import (
    DataLossError,
    FailedPreconditionError,
    JsonError,
    OutOfRangeError,
    StoreError,
    UnimplementedError,
)
from fsstore.kvstore.contract.driver import (
    NO_VALUE,
    UNKNOWN,
    AdapterKind,
    Buffer,
    Entry,
    Features,
    KvOpening,
    KvPrefix,
    Read,
    ReadResult,
    Stamp,
    Write,
)
from fsstore.kvstore.contract.request import KeyRange, key_bytes, key_text, resolve_range
from fsstore.runtime import execution
from fsstore.runtime.together import ChangedError, until_settled, until_unchanged
from fsstore.schema.constraint import braced
from fsstore.values.json_value import Fields, Json, array_of, integer, obj, one_of, quote, string

# Changing a shard: it is read, the changes are merged in, and it is written as a whole on condition that it is still
# the shard that was read, so no update of another writer is lost.  A condition on a value holds if the value is absent
# (`NO_VALUE`) or if the shard has that generation.

_MISSING = ReadResult("missing", b"", NO_VALUE)

Changes: TypeAlias = Mapping[str, Buffer | None]
"""New values by key of one file; None deletes."""
_Job: TypeAlias = tuple[str, ReadResult | None, list[Write]]


def shard_features(below: Features) -> Features:
    """Return the features of a store of shards over another store."""
    return replace(below, atomic_transactions=False, sorted_scan=False, empty_key=False)


class Rewriting:
    """The base of shard drivers.  They define which file holds a key, and how a file is changed."""

    base: KvPrefix
    features: Features

    def file_of(self, key: str) -> str:
        """Return the key of the file; raise `StoreError` for an invalid key."""
        raise NotImplementedError  # each driver defines it

    def present(self, file: str, data: Buffer | None, keys: Sequence[str]) -> set[str]:
        """Return the given keys that have a value in a file."""
        raise NotImplementedError  # each driver defines it

    def merged(self, file: str, data: Buffer | None, changes: Changes) -> Buffer | None:
        """Return a file with changes merged in, or None if nothing is left."""
        raise NotImplementedError  # each driver defines it

    def fills(self, file: str, writes: Sequence[Write]) -> bool:
        """Return whether the writes are unconditional and replace the whole file."""
        return False

    async def write_many(self, writes: Sequence[Write]) -> list[Stamp]:
        """Apply `writes`, with one write for each file."""
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
        """Return the stamps of files that were written or need no write."""
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
        made = await execution.offload(execution.map_blocking, self._make, jobs, kind="compute")
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

    def _make(self, job: _Job) -> tuple[Write | None, list[bool]]:
        """Return the write of a file, or None if it stays unchanged, and whether each condition holds."""
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
        async for batch in self.scan(keys):  # type: ignore[attr-defined]  # each driver defines it
            if batch:
                await self.write_many([Write(entry.key, None) for entry in batch])


# The shard as a file: an index of offsets and lengths, in C order of the grid, and the values.

_ABSENT = np.uint64(2**64 - 1)
_FIXED = "Invalid index_codecs specified: only fixed-size encodings are supported"


def parse_index_codecs(value: Any) -> list[Json]:
    """Return the complete codecs of an index, checked except for the rank."""
    out: list[Json] = []
    stage = 0  # transposes, then bytes, then checksums
    for item in array_of(obj)(value):
        fields = Fields(item)
        name = fields.require("name", string)
        configuration = Fields(fields.take("configuration", obj, default={}))
        fields.finish()
        if name == "transpose" and stage == 0:
            order = configuration.require("order", array_of(integer(0, 31)))
            made: dict[str, Json] = {"name": name, "configuration": {"order": order}}
        elif name == "bytes" and stage == 0:
            stage = 1
            endian = configuration.require("endian", one_of("little", "big"))
            made = {"name": name, "configuration": {"endian": endian}}
        elif name == "crc32c" and stage == 1:
            made = {"name": name}
        else:
            raise JsonError(_FIXED)
        configuration.finish()
        out.append(made)
    if stage != 1:
        raise JsonError('"bytes" codec is missing in "index_codecs"')
    return out


@dataclass(frozen=True, slots=True)
class GridShard:
    """The layout of a shard; the fields are the JSON members in hashable form."""

    grid: tuple[int, ...]
    orders: tuple[tuple[int, ...], ...]
    endian: str
    checksums: int
    at_end: bool

    @classmethod
    def of(cls, members: Mapping[str, Any]) -> Self:
        """Return the layout of parsed members."""
        codecs, grid = members["index_codecs"], tuple(members["grid_shape"])
        orders = tuple(tuple(c["configuration"]["order"]) for c in codecs if c["name"] == "transpose")
        for order in orders:
            if sorted(order) != list(range(len(grid) + 1)):
                raise StoreError(f"Invalid index_codecs: {list(order)} is no order of {len(grid) + 1} dimensions")
        endian = next(c["configuration"]["endian"] for c in codecs if c["name"] == "bytes")
        checksums = sum(c["name"] == "crc32c" for c in codecs)
        return cls(grid, orders, endian, checksums, members.get("index_location", "end") == "end")

    @property
    def count(self) -> int:
        """The number of entries."""
        return math.prod(self.grid)

    @property
    def index_size(self) -> int:
        """The size of the index in bytes."""
        return 16 * self.count + 4 * self.checksums

    def decode_index(self, data: Buffer) -> np.ndarray[Any, np.dtype[np.uint64]]:
        """Return the offset and length of each entry; all ones for a missing one."""
        data = memoryview(data)
        for _ in range(self.checksums):
            stored, actual = int.from_bytes(data[-4:], "little"), _crc32c(data[:-4])
            if stored != actual:
                raise DataLossError(f"Digest mismatch, stored digest is {stored}, but computed digest is {actual}")
            data = data[:-4]
        shape = (*self.grid, 2)
        shapes = [shape]
        for order in self.orders:
            shapes.append(tuple(shapes[-1][axis] for axis in order))
        index = np.frombuffer(data, "<u8" if self.endian == "little" else ">u8").reshape(shapes[-1])
        for order in reversed(self.orders):
            index = index.transpose(np.argsort(order))
        return np.ascontiguousarray(index, np.uint64).reshape(-1, 2)

    def span(self, index: Any, entry: int, size: int | None) -> tuple[int, int] | None:
        """Return the byte range of an entry, None if it is absent; with `size` it must lie in the file."""
        offset, length = int(index[entry, 0]), int(index[entry, 1])
        if offset == length == int(_ABSENT):
            return None
        if int(_ABSENT) in (offset, length) or offset + length >= 1 << 63:
            raise DataLossError(f"Invalid shard index entry {entry}: offset={offset}, length={length}")
        if size is not None and offset + length > size:
            raise DataLossError(
                f"Shard index entry {entry} with byte range [{offset}, {offset + length}) is invalid for shard of size"
                f" {size}"
            )
        return offset, offset + length

    def split(self, data: Buffer) -> dict[int, Buffer]:
        """Return the values of a whole shard by entry number."""
        size = len(data)
        if size < self.index_size:
            raise DataLossError(
                f"Existing shard has size of {size} bytes, but expected at least {self.index_size} bytes"
            )
        view = memoryview(data)
        at = size - self.index_size if self.at_end else 0
        index = self.decode_index(view[at : at + self.index_size])
        present = np.flatnonzero(~(index == _ABSENT).all(axis=1)).tolist()
        spans = {entry: self.span(index, entry, size) for entry in present}
        return {entry: view[span[0] : span[1]] for entry, span in spans.items() if span is not None}

    def join(self, values: Mapping[int, Buffer]) -> bytes:
        """Return the shard that holds `values`, given by entry number."""
        index = np.full((self.count, 2), _ABSENT, np.uint64)
        end = 0 if self.at_end else self.index_size
        parts = [values[entry] for entry in sorted(values)]
        for entry, part in zip(sorted(values), parts, strict=True):
            index[entry] = end, len(part)
            end += len(part)
        stored = self._encode_index(index)
        return b"".join([*parts, stored] if self.at_end else [stored, *parts])

    def _encode_index(self, index: Any) -> bytes:
        array = index.reshape(*self.grid, 2)
        for order in self.orders:
            array = array.transpose(order)
        data: bytes = array.astype("<u8" if self.endian == "little" else ">u8").tobytes()
        for _ in range(self.checksums):
            data += _crc32c(data).to_bytes(4, "little")
        return data

    def entry_of(self, numbers: Sequence[int]) -> int | None:
        """Return the entry number at a grid position, None outside the grid."""
        if len(numbers) != len(self.grid):
            return None
        entry = 0
        for number, size in zip(numbers, self.grid, strict=True):
            if number >= size:
                return None
            entry = entry * size + number
        return entry


def _crc32c(data: Buffer) -> int:
    import google_crc32c  # costs more than opening an array

    return int(google_crc32c.value(bytes(data)))


_MOST = 1 << 30  # entries of a grid


class GridShardDriver(Rewriting):
    """The entries of the shard at `base`."""

    id: ClassVar[str] = "zarr3_sharding_indexed"

    def __init__(self, base: KvPrefix, members: Mapping[str, Json]) -> None:
        self.base, self._members = base, dict(members)
        self.shard = GridShard.of(members)
        self.features = shard_features(base.driver.features)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GridShardDriver) and (self.base, self.shard) == (other.base, other.shard)

    def __hash__(self) -> int:
        return hash((self.base, self.shard))

    def _entry(self, key: str) -> int:
        data = key_bytes(key)
        entry = None
        if len(data) == 4 * len(self.shard.grid):
            entry = self.shard.entry_of(struct.unpack(f">{len(self.shard.grid)}I", data))
        if entry is None:
            raise StoreError(f"Invalid key (grid_shape={braced(self.shard.grid)}): {quote(key)}")
        return entry

    def _key(self, entry: int) -> str:
        numbers = np.unravel_index(entry, self.shard.grid) if self.shard.grid else ()
        return key_text(struct.pack(f">{len(numbers)}I", *map(int, numbers)))

    async def read_many(self, reads: Sequence[Read]) -> list[ReadResult]:
        """Return one result for each of `reads`: first the index is read, then all values in one batch."""
        entries = [self._entry(read.key) for read in reads]
        return await until_unchanged(partial(self._answers, reads, entries), self.base.describe, reads=True)

    async def _answers(self, reads: Sequence[Read], entries: Sequence[int]) -> list[ReadResult]:
        if len(set(entries)) == self.shard.count and not any(read.start or read.stop is not None for read in reads):
            return await self._whole(reads, entries)
        answer, index = await self._index()
        if index is None:
            return [answer] * len(reads)
        results: dict[int, ReadResult] = {}
        wanted: list[tuple[int, Read]] = []
        absent = ReadResult("missing", b"", answer.generation, answer.time)
        for at, (read, entry) in enumerate(zip(reads, entries, strict=True)):
            span = self.shard.span(index, entry, None)
            if span is None:
                results[at] = absent
            elif read.if_not_equal == answer.generation != UNKNOWN:
                results[at] = ReadResult("unspecified", b"", answer.generation, answer.time)
            else:
                low, high = self._cut(read, span[1] - span[0])
                wanted.append((at, Read("", span[0] + low, span[0] + high)))
        values = await self.base.read_many([read for _, read in wanted]) if wanted else []
        for (at, _), value in zip(wanted, values, strict=True):
            if value.state != "value" or value.generation != answer.generation:
                raise ChangedError
            results[at] = value._replace(size=None)
        return [results[at] for at in range(len(reads))]

    def _cut(self, read: Read, size: int) -> tuple[int, int]:
        try:
            return resolve_range(read.start, read.stop, size)
        except StoreError as error:
            raise error.within(f"Error reading {self.describe_key(read.key)}") from None

    async def _index(self) -> tuple[ReadResult, Any]:
        """Return the answer to the read of the index, and the index, None if there is no shard."""
        size = self.shard.index_size
        where = f"Error reading shard index in {self.base.describe()}"
        try:
            answer = await (self.base.read("", -size) if self.shard.at_end else self.base.read("", 0, size))
        except OutOfRangeError as error:
            raise FailedPreconditionError(f"{where}: {error.message}") from error
        if answer.state != "value":
            return answer, None
        try:
            return answer, self.shard.decode_index(answer.value)
        except StoreError as error:
            raise error.within(where) from None

    async def _whole(self, reads: Sequence[Read], entries: Sequence[int]) -> list[ReadResult]:
        answer = await self.base.read()
        if answer.state != "value":
            return [answer] * len(reads)
        values = self._split(answer.value)
        absent = ReadResult("missing", b"", answer.generation, answer.time)
        return [absent._replace(state="value", value=values[entry]) if entry in values else absent for entry in entries]

    def _split(self, data: Buffer) -> dict[int, Buffer]:
        try:
            return self.shard.split(data)
        except StoreError as error:
            raise error.within(f"Error reading {self.base.describe()}") from None

    async def scan(self, keys: KeyRange) -> AsyncIterator[Sequence[Entry]]:
        """Yield the keys in the range, in order, with one read of the index."""
        _, index = await self._index()
        if index is not None:
            present = np.flatnonzero(~(index == _ABSENT).all(axis=1)).tolist()
            found = [Entry(self._key(entry), int(index[entry, 1])) for entry in present]
            yield [entry for entry in found if keys.contains(entry.key)]

    def file_of(self, key: str) -> str:
        """Return the key of the shard, which is the base itself."""
        self._entry(key)
        return ""

    def present(self, file: str, data: Buffer | None, keys: Sequence[str]) -> set[str]:
        """Return the given keys that have a value."""
        values = {} if data is None else self._split(data)
        return {key for key in keys if self._entry(key) in values}

    def merged(self, file: str, data: Buffer | None, changes: Changes) -> Buffer | None:
        """Return the shard with changes merged in."""
        values = {} if data is None else self._split(data)
        for key, value in changes.items():
            if value is None:
                values.pop(self._entry(key), None)
            else:
                values[self._entry(key)] = value
        return self.shard.join(values) if values else None

    def fills(self, file: str, writes: Sequence[Write]) -> bool:
        """Return whether the writes are unconditional and replace all entries."""
        return len(writes) == self.shard.count and all(write.if_equal == UNKNOWN for write in writes)

    def describe_key(self, key: str) -> str:
        """Return the grid position, and the base's name."""
        try:
            numbers = np.unravel_index(self._entry(key), self.shard.grid) if self.shard.grid else ()
        except StoreError:
            return f"{quote(key)} in {self.base.describe()}"
        return f"shard entry {braced([int(n) for n in numbers])}/{braced(self.shard.grid)} in {self.base.describe()}"

    def spec(self) -> Mapping[str, Json]:
        """Return all members."""
        return self._members


def _grid(value: Any) -> list[int]:
    shape = array_of(integer(1, 2**31 - 1))(value)
    if len(shape) > 31:
        raise JsonError(f"grid rank of {len(shape)} exceeds maximum of 31")
    if math.prod(shape) > _MOST:
        raise JsonError(f"grid_shape of {braced(shape)} has more than {_MOST} entries")
    return shape


class GridShardKind(AdapterKind):
    """`{"driver": "zarr3_sharding_indexed", "base": ..., "grid_shape": ..., "index_codecs": ...}`; it has no URL."""

    id: str = "zarr3_sharding_indexed"
    schemes: tuple[str, ...] = ()
    resources: tuple[str, ...] = ("cache_pool", "data_copy_concurrency")

    def members(self, fields: Fields) -> dict[str, Json]:
        """Take grid and index."""
        return {
            "grid_shape": fields.require("grid_shape", _grid),
            "index_codecs": fields.require("index_codecs", parse_index_codecs),
            "index_location": fields.take("index_location", one_of("start", "end"), default="end"),
        }

    async def open(self, opening: KvOpening) -> GridShardDriver:
        """Return the driver over the base store."""
        return GridShardDriver(opening.below, opening.members)


KIND = GridShardKind()
"""The kind of `{"driver": "zarr3_sharding_indexed"}`."""
