"""Values of a dataset in raw files beside the HDF5 file: one after the other, each from an offset for a size.

Pieces that lie in one of the files are ranges of it; those that reach from one into the next are put together here.
Bytes that a file does not have are an error: HDF5 would show zeros in place of what is lost.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fsstore.errors import DataLossError, OutOfRangeError
from fsstore.kvstore.contract.driver import Buffer, Read
from fsstore.reference.table.keys import Grid
from fsstore.reference.table.table import Rows
from fsstore.runtime import execution
from fsstore.scan.chunk_table import Columns, empty, run_chunks, run_strides
from fsstore.scan.contract import MADE, ChunkTable
from fsstore.scan.hdf5.dataset import Dataset
from fsstore.scan.hdf5.open_file import OpenHdf5
from fsstore.scan.linked_hdf5.other_file import beside
from fsstore.values.json_value import Json

__all__ = ["ExternalStorage"]


class ExternalStorage:
    """The pieces of a dataset whose values lie in raw files."""

    codecs: Sequence[Mapping[str, Json]] = ()

    def __init__(self, file: OpenHdf5, dataset: Dataset) -> None:
        self._file, self._dataset = file, dataset
        self._itemsize = dataset.element.dtype.itemsize * math.prod(dataset.element.inner)
        self.shape = dataset.shape
        self.chunks = run_chunks(dataset.shape, self._itemsize)
        self._length = self._itemsize * math.prod(self.chunks)
        self._need = self._itemsize * math.prod(self.shape)
        self._ends = np.cumsum([min(part.size, self._need) for part in dataset.external], dtype=np.int64)

    @property
    def _urls(self) -> list[str]:
        return [beside(self._file.url, part.name) for part in self._dataset.external]

    def _starts(self, coords: Any) -> Any:
        strides = np.array(run_strides(self.shape, self._itemsize, self.chunks), np.int64)
        return coords[:, : len(strides)] @ strides if len(strides) else np.zeros(len(coords), np.int64)

    async def table(self, grid: Grid) -> ChunkTable:
        """Return where the pieces are."""
        if not self._need:
            return empty()
        if not len(self._ends) or self._ends[-1] < self._need:
            raise DataLossError(f"its files hold {sum(self._ends[-1:])} bytes of the {self._need} it has")
        coords = np.stack(np.unravel_index(np.arange(grid.count), grid.shape), axis=1).astype(np.int64)
        start = self._starts(coords)
        part = np.searchsorted(self._ends, start, side="right")
        first = (
            self._ends[part] - np.array([min(each.size, self._need) for each in self._dataset.external])[part]
        )
        offset = np.array([each.offset for each in self._dataset.external], np.int64)[part] + start - first
        url = np.where(start + self._length > self._ends[part], MADE, part)
        return Columns(
            Rows(url.astype(np.int32), offset, np.full(len(start), self._length, np.int64)), urls=self._urls
        )

    async def make(self, coords: Sequence[Sequence[int]]) -> Sequence[Buffer]:
        """Return pieces that lie in several files, and the last one, padded."""
        starts = self._starts(np.array(coords, np.int64)).tolist()
        return await execution.gather(self._piece(start) for start in starts)

    async def _piece(self, start: int) -> bytes:
        found = await self.read(start, min(start + self._length, self._need))
        return found.ljust(self._length, b"\0")

    async def read(self, start: int, stop: int) -> bytes:
        """Return the bytes `[start, stop)` of the values."""
        return b"".join(
            await execution.gather(
                self._read(number, low, high) for number, low, high in self._cut(start, stop)
            )
        )

    def _cut(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Yield the files that hold a range, and where in them."""
        first = 0
        for number, (part, end) in enumerate(zip(self._dataset.external, self._ends.tolist(), strict=True)):
            low, high = max(start, first), min(stop, end)
            if low < high:
                yield number, part.offset + low - first, part.offset + high - first
            first = end

    async def _read(self, number: int, low: int, high: int) -> bytes:
        source = self._file.source
        if source.reach is None:
            raise DataLossError("its values lie in another file, which cannot be reached")
        place = await source.reach(self._urls[number])
        try:
            [found] = await place.driver.read_many([Read(place.path, low, high)])
        except OutOfRangeError as error:
            raise DataLossError(
                f"{place.describe()}, which holds its values, is cut off: {error.message}"
            ) from error
        if found.state != "value":
            raise DataLossError(f"{place.describe()}, which holds its values, does not exist")
        return bytes(found.value)
