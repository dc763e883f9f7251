"""Hostile sets: every row of the threat table, against files, servers, memory and time."""

from __future__ import annotations

import json
import time
import tracemalloc

import pytest

import fsstore as ts
from fsstore import references
from fsstore.errors import (
    DataLossError,
    JsonError,
    NotFoundError,
    PermissionDeniedError,
    ResourceExhaustedError,
    StoreError,
)
from fsstore.kvstore.contract.driver import Read
from fsstore.kvstore.spec_parse import kv_spec, open_kv
from fsstore.reference.kind import open_reference
from fsstore.reference.table.set_state import chunk_bytes
from fsstore.runtime import execution


def run(coroutine):
    """Return the result of a coroutine, on the event loop."""
    return execution.call(coroutine)


@pytest.mark.parametrize(
    "target", [None, {"engine": "fsstore"}, {"engine": "fsspec"}, {"engine": "obstore"}, {"headers": {"X-A": "b"}}]
)
def test_whole_targets_of_a_local_set_are_refused_by_the_size_they_announce(server, tmp_path, target):
    """Nothing of a web target larger than a chunk can need is downloaded, and no request is made to find out."""
    server.put("large", bytes(2**26 + 10))
    server.put("fits", b"\1\2\3\4")
    array = json.dumps({"zarr_format": 2, "shape": [8], "chunks": [4], "dtype": "|u1"})
    refs = {"x/.zarray": array, "x/0": [f"{server.url}/large"], "x/1": [f"{server.url}/fits"]}
    (tmp_path / "r.json").write_text(json.dumps(refs))
    if target is not None and "engine" in target:
        target = {"driver": "http", "base_url": server.url, "path": "/", **target}
    members = {} if target is None else {"targets": {f"{server.url}/": target}}
    driver = run(opened(f"file://{tmp_path}/r.json", **members))
    server.log.clear()
    with pytest.raises(ResourceExhaustedError, match="67108874 bytes") as error:
        run(read(driver, "x/0"))
    assert '"x/0"' in str(error.value)
    assert run(read(driver, "x/1")) == [b"\1\2\3\4"]
    assert [entry[2] for entry in server.log] == [None, None]


@pytest.mark.parametrize("engine", ["fsspec", "obstore"])
def test_whole_targets_in_buckets_are_refused_by_the_size_they_announce(moto_bucket, tmp_path, engine, monkeypatch):
    """The same of S3, whatever library speaks to it."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    endpoint, bucket = moto_bucket
    spec = {
        "driver": "s3",
        "bucket": bucket,
        "endpoint": endpoint,
        "aws_region": "us-east-1",
        "engine": engine,
        "path": f"whole-{engine}/",
    }
    store = ts.KvStore.open(spec).result()
    store["large"], store["fits"] = bytes(2**26 + 10), b"\1\2\3\4"
    array = json.dumps({"zarr_format": 2, "shape": [8], "chunks": [4], "dtype": "|u1"})
    refs = {"x/.zarray": array, "x/0": ["s3://b/large"], "x/1": ["s3://b/fits"]}
    (tmp_path / "r.json").write_text(json.dumps(refs))
    driver = run(opened(f"file://{tmp_path}/r.json", targets={"s3://b/": spec}))
    with pytest.raises(ResourceExhaustedError, match="67108874 bytes"):
        run(read(driver, "x/0"))
    assert run(read(driver, "x/1")) == [b"\1\2\3\4"]


async def opened(url, **members):
    """Return the reference store over the document at a URL."""
    from fsstore.context.context import Context

    base = (await open_kv(kv_spec(url), Context())).prefix
    return await open_reference(base, members)


async def read(driver, *keys):
    """Return the values of keys."""
    return [bytes(result.value) for result in await driver.read_many([Read(key) for key in keys])]


def served(server, refs, **members):
    """Return the reference store over a document that a server gives."""
    server.put("set/refs.json", json.dumps({"version": 1, "refs": refs}).encode())
    return run(opened(f"{server.url}/set/refs.json", **members))


@pytest.fixture
def server():
    """A server of the shared kind."""
    from tests.conftest import ObjectServer

    made = ObjectServer()
    yield made
    made.reset()


@pytest.fixture
def other():
    """A second server: another host, as far as the policy is concerned."""
    from tests.conftest import ObjectServer

    made = ObjectServer()
    yield made
    made.reset()


def test_a_set_from_a_server_reads_its_own_server(server):
    """Relative targets and targets on the same server are read, merged into few requests."""
    server.put("set/data.bin", bytes(range(200)))
    refs = {f"x/{n}": ["data.bin", n, 1] for n in range(100)} | {
        f"y/{n}": [f"{server.url}/set/data.bin", n, 1] for n in range(100)
    }
    driver = served(server, refs)
    server.log.clear()
    assert run(read(driver, *[f"x/{n}" for n in range(100)])) == [bytes([n]) for n in range(100)]
    assert run(read(driver, *[f"y/{n}" for n in range(100)])) == [bytes([n]) for n in range(100)]
    assert server.count() == 2


@pytest.mark.parametrize(
    "form",
    ["/{}", "file:///{}", "file://localhost/{}", "local:///{}", "/x/../{}", "zip://a::/{}", "simplecache::file:///{}"],
)
def test_a_set_from_a_server_reads_no_local_file(server, tmp_path, form):
    """Local files are refused in every spelling, by every entry point."""
    (tmp_path / "secret").write_text("hush")
    url = form.format(str(tmp_path / "secret").lstrip("/"))
    driver = served(server, {"x": [url]})
    with pytest.raises(PermissionDeniedError, match='"x"'):
        run(read(driver, "x"))
    assert not references.verify({"driver": "http", "base_url": server.url, "path": "/set/refs.json"})


def test_a_set_from_a_server_reads_no_other_internal_server(server, other):
    """Another port of this machine is refused before a request is made, and allowed when the caller says so."""
    other.put("x", b"internal")
    driver = served(server, {"x": [f"{other.url}/x"]})
    with pytest.raises(PermissionDeniedError):
        run(read(driver, "x"))
    assert not other.log
    driver = served(server, {"x": [f"{other.url}/x"]}, allow=[other.url])
    assert run(read(driver, "x")) == [b"internal"]


def redirect(place):
    """Return a fault that answers with a redirect."""

    def answer(handler, _path, _body):
        handler.reply(302, Location=place)

    return answer


def test_redirects_are_authorised_hop_by_hop(server, other):
    """A redirect to an internal server is refused before the second request; one within the server is followed."""
    other.put("x", b"internal")
    server.put("set/fine", b"fine")
    driver = served(server, {"evil": [f"{server.url}/away"], "good": [f"{server.url}/near"]})
    server.fail("/away", *[redirect(f"{other.url}/x")] * 20)
    server.fail("/near", redirect(f"{server.url}/set/fine"))
    with pytest.raises(StoreError, match="may not be read") as caught:
        run(read(driver, "evil"))
    assert isinstance(caught.value, PermissionDeniedError)
    assert not other.log
    assert run(read(driver, "good")) == [b"fine"]


@pytest.mark.parametrize(
    "base",
    [{"driver": "http", "headers": ["X-Token: hush"]}, {"driver": "fsspec"}, {"driver": "http", "engine": "obstore"}],
)
@pytest.mark.parametrize("allow", [None, True])
def test_redirects_beside_the_set_are_authorised_too(server, other, base, allow):
    """What lies beside a set from a server may not lead to an internal server either, whatever client brought the set."""
    other.put("x", b"internal")
    server.put("set/fine", b"fine")
    refs = {"evil": ["away"], "part": ["away", 0, 3], "good": ["near"], "beside": ["fine", 1, 2]}
    server.put("set/refs.json", json.dumps(refs).encode())
    server.fail("/set/away", *[redirect(f"{other.url}/x")] * 20)
    server.fail("/set/near", redirect(f"{server.url}/set/fine"))
    url = f"{server.url}/set/refs.json" if base["driver"] == "fsspec" else server.url
    place = {"url": url} if base["driver"] == "fsspec" else {"base_url": url, "path": "/set/refs.json"}
    driver = run(opened({**base, **place}, **({"allow": [server.url]} if allow else {})))
    server.headers_seen.clear()
    assert run(read(driver, "good", "beside")) == [b"fine", b"in"]
    assert all(headers.get("X-Token") == ("hush" if "headers" in base else None) for headers in server.headers_seen)
    for key in ("evil", "part"):
        with pytest.raises(PermissionDeniedError, match="may not be read"):
            run(read(driver, key))
    assert not other.log
    assert run(read(run(opened({**base, **place}, allow=[server.url, other.url])), "evil")) == [b"internal"]


def test_credentials_stay_with_their_prefix(server, other):
    """Headers given for one prefix are sent there, not to another host, not after a redirect."""
    server.put("x", b"1")
    other.put("x", b"2")
    driver = served(
        server,
        {"a": [f"{server.url}/x"], "b": [f"{other.url}/x"], "c": [f"{server.url}/away"]},
        targets={server.url: {"headers": {"X-Token": "hush"}}},
        allow=[server.url, other.url],
    )
    server.headers_seen.clear()
    assert run(read(driver, "a", "b")) == [b"1", b"2"]
    assert "hush" in repr(server.headers_seen)
    assert "hush" not in repr(other.headers_seen)
    server.fail("/away", *[redirect(f"{other.url}/x")] * 20)
    with pytest.raises(StoreError, match="leaves"):
        run(read(driver, "c"))
    assert "hush" not in repr(other.headers_seen)


@pytest.mark.parametrize("more", [{}, {"client_kwargs": {}}], ids=["own client", "aiohttp"])
def test_headers_begin_no_other_request(server, more):
    """However a header with a line break comes to a client, it is an error, and nothing of it reaches the server."""
    server.put("x", b"1")
    options = {"headers": {"X-A": "b\r\nX-B: c"}, **more}
    refs = {"a": [f"{server.url}/x"]}
    with pytest.raises(StoreError, match="X-A"):
        served(server, refs, targets={server.url: options}, allow=[server.url])
    for where in (
        {"driver": "fsspec", "url": server.url, "storage_options": options},
        {"driver": "http", "base_url": server.url, "headers": ["X-A: b\r\nX-B: c"]},
    ):
        server.headers_seen.clear()
        with pytest.raises(StoreError):
            run(read(served(server, refs, targets={server.url: where}, allow=[server.url]), "a"))
        assert "X-B" not in repr(server.headers_seen)


def test_two_places_have_credentials_of_their_own(server, other):
    """One set, two servers: each is sent what was given for it, whatever the protocol that both have."""
    for each in (server, other):
        each.put("a/x", b"1")
    targets = {f"{server.url}/a/": {"headers": {"X-Token": "one"}}, other.url: {"headers": {"X-Token": "two"}}}
    driver = served(server, {"a": [f"{server.url}/a/x"], "b": [f"{other.url}/a/x"]}, targets=targets)
    for each in (server, other):
        each.headers_seen.clear()
    assert run(read(driver, "a", "b")) == [b"1", b"1"]
    assert [{headers.get("X-Token") for headers in each.headers_seen} for each in (server, other)] == [{"one"}, {"two"}]


@pytest.mark.parametrize("engine", ["fsstore", "fsspec", "obstore"])
def test_servers_that_ignore_ranges_or_send_too_little_are_not_believed(server, engine):
    """The whole file in answer to a range is cut or refused, a short body refused: never taken for the chunk."""
    data = bytes(range(100))
    server.put("set/d", data)
    target = {"driver": "http", "base_url": server.url, "path": "/", "engine": engine}
    driver = served(server, {"x": [f"{server.url}/set/d", 10, 20]}, targets={f"{server.url}/": target})

    def everything(handler, _path, _body):
        handler.reply(200, data)

    server.fail("/set/d", everything)
    assert run(read(driver, "x")) == [data[10:30]]
    server.put("set/d", data[:15])
    with pytest.raises(DataLossError, match='"x"'):
        run(read(driver, "x"))
    del server.objects["/set/d"]
    with pytest.raises(DataLossError, match="20 bytes at offset 10"):
        run(read(driver, "x"))


@pytest.mark.parametrize(
    "document",
    [
        {"metadata": {"../other/.zarray": {"shape": [1], "chunks": [1]}}, "record_size": 10},
        {"metadata": {"/abs/.zarray": {"shape": [1], "chunks": [1]}}, "record_size": 10},
        {"metadata": [], "record_size": 10}, {"metadata": "x", "record_size": 10}, {"record_size": 10},
        {"metadata": {}, "record_size": 0}, {"metadata": {}, "record_size": -5}, {"metadata": {}, "record_size": 1.5},
        {"metadata": {}, "record_size": 10**10}, {"metadata": {}}, {"metadata": {}, "record_size": "10"},
        {"metadata": {"x/.zarray": {"shape": [1], "chunks": [0]}}, "record_size": 10},
        {"metadata": {"x/.zarray": {"shape": [1], "chunks": [-1]}}, "record_size": 10},
        {"metadata": {"x/.zarray": {"shape": [1, 1], "chunks": [1]}}, "record_size": 10},
        {"metadata": {"x/.zarray": {"shape": [-1], "chunks": [1]}}, "record_size": 10},
        {"metadata": {"x/.zarray": {"shape": [2**40, 2**40], "chunks": [1, 1]}}, "record_size": 10},
        {"metadata": {"x/.zarray": {"shape": "x", "chunks": [1]}}, "record_size": 10},
        {"metadata": {"x/.zarray": 5}, "record_size": 10}, {"metadata": {"x/.zarray": ["u", 0, 1]}, "record_size": 10},
    ],
)  # fmt: skip
def test_malformed_parquet_metadata_is_refused(tmp_path, document):
    """Paths out of the set, impossible record sizes, grids and documents are refused when opened."""
    (tmp_path / "r.parq").mkdir()
    (tmp_path / "r.parq" / ".zmetadata").write_text(json.dumps(document))
    with pytest.raises((JsonError, DataLossError)):
        references.open(tmp_path / "r.parq")


def test_an_array_of_2_to_the_50_chunks_is_cheap(tmp_path):
    """Opening, looking up and listing cost what the stored files cost, not what the metadata claims."""
    (tmp_path / "r.parq" / "x").mkdir(parents=True)
    document = {"metadata": {"x/.zarray": {"shape": [2**50], "chunks": [1]}}, "record_size": 10}
    (tmp_path / "r.parq" / ".zmetadata").write_text(json.dumps(document))
    begin = time.process_time()
    refs = references.open(tmp_path / "r.parq")
    assert refs.get_many(["x/5", f"x/{2**50 - 1}", f"x/{2**50}"]) == [None] * 3
    assert list(refs) == ["x/.zarray"]
    assert time.process_time() - begin < 2
    sparse = references.open(
        {"x/.zarray": json.dumps(document["metadata"]["x/.zarray"]), f"x/{2**49}": ["u", 0, 1], "x/0": ["u"]}
    )
    assert len(sparse) == 3


@pytest.mark.parametrize("damage", ["text", "cut", "flipped", "offset", "size", "end", "columns", "type"])
def test_damaged_partitions_are_errors(tmp_path, damage):
    """A file that is no table of references is damage with its name, never missing chunks."""
    import pyarrow as pa
    from pyarrow import parquet

    array = {"zarr_format": 2, "shape": [100], "chunks": [1]}
    references.open({"x/.zarray": array, **{f"x/{n}": ["u", n, 5] for n in range(100)}}).save(tmp_path / "r.parq")
    path = tmp_path / "r.parq" / "x" / "refs.0.parq"
    data = path.read_bytes()
    tables = {
        "offset": {"path": ["u"], "offset": [-1], "size": [1]},
        "size": {"path": ["u"], "offset": [5], "size": [-1]},
        "end": {"path": ["u"], "offset": [2**63 - 1], "size": [3]},
        "columns": {"other": [1]},
        "type": {"path": ["u"], "offset": [0], "size": [0], "raw": [5]},
    }
    if damage in tables:
        parquet.write_table(pa.table(tables[damage]), path)
    else:
        path.write_bytes({"text": b"hello", "cut": data[:-20], "flipped": data[:-6] + b"\xff" + data[-5:]}[damage])
    with pytest.raises(DataLossError, match=r"refs\.0\.parq"):
        references.open(tmp_path / "r.parq").get_many(["x/0"])


def test_partitions_with_fewer_rows_or_columns_are_read(tmp_path):
    """Absent columns and rows past the end of a file mean no reference."""
    import pyarrow as pa
    from pyarrow import parquet

    array = {"zarr_format": 2, "shape": [10], "chunks": [1]}
    references.open({"x/.zarray": array, "x/0": "a"}).save(tmp_path / "r.parq")
    path = tmp_path / "r.parq" / "x" / "refs.0.parq"
    parquet.write_table(pa.table({"path": ["u", None], "offset": [3, 0], "size": [4, 0]}), path)
    assert references.open(tmp_path / "r.parq").get_many(["x/0", "x/1", "x/2"]) == [("u", 3, 4), None, None]
    parquet.write_table(pa.table({"raw": [b"a", None, b""]}), path)
    assert references.open(tmp_path / "r.parq").get_many(["x/0", "x/1", "x/2"]) == [b"a", None, b""]


@pytest.mark.parametrize("size", [2**34, 2**61])
def test_huge_lengths_are_refused_without_allocating(tmp_path, size):
    """A range of 16 GiB of a small file is an error at once."""
    (tmp_path / "t").write_bytes(b"small")
    (tmp_path / "r.json").write_text(json.dumps({"x": ["t", 0, size]}))
    driver = run(opened(f"file://{tmp_path}/r.json"))
    begin = time.process_time()
    with pytest.raises((DataLossError, ResourceExhaustedError), match='"x"'):
        run(read(driver, "x"))
    assert time.process_time() - begin < 1


def test_inspection_fetches_nothing(server):
    """`inspect` names hosts, codecs and bytes from the set alone."""
    metadata = {
        "zarr_format": 2,
        "shape": [4],
        "chunks": [1],
        "filters": [{"id": "pickle"}],
        "compressor": {"id": "blosc"},
    }
    refs = {
        "x/.zarray": metadata,
        "x/0": [f"{server.url}/d", 0, 100],
        "x/1": ["s3://b/k", 5, 50],
        "x/2": ["s3://b/l"],
        "x/3": ["rel", 0, 1],
    }
    report = references.inspect(refs)
    assert not server.log
    assert report.codecs == ("blosc", "pickle")
    assert report.arrays == ("x",)
    assert report.nbytes == 151
    assert set(report.places) == {server.url, "s3://b", "relative"}
    assert (report.places["s3://b"].urls, report.places["s3://b"].references, report.places["s3://b"].whole) == (
        2,
        2,
        1,
    )


def test_verification_finds_what_is_wrong(tmp_path):
    """Missing and short targets are found with their keys; sound ones are not; one request a sound target."""
    (tmp_path / "good").write_bytes(bytes(100))
    (tmp_path / "short").write_bytes(bytes(55))
    (tmp_path / "empty").write_bytes(b"")
    refs = {f"x/{n}": ["good", n * 10, 10] for n in range(10)} | {f"y/{n}": ["short", n * 10, 10] for n in range(10)}
    refs |= {"z/0": ["gone", 0, 1], "w/0": ["good"], "e/0": ["empty"], "i": "inline"}
    (tmp_path / "r.json").write_text(json.dumps(refs))
    found = references.verify(tmp_path / "r.json")
    assert not found
    assert (found.targets, found.references) == (4, 23)
    problems = {problem.url: problem for problem in found.problems}
    assert set(problems) == {"short", "gone"}
    assert "50 bytes" in problems["short"].why
    assert problems["short"].references == 10
    assert problems["gone"].keys == ("z/0",)
    for name in ("gone", "short"):
        (tmp_path / name).write_bytes(bytes(100))
    assert references.verify(tmp_path / "r.json")


def test_a_missing_set_is_not_found(server, tmp_path):
    """Nothing at the URL is `NotFoundError`, and a broken server is not taken for nothing."""
    for url in (f"file://{tmp_path}/none.json", f"{server.url}/none.json", f"file://{tmp_path}/none.parq"):
        with pytest.raises(NotFoundError):
            references.open(url)


def an_array(tmp_path, reference, **metadata):
    """Return the outcome of reading the first elements of an array of one chunk: values, or the error."""
    document = {
        "zarr_format": 2,
        "shape": [4],
        "chunks": [4],
        "dtype": "|u1",
        "order": "C",
        "compressor": None,
        "filters": None,
        "fill_value": 0,
        **metadata,
    }
    (tmp_path / "r.json").write_text(json.dumps({"x/.zarray": json.dumps(document), "x/0": reference}))
    try:
        array = ts.open(f"file://{tmp_path}/r.json|reference:x/|zarr2:").result()
        return array[:4].read().result().tolist()
    except StoreError as error:
        return error


@pytest.mark.parametrize("filters", [[{"id": "pickle"}], [{"id": "vlen-utf8"}, {"id": "pickle"}]])
def test_pickle_is_refused_when_the_array_is_opened(tmp_path, filters):
    """A codec that runs code from the data is never made, not even beside one that is allowed."""
    error = an_array(tmp_path, "base64:gASVAAAA", dtype="|O", filters=filters)
    assert isinstance(error, PermissionDeniedError)
    assert "runs code" in str(error)
    for dtype in ("|O", "|u1"):
        assert isinstance(an_array(tmp_path, "x", dtype=dtype, compressor={"id": "pickle"}), PermissionDeniedError)


def test_objects_without_a_codec_for_them_are_refused(tmp_path):
    """An array of objects whose bytes only pickle could read does not open."""
    error = an_array(tmp_path, ["t", 0, 4], dtype="|O")
    assert isinstance(error, StoreError)
    assert "filter" in str(error)


@pytest.mark.parametrize("place", ["compressor", "filters"])
@pytest.mark.parametrize("kind", ["zlib", "gzip", "zstd", "bz2", "lzma", "blosc", "lz4"])
@pytest.mark.parametrize("dtype", ["|u1", "|O"])
def test_bombs_are_refused_before_they_unfold(tmp_path, kind, place, dtype):
    """64 MiB behind a reference to a chunk of four bytes take neither time nor memory, whatever the codec."""
    import numcodecs

    bomb = numcodecs.get_codec({"id": kind}).encode(bytes(2**26))
    (tmp_path / "bomb").write_bytes(bomb)
    codec = {"id": kind} if place == "compressor" else [{"id": kind}]
    if dtype == "|O":
        codec = [{"id": "vlen-utf8"}, {"id": kind}] if place == "filters" else codec
        extra = {} if place == "filters" else {"filters": [{"id": "vlen-utf8"}]}
    else:
        extra = {}
    for reference in (["bomb", 0, len(bomb)], ["bomb"]):
        an_array(tmp_path, "x", dtype=dtype, **{place: codec}, **extra)  # imports what it needs
        tracemalloc.start()
        error = an_array(tmp_path, reference, dtype=dtype, **{place: codec}, **extra)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert isinstance(error, StoreError), error
        fixed = 2**27 if kind == "lzma" else 2**21  # the tables of an lzma coder, whatever the data
        assert peak < len(bomb) + (fixed if dtype == "|u1" else 2**28)


def test_huge_shapes_cost_nothing(tmp_path):
    """An array of 2^62 elements opens and reads; its chunks hold what the references hold."""
    (tmp_path / "t").write_bytes(b"\1\2\3\4")
    assert an_array(tmp_path, ["t", 0, 4], shape=[2**62 - 2]) == [1, 2, 3, 4]
    assert isinstance(an_array(tmp_path, ["t", 0, 4], shape=[2**61], chunks=[2**61]), StoreError)
    for chunks in ([0], [-1], [1, 1], ["4"], 4, None):
        assert isinstance(an_array(tmp_path, ["t", 0, 4], chunks=chunks), StoreError), chunks


@pytest.mark.parametrize("compressor", [None, {"id": "zlib"}])
def test_references_larger_than_their_chunks_are_refused_unread(tmp_path, compressor):
    """All of, or half of, a file of 50 GiB is refused for a chunk of four bytes, and for metadata."""
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(50 * 2**30)
    begin = time.process_time()
    for reference in (["huge"], ["huge", 5, 25 * 2**30]):
        error = an_array(tmp_path, reference, compressor=compressor)
        assert isinstance(error, ResourceExhaustedError)
        assert '"x/0"' in str(error)
    (tmp_path / "r.json").write_text(json.dumps({"x/.zarray": ["huge"]}))
    with pytest.raises(ResourceExhaustedError):
        ts.open(f"file://{tmp_path}/r.json|reference:x/|zarr2:").result()
    assert time.process_time() - begin < 2


def test_whole_targets_of_a_remote_set_are_asked_for_their_size(server):
    """A set from a server does not make its reader download more than a chunk can need; fitting targets are read."""
    server.put("set/large", bytes(2**26 + 10))
    server.put("set/fits", b"\1\2\3\4")
    array = {"zarr_format": 2, "shape": [8], "chunks": [4], "dtype": "|u1"}
    driver = served(server, {"x/.zarray": json.dumps(array), "x/0": ["large"], "x/1": ["fits"]})
    server.log.clear()
    with pytest.raises(ResourceExhaustedError, match="chunk"):
        run(read(driver, "x/0"))
    assert {entry[2] for entry in server.log} == {"bytes=0-0"}
    assert run(read(driver, "x/1")) == [b"\1\2\3\4"]


@pytest.mark.parametrize("kind", [",", "i4,,i4", [["a", ","]], [["a"]], 7, "O"])
def test_a_data_type_that_is_none_bounds_nothing(kind):
    """A document that names no data type of a fixed size gives no bound; opening the array says what is wrong."""
    assert chunk_bytes({"zarr_format": 2, "chunks": [4], "dtype": kind}) is None
