"""Where a database is read: its manifests, and the nodes that references lead to.

A `DatabaseSource` holds the last manifest seen.  A batch of reads asks for a fresh one (a small request that says
"unless unchanged"), except where its staleness bound allows the last.  Data files never change; what is missing or
short there is damage and raises `DataLossError`, never "missing".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from fsstore.errors import DataLossError, OutOfRangeError, StoreError
from fsstore.kvstore.contract.driver import NO_VALUE, UNKNOWN, Buffer, KvPrefix, Read, ReadResult
from fsstore.kvstore.contract.request import KeyRange, key_text
from fsstore.ocdbt.cache import NodeCache
from fsstore.ocdbt.format.data_file import Location
from fsstore.ocdbt.format.manifest import (
    MANIFEST_KEY,
    Manifest,
    decode_manifest,
    manifest_number,
    numbered_key,
)
from fsstore.ocdbt.format.node import Node, decode_node
from fsstore.ocdbt.format.version import VersionNodeRef
from fsstore.ocdbt.format.version_tree import VersionNode, decode_version_node
from fsstore.ocdbt.tuning import MANIFEST_ATTEMPTS

__all__ = ["ABSENT", "DatabaseSource", "Snapshot", "read_spans"]

T = TypeVar("T")

_NUMBERED = KeyRange("manifest.0", "manifest.:")
_NODE_OVERHEAD = 200  # bytes of a decoded node beside its columns


class Snapshot(NamedTuple):
    """A manifest as it was at `time`; None if there was no database.

    `generation` is that of `manifest.ocdbt`; of a numbered database, `file_generation` is that of the newest
    numbered file, and `numbers` are the files there were.
    """

    manifest: Manifest | None
    generation: bytes
    time: float
    numbers: tuple[int, ...] = ()
    file_generation: bytes = UNKNOWN


ABSENT = Snapshot(None, NO_VALUE, float("-inf"))


class DatabaseSource:
    """A database in the directory `base`, its manifests in `manifests`."""

    def __init__(
        self, base: KvPrefix, manifests: KvPrefix | None = None, cache: NodeCache | None = None
    ) -> None:
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
        """Return `head` with the newest numbered manifest; it may vanish between listing and reading."""
        for _ in range(MANIFEST_ATTEMPTS):
            numbers = await self._numbers()
            if head.manifest is None or not numbers:
                manifest = None if head.manifest is None else Manifest(head.manifest.config)
                return head._replace(manifest=manifest, numbers=(), file_generation=UNKNOWN)
            known = head.file_generation if head.manifest.generation == numbers[-1] else UNKNOWN
            key = numbered_key(numbers[-1])
            found = await self._read_manifest(key, known, float("inf"))
            if found.state == "unspecified":
                return head._replace(numbers=numbers)
            if found.state == "value":
                manifest = self._decode(found.value, key, number=numbers[-1])
                return head._replace(manifest=manifest, numbers=numbers, file_generation=found.generation)
        raise DataLossError(
            f"The newest manifest in {self.manifests.describe()} vanishes whenever it is read"
        )

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
        return await self._load("btree", places, _decode_btree, _btree_size)

    def keep_node(self, place: Location, node: Node) -> None:
        """Remember a node that is about to be stored, so that the next commit need not read it."""
        self._cache.put(("btree", *place), node, _btree_size(node))

    async def version_nodes(self, refs: Sequence[VersionNodeRef], arity_log2: int) -> list[VersionNode]:
        """Return the version tree nodes that `refs` lead to."""
        places = [ref.location for ref in refs]
        nodes = await self._load("version", places, _decode_version, _version_size)
        for ref, node in zip(refs, nodes, strict=True):
            if (node.height, node.arity_log2, node.newest) != (ref.height, arity_log2, ref.generation):
                raise DataLossError(
                    f"Error decoding {self.describe(ref.location)}: expected a version tree node of height"
                    f" {ref.height} up to generation {ref.generation}"
                )
        return nodes

    async def _load(
        self,
        sort: str,
        places: Sequence[Location],
        decode: Callable[[bytes, bytes], T],
        size: Callable[[T], int],
    ) -> list[T]:
        nodes = {place: self._cache.get((sort, *place)) for place in places}
        wanted = [place for place, node in nodes.items() if node is None]
        if wanted:
            for place, value in zip(wanted, await read_spans(self.base, wanted), strict=True):
                nodes[place] = self._decoded(sort, place, value, decode, size)
        return [nodes[place] for place in places]

    def _decoded(
        self,
        sort: str,
        place: Location,
        value: Buffer,
        decode: Callable[[bytes, bytes], T],
        size: Callable[[T], int],
    ) -> T:
        try:
            node = decode(bytes(value), place.file.base_path)
        except StoreError as error:
            raise error.within(f"Error decoding {self.describe(place)}") from None
        self._cache.put((sort, *place), node, size(node))
        return node

    def describe(self, place: Location) -> str:
        """Return how messages call a byte range of a data file."""
        name = self.base.describe(key_text(place.file.name))
        return f"Byte range [{place.offset}, {place.offset + place.length}) of {name}"


def _decode_btree(data: bytes, context: bytes) -> Node:
    return decode_node(data, context, "B+tree node")


def _btree_size(node: Node) -> int:
    return _NODE_OVERHEAD + node.size_bytes


def _decode_version(data: bytes, context: bytes) -> VersionNode:
    return decode_version_node(data, context, "version tree node")


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
            raise DataLossError(
                f"{base.describe(names[place.file])} is missing: data file of an OCDBT database"
            )
        if len(result.value) != place.length:
            raise DataLossError(
                f"{base.describe(names[place.file])} gave {len(result.value)} of the {place.length} bytes"
                f" at {place.offset}"
            )
    return values
