"""The `ocdbt` store: its members, its URLs, and the driver over a database.

`ocdbt:path` is the newest version; `ocdbt:@v5/path` and `ocdbt:@2025-01-01T00:00:00Z/path` are the versions of a
generation and of a time.  A path that begins with `@` is written `%40`.

A batch of reads sees one version: the manifest is read once, the tree is walked once for all keys, and the values
outside the tree are read by one call of the base store.  Writes of one call are one commit.  The driver suspends
only where its base does.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from itertools import repeat
from typing import Any, ClassVar

from fsstore.context.context import Context
from fsstore.context.resource_kinds import duration_text
from fsstore.errors import AbortedError, JsonError, NotFoundError, StoreError, UnimplementedError
from fsstore.kvstore.contract.ability import CopiesRanges, MayBeMissing, TakesAllAtOnce, WritesAtOnce
from fsstore.kvstore.contract.driver import (
    NO_VALUE,
    AdapterKind,
    Buffer,
    Entry,
    Features,
    KvDriver,
    KvOpening,
    KvPrefix,
    Read,
    ReadResult,
    Stamp,
    Write,
    begin_creating,
)
from fsstore.kvstore.contract.request import EntryColumns, KeyRange, key_bytes, key_text, keys_bytes, resolve_range
from fsstore.kvstore.spec_parse import as_directory, kv_spec, open_kv
from fsstore.ocdbt.change import Request
from fsstore.ocdbt.commit import Committer, NodeLayout, Options
from fsstore.ocdbt.encoding import KEY_LIMIT, U64, DataFile, Location, value_generation
from fsstore.ocdbt.manifest import Constraints, Version, parse_constraints
from fsstore.ocdbt.node import INLINE
from fsstore.ocdbt.source import (
    Choice,
    DatabaseSource,
    Hits,
    NodeCache,
    NodePool,
    Slice,
    choice_of,
    find,
    find_version,
    format_time,
    format_version,
    parse_time,
    parse_version,
    read_spans,
    walk,
)
from fsstore.runtime.together import CommitQueue
from fsstore.values.json_value import Fields, Json, boolean, expected, integer, number, obj, quote, string
from fsstore.values.registry import decode_path, encode_path, reject_query

# From entries of leaves to the answers of reads and listings.


class AnswerPlan:
    """The answers to a batch of reads: complete except for the bytes at `places`."""

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


class OcdbtDriver(CopiesRanges, MayBeMissing, TakesAllAtOnce, WritesAtOnce):
    """The newest version of a database, or the read-only version that `choice` names.

    `members` are the JSON members that the store was opened with.
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
        return isinstance(other, OcdbtDriver) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self.source.base)

    def _identity(self) -> tuple[Any, ...]:
        return self.source.base, self.source.manifests, self.choice, self._members

    def describe_key(self, key: str) -> str:
        """Return the key and the place of the database."""
        return f"{quote(key)} in OCDBT database at {self.source.base.describe()}"

    def spec(self) -> Mapping[str, Json]:
        """Return the members, with the complete stored configuration once it is known."""
        manifest = self.source.last.manifest
        if manifest is None or not self.committer.accepts(manifest.config):
            return self._members
        given = self._options.constraints.given
        return {**self._members, "config": manifest.config.to_json(kind="manifest_kind" in given)}

    async def version(self, staleness_bound: float = float("inf")) -> tuple[Version | None, float]:
        """Return the version to read (None if there is no database) and the time up to which that answer holds."""
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
        if self.choice.by == "generation" or manifest is None or self.choice.value < manifest.newest.commit_time:
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
        """Announce to the stores below that they are about to be written."""
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
        self, writes: Sequence[Write], *, unchanged: Mapping[str, bytes], deleted: Sequence[KeyRange]
    ) -> list[str]:
        """Delete the ranges, then apply all of `writes`, in one commit; return the keys whose condition does not hold.

        If there are any, nothing changes.  Raises `AbortedError` if a key of `unchanged` has a new generation.
        """
        request = _request(writes)
        await _submit_atomic(self, request, unchanged, deleted)
        return list(map(key_text, request.failed))

    async def delete_range(self, keys: KeyRange) -> None:
        """Delete every key in the range in one commit; without such a key there is no commit."""
        _refuse_fixed(self)
        if not keys.empty:
            await self._submit(Request(deleted=(keys,)))

    def copies_from(self, other: KvDriver) -> bool:
        """Return whether `copy_range` accepts `other`: a database in this one's directory, or below it."""
        if not isinstance(other, OcdbtDriver) or other.features.waits > self.features.waits:
            return False
        mine, theirs = self.source.base, other.source.base
        return mine.driver == theirs.driver and theirs.path.startswith(mine.path)

    async def copy_range(self, other: KvDriver, keys: KeyRange, cut: int, target: str) -> None:
        """Copy a range of `other` in one commit: `target` replaces the first `cut` bytes of its keys.

        Values outside the tree are referenced, not copied, even in the directory of `other`, which lies in or below
        this one's.
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
        """Raise if the database was opened at an older version."""
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

        If several of the others hold a key, the last one's value counts.
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


async def _located(into: OcdbtDriver, other: KvDriver, keys: KeyRange) -> list[tuple[bytes, bytes | Location]]:
    """Return keys of another database with small values, or the locations of large ones relative to this database."""
    if not (isinstance(other, OcdbtDriver) and into.copies_from(other)):
        raise UnimplementedError("CopyRange not supported")
    version, _ = await other.version()
    below = key_bytes(other.source.base.path.removeprefix(into.source.base.path))
    found: list[tuple[bytes, bytes | Location]] = []
    if version is not None:
        async for slices in walk(other.source, version, keys):
            for part in slices:
                rows = range(part.start, part.stop)
                found += zip(entries_of(part).keys, [_below(below, part.leaf.value(row)) for row in rows], strict=True)
    return found


def _wanted(choice: Choice) -> str:
    if choice.by == "generation":
        return f"generation_number={choice.value}"
    return f"commit_time<={format_time(choice.value).removesuffix('Z')}+00:00"


def _below(path: bytes, value: bytes | Location) -> bytes | Location:
    """Return a value, or its location relative to a database that lies above by `path`."""
    if isinstance(value, bytes) or not path:
        return value
    (base, relative), offset, length = value
    return Location(DataFile(path + base, relative), offset, length)


def _request(writes: Sequence[Write]) -> Request:
    """Return a request for writes, by column; each value is a buffer whose length is its size in bytes."""
    keys = keys_bytes([write.key for write in writes])
    values = [_flat(value) if isinstance(value, memoryview) else value for _, value, _ in writes]
    conditions = [write.if_equal for write in writes]
    return Request(keys, values, conditions if any(conditions) else ())


def _flat(value: memoryview) -> Buffer:
    return value.cast("B") if value.c_contiguous else bytes(value)


def _check_lengths(keys: Sequence[bytes]) -> None:
    longest = max(keys, key=len, default=b"")
    if len(longest) > KEY_LIMIT:
        raise StoreError(f"Key {quote(longest[:64])}... of {len(longest)} bytes exceeds the limit of {KEY_LIMIT}")


def _refuse_fixed(driver: OcdbtDriver) -> None:
    if driver.choice is not None:
        version = driver._members.get("version")
        raise StoreError(f"Writing is not supported with version={format_version(version)} specified")


# Opening the store.

_PREFIXES = ("value_data_prefix", "btree_node_data_prefix", "version_tree_node_data_prefix")
_TARGET = 2**31  # bytes of a data file: TensorStore's default


def _version(value: Any) -> Json:
    if not isinstance(value, str):
        return integer(1, U64)(value)
    try:
        return format_time(parse_time(value))
    except StoreError as error:
        raise JsonError(error.message) from None


def _unsigned(value: Any) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= U64:
        raise expected("64-bit unsigned integer", value)
    return value


def take_members(fields: Fields) -> dict[str, Json]:
    """Take the members from `fields`; return them in canonical form, without defaults."""
    out: dict[str, Json] = {}
    if "config" in fields:
        constraints = fields.take("config", parse_constraints, default=Constraints({}))
        if constraints.given:
            out["config"] = constraints.to_json()
    if "manifest" in fields:
        out["manifest"] = fields.take("manifest", _store)
    if "version" in fields:
        out["version"] = fields.take("version", _version)
    for name in ("assume_config", "single_writer"):
        if fields.take(name, boolean, default=False):
            out[name] = True
    for name in _PREFIXES:
        prefix = fields.take(name, string, default="d/")
        if prefix != "d/":
            out[name] = prefix
    target = fields.take("target_data_file_size", _unsigned, default=_TARGET)
    if target != _TARGET:
        out["target_data_file_size"] = target
    for name in ("threshold_bytes", "merged_bytes"):
        whole = f"experimental_read_coalescing_{name}"
        if whole in fields:
            out[whole] = fields.take(whole, _unsigned)
    if "experimental_read_coalescing_interval" in fields:
        out["experimental_read_coalescing_interval"] = fields.take(
            "experimental_read_coalescing_interval", duration_text
        )
    return out


def _store(value: Any) -> Json:
    """Return the spec of the store of the manifests: a directory, like the base."""
    try:
        spec = kv_spec(value if isinstance(value, str) else obj(value))
    except JsonError:
        raise
    except StoreError as error:
        raise JsonError(str(error)) from None
    spec.path = as_directory(spec.path)
    json: Json = spec.to_json()
    return json


def options_from(members: Mapping[str, Any]) -> Options:
    """Return the writing options in canonical `members`."""
    prefixes = [key_bytes(str(members.get(name, "d/"))) for name in _PREFIXES]
    layout = NodeLayout(
        prefixes[0], prefixes[1], prefixes[2], int(number(members.get("target_data_file_size", _TARGET)))
    )
    return Options(
        parse_constraints(members.get("config", {})),
        members.get("assume_config") is True,
        members.get("single_writer") is True,
        layout,
    )


def open_database(
    base: KvPrefix,
    members: Mapping[str, Json] | None = None,
    *,
    manifests: KvPrefix | None = None,
    pool: NodePool | None = None,
) -> Any:
    """Return the driver of the database in the directory `base`; `members` are canonical JSON members."""

    base = KvPrefix(base.driver, as_directory(base.path))
    given = dict(members or {})
    owner = (base.driver.describe_key(base.path), id(base.driver))
    source = DatabaseSource(base, manifests, NodeCache(pool, owner))
    return OcdbtDriver(source, options_from(given), choice=choice_of(given.get("version")), members=given)


class OcdbtKind(AdapterKind):
    """The kind of `{"driver": "ocdbt"}` and `ocdbt:`."""

    id: str = "ocdbt"
    schemes: tuple[str, ...] = ("ocdbt",)
    resources: tuple[str, ...] = ("cache_pool", "coordinator", "data_copy_concurrency")
    defaults: ClassVar[Mapping[str, Json]] = {
        "assume_config": False,
        "config": {},
        "value_data_prefix": "d/",
        "btree_node_data_prefix": "d/",
        "version_tree_node_data_prefix": "d/",
    }

    def members(self, fields: Fields) -> dict[str, Json]:
        """Take the members of the store."""
        return take_members(fields)

    def base_path(self, path: str) -> str:
        """Return the path with a trailing slash."""
        return as_directory(path)

    def from_url(self, scheme: str, rest: str) -> tuple[str, dict[str, Json]]:  # one scheme only
        """Return path and version of `ocdbt:<rest>`."""
        reject_query(rest)
        if rest.startswith("//"):
            raise StoreError('"//" after the scheme is not supported')
        if not rest.startswith("@"):
            return decode_path(rest), {}
        version, _, path = rest[1:].partition("/")
        return decode_path(path), {"version": parse_version(decode_path(version))}

    def to_url(self, path: str, members: Mapping[str, Json]) -> str:
        """Return the URL component; a store with its manifest elsewhere has none."""
        if "manifest" in members:
            raise UnimplementedError("OCDBT URL syntax not supported with separate manifest kvstore")
        version = members.get("version")
        if version is not None:
            return f"ocdbt:@{format_version(version)}/{encode_path(path)}"
        return "ocdbt:" + encode_path(path)

    async def open(self, opening: KvOpening) -> KvDriver:
        """Return the driver over the base."""
        manifests = None
        if "manifest" in opening.members:
            spec = kv_spec(opening.members["manifest"])
            manifests = (await open_kv(spec, opening.context or Context())).prefix
        pool = opening.resources.get("cache_pool")
        driver: KvDriver = open_database(opening.below, opening.members, manifests=manifests, pool=pool)
        return driver


KIND = OcdbtKind()
"""The kind of `{"driver": "ocdbt"}`."""
