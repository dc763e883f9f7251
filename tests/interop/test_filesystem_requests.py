"""What the filesystems ask of a server: sizes, existence and listings without reading values."""

from __future__ import annotations

import io
import json
import zipfile

import fsspec
import numpy as np
import pytest
import zarr

import fsstore as ts
from fsstore.filesystem.kv import KvFileSystem
from fsstore.filesystem.place import live_kv
from fsstore.kvstore.contract.driver import KvPrefix
from fsstore.kvstore.memory import MemoryDriver
from fsstore.testing.doubles import Recording

pytestmark = pytest.mark.usefixtures("s3_credentials")

LARGE = bytes(2**20)
ENGINES = pytest.mark.parametrize("engine", ["obstore", "fsspec"])
KINDS = pytest.mark.parametrize("kind", ["http", "s3"])


def _filesystem(server, kind, engine):
    spec = {"driver": "s3", "bucket": "bucket", "endpoint": server.url, "aws_region": "us-east-1"}
    if kind == "http":  # of web servers the client of fsstore, in place of fsspec's
        engine = "fsstore" if engine == "fsspec" else engine
        spec = {"driver": "http", "base_url": f"{server.url}/bucket/"}
    return KvFileSystem({**spec, "engine": engine}, skip_instance_cache=True)


@ENGINES
@KINDS
def test_information_is_one_request_of_a_byte(object_server, kind, engine):
    """The size of a value comes with the answer to an empty read: one request, and at most a byte of the value."""
    object_server.put("bucket/d/large", LARGE)
    fs = _filesystem(object_server, kind, engine)
    assert fs.info("d/large") == {"name": "d/large", "size": 2**20, "type": "file"}
    assert fs.size("d/large") == 2**20
    assert fs.exists("d/large")
    assert fs.isfile("d/large")
    assert len(object_server.log) == 4
    assert object_server.bytes_sent <= 4


@ENGINES
@KINDS
def test_an_open_file_is_read_by_ranges(object_server, kind, engine):
    """Opening costs one request, and reading a part that part, not the value."""
    object_server.put("bucket/large", LARGE[:-3] + b"end")
    fs = _filesystem(object_server, kind, engine)
    with fs.open("large", "rb", block_size=1000) as file:
        file.seek(-3, 2)
        assert file.read() == b"end"
    assert len(object_server.log) == 2
    assert object_server.bytes_sent < 2000


@ENGINES
@pytest.mark.parametrize("ranges", [True, False])
def test_a_server_that_knows_no_ranges(object_server, engine, ranges):
    """A server that would send everything is not listened to: the size stands before the value."""
    object_server.put("bucket/large", bytes(2**25))
    if not ranges:
        whole = lambda handler, path, body: handler.reply(200, object_server.objects[path])  # noqa: E731  # scripted
        object_server.fail("large", *[whole] * 4)
    assert _filesystem(object_server, "http", engine).size("large") == 2**25
    assert len(object_server.log) == (1 if ranges or engine == "fsspec" else 2)
    assert object_server.bytes_sent < 2**24


@ENGINES
@KINDS
def test_an_empty_value_has_a_size(object_server, kind, engine):
    """An empty object has no byte to ask for; it has a size all the same."""
    object_server.put("bucket/empty", b"")
    assert _filesystem(object_server, kind, engine).size("empty") == 0
    assert len(object_server.log) <= 2


@ENGINES
@pytest.mark.parametrize("detail", [True, False])
def test_listings_know_sizes(object_server, engine, detail):
    """A bucket is listed by pages, whose entries have sizes: no request for any key."""
    for number in range(30):
        object_server.put(f"bucket/d/{number:02}", bytes(number))
    fs = _filesystem(object_server, "s3", engine)
    found = fs.ls("d", detail=detail)
    below = fs.find("d", detail=detail)
    if detail:
        assert [entry["size"] for entry in found] == list(range(30))
        assert [entry["size"] for entry in below.values()] == list(range(30))
    assert len(object_server.log) == 2


def test_sizes_in_stores_over_a_server(object_server, tmp_path):
    """Members of archives, entries of databases and references know their sizes: nothing of them is read."""
    with zipfile.ZipFile(tmp_path / "x.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("large", LARGE)
    database = ts.KvStore.open(f"file://{tmp_path}/db/|ocdbt:").result()
    database["large"] = LARGE
    object_server.put("bucket/x.zip", (tmp_path / "x.zip").read_bytes())
    object_server.put("bucket/target", LARGE)
    for path in (tmp_path / "db").rglob("*"):
        if path.is_file():
            object_server.put(f"bucket/db/{path.relative_to(tmp_path / 'db')}", path.read_bytes())
    web = {"driver": "http", "base_url": f"{object_server.url}/bucket/"}
    target = f"{object_server.url}/bucket/target"
    refs = {"part": [target, 5, 1000], "large": [target], "inline": "text"}
    object_server.put("bucket/refs.json", json.dumps({"version": 1, "refs": refs}).encode())
    reference = {"driver": "reference", "base": {**web, "path": "refs.json"}, "allow": [object_server.url]}
    for spec, sizes in [
        ({"driver": "zip", "base": {**web, "path": "x.zip"}}, {"large": 2**20}),
        ({"driver": "ocdbt", "base": {**web, "path": "db/"}}, {"large": 2**20}),
        (reference, {"part": 1000, "inline": 4, "large": 2**20}),
    ]:
        object_server.log.clear()
        object_server.bytes_sent = 0
        fs = KvFileSystem(spec, skip_instance_cache=True)
        assert {name: fs.size(name) for name in sizes} == sizes
        assert len(object_server.log) <= 4, object_server.log
        assert object_server.bytes_sent < 10000


def test_local_files_have_sizes_in_listings(tmp_path):
    """Sizes of local files come from the system, also where a file may not be read."""
    for name, size in (("a", 3), ("b", 70000)):
        (tmp_path / name).write_bytes(bytes(size))
    fs = KvFileSystem(f"file://{tmp_path}/", skip_instance_cache=True)
    assert [(entry["name"], entry["size"]) for entry in fs.ls("", detail=True)] == [("a", 3), ("b", 70000)]
    assert fs.du("") == 70003


def test_a_listing_without_details_asks_for_none():
    """Names alone cost a listing."""
    driver = Recording(MemoryDriver())
    fs = KvFileSystem.of(ts.KvStore.of(live_kv(KvPrefix(driver))))
    fs.pipe({"a/b": b"1", "a/c": b"22"})
    driver.reset()
    assert fs.find("") == ["a/b", "a/c"]
    assert fs.ls("a", detail=False) == ["a/b", "a/c"]
    assert driver.reads == []


def test_simplecache_downloads_what_the_server_announces(object_server, tmp_path):
    """A cache in the middle of a chain copies each file with one request for the size and one for the value."""
    object_server.put("bucket/large", LARGE)
    url = f"simplecache::fsstore://{object_server.url}/bucket/large"
    with fsspec.open(url, simplecache={"cache_storage": str(tmp_path)}) as file:
        assert len(file.read()) == 2**20
    assert object_server.bytes_sent < 2**20 + 100


@pytest.mark.parametrize("form", ["references", "archive"])
def test_chunks_in_one_file_are_few_requests(object_server, form):
    """zarr-python reads ten chunks at a time: of one file that is one request for ten, where it was one for each.

    From 3.4 on it begins another chunk as soon as one is there, so that fewer are asked for together.
    """
    count = 40
    data = np.arange(count * 64, dtype="<i4").reshape(count, 64)
    array = {"zarr_format": 2, "compressor": None, "filters": None, "order": "C", "fill_value": None}
    meta = json.dumps({**array, "shape": [count, 64], "chunks": [1, 64], "dtype": "<i4"})
    if form == "references":
        object_server.put("bucket/data", data.tobytes())
        chunks = {f"v/{row}.0": [f"{object_server.url}/bucket/data", row * 256, 256] for row in range(count)}
        object_server.put("bucket/set", json.dumps({"version": 1, "refs": {"v/.zarray": meta, **chunks}}).encode())
    else:
        with io.BytesIO() as buffer:
            with zipfile.ZipFile(buffer, "w") as archive:
                archive.writestr("v/.zarray", meta)
                for row in range(count):
                    archive.writestr(f"v/{row}.0", data[row].tobytes())
            object_server.put("bucket/set", buffer.getvalue())
    adapter = "reference" if form == "references" else "zip"
    fs = KvFileSystem(f"{object_server.url}/bucket/set|{adapter}:", asynchronous=True, skip_instance_cache=True)
    found = zarr.open_array(zarr.storage.FsspecStore(fs, path="v", read_only=True), mode="r", zarr_format=2)
    before = len(object_server.log)
    assert (found[...] == data).all()
    is_newer = tuple(map(int, zarr.__version__.split(".")[:2])) >= (3, 4)
    assert len(object_server.log) - before <= (count // 2 if is_newer else 10)
