"""Reference sets in parquet: a directory with `.zmetadata` and `<array>/refs.<k>.parq`.

The reference of chunk `n` (C order) of an array is row `n % record_size` of its file `n // record_size`.  Opening reads
`.zmetadata` alone; files are loaded when one of their keys is asked for, those of a batch together.  A file that does
not exist holds no reference.

Keys outside the chunk grid do not exist, however well they would wrap to another row.  Beyond what other readers
support, arrays of zarr version 3 and keys with slashes are found too.  A key that is a chunk of an array and of another
around it is looked for in both, in the inner one first, as other readers have it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from fsstore.errors import ResourceExhaustedError
from fsstore.kvstore.contract.driver import Buffer, KvPrefix
from fsstore.kvstore.contract.request import KeyRange
from fsstore.reference.parquet.files import PartitionFiles, Where
from fsstore.reference.parquet.metadata import parse_metadata
from fsstore.reference.parquet.read import Partition
from fsstore.reference.state.refset import Page, Resolved
from fsstore.reference.table.grid import Grid, around_others
from fsstore.reference.table.keys import split
from fsstore.reference.table.table import ABSENT, INLINE, Row, Rows
from fsstore.values.json_value import quote

__all__ = ["ParquetSet"]

_MAX_LISTED = 100_000  # files, where they cannot be listed and each has to be asked for


class ParquetSet:
    """A set in a parquet directory; `base` is the directory, its path ending with a slash."""

    def __init__(self, files: PartitionFiles, data: Buffer) -> None:
        self.files = files
        self.waits: bool = files.base.driver.features.waits
        self.metadata, self.grids, self.record_size, self.scanned = parse_metadata(data)
        self._around = around_others(self.grids)
        self._families = {
            grid.family: grid
            for grid in self.grids.values()
            if grid.family is not None and grid.path not in self._around
        }

    @property
    def base(self) -> KvPrefix:
        """The directory."""
        return self.files.base

    async def resolve(self, keys: Sequence[str]) -> Resolved:
        """Return the references of `keys`; the files they need are read together."""
        rows = Rows.absent(len(keys))
        inline: list[bytes] = []
        for position, key in enumerate(keys):
            if key in self.metadata:
                value = self.metadata[key]
                rows.url[position], rows.offset[position], rows.length[position] = (
                    INLINE,
                    len(inline),
                    len(value),
                )
                inline.append(value)
        wanted = self.places(keys)
        files = await self.files.load(list(wanted))
        for where in sorted(
            wanted, key=lambda where: len(where[0])
        ):  # of two arrays the inner one is put last
            file = files[where].partition
            if file is not None:
                _place(rows, inline, file, *map(np.array, wanted[where]))
        return Resolved(rows, self.files.urls, inline)

    def places(self, keys: Sequence[str]) -> dict[Where, tuple[list[int], list[int]]]:
        """Return the files that may hold keys, with positions among `keys` and rows; what is no chunk is left out.

        A key has one place, or several where an array lies in another.
        """
        wanted: dict[Where, tuple[list[int], list[int]]] = {}
        for grid, positions, numbers in self._chunks(keys):
            for position, number in zip(positions, numbers, strict=True):
                if number >= 0:
                    found = wanted.setdefault((grid.path, number // self.record_size), ([], []))
                    found[0].append(position)
                    found[1].append(number % self.record_size)
        return wanted

    def _chunks(self, keys: Sequence[str]) -> Iterable[tuple[Grid, Sequence[int], Sequence[int]]]:
        """Yield positions of keys that name chunks, with the chunks' numbers; -1 outside the grid."""
        groups, loose = split([key.encode("utf-8", "surrogateescape") for key in keys])
        everything = np.arange(len(keys))
        for group in groups:
            positions = everything[group.positions].tolist()
            grid = self._families.get(group.family)
            if grid is not None:
                yield grid, positions, grid.numbers(group.coords).tolist()
            else:
                loose += positions
        for position in loose:
            for grid, number in self._chunks_called(keys[position]):
                yield grid, [position], [number]

    def _chunks_called(self, key: str) -> Iterator[tuple[Grid, int]]:
        """Yield the chunks a key names, of every array whose path starts it, the longest first."""
        cut = len(key)
        while cut >= 0:
            cut = key.rfind("/", 0, cut)
            grid = self.grids.get(key[: max(cut, 0)])
            number = grid.number(key[cut + 1 :]) if grid is not None else None
            if grid is not None and number is not None:
                yield grid, number

    async def scan(self, keys: KeyRange) -> AsyncIterator[Page]:
        """Yield the keys in a range: metadata first, then array by array, file by file."""
        async for page in self.documents(keys):
            yield page
        for path in sorted(self.grids):
            if _may_hold(self.grids[path], keys):
                async for page in self._scan_array(self.grids[path], keys):
                    yield page

    async def documents(self, keys: KeyRange) -> AsyncIterator[Page]:
        """Yield the metadata in a range."""
        names = sorted(key for key in self.metadata if keys.contains(key))
        if names:
            values = [self.metadata[name] for name in names]
            rows = Rows.of([Row(INLINE, number, len(value)) for number, value in enumerate(values)])
            yield names, Resolved(rows, (), values)

    async def _scan_array(self, grid: Grid, keys: KeyRange) -> AsyncIterator[Page]:
        for record in await self._records(grid):
            file = (await self.files.load([(grid.path, record)]))[grid.path, record].partition
            if file is None:
                continue
            found, resolved = self._entries(grid, record, file)
            inner = await self._in_others(grid, found) if grid.path in self._around else set()
            kept = [position for position, key in enumerate(found) if keys.contains(key) and key not in inner]
            if kept:
                yield [found[k] for k in kept], resolved._replace(rows=resolved.rows.take(kept))

    async def _in_others(self, grid: Grid, keys: Sequence[str]) -> set[str]:
        """Return those of the keys of an array that arrays within it hold: they are listed there."""
        places = {where: each for where, each in self.places(keys).items() if len(where[0]) > len(grid.path)}
        files = await self.files.load(list(places))
        inner = set()
        for where, (positions, numbers) in places.items():
            file = files[where].partition
            if file is not None:
                held = zip(positions, _present(file, np.array(numbers)).tolist(), strict=True)
                inner |= {keys[position] for position, there in held if there}
        return inner

    def _entries(self, grid: Grid, record: int, file: Partition) -> tuple[list[str], Resolved]:
        first = record * self.record_size
        size = min(len(file.rows.url), self.record_size, grid.count - first)
        present = np.flatnonzero(file.rows.url[:size] != -1)
        inline = [b"" if value is None else value for value in file.raw]
        return grid.keys(present + first), Resolved(file.rows.take(present), self.files.urls, inline)

    async def _records(self, grid: Grid) -> list[int]:
        """Return the numbers of the files of an array, from the listing where there is one."""
        count = -(-grid.count // self.record_size)
        if count <= 16 or not self.base.driver.features.listable:
            if count > _MAX_LISTED:
                raise ResourceExhaustedError(f"Cannot list the {count} files of array {quote(grid.path)}")
            return list(range(count))
        return [record for record in await self.files.listed(grid.path) if record < count]


def _may_hold(grid: Grid, keys: KeyRange) -> bool:
    own = KeyRange.prefix(f"{grid.path}/" if grid.path else "")
    low = max(own.inclusive_min, keys.inclusive_min)
    return all(not end or low < end for end in (own.exclusive_max, keys.exclusive_max))


def _present(file: Partition, numbers: Any) -> Any:
    """Return which rows of a file are references; those past its end are none."""
    inside = numbers < len(file.rows.url)
    inside[inside] = file.rows.url[numbers[inside]] != ABSENT
    return inside


def _place(rows: Rows, inline: list[bytes], file: Partition, positions: Any, numbers: Any) -> None:
    """Put the rows that a file has into the answer."""
    known = _present(file, numbers)
    positions, numbers = positions[known], numbers[known]
    found = file.rows.take(numbers)
    for at in np.flatnonzero(found.url == INLINE).tolist():
        value = file.raw[int(numbers[at])] or b""
        found.offset[at] = len(inline)
        inline.append(value)
    rows.put(positions, found)
