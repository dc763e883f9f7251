"""Small boxes begun together are planned as columns: what is stored is what NumPy holds, in every order and place."""

from __future__ import annotations

import random

import numpy as np
import pytest

import fsstore
from fsstore.errors import StoreError

GZIP = {"id": "gzip", "level": 1}
BYTES = {"name": "bytes", "configuration": {"endian": "little"}}
TRANSPOSE = {"name": "transpose", "configuration": {"order": [2, 0, 1]}}


def shards(sub, *codecs, before=()):
    """Return zarr v3 with shards of 6 by 5 by 4."""
    configuration = {"chunk_shape": sub, "codecs": list(codecs), "index_codecs": [BYTES]}
    codecs = [*before, {"name": "sharding_indexed", "configuration": configuration}]
    grid = {"name": "regular", "configuration": {"chunk_shape": [6, 5, 4]}}
    return {"driver": "zarr3", "metadata": {"codecs": codecs, "chunk_grid": grid}}


KINDS = {
    "shards": shards([3, 5, 2], BYTES),
    "compressed shards": shards([2, 1, 4], TRANSPOSE, BYTES, {"name": "zstd", "configuration": {"level": 1}}),
    "transposed shards": shards([2, 3, 1], BYTES, before=[TRANSPOSE]),
    "zarr3": {"driver": "zarr3", "metadata": {"codecs": [{"name": "bytes", "configuration": {"endian": "big"}}]}},
    "zarr2": {"driver": "zarr", "metadata": {"compressor": GZIP, "order": "F", "chunks": [3, 5, 2]}},
    "n5": {"driver": "n5", "metadata": {"compression": {"type": "gzip"}, "blockSize": [3, 5, 2]}},
}
SHAPE = (10, 17, 5)


def created(kind, url):
    """Return a new array of three dimensions, whose last chunks are cut off or not."""
    layout = {} if "shards" in kind else {"write_chunk": {"shape": [3, 5, 2]}}
    spec = {**KINDS[kind], "kvstore": url, "dtype": "int16"}
    return fsstore.open(
        spec, create=True, domain=fsstore.IndexDomain(shape=SHAPE), schema=fsstore.Schema({"chunk_layout": layout})
    ).result()


def expression(chance):
    """Return an index expression: mostly boxes, some with numbers, steps or lists."""
    parts = []
    for size in SHAPE:
        low, high = sorted(chance.sample(range(size + 1), 2))
        kinds = [slice(low, high)] * 5 + [low, slice(None), slice(low, high, 2)]
        parts.append(chance.choice(kinds))
    if chance.random() < 0.1:
        parts[1] = chance.sample(range(SHAPE[1]), 4)
    return tuple(parts)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("kind", KINDS)
def test_programs_of_boxes_are_those_of_numpy(kind, seed):
    """Arrays of one store by turns, one inside the folder of another, values that broadcast, and views turned round."""
    chance = random.Random(seed)
    places = ["", "a/", "b/"] if seed % 2 else ["a/", "b/"]
    stores = [created(kind, f"memory://boxes-{kind.replace(' ', '-')}-{seed}/{place}") for place in places]
    models = [np.zeros(SHAPE, np.int16) for _ in places]
    futures = []
    for step in range(1, 60):
        number = chance.randrange(len(places))
        store, model, chosen = stores[number], models[number], expression(chance)
        value = 0 if chance.random() < 0.1 else step
        if chance.random() < 0.5:
            value = chance.randrange(100) + np.arange(model[chosen].size, dtype=np.int16).reshape(model[chosen].shape)
        if chance.random() < 0.1:
            store, model, chosen, value = store.T, model.T, chosen[::-1], step
        futures.append(store[chosen].write(value))
        model[chosen] = value
        if chance.random() < 0.05:
            chance.choice(futures).result(10)
    for store, model in zip(stores, models, strict=True):
        np.testing.assert_array_equal(store.read().result(), model)
        again = fsstore.open(store.spec(retain_context=True)).result()
        np.testing.assert_array_equal(again.read().result(), model)
    [future.result(10) for future in futures]


def test_each_chunk_is_stored_once_for_all_boxes(monkeypatch):
    """Boxes that meet in chunks, and one that replaces a whole chunk: every key is written once a batch."""
    from fsstore.kvstore.memory import MemoryDriver

    store = created("zarr3", "memory://once/")
    store[0, 0, 0].write(1)
    written, write_many = [], MemoryDriver.write_many

    async def write(self, writes):
        written.extend(one.key for one in writes)
        return await write_many(self, writes)

    monkeypatch.setattr(MemoryDriver, "write_many", write)
    futures = [store[low : low + 4, 3:9].write(low) for low in range(6)]
    futures += [store[3:6, 5:10, 0:2].write(7), store[4, 6, 1].write(8)]
    futures[0].result(10)
    assert len(written) == len(set(written)) == 3 * 2 * 3
    assert store[3:6, 5:10, 0:2].read().result().ravel().tolist() == [8 if at == 13 else 7 for at in range(30)]


def test_each_shard_is_read_and_stored_once_for_all_boxes(monkeypatch):
    """Boxes that meet in shards; one that is covered is not read, whatever is written to it before and after."""
    from fsstore.kvstore.memory import MemoryDriver

    store = created("shards", "memory://once-shards/")
    store.write(5).result()
    store[0, 0, 0].write(1)
    read, written, read_many, write_many = [], [], MemoryDriver.read_many, MemoryDriver.write_many

    async def reading(self, reads):
        read.extend(one.key for one in reads if one.key.startswith("once-shards/c"))
        return await read_many(self, reads)

    async def write(self, writes):
        written.extend(one.key for one in writes)
        return await write_many(self, writes)

    monkeypatch.setattr(MemoryDriver, "read_many", reading)
    monkeypatch.setattr(MemoryDriver, "write_many", write)
    futures = [store[low : low + 4, 3:9].write(low) for low in range(6)]
    futures += [store[0:6, 5:10, 0:4].write(7), store[4, 6, 1].write(8), store[6:10].write(0)]
    futures[0].result(10)
    assert len(written) == len(set(written)) == 2 * 2 + 4 * 2
    assert sorted(read) == sorted(
        f"once-shards/c/{place}"
        for place in ("0/0/0", "0/0/1", "0/1/1", *[f"1/{row}/{side}" for row in range(4) for side in range(2)])
    )
    values = store.read().result()
    assert values[:6, 5:10, :4].ravel().tolist() == [8 if at == 4 * 20 + 5 else 7 for at in range(120)]
    assert not values[6:].any()


def test_a_shard_that_becomes_all_fill_values_is_deleted():
    """Boxes that meet in a shard, none of which covers it."""
    store = created("shards", "memory://gone/")
    store[:6, :5, :4].write(5).result()
    futures = [store[:6, :5, low : low + 1].write(0) for low in range(4)]
    [future.result(10) for future in futures]
    assert [key for key in store.kvstore.list().result() if key.startswith(b"c")] == []


@pytest.mark.parametrize("together", [True, False])
def test_a_damaged_chunk_among_others_is_named(together):
    """Chunks that are changed in part are decoded together; the error says which could not be, and spares the others."""
    store = created("zarr2", "memory://damaged/")
    store.write(1).result()
    store.kvstore["1.2.0"] = b"no gzip"
    if together:
        futures = [store[low : low + 2, :, 0].write(2) for low in (0, 4, 6)]
        futures[0].result(10)
        futures[2].result(10)
        with pytest.raises(StoreError, match=r"1\.2\.0"):
            futures[1].result(10)
        assert (store[0:2, :, 0].read().result() == 2).all()
    else:
        with pytest.raises(StoreError, match=r"1\.2\.0"):
            store[:, :, 0].write(2).result(10)
    assert (store[6:, :, 1].read().result() == 1).all()
