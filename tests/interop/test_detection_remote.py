"""Detection over HTTP and S3: what is found, and which requests reach the server."""

from __future__ import annotations

import base64
import contextlib
import functools
import gzip
import http.server
import io
import itertools
import json
import threading
import zipfile

import fsspec
import numpy as np
import pytest
import tensorstore

import fsstore as ts
from fsstore.errors import FailedPreconditionError, StoreError

pytestmark = pytest.mark.usefixtures("s3_credentials")

VALUES = np.arange(6, dtype="int32")
ENGINES = pytest.mark.parametrize("engine", ["obstore", "fsspec"])
KINDS = pytest.mark.parametrize("kind", ["http", "s3"])


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
        "g2/.zgroup": b'{"zarr_format": 2}',
        "g3/zarr.json": b'{"zarr_format": 3, "node_type": "group"}',
    }
    pipelines = {"zarr2": "zarr2:", "zarr3": "zarr3:", "db": "ocdbt:|zarr3:"}
    files = {name: _files(tmp_path / name, pipeline) for name, pipeline in pipelines.items()}
    found |= {f"{name}/{key}": value for name, inner in files.items() for key, value in inner.items()}
    archive = _archive(files["zarr3"])
    return found | {
        "two/.zarray": found["zarr2/.zarray"],
        "two/zarr.json": found["zarr3/zarr.json"],
        "x.png": b"\x89PNG\r\n\x1a\n" + bytes(100),
        "x.zip": archive,
        "big.zip": _archive({**files["zarr3"], "pad": bytes(2**20)}),
        "empty.zip": _archive({"a": b""}),
        "x.zip.gz": gzip.compress(archive),
        "refs.json": REFERENCES,
        "refs.json.gz": gzip.compress(REFERENCES),
        "document.json.gz": gzip.compress(b'{"a": 1}'),
    }


def _kvstore(kind, endpoint, bucket, path, engine):
    if kind == "http":  # of web servers the client of fsstore, in place of fsspec's
        engine = "fsstore" if engine == "fsspec" else engine
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
    document = ts.open({"driver": "auto", "kvstore": {**base, "path": base["path"] + "document.json.gz"}}).result()
    assert document.read().result()[()] == {"a": 1}
    with pytest.raises(FailedPreconditionError, match="There is nothing at"):
        ts.open({"driver": "auto", "kvstore": {**base, "path": base["path"] + "none"}}).result()


REQUESTS = {
    "zarr3": 2 + 5,
    "zarr3/": 5,
    "zarr2/": 5 + 1,  # `.zattrs` names the dimensions
    "big": 2,
    "document.json": 2 + 1,
    "huge.json": 2 + 1,
}


_buckets = (f"bucket-{number}" for number in itertools.count())


def _requests(server, objects, open_it):
    """Return the requests that `open_it(bucket)` makes, whatever becomes of it.

    Every call has a bucket of its own: a request that was called off may reach the server later.
    """
    bucket = next(_buckets)
    for key, value in objects.items():
        server.put(f"{bucket}/{key}", value)
    with contextlib.suppress(ValueError, NotImplementedError):
        open_it(bucket).result()
    return [entry for entry in server.log if entry[1].startswith(f"/{bucket}")]


def _auto(kind, server, place, engine):
    return lambda bucket: ts.open({"driver": "auto", "kvstore": _kvstore(kind, server.url, bucket, place, engine)})


@ENGINES
@KINDS
@pytest.mark.parametrize("place", REQUESTS)
def test_each_step_is_few_requests(object_server, objects, kind, engine, place):
    """Two for a file, one more for a short one, five for a directory, which bring the metadata of the array with them.

    The second of the two for a short file may be called off, because the first is refused.
    """
    seen = _requests(object_server, objects, _auto(kind, object_server, place, engine))
    assert len(seen) in (REQUESTS[place], REQUESTS[place] - (place == "document.json")), seen
    assert {method for method, _, _ in seen} == {"GET"}


MARKS = 3  # of parquet reference sets and of repositories of two versions, which TensorStore does not know
UNKNOWN = {"none": MARKS, "none/": MARKS, "g2/": MARKS, "empty": MARKS}
HEADS = 2  # how many obstore sends besides to learn how large a value is that has no byte
THEIRS = [each for each in ENTERED if each not in ("x.zip.gz", "refs.json", "refs.json.gz")]


@ENGINES
@pytest.mark.parametrize(
    "place", [*THEIRS, "two/", "big", "big.zip", "empty.zip", "g2/", "g3/", "none", "none/", "empty", "x.png"]
)
def test_no_more_requests_than_tensorstore_makes(object_server, objects, engine, place):
    """Over HTTP, whether something is found or not; only what is of no format is asked for marks of formats of ours."""
    url = object_server.url
    theirs = _requests(object_server, objects, lambda bucket: tensorstore.open(f"{url}/{bucket}/{place}", read=True))
    ours = _requests(object_server, objects, _auto("http", object_server, place, engine))
    more = UNKNOWN.get(place, 0) + (HEADS if (place, engine) == ("empty", "obstore") else 0)
    assert len(ours) <= len(theirs) + more + (place == "empty.zip"), ours  # the archive is listed for the message


@ENGINES
@pytest.mark.parametrize(("place", "most"), [("none", 7 + 1), ("none/", 5 + 1), ("g3", 8), ("db/none", 7 + 1)])
def test_a_store_that_lists_is_not_asked_for_one_mark_after_another(object_server, objects, engine, place, most):
    """In a bucket one listing says that there is nothing, and which arrays there are: TensorStore's requests and one."""
    assert len(_requests(object_server, objects, _auto("s3", object_server, place, engine))) <= most


def test_stores_on_the_way_are_not_asked_whether_they_have_changed(object_server, objects):
    """What an archive or database answered in a detection is good until its end."""

    def ours(bucket):
        base = _kvstore("http", object_server.url, bucket, "db/", "obstore")
        return ts.open({"driver": "auto", "kvstore": {"driver": "ocdbt", "base": base, "path": "none"}})

    assert len(_requests(object_server, objects, ours)) == 3  # TensorStore 0.1.86: two or three


@ENGINES
@KINDS
def test_an_empty_object(object_server, kind, engine):
    """An empty object is nothing, and finding that out takes few requests."""
    seen = _requests(object_server, {"empty": b""}, _auto(kind, object_server, "empty", engine))
    assert len(seen) <= 3 + HEADS + 5 + MARKS
    spec = {"driver": "auto", "kvstore": _kvstore(kind, object_server.url, "bucket-0", "empty", engine)}
    said = "There is nothing at" if kind == "s3" else "Failed to detect format"
    with pytest.raises(FailedPreconditionError, match=said):
        ts.open(spec).result()


@ENGINES
@KINDS
def test_a_server_that_refuses_is_an_error(object_server, objects, kind, engine):
    """What may not be read is not a place without a format."""
    object_server.put("bucket/x.zip", objects["x.zip"])
    object_server.fail("x.zip", *[lambda handler, path, body: handler.reply(403)] * 20)
    spec = {"driver": "auto", "kvstore": _kvstore(kind, object_server.url, "bucket", "x.zip", engine)}
    with pytest.raises(StoreError, match="Format auto-detection failed: Error reading"):
        ts.open(spec).result()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args):
        """Say nothing."""


@pytest.mark.parametrize("engine", ["fsstore", "fsspec", "obstore"])
def test_a_web_directory_without_a_slash(tmp_path, engine):
    """Web servers lead from a directory to a page that lists it; TensorStore opens the array in it too."""
    _files(tmp_path / "x", "zarr3:")
    handler = functools.partial(_Quiet, directory=tmp_path)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.handle_error = lambda *_: None  # connections may be closed before all is sent
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            base = {"driver": "http", "base_url": f"http://127.0.0.1:{server.server_address[1]}", "path": "/x"}
            found = ts.open({"driver": "auto", "kvstore": {**base, "engine": engine}}).result()
            assert np.array_equal(found.read().result(), VALUES)
        finally:
            server.shutdown()


def test_a_cache_between_detection_and_the_web(object_server, objects, tmp_path):
    """The paths of a cache over a web server are URLs; an archive in it is entered."""
    object_server.put("bucket/x.zip", _archive({"a.csv": b"x,y\n1,2\n"}))
    url = f"auto://a.csv::simplecache::{object_server.url}/bucket/x.zip"
    options = {"cache_storage": str(tmp_path / "cache")}
    with fsspec.open(url, simplecache=options) as file:
        assert file.read() == b"x,y\n1,2\n"
    assert len(list((tmp_path / "cache").iterdir())) >= 1


def test_the_filesystem_of_what_may_not_be_read_is_an_error(object_server, objects):
    """A refusal is not a directory without keys."""
    object_server.put("bucket/x.zip", objects["x.zip"])
    object_server.fail("x.zip", *[lambda handler, path, body: handler.reply(403)] * 40)
    fs = fsspec.filesystem("auto", fo={**_kvstore("http", object_server.url, "bucket", "x.zip", "obstore")})
    with pytest.raises(PermissionError, match="Format auto-detection failed"):
        fs.cat("zarr.json")


@ENGINES
def test_arrays_below_a_web_directory_are_found_by_consolidated_metadata(object_server, engine):
    """A web server lists nothing; the metadata that a writer collected say which arrays there are."""
    array = {"zarr_format": 3, "node_type": "array", "shape": [4], "data_type": "int8"}
    group = {"zarr_format": 3, "node_type": "group", "consolidated_metadata": {"metadata": {"a/b": array}}}
    object_server.put("bucket/g/zarr.json", json.dumps(group).encode())
    spec = _kvstore("http", object_server.url, "bucket", "g", engine)
    with pytest.raises(FailedPreconditionError, match='one of its arrays: "a/b"'):
        ts.open({"driver": "auto", "kvstore": spec}).result()
    from fsstore.dataset.listing import list_arrays

    assert [(entry.path, entry.shape) for entry in list_arrays(spec)] == [("a/b", (4,))]
