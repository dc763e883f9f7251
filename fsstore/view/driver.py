"""An array or hierarchy of any format shown as the keys of a zarr store.

What is stored in the format asked for is shown as it is: the same keys, the same bytes, writable.  Anything else is
presented: metadata are translated once, and chunks when their keys are read, so that every value arrives bit for bit
(`view_chunk`).  Which keys exist follows from the metadata, so that asking for one that does not costs no request, and
neither does a listing.

The chunks presented are the smallest that the stored format can read alone: sub-chunks of shards.  Groups, attributes
and dimension names are carried over, `_ARRAY_DIMENSIONS` of zarr v2 to `dimension_names` of v3 and back; the metadata
of all nodes are consolidated in the root.
"""

from __future__ import annotations

import heapq
import warnings
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, ClassVar, NamedTuple

from fsstore.context.context import Context
from fsstore.discover.hierarchy import Node, hierarchy
from fsstore.discover.probe import FoundFormat
from fsstore.driver.auto import enter
from fsstore.driver.contract import ArrayDriver, Opening, opening_beneath
from fsstore.errors import StoreError, UnimplementedError
from fsstore.kvstore.contract.byte_range import resolve_range
from fsstore.kvstore.contract.driver import (
    NO_VALUE,
    UNKNOWN,
    Entry,
    Features,
    Read,
    ReadOnly,
    ReadResult,
    now,
)
from fsstore.kvstore.contract.key_range import KeyRange, key_bytes
from fsstore.kvstore.spec.opening import OpenKv
from fsstore.kvstore.spec.spec_value import KvSpecValue, kv_kind
from fsstore.runtime import execution
from fsstore.values.json_value import Json, dumps, quote
from fsstore.view.chunk import absent, read_through, recoded
from fsstore.view.document import Presented, group_documents, present

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

    @property
    def presentation(self) -> Presented:
        assert self.presented is not None, "it is shown once it is open"
        return self.presented


class _ChunkRequest(NamedTuple):
    """A chunk to read: what was asked for, the array, and where in its grid the chunk lies."""

    read: Read
    shown: _Shown
    position: tuple[int, ...]

    def request(self) -> Read:
        """Return what to ask of the base for a chunk that is stored."""
        presented = self.shown.presentation
        assert presented.model is not None
        key = self.shown.prefix + presented.model.key(self.position)
        return self.read._replace(key=key) if presented.verbatim else Read(key)


async def open_view(
    base: OpenKv, context: Context, *, zarr_format: int, explode_shards: bool = False
) -> OpenKv:
    """Return the store of zarr `zarr_format` that shows what `base` holds, after entering the adapters found in it."""
    kvstore, found = await enter(base, context)
    name = found.name
    if not found.is_file:
        kvstore = kvstore.as_directory()
    if name == f"zarr{zarr_format}" and not explode_shards:
        return kvstore
    if execution.must_not_wait():
        raise execution.MayWait  # there may be thousands of arrays
    if name in (None, "zarr2", "zarr3", "n5"):
        nodes, damaged = await hierarchy(kvstore.prefix, known=found.answers)
        same = all(node.zarr_format == zarr_format for node in nodes.values())
        if same and not (explode_shards and any(_is_sharded(node) for node in nodes.values())):
            return kvstore
        for at, error in damaged.items():
            warnings.warn(f"{quote(at or '/')} is left out: {error}", stacklevel=2)
    else:
        nodes = {}
    driver = ViewDriver(kvstore, zarr_format)
    await driver.load(nodes, found, context)
    kind = kv_kind("memory")
    assert kind is not None
    return OpenKv(driver, "", KvSpecValue.of(kind, "").replace(live=driver))


def _is_sharded(node: Node) -> bool:
    codecs = node.document.get("codecs") or []
    return any(isinstance(each, dict) and each.get("name") == "sharding_indexed" for each in codecs)


@dataclass(slots=True)
class ViewDriver(ReadOnly):
    """The keys of a zarr store made of arrays in `base`; read-only."""

    base: OpenKv
    zarr_format: int
    documents: dict[str, bytes] = field(default_factory=dict)
    arrays: dict[str, _Shown] = field(default_factory=dict)
    waits: bool = True
    """Whether reading may wait: for the base, or for an array's driver, which works on other threads."""
    id: ClassVar[str] = "view"

    @property
    def features(self) -> Features:
        """What the store can do."""
        return Features(waits=self.waits, writable=False, sorted_scan=True)

    async def load(self, nodes: Mapping[str, Node], found: FoundFormat, context: Context) -> None:
        """Open every array and translate its metadata."""
        if not nodes and found.name is not None:
            self.arrays[""] = _shown(self.base, "", found.name, {}, context)
        for path, node in nodes.items():
            if node.kind == "array":
                self.arrays[path] = _shown(self.base, path, node.format, node.attributes, context)
        await execution.gather([self._open(shown) for shown in self.arrays.values()])
        through = any(shown.presentation.model is None for shown in self.arrays.values())
        self.waits = through or self.base.driver.features.waits
        groups = {path: node.attributes for path, node in nodes.items() if node.kind == "group"}
        for path in list(nodes):
            parents = path.split("/")[:-1]
            for depth in range(len(parents) + bool(path)):
                groups.setdefault("/".join(parents[:depth]), {})
        documents: dict[str, Json] = {}
        for shown in self.arrays.values():
            documents |= {shown.prefix + name: value for name, value in shown.presentation.documents.items()}
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
            if shown is not None:
                position = shown.presentation.position(key[len(shown.prefix) :])
                return None if position is None else (shown, position)
            if not slash:
                return None

    def _look_up(self, read: Read) -> ReadResult | _ChunkRequest:
        """Return the answer if it is known without a request."""
        value = self.documents.get(read.key)
        if value is not None:
            return _cut(read, value)
        found = self._chunk(read.key)
        if found is None:
            return ReadResult("missing", b"", NO_VALUE, now())
        if read.start == 0 and read.stop == 0:
            return ReadResult("value", b"", UNKNOWN, now(), found[0].presentation.chunk_size)
        return _ChunkRequest(read, *found)

    async def read_many(self, reads: Sequence[Read]) -> list[ReadResult]:
        """Return one result for each of `reads`; stored chunks are asked of the base in one batch."""
        answers = [self._look_up(read) for read in reads]
        jobs = [answer for answer in answers if isinstance(answer, _ChunkRequest)]
        stored = [job for job in jobs if job.shown.presentation.model is not None]
        through = [job for job in jobs if job.shown.presentation.model is None]
        made = iter(await self._from_base(stored)) if stored else iter(())
        read = iter(await execution.gather(map(self._read_through, through))) if through else iter(())
        return [
            answer
            if isinstance(answer, ReadResult)
            else next(read if answer.shown.presentation.model is None else made)
            for answer in answers
        ]

    async def _from_base(self, jobs: Sequence[_ChunkRequest]) -> list[ReadResult]:
        """Return chunks that are stored as such; what has to be done to them is done on other threads."""
        answers = list(await self.base.prefix.read_many([job.request() for job in jobs]))
        rest = [
            number
            for number, (job, answer) in enumerate(zip(jobs, answers, strict=True))
            if answer.state == "missing" or not job.shown.presentation.verbatim
        ]
        if rest:
            work = [(jobs[number], answers[number]) for number in rest]
            made = await execution.offload(execution.map_blocking, self._make, work)
            for number, answer in zip(rest, made, strict=True):
                answers[number] = answer
        return answers

    def _make(self, work: tuple[_ChunkRequest, ReadResult]) -> ReadResult:
        job, answer = work
        presented = job.shown.presentation
        if answer.state == "missing":
            return _cut(job.read, absent(presented))
        try:
            return _cut(job.read, recoded(presented, answer.value))
        except StoreError as error:
            raise error.within(f"Error reading {self.base.prefix.describe(job.request().key)}") from error

    async def _read_through(self, job: _ChunkRequest) -> ReadResult:
        assert job.shown.driver is not None
        return _cut(job.read, await read_through(job.shown.presentation, job.shown.driver, job.position))

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
        streams += [shown.presentation.entries(shown.prefix, keys) for shown in self.arrays.values()]
        merged = heapq.merge(*streams, key=lambda entry: key_bytes(entry.key))
        while page := list(islice(merged, _PAGE)):
            yield page

    def describe_key(self, key: str) -> str:
        """Return the key, and what it is made of."""
        return f"{quote(key)} in a view of {self.base.prefix.describe()} as zarr v{self.zarr_format}"

    def spec(self) -> Mapping[str, Json]:
        """Return nothing: a view has no JSON form."""
        return {}


def _cut(read: Read, value: bytes) -> ReadResult:
    start, stop = resolve_range(read.start, read.stop, len(value))
    return ReadResult("value", value[start:stop], UNKNOWN, now(), len(value))


def _shown(base: OpenKv, path: str, name: str, attributes: Mapping[str, Any], context: Context) -> _Shown:
    """Return how the array at a path is opened."""
    from fsstore.values import registry

    kind = registry.drivers.get(name)
    if kind is None:
        raise UnimplementedError(f"{base.prefix.describe()} is {name}, which has no driver here")
    opening = opening_beneath(kind, base, kind.kvstore_path(base.path + path), context)
    return _Shown(path, opening, kind, attributes)
