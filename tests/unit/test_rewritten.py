"""Parts of chunks that are written again and again: what is decoded, what is not, and what others write meanwhile."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest

import fsstore
from fsstore.chunk.write import encode as rewritten
from fsstore.codec.chain import BoundChain
from fsstore.errors import StoreError

LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}
BIG = {"name": "bytes", "configuration": {"endian": "big"}}
ZSTD = {"name": "zstd", "configuration": {"level": 1}}
GZIP = {"name": "gzip", "configuration": {"level": 1}}
BLOSC = {
    "name": "blosc",
    "configuration": {"cname": "zlib", "clevel": 1, "shuffle": "shuffle", "typesize": 2, "blocksize": 0},
}
TURNED = {"name": "transpose", "configuration": {"order": [1, 0]}}
CHECKED = {"name": "crc32c"}
SHARDED = {"name": "sharding_indexed", "configuration": {"chunk_shape": [100, 200], "codecs": [LITTLE, ZSTD]}}
SHAPE = (300, 200)
EXACT = {
    "zstd": [LITTLE, ZSTD],
    "big-endian": [BIG, ZSTD, CHECKED],
    "gzip": [TURNED, LITTLE, GZIP],
    "blosc": [LITTLE, BLOSC],
    "shard": [SHARDED],
}
rng = np.random.default_rng(5)


@pytest.fixture(autouse=True)
def nothing_kept():
    """Begin with nothing that other tests wrote."""
    rewritten.pool.after_fork()


@pytest.fixture
def decoded(monkeypatch):
    """Return a list that grows by one for every chunk that is decoded."""
    seen = []
    decode = BoundChain.decode

    def counting(self, data, out=None):
        if len(data) > 1000:  # the index of a shard is decoded each time
            seen.append(len(data))
        return decode(self, data, out)

    monkeypatch.setattr(BoundChain, "decode", counting)
    return seen


def created(url, codecs, data_type="uint16", shape=SHAPE):
    """Return a new array of one chunk with random elements, and these."""
    metadata = {
        "shape": shape,
        "data_type": data_type,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": shape}},
        "codecs": codecs,
    }
    array = fsstore.open({"driver": "zarr3", "kvstore": url, "metadata": metadata}, create=True).result()
    values = rng.integers(0, 2 if data_type == "bool" else 500, shape).astype(array.dtype.numpy_dtype)
    array.write(values).result()
    return array, values


@pytest.mark.parametrize("codecs", EXACT.values(), ids=EXACT)
def test_a_chunk_is_decoded_only_the_first_time(tmp_path, decoded, codecs):
    """Rows that are appended one after the other to one chunk decode it once."""
    array, values = created(f"file://{tmp_path}/a/", codecs)
    for row in range(20):
        values[row] = row
        array[row].write(values[row]).result()
    assert len(decoded) == 1
    again = fsstore.open({"driver": "zarr3", "kvstore": f"file://{tmp_path}/a/"}).result()
    np.testing.assert_array_equal(again.read().result(), values)


@pytest.mark.parametrize("codecs", EXACT.values(), ids=EXACT)
def test_what_another_writes_meanwhile_is_decoded(tmp_path, decoded, codecs):
    """What was encoded here is of no use when the stored bytes are others."""
    array, values = created(f"file://{tmp_path}/a/", codecs)
    other = fsstore.open({"driver": "zarr3", "kvstore": f"file://{tmp_path}/a/"}).result()
    for row in range(0, 20, 2):
        for who, at in ((array, row), (other, row + 1)):
            values[at] = at
            who[at].write(values[at]).result()
    assert len(decoded) == 20
    np.testing.assert_array_equal(array.read().result(), values)


def test_damage_is_seen_and_not_repaired(tmp_path):
    """A flipped bit of a chunk that was just written is an error of the next partial write."""
    array, _ = created(f"file://{tmp_path}/", [LITTLE, ZSTD, CHECKED])
    array[0].write(1).result()
    path = tmp_path / "c/0/0"
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 4
    path.write_bytes(damaged)
    with pytest.raises(StoreError, match="Digest mismatch"):
        array[1].write(1).result()
    assert path.read_bytes() == damaged


def test_a_chunk_that_was_deleted_is_not_brought_back(tmp_path):
    """Where nothing is stored, the rest of the chunk is the fill value."""
    array, _ = created(f"file://{tmp_path}/", [LITTLE, ZSTD])
    array[0].write(1).result()
    (tmp_path / "c/0/0").unlink()
    array[1].write(2).result()
    expected = np.zeros(SHAPE, "<u2")
    expected[1] = 2
    np.testing.assert_array_equal(array.read().result(), expected)


def test_values_given_are_not_kept(tmp_path):
    """What the caller does to his values after a write does not show in what is written next."""
    array, values = created("memory://test_rewritten/", [LITTLE, ZSTD])
    mine = values[:10].copy()
    array[:10].write(mine).result()
    mine[...] = 9999
    array[10].write(3).result()
    expected = values.copy()
    expected[10] = 3
    np.testing.assert_array_equal(array.read().result(), expected)


@pytest.mark.parametrize(
    ("codecs", "data_type"),
    [
        pytest.param([LITTLE], "uint16", id="raw"),
        pytest.param([{"name": "bytes"}, ZSTD], "int4", id="bits that are masked"),
        pytest.param([{"name": "bytes"}, ZSTD], "bool", id="bytes that are refused"),
    ],
)
def test_what_is_not_given_back_as_it_is_is_not_kept(codecs, data_type):
    """Elements may differ from what they are decoded to, and what is not compressed needs no decoding."""
    array, values = created("memory://test_rewritten/", codecs, data_type)
    for row in range(3):
        array[row].write(values[row + 1]).result()
    assert rewritten.pool.now.used_bytes == 0


def test_lossy_filters_are_not_kept():
    """A filter that rounds gives back something else: the next change begins with that."""
    metadata = {
        "shape": SHAPE,
        "chunks": SHAPE,
        "dtype": "<f8",
        "filters": [{"id": "fixedscaleoffset", "offset": 0, "scale": 1, "dtype": "<f8", "astype": "<u2"}],
        "compressor": {"id": "zstd", "level": 1},
        "fill_value": 0,
    }
    spec = {"driver": "zarr", "kvstore": "memory://test_rewritten/", "metadata": metadata}
    array = fsstore.open(spec, create=True).result()
    array[:10].write(7.25).result()
    array[10].write(1).result()
    assert rewritten.pool.now.used_bytes == 0
    assert array[9, 9].read().result() == 7


def test_little_is_kept():
    """The last chunks are kept, and of large chunks none."""
    array, values = created("memory://test_rewritten/", [LITTLE, ZSTD], shape=(2048, 1024))
    for row in range(3):
        array[row].write(values[row]).result()
    assert 4 << 20 < rewritten.pool.now.used_bytes <= 8 << 20
    rewritten.pool.after_fork()
    array, values = created("memory://test_rewritten/b/", [LITTLE, ZSTD], shape=(2049, 1024))
    for row in range(3):
        array[row].write(values[row]).result()
    assert rewritten.pool.now.used_bytes == 0


def test_who_takes_a_chunk_has_it_alone():
    """Of several threads that change one chunk at once each has elements of its own, and nothing is lost."""
    array, values = created("memory://test_rewritten/", [LITTLE, ZSTD])
    values[...] = 0

    def fill(first):
        for row in range(first, SHAPE[0], 6):
            array[row].write(row).result()

    threads = [threading.Thread(target=fill, args=(first,)) for first in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    np.testing.assert_array_equal(array.read().result(), np.broadcast_to(np.arange(SHAPE[0])[:, np.newaxis], SHAPE))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes cannot be forked here")
def test_a_forked_child_waits_for_no_thread_of_its_parent():
    """The lock of what is kept may be held by a thread that the child does not have."""
    array, _ = created("memory://test_rewritten/", [LITTLE, ZSTD])
    array[0].write(1).result()
    with rewritten.pool.now._lock:
        child = os.fork()
        if not child:
            os._exit(0 if rewritten.pool.now.take("anything") is None and not rewritten.pool.now.used_bytes else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
