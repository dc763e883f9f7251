"""How the values of a dataset become chunks: as they are stored, in pieces of runs of bytes, or read by HDF5.

`storage_of` decides, from what the header says; the chunk table is made when the array is touched.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np

from fsstore.errors import DataLossError, OutOfRangeError, UnimplementedError
from fsstore.kvstore.contract.driver import Buffer, Read
from fsstore.reference.table.keys import Grid
from fsstore.reference.table.table import Rows
from fsstore.runtime import execution
from fsstore.scan.contract import MADE, ChunkTable
from fsstore.scan.hdf5.dataset import Dataset
from fsstore.scan.hdf5.filters import can_decode, codecs_of, encoded, encoded_plainly, read_box, undone
from fsstore.scan.hdf5.index import Chunked, Chunks, load_index
from fsstore.scan.hdf5.layout import IndexPlace
from fsstore.scan.hdf5.walk import OpenHdf5, beside, refused
from fsstore.scan.hierarchy import Columns, Made, Strided, empty, run_chunks, run_strides
from fsstore.values.json_value import Json

Coords = Sequence[Sequence[int]]


class Storage(Protocol):
    """The chunks of one array.  `shape` is that of the array, without what elements add."""

    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    codecs: Sequence[Mapping[str, Json]]

    async def table(self, grid: Grid) -> ChunkTable:
        """Return where the chunks are."""
        ...

    async def make(self, coords: Coords) -> Sequence[Buffer]:
        """Return the values of chunks that are made."""
        ...


def storage_of(file: OpenHdf5, dataset: Dataset, shape: tuple[int, ...]) -> Storage:
    """Return how a dataset whose values lie in its own file is shown with a shape, which may be larger than its own;
    raises `UnimplementedError` if it cannot be.
    """
    if dataset.layout == "contiguous" and not dataset.by_library:
        return RunStorage(file, dataset)
    if dataset.layout != "chunked":
        return ByLibrary(file, dataset, shape, run_chunks(dataset.shape, _bytes(dataset)))
    codecs = codecs_of(dataset.filters, _bytes(dataset), _bytes(dataset) * math.prod(dataset.chunks))
    if (file.reader.width, file.reader.lengths) == (8, 8) and not dataset.by_library and codecs is not None:
        return IndexedStorage(file, dataset, shape, codecs)
    for step in dataset.filters:
        if not can_decode(step.id):
            raise UnimplementedError(
                f"its filter {step.id} ({step.name or 'unnamed'}) is not available; hdf5plugin may bring it"
            )
    return ByLibrary(file, dataset, shape, dataset.chunks)


def _bytes(dataset: Dataset) -> int:
    element = dataset.element
    return (64 if element.text else element.dtype.itemsize) * max(1, math.prod(element.inner))


class ByLibrary:
    """Chunks that HDF5 reads."""

    codecs: Sequence[Mapping[str, Json]] = ()

    def __init__(self, file: OpenHdf5, dataset: Dataset, shape: tuple[int, ...], chunks: tuple[int, ...]) -> None:
        self._file, self._dataset = file, dataset
        self.shape, self.chunks = shape, chunks

    async def table(self, grid: Grid) -> ChunkTable:
        """Return that all chunks are made."""
        return Made(grid.count)

    async def make(self, coords: Coords) -> Sequence[Buffer]:
        """Return chunks, all of them read in shared passes."""
        return await self._file.run(lambda: self._read(self._file.library(), coords))

    def _read(self, identifier: Any, coords: Coords) -> list[Buffer]:
        rank, out, lacking = len(self._dataset.shape), list[Buffer](), None
        for place in coords:
            start = [
                min(at * step, size)
                for at, step, size in zip(place[:rank], self.chunks, self._dataset.shape, strict=True)
            ]
            stop = [
                min(low + step, size) for low, step, size in zip(start, self.chunks, self._dataset.shape, strict=True)
            ]
            job = partial(read_box, identifier, self._file.reader, self._dataset, (start, stop))
            whole, found = self._file.attempt(job)
            if isinstance(found, Exception):
                lacking = lacking if whole else found
                if whole:
                    raise refused(found) from found
                continue
            out.append(encoded(found, self._dataset, self.chunks))
        if lacking is not None:
            raise lacking
        return out


class RunStorage:
    """One run of bytes, shown in pieces: the usual ones, or of a shape that cuts it into runs."""

    codecs: Sequence[Mapping[str, Json]] = ()

    def __init__(self, file: OpenHdf5, dataset: Dataset, chunks: tuple[int, ...] | None = None) -> None:
        self._file, self._dataset, self._offset = file, dataset, dataset.offset
        self._itemsize = _bytes(dataset)
        self.shape = dataset.shape
        self.chunks = run_chunks(dataset.shape, self._itemsize) if chunks is None else chunks

    def in_pieces(self, chunks: tuple[int, ...]) -> RunStorage | None:
        """Return the same in other pieces; None if these are no runs of bytes."""
        inside = [axis for axis, (step, size) in enumerate(zip(chunks, self.shape, strict=True)) if step != size]
        if any(step != 1 for step in chunks[: max(inside, default=0)]):
            return None
        return RunStorage(self._file, self._dataset, chunks)

    async def table(self, grid: Grid) -> ChunkTable:
        """Return the formula of the pieces, or nothing if none was written."""
        need = self._itemsize * math.prod(self.shape)
        if self._offset is None or not need:
            return empty()
        source = self._file.source
        source.check(self._offset, self._offset + need)
        length = self._itemsize * math.prod(self.chunks)
        strides = run_strides(self.shape, self._itemsize, self.chunks)
        inner = (0,) * len(self._dataset.element.inner)
        return Strided(
            self._offset, grid.shape, (*strides, *inner) or (0,), length, source.size, urls=(self._file.url,)
        )

    async def make(self, coords: Coords) -> Sequence[Buffer]:
        """Return the last pieces, padded."""
        source = self._file.source
        length = self._itemsize * math.prod(self.chunks)
        strides = run_strides(self.shape, self._itemsize, self.chunks)
        starts = [
            (self._offset or 0) + sum(at * step for at, step in zip(place, strides, strict=False)) for place in coords
        ]
        found = await source.fetch([(start, min(start + length, source.size)) for start in starts])
        return [bytes(value).ljust(length, b"\0") for value in found]


class IndexedStorage:
    """Chunks as they are stored."""

    def __init__(
        self, file: OpenHdf5, dataset: Dataset, shape: tuple[int, ...], codecs: Sequence[Mapping[str, Json]]
    ) -> None:
        self._file, self._dataset = file, dataset
        self.shape, self.chunks, self.codecs = shape, dataset.chunks, codecs
        self._nbytes = _bytes(dataset) * math.prod(dataset.chunks)

    async def _load(self) -> tuple[IndexPlace, Chunks]:
        source, dataset, place = self._file.source, self._dataset, self._dataset.index
        assert place is not None  # a chunked dataset has one
        chunked = Chunked(dataset.shape, dataset.maxshape, dataset.chunks, self._nbytes, bool(dataset.filters))
        return place, await load_index(source, self._file.reader.base, place, chunked)

    async def table(self, grid: Grid) -> ChunkTable:
        """Return the index as columns."""
        place, chunks = await self._load()
        own = grid.shape[: len(self.chunks)] if self.chunks else grid.shape
        inside = ((chunks.coords >= 0) & (chunks.coords < np.array(own, np.int64))).all(axis=1)
        if not inside.all():
            which = chunks.coords[int(np.flatnonzero(~inside)[0])].tolist()
            raise DataLossError(
                f"its index lists a chunk at {which} of a grid of {list(own)}, where none can be; get an intact copy"
            )
        coords, size = chunks.coords, chunks.size.astype(np.int64)
        if len(coords) > math.prod(own):
            raise DataLossError("it lists some chunks several times")
        offset = chunks.address.astype(np.int64) + self._file.reader.base
        self._check(offset, size)
        url = np.where(chunks.mask != 0, MADE, 0)
        if place.edges_plain and self._dataset.filters:
            url = np.where(self._is_edge(coords), MADE, url)
        rows = Rows(url.astype(np.int32), offset, size)
        numbers = np.ravel_multi_index(tuple(coords.T), own) if len(coords) else np.zeros(0, np.int64)
        if not (numbers[1:] > numbers[:-1]).all():
            order = np.argsort(numbers, kind="stable")
            numbers, rows = numbers[order], rows.take(order)
            if (numbers[1:] == numbers[:-1]).any():
                raise DataLossError("it lists a chunk several times")
        return Columns(rows, None if len(numbers) == grid.count else numbers, urls=(self._file.url,))

    def _check(self, offset: Any, size: Any) -> None:
        limit = self._file.source.size
        wrong = np.flatnonzero((offset < 0) | (size < 0) | (offset > limit) | (size > limit - offset))
        if len(wrong):
            at = int(wrong[0])
            self._file.source.check(int(offset[at]), int(offset[at]) + int(size[at]))
        if (offset[1:] < offset[:-1] + size[:-1]).any():  # not in the order of the grid
            order = np.argsort(offset, kind="stable")
            offset, size = offset[order], size[order]
            shared = np.flatnonzero(offset[1:] < offset[:-1] + size[:-1])
            if len(shared):
                where = self._file.source.describe(int(offset[int(shared[0]) + 1]))
                raise DataLossError(f"{where}: two chunks share bytes; the file is damaged: get an intact copy")

    def _is_edge(self, coords: Any) -> Any:
        """Return which chunks reach over the edge of the dataset."""
        step, shape = np.array(self.chunks), np.array(self._dataset.shape)
        return ((coords + 1) * step > shape).any(axis=1)

    async def make(self, coords: Coords) -> Sequence[Buffer]:
        """Return chunks for which filters were skipped, encoded by all of them."""
        place, chunks = await self._load()
        rank = len(self.chunks)
        known = {tuple(row): number for number, row in enumerate(chunks.coords.tolist())}
        wanted = [known[tuple(each[:rank])] for each in coords]
        spans = []
        for number in wanted:
            start = int(chunks.address[number]) + self._file.reader.base
            spans.append((start, start + int(chunks.size[number])))
        found = await self._file.source.fetch(spans)
        every = (1 << len(self._dataset.filters)) - 1
        out: list[Buffer] = []
        for number, each, data in zip(wanted, coords, found, strict=True):
            plain = place.edges_plain and bool(self._is_edge(np.array([each[:rank]]))[0])
            mask = every if plain else int(chunks.mask[number])
            out.append(await self._recoded(bytes(data), mask, each))
        return out

    async def _recoded(self, data: bytes, mask: int, place: Sequence[int]) -> Buffer:
        plain = undone(data, self._dataset.filters, mask, self._nbytes)
        if plain is None:
            by = ByLibrary(self._file, self._dataset, self._dataset.shape, self.chunks)
            plain = bytes((await by.make([place]))[0])
        if len(plain) != self._nbytes:
            raise DataLossError(f"a chunk has {len(plain)} bytes instead of {self._nbytes}")
        return encoded_plainly(plain, self._dataset.filters)


# Values of a dataset in raw files beside the HDF5 file: one after the other, each from an offset for a
# size.
#
# Pieces that lie in one of the files are ranges of it; those that reach from one into the next are put
# together here. Bytes that a file does not have are an error: HDF5 would show zeros in place of what is
# lost.


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
        first = self._ends[part] - np.array([min(each.size, self._need) for each in self._dataset.external])[part]
        offset = np.array([each.offset for each in self._dataset.external], np.int64)[part] + start - first
        url = np.where(start + self._length > self._ends[part], MADE, part)
        return Columns(Rows(url.astype(np.int32), offset, np.full(len(start), self._length, np.int64)), urls=self._urls)

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
            await execution.gather(self._read(number, low, high) for number, low, high in self._cut(start, stop))
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
            raise DataLossError(f"{place.describe()}, which holds its values, is cut off: {error.message}") from error
        if found.state != "value":
            raise DataLossError(f"{place.describe()}, which holds its values, does not exist")
        return bytes(found.value)
