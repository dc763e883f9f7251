"""What fsspec's tools rely on: errors of many reads, sizes without requests, one name a key; and what dask relies on."""

import gc
import http.server
import json
import threading
from itertools import count

import dask.array as da
import fsspec
import numpy as np
import pytest
import zarr

import fsstore as ts
from fsstore import references


@pytest.fixture
def broken(tmp_path):
    """A filesystem over a set in which one of two targets is gone."""
    (tmp_path / "there").write_bytes(b"here")
    refs = {"a": "inline", "b": [f"{tmp_path}/gone", 0, 4], "c": [f"{tmp_path}/there", 0, 4]}
    (tmp_path / "r.json").write_text(json.dumps({"version": 1, "refs": refs}))
    return fsspec.filesystem("auto", fo=f"file://{tmp_path}/r.json")


def test_errors_of_many_reads_are_where_they_are_wanted(broken):
    """`cat`, `cat_ranges` and `getitems` raise, return or leave out what cannot be read, and give the rest."""
    names = ["a", "b", "c", "nope"]
    found = broken.cat(names, on_error="return")
    assert (found["a"], found["c"]) == (b"inline", b"here")
    assert isinstance(found["b"], ts.errors.StoreError)
    assert isinstance(found["nope"], FileNotFoundError)
    assert broken.cat(names, on_error="omit") == {"a": b"inline", "c": b"here"}
    ranges = broken.cat_ranges(names, [0] * 4, [2] * 4, on_error="return")
    assert (ranges[0], ranges[2]) == (b"in", b"he")
    assert isinstance(ranges[1], ts.errors.StoreError)
    assert broken.get_mapper("").getitems(names, on_error="omit") == {"a": b"inline", "c": b"here"}
    for read in (lambda: broken.cat(names), lambda: broken.cat_ranges(names, [0] * 4, [2] * 4, on_error="raise")):
        with pytest.raises((ts.errors.StoreError, FileNotFoundError)):
            read()


def test_known_sizes_ask_nobody(tmp_path):
    """`exists`, `info`, `size` and `ls` of references with a length make no request; reading one does."""
    asked = []

    class Server(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_error(404)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        url = f"http://127.0.0.1:{server.server_port}/x"
        (tmp_path / "r.json").write_text(json.dumps({"version": 1, "refs": {"g/a": [url, 8, 4]}}))
        fs = fsspec.filesystem("auto", fo=f"file://{tmp_path}/r.json")
        assert fs.exists("g/a") and fs.size("g/a") == 4 and fs.info("g/a")["type"] == "file"
        assert [entry["size"] for entry in fs.ls("g", detail=True)] == [4]
        assert not fs.exists("g/b") and fs.isdir("g") and not asked
        with pytest.raises(ts.errors.StoreError):
            fs.cat_file("g/a")
        assert asked
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("place", ["in", "/in", "in/", "/in/deep"])
def test_a_pipeline_lists_under_one_name(tmp_path, place):
    """With or without slashes, keys are listed under the name that was asked for, so groups have members."""
    url = f"fsstore://file://{tmp_path}/a.ocdbt/|ocdbt:{place}"
    zarr.open_group(url, mode="w").create_array("t", shape=(2,), dtype="i4")
    assert list(zarr.open_group(url, mode="r").keys()) == ["t"]
    mapper = fsspec.get_mapper(url)
    assert all(mapper[key] for key in mapper) and "t/zarr.json" in mapper


def test_listing_fsspec_memory_while_others_write():
    """A listing sees the keys that were there, whatever is written meanwhile and whoever hooks into the collector."""
    store = ts.KvStore.open({"driver": "fsspec", "url": "memory://promises/"}).result()
    memory, done = fsspec.filesystem("memory"), threading.Event()
    memory.pipe({f"/promises/k{number}": b"x" for number in range(1000)})
    before = gc.get_threshold()

    def hook(*_):
        sum(range(2000))

    def write(mine):
        for number in count():  # names come and go as long as anybody lists; the store stays small
            if done.is_set():
                return
            for value in (b"y", None):
                store.write(f"w{mine}-{number}", value).result()

    threads = [threading.Thread(target=write, args=(mine,)) for mine in range(2)]
    gc.callbacks.append(hook)
    gc.set_threshold(200)
    [thread.start() for thread in threads]
    try:
        for _ in range(100):
            found = store.list().result()
            assert sum(key.startswith(b"k") for key in found) == 1000
    finally:
        done.set()
        [thread.join() for thread in threads]
        gc.callbacks.remove(hook)
        gc.set_threshold(*before)
        memory.rm("/promises", recursive=True)


def test_plain_dask_arrays_compute_and_are_assigned():
    """`dask.array.from_array` of a store takes assignments and computes as NumPy does; its type equals NumPy's."""
    data = np.arange(6)
    array = da.from_array(ts.array(data, dtype=ts.int64), chunks=3)
    assert array.dtype == np.dtype("i8") and array.dtype.kind == "i"
    for made in (array + 1, array[::2], array.astype("f4"), da.concatenate([array, array]), array.mean()):
        assert made.compute() is not None
    array[0] = 7
    assert array.compute().tolist() == [7, 1, 2, 3, 4, 5]


def test_rewriting_nothing_is_an_error():
    """A set whose URLs begin with none of the prefixes is not rewritten, and URLs that are none are not made."""
    refs = references.open({"x/0": ["s3://a/k", 0, 1], "m": "1"})
    with pytest.raises(ts.errors.StoreError, match='Nothing to rewrite .*"s3://b/"; the first is "s3://a/k"'):
        refs.rewrite({"s3://b/": "file:///b/"})
    for made in ("", "s3://a\n/"):
        with pytest.raises(ts.errors.StoreError, match="that is no URL"):
            refs.rewrite({"s3://a/k": made})
    assert references.open({"m": "1"}).rewrite({"s3://b/": "x"})["m"] == b"1"


@pytest.mark.parametrize("name", ["a.json", "a.parq"])
def test_a_set_that_could_not_be_read_is_not_saved(tmp_path, name):
    """A set with a URL that no reader takes is refused when it is saved, and nothing is left at the place."""
    array = {"zarr_format": 2, "shape": [1], "chunks": [1], "dtype": "|u1", "fill_value": 0, "order": "C"}
    array |= {"filters": None, "compressor": None}
    (tmp_path / "from").mkdir()
    document = {".zgroup": '{"zarr_format":2}', "x/.zarray": json.dumps(array), "x/0": ["a", 0, 1]}
    (tmp_path / "from" / "r.json").write_text(json.dumps(document))
    refs = references.open(tmp_path / "from" / "r.json")
    with pytest.raises(ts.errors.StoreError, match="could not be read again"):
        refs.save(tmp_path / name, relative="s3://\n/")
    assert not (tmp_path / name / ".zmetadata").exists() and not (tmp_path / name).is_file()
