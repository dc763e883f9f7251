"""Values that are packed with numbers of single precision are unpacked as xarray unpacks them from the file itself."""

from __future__ import annotations

import itertools
import json

import netCDF4
import numpy as np
import pytest
import xarray as xr

import fsstore as ts
from fsstore import references
from fsstore.values.dtypes import single_numbers

SINGLE, DOUBLE = np.float32, np.float64
PACKINGS = [
    {name: kind(value) for (name, value), kind in zip(given, kinds)}
    for given in (
        [("scale_factor", 0.1)], [("add_offset", 273.15)], [("scale_factor", 0.01), ("add_offset", 273.15)],
    )
    for kinds in itertools.product((SINGLE, DOUBLE), repeat=len(given))
]  # fmt: skip
TYPES = ("i1", "u1", "i2", "i4", "f4")


def _write(path, packing, kind, form="NETCDF4", start=0, fill=-9):
    with netCDF4.Dataset(path, "w", format=form) as file:
        file.createDimension("time", 5)
        time = file.createVariable("time", "f8", ("time",))
        time.units = "hours since 2000-01-01"
        time[:] = np.arange(start, start + 5)
        values = file.createVariable("v", kind, ("time",), fill_value=fill)
        values.set_auto_maskandscale(False)
        for name, value in packing.items():
            values.setncattr(name, value)
        values[:] = np.array([1, 7, 100, 9 if fill is None else fill % 256 if kind == "u1" else fill, 3]).astype(kind)
    return str(path)


def _same(found, want):
    assert found.dtype == want.dtype
    np.testing.assert_array_equal(found.values, want.values)


@pytest.mark.parametrize("form", ["NETCDF4", "NETCDF3_CLASSIC"])
@pytest.mark.parametrize(("kind", "fill"), [*((kind, -9) for kind in TYPES), ("i2", None)])
def test_a_file_by_itself(tmp_path, form, kind, fill):
    """The engine gives the type and the values that xarray's own gives."""
    kind = {"u1": "i1"}.get(kind, kind) if form != "NETCDF4" else kind
    fill = 9 if kind == "u1" and fill is not None else fill
    for number, packing in enumerate(PACKINGS):
        path = _write(tmp_path / f"{number}.nc", packing, kind, form, fill=fill)
        with xr.open_dataset(path) as want, xr.open_dataset(f"file://{path}", engine="fsstore") as found:
            _same(found["v"], want["v"])
            assert found["v"].attrs == want["v"].attrs
            for name, value in packing.items():
                assert isinstance(found["v"].encoding[name], np.float32) is isinstance(value, np.float32)


@pytest.mark.parametrize("kind", TYPES)
def test_files_that_drift(tmp_path, kind):
    """Pieces are unpacked each with the precision of its own file, and the whole has the type of their sum."""
    paths = [
        _write(tmp_path / f"{number}.nc", packing, kind, start=5 * number, fill=9 if kind == "u1" else -9)
        for number, packing in enumerate(PACKINGS)
    ]
    combined = references.combine(paths, "time").result()
    assert not combined.is_references
    combined.save(tmp_path / "all.mosaic")
    with xr.open_dataset(str(tmp_path / "all.mosaic"), engine="fsstore") as found:
        for number, path in enumerate(paths):
            with xr.open_dataset(path) as want:
                got = found["v"].values[5 * number : 5 * number + 5]
                np.testing.assert_array_equal(got, want["v"].values.astype(got.dtype))
        assert found["v"].dtype == np.float64


@pytest.mark.parametrize("saved", ["all.json", "all.mosaic"])
def test_files_that_agree(tmp_path, saved):
    """References keep the precision, saved as a set or as a dataset; a drift of the precision alone is one."""
    packing = {"scale_factor": SINGLE(0.01), "add_offset": SINGLE(273.15)}
    paths = [_write(tmp_path / f"{number}.nc", packing, "i2", start=5 * number) for number in range(2)]
    combined = references.combine(paths, "time").result()
    assert combined.is_references
    combined.save(tmp_path / saved)
    with xr.open_dataset(str(tmp_path / saved), engine="fsstore") as found, xr.open_mfdataset(paths) as want:
        _same(found["v"], want["v"])
        assert found["v"].dtype == np.float32
    other = _write(tmp_path / "2.nc", {name: DOUBLE(value) for name, value in packing.items()}, "i2", start=10)
    report = references.combine([*paths, other], "time", dry_run=True).result()
    assert report.arrays["v"].how == "layers"


def test_what_documents_say(tmp_path):
    """Attributes say it where NCZarr does, and only of what values are packed with; other tools see the same numbers."""
    path = _write(tmp_path / "a.nc", {"scale_factor": SINGLE(0.1), "add_offset": 1.0, "valid_min": SINGLE(3)}, "i2")
    said = json.loads(ts.KvStore.open(f"file://{path}|hdf5:").result()["v/.zattrs"])
    assert said["scale_factor"] == float(SINGLE(0.1))
    assert said["_nczarr_attr"] == {"types": {"scale_factor": "<f4"}}
    plain = _write(tmp_path / "b.nc", {"scale_factor": 0.1}, "i2")
    assert "_nczarr_attr" not in json.loads(ts.KvStore.open(f"file://{plain}|hdf5:").result()["v/.zattrs"])
    references.scan(path).save(tmp_path / "set.json")
    with xr.open_dataset(
        str(tmp_path / "set.json"), engine="kerchunk", storage_options={"remote_protocol": "file"}
    ) as found:
        assert found["v"].attrs == {"valid_min": 3.0}


@pytest.mark.parametrize(
    "said",
    [None, 5, {}, {"types": 5}, {"types": {"scale_factor": "<f8", "other": "<f4"}}, {"types": {"scale_factor": []}}],
)
def test_types_that_say_nothing(said):
    """Attributes of other shapes say nothing of precision."""
    assert single_numbers({"_nczarr_attr": said, "scale_factor": 0.1}) == frozenset()
