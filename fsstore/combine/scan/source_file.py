"""One file as combining sees it: documents, references of its arrays, and the bytes of chunks that are wanted now.

Files of scanned formats are read by their scanner, without a store around it.  Everything else that shows zarr keys
(a zarr hierarchy, a reference set, a snapshot) is listed: its chunks are whole values, or what its references say.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from fsstore.combine.scan.facts import Ints
from fsstore.combine.tuning import FORMAT_HEAD_BYTES, OPEN_ATTEMPTS, PAST_BLOCKS_BYTES
from fsstore.errors import AbortedError, DataLossError, JsonError, NotFoundError, StoreError
from fsstore.kvstore.contract.driver import UNKNOWN, KvPrefix, Read
from fsstore.kvstore.contract.key_range import KeyRange
from fsstore.mosaic.value import FileFact
from fsstore.reference.driver import driver_in_memory
from fsstore.reference.load import Reading, load
from fsstore.reference.state.refset import TableSet
from fsstore.reference.state.set_state import State
from fsstore.reference.table.grid import Grid, grid_of, is_document
from fsstore.reference.table.table import ABSENT, INLINE, WHOLE, Row, Rows, Table
from fsstore.reference.target.location import beside
from fsstore.scan.as_references import format_of_head
from fsstore.scan.contract import MADE, SELF, FileScanner
from fsstore.scan.driver import ScanDriver
from fsstore.scan.source import FileChangedError, ScanSource
from fsstore.values import registry
from fsstore.values.detection import is_text_of_json
from fsstore.values.json_value import loads

__all__ = ["ArrayReferences", "ElsewhereError", "SourceFile", "open_source"]

_PARSED = ".zarray"


@dataclass(frozen=True, slots=True)
class ArrayReferences:
    """The references of one array: chunk numbers, rows, and what these point into."""

    number: Ints
    rows: Rows
    urls: Sequence[str]
    inline: Sequence[bytes]


class ElsewhereError(StoreError):
    """Values that are wanted lie in another file than the one that was opened."""


class SourceFile(Protocol):
    """A file that was opened.

    `kind` is that of the store that holds it as zarr v2, by which fill values mark missing data; None if none does.
    """

    kind: str | None
    fact: FileFact
    documents: Mapping[str, bytes]
    grids: Mapping[str, Grid]
    notes: Mapping[str, str]

    async def references(self, paths: Sequence[str]) -> list[ArrayReferences]:
        """Return the references of arrays."""
        ...

    async def chunks(self, path: str, found: ArrayReferences) -> Sequence[Any]:
        """Return the encoded chunks that references name, in order."""
        ...


class ScannedSource:
    """A file of a scanned format."""

    def __init__(self, url: str, source: ScanSource, file: Any) -> None:
        self.kind: str | None = None
        generation = "" if source.generation == UNKNOWN else source.generation.hex()
        self.fact = FileFact(url, source.size, generation)
        self._source, self._file = source, file
        self.documents: Mapping[str, bytes] = file.hierarchy.documents
        self.grids: Mapping[str, Grid] = file.hierarchy.grids
        self.notes: Mapping[str, str] = file.hierarchy.shortcomings

    async def references(self, paths: Sequence[str]) -> list[ArrayReferences]:
        """Return the references of arrays; chunks that no range says are held by value."""
        out = []
        for path, table in zip(paths, await self._file.tables(paths), strict=True):
            number = table.present(0, self.grids[path].count)
            rows = table.find(number)
            inline: Sequence[bytes] = table.inline
            made = np.flatnonzero(rows.url == MADE)
            if len(made):
                values = [bytes(each) for each in await self._file.make(path, number[made])]
                rows.url[made], rows.offset[made] = INLINE, np.arange(len(made)) + len(inline)
                rows.length[made] = [len(value) for value in values]
                inline = [*inline, *values]
            urls = [self.fact.url if each == SELF else each for each in table.urls]
            out.append(ArrayReferences(number, rows, urls, inline))
        return out

    async def chunks(self, path: str, found: ArrayReferences) -> Sequence[Any]:
        """Return encoded chunks, through the blocks that scanning has read already."""
        here = found.rows.url >= 0
        if any(found.urls[at] != self.fact.url for at in np.unique(found.rows.url[here]).tolist()):
            raise ElsewhereError(
                f'The values of "{path}" lie in another file and cannot be used to place this one'
            )
        spans = [(start, start + size) for start, size in zip(*_spans(found.rows, here), strict=True)]
        large = sum(stop - start for start, stop in spans) > PAST_BLOCKS_BYTES
        read: Iterator[Any] = iter(
            () if not spans else await (self._source.fetch if large else self._source.read)(spans)
        )
        return [
            next(read) if inside else found.inline[offset]
            for inside, offset in zip(here.tolist(), found.rows.offset.tolist(), strict=True)
        ]


def _spans(rows: Rows, here: Any) -> tuple[list[int], list[int]]:
    return rows.offset[here].tolist(), rows.length[here].tolist()


class ListedSource:
    """A hierarchy of zarr keys, or a reference set."""

    def __init__(self, fact: FileFact, state: State, place: KvPrefix | None, *, kind: str) -> None:
        self.fact, self._state = fact, state
        self.kind: str | None = kind
        self._store = driver_in_memory(state, {}, place)
        self.documents: Mapping[str, bytes] = {}
        self.grids: Mapping[str, Grid] = {}
        self.notes: Mapping[str, str] = {}
        self._found: dict[str, tuple[list[int], list[Row], list[str], list[bytes]]] = {}

    async def listed(self) -> ListedSource:
        """Return the source once its documents are read and its keys sorted by array."""
        documents: dict[str, bytes] = {}
        async for names, found in self._state.documents(KeyRange()):
            wanted = [name for name in names if is_document(name) and not name.endswith(".zmetadata")]
            answers = await self._store.read_many([Read(name) for name in wanted])
            documents.update({n: bytes(a.value) for n, a in zip(wanted, answers, strict=True)})
            del found
        self.documents = documents
        grids = {}
        for key, value in documents.items():
            path, _, name = key.rpartition("/")
            if name in (_PARSED, "zarr.json"):
                grid = grid_of(path, loads(value, lenient=True))
                if grid is not None:
                    grids[path] = grid
        self.grids = grids
        async for names, found in self._state.scan(KeyRange()):
            for at, name in enumerate(names):
                self._sort(name, found, at)
        return self

    def _sort(self, name: str, found: Any, at: int) -> None:
        if is_document(name):
            return
        head, number = name, None
        while head:
            head, _, _ = head.rpartition("/")
            grid = self.grids.get(head)
            number = None if grid is None else grid.number(name[len(head) + 1 if head else 0 :])
            if number is not None:
                break
        if number is None:
            return
        url, offset, length = (int(column[at]) for column in found.rows)
        if url == ABSENT:
            return
        numbers, rows, urls, inline = self._found.setdefault(head, ([], [], [], []))
        numbers.append(number)
        if url >= 0:
            urls.append(found.urls[url])
            rows.append(Row(len(urls) - 1, offset, length))
        else:
            inline.append(bytes(found.inline[offset]))
            rows.append(Row(INLINE, len(inline) - 1, length))

    async def references(self, paths: Sequence[str]) -> list[ArrayReferences]:
        """Return the references of arrays."""
        out = []
        for path in paths:
            numbers, rows, urls, inline = self._found.get(path, ([], [], [], []))
            order = np.argsort(np.array(numbers, np.int64), kind="stable")
            out.append(
                ArrayReferences(np.array(numbers, np.int64)[order], Rows.of(rows).take(order), urls, inline)
            )
        return out

    async def chunks(self, path: str, found: ArrayReferences) -> Sequence[Any]:
        """Return encoded chunks."""
        keys = self.grids[path].keys(found.number) if len(found.number) else []
        return [answer.value for answer in await self._store.read_many([Read(key) for key in keys])]


async def open_source(url: str, place: KvPrefix) -> SourceFile:
    """Return the file at a place, which references call `url`, opened."""
    if isinstance(place.driver, ScanDriver):
        return await _scanned(url.rpartition("|")[0], place.driver.base, place.driver.scanner)
    begun, failure = None, None
    if not url.endswith("/"):
        try:
            begun = await ScanSource(place).begin()
        except StoreError:
            begun = None  # a directory
    name = None if begun is None else format_of_head(begun.head(FORMAT_HEAD_BYTES))
    if name is not None:
        scanner: Any = registry.scanners.get(name)
        return await _scanned(url, place, scanner, begun)
    if not url.endswith(("/", ".zarr")):
        try:
            state = await load(place, Reading())
            return await ListedSource(FileFact(url), state, await beside(place), kind="reference").listed()
        except JsonError:
            raise
        except StoreError as error:
            failure = None if isinstance(error, NotFoundError) or _is_no_set(begun, error) else error
    try:
        found = await _hierarchy(url, place)
    except StoreError:
        if begun is None:
            raise
        found = None  # only a file, which has no keys below it
    if found is not None:
        return found
    if failure is not None:
        raise failure
    if begun is not None:
        raise StoreError(f"{place.describe()} begins like no format that can be combined")
    raise StoreError(f"There is no file and no zarr hierarchy at {place.describe()} that can be combined")


def _is_no_set(begun: ScanSource | None, error: StoreError) -> bool:
    """Return whether a file that could not be read as a reference set does not even begin like one."""
    if begun is None or not isinstance(error, DataLossError):
        return False
    return not is_text_of_json(begun.head(FORMAT_HEAD_BYTES), b"")


async def _scanned(
    url: str, place: KvPrefix, scanner: FileScanner, begun: ScanSource | None = None
) -> SourceFile:
    for _ in range(OPEN_ATTEMPTS):
        try:
            source, begun = begun or await ScanSource(place).begin(), None
            return ScannedSource(url, source, await scanner.scan(source, {}))
        except FileChangedError:
            continue
    raise AbortedError(f"{place.describe()} keeps changing")


async def _hierarchy(url: str, place: KvPrefix) -> SourceFile | None:
    """Return a hierarchy of zarr keys, each chunk of which is a value of its own."""
    base = place if place.path.endswith("/") or not place.path else place.join("/")
    head = url if url.endswith("/") else url + "/"
    urls: list[str] = []
    names: dict[str, int] = {}
    rows: list[Row] = []
    inline: list[bytes] = []
    async for entries in base.scan():
        documents = [entry.key for entry in entries if is_document(entry.key)]
        answers = await base.read_many([Read(key) for key in documents])
        read = {key: bytes(answer.value) for key, answer in zip(documents, answers, strict=True)}
        for entry in entries:
            names[entry.key] = len(rows)
            if entry.key in read:
                rows.append(Row(INLINE, len(inline), len(read[entry.key])))
                inline.append(read[entry.key])
            else:
                rows.append(Row(len(urls), 0, WHOLE if entry.size is None else entry.size))
                urls.append(head + entry.key)
    if not inline:
        return None
    table = Table(urls, inline, names, Rows.of(rows))
    state = State(TableSet(table))
    return await ListedSource(FileFact(url), state, await beside(place), kind=place.driver.id).listed()
