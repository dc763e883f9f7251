"""URL pipelines of zarr-python that name places of fsstore, beside a zarr-python that has them."""

import numpy as np
import pytest

import fsstore as ts

zarr = pytest.importorskip("zarr")
pytest.importorskip(
    "zarr.abc.url_pipeline",
    reason="this zarr-python has no URL pipelines (they are in its pull request 4192): zarr.url_adapters is not tried",
)

from zarr import registry  # noqa: E402
from zarr.errors import URLPipelineError  # noqa: E402

from fsstore.interop.zarr_url import PlaceAdapter, WholeAdapter  # noqa: E402


def place(url):
    """Return a URL as zarr-python takes it: later versions of the request want it to be said that it is a pipeline."""
    found = getattr(zarr.storage, "URLPipeline", None)
    return url if found is None else found.from_url(url)


def test_adapters_are_found():
    """zarr-python knows them by the entry points of fsstore."""
    assert registry.get_url_adapter("ocdbt") is PlaceAdapter
    assert registry.get_url_adapter("fsstore") is WholeAdapter


@pytest.mark.parametrize("ending", ["ocdbt:", "ocdbt:a/b/", "ocdbt:|fsstore:", "ocdbt:a/|fsstore:b"])
@pytest.mark.parametrize("version", [2, 3])
def test_groups_in_databases(tmp_path, ending, version):
    """A group is written and read through a pipeline, as zarr-python does and as fsstore does."""
    url = place(f"file://{tmp_path}/db/|{ending}")
    group = zarr.open_group(url, mode="w", zarr_format=version)
    group.create_array("v", shape=(5, 4), chunks=(2, 4), dtype="i4")[:] = np.arange(20).reshape(5, 4)
    group.attrs["title"] = "made"
    again = zarr.open_group(url, mode="r")
    assert again.attrs["title"] == "made"
    assert (again["v"][:] == np.arange(20).reshape(5, 4)).all()
    path = "a/b/" if "b" in ending.removeprefix("ocdbt:") else ""
    ours = ts.open(f"file://{tmp_path}/db/|ocdbt:{path}v/|zarr{version}:").result()
    assert (ours.read().result() == np.arange(20).reshape(5, 4)).all()


def test_other_formats_are_seen_as_zarr(tmp_path):
    """What only fsstore reads is opened by zarr-python through a view."""
    store = ts.open(f"file://{tmp_path}/a.n5/|n5:", create=True, dtype="int16", shape=[6, 3]).result()
    store.write(np.arange(18, dtype="i2").reshape(6, 3)).result()
    array = zarr.open_array(place(f"file://{tmp_path}/a.n5/|zarr3:|fsstore:"), mode="r")
    assert (array[:] == np.arange(18).reshape(6, 3)).all()


def test_archives_are_read(tmp_path):
    """A group in an archive, with the path to an array as the body of the last segment."""
    with zarr.storage.ZipStore(tmp_path / "a.zip", mode="w") as archive:
        zarr.open_group(archive, mode="w").create_array("in/v", shape=(3,), dtype="u1")[:] = [1, 2, 3]
    array = zarr.open_array(place(f"file://{tmp_path}/a.zip|zip:|fsstore:in/v"), mode="r")
    assert array[:].tolist() == [1, 2, 3]


@pytest.mark.parametrize("start", ["fsstore://file://{}/", "ocdbt::file://{}/"])
def test_filesystems_of_fsspec_go_on(tmp_path, start):
    """URLs that begin with a protocol of our filesystems mean what they meant."""
    url = start.format(tmp_path / "data")
    zarr.create_array(url, name="v", shape=(3,), dtype="u1")[:] = [1, 2, 3]
    assert zarr.open_group(url, mode="r")["v"][:].tolist() == [1, 2, 3]
    root = f"file://{tmp_path}/data/" + ("|ocdbt:" if start.startswith("ocdbt") else "")
    assert "v/zarr.json" in {key.decode() for key in ts.KvStore.open(root).result().list().result()}


def test_modes(object_server):
    """A place for reading is opened for reading, and refuses modes that write."""
    object_server.put("d/zarr.json", b'{"zarr_format": 3, "node_type": "group", "attributes": {}}')
    url = place(f"{object_server.url}/d/|fsstore:")
    assert zarr.open_group(url, mode="r").read_only
    with pytest.raises(URLPipelineError, match="for reading only"):
        zarr.open_group(url, mode="r+")


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("fsstore:a", "cannot begin with"),
        ("ocdbt:a", "cannot begin with"),
        ("file:///tmp/|fsstore:a?b=1", "has no query"),
    ],
)
def test_bad_pipelines(url, text):
    """What makes no sense is said in a sentence."""
    with pytest.raises(URLPipelineError, match=text):
        zarr.open_group(place(url), mode="r")
