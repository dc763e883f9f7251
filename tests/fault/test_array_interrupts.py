"""Ctrl-C at every moment at which small reads and writes of arrays are made together: what was begun has an end."""

import gc

import numpy as np
import pytest

import fsstore as ts
from fsstore import _pool, _runtime
from fsstore import future as futures
from fsstore.chunk import joint, joint_write
from fsstore.kvstore.contract import Features
from fsstore.kvstore.memory import MemoryDriver
from tests.fault import test_interrupts
from tests.fault.test_interrupts import interrupted

pytestmark = pytest.mark.filterwarnings(
    "ignore:coroutine .* was never awaited", "ignore::pytest.PytestUnraisableExceptionWarning"
)
PLACES = (joint.__file__, joint_write.__file__, futures.__file__, _runtime.__file__, _pool.__file__)
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
        assert not joint_write._queues


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
