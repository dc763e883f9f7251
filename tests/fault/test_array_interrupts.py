"""Ctrl-C at every moment at which small reads and writes of arrays are made together: what was begun has an end."""

import gc
import threading
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import fsstore as ts
from fsstore.chunk.read import queue
from fsstore.chunk.read import queue as joint
from fsstore.chunk.write import queue as write_order
from fsstore.chunk.write import request as joint_write
from fsstore.kvstore.contract.driver import Features
from fsstore.kvstore.memory import MemoryDriver, MemoryKind
from fsstore.runtime import execution
from fsstore.runtime import execution as _spread
from fsstore.runtime import future as futures
from fsstore.runtime import pool as _pool
from tests.fault import test_interrupts
from tests.fault.test_interrupts import eventually, interrupted

pytestmark = pytest.mark.filterwarnings(
    "ignore:coroutine .* was never awaited", "ignore::pytest.PytestUnraisableExceptionWarning"
)
PLACES = (joint.__file__, queue.__file__, joint_write.__file__, futures.__file__, execution.__file__, _pool.__file__)
VALUES = np.arange(1, 9, dtype="<i4")


def array():
    """Return an array of four chunks in a memory store of its own."""
    schema = {"chunk_layout": {"chunk": {"shape": [2]}}, "dtype": "int32", "domain": {"shape": [8]}}
    return ts.open(
        {"driver": "zarr3", "kvstore": "memory://", "schema": schema}, create=True, context=ts.Context()
    ).result()


def test_joint_writes(monkeypatch):
    """Each write that was begun is made, and nobody waits for ever for it or for its chunk."""
    slow = Features(waits=False, create_only=True, conditional_write=True, slow_writes=True)
    monkeypatch.setattr(MemoryDriver, "features", slow)
    monkeypatch.setattr(test_interrupts, "PLACES", PLACES)
    store, begun = array(), []
    place = store._driver.entry.store

    def work():
        begun.extend(store[number].write(VALUES[number]) for number in range(3))
        joint_write.settle(place)

    for _ in interrupted(work):
        for write in begun:
            write.result(timeout=5)
        count = len(begun)
        begun.clear()
        assert store[:count].read().result(timeout=20).tolist() == VALUES[:count].tolist()
        again = [store[number].write(0) for number in range(3)]
        for write in reversed(again):
            write.result(timeout=5)
        assert not joint_write.unfinished()


@pytest.mark.parametrize("count", [2, 10])
def test_joint_reads(monkeypatch, count):
    """Each read that was begun has its values, or the interrupt."""
    monkeypatch.setattr(test_interrupts, "PLACES", PLACES)
    store = array()
    store.write(VALUES).result()
    reads = []

    def work():
        reads[0].result()

    def begin():
        reads[:] = [store[number % 8 : number % 8 + 1].read() for number in range(count)]

    begin()
    for _ in interrupted(work):
        for number, read in enumerate(reads):
            if read.cancelled():
                continue
            error = read.exception(timeout=20)
            assert error is None or isinstance(error, KeyboardInterrupt)
            assert error is not None or read.result().tolist() == [VALUES[number % 8]]
        begin()
    gc.collect()  # coroutines that were never begun are reported here, not after the last test


class Slow(MemoryDriver):
    """Memory in which what is written with a one is written late: when `go_on` is set, and somewhat later."""

    def __init__(self, *, waits):
        super().__init__()
        self._features = Features(waits=waits, create_only=True, conditional_write=True)
        self.go_on, self.under_way = threading.Event(), []

    async def write_many(self, writes):
        """Write, perhaps late."""
        self.under_way.append(writes)
        try:
            if any(bytes(one.value[:1]) == b"\1" for one in writes):
                await execution.offload(self.go_on.wait, 20)
                await execution.pause(0.004)
            return await super().write_many(writes)
        finally:
            self.under_way.remove(writes)


ORDER_PLACES = (
    str(Path(joint.__file__).with_name("write")),  # and what begins so
    *(futures.__file__, execution.__file__, _spread.__file__),
)


@pytest.mark.parametrize("waits", [False, True], ids=["near", "far"])
@pytest.mark.parametrize("behind", [False, True], ids=["first", "behind"])
def test_the_order_of_writes(monkeypatch, tune, waits, behind):
    """What is begun after a write that was interrupted comes after it, and after what came before it."""
    tune("chunk", INLINE_EFFORT_BYTES=0, BATCH_BYTES=1 << 17)  # as if encoding took long: threads write
    monkeypatch.setattr(test_interrupts, "PLACES", ORDER_PLACES)
    driver = Slow(waits=waits)

    async def opened(self, opening):
        return driver

    monkeypatch.setattr(MemoryKind, "open", opened)
    metadata = {
        "shape": [1 << 19],
        "data_type": "uint8",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1 << 18]}},
        "codecs": [{"name": "bytes"}],
    }
    store = ts.open({"driver": "zarr3", "metadata": metadata}, kvstore="memory://o/", create=True).result()

    def begin():
        if behind:
            driver.go_on.clear()
            store.write(1)
        else:
            driver.go_on.set()

    begin()
    for _ in interrupted(lambda: store.write(2 if behind else 1)):
        last = store.write(3)
        with suppress(TimeoutError):
            last.commit.result(timeout=0.004)
        driver.go_on.set()
        last.result(timeout=20)
        assert eventually(lambda: not driver.under_way and not write_order.unfinished())
        assert (store.read().result() == 3).all()
        begin()
    driver.go_on.set()
    assert eventually(lambda: not write_order.unfinished())
