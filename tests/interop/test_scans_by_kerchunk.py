"""kerchunk's translators as a source of reference sets: through our stores, beside our own scanners."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import h5py
import hdf5plugin
import netCDF4
import numpy as np
import pytest
import tifffile
from astropy.io import fits

import fsstore as ts
from fsstore import references
from fsstore.errors import NotFoundError, StoreError, UnimplementedError

SAMPLE = Path(__file__).parents[1] / "data" / "kerchunk" / "synthetic_fires.hdf4"
VALUES = np.arange(64, dtype="u2").reshape(8, 8)


@pytest.fixture(autouse=True)
def _quiet():
    """Let the libraries of the formats warn of each other."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def hdf5(path):
    """Write HDF5."""
    with h5py.File(path, "w") as file:
        file.create_dataset("t", data=VALUES, chunks=(3, 8), compression="gzip", shuffle=True)
    return "t"


def netcdf3(path):
    """Write NetCDF 3."""
    with netCDF4.Dataset(path, "w", format="NETCDF3_CLASSIC") as file:
        for name in "yx":
            file.createDimension(name, 8)
        file.createVariable("t", "i2", ("y", "x"))[:] = VALUES
    return "t"


def tiff(path):
    """Write TIFF."""
    tifffile.imwrite(path, VALUES, tile=(16, 16), metadata=None)
    return ""


def fits_image(path):
    """Write FITS."""
    fits.PrimaryHDU(VALUES.astype("i4")).writeto(path)
    return "PRIMARY"


def values(refs, path):
    """Return an array of a set."""
    store = references.store(refs)
    spec = {"driver": "zarr2", "kvstore": store / f"{path}/" if path else store}
    return ts.open(spec).result().read().result()


@pytest.mark.parametrize("write", [hdf5, netcdf3, tiff, fits_image], ids=lambda write: write.__name__)
def test_values_are_those_of_our_own_scan(write, tmp_path):
    """Both sets refer to the file as it was called, and give what was written."""
    name = write(path := str(tmp_path / "file"))
    found, own = references.scan(path, by="kerchunk"), references.scan(path)
    assert found.urls == own.urls == [path]
    assert np.array_equal(values(found, name), VALUES)
    assert references.verify(found, decode=True)


def test_where_both_can_they_differ_as_the_page_says(tmp_path):
    """kerchunk calls a number missing that was never written, leaves a filter's array out, and takes one image of two."""
    with h5py.File(tmp_path / "file", "w") as file:
        file.create_dataset("t", shape=(4,), chunks=(2,), dtype="f4")[:2] = 1
        file.create_dataset("u", data=np.arange(64), chunks=(8,), **hdf5plugin.LZ4())
    with tifffile.TiffWriter(tmp_path / "images") as file:
        for size in (64, 40):
            file.write(np.zeros((size, size), "u1"), metadata=None)
    found, images = (
        {by: references.scan(tmp_path / name, by=by) for by in ("kerchunk", "fsstore")} for name in ("file", "images")
    )
    assert {by: json.loads(refs["t/.zarray"])["fill_value"] for by, refs in found.items()} == {
        "kerchunk": 0.0,
        "fsstore": None,
    }
    assert {by: "u/.zarray" in refs for by, refs in found.items()} == {"kerchunk": False, "fsstore": True}
    assert {by: "1/.zgroup" in refs for by, refs in images.items()} == {"kerchunk": False, "fsstore": True}


def test_a_file_on_the_web_is_read_by_our_client(tmp_path, object_server):
    """In ranges, and the set names the URL."""
    hdf5(tmp_path / "file")
    object_server.put("box/file", (tmp_path / "file").read_bytes())
    refs = references.scan(url := f"{object_server.url}/box/file", by="kerchunk")
    assert refs.urls == [url]
    assert object_server.log and {path for _, path, _ in object_server.log} == {"/box/file"}
    assert np.array_equal(values(refs, "t"), VALUES)


def test_hdf4_which_only_kerchunk_reads():
    """A made-up file of fires, from the tests of VirtualiZarr (Apache 2.0), opens and gives its mask."""
    refs = references.scan(SAMPLE, by="kerchunk")
    mask = values(refs, "fire mask")
    assert mask.shape == (6, 4) and mask.dtype == np.uint8
    with pytest.raises(StoreError, match="Cannot scan"):
        references.scan(SAMPLE)


def test_relative_paths_start_from_the_working_directory(tmp_path, monkeypatch):
    """Saved elsewhere, the set still finds its file."""
    hdf5(tmp_path / "file")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sets").mkdir()
    references.scan("file", by="kerchunk").save("sets/refs.json")
    assert np.array_equal(values(references.open("sets/refs.json"), "t"), VALUES)


def test_what_cannot_be_translated_is_named(tmp_path):
    """The error says which file, what kerchunk raised, and what to do; an unknown scanner and format are errors too."""
    hdf5(whole := tmp_path / "whole")
    (tmp_path / "cut").write_bytes(whole.read_bytes()[:900])
    with pytest.raises(StoreError, match=r'kerchunk cannot translate .*cut": \w+: .* look whether it is whole'):
        references.scan(tmp_path / "cut", by="kerchunk")
    (tmp_path / "text").write_bytes(b"nothing of the kind")
    with pytest.raises(StoreError, match="kerchunk has no translator for"):
        references.scan(tmp_path / "text", by="kerchunk")
    with pytest.raises(NotFoundError):
        references.scan(tmp_path / "none", by="kerchunk")
    with pytest.raises(StoreError, match='by "fsstore" or "kerchunk", not "me"'):
        references.scan(whole, by="me")


def test_hdf4_opens_by_url():
    """The adapter shows the keys that kerchunk finds, and arrays open in them; nothing is written."""
    url = f"file://{SAMPLE}|hdf4:"
    store = ts.KvStore.open(url).result()
    assert b"fire mask/.zarray" in store.list().result() and store.url == url
    array = ts.open(f"{url}fire%20mask/|zarr2:").result()
    assert np.array_equal(array.read().result(), values(references.scan(SAMPLE, by="kerchunk"), "fire mask"))
    with pytest.raises(UnimplementedError, match="does not support writing"):
        store.write("a", b"1").result()
    assert ts.KvStore.Spec(url).to_json()["driver"] == "hdf4"
