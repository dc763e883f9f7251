"""HDF5 files, NetCDF 4 files among them, together with the files they refer to; virtual datasets as one table of the
chunks of many files, or a stack of pieces."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from fsstore.errors import (
    DataLossError,
    JsonError,
    NotFoundError,
    PermissionDeniedError,
    StoreError,
    UnimplementedError,
)
from fsstore.kvstore.contract.driver import Buffer
from fsstore.reference.table.keys import Grid
from fsstore.reference.table.table import ABSENT, Rows
from fsstore.runtime import execution
from fsstore.runtime.tuning import REQUESTS
from fsstore.scan.contract import MADE, ChunkTable, FileChangedError, FileScanner, Numbers, ScanHierarchy, ScanSource
from fsstore.scan.hdf5.dataset import (
    AxisSelection,
    Dataset,
    VirtualPart,
    dimension_names,
    dtype_json,
    grown,
    paired,
    places,
)
from fsstore.scan.hdf5.filters import encoded, encoded_plainly, read_box
from fsstore.scan.hdf5.layout import Filter
from fsstore.scan.hdf5.storage import ExternalStorage, IndexedStorage, RunStorage, Storage, storage_of
from fsstore.scan.hdf5.walk import Mount, OpenHdf5, OtherFiles, Walk, mounts_of, refused
from fsstore.scan.hierarchy import Array, Columns, HierarchyBuilder, fill_json, run_chunks
from fsstore.values.json_value import Json

# The chunk table of a virtual dataset, made of those of its sources.
#
# A chunk of a source is a chunk of the stack if it holds the same elements: type, fill value, filters and
# chunks are the same, and the part begins and ends where chunks do. All others are put together when they
# are read, and so are those of sources that cannot be had: reading them says why.


class Pattern(NamedTuple):
    """The form of the chunks of a stack, taken from its first source."""

    chunks: tuple[int, ...]
    codecs: Sequence[Mapping[str, Json]]
    filters: tuple[Filter, ...]


class _Fit(NamedTuple):
    """A source whose chunks are those of the stack: its storage, the axes that belong together, and how many more axes
    its elements add.
    """

    storage: IndexedStorage | RunStorage
    part: VirtualPart
    pairs: list[tuple[int, int]]
    inner: int


def pattern_of(dataset: Dataset, part: VirtualPart, file: OpenHdf5, source: Dataset) -> Pattern | None:
    """Return the pattern that a source sets, or None if its chunks cannot be those of the stack."""
    try:
        part = part.within(source.shape)
        storage, pairs = _storage(dataset, part, file, source, None), paired(part)
    except UnimplementedError:
        return None
    if storage is None:
        return None
    chunks = [1] * len(dataset.shape)
    for own, theirs in pairs:
        chunks[own] = storage.chunks[theirs]
    pattern = Pattern(tuple(chunks), storage.codecs, source.filters)
    return pattern if _fits(dataset, part, pattern, storage, pairs) else None


def _storage(
    dataset: Dataset, part: VirtualPart, file: OpenHdf5, source: Dataset, pattern: Pattern | None
) -> IndexedStorage | RunStorage | None:
    """Return the chunks of a source, if they hold elements as the stack has them."""
    own, theirs = dataset.element, source.element
    if dataset.by_library or source.by_library or source.external or source.layout == "virtual":
        return None
    if own.dtype != theirs.dtype or own.inner != theirs.inner:
        return None
    if np.asarray(dataset.fill, own.dtype).tobytes() != np.asarray(source.fill, own.dtype).tobytes():
        return None
    storage = storage_of(file, source, source.shape)
    if isinstance(storage, RunStorage):
        return storage.in_pieces(_even(part, storage, pattern))
    return storage if isinstance(storage, IndexedStorage) else None


def _even(part: VirtualPart, storage: RunStorage, pattern: Pattern | None) -> tuple[int, ...]:
    """Return pieces of a run of bytes that end where the part does; those of the pattern, if there is one."""
    chunks, pairs = list(storage.chunks), paired(part)
    if pattern is not None:
        chunks = [1] * len(chunks)
        for own, theirs in pairs:
            chunks[theirs] = pattern.chunks[own]
        return tuple(chunks)
    for own, theirs in pairs:
        size = part.target[own].size
        if chunks[theirs] < size:
            chunks[theirs] = next(step for step in range(chunks[theirs], 0, -1) if size % step == 0)
    return tuple(chunks)


def _fits(
    dataset: Dataset,
    part: VirtualPart,
    pattern: Pattern,
    storage: IndexedStorage | RunStorage,
    pairs: list[tuple[int, int]],
) -> bool:
    assert part.origin is not None
    if list(storage.codecs) != list(pattern.codecs):
        return False
    used = {theirs for _, theirs in pairs}
    if any(step != 1 for axis, step in enumerate(storage.chunks) if axis not in used):
        return False
    for own, theirs in pairs:
        target, origin, step = part.target[own], part.origin[theirs], pattern.chunks[own]
        if step != storage.chunks[theirs] or not target.is_run or not origin.is_run:
            return False
        if target.start % step or origin.start % step:
            return False
        if target.size % step and target.start + target.size != dataset.shape[own]:
            return False
    alone = set(range(len(dataset.shape))) - {own for own, _ in pairs}
    return all(pattern.chunks[axis] == 1 for axis in alone)


async def table_of(
    files: OtherFiles, file: OpenHdf5, dataset: Dataset, chunks: tuple[int, ...], pattern: Pattern | None
) -> ChunkTable:
    """Return the rows of all chunks of the stack that any part touches."""
    grid = tuple(-(-size // step) for size, step in zip(dataset.shape, chunks, strict=True))
    if pattern is None:
        return _stack([_touched(part, chunks, grid) for part in dataset.parts], [], grid)
    fits: list[_Fit | None] = []
    for start in range(0, len(dataset.parts), REQUESTS):
        some = dataset.parts[start : start + REQUESTS]
        fits += await execution.gather(_fit(files, file, dataset, part, pattern) for part in some)
    made = [_touched(part, chunks, grid) for part, fit in zip(dataset.parts, fits, strict=True) if fit is None]
    kept = [fit for fit in fits if fit is not None]
    rows = await execution.gather(_rows(fit, chunks, grid) for fit in kept)
    return _stack(made, rows, grid)


async def _fit(files: OtherFiles, file: OpenHdf5, dataset: Dataset, part: VirtualPart, pattern: Pattern) -> _Fit | None:
    try:
        other, source = await files.dataset(file, part.file, part.dataset)
        part = part.within(source.shape)
        storage, pairs = _storage(dataset, part, other, source, pattern), paired(part)
    except (NotFoundError, PermissionDeniedError, DataLossError, UnimplementedError):
        return None  # reading a chunk says why
    if storage is None or any(
        int(axis.at(axis.size - 1)) >= size
        for axis, size in zip(part.origin or (), source.shape, strict=True)
        if axis.size
    ):
        return None
    return (
        _Fit(storage, part, pairs, len(source.element.inner)) if _fits(dataset, part, pattern, storage, pairs) else None
    )


def _touched(part: VirtualPart, chunks: Sequence[int], grid: Sequence[int]) -> Any:
    axes = []
    for axis, step in zip(part.target, chunks, strict=True):
        if not axis.size:
            return np.zeros(0, np.int64)
        if axis.is_run or axis.stride <= step:
            axes.append(np.arange(axis.start // step, int(axis.at(axis.size - 1)) // step + 1))
        else:
            axes.append(np.unique(axis.at(np.arange(axis.size, dtype=np.int64)) // step))
    return _numbers(axes, grid)


def _numbers(axes: Sequence[Any], grid: Sequence[int]) -> Any:
    if not axes:
        return np.zeros(1, np.int64)
    return np.ravel_multi_index(np.ix_(*axes), tuple(grid)).ravel().astype(np.int64)


async def _rows(fit: _Fit, chunks: Sequence[int], grid: Sequence[int]) -> tuple[Any, Rows, str]:
    """Return the chunks of the stack that a source has, with where it has them, and its URL."""
    storage, part = fit.storage, fit.part
    assert part.origin is not None
    shape = tuple(-(-size // step) for size, step in zip(storage.shape, storage.chunks, strict=True)) or (1,)
    inner = (1,) * fit.inner
    table = await storage.table(Grid("", (*shape, *inner), not storage.shape, ".", False, storage.chunks))
    own = [_chunk_run(axis, step) for axis, step in zip(part.target, chunks, strict=True)]
    theirs = [_chunk_run(axis, step) for axis, step in zip(part.origin, storage.chunks, strict=True)]
    for mine, other in fit.pairs:
        count = min(len(own[mine]), len(theirs[other]))
        own[mine], theirs[other] = own[mine][:count], theirs[other][:count]
    return _numbers(own, grid), table.find(_numbers(theirs, shape)), table.urls[0]


def _chunk_run(axis: AxisSelection, step: int) -> Any:
    return np.arange(axis.start // step, (axis.start + max(axis.size, 1) - 1) // step + 1, dtype=np.int64)


def _stack(made: Sequence[Any], rows: Sequence[tuple[Any, Rows, str]], grid: Sequence[int]) -> ChunkTable:
    """Return one table; chunks that several parts have are put together."""
    if not math.prod(grid):
        return Columns(Rows.absent(0), np.zeros(0, np.int64))
    urls: dict[str, int] = {}
    numbers, parts = [np.zeros(0, np.int64)], [Rows.absent(0)]
    for where in made:
        absent = Rows.absent(len(where))
        absent.url[:] = MADE
        numbers.append(where)
        parts.append(absent)
    for where, found, url in rows:
        found.url[found.url >= 0] = urls.setdefault(url, len(urls))
        numbers.append(where)
        parts.append(found)
    where = np.concatenate(numbers)
    joined = Rows(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
    kept = joined.url != ABSENT
    order = np.argsort(where[kept], kind="stable")
    where, joined = where[kept][order], joined.take(np.flatnonzero(kept)[order])
    first = np.ones(len(where), np.bool_)
    first[1:] = where[1:] != where[:-1]
    again = where[~first]
    where, joined = where[first], joined.take(np.flatnonzero(first))
    joined.url[np.isin(where, again)] = MADE
    return Columns(joined, where, urls=list(urls) or ("",))


_DEEPEST = 8  # virtual datasets of virtual datasets
_MOST_HELD = 2**31  # bytes of a box that are read of one source at once


async def ended(files: OtherFiles, file: OpenHdf5, dataset: Dataset) -> Dataset:
    """Return a virtual dataset as long as its sources are, if it is as long as these."""
    parts, shape = list(dataset.parts), list(dataset.shape)
    for number, part in enumerate(dataset.parts):
        if part.is_endless:
            _, source = await files.dataset(file, part.file, part.dataset)
            parts[number] = part.within(source.shape)
            shape = [max(pair) for pair in zip(shape, (axis.end for axis in parts[number].target), strict=True)]
    return dataset.stacked(tuple(shape), tuple(parts))


class StackStorage:
    """The chunks of a virtual dataset.  `first` is its first source, if that can be had."""

    def __init__(
        self, files: OtherFiles, file: OpenHdf5, dataset: Dataset, first: tuple[OpenHdf5, Dataset] | None
    ) -> None:
        self._files, self._file, self._dataset = files, file, dataset
        self.shape = dataset.shape
        self._pattern: Pattern | None = None
        if first is not None and dataset.parts:
            self._pattern = pattern_of(dataset, dataset.parts[0], *first)
        self.chunks = self._boxes() if self._pattern is None else self._pattern.chunks
        self.codecs: Sequence[Mapping[str, Json]] = () if self._pattern is None else self._pattern.codecs

    def _boxes(self) -> tuple[int, ...]:
        """Return chunks that are put together here: the box of the first part, in pieces if it is large."""
        itemsize = 64 if self._dataset.element.text else self._dataset.element.dtype.itemsize
        itemsize *= max(1, math.prod(self._dataset.element.inner))
        if not self._dataset.parts:
            return run_chunks(self.shape, itemsize)
        target = self._dataset.parts[0].target
        box = [min(each.size, size) if each.is_run else size for each, size in zip(target, self.shape, strict=True)]
        return run_chunks([max(1, each) for each in box], itemsize)

    async def table(self, grid: Grid) -> ChunkTable:
        """Return where the chunks are."""
        return await table_of(self._files, self._file, self._dataset, self.chunks, self._pattern)

    async def make(self, coords: Sequence[Sequence[int]]) -> Sequence[Buffer]:
        """Return chunks, put together."""
        rank = len(self.shape)
        return await execution.gather(self._made(place[:rank]) for place in coords)

    async def _made(self, place: Sequence[int]) -> Buffer:
        start = [at * step for at, step in zip(place, self.chunks, strict=True)]
        stop = [min(low + step, size) for low, step, size in zip(start, self.chunks, self.shape, strict=True)]
        values = await _stacked(self._files, self._file, self._dataset, start, stop, 0)
        data = encoded(values, self._dataset, self.chunks)
        return data if self._pattern is None else encoded_plainly(data, self._pattern.filters)


async def _stacked(
    files: OtherFiles, file: OpenHdf5, dataset: Dataset, start: Sequence[int], stop: Sequence[int], depth: int
) -> Any:
    element = dataset.element
    shape = [high - low for low, high in zip(start, stop, strict=True)]
    out = np.full((*shape, *element.inner), dataset.fill, object if element.text else element.dtype)
    touched = [each for each in dataset.parts if _overlaps(each, start, stop)]
    for part, found in zip(
        touched, await execution.gather(_piece(files, file, part, start, stop, depth) for part in touched), strict=True
    ):
        index, values = found
        if not element.text and not np.can_cast(values.dtype, out.dtype, "same_kind"):
            raise UnimplementedError(f"its source {part.dataset!r} has elements of {values.dtype}")
        out[index] = values
    return out


def _overlaps(part: VirtualPart, start: Sequence[int], stop: Sequence[int]) -> bool:
    return all(axis.before(high) > axis.before(low) for axis, low, high in zip(part.target, start, stop, strict=True))


async def _piece(
    files: OtherFiles, file: OpenHdf5, part: VirtualPart, start: Sequence[int], stop: Sequence[int], depth: int
) -> tuple[Any, Any]:
    """Return what a part has in a box: where it belongs, and its values."""
    if depth >= _DEEPEST:
        raise DataLossError("it is put together from itself, or from too many others")
    try:
        other, source = await files.dataset(file, part.file, part.dataset)
        await other.source.confirm()
    except StoreError as error:
        raise error.within(f"Error reading its source {part.dataset!r}") from error
    part = part.within(source.shape)
    assert part.origin is not None
    spans = [(axis.before(low), axis.before(high)) for axis, low, high in zip(part.target, start, stop, strict=True)]
    target = [places(axis, *span) - low for axis, span, low in zip(part.target, spans, start, strict=True)]
    origin = [places(axis, 0, 1) for axis in part.origin]
    for own, theirs in paired(part):
        origin[theirs] = places(part.origin[theirs], *spans[own])
    low, high = [int(each[0]) for each in origin], [int(each[-1]) + 1 for each in origin]
    if any(end > size for end, size in zip(high, source.shape, strict=True)):
        raise DataLossError(f"its source {part.dataset!r} is smaller than it says")
    if math.prod(b - a for a, b in zip(low, high, strict=True)) * source.element.dtype.itemsize > _MOST_HELD:
        raise UnimplementedError(f"its source {part.dataset!r} is taken apart too finely to be read")
    box = await values_of(files, other, source, low, high, depth + 1)
    taken = box[np.ix_(*(each - first for each, first in zip(origin, low, strict=True)))] if origin else box
    sizes = [len(each) for each in target]
    return (np.ix_(*target) if target else ()), taken.reshape([*sizes, *source.element.inner])


async def values_of(
    files: OtherFiles, file: OpenHdf5, dataset: Dataset, start: Sequence[int], stop: Sequence[int], depth: int = 0
) -> Any:
    """Return the values in a box of a dataset, wherever they lie."""
    if dataset.layout == "virtual":
        whole = await ended(files, file, dataset)
        return await _stacked(files, file, whole, start, stop, depth)
    if not dataset.external:
        try:
            return await file.run(lambda: read_box(file.library(), file.reader, dataset, (start, stop)))
        except (OSError, RuntimeError, ValueError, KeyError) as error:
            raise refused(error) from error
    if dataset.by_library:
        raise UnimplementedError("its values lie in other files, and only HDF5 knows their type")
    storage = ExternalStorage(file, dataset)
    row = math.prod(dataset.shape[1:]) * dataset.element.dtype.itemsize * math.prod(dataset.element.inner)
    first, last = (start[0], stop[0]) if start else (0, 1)
    data = np.frombuffer(await storage.read(first * row, last * row), dataset.element.dtype)
    if not start:
        return data.reshape(dataset.element.inner)
    rows = data.reshape([last - first, *dataset.shape[1:], *dataset.element.inner])
    return rows[(slice(None), *map(slice, start[1:], stop[1:]))]


_NO_COORDINATE = "_nc4_non_coord_"

First = Mapping[tuple[str, str], tuple[OpenHdf5, Dataset] | None]
"""The first sources of virtual datasets, by the URL of the file and the path of the dataset."""


class Hdf5File:
    """One generation of a file, with what it shows of others."""

    def __init__(self, files: OtherFiles, mounts: Sequence[Mount], first: First) -> None:
        self._files, self._first = files, first
        self._arrays: dict[str, Storage] = {}
        builder = HierarchyBuilder()
        for mount in mounts:
            self._describe(mount, builder)
        refers = any(
            mount.objects.links or any(each.parts or each.external for each in mount.objects.datasets.values())
            for mount in mounts
        )
        self.hierarchy: ScanHierarchy = builder.finish(refers=refers)

    def _describe(self, mount: Mount, builder: HierarchyBuilder) -> None:
        found = mount.objects
        for path, why in found.notes.items():
            if (shown_as := mount.shown_as(path)) is not None:
                builder.note(shown_as, why)
        for path, why in mount.notes.items():
            builder.note(path, why)
        for path, (attributes, lost) in found.groups.items():
            if (shown_as := mount.shown_as(path)) is not None:
                builder.group(shown_as, attributes)
                builder.lacks_attributes(shown_as, lost)
        shown = {path: each for path, each in found.datasets.items() if not each.scale.hidden}
        as_netcdf = grown(found.datasets)
        names = dimension_names(as_netcdf)
        for path, dataset in shown.items():
            name = mount.shown_as(_shown_as(path, shown))
            if name is None:
                continue
            try:
                storage = self._storage(mount.file, dataset, as_netcdf[path].shape)
                builder.array(name, _array(dataset, storage, names[path]))
            except (UnimplementedError, JsonError) as error:
                builder.note(name, error.message)
                continue
            builder.lacks_attributes(name, dataset.lost_attributes)
            self._arrays[name] = storage

    def _storage(self, file: OpenHdf5, dataset: Dataset, shape: tuple[int, ...]) -> Storage:
        if dataset.layout == "virtual":
            return StackStorage(self._files, file, dataset, self._first.get((file.url, dataset.path)))
        if not dataset.external:
            return storage_of(file, dataset, shape)
        if dataset.by_library:
            raise UnimplementedError("its values lie in other files, and only HDF5 knows their type")
        return ExternalStorage(file, dataset)

    async def tables(self, paths: Sequence[str]) -> Sequence[ChunkTable]:
        """Return the chunk tables of arrays, their indexes read together."""
        return await execution.gather(self._table(path) for path in paths)

    async def _table(self, path: str) -> ChunkTable:
        try:
            return await self._arrays[path].table(self.hierarchy.grids[path])
        except StoreError as error:
            raise error.within(f'Error reading the chunk index of "{path}"') from error

    async def make(self, path: str, numbers: Numbers) -> Sequence[Buffer]:
        """Return the values of chunks that no reference can say."""
        grid = self.hierarchy.grids[path]
        coords = np.stack(np.unravel_index(numbers, grid.shape), axis=1).tolist()
        try:
            return await self._arrays[path].make(coords)
        except StoreError as error:
            raise error.within(f'Error reading "{path}"') from error


def _shown_as(path: str, shown: Mapping[str, Dataset]) -> str:
    """Return the path under which a dataset is shown.

    NetCDF stores a variable under another name where its own is that of a dimension it is no coordinate of.
    """
    head, slash, name = path.rpartition("/")
    meant = head + slash + name.removeprefix(_NO_COORDINATE)
    return path if not name.removeprefix(_NO_COORDINATE) or meant in shown else meant


def _array(dataset: Dataset, storage: Storage, dims: list[str]) -> Array:
    element = dataset.element
    shape, chunks = (*storage.shape, *element.inner), (*storage.chunks, *element.inner)
    inner = [f"{dataset.path.rpartition('/')[2]}_inner_{axis}" for axis in range(len(element.inner))]
    return Array(
        shape,
        tuple(max(1, each) for each in chunks),
        dtype_json(element.dtype),
        _fill(dataset, storage),
        ({"id": "vlen-utf8"},) if element.text else tuple(storage.codecs),
        dims=[*dims, *inner],
        attributes=dataset.attributes | ({"_elements": "JSON"} if element.made == "json" else {}),
    )


def _fill(dataset: Dataset, storage: Storage) -> Json:
    """Return what the document says about values that were never written.

    Tools that read zarr v2 take its fill value for missing data, which that of HDF5 is not.  Nothing is said, which
    means zeros, wherever it is true; `_FillValue` among the attributes marks missing data.
    """
    fill, text = dataset.fill, dataset.element.text
    is_whole = dataset.layout == "compact" or (dataset.layout == "contiguous" and dataset.offset is not None)
    if (is_whole and tuple(storage.shape) == dataset.shape) or not (fill if text else any(fill.tobytes())):
        return None
    return fill if text else fill_json(fill, dataset.element.dtype)


@dataclass(frozen=True, slots=True)
class Hdf5Scanner(FileScanner):
    """The scanner."""

    name: ClassVar[str] = "hdf5"
    title: ClassVar[str] = "HDF5 file"

    async def scan(self, source: ScanSource, members: Mapping[str, Json]) -> Hdf5File:
        """Return the groups and datasets of a file."""
        file = OpenHdf5(source)
        found = await file.run(Walk(file).step)
        files = OtherFiles(source, file)
        mounts = await mounts_of(files, file, found) if found.links else [Mount(file, found)]
        first: dict[tuple[str, str], tuple[OpenHdf5, Dataset] | None] = {}
        for mount in mounts:
            await _see_sources(files, mount, first)
        return await file.run(lambda: Hdf5File(files, mounts, first))


async def _see_sources(
    files: OtherFiles, mount: Mount, first: dict[tuple[str, str], tuple[OpenHdf5, Dataset] | None]
) -> None:
    """Look at the first source of each virtual dataset, and at all sources of those that are as long as these."""
    for path, dataset in list(mount.objects.datasets.items()):
        if not dataset.parts or mount.shown_as(path) is None:
            continue
        endless = any(part.is_endless for part in dataset.parts)
        try:
            if endless:
                mount.objects.datasets[path] = await ended(files, mount.file, dataset)
            part = dataset.parts[0]
            first[mount.file.url, path] = await files.dataset(mount.file, part.file, part.dataset)
        except FileChangedError:
            raise
        except StoreError as error:  # reading it says why, unless nobody knows how long it is
            if endless:
                del mount.objects.datasets[path]
                mount.objects.notes[path] = f"it is as long as its sources are: {error.message}"


SCANNER = Hdf5Scanner()
