"""An array or hierarchy of any format shown as the keys of a zarr store.

What is stored in the format asked for is shown as it is: the same keys, the same bytes, writable.  Anything else is
presented: metadata are translated once, a chunk is read through the array's own driver when its key is, and is encoded
plainly, so that every value arrives bit for bit.  Which keys exist follows from the metadata, so that asking for one
that does not costs no request, and neither does a listing.

The chunks presented are the smallest that the stored format can read alone: sub-chunks of shards.  Groups, attributes
and dimension names are carried over, `_ARRAY_DIMENSIONS` of zarr v2 to `dimension_names` of v3 and back; the metadata
of all nodes are consolidated in the root.
"""

from __future__ import annotations

import heapq
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, ClassVar

from fsstore import _runtime
from fsstore._json import Json, dumps, quote
from fsstore.context import Context, bind_resource
from fsstore.driver.auto import enter
from fsstore.driver.contract import ArrayDriver, Opening
from fsstore.errors import NotFoundError, StoreError, UnimplementedError
from fsstore.kvstore.byte_range import resolve_range
from fsstore.kvstore.contract import (
    NO_VALUE,
    UNKNOWN,
    Entry,
    Features,
    Read,
    ReadResult,
    Stamp,
    Write,
    now,
)
from fsstore.kvstore.hierarchy import Node, hierarchy
from fsstore.kvstore.key_range import KeyRange, key_bytes
from fsstore.kvstore.opened import OpenKv
from fsstore.kvstore.probe import Found
from fsstore.kvstore.spec import KvSpec
from fsstore.kvstore.spec_parse import kv_kind
from fsstore.kvstore.view_document import Presented, group_documents, present
from fsstore.open_mode import OpenMode
from fsstore.schema import Schema

__all__ = ["ViewDriver", "open_view"]

_PAGE = 1000


@dataclass(slots=True)
class _Shown:
    """An array as it is shown: how to open it, and the driver and presentation once it is open."""

    path: str
    opening: Opening
    kind: Any
    attributes: Mapping[str, Any]
    driver: ArrayDriver | None = None
    presented: Presented | None = None

    @property
    def prefix(self) -> str:
        return f"{self.path}/" if self.path else ""


async def open_view(
    base: OpenKv, context: Context, *, zarr_format: int, explode_shards: bool = False
) -> OpenKv:
    """Return the store of zarr `zarr_format` that shows what `base` holds, after entering the adapters found in it."""
    kvstore, found = await enter(base, context)
    name = None if found is None else found.detection.name
    if not (found is not None and found.is_file):
        path = kvstore.path
        kvstore = kvstore.at(path if not path or path.endswith("/") else path + "/")
    if name == f"zarr{zarr_format}" and not explode_shards:
        return kvstore
    if name in (None, "zarr2", "zarr3"):
        nodes = await hierarchy(kvstore.prefix)
        same = all(node.zarr_format == zarr_format for node in nodes.values())
        if same and not (explode_shards and any(_is_sharded(node) for node in nodes.values())):
            return kvstore
    else:
        nodes = {}
    driver = ViewDriver(kvstore, zarr_format)
    await driver.load(nodes, found, context)
    kind = kv_kind("memory")
    assert kind is not None
    return OpenKv(driver, "", KvSpec.of(kind, "").replace(live=driver))


def _is_sharded(node: Node) -> bool:
    codecs = node.document.get("codecs") or []
    return any(isinstance(each, dict) and each.get("name") == "sharding_indexed" for each in codecs)


@dataclass(slots=True)
class ViewDriver:
    """The keys of a zarr store made of arrays in `base`; read-only."""

    base: OpenKv
    zarr_format: int
    documents: dict[str, bytes] = field(default_factory=dict)
    arrays: dict[str, _Shown] = field(default_factory=dict)
    id: ClassVar[str] = "view"

    @property
    def features(self) -> Features:
        """What the store can do: it waits, because decoding happens on other threads."""
        return Features(waits=True, writable=False, sorted_scan=True)

    async def load(self, nodes: Mapping[str, Node], found: Found | None, context: Context) -> None:
        """Open every array and translate its metadata."""
        if not nodes and found is not None:
            self.arrays[""] = _shown(self.base, "", found.detection.name, {}, context)
        for path, node in nodes.items():
            if node.kind == "array":
                self.arrays[path] = _shown(
                    self.base, path, f"zarr{node.zarr_format}", node.attributes, context
                )
        await _runtime.gather([self._open(shown) for shown in self.arrays.values()])
        groups = {path: node.attributes for path, node in nodes.items() if node.kind == "group"}
        for path in list(nodes):
            parents = path.split("/")[:-1]
            for depth in range(len(parents) + bool(path)):
                groups.setdefault("/".join(parents[:depth]), {})
        documents: dict[str, Json] = {}
        for shown in self.arrays.values():
            assert shown.presented is not None
            documents |= {shown.prefix + name: value for name, value in shown.presented.documents.items()}
        self.documents = {
            key: dumps(value, allow_nan=True).encode()
            for key, value in group_documents(groups, documents, self.zarr_format).items()
        }

    async def _open(self, shown: _Shown) -> None:
        try:
            opened = await shown.kind.open(shown.opening)
            shown.driver = opened.driver
            shown.presented = present(opened.driver, shown.attributes, self.zarr_format)
        except StoreError as error:
            raise error.within(
                f"Cannot show the array {quote(shown.path)} as zarr v{self.zarr_format}"
            ) from error

    def _chunk(self, key: str) -> tuple[_Shown, tuple[int, ...]] | None:
        """Return the array and grid position of the chunk that a key names, or None."""
        path = key
        while True:
            path, slash, _ = path.rpartition("/")
            shown = self.arrays.get(path)
            if shown is not None and shown.presented is not None:
                position = shown.presented.position(key[len(shown.prefix) :])
                return None if position is None else (shown, position)
            if not slash:
                return None

    async def read_many(self, reads: Sequence[Read]) -> list[ReadResult]:
        """Return one result for each of `reads`; chunks of a batch are read together."""
        return await _runtime.gather([self._read(read) for read in reads])

    async def _read(self, read: Read) -> ReadResult:
        value = self.documents.get(read.key)
        if value is None:
            found = self._chunk(read.key)
            if found is None:
                return ReadResult("missing", b"", NO_VALUE, now())
            shown, position = found
            assert shown.presented is not None
            assert shown.driver is not None
            if read.start == 0 and read.stop == 0:
                return ReadResult("value", b"", UNKNOWN, now())
            try:
                value = await shown.presented.encoded(shown.driver, position)
            except NotFoundError:
                return ReadResult("missing", b"", NO_VALUE, now())
        start, stop = resolve_range(read.start, read.stop, len(value))
        return ReadResult("value", value[start:stop], UNKNOWN, now())

    async def write_many(self, writes: Sequence[Write]) -> list[Stamp]:
        """Refuse: what is presented is read-only."""
        raise UnimplementedError(f"KeyValueStore does not support writing: {self.describe_key('')}")

    async def delete_range(self, keys: KeyRange) -> None:
        """Refuse: what is presented is read-only."""
        raise UnimplementedError(f"KeyValueStore does not support writing: {self.describe_key('')}")

    async def scan(self, keys: KeyRange) -> AsyncIterator[list[Entry]]:
        """Yield the keys in the range in byte order; those of chunks are counted off, not looked up."""
        streams: list[Iterator[Entry]] = [
            iter(
                [
                    Entry(key, len(value))
                    for key, value in sorted(self.documents.items())
                    if keys.contains(key)
                ]
            )
        ]
        for shown in self.arrays.values():
            assert shown.presented is not None
            streams.append(shown.presented.entries(shown.prefix, keys))
        merged = heapq.merge(*streams, key=lambda entry: key_bytes(entry.key))
        while page := list(islice(merged, _PAGE)):
            yield page

    def describe_key(self, key: str) -> str:
        """Return the key, and what it is made of."""
        return f"{quote(key)} in a view of {self.base.prefix.describe()} as zarr v{self.zarr_format}"

    def spec(self) -> Mapping[str, Json]:
        """Return nothing: a view has no JSON form."""
        return {}


def _shown(base: OpenKv, path: str, name: str, attributes: Mapping[str, Any], context: Context) -> _Shown:
    """Return how the array at a path is opened."""
    from fsstore import registry

    kind = registry.drivers.get(name)
    if kind is None:
        raise UnimplementedError(f"{base.prefix.describe()} is {name}, which has no driver here")
    place = kind.kvstore_path(base.path + path)
    kvstore = base._replace(path=place, spec=base.spec.replace(_path=place))
    resources = {
        each: bind_resource(each, None, context) for each in kind.resources if "metadata" not in each
    }
    opening = Opening(
        members={},
        schema=Schema(),
        mode=OpenMode(open=True),
        context=context,
        resources=resources,
        kvstore=kvstore,
        writable=False,
    )
    return _Shown(path, opening, kind, attributes)
