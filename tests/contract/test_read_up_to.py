"""The first or the last bytes of a value, or all of a shorter one: what it is, and in how many requests."""

from __future__ import annotations

import itertools

import h5py
import numpy as np
import pytest

import fsstore
from fsstore.errors import OutOfRangeError
from fsstore.kvstore.contract.driver import KvPrefix, Read, ReadUpTo
from fsstore.kvstore.spec_parse import open_kv, place_spec
from fsstore.runtime import execution

VALUES = {"none": b"", "short": b"0123", "even": b"0123456789", "long": b"0123456789abcdef"}
NUMBERS = itertools.count()


def placed(spec):
    """Return the driver and the path of a spec."""
    return execution.call(open_kv(place_spec(spec), fsstore.Context())).prefix


def filled(spec):
    """Return a place with the values."""
    store = fsstore.KvStore.open(spec, context=fsstore.Context()).result()
    for key, value in VALUES.items():
        store[key] = value
    return placed(spec)


def of_s3(bucket, engine):
    """Return the spec of a fresh place in a bucket, reached by a client."""
    endpoint, name = bucket
    return {
        "driver": "s3",
        "bucket": name,
        "path": f"up_to{next(NUMBERS)}/",
        "endpoint": endpoint,
        "aws_region": "us-east-1",
        "engine": engine,
        "storage_options": {"key": "a", "secret": "b"},
    }


@pytest.fixture(params=["local", "zip", "http", "http by obstore", "http by fsspec", "s3 by obstore", "s3 by fsspec"])
def place(request, tmp_path, object_server, moto_bucket):
    """Give a place of each kind, with the values."""
    kind, _, engine = request.param.partition(" by ")
    if kind == "local":
        return filled(f"file://{tmp_path}/d/")
    if kind == "zip":
        return filled(f"file://{tmp_path}/d.zip|zip:")
    if kind == "s3":
        return filled(of_s3(moto_bucket, engine))
    for key, value in VALUES.items():
        object_server.put(f"d/{key}", value)
    wish = {"engine": engine} if engine else {}
    return placed({"driver": "http", "base_url": f"{object_server.url}/d/", **wish})


@pytest.mark.parametrize("size", [10, 12, -10, -12, 1, -1])
def test_values_of_any_size(place, size):
    """A shorter value is given whole, a missing one is missing, and what is asked for besides is refused as ever."""
    for key, value in VALUES.items():
        found = execution.call(place.read_up_to(size, key))
        assert found.state == "value"
        assert bytes(found.value) == (value[:size] if size > 0 else value[size:])
    assert execution.call(place.read_up_to(size, "missing")).state == "missing"
    with pytest.raises(OutOfRangeError):
        execution.call(place.read("short", 0, 10))


@pytest.mark.parametrize("engine", ["", "obstore", "fsspec"])
def test_one_request_whatever_the_size(object_server, engine):
    """Far away that is one round for a short file, too."""
    object_server.put("d/short", b"0123")
    wish = {"engine": engine} if engine else {}
    place = placed({"driver": "http", "base_url": f"{object_server.url}/d/", **wish})
    for size in (10, -10):
        begun = len(object_server.log)
        assert bytes(execution.call(place.read_up_to(size, "short")).value) == b"0123"
        assert len(object_server.log) == begun + 1


def test_a_batch_is_not_merged(object_server):
    """Others that want ranges of the same value get exactly those, or an error."""
    object_server.put("d/short", b"0123456789")
    place = placed({"driver": "http", "base_url": f"{object_server.url}/d/"})
    path = place.path
    reads = [ReadUpTo(f"{path}short", 0, 20), Read(f"{path}short", 2, 4), Read(f"{path}short", 5, 7)]
    found = execution.call(place.driver.read_many(reads))
    assert [bytes(each.value) for each in found] == [b"0123456789", b"23", b"56"]
    with pytest.raises(OutOfRangeError):
        execution.call(place.driver.read_many([*reads, Read(f"{path}short", 8, 12)]))


def test_a_small_far_file_is_begun_in_one_request(tmp_path, object_server):
    """An HDF5 file of a few kilobytes is opened by one request for its bytes, and none where it is detected."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.arange(10)
    object_server.put("a.h5", (tmp_path / "a.h5").read_bytes())
    assert len((tmp_path / "a.h5").read_bytes()) < 64 * 1024
    array = fsstore.open(f"{object_server.url}/a.h5|hdf5:x").result()
    assert [path for _, path, _ in object_server.log].count("/a.h5") == 1
    assert array.read().result().tolist() == list(range(10))


def test_prefixes_know_it():
    """A `KvPrefix` asks for what is below its path."""
    context = fsstore.Context()
    store = fsstore.KvStore.open("memory://p/", context=context).result()
    store["k"] = b"abc"
    driver, path = execution.call(open_kv(place_spec("memory://p/"), context)).prefix
    assert bytes(execution.call(KvPrefix(driver, path).read_up_to(5, "k")).value) == b"abc"
