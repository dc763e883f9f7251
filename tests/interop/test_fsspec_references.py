"""`ReferenceFileSystem` of fsstore in the place of fsspec's: the same calls, sets read by each other, and both quick."""

from __future__ import annotations

import asyncio
import gzip
import json
import pickle
import pkgutil
import threading
import tomllib
import warnings
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import fsspec
import numpy as np
import pytest
import xarray
import zarr
from fsspec.implementations import reference as theirs
from fsspec.implementations.reference import LazyReferenceMapper, ReferenceNotReachable

from fsstore import references
from fsstore.filesystem.reference import ReferenceFileSystem

DATA = np.arange(24, dtype="<f4").reshape(4, 6)
PROJECT = Path(__file__).parents[2] / "pyproject.toml"
KINDS = [theirs.ReferenceFileSystem, ReferenceFileSystem]


@pytest.fixture(autouse=True)
def _quiet():
    """Let pandas and zarr warn of what they do not like in the formats they read."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.fixture
def refs(tmp_path):
    """Give the references of a group with an array, in a file of its own."""
    (tmp_path / "data.bin").write_bytes(b"head" + DATA.tobytes())
    document = {"zarr_format": 2, "shape": [4, 6], "chunks": [2, 6], "dtype": "<f4", "order": "C"}
    document |= {"compressor": None, "filters": None, "fill_value": None}
    url = f"file://{tmp_path}/data.bin"
    return {
        ".zgroup": '{"zarr_format": 2}',
        "g/.zgroup": '{"zarr_format": 2}',
        "g/t/.zarray": json.dumps(document),
        "g/t/.zattrs": '{"_ARRAY_DIMENSIONS": ["y", "x"]}',
        "g/t/0.0": [url, 4, 48],
        "g/t/1.0": [url, 52, 48],
    }


@pytest.fixture
def path(tmp_path, refs):
    """Give the path of the set as JSON."""
    (tmp_path / "refs.json").write_text(json.dumps({"version": 1, "refs": refs}))
    return str(tmp_path / "refs.json")


@pytest.fixture(params=["mapping", "small", "columns", "parquet", "mapper"])
def fo(request, tmp_path, refs, path, tune):
    """Give the set in each form that the filesystem takes."""
    if request.param == "mapping":
        return refs
    if request.param == "columns":
        tune("filesystem", PIECE_BYTES=0)
    if request.param in ("small", "columns"):
        return path
    references.open(path).save(f"{tmp_path}/refs.parq", record_size=10)
    return f"{tmp_path}/refs.parq" if request.param == "parquet" else LazyReferenceMapper(f"{tmp_path}/refs.parq")


@pytest.fixture
def taken_over():
    """Have `reference://` mean ours, for one test."""
    ReferenceFileSystem.take_over()
    yield
    fsspec.register_implementation("reference", theirs.ReferenceFileSystem, clobber=True)


def made(fo, kind=ReferenceFileSystem, **options):
    """Return a filesystem that nobody else has."""
    return kind(fo, skip_instance_cache=True, **options)


def test_it_is_a_subclass_with_the_same_keywords():
    """What tests for fsspec's class takes ours."""
    filesystem = made({"a": b"1"}, target=None, remote_protocol="file", max_gap=0, max_block=10, cache_size=2)
    assert isinstance(filesystem, theirs.ReferenceFileSystem)
    assert filesystem.cat("a") == b"1"
    with pytest.raises(TypeError, match="fo"):
        ReferenceFileSystem()


def test_files_and_parts_of_them(fo):
    """Values, slices and batches are the same whatever form the set has."""
    filesystem = made(fo, remote_protocol="file")
    value = DATA[:2].tobytes()
    assert filesystem.cat_file("g/t/0.0") == value
    for start, end in [(0, 8), (40, None), (-8, None), (8, -8), (40, 99), (99, 100), (8, 4)]:
        assert filesystem.cat_file("g/t/0.0", start, end) == value[start:end]
    assert filesystem.cat(["g/t/0.0", "g/t/1.0"]) == {"g/t/0.0": value, "g/t/1.0": DATA[2:].tobytes()}
    assert filesystem.cat_ranges(["g/t/0.0", "g/t/1.0"], [0, 8], [4, 12]) == [value[:4], DATA[2:].tobytes()[8:12]]
    with filesystem.open("g/t/0.0") as file:
        file.seek(8)
        assert file.read(4) == value[8:12]
    assert json.loads(filesystem.cat("g/t/.zarray"))["shape"] == [4, 6]


def test_whole_targets_are_sliced_as_python_slices(tmp_path):
    """Beyond the end there is nothing, negative numbers count from there."""
    (tmp_path / "f").write_bytes(b"0123456789")
    filesystem = made({"a": [f"file://{tmp_path}/f"], "b": [f"{tmp_path}/f", 2, 5]}, remote_protocol="file")
    for start in (None, 0, 3, 9, 50, -4):
        for end in (None, 0, 5, 10, 99, -2):
            assert filesystem.cat_file("a", start, end) == b"0123456789"[start:end], (start, end)
            assert filesystem.cat_file("b", start, end) == b"23456"[start:end], (start, end)
    assert filesystem.info("a")["size"] == 10


def test_listings(fo):
    """Directories at any depth, sizes and missing names; fsspec's mapper lists itself, and fails on groups."""
    if isinstance(fo, LazyReferenceMapper):
        assert made(fo, remote_protocol="file").ls("g/t", detail=False)
        return
    filesystem = made(fo, remote_protocol="file")
    assert set(filesystem.ls("", detail=False)) - {".zmetadata"} == {".zgroup", "g"}
    assert set(filesystem.ls("/g", detail=False)) == {"/g/.zgroup", "/g/t"}  # as zarr-python asks, and cuts
    assert set(filesystem.ls("g", detail=False)) == {"g/.zgroup", "g/t"}
    sizes = {entry["name"]: entry["size"] for entry in filesystem.ls("g/t")}
    assert (sizes["g/t/0.0"], sizes["g/t/1.0"]) == (48, 48)
    assert set(filesystem.find("")) >= {"g/t/0.0", "g/t/1.0", "g/t/.zattrs"}
    assert filesystem.isfile("g/t/0.0") and filesystem.info("g/t/0.0")["size"] == 48
    assert not filesystem.exists("g/t/7.0")
    with pytest.raises(FileNotFoundError):
        filesystem.ls("nope")


@pytest.mark.parametrize("form", ["mapping", "small", "columns"])
def test_what_is_found_lies_below_the_path(form, tmp_path, refs, path, tune):
    """`find` gives a file, or what is below a directory of this very name, with sizes, and what was changed since."""
    if form == "columns":
        tune("filesystem", PIECE_BYTES=0)
    filesystem = made(dict(refs) if form == "mapping" else path, remote_protocol="file")
    assert filesystem.find("") == sorted(refs)
    assert filesystem.find("g/t") == sorted(key for key in refs if key.startswith("g/t/"))
    assert filesystem.find("g/t/0.0") == ["g/t/0.0"]
    assert filesystem.find("g/t/0") == filesystem.find("nope") == []
    assert {name: fact["size"] for name, fact in filesystem.find("g/t", detail=True).items()} == {
        "g/t/.zarray": len(refs["g/t/.zarray"]),
        "g/t/.zattrs": len(refs["g/t/.zattrs"]),
        "g/t/0.0": 48,
        "g/t/1.0": 48,
    }
    assert "g/t" in filesystem.find("", withdirs=True) and "g/t/0.0" not in filesystem.find("", maxdepth=1)
    filesystem.pipe_file("g/t/2.0", b"x")
    filesystem.rm("g/t/0.0")
    assert filesystem.find("g/t")[2:] == ["g/t/1.0", "g/t/2.0"]


@pytest.mark.parametrize("form", ["mapping", "columns"])
def test_parts_of_many_files_are_one_batch_and_missing_ones_are_told(form, tmp_path, tune):
    """Values cut out of joined reads are those of single ones: several targets, inline and missing keys, any slices."""
    tune("filesystem", PIECE_BYTES=0)
    for name in "ab":
        (tmp_path / name).write_bytes(bytes(np.random.default_rng(ord(name)).bytes(5000)))
    refs = {f"{name}/{n}": [f"file://{tmp_path}/{name}", n * 30, 30] for name in "ab" for n in range(100)}
    refs |= {f"i/{n}": f"value {n}" for n in range(50)}
    (tmp_path / "r.json").write_text(json.dumps({"version": 1, "refs": refs}))
    filesystem = made(refs if form == "mapping" else f"{tmp_path}/r.json", remote_protocol="file", max_gap=0)
    keys = [*reversed(refs), "nope/1", "a/100"]
    for start, end in ((None, None), (2, None), (0, 5), (None, -1), (-3, None), (40, 50)):
        alone = [None if key in ("nope/1", "a/100") else filesystem.cat_file(key, start, end) for key in keys]
        together = filesystem.cat_ranges(keys, start, end)
        assert [None if isinstance(each, FileNotFoundError) else each for each in together] == alone
    assert filesystem.cat(keys, on_error="omit") == {key: filesystem.cat_file(key) for key in refs}
    (tmp_path / "b").write_bytes(b"short")
    outcomes = dict(zip(keys, filesystem.cat_ranges(keys, None, None), strict=True))
    assert isinstance(outcomes["b/7"], ReferenceNotReachable) and len(outcomes["a/7"]) == 30


def test_errors(tmp_path):
    """A missing key is not found; a target that is missing, short or of an unknown protocol is not reachable."""
    (tmp_path / "f").write_bytes(b"0123")
    refs = {"gone": ["file:///no/such", 0, 4], "short": [f"file://{tmp_path}/f", 2, 9], "odd": ["odd://x", 0, 1]}
    filesystem = made({**refs, "a": b"1"}, fs={"file": {}})
    for key in refs:
        with pytest.raises(ReferenceNotReachable, match=key):
            filesystem.cat_file(key)
        with pytest.raises(ReferenceNotReachable, match=key):
            filesystem.cat([key, "a"])
    with pytest.raises(FileNotFoundError):
        filesystem.cat_file("nope")
    assert filesystem.cat(["a", "gone", "nope"], on_error="omit") == {"a": b"1"}
    returned = filesystem.cat(["a", "gone", "nope"], on_error="return")
    assert isinstance(returned["gone"], ReferenceNotReachable) and isinstance(returned["nope"], FileNotFoundError)


def test_coroutines_are_batches(object_server):
    """Reads of many keys that begin together join their ranges: zarr-python asks for one chunk after the other."""
    object_server.put("box/k", bytes(range(200)))
    refs = {f"x/{n}": [f"{object_server.url}/box/k", n, 1] for n in range(200)}

    async def main():
        filesystem = made(refs, remote_protocol="http", remote_options={"asynchronous": True}, asynchronous=True)
        return await asyncio.gather(*[filesystem._cat_file(key) for key in refs])

    assert asyncio.run(main()) == [bytes([n]) for n in range(200)]
    assert len(object_server.log) == 1


def test_an_asynchronous_filesystem_makes_its_targets_asynchronous(object_server, tmp_path):
    """fsspec refuses what its own default makes."""
    object_server.put("box/k", b"0123")
    (tmp_path / "r.json").write_text(json.dumps({"a": [f"{object_server.url}/box/k", 1, 2]}))

    async def main():
        return await made(f"{tmp_path}/r.json", remote_protocol="http", asynchronous=True)._cat_file("a")

    assert asyncio.run(main()) == b"12"


@pytest.fixture
def named():
    """Have fsspec know the name that stands among the entry points."""
    declared = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]["entry-points"]["fsspec.specs"]
    fsspec.register_implementation("fsreference", pkgutil.resolve_name(declared["fsreference"]), clobber=True)


@pytest.mark.parametrize("name", ["reference", "fsreference"])
def test_programs_switch_by_one_call_or_by_a_name(name, path, taken_over, named):
    """After `take_over`, `reference://` means ours for xarray, zarr-python and `get_mapper`; `fsreference://` always."""
    options = {"fo": path, "remote_protocol": "file"}
    assert isinstance(fsspec.filesystem(name, **options), ReferenceFileSystem)
    given = {"storage_options": options, "consolidated": False}
    dataset = xarray.open_dataset(f"{name}://", engine="zarr", group="g", backend_kwargs=given)
    assert np.array_equal(dataset.t, DATA)
    group = zarr.open_group(f"{name}://", mode="r", storage_options=options)
    assert np.array_equal(group["g/t"][:], DATA)
    with fsspec.open(f"{name}://g/t/1.0", **options) as file:
        assert file.read() == DATA[2:].tobytes()
    mapper = fsspec.get_mapper(f"{name}://", **options)
    assert mapper["g/t/1.0"] == DATA[2:].tobytes()
    assert mapper.getitems(["g/t/0.0", "nope"], on_error="omit") == {"g/t/0.0": DATA[:2].tobytes()}


def test_the_engine_of_kerchunk_reads_through_it(path, taken_over):
    """`xarray.open_dataset(…, engine="kerchunk")` takes whatever `reference` means."""
    options = {"remote_protocol": "file"}
    with xarray.open_dataset(
        path, engine="kerchunk", storage_options=options, open_dataset_options={"group": "g"}
    ) as it:
        assert np.array_equal(it.t, DATA)


def test_compressed_documents_and_generated_references(tmp_path):
    """A document may be compressed by any name, and references that a pattern makes are there, without jinja."""
    gen = [
        {"key": "x/{{i}}", "url": "memory://f", "offset": "{{i * 2}}", "length": "2", "dimensions": {"i": {"stop": 3}}}
    ]
    document = json.dumps({"version": 1, "templates": {}, "gen": gen, "refs": {}}).encode()
    (tmp_path / "refs.json.zz").write_bytes(gzip.compress(document))
    fsspec.filesystem("memory").pipe("/f", b"012345")
    filesystem = made(f"{tmp_path}/refs.json.zz", remote_protocol="memory")
    assert filesystem.cat(["x/0", "x/2"]) == {"x/0": b"01", "x/2": b"45"}


@pytest.mark.parametrize("form", ["mapping", "small", "columns"])
def test_writing_and_save_json(form, tmp_path, refs, path, tune):
    """Values and references are put in, taken out, and saved; fsspec reads what was saved, and each byte is the same."""
    if form == "columns":
        tune("filesystem", PIECE_BYTES=0)
    filesystem = made(dict(refs) if form == "mapping" else path, remote_protocol="file")
    assert filesystem.ls("g/t")
    filesystem.pipe_file("new/a", b"\xff\x00")
    filesystem.pipe_file("new/b", [f"{tmp_path}/data.bin", 0, 4])
    filesystem.pipe("new/c", b"base64:text")
    filesystem.rm("g/t/1.0")
    assert filesystem.ls("new", detail=False) == ["new/a", "new/b", "new/c"]
    filesystem.save_json(f"{tmp_path}/saved.json")
    for kind in KINDS:
        again = made(f"{tmp_path}/saved.json", kind, remote_protocol="file")
        assert (again.cat("new/a"), again.cat("new/b")) == (b"\xff\x00", b"head")
        assert not again.exists("g/t/1.0")


@pytest.mark.parametrize("engine", ["fastparquet", "pyarrow"])
def test_sets_in_parquet_are_read_by_each_other(engine, tmp_path, path, refs):
    """What fsspec wrote with either engine ours reads, and what ours saved fsspec reads."""
    which = {} if engine == "fastparquet" else {"engine": engine}
    mapper = LazyReferenceMapper.create(f"{tmp_path}/theirs.parq", record_size=10, **which)
    for key in sorted(refs):
        mapper[key] = refs[key]
    mapper.flush()
    references.open(path).save(f"{tmp_path}/ours.parq", record_size=10)
    for place in ("theirs.parq", "ours.parq"):
        for kind in KINDS if place == "ours.parq" else [ReferenceFileSystem]:
            filesystem = made(f"{tmp_path}/{place}", kind, remote_protocol="file")
            assert filesystem.cat_file("g/t/0.0") == DATA[:2].tobytes()
            assert json.loads(filesystem.cat_file("g/t/.zarray"))["chunks"] == [2, 6]


def test_a_set_in_parquet_is_written_and_flushed(tmp_path, path):
    """Changes are there at once, and in the files after `flush`."""
    references.open(path).save(f"{tmp_path}/r.parq", record_size=10)
    filesystem = made(f"{tmp_path}/r.parq", remote_protocol="file")
    assert isinstance(filesystem.references, LazyReferenceMapper)
    filesystem.references["g/t/0.0"] = b"x" * 48
    assert filesystem.cat_file("g/t/0.0") == b"x" * 48
    filesystem.references.flush()
    again = made(f"{tmp_path}/r.parq", remote_protocol="file")
    assert again.cat("g/t/0.0") == b"x" * 48
    assert again.cat("g/t/1.0") == DATA[2:].tobytes()


def test_it_is_pickled_by_its_arguments(path):
    """A path goes along, and not what it holds."""
    filesystem = made(path, remote_protocol="file")
    data = pickle.dumps(filesystem)
    assert len(data) < 1000
    assert pickle.loads(data).cat("g/t/0.0") == DATA[:2].tobytes()


class _Server(ThreadingHTTPServer):
    """A web server of ten bytes that says status 200 to whatever it answers; `cuts` says whether it knows ranges."""

    def __init__(self, *, cuts, data=b"0123456789"):
        class Handler(BaseHTTPRequestHandler):
            """Answers."""

            def do_GET(self):
                """Send the file, or the part that was asked for."""
                wanted = self.headers.get("Range")
                first, last = map(int, wanted.removeprefix("bytes=").split("-")) if wanted and cuts else (0, 9)
                body = data[first : last + 1]
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args):
                """Say nothing."""

        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()


def test_a_part_that_a_server_calls_whole_is_told_from_a_file_that_is_too_short():
    """A server may answer a range with status 200; one that knows no ranges and has a short file gives no bytes of it."""
    for cuts, data, good in ((True, b"0123456789", True), (False, b"01234", False), (False, b"0123456789", True)):
        with _Server(cuts=cuts, data=data) as server:
            url = f"http://127.0.0.1:{server.server_port}/f"
            filesystem = made({"a": [url, 2, 5]}, remote_protocol="http")
            if good:
                assert filesystem.cat_file("a") == b"23456"
            else:
                with pytest.raises(ReferenceNotReachable):
                    filesystem.cat_file("a")
            server.shutdown()
