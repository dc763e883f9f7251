"""Writes that touch the same chunks: the one begun last is the one that stays, and what is begun later sees them."""

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
from fsspec.implementations.memory import MemoryFileSystem

import fsstore
from fsstore import KvStore
from fsstore.chunk.write import queue as write_order
from fsstore.errors import StoreError
from fsstore.kvstore.client.object_store import ObstoreEngine
from fsstore.kvstore.contract.driver import Features, Write
from fsstore.kvstore.memory import MemoryDriver, MemoryKind
from fsstore.runtime import execution
from fsstore.runtime.execution import WorkEnd
from fsstore.runtime.tuning import FEWEST_REQUESTS

SHAPE, CHUNK = ((512, 512), (256, 256))  # of uint64: half a megabyte a chunk


@pytest.fixture(autouse=True)
def apart(tune):
    """Have two chunks written by threads, as if encoding them took long."""
    tune("chunk", INLINE_EFFORT_BYTES=1 << 17)


def created(place):
    """Return a new array, in a context of its own."""
    grid = {"name": "regular", "configuration": {"chunk_shape": CHUNK}}
    metadata = {"shape": SHAPE, "data_type": "uint64", "chunk_grid": grid}
    return fsstore.open({"driver": "zarr3", "metadata": metadata}, kvstore=place, create=True).result()


@pytest.fixture
def gate(monkeypatch):
    """Hold the writes of one chunk, `key`, to memory until the event is set; `fails` makes them fail then."""
    event = threading.Event()
    event.key, event.fails, event.reached = "c/0/0", False, threading.Event()
    write_many = MemoryDriver.write_many

    async def write(self, writes):
        if any(one.key.endswith(event.key) for one in writes):
            event.reached.set()
            assert event.wait(20)
            if event.fails:
                event.fails = False
                raise StoreError("refused")
        return await write_many(self, writes)

    monkeypatch.setattr(MemoryDriver, "write_many", write)
    yield event
    event.set()


class Far(MemoryDriver):
    """A store in which each request for chunks takes its time."""

    def __init__(self):
        super().__init__()
        self._features = Features(waits=True, create_only=True, conditional_write=True)

    async def read_many(self, reads):
        """Answer after a while."""
        await self._pause([read.key for read in reads])
        return await super().read_many(reads)

    async def write_many(self, writes):
        """Write after a while."""
        await self._pause([write.key for write in writes])
        return await super().write_many(writes)

    async def _pause(self, keys):
        if any("c/" in key for key in keys):
            await asyncio.sleep(random.random() / 200)


@pytest.fixture(params=["near", "far"])
def store(request, monkeypatch):
    """An array in memory, as if it were near, and as if it were far away."""
    if request.param == "far":
        far = Far()

        async def opened(self, opening):
            return far

        monkeypatch.setattr(MemoryKind, "open", opened)
    made = created("memory://order/")
    yield made
    assert not write_order.unfinished()


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (np.s_[:], np.s_[:]),
        (np.s_[:], np.s_[3, 5:9]),
        (np.s_[:], np.s_[100:400, 5:500]),
        (np.s_[3:, 7:500], np.s_[:]),
        (np.s_[3, 5:9], np.s_[:]),
        (np.s_[::-1, ::3], np.s_[::7]),
    ],
    ids=str,
)
def test_the_later_write_stays_and_is_seen(store, first, second):
    """Whatever their sizes, whichever is done first, and whoever begins it from the same place."""
    other = fsstore.open(store.spec(retain_context=True)).result()
    model = np.zeros(SHAPE, np.uint64)
    for value in range(1, 13, 2):
        futures = [store[first].write(value), other[second].write(value + 1)]
        model[first], model[second] = value, value + 1
        seen = store.read()
        if value % 4 == 1:
            futures.reverse()
        for future in futures:
            future.result()
        np.testing.assert_array_equal(seen.result(), model)


def test_listed_positions_keep_their_order(store):
    """Points that lie anywhere are writes of the chunks they lie in."""
    points = np.arange(0, 512, 5)
    model = np.zeros(SHAPE, np.uint64)
    for value in range(1, 7, 2):
        futures = [store.vindex[points, points[::-1]].write(value), store.oindex[points, [1, 300]].write(value + 1)]
        model[points, points[::-1]] = value
        model[np.ix_(points, [1, 300])] = value + 1
        np.testing.assert_array_equal(store.read().result(), model)
        [future.result() for future in futures]


def test_what_touches_other_chunks_does_not_wait(gate):
    """Only the chunks of unfinished writes are waited for."""
    store = created("memory://apart/")
    large = store[:256].write(1)
    assert gate.reached.wait(10)
    store[256:].write(2).result(10)
    assert (store[256:].read().result(10) == 2).all()
    small, seen = store[3, 3].write(3), store[:4, :4].read()
    assert not small.done()
    assert not seen.done()
    gate.set()
    assert seen.result(10)[3].tolist() == [1, 1, 1, 3]
    small.result(10)
    large.result(10)


def test_writes_of_very_many_chunks_stand_for_all(gate, tune):
    """Chunks are not listed without bound."""
    tune("chunk", MANY_CHUNKS=3)
    store = created("memory://many/")
    futures = [store.write(1), store[300, 300].write(2), store.write(3), store[0, 0].write(4)]
    assert gate.reached.wait(10)
    assert not any(future.done() for future in futures)
    gate.set()
    values = store.read().result(10)
    assert (values[0, 0], values[300, 300], values[9, 9]) == (4, 3, 3)
    [future.result(10) for future in futures]
    assert not write_order.unfinished()


def test_fields_of_one_array_have_chunks_in_common(gate):
    """Views with dimensions of their own inside the elements wait for each other."""
    gate.key = "0.0"
    metadata = {"shape": SHAPE, "chunks": CHUNK, "dtype": [["a", "<f8"], ["b", "<u2", [3]]]}
    spec = {"driver": "zarr", "kvstore": "memory://fields/", "metadata": metadata}
    context = fsstore.Context()
    one = fsstore.open({**spec, "field": "a"}, create=True, context=context).result()
    two = fsstore.open({**spec, "field": "b"}, context=context).result()
    large = one.write(1)
    assert gate.reached.wait(10)
    small, seen = two[3, 3].write(5), two[3, 3].read()
    assert not small.done()
    gate.set()
    assert seen.result(10).tolist() == [5, 5, 5]
    large.result(10)
    assert one[3, 3].read().result(10) == 1


def test_a_cancelled_write_is_waited_for_as_long_as_it_is_under_way(gate):
    """What cancelling came too late for is not written over what is begun afterwards."""
    store = created("memory://cancelled/")
    large = store[:256].write(1)
    assert gate.reached.wait(10)
    assert large.cancel()
    later, dropped, last = store[:256].write(2), store[3, 3].write(3), store[4, 4].write(4)
    assert dropped.cancel()
    assert not later.done()
    gate.set()
    last.result(10)
    values = store[:256].read().result(10)
    assert (values[3, 3], values[4, 4], values.sum()) == (2, 4, values.size * 2 + 2)
    assert not write_order.unfinished()


def test_an_error_is_that_of_its_write(gate):
    """A write that fails does not fail those that wait for it."""
    store = created("memory://failing/")
    gate.fails = True
    large = store[:256].write(1)
    assert gate.reached.wait(10)
    small = store[3, 3].write(3)
    gate.set()
    small.result(10)
    with pytest.raises(StoreError, match="refused"):
        large.result(10)
    assert store[3, 3].read().result(10) == 3


def test_thousands_may_wait_for_one(gate):
    """Each of them for the one before."""
    store = created("memory://thousands/")
    large = store[:256].write(1)
    assert gate.reached.wait(10)
    futures = [store[0, : number + 1].write(number) for number in range(255, -1, -1) for _ in range(6)]
    gate.set()
    [future.result(60) for future in [*futures, large]]
    assert store[0, :256].read().result(10).tolist() == list(range(256))


def test_what_resizes_counts_or_deletes_waits(store):
    """No write that was begun before comes after."""
    large = store.write(1)
    assert store.storage_statistics(query_fully_stored=True).result().fully_stored
    second = store.write(2)
    small = store.resize(exclusive_max=[256, 512]).result()
    grown = small.resize(exclusive_max=[512, 512]).result()
    assert (grown[:256].read().result() == 2).all()
    assert (grown[256:].read().result() == 0).all()
    third = grown.write(3)
    again = store.spec(retain_context=True)
    made = fsstore.open(again, create=True, delete_existing=True).result()
    assert (made.read().result() == 0).all()
    [future.result() for future in (large, second, third)]


def test_a_transaction_keeps_the_order(store):
    """What is begun inside, and what was begun outside before."""
    large = store.write(1)
    with fsstore.Transaction() as transaction:
        bound = store.with_transaction(transaction)
        bound.write(2)
        bound[3, 3].write(3)
        bound[100:400, 100:400].write(4)
        bound[200].write(5)
        values = bound.read().result()
    large.result()
    model = np.full(SHAPE, 2, np.uint64)
    model[3, 3], model[100:400, 100:400], model[200] = 3, 4, 5
    np.testing.assert_array_equal(values, model)
    np.testing.assert_array_equal(store.read().result(), model)


class Checked(Far):
    """A store whose metadata are answered late to the first who asks: after the third."""

    def __init__(self):
        super().__init__()
        self.asked, self.third = 0, None

    async def read_many(self, reads):
        """Answer, the first of those that are counted last."""
        if self.third is not None and any(read.key.endswith("zarr.json") for read in reads):
            self.asked += 1
            if self.asked == 1:
                await asyncio.wait_for(self.third.wait(), 20)
            elif self.asked == 3:
                self.third.set()
        return await super().read_many(reads)


def test_writes_that_look_at_the_metadata_first_keep_their_order(monkeypatch):
    """Whichever is answered first."""
    far = Checked()

    async def opened(self, opening):
        return far

    monkeypatch.setattr(MemoryKind, "open", opened)
    spec = created("memory://checked/").spec().to_json()
    store = fsstore.open({**spec, "recheck_cached_metadata": True}).result()
    far.third = asyncio.Event()
    first, second, seen = store.write(1), store.write(2), store.read()
    assert (seen.result(20) == 2).all()
    first.result(20)
    second.result(20)
    assert (store.read().result(20) == 2).all()
    third = store.write(3)
    assert store.resize(exclusive_max=[256, 512]).result(20).shape == (256, 512)
    third.result(20)
    assert not write_order.unfinished()


class Filesystem(MemoryFileSystem):
    """A filesystem that writes one chunk, the first time, when the event is set."""

    protocol, cachable, store, pseudo_dirs = "held", False, {}, [""]

    def __init__(self):
        super().__init__()
        self.held, self.reached, self.go_on = True, threading.Event(), threading.Event()

    def pipe_file(self, path, value, **options):
        """Write, perhaps late."""
        if path.endswith("c/0/0") and self.held:
            self.held = False
            self.reached.set()
            assert self.go_on.wait(20)
        super().pipe_file(path, value, **options)


def test_what_a_thread_writes_is_waited_for_although_it_was_cancelled():
    """A thread cannot be stopped: what it still writes comes before what is begun then."""
    filesystem = Filesystem()
    store = created(KvStore.open(filesystem).result())
    large = store[:256].write(1)
    assert filesystem.reached.wait(10)
    assert large.cancel()
    later = store[:256].write(2)
    with pytest.raises(TimeoutError):
        later.commit.result(timeout=0.2)
    filesystem.go_on.set()
    later.result(10)
    assert (store[:256].read().result(10) == 2).all()
    assert not write_order.unfinished()


def test_a_write_to_a_bucket_that_is_refused_while_others_take_long_is_told(monkeypatch):
    """A thread that came to help makes it; what it left undone must not pass for written."""
    obstore = pytest.importorskip("obstore")
    refused, plain = threading.Event(), obstore.put

    def put(store, path, *rest, **options):
        if int(path) < FEWEST_REQUESTS:
            assert refused.wait(20)
        elif int(path) == FEWEST_REQUESTS + 2:
            threading.Timer(0.05, refused.set).start()
            raise PermissionError("refused")
        return plain(store, path, *rest, **options)

    monkeypatch.setattr(obstore, "put", put)
    bucket = obstore.store.MemoryStore()
    engine = ObstoreEngine(lambda *_: bucket, shown="near://", features=Features(waits=True))
    writes = [Write(str(number), b"") for number in range(100)]
    with pytest.raises(StoreError, match="refused"):
        execution.start(engine.write_many(writes)).result(20)


def test_threads_beside_one_that_failed_are_waited_for(monkeypatch):
    """An error is told when what is written beside it is over."""
    go_on, ended = threading.Event(), threading.Event()

    def write(self, one):
        if one.key == "bad":
            raise StoreError("refused")
        assert go_on.wait(20)

    monkeypatch.setattr(ObstoreEngine, "_write", write)
    engine = ObstoreEngine(lambda *_: None, shown="near://", features=Features(waits=True))
    writes = [Write("good", b""), Write("bad", b"")]
    future = execution.start(engine.write_many(writes), ended=WorkEnd(ended.set))
    assert not ended.wait(0.2)
    go_on.set()
    with pytest.raises(StoreError, match="refused"):
        future.result(10)
    assert ended.wait(10)


def test_who_is_called_back_may_wait(gate):
    """Who is told of the end of a write may read, write and resize what was written, and wait for it."""
    store = created("memory://back/")
    answers = []

    def told(_):
        answers.append(store[:2, :2].read().result(10).tolist())
        store[0, 0].write(3).result(10)
        answers.append(store.resize(exclusive_max=[512, 256]).result(10).shape)
        raise SystemExit

    large = store.write(1).commit
    large.add_done_callback(told)
    assert gate.reached.wait(10)
    last = store[0].write(2)
    gate.set()
    last.result(10)
    while len(answers) < 2:
        time.sleep(0.01)
    assert answers == [[[2, 2], [1, 1]], (512, 256)]
    assert not write_order.unfinished()


def test_an_interrupted_write_is_not_waited_for(gate, monkeypatch):
    """Ctrl-C may come while a write is being put in its place."""
    store = created("memory://interrupted/")
    large = store[:256].write(1)
    assert gate.reached.wait(10)

    def interrupted(*_, **__):
        patch.undo()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(write_order, "after", interrupted)
        store[3, 3].write(2)
    gate.set()
    assert (store[:256].read().result(10) == 1).all()
    large.result(10)
    assert not write_order.unfinished()


EXIT = """
import sys, atexit, fsstore
store = fsstore.open({"driver": "zarr3", "kvstore": sys.argv[1]}).result()
def last():
    store[256:].write(3)
    store[300, 300].write(4)
atexit.register(last)
store.write(1)
store[3, 3].write(2)
store[:, 10:500].write(5)
"""


def test_nothing_is_lost_when_the_interpreter_exits(tmp_path):
    """What waits for its turn is written, also when no thread can be started any more."""
    url = f"file://{tmp_path}/"
    store = created(url)
    command = [sys.executable, "-c", EXIT, url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    model = np.ones(SHAPE, np.uint64)
    model[3, 3], model[:, 10:500], model[256:], model[300, 300] = 2, 5, 3, 4
    np.testing.assert_array_equal(store.read().result(), model)


MANY = """
import sys, fsstore
store = fsstore.open({"driver": "zarr3", "kvstore": sys.argv[1]}).result()
for value in range(1, 101):
    store[value:].write(value)
"""


def test_nothing_is_lost_when_the_interpreter_exits_while_many_wait_for_one_another(tmp_path):
    """There are threads until the last is written: each would be begun within the one before."""
    url = f"file://{tmp_path}/"
    grid = {"name": "regular", "configuration": {"chunk_shape": [4, 512]}}
    metadata = {"shape": SHAPE, "data_type": "uint64", "chunk_grid": grid}
    store = fsstore.open({"driver": "zarr3", "metadata": metadata}, kvstore=url, create=True).result()
    command = [sys.executable, "-c", MANY, url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    values = store.read().result()
    assert values[:, 0].tolist() == [*range(101), *[100] * (SHAPE[0] - 101)]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_does_not_wait_for_its_parent(gate):
    """The writes of a process are carried out by its own threads."""
    store = created("memory://forked/")
    large = store[:256].write(1)
    assert gate.reached.wait(10)
    child = os.fork()
    if child == 0:
        try:
            gate.set()
            store[:256].write(7).result(30)
            os._exit(0 if (store[:256].read().result(30) == 7).all() else 3)
        finally:
            os._exit(4)
    assert os.waitpid(child, 0)[1] == 0
    gate.set()
    large.result(10)
