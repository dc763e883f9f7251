"""Datasets of NetCDF files are those of xarray's engine netcdf4, of all formats, and through saved sets too."""

from __future__ import annotations

import netCDF4
import numpy as np
import pytest
import xarray as xr

import fsstore as ts
from fsstore import references
from fsstore.runtime import execution


def write_rich(path):
    """Write variables of all types, with coordinates, holes, strings, enumerations and a group."""
    random = np.random.default_rng(0)
    with netCDF4.Dataset(path, "w") as file:
        for name, size in {"time": None, "lat": 6, "lon": 8, "letters": 10}.items():
            file.createDimension(name, size)
        file.title, file.version, file.numbers = "A title", np.int32(3), np.array([1.5, 2.5], "f4")
        file.setncattr_string("texts", ["a", "bc"])
        time = file.createVariable("time", "f8", ("time",))
        time[:], time.units = np.arange(5) * 6.0, "hours since 2001-01-01"
        file.createVariable("lat", "f4", ("lat",))[:] = np.linspace(-50, 50, 6)
        cube = ("time", "lat", "lon")
        for number, kind in enumerate(["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8"]):
            found = file.createVariable(
                f"v_{kind}", kind, cube, zlib=True, shuffle=number % 2 == 0, fletcher32=number % 3 == 0
            )
            found[:] = random.integers(0, 100, (5, 6, 8))
        packed = file.createVariable("packed", "i2", cube, fill_value=-999, zlib=True)
        packed.scale_factor, packed.add_offset = 0.1, 20.0
        packed[:] = random.normal(20, 5, (5, 6, 8))
        packed[0, 0, 0] = np.ma.masked
        file.createVariable("short", "i4", ("time",))[:2] = 7
        file.createVariable("never", "f8", ("time", "lon"))
        letters = file.createVariable("letters", "S1", ("lat", "letters"))
        letters[:] = netCDF4.stringtochar(np.array([b"hello", b"x"] * 3, "S10"))
        file.createVariable("texts", str, ("lat",))[:] = np.array(["αβγ", "b", "", "d", "e", "f"], object)
        file.createVariable("one", "f8", ())[...] = 2.5
        clouds = file.createEnumType(np.int8, "clouds_t", {"Clear": 0, "Cumulus": 2, "Missing": 127})
        file.createVariable("clouds", clouds, ("lat",), fill_value=127)[:] = [0, 2, 0, 2, 0, 127]
        file.createVariable("run", "f8", ("lat", "lon"))[:] = random.normal(size=(6, 8))
        file.createVariable("big", ">f4", ("lat",), endian="big")[:] = np.arange(6)
        group = file.createGroup("group")
        group.note = "inside"
        group.createDimension("z", 2)
        group.createVariable("w", "f4", ("z", "lat"))[:] = 3
        group.createVariable("z", "i4", ("z",))[:] = [1, 2]


def reference(path, **options):
    """Return what the engine netcdf4 shows."""
    with xr.open_dataset(path, engine="netcdf4", **options) as found:
        return found.load()


@pytest.mark.parametrize("decode", [False, True])
@pytest.mark.parametrize("group", [None, "group"])
def test_a_rich_file_is_identical(tmp_path, decode, group):
    """All variables, dimensions and attributes are equal, decoded or not, in the root and in a group."""
    write_rich(tmp_path / "a.nc")
    want = reference(tmp_path / "a.nc", decode_cf=decode, group=group)
    got = xr.open_dataset(f"file://{tmp_path}/a.nc", engine="fsstore", decode_cf=decode, group=group).load()
    assert got.identical(want)
    assert {name: each.dtype.kind for name, each in got.variables.items() if each.dtype.kind not in "OU"} == {
        name: each.dtype.kind for name, each in want.variables.items() if each.dtype.kind not in "OU"
    }


@pytest.mark.parametrize("name", ["a.json", "a.parq"])
def test_a_saved_scan_is_identical(tmp_path, name):
    """What a scan found can be saved, and read by others without the scanner."""
    write_rich(tmp_path / "a.nc")
    references.open(f"file://{tmp_path}/a.nc").save(f"file://{tmp_path}/{name}")
    got = xr.open_dataset(f"file://{tmp_path}/{name}|reference:", engine="fsstore", use_zarr_fill_value_as_mask=False)
    assert got.load().identical(reference(tmp_path / "a.nc"))


FORMATS = ["NETCDF3_CLASSIC", "NETCDF3_64BIT_OFFSET", "NETCDF3_64BIT_DATA"]


def write_classic(path, form, kinds, *, records):
    """Write variables of some types, along records or a fixed dimension."""
    with netCDF4.Dataset(path, "w", format=form) as file:
        file.createDimension("t", None)
        file.createDimension("x", 3)
        file.title, file.filename, file.many = "é", "not dropped", np.arange(3, dtype="i2")
        for number, kind in enumerate(kinds):
            dims = ("t", "x") if records and number % 2 == 0 else ("t",) if records else ("x",)
            found = file.createVariable(f"v{number}", kind, dims)
            found.units = "m"
            shape = (7, 3) if len(dims) == 2 else (7,) if records else (3,)
            found[:] = np.full(shape, b"q") if kind == "S1" else np.arange(np.prod(shape)).reshape(shape).astype(kind)


CLASSIC = ["i1", "S1", "i2", "i4", "f4", "f8"]


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("records", [False, True])
@pytest.mark.parametrize(
    "kinds",
    [CLASSIC, ["i1"], ["i2"], ["S1"], ["f4"], ["i2", "f8", "i1"], []],
    ids=lambda kinds: "-".join(kinds) or "none",
)
def test_classic_files_are_identical(tmp_path, form, records, kinds):
    """Files of each version, with one, several and no record variables of every type, are read as by netCDF."""
    if form == FORMATS[2]:
        kinds = [*kinds, "u1", "u2", "i8"] if len(kinds) > 2 else kinds
    path = tmp_path / "a.nc"
    write_classic(path, form, kinds, records=records)
    got = xr.open_dataset(f"file://{path}", engine="fsstore", decode_cf=False).load()
    assert got.identical(reference(path, decode_cf=False))


@pytest.mark.parametrize("suffix", ["", "|hdf5:"])
def test_a_near_file_is_opened_on_the_thread_that_asks(tmp_path, monkeypatch, suffix):
    """Nothing waits for another thread: that costs as much as the headers of some variables, and more where all work."""
    write_rich(tmp_path / "a.nc")

    def refused():
        raise AssertionError("the event loop was asked for")

    monkeypatch.setattr(execution, "loop", refused)
    found = xr.open_dataset(f"file://{tmp_path}/a.nc{suffix}", engine="fsstore")
    assert found["v_i4"].load().identical(reference(tmp_path / "a.nc")["v_i4"].load())


def test_long_runs_are_shown_in_pieces(tmp_path):
    """A variable of many megabytes is read in chunks of a few, those at the edge and at the end of the file too."""
    path = tmp_path / "a.nc"
    values = np.random.default_rng(0).normal(size=(7, 300_001))
    with netCDF4.Dataset(path, "w", format="NETCDF3_64BIT_OFFSET") as file:
        file.createDimension("y", 7)
        file.createDimension("x", 300_001)
        file.createVariable("v", "f8", ("y", "x"))[:] = values
    array = ts.open(f"file://{path}|netcdf3:v").result()
    assert array.chunk_layout.read_chunk.shape[0] < 7
    np.testing.assert_array_equal(array.read().result(), values)
    np.testing.assert_array_equal(array[6, 299_990:].read().result(), values[6, 299_990:])
