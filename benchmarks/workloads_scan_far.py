"""Scanned files on a server that answers after 30 ms, and many small files scanned together."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.far_server import FarServer
from benchmarks.harness import Contender, workload
from benchmarks.workloads_scan import write_variables


def _count(found: Any) -> int:
    return len(list(found.variables))


def _by_fsspec(url: str) -> Any:
    import fsspec
    import xarray

    return xarray.open_dataset(fsspec.open(url).open(), engine="h5netcdf", decode_cf=False)


def _by_virtualizarr(url: str) -> Any:
    import virtualizarr
    from obspec_utils.registry import ObjectStoreRegistry
    from obstore.store import HTTPStore
    from virtualizarr.parsers import HDFParser

    root = url.rpartition("/")[0]
    registry = ObjectStoreRegistry({root: HTTPStore.from_url(root, client_options={"allow_http": True})})
    return virtualizarr.open_virtual_dataset(
        url, registry=registry, parser=HDFParser(), loadable_variables=[], decode_times=False
    )


def _ours(url: str) -> Any:
    import xarray

    return xarray.open_dataset(f"{url}|hdf5:", engine="fsstore", decode_cf=False)


@workload("scan: far, structure of 33 NetCDF 4 variables")
def far_structure(folder: Path) -> Mapping[str, Contender]:
    """Open a dataset far away: how many answers are waited for one after the other."""
    write_variables(folder / "a.nc")
    server = FarServer(folder)
    url = f"{server.url}/a.nc"

    def ours(keep: object = server) -> int:
        return _count(_ours(url))

    return {
        "fsstore": ours,
        "h5netcdf": lambda: _count(_by_fsspec(url)),
        "virtualizarr": lambda: _count(_by_virtualizarr(url)),
    }


@workload("scan: far, open a NetCDF 4 file, read one slice")
def far_slice(folder: Path) -> Mapping[str, Contender]:
    """Open one variable far away and read one of its chunks."""
    import fsstore

    write_variables(folder / "a.nc")
    server = FarServer(folder)
    url = f"{server.url}/a.nc"

    def ours(keep: object = server) -> Any:
        return fsstore.open(f"{url}|hdf5:v07").result()[3].read().result()

    return {"fsstore": ours, "h5netcdf": lambda: _by_fsspec(url)["v07"][3].values}


@workload("scan: 30 small files combined into one set")
def small_files(folder: Path) -> Mapping[str, Contender]:
    """Scan files of one time step each, and combine them along time."""
    import netCDF4

    from fsstore import references

    paths = []
    for number in range(30):
        paths.append(str(folder / f"{number:02}.nc"))
        with netCDF4.Dataset(paths[-1], "w") as file:
            for name, size in {"time": None, "x": 50}.items():
                file.createDimension(name, size)
            file.createVariable("time", "f8", ("time",))[:] = [number]
            file.createVariable("v", "f4", ("time", "x"), zlib=True)[:] = np.full((1, 50), number)

    def by_kerchunk() -> int:
        import gc

        from kerchunk.combine import MultiZarrToZarr
        from kerchunk.hdf import SingleHdf5ToZarr

        gc.disable()  # its scan can deadlock with a collection
        try:
            sets = [SingleHdf5ToZarr(path, inline_threshold=0).translate() for path in paths]
            refs = MultiZarrToZarr(sets, concat_dims=["time"]).translate()["refs"]
        finally:
            gc.enable()
        return sum(key.startswith("v/") and key[2:3].isdigit() for key in refs)

    def ours() -> int:
        refs = references.combine(paths, "time").result().references
        return sum(key[2:3].isdigit() for key in refs if key.startswith("v/"))

    return {"fsstore": ours, "kerchunk": by_kerchunk}
