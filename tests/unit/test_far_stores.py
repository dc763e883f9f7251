"""Over stores that are far away, requests that do not depend on each other are under way together, up to the limits."""

import asyncio
import threading

import numpy as np
import pytest

import fsstore as ts
from fsstore.kvstore.client.object_store import ObstoreEngine
from fsstore.kvstore.contract.driver import Features
from fsstore.kvstore.engine.turns import Turns, each
from fsstore.kvstore.memory import MemoryDriver, MemoryKind
from fsstore.runtime import execution
from fsstore.runtime.execution import run_bounded


class Crowd(MemoryDriver):
    """A far store: a batch is answered when `together` of them are under way, or after a while.

    `keys` is how many chunks the largest batch asked for.
    """

    def __init__(self, together):
        super().__init__()
        self.together, self.under_way, self.most, self.keys = together, 0, 0, 0
        self._features = type(self.features)(waits=True, create_only=True, conditional_write=True)

    async def _gathered(self, keys):
        chunks = {key for key in keys if "/c/" in f"/{key}"}
        if not chunks:
            return
        self.keys = max(self.keys, len(chunks))
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        for _ in range(500):
            if self.most >= self.together:
                break
            await asyncio.sleep(0.002)
        self.under_way -= 1

    async def read_many(self, reads):
        await self._gathered([read.key for read in reads])
        return await super().read_many(reads)

    async def write_many(self, writes):
        await self._gathered([write.key for write in writes])
        return await super().write_many(writes)


SHARDS = {
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [8, 8]}},
    "codecs": [{"name": "sharding_indexed", "configuration": {"chunk_shape": [2, 8]}}],
}


@pytest.fixture
def crowd(monkeypatch):
    """The store behind `memory://`, made far."""
    store = Crowd(0)

    async def opened(self, opening):
        return store

    monkeypatch.setattr(MemoryKind, "open", opened)
    return store


def created(metadata, shape):
    """Return a new array in the store."""
    spec = {"driver": "zarr3", "kvstore": "memory://", "metadata": metadata}
    return ts.open(spec, create=True, dtype="int32", shape=shape).result()


@pytest.mark.parametrize("whole", [True, False])
def test_shards_are_read_together(crowd, whole):
    """Eight shards wait for one answer of the store, or two (indexes, then entries), and not for eight."""
    array = created(SHARDS, [64, 8])
    array.write(np.arange(512).reshape(64, 8).astype("int32")).result()
    crowd.together, crowd.keys = 1, 0
    view = array if whole else array[::8]
    assert view.read().result().sum() == np.arange(512).reshape(64, 8)[:: 1 if whole else 8].sum()
    assert crowd.keys == 8, "all are asked for in one batch"


def test_chunks_are_written_together(crowd):
    """Windows of a write do not wait for each other."""
    grid = {"name": "regular", "configuration": {"chunk_shape": [1, 8]}}
    array = created({"chunk_grid": grid}, [64, 8])
    crowd.together = 8
    array.write(np.ones([64, 8], "int32")).result()
    assert crowd.most >= 8


def test_what_is_under_way_fits_the_budget():
    """Costs of what is awaited together stay below the budget; something larger than it goes alone."""
    spent, most, order = 0, 0, []

    async def work(cost):
        nonlocal spent, most
        spent += cost
        most = max(most, spent)
        await asyncio.sleep(0.001)
        spent -= cost
        order.append(cost)

    execution.call(run_bounded(work, [3, 3, 3, 20, 1, 9, 5], cost=lambda cost: cost, budget=10))
    assert sorted(order) == [1, 3, 3, 3, 5, 9, 20]
    assert most == 20


def test_the_first_error_ends_the_flow():
    """What is under way is cancelled, and nothing more is begun."""
    begun, ended = [], []

    async def work(number):
        begun.append(number)
        try:
            if number == 1:
                raise ValueError("one")
            await asyncio.sleep(30)
        finally:
            ended.append(number)

    with pytest.raises(ValueError, match="one"):
        execution.call(run_bounded(work, range(10), cost=lambda _: 1, budget=3))
    assert begun == [0, 1, 2]
    assert sorted(ended) == [0, 1, 2]


def test_a_limit_holds_for_all_batches_of_an_engine():
    """Four batches at once share the turns of their engine."""
    turns, under_way, most = Turns(3), 0, 0

    async def work(number):
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0.001)
        under_way -= 1
        return number * 2

    async def batches():
        return await execution.gather([each(work, range(5), turns) for _ in range(4)])

    assert execution.call(batches()) == [[0, 2, 4, 6, 8]] * 4
    assert most == 3


ZSTD = [{"name": "zstd"}]


@pytest.mark.parametrize(("codecs", "side", "handed"), [([], 8192, 0), (ZSTD, 8, 0), (ZSTD, 8192, 1)])
def test_what_is_soon_decoded_is_not_handed_to_workers(crowd, monkeypatch, codecs, side, handed):
    """The loop puts in their place what is stored as it is seen and what is little; workers decode the rest."""
    offload, kinds = execution.offload, []

    async def counted(*args, kind="io", limit=None):
        kinds.append(kind)
        return await offload(*args, kind=kind, limit=limit)

    grid = {"name": "regular", "configuration": {"chunk_shape": [1, side]}}
    array = created({"chunk_grid": grid, "codecs": [{"name": "bytes"}, *codecs]}, [64, side])
    values = np.arange(64 * side).reshape(64, side).astype("int32")
    array.write(values).result()
    monkeypatch.setattr(execution, "offload", counted)
    assert np.array_equal(array[::2].read().result(), values[::2])
    assert ("compute" in kinds) == bool(handed)


@pytest.mark.parametrize(
    "metadata", [{"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [8, 8]}}}, SHARDS]
)
@pytest.mark.parametrize("kind", ["boxes", "points", "few"])
def test_reads_begun_together_ask_once_for_a_chunk(crowd, monkeypatch, metadata, kind):
    """What a hundred reads share is fetched once, nobody has to ask, and a damaged chunk fails those that touch it."""
    array = created(metadata, [64, 16])
    values = np.arange(1024).reshape(64, 16).astype("int32")
    array.write(values).result()
    asked = []
    read_many, hold = crowd.read_many, threading.Event()

    async def counted(reads):
        asked.extend(read.key for read in reads)
        return await read_many(reads)

    monkeypatch.setattr(crowd, "read_many", counted)
    rng = np.random.default_rng(0)
    count = 5 if kind == "few" else 100
    starts = list(zip(rng.integers(0, 60, count), rng.integers(0, 12, count), strict=True))
    execution.loop().call_soon_threadsafe(hold.wait)  # the loop has no time until all are begun
    if kind == "points":
        reads = [array.oindex[[low, low + 3], [column]].read() for low, column in starts]
        expected = [values[[low, low + 3]][:, [column]] for low, column in starts]
    else:
        reads = [array[low : low + 4, column : column + 4].read() for low, column in starts]
        expected = [values[low : low + 4, column : column + 4] for low, column in starts]
    assert reads[3].cancel()
    hold.set()
    done = threading.Event()
    reads[-1].add_done_callback(lambda _: done.set())
    assert done.wait(20)
    for number, (read, wanted) in enumerate(zip(reads, expected, strict=True)):
        if number == 3:
            assert read.cancelled()
        else:
            assert np.array_equal(read.result(), wanted)
    assert max(map(asked.count, asked)) <= (5 if metadata is SHARDS else 1), "an index and its four sub-chunks"


def test_a_damaged_far_chunk_fails_the_reads_that_touch_it(crowd):
    """The reads of other chunks that were begun with them have their values."""
    grid = {"name": "regular", "configuration": {"chunk_shape": [8, 8]}}
    array = created({"chunk_grid": grid, "codecs": [{"name": "bytes"}, {"name": "crc32c"}]}, [64, 8])
    array.write(np.ones([64, 8], "int32")).result()
    array.kvstore["c/2/0"] = b"damaged"
    reads = [array[low : low + 1].read() for low in range(64)]
    for low, read in enumerate(reads):
        if low // 8 == 2:
            with pytest.raises(ValueError, match="c/2/0"):
                read.result()
        else:
            assert (read.result() == 1).all()


@pytest.mark.parametrize("count", [0, 1, 999, 1000, 1001, 2000])
def test_a_bucket_is_listed_to_its_end(count):
    """Also where the last page is full; a page that is not full is known to be the last."""
    obstore = pytest.importorskip("obstore")
    bucket = obstore.store.MemoryStore()
    for number in range(count):
        obstore.put(bucket, f"a/{number:04}", b"")
    obstore.put(bucket, "b", b"")
    engine = ObstoreEngine(lambda *_: bucket, shown="near://", features=Features(waits=True))

    async def pages():
        return [page async for page in engine.pages("a/")]

    found = execution.call(pages())
    assert [entry.key for page in found for entry in page] == [f"a/{number:04}" for number in range(count)]
    assert [len(page) for page in found] == [1000] * (count // 1000) + [count % 1000] * (count % 1000 > 0)
