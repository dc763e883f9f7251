"""Reference sets in parquet: a directory with `.zmetadata` and `<array>/refs.<k>.parq`, read and written.

The reference of chunk `n` (C order) of an array is row `n % record_size` of its file `n // record_size`.  Opening reads
`.zmetadata` alone; files are loaded when one of their keys is asked for, those of a batch together.  A file that does
not exist holds no reference.

Keys outside the chunk grid do not exist, however well they would wrap to another row.  Beyond what other readers
support, arrays of zarr version 3 and keys with slashes are found too.  A key that is a chunk of an array and of another
around it is looked for in both, in the inner one first, as other readers have it.

A set can hold chunks of arrays and metadata and nothing else; what does not fit is listed
in one error.  Files are written for all readers:

* Offsets and sizes are never null and say so in statistics: without them fastparquet makes floats of integers.
* `raw` is always of type binary.
* An empty range is an inline empty value, because zero offset and size would mean a whole target.
* Files without any reference are not written.
* `.zmetadata` comes last: until then the directory is not a set.
"""

from __future__ import annotations

import io
import json
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from fsstore.errors import JsonError, ResourceExhaustedError, StoreError, UnimplementedError
from fsstore.kvstore.contract.driver import Buffer, KvPrefix, Write
from fsstore.kvstore.contract.request import KeyRange
from fsstore.reference.parquet_file import (
    MAX_RECORD_SIZE,
    Partition,
    PartitionFiles,
    Where,
    file_name,
    format_metadata,
    is_object,
    parse_metadata,
    where_of,
)
from fsstore.reference.table.keys import Grid, around_others, grid_of, is_document, split_keys
from fsstore.reference.table.refset import Origins, Page, Resolved, ScanRecord
from fsstore.reference.table.set_state import State
from fsstore.reference.table.table import ABSENT, INLINE, WHOLE, Row, Rows, is_url
from fsstore.runtime.tuning import AT_ONCE, FEW
from fsstore.values.json_value import quote

# Reference sets in parquet: a directory with `.zmetadata` and `<array>/refs.<k>.parq`.

_MAX_LISTED = 100_000  # files, where they cannot be listed and each has to be asked for


class ParquetSet:
    """A set in a parquet directory; `base` is the directory, its path ending with a slash."""

    def __init__(self, files: PartitionFiles, data: Buffer) -> None:
        self.files = files
        self.waits: bool = files.base.driver.features.waits
        self.metadata, self.grids, self.record_size, self.scanned, self.origins = parse_metadata(data)
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
                rows.url[position], rows.offset[position], rows.length[position] = (INLINE, len(inline), len(value))
                inline.append(value)
        wanted = self.places(keys)
        files = await self.files.load(list(wanted))
        for where in sorted(wanted, key=lambda where: len(where[0])):  # of two arrays the inner one is put last
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
        groups, loose = split_keys([key.encode("utf-8", "surrogateescape") for key in keys])
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
    known = _present(file, numbers)
    positions, numbers = positions[known], numbers[known]
    found = file.rows.take(numbers)
    for at in np.flatnonzero(found.url == INLINE).tolist():
        value = file.raw[int(numbers[at])] or b""
        found.offset[at] = len(inline)
        inline.append(value)
    rows.put(positions, found)


class _Array:
    """The references of one array, collected in any order."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self._numbers: list[Any] = []
        self._rows: list[Rows] = []

    def add(self, numbers: Any, rows: Rows) -> None:
        """Take references by chunk number."""
        self._numbers.append(numbers)
        self._rows.append(rows)

    def files(self, record_size: int) -> Iterator[tuple[int, Rows]]:
        """Yield the rows of each file that has any."""
        if not self._numbers:
            return
        numbers = np.concatenate(self._numbers)
        rows = Rows(*(np.concatenate(parts) for parts in zip(*self._rows, strict=True)))
        order = np.argsort(numbers, kind="stable")
        numbers, rows = numbers[order], rows.take(order)
        records, starts = np.unique(numbers // record_size, return_index=True)
        for record, start, stop in zip(records.tolist(), starts, [*starts[1:], len(numbers)], strict=True):
            size = min(record_size, self.grid.count - record * record_size)
            file = Rows.absent(size)
            file.put(numbers[start:stop] - record * record_size, rows.take(slice(start, stop)))
            yield record, file


class _Plan:
    """The content of a set to be written: metadata documents, arrays, the URLs and inline values rows point into."""

    def __init__(self, metadata: dict[str, bytes]) -> None:
        self.metadata = metadata
        self.arrays: dict[str, _Array] = {}
        self.urls: list[str] = []
        self.inline: list[bytes] = []
        self.misfits: list[str] = []
        self._ids: dict[str, int] = {}
        for key, value in metadata.items():
            path, _, name = key.rpartition("/")
            grid = grid_of(path, json.loads(value)) if name in (".zarray", "zarr.json") else None
            if grid is not None:
                self.arrays[path] = _Array(grid)
        around = around_others(self.arrays)
        self._families = {array.grid.family: array for path, array in self.arrays.items() if path not in around}

    def take(self, names: list[str], found: Resolved) -> None:
        """Sort references to their arrays."""
        rows = self._renumbered(found)
        groups, loose = split_keys([name.encode("utf-8", "surrogateescape") for name in names])
        everything = np.arange(len(names))
        for group in groups:
            array = self._families.get(group.family)
            positions = everything[group.positions]
            if array is None:
                loose += positions.tolist()
                continue
            numbers = array.grid.numbers(group.coords)
            self.misfits += [names[position] for position in positions[numbers < 0].tolist()]
            array.add(numbers[numbers >= 0], rows.take(positions[numbers >= 0]))
        for position in loose:
            self._take_single(names[position], rows.take([position]))

    def _take_single(self, name: str, rows: Rows) -> None:
        if name in self.metadata:
            return
        path, _, chunk = name.rpartition("/")
        while True:
            array = self.arrays.get(path)
            rest = name[len(path) + 1 :] if path else name
            number = None if array is None else array.grid.number(rest)
            if number is None and array is not None and array.grid.count == 1 and chunk in ("", "0", "c"):
                number = 0  # the only chunk, under the key some writers give it
            if array is not None and number is not None:
                array.add(np.array([number]), rows)
                return
            if not path:
                self.misfits.append(name)
                return
            path = path.rpartition("/")[0]

    def _renumbered(self, found: Resolved) -> Rows:
        """Return rows that point into the plan's own URLs and inline values."""
        rows = found.rows
        url, offset, length = rows.url.copy(), rows.offset.copy(), rows.length.copy()
        used = np.unique(url[url >= 0])
        ids = np.array([self._ids.setdefault(found.urls[number], len(self._ids)) for number in used.tolist()], np.int32)
        self.urls = list(self._ids)
        url[url >= 0] = ids[np.searchsorted(used, url[url >= 0])]
        empty = (url >= 0) & (length == 0)
        for position in np.flatnonzero((rows.url == INLINE) | empty).tolist():
            value = b"" if empty[position] else found.inline[int(rows.offset[position])]
            url[position], offset[position], length[position] = INLINE, len(self.inline), len(value)
            self.inline.append(value)
        return Rows(url, offset, length)


async def save_parquet(
    state: State,
    base: KvPrefix,
    *,
    record_size: int = 100_000,
    scanned: ScanRecord | None = None,
    origins: Origins = None,
) -> None:
    """Write a set below `base`, a directory; the set that is there is replaced, and what else is there stays."""
    if not 1 <= record_size <= MAX_RECORD_SIZE:
        raise StoreError(f"A file of a parquet set holds 1 to {MAX_RECORD_SIZE} references, not {record_size!r}")
    plan = _Plan(await _metadata(state))
    async for names, found in state.scan(KeyRange()):
        plan.take(names, found)
    if plan.misfits:
        shown = ", ".join(quote(name) for name in plan.misfits[:20])
        raise JsonError(
            f"{len(plan.misfits)} keys are no chunk of an array of the set, so parquet cannot hold them: {shown}"
        )
    await _remove(base, plan.arrays)
    writes: list[Write] = []
    for path, array in plan.arrays.items():
        for record, rows in array.files(record_size):
            name = file_name((path, record))
            writes.append(Write(name, encode_partition(rows, plan.urls, plan.inline)))
            if len(writes) >= AT_ONCE:
                await base.write_many(writes)
                writes = []
    if writes:
        await base.write_many(writes)
    await base.write(".zmetadata", format_metadata(plan.metadata, record_size, scanned, origins=origins))


async def _remove(base: KvPrefix, arrays: Collection[str]) -> None:
    """Remove the set that is in a directory, and whatever files one that was not finished left of some arrays."""
    old = await base.read(".zmetadata")
    if old.state == "value":
        await base.write(".zmetadata", None)
        with suppress(StoreError):  # it was no set, or a damaged one, of which nothing is known
            arrays = {*arrays, *parse_metadata(old.value)[1]}
    async for batch in base.scan():
        files = ((entry.key, where_of(entry.key)) for entry in batch)
        gone = [Write(name, None) for name, where in files if where is not None and where[0] in arrays]
        if gone:
            await base.write_many(gone)


async def _metadata(state: State) -> dict[str, bytes]:
    """Return the metadata documents of a set, which must be JSON objects."""
    found: dict[str, bytes] = {}
    problems = []
    async for names, resolved in state.scan(KeyRange()):
        for position, name in enumerate(names):
            if not is_document(name):
                continue
            value = resolved.value(position)
            if not isinstance(value, bytes) or not is_object(value):
                problems.append(f"The metadata {quote(name)} is not an inline JSON object")
            else:
                found[name] = value
    if problems:
        raise JsonError(problems)
    return found


def encode_partition(rows: Rows, urls: Sequence[str], inline: Sequence[bytes | None]) -> bytes:
    """Return the file of rows that point into `urls` and `inline`."""
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        raise UnimplementedError(
            "Writing references in parquet needs pyarrow: pip install 'fsstore[parquet]'"
        ) from None
    target = rows.url >= 0
    used, codes = np.unique(rows.url[target], return_inverse=True)
    all_codes = np.zeros(len(rows.url), np.int32)
    all_codes[target] = codes
    for number in used.tolist():
        if not urls[number] or not is_url(urls[number]):
            raise JsonError(f"A set that names {urls[number]!r} as a URL could not be read again")
    names = pa.array([urls[number] for number in used.tolist()], pa.string())
    path = pa.DictionaryArray.from_arrays(pa.array(all_codes, pa.int32(), mask=~target), names)
    many = int(target.sum()) > FEW * len(used)
    numbers = [np.where(target & (rows.length != WHOLE), column, 0) for column in (rows.offset, rows.length)]
    raw: list[bytes | None] = [None] * len(rows.url)
    for position in np.flatnonzero(rows.url == INLINE).tolist():
        raw[position] = inline[int(rows.offset[position])]
    fields = [
        pa.field("path", path.type if many else pa.string()),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("size", pa.int64(), nullable=False),
        pa.field("raw", pa.binary()),
    ]
    columns = [path if many else path.cast(pa.string()), *map(pa.array, numbers), pa.array(raw, pa.binary())]
    out = io.BytesIO()
    table = pa.table(columns, schema=pa.schema(fields))
    parquet.write_table(table, out, compression="zstd", write_statistics=["offset", "size"], row_group_size=len(raw))
    return out.getvalue()
