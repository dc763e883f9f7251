"""Small chunks that are encoded together, and chunks that several writes change: what is stored, and how often."""

from __future__ import annotations

import numpy as np
import pytest
import tensorstore

import fsstore
from fsstore.chunk.write import request
from fsstore.codec.zstd import BoundZstd
from fsstore.kvstore.memory import MemoryDriver
from fsstore.runtime import execution

BYTES = {"name": "bytes", "configuration": {"endian": "little"}}
BIG = {"name": "bytes", "configuration": {"endian": "big"}}
ZSTD = {"name": "zstd", "configuration": {"level": 1}}
CRC = {"name": "crc32c"}
TURNED = {"name": "transpose", "configuration": {"order": [1, 0]}}


def sharding(shape, codecs):
    """Return the codec of shards of sub-chunks of a shape."""
    configuration = {"chunk_shape": shape, "codecs": codecs, "index_codecs": [BYTES, CRC]}
    return [{"name": "sharding_indexed", "configuration": configuration}]


CODECS = {
    "raw": [BYTES],
    "big": [BIG],
    "zstd": [BYTES, ZSTD],
    "two": [BYTES, ZSTD, CRC],
    "turned": [TURNED, BIG, ZSTD],
    "shard": sharding([3, 2], [BYTES, ZSTD]),
    "shard of rows": sharding([1, 10], [BYTES]),
    "turned in a shard": sharding([3, 2], [TURNED, BYTES]),
    "shard in a shard": sharding([3, 5], sharding([1, 5], [BYTES, ZSTD])),
}
BLOSC = {"name": "blosc", "configuration": {"cname": "lz4", "clevel": 5, "shuffle": "shuffle", "blocksize": 0}}


def created(module, place, codecs, shape, *, dtype="uint16", chunk=(6, 10)):
    """Return a new array, opened by one of the two libraries."""
    grid = {"name": "regular", "configuration": {"chunk_shape": chunk}}
    metadata = {"shape": shape, "data_type": dtype, "chunk_grid": grid, "codecs": codecs, "fill_value": 3}
    spec = {"driver": "zarr3", "kvstore": place, "metadata": metadata}
    return module.open(spec, create=True).result()


@pytest.mark.parametrize("codecs", list(CODECS))
@pytest.mark.parametrize("shape", [(60, 80), (61, 83), (6, 400)])
def test_what_is_written_is_what_tensorstore_reads(tmp_path, codecs, shape):
    """Whole chunks, chunks at the edges and chunks of fill values lie beside each other in one write."""
    random = np.random.default_rng(len(codecs))
    place = {"driver": "file", "path": f"{tmp_path}/"}
    ours = created(fsstore, place, CODECS[codecs], shape)
    theirs = tensorstore.open({"driver": "zarr3", "kvstore": place}).result()
    model = np.full(shape, 3, "u2")
    for low, high in [((0, 0), shape), ((0, 0), shape), ((5, 7), (shape[0] - 1, shape[1] - 9))]:
        values = random.integers(0, 9, (high[0] - low[0], high[1] - low[1])).astype("u2")
        values[:, 20:50] = 3  # which whole chunks then hold
        values[: len(values) // 2 : 2, 60:] = 3
        part = tuple(map(slice, low, high))
        ours[part].write(values if low != (5, 7) else values.astype("u2", order="F")).result()
        model[part] = values
        np.testing.assert_array_equal(ours.read().result(), model)
        np.testing.assert_array_equal(theirs.read().result(), model)
        keys = {str(file.relative_to(tmp_path)) for file in tmp_path.rglob("c/*/*")}
        wanted = {
            f"c/{row}/{column}"
            for row in range(-(-shape[0] // 6))
            for column in range(-(-shape[1] // 10))
            if (model[6 * row : 6 * row + 6, 10 * column : 10 * column + 10] != 3).any()
        }
        assert keys == wanted


@pytest.mark.parametrize("dtype", ["bool", "int4", "bfloat16", "float64", "complex64"])
@pytest.mark.parametrize("place", ["memory", "file"])
@pytest.mark.parametrize("compressed", [True, False])
def test_every_type_is_encoded_in_runs(tmp_path, dtype, place, compressed):
    """Types with bits that are not stored, without a byte order, or of two parts are what they were."""
    blosc = {**BLOSC, "configuration": {**BLOSC["configuration"], "typesize": 2}}
    metadata = {
        "shape": [1000],
        "data_type": dtype,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [10]}},
        "codecs": [BIG, blosc] if compressed else [BIG],
    }
    where = {"driver": place, **({"path": f"{tmp_path}/"} if place == "file" else {})}
    store = fsstore.open({"driver": "zarr3", "kvstore": where, "metadata": metadata}, create=True).result()
    values = (np.arange(1000) // 7 % 5).astype(store.dtype.numpy_dtype)
    store.write(values).result()
    np.testing.assert_array_equal(store.read().result(), values)
    assert (store[7].read().result() == values[7]).all()


@pytest.mark.parametrize("codecs", ["zstd", "shard"])
def test_a_chunk_that_many_writes_change_is_encoded_once(monkeypatch, codecs):
    """Writes begun at once are one read, one encoding of what each touches, and one write."""
    held, encoded, written = [], [], []
    encode, write_many, work_on = BoundZstd.encode, MemoryDriver.write_many, request._StoreQueue.work_on

    async def noted(driver, writes):
        written.append(len(writes))
        return await write_many(driver, writes)

    monkeypatch.setattr(BoundZstd, "encode", lambda *a: encoded.append(1) or encode(*a))
    monkeypatch.setattr(MemoryDriver, "write_many", noted)
    # the queue begins when all are in it, however quick the pool is
    monkeypatch.setattr(request._StoreQueue, "work_on", lambda queue: held.append(queue))
    store = created(fsstore, {"driver": "memory"}, CODECS[codecs], (6, 10))
    model = np.arange(60, dtype="u2").reshape(6, 10)
    store.write(model).result()
    store[0, 0].write(1000).result()
    encoded.clear()
    written.clear()
    begun = [store[0, 0].write(1000)]
    assert (len(encoded), written) == (1, [1]), "the first is alone, and is made at once"
    for at in range(40):
        row, column = at % 3, at % 2
        begun.append(store[row, column].write(1000 + at))
        model[row, column] = 1000 + at
    begun.append(store[4:6, 2:9].write(7))
    model[4:6, 2:9] = 7
    assert written == [1]
    work_on(held[0])
    for future in begun:
        future.result()
    assert len(encoded) == 1 + (1 if codecs == "zstd" else 5)
    assert written == [1, 1]
    np.testing.assert_array_equal(store.read().result(), model)


def test_a_whole_chunk_among_changes_replaces_those_before(monkeypatch):
    """What is written over is not decoded, and what comes later is on top of it."""
    store = created(fsstore, {"driver": "memory"}, CODECS["shard"], (12, 10))
    values = np.arange(60, dtype="u2").reshape(6, 10)
    begun = [store[0, 0].write(1), store[1, 1].write(2), store[:3, :2].write(values[:3, :2] + 100)]
    begun += [store[2, 1].write(9), store[:6].write(values), store[5, 9].write(3), store[0, 3].write(8)]
    for future in reversed(begun):
        future.result()
    values[5, 9], values[0, 3] = 3, 8
    np.testing.assert_array_equal(store[:6].read().result(), values)
    assert (store[6:].read().result() == 3).all()


def test_writes_that_leave_fill_values_delete_the_chunk():
    """Nothing is stored of what many writes together make a missing chunk again."""
    context = fsstore.Context()
    for codecs in ("raw", "shard"):
        spec = {"driver": "memory", "path": f"{codecs}/"}
        store = fsstore.open(
            {"driver": "zarr3", "kvstore": spec, "metadata": created(fsstore, {"driver": "memory"},
             CODECS[codecs], (6, 10)).spec().to_json()["metadata"]}, create=True, context=context
        ).result()  # fmt: skip
        store.write(5).result()
        for future in [store[row].write(3) for row in range(6)]:
            future.result()
        kvstore = fsstore.KvStore.open(spec, context=context).result()
        assert kvstore.list().result() == [b"zarr.json"]


def test_cores_do_not_wait_for_each_other_over_python(monkeypatch):
    """Chunks that are hardly more than copied, in memory, are written by one thread."""
    store = created(fsstore, {"driver": "memory"}, CODECS["raw"], (6000, 1000))
    workers = []
    spread = execution.spread
    monkeypatch.setattr(execution, "spread", lambda *a, **how: workers.append(how["workers"]) or spread(*a, **how))
    values = np.arange(6_000_000, dtype="u4").astype("u2").reshape(6000, 1000)
    store.write(values).result()
    assert workers == [1]
    np.testing.assert_array_equal(store.read().result(), values)
