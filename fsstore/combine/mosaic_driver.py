"""The key-value store that shows a virtual dataset: its JSON, its URL, how it is opened, how keys are read."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from fsstore.combine.mosaic import HIDDEN, FileFact, Layered, Mosaic, PieceSource
from fsstore.combine.mosaic_document import document_like, load_mosaic, with_copy
from fsstore.context.context import Context
from fsstore.driver.chunked import ZARR2, ZARR3
from fsstore.driver.contract import ArrayDriver, OpenArray, opening_beneath
from fsstore.errors import FailedPreconditionError, StoreError, UnimplementedError
from fsstore.format.contract import WHOLE
from fsstore.index.transform import identity
from fsstore.kvstore.contract.ability import ListsDocuments, TakesAllAtOnce
from fsstore.kvstore.contract.batch import Limits, limits_from
from fsstore.kvstore.contract.driver import (
    NO_VALUE,
    UNKNOWN,
    AdapterKind,
    Buffer,
    Entry,
    Features,
    KvDriver,
    KvOpening,
    KvPrefix,
    Read,
    ReadOnly,
    ReadResult,
    now,
)
from fsstore.kvstore.contract.request import KeyRange, resolve_range
from fsstore.kvstore.spec_parse import OpenKv
from fsstore.kvstore.spec_value import KvSpecValue, kv_kind
from fsstore.reference.driver import ReferenceDriver, check_unchanged, reference_driver
from fsstore.reference.kind import reach_members
from fsstore.reference.policy import beside
from fsstore.reference.table.keys import Grid
from fsstore.reference.table.set_state import Overlay, State, inline_generation
from fsstore.reference.targets import OpenTarget, Scanned, open_in
from fsstore.runtime import execution, fork
from fsstore.runtime.together import ChangedError, until_unchanged
from fsstore.runtime.tuning import ROWS_AT_ONCE
from fsstore.values.json_value import Fields, Json, boolean, quote
from fsstore.values.registry import encode_path

# The key-value store that shows a virtual dataset as a zarr hierarchy.


class _Made(NamedTuple):
    """A chunk to be made: the array, and where it lies in the grid."""

    array: Layered
    place: tuple[int, ...]


def mosaic_driver(
    mosaic: Mosaic,
    members: Mapping[str, Any],
    *,
    base: KvPrefix | None,
    described: str,
    means: tuple[Limits, OpenTarget] | None = None,
    document: KvPrefix | None = None,
) -> MosaicDriver:
    """Return the store of a dataset; `base` is the directory it lies in, and `document` where it is saved."""
    overlay = Overlay(State(mosaic.references), None, writable=False)
    reach = {name: value for name, value in members.items() if name != "check_targets"}
    checks = members.get("check_targets", mosaic.as_scanned)
    scanned = {fact.url: _scanned(fact, checks) for fact in mosaic.files}
    references: Any = reference_driver(overlay, reach, base=base, described=described, means=means, scanned=scanned)
    return MosaicDriver(mosaic, references, members, described, document)


class MosaicDriver(ReadOnly, ListsDocuments, TakesAllAtOnce):
    """The keys of a virtual dataset."""

    id: ClassVar[str] = "mosaic"

    def __init__(
        self,
        mosaic: Mosaic,
        references: ReferenceDriver,
        members: Mapping[str, Any],
        described: str,
        document: KvPrefix | None = None,
    ) -> None:
        self.mosaic, self.references, self._document = mosaic, references, document
        self._members, self._described = dict(members), described
        self._documents = {key: value for each in mosaic.layered.values() for key, value in each.documents().items()}
        self._grids: dict[str, tuple[Grid, Layered]] = {
            path: (each.grid, each) for path, each in mosaic.layered.items()
        }
        self._sources: dict[str, OpenArray] = {}
        self._lock = fork.lock()
        self._checked: set[str] = set()
        self._facts: dict[str, FileFact] = {}
        if members.get("check_targets"):
            self._facts = {fact.url: fact for fact in mosaic.files}
        waits = references.features.waits or bool(mosaic.layered)
        self.features = Features(waits=waits, writable=False, listable=True)

    async def read_many(self, reads: Sequence[Read]) -> Sequence[ReadResult]:
        """Return one result for each of `reads`."""
        time, results = now(), {}
        made: list[tuple[int, _Made]] = []
        others: list[int] = []
        for position, read in enumerate(reads):
            document = self._documents.get(read.key)
            chunk = None if document is not None else self._chunk(read.key)
            if document is not None:
                results[position] = _answer(read, document, time, self, inline_generation(document))
            elif chunk is not None:
                made.append((position, chunk))
            elif read.key.startswith(HIDDEN):
                results[position] = ReadResult("missing", b"", NO_VALUE, time)
            else:
                others.append(position)
        if others:
            found = await self._referenced([reads[position] for position in others])
            if len(others) == len(reads):
                return found
            results.update(zip(others, found, strict=True))
        if made:
            values = await execution.gather(self._make(chunk) for _, chunk in made)
            for (position, _), value in zip(made, values, strict=True):
                results[position] = _answer(reads[position], value, time, self, b"mosaic")
        return [results[position] for position in range(len(reads))]

    def _chunk(self, key: str) -> _Made | None:
        head = key
        while self._grids and head:
            head, _, _ = head.rpartition("/")
            found = self._grids.get(head)
            if found is not None:
                grid, array = found
                number = grid.number(key[len(head) + 1 if head else 0 :])
                if number is None:
                    return None
                place = np.unravel_index(number, grid.shape) if array.shape else ()
                return _Made(array, tuple(int(at) for at in place))
        return None

    async def _referenced(self, reads: Sequence[Read]) -> Sequence[ReadResult]:
        """Return the answers of the reference store, once the files in question are known to be what they were."""
        if self._facts:
            found = self.mosaic.references.find([read.key for read in reads])
            used = np.unique(found.rows.url[found.rows.url >= 0]).tolist()
            await execution.gather(self._check(found.urls[number]) for number in used)
        return await self.references.read_many(reads)

    async def _check(self, url: str) -> None:
        fact = self._facts.get(url)
        if fact is None or url in self._checked:
            return
        why = await changed(self.references, fact)
        if why:
            raise FailedPreconditionError(f"Error reading {quote(url)} of {self._described}: {why}; scan it again")
        self._checked.add(url)

    async def _make(self, chunk: _Made) -> bytes:
        array = chunk.array
        dtype = array.numpy_dtype
        out = np.full(array.chunks, array.fill_value, dtype)
        box = [
            slice(at * step, min((at + 1) * step, size))
            for at, step, size in zip(chunk.place, array.chunks, array.shape, strict=True)
        ]

        async def one(source: PieceSource, inside: tuple[slice, ...], where: tuple[slice, ...]) -> None:
            values = await self._read(source, inside)
            out[where] = source.decoding.apply(values, dtype)

        parts = list(array.pieces.find(box))
        if all(side.start < side.stop for side in box):
            await execution.gather(one(array.sources[part.source], part.inside, part.box) for part in parts)
        return out.tobytes()

    async def _read(self, source: PieceSource, inside: tuple[slice, ...]) -> np.ndarray[Any, Any]:
        try:
            if source.path not in self._sources:
                opened = await self._opened(source)
                with self._lock:
                    self._sources.setdefault(source.path, opened)
            driver: ArrayDriver = self._sources[source.path].driver
            view: Any = identity(driver.domain())
            return np.asarray(await driver.read(view[inside] if inside else view))
        except StoreError as error:
            raise error.within(f"Error reading a piece of {self._described}") from error

    async def _opened(self, source: PieceSource) -> OpenArray:
        inner: Any = _Checked(self) if self._facts else self.references
        memory = kv_kind("memory")
        assert memory is not None
        place = OpenKv(inner, "", KvSpecValue.of(memory, "").replace(live=inner))
        kind = ZARR2 if source.version == 2 else ZARR3
        opening = opening_beneath(kind, place, f"{source.path}/", Context(), members={WHOLE: True})
        found: OpenArray = await kind.open(opening)
        if found.driver.domain().shape != source.shape:
            raise FailedPreconditionError(f"The source {quote(source.path)} has another shape than its pieces")
        return found

    async def scan(self, keys: KeyRange) -> AsyncIterator[Sequence[Entry]]:
        """Yield the keys in a range, those of sources left out."""
        async for batch in self._shown(self.references.scan(keys), keys):
            yield batch
        for grid, array in self._grids.values():
            size = array.numpy_dtype.itemsize * int(np.prod(array.chunks, dtype=np.int64))
            for names in _pages(grid):
                found = [Entry(name, size) for name in names if keys.contains(name)]
                if found:
                    yield found

    @property
    def takes_stores(self) -> Literal["own", "files"] | None:
        """Files, where it is saved under a condition."""
        kept = self._document
        return "files" if kept is not None and kept.driver.features.conditional_write else None

    async def check_taking(self, writes: Mapping[str, Buffer], deleted: Sequence[KeyRange]) -> None:
        """Refuse nothing before it is taken: every array can be one of the dataset."""

    async def take_all(
        self,
        others: Sequence[KvPrefix],
        writes: Mapping[str, Buffer],
        *,
        unchanged: Mapping[str, bytes],
        deleted: Sequence[KeyRange],
    ) -> None:
        """Replace the saved document by one that refers to all values below other prefixes.

        Readers that have the dataset open keep it as it was.
        """
        document = self._document
        if document is None:
            raise UnimplementedError(f"{self._described} is saved nowhere, and takes no copies")
        taking = await self.references.taking(others, writes, deleted)

        async def attempt() -> None:
            mosaic, answer = await load_mosaic(document, with_scan=True)
            await check_unchanged(self._showing(mosaic), unchanged)
            after = await with_copy(mosaic, taking)
            data = await execution.offload(document_like, after, answer, document)
            if (await document.write("", data, answer.generation)).generation == UNKNOWN:
                raise ChangedError

        await until_unchanged(attempt, lambda: self._described)

    def _showing(self, mosaic: Mosaic) -> MosaicDriver:
        """Return a store of another state of the dataset, whose documents are read."""
        base = self.references.fetcher.targets.base
        return mosaic_driver(mosaic, self._members, base=base, described=self._described)

    async def documents(self, keys: KeyRange) -> AsyncIterator[Sequence[Entry]]:
        """Yield the documents in a range."""
        async for batch in self._shown(self.references.documents(keys), keys):
            yield batch

    async def _shown(self, pages: AsyncIterator[Sequence[Entry]], keys: KeyRange) -> AsyncIterator[Sequence[Entry]]:
        own = [Entry(key, len(value)) for key, value in self._documents.items() if keys.contains(key)]
        if own:
            yield own
        async for batch in pages:
            kept = [entry for entry in batch if not entry.key.startswith(HIDDEN)]
            if kept:
                yield kept

    def describe_key(self, key: str) -> str:
        """Return the quoted key and what it is in."""
        return f"{quote(key)} in {self._described}"

    def spec(self) -> Mapping[str, Json]:
        """Return the members the store was opened with, credentials left out."""
        return self._members


class _Checked(ReadOnly):
    """The reference store of a dataset whose files are checked before they are read, for its sources."""

    id: ClassVar[str] = "reference"

    def __init__(self, owner: MosaicDriver) -> None:
        self._owner = owner
        self.features = owner.references.features

    async def read_many(self, reads: Sequence[Read]) -> Sequence[ReadResult]:
        """Return what the reference store answers."""
        return await self._owner._referenced(reads)

    def scan(self, keys: KeyRange) -> AsyncIterator[Sequence[Entry]]:
        """Yield the keys of the store."""
        return self._owner.references.scan(keys)

    def describe_key(self, key: str) -> str:
        """Return how the store calls a key."""
        return self._owner.describe_key(key)

    def spec(self) -> Mapping[str, Json]:
        """Return the members of the store."""
        return self._owner.spec()


async def changed(references: ReferenceDriver, fact: FileFact) -> str:
    """Return how a file differs from what it was, nothing if it does not, or if nothing is known of it."""
    targets = references.fetcher.targets
    place = targets.locate(fact.url)
    root = await targets.root(place.root)
    found = await root.read(place.key, 0, 0)
    return "it is gone" if found.state == "missing" else _scanned(fact, True).change(found, root.driver)


def _scanned(fact: FileFact, checks: bool) -> Scanned:
    return Scanned(fact.size, bytes.fromhex(fact.generation) if checks else UNKNOWN)


def _answer(read: Read, value: bytes, time: float, driver: MosaicDriver, generation: bytes) -> ReadResult:
    if read.if_not_equal == generation:
        return ReadResult("unspecified", b"", generation, time)
    try:
        start, stop = resolve_range(read.start, read.stop, len(value))
    except StoreError as error:
        raise error.within(f"Error reading {driver.describe_key(read.key)}") from error
    return ReadResult("value", value[start:stop], generation, time, len(value))


def _pages(grid: Grid) -> Iterator[list[str]]:
    for start in range(0, grid.count, ROWS_AT_ONCE):
        yield grid.keys(np.arange(start, min(start + ROWS_AT_ONCE, grid.count)))


@dataclass(frozen=True, slots=True)
class MosaicKind(AdapterKind):
    """The static side of the adapter."""

    id: str = "mosaic"
    schemes: tuple[str, ...] = ("mosaic",)
    resources: tuple[str, ...] = ("range_coalescing",)

    def members(self, fields: Fields) -> dict[str, Json]:
        """Take the members of the kind."""
        checks = fields.take("check_targets", boolean, default=None)
        return {**reach_members(fields), **({} if checks is None else {"check_targets": checks})}

    def to_url(self, path: str, members: Mapping[str, Json]) -> str:  # options have no URL form
        """Return the URL component."""
        return "mosaic:" + encode_path(path)

    async def open(self, opening: KvOpening) -> KvDriver:
        """Return the opened adapter; the document is read, files are not."""
        base = opening.below
        mosaic, _ = await load_mosaic(base)
        limits, opener = limits_from(opening.resources), open_in(opening.context)
        described, directory = f"virtual dataset {base.describe()}", await beside(base)
        return mosaic_driver(
            mosaic, opening.members, base=directory, described=described, means=(limits, opener), document=base
        )


KIND = MosaicKind()
