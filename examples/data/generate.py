"""Write `ocean.nc`, a small NetCDF file, `ocean.json`, the kerchunk references into it, and an Icechunk repository.

They are checked in; this says how they were made.  It needs `h5py`, `kerchunk` and `icechunk` 1.1.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import h5py
import icechunk
import numpy as np
import zarr
from kerchunk.hdf import SingleHdf5ToZarr

HERE = Path(__file__).parent


def write_netcdf(path: Path) -> None:
    """Write a year of sea surface temperature on a coarse grid, as NetCDF 4."""
    time, lat, lon = np.arange(12), np.arange(-85, 86, 10), np.arange(0, 360, 10)
    days = np.cumsum([0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30])
    warmth = 28 * np.cos(np.radians(lat))[None, :, None] ** 2
    season = 4 * np.sin(2 * np.pi * time / 12)[:, None, None] * np.sign(lat)[None, :, None]
    waves = np.sin(np.radians(3 * lon))[None, None, :]
    values = np.round(warmth + season + waves, 1).astype("float32")
    with h5py.File(path, "w", track_order=True) as file:
        axes = {"time": (days, "days since 2025-01-15"), "lat": (lat, "degrees_north"), "lon": (lon, "degrees_east")}
        for name, (points, units) in axes.items():
            axis = file.create_dataset(name, data=points.astype("float32"))
            axis.make_scale(name)
            axis.attrs["units"] = units
        sst = file.create_dataset("sst", data=values, chunks=(3, 9, 18), compression="gzip", shuffle=True)
        sst.attrs["units"] = "degC"
        sst.attrs["long_name"] = "sea surface temperature"
        for number, name in enumerate(axes):
            sst.dims[number].attach_scale(file[name])


def write_references(source: Path, target: Path) -> None:
    """Write the references, with the file named relative to them."""
    references = SingleHdf5ToZarr(str(source), inline_threshold=100).translate()
    for value in references["refs"].values():
        if isinstance(value, list):
            value[0] = source.name
    target.write_text(json.dumps(references, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def write_repository(path: Path) -> None:
    """Write temperatures in two commits, the first of which has a tag; transaction logs are left out."""
    repository = icechunk.Repository.create(icechunk.local_filesystem_storage(str(path)))
    session = repository.writable_session("main")
    group = zarr.open_group(session.store, mode="w", attributes={"title": "weather"})
    names = ["time", "station"]
    array = group.create_array("temperature", shape=(4, 6), chunks=(2, 3), dtype="f4", dimension_names=names)
    array[:] = np.arange(24).reshape(4, 6)
    repository.create_tag("v1", session.commit("first"))
    session = repository.writable_session("main")
    zarr.open_group(session.store)["temperature"][0, 0] = 100
    session.commit("second")
    shutil.rmtree(path / "transactions")


if __name__ == "__main__":
    write_netcdf(HERE / "ocean.nc")
    write_references(HERE / "ocean.nc", HERE / "ocean.json")
    write_repository(HERE / "weather.icechunk")
