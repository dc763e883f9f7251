"""Threads that read, write, resize and commit in one array, begun and not waited for: what NumPy allows, and nothing else.

Every value that is written is a number of its own.  Each thread has rows of its own, which share chunks with those of
the others.  Of its own rows a thread knows what a read may show: what was there when it was begun, or what the thread
wrote since, and nothing from before.  Of other rows it knows which number may stand where.  At the end all is as the
last write of each thread left it.
"""

from __future__ import annotations

import threading

import numpy as np
import pytest

import fsstore
from fsstore.chunk.write import queue as write_order
from fsstore.chunk.write import request as joint_write
from fsstore.kvstore.memory import MemoryKind
from tests.property.begun import Begun, possible
from tests.unit.test_write_order import Far

LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}
ZSTD = [LITTLE, {"name": "zstd", "configuration": {"level": 1}}]
CHAINS = {
    "raw": [LITTLE],
    "zstd": ZSTD,
    "shard": [{"name": "sharding_indexed", "configuration": {"chunk_shape": [16, 16], "codecs": ZSTD}}],
}
CACHE = {"cache_pool": {"total_bytes_limit": 3_000_000}}
PLACES = ["memory", "far", "file", "cached"]


class Worker(Begun):
    """One thread: its rows, what it wrote, and what it began and has not looked at."""

    def __init__(self, store, number, rows, log, seed):
        super().__init__(f"{seed}/{number}", np.zeros(store.shape, np.uint32))
        self.store, self.log, self.rows = store, log, rows
        self.number, self.written = number, 0

    def fresh(self):
        """Return a number that nobody has written."""
        self.written += 1
        return 1000 * self.written + self.number

    def box(self, *, own):
        """Return a selection, of own rows or of any."""
        chance = self.chance
        low, high = (self.rows.start, self.rows.stop) if own else (0, self.store.shape[0])
        box = []
        for first, last in ((low, high), (0, self.store.shape[1])):
            begin, end = sorted(chance.sample(range(first, last + 1), 2))
            if chance.random() < 0.3:
                begin, end = (first, last) if chance.random() < 0.5 else (begin, begin + 1)
            box.append(slice(begin, end, chance.choice([1, 1, 1, 3])))
        return tuple(box)

    def changed(self, box, value):
        """Note what a write changes, also for others."""
        self.log.append((box, value))
        super().changed(box, value)

    def write(self):
        """Begin to write a part of the own rows."""
        box, value = self.box(own=True), self.fresh()
        shape = self.model[box].shape
        source = value if self.chance.random() < 0.5 else np.full(shape, value, np.uint32)
        self.changed(box, value)
        self.writes.append(self.store[box].write(source))

    def commit(self):
        """Write in a transaction, beside what others write."""
        transaction = fsstore.Transaction()
        bound = self.store.with_transaction(transaction)
        for _ in range(self.chance.randrange(1, 4)):
            box, value = self.box(own=True), self.fresh()
            self.changed(box, value)
            bound[box].write(value)
        own = self.box(own=True)
        np.testing.assert_array_equal(bound[own].read().result(), self.model[own])
        transaction.commit_async().result()

    def read(self):
        """Begin to read a part of the own rows, or of all."""
        box = self.box(own=True)
        self.reads.append((self.store[box].read(), box, [self.model[box].copy()]))
        if self.chance.random() < 0.3:
            box = self.box(own=False)
            self.check_any(self.store[box].read().result(), box)

    def check_any(self, found, box):
        """Check that every number stands where it was written."""
        lattice = np.zeros(self.store.shape, bool)
        lattice[box] = True
        known = {value: where for where, value in list(self.log)}
        shown = np.zeros(self.store.shape, np.uint32)
        shown[box] = found
        for value in np.unique(found).tolist():
            if value:
                allowed = np.zeros(self.store.shape, bool)
                allowed[known[value]] = True
                assert allowed[shown == value].all(), (value, box)

    def check(self, future, box, allowed):
        """Wait for a read and check what it shows."""
        found = future.result(60)
        wrong = ~possible(found, allowed)
        assert not wrong.any(), (box, found[wrong][:5], [each[wrong][:5] for each in allowed[:3]])

    def run(self, steps):
        """Do what comes, then look at everything."""
        actions = [self.write] * 5 + [self.read] * 3 + [self.look] * 5 + [self.commit]
        try:
            self.steps(actions, steps)
        except BaseException as error:  # noqa: BLE001  # the test raises it
            self.error = error


def created(place, chain, folder, monkeypatch):
    """Return a new array; its chunks are half a megabyte, or small."""
    if place == "far":
        far = Far()

        async def opened(self, opening):
            return far

        monkeypatch.setattr(MemoryKind, "open", opened)
    grid = {"name": "regular", "configuration": {"chunk_shape": [64, 64]}}
    metadata = {"shape": [192, 448], "data_type": "uint32", "chunk_grid": grid, "codecs": CHAINS[chain]}
    spec = {"driver": "zarr3", "kvstore": f"file://{folder}/a/" if place == "file" else "memory://a/"}
    context = fsstore.Context(CACHE if place == "cached" else {})
    return fsstore.open({**spec, "metadata": metadata}, create=True, context=context).result()


def run(seed, place, chain, folder, monkeypatch, *, threads=4, steps=60):
    """Run a program and check what it leaves."""
    store = created(place, chain, folder, monkeypatch)
    share = store.shape[0] // threads
    log = []
    workers = [
        Worker(store, number, slice(number * share, (number + 1) * share), log, seed) for number in range(threads)
    ]
    running = [threading.Thread(target=worker.run, args=(steps,)) for worker in workers]
    [thread.start() for thread in running]
    [thread.join() for thread in running]
    for worker in workers:
        if worker.error is not None:
            worker.error.add_note(f"seed {seed}, {place}, {chain}, thread {worker.number}")
            raise worker.error
    model = sum(worker.model for worker in workers)
    np.testing.assert_array_equal(store.read().result(), model, f"seed {seed}")
    if place == "file":
        again = fsstore.open(store.spec()).result()
        np.testing.assert_array_equal(again.read().result(), model)
    assert not write_order.unfinished()
    assert not joint_write.unfinished()


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("chain", CHAINS)
def test_threads(place, chain, tmp_path, monkeypatch):
    """Four threads, in memory, in files, far away and with a cache."""
    run(1, place, chain, tmp_path, monkeypatch)


@pytest.mark.long
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("chain", CHAINS)
def test_threads_at_length(place, chain, tmp_path):
    """The same a hundred times."""
    for seed in range(100, 200):
        with pytest.MonkeyPatch.context() as patch:
            run(seed, place, chain, tmp_path / str(seed), patch)
