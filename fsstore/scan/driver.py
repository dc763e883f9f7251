"""The key-value store that shows a scanned file.

The structure is read when the first key is asked for, and again when the file has changed: every range of it must come
from the generation that was scanned, else the batch starts over.  Documents need no data, so whether the file is still
the same is asked for them: of a far file at most once a second.

Reading chunks, merging their ranges, the policy of what may be read and the messages for damage are those of reference
sets: each generation of the file is such a set, read by the reference store.

With an `index`, a set that was saved of the file before, nothing is scanned: only that the file still is the one it was
made of is asked (`saved_index`).  Those who touch the file, or an array of it, for the first time together share one
scan, and one read of the chunk index.
"""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar, TypeAlias

import numpy as np

from fsstore.errors import FailedPreconditionError, NotFoundError, StoreError, UnimplementedError
from fsstore.kvstore.contract.ability import ListsDocuments, ReadsWhole, ShowsFile
from fsstore.kvstore.contract.batch import AnswerColumns, Limits
from fsstore.kvstore.contract.driver import (
    UNKNOWN,
    Entry,
    Features,
    KvDriver,
    KvPrefix,
    Read,
    ReadOnly,
    ReadResult,
    now,
)
from fsstore.kvstore.contract.request import KeyRange
from fsstore.kvstore.engine.secret import reveal
from fsstore.kvstore.local.file import is_settled
from fsstore.kvstore.spec_parse import leads_elsewhere
from fsstore.reference.driver import ReferenceDriver
from fsstore.reference.policy import beside
from fsstore.reference.table.keys import Grid, split_keys, split_one
from fsstore.reference.table.refset import Page, Resolved
from fsstore.reference.table.set_state import Overlay, State
from fsstore.reference.table.table import ABSENT, INLINE, Row, Rows
from fsstore.reference.targets import Fetcher, OpenTarget, check_prefixes, policy_of
from fsstore.runtime import fork
from fsstore.runtime.cache import CachePool, descriptions
from fsstore.runtime.together import ChangedError, FirstTouch, until_unchanged
from fsstore.runtime.tuning import FEW, ROWS_AT_ONCE, TRUSTED_S
from fsstore.scan.contract import (
    MADE,
    SELF,
    ChunkTable,
    FileChangedError,
    FileScanner,
    Numbers,
    ScanHierarchy,
    ScannedFile,
    ScanSource,
)
from fsstore.scan.hierarchy import Families
from fsstore.scan.targets import PinnedFile, SavedIndex, ScanTargets, begun, check_index, load_index
from fsstore.values.json_value import Json, dumps, quote

# A scanned file as a reference set: keys resolved in batches, chunk tables on first touch.
#
# Documents are inline values. The keys of a batch are grouped by array; the tables of all arrays that are
# touched for the first time are read together, in shared rounds, and kept in the cache pool as well, for
# the next store of the file.


@dataclass(frozen=True, slots=True)
class Kept:
    """Where structures and chunk tables are kept beside the set: the pool, its epoch before reading, and what keys
    begin with.

    With `shared` all stores of this process share the structure: that of a local file that refers to no other.
    """

    pool: CachePool
    owner: tuple[Any, ...]
    epoch: int
    shared: bool

    def get(self, path: str) -> ChunkTable | None:
        """Return a table that is kept."""
        found: ChunkTable | None = self.pool.get((*self.owner, path))
        return found

    def put(self, path: str, table: ChunkTable) -> None:
        """Keep a table."""
        self.pool.put((*self.owner, path), table, table.nbytes + 200, group=self._group, epoch=self.epoch)

    def get_file(self) -> tuple[ScannedFile, Families] | None:
        """Return the structure that is kept."""
        found: tuple[ScannedFile, Families] | None = self.pool.get(self.owner)
        return descriptions().get(self.owner) if found is None and self.shared else found

    def put_file(self, file: ScannedFile, families: Families) -> None:
        """Keep the structure."""
        value, nbytes = (file, families), file.hierarchy.nbytes
        self.pool.put(self.owner, value, nbytes, group=self._group, epoch=self.epoch)
        if self.shared and not file.hierarchy.refers:
            pool = descriptions()
            pool.put(self.owner, value, nbytes, group=self._group, epoch=pool.epoch)

    @property
    def _group(self) -> tuple[str, tuple[Any, ...]]:
        return "scan", self.owner

    def forget(self) -> None:
        """Drop the structure and all tables."""
        self.pool.discard_group(self._group)
        if self.shared:
            descriptions().discard_group(self._group)


class ScannedSet:
    """The references of one generation of a file; those who touch an array for the first time together read its chunk
    index once.
    """

    scanned: ClassVar[None] = None
    origins: ClassVar[None] = None

    def __init__(self, file: ScannedFile, families: Families, kept: Kept, *, waits: bool) -> None:
        self.file, self.waits = file, waits
        self.kept = kept
        self._tables: dict[str, ChunkTable] = {}
        self._first: FirstTouch[str, ChunkTable] = FirstTouch()
        self._arrays, self._loose = families.arrays, families.loose

    @property
    def hierarchy(self) -> ScanHierarchy:
        """The structure."""
        return self.file.hierarchy

    async def resolve(self, keys: Sequence[str]) -> Resolved:
        """Return the references of `keys`; values that are made are made here."""
        documents = self.hierarchy.documents
        asked = self._asked(keys, [position for position, key in enumerate(keys) if key not in documents])
        tables = await self.tables([path for path, _, _ in asked])
        found = [table.find(numbers) for (_, _, numbers), table in zip(asked, tables, strict=True)]
        # nearly always chunks of one array
        if len(asked) == 1 and len(found[0].url) == len(keys) and not (found[0].url == MADE).any():
            return Resolved(found[0], tables[0].urls, tables[0].inline)
        rows = Rows.absent(len(keys))
        urls: list[str] = []
        values: list[bytes] = []
        self._put_documents(keys, rows, values)
        for (path, positions, numbers), table, some in zip(asked, tables, found, strict=True):
            await self._make(path, numbers, some, values)
            _shift(some, table, urls, values)
            rows.put(positions, some)
        return Resolved(rows, urls, values)

    def _places(self, key: str) -> list[tuple[str, int]]:
        """Return the arrays of which a key may name a chunk, and the number of the chunk."""
        family, coords = split_one(key.encode("utf-8", "surrogateescape")) or ((b"", b""), [])
        places = []
        for rank, by_lead in self._arrays.get(family, {}).items():
            path = by_lead.get(tuple(coords[:rank]))
            number = None if path is None else self.hierarchy.grids[path].number_of(coords[rank:])
            if path is not None and number is not None:
                places.append((path, number))
        return places

    def _put_documents(self, keys: Sequence[str], rows: Rows, values: list[bytes]) -> None:
        for position, key in enumerate(keys):
            value = self.hierarchy.documents.get(key)
            if value is not None:
                rows.url[position], rows.offset[position], rows.length[position] = (INLINE, len(values), len(value))
                values.append(value)

    def _asked(self, keys: Sequence[str], chunks: list[int]) -> list[tuple[str, Numbers, Numbers]]:
        """Return by array the positions of its keys and the numbers of its chunks, those outside its grid left out."""
        out = list(self._asked_in_columns(keys, chunks) if len(chunks) > FEW else self._asked_alone(keys, chunks))
        if self._loose:
            zero = np.zeros(1, np.int64)
            named = ((self._loose.get(keys[position]), position) for position in chunks)
            out += [(path, np.array([at], np.int64), zero) for path, at in named if path is not None]
        return [each for each in out if len(each[1])]

    def _asked_alone(self, keys: Sequence[str], chunks: list[int]) -> Iterator[tuple[str, Numbers, Numbers]]:
        found: dict[str, list[tuple[int, int]]] = {}
        for position in chunks:
            for path, number in self._places(keys[position]):
                found.setdefault(path, []).append((position, number))
        for path, pairs in found.items():
            positions, numbers = np.array(pairs, np.int64).T
            yield path, positions, numbers

    def _asked_in_columns(self, keys: Sequence[str], chunks: list[int]) -> Iterator[tuple[str, Numbers, Numbers]]:
        encoded = [keys[position].encode("utf-8", "surrogateescape") for position in chunks]
        for group in split_keys(encoded)[0]:
            positions, coords = np.array(chunks, np.int64)[group.positions], group.coords
            for rank, by_lead in self._arrays.get(group.family, {}).items():
                for path, some in _by_lead(by_lead, coords[:, :rank]):
                    numbers = self.hierarchy.grids[path].numbers(coords[some, rank:])
                    inside = numbers >= 0
                    yield path, positions[some][inside], numbers[inside]

    async def tables(self, paths: Sequence[str]) -> list[ChunkTable]:
        """Return the chunk tables of arrays; those that are not known are read together."""
        unknown = []
        for path in dict.fromkeys(paths):
            kept = self._tables.get(path) or self.kept.get(path)
            if kept is None:
                unknown.append(path)
            else:
                self._tables[path] = kept
        if unknown:
            self._tables.update(await self._first.all(unknown, self._load))
        return [self._tables[path] for path in paths]

    async def _load(self, paths: Sequence[str]) -> Sequence[ChunkTable]:
        tables = await self.file.tables(paths)
        for path, table in zip(paths, tables, strict=True):
            self._tables[path] = table
            self.kept.put(path, table)
        return tables

    async def _make(self, path: str, numbers: Numbers, rows: Rows, values: list[bytes]) -> None:
        made = np.flatnonzero(rows.url == MADE)
        if not len(made):
            return
        found = await self.file.make(path, numbers[made])
        rows.offset[made] = np.arange(len(made)) + len(values)
        rows.length[made] = [len(value) for value in found]
        values += [value if isinstance(value, bytes) else bytes(value) for value in found]

    async def scan(self, keys: KeyRange) -> AsyncIterator[Page]:
        """Yield the documents in a range, then the chunks of its arrays."""
        async for page in self.documents(keys):
            yield page
        for path, grid in self.hierarchy.grids.items():
            if _may_hold(grid, keys):
                table = (await self.tables([path]))[0]
                for page in _pages(grid, table, keys):
                    yield page

    async def documents(self, keys: KeyRange) -> AsyncIterator[Page]:
        """Yield the documents in a range."""
        names = [name for name in sorted(self.hierarchy.documents) if keys.contains(name)]
        values = [self.hierarchy.documents[name] for name in names]
        if names:
            rows = Rows.of([Row(INLINE, number, len(value)) for number, value in enumerate(values)])
            yield names, Resolved(rows, (), values)


def _by_lead(arrays: Mapping[tuple[int, ...], str], leads: Numbers) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    """Yield the arrays whose paths end with the first numbers of coordinates, and the positions of these."""
    if not leads.shape[1]:
        yield arrays[()], np.arange(len(leads))
        return
    found, which = np.unique(leads, axis=0, return_inverse=True)
    for number, lead in enumerate(found.tolist()):
        path = arrays.get(tuple(lead))
        if path is not None:
            yield path, np.flatnonzero(which.reshape(-1) == number)


def _shift(rows: Rows, table: ChunkTable, urls: list[str], values: list[bytes]) -> None:
    """Make rows point into the URLs and values of the batch instead of the table's own."""
    inside = np.flatnonzero(rows.url == INLINE)
    for position in inside.tolist():
        values.append(table.inline[int(rows.offset[position])])
        rows.offset[position] = len(values) - 1
    rows.url[rows.url == MADE] = INLINE
    located = rows.url >= 0
    if not located.any():
        return
    used, where = np.unique(rows.url[located], return_inverse=True)
    rows.url[located] = (where + len(urls)).astype(np.int32)
    urls += [table.urls[number] for number in used.tolist()]


def _may_hold(grid: Grid, keys: KeyRange) -> bool:
    head = f"{grid.path}/" if grid.path else ""
    inside = KeyRange.prefix(head)
    low = max(inside.inclusive_min, keys.inclusive_min)
    return all(not end or low < end for end in (inside.exclusive_max, keys.exclusive_max))


def _pages(grid: Grid, table: ChunkTable, keys: KeyRange) -> Iterator[Page]:
    """Yield the chunks of an array in a range; the length of what is made is not known."""
    for start in range(0, grid.count, ROWS_AT_ONCE):
        numbers = table.present(start, min(start + ROWS_AT_ONCE, grid.count))
        names = grid.keys(numbers) if len(numbers) else []
        kept = [at for at, name in enumerate(names) if keys.contains(name)]
        if not kept:
            continue
        rows = table.find(numbers[kept])
        rows.length[rows.url == MADE] = -1
        rows.url[rows.url == MADE] = INLINE
        assert (rows.url != ABSENT).all()
        yield [names[at] for at in kept], Resolved(rows, table.urls, table.inline)


_MOST_NAMED = 20
_DOCUMENTS = (".zarray", ".zgroup", "zarr.json")
_Ask: TypeAlias = "Callable[[ReferenceDriver], Awaitable[Sequence[ReadResult]]]"
_log = logging.getLogger("fsstore.kvstore")


@dataclass(frozen=True, slots=True)
class Scan:
    """One generation of the file, scanned, and the store over it.  `time` is when that was the current one.

    `found` is None if the file was not scanned, but an index of it opened.
    """

    source: ScanSource
    found: ScannedSet | None
    store: ReferenceDriver
    time: float


@dataclass(frozen=True, slots=True)
class Means:
    """The means of an open store: limits of merging, a function that opens other places, and a cache of structures."""

    limits: Limits
    open_target: OpenTarget
    pool: CachePool

    def store(self, state: State, targets: ScanTargets, described: str) -> ReferenceDriver:
        """Return the reader of one generation of a file."""
        fetcher = Fetcher(targets, self.limits if targets.far else self.limits.near, described)
        return ReferenceDriver(Overlay(state, None, writable=False), fetcher, waits=targets.far, members={})


class _Generations:
    """The scan that answers, and the number of its generation, which changes with it."""

    __slots__ = ("_generation", "_lock", "_turn", "scan")

    def __init__(self) -> None:
        self.scan: Scan | None = None
        self._turn, self._generation, self._lock = 0, UNKNOWN, fork.lock()

    @property
    def turn(self) -> int:
        with self._lock:
            return self._turn

    def show(self, scan: Scan) -> None:
        with self._lock:
            if not self._turn or scan.source.generation != self._generation:
                self._turn += 1
            self.scan, self._generation = scan, scan.source.generation


class ScanDriver(ReadOnly, ReadsWhole, ListsDocuments, ShowsFile):
    """The zarr hierarchy of the file at `base`, as `scanner` finds it."""

    id: ClassVar[str] = "scan"

    def __init__(self, scanner: FileScanner, base: KvPrefix, members: Mapping[str, Any], means: Means) -> None:
        self.id = scanner.name  # type: ignore[misc]  # one class serves all formats
        self.scanner, self.base = scanner, base
        self._members, self._means = dict(members), means
        self._shown = _Generations()
        self._first: FirstTouch[str, Scan] = FirstTouch()
        self._index: SavedIndex | None = None
        waits = base.driver.features.waits or leads_elsewhere(members)
        self.features = Features(waits=waits, writable=False, listable=True, reads_parts=True)

    def __eq__(self, other: object) -> bool:
        """Return whether `other` shows the same file in the same way."""
        return self is other or (
            isinstance(other, ScanDriver)
            and (self.id, self.base, self._members) == (other.id, other.base, other._members)
        )

    def __hash__(self) -> int:
        """Return a hash that agrees with equality."""
        return hash((self.id, self.base.path))

    async def read_many(self, reads: Sequence[Read]) -> Sequence[ReadResult]:
        """Return one result for each of `reads`, all from one generation of the file."""
        newest = max([read.staleness_bound for read in reads], default=0.0)
        answers = await self._answer(lambda store: store.read_many(reads), newest)
        if notes := self.left_out():
            _explain(notes, [read.key for read in reads], answers, self._described)
        return answers

    async def read_whole(self, keys: Sequence[str]) -> Sequence[ReadResult]:
        """Return one result for each of `keys`, all from one generation of the file."""
        answers = await self._answer(lambda store: store.read_whole(keys), math.inf)
        if notes := self.left_out():
            _explain(notes, keys, answers, self._described)
        return answers

    @property
    def turn(self) -> int:
        """The number of the generation that is shown."""
        return self._shown.turn

    def left_out(self) -> Mapping[str, str]:
        """Return why objects of the file are not shown, by path; nothing if the file was not scanned yet."""
        found = None if self._shown.scan is None else self._shown.scan.found
        return {} if found is None else found.hierarchy.notes

    async def _answer(self, ask: _Ask, newest: float) -> Sequence[ReadResult]:
        """Return what the store over the file answers, as the file is at `newest` or later.

        Answers that were read in the file say that it is still the one that was scanned.  Whether it is that, is asked
        for others, such as chunks that are not there.
        """

        async def attempt() -> Sequence[ReadResult]:
            known = self._shown.scan is not None and self._shown.scan.source.generation != UNKNOWN
            scan = self._shown.scan if self._shown.scan is not None and known else await self.current(newest)
            with suppress(FileChangedError):
                answers = await ask(scan.store)
                if not known or _are_of_file(answers, scan.source) or await self._is_current(scan, newest):
                    return answers
            if self._shown.scan is scan:
                self._shown.scan = None
            if scan.found is not None:  # the file, or one that it refers to, is another one by now
                scan.found.kept.forget()
            raise ChangedError

        return await until_unchanged(attempt, self.base.describe, reads=True)

    async def current(self, newest: float = float("inf")) -> Scan:
        """Return the file as it is at `newest` or later, scanned."""
        scan = self._shown.scan
        if scan is not None and await self._is_current(scan, newest):
            return self._shown.scan or scan

        async def attempt() -> Scan:
            return (await self._first.all(("",), self._begin))[""]

        scan = await until_unchanged(attempt, self.base.describe, changed=FileChangedError, reads=True)
        self._shown.show(scan)
        return scan

    async def _is_current(self, scan: Scan, newest: float) -> bool:
        trusted = TRUSTED_S if self.features.waits else 0.0
        if scan.time >= newest or now() - scan.time < trusted:
            return True
        if scan.source.generation == UNKNOWN:
            return False
        known = Read("", 0, 0, scan.source.generation)
        found = (await scan.source.base.read_many([known]))[0]
        if found.generation != scan.source.generation:
            return False
        self._shown.show(Scan(scan.source, scan.found, scan.store, now()))
        return True

    async def _begin(self, _: Sequence[str]) -> Sequence[Scan]:
        if self._members.get("index") is not None:
            return [await self._indexed()]
        time = now()
        source = await begun(ScanSource(self.base), self._described)
        targets = self._targets(source, await beside(self.base))
        source.reach = targets.reach
        owner = (type(self), self.id, self.base.describe(), dumps(self._members), source.generation)
        is_shared = self.base.driver.id == "file" and is_settled(source.generation)
        kept = Kept(self._means.pool, owner, self._means.pool.epoch, is_shared)
        known = kept.get_file()
        if known is None:
            try:
                file = await self.scanner.scan(source, self._members)
            except FileChangedError:
                raise
            except StoreError as error:
                raise error.within(f"Error opening {self._described}") from error
            _tell(file.hierarchy.shortcomings, self._described)
            known = file, Families(file.hierarchy.grids)
            if source.generation != UNKNOWN:
                kept.put_file(*known)
        found = ScannedSet(*known, kept, waits=self.features.waits)
        return [Scan(source, found, self._means.store(State(found), targets, self._described), time)]

    async def _indexed(self) -> Scan:
        time = now()
        try:
            if self._index is None:
                self._index = await load_index(self._members["index"], self.id, self._means.open_target)
            source = await check_index(self._index, self.base)
        except NotFoundError:
            raise
        except StoreError as error:
            raise error.within(f"Error opening {self._described}") from error
        targets = self._targets(source, self._index.place, self._index.record.url)
        return Scan(source, None, self._means.store(self._index.state, targets, self._described), time)

    def _targets(self, source: ScanSource, place: KvPrefix, known_as: str = SELF) -> ScanTargets:
        pinned: KvDriver = PinnedFile(source.base, source.generation)
        return ScanTargets(
            self._means.open_target,
            policy_of(self.base, self._members),
            place,
            check_prefixes(self._members.get("targets") or {}),
            reveal(self._members.get("rewrite")) or {},
            itself=KvPrefix(pinned, self.base.path),
            known_as=known_as,
            far=self.features.waits,
        )

    @property
    def _described(self) -> str:
        return f"{self.scanner.title} {self.base.describe()}"

    async def scanned(self) -> ScannedSet:
        """Return the file, scanned; raises `FailedPreconditionError` if an index is used instead."""
        found = (await self.current()).found
        if found is None:
            raise FailedPreconditionError(f"{self._described} is read through an index, and was not scanned")
        return found

    async def hierarchy(self) -> ScanHierarchy:
        """Return the structure of the file, with what is left out of it."""
        return (await self.scanned()).hierarchy

    async def scan(self, keys: KeyRange) -> AsyncIterator[Sequence[Entry]]:
        """Yield the keys in the range; the chunk tables of the arrays in it are read."""
        async for batch in (await self.current()).store.scan(keys):
            yield batch

    async def documents(self, keys: KeyRange) -> AsyncIterator[Sequence[Entry]]:
        """Yield the documents in the range: no chunk table is read."""
        async for batch in (await self.current()).store.documents(keys):
            yield batch

    def describe_key(self, key: str) -> str:
        """Return the quoted key and where the file is."""
        return f"{quote(key)} in {self._described}"

    def spec(self) -> Mapping[str, Json]:
        """Return the members the store was opened with, credentials left out."""
        return self._members


def _explain(notes: Mapping[str, str], keys: Sequence[str], answers: Sequence[ReadResult], described: str) -> None:
    """Raise if a document is missing of an object that the file holds and that is left out, or of one below it."""
    missing = [
        key for key, answer in zip(keys, answers, strict=True)
        if key.endswith(_DOCUMENTS) and answer.state == "missing"
    ]  # fmt: skip
    for key in missing:
        parts = key.split("/")
        for depth in range(1, len(parts)):
            path = "/".join(parts[:depth])
            if path in notes:
                raise UnimplementedError(f"{quote(path)} of {described} is left out: {notes[path]}")


def _are_of_file(answers: Sequence[ReadResult], source: ScanSource) -> bool:
    """Return whether all answers were read in the scanned file itself, and none of its documents."""
    if isinstance(answers, AnswerColumns):
        same = [each.generation == source.generation for each in answers.sources]
        return all(same) and bool((answers.where >= 0).all())
    return all(answer.generation.startswith(source.generation + b"@") for answer in answers)


def _tell(shortcomings: Mapping[str, str], described: str) -> None:
    """Log the parts of a file that users do not see."""
    for path, why in islice(sorted(shortcomings.items()), _MOST_NAMED):
        _log.info("%s of %s: %s", quote(path), described, why)
    if len(shortcomings) > _MOST_NAMED:
        _log.info("%s: %d more are left out", described, len(shortcomings) - _MOST_NAMED)
