"""Datasets as xarray makes them, copied from format to format: xarray reads in the copy what it read in the source."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import xarray as xr

import fsstore as ts

SEEDS = 24


def a_dataset(seed):
    """Return a random dataset and how it is encoded: gaps, packed numbers, texts, times, attributes of all kinds."""
    draw = np.random.default_rng(seed)
    sizes = {name: int(draw.integers(1, 9)) for name in "abc"}
    variables, encoding = {}, {}
    for number, kind in enumerate(
        draw.choice(("float", "packed", "whole", "flag", "text", "octets", "time", "span"), 4)
    ):
        dims = [name for name in sizes if draw.random() < 0.6]
        shape = [sizes[name] for name in dims]
        how = {}
        if kind == "float":
            values = np.where(draw.random(shape) < 0.2, np.nan, draw.normal(size=shape)).astype("f4")
            how = {"_FillValue": draw.choice([None, np.float32(-9), np.float32(np.nan)])}
        elif kind == "packed":
            values = np.where(draw.random(shape) < 0.2, np.nan, draw.integers(0, 200, shape) / 4)
            how = {"dtype": "i2", "scale_factor": 0.25, "add_offset": -3.0, "_FillValue": np.int16(-1)}
        elif kind == "whole":
            values = draw.integers(0, 5, shape)
        elif kind == "flag":
            values = draw.random(shape) < 0.5
        elif kind in ("text", "octets"):
            letters = ["é" * length for length in draw.integers(0, 4, int(np.prod(shape)))]
            values = np.array(letters, object).reshape(shape)
            if kind == "octets":
                values = np.char.encode(values.astype("U4"), "utf-8").astype("S8")
        elif kind == "time":
            values = np.datetime64("1999-12-31", "ns") + draw.integers(0, 10**6, shape).astype("m8[m]")
        else:
            values = draw.integers(0, 10**6, shape).astype("m8[s]").astype("m8[ns]")
        attributes = {"list": ["x", "yy"], "number": 1.5, "none": np.nan} if draw.random() < 0.5 else {}
        if dims and kind not in ("text", "octets") and draw.random() < 0.5:
            how |= {"zlib": True, "chunksizes": tuple(int(draw.integers(1, size + 1)) for size in shape)}
        variables[f"v{number}"] = (dims, np.asarray(values), attributes)
        encoding[f"v{number}"] = how
    coordinates = {name: np.arange(size) * 0.5 for name, size in sizes.items() if draw.random() < 0.6}
    coordinates["time"] = pd.Timestamp("2020-01-01")
    return xr.Dataset(variables, coordinates, {"title": "é", "seed": seed}), encoding


@pytest.mark.parametrize("scheme", ["zarr2", "zarr3"])
@pytest.mark.parametrize(
    "seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(4, 4 * SEEDS))]
)
def test_a_copy_of_a_netcdf_file_is_the_same_dataset(tmp_path, scheme, seed):
    """Conversion keeps values, gaps and attributes; the copy verifies, and copying it again changes nothing."""
    dataset, encoding = a_dataset(seed)
    source, target = str(tmp_path / "x.nc"), f"file://{tmp_path}/x.zarr|{scheme}:"
    dataset.to_netcdf(source, encoding=encoding)
    ts.copy(source, target).result()
    expected = xr.open_dataset(source, engine="netcdf4").load()
    for engine in ("zarr", "fsstore"):
        found = xr.open_dataset(tmp_path / "x.zarr", engine=engine).load()
        xr.testing.assert_identical(found, expected)
    assert ts.verify(target, against=source, level="values").result()
    ts.copy(source, target, if_exists="update").result()
    xr.testing.assert_identical(xr.open_zarr(tmp_path / "x.zarr").load(), expected)


@pytest.mark.filterwarnings("ignore:.*does not have a Zarr V3 specification")
@pytest.mark.parametrize(("version", "other"), [(2, 3), (3, 2)])
@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 40))])
def test_a_version_of_zarr_becomes_the_other(tmp_path, version, other, seed):
    """What xarray writes in one version it reads alike in a copy, and in a view, of the other version."""
    dataset, encoding = a_dataset(seed)
    plain = {
        name: {key: value for key, value in how.items() if key not in ("zlib", "chunksizes")}
        for name, how in encoding.items()
    }
    source = tmp_path / "x.zarr"
    dataset.to_zarr(source, zarr_format=version, encoding=plain, consolidated=False)
    expected = xr.open_zarr(source, consolidated=False).load()
    ts.copy(str(source), f"file://{tmp_path}/y.zarr|zarr{other}:").result()
    for place in (tmp_path / "y.zarr", f"zarr{other}::file://{source}"):
        xr.testing.assert_identical(xr.open_zarr(place, consolidated=False).load(), expected)


@pytest.mark.parametrize(
    ("name", "value"), [("units", "days since 2020-02-01"), ("scale_factor", 0.5), ("_FillValue", -2)]
)
def test_values_of_another_meaning_are_not_appended(tmp_path, name, value):
    """An array whose attributes say that its values mean something else is refused; one that means the same is taken."""
    target = tmp_path / "all.zarr"
    usual = {"units": "days since 2020-01-01", "scale_factor": 0.25, "_FillValue": -1}
    group = ts.open_group(str(target), mode="w").result()
    options = {"shape": (3,), "dtype": "i4", "dimension_names": ["time"]}
    group.create_array("t", attributes=usual, **options).result().write([0, 1, 2]).result()
    group.create_array("other", attributes={**usual, name: value}, **options).result().write(0).result()
    group.create_array("bare", **options).result().write([6, 7, 8]).result()
    group.create_array("alike", attributes=usual, **options).result().write([3, 4, 5]).result()
    with pytest.raises(ts.errors.FailedPreconditionError, match=f"{name} of what is appended"):
        ts.append(f"{target}/t", f"{target}/other", "time").result()
    for source in ("alike", "bare"):
        ts.append(f"{target}/t", f"{target}/{source}", "time").result()
    assert ts.open(f"{target}/t").result().read().result().tolist() == list(range(9))
