"""A scanned file as a reference set: keys resolved in batches, chunk tables on first touch.

Documents are inline values.  The keys of a batch are grouped by array; the tables of all arrays that are touched for
the first time are read together, in shared rounds, and kept in the cache pool as well, for the next store of the file.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fsstore.kvstore.contract.request import KeyRange
from fsstore.reference.table.keys import Family, Grid, split_keys, split_one
from fsstore.reference.table.refset import Page, Resolved
from fsstore.reference.table.table import ABSENT, INLINE, Row, Rows
from fsstore.runtime.cache_pool import CachePool
from fsstore.runtime.together import FirstTouch
from fsstore.scan.contract import MADE, ChunkTable, Numbers, ScanHierarchy, ScannedFile
from fsstore.scan.tuning import FEW_KEYS, ROWS_AT_ONCE

__all__ = ["Kept", "ScannedSet", "family_of"]


@dataclass(frozen=True, slots=True)
class Kept:
    """Where chunk tables are kept beside the set: the pool, its epoch before reading, and what keys begin with."""

    pool: CachePool
    owner: tuple[Any, ...]
    epoch: int

    def get(self, path: str) -> ChunkTable | None:
        """Return a table that is kept."""
        found: ChunkTable | None = self.pool.get((*self.owner, path))
        return found

    def put(self, path: str, table: ChunkTable) -> None:
        """Keep a table."""
        self.pool.put((*self.owner, path), table, table.nbytes + 200, group=self._group, epoch=self.epoch)

    def put_file(self, file: ScannedFile) -> None:
        """Keep the structure."""
        self.pool.put(self.owner, file, file.hierarchy.nbytes, group=self._group, epoch=self.epoch)

    @property
    def _group(self) -> tuple[str, tuple[Any, ...]]:
        return "scan", self.owner

    def forget(self) -> None:
        """Drop the structure and all tables."""
        self.pool.discard_group(self._group)


class ScannedSet:
    """The references of one generation of a file; those who touch an array for the first time together read its chunk
    index once.
    """

    scanned: ClassVar[None] = None
    origins: ClassVar[None] = None

    def __init__(self, file: ScannedFile, kept: Kept, *, waits: bool) -> None:
        self.file, self.waits = file, waits
        self.kept = kept
        self._tables: dict[str, ChunkTable] = {}
        self._first: FirstTouch[str, ChunkTable] = FirstTouch()
        self._arrays: dict[Family, dict[int, dict[tuple[int, ...], str]]] = {}
        for path, grid in self.hierarchy.grids.items():
            if grid.family is not None:
                family, lead = family_of(grid) or (grid.family, ())
                self._arrays.setdefault(family, {}).setdefault(len(lead), {})[lead] = path
        grids = self.hierarchy.grids.items()
        # scalars of version 3
        self._loose = {grid.key(()): path for path, grid in grids if grid.family is None}

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
        """Put the documents among `keys` into `rows`."""
        for position, key in enumerate(keys):
            value = self.hierarchy.documents.get(key)
            if value is not None:
                rows.url[position], rows.offset[position], rows.length[position] = (
                    INLINE,
                    len(values),
                    len(value),
                )
                values.append(value)

    def _asked(self, keys: Sequence[str], chunks: list[int]) -> list[tuple[str, Numbers, Numbers]]:
        """Return by array the positions of its keys and the numbers of its chunks, those outside its grid left out."""
        out = list(
            self._asked_in_columns(keys, chunks)
            if len(chunks) > FEW_KEYS
            else self._asked_alone(keys, chunks)
        )
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

    def _asked_in_columns(
        self, keys: Sequence[str], chunks: list[int]
    ) -> Iterator[tuple[str, Numbers, Numbers]]:
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


def family_of(grid: Grid) -> tuple[Family, tuple[int, ...]] | None:
    """Return the family of an array's keys, and the numbers that its path ends with: they read as coordinates too.

    None for keys that are none of numbers: those of scalars of version 3, and names with a line break.
    """
    ndim = len(grid.shape)
    found = split_one(grid.key((0,) * ndim).encode("utf-8", "surrogateescape"))
    if grid.family is None or found is None:
        return None
    family, coords = found
    return family, tuple(coords[: len(coords) - ndim])


def _by_lead(
    arrays: Mapping[tuple[int, ...], str], leads: Numbers
) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    """Yield the arrays whose paths end with the numbers that coordinates begin with, and where these are."""
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
