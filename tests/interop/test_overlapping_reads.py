"""What a read that overlaps a write leaves in the cache: nothing that the write made stale."""

import threading

import pytest

import fsstore
from fsstore.errors import StoreError
from fsstore.kvstore.memory import MemoryDriver

SPEC = {"driver": "zarr3", "kvstore": "memory://x/"}


def context():
    """Return a context that caches."""
    return fsstore.Context({"cache_pool": {"total_bytes_limit": 1_000_000}})


@pytest.fixture
def meanwhile(monkeypatch):
    """Return a function that has its argument called once, between the store's next answer for a chunk and its use."""
    waiting = []
    answer = MemoryDriver.read_many

    async def read_many(self, reads):
        answers = await answer(self, reads)
        if waiting and any("c/" in read.key for read in reads):
            thread = threading.Thread(target=waiting.pop())
            thread.start()
            thread.join()
        return answers

    monkeypatch.setattr(MemoryDriver, "read_many", read_many)
    return waiting.append


def write(store, made):
    """Write all of it."""
    store[...] = 2


def write_a_part(store, made):
    """Write a part of a chunk."""
    store[5:7] = 2


def commit(store, made):
    """Write all of it in a transaction."""
    with fsstore.Transaction() as transaction:
        store.with_transaction(transaction)[...] = 2


def resize(store, made):
    """Cut off the second chunk, and show it again."""
    store.resize(exclusive_max=[4]).result().resize(exclusive_max=[8]).result()


def replace(store, made):
    """Put an equal array in its place."""
    fsstore.open(SPEC, create=True, delete_existing=True, **made).result()


CHANGES = {
    write: [2] * 8,
    write_a_part: [1, 1, 1, 1, 1, 2, 2, 1],
    commit: [2] * 8,
    resize: [1] * 4 + [0] * 4,
    replace: [0] * 8,
}


@pytest.mark.parametrize("recheck", [False, "open", True])
@pytest.mark.parametrize("read_chunk", [4, 2])
@pytest.mark.parametrize("change", CHANGES)
def test_changes_during_a_read(meanwhile, change, read_chunk, recheck):
    """A read that was answered before a change and decoded after it does not bring the old chunks back."""
    layout = fsstore.ChunkLayout(read_chunk_shape=[read_chunk], write_chunk_shape=[4])
    made = {"dtype": "int32", "shape": [8], "chunk_layout": layout, "context": context()}
    store = fsstore.open({**SPEC, "recheck_cached_data": recheck}, create=True, **made).result()
    store[...] = 1
    meanwhile(lambda: change(store, made))
    assert store[4:].read().result().tolist() == [1] * 4
    assert store.read().result().tolist() == CHANGES[change]


def test_a_read_that_overlaps_nothing_of_its_own(meanwhile):
    """A write of one chunk does not keep a read of another out of the cache."""
    spec = {**SPEC, "recheck_cached_data": False}
    layout = fsstore.ChunkLayout(chunk_shape=[4])
    made = {"dtype": "int32", "shape": [8], "chunk_layout": layout, "context": context()}
    store = fsstore.open(spec, create=True, **made).result()
    store[...] = 1
    meanwhile(lambda: store[4:].write(2).result())
    assert store[:4].read().result().tolist() == [1] * 4
    store.kvstore["c/0"] = None
    assert store.read().result().tolist() == [1] * 4 + [2] * 4


def test_a_write_that_fails(monkeypatch):
    """What a write stored before it failed is not hidden by the cache."""
    spec = {**SPEC, "recheck_cached_data": False}
    store = fsstore.open(spec, create=True, dtype="int32", shape=[4], context=context()).result()
    assert store.read().result().tolist() == [0] * 4
    write_many = MemoryDriver.write_many

    async def fail(self, writes):
        await write_many(self, writes)
        raise StoreError("cut off")

    with monkeypatch.context() as patched:
        patched.setattr(MemoryDriver, "write_many", fail)
        with pytest.raises(StoreError, match="cut off"):
            store.write(5).result()
    assert store.read().result().tolist() == [5] * 4


def test_two_pools_in_one_transaction():
    """A commit is seen through the caches of every context that took part in it."""
    shared = context()
    spec = {**SPEC, "recheck_cached_data": False}
    one = fsstore.open(spec, create=True, dtype="int32", shape=[4], context=shared).result()
    own = fsstore.Context({"cache_pool": {"total_bytes_limit": 1_000_000}}, parent=shared)
    other = fsstore.open(spec, context=own).result()
    assert one.read().result().tolist() == other.read().result().tolist() == [0] * 4
    with fsstore.Transaction() as transaction:
        one.with_transaction(transaction)[:2] = 1
        other.with_transaction(transaction)[2:] = 2
    assert one.read().result().tolist() == other.read().result().tolist() == [1, 1, 2, 2]
