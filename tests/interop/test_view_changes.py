"""Views as zarr of arrays that are replaced, resized or deleted while they are shown, and of what zarr has no words for."""

import json
import warnings

import fsspec
import numpy as np
import pytest
import xarray as xr
import zarr
from zarr.metadata.migrate_v3 import migrate_v2_to_v3

import fsstore as ts
from fsstore import references
from fsstore.errors import AbortedError

h5py = pytest.importorskip("h5py")


@pytest.mark.parametrize(("stored", "shown"), [(3, 2), (2, 3)])
def test_a_replaced_array_is_shown_as_it_is_now(tmp_path, stored, shown):
    """Opening a view again shows the new array, of another type, shape and codec: never old metadata over new bytes."""
    url = f"zarr{shown}::file://{tmp_path}/a"
    for data in (np.array([True]), np.array([5], "i1"), np.arange(6, dtype=">f4").reshape(2, 3)):
        zarr.create_array(f"{tmp_path}/a", data=data, overwrite=True, zarr_format=stored)
        assert zarr.open_array(url, mode="r")[:].tolist() == data.tolist()


@pytest.mark.parametrize("shards", [None, (4,)])
def test_a_chunk_of_a_replaced_array_is_refused(tmp_path, shards):
    """A reader with the metadata from before gets an error for chunks of the new array, not its bytes."""
    zarr.create_array(f"{tmp_path}/a", data=np.ones(4, "i2"), chunks=(2,), shards=shards, zarr_format=3)
    before = zarr.open_array(f"zarr2::file://{tmp_path}/a", mode="r")
    assert before[:].tolist() == [1] * 4
    zarr.create_array(f"{tmp_path}/a", data=np.ones(4, "f2"), chunks=(2,), overwrite=True, zarr_format=3)
    with pytest.raises(ValueError, match="was replaced by another|is incompatible with existing"):
        before[:]


def test_a_member_of_a_hierarchy_is_replaced(tmp_path):
    """The same below a group, whose consolidated metadata follow, and an array that grew is as large as it is."""
    group = zarr.open_group(f"{tmp_path}/g", mode="w", zarr_format=2)
    for name in ("a", "b"):
        group.create_array(name, data=np.arange(4), chunks=(2,))
    url = f"zarr3::file://{tmp_path}/g"
    assert zarr.open_consolidated(url, zarr_format=3)["a"][:].tolist() == [0, 1, 2, 3]
    group.create_array("a", data=np.array([0.5]), overwrite=True)
    assert zarr.open_consolidated(url, zarr_format=3)["a"][:].tolist() == [0.5]
    held = zarr.open_array(url, path="b", mode="r")
    group["b"].resize((5,))
    assert held[:].tolist() == [0, 1, 2, 3]  # what a reader of the old shape sees is still there
    assert zarr.open_array(url, path="b", mode="r")[:].tolist() == [0, 1, 2, 3, 0]


def test_a_deleted_array_is_gone(tmp_path):
    """An array that was deleted is not shown any more."""
    zarr.create_array(f"{tmp_path}/a", data=np.arange(2), zarr_format=3)
    fs = fsspec.filesystem("zarr2", fo=f"{tmp_path}/a")
    assert json.loads(fs.cat_file(".zarray"))["shape"] == [2]
    (tmp_path / "a" / "zarr.json").unlink()
    with pytest.raises(FileNotFoundError):
        fs.cat_file(".zarray")


def test_chunks_are_refused_until_the_metadata_are_read(tmp_path):
    """The error says what to do, as often as a chunk is asked for; after that chunks are those of the new array."""
    zarr.create_array(f"{tmp_path}/a", data=np.ones(1, "i2"), compressors=None, zarr_format=3)
    fs = fsspec.filesystem("zarr2", fo=f"{tmp_path}/a")
    assert np.frombuffer(fs.cat_file("0"), "<i2").tolist() == [1]
    zarr.create_array(f"{tmp_path}/a", data=np.ones(1, "i4"), compressors=None, overwrite=True, zarr_format=3)
    for _ in range(2):
        with pytest.raises(AbortedError, match="was replaced by another since .*: open it again"):
            fs.cat_file("0")
    assert json.loads(fs.cat_file(".zarray"))["dtype"] == "<i4"
    assert np.frombuffer(fs.cat_file("0"), "<i4").tolist() == [1]


def test_the_format_in_the_url_is_the_one_meant(tmp_path):
    """An array with metadata of both versions opens under either name, and stays ambiguous without one."""
    zarr.create_array(f"{tmp_path}/a", data=np.arange(3.0), compressors=None, zarr_format=2)
    migrate_v2_to_v3(input_store=zarr.storage.LocalStore(f"{tmp_path}/a"))
    for name in ("zarr2", "zarr3"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # zarr-python's, that it finds both and takes the newer
            found = zarr.open_array(f"{name}::file://{tmp_path}/a", mode="r")
        assert found[:].tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="Multiple possible formats"):
        ts.open(f"file://{tmp_path}/a").result()


def test_structures_are_shown_whole(tmp_path):
    """A structured array of zarr v2 is one of zarr v3, alone, in a group, and in either byte order."""
    data = np.array([(1, 0.5), (2, -1.0), (3, np.inf)], [("a", ">i4"), ("b", "<f8")])
    group = zarr.open_group(f"{tmp_path}/g", mode="w", zarr_format=2)
    group.create_array("c", data=data, chunks=(2,)), group.create_array("t", data=np.arange(2.0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zarr-python's, that structures have no specification yet
        shown = zarr.open_group(f"zarr3::file://{tmp_path}/g", mode="r", zarr_format=3)
        assert shown["c"][:].tolist() == data.tolist()
        assert zarr.open_array(f"zarr3::file://{tmp_path}/g/c", mode="r")[:].tolist() == data.tolist()
    assert shown["t"][:].tolist() == [0, 1]


def test_single_bytes_are_shown(tmp_path):
    """An array of |S1, the characters of NetCDF, is shown as byte strings of length one."""
    group = zarr.open_group(f"{tmp_path}/a", mode="w", zarr_format=2)
    group.create_array("c", data=np.array([b"a", b"", b"c"])), group.create_array("t", data=np.arange(2.0))
    shown = zarr.open_group(f"zarr3::file://{tmp_path}/a", mode="r", zarr_format=3)
    assert shown["c"][:].tolist() == [b"a", b"", b"c"]
    assert shown["t"][:].tolist() == [0, 1]


def test_what_zarr_has_no_words_for_is_left_out(tmp_path):
    """One array of objects that are JSON does not make a hierarchy unreadable; it is left out with a warning."""
    group = zarr.open_group(f"{tmp_path}/a", mode="w", zarr_format=2)
    group.create_array("t", data=np.arange(2.0))
    (tmp_path / "a" / "j").mkdir()
    document = {"zarr_format": 2, "shape": [1], "chunks": [1], "dtype": "|O", "fill_value": None, "order": "C"}
    document |= {"filters": [{"id": "json2"}], "compressor": None}
    (tmp_path / "a" / "j" / ".zarray").write_text(json.dumps(document))
    with pytest.warns(UserWarning, match='"j" is left out: Cannot show'):
        names = fsspec.filesystem("zarr3", fo=f"{tmp_path}/a", skip_instance_cache=True).ls("", detail=False)
    assert "t" in names and "j" not in names


def test_byte_strings_open_in_xarray(tmp_path):
    """Byte strings with a fill value, as scans of HDF5 have them, open in xarray through a view."""
    with h5py.File(f"{tmp_path}/a.h5", "w") as file:
        file["s"] = np.array([b"abc", b"b"])
    references.scan(f"{tmp_path}/a.h5").save(f"{tmp_path}/a.json")
    opened = xr.open_zarr(f"zarr3::file://{tmp_path}/a.json", consolidated=False)
    assert opened.s.values.tolist() == [b"abc", b"b"]
