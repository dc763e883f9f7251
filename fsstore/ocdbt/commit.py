"""Making a version: read the newest, apply the requests, store the data, replace the manifest unless it has changed.

There is no lock and no lease.  The manifest is written on condition that it is still the one that the commit began
with.  If it is not, the commit starts over on the new manifest, and reuses only the values already stored.  A store
without conditional writes refuses to commit, unless the spec promises a single writer by `single_writer`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal, NamedTuple, TypeAlias

from fsstore.errors import AlreadyExistsError, FailedPreconditionError, StoreError, UnimplementedError
from fsstore.kvstore.contract.ability import SweepsUnfinished, able
from fsstore.kvstore.contract.driver import NO_VALUE, UNKNOWN, Buffer, KvPrefix, Stamp, Write
from fsstore.kvstore.contract.request import key_text
from fsstore.ocdbt.change import NetChanges, Request, rebuild
from fsstore.ocdbt.encoding import MANIFESTS_KEPT, DataFile, Location, value_generation
from fsstore.ocdbt.manifest import (
    EMPTY,
    MANIFEST_KEY,
    Config,
    Constraints,
    Manifest,
    ManifestKind,
    Version,
    VersionNode,
    VersionNodeRef,
    advance,
    encode_manifest,
    encode_version_node,
    needed,
    numbered_key,
)
from fsstore.ocdbt.node import Builder, Root
from fsstore.ocdbt.source import Choice, DatabaseSource, Snapshot, find, find_version
from fsstore.runtime.together import until_settled
from fsstore.runtime.tuning import REQUEST_BYTES

# The data files of one commit: values as they come, then B+tree nodes, then version tree nodes, concatenated.

Sort: TypeAlias = Literal["value", "btree_node", "version_tree_node"]

DATA_NAME = "[0-9a-f]{32}"
"""The pattern of file names behind their prefix; TensorStore's names match it, too."""
_PAGE = 4096


class NodeLayout(NamedTuple):
    """The prefixes for the three sorts of data, and the size at which a file is closed (0: never)."""

    value: bytes = b"d/"
    btree_node: bytes = b"d/"
    version_tree_node: bytes = b"d/"
    target_size: int = 2**31

    def prefixes(self) -> set[bytes]:
        """Return the prefixes of all file names."""
        return {self.value, self.btree_node, self.version_tree_node}

    def prefix(self, sort: Sort) -> bytes:
        """Return the prefix of file names for one sort of data."""
        if sort == "value":
            return self.value
        return self.btree_node if sort == "btree_node" else self.version_tree_node


class _Buffer:
    def __init__(self, prefix: bytes) -> None:
        self.file = DataFile(b"", prefix + os.urandom(16).hex().encode())
        self.parts: list[Buffer] = []
        self.size = 0

    def content(self) -> bytes:
        """Return the bytes of the file; a large file is padded to whole pages."""
        padding = -self.size % _PAGE if self.size > REQUEST_BYTES else 0
        return b"".join([*self.parts, b"\0" * padding])


class Sink:
    """Collects data and writes the files."""

    def __init__(self, layout: NodeLayout) -> None:
        self._layout = layout
        self._open: dict[bytes, _Buffer] = {}
        self._full: list[_Buffer] = []

    def place(self, sort: Sort, data: Buffer) -> Location:
        """Add data and return their future location."""
        prefix = self._layout.prefix(sort)
        buffer = self._open.get(prefix)
        if buffer is None:
            buffer = self._open[prefix] = _Buffer(prefix)
        location = Location(buffer.file, buffer.size, len(data))
        buffer.parts.append(data)
        buffer.size += len(data)
        if 0 < self._layout.target_size <= buffer.size:
            self._full.append(self._open.pop(prefix))
        return location

    async def flush(self, base: KvPrefix) -> None:
        """Write all files; when this returns they are durable."""
        buffers = [*self._full, *self._open.values()]
        self._full, self._open = [], {}
        if buffers:
            await base.write_many([Write(key_text(one.file.name), one.content()) for one in buffers])


@dataclass(frozen=True, slots=True)
class Options:
    """The options for writing a database."""

    constraints: Constraints
    assume_config: bool = False
    single_writer: bool = False
    layout: NodeLayout = field(default_factory=NodeLayout)


class Committer:
    """Commits requests to the database of a source."""

    def __init__(self, source: DatabaseSource, options: Options) -> None:
        self.source = source
        self._options = options
        self._swept = False
        self._features = source.manifests.driver.features
        self.assumed = options.constraints.complete(self._default_kind()) if options.assume_config else None

    def _default_kind(self) -> ManifestKind:
        features = self._features
        return "numbered" if features.create_only and not features.conditional_write else "single"

    @property
    def layout(self) -> NodeLayout:
        """The prefixes and sizes of data files."""
        return self._options.layout

    def new_config(self, model: Config) -> Config:
        """Return the configuration of a new database: `model`'s, with a new uuid and the members of the spec."""
        given = self._options.constraints.given
        return replace(model, **{"uuid": os.urandom(16), "manifest_kind": self._default_kind(), **given})

    async def create(self, config: Config, root: Root) -> Version:
        """Store the manifest of a new database with one version; raise `AlreadyExistsError` if there is one already."""
        version = Version(1, root.height, root.location, root.statistics, time.time_ns())
        absent = Snapshot(None, NO_VALUE, time.time())
        self._refuse_unguarded(config.manifest_kind)
        if config.manifest_kind == "numbered":
            stamp = await self._put(MANIFEST_KEY, Manifest(config), NO_VALUE)
            if stamp.generation == UNKNOWN:
                raise AlreadyExistsError(f"{self.source.manifests.describe()} holds an OCDBT database already")
        if not await self._publish(absent, Manifest(config, (version,))):
            raise AlreadyExistsError(f"{self.source.manifests.describe()} holds an OCDBT database already")
        return version

    def check(self, config: Config) -> None:
        """Raise unless the stored configuration agrees with the spec."""
        self._options.constraints.check(config)
        if self.assumed is None:
            return
        names = (
            "max_inline_value_bytes",
            "max_decoded_node_bytes",
            "version_tree_arity_log2",
            "level",
            "manifest_kind",
        )
        try:
            Constraints({name: getattr(self.assumed, name) for name in names}).check(config)
        except FailedPreconditionError as error:
            raise error.within("Observed config does not match assumed config") from None

    def accepts(self, config: Config) -> bool:
        """Return whether the stored configuration agrees with the spec."""
        try:
            self.check(config)
        except FailedPreconditionError:
            return False
        return True

    async def commit(self, requests: Sequence[Request]) -> None:
        """Apply `requests` in one new version, or in none if they change nothing, and answer them."""
        await self._sweep()
        await until_settled(partial(self._once, requests), True, lambda _: self.source.manifests.describe())

    async def _once(self, requests: Sequence[Request], _: bool) -> bool:
        """Try one commit; return whether to try again, because another writer came first."""
        snapshot = await self.source.snapshot()
        if snapshot.manifest is None or not snapshot.manifest.versions:
            snapshot = await self._begin(snapshot)
        manifest = snapshot.manifest
        if manifest is None or not (manifest.versions or self.assumed):
            return True
        self.check(manifest.config)
        return not await self._attempt(snapshot, manifest, requests)

    async def _sweep(self) -> None:
        """Before the first commit, remove unfinished data files of killed writers; their names are never reused."""
        base = self.source.base
        sweeper = able(base.driver, SweepsUnfinished)
        if self._swept or sweeper is None:
            return
        self._swept = True
        for prefix in self._options.layout.prefixes():
            with suppress(StoreError):  # permission to write need not include listing
                await sweeper.sweep_unfinished(base.path + key_text(prefix), DATA_NAME)

    async def _begin(self, snapshot: Snapshot) -> Snapshot:
        """Return a snapshot to commit to: of an empty database, which is stored unless its configuration is assumed."""
        manifest = snapshot.manifest
        config = manifest.config if manifest else self.assumed
        if config is None:
            config = self._options.constraints.complete(self._default_kind())
        if manifest is None and config.manifest_kind == "numbered":
            self._refuse_unguarded("numbered")
            await self._put(MANIFEST_KEY, Manifest(config), NO_VALUE)
            snapshot = await self.source.snapshot()
            if snapshot.manifest is None or snapshot.manifest.versions:
                return snapshot
            config = snapshot.manifest.config
        self.check(config)
        if self.assumed is not None:
            return snapshot._replace(manifest=Manifest(config))
        first = Manifest(config, (Version(1, 0, None, EMPTY, time.time_ns()),))
        await self._publish(snapshot, first)
        return await self.source.snapshot()

    async def _attempt(self, snapshot: Snapshot, manifest: Manifest, requests: Sequence[Request]) -> bool:
        """Try one commit on top of a snapshot; return whether the requests are answered."""
        source, config = self.source, manifest.config
        newest = manifest.newest if manifest.versions else Version(0, 0, None, EMPTY, 0)
        wanted = [key for request in requests for key in request.conditional_keys()]
        changes = NetChanges(await current_generations(source, newest, wanted))
        sink = Sink(self._options.layout)

        for request in requests:
            changes.apply(request, config.max_inline_value_bytes, lambda value: sink.place("value", value))
        when = snapshot.time
        if not changes.empty:
            builder = Builder(config, lambda data: sink.place("btree_node", data), source.keep_node)
            root = await rebuild(source, newest, changes, builder)
            if root is not None:
                following = await self._follow(manifest, newest, root, sink)
                await sink.flush(source.base)
                if not await self._publish(snapshot, following):
                    return False
                when = source.last.time
        for request in requests:
            request.time = when
        return True

    async def _follow(self, manifest: Manifest, newest: Version, root: Root, sink: Sink) -> Manifest:
        config, log2 = manifest.config, manifest.config.version_tree_arity_log2
        when = max(time.time_ns(), newest.commit_time + 1)
        new = Version(newest.generation + 1, root.height, root.location, root.statistics, when)
        if not manifest.versions:
            return Manifest(config, (new,))
        refs = needed(newest.generation, manifest.refs, new.generation, log2)
        nodes = await self.source.version_nodes(refs, log2)
        children = {ref.generation: node.children for ref, node in zip(refs, nodes, strict=True)}

        def store(node: VersionNode) -> VersionNodeRef:
            return node.reference(sink.place("version_tree_node", encode_version_node(node, config.level)))

        versions, kept = advance(
            manifest.versions, manifest.refs, new, log2, store, lambda ref: children[ref.generation]
        )
        return Manifest(config, versions, kept)

    def _refuse_unguarded(self, kind: ManifestKind) -> None:
        features = self._features
        able = features.create_only if kind == "numbered" else features.conditional_write
        if not features.writable:
            raise UnimplementedError(f"{self.source.manifests.describe()} cannot be written")
        if not able and not self._options.single_writer:
            raise UnimplementedError(
                f"{self.source.manifests.describe(MANIFEST_KEY)} cannot be written under a condition, so writers"
                ' could lose each other\'s commits; "single_writer": true commits without protection'
            )

    async def _publish(self, snapshot: Snapshot, manifest: Manifest) -> bool:
        kind = manifest.config.manifest_kind
        self._refuse_unguarded(kind)
        if kind == "numbered":
            return await self._publish_numbered(snapshot, manifest)
        stamp = await self._put(MANIFEST_KEY, manifest, snapshot.generation)
        if stamp.generation == UNKNOWN:
            return False
        self.source.remember(Snapshot(manifest, stamp.generation, stamp.time))
        return True

    async def _put(self, key: str, manifest: Manifest, if_equal: bytes) -> Stamp:
        features = self._features
        able = features.create_only if if_equal == NO_VALUE else features.conditional_write
        condition = if_equal if able else UNKNOWN
        return await self.source.manifests.write(key, encode_manifest(manifest), condition)

    async def _publish_numbered(self, snapshot: Snapshot, manifest: Manifest) -> bool:
        new = manifest.newest
        stamp = await self._put(numbered_key(new.generation), manifest, NO_VALUE)
        if stamp.generation == UNKNOWN:
            return False
        old = [number for number in snapshot.numbers if number < new.generation - MANIFESTS_KEPT]
        with suppress(StoreError):  # a later commit deletes the rest, which does no harm
            await self.source.manifests.write_many([Write(numbered_key(number), None) for number in old])
        fresh = await self.source.snapshot()
        if fresh.manifest is None:
            return False
        found = await find_version(self.source, fresh.manifest, Choice("generation", new.generation))
        return found == new


async def current_generations(source: DatabaseSource, version: Version, keys: Sequence[bytes]) -> dict[bytes, bytes]:
    """Return the generations of those `keys` that exist."""
    if not keys:
        return {}
    out: dict[bytes, bytes] = {}
    for leaf, indexes, rows in await find(source, version, keys):
        for index, row in zip(indexes, rows, strict=True):
            out[keys[index]] = value_generation(leaf.value(row))
    return out
