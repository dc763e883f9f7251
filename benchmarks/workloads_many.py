"""Many files as one dataset, beside the libraries that combine them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import Contender, workload

_FILES, _STEPS = 1000, 24


def write_days(folder: Path, count: int = _FILES) -> list[str]:
    """Write a NetCDF 4 file a day, of two variables of 24 steps."""
    import netCDF4

    random = np.random.default_rng(0)
    paths = []
    for day in range(count):
        path = folder / f"{day:05}.nc"
        with netCDF4.Dataset(path, "w") as file:
            file.createDimension("time", _STEPS)
            file.createDimension("x", 8)
            time = file.createVariable("time", "f8", ("time",))
            time.units = "hours since 2000-01-01"
            time[:] = np.arange(_STEPS) + _STEPS * day
            file.createVariable("x", "f4", ("x",))[:] = np.arange(8)
            for name in "ab":
                found = file.createVariable(name, "f4", ("time", "x"), zlib=True, chunksizes=(_STEPS, 8))
                found[:] = random.random((_STEPS, 8))
        paths.append(str(path))
    return paths


def _ours(paths: list[str]) -> Any:
    from fsstore import references

    return references.combine(paths, "time").result().report.dims["time"]


def _xarray(paths: list[str]) -> Any:
    import xarray

    with xarray.open_mfdataset(paths, combine="by_coords") as found:
        return found.sizes["time"]


def _kerchunk(paths: list[str]) -> Any:
    import gc
    import json

    from kerchunk.combine import MultiZarrToZarr
    from kerchunk.hdf import SingleHdf5ToZarr

    gc.disable()  # a collection during a scan can deadlock with the lock of h5py
    try:
        scans = [SingleHdf5ToZarr(path).translate() for path in paths]
        found = MultiZarrToZarr(scans, concat_dims=["time"], identical_dims=["x"]).translate()
        return json.loads(found["refs"]["time/.zarray"])["shape"][0]
    finally:
        gc.enable()


def _virtualizarr(paths: list[str]) -> Any:
    import virtualizarr
    import xarray
    from obstore.store import LocalStore
    from virtualizarr.parsers import HDFParser
    from virtualizarr.registry import ObjectStoreRegistry

    registry = ObjectStoreRegistry({"file://": LocalStore()})
    found = [
        virtualizarr.open_virtual_dataset(
            f"file://{path}", registry=registry, parser=HDFParser(), loadable_variables=["time", "x"]
        )
        for path in paths
    ]
    return xarray.combine_by_coords(found, combine_attrs="override").sizes["time"]


@workload("many files: combine 1,000 NetCDF 4 files")
def combined(folder: Path) -> Mapping[str, Contender]:
    """Scan the files and put them together along time."""
    paths = write_days(folder)
    return {
        "fsstore": lambda: _ours(paths),
        "open_mfdataset": lambda: _xarray(paths),
        "kerchunk": lambda: _kerchunk(paths),
        "virtualizarr": lambda: _virtualizarr(paths),
    }


@workload("many files: open, and one point of 1,000 files")
def series(folder: Path) -> Mapping[str, Contender]:
    """Open the combined set and read one point at all times, over the same references."""
    from fsstore import references

    paths = write_days(folder)
    target = folder / "set.json"
    references.combine(paths, "time").result().save(target)

    def ours() -> Any:
        import fsstore as ts

        return ts.open(f"file://{target}|reference:a/").result()[:, 3].read().result()

    def theirs() -> Any:
        import fsspec
        import zarr

        fs = fsspec.filesystem("reference", fo=str(target), asynchronous=False)
        store = zarr.storage.FsspecStore(fsspec.implementations.asyn_wrapper.AsyncFileSystemWrapper(fs))
        return zarr.open_array(store, path="a", mode="r")[:, 3]

    return {"fsstore": ours, "zarr-python": theirs}
