"""`KvStore`: arguments, paths, mapping syntax, batches, pickles."""

from __future__ import annotations

import asyncio
import copy
import gc
import pickle
import threading
import time
from contextlib import suppress

import pytest

from fsstore.context.context import Context
from fsstore.errors import OutOfRangeError, StoreError, UnimplementedError
from fsstore.kvstore.contract.driver import NO_VALUE, Read, Write
from fsstore.kvstore.kv_store import KvStore
from fsstore.kvstore.memory import MemoryDriver
from fsstore.kvstore.operation import Batch
from fsstore.kvstore.transaction import Transaction
from fsstore.runtime import execution
from fsstore.testing.doubles import Recording, Slow


@pytest.fixture
def store():
    return KvStore.open("memory://").result()


@pytest.fixture(params=["memory", "file"])
def any_store(request, tmp_path):
    url = "memory://p/" if request.param == "memory" else f"file://{tmp_path}/"
    return KvStore.open(url).result()


def test_mapping_syntax(any_store):
    """Items are values; None deletes; deleting a missing key is fine; a missing key is a `KeyError`."""
    any_store["a"] = b"1"
    any_store[b"b"] = "text"
    assert any_store["a"] == b"1"
    assert any_store["b"] == b"text"
    assert "a" in any_store
    assert "c" not in any_store
    any_store["a"] = None
    del any_store["b"]
    del any_store["b"]
    with pytest.raises(KeyError):
        any_store["a"]
    with pytest.raises(TypeError):
        iter(any_store)
    with pytest.raises(TypeError):
        len(any_store)


def test_read_results(any_store):
    """Reads tell value, missing and unchanged apart, and carry a stamp."""
    stamp = any_store.write("k", b"0123456789").result()
    found = any_store.read("k").result()
    assert (found.state, found.value, found.stamp.generation) == ("value", b"0123456789", stamp.generation)
    assert found.stamp.time > 1e9
    assert any_store.read("none").result().state == "missing"
    same = any_store.read("k", if_not_equal=stamp.generation).result()
    assert (same.state, same.value) == ("unspecified", b"")
    assert any_store.write("k", b"x", if_equal=b"\0other").result().generation == b""
    assert any_store["k"] == b"0123456789"


def test_byte_ranges(any_store):
    """Slices as byte ranges: open, closed, suffix, empty; others and steps are refused."""
    any_store["k"] = b"0123456789"
    text = b"0123456789"
    for part in (slice(None), slice(2, 5), slice(None, 4), slice(7, None), slice(-3, None), slice(2, 2)):
        assert any_store.read("k", byte_range=part).result().value == text[part]
    for part in (slice(5, 2), slice(-4, -1), slice(None, -1), slice(-4, 3)):
        with pytest.raises(StoreError, match="Unsupported byte_range slice"):
            any_store.read("k", byte_range=part)
    with pytest.raises(TypeError):
        any_store.read("k", byte_range=slice(0, 4, 2))
    with pytest.raises(OutOfRangeError, match=r"Requested byte range \[5, 20\) is not valid for value of size 10"):
        any_store.read("k", byte_range=slice(5, 20)).result()
    with pytest.raises(OutOfRangeError, match=r"\[-20, \?\)"):
        any_store.read("k", byte_range=slice(-20, None)).result()


def test_listing(any_store):
    """Keys are bytes, relative to the path; a range and a prefix to strip narrow them."""
    for key in ("a", "b/x", "b/y", "c"):
        any_store[key] = b""
    assert sorted(any_store.list().result()) == [b"a", b"b/x", b"b/y", b"c"]
    inner = KvStore.KeyRange("b/", "b0")
    assert sorted(any_store.list(inner).result()) == [b"b/x", b"b/y"]
    assert sorted(any_store.list(inner, strip_prefix_length=2).result()) == [b"x", b"y"]
    assert sorted(any_store.list(range=inner, strip_prefix_length=9).result()) == [b"", b""]
    assert sorted((any_store / "b").list().result()) == [b"/x", b"/y"]
    any_store.delete_range(inner).result()
    assert sorted(any_store.list().result()) == [b"a", b"c"]
    with pytest.raises(StoreError):
        any_store.list(strip_prefix_length=-1)
    with pytest.raises(TypeError):
        any_store.delete_range("b/")


@pytest.mark.parametrize("key", [5, None, 1.5, ("a",)])
def test_wrong_types(store, key):
    """Keys and values of other types are refused before anything happens."""
    with pytest.raises(TypeError):
        store.read(key)
    with pytest.raises(TypeError):
        store.write(key, b"")
    if key is not None:
        with pytest.raises(TypeError):
            store.write("k", key)


def test_paths(store):
    """`/` joins with one slash, `+` appends, and the path can be set on a copy alone."""
    assert (store / "x").path == "x"
    assert (store / "x" / "1").path == "x/1"
    assert (store / "x/" / "1").path == "x/1"
    assert (store / "p/" / "/x").path == "p//x"
    assert (store + "a" + b"b").path == "ab"
    other = copy.copy(store / "x")
    other.path = b"y/"
    assert (other.path, (store / "x").path) == ("y/", "x")
    other["k"] = b"v"
    assert store["y/k"] == b"v"


def test_equality_and_base(store):
    """Equal means the same path of the same resources."""
    assert store == store.copy()
    assert hash(store) == hash(store.copy())
    assert store != store / "x"
    assert store != KvStore.open("memory://").result()
    assert store.base is None
    assert store.transaction is None
    assert store != 5
    with pytest.raises(TypeError):
        KvStore()


def test_sharing_through_contexts(store):
    """The same context, or a spec that keeps it, opens the same memory; otherwise another."""
    store["k"] = b"v"
    assert KvStore.open(store.spec(retain_context=True)).result()["k"] == b"v"
    assert "k" not in KvStore.open(store.spec()).result()
    assert "k" not in KvStore.open(store.spec(unbind_context=True)).result()
    context = Context()
    one, two = (KvStore.open("memory://", context=context).result() for _ in range(2))
    one["x"] = b"1"
    assert two["x"] == b"1"
    assert one == two


def test_repr_and_url(store):
    """The printed form is TensorStore's."""
    assert repr(store) == "KvStore({'context': {'memory_key_value_store': {}}, 'driver': 'memory'})"
    assert (store / "a b").url == "memory://a%20b"
    assert repr(store.spec()) == "KvStore.Spec({'driver': 'memory'})"


def test_result_objects():
    """Results can be made, changed, compared, copied and pickled."""
    stamp = KvStore.TimestampedStorageGeneration("x", 1.5)
    assert repr(stamp) == "KvStore.TimestampedStorageGeneration(b'x', 1.500000)"
    assert repr(KvStore.TimestampedStorageGeneration()) == "KvStore.TimestampedStorageGeneration(b'', -inf)"
    found = KvStore.ReadResult("value", "v", stamp)
    found.value = b"w"
    for twin in (copy.copy(found), copy.deepcopy(found), pickle.loads(pickle.dumps(found))):
        assert twin == found
    assert KvStore.ReadResult().state == "unspecified"


def test_pickle(tmp_path):
    """A pickled store opens again; what was shared stays shared; a bound transaction refuses."""
    store = KvStore.open(f"file://{tmp_path}/").result()
    store["k"] = b"v"
    assert pickle.loads(pickle.dumps(store))["k"] == b"v"
    memory = KvStore.open("memory://").result()
    one, two = pickle.loads(pickle.dumps([memory / "p/", memory]))
    one["k"] = b"v"
    assert two["p/k"] == b"v"
    with pytest.raises(StoreError, match="Cannot serialize bound transaction"):
        pickle.dumps(memory.with_transaction(Transaction()))


def test_transactions(any_store):
    """A bound store works inside its transaction; it cannot be bound again while that is open."""
    transaction = Transaction()
    bound = any_store.with_transaction(transaction)
    bound["k"] = b"v"
    assert (bound / "").transaction is transaction
    assert "k" not in any_store
    assert bound != any_store
    for other in (None, Transaction(), transaction):
        with pytest.raises(StoreError, match="Cannot rebind transaction when existing transaction is uncommitted"):
            bound.with_transaction(other)
    transaction.commit_sync()
    assert any_store["k"] == b"v"
    with pytest.raises(StoreError, match=r"Transaction not open \(commit already started\)"):
        bound["k"]
    assert bound.with_transaction(None)["k"] == b"v"
    with pytest.raises(TypeError):
        any_store.with_transaction(any_store)


def test_batch(any_store):
    """Reads of a batch wait for its submission, and a submitted batch takes no more."""
    any_store["k"] = b"v"
    batch = Batch()
    future = any_store.read("k", batch=batch)
    with pytest.raises(TimeoutError):
        future.result(timeout=0.01)
    batch.submit()
    batch.submit()
    assert future.result().value == b"v"
    with pytest.raises(StoreError, match="batch was already submitted"):
        any_store.read("k", batch=batch)
    with Batch() as batch:
        future = any_store.read("k", batch=batch)
    assert future.result().value == b"v"


def test_dropped_batch_is_submitted(store):
    """A batch nobody can submit any more does not leave its reads waiting."""
    future = store.read("k", batch=Batch())
    assert future.result(timeout=10).state == "missing"


def test_a_batch_may_be_dropped_anywhere(store):
    """The garbage collector finds batches in the middle of writes to the store that they read."""

    def write_and_drop():
        thresholds = gc.get_threshold()
        for threshold in range(5, 150):
            gc.set_threshold(threshold)
            batch = Batch()
            pending.append(store.read("k", batch=batch))
            cycle = [batch]
            cycle.append(cycle)
            del batch, cycle
            execution.drive(store.prefix.write_many([Write(f"k{number}", b"v") for number in range(50)]))
        gc.set_threshold(*thresholds)
        gc.collect()

    pending = []
    writer = threading.Thread(target=write_and_drop, daemon=True)
    writer.start()
    writer.join(30)
    assert not writer.is_alive()
    for _ in range(1000):  # a collection beside one of another thread does nothing
        gc.collect()
        if all(future.done() for future in pending):
            break
        time.sleep(0.01)
    assert {future.result(timeout=30).state for future in pending} == {"missing"}


def test_an_interrupted_batch_leaves_nobody_waiting():
    """After Ctrl-C what was read stays read, and the rest is cancelled."""

    class Interrupted(MemoryDriver):
        async def read_many(self, reads):
            raise KeyboardInterrupt

    batch = Batch()
    first, second, third = (batch.read(driver, Read("k")) for driver in (MemoryDriver(), Interrupted(), MemoryDriver()))
    with pytest.raises(KeyboardInterrupt):
        batch.submit()
    assert first.result(timeout=10).state == "missing"
    assert second.cancelled()
    assert third.cancelled()


@pytest.mark.parametrize("wrap", [lambda driver: driver, Slow])
def test_batch_is_one_request(wrap):
    """All reads of one store become one call; a read that fails fails alone."""
    recording = Recording(MemoryDriver())
    driver = wrap(recording)
    for key in "abc":
        recording.inner.storage.put(key, key.encode())
    with Batch() as batch:
        futures = [batch.read(driver, Read(key)) for key in "abc"]
    assert [future.result(timeout=10).value for future in futures] == [b"a", b"b", b"c"]
    assert recording.calls["read"] == 1
    with Batch() as batch:
        good, bad = (batch.read(driver, read) for read in (Read("a"), Read("a", 5, 9)))
    assert good.result(timeout=10).value == b"a"
    assert isinstance(bad.exception(timeout=10), OutOfRangeError)


def test_a_read_that_is_cancelled_before_the_batch_begins_is_not_made():
    """The others are answered, and the store is not asked for what nobody wants."""
    recording = Recording(MemoryDriver())
    recording.inner.storage.put("a", b"1")
    with Batch() as batch:
        kept, dropped = (batch.read(recording, Read(key)) for key in "ab")
        dropped.cancel()
    assert kept.result().value == b"1"
    assert dropped.cancelled()
    assert [read.key for read in recording.reads] == ["a"]


def test_reads_that_join_while_another_thread_submits_are_answered_or_refused():
    """No read is lost between the two, whatever the order."""
    driver = MemoryDriver()
    for _ in range(300):
        batch, joined = Batch(), []

        def join(batch=batch, joined=joined):
            with suppress(StoreError):
                for _ in range(200):
                    joined.append(batch.read(driver, Read("a")))

        threads = [threading.Thread(target=join) for _ in range(2)]
        for thread in threads:
            thread.start()
        batch.submit()
        for thread in threads:
            thread.join()
        assert {future.result(timeout=60).state for future in joined} <= {"missing"}


def test_each_result_is_the_callers_own(store):
    """Changing what `result` returned changes nothing for the next who asks."""
    store["k"] = b"v"
    future = store.read("k")
    future.result().value = b"changed"
    assert future.result().value == b"v"


def test_copy_range_is_refused(store):
    """Stores that cannot copy by reference say so."""
    with pytest.raises(UnimplementedError, match="CopyRange not supported"):
        store.experimental_copy_range_to(store / "x").result()


def test_bad_specs_are_refused_by_the_call():
    """A spec that cannot be read is an error of the call, as with arrays, and not of the future."""
    with pytest.raises(StoreError, match="is not a registered KvStore driver"):
        KvStore.open({"driver": "nothing"})


def test_await(any_store):
    """Every operation can be awaited in any event loop."""

    async def use():
        await any_store.write("k", b"v")
        found = await any_store.read("k")
        await any_store.delete_range(KvStore.KeyRange())
        return found.value, await any_store.list()

    assert asyncio.run(use()) == (b"v", [])


def test_value_may_change_after_write(any_store):
    """A buffer belongs to the caller as soon as `write` returns."""
    source = bytearray(b"abc")
    future = any_store.write("k", source)
    source[:] = b"xyz"
    future.result()
    assert any_store["k"] == b"abc"


def test_memory_atomic_member():
    """`atomic` is kept when it is not the default."""
    store = KvStore.open({"driver": "memory", "atomic": False}).result()
    assert store.spec().to_json() == {"driver": "memory", "atomic": False}
    assert KvStore.open({"driver": "memory", "atomic": True}).result().spec().to_json() == {"driver": "memory"}


def test_a_single_write_is_counted_and_answered_like_a_batch_of_one():
    """Conditions, deletions and statistics are the same whichever way a memory store is written."""
    told = []
    for single in (True, False):
        store = KvStore.open("memory://").result()
        driver = store.prefix.driver
        answers = []
        for write in [
            Write("a", b"12"), Write("a", b"3", NO_VALUE), Write("b", bytearray(b"45"), NO_VALUE),
            Write("a", None), Write("c", None), Write("b", memoryview(b"6"), b"other"), Write("b", b""),
        ]:  # fmt: skip
            stamp = driver.write_now(write) if single else execution.drive(driver.write_many([write]))[0]
            answers.append(stamp.generation)
        counts = {name: count for name, count in driver.meter.counts().items() if name != "waiting_ns"}
        told.append((answers, counts, dict(driver.storage.values)))
    assert told[0] == told[1]
