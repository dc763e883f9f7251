"""An array or hierarchy of any format shown as the keys of a zarr store.

An array stored in the format asked for is shown as it is: the same keys, the same bytes, writable.  Anything else is
presented: metadata are translated once, and chunks when their keys are read, so that every value arrives bit for bit
(`view_chunk`).  Which keys exist follows from the metadata, so that asking for one that does not costs no request, and
neither does a listing.

The chunks presented are the smallest that the stored format can read alone: sub-chunks of shards.  Groups, attributes
and dimension names are carried over, `_ARRAY_DIMENSIONS` of zarr v2 to `dimension_names` of v3 and back; the metadata
of all nodes are consolidated in the root.

An array may be replaced while it is shown.  Documents are always those of the array that is there.  A chunk of an array
that is not what its documents said is refused, since its bytes would be taken for something else.  Stores over a
network are asked at most once a second whether an array is the same.
"""

from __future__ import annotations

import heapq
import math
import warnings
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, ClassVar, NamedTuple

from fsstore.context.context import Context
from fsstore.driver.auto import Node, enter, hierarchy
from fsstore.driver.chunked_array import ChunkedDriver
from fsstore.driver.contract import ArrayDriver, Opening, opening_beneath
from fsstore.driver.probe import FoundFormat
from fsstore.errors import (
    AbortedError,
    ResourceExhaustedError,
    StoreError,
    TransactionCancelledError,
    UnavailableError,
    UnimplementedError,
)
from fsstore.filesystem.view_document import Presented, absent, group_documents, present, read_through, recoded
from fsstore.format.contract import WHOLE
from fsstore.kvstore.contract.driver import NO_VALUE, UNKNOWN, Entry, Features, Read, ReadOnly, ReadResult, now
from fsstore.kvstore.contract.request import KeyRange, key_bytes, resolve_range
from fsstore.kvstore.spec_parse import OpenKv
from fsstore.kvstore.spec_value import KvSpecValue, kv_kind
from fsstore.runtime import execution
from fsstore.runtime.tuning import PAGE, TRUSTED_S
from fsstore.values.json_value import Json, dumps, quote

OF_THE_STORE = (OSError, AbortedError, ResourceExhaustedError, TransactionCancelledError, UnavailableError)
"""Errors that say nothing of an array: for these none is left out."""


@dataclass(slots=True)
class _Shown:
    """An array as it is shown: how to open it, and the driver and presentation once it is open."""

    path: str
    opening: Opening
    kind: Any
    attributes: Mapping[str, Any]
    driver: ArrayDriver | None = None
    presented: Presented | None = None
    generation: bytes = UNKNOWN
    """That of the metadata document that the presentation is made of."""
    checked: float = -math.inf
    """When that was last the document that is stored."""

    @property
    def prefix(self) -> str:
        return f"{self.path}/" if self.path else ""

    async def is_replaced(self, *, since: float, grown: bool) -> bool:
        """Return whether another array stands there than was opened, by what is known `since`.

        With `grown` one of another shape is another.  Raises if there is none any more.
        """
        driver = self.driver
        if not isinstance(driver, ChunkedDriver) or self.checked >= since:
            return False
        if self.generation != UNKNOWN:
            known = Read(driver.entry.key, if_not_equal=self.generation)
            (answer,) = await driver.entry.store.read_many([known])
            if answer.state != "missing" and answer.generation == self.generation:
                self.checked = answer.time
                return False
        current = await driver.entry.reread(fresh_after=since)
        if grown:
            return current is not driver.array
        return current is not driver.array and not driver.entry.is_same(driver.array, current)

    def note_generation(self) -> None:
        """Remember which document the array was opened with, if another handle has not read a newer one since."""
        if isinstance(self.driver, ChunkedDriver) and self.driver.entry.array is self.driver.array:
            self.generation = self.driver.entry.generation

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
        return Read(key, *self.read[1:]) if presented.verbatim else Read(key)


async def open_view(base: OpenKv, context: Context, *, zarr_format: int, explode_shards: bool = False) -> OpenKv:
    """Return the store of zarr `zarr_format` that shows what `base` holds, after entering the adapters found in it."""
    kvstore, found = await enter(base, context, prefer=f"zarr{zarr_format}")
    name = found.name
    if not found.is_file:
        kvstore = kvstore.as_directory()
    if name == f"zarr{zarr_format}" and not explode_shards:
        return kvstore
    if execution.must_not_wait():
        raise execution.MayWait  # there may be thousands of arrays
    if name in (None, "zarr2", "zarr3", "n5"):
        nodes, damaged, left_out = await hierarchy(kvstore.prefix, known=found.answers)
        same = all(node.zarr_format == zarr_format for node in nodes.values())
        if same and not (explode_shards and any(_is_sharded(node) for node in nodes.values())):
            return kvstore
        for at, why in (*damaged.items(), *left_out.items()):
            warnings.warn(f"{quote(at or '/')} is left out: {why}", stacklevel=2)
    else:
        nodes = {}
    driver = ViewDriver(kvstore, zarr_format, context)
    await driver.load(nodes, found)
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
    context: Context = field(default_factory=Context)
    documents: dict[str, bytes] = field(default_factory=dict)
    arrays: dict[str, _Shown] = field(default_factory=dict)
    waits: bool = True
    """Whether reading may wait: for the base, or for an array's driver, which works on other threads."""
    id: ClassVar[str] = "view"

    @property
    def features(self) -> Features:
        """The abilities of the store."""
        return Features(waits=self.waits, writable=False, sorted_scan=True)

    async def load(self, nodes: Mapping[str, Node], found: FoundFormat | None = None) -> None:
        """Open every array and translate its metadata.

        An array in a hierarchy that zarr has no words for is left out, with a warning.
        """
        arrays: dict[str, _Shown] = {}
        if not nodes and found is not None and found.name is not None:
            arrays[""] = _shown(self.base, "", found.name, {}, self.context)
        for path, node in nodes.items():
            if node.kind == "array":
                arrays[path] = _shown(self.base, path, node.format, node.attributes, self.context)
        await execution.gather([self._open(shown) for shown in arrays.values()])
        arrays = {path: shown for path, shown in arrays.items() if shown.presented is not None}
        through = any(shown.presentation.model is None for shown in arrays.values())
        documents: dict[str, Json] = {}
        for shown in arrays.values():
            documents |= {shown.prefix + name: value for name, value in shown.presentation.documents.items()}
        self.waits = through or self.base.driver.features.waits
        self.arrays = arrays
        self.documents = {
            key: dumps(value, allow_nan=True).encode()
            for key, value in group_documents(_groups(nodes), documents, self.zarr_format).items()
        }

    async def _open(self, shown: _Shown) -> None:
        try:
            opened = await shown.kind.open(shown.opening)
            shown.driver = opened.driver
            shown.note_generation()
            shown.presented = present(opened.driver, shown.attributes, self.zarr_format, self.base.driver.id)
        except StoreError as error:
            failure = error.within(f"Cannot show the array {quote(shown.path)} as zarr v{self.zarr_format}")
            if not shown.path or isinstance(error, OF_THE_STORE):
                raise failure from error
            warnings.warn(f"{quote(shown.path)} is left out: {failure.message}", stacklevel=2)

    async def _renew(self, reads: Sequence[Read]) -> None:
        """Load everything again if an array has changed that one of the documents asked for is about."""
        keys = [read.key for read in reads if read.key in self.documents]
        if not keys:
            return
        asked = [self.arrays.get(key.rpartition("/")[0]) for key in keys]
        named = {id(shown): shown for shown in asked if shown is not None}
        if any("/" not in key for key in keys):  # consolidated ones, of all
            named = {id(shown): shown for shown in self.arrays.values()}
        since = self._since()
        if any(await execution.gather(_has_changed(shown, since) for shown in named.values())):
            await self.load((await hierarchy(self.base.prefix)).nodes)

    def _since(self) -> float:
        return now() - (TRUSTED_S if self.base.driver.features.waits else 0.0)

    async def _check_same(self, jobs: Sequence[_ChunkRequest]) -> None:
        """Raise if an array is no longer what its documents said when chunks of it were asked for.

        That stays so until somebody reads the documents, which are those of the new array then.
        """
        since = self._since()
        for shown in {id(job.shown): job.shown for job in jobs}.values():
            if await shown.is_replaced(since=since, grown=False):
                raise AbortedError(
                    f"The array {quote(shown.path)} in {self.base.prefix.describe()} was replaced by another since its"
                    " metadata were read: open it again"
                )

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
        await self._renew(reads)
        answers = [self._look_up(read) for read in reads]
        jobs = [answer for answer in answers if isinstance(answer, _ChunkRequest)]
        stored = [job for job in jobs if job.shown.presentation.model is not None]
        through = [job for job in jobs if job.shown.presentation.model is None]
        try:
            made = iter(await self._from_base(stored)) if stored else iter(())
            read = iter(await execution.gather(map(self._read_through, through))) if through else iter(())
        except StoreError:
            await self._check_same(jobs)  # which may be the reason
            raise
        await self._check_same(jobs)  # last: what was read before another array came is of the one asked for
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

    async def scan(self, keys: KeyRange) -> AsyncIterator[Sequence[Entry]]:
        """Yield the keys in the range in byte order; those of chunks are counted off, not looked up."""
        streams: list[Iterator[Entry]] = [
            iter([Entry(key, len(value)) for key, value in sorted(self.documents.items()) if keys.contains(key)])
        ]
        streams += [shown.presentation.entries(shown.prefix, keys) for shown in self.arrays.values()]
        merged = heapq.merge(*streams, key=lambda entry: key_bytes(entry.key))
        while page := list(islice(merged, PAGE)):
            yield page

    def describe_key(self, key: str) -> str:
        """Return the key, and what it is made of."""
        return f"{quote(key)} in a view of {self.base.prefix.describe()} as zarr v{self.zarr_format}"

    def spec(self) -> Mapping[str, Json]:
        """Return nothing: a view has no JSON form."""
        return {}


async def _has_changed(shown: _Shown, since: float) -> bool:
    try:
        return await shown.is_replaced(since=since, grown=True)
    except StoreError:  # it is gone, or of another format
        return True


def _groups(nodes: Mapping[str, Node]) -> dict[str, Mapping[str, Any]]:
    """Return the attributes of all groups, those without a document too."""
    groups = {path: node.attributes for path, node in nodes.items() if node.kind == "group"}
    for path in nodes:
        parents = path.split("/")[:-1]
        for depth in range(len(parents) + bool(path)):
            groups.setdefault("/".join(parents[:depth]), {})
    return groups


def _cut(read: Read, value: bytes) -> ReadResult:
    start, stop = resolve_range(read.start, read.stop, len(value))
    return ReadResult("value", value[start:stop], UNKNOWN, now(), len(value))


def _shown(base: OpenKv, path: str, name: str, attributes: Mapping[str, Any], context: Context) -> _Shown:
    """Return how the array at a path is opened."""
    from fsstore.values import registry

    kind = registry.drivers.get(name)
    if kind is None:
        raise UnimplementedError(f"{base.prefix.describe()} is {name}, which has no driver here")
    at = kind.kvstore_path(base.path + path)
    opening = opening_beneath(kind, base, at, context, members={WHOLE: True} if name == "zarr2" else {})
    return _Shown(path, opening, kind, attributes)
