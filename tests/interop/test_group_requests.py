"""How groups ask far stores: the documents of a place together, and each of them once."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import zarr

import fsstore

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
_NAMES = ("a", "b", "c")


@pytest.fixture(params=[2, 3])
def remote(request, tmp_path, object_server):
    """Put a consolidated group of three arrays on the web server; give its URL, and the documents of a member."""
    group = zarr.open_group(tmp_path / "g", mode="w", zarr_format=request.param, attributes={"title": "t"})
    for number, name in enumerate(_NAMES):
        group.create_array(name, data=np.arange(4) + number)
    zarr.consolidate_metadata(tmp_path / "g")
    for path in (tmp_path / "g").rglob("*"):
        if path.is_file():
            object_server.put(f"g/{path.relative_to(tmp_path / 'g')}", path.read_bytes())
    return f"{object_server.url}/g/", (".zarray", ".zattrs") if request.param == 2 else ("zarr.json",)


def asked(server, since=0):
    """Return how often each path was asked for."""
    return Counter(path for _, path, _ in server.log[since:])


def test_a_group_is_opened_by_what_detection_read(remote, object_server):
    """Its documents are read beside those by which formats are told, in the same batch, and not again."""
    url, _ = remote
    group = fsstore.open_group(url, mode="r").result()
    assert group.attrs["title"] == "t"
    counts = asked(object_server)
    assert max(counts.values()) == 1
    assert len(counts) <= 8, "nothing is asked for but names of documents"


def test_a_member_is_opened_by_what_was_looked_at(remote, object_server):
    """Finding out what stands at a path, and opening it, is one batch."""
    url, documents = remote
    group = fsstore.open_group(url, mode="r").result()
    begun = len(object_server.log)
    assert group["b"].read().result().tolist() == [1, 2, 3, 4]
    counts = asked(object_server, begun)
    assert {counts[f"/g/b/{name}"] for name in documents} == {1}
    assert max(counts.values()) == 1


def test_listed_arrays_are_opened_by_their_own_documents(remote, object_server):
    """Of members that a listing names only the documents of their format are read, once each."""
    url, documents = remote
    group = fsstore.open_group(url, mode="r").result()
    begun = len(object_server.log)
    arrays = dict(group.arrays())
    assert [arrays[name].read().result().tolist() for name in _NAMES] == [[0, 1, 2, 3], [1, 2, 3, 4], [2, 3, 4, 5]]
    counts = asked(object_server, begun)
    below = {path: count for path, count in counts.items() if path.count("/") == 3 and "/c" not in path[-4:]}
    members = {path for path in below if path.rpartition("/")[2] not in ("0", "c")}
    assert {counts[f"/g/{name}/{document}"] for name in _NAMES for document in documents} == {1}
    assert len(members) <= len(_NAMES) * (3 if documents[0] == ".zarray" else 1)


def test_a_bucket_has_one_client_of_s3fs(moto_bucket, monkeypatch):
    """Opening a bucket through s3fs again makes no new client: one takes as long as a hundred requests near by."""
    import s3fs

    endpoint, name = moto_bucket
    made = []
    begin = s3fs.S3FileSystem.__init__
    monkeypatch.setattr(
        s3fs.S3FileSystem, "__init__", lambda self, *args, **more: (made.append(1), begin(self, *args, **more))[1]
    )
    spec = {"driver": "s3", "bucket": name, "endpoint": endpoint, "aws_region": "us-east-1", "engine": "fsspec"}
    spec |= {"path": "one_client/", "storage_options": {"key": "a", "secret": "b"}}
    for number in range(3):
        store = fsstore.KvStore.open(spec, context=fsstore.Context()).result()
        store[f"k{number}"] = b"x"
    first = len(made)
    assert store.list().result() == [b"k0", b"k1", b"k2"]
    fsstore.KvStore.open(spec, context=fsstore.Context()).result().list().result()
    assert len(made) == first <= 2, "one to look at the address, and one that asks"
    fsstore.KvStore.open(spec | {"requester_pays": True}, context=fsstore.Context()).result().list().result()
    assert len(made) > first
