"""Resizes that fail, and resizes beside others: nothing is lost that the stored shape still has."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest

import fsstore
from fsstore.errors import StoreError
from fsstore.kvstore.local.driver import LocalDriver
from fsstore.kvstore.memory import MemoryDriver

DRIVERS = {"memory": MemoryDriver, "file": LocalDriver}


@pytest.fixture(params=DRIVERS)
def place(request, tmp_path):
    """Return a driver class, and the context and the store of an array in it."""
    where = {"driver": "memory"} if request.param == "memory" else {"driver": "file", "path": f"{tmp_path}/"}
    return DRIVERS[request.param], fsstore.Context(), where


def opened(place, chunk=2, **options):
    """Return a handle of its own of the array, which is made if it is not there."""
    _, context, where = place
    grid = {"name": "regular", "configuration": {"chunk_shape": [chunk]}}
    metadata = {"data_type": "uint8", "chunk_grid": grid}
    spec = {"driver": "zarr3", "kvstore": where, "metadata": metadata, "recheck_cached_metadata": True}
    own = fsstore.Context({"cache_pool": {}}, parent=context)
    return fsstore.open(spec, context=own, **options).result()


def filled(place, count=20):
    """Return a handle of a new array of numbers from 1 on."""
    store = opened(place, create=True, shape=[count])
    store[...] = np.arange(1, count + 1, dtype=np.uint8)
    return store


def stored(place):
    """Return the keys of the chunks that are stored."""
    _, context, where = place
    return sorted(key for key in fsstore.KvStore.open(where, context=context).result().list().result() if b"c/" in key)


@pytest.fixture
def before_writing(place, monkeypatch):
    """Return a dictionary: what it has for the last part of a key is called, once, before a batch that has the key."""
    calls = {}
    write_many = place[0].write_many

    async def write(self, writes):
        for one in writes:
            calls.pop(one.key.rpartition("/")[2], bool)()
        return await write_many(self, writes)

    monkeypatch.setattr(place[0], "write_many", write)
    return calls


def refuse():
    """Fail as a store does."""
    raise StoreError("refused")


def test_metadata_that_cannot_be_replaced(place, before_writing):
    """Everything is as it was."""
    store = filled(place)
    before_writing["zarr.json"] = refuse
    with pytest.raises(StoreError, match="refused"):
        store.resize(exclusive_max=[5]).result()
    assert opened(place).read().result().tolist() == list(range(1, 21))
    store.resize(exclusive_max=[5]).result()
    assert opened(place).read().result().tolist() == [1, 2, 3, 4, 5]
    assert stored(place) == [b"c/0", b"c/1", b"c/2"]


def test_a_resize_that_is_interrupted(place, before_writing):
    """The array is smaller, and whole."""
    store = filled(place)
    before_writing["3"] = refuse
    with pytest.raises(StoreError, match="refused"):
        store.resize(exclusive_max=[5]).result()
    for each in (store, opened(place)):
        assert each.resolve().result().read().result().tolist() == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("guarded", [True, False])
def test_what_is_written_after_growing_again_is_kept(place, before_writing, monkeypatch, tune, guarded):
    """Another handle grows the array while chunks outside are deleted, also where deletions take no condition (S3)."""
    store, other = filled(place), opened(place)
    features = replace(place[0]().features, conditional_delete=guarded)
    monkeypatch.setattr(place[0], "features", features)
    tune("driver", PAGE=2)

    def grow():
        other.resolve().result().resize(exclusive_max=[20]).result()
        other[12:16] = 99

    before_writing["6" if guarded else "4"] = grow
    store.resize(exclusive_max=[5]).result()
    found = opened(place).read().result().tolist()
    assert found[:5] == [1, 2, 3, 4, 5]
    assert found[12:16] == [99] * 4
    assert set(found[5:]) <= {0, 99, *range(6, 21)}


def test_two_that_make_it_smaller(place, before_writing):
    """One that comes while the other deletes: in the end nothing lies outside."""
    store, other = filled(place), opened(place)
    before_writing["6"] = lambda: other.resize(exclusive_max=[3]).result()
    store.resize(exclusive_max=[11]).result()
    assert opened(place).read().result().tolist() == [1, 2, 3]
    assert stored(place) == [b"c/0", b"c/1"]


def test_an_array_that_takes_its_place(place, before_writing, tune):
    """Chunks of another layout are not deleted."""
    tune("driver", PAGE=2)
    store = filled(place)

    def take():
        opened(place, chunk=1, create=True, delete_existing=True, shape=[20])[...] = 7

    before_writing["4"] = take
    store.resize(exclusive_max=[5]).result()
    assert opened(place, chunk=1).read().result().tolist().count(7) >= 18


def test_a_commit_whose_resize_cannot_be(place):
    """The condition of the metadata is looked at first: nothing is deleted when it fails."""
    store, other = filled(place), opened(place)
    transaction = fsstore.Transaction()
    store.with_transaction(transaction).resize(exclusive_max=[5]).result()
    other.resize(exclusive_max=[19]).result()
    with pytest.raises(StoreError, match="mismatch"):
        transaction.commit_async().result()
    assert opened(place).read().result().tolist() == list(range(1, 20))


def test_threads_that_resize(place):
    """Of several at once the last stays, elements that every shape has are never touched, and writes are not lost."""
    store = filled(place)

    def work(number):
        mine = opened(place)
        for step in range(12):
            mine.resize(exclusive_max=[8 + (5 * step + 7 * number) % 13]).result()
            mine[number] = 100 + step

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    found = opened(place).read().result().tolist()
    assert found[:8] == [111] * 4 + [5, 6, 7, 8]
    last = len(found)
    assert last in {8 + (55 + 7 * number) % 13 for number in range(4)}
    assert all(int(key.rpartition(b"/")[2]) * 2 < last for key in stored(place))
    assert store.resolve().result().shape == (last,)
