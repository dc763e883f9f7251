"""Tools for whole databases: list their versions, verify them, dump their nodes, compact them."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias
from urllib.parse import quote as percent_encode
from urllib.parse import unquote_to_bytes

import numpy as np

from fsstore.errors import AlreadyExistsError, DataLossError, NotFoundError, StoreError
from fsstore.kvstore.contract.driver import KvPrefix
from fsstore.kvstore.contract.request import KeyRange
from fsstore.ocdbt.change import Stored, leaf_of
from fsstore.ocdbt.commit import Committer, Sink
from fsstore.ocdbt.driver import entries_of
from fsstore.ocdbt.encoding import U64, DataFile, Location
from fsstore.ocdbt.manifest import (
    EMPTY,
    Config,
    Manifest,
    TreeStatistics,
    Version,
    VersionNode,
    VersionNodeRef,
    complete_config,
    decode_manifest,
    decode_version_node,
    encode_manifest,
    encode_version_node,
)
from fsstore.ocdbt.node import INLINE, Builder, Interior, Leaf, Node
from fsstore.ocdbt.source import DatabaseSource, Slice, Step, all_versions, check_child, format_time, read_spans, walk
from fsstore.runtime.together import outcomes
from fsstore.runtime.tuning import AT_ONCE, FLIGHT_BYTES
from fsstore.values.json_value import Fields, array_of, integer, json_error, quote, string

# Copying one version into a new database, without any other version.


async def compact(source: DatabaseSource, version: Version, target: Committer, config: Config) -> Version:
    """Write the contents of `version` as the only version of a new database and return it.

    `config` configures the new database.  Raises `AlreadyExistsError` if there is a database already.
    """
    if (await target.source.snapshot()).manifest is not None:
        raise AlreadyExistsError(f"{target.source.manifests.describe()} holds an OCDBT database already")
    sink = Sink(target.layout)
    copied: list[Leaf] = []
    written = 0
    async for keys, values in _entries(source, version):
        stored: list[Stored] = []
        for value in values:
            if len(value) <= config.max_inline_value_bytes:
                stored.append(value)
            else:
                stored.append(sink.place("value", value))
                written += len(value)
        copied.append(leaf_of(keys, stored))
        if written >= FLIGHT_BYTES:
            await sink.flush(target.source.base)
            written = 0
    builder = Builder(config, lambda data: sink.place("btree_node", data))
    root = builder.root(builder.leaves(_concatenated(copied), may_be_root=True) if copied else [], 0)
    await sink.flush(target.source.base)
    return await target.create(config, root)


async def _entries(source: DatabaseSource, version: Version) -> AsyncIterator[tuple[list[bytes], list[bytes]]]:
    """Yield all keys and their values, a bounded number of bytes at a time."""
    async for slices in walk(source, version, KeyRange()):
        for part in slices:
            keys = entries_of(part).keys
            for start, stop in _windows(part):
                rows = range(part.start + start, part.start + stop)
                values = [part.leaf.value(row) for row in rows]
                places = [value for value in values if not isinstance(value, bytes)]
                fetched = iter(await read_spans(source.base, places))
                whole = [value if isinstance(value, bytes) else bytes(next(fetched)) for value in values]
                yield keys[start:stop], whole


def _windows(part: Slice) -> Iterator[tuple[int, int]]:
    """Divide a slice into runs of entries of bounded size."""
    sums = np.cumsum(part.leaf.lengths[part.start : part.stop])
    start, done = 0, 0
    while start < len(sums):
        stop = max(start + 1, int(np.searchsorted(sums, done + FLIGHT_BYTES, side="right")))
        yield start, stop
        start, done = stop, int(sums[stop - 1])


def _concatenated(leaves: list[Leaf]) -> Leaf:
    files: dict[DataFile, int] = {}
    ids: list[np.ndarray] = []
    offsets: list[np.ndarray] = []
    before = 0
    for leaf in leaves:
        inline = leaf.file_ids == INLINE
        remap = np.array([files.setdefault(file, len(files)) for file in leaf.files] or [INLINE], np.int64)
        ids.append(np.where(inline, INLINE, remap[leaf.file_ids]))
        offsets.append(np.where(inline, leaf.offsets + before, leaf.offsets))
        before += len(leaf.payload)
    return Leaf(
        [key for leaf in leaves for key in leaf.keys],
        np.concatenate([leaf.lengths for leaf in leaves]),
        np.concatenate(ids),
        np.concatenate(offsets),
        list(files),
        b"".join([leaf.payload for leaf in leaves]),
    )


# Stored structures as JSON; manifests and version tree nodes also back from JSON.  These are TensorStore's dump
# functions.

Kind: TypeAlias = Literal["btreenode", "versionnode", "value"]
Dump: TypeAlias = dict[str, Any]

_COUNT = integer(0, U64)
_REFERENCE = re.compile(r"([^:]*):([^:]*):([^:]*):([0-9]{1,20}):([0-9]{1,20})", re.ASCII)


def format_reference(kind: Kind, place: Location) -> str:
    """Return the text of a reference to a byte range of a data file."""
    names = [percent_encode(part, safe="-_./").replace("~", "%7E") for part in place.file]
    return f"{kind}:{names[0]}:{names[1]}:{place.offset}:{place.length}"


def parse_reference(text: str, wanted: Kind | None = None) -> tuple[str, Location]:
    """Return the kind and the location of a reference, the inverse of `format_reference`."""
    match = _REFERENCE.fullmatch(text)
    if match is None:
        raise StoreError(f"Invalid indirect data reference: {quote(text)}")
    kind = match[1]
    if kind not in ("btreenode", "versionnode", "value"):
        raise StoreError(f"Invalid indirect data kind: {kind}")
    if wanted not in (None, kind):
        raise StoreError(f"Indirect data reference kind mismatch: expected {wanted}, got {kind}")
    offset, length = int(match[4]), int(match[5])
    if offset + length >= 2**63:
        raise StoreError(f"Invalid indirect data reference: {quote(text)}")
    return kind, Location(DataFile(_decode(match[2]), _decode(match[3])), offset, length)


def _decode(text: str) -> bytes:
    if re.search(r"%(?![0-9A-Fa-f]{2})", text):
        raise StoreError(f"Invalid percent-encoding: {quote(text)}")
    return unquote_to_bytes(text)


async def dump(base: KvPrefix, node: str | None = None) -> Any:
    """Return the manifest, or the node or value that `node` refers to, of the database in the directory `base`."""
    source = DatabaseSource(base)
    if node is None:
        manifest = (await source.snapshot()).manifest
        if manifest is None:
            raise NotFoundError("Manifest not found")
        return manifest_json(manifest)
    kind, place = parse_reference(node)
    if kind == "btreenode":
        return node_json((await source.nodes([place]))[0])
    data = bytes((await read_spans(base, [place]))[0])
    if kind == "value":
        return data
    try:
        return version_node_json(decode_version_node(data, place.file.base_path))
    except StoreError as error:
        raise error.within(f"Error decoding {source.describe(place)}") from None


def manifest_json(manifest: Manifest) -> Dump:
    """Return a manifest as JSON."""
    return {
        "config": manifest.config.to_json(),
        "versions": [_version_json(version) for version in manifest.versions],
        "version_tree_nodes": [_ref_json(ref) for ref in manifest.refs],
    }


def version_node_json(node: VersionNode) -> Dump:
    """Return a version tree node as JSON."""
    entries = [_ref_json(ref) for ref in node.children] or [_version_json(version) for version in node.versions]
    return {"height": node.height, "version_tree_arity_log2": node.arity_log2, "entries": entries}


def node_json(node: Node) -> Dump:
    """Return a B+tree node as JSON."""
    entries: list[Dump] = []
    for row, key in enumerate(node.keys):
        if isinstance(node, Leaf):
            value = node.value(row)
            if isinstance(value, bytes):
                entries.append({"key": key, "inline_value": value})
            else:
                entries.append({"key": key, "indirect_value": format_reference("value", value)})
        else:
            child = node.child(row, b"")
            entries.append(
                {
                    "key": key,
                    "subtree_common_prefix": key[: child.prefix_length],
                    "location": format_reference("btreenode", child.location),
                    "statistics": child.statistics._asdict(),
                }
            )
    return {"height": node.height, "entries": entries}


def _version_json(version: Version) -> Dump:
    root: Dump = {"statistics": version.statistics._asdict()}
    if version.root is not None:
        root["location"] = format_reference("btreenode", version.root)
    return {
        "generation_number": version.generation,
        "root_height": version.height,
        "root": root,
        "commit_time": version.commit_time,
    }


def _ref_json(ref: VersionNodeRef) -> Dump:
    return {
        "generation_number": ref.generation,
        "location": format_reference("versionnode", ref.location),
        "num_generations": ref.num_generations,
        "commit_time": ref.commit_time,
        "height": ref.height,
    }


def undump_manifest(dumped_manifest: Any) -> bytes:
    """Return the stored form of a dumped manifest, of kind single: a dump does not hold the kind."""
    fields = Fields(dumped_manifest)
    config = fields.require("config", _located(complete_config))
    versions = fields.require("versions", array_of(_parse_version))
    refs = fields.require("version_tree_nodes", array_of(_parse_ref))
    fields.finish()
    if not versions:
        raise StoreError("A manifest must have versions")
    encoded = encode_manifest(Manifest(config, tuple(versions), tuple(refs)))
    decode_manifest(encoded)
    return encoded


def undump_version_tree_node(dumped_config: Any, dumped_node: Any) -> bytes:
    """Return the stored form of a dumped version tree node, compressed according to a configuration."""
    level = complete_config(dumped_config).level
    fields = Fields(dumped_node)
    arity_log2 = fields.require("version_tree_arity_log2", integer(1, 16))
    height = fields.require("height", integer(0, 62))
    node = VersionNode(arity_log2, height)
    if height == 0:
        node = VersionNode(arity_log2, 0, versions=tuple(fields.require("entries", array_of(_parse_version)) or ()))
    elif height is not None:
        node = VersionNode(arity_log2, height, children=tuple(fields.require("entries", array_of(_parse_ref)) or ()))
    fields.finish()
    if not (node.versions or node.children):
        raise StoreError("A version tree node must have entries")
    encoded = encode_version_node(node, level)
    decode_version_node(encoded, b"")
    return encoded


def _located(parser: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a parser whose errors `Fields` can locate."""

    def parse(value: Any) -> Any:
        try:
            return parser(value)
        except StoreError as error:
            raise json_error(error) from None

    return parse


def _place(kind: Kind) -> Callable[[Any], Any]:
    return _located(lambda value: parse_reference(string(value), kind)[1])


def _parse_version(value: Any) -> Version:
    fields = Fields(value)
    root = fields.require("root", _parse_root)
    version = Version(
        fields.require("generation_number", integer(1, U64)),
        fields.require("root_height", integer(0, 255)),
        root and root[0],
        root and root[1],
        fields.require("commit_time", _COUNT),
    )
    fields.finish()
    return version


def _parse_root(value: Any) -> Any:
    fields = Fields(value)
    place = fields.take("location", _place("btreenode"))
    statistics = fields.require("statistics", _parse_statistics)
    fields.finish()
    return place, statistics


def _parse_statistics(value: Any) -> TreeStatistics:
    fields = Fields(value)
    found = [fields.require(name, _COUNT) for name in TreeStatistics._fields]
    fields.finish()
    return TreeStatistics(*found)


def _parse_ref(value: Any) -> VersionNodeRef:
    fields = Fields(value)
    ref = VersionNodeRef(
        fields.require("generation_number", integer(1, U64)),
        fields.require("location", _place("versionnode")),
        fields.require("num_generations", integer(1, U64)),
        fields.require("commit_time", _COUNT),
        fields.require("height", integer(0, 62)),
    )
    fields.finish()
    return ref


# Checking a version: checksum and place of every node, the sums, and the presence of every value.

_PROBLEMS = 1000  # in one report


@dataclass(slots=True)
class VerifyReport:
    """The result: numbers of checked items, and at most a thousand problems; `ok` if there are none."""

    generation: int
    num_keys: int = 0
    num_nodes: int = 0
    num_files: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether no problem was found."""
        return not self.problems

    def add(self, problem: str) -> None:
        """Remember a problem."""
        if len(self.problems) < _PROBLEMS:
            self.problems.append(problem)


class _Expected(NamedTuple):
    """A node to visit: its step, the end of its keys (None: unbounded), and the sums that its parent states."""

    step: Step
    high: bytes | None
    statistics: TreeStatistics


async def verify(source: DatabaseSource, version: Version) -> VerifyReport:
    """Walk the whole tree of a version and report."""
    report = VerifyReport(version.generation, num_keys=version.statistics.num_keys)
    if version.root is None:
        if version.statistics != EMPTY:
            report.add("an empty version has statistics")
        return report
    ends: dict[DataFile, int] = {}
    seen: set[tuple[Location, int]] = {(version.root, version.height)}
    pending = [_Expected(Step(version.root, version.height), None, version.statistics)]
    while pending:
        window = pending[-AT_ONCE:]
        del pending[-AT_ONCE:]
        for expected, node in zip(window, await _fetch(source, window, report), strict=True):
            if node is None:
                continue
            report.num_nodes += 1
            _check(source, expected, node, report)
            if isinstance(node, Interior):
                pending += _below(expected, node, seen)
            else:
                _note_ends(node, ends)
    await _check_files(source, ends, report)
    return report


async def _fetch(source: DatabaseSource, window: Sequence[_Expected], report: VerifyReport) -> list[Node | None]:
    """Return the nodes; unreadable nodes are reported and become None."""
    places = [expected.step.location for expected in window]
    found = await outcomes(source.nodes, places, StoreError)
    for error in found:
        if isinstance(error, BaseException):
            report.add(str(error))
    return [None if isinstance(node, BaseException) else node for node in found]


def _check(source: DatabaseSource, expected: _Expected, node: Node, report: VerifyReport) -> None:
    step, high, statistics = expected
    place = source.describe(step.location)
    try:
        check_child(source, step, node)
    except DataLossError as error:
        report.add(str(error))
    if high is not None and step.prefix + node.keys[-1] >= high:
        report.add(f"{place}: its last key belongs to the next node")
    actual = _statistics(node, step.location.length)
    if actual != statistics:
        report.add(f"{place}: holds {tuple(actual)} keys and bytes, but its parent says {tuple(statistics)}")


def _statistics(node: Node, node_bytes: int) -> TreeStatistics:
    if isinstance(node, Leaf):
        return node.statistics(node_bytes)
    keys, tree, values = (sum(column.tolist()) for column in node.sums)
    return TreeStatistics(min(keys, U64), min(tree + node_bytes, U64), min(values, U64))


def _below(expected: _Expected, node: Interior, seen: set[tuple[Location, int]]) -> list[_Expected]:
    prefix = expected.step.prefix
    out: list[_Expected] = []
    for row in range(len(node.keys)):
        child = node.child(row, prefix)
        if (child.location, node.height - 1) in seen:
            continue
        seen.add((child.location, node.height - 1))
        high = prefix + node.keys[row + 1] if row + 1 < len(node.keys) else expected.high
        step = Step(child.location, node.height - 1, child.key[: child.prefix_length], child.key)
        out.append(_Expected(step, high, child.statistics))
    return out


def _note_ends(leaf: Node, ends: dict[DataFile, int]) -> None:
    """Note the least size of each data file."""
    if not isinstance(leaf, Leaf):
        return
    stored = leaf.file_ids != INLINE
    stops = np.zeros(len(leaf.files), np.int64)
    np.maximum.at(stops, leaf.file_ids[stored], (leaf.offsets + leaf.lengths)[stored])
    for number in np.unique(leaf.file_ids[stored]).tolist():
        file = leaf.files[number]
        ends[file] = max(ends.get(file, 0), int(stops[number]))


async def _check_files(source: DatabaseSource, ends: dict[DataFile, int], report: VerifyReport) -> None:
    report.num_files = len(ends)
    places = [Location(file, end - 1, 1) for file, end in ends.items() if end]
    for start in range(0, len(places), AT_ONCE):
        window = places[start : start + AT_ONCE]
        for error in await outcomes(partial(read_spans, source.base), window, StoreError):
            if isinstance(error, BaseException):
                report.add(str(error))


class VersionInfo(NamedTuple):
    """One version.  `tree_bytes` and `value_bytes` count its data, much of which other versions may share.

    `commit_time_ns` counts from the Unix epoch; inline values are part of the tree.
    """

    generation: int
    commit_time_ns: int
    num_keys: int
    tree_bytes: int
    value_bytes: int
    height: int

    @property
    def commit_time(self) -> datetime:
        """The time of the commit, to the microsecond."""
        return datetime.fromtimestamp(self.commit_time_ns // 10**9, UTC).replace(
            microsecond=self.commit_time_ns // 1000 % 10**6
        )

    @property
    def size_bytes(self) -> int:
        """The bytes of the version, shared ones included."""
        return self.tree_bytes + self.value_bytes

    @property
    def url_version(self) -> str:
        """The time in the form of URLs: `ocdbt:@<url_version>/` opens this version."""
        return format_time(self.commit_time_ns)


def describe_version(version: Version) -> VersionInfo:
    """Return the public description of a version."""
    keys, tree, values = version.statistics
    return VersionInfo(version.generation, version.commit_time, keys, tree, values, version.height)


async def versions(source: DatabaseSource) -> list[VersionInfo]:
    """Return all versions, oldest first; raise `NotFoundError` if there is no database."""
    manifest = (await source.snapshot()).manifest
    if manifest is None:
        raise NotFoundError(f"{source.manifests.describe()} holds no OCDBT database")
    out: list[VersionInfo] = []
    if manifest.versions:
        async for some in all_versions(source, manifest):
            out += [describe_version(version) for version in some]
    return out
