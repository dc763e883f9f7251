"""Detection over HTTP and S3: what is found, and which requests reach the server."""

from __future__ import annotations

import base64
import gzip
import io
import json
import zipfile

import numpy as np
import pytest

import fsstore as ts
from fsstore.errors import FailedPreconditionError, StoreError

VALUES = np.arange(6, dtype="int32")
ENGINES = pytest.mark.parametrize("engine", ["obstore", "fsspec"])
KINDS = pytest.mark.parametrize("kind", ["http", "s3"])


@pytest.fixture(autouse=True)
def credentials(monkeypatch):
    """Give the environment of S3 clients."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def _files(folder, pipeline):
    """Return the files of an array that is written there."""
    array = ts.open(f"file://{folder}/|{pipeline}", create=True, dtype="int32", shape=[6]).result()
    array[...] = VALUES
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _archive(files):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, value in files.items():
            archive.writestr(name, value)
    return buffer.getvalue()


REFERENCES = json.dumps({"version": 1, "refs": {
    ".zarray": json.dumps({"zarr_format": 2, "shape": [6], "chunks": [6], "dtype": "<i4", "compressor": None,
                           "filters": None, "order": "C", "fill_value": 0}),
    "0": "base64:" + base64.b64encode(VALUES.tobytes()).decode(),
}}).encode()  # fmt: skip


@pytest.fixture
def objects(tmp_path):
    """Give the objects of a bucket: one of each kind of place."""
    found = {
        "big": bytes(2**20),
        "document.json": b'{"a": 1}',
        "empty": b"",
        "huge.json": b'{"a": "' + b"z" * 2**20,
    }
    pipelines = {"zarr2": "zarr2:", "zarr3": "zarr3:", "db": "ocdbt:|zarr3:"}
    files = {name: _files(tmp_path / name, pipeline) for name, pipeline in pipelines.items()}
    found |= {f"{name}/{key}": value for name, inner in files.items() for key, value in inner.items()}
    archive = _archive(files["zarr3"])
    return found | {
        "x.zip": archive,
        "x.zip.gz": gzip.compress(archive),
        "refs.json": REFERENCES,
        "refs.json.gz": gzip.compress(REFERENCES),
        "document.json.gz": gzip.compress(b'{"a": 1}'),
    }


def _kvstore(kind, endpoint, bucket, path, engine):
    if kind == "http":
        return {"driver": "http", "base_url": endpoint, "path": f"/{bucket}/{path}", "engine": engine}
    s3 = {"driver": "s3", "bucket": bucket, "endpoint": endpoint, "aws_region": "us-east-1"}
    return {**s3, "path": path, "engine": engine}


ENTERED = {
    "zarr2": ["zarr"],
    "zarr2/": ["zarr"],
    "zarr3": ["zarr3"],
    "db": ["ocdbt", "zarr3"],
    "x.zip": ["zip", "zarr3"],
    "x.zip.gz": ["gzip", "zip", "zarr3"],
    "refs.json": ["reference", "zarr"],
    "refs.json.gz": ["reference", "zarr"],
}


def _steps(array):
    """Return the drivers between the bucket and the array."""
    json = array.spec().to_json()
    names, store = [json["driver"]], json["kvstore"]
    while "base" in store:
        names.insert(0, store["driver"])
        store = store["base"]
    return names


@ENGINES
def test_every_kind_of_place_in_a_bucket(moto_bucket, objects, engine):
    """Arrays, databases, archives, reference sets and compressed files in S3 open by their place."""
    endpoint, bucket = moto_bucket
    base = _kvstore("s3", endpoint, bucket, f"detection-{engine}/", engine)
    store = ts.KvStore.open(base).result()
    for key, value in objects.items():
        store[key] = value
    for place, steps in ENTERED.items():
        found = ts.open({"driver": "auto", "kvstore": {**base, "path": base["path"] + place}}).result()
        assert _steps(found) == steps
        assert np.array_equal(found.read().result(), VALUES), place
    document = ts.open(
        {"driver": "auto", "kvstore": {**base, "path": base["path"] + "document.json.gz"}}
    ).result()
    assert document.read().result()[()] == {"a": 1}
    with pytest.raises(FailedPreconditionError, match="Failed to detect format"):
        ts.open({"driver": "auto", "kvstore": {**base, "path": base["path"] + "none"}}).result()


REQUESTS = {
    "zarr3": 2 + 5 + 1,
    "zarr3/": 5 + 1,
    "zarr2/": 5 + 2,  # `.zattrs` names the dimensions
    "big": 2,
    "document.json": 2 + 1,
    "huge.json": 2 + 1,
}


@ENGINES
@KINDS
@pytest.mark.parametrize("place", REQUESTS)
def test_the_server_sees_the_requests_of_tensorstore(object_server, objects, kind, engine, place):
    """Two for a file, one more for a short one, five for a directory, one for each document.

    The second of the two for a short file may be called off, because the first is refused.
    """
    for key, value in objects.items():
        object_server.put(f"bucket/{key}", value)
    spec = {"driver": "auto", "kvstore": _kvstore(kind, object_server.url, "bucket", place, engine)}
    try:
        ts.open(spec).result()
    except StoreError:
        assert place == "big"
    seen = object_server.log
    assert len(seen) in (REQUESTS[place], REQUESTS[place] - (place == "document.json")), seen
    assert {method for method, _, _ in seen} == {"GET"}


@ENGINES
@KINDS
def test_an_empty_object(object_server, kind, engine):
    """An empty object is nothing, and finding that out takes few requests."""
    object_server.put("bucket/empty", b"")
    spec = {"driver": "auto", "kvstore": _kvstore(kind, object_server.url, "bucket", "empty", engine)}
    with pytest.raises(FailedPreconditionError, match="Failed to detect format"):
        ts.open(spec).result()
    assert len(object_server.log) < 25


@ENGINES
@KINDS
def test_a_server_that_refuses_is_an_error(object_server, objects, kind, engine):
    """What may not be read is not a place without a format."""
    object_server.put("bucket/x.zip", objects["x.zip"])
    object_server.fail("x.zip", *[lambda handler, path, body: handler.reply(403)] * 20)
    spec = {"driver": "auto", "kvstore": _kvstore(kind, object_server.url, "bucket", "x.zip", engine)}
    with pytest.raises(StoreError, match="Format auto-detection failed: Error reading"):
        ts.open(spec).result()


@ENGINES
def test_arrays_below_a_web_directory_are_found_by_consolidated_metadata(object_server, engine):
    """A web server lists nothing; the metadata that a writer collected say which arrays there are."""
    array = {"zarr_format": 3, "node_type": "array", "shape": [4], "data_type": "int8"}
    group = {"zarr_format": 3, "node_type": "group", "consolidated_metadata": {"metadata": {"a/b": array}}}
    object_server.put("bucket/g/zarr.json", json.dumps(group).encode())
    spec = _kvstore("http", object_server.url, "bucket", "g", engine)
    with pytest.raises(FailedPreconditionError, match='arrays below it: "a/b"'):
        ts.open({"driver": "auto", "kvstore": spec}).result()
    from fsstore.listing import list_arrays

    assert [(entry.path, entry.shape) for entry in list_arrays(spec)] == [("a/b", (4,))]
