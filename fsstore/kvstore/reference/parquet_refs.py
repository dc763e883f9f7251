"""Reference sets in parquet: a directory with `.zmetadata` and `<array>/refs.<k>.parq`.

The reference of chunk `n` (C order) of an array is row `n % record_size` of its file `n // record_size`.  Opening reads
`.zmetadata` alone; files are loaded when one of their keys is asked for, those of a batch together, and kept up to a
budget.  A file that does not exist holds no reference.

Keys outside the chunk grid do not exist, however well they would wrap to another row.  Beyond what other readers
support, arrays of zarr version 3 and keys with slashes are found too.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

import numpy as np

from fsstore._json import Fields, integer, quote, show
from fsstore.errors import JsonError, ResourceExhaustedError
from fsstore.kvstore.contract import KvPrefix, Read
from fsstore.kvstore.key_range import KeyRange
from fsstore.kvstore.reference.grid import Grid, grid_of
from fsstore.kvstore.reference.json_scan import Buffer, Member, Run, Scanner, Sink
from fsstore.kvstore.reference.keys import check_key, split
from fsstore.kvstore.reference.parquet_read import Partition, read_partition
from fsstore.kvstore.reference.refset import Resolved
from fsstore.kvstore.reference.table import INLINE, Row, Rows
from fsstore.kvstore.reference.value import decode_text

__all__ = ["ParquetSet", "parse_metadata"]

MAX_RECORD_SIZE = 10_000_000
_BUDGET = 64 * 2**20
_MAX_LISTED = 100_000
_Where = tuple[str, int]


class _Metadata:
    """Takes the members of the `metadata` object: keys and the JSON text of their values."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.parsed: dict[str, Any] = {}
        self.problems: list[str] = []

    def run(self, run: Run) -> None:
        self.problems += [f"Error in metadata {quote(key)}: Expected object" for key in run.names()]

    def enter(self, key: str) -> Sink | None:  # the contract of sinks
        return None

    def member(self, member: Member) -> None:
        key, found = member.key, member.parse()
        why = check_key(key)
        if why is not None:
            self.problems.append(f"Error in metadata {show(key)}: {why}")
        elif isinstance(found, dict):
            self.values[key], self.parsed[key] = member.text, found
        elif isinstance(found, str):
            self.values[key] = decode_text(found)
        else:
            self.problems.append(
                f"Error in metadata {show(key)}: Expected object, but received: {show(found)[:80]}"
            )


class _Document:
    """Takes the members of a `.zmetadata`."""

    def __init__(self) -> None:
        self.metadata = _Metadata()
        self.others: dict[str, Any] = {}

    def run(self, run: Run) -> None:
        """Pass over members that have the form of references."""

    def enter(self, key: str) -> Sink | None:
        return self.metadata if key == "metadata" else None

    def member(self, member: Member) -> None:
        self.others[member.key] = member.parse()


def parse_metadata(data: Buffer) -> tuple[dict[str, bytes], dict[str, Grid], int]:
    """Return the metadata documents, the grids of the arrays, and the record size of a `.zmetadata`."""
    scanner, document = Scanner((data,)), _Document()
    if scanner.first() != b"{":
        raise scanner.damaged("an object")
    scanner.members(document)
    scanner.finish()
    found = document.metadata
    fields = Fields({name: value for name, value in document.others.items() if name == "record_size"})
    record_size = fields.require("record_size", integer(1, MAX_RECORD_SIZE))
    try:
        fields.finish()
    except JsonError as error:
        found.problems += error.problems
    grids = {}
    for key, value in found.parsed.items():
        path, _, name = key.rpartition("/")
        if name not in (".zarray", "zarr.json"):
            continue
        try:
            grid = grid_of(path, value)
        except JsonError as error:
            found.problems += error.within(f"Error in metadata {show(key)}").problems
            continue
        if grid is not None:
            grids[path] = grid
    if found.problems:
        raise JsonError(found.problems[:100])
    return found.values, grids, record_size


class ParquetSet:
    """A set in a parquet directory; `base` is the directory, its path ending with a slash."""

    def __init__(self, base: KvPrefix, data: Buffer, *, budget: int = _BUDGET) -> None:
        self.base, self.budget = base, budget
        self.waits: bool = base.driver.features.waits
        self.metadata, self.grids, self.record_size = parse_metadata(data)
        self.urls: list[str] = []
        self._ids: dict[str, int] = {}
        self._families = {grid.family: grid for grid in self.grids.values() if grid.family is not None}
        self._loaded: OrderedDict[_Where, Partition | None] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()

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
        wanted: dict[_Where, tuple[list[int], list[int]]] = {}
        for grid, positions, numbers in self._chunks(keys):
            for position, number in zip(positions, numbers, strict=True):
                if number >= 0:
                    found = wanted.setdefault((grid.path, number // self.record_size), ([], []))
                    found[0].append(position)
                    found[1].append(number % self.record_size)
        files = await self._load(list(wanted))
        for where, (positions, numbers) in wanted.items():
            file = files[where]
            if file is not None:
                _place(rows, inline, file, np.array(positions), np.array(numbers))
        return Resolved(rows, self.urls, inline)

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
            found = self._single(keys[position])
            if found is not None:
                yield found[0], [position], [found[1]]

    def _single(self, key: str) -> tuple[Grid, int] | None:
        """Return the chunk a key names, trying every array whose path starts it."""
        cut = len(key)
        while True:
            cut = key.rfind("/", 0, cut)
            grid = self.grids.get(key[: max(cut, 0)])
            number = grid.number(key[cut + 1 :]) if grid is not None else None
            if grid is not None and number is not None:
                return grid, number
            if cut < 0:
                return None

    async def _load(self, files: Sequence[_Where]) -> dict[_Where, Partition | None]:
        with self._lock:
            found = {where: self._loaded[where] for where in files if where in self._loaded}
            for where in found:
                self._loaded.move_to_end(where)
        absent = [where for where in files if where not in found]
        if not absent:
            return found
        names = [f"{path}/refs.{record}.parq" if path else f"refs.{record}.parq" for path, record in absent]
        for where, name, result in zip(
            absent, names, await self.base.read_many([Read(name) for name in names]), strict=True
        ):
            file = None
            if result.state == "value":
                file = read_partition(result.value, self._url_ids, self.base.describe(name))
            found[where] = file
            self._keep(where, file)
        return found

    def _keep(self, where: _Where, file: Partition | None) -> None:
        with self._lock:
            if where not in self._loaded:
                self._loaded[where] = file
                self._size += _cost(file)
            while self._size > self.budget and len(self._loaded) > 1:
                self._size -= _cost(self._loaded.popitem(last=False)[1])

    def _url_ids(self, urls: Sequence[str]) -> np.ndarray[Any, np.dtype[np.int32]]:
        with self._lock:
            for url in urls:
                if url not in self._ids:
                    self.urls.append(url)
                    self._ids[url] = len(self._ids)
            return np.array([self._ids[url] for url in urls], np.int32)

    async def scan(self, keys: KeyRange) -> AsyncIterator[tuple[list[str], Resolved]]:
        """Yield the keys in a range: metadata first, then array by array, file by file."""
        names = sorted(key for key in self.metadata if keys.contains(key))
        if names:
            values = [self.metadata[name] for name in names]
            rows = Rows.of([Row(INLINE, number, len(value)) for number, value in enumerate(values)])
            yield names, Resolved(rows, self.urls, values)
        for path in sorted(self.grids):
            if _may_hold(self.grids[path], keys):
                async for page in self._scan_array(self.grids[path], keys):
                    yield page

    async def _scan_array(self, grid: Grid, keys: KeyRange) -> AsyncIterator[tuple[list[str], Resolved]]:
        for record in await self._records(grid):
            file = (await self._load([(grid.path, record)]))[grid.path, record]
            if file is None:
                continue
            found, resolved = self._entries(grid, record, file)
            kept = [position for position, key in enumerate(found) if keys.contains(key)]
            if kept:
                yield [found[k] for k in kept], resolved._replace(rows=resolved.rows.take(kept))

    def _entries(self, grid: Grid, record: int, file: Partition) -> tuple[list[str], Resolved]:
        first = record * self.record_size
        size = min(len(file.rows.url), self.record_size, grid.count - first)
        present = np.flatnonzero(file.rows.url[:size] != -1)
        inline = [b"" if value is None else value for value in file.raw]
        return grid.keys(present + first), Resolved(file.rows.take(present), self.urls, inline)

    async def _records(self, grid: Grid) -> list[int]:
        """Return the numbers of the files of an array, from the listing where there is one."""
        count = -(-grid.count // self.record_size)
        if count <= 16 or not self.base.driver.features.listable:
            if count > _MAX_LISTED:
                raise ResourceExhaustedError(f"Cannot list the {count} files of array {quote(grid.path)}")
            return list(range(count))
        prefix = f"{grid.path}/refs." if grid.path else "refs."
        found = set()
        async for batch in self.base.scan(KeyRange.prefix(prefix)):
            for entry in batch:
                number = entry.key[len(prefix) :].removesuffix(".parq")
                if number.isascii() and number.isdigit() and len(number) < 19 and int(number) < count:
                    found.add(int(number))
        return sorted(found)


def _cost(file: Partition | None) -> int:
    return 64 if file is None else file.nbytes


def _may_hold(grid: Grid, keys: KeyRange) -> bool:
    own = KeyRange.prefix(f"{grid.path}/" if grid.path else "")
    low = max(own.inclusive_min, keys.inclusive_min)
    return all(not end or low < end for end in (own.exclusive_max, keys.exclusive_max))


def _place(rows: Rows, inline: list[bytes], file: Partition, positions: Any, numbers: Any) -> None:
    """Put rows of a file into the answer; rows past its end are absent."""
    known = numbers < len(file.rows.url)
    positions, numbers = positions[known], numbers[known]
    found = file.rows.take(numbers)
    for at in np.flatnonzero(found.url == INLINE).tolist():
        value = file.raw[int(numbers[at])] or b""
        found.offset[at] = len(inline)
        inline.append(value)
    rows.put(positions, found)
