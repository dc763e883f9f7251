"""HDF5 files, NetCDF 4 files among them, together with the files they refer to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from fsstore.errors import JsonError, StoreError, UnimplementedError
from fsstore.kvstore.contract.driver import Buffer
from fsstore.runtime import execution
from fsstore.scan.contract import (
    ChunkTable,
    FileChangedError,
    FileScanner,
    Numbers,
    ScanHierarchy,
    ScanSource,
)
from fsstore.scan.hdf5.dataset import Dataset, dtype_json
from fsstore.scan.hdf5.linked import ExternalStorage, Mount, OtherFiles, mounts_of
from fsstore.scan.hdf5.stack import StackStorage, ended
from fsstore.scan.hdf5.storage import Storage, storage_of
from fsstore.scan.hdf5.walk import OpenHdf5, Walk
from fsstore.scan.hierarchy import Array, HierarchyBuilder, fill_json
from fsstore.values.json_value import Json

# The names of dimensions, as NetCDF 4 means them.
#
# A dimension is called like the dataset that is its scale. A coordinate of several dimensions, which cannot
# have scales because it is one, numbers them instead. Where there is no scale, dimensions of a group are
# called `phony_dim_k`: one for each size, and one more where an array has the same size twice.
#
# A dimension without limit is as long as the longest variable along it: a shorter one has its fill value
# there.


def _scales(datasets: Mapping[str, Dataset]) -> dict[int, Dataset]:
    """Return the scales by the addresses of their headers."""
    out: dict[int, Dataset] = {}
    for dataset in datasets.values():
        if dataset.scale.is_scale:
            out.setdefault(dataset.address, dataset)
    return out


def _axes(
    dataset: Dataset, scales: Mapping[int, Dataset], by_id: Mapping[int, Dataset]
) -> list[Dataset | None]:
    count, scale = len(dataset.shape), dataset.scale
    if scale.attached and len(scale.attached) == count:
        return [scales.get(address) for address in scale.attached]
    if scale.is_scale and count == 1:
        return [dataset]
    if scale.coordinates and len(scale.coordinates) == count:
        return [by_id.get(number) for number in scale.coordinates]
    return [dataset if scale.is_scale and not axis else None for axis in range(count)]


def _resolved(datasets: Mapping[str, Dataset]) -> dict[str, list[Dataset | None]]:
    scales = _scales(datasets)
    by_id = {each.scale.dimid: each for each in scales.values() if each.scale.dimid is not None}
    return {path: _axes(dataset, scales, by_id) for path, dataset in datasets.items()}


def grown(datasets: Mapping[str, Dataset]) -> dict[str, Dataset]:
    """Return the datasets with the shapes that NetCDF gives them."""
    axes, lengths = _resolved(datasets), dict[int, int]()
    for path, dataset in datasets.items():
        for scale, length, most in zip(axes[path], dataset.shape, dataset.maxshape, strict=True):
            if scale is not None and most == 0:
                lengths[scale.address] = max(lengths.get(scale.address, 0), length)
    out = {}
    for path, dataset in datasets.items():
        shape = tuple(
            max(length, lengths.get(scale.address, 0)) if scale is not None and most == 0 else length
            for scale, length, most in zip(axes[path], dataset.shape, dataset.maxshape, strict=True)
        )
        out[path] = dataset if shape == dataset.shape else replace(dataset, shape=shape)
    return out


def dimension_names(datasets: Mapping[str, Dataset]) -> dict[str, list[str]]:
    """Return the names of the dimensions of each dataset."""
    axes, out = _resolved(datasets), {}
    phony: dict[str, dict[tuple[int, int], int]] = {}
    for path, dataset in datasets.items():
        known = phony.setdefault(path.rpartition("/")[0], {})
        times: dict[int, int] = {}
        names = []
        for scale, length in zip(axes[path], dataset.shape, strict=True):
            if scale is not None and _fits(scale, length):
                names.append(scale.path.rpartition("/")[2])
                continue
            nth = times[length] = times.get(length, -1) + 1
            names.append(f"phony_dim_{known.setdefault((length, nth), len(known))}")
        out[path] = names
    return out


def _fits(scale: Dataset, length: int) -> bool:
    """Return whether a scale is as long as the dimension: a shorter one would cut values off."""
    return len(scale.shape) != 1 or scale.scale.hidden or scale.shape[0] == length


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
        self.hierarchy: ScanHierarchy = builder.finish()

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
    """Return a dataset as zarr v2 describes it."""
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
        attributes=dataset.attributes,
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
