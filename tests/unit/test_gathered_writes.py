"""Writes that wait for their turn are made together with those begun meanwhile, and nobody sees a difference."""

from __future__ import annotations

import asyncio
import random
import sys
import threading
import time

import numpy as np
import pytest

import fsstore
from fsstore.chunk.write import queue as write_order
from fsstore.errors import StoreError
from fsstore.kvstore.contract.driver import Features
from fsstore.kvstore.memory import MemoryDriver, MemoryKind

SIDE, CHUNK = 1_200_000, 200_000  # of uint64: two chunks are written by threads


@pytest.fixture(autouse=True)
def apart(tune):
    """Have chunks written by threads, as if encoding them took long."""
    tune("chunk", INLINE_EFFORT_BYTES=1 << 10)


class Counted(MemoryDriver):
    """A memory store that counts the writes of each chunk, holds those of `c/0` until `gate` is set, and those of `c/3` until `second` is, and may wait."""

    def __init__(self, *, waits):
        super().__init__()
        if waits:
            self._features = Features(waits=True, create_only=True, conditional_write=True)
        self.gate, self.second, self.reached = threading.Event(), threading.Event(), threading.Event()
        self.writes, self.refused = {}, set()
        self.second.set()

    async def write_many(self, writes):
        """Count, wait, and refuse what is to be refused."""
        for one in writes:
            name = one.key.removeprefix("gathered/")
            self.writes[name] = self.writes.get(name, 0) + 1
            if name in self.refused:
                raise StoreError("refused")
            if name in ("c/0", "c/3"):
                await self._pass(self.gate if name == "c/0" else self.second)
        return await super().write_many(writes)

    async def _pass(self, gate):
        self.reached.set()
        for _ in range(20_000):
            if gate.is_set():
                return
            if self.features.waits:
                await asyncio.sleep(0.001)
            else:
                gate.wait(0.001)
        raise AssertionError("the gate was never opened")


@pytest.fixture(params=["near", "far"])
def driver(request, monkeypatch):
    """The store of the array of the tests."""
    made = Counted(waits=request.param == "far")

    async def opened(self, opening):
        return made

    monkeypatch.setattr(MemoryKind, "open", opened)
    yield made
    made.gate.set()
    made.second.set()
    assert not write_order.unfinished()


def created(**members):
    """Return a new array of six chunks."""
    grid = {"name": "regular", "configuration": {"chunk_shape": [CHUNK]}}
    metadata = {"shape": [SIDE], "data_type": "uint64", "chunk_grid": grid, "fill_value": 0, **members}
    return fsstore.open({"driver": "zarr3", "metadata": metadata}, kvstore="memory://gathered/", create=True).result()


SHARDS = {
    "name": "sharding_indexed",
    "configuration": {"chunk_shape": [CHUNK // 4], "codecs": [{"name": "bytes"}, {"name": "zstd"}]},
}


def test_what_waits_for_a_write_is_made_at_once(driver):
    """Each chunk is stored once more, whatever is changed in it, and the values are those of the last."""
    store = created()
    futures = [store[: 2 * CHUNK].write(1)]
    assert driver.reached.wait(10)
    model = np.zeros(SIDE, np.uint64)
    model[: 2 * CHUNK] = 1
    for n in range(2, 50):
        futures.append(store[100 * n : CHUNK + 1000 * n].write(n))
        model[100 * n : CHUNK + 1000 * n] = n
    assert not any(future.done() for future in futures)
    driver.gate.set()
    np.testing.assert_array_equal(store.read().result(20), model)
    for future in futures:
        future.result(20)
    assert driver.writes["c/0"] == driver.writes["c/1"] == 2


def test_what_must_wait_for_something_later_has_a_turn_of_its_own(driver, tune):
    """Were it made with the earlier ones, they and the later one would wait for each other."""
    tune("chunk", AT_ONCE=3)
    store = created()
    futures = [store[: 2 * CHUNK].write(1)]
    assert driver.reached.wait(10)
    futures += [store[10 : CHUNK + 10].write(2)]  # waits for the first
    futures += [store[CHUNK:].write(3)]  # waits for that, and shares no turn: it is large
    futures += [store[5 * CHUNK :].write(4)]  # waits for the large one
    futures += [store[:CHUNK].write(5), store[3 * CHUNK].write(6)]
    driver.gate.set()
    for future in futures:
        future.result(20)
    edges = [0, CHUNK - 1, CHUNK, 3 * CHUNK, 5 * CHUNK - 1, 5 * CHUNK]
    assert store[edges].read().result(20).tolist() == [5, 5, 3, 6, 3, 4]


def test_what_waits_also_for_an_earlier_write_shares_the_turn(driver):
    """The turn comes when all are over for which somebody waits who shares it."""
    driver.second.clear()
    store = created()
    other = store[3 * CHUNK : 5 * CHUNK].write(1)
    assert driver.reached.wait(10)
    driver.reached.clear()
    slow = store[: 2 * CHUNK].write(2)
    assert driver.reached.wait(10)
    futures = [store[:10].write(3), store[5 : 3 * CHUNK + 5].write(4), store[3 * CHUNK + 2].write(5)]
    driver.gate.set()
    slow.result(20)
    time.sleep(0.2)  # in which it would be written
    assert driver.writes["c/0"] == 1
    futures += [store[2].write(6)]  # shares it, too
    driver.second.set()
    for future in [other, *futures]:
        future.result(20)
    seen = store[[0, 2, 7, 3 * CHUNK + 1, 3 * CHUNK + 2, 3 * CHUNK + 9]].read().result(20)
    assert seen.tolist() == [3, 6, 4, 4, 5, 1]
    assert driver.writes["c/0"] == driver.writes["c/3"] == 2


def test_one_that_fails_leaves_the_others(driver):
    """Each has its own error; a chunk that several change has the values of those that were written."""
    store = created()
    first = store[: 2 * CHUNK].write(1)
    assert driver.reached.wait(10)
    good = store[: CHUNK // 2].write(2)
    bad = store[CHUNK // 4 : 3 * CHUNK].write(3)
    last = store[5].write(4)
    driver.refused.add("c/2")
    driver.gate.set()
    with pytest.raises(StoreError, match="refused"):
        bad.result(20)
    for future in (first, good, last):
        future.result(20)
    assert store[[4, 5, CHUNK - 1]].read().result(20).tolist()[:2] in ([2, 4], [3, 4])
    driver.refused.clear()
    store[2 * CHUNK :].write(8).result(20)
    assert store[2 * CHUNK + 7].read().result(20) == 8


@pytest.mark.parametrize("driver", ["far"], indirect=True)
def test_several_begun_to_a_far_store_are_made_together(driver):
    """They do not wait for one that is under way elsewhere, and a chunk is stored fewer times than it is changed."""
    driver.second.clear()
    store = created()
    first = store[3 * CHUNK : 5 * CHUNK].write(1)
    assert driver.reached.wait(10)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1)
    try:
        futures = [store[5 * CHUNK + n :].write(n) for n in range(20)]
    finally:
        sys.setswitchinterval(before)
    for future in futures:
        future.result(20)
    assert store[5 * CHUNK : 5 * CHUNK + 20].read().result(20).tolist() == [*range(20)]
    assert driver.writes["c/5"] < 10
    assert not first.done()
    driver.second.set()
    first.result(20)


@pytest.mark.parametrize("driver", ["far"], indirect=True)
def test_each_of_several_to_a_far_store_has_its_own_error(driver):
    """Those to other chunks are tried again at the same time: a server that is gone is not waited for by each."""
    driver.gate.set()
    store = created()
    driver.refused |= {"c/1", "c/4"}
    parts = [np.s_[number * CHUNK + 5 : number * CHUNK + 500] for number in range(6)]
    futures = [store[part].write(at + 1) for at, part in enumerate(parts) for _ in range(3)]
    for at, future in enumerate(futures):
        if at // 3 in (1, 4):
            with pytest.raises(StoreError, match="refused"):
                future.result(20)
        else:
            future.result(20)
    driver.refused.clear()
    values = store.read().result(20)
    assert values[5 * CHUNK + 7 :: CHUNK].tolist() == [6]
    assert values[7::CHUNK].tolist() == [1, 0, 3, 4, 0, 6]


def test_those_that_are_cancelled_are_not_made(driver):
    """The others are; if nobody is left the next goes on."""
    store = created()
    first = store[: 2 * CHUNK].write(1)
    assert driver.reached.wait(10)
    futures = [store[n : CHUNK + n].write(n) for n in range(2, 10)]
    for future in futures[1:]:
        assert future.cancel()
    driver.gate.set()
    first.result(20)
    futures[0].result(20)
    assert store[[1, 2, 5, CHUNK - 1]].read().result(20).tolist() == [1, 2, 2, 2]
    driver.gate.clear()
    driver.reached.clear()
    first = store[: 2 * CHUNK].write(1)
    assert driver.reached.wait(10)
    futures = [store[n : CHUNK + n].write(n) for n in range(2, 10)]
    assert all(future.cancel() for future in futures)
    later = store[0].write(9)
    driver.gate.set()
    later.result(20)
    first.result(20)
    assert store[[0, 1, 5]].read().result(20).tolist() == [9, 1, 1]


def test_those_that_are_cancelled_while_they_are_made_are_waited_for(driver):
    """What is begun then comes after them, whatever of them was written."""
    store = created()
    futures = [store[: 2 * CHUNK].write(1)]
    assert driver.reached.wait(10)
    futures += [store[n : CHUNK + n].write(n) for n in range(2, 6)]
    driver.reached.clear()
    driver.gate.set()
    driver.gate.clear()
    if driver.reached.wait(1):  # the others are being written now
        assert all(future.cancel() for future in futures[1:])
    later = store[: 2 * CHUNK].write(7)
    driver.gate.set()
    later.result(20)
    assert (store[: 2 * CHUNK].read().result(20) == 7).all()


@pytest.mark.parametrize("seed", range(12))
def test_programs(driver, seed):
    """Whatever is begun one after the other, through any view, by whichever way, ends as if each had been awaited."""
    driver.gate.set()
    chance = random.Random(seed)
    codecs = chance.choice([[{"name": "bytes"}], [{"name": "bytes"}, {"name": "zstd"}], [SHARDS]])
    store, model = created(codecs=codecs), np.zeros(SIDE, np.uint64)
    futures = []
    for n in range(1, 60):
        low = chance.randrange(SIDE)
        high = chance.choice([low + 1, chance.randrange(low, SIDE) + 1, SIDE])
        view = chance.choice([np.s_[low:high], np.s_[low:high:3], np.s_[:], [low, low // 2, low // 3]])
        value = chance.choice([0, n, np.uint64(n) + np.arange(model[view].size, dtype=np.uint64)])
        futures.append(store[view].write(value))
        model[view] = value
        if chance.random() < 0.1:
            np.testing.assert_array_equal(store[view].read().result(20), model[view])
        if chance.random() < 0.1:
            chance.choice(futures).result(20)
    np.testing.assert_array_equal(store.read().result(20), model)
    for future in futures:
        future.result(20)


def test_many_threads(driver):
    """Each has its own elements of chunks that all change."""
    driver.gate.set()
    store, errors = created(), []

    def work(mine):
        try:
            futures = [store[mine::8].write(n) for n in range(1, 30)]
            assert (store[mine::8].read().result(20) == 29).all()
            for future in futures:
                future.result(20)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(mine,)) for mine in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors
    assert (store.read().result(20) == 29).all()
