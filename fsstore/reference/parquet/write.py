"""Writing a set as a parquet directory, readable by fsspec, kerchunk and VirtualiZarr.

Every chunk has its row, so a set can hold chunks of arrays and metadata and nothing else; what does not fit is listed
in one error.

* Offsets and sizes are never null and say so in statistics: without them fastparquet makes floats of integers.
* `raw` is always of type binary.
* An empty range is an inline empty value, because zero offset and size would mean a whole target.
* Files without any reference are not written.
* `.zmetadata` comes last: until then the directory is not a set.
"""

from __future__ import annotations

import io
import json
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from fsstore.errors import JsonError, StoreError, UnimplementedError
from fsstore.kvstore.contract.driver import KvPrefix, Write
from fsstore.kvstore.contract.request import KeyRange
from fsstore.reference.parquet.files import file_name, where_of
from fsstore.reference.parquet.metadata import MAX_RECORD_SIZE, format_metadata, is_object, parse_metadata
from fsstore.reference.state.refset import Resolved
from fsstore.reference.state.scan_record import ScanRecord
from fsstore.reference.state.set_state import State
from fsstore.reference.table.grid import Grid, around_others, grid_of, is_document
from fsstore.reference.table.keys import split
from fsstore.reference.table.table import INLINE, WHOLE, Rows
from fsstore.reference.table.value import is_url
from fsstore.reference.tuning import DICTIONARY_FROM, PARQUET_WRITES
from fsstore.values.json_value import quote

__all__ = ["encode_partition", "save_parquet"]


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
        self._families = {
            array.grid.family: array for path, array in self.arrays.items() if path not in around
        }

    def take(self, names: list[str], found: Resolved) -> None:
        """Sort references to their arrays."""
        rows = self._renumbered(found)
        groups, loose = split([name.encode("utf-8", "surrogateescape") for name in names])
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
        ids = np.array(
            [self._ids.setdefault(found.urls[number], len(self._ids)) for number in used.tolist()], np.int32
        )
        self.urls = list(self._ids)
        url[url >= 0] = ids[np.searchsorted(used, url[url >= 0])]
        empty = (url >= 0) & (length == 0)
        for position in np.flatnonzero((rows.url == INLINE) | empty).tolist():
            value = b"" if empty[position] else found.inline[int(rows.offset[position])]
            url[position], offset[position], length[position] = INLINE, len(self.inline), len(value)
            self.inline.append(value)
        return Rows(url, offset, length)


async def save_parquet(
    state: State, base: KvPrefix, *, record_size: int = 100_000, scanned: ScanRecord | None = None
) -> None:
    """Write a set below `base`, a directory; the set that is there is replaced, and what else is there stays."""
    if not 1 <= record_size <= MAX_RECORD_SIZE:
        raise StoreError(
            f"A file of a parquet set holds 1 to {MAX_RECORD_SIZE} references, not {record_size!r}"
        )
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
            if len(writes) >= PARQUET_WRITES:
                await base.write_many(writes)
                writes = []
    if writes:
        await base.write_many(writes)
    await base.write(".zmetadata", format_metadata(plan.metadata, record_size, scanned))


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
    many = int(target.sum()) > DICTIONARY_FROM * len(used)
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
    parquet.write_table(
        table, out, compression="zstd", write_statistics=["offset", "size"], row_group_size=len(raw)
    )
    return out.getvalue()
