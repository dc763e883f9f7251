"""Files of other formats opened by URL, beside the libraries that are made for them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import Contender, workload

_CHUNKS = 20_000


def write_variables(path: Path, count: int = 30) -> None:
    """Write a NetCDF 4 file of variables with coordinates and eight attributes each."""
    import netCDF4

    random = np.random.default_rng(0)
    sizes = {"time": 12, "lat": 90, "lon": 180}
    with netCDF4.Dataset(path, "w") as file:
        for name, size in sizes.items():
            file.createDimension(name, None if name == "time" else size)
            file.createVariable(name, "f8", (name,))[:] = np.arange(size)
        values = random.normal(size=tuple(sizes.values())).astype("f4").round(2)
        for number in range(count):
            found = file.createVariable(
                f"v{number:02}", "f4", tuple(sizes), zlib=True, shuffle=True, chunksizes=(1, 90, 180)
            )
            for each in range(8):
                found.setncattr(f"attribute{each}", f"value {each}")
            found[:] = values


def _open(path: Path, engine: str, name: str | None = None) -> Any:
    import xarray

    with xarray.open_dataset(path, engine=engine, decode_cf=False, cache=False) as found:
        return len(found.variables) if name is None else found[name].values


def _ours(path: Path, name: str | None = None) -> Any:
    import xarray

    found = xarray.open_dataset(f"file://{path}|hdf5:", engine="fsstore", decode_cf=False)
    return len(found.variables) if name is None else found[name].values


@workload("scan: structure of 33 NetCDF 4 variables")
def structure(folder: Path) -> Mapping[str, Contender]:
    """Open a dataset, and read no variable but its coordinates."""
    path = folder / "a.nc"
    write_variables(path)
    return {
        "fsstore": lambda: _ours(path),
        "netcdf4": lambda: _open(path, "netcdf4"),
        "h5netcdf": lambda: _open(path, "h5netcdf"),
    }


@workload("scan: open a NetCDF 4 file, read one variable")
def one_variable(folder: Path) -> Mapping[str, Contender]:
    """Open an array and read all of it: twelve chunks of 65 kB."""
    import fsstore

    path = folder / "a.nc"
    write_variables(path)
    return {
        "fsstore": lambda: fsstore.open(f"file://{path}|hdf5:v07").result().read().result(),
        "netcdf4": lambda: _open(path, "netcdf4", "v07"),
        "h5netcdf": lambda: _open(path, "h5netcdf", "v07"),
    }


@workload("scan: the index of 20,000 HDF5 chunks")
def index(folder: Path) -> Mapping[str, Contender]:
    """Read where the chunks of a dataset are, opening the file included: a B-tree of version 1."""
    import h5py

    from fsstore.context.context import Context
    from fsstore.kvstore.spec_parse import kv_spec, open_kv
    from fsstore.runtime import execution
    from fsstore.scan.contract import ScanSource
    from fsstore.scan.hdf5.scanner import SCANNER

    path = folder / "a.h5"
    with h5py.File(path, "w", libver=("earliest", "v108")) as file:
        values = np.arange(_CHUNKS * 16, dtype="i4").reshape(_CHUNKS, 16)
        file.create_dataset("v", data=values, chunks=(1, 16), compression="gzip")
    place = execution.call(open_kv(kv_spec(f"file://{path}"), Context())).prefix

    async def ours() -> int:
        found = await SCANNER.scan(await ScanSource(place).begin(), {})
        table = (await found.tables(["v"]))[0]
        return len(table.present(0, _CHUNKS))

    def by_library() -> int:
        found: list[int] = []
        with h5py.File(path) as file:
            file["v"].id.chunk_iter(lambda chunk: found.append(chunk.size))
        return len(found)

    return {"fsstore": lambda: execution.drive(ours()), "h5py": by_library}


@workload("scan: 256 MB of NetCDF 4, zlib and shuffle", size=256 * 2**20)
def whole_variable(folder: Path) -> Mapping[str, Contender]:
    """Open a file and read its one variable, 64 chunks of 4 MiB."""
    import netCDF4

    import fsstore

    path = folder / "a.nc"
    values = (np.arange(64 * 2**20, dtype="i4") // 7).reshape(64, 1024, 1024)
    with netCDF4.Dataset(path, "w") as file:
        for name, size in {"z": 64, "y": 1024, "x": 1024}.items():
            file.createDimension(name, size)
        found = file.createVariable(
            "v", "i4", ("z", "y", "x"), zlib=True, complevel=1, shuffle=True, chunksizes=(1, 1024, 1024)
        )
        found[:] = values
    return {
        "fsstore": lambda: fsstore.open(f"file://{path}|hdf5:v").result().read().result(),
        "netcdf4": lambda: _open(path, "netcdf4", "v"),
        "h5netcdf": lambda: _open(path, "h5netcdf", "v"),
    }


@workload("scan: a NetCDF 3 file of 40 records, one variable")
def classic(folder: Path) -> Mapping[str, Contender]:
    """Open a file of ten record variables and read one of them."""
    import netCDF4

    import fsstore

    path = folder / "a.nc"
    with netCDF4.Dataset(path, "w", format="NETCDF3_64BIT_OFFSET") as file:
        for name, size in {"t": None, "y": 100, "x": 100}.items():
            file.createDimension(name, size)
        for number in range(10):
            file.createVariable(f"v{number}", "f4", ("t", "y", "x"))[:] = np.full((40, 100, 100), number)
    return {
        "fsstore": lambda: fsstore.open(f"file://{path}|netcdf3:v3").result().read().result(),
        "netcdf4": lambda: _open(path, "netcdf4", "v3"),
        "scipy": lambda: _open(path, "scipy", "v3"),
    }


@workload("scan: 20,000 HDF5 chunks into a set")
def into_a_set(folder: Path) -> Mapping[str, Contender]:
    """Make a reference set of a file."""
    import gc

    import h5py

    from fsstore import references

    path = folder / "a.h5"
    with h5py.File(path, "w", libver=("earliest", "v108")) as file:
        values = np.arange(_CHUNKS * 16, dtype="i4").reshape(_CHUNKS, 16)
        file.create_dataset("v", data=values, chunks=(1, 16), compression="gzip")

    def by_kerchunk() -> int:
        from kerchunk.hdf import SingleHdf5ToZarr

        gc.disable()  # its scan can deadlock with a collection
        try:
            refs = SingleHdf5ToZarr(str(path), inline_threshold=0).translate()["refs"]
        finally:
            gc.enable()
        return sum(key.startswith("v/") and key[2:3].isdigit() for key in refs)

    return {"fsstore": lambda: len(references.scan(str(path))) - 4, "kerchunk": by_kerchunk}


@workload("scan: a window of a COG of 4096 x 4096")
def cog_window(folder: Path) -> Mapping[str, Contender]:
    """Open a cloud-optimised TIFF and read a window of 256 x 256 that four tiles hold."""
    import rasterio
    from rasterio.windows import Window

    import fsstore

    path = folder / "a.tif"
    values = np.cumsum(np.random.default_rng(0).integers(0, 4, (1, 4096, 4096)), axis=2).astype("u2")
    profile = {"driver": "COG", "count": 1, "height": 4096, "width": 4096, "dtype": "uint16"}
    place = rasterio.Affine(10, 0, 0, 0, -10, 0)
    with rasterio.open(path, "w", **profile, compress="DEFLATE", transform=place) as file:
        file.write(values)

    def by_gdal() -> Any:
        with rasterio.open(path) as file:
            return file.read(1, window=Window(900, 900, 256, 256))

    def ours() -> Any:
        return fsstore.open(f"file://{path}|tiff:0").result()[900:1156, 900:1156].read().result()

    return {"fsstore": ours, "rasterio": by_gdal}


@workload("scan: a GRIB file of 40 messages")
def messages(folder: Path) -> Mapping[str, Contender]:
    """Find and describe the messages of a file: each library says how many there are."""
    import eccodes

    import fsstore

    path = folder / "a.grib"
    with path.open("wb") as file:
        for level in (1000, 925, 850, 700, 500, 300, 200, 100):
            for step in range(0, 30, 6):
                handle = eccodes.codes_grib_new_from_samples("regular_ll_pl_grib2")
                eccodes.codes_set(handle, "level", level)
                eccodes.codes_set(handle, "stepRange", step)
                file.write(eccodes.codes_get_message(handle))
                eccodes.codes_release(handle)

    def by_kerchunk() -> int:
        from kerchunk.grib2 import scan_grib

        return len(scan_grib(str(path)))

    def by_cfgrib() -> int:
        import cfgrib

        opened = cfgrib.open_datasets(path, backend_kwargs={"indexpath": ""})
        return sum(math.prod(found["t"].shape[:-2]) for found in opened)

    def ours() -> int:
        return sum(
            math.prod(entry.shape[:-2])
            for entry in fsstore.list_arrays(f"file://{path}")
            if entry.path.rpartition("/")[2] == "t"
        )

    return {"fsstore": ours, "kerchunk": by_kerchunk, "cfgrib": by_cfgrib}
