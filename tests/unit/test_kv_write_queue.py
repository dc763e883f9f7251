"""Writes begun one by one are carried out together, and each future is about its own write."""

from __future__ import annotations

import gc
import os
import threading
import weakref

import pytest

from fsstore.context.resource_kinds import MemoryStorage
from fsstore.errors import StoreError
from fsstore.kvstore.contract.driver import NO_VALUE, UNKNOWN, Features, Write
from fsstore.kvstore.kv_store import KvStore
from fsstore.kvstore.memory import MemoryDriver
from fsstore.kvstore.operation import queued
from fsstore.runtime.execution import pool


class Gated(MemoryDriver):
    """A store whose writes are slow: each batch waits for the gate, and is remembered."""

    features = Features(waits=False, create_only=True, conditional_write=True, slow_writes=True)

    def __init__(self):
        super().__init__(MemoryStorage())
        self.gate = threading.Event()
        self.batches = []

    async def write_many(self, writes):
        """Write when the gate is open; keys that begin with `bad` fail."""
        self.gate.wait(10)
        self.batches.append([write.key for write in writes])
        if any(write.key.startswith("bad") for write in writes):
            raise StoreError("refused")
        return await super().write_many(writes)

    __hash__ = object.__hash__

    def __eq__(self, other):
        return self is other


def begin(driver, writes):
    """Begin the writes while the gate is closed, then open it; return the futures."""
    pending = [queued(driver, write) for write in writes]
    driver.gate.set()
    return pending


def test_waiting_writes_become_batches():
    """Two hundred writes are far fewer batches, and every one is answered with its generation."""
    driver = Gated()
    writes = [Write(f"k{n}", b"%d" % n) for n in range(200)]
    done = [future.result(10) for future in begin(driver, writes)]
    assert len({stamp.generation for stamp in done}) == 200
    assert len(driver.batches) < 100
    assert sorted(key for batch in driver.batches for key in batch) == sorted(f"k{n}" for n in range(200))


def test_a_batch_has_distinct_keys_and_conditions_are_alone():
    """The contract of drivers wants distinct keys; a write with a condition is never made twice."""
    driver = Gated()
    writes = [Write("same", b"%d" % n) for n in range(30)] + [Write("c", b"", NO_VALUE)] * 30
    stamps = [future.result(10) for future in begin(driver, writes)]
    assert all(len(batch) == len(set(batch)) for batch in driver.batches)
    assert all(len(batch) == 1 for batch in driver.batches if "c" in batch)
    assert sum(stamp.generation != UNKNOWN for stamp in stamps[30:]) == 1


def test_an_error_belongs_to_its_write():
    """One write that fails takes no other with it."""
    driver = Gated()
    names = [f"bad{n}" if n % 10 == 3 else f"k{n}" for n in range(100)]
    for name, future in zip(names, begin(driver, [Write(name, b"v") for name in names]), strict=True):
        if name.startswith("bad"):
            with pytest.raises(StoreError, match="refused"):
                future.result(10)
        else:
            assert future.result(10).generation != UNKNOWN


def test_an_unforeseen_error_reaches_every_future_of_its_batch():
    """A bug in a driver fails futures; it never leaves them pending."""

    class Broken(Gated):
        async def write_many(self, writes):
            raise ZeroDivisionError

    for future in begin(Broken(), [Write(f"k{n}", b"") for n in range(20)]):
        with pytest.raises(ZeroDivisionError):
            future.result(10)


def test_a_queue_does_not_keep_its_driver():
    """A driver that nobody uses any more is forgotten, its queue with it."""
    driver = Gated()
    [future.result(10) for future in begin(driver, [Write("k", b"v")])]
    pool("io", 8).submit(gc.collect).result()  # a job that is ending lets go of the driver first
    gone = weakref.ref(driver)
    del driver
    for _ in range(1000):
        if gone() is None:
            break
        pool("io", 8).submit(gc.collect).result()
    assert gone() is None


def test_many_futures_on_local_files(tmp_path):
    """All values are stored and readable, whatever the order in which their writes were taken."""
    store = KvStore.open(f"file://{tmp_path}/").result()
    pending = [store.write(f"d{n % 7}/{n}", b"%d" % n) for n in range(120)]
    assert all(future.result(30).generation != UNKNOWN for future in pending)
    assert all(store[f"d{n % 7}/{n}"] == b"%d" % n for n in range(120))
    with pytest.raises(StoreError):
        store.write("d1/1/below-a-file", b"").result(30)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_forked_child_writes(tmp_path):
    """The queue of a parent with writes under way does not hold up its child."""
    store = KvStore.open(f"file://{tmp_path}/").result()
    pending = [store.write(f"p{n}", b"") for n in range(50)]
    child = os.fork()
    if child == 0:
        try:
            store.write("child", b"wrote").result(30)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    [future.result(30) for future in pending]
    assert store["child"] == b"wrote"


def test_stamps_are_those_of_the_driver(tmp_path):
    """The answer of a queued write is the generation a read finds."""
    store = KvStore.open(f"file://{tmp_path}/").result()
    stamp = store.write("k", b"v").result(30)
    assert store.read("k").result().stamp.generation == stamp.generation
