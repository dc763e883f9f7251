"""GDAL reads the sets that are saved here: JSON of both versions, and parquet where its Parquet driver is built in.

Where rasterio has an older GDAL than 3.11, `GDAL_PYTHON` names an interpreter with a newer one; see docs/development.md.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import h5py
import numpy as np
import pytest
import rasterio
import xarray as xr

from fsstore import references

HERE = tuple(map(int, rasterio.__gdal_version__.split(".")[:2])) >= (3, 11)
PYTHON = os.environ.get("GDAL_PYTHON", sys.executable if HERE else "")
pytestmark = pytest.mark.skipif(not PYTHON, reason="GDAL is older than 3.11, and GDAL_PYTHON names no interpreter")

READ = """
import json, sys, warnings
import rasterio
warnings.simplefilter("ignore")
with rasterio.Env() as env:
    drivers = list(env.drivers())
with rasterio.open(sys.argv[1]) as found:
    print(json.dumps([found.shape, found.dtypes[0], "Parquet" in drivers]))
    print(json.dumps(found.read(1).tolist()))
"""


def read(url):
    """Return shape, type, whether GDAL has its Parquet driver, and the values that it reads (None: it cannot)."""
    done = subprocess.run([PYTHON, "-c", READ, url], capture_output=True, text=True, timeout=100, check=False)
    head, *values = done.stdout.splitlines() or [done.stderr]
    return *json.loads(head), json.loads(values[0]) if values else None


@pytest.fixture
def refs(tmp_path):
    """A set of an HDF5 file: compressed, plain and partly missing chunks, and an array in a group."""
    with h5py.File(tmp_path / "data.h5", "w") as file:
        values = np.arange(24, dtype="f8").reshape(4, 6)
        file.create_dataset("zipped", data=values, chunks=(2, 3), compression="gzip", shuffle=True)
        file.create_dataset("plain", data=values.astype("i2"), chunks=(3, 4))
        file.create_dataset("group/part", (4, 6), "i4", chunks=(2, 3), fillvalue=7)[:2, :3] = 1
    return references.scan(str(tmp_path / "data.h5"), inline_threshold=0)


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("name", ["zipped", "plain", "group/part"])
def test_json(refs, tmp_path, version, name):
    """The values are those of the file."""
    refs.save(tmp_path / "refs.json", version=version)
    *_, values = read(f'ZARR:"/vsikerchunk_json_ref/{{{tmp_path}/refs.json}}":/{name}')
    with h5py.File(tmp_path / "data.h5") as file:
        np.testing.assert_array_equal(values, file[name][()])


@pytest.mark.parametrize("name", ["zipped", "plain", "group/part"])
def test_parquet(refs, tmp_path, name):
    """The arrays are found by their metadata; the values are those of the file, if GDAL reads parquet at all."""
    refs.save(tmp_path / "refs.parq")
    shape, dtype, has_parquet, values = read(f'ZARR:"/vsikerchunk_parquet_ref/{{{tmp_path}/refs.parq}}":/{name}')
    with h5py.File(tmp_path / "data.h5") as file:
        assert (tuple(shape), dtype) == (file[name].shape, str(file[name].dtype))
        if has_parquet:
            np.testing.assert_array_equal(values, file[name][()])


def test_combined_files(tmp_path):
    """Many files that agree, saved as a set, are one raster with a band a step."""
    for number in range(3):
        values = np.arange(24.0).reshape(2, 3, 4) + 100 * number
        data = xr.Dataset({"v": (("time", "y", "x"), values)}, {"time": 2 * number + np.arange(2)})
        data.to_netcdf(tmp_path / f"{number}.nc", encoding={"v": {"zlib": True, "chunksizes": (1, 3, 4)}})
    references.combine(str(tmp_path / "?.nc"), "time").result().save(tmp_path / "all.json")
    shape, *_, values = read(f'ZARR:"{tmp_path}/all.json"')
    assert shape == [3, 4]
    np.testing.assert_array_equal(values, np.arange(12.0).reshape(3, 4))
