"""Zarr hierarchies among the files that are combined: marks of missing data, names of dimensions, both versions."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import xarray as xr

import fsstore as ts
from fsstore import references


def _write(folder, number, version, *, scale=0.5, chunk=2, steps=4):
    """Write one file: packed values with gaps, floats, and coordinates; return it as xarray reads it."""
    rng = np.random.default_rng(number)
    packed = rng.integers(-50, 50, (steps, 3)) * scale
    packed[rng.random(packed.shape) < 0.4] = np.nan
    data = xr.Dataset(
        {"p": (("t", "x"), packed), "f": (("t", "x"), rng.normal(size=(steps, 3)))},
        {"t": np.arange(steps) + 10 * number, "x": np.arange(3) * 0.5},
    )
    encoding = {"p": {"dtype": "i2", "_FillValue": -999, "scale_factor": scale, "add_offset": 10.0}}
    for name in data.data_vars:
        encoding.setdefault(name, {})["chunks" if version else "chunksizes"] = (chunk, 3)
    if version:
        path = f"{folder}/{number}.zarr"
        data.to_zarr(path, zarr_format=version, encoding=encoding, consolidated=False)
        return xr.open_zarr(path, consolidated=False, chunks=None).load()
    data.to_netcdf(f"{folder}/{number}.nc", encoding=encoding)
    return xr.load_dataset(f"{folder}/{number}.nc")


def _assert_combined(folder, pieces, name="all.mosaic"):
    references.combine([f"{folder}/*.zarr", f"{folder}/*.nc"], "t").result().save(folder / name)
    want = xr.concat(pieces, "t", data_vars="minimal", coords="minimal", compat="override")
    with xr.open_dataset(str(folder / name), engine="fsstore") as found:
        xr.testing.assert_equal(found.load(), want)
    return want


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("alike", [True, False], ids=["references", "layers"])
def test_what_marks_missing_data_stays_missing(tmp_path, version, alike):
    """The fill value of zarr v2 marks missing data, in arrays of references and of pieces; so does the mark of v3."""
    unlike = [{}, {"scale": 0.25}, {"chunk": 3}]
    pieces = [_write(tmp_path, n, version, **({} if alike else unlike[n])) for n in range(3)]
    want = _assert_combined(tmp_path, pieces)
    assert np.isnan(want["p"]).any()


@pytest.mark.parametrize("form", ["all.mosaic", "all.mosaic.json"])
def test_pieces_of_zarr_v3_are_an_array_of_zarr_v3(tmp_path, form):
    """Arrays of pieces are shown in the version of their groups, with their dimensions; zarr-python reads them."""
    pieces = [_write(tmp_path, n, 3, chunk=2 + n % 2) for n in range(3)]
    want = _assert_combined(tmp_path, pieces, form)
    shown = ts.get_mapper(f"file://{tmp_path}/{form}|mosaic:")
    assert json.loads(shown["f/zarr.json"])["dimension_names"] == ["t", "x"]
    with xr.open_dataset(shown, engine="zarr", consolidated=False) as found:
        xr.testing.assert_equal(found.load(), want)


@pytest.mark.parametrize("versions", [(None, 2), (None, 3), (2, 3), (3, None, 2)])
def test_files_of_several_kinds_are_one_dataset(tmp_path, versions):
    """NaN as a mark says nothing, so coordinates of files with it and without it are the same."""
    pieces = [_write(tmp_path, number, version) for number, version in enumerate(versions)]
    _assert_combined(tmp_path, pieces)


def test_coordinates_of_one_unit_may_be_stored_as_several_types(tmp_path):
    """Times that are integers in one file and floats in another, in the same unit, are brought together."""
    start, hour = np.datetime64("2001-01-01", "ns"), np.timedelta64(1, "h")
    for number, kind in enumerate(["i4", "f8"]):
        times = start + (np.arange(3) + 3 * number) * hour
        data = xr.Dataset({"f": ("t", np.arange(3.0))}, {"t": times})
        data.to_netcdf(tmp_path / f"{number}.nc", encoding={"t": {"units": "hours since 2001-01-01", "dtype": kind}})
    references.combine(f"{tmp_path}/*.nc", "t").result().save(tmp_path / "all.mosaic")
    with xr.open_dataset(str(tmp_path / "all.mosaic"), engine="fsstore") as found:
        np.testing.assert_array_equal(found["t"].values, start + np.arange(6) * hour)


@pytest.mark.parametrize("version", [2, 3])
def test_a_variable_that_some_files_lack_is_missing_there(tmp_path, version):
    """References of the files that have it are an array, whose fill value is the mark: NaN is one that documents know."""
    pieces = [_write(tmp_path, number, version) for number in range(2)]
    shutil.rmtree(tmp_path / "1.zarr" / "f")
    references.combine(f"{tmp_path}/*.zarr", "t").result().save(tmp_path / "all.mosaic")
    with xr.open_dataset(str(tmp_path / "all.mosaic"), engine="fsstore") as found:
        np.testing.assert_array_equal(found["f"].values[:4], pieces[0]["f"].values)
        assert np.isnan(found["f"].values[4:]).all()


@pytest.mark.parametrize("places", ["*.zarr", ["0.zarr", "1.zarr"], ["./0.zarr/", "1.zarr"]])
def test_directories_may_be_told_from_here(tmp_path, monkeypatch, places):
    """Paths of zarr hierarchies are those below the current directory, as paths of files are."""
    pieces = [_write(tmp_path, number, 2) for number in range(2)]
    monkeypatch.chdir(tmp_path)
    references.combine(places, "t").result().save("all.mosaic")
    with xr.open_dataset("all.mosaic", engine="fsstore") as found:
        np.testing.assert_array_equal(found["p"].values, np.concatenate([piece["p"].values for piece in pieces]))
