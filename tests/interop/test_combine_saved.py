"""A dataset that was saved: opened, looked into, checked, moved, and shown as a set where it is one."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import fsstore as ts
from fsstore import references

sys.path.insert(0, str(Path(__file__).parent))

from many_files import drifted, expected, series, write

sys.path.pop(0)


@pytest.fixture(params=["mosaic", "mosaic.json"])
def saved(request, tmp_path, monkeypatch):
    """Give a layered dataset of four files by relative paths, and one of references."""
    monkeypatch.chdir(tmp_path)
    files = drifted(series(4), 2, scale=0.25, zlib=False)
    for number, of in enumerate(files):
        write(tmp_path / f"{number}.nc", of)
    layered, plain = tmp_path / f"layered.{request.param}", tmp_path / f"plain.{request.param}"
    references.combine("?.nc", "time").result().save(layered)
    references.combine(["0.nc", "1.nc"], "time").result().save(plain)
    return layered, plain, files


def test_a_set_is_opened_where_there_are_no_layers(saved):
    """`references.open` gives the set of a dataset of references; of layers it says what to do."""
    layered, plain, files = saved
    refs = references.open(plain)
    assert refs["v/0.0.0"].url == "0.nc"
    refs.save("again.json")
    with xr.open_dataset("file://again.json|reference:", engine="fsstore") as found:
        np.testing.assert_array_equal(found["v"].values, expected(["0.nc", "1.nc"], files[:2]))
    with pytest.raises(ValueError, match='cannot hold "v"'):
        references.open(layered)


def test_inspect_tells_places_and_arrays(saved):
    """The report has the arrays that are shown, and the bytes of all files."""
    layered, plain, _ = saved
    report = references.inspect(layered)
    assert set(report.arrays) >= {"time", "v"}
    assert not [path for path in report.arrays if path.startswith(".")]
    assert report.places["relative"].urls == 4
    assert references.inspect(plain).places["relative"].urls == 2
    assert references.inspect(f"{layered.as_uri()}|mosaic:").places == report.places


@pytest.mark.parametrize("decode", [False, True])
def test_verify_tells_files_that_changed_or_are_gone(saved, decode):
    """Whole files are fine; a file that is gone, short, or another one is named once."""
    layered, _, files = saved
    assert references.verify(layered, decode=decode)
    write(Path("1.nc"), files[1])
    Path("3.nc").unlink()
    found = references.verify(layered, decode=decode)
    said = {problem.url: problem.why for problem in found.problems}
    assert "since it was scanned" in said["1.nc"]
    assert "does not exist" in said["3.nc"]
    assert bool([url for url in said if url == "v"]) == decode


def test_verify_decodes_what_is_layered(saved):
    """A chunk of a piece that cannot be decoded is found by its key."""
    layered, _, _ = saved
    data = bytearray(Path("0.nc").read_bytes())
    ref = references.open({key: [one.url, one.offset, one.length] for key, one in
                           references.scan("0.nc").items_of("v") if not isinstance(one, bytes)})  # fmt: skip
    at = ref["v/0.0.0"]
    data[at.offset : at.offset + 2] = b"\xff\xff"
    Path("0.nc").write_bytes(data)
    found = references.verify(layered, decode=True)
    assert ("v/0.0.0",) in [problem.keys for problem in found.problems]


def test_a_dataset_is_rewritten_and_moved(saved, tmp_path):
    """The files move to another directory; prefixes are rewritten, in layers and for appending as well."""
    layered, _, files = saved
    (tmp_path / "far").mkdir()
    for number in range(4):
        Path(f"{number}.nc").rename(tmp_path / "far" / f"{number}.nc")
    dataset = references.Combined.open(layered)
    dataset.save("beside.mosaic", relative=f"{tmp_path.as_uri()}/far/")
    dataset.rewrite({f"{number}.nc": f"far/{number}.nc" for number in range(4)}).save("moved.mosaic")
    paths = [tmp_path / "far" / f"{number}.nc" for number in range(4)]
    for name in ("beside.mosaic", "moved.mosaic"):
        with xr.open_dataset(f"file://{name}", engine="fsstore") as found:
            np.testing.assert_array_equal(found["v"].values, expected(paths, files))
    assert references.drop("moved.mosaic", "far/3.nc").result().files == 3
    with pytest.raises(ValueError, match="Nothing to rewrite"):
        dataset.rewrite({"s3://other/": "s3://new/"})


def test_what_is_no_dataset_is_said(tmp_path):
    """A set is none, nor is an absent file."""
    references.open({"x/0": "inline"}).save(tmp_path / "set.json")
    with pytest.raises(ValueError, match="something else"):
        references.Combined.open(tmp_path / "set.json")
    with pytest.raises(ValueError, match="no virtual dataset"):
        references.Combined.open(tmp_path / "absent.mosaic")


def test_a_document_from_elsewhere_reads_no_local_file(saved, tmp_path, object_server):
    """The policy of reference sets holds: a dataset on a web server is not trusted with files of this machine."""
    layered, _, files = saved
    dataset = references.Combined.open(layered)
    dataset.save("far.mosaic", relative=f"{tmp_path.as_uri()}/")
    object_server.put("d/far.mosaic", Path("far.mosaic").read_bytes())
    object_server.put("d/near.mosaic", layered.read_bytes())
    for number in range(4):
        object_server.put(f"d/{number}.nc", Path(f"{number}.nc").read_bytes())
    with xr.open_dataset(f"{object_server.url}/d/near.mosaic", engine="fsstore") as found:
        np.testing.assert_array_equal(found["v"].values, expected([f"{n}.nc" for n in range(4)], files))
    found = references.verify(f"{object_server.url}/d/far.mosaic")
    assert len(found.problems) == 4
    with pytest.raises(ValueError, match="nothing of this machine"):
        ts.open(f"{object_server.url}/d/far.mosaic|mosaic:v").result()[:].read().result()
    only = {"driver": "mosaic", "base": layered.as_uri(), "path": "v/", "allow": ["s3://bucket/"]}
    with pytest.raises(ValueError, match="allow"):
        ts.open({"driver": "zarr", "kvstore": only}).result()[:].read().result()


def test_other_tools_read_it_through_a_filesystem(saved):
    """zarr-python and xarray read layers through `zarr3::`."""
    layered, _, files = saved
    with xr.open_zarr(f"zarr3::{layered.as_uri()}", consolidated=False) as found:
        np.testing.assert_array_equal(found["v"].values, expected([f"{n}.nc" for n in range(4)], files))
        assert found["v"].attrs["units"] == "K"


def test_xarray_opens_a_dataset_that_was_not_saved(tmp_path, monkeypatch):
    """The engine takes what `combine` gives, layers included."""
    monkeypatch.chdir(tmp_path)
    files = drifted(series(3), 1, scale=0.25, zlib=False)
    for number, of in enumerate(files):
        write(tmp_path / f"{number}.nc", of)
    combined = references.combine("?.nc", "time").result()
    with xr.open_dataset(combined, engine="fsstore") as found:
        np.testing.assert_array_equal(found["v"].values, expected(["0.nc", "1.nc", "2.nc"], files))
