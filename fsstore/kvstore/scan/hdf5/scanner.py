"""The scanner of HDF5.

How an array is shown follows from its layout: chunks as they are, if codecs decode them; one run of bytes in pieces of
a few MiB; and everything else, such as strings of any length, through HDF5 itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fsstore.errors import JsonError, StoreError, UnimplementedError
from fsstore.kvstore.contract.driver import Buffer
from fsstore.kvstore.scan.contract import ChunkTable, Numbers, ScanHierarchy
from fsstore.kvstore.scan.hdf5.dataset import Dataset
from fsstore.kvstore.scan.hdf5.datatype import dtype_json
from fsstore.kvstore.scan.hdf5.dimension import dimension_names, grown
from fsstore.kvstore.scan.hdf5.open_file import OpenHdf5
from fsstore.kvstore.scan.hdf5.storage import Storage, storage_of
from fsstore.kvstore.scan.hdf5.walk import Objects, Walk
from fsstore.kvstore.scan.hierarchy import Array, HierarchyBuilder, fill_json
from fsstore.kvstore.scan.source import ScanSource
from fsstore.runtime import execution
from fsstore.values.json_value import Fields, Json

__all__ = ["SCANNER", "Hdf5File", "Hdf5Scanner"]

_NO_COORDINATE = "_nc4_non_coord_"


class Hdf5File:
    """One generation of a file."""

    def __init__(self, file: OpenHdf5, found: Objects) -> None:
        self._file = file
        self._arrays: dict[str, Storage] = {}
        self.hierarchy: ScanHierarchy = self._described(found)

    def _described(self, found: Objects) -> ScanHierarchy:
        builder = HierarchyBuilder()
        for path, why in found.notes.items():
            builder.note(path, why)
        for path, (attributes, lost) in found.groups.items():
            builder.group(path, attributes)
            builder.lacks_attributes(path, lost)
        shown = {path: each for path, each in found.datasets.items() if not each.scale.hidden}
        as_netcdf = grown(found.datasets)
        names = dimension_names(as_netcdf)
        for path, dataset in shown.items():
            name = _shown_as(path, shown)
            try:
                storage = storage_of(self._file, dataset, as_netcdf[path].shape)
                builder.array(name, _array(dataset, storage, names[path]))
            except (UnimplementedError, JsonError) as error:
                builder.note(name, error.message)
                continue
            builder.lacks_attributes(name, dataset.lost_attributes)
            self._arrays[name] = storage
        return builder.finish()

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
    fill: Json = dataset.fill if element.text else fill_json(dataset.fill, element.dtype)
    return Array(
        shape,
        tuple(max(1, each) for each in chunks),
        dtype_json(element.dtype),
        fill,
        ({"id": "vlen-utf8"},) if element.text else tuple(storage.codecs),
        dims=[*dims, *inner],
        attributes=dataset.attributes,
    )


@dataclass(frozen=True, slots=True)
class Hdf5Scanner:
    """The scanner."""

    name: ClassVar[str] = "hdf5"
    title: ClassVar[str] = "HDF5 file"
    of_directory: ClassVar[bool] = False

    def members(self, fields: Fields) -> dict[str, Json]:
        """Take nothing."""
        return {}

    async def scan(self, source: ScanSource, members: Mapping[str, Json]) -> Hdf5File:
        """Return the groups and datasets of a file."""
        file = OpenHdf5(source)
        found = await file.run(Walk(file).step)
        return await file.run(lambda _: Hdf5File(file, found))


SCANNER = Hdf5Scanner()
