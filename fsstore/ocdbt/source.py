"""Reading a database: its manifests, and the nodes that references lead to.

A `DatabaseSource` holds the last manifest seen.  A batch of reads asks for a fresh one, with a small request that says
"unless unchanged", except where its staleness bound allows the last.  Data files never change; a missing or short one
is damage and raises `DataLossError`, never "missing".
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import AsyncIterator, Callable, Hashable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

from fsstore.errors import DataLossError, OutOfRangeError, StoreError
from fsstore.kvstore.contract.driver import NO_VALUE, UNKNOWN, Buffer, KvPrefix, Read, ReadResult
from fsstore.kvstore.contract.request import KeyRange, key_text
from fsstore.ocdbt.encoding import U64, Location
from fsstore.ocdbt.manifest import (
    MANIFEST_KEY,
    Manifest,
    Version,
    VersionNode,
    VersionNodeRef,
    decode_manifest,
    decode_version_node,
    manifest_number,
    node_start,
    numbered_key,
)
from fsstore.ocdbt.node import Interior, Leaf, Node, decode_node
from fsstore.runtime.cache import CachePool
from fsstore.runtime.together import ChangedError, until_unchanged
from fsstore.runtime.tuning import AT_ONCE, FLIGHT_BYTES, HELD_BYTES
from fsstore.values.json_value import Json, quote

# The cache of decoded nodes.


class NodePool(Protocol):
    """A cache with a budget: the value of the context resource `cache_pool`."""

    def get(self, key: Hashable) -> Any:
        """Return the value kept under `key`, or None."""
        ...

    def put(self, key: Hashable, value: Any, size_bytes: int) -> None:
        """Keep `value` of `size_bytes` as long as the budget allows."""
        ...


class NodeCache:
    """The cache of one database: a few megabytes of its own in front of the shared pool."""

    def __init__(self, pool: NodePool | None, owner: Hashable) -> None:
        self._own = CachePool(HELD_BYTES)
        self._pool = pool
        self._owner = owner

    def get(self, key: tuple[Hashable, ...]) -> Any:
        """Return a decoded node, or None."""
        found = self._own.get(key)
        if found is None and self._pool is not None:
            found = self._pool.get(("ocdbt", self._owner, *key))
        return found

    def put(self, key: tuple[Hashable, ...], node: Any, size_bytes: int) -> None:
        """Keep a decoded node."""
        self._own.put(key, node, size_bytes)
        if self._pool is not None:
            self._pool.put(("ocdbt", self._owner, *key), node, size_bytes)


T = TypeVar("T")

_NUMBERED = KeyRange("manifest.0", "manifest.:")
_NODE_OVERHEAD = 200  # bytes of a decoded node besides its columns


class Snapshot(NamedTuple):
    """A manifest as it was at `time`; None if there was no database.

    `generation` is that of `manifest.ocdbt`.  In a numbered database, `file_generation` is that of the newest numbered
    file, and `numbers` are the numbers of the files.
    """

    manifest: Manifest | None
    generation: bytes
    time: float
    numbers: tuple[int, ...] = ()
    file_generation: bytes = UNKNOWN


ABSENT = Snapshot(None, NO_VALUE, float("-inf"))


class DatabaseSource:
    """A database in the directory `base`, its manifests in `manifests`."""

    def __init__(self, base: KvPrefix, manifests: KvPrefix | None = None, cache: NodeCache | None = None) -> None:
        self.base = base
        self.manifests = base if manifests is None else manifests
        self.last = ABSENT
        self._cache = cache or NodeCache(None, None)

    async def snapshot(self, staleness_bound: float = float("inf")) -> Snapshot:
        """Return the manifest as it was at `staleness_bound` or later."""
        last = self.last
        if last.time >= staleness_bound:
            return last
        found = await self._read_manifest(MANIFEST_KEY, last.generation, staleness_bound)
        if found.state == "missing":
            fresh = Snapshot(None, NO_VALUE, found.time)
        elif found.state == "unspecified":
            fresh = last._replace(time=found.time)
        else:
            manifest = self._decode(found.value, MANIFEST_KEY)
            fresh = Snapshot(manifest, found.generation, found.time)
        if fresh.manifest is not None and fresh.manifest.config.manifest_kind == "numbered":
            fresh = await self._newest_numbered(fresh)
        self.remember(fresh)
        return fresh

    def remember(self, snapshot: Snapshot) -> None:
        """Keep a snapshot as the last, unless another thread has seen a later one."""
        if snapshot.time >= self.last.time:
            self.last = snapshot

    async def _newest_numbered(self, head: Snapshot) -> Snapshot:
        """Return `head` with the newest numbered manifest, which may vanish between listing and reading."""
        return await until_unchanged(partial(self._numbered, head), self.manifests.describe, reads=True)

    async def _numbered(self, head: Snapshot) -> Snapshot:
        numbers = await self._numbers()
        if head.manifest is None or not numbers:
            manifest = None if head.manifest is None else Manifest(head.manifest.config)
            return head._replace(manifest=manifest, numbers=(), file_generation=UNKNOWN)
        known = head.file_generation if head.manifest.generation == numbers[-1] else UNKNOWN
        key = numbered_key(numbers[-1])
        found = await self._read_manifest(key, known, float("inf"))
        if found.state == "unspecified":
            return head._replace(numbers=numbers)
        if found.state == "missing":
            raise ChangedError
        manifest = self._decode(found.value, key, number=numbers[-1])
        return head._replace(manifest=manifest, numbers=numbers, file_generation=found.generation)

    async def _numbers(self) -> tuple[int, ...]:
        numbers: list[int] = []
        async for batch in self.manifests.scan(_NUMBERED):
            numbers += [number for entry in batch if (number := manifest_number(entry.key))]
        return tuple(sorted(numbers))

    async def _read_manifest(self, key: str, known: bytes, bound: float) -> ReadResult:
        known = UNKNOWN if known == NO_VALUE else known
        read = Read(key, if_not_equal=known, staleness_bound=bound)
        return (await self.manifests.read_many([read]))[0]

    def _decode(self, value: Buffer, key: str, *, number: int = 0) -> Manifest:
        try:
            return decode_manifest(bytes(value), number=number)
        except StoreError as error:
            raise error.within(f"Error decoding {self.manifests.describe(key)}") from None

    async def nodes(self, places: Sequence[Location]) -> list[Node]:
        """Return the B+tree nodes at `places`, in order, with one call of the base store."""
        return await self._load("btree", places, decode_node, _btree_size)

    def keep_node(self, place: Location, node: Node) -> None:
        """Cache a node that is about to be stored, so that the next commit need not read it."""
        self._cache.put(("btree", *place), node, _btree_size(node))

    async def version_nodes(self, refs: Sequence[VersionNodeRef], arity_log2: int) -> list[VersionNode]:
        """Return the version tree nodes that `refs` lead to."""
        places = [ref.location for ref in refs]
        nodes = await self._load("version", places, decode_version_node, _version_size)
        for ref, node in zip(refs, nodes, strict=True):
            if (node.height, node.arity_log2, node.newest) != (ref.height, arity_log2, ref.generation):
                raise DataLossError(
                    f"Error decoding {self.describe(ref.location)}: expected a version tree node of height"
                    f" {ref.height} up to generation {ref.generation}"
                )
        return nodes

    async def _load(
        self, sort: str, places: Sequence[Location], decode: Callable[[bytes, bytes], T], size: Callable[[T], int]
    ) -> list[T]:
        nodes = {place: self._cache.get((sort, *place)) for place in places}
        wanted = [place for place, node in nodes.items() if node is None]
        if wanted:
            for place, value in zip(wanted, await read_spans(self.base, wanted), strict=True):
                nodes[place] = self._decoded(sort, place, value, decode, size)
        return [nodes[place] for place in places]

    def _decoded(
        self, sort: str, place: Location, value: Buffer, decode: Callable[[bytes, bytes], T], size: Callable[[T], int]
    ) -> T:
        try:
            node = decode(bytes(value), place.file.base_path)
        except StoreError as error:
            raise error.within(f"Error decoding {self.describe(place)}") from None
        self._cache.put((sort, *place), node, size(node))
        return node

    def describe(self, place: Location) -> str:
        """Return the name of a byte range for messages."""
        name = self.base.describe(key_text(place.file.name))
        return f"Byte range [{place.offset}, {place.offset + place.length}) of {name}"


def _btree_size(node: Node) -> int:
    return _NODE_OVERHEAD + node.size_bytes


def _version_size(node: VersionNode) -> int:
    return _NODE_OVERHEAD * (1 + len(node.versions) + len(node.children))


async def read_spans(base: KvPrefix, places: Sequence[Location]) -> list[Buffer]:
    """Return the bytes at `places`, in order, with one call; a missing or short data file is damage."""
    names = {place.file: key_text(place.file.name) for place in places}
    reads = [Read(names[file], offset, offset + length) for file, offset, length in places]
    try:
        results = await base.read_many(reads)
    except OutOfRangeError as error:
        raise DataLossError(f"A data file of the OCDBT database is too short: {error.message}") from error
    values = [result.value for result in results]
    for place, result in zip(places, results, strict=True):
        if result.state != "value":
            raise DataLossError(f"{base.describe(names[place.file])} is missing: data file of an OCDBT database")
        if len(result.value) != place.length:
            raise DataLossError(
                f"{base.describe(names[place.file])} gave {len(result.value)} of the {place.length} bytes"
                f" at {place.offset}"
            )
    return values


# Looking keys up in a version, and listing them.


class Hits(NamedTuple):
    """The entries of a leaf that answer requests: row `rows[i]` answers request `indexes[i]`."""

    leaf: Leaf
    indexes: list[int]
    rows: list[int]


class Step(NamedTuple):
    """A node to visit, as its parent describes it.

    `low` is the whole key in the parent, `prefix` the part that keys below omit.
    """

    location: Location
    height: int
    prefix: bytes = b""
    low: bytes = b""


class Slice(NamedTuple):
    """The entries `[start, stop)` of a leaf, whose whole keys are `prefix + key`."""

    leaf: Leaf
    prefix: bytes
    start: int
    stop: int


def check_child(source: DatabaseSource, step: Step, node: Node) -> None:
    """Raise unless `node` matches its parent's description."""
    if node.height != step.height:
        raise DataLossError(
            f"Error decoding {source.describe(step.location)}: Expected height of {step.height}"
            f" but received: {node.height}"
        )
    if step.prefix + node.keys[0] < step.low:
        raise DataLossError(
            f"Error decoding {source.describe(step.location)}: its first key comes before the key its parent has"
        )


async def _visit(source: DatabaseSource, steps: Sequence[Step]) -> list[Node]:
    nodes = await source.nodes([step.location for step in steps])
    for step, node in zip(steps, nodes, strict=True):
        check_child(source, step, node)
    return nodes


async def find(source: DatabaseSource, version: Version, keys: Sequence[bytes]) -> list[Hits]:
    """Return the entries with these keys, by leaf, without absent keys."""
    if version.root is None:
        return []
    rest = list(keys)
    level: list[tuple[Step, list[int]]] = [(Step(version.root, version.height), list(range(len(keys))))]
    for _ in range(version.height):
        nodes = await _visit(source, [step for step, _ in level])
        below: list[tuple[Step, list[int]]] = []
        for (step, indexes), node in zip(level, nodes, strict=True):
            if isinstance(node, Interior):
                below += _descend(node, step, indexes, rest)
        level = below
    leaves = await _visit(source, [step for step, _ in level])
    pairs = zip(leaves, level, strict=True)
    return [_match(leaf, indexes, rest) for leaf, (_, indexes) in pairs if isinstance(leaf, Leaf)]


def _descend(node: Interior, step: Step, indexes: list[int], rest: list[bytes]) -> Iterator[tuple[Step, list[int]]]:
    """Assign requests to the children; `rest` loses the prefixes that the children omit."""
    groups: dict[int, list[int]] = {}
    keys = node.keys
    cuts = node.omitted.tolist()
    for index in indexes:
        key = rest[index]
        row = bisect_right(keys, key) - 1
        if row >= 0 and key.startswith(keys[row][: cuts[row]]):
            groups.setdefault(row, []).append(index)
            rest[index] = key[cuts[row] :]
    for row, members in groups.items():
        low = step.prefix + keys[row]
        prefix = low[: len(step.prefix) + cuts[row]]
        yield Step(node.location(row), node.height - 1, prefix, low), members


def _match(leaf: Leaf, indexes: list[int], rest: list[bytes]) -> Hits:
    keys = leaf.keys
    count = len(keys)
    found: list[int] = []
    rows: list[int] = []
    for index in indexes:
        key = rest[index]
        row = bisect_left(keys, key)
        if row < count and keys[row] == key:
            found.append(index)
            rows.append(row)
    return Hits(leaf, found, rows)


async def walk(source: DatabaseSource, version: Version, keys: KeyRange) -> AsyncIterator[list[Slice]]:
    """Yield the entries in a range in the order of their keys, some leaves at a time."""
    if version.root is None or keys.empty:
        return
    last: bytes | None = None
    pending: list[Iterator[Step]] = [iter([Step(version.root, version.height)])]
    while pending:
        window = _take_window(pending[-1])
        if not window:
            pending.pop()
            continue
        nodes = await _visit(source, window)
        if window[0].height:
            below = [_children(node, step, keys) for step, node in zip(window, nodes, strict=True)]
            pending.append(chain.from_iterable(below))
            continue
        slices = [_slice(leaf, step, keys) for leaf, step in zip(nodes, window, strict=True)]
        found = [part for part in slices if part.start < part.stop]
        for part in found:
            if last is not None and part.prefix + part.leaf.keys[part.start] <= last:
                raise DataLossError("The leaves of an OCDBT database are not in the order of their keys")
            last = part.prefix + part.leaf.keys[part.stop - 1]
        if found:
            yield found


def _take_window(steps: Iterator[Step]) -> list[Step]:
    """Return the next nodes of one level, within the limits of a window."""
    window: list[Step] = []
    total = 0
    for step in steps:
        window.append(step)
        total += step.location.length
        if len(window) == AT_ONCE or total >= FLIGHT_BYTES:
            break
    return window


def _children(node: Node, step: Step, keys: KeyRange) -> Iterator[Step]:
    """Yield the children whose interval meets the range, in order."""
    if not isinstance(node, Interior):
        return
    full = [step.prefix + key for key in node.keys]
    start = max(0, bisect_right(full, keys.inclusive_min) - 1)
    stop = bisect_left(full, keys.exclusive_max) if keys.exclusive_max else len(full)
    omitted = node.omitted.tolist()
    cut = len(step.prefix)
    for row in range(start, stop):
        yield Step(node.location(row), node.height - 1, full[row][: cut + omitted[row]], full[row])


def _slice(node: Node, step: Step, keys: KeyRange) -> Slice:
    if not isinstance(node, Leaf):
        raise DataLossError("expected a leaf")
    count = len(node.keys)
    if keys.unbounded:
        return Slice(node, step.prefix, 0, count)
    full = [step.prefix + key for key in node.keys] if step.prefix else node.keys
    start = bisect_left(full, keys.inclusive_min)
    stop = bisect_left(full, keys.exclusive_max) if keys.exclusive_max else count
    return Slice(node, step.prefix, start, stop)


# Finding one of many versions: by generation number or by commit time.


class Choice(NamedTuple):
    """The choice of a version: the one of a generation, or the newest committed at or before a time."""

    by: Literal["generation", "time"]
    value: int


async def find_version(source: DatabaseSource, manifest: Manifest, choice: Choice) -> Version | None:
    """Return the chosen version, or None if it does not exist."""
    log2 = manifest.config.version_tree_arity_log2
    versions: Sequence[Version] = manifest.versions
    refs: Sequence[VersionNodeRef] = manifest.refs
    while True:
        version = _pick(versions, choice)
        if version is not None or not refs:
            return version
        ref = _pick_ref(refs, choice, log2)
        if ref is None:
            return None
        node = (await source.version_nodes([ref], log2))[0]
        versions, refs = node.versions, node.children


def _pick(versions: Sequence[Version], choice: Choice) -> Version | None:
    order = attrgetter("commit_time" if choice.by == "time" else "generation")
    row = bisect_right(versions, choice.value, key=order) - 1
    if row < 0 or (choice.by == "generation" and versions[row].generation != choice.value):
        return None
    return versions[row]


def _pick_ref(refs: Sequence[VersionNodeRef], choice: Choice, log2: int) -> VersionNodeRef | None:
    """Return the reference to the node that must hold the version, if it exists."""
    if choice.by == "time":
        row = bisect_right(refs, choice.value, key=attrgetter("commit_time")) - 1
        return refs[row] if row >= 0 else None
    for ref in refs:
        if ref.generation >= choice.value:
            return ref if choice.value >= node_start(ref.generation, ref.height, log2) else None
    return None


async def all_versions(source: DatabaseSource, manifest: Manifest) -> AsyncIterator[Sequence[Version]]:
    """Yield all versions, oldest first, a node at a time; sibling nodes are fetched together."""
    log2 = manifest.config.version_tree_arity_log2
    pending: list[list[VersionNodeRef]] = [[ref] for ref in reversed(manifest.refs)]
    while pending:
        refs = pending[-1][:64]
        del pending[-1][:64]
        if not pending[-1]:
            pending.pop()
        nodes = await source.version_nodes(refs, log2)
        below: list[VersionNodeRef] = []
        for node in nodes:
            if node.versions:
                yield node.versions
            below += node.children
        if below:
            pending.append(below)
    yield manifest.versions


# Versions as text: a generation (`v5`) or a time.

_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d+))?Z", re.ASCII)


def parse_time(text: str) -> int:
    """Return the nanoseconds since the epoch of a time such as `2025-01-01T00:00:00.5Z`."""
    match = _TIME.fullmatch(text)
    error = StoreError(f"Invalid OCDBT commit time {quote(text)}: Failed to parse input")
    if match is None:
        raise error
    try:
        moment = datetime.fromisoformat(match[1]).replace(tzinfo=UTC)
    except ValueError:
        raise error from None
    seconds = round((moment - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds())
    value = seconds * 10**9 + int(((match[2] or "") + "0" * 9)[:9])
    if not 0 <= value <= U64:
        raise StoreError(f"Invalid OCDBT commit time {quote(text)}: out of range")
    return value


def format_time(nanoseconds: int) -> str:
    """Return the inverse of `parse_time`, with as many digits as needed."""
    seconds, rest = divmod(nanoseconds, 10**9)
    try:
        text = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return f"{nanoseconds} ns"
    fraction = f".{rest:09}".rstrip("0") if rest else ""
    return f"{text.rjust(19, '0')}{fraction}Z"


def parse_version(text: str) -> Json:
    """Return the `version` member for `v5` or a time in a URL."""
    try:
        if re.fullmatch(r"v[0-9]+", text):
            if len(text) > 30 or not 1 <= int(text[1:]) <= U64:
                raise StoreError("Invalid generation number")
            return int(text[1:])
        return format_time(parse_time(text))
    except StoreError as error:
        raise StoreError(f"Invalid OCDBT version: {quote(text)}: {error.message}") from None


def format_version(version: Json) -> str:
    """Return the text of a `version` member, as in URLs and messages."""
    return f"v{version}" if isinstance(version, int) else str(version)


def choice_of(version: Json) -> Choice | None:
    """Return the choice of a canonical `version` member; None is the newest."""
    if version is None:
        return None
    return Choice("time", parse_time(version)) if isinstance(version, str) else Choice("generation", int(str(version)))
