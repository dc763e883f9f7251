"""A cache on disk that processes share: each byte once, checked by generation, bounded, and right after kills."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import fsstore as ts
from fsstore.errors import StoreError

VALUES = np.random.default_rng(0).integers(0, 99, (24, 40, 50), dtype="i4")
VALUES[3] = 0  # a chunk of mere fill is not stored


@pytest.fixture
def served(object_server, tmp_path):
    """Serve an array, and return its URL."""
    put(object_server, tmp_path, VALUES)
    return f"{object_server.url}/a/|zarr3:"


def put(server, tmp_path, values):
    """Put the files of an array on a server."""
    options = {"dtype": "int32", "shape": values.shape, "chunks": [1, 40, 50], "delete_existing": True}
    made = ts.open(f"file://{tmp_path}/made/|zarr3:", create=True, **options).result()
    made[:] = values
    for path in (tmp_path / "made").rglob("*"):
        name, data = f"a/{path.relative_to(tmp_path / 'made')}", path.read_bytes() if path.is_file() else b""
        if path.is_file() and server.objects.get(f"/{name}") != data:
            server.put(name, data, modified=1.7e9 + len(server.log))


def opened(url, cache):
    """Open the array as another process would."""
    return ts.open(url, read=True, cache_path=cache, context=ts.Context()).result()


def chunk_requests(server):
    """Return the requests for chunks that the server has seen."""
    return [entry for entry in server.log if "/c/" in entry[1]]


def stored(server):
    """Return how many bytes the server has."""
    return sum(map(len, server.objects.values()))


def test_what_is_read_again_makes_no_request(served, object_server, tmp_path):
    """Neither of stored chunks nor of missing ones; another opening asks for what has changed, which sends no bytes."""
    array = opened(served, tmp_path / "cache")
    assert np.array_equal(array.read().result(), VALUES)
    seen = len(chunk_requests(object_server))
    assert np.array_equal(array.read().result(), VALUES)
    assert len(chunk_requests(object_server)) == seen == len(VALUES)
    sent = object_server.bytes_sent
    assert np.array_equal(opened(served, tmp_path / "cache").read().result(), VALUES)
    assert object_server.bytes_sent - sent < 1000


def test_nothing_is_kept_unless_asked(served, object_server, tmp_path):
    """Without a keyword, a resource or a variable each read makes its requests."""
    array = ts.open(served, context=ts.Context()).result()
    for _ in range(2):
        array.read().result()
    assert len(chunk_requests(object_server)) == 2 * len(VALUES)


def test_what_changed_is_fetched_when_it_is_opened_again(served, object_server, tmp_path):
    """And nothing else; a value is never taken for another generation of it."""
    opened(served, tmp_path / "cache").read().result()
    changed = VALUES.copy()
    changed[7] += 1
    put(object_server, tmp_path, changed)
    sent = object_server.bytes_sent
    assert np.array_equal(opened(served, tmp_path / "cache").read().result(), changed)
    assert object_server.bytes_sent - sent < 2 * VALUES[0].nbytes + 2000


def test_a_missing_chunk_that_comes_is_seen(served, object_server, tmp_path):
    """By whoever opens the array after that."""
    assert (opened(served, tmp_path / "cache")[3].read().result() == 0).all()
    put(object_server, tmp_path, VALUES + 1)
    assert (opened(served, tmp_path / "cache")[3].read().result() == 1).all()


def test_what_this_process_writes_is_seen_at_once(object_server, s3_credentials, tmp_path):
    """Also through a handle that has read before, and in parts of chunks."""
    store = {"driver": "s3", "bucket": "bucket", "path": "a/", "endpoint": object_server.url, "engine": "fsspec"}
    pytest.importorskip("s3fs")
    options = {"dtype": "int32", "shape": [8, 8], "chunks": [4, 4]}
    array = ts.open(
        {"driver": "zarr3", "kvstore": store}, create=True, cache_path=tmp_path / "cache", **options
    ).result()
    other = ts.open({"driver": "zarr3", "kvstore": store}, cache_path=tmp_path / "cache").result()
    array[:] = 1
    assert (other.read().result() == 1).all()
    array[:] = 2
    assert (other.read().result() == 2).all()


def test_a_damaged_file_is_fetched_again(served, object_server, tmp_path):
    """Whatever happened to it on disk."""
    opened(served, tmp_path / "cache").read().result()
    files = sorted(path for path in (tmp_path / "cache").rglob("*") if len(path.name) == 38)
    files[0].write_bytes(b"")
    files[1].write_bytes(files[1].read_bytes()[:-3])
    data = bytearray(files[2].read_bytes())
    data[len(data) // 3] ^= 1
    files[2].write_bytes(data)
    assert np.array_equal(opened(served, tmp_path / "cache").read().result(), VALUES)
    assert np.array_equal(opened(served, tmp_path / "cache").read().result(), VALUES)


def test_the_limit_holds(served, tmp_path):
    """Whatever is read; what was used last stays."""
    limit = 6 * VALUES[0].nbytes
    array = opened(served, {"path": str(tmp_path / "cache"), "total_bytes_limit": limit})
    for _ in range(2):
        assert np.array_equal(array.read().result(), VALUES)
        sizes = [path.stat().st_size for path in (tmp_path / "cache").rglob("*") if len(path.name) == 38]
        assert 0 < sum(sizes) <= limit


def test_a_full_disk_costs_a_warning_and_nothing_else(served, tmp_path, monkeypatch):
    """One sentence that names the cache; the values are right."""
    array = opened(served, tmp_path / "cache")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.warns(UserWarning, match=r"The cache .*cache keeps no more: No space left on device") as told:
        assert np.array_equal(array.read().result(), VALUES)
        assert np.array_equal(array.read().result(), VALUES)
    assert len(told) == 1


def test_a_cache_that_cannot_be_written_is_told_at_once(served, tmp_path):
    """By a sentence that names it, before anything is read."""
    (tmp_path / "file").write_text("mine")
    with pytest.raises(StoreError, match=r"The cache .*file/cache cannot be written: .*; give another cache_path"):
        opened(served, tmp_path / "file/cache")


def test_other_places_are_not_taken_for_each_other(served, object_server, tmp_path):
    """Two directories of one server have other values under the same names, and so may another query have."""
    for name, value in (("one", b"1"), ("two", b"2")):
        object_server.put(f"{name}/x", value)
        store = ts.KvStore.open(
            f"{object_server.url}/{name}/", context=ts.Context({"disk_cache": {"path": str(tmp_path / "cache")}})
        ).result()
        assert store["x"] == value


def test_it_is_asked_for_by_environment_and_xarray_and_travels_in_pickles(served, object_server, tmp_path, monkeypatch):
    """Each of these reads twice with the requests of once."""
    url = served.removesuffix("|zarr3:")
    xarray = pytest.importorskip("xarray")
    group = ts.open_group(tmp_path / "group", mode="w").result()
    group.create_array("v", shape=[4], dtype="i4", dimension_names=["x"]).result()[:] = 7
    group.consolidate().result()
    for path in (tmp_path / "group").rglob("*"):
        if path.is_file():
            object_server.put(f"g/{path.relative_to(tmp_path / 'group')}", path.read_bytes())
    dataset = xarray.open_dataset(
        f"{object_server.url}/g/", engine="fsstore", cache_path=tmp_path / "cache", cache=False
    )
    for _ in range(2):
        assert (dataset.v.values == 7).all()
    assert len(chunk_requests(object_server)) == 1
    object_server.log.clear()
    array = pickle.loads(pickle.dumps(opened(served, tmp_path / "cache")))
    for _ in range(2):
        array.read().result()
    assert len(chunk_requests(object_server)) == len(VALUES)
    object_server.log.clear()
    monkeypatch.setenv("FSSTORE_CACHE_PATH", str(tmp_path / "other"))
    array = ts.open(url, context=ts.Context()).result()
    for _ in range(2):
        array.read().result()
    assert len(chunk_requests(object_server)) == len(VALUES)


PROGRAM = """
import sys
import numpy as np
import fsstore as ts

url, cache, kill = sys.argv[1], sys.argv[2], int(sys.argv[3])
if kill:
    import os
    from pathlib import Path
    count = 0
    def counted(function):
        def run(*arguments, **named):
            global count
            count += 1
            if count == kill:
                os._exit(9)
            return function(*arguments, **named)
        return run
    for name in ("replace", "unlink"):
        setattr(Path, name, counted(getattr(Path, name)))
    for name in ("utime", "pwrite"):
        setattr(os, name, counted(getattr(os, name)))
array = ts.open(url, read=True, cache_path={"path": cache, "total_bytes_limit": int(sys.argv[4])}).result()
for epoch in range(2):
    sys.stdin.readline()
    found = array.read().result()
    print(int(found.sum()), flush=True)
"""


def reader(url, cache, kill=0, limit=10**9):
    """Begin a process that reads everything once for each line it gets."""
    command = [sys.executable, "-c", PROGRAM, url, str(cache), str(kill), str(limit)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def check_processes(server, url, cache, count):
    """Have processes read everything in two epochs: each byte once, and no request in the second."""
    readers = [reader(url, cache) for _ in range(count)]
    for epoch in range(2):
        for each in readers:
            each.stdin.write("go\n")
            each.stdin.flush()
        assert {int(each.stdout.readline()) for each in readers} == {int(VALUES.sum())}
        requests = len(chunk_requests(server))
        if epoch == 0:
            after = requests
            chunks = sum(len(data) for path, data in server.objects.items() if "/c/" in path)
            documents = sum(entry[0] == "GET" and "/c/" not in entry[1] for entry in server.log) * 2000
            assert server.bytes_sent <= 1.02 * chunks + documents
        assert requests == after
    for each in readers:
        each.communicate()


def test_processes_fetch_each_byte_once(served, object_server, tmp_path):
    """Three of them, in two epochs."""
    check_processes(object_server, served, tmp_path / "cache", 3)


@pytest.mark.long
def test_eight_processes_fetch_each_byte_once(served, object_server, tmp_path):
    """In two epochs."""
    check_processes(object_server, served, tmp_path / "cache", 8)


def check_kills(url, cache, kills, limit):
    """Kill readers at some steps of what they write; whoever reads next has the right values."""
    for kill in kills:
        victim = reader(url, cache, kill, limit)
        victim.communicate("go\ngo\n", timeout=100)
        array = ts.open(url, cache_path={"path": str(cache), "total_bytes_limit": limit}, context=ts.Context())
        assert np.array_equal(array.result().read().result(), VALUES)
        files = [path for path in Path(cache).rglob("*") if path.is_file()]
        assert sum(path.stat().st_size for path in files) <= limit + VALUES[0].nbytes + 1000


def test_kills_leave_no_wrong_byte(served, tmp_path):
    """Nor a cache that is too large."""
    check_kills(served, tmp_path / "cache", (1, 2, 23, 51), 8 * VALUES[0].nbytes)


@pytest.mark.long
def test_two_hundred_kills_leave_no_wrong_byte(served, tmp_path):
    """At steps of the first and of later readers."""
    check_kills(served, tmp_path / "cache", range(1, 201), 8 * VALUES[0].nbytes)
