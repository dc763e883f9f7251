"""Scans of HDF5 and NetCDF 3 hold what the library of the format reads, or name what they leave out."""

import json
import warnings

import netCDF4
import numpy as np
import pytest
import xarray as xr

import fsstore as ts
from fsstore import references

h5py = pytest.importorskip("h5py")
netcdf_file = pytest.importorskip("scipy.io").netcdf_file


def scanned(path, **options):
    """Return the set of a file, saved and opened again, and what the scan said that it lacks."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        references.scan(path, **options).save(f"{path}.json")
    return references.open(f"{path}.json"), [str(each.message) for each in told if "lacks" in str(each.message)]


def read(path, name):
    """Return an array of a saved set."""
    return ts.open(f"file://{path}.json|reference:{name}/|zarr2:").result().read().result()


def compact(file, name, data):
    """Make a compact dataset."""
    layout = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    layout.set_layout(h5py.h5d.COMPACT)
    space, kind = h5py.h5s.create_simple(data.shape), h5py.h5t.py_create(data.dtype)
    made = h5py.h5d.create(file.id, name.encode(), kind, space, layout)
    made.write(h5py.h5s.ALL, h5py.h5s.ALL, data)


@pytest.mark.parametrize("threshold", [0, 500])
def test_compact_datasets_hold_their_values(tmp_path, threshold):
    """Values that stand in the header are embedded whatever is small; marks of missing data stay."""
    data = {"c": np.array([7, 8], "<i4"), "e": np.arange(9000, dtype=">i2").reshape(90, 100), "f": np.ones(3, "f4")}
    path = f"{tmp_path}/a.h5"
    with h5py.File(path, "w") as file:
        for name, values in data.items():
            compact(file, name, values)
        file["f"].attrs["_FillValue"] = np.float32(1)
    refs, lacks = scanned(path, inline_threshold=threshold)
    assert not lacks and references.verify(refs, decode=True)
    for name, values in data.items():
        assert read(path, name).tolist() == values.tolist()
    assert json.loads(refs["f/.zattrs"])["_FillValue"] == 1.0


def test_single_texts_are_texts(tmp_path):
    """A scalar text of any length is what it is, an empty one and one that is no ASCII too."""
    path, texts = f"{tmp_path}/a.h5", {"t": "alone", "e": "", "u": "übermäßig"}
    with h5py.File(path, "w") as file:
        for name, text in texts.items():
            file.create_dataset(name, data=text, dtype=h5py.string_dtype())
    assert scanned(path)[1] == []
    assert {name: read(path, name).item() for name in texts} == texts


def test_datasets_without_elements_open(tmp_path):
    """A dataset of no elements is part of a set that opens, with the shape that it has."""
    path = f"{tmp_path}/a.h5"
    with h5py.File(path, "w") as file:
        file["empty"], file["flat"], file["t"] = np.zeros((0,), "f4"), np.zeros((0, 3), "i2"), np.arange(3.0)
        file["null"] = h5py.Empty("f4")
    refs, lacks = scanned(path)
    assert lacks and '"null"' in lacks[0] and "null/.zarray" not in refs
    opened = xr.open_dataset(f"file://{path}.json|reference:", engine="fsstore")
    assert (opened["empty"].shape, opened["flat"].shape, opened.t.values.tolist()) == ((0,), (0, 3), [0, 1, 2])


@pytest.mark.parametrize("shape", [(), (2,)])
def test_a_compound_attribute_leaves_the_values_alone(tmp_path, shape):
    """An attribute that JSON cannot hold is left out by name; the variable keeps its values and other attributes."""
    path = f"{tmp_path}/a.h5"
    with h5py.File(path, "w") as file:
        file["t"] = np.arange(1, 4)
        file["t"].attrs["odd"] = np.zeros(shape, [("a", "i4"), ("b", "f8")])
        file["t"].attrs["units"] = "K"
        file.attrs["record"] = np.zeros(shape, [("a", "i4")])
    _, lacks = scanned(path)
    assert read(path, "t").tolist() == [1, 2, 3]
    opened = xr.open_dataset(f"file://{path}.json|reference:", engine="fsstore")
    assert opened.t.attrs == {"units": "K"}
    assert '"t": it is without its attributes "odd"' in lacks[0]
    assert '"": it is without its attributes "record"' in lacks[0]


@pytest.mark.parametrize("libver", ["earliest", "latest"])
def test_chunks_are_where_they_are(tmp_path, libver):
    """HDF5 2.0.0 lists wrong places where only a later axis can grow; the set has the right ones, gaps included."""
    path, data = f"{tmp_path}/a.h5", np.arange(96.0).reshape(4, 6, 4)
    growing = [(4, None, 4), (None, 6, 4), (None, None, 4), (4, 6, 4), (9, 6, None), (7, None, 11)]
    with h5py.File(path, "w", libver=libver) as file:
        for number, most in enumerate(growing):
            for name in (f"a{number}", f"gaps{number}", f"same{number}"):
                options = {"maxshape": most, "chunks": (2, 2, 3), "compression": "gzip", "fillvalue": -1}
                file.create_dataset(name, (4, 6, 4), "f8", **options)
            file[f"a{number}"][...] = data
            file[f"gaps{number}"][2:, 2:4] = data[2:, 2:4]
            file[f"same{number}"][...] = 1
        expected = {name: file[name][...] for name in file}
    assert scanned(path, inline_threshold=0)[1] == []
    for name, values in expected.items():
        assert read(path, name).tolist() == values.tolist()


def test_what_fails_is_left_out_whole(tmp_path):
    """An array that no set can hold leaves no metadata behind, which would read as fill values."""
    path = f"{tmp_path}/a.h5"
    with h5py.File(path, "w") as file:
        file["t"] = np.arange(3)
        file.create_dataset("lzf", data=np.arange(10000), compression="lzf")
        file.create_dataset("ref", (1,), h5py.regionref_dtype)
    refs, lacks = scanned(path)
    assert '"ref"' in lacks[0] and '"lzf"' not in lacks[0]
    assert {key.partition("/")[0] for key in refs} - {".zattrs", ".zgroup"} == {"t", "lzf"}


def records(path, variables, count, order=None):
    """Write a NetCDF 3 file of variables along an unlimited dimension."""
    with netcdf_file(path, "w") as file:
        file.createDimension("n", None), file.createDimension("x", 3), file.createDimension("y", 5)
        fixed = file.createVariable("fixed", "i4", ("x",))
        fixed[:] = [1, 2, 3]
        rng = np.random.default_rng(0)
        for name, (kind, dimensions) in variables.items():
            variable = file.createVariable(name, kind, ("n", *dimensions))
            shape = (count, *({"x": 3, "y": 5}[each] for each in dimensions))
            data = rng.integers(1, 100, shape)
            variable[:] = data.astype(np.dtype(kind).newbyteorder(">"))


RECORDS = {
    "one of bytes": {"a": ("i1", "x")},
    "one of shorts": {"a": ("i2", "x")},
    "one scalar": {"a": ("i2", "")},
    "bytes and numbers": {"a": ("i1", "x"), "b": ("f8", ""), "c": ("i2", "y"), "d": ("f4", "xy")},
    "numbers": {"a": ("f8", "x"), "b": ("i4", "")},
}


@pytest.mark.parametrize("threshold", [0, 100])
@pytest.mark.parametrize("variables", RECORDS.values(), ids=RECORDS)
def test_records_of_netcdf3(tmp_path, variables, threshold):
    """Record variables of every padding are what SciPy reads."""
    path = f"{tmp_path}/a.nc"
    records(path, variables, 4)
    refs, lacks = scanned(path, inline_threshold=threshold)
    assert not lacks and references.verify(refs, decode=True)
    with netcdf_file(path, mmap=False) as file:
        for name in ("fixed", *variables):
            assert read(path, name).tolist() == file.variables[name][...].tolist(), name


def test_records_of_a_file_that_is_still_written(tmp_path):
    """Of a file that does not say how many records it has, those are read that are whole in it."""
    path = f"{tmp_path}/a.nc"
    records(path, RECORDS["numbers"], 4)
    with netcdf_file(path, mmap=False) as file:
        wanted = {name: file.variables[name][...].tolist() for name in RECORDS["numbers"]}
    data = bytearray((tmp_path / "a.nc").read_bytes())
    data[4:8] = b"\xff" * 4
    (tmp_path / "a.nc").write_bytes(data)
    scanned(path)
    assert {name: read(path, name).tolist() for name in wanted} == wanted


def test_records_in_another_order(tmp_path):
    """Record variables that do not lie in the order of the header are found where the header says they begin."""
    path = f"{tmp_path}/a.nc"
    records(path, {"a": ("f8", ""), "b": ("i4", ""), "c": ("i4", "")}, 3)
    with netcdf_file(path, mmap=False) as file:
        expected = {name: file.variables[name][...].tolist() for name in "abc"}
    data = bytearray((tmp_path / "a.nc").read_bytes())
    places = {}
    for name in (b"b", b"c"):  # begin is the last word of a variable's entry
        entry = data.index(b"\x00\x00\x00\x01" + name + b"\0\0\0")
        places[name] = entry + 8 + 4 + 4 + 8 + 4 + 4
    one, other = (slice(places[name], places[name] + 4) for name in (b"b", b"c"))
    data[one], data[other] = data[other], data[one]
    (tmp_path / "a.nc").write_bytes(data)
    scanned(path)
    assert read(path, "b").tolist() == expected["c"] and read(path, "c").tolist() == expected["b"]
    assert read(path, "a").tolist() == expected["a"]


def test_names_of_netcdf3_end_at_the_first_nul(tmp_path):
    """The NetCDF library shows names that are padded with NUL without it: of dimensions, variables and attributes."""
    path = tmp_path / "a.nc"
    xr.Dataset({"yyy": ("xxx", np.arange(3.0), {"aaa": 1.0})}).to_netcdf(path, engine="scipy")
    data = path.read_bytes()
    for name in (b"yyy", b"xxx", b"aaa"):
        assert data.count(name) == 1
        data = data.replace(name, name[:2] + b"\0")
    path.write_bytes(data)
    with netCDF4.Dataset(path) as file:
        assert (list(file.variables), list(file.dimensions)) == (["yy"], ["xx"])
    found = xr.open_dataset(path, engine="fsstore")
    assert (list(found), list(found.sizes), list(found["yy"].attrs)) == (["yy"], ["xx"], ["aa"])
    np.testing.assert_array_equal(found["yy"], [0, 1, 2])
