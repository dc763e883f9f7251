"""What is written or committed is seen by every handle of its context, also by those that trust what they have cached."""

import pytest
import tensorstore

import fsstore

SPEC = {"driver": "zarr3", "kvstore": "memory://x/"}
MODULES = pytest.mark.parametrize("module", [fsstore, tensorstore])


@MODULES
@pytest.mark.parametrize("recheck", [True, False, "open"])
@pytest.mark.parametrize("read_chunk", [4, 2, 1])
def test_writes(module, recheck, read_chunk):
    """Parts of chunks and of shards, whole ones and fill values are read as they were written last."""
    context = module.Context({"cache_pool": {"total_bytes_limit": 1_000_000}})
    spec = {**SPEC, "recheck_cached_data": recheck}
    layout = module.ChunkLayout(read_chunk_shape=[read_chunk], write_chunk_shape=[4])
    store = module.open(spec, create=True, dtype=module.int32, shape=[8], chunk_layout=layout, context=context).result()
    other = module.open(spec, context=context).result()
    expected = [1] * 8
    for begin, end, value in [(0, 8, 1), (1, 2, 5), (0, 4, 7), (2, 4, 0), (3, 6, 2), (0, 8, 0)]:
        store[begin:end] = value
        expected[begin:end] = [value] * (end - begin)
        assert store.read().result().tolist() == other.read().result().tolist() == expected


@MODULES
@pytest.mark.parametrize("recheck", [True, False, "open"])
def test_chunks(module, recheck):
    """A chunk that was cached before a transaction changed it is read anew after the commit, not before."""
    context = module.Context({"cache_pool": {"total_bytes_limit": 1_000_000}})
    spec = {**SPEC, "recheck_cached_data": recheck}
    store = module.open(spec, create=True, dtype=module.int32, shape=[4], context=context).result()
    store[...] = 1
    assert store.read().result().tolist() == [1, 1, 1, 1]
    with module.Transaction() as transaction:
        inside = store.with_transaction(transaction)
        inside[1] = 5
        assert inside.read().result().tolist() == [1, 5, 1, 1]
        assert store.read().result().tolist() == [1, 1, 1, 1]
    assert store.read().result().tolist() == [1, 5, 1, 1]


@pytest.mark.parametrize("recheck", [True, False, "open"])
@pytest.mark.parametrize("read_chunk", [4, 2])
def test_chunks_that_are_gone(recheck, read_chunk):
    """Chunks that a resize deletes and arrays that take the place of others are not read from the cache.

    tensorstore reads parts of shards that were deleted, and all of an array that was replaced, unless it rechecks.
    """
    context = fsstore.Context({"cache_pool": {"total_bytes_limit": 1_000_000}})
    spec = {**SPEC, "recheck_cached_data": recheck}
    layout = fsstore.ChunkLayout(read_chunk_shape=[read_chunk], write_chunk_shape=[4])
    made = {"chunk_layout": layout, "context": context}
    store = fsstore.open(spec, create=True, dtype="int32", shape=[8], **made).result()
    store[...] = 7
    assert store.read().result().tolist() == [7] * 8
    store = store.resize(exclusive_max=[4]).result().resize(exclusive_max=[8]).result()
    assert store.read().result().tolist() == [7] * 4 + [0] * 4
    replaced = {"create": True, "delete_existing": True, "shape": [8], **made}
    assert fsstore.open(spec, dtype="int32", **replaced).result().read().result().tolist() == [0] * 8
    assert fsstore.open(spec, dtype="int16", **replaced).result().read().result().tolist() == [0] * 8


@MODULES
def test_chunks_cached_by_a_handle_that_is_gone(module):
    """What a pool holds of an array serves the next handle of it, and never another array at the same path."""
    context = module.Context({"cache_pool": {"total_bytes_limit": 1_000_000}})
    spec = {**SPEC, "recheck_cached_data": False}
    store = module.open(spec, create=True, dtype=module.int32, shape=[4], context=context).result()
    store[...] = 1
    store.read().result()
    kvstore = store.kvstore
    del store
    kvstore["c/0"] = None
    again = module.open(spec, context=context).result()
    assert again.read().result().tolist() == [1, 1, 1, 1]
    other = module.open(spec, create=True, dtype=module.int32, shape=[4]).result()
    assert other.read().result().tolist() == [0, 0, 0, 0]


@MODULES
def test_handles_in_one_transaction(module):
    """Handles bound to one transaction share its shape; until it has one of its own they follow that outside."""
    context = module.Context()
    store = module.open(SPEC, create=True, dtype=module.int32, shape=[4], context=context).result()
    with module.Transaction() as transaction:
        first = store.with_transaction(transaction)
        store.resize(exclusive_max=[5]).result()
        assert store.with_transaction(transaction).read().result().shape == (5,)
        first.resize(exclusive_max=[6]).result()
        assert store.with_transaction(transaction).read().result().shape == (6,)
        assert store.read().result().shape == (5,)
    assert store.read().result().shape == (6,)


@MODULES
def test_shape(module):
    """After the commit of a resize other handles use the new shape; after an abort they keep the old one."""
    context = module.Context()
    store = module.open(SPEC, create=True, dtype=module.int32, shape=[4], context=context).result()
    transaction = module.Transaction()
    store.with_transaction(transaction).resize(exclusive_max=[9]).result()
    transaction.abort()
    assert store.resolve().result().shape == (4,)
    with module.Transaction() as transaction:
        store.with_transaction(transaction).resize(exclusive_max=[6]).result()
        assert store.resolve().result().shape == (4,)
    assert store.resolve().result().shape == (6,)
    with module.Transaction() as transaction:
        inside = module.open(SPEC, context=context, transaction=transaction).result()
        inside.resize(exclusive_max=[7]).result()
    assert store.read().result().shape == (7,)


def test_failed_commit():
    """A commit that fails leaves the shape that is stored; tensorstore would resize what it finds then."""
    context = fsstore.Context()
    store = fsstore.open(SPEC, create=True, dtype="int32", shape=[4], context=context).result()
    transaction = fsstore.Transaction(repeatable_read=True)
    store.with_transaction(transaction).resize(exclusive_max=[6]).result()
    store.kvstore["zarr.json"] = bytes(store.kvstore["zarr.json"]) + b" "
    with pytest.raises(ValueError, match="ABORTED"):
        transaction.commit_sync()
    assert store.resolve().result().shape == (4,)
