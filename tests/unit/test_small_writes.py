"""Small writes that are begun before the earlier ones are asked for: their order, their errors, and what reads see."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import fsstore
from fsstore.chunk.write import request as joint_write
from fsstore.errors import StoreError
from fsstore.kvstore.contract.driver import Features
from fsstore.kvstore.local.driver import LocalDriver
from fsstore.kvstore.memory import MemoryDriver

ZSTD = [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "zstd", "configuration": {"level": 1}}]
SHARD = [{"name": "sharding_indexed", "configuration": {"chunk_shape": [2, 3], "codecs": ZSTD}}]


def created(url, codecs=ZSTD, shape=(24, 36), chunk=(4, 6), **options):
    """Return a new array."""
    grid = {"name": "regular", "configuration": {"chunk_shape": chunk}}
    metadata = {"shape": shape, "data_type": "uint16", "chunk_grid": grid, "codecs": codecs}
    spec = {"driver": "zarr3", "kvstore": url, "metadata": metadata, **options}
    return fsstore.open(spec, create=True).result()


@pytest.fixture
def gate(monkeypatch):
    """Return an event that slow writes to memory wait for; the batches of keys they wrote are its `batches`."""
    event = threading.Event()
    event.batches = []
    write_many = MemoryDriver.write_many

    async def write(self, writes):
        if not any("zarr.json" in one.key for one in writes):
            assert event.wait(10)
            event.batches.append([one.key for one in writes])
            if any("c/5" in one.key for one in writes):
                raise StoreError("refused")
        return await write_many(self, writes)

    slow = Features(waits=False, create_only=True, conditional_write=True, slow_writes=True)
    monkeypatch.setattr(MemoryDriver, "features", slow)
    monkeypatch.setattr(MemoryDriver, "write_many", write)
    yield event
    event.set()


def begun(store, gate, rows):
    """Begin to write rows, the first with the gate open, as it is made at once; return the futures."""
    gate.set()
    futures = [store[0].write(1)]
    gate.clear()
    return futures + [store[row].write(1) for row in rows]


@pytest.mark.parametrize("codecs", [ZSTD, ZSTD[:1], SHARD], ids=["zstd", "raw", "shard"])
@pytest.mark.parametrize("seed", range(8))
def test_programs_of_unfinished_writes_are_those_of_numpy(tmp_path, codecs, seed):
    """Overlapping parts begun in any number, reads between them, results asked for at any time: as in memory."""
    chance = random.Random(seed)
    store = created(f"file://{tmp_path}/", codecs, context={"file_io_sync": seed % 2 == 0})
    handles = [store, fsstore.open(store.spec(retain_context=True)).result()]
    model = np.zeros(store.shape, np.uint16)
    unfinished = []
    for step in range(1, 120):
        box = tuple(slice(*sorted(chance.sample(range(size + 1), 2))) for size in store.shape)
        if chance.random() < 0.5:  # a whole chunk
            row = 4 * chance.randrange(6)
            box = (slice(row, row + 4), slice(0, 6))
        kind = chance.random()
        if kind < 0.75:
            value = step if kind < 0.6 else np.full(model[box].shape, step, np.uint16)
            value = 0 if kind > 0.7 else value
            unfinished.append(handles[step % 2][box].write(value))
            model[box] = value
        elif kind < 0.9:
            np.testing.assert_array_equal(handles[step % 2][box].read().result(), model[box])
        elif unfinished:
            unfinished.pop(chance.randrange(len(unfinished))).result()
    np.testing.assert_array_equal(store.read().result(), model)
    [future.result() for future in unfinished]
    again = fsstore.open(store.spec()).result()
    np.testing.assert_array_equal(again.read().result(), model)


def test_writes_begun_together_are_few_batches(gate):
    """What waits is written together, and parts of one chunk are one write."""
    store = created("memory://together/")
    futures = begun(store, gate, [row for row in range(24) if row // 4 != 5])
    assert not futures[-1].done()
    gate.set()
    [future.result(10) for future in futures]
    assert len(gate.batches) < 6
    assert sum(map(len, gate.batches)) < 24 * 6
    assert (store[:20].read().result() == 1).all()


def test_what_was_begun_is_one_batch_when_one_result_is_asked_for(tmp_path, tune, monkeypatch):
    """Nothing is written while a caller begins more; then each chunk is written once, also one of many shards."""
    tune("chunk", SMALL_GATHER_S=60, BATCH_BYTES=200)
    store = created("memory://asked/", SHARD)
    batches, write_many = [], MemoryDriver.write_many

    async def write(self, writes):
        batches.append([one.key for one in writes])
        return await write_many(self, writes)

    monkeypatch.setattr(MemoryDriver, "write_many", write)
    futures = [store[row].write(row) for row in range(24)]
    assert [future.done() for future in futures] == [True] + 23 * [False]
    assert len(batches) == 1
    futures[7].result(10)
    assert all(future.done() for future in futures)
    keys = [key for batch in batches[1:] for key in batch]
    assert len(keys) == len(set(keys)) == 36
    assert max(map(len, batches[1:])) == 4  # of 48 bytes, which are in memory together
    assert store[:, 0].read().result().tolist() == list(range(24))


@pytest.mark.parametrize("url", ["memory://moment/", "file://{}/", "file://{}/|ocdbt:"])
def test_what_nobody_asks_for_is_stored_after_a_moment(tmp_path, url):
    """The futures may be gone; the store itself shows the values as soon as they are written."""
    store = created(url.format(tmp_path))
    raw = store.kvstore

    def states():
        return {raw.read(f"c/{row}/0").result().state for row in (0, 5)}

    before = states()
    for row in (0, 20):
        store[row].write(1)
    deadline = time.monotonic() + 20
    while "missing" in states() and time.monotonic() < deadline:
        time.sleep(0.005)
    assert before == {"missing"}
    assert states() == {"value"}


def test_the_source_may_be_changed_once_it_is_copied(gate):
    """The `copy` future is done at once, and what is written is what the source was."""
    store = created("memory://copied/")
    begun(store, gate, [])
    source = np.full((4, 6), 7, np.uint16)
    future = store[:4, :6].write(source)
    future.copy.result(0)
    source[...] = 9
    assert not future.commit.done()
    gate.set()
    future.result(10)
    assert (store[:4, :6].read().result() == 7).all()


def test_an_error_belongs_to_its_write(gate):
    """One chunk that cannot be written fails the writes that touch it and no others."""
    store = created("memory://errors/")
    futures = begun(store, gate, range(24))
    gate.set()
    for row, future in zip([0, *range(24)], futures, strict=True):
        if row < 20:
            future.result(10)
        else:
            with pytest.raises(StoreError, match="refused"):
                future.result(10)
    assert (store[:20].read().result() == 1).all()
    assert not joint_write.unfinished()


def test_what_a_local_file_refuses_fails_alone(tmp_path):
    """A directory in place of a chunk is the error of that write."""
    store = created(f"file://{tmp_path}/", shape=(40, 6), chunk=(1, 6))
    (tmp_path / "c" / "7" / "0").mkdir(parents=True)
    futures = [store[row].write(row + 1) for row in range(40)]
    for row, future in enumerate(futures):
        if row == 7:
            with pytest.raises(StoreError, match="c/7/0"):
                future.result(10)
        else:
            future.result(10)
    for row in set(range(40)) - {7}:
        assert store[row, 0].read().result() == row + 1


def test_an_unforeseen_error_reaches_every_future(gate, monkeypatch):
    """A bug in a driver fails futures; it never leaves them pending, and later writes go on."""
    store = created("memory://broken/")
    futures = begun(store, gate, range(8))

    async def broken(self, writes):
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        gate.set()
        futures[1].exception(10)
        patch.setattr(MemoryDriver, "write_many", broken)
        failing = [store[row].write(2) for row in range(8)]
        for future in failing:
            with pytest.raises(ZeroDivisionError):
                future.result(10)
    [future.result(10) for future in futures]
    store[3].write(4).result()
    assert (store[3].read().result() == 4).all()


def test_a_cancelled_write_is_not_made(gate):
    """Cancelling what waits leaves the chunk as it was."""
    store = created("memory://cancelled/")
    futures = begun(store, gate, range(1, 24))
    last = store[8].write(5)
    assert last.cancel()
    gate.set()
    [future.exception(10) for future in futures[:20]]
    assert (store[8].read().result() == 1).all()


def test_a_write_whose_result_was_asked_for_is_followed_by_one_made_at_once(tmp_path):
    """Who asks for each result never waits for another thread."""
    store = created(f"file://{tmp_path}/")
    store[0] = 1
    for row in range(4):
        future = store[row].write(row)
        assert future.done()
        future.result()
    store[4] = 4
    assert store[5].write(5).done()


def test_tasks_await_their_writes(tmp_path):
    """Futures begun in an event loop are awaited there."""
    store = created(f"file://{tmp_path}/")

    async def run():
        await asyncio.gather(*[store[row].write(row) for row in range(24)])

    asyncio.run(run())
    assert store[:, 0].read().result().tolist() == list(range(24))


def test_threads_write_parts_of_the_same_chunks(tmp_path):
    """Nothing is lost between threads that begin many writes, and those that ask for each."""
    store = created(f"file://{tmp_path}/", shape=(64, 36))

    def work(number):
        futures = [store[row].write(row + 1) for row in range(number, 64, 4)]
        if number % 2:
            [future.result(30) for future in futures]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert store[:, 5].read().result().tolist() == list(range(1, 65))
    assert not joint_write.unfinished()


def test_values_that_wait_are_bounded(gate, tune):
    """Who begins more than may wait helps to write."""
    tune("chunk", HELD_BYTES=20_000)
    store = created("memory://bounded/", shape=(400, 36))
    begun(store, gate, [])
    gate.set()
    futures, most = [], 0
    for row in range(400):
        futures.append(store[row].write(np.full(36, row + 1, np.uint16)))
        most = max(most, sum(not future.done() for future in futures))
    assert most <= 20  # of 400, each of which counts 4,168 bytes
    [future.exception(10) for future in futures]
    assert (store[399].read().result() == 400).all()


def test_what_resizes_or_counts_sees_what_was_begun(tmp_path):
    """Shrinking deletes chunks that were begun before, and statistics know of them."""
    store = created(f"file://{tmp_path}/")
    futures = [store[row].write(1) for row in range(24)]
    assert store.storage_statistics(query_fully_stored=True).result().fully_stored
    futures += [store[row].write(2) for row in range(24)]
    store = store.resize(exclusive_max=[8, 36]).result()
    [future.result() for future in futures]
    assert (store.resize(exclusive_max=[24, 36]).result()[8:].read().result() == 0).all()


def test_a_transaction_sees_what_was_begun_before(tmp_path):
    """Binding finishes the writes begun outside."""
    store = created(f"file://{tmp_path}/")
    futures = [store[row].write(row + 1) for row in range(24)]
    with fsstore.Transaction() as transaction:
        assert store.with_transaction(transaction)[23, 0].read().result() == 24
    [future.result() for future in futures]


EXIT = """
import sys, atexit, numpy as np, fsstore
store = fsstore.open({"driver": "zarr3", "kvstore": sys.argv[1]}).result()
def last():
    futures = [store[row].write(row + 1) for row in range(12, 24)]
atexit.register(last)
for row in range(12):
    store[row].write(row + 1)
"""


@pytest.mark.parametrize("url", ["file://{}/", "file://{}/|ocdbt:"])
def test_nothing_is_lost_when_the_interpreter_exits(tmp_path, url):
    """Writes that nobody waits for are made, also those that are begun when no thread can be started any more."""
    url = url.format(tmp_path)
    store = created(url)
    command = [sys.executable, "-c", EXIT, url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert store[:, 0].read().result().tolist() == list(range(1, 25))


KILLED = """
import sys, fsstore
store = fsstore.open({"driver": "zarr3", "kvstore": sys.argv[1]}).result()
futures = [store[row].write(row + 1) for row in range(400)]
for row, future in enumerate(futures):
    future.result()
    print(row, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("count", [1, 30, 250])
def test_what_was_acknowledged_outlives_the_process(tmp_path, count):
    """A process is killed after some results: their values are stored."""
    url = f"file://{tmp_path}/"
    store = created(url, shape=(400, 6), chunk=(3, 6))
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", KILLED, url], **pipes) as child:
        told = [int(child.stdout.readline()) for _ in range(count)]
        child.kill()
        told += [int(line) for line in child.stdout.read().splitlines()]
    values = store[:, 0].read().result()
    assert all(values[row] == row + 1 for row in told)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_has_nothing_unfinished(tmp_path):
    """All is written before the fork, the futures are done in the child, and it writes for itself."""
    store = created(f"file://{tmp_path}/")
    futures = [store[row].write(row + 1) for row in range(20)]
    child = os.fork()
    if child == 0:
        try:
            good = all(future.done() for future in futures)
            later = [store[row].write(row + 1) for row in range(20, 24)]
            [future.result(30) for future in later]
            os._exit(0 if good else 3)
        finally:
            os._exit(4)
    assert os.waitpid(child, 0)[1] == 0
    assert store[:, 0].read().result().tolist() == list(range(1, 25))


def test_a_queue_ends_with_its_work(tmp_path):
    """Nothing is kept of a store in which all is written."""
    store = created(f"file://{tmp_path}/")
    [future.result() for future in [store[row].write(1) for row in range(24)]]
    assert not any(isinstance(driver, LocalDriver) for driver in joint_write.unfinished())
