"""Bridges: sets as virtual datasets of VirtualiZarr and back, and as virtual chunks of Icechunk."""

from __future__ import annotations

import datetime as dt

import h5py
import icechunk
import numpy as np
import pytest
import xarray as xr
import zarr
from virtualizarr.manifests import ManifestArray

import fsstore as ts
from fsstore import references
from fsstore.interop.icechunk import write_virtual
from fsstore.interop.virtualizarr import from_virtual, to_virtual

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def source(tmp_path):
    """Give a NetCDF file of several encodings, times, text and a group, and its values."""
    rng = np.random.default_rng(0)
    data = xr.Dataset(
        {
            "zipped": (("time", "y"), rng.normal(size=(4, 6)), {"units": "K"}),
            "packed": (("time", "y"), np.round(rng.normal(size=(4, 6)), 1)),
            "big": (("time", "y"), rng.integers(0, 9, (4, 6))),
            "lat": ("y", np.arange(6.0)),
            "scalar": ((), 3.0),
        },
        {"time": np.datetime64("2000-01-01", "ns") + np.arange(4) * np.timedelta64(1, "D"), "y": np.arange(6)},
        {"title": "several"},
    ).set_coords("lat")
    data.to_netcdf(
        tmp_path / "all.nc", engine="netcdf4",
        encoding={
            "zipped": {"zlib": True, "shuffle": True, "chunksizes": (2, 3)},
            "packed": {"dtype": "i2", "scale_factor": 0.1, "_FillValue": -1, "chunksizes": (3, 6), "fletcher32": True},
            "big": {"dtype": ">i4"},
        },
    )  # fmt: skip
    return tmp_path / "all.nc"


@pytest.fixture
def refs(source):
    """Give the set of the file."""
    return references.scan(str(source))


def _equal(found, source):
    with xr.open_dataset(source) as want:
        xr.testing.assert_equal(found.load(), want.load())
        assert found["zipped"].attrs == want["zipped"].attrs
        assert found.attrs == want.attrs


def test_a_set_becomes_a_virtual_dataset(refs, source):
    """Large variables are manifests, coordinates of dimensions are loaded; VirtualiZarr writes what reads the same."""
    virtual = to_virtual(refs)
    assert {name for name in virtual.variables if isinstance(virtual[name].data, ManifestArray)} >= {
        "zipped",
        "packed",
        "big",
    }
    assert virtual["time"].dtype.kind == "M"
    document = virtual.vz.to_kerchunk(format="dict")
    with xr.open_dataset(references.store(document), engine="fsstore") as found:
        _equal(found, source)


def test_a_virtual_dataset_becomes_a_set(refs, source, tmp_path):
    """And back: what is loaded is held by value, decoded times are encoded again."""
    again = from_virtual(to_virtual(refs, load=("big",)))
    again.save(tmp_path / "again.json")
    with xr.open_dataset(f"{(tmp_path / 'again.json').as_uri()}|reference:", engine="fsstore") as found:
        _equal(found, source)
    assert again["zipped/c/0/1"] == refs["zipped/0.1"]._replace(url=again["zipped/c/0/1"].url)
    assert isinstance(again["big/c/0/0"], bytes)


def test_what_virtualizarr_combines_is_read_here(tmp_path):
    """Datasets that xarray concatenates as manifests are a set of all their chunks."""
    for number in range(2):
        xr.Dataset(
            {"v": (("time", "y"), np.full((2, 3), float(number)))}, {"time": 2 * number + np.arange(2)}
        ).to_netcdf(tmp_path / f"{number}.nc", encoding={"v": {"zlib": True, "chunksizes": (1, 3)}}, engine="netcdf4")
    parts = [to_virtual(references.scan(str(tmp_path / f"{number}.nc"))) for number in range(2)]
    both = xr.concat(parts, "time", coords="minimal", compat="override")
    found = xr.open_dataset(references.store(from_virtual(both)), engine="fsstore")
    np.testing.assert_array_equal(found["v"].values[:, 0], [0, 0, 1, 1])
    np.testing.assert_array_equal(found["time"].values, np.arange(4))


def test_missing_chunks_stay_missing(tmp_path):
    """Chunks that were never written are filled, after both bridges."""
    with h5py.File(tmp_path / "part.h5", "w") as file:
        file.create_dataset("v", (4, 4), "i4", chunks=(2, 2), fillvalue=7)[:2, :2] = 1
    refs = references.scan(str(tmp_path / "part.h5"), inline_threshold=0)
    again = from_virtual(to_virtual(refs))
    found = ts.open({"driver": "zarr3", "kvstore": references.store(again).spec() / "v/"}).result()
    want = np.full((4, 4), 7)
    want[:2, :2] = 1
    np.testing.assert_array_equal(found.read().result(), want)


def _repository(folder, prefix):
    config = icechunk.RepositoryConfig.default()
    config.set_virtual_chunk_container(
        icechunk.VirtualChunkContainer(prefix, icechunk.local_filesystem_store(str(folder)))
    )
    access = icechunk.containers_credentials({prefix: None})
    storage = icechunk.local_filesystem_storage(str(folder / "repo"))
    return icechunk.Repository.create(storage, config, authorize_virtual_chunk_access=access)


@pytest.mark.parametrize("group", ["", "in/a/group"])
def test_a_set_becomes_virtual_chunks_of_icechunk(refs, source, tmp_path, group):
    """zarr-python and fsstore read the repository as the file; chunks by value are in it."""
    repository = _repository(tmp_path, f"{tmp_path.as_uri()}/")
    session = repository.writable_session("main")
    write_virtual(refs, session.store, group)
    session.commit("all")
    store = repository.readonly_session("main").store
    with xr.open_zarr(store, group=group or None, consolidated=False, zarr_format=3) as found:
        _equal(found, source)
    assert zarr.open_group(store, mode="r")[f"{group}/zipped".strip("/")].shape == (4, 6)
    with xr.open_dataset(f"{(tmp_path / 'repo').as_uri()}|icechunk:", engine="fsstore", group=group or None) as found:
        _equal(found, source)


def test_icechunk_refuses_places_and_files_that_changed(refs, source, tmp_path):
    """A place that no container holds is an error here; a file that changed later is one for readers."""
    repository = _repository(tmp_path, "file:///elsewhere/")
    with pytest.raises(ValueError, match="No virtual chunk container"):
        write_virtual(refs, repository.writable_session("main").store)
    (tmp_path / "repo").rename(tmp_path / "refused")
    repository = _repository(tmp_path, f"{tmp_path.as_uri()}/")
    session = repository.writable_session("main")
    write_virtual(refs, session.store, last_updated_at=dt.datetime(2001, 1, 1, tzinfo=dt.UTC))
    session.commit("of a file that is newer")
    group = zarr.open_group(repository.readonly_session("main").store, mode="r")
    with pytest.raises(Exception, match="has changed"):
        group["zipped"][:]


def test_what_has_no_absolute_place_is_refused():
    """Relative URLs of a set that lies nowhere, and chunks of unknown length, are errors."""
    document = '{"zarr_format":2,"shape":[2],"chunks":[1],"dtype":"<i2","fill_value":0,"order":"C","filters":null,"compressor":null}'
    from fsstore.interop.virtual_chunks import virtual_arrays

    with pytest.raises(ValueError, match="lies nowhere"):
        list(virtual_arrays(references.open({"x/.zarray": document, "x/0": ["a", 0, 2]})))
    with pytest.raises(ValueError, match="not its length"):
        list(virtual_arrays(references.open({"x/.zarray": document, "x/0": ["s3://b/a"]})))
