"""A large shard of which a part is written: what is stored of it is read little by little, and stays as it was."""

import gc
import itertools
import weakref

import numpy as np
import pytest

import fsstore as ts
from fsstore.chunk.write.encode import StoredShard
from fsstore.codec import sharding as shard_layout
from fsstore.codec.chain import CodecChain
from fsstore.codec.contract import ChunkSpec
from fsstore.errors import AbortedError, DataLossError
from fsstore.kvstore.contract.driver import ReadResult

SHAPE, SHARD, PART = (256, 256, 96), (128, 128, 96), (32, 32, 32)  # shards of 3 MB
BYTES = {"name": "bytes", "configuration": {"endian": "little"}}
INDEX = [BYTES, {"name": "crc32c"}]
ZSTD = {"name": "zstd", "configuration": {"level": 1}}
TRANSPOSE = {"name": "transpose", "configuration": {"order": [2, 0, 1]}}


def sharding(part, *codecs, **options):
    """Return the codec of shards."""
    members = {"chunk_shape": part, "codecs": list(codecs), "index_codecs": INDEX, **options}
    return {"name": "sharding_indexed", "configuration": members}


CHAINS = {
    "raw": [sharding(PART, BYTES)],
    "zstd": [sharding(PART, BYTES, ZSTD)],
    "index first": [sharding(PART, BYTES, ZSTD, index_location="start")],
    "transposed": [TRANSPOSE, sharding([32, 32, 32], TRANSPOSE, BYTES)],
    "nested": [sharding([64, 64, 96], sharding(PART, BYTES, ZSTD))],
}


def opened(path, codecs, **context):
    """Return an array of large shards in local files."""
    spec = {
        "driver": "zarr3",
        "kvstore": f"file://{path}/a/",
        "metadata": {
            "shape": SHAPE,
            "data_type": "uint16",
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": SHARD}},
            "codecs": codecs,
        },
        "context": {"file_io_sync": False, **context},
    }
    return ts.open(spec, open=True, create=True).result()


def random_box(random):
    """Return a box in the array, large or small."""
    cuts = [sorted(random.integers(0, size + 1, 2)) for size in SHAPE]
    return tuple(slice(int(low), max(int(low) + 1, int(high))) for low, high in cuts)


@pytest.mark.parametrize("name", CHAINS)
def test_parts_are_changed_and_the_rest_stays(name, tmp_path):
    """Boxes written one after the other, some with fill values, leave what NumPy would have."""
    random = np.random.default_rng(len(name))
    store, wanted = opened(tmp_path, CHAINS[name]), np.zeros(SHAPE, "u2")
    for turn in range(12):
        box = random_box(random)
        wanted[box] = 0 if turn % 4 == 3 else random.integers(0, 2**16, wanted[box].shape, "u2")
        store[box].write(wanted[box]).result()
        assert np.array_equal(store.read().result(), wanted)
    assert np.array_equal(opened(tmp_path, CHAINS[name]).read().result(), wanted)


def scattered(file, count):
    """Rewrite the file of a raw shard with its sub-chunks backwards, far from each other."""
    index_size = 16 * count + 4
    data = file.read_bytes()
    entries = np.frombuffer(data[-index_size:-4], "<u8").reshape(count, 2).copy()
    parts = [data[offset : offset + length] for offset, length in entries.tolist()]
    body = b""
    for number in reversed(range(count)):
        body += bytes(200_000)
        entries[number, 0] = len(body)
        body += parts[number]
    layout = CodecChain.from_json(INDEX).bind(ChunkSpec(np.dtype("u8"), (count, 2)))
    file.write_bytes(body + bytes(layout.encode(entries)))


def test_parts_may_lie_anywhere(tmp_path):
    """The order of sub-chunks in a shard, and what lies between them, does not matter."""
    store = opened(tmp_path, CHAINS["raw"])
    values = np.random.default_rng(0).integers(0, 2**16, SHAPE, "u2")
    store.write(values).result()
    for numbers in itertools.product("01", "01", "0"):
        scattered(tmp_path.joinpath("a", "c", *numbers), 48)
    values[100:140, 3:200, 1:5] = 7
    store[100:140, 3:200, 1:5].write(values[100:140, 3:200, 1:5]).result()
    assert np.array_equal(store.read().result(), values)


@pytest.mark.parametrize("size", [0, 10, 800])
def test_damaged_shards_are_refused(size, tmp_path):
    """A shard that is cut off, or whose index is damaged, is an error that names it, and stays as it is.

    The thread forgets the write whose error it has seen, so that the next one does not wait for others.
    """
    store = opened(tmp_path, CHAINS["raw"])
    store.write(np.ones(SHAPE, "u2")).result()
    file = tmp_path / "a/c/0/0/0"
    file.write_bytes(file.read_bytes()[:size])
    futures = store[3:5].write(7)
    with pytest.raises((DataLossError, ValueError), match="c/0/0/0"):
        futures.result()
    assert file.stat().st_size == size
    failed = weakref.ref(futures.commit)
    del futures
    gc.collect()
    assert failed() is None


def test_a_shard_rewritten_meanwhile_is_refused(tmp_path):
    """Sub-chunks are of the generation of the index, or nobody gets them."""
    store = opened(tmp_path, CHAINS["raw"])
    store.write(np.random.default_rng(0).integers(0, 2**16, SHAPE, "u2")).result()
    driver = store.kvstore.prefix.driver
    layout = CodecChain.from_json(CHAINS["raw"]).bind(ChunkSpec(np.dtype("u2"), SHARD, np.uint16(0))).shard
    assert isinstance(layout, shard_layout.ShardLayout)
    key = store.kvstore.path + "c/0/0/0"
    shard = StoredShard.read(driver, key, layout)
    assert len(shard[0]) == 2**16
    store[:128, :128].write(7).result()
    with pytest.raises(AbortedError, match="c/0/0/0"):
        shard[47]
    missing = StoredShard.read(driver, key + "1", layout)
    assert isinstance(missing, ReadResult)
    assert missing.state == "missing"


@pytest.mark.parametrize("fill", [9, 0], ids=["longer", "shorter"])
def test_a_part_is_written_again_if_the_shard_was_rewritten_without_its_lock(fill, tmp_path, monkeypatch, tune):
    """Without locks another writer may come between the blocks of a shard; no update of either is lost then."""
    tune("chunk", STORED_BLOCK_BYTES=100_000)
    unlocked = {"file_io_locking": {"mode": "none"}}
    store, other = (opened(tmp_path, CHAINS["raw"], **unlocked) for _ in range(2))
    values = np.random.default_rng(0).integers(1, 2**16, SHAPE, "u2")
    store.write(values).result()
    reading, come = StoredShard._read, []

    def read(self, block):
        if block > 2 and not come:
            come.append(block)
            other[:128, :64].write(fill).result()
        return reading(self, block)

    monkeypatch.setattr(StoredShard, "_read", read)
    store[:40, 70:128].write(7).result()
    assert come
    values[:128, :64], values[:40, 70:128] = fill, 7
    assert np.array_equal(opened(tmp_path, CHAINS["raw"]).read().result(), values)
