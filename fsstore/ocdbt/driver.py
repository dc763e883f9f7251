"""The key-value store over an OCDBT database.

A batch of reads sees one version: the manifest is read once, the tree is walked once for all keys, and the values
outside the tree are read by one call of the base store.  Writes of one call are one commit.  The driver suspends
only where its base does.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from itertools import repeat
from typing import Any, ClassVar

from fsstore.errors import AbortedError, NotFoundError, StoreError, UnimplementedError
from fsstore.kvstore.contract.ability import (
    CopiesRanges,
    MayBeMissing,
    TakesAllAtOnce,
    WritesAtOnce,
)
from fsstore.kvstore.contract.driver import (
    NO_VALUE,
    Buffer,
    Entry,
    Features,
    KvDriver,
    KvPrefix,
    Read,
    ReadResult,
    Stamp,
    Write,
    begin_creating,
)
from fsstore.kvstore.contract.request import (
    EntryColumns,
    KeyRange,
    key_bytes,
    key_text,
    keys_bytes,
    resolve_range,
)
from fsstore.ocdbt.change import Request
from fsstore.ocdbt.commit import Committer, Options
from fsstore.ocdbt.encoding import KEY_LIMIT, DataFile, Location, value_generation
from fsstore.ocdbt.manifest import Version
from fsstore.ocdbt.node import INLINE
from fsstore.ocdbt.source import (
    Choice,
    DatabaseSource,
    Hits,
    Slice,
    find,
    find_version,
    format_time,
    format_version,
    read_spans,
    walk,
)
from fsstore.runtime.attempt import CommitQueue
from fsstore.values.json_value import Json, quote

# From entries of leaves to answers: of reads, and of listings.


class AnswerPlan:
    """The answers to a batch of reads: complete, but for the bytes at `places`."""

    def __init__(self, reads: Sequence[Read], time: float, describe: Callable[[str], str]) -> None:
        self.results = [ReadResult("missing", b"", NO_VALUE, time)] * len(reads)
        self.places: list[Location] = []
        self._pending: list[tuple[int, bytes]] = []
        self._reads = reads
        self._time = time
        self._describe = describe

    def add(self, hits: Hits) -> None:
        """Take the entries found in one leaf."""
        leaf, indexes, rows = hits
        columns = (leaf.file_ids[rows], leaf.offsets[rows], leaf.lengths[rows])
        entries = zip(indexes, *(column.tolist() for column in columns), strict=True)
        payload, files, time = leaf.payload, leaf.files, self._time
        for index, file_id, offset, length in entries:
            read = self._reads[index]
            value = payload[offset : offset + length] if file_id == INLINE else None
            stored = Location(files[file_id], offset, length) if value is None else value
            generation = value_generation(stored)
            if generation == read.if_not_equal:
                self.results[index] = ReadResult("unspecified", b"", generation, time)
                continue
            low, high = 0, length
            if read.start or read.stop is not None:
                low, high = self._range(read, length)
            if value is not None:
                self.results[index] = ReadResult("value", value[low:high], generation, time, length)
            elif low == high:
                self.results[index] = ReadResult("value", b"", generation, time, length)
            else:
                self.places.append(Location(files[file_id], offset + low, high - low))
                self._pending.append((index, generation))

    def _range(self, read: Read, size: int) -> tuple[int, int]:
        try:
            return resolve_range(read.start, read.stop, size)
        except StoreError as error:
            raise error.within(f"Error reading {self._describe(read.key)}") from None

    def fill(self, values: Sequence[Buffer]) -> None:
        """Complete the answers with the bytes at `places`."""
        for (index, generation), value in zip(self._pending, values, strict=True):
            self.results[index] = ReadResult("value", value, generation, self._time)


def entries_of(part: Slice) -> EntryColumns:
    """Return the listing of some entries of a leaf."""
    keys = part.leaf.keys[part.start : part.stop]
    whole = [part.prefix + key for key in keys] if part.prefix else keys
    return EntryColumns(whole, sizes=part.leaf.lengths[part.start : part.stop].tolist)


"""How many entries a listing makes at a time."""


class OcdbtDriver(CopiesRanges, MayBeMissing, TakesAllAtOnce, WritesAtOnce):
    """The newest version of a database, or the one that `choice` names, which cannot be written.

    `members` are the JSON members it was opened with.
    """

    id: ClassVar[str] = "ocdbt"

    def __init__(
        self,
        source: DatabaseSource,
        options: Options,
        *,
        choice: Choice | None = None,
        members: Mapping[str, Json] | None = None,
    ) -> None:
        self.source = source
        self.choice = choice
        self._options = options
        self._members = dict(members or {})
        self.committer = Committer(source, options)
        self._features = _features_of(source, options, choice)
        self._queue = CommitQueue(self.committer.commit, waits=self._features.waits, again=Request.forget)
        self._fixed: Version | None = None

    @property
    def features(self) -> Features:
        """The abilities of the driver."""
        return self._features

    def __eq__(self, other: object) -> bool:
        """Return whether `other` is a driver of the same database, opened in the same way."""
        return isinstance(other, OcdbtDriver) and self._identity() == other._identity()

    def __hash__(self) -> int:
        """Return a hash that agrees with equality."""
        return hash(self.source.base)

    def _identity(self) -> tuple[Any, ...]:
        return self.source.base, self.source.manifests, self.choice, self._members

    def describe_key(self, key: str) -> str:
        """Return the key and where the database is."""
        return f"{quote(key)} in OCDBT database at {self.source.base.describe()}"

    def spec(self) -> Mapping[str, Json]:
        """Return the members, with the whole stored configuration once it is known."""
        manifest = self.source.last.manifest
        if manifest is None or not self.committer.accepts(manifest.config):
            return self._members
        given = self._options.constraints.given
        return {**self._members, "config": manifest.config.to_json(kind="manifest_kind" in given)}

    async def version(self, staleness_bound: float = float("inf")) -> tuple[Version | None, float]:
        """Return the version to read, None if there is no database, and the time until which that is known."""
        if self._fixed is not None:
            return self._fixed, float("inf")
        snapshot = await self.source.snapshot(staleness_bound)
        manifest = snapshot.manifest
        if manifest is not None:
            self.committer.check(manifest.config)
        if self.choice is None:
            return (manifest.newest if manifest and manifest.versions else None), snapshot.time
        found = None
        if manifest is not None and manifest.versions:
            found = await find_version(self.source, manifest, self.choice)
        if found is None:
            raise NotFoundError(f"Version where {_wanted(self.choice)} not present")
        if (
            self.choice.by == "generation"
            or manifest is None
            or self.choice.value < manifest.newest.commit_time
        ):
            self._fixed = found
            return found, float("inf")
        return found, snapshot.time

    async def read_many(self, reads: Sequence[Read]) -> list[ReadResult]:
        """Return one result for each of `reads`, all of the same version."""
        if not reads:
            return []
        version, time = await self.version(max([read.staleness_bound for read in reads]))
        plan = AnswerPlan(reads, time, self.describe_key)
        if version is not None:
            for hits in await find(self.source, version, keys_bytes([read.key for read in reads])):
                plan.add(hits)
        if plan.places:
            plan.fill(await read_spans(self.source.base, plan.places))
        return plan.results

    def begin_creating(self) -> None:
        """Pass on that the stores below are about to be written."""
        for below in (self.source.base, self.source.manifests):
            begin_creating(below.driver)

    async def write_many(self, writes: Sequence[Write]) -> list[Stamp]:
        """Apply `writes` in one commit, each on its own condition."""
        if not writes:
            return []
        request = _request(writes)
        await self._submit(request)
        return list(map(Stamp, request.generations, repeat(request.time)))

    async def write_atomic(
        self,
        writes: Sequence[Write],
        *,
        unchanged: Mapping[str, bytes],
        deleted: Sequence[KeyRange],
    ) -> list[str]:
        """Delete the ranges, then apply all of `writes`, in one commit; return the keys whose condition does not hold.

        Nothing changes if there are any.  Raises `AbortedError` if a key of `unchanged` has another generation by now.
        """
        request = _request(writes)
        await _submit_atomic(self, request, unchanged, deleted)
        return list(map(key_text, request.failed))

    async def delete_range(self, keys: KeyRange) -> None:
        """Delete every key in the range in one commit; none is made if there is no such key."""
        _refuse_fixed(self)
        if not keys.empty:
            await self._submit(Request(deleted=(keys,)))

    def copies_from(self, other: KvDriver) -> bool:
        """Return whether `copy_range` takes keys of `other`: of a database in this one's directory, or below it."""
        if not isinstance(other, OcdbtDriver) or other.features.waits > self.features.waits:
            return False
        mine, theirs = self.source.base, other.source.base
        return mine.driver == theirs.driver and theirs.path.startswith(mine.path)

    async def copy_range(self, other: KvDriver, keys: KeyRange, cut: int, target: str) -> None:
        """Copy a range of `other` in one commit: `target` takes the place of the first `cut` bytes of its keys.

        Values outside the tree are referenced instead of copied, in the directory of `other` if that is below this one.
        """
        _refuse_fixed(self)
        prefix = key_bytes(target)
        copies, values = [], []
        for key, value in await _located(self, other, keys):
            copies.append(prefix + key[cut:])
            values.append(value)
        if copies:
            await self._submit(Request(copies, values))

    async def check_taking(self, writes: Mapping[str, Buffer], deleted: Sequence[KeyRange]) -> None:
        """Raise if the database was opened at a version of the past."""
        _refuse_fixed(self)

    async def take_all(
        self,
        others: Sequence[KvPrefix],
        writes: Mapping[str, Buffer],
        *,
        unchanged: Mapping[str, bytes],
        deleted: Sequence[KeyRange],
    ) -> None:
        """Delete the ranges, refer to all values of other databases, and write, in one commit.

        Where two of the others have a key, the last one's value counts.
        """
        _refuse_fixed(self)
        taken: dict[bytes, bytes | bytearray | memoryview | Location] = {}
        for other in others:
            taken.update(await _located(self, other.driver, KeyRange()))
        taken.update((key_bytes(key), value) for key, value in writes.items())
        await _submit_atomic(self, Request(list(taken), list(taken.values())), unchanged, deleted)

    async def _submit(self, request: Request) -> None:
        _refuse_fixed(self)
        _check_lengths(request.keys)
        self.begin_creating()
        await self._queue.submit(request)

    async def scan(self, keys: KeyRange) -> AsyncIterator[Sequence[Entry]]:
        """Yield the keys of one version in the range, sorted, with the sizes of their values."""
        version, _ = await self.version()
        if version is not None:
            async for slices in walk(self.source, version, keys):
                for part in slices:
                    yield entries_of(part)


async def _submit_atomic(
    driver: OcdbtDriver, request: Request, unchanged: Mapping[str, bytes], deleted: Sequence[KeyRange]
) -> None:
    """Commit a request and the deletion of ranges as one step; raise if a key of `unchanged` has changed."""
    request.atomic, request.deleted = True, tuple(deleted)
    request.unchanged = {key_bytes(key): generation for key, generation in unchanged.items()}
    await driver._submit(request)
    if request.stale is not None:
        place = driver.describe_key(key_text(request.stale))
        raise AbortedError(f"Error reading {place}: Generation mismatch")


def _features_of(source: DatabaseSource, options: Options, choice: Choice | None) -> Features:
    base = source.base.driver.features
    manifests = source.manifests.driver.features
    guarded = manifests.conditional_write or manifests.create_only or options.single_writer
    writable = base.writable and manifests.writable and choice is None and guarded
    waits = base.waits or manifests.waits
    return Features(
        waits=waits,
        writable=writable,
        create_only=writable,
        conditional_write=writable,
        atomic_transactions=writable,
        sorted_scan=True,
        slow_writes=not waits and (base.slow_writes or manifests.slow_writes),
    )


async def _located(
    into: OcdbtDriver, other: KvDriver, keys: KeyRange
) -> list[tuple[bytes, bytes | Location]]:
    """Return keys of another database with small values, or the places of large ones as this one sees them."""
    if not (isinstance(other, OcdbtDriver) and into.copies_from(other)):
        raise UnimplementedError("CopyRange not supported")
    version, _ = await other.version()
    below = key_bytes(other.source.base.path.removeprefix(into.source.base.path))
    found: list[tuple[bytes, bytes | Location]] = []
    if version is not None:
        async for slices in walk(other.source, version, keys):
            for part in slices:
                rows = range(part.start, part.stop)
                found += zip(
                    entries_of(part).keys, [_below(below, part.leaf.value(row)) for row in rows], strict=True
                )
    return found


def _wanted(choice: Choice) -> str:
    if choice.by == "generation":
        return f"generation_number={choice.value}"
    return f"commit_time<={format_time(choice.value).removesuffix('Z')}+00:00"


def _below(path: bytes, value: bytes | Location) -> bytes | Location:
    """Return the value, or its place as a database sees it that lies above by `path`."""
    if isinstance(value, bytes) or not path:
        return value
    (base, relative), offset, length = value
    return Location(DataFile(path + base, relative), offset, length)


def _request(writes: Sequence[Write]) -> Request:
    """Return the request to write, by column; every value as a buffer whose length is its number of bytes."""
    keys = keys_bytes([write.key for write in writes])
    values = [_flat(value) if isinstance(value, memoryview) else value for _, value, _ in writes]
    conditions = [write.if_equal for write in writes]
    return Request(keys, values, conditions if any(conditions) else ())


def _flat(value: memoryview) -> Buffer:
    return value.cast("B") if value.c_contiguous else bytes(value)


def _check_lengths(keys: Sequence[bytes]) -> None:
    longest = max(keys, key=len, default=b"")
    if len(longest) > KEY_LIMIT:
        raise StoreError(
            f"Key {quote(longest[:64])}... of {len(longest)} bytes exceeds the limit of {KEY_LIMIT}"
        )


def _refuse_fixed(driver: OcdbtDriver) -> None:
    if driver.choice is not None:
        version = driver._members.get("version")
        raise StoreError(f"Writing is not supported with version={format_version(version)} specified")
