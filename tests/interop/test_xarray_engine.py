"""The xarray engine gives the datasets that xarray's own engines give, from any URL of ours, lazily."""

from __future__ import annotations

import json
import multiprocessing
import pickle
import warnings
import zipfile
from concurrent.futures import ProcessPoolExecutor

import fsspec
import numpy as np
import pytest
import xarray as xr
import zarr

import fsstore as ts
from fsstore import references

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")


def a_dataset():
    """Return a dataset with coordinates, packed integers, missing values, times, text, a scalar and attributes."""
    rng = np.random.default_rng(2)
    temperature = rng.random((6, 5, 4)).astype("f4")
    temperature[1, 2, 3] = np.nan
    variables = {
        "temp": (("time", "lat", "lon"), temperature, {"units": "K"}),
        "count": (("lat", "lon"), np.arange(20, dtype="i4").reshape(5, 4)),
        "packed": (("time",), np.array([10.0, 10.5, np.nan, 12, 13, 14])),
        "one": ((), np.int16(7)),
    }
    coords = {
        "time": ("time", np.arange("2020-01-01", "2020-01-07", dtype="M8[D]").astype("M8[ns]")),
        "lat": ("lat", np.linspace(-60, 60, 5)),
        "lon": ("lon", np.arange(4.0)),
        "area": (("lat", "lon"), np.ones((5, 4)), {"long_name": "é"}),
    }
    made = xr.Dataset(variables, coords, {"title": "a test", "n": 3})
    made.packed.encoding = {"dtype": "i2", "scale_factor": 0.5, "add_offset": 10.0, "_FillValue": -999}
    made.temp.encoding = {"chunks": (2, 5, 3), "chunksizes": (2, 5, 3), "zlib": True}
    return made


def netcdf(path):
    """Write the dataset with netCDF4."""
    written = a_dataset()
    for variable in written.variables.values():
        variable.encoding.pop("chunks", None)
    written.to_netcdf(path, engine="netcdf4")
    return path


def write_zarr(path, zarr_format, consolidated):
    """Write the dataset with xarray's zarr engine."""
    made = a_dataset()
    for variable in made.variables.values():
        for name in ("chunksizes", "zlib"):
            variable.encoding.pop(name, None)
    made.to_zarr(path, zarr_format=zarr_format, consolidated=consolidated)


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("consolidated", [True, False])
def test_zarr_hierarchies(tmp_path, zarr_format, consolidated):
    """Both zarr versions, with and without consolidated metadata, decoded or not: as `open_zarr` gives them."""
    write_zarr(tmp_path / "a.zarr", zarr_format, consolidated)
    for decode in (True, False):
        expected = xr.open_zarr(tmp_path / "a.zarr", chunks=None, consolidated=consolidated, decode_cf=decode)
        path = tmp_path / "a.zarr"
        for url in (f"file://{path}/", f"file://{path}/|zarr{zarr_format}:", path, str(path)):
            found = xr.open_dataset(url, engine="fsstore", decode_cf=decode)
            xr.testing.assert_identical(found.load(), expected.load())
            for name in expected.variables:
                assert found[name].dtype == expected[name].dtype, name
    assert found.temp.encoding["preferred_chunks"] == {"time": 2, "lat": 5, "lon": 3}


@pytest.mark.parametrize("name", ["r.json", "r.json.zst", "r.parq"])
def test_reference_sets(tmp_path, name, scan_hdf5):
    """A kerchunk set of a NetCDF file, in every form, is the dataset that netCDF4 reads from the file."""
    document = scan_hdf5(netcdf(tmp_path / "a.nc"), inline_threshold=50)
    references.open(document).save(tmp_path / name)
    expected = xr.open_dataset(tmp_path / "a.nc", engine="netcdf4")
    for url in (f"file://{tmp_path}/{name}|reference:", f"file://{tmp_path}/{name}"):
        found = xr.open_dataset(url, engine="fsstore")
        xr.testing.assert_equal(found.load(), expected.load())
        assert set(found.coords) == set(expected.coords)
        assert found["count"].dtype == np.int32, "a zero is no missing value"
        assert {**found.attrs} == {**expected.attrs}


@pytest.mark.parametrize("name", ["r.json.zst", "r.parq"])
@pytest.mark.parametrize("place", ["http", "s3"])
def test_reference_sets_of_remote_files(tmp_path, place, name, scan_hdf5, object_server, moto_bucket):
    """The same for a file on a web server and in a bucket, through a local set and through one beside the file."""
    document = scan_hdf5(netcdf(tmp_path / "a.nc"), inline_threshold=50)
    expected = xr.open_dataset(tmp_path / "a.nc", engine="netcdf4").load()
    endpoint, bucket = moto_bucket
    keys = {"key": "a", "secret": "b"}
    options = {**keys, "client_kwargs": {"endpoint_url": endpoint, "region_name": "us-east-1"}}
    there = f"{object_server.url}/x" if place == "http" else f"s3://{bucket}/x"
    refs = references.open(document).rewrite({str(tmp_path): there})
    refs.save(tmp_path / name)
    for path in (path for path in tmp_path.rglob("*") if path.is_file()):
        key = str(path.relative_to(tmp_path))
        if place == "http":
            object_server.put(f"x/{key}", path.read_bytes())
        else:
            fsspec.filesystem("s3", **options).pipe_file(f"{bucket}/x/{key}", path.read_bytes())
    base = f"{there}/{name}{'/' if name.endswith('parq') else ''}"
    remote = base if place == "http" else {"driver": "fsspec", "url": base, "storage_options": options}
    targets = {} if place == "http" else {"targets": {f"s3://{bucket}/": options}}
    for where in (f"file://{tmp_path}/{name}", remote):
        found = xr.open_dataset({"driver": "reference", "base": where, **targets}, engine="fsstore")
        xr.testing.assert_equal(found.load(), expected)


def test_the_same_as_the_kerchunk_engine(tmp_path, scan_hdf5):
    """Where kerchunk's engine is right, both give the same; its masks can be asked for."""
    document = scan_hdf5(netcdf(tmp_path / "a.nc"), inline_threshold=50)
    (tmp_path / "r.json").write_text(json.dumps(document))
    options = {"open_dataset_options": {"chunks": None}}
    expected = xr.open_dataset(str(tmp_path / "r.json"), engine="kerchunk", **options)
    url = f"file://{tmp_path}/r.json|reference:"
    found = xr.open_dataset(url, engine="fsstore", use_zarr_fill_value_as_mask=True)
    xr.testing.assert_equal(found.load(), expected.load())


def loaded(dataset):
    """Return a dataset with its values, for another process to be asked for it."""
    return dataset.load()


@pytest.mark.parametrize("version", [0, 1])
def test_sets_as_dictionaries(tmp_path, scan_hdf5, version):
    """What kerchunk and VirtualiZarr return is opened without being saved: whole, by dask, and in other processes."""
    document = scan_hdf5(netcdf(tmp_path / "a.nc"), inline_threshold=50)
    document = document if version else document["refs"]
    expected = xr.open_dataset(tmp_path / "a.nc", engine="netcdf4").load()
    xr.testing.assert_equal(xr.open_dataset(document, engine="fsstore").load(), expected)
    lazy = xr.open_dataset(document, engine="fsstore", chunks={})
    xr.testing.assert_equal(lazy.compute(), expected)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as other:
        xr.testing.assert_equal(other.submit(loaded, lazy).result(), expected)
    with pytest.raises(ValueError, match="driver"):
        xr.open_dataset({"driver": "nonsense", **document}, engine="fsstore")


def test_archives_databases_and_live_objects(tmp_path):
    """A hierarchy in a zip file, in an OCDBT database, and through a live mapper is the same dataset."""
    write_zarr(tmp_path / "a.zarr", 3, consolidated=False)
    expected = xr.open_zarr(tmp_path / "a.zarr", chunks=None, consolidated=False).load()
    files = {
        str(p.relative_to(tmp_path / "a.zarr")): p.read_bytes() for p in (tmp_path / "a.zarr").rglob("*") if p.is_file()
    }
    database = ts.KvStore.open(f"file://{tmp_path}/db/|ocdbt:").result()
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
            database[name] = data
    for source in (
        f"file://{tmp_path}/a.zip|zip:",
        f"file://{tmp_path}/a.zip",
        f"file://{tmp_path}/db/|ocdbt:",
        fsspec.get_mapper(str(tmp_path / "a.zarr")),
        database,
    ):
        xr.testing.assert_identical(xr.open_dataset(source, engine="fsstore").load(), expected)


KEYS = [
    {"time": 3}, {"time": -1, "lat": slice(None, None, -2)}, {"lat": [4, 0, 0], "lon": slice(1, 3)}, {"lat": slice(5, 9)},
    {"time": slice(-3, None), "lon": [-1]}, {"lat": [True, False, True, False, True]}, {"time": [], "lat": 0},
    {"time": xr.Variable("p", [0, 5, 2]), "lat": xr.Variable("p", [1, 1, 4])},
]  # fmt: skip


@pytest.mark.parametrize("key", KEYS, ids=range(len(KEYS)))
def test_every_kind_of_selection(tmp_path, key):
    """Integers, slices in both directions, lists, masks and pointwise selections select as NumPy does."""
    write_zarr(tmp_path / "a.zarr", 3, consolidated=False)
    lazy = xr.open_dataset(f"file://{tmp_path}/a.zarr/", engine="fsstore")
    loaded = a_dataset()
    xr.testing.assert_equal(lazy.temp.isel(key).load(), loaded.temp.isel(key))


def test_opening_reads_no_chunk(tmp_path, object_server):
    """Opening reads metadata only, and a selection of a variable only the chunks it touches; coordinates are read whole."""
    data = np.arange(1000, dtype="<i4")
    object_server.put("d", data.tobytes())
    array = {"zarr_format": 2, "shape": [1000], "chunks": [100], "dtype": "<i4", "compressor": None, "filters": None, "order": "C", "fill_value": None}  # fmt: skip
    refs = {".zgroup": '{"zarr_format":2}', "x/.zarray": json.dumps(array), "x/.zattrs": '{"_ARRAY_DIMENSIONS":["t"]}'}
    refs |= {f"x/{n}": [f"{object_server.url}/d", n * 400, 400] for n in range(10)}
    (tmp_path / "r.json").write_text(json.dumps({"version": 1, "refs": refs}))
    lazy = xr.open_dataset(f"file://{tmp_path}/r.json|reference:", engine="fsstore", create_default_indexes=False)
    lazy = lazy.isel(t=slice(250, 350))
    assert object_server.count() == 0
    assert lazy.x.values.tolist() == list(range(250, 350))
    assert [entry[2] for entry in object_server.log] == ["bytes=800-1599"]


def test_groups_and_trees(tmp_path):
    """Nested groups open by name, as a dictionary and as a tree; a name that is no group is refused."""
    root = zarr.open_group(tmp_path / "g.zarr", mode="w", zarr_format=3, attributes={"at": "root"})
    inner = root.create_group("a/b", attributes={"at": "b"})
    inner.create_array("v", data=np.arange(4), dimension_names=["x"])
    root.create_array("w", data=np.arange(6).reshape(2, 3), dimension_names=["y", "z"])
    url = f"file://{tmp_path}/g.zarr/"
    tree = xr.open_datatree(url, engine="fsstore")
    assert tree["a/b"].v.values.tolist() == [0, 1, 2, 3]
    assert set(xr.open_groups(url, engine="fsstore")) == {"/", "/a", "/a/b"}
    assert xr.open_dataset(url, engine="fsstore", group="a/b").attrs == {"at": "b"}
    assert xr.open_dataset(url, engine="fsstore").sizes == {"y": 2, "z": 3}
    for group in ("nope", "a/b/v"):
        with pytest.raises(FileNotFoundError, match="group"):
            xr.open_dataset(url, engine="fsstore", group=group)


def test_a_set_of_zarr_version_3(tmp_path):
    """A reference set whose metadata are of version 3 opens like any other."""
    write_zarr(tmp_path / "a.zarr", 3, consolidated=False)
    files = [path for path in (tmp_path / "a.zarr").rglob("*") if path.is_file()]
    refs = {
        str(path.relative_to(tmp_path / "a.zarr")): path.read_text() if path.name == "zarr.json" else [str(path)]
        for path in files
    }
    references.open({"version": 1, "refs": refs}).save(tmp_path / "r.json.zst")
    expected = xr.open_zarr(tmp_path / "a.zarr", chunks=None, consolidated=False)
    found = xr.open_dataset(f"file://{tmp_path}/r.json.zst", engine="fsstore")
    xr.testing.assert_identical(found.load(), expected.load())


def test_no_dask_unless_asked_for(tmp_path):
    """Without `chunks`, values are NumPy arrays from the first use on, with dask installed too."""
    write_zarr(tmp_path / "a.zarr", 3, consolidated=False)
    plain = xr.open_dataset(f"file://{tmp_path}/a.zarr/", engine="fsstore")
    assert plain.chunks == {}
    assert type(plain.temp.isel(time=0).data) is np.ndarray
    lazy = xr.open_dataset(f"file://{tmp_path}/a.zarr/", engine="fsstore", chunks={})
    assert lazy.temp.data.chunks[0] == (2, 2, 2)


def test_dask_and_pickles(tmp_path):
    """Datasets survive pickling, and dask reads their chunks from several threads."""
    write_zarr(tmp_path / "a.zarr", 2, consolidated=True)
    lazy = xr.open_dataset(f"file://{tmp_path}/a.zarr/", engine="fsstore", chunks={})
    assert lazy.temp.data.chunks == ((2, 2, 2), (5,), (3, 1))
    xr.testing.assert_equal(lazy.compute(), a_dataset())
    again = pickle.loads(pickle.dumps(lazy))
    xr.testing.assert_equal(again.compute(), a_dataset())


def test_what_the_engine_claims():
    """Only pipelines are claimed without `engine=`; other engines keep their files."""
    from fsstore.interop.xarray import FsstoreBackend

    backend = FsstoreBackend()
    assert backend.guess_can_open("s3://b/r.json|reference:")
    for other in ("a.nc", "s3://b/a.zarr", "https://h/x", {}, b"a|b"):
        assert not backend.guess_can_open(other)


def test_nothing_there_is_not_found(tmp_path):
    """A place without arrays or groups is an error that names it."""
    (tmp_path / "e").mkdir()
    with pytest.raises(ValueError, match="/e"):
        xr.open_dataset(f"file://{tmp_path}/e/", engine="fsstore")


@pytest.mark.parametrize("door", [lambda url: xr.open_dataset(url, engine="fsstore"), ts.list_arrays])
def test_files_without_groups_are_named_for_what_they_are(tmp_path, door):
    """A NetCDF file is a group, an image or a JSON document is said to be a single array."""
    netcdf(tmp_path / "a.nc")
    assert door(f"file://{tmp_path}/a.nc")
    (tmp_path / "a.json").write_text("[1, 2]")
    with pytest.raises(ValueError, match=r'a\.json" is json: a single array'):
        door(f"file://{tmp_path}/a.json")


def test_what_cannot_be_listed_needs_consolidated_metadata(object_server):
    """A web server lists nothing: the error says what would help."""
    object_server.put("a/zarr.json", b'{"zarr_format": 3, "node_type": "group"}')
    with pytest.raises(NotImplementedError, match=r"no consolidated metadata in .*/a/.*name an array"):
        xr.open_dataset(f"{object_server.url}/a/", engine="fsstore")


@pytest.mark.parametrize("driver", ["zarr2", "zarr3"])
def test_an_array_is_no_group(tmp_path, driver):
    """A single array is not opened as a dataset of nothing."""
    ts.open(f"file://{tmp_path}/a/|{driver}:", create=True, dtype="int8", shape=[2]).result()
    for url in (f"file://{tmp_path}/a/", f"file://{tmp_path}/a/|{driver}:", f"file://{tmp_path}/|{driver}:a"):
        with pytest.raises(ValueError, match=r'/a/" is an array and no group'):
            xr.open_dataset(url, engine="fsstore")


def test_variables_that_cannot_be_opened_can_be_left_out(tmp_path):
    """An array with a codec nobody may run is an error that names it, unless it is dropped."""
    array = {"zarr_format": 2, "shape": [2], "chunks": [2], "dtype": "|O", "compressor": None, "filters": [{"id": "pickle"}], "order": "C", "fill_value": None}  # fmt: skip
    good = {**array, "dtype": "<i4", "filters": None}
    refs = {"x/.zarray": json.dumps(array), "y/.zarray": json.dumps(good), "y/0": "12345678"}
    (tmp_path / "r.json").write_text(json.dumps(refs))
    url = f"file://{tmp_path}/r.json|reference:"
    with warnings.catch_warnings(), pytest.raises(PermissionError, match='"x"'):
        xr.open_dataset(url, engine="fsstore")
    assert list(xr.open_dataset(url, engine="fsstore", drop_variables="x").variables) == ["y"]
