"""A scanned file as a set of references that can be saved: a scan that nobody has to make again.

Chunks become ranges of the file; documents, and the values of chunks that no range says, stand in the set itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from fsstore.context.context import Context
from fsstore.errors import NotFoundError, ResourceExhaustedError
from fsstore.kvstore.contract.batch import Limits
from fsstore.kvstore.contract.driver import KvPrefix, Read
from fsstore.reference.policy import is_relative
from fsstore.reference.table.keys import Grid
from fsstore.reference.table.refset import ScanRecord, TableBuilder, TableSet
from fsstore.reference.table.table import INLINE, Rows
from fsstore.reference.targets import open_in
from fsstore.runtime.cache import CachePool
from fsstore.runtime.tuning import AT_ONCE, HEAD_BYTES, ROWS_AT_ONCE
from fsstore.scan.contract import MADE, SELF, ChunkTable, ScannedFile
from fsstore.scan.driver import Means, ScanDriver
from fsstore.scan.hierarchy import family_of
from fsstore.scan.signature import HDF5
from fsstore.scan.targets import stamp_of
from fsstore.values import registry
from fsstore.values.detection import IMAGES

_HDF5_ALSO_AT = (512, 1024, 2048, 4096)
_MOST_MADE = 2**30
_Values: TypeAlias = Callable[[Grid, Any], Awaitable[Sequence[Any]]]
_UNNAMED = "its name is not UTF-8, and no reference set can hold it"


async def format_of(place: KvPrefix) -> str | None:
    """Return which of the scanned formats the file at a place has, or None."""
    found = await place.read_up_to(HEAD_BYTES)
    if found.state != "value":
        raise NotFoundError(f"{place.describe()} does not exist")
    return format_of_head(bytes(found.value[:HEAD_BYTES]))


def format_of_head(head: bytes) -> str | None:
    """Return which of the scanned formats a file has that begins so, or None; HDF5 may begin with a user's block."""
    known = {each.name: each for each in IMAGES}
    for name in registry.scanners.names():
        detection = registry.detections.get(name) or known.get(name)
        if detection is not None and detection.fits(head, b""):
            return name
    return "hdf5" if any(HDF5.fits(head[step:], b"") for step in _HDF5_ALSO_AT) else None


async def scan_at(place: KvPrefix, name: str, url: str, inline: int = 0) -> tuple[TableSet, Mapping[str, str]]:
    """Return the references of the file at a place, which they call `url`, and what they lack of it, by path."""
    scanner: Any = registry.scanners.get(name)
    means = Means(Limits(), open_in(Context()), CachePool())
    return await references_of(ScanDriver(scanner, place, {}, means), url, inline)


async def references_of(driver: ScanDriver, url: str, inline: int = 0) -> tuple[TableSet, Mapping[str, str]]:
    """Return the references of a scanned file, which they call `url`, and what they lack of it, by path.

    Chunks of up to `inline` bytes stand in the set itself.
    """
    scanned = await driver.scanned()
    hierarchy, builder, held = scanned.hierarchy, TableBuilder(), 0
    adding = _Adding(builder, driver, scanned.file, url, inline)
    for key, value in hierarchy.documents.items():
        if _is_text(key):
            builder.add_inline(key.encode(), value)
    paths = [path for path in hierarchy.grids if _is_text(path)]
    unnamed = {path: _UNNAMED for path in hierarchy.grids if not _is_text(path)}
    for path, table in zip(paths, await scanned.tables(paths), strict=True):
        held += await adding.add(hierarchy.grids[path], table)
        if held > _MOST_MADE:
            raise ResourceExhaustedError(
                f"A set of {driver.base.describe()} would hold more than {_MOST_MADE} bytes of values itself"
            )
    found = TableSet(builder.finish())
    source = (await driver.current()).source
    found.scanned = ScanRecord(driver.id, url, source.size, stamp_of(driver.base, source.told))
    return found, {**hierarchy.shortcomings, **unnamed}


def _named(url: str, name: str) -> str:
    """Return how references call a file that one at `url` calls `name`: relative names start from its place."""
    if name == SELF or not is_relative(name):
        return name or url
    head, slash, _ = url.rpartition("/")
    return head + slash + name


def _is_text(path: str) -> bool:
    """Return whether a path is UTF-8, as the documents of reference sets are; names in HDF5 files may be any bytes."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def _put(builder: TableBuilder, grid: Grid, numbers: Any, rows: Rows) -> None:
    """Add chunks by their numbers: keys of a family are not written out, which would take longer than all else."""
    numbered = family_of(grid)
    if numbered is None:
        builder.add_rows([key.encode() for key in grid.keys(numbers)], rows)
        return
    family, lead = numbered
    coords = np.stack(np.unravel_index(numbers, grid.shape), axis=1).astype(np.int64)
    if lead:
        coords = np.concatenate([np.broadcast_to(np.array(lead, np.int64), (len(coords), len(lead))), coords], axis=1)
    builder.add_numbered(family, coords, rows)


class _Adding(NamedTuple):
    """Chunks of a scanned file on their way into a set."""

    builder: TableBuilder
    driver: ScanDriver
    file: ScannedFile
    url: str
    inline: int

    async def add(self, grid: Grid, table: ChunkTable) -> int:
        """Add the chunks of an array; return how many bytes of values were added."""
        names = [_named(self.url, each).encode("utf-8", "surrogateescape") for each in table.urls]
        ids: Any = self.builder.url_ids(names) if names else np.zeros(0, np.int32)
        held = 0
        for start in range(0, grid.count, ROWS_AT_ONCE):
            numbers = table.present(start, min(start + ROWS_AT_ONCE, grid.count))
            if not len(numbers):
                continue
            rows = table.find(numbers)
            small = (rows.url >= 0) & (rows.length >= 0) & (rows.length <= self.inline)
            located = (rows.url >= 0) & ~small
            if located.any():
                some = rows.take(located)
                _put(self.builder, grid, numbers[located], some._replace(url=ids[some.url].astype(np.int32)))
            for at in np.flatnonzero(rows.url == INLINE).tolist():
                held += self._hold(grid.keys(numbers[at : at + 1]), [table.inline[int(rows.offset[at])]])
            held += await self._add_values(grid, numbers[rows.url == MADE], self._made)
            held += await self._add_values(grid, numbers[small], self._read)
        return held

    async def _add_values(self, grid: Grid, numbers: Any, values: _Values) -> int:
        held = 0
        for start in range(0, len(numbers), AT_ONCE):
            some = numbers[start : start + AT_ONCE]
            held += self._hold(grid.keys(some), await values(grid, some))
        return held

    async def _made(self, grid: Grid, numbers: Any) -> Sequence[Any]:
        return await self.file.make(grid.path, numbers)

    async def _read(self, grid: Grid, numbers: Any) -> Sequence[Any]:
        return [each.value for each in await self.driver.read_many([Read(key) for key in grid.keys(numbers)])]

    def _hold(self, keys: Sequence[str], values: Sequence[Any]) -> int:
        for key, value in zip(keys, values, strict=True):
            self.builder.add_inline(key.encode(), bytes(value))
        return sum(map(len, values))
