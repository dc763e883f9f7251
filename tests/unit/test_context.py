"""Contexts: which resource a key means, what is shared, what is printed, what is refused."""

from __future__ import annotations

import os
import pickle
import tracemalloc
from functools import partial

import pytest

import fsstore as ts
from fsstore.runtime.cache import CachePool


def test_a_context_gives_one_resource_a_key():
    """The same context gives the same resource; equal JSON in two contexts gives two."""
    first, second = ts.Context({"cache_pool": {}}), ts.Context({"cache_pool": {}})
    assert first["cache_pool"] is first["cache_pool"]
    assert first["cache_pool"] is not second["cache_pool"]


def test_children_inherit_and_override():
    """What a child does not define is its parent's; null asks the parent by name."""
    parent = ts.Context({"cache_pool": {"total_bytes_limit": 5}, "file_io_concurrency": {"limit": 3}})
    child = ts.Context({"cache_pool": {"total_bytes_limit": 7}, "file_io_concurrency": None}, parent)
    assert child["cache_pool"].to_json() == {"total_bytes_limit": 7}
    assert child["file_io_concurrency"] is parent["file_io_concurrency"]
    assert child["data_copy_concurrency"] is parent["data_copy_concurrency"]


def test_references_lead_to_named_resources():
    """A string names another resource of the same kind."""
    context = ts.Context({"cache_pool": "cache_pool#a", "cache_pool#a": {"total_bytes_limit": 9}})
    assert context["cache_pool"] is context["cache_pool#a"]


@pytest.mark.parametrize(
    ("spec", "key", "why"),
    [
        ({}, "cache_pool#a", 'Resource not defined: "cache_pool#a"'),
        ({}, "foo", 'Invalid context resource identifier: "foo"'),
        (
            {"cache_pool#a": "cache_pool#b", "cache_pool#b": "cache_pool#a"},
            "cache_pool#a",
            "Context resource reference cycle",
        ),
    ],
)
def test_keys_that_mean_nothing_are_refused(spec, key, why):
    """Undefined names, unknown kinds and circles raise."""
    with pytest.raises(ValueError, match=why):
        ts.Context(spec)[key]


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        (5, "Expected object, but received: 5"),
        ({"foo": {}}, 'Invalid context resource identifier: "foo"'),
        ({"cache_pool": 5}, 'member "cache_pool": Expected object, but received: 5'),
        ({"cache_pool": {"total_bytes_limit": -1}}, "Expected integer in the range"),
        ({"cache_pool": {"limit": 1}}, 'Object includes extra members: "limit"'),
        ({"cache_pool": "file_io_sync"}, "Invalid spec or reference"),
        ({"data_copy_concurrency": {"limit": 0}}, 'Expected positive integer or "shared"'),
        ({"file_io_sync": 1}, "Expected boolean, but received: 1"),
        ({"file_io_locking": {"mode": "x"}}, "Expected one of"),
        ({"file_io_locking": {"acquire_timeout": "1"}}, "Expected duration"),
    ],
)
def test_malformed_specs_name_the_place(spec, why):
    """Each malformed member is one error that names it."""
    with pytest.raises(ValueError, match=why):
        ts.Context.Spec(spec)


def test_all_problems_of_a_spec_are_reported():
    """Two malformed members are told at once."""
    with pytest.raises(ValueError, match="foo") as caught:
        ts.Context.Spec({"foo": {}, "file_io_sync": 3})
    assert "file_io_sync" in str(caught.value)


def test_defaults_are_printed_on_request():
    """Only members that differ from the default are printed, unless asked."""
    resource = ts.Context({"cache_pool": {"total_bytes_limit": 0}})["cache_pool"]
    assert resource.to_json() == {}
    assert resource.to_json(include_defaults=True) == {"total_bytes_limit": 0}
    assert repr(resource) == "Context.Resource({})"


def test_contexts_pickled_together_stay_shared():
    """Two handles of one resource are one after unpickling; contents of memory stores stay behind."""
    context = ts.Context({"cache_pool#a": {"total_bytes_limit": 5}})
    again, resource = pickle.loads(pickle.dumps((context, context["cache_pool#a"])))
    assert again["cache_pool#a"] is resource
    assert resource.to_json() == {"total_bytes_limit": 5}


def test_stores_of_one_context_share_memory():
    """`memory://` is one store in one context, and another in another."""
    context = ts.Context()
    first = ts.KvStore.open("memory://", context=context).result()
    second = ts.KvStore.open("memory://", context=context).result()
    other = ts.KvStore.open("memory://").result()
    first["a"] = b"1"
    assert second["a"] == b"1"
    assert "a" not in other


def test_a_pool_keeps_what_was_used_last():
    """Above its limit a pool drops the least recently used values."""
    pool = CachePool(10)
    pool.put("a", "A", 4)
    pool.put("b", "B", 4)
    assert pool.get("a") == "A"
    pool.put("c", "C", 4)
    assert [pool.get(key) for key in "abc"] == ["A", None, "C"]
    assert pool.used_bytes == 8


def test_a_pool_takes_nothing_that_was_read_before_it_forgot():
    """A value is kept unless its group, or its group's owner, was forgotten since its epoch."""
    pool = CachePool(100)
    before = pool.epoch
    pool.discard_group(("a", 1))
    pool.discard_groups("b")
    for epoch, kept in [(before, [None, 2, None]), (pool.epoch, [1, 2, 3])]:
        pool.put("x", 1, 4, group=("a", 1), epoch=epoch)
        pool.put("y", 2, 4, group=("a", 2), epoch=epoch)
        pool.put("z", 3, 4, group=("b", 1), epoch=epoch)
        assert [pool.get(key) for key in "xyz"] == kept


def test_a_pool_remembers_a_bounded_number_of_groups():
    """After very many it no longer knows which were forgotten, and takes nothing read before them."""
    pool = CachePool(100)
    tracemalloc.start()
    try:
        for number in range(20_000):
            pool.discard_group(("a", number))
        assert tracemalloc.get_traced_memory()[0] < 4096 * 300  # each of 20,000 would take 200 bytes
    finally:
        tracemalloc.stop()
    pool.put("x", 1, 4, group=("a", 0), epoch=0)
    assert pool.get("x") is None
    pool.put("x", 1, 4, group=("a", 0), epoch=pool.epoch)
    assert pool.get("x") == 1


def test_a_pool_of_zero_bytes_keeps_nothing():
    """The default pool retains no data."""
    pool = CachePool()
    pool.put("a", "A", 0)
    assert pool.get("a") is None


def test_a_value_larger_than_the_pool_is_not_kept():
    """It would push out everything else for nothing."""
    pool = CachePool(10)
    pool.put("a", "A", 4)
    pool.put("b", "B", 11)
    assert pool.get("a") == "A"
    assert pool.get("b") is None


@pytest.mark.parametrize("order", [(True, False), (False, True)], ids=["synced first", "synced last"])
def test_handles_of_one_array_write_as_each_was_opened(tmp_path, monkeypatch, order):
    """A handle whose writes wait for the disk goes on to do so when another one, opened in its context, does not."""
    synced, fsync = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(fd) or fsync(fd))
    place = {"driver": "file", "path": f"{tmp_path}/a/"}
    opened = partial(ts.open, context=ts.Context(), dtype="uint8", shape=[4], create=True, open=True)
    handles = [
        (opened({"driver": "zarr3", "kvstore": {**place, "file_io_sync": sync}}).result(), sync) for sync in order
    ]
    for handle, sync in handles * 2:
        synced.clear()
        handle.write(3).result()
        assert bool(synced) == sync
    assert handles[0][0].read().result().tolist() == [3] * 4
