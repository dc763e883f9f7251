"""Values of scanned files are no missing data for other tools, unless the file says so: through every door."""

from __future__ import annotations

import json

import h5py
import numpy as np
import pytest
import tifffile
import xarray as xr
from astropy.io import fits

import fsstore as ts
from fsstore import references

VALUES = {
    "whole": np.array([0, 1, 2]),
    "fractions": np.array([0.0, 1.5, np.nan]),
    "flags": np.array([False, True, True]),
    "octets": np.array([b"", b"b", b"cc"]),
}


def a_file(path):
    """Write zeros of every type, in one piece and in chunks, and marks of missing data that are no zeros."""
    with h5py.File(path, "w") as file:
        for name, values in VALUES.items():
            file[name] = values
            file.create_dataset(f"{name}_chunked", data=values, chunks=(2,))
        file.create_dataset("texts", data=np.array(["", "b", "c"], object), dtype=h5py.string_dtype())
        file.create_dataset("own_fill", data=np.array([0, 5, 2]), fillvalue=5)
        marked = file.create_dataset("marked", data=np.array([0, -9, 2]))
        marked.attrs["_FillValue"] = np.int64(-9)


def a_set(path):
    """Save the references of a file, and return how zarr's engine opens them."""
    saved = path.with_suffix(".json")
    references.open(str(path)).save(str(saved))
    return {
        "filename_or_obj": "reference://",
        "backend_kwargs": {"storage_options": {"fo": str(saved)}, "consolidated": False},
    }


def a_copy(path):
    """Copy a file, and return how zarr's engine opens the copy."""
    ts.copy(str(path), str(path.with_suffix(".zarr"))).result()
    return {"filename_or_obj": str(path.with_suffix(".zarr")), "consolidated": False}


def a_view(scheme):
    """Return how zarr's engine opens a file through a filesystem."""
    return lambda path: {"filename_or_obj": f"{scheme}::file://{path}", "consolidated": False}


DOORS = {"set": a_set, "copy": a_copy, **{scheme: a_view(scheme) for scheme in ("auto", "zarr2", "zarr3")}}


@pytest.mark.parametrize("door", DOORS)
def test_zeros_and_empty_texts_are_values(tmp_path, door):
    """Through every door zarr's engine reads what h5netcdf reads of the file itself."""
    path = tmp_path / "x.h5"
    a_file(path)
    expected = xr.open_dataset(path, engine="h5netcdf", phony_dims="sort").load()
    found = xr.open_dataset(engine="zarr", **DOORS[door](path)).load()
    assert sorted(found) == sorted(expected)
    for name in expected:
        np.testing.assert_array_equal(found[name].values.tolist(), expected[name].values.tolist(), name)
        assert found[name].dtype.kind in (expected[name].dtype.kind, "T", "O"), name
    assert [found[name].dtype for name in ("whole", "whole_chunked", "flags_chunked", "octets")] == [
        np.dtype(kind) for kind in ("i8", "i8", "bool", "S2")
    ]
    assert np.isnan(found["marked"].values[1])


def test_a_fill_value_in_chunks_marks_nothing_in_a_view_of_version_3(tmp_path):
    """What HDF5 shows where nothing was written is a value where something was; `zarr3::` says it so."""
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("a", data=np.array([5, 6]), chunks=(1,), fillvalue=5)
        file.create_dataset("b", shape=(4,), dtype="i8", chunks=(2,), fillvalue=5)[:2] = 1
    found = xr.open_zarr(f"zarr3::file://{path}", consolidated=False).load()
    assert found["a"].dtype == np.int64
    assert found["a"].values.tolist() == [5, 6]
    assert found["b"].values.tolist() == [1, 1, 5, 5]


@pytest.mark.parametrize(("name", "kind"), [("x.tif", "tiff"), ("x.fits", "fits"), ("n.tif", "tiff")])
def test_black_is_no_missing_data(tmp_path, name, kind):
    """Zeros of images of TIFF and FITS are values; `nodata` of TIFF is none."""
    image = np.arange(32 * 32, dtype="u1").reshape(32, 32)
    tifffile.imwrite(tmp_path / "x.tif", image, tile=(16, 16))
    tifffile.imwrite(tmp_path / "n.tif", image, tile=(16, 16), extratags=[(42113, "s", 0, "7", True)])
    fits.PrimaryHDU(image.astype("i2")).writeto(tmp_path / "x.fits")
    shown = ts.KvStore.open(f"file://{tmp_path / name}|{kind}:").result()
    (document,) = [json.loads(shown[key]) for key in shown.list().result() if key.endswith(b".zarray")]
    assert document["fill_value"] == (7 if name == "n.tif" else None)
