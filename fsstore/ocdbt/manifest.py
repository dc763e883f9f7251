"""The manifest of an OCDBT database: its configuration, its versions, and the tree of older versions.

A `Config` is fixed when a database is created and stands at the start of every manifest.  A spec gives
`Constraints`: an existing database must agree with them, a new one takes its values from them.

Versions and references to nodes of older ones appear in manifests and in version tree nodes, stored by column.

Generations are grouped in blocks of A (the arity).  The manifest holds the newest block; below it hangs at most one
node of each height, and a node of height h covers generations k*A**(h+1)+1 to (k+1)*A**(h+1).  So a database of n
versions has log_A(n) references in its manifest, and a commit rewrites a node only once in A commits.

In a numbered database `manifest.ocdbt` holds the configuration alone and every commit makes a file
`manifest.<generation>`; those files carry the kind "single", which `decode_manifest` puts right when told so.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from fsstore.errors import FailedPreconditionError, JsonError, StoreError
from fsstore.ocdbt.encoding import (
    MANIFEST,
    MISSING,
    NO_FILE,
    U32,
    VERSION_NODE,
    Cursor,
    DataFile,
    Location,
    decode_files,
    encode,
    encode_column,
    encode_files,
    seal,
    sorted_files,
    take_locations,
    unseal,
)
from fsstore.values.json_value import Fields, Json, expected, integer, one_of, optional, show, string

# The configuration of a database: its stored form, its JSON, and the constraints of users on it.

ManifestKind: TypeAlias = Literal["single", "numbered"]

MAX_INLINE = 1024 * 1024
"""The longest value a leaf may hold, whatever the configuration."""

_LEVELS = (-131072, 22)
_NAMES = ("uuid", "manifest_kind", "max_inline_value_bytes", "max_decoded_node_bytes", "version_tree_arity_log2")


@dataclass(frozen=True, slots=True)
class Config:
    """A complete configuration.  `level` is the zstd level; None means no compression."""

    uuid: bytes
    manifest_kind: ManifestKind = "single"
    max_inline_value_bytes: int = 100
    max_decoded_node_bytes: int = 8 * 1024 * 1024
    version_tree_arity_log2: int = 4
    level: int | None = 0

    def encoded(self) -> bytes:
        """Return the stored form."""
        parts = [
            self.uuid,
            bytes([self.manifest_kind == "numbered"]),
            encode(self.max_inline_value_bytes),
            encode(self.max_decoded_node_bytes),
            bytes([self.version_tree_arity_log2]),
            encode(self.level is not None),
        ]
        return b"".join(parts) + (b"" if self.level is None else struct.pack("<i", self.level))

    @classmethod
    def take(cls, cursor: Cursor) -> Config:
        """Return the configuration at the cursor."""
        uuid = cursor.take_bytes(16)
        kind = cursor.take_u8()
        if kind > 1:
            raise cursor.corrupt(f"Unknown manifest kind {kind}")
        inline, decoded = cursor.take(U32), cursor.take(U32)
        arity = cursor.take_u8()
        if not 1 <= arity <= 16:
            raise cursor.corrupt(f"Expected version_tree_arity_log2 in range [1, 16] but received: {arity}")
        method, level = cursor.take(U32), None
        if method > 1:
            raise cursor.corrupt(f"Unknown compression method {method}")
        if method == 1:
            level = cursor.take_fixed(1, 4, signed=True)[0]
            if not _LEVELS[0] <= level <= _LEVELS[1]:
                raise cursor.corrupt(f"Expected zstd level in range {list(_LEVELS)} but received: {level}")
        return cls(uuid, "numbered" if kind else "single", inline, decoded, arity, level)

    def to_json(self, *, kind: bool = False) -> dict[str, Json]:
        """Return the JSON form, as TensorStore prints it: without `manifest_kind` unless asked."""
        compression = None if self.level is None else {"id": "zstd", **({"level": self.level} if self.level else {})}
        out: dict[str, Json] = {
            "uuid": self.uuid.hex(),
            "max_inline_value_bytes": self.max_inline_value_bytes,
            "max_decoded_node_bytes": self.max_decoded_node_bytes,
            "version_tree_arity_log2": self.version_tree_arity_log2,
            "compression": compression,
        }
        return {**out, "manifest_kind": self.manifest_kind} if kind else out


@dataclass(frozen=True, slots=True)
class Constraints:
    """The members of a configuration that a user gave, by name; `level` stands for `compression`, the uuid is bytes."""

    given: Mapping[str, Any]

    def check(self, config: Config) -> None:
        """Raise `FailedPreconditionError` unless `config` agrees with every given member."""
        for name, value in self.given.items():
            actual = getattr(config, name)
            if actual != value:
                label = "compression" if name == "level" else name
                raise FailedPreconditionError(
                    f"Configuration mismatch on {label}: expected {_text(name, value)}"
                    f" but received {_text(name, actual)}"
                )

    def complete(self, default_kind: ManifestKind) -> Config:
        """Return the configuration of a new database; the uuid is random unless given."""
        return Config(**{"uuid": os.urandom(16), "manifest_kind": default_kind, **self.given})

    def to_json(self) -> dict[str, Json]:
        """Return the given members as JSON."""
        out: dict[str, Json] = {}
        for name, value in self.given.items():
            if name == "level":
                out["compression"] = None if value is None else {"id": "zstd", **({"level": value} if value else {})}
            else:
                out[name] = value.hex() if name == "uuid" else value
        return out


def _text(name: str, value: Any) -> str:
    if name == "level":
        return show(None if value is None else {"id": "zstd", "level": value})
    return show(value.hex() if name == "uuid" else value)


def parse_constraints(value: Any) -> Constraints:
    """Return the constraints of a `config` member."""
    fields = Fields(value)
    parsers = (_uuid, one_of("single", "numbered"), integer(0, MAX_INLINE), integer(0, U32), integer(1, 16))
    given: dict[str, Any] = {}
    for name, parser in zip(_NAMES, parsers, strict=True):
        if name in fields:
            given[name] = fields.take(name, parser)
    if "compression" in fields:
        given["level"] = fields.take("compression", _compression)
    fields.finish()
    return Constraints(given)


def complete_config(value: Any) -> Config:
    """Return the configuration in a dump, which must hold every member but `manifest_kind`."""
    constraints = parse_constraints(value)
    if len(set(constraints.given) - {"manifest_kind"}) != len(_NAMES):
        raise StoreError("Config is not fully specified")
    return constraints.complete("single")


def _uuid(value: Any) -> bytes:
    text = string(value)
    try:
        if len(text) == 32 and text.isalnum() and text.isascii():
            return bytes.fromhex(text)
    except ValueError:
        pass
    raise expected("string with 32 hex digits", value)


def _compression(value: Any) -> int | None:
    try:
        return optional(_zstd)(value)
    except JsonError as error:
        raise JsonError(f"No matching value binder: {expected('null', value).message}; {error.message}") from None


def _zstd(value: Any) -> int:
    fields = Fields(value)
    fields.require("id", one_of("zstd"))
    level: int = fields.take("level", integer(*_LEVELS), default=0)
    fields.finish()
    return level


# Versions of the tree with generation and commit time, and references to nodes of older versions.


class TreeStatistics(NamedTuple):
    """Sums over a subtree; they saturate at 2**64 - 1."""

    num_keys: int
    num_tree_bytes: int
    num_indirect_value_bytes: int


EMPTY = TreeStatistics(0, 0, 0)


class Version(NamedTuple):
    """One state of the database.  `root` is None when it is empty; `commit_time` is in ns since the epoch."""

    generation: int
    height: int
    root: Location | None
    statistics: TreeStatistics
    commit_time: int


class VersionNodeRef(NamedTuple):
    """A node of the version tree: `generation` is the newest below it, `commit_time` the earliest."""

    generation: int
    location: Location
    num_generations: int
    commit_time: int
    height: int


def encode_versions(versions: Sequence[Version], index: dict[DataFile, int]) -> bytes:
    """Return the encoded records; `index` numbers the data files."""
    roots = [version.root or Location(NO_FILE, MISSING, MISSING) for version in versions]
    columns = [
        encode(len(versions)),
        encode_column([version.generation for version in versions]),
        bytes([version.height for version in versions]),
        _encode_locations(roots, index),
        *(encode_column([version.statistics[i] for version in versions]) for i in range(3)),
        np.array([version.commit_time for version in versions], "<u8").tobytes(),
    ]
    return b"".join(columns)


def encode_refs(refs: Sequence[VersionNodeRef], index: dict[DataFile, int], *, heights: bool) -> bytes:
    """Return the encoded records, with the column of heights if `heights`."""
    columns = [
        encode(len(refs)),
        encode_column([ref.generation for ref in refs]),
        _encode_locations([ref.location for ref in refs], index),
        encode_column([ref.num_generations for ref in refs]),
        np.array([ref.commit_time for ref in refs], "<u8").tobytes(),
        bytes([ref.height for ref in refs]) if heights else b"",
    ]
    return b"".join(columns)


def _encode_locations(places: Sequence[Location], index: dict[DataFile, int]) -> bytes:
    return b"".join(
        (
            encode_column([index[place.file] for place in places]),
            encode_column([place.offset for place in places]),
            encode_column([place.length for place in places]),
        )
    )


def take_versions(cursor: Cursor, files: Sequence[DataFile], arity_log2: int) -> list[Version]:
    """Return the version records at the cursor."""
    count = cursor.take()
    if not 1 <= count <= 1 << arity_log2:
        raise cursor.corrupt(f"Expected 1 to {1 << arity_log2} versions but received: {count}")
    generations = cursor.take_list(count)
    heights = cursor.take_bytes(count)
    roots = take_locations(cursor, files, count)
    sums = [cursor.take_list(count) for _ in range(3)]
    statistics = [TreeStatistics(*row) for row in zip(*sums, strict=True)]
    times = cursor.take_fixed(count, 8)
    if generations[0] == 0:
        raise cursor.corrupt("Generation number must not be 0")
    _check_rising(cursor, generations, "Generation numbers")
    _check_rising(cursor, times, "Commit times")
    if (generations[0] - 1) >> arity_log2 != (generations[-1] - 1) >> arity_log2:
        raise cursor.corrupt(f"Generations {generations[0]} and {generations[-1]} do not belong to one node")
    for height, root, sum_ in zip(heights, roots, statistics, strict=True):
        if root is None and (height or sum_ != EMPTY):
            raise cursor.corrupt("A version without a root must have height 0 and zero statistics")
    rows = zip(generations, heights, roots, statistics, times, strict=True)
    return [Version(*row) for row in rows]


def take_refs(cursor: Cursor, files: Sequence[DataFile], limit: int, height: int | None) -> list[VersionNodeRef]:
    """Return at most `limit` records at the cursor, all of `height`; if that is None, a column holds the heights."""
    count = cursor.take()
    if count > limit:
        raise cursor.corrupt(f"Expected at most {limit} version tree nodes but received: {count}")
    generations = cursor.take_list(count)
    places = take_locations(cursor, files, count)
    counts = cursor.take_list(count)
    times = cursor.take_fixed(count, 8)
    heights = cursor.take_bytes(count) if height is None else bytes([height]) * count
    _check_rising(cursor, generations, "Generation numbers")
    _check_rising(cursor, times, "Commit times")
    refs: list[VersionNodeRef] = []
    for generation, place, number, time, level in zip(generations, places, counts, times, heights, strict=True):
        if place is None:
            raise cursor.corrupt("A version tree node reference must not be missing")
        if generation == 0 or number == 0:
            raise cursor.corrupt("A version tree node must hold a generation")
        refs.append(VersionNodeRef(generation, place, number, time, level))
    return refs


def _check_rising(cursor: Cursor, numbers: Sequence[int], what: str) -> None:
    for low, high in pairwise(numbers):
        if low >= high:
            raise cursor.corrupt(f"{what} are not strictly increasing")


# The version tree: nodes that hold older versions, and the arithmetic that places a generation in it.


@dataclass(frozen=True, slots=True)
class VersionNode:
    """A node: `versions` if its height is 0, `children` otherwise."""

    arity_log2: int
    height: int
    versions: tuple[Version, ...] = ()
    children: tuple[VersionNodeRef, ...] = ()

    @property
    def newest(self) -> int:
        """The newest generation in or below the node."""
        return self.versions[-1].generation if self.versions else self.children[-1].generation

    def reference(self, location: Location) -> VersionNodeRef:
        """Return the reference to the node stored at `location`."""
        if self.versions:
            count, time = len(self.versions), self.versions[0].commit_time
        else:
            count = sum(child.num_generations for child in self.children)
            time = self.children[0].commit_time
        return VersionNodeRef(self.newest, location, count, time, self.height)


def node_start(generation: int, height: int, arity_log2: int) -> int:
    """Return the first generation that the node of `height` above `generation` covers."""
    shift = arity_log2 * (height + 1)
    return ((generation - 1) >> shift << shift) + 1


def ranges_below(newest: int, arity_log2: int) -> Iterator[tuple[int, int, int]]:
    """Yield (height, first, last) of the references a manifest may have, height 1 first."""
    last = (newest - 1) >> arity_log2 << arity_log2
    height = 1
    while last > 0:
        first = node_start(last, height, arity_log2)
        yield height, first, last
        last = first - 1
        height += 1


def files_of(versions: tuple[Version, ...], refs: tuple[VersionNodeRef, ...]) -> list[DataFile]:
    """Return the data files that records mention; `NO_FILE` for a missing root."""
    roots = [version.root.file if version.root else NO_FILE for version in versions]
    return roots + [ref.location.file for ref in refs]


def encode_version_node(node: VersionNode, level: int | None) -> bytes:
    """Return the stored form."""
    table, index = sorted_files(files_of(node.versions, node.children))
    head = bytes((node.arity_log2, node.height)) + encode_files(table)
    if node.height == 0:
        return seal(VERSION_NODE, head + encode_versions(node.versions, index), level)
    return seal(VERSION_NODE, head + encode_refs(node.children, index, heights=False), level)


def decode_version_node(data: bytes, context: bytes) -> VersionNode:
    """Return the node stored as `data`, read in the context of a base path."""
    what = "version tree node"
    cursor = Cursor(unseal(VERSION_NODE, data, what), what)
    arity_log2, height = cursor.take_u8(), cursor.take_u8()
    if not 1 <= arity_log2 <= 16 or height > 63 // arity_log2 - 1:
        raise cursor.corrupt(f"A node of arity 2**{arity_log2} and height {height} is not possible")
    files = decode_files(cursor, context)
    if height == 0:
        node = VersionNode(arity_log2, 0, tuple(take_versions(cursor, files, arity_log2)))
    else:
        children = take_refs(cursor, files, 1 << arity_log2, height - 1)
        if not children:
            raise cursor.corrupt("A version tree node must have children")
        check_refs(cursor, children, arity_log2)
        if node_start(children[0].generation, height, arity_log2) != node_start(
            children[-1].generation, height, arity_log2
        ):
            raise cursor.corrupt("The children do not belong to one node")
        for child in children:
            if child.generation % (1 << arity_log2 * height):
                raise cursor.corrupt(f"The child of generation {child.generation} is not full")
        node = VersionNode(arity_log2, height, (), tuple(children))
    cursor.finish()
    return node


def check_refs(cursor: Cursor, refs: list[VersionNodeRef], arity_log2: int) -> None:
    """Raise unless each reference can hold as many versions as it claims."""
    for ref in refs:
        if ref.num_generations > ref.generation - node_start(ref.generation, ref.height, arity_log2) + 1:
            raise cursor.corrupt(f"A node cannot hold {ref.num_generations} versions up to {ref.generation}")


def advance(
    versions: tuple[Version, ...],
    refs: tuple[VersionNodeRef, ...],
    new: Version,
    arity_log2: int,
    store: Callable[[VersionNode], VersionNodeRef],
    children_of: Callable[[VersionNodeRef], tuple[VersionNodeRef, ...]],
) -> tuple[tuple[Version, ...], tuple[VersionNodeRef, ...]]:
    """Return the inline versions and references of the manifest that follows, `new` being its newest version.

    `store` adds a node to the data to be written; `children_of` returns the children of a node that `needed` has named.
    """
    if (new.generation - 1) >> arity_log2 == (versions[-1].generation - 1) >> arity_log2:
        return (*versions, new), refs
    by_height = {ref.height: ref for ref in refs}
    carry: VersionNodeRef | None = store(VersionNode(arity_log2, 0, versions))
    kept: list[VersionNodeRef] = []
    for height, first, last in ranges_below(new.generation, arity_log2):
        old = by_height.get(height)
        inside = old is not None and first <= old.generation <= last
        if carry is not None and first <= carry.generation <= last:
            siblings = children_of(old) if old is not None and inside else ()
            kept.append(store(VersionNode(arity_log2, height, (), (*siblings, carry))))
        elif old is not None and inside:
            kept.append(old)
        carry = old
    return (new,), tuple(reversed(kept))


def needed(newest: int, refs: tuple[VersionNodeRef, ...], generation: int, arity_log2: int) -> list[VersionNodeRef]:
    """Return the references whose children `advance` will ask for when `generation` follows `newest`."""
    if (generation - 1) >> arity_log2 == (newest - 1) >> arity_log2:
        return []
    by_height = {ref.height: ref for ref in refs}
    carried = newest
    out: list[VersionNodeRef] = []
    for height, first, last in ranges_below(generation, arity_log2):
        old = by_height.get(height)
        if old is not None and first <= carried <= last and first <= old.generation <= last:
            out.append(old)
        carried = 0 if old is None else old.generation
    return out


MANIFEST_KEY = "manifest.ocdbt"


@dataclass(frozen=True, slots=True)
class Manifest:
    """A decoded manifest.  `versions` is empty only in the constant manifest of a numbered database."""

    config: Config
    versions: tuple[Version, ...] = ()
    refs: tuple[VersionNodeRef, ...] = ()

    @property
    def newest(self) -> Version:
        """The newest version."""
        return self.versions[-1]

    @property
    def generation(self) -> int:
        """The newest generation, 0 if there is none."""
        return self.versions[-1].generation if self.versions else 0


def numbered_key(generation: int) -> str:
    """Return the key of the manifest whose newest generation is `generation`."""
    return f"manifest.{generation:016x}"


def manifest_number(key: str) -> int:
    """Return the generation in the name of a numbered manifest, 0 for any other name."""
    digits = key.removeprefix("manifest.")
    if len(key) != 25 or len(digits) != 16 or digits.strip("0123456789abcdef"):
        return 0
    return int(digits, 16)


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the stored form: of kind "single" with versions, or the constant manifest of a numbered database."""
    config = manifest.config
    if not manifest.versions:
        return seal(MANIFEST, config.encoded(), config.level)
    table, index = sorted_files(files_of(manifest.versions, manifest.refs))
    parts = (
        replace(config, manifest_kind="single").encoded(),
        encode_files(table),
        encode_versions(manifest.versions, index),
        encode_refs(manifest.refs, index, heights=True),
    )
    return seal(MANIFEST, b"".join(parts), config.level)


def decode_manifest(data: bytes, *, number: int = 0) -> Manifest:
    """Return the manifest stored as `data`; `number` is the generation in the name of a numbered one."""
    what = "manifest"
    cursor = Cursor(unseal(MANIFEST, data, what), what)
    config = Config.take(cursor)
    if config.manifest_kind == "numbered":
        cursor.finish()
        if number:
            raise cursor.corrupt("a numbered manifest must hold versions")
        return Manifest(config)
    files = decode_files(cursor, b"")
    arity_log2 = config.version_tree_arity_log2
    versions = take_versions(cursor, files, arity_log2)
    refs = take_refs(cursor, files, 64, None)
    _check(cursor, versions, refs, arity_log2)
    cursor.finish()
    if number:
        if versions[-1].generation != number:
            raise cursor.corrupt(f"expected generation {number} but received: {versions[-1].generation}")
        config = replace(config, manifest_kind="numbered")
    return Manifest(config, tuple(versions), tuple(refs))


def _check(cursor: Cursor, versions: list[Version], refs: list[VersionNodeRef], arity_log2: int) -> None:
    ranges = {height: (first, last) for height, first, last in ranges_below(versions[-1].generation, arity_log2)}
    previous = 65
    for ref in refs:
        first, last = ranges.get(ref.height, (1, 0))
        if ref.height >= previous or ref.height > 63 // arity_log2 - 1:
            raise cursor.corrupt(f"Version tree node of height {ref.height} is out of place")
        if not first <= ref.generation <= last or ref.generation % (1 << arity_log2 * ref.height):
            raise cursor.corrupt(f"Version tree node of height {ref.height} cannot end in {ref.generation}")
        previous = ref.height
    check_refs(cursor, refs, arity_log2)
    if refs and refs[-1].commit_time >= versions[0].commit_time:
        raise cursor.corrupt("Commit times are not strictly increasing")
