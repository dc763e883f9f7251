"""Encoding while writing: how many at once, and what counts as equal to the fill value."""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager

import numpy as np
import pytest

import fsstore
from fsstore.codec.buffers import equals_fill, rows_equal_fill
from fsstore.codec.sharding import ShardLayout
from fsstore.codec.zarr3 import BoundBytes
from fsstore.codec.zstd import BoundZstd
from fsstore.errors import StoreError
from fsstore.kvstore.local.driver import LocalDriver
from fsstore.runtime import execution

BYTES = {"name": "bytes", "configuration": {"endian": "little"}}
ZSTD = {"name": "zstd", "configuration": {"level": 1}}


class Counted:
    """Stands in for a method, and remembers how many calls of it ran at the same time."""

    def __init__(self, method):
        self._method, self._lock = method, threading.Lock()
        self.now = self.most = self.calls = 0

    def __get__(self, instance, owner):
        return lambda *arguments, **options: self._run(instance, *arguments, **options)

    def _run(self, *arguments, **options):
        with self.counting():
            return self._method(*arguments, **options)

    @contextmanager
    def counting(self):
        """Count what goes on meanwhile as one call."""
        with self._lock:
            self.now += 1
            self.calls += 1
            self.most = max(self.most, self.now)
        try:
            yield
        finally:
            with self._lock:
                self.now -= 1


def created(path, shape, chunk, codecs, **context):
    return fsstore.open(
        {
            "driver": "zarr3",
            "kvstore": f"file://{path}/",
            "context": {"file_io_sync": False, **context},
            "metadata": {
                "shape": shape,
                "data_type": "uint16",
                "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunk}},
                "codecs": codecs,
            },
        },
        create=True,
    ).result()


def sharding(configuration):
    return {"name": "sharding_indexed", "configuration": configuration}


@pytest.mark.parametrize("limit", [1, 2])
def test_chunks_encoded_at_once(tmp_path, monkeypatch, limit):
    """`data_copy_concurrency` bounds how many windows are encoded at once, however many wait for the disk."""
    counted = Counted(BoundZstd.encode)
    monkeypatch.setattr(BoundZstd, "encode", counted)
    array = created(tmp_path, [16, 256, 256], [1, 256, 256], [BYTES, ZSTD], data_copy_concurrency={"limit": limit})
    values = np.arange(1, 1 + 16 * 256 * 256, dtype="u2").reshape(16, 256, 256)
    array.write(values).result()
    assert counted.calls == 16
    assert counted.most <= limit
    assert (array.read().result() == values).all()


def test_a_cancelled_write_encodes_no_further_chunk(tmp_path, monkeypatch):
    """What is being encoded is finished; who reads the array waits for that only."""
    begun, go = threading.Event(), threading.Event()
    encode, encoded = BoundBytes.encode, []

    def gated(*arguments):
        begun.set()
        assert go.wait(60)
        encoded.append(arguments)
        return encode(*arguments)

    monkeypatch.setattr(BoundBytes, "encode", gated)
    array = created(tmp_path, [40, 512, 1024], [1, 512, 1024], [BYTES])
    writing = array.write(np.ones([40, 512, 1024], "u2"))
    assert begun.wait(60)
    writing.cancel()
    go.set()
    stored = array[:, 0, 0].read().result()
    assert 1 <= len(encoded) <= execution.core_count()
    assert int(stored.sum()) <= len(encoded)


def test_shards_that_use_every_core_are_encoded_one_by_one(tmp_path, monkeypatch):
    """While one shard is on its way to the disk the next has all cores."""
    encode_parts = ShardLayout.encode_parts
    counted = Counted(encode_parts)

    def drawn(layout, array, **options):
        with counted.counting():
            yield from encode_parts(layout, array, **options)

    shard = {
        "name": "sharding_indexed",
        "configuration": {"chunk_shape": [1, 64, 64], "codecs": [BYTES, ZSTD], "index_codecs": [BYTES]},
    }
    array = created(tmp_path, [8, 256, 256], [2, 256, 256], [shard])
    values = np.arange(1, 1 + 8 * 256 * 256, dtype="u2").reshape(8, 256, 256)
    values[0] = 0
    monkeypatch.setattr(ShardLayout, "encode_parts", drawn)
    array.write(values).result()
    assert (counted.calls, counted.most) == (4, 1)
    assert (array.read().result() == values).all()


def test_a_shard_is_written_while_it_is_encoded(tmp_path, monkeypatch, tune):
    """The first sub-chunks are in the file before the last are encoded, and partial writes do the same."""
    monkeypatch.setattr(execution, "core_count", lambda: 1)
    tune("codec", PIECE_BYTES=1)
    events = []
    encode, writev = BoundZstd.encode, os.writev
    monkeypatch.setattr(BoundZstd, "encode", lambda *a: events.append("encode") or encode(*a))
    monkeypatch.setattr(os, "writev", lambda *a: events.append("write") or writev(*a))
    codecs = {"chunk_shape": [32, 1024], "codecs": [BYTES, ZSTD], "index_codecs": [BYTES]}
    array = created(tmp_path, [1024, 1024], [1024, 1024], [sharding(codecs)])
    values = np.arange(1, 1 + 1024 * 1024, dtype="u4").astype("u2").reshape(1024, 1024)
    for part in (np.s_[:, :], np.s_[5:1000, 3:]):
        events.clear()
        array[part].write(values[part]).result()
        encoded = [event for event in events if event == "encode"]
        assert events.index("write") < 3
        assert len(encoded) >= 32
        assert events[-1] == "write"  # the index
    assert (array.read().result() == values).all()


@pytest.mark.parametrize("codecs", [[BYTES, ZSTD], "shard"])
@pytest.mark.parametrize("whole", [True, False])
def test_a_chunk_that_cannot_be_encoded(tmp_path, monkeypatch, codecs, whole):
    """The error names the chunk, the other chunks do not wait for ever, and what was stored stays."""
    if codecs == "shard":
        codecs = [sharding({"chunk_shape": [128, 128], "codecs": [BYTES, ZSTD], "index_codecs": [BYTES]})]
    encode = BoundZstd.encode

    def fail(codec, data):
        if np.frombuffer(data, "u2")[0] == 3:
            raise StoreError("it does not fit")
        return encode(codec, data)

    monkeypatch.setattr(BoundZstd, "encode", fail)
    array = created(tmp_path, [8192, 1024], [1024, 1024], codecs)
    part = np.s_[:, : 1024 - (not whole)]
    array.write(np.full((8192, 1024), 7, "u2")).result()
    values = np.full((8192, 1024), 9, "u2")
    values[3072] = 3
    with pytest.raises(StoreError, match=r"Error writing .*c/3/0.*it does not fit"):
        array[part].write(values[part]).result()
    assert (array[3072:4096].read().result() == 7).all()
    array[part].write(np.full((8192, 1024), 5, "u2")[part]).result()
    assert (array[part].read().result() == 5).all()
    assert not list(tmp_path.rglob("*.__lock"))


@pytest.mark.parametrize("inner", [[BYTES, ZSTD], "shard"])
@pytest.mark.parametrize("location", ["start", "end"])
def test_a_part_of_fill_values_deletes_what_becomes_empty(tmp_path, inner, location):
    """A large shard of which the last other elements are overwritten goes; one of whose parts remain some stays."""
    if inner == "shard":
        inner = [sharding({"chunk_shape": [32, 32], "codecs": [BYTES, ZSTD], "index_codecs": [BYTES]})]
    codecs = {"chunk_shape": [64, 64], "codecs": inner, "index_codecs": [BYTES], "index_location": location}
    array = created(tmp_path, [1024, 1024], [1024, 1024], [sharding(codecs)])
    array[100:200, 100:200].write(7).result()
    expected = np.zeros((1024, 1024), "u2")
    expected[100:200, 100:200] = 7
    assert (array.read().result() == expected).all()
    array[50:150, :1000].write(0).result()
    expected[50:150, :1000] = 0
    assert (array.read().result() == expected).all()
    array.oindex[[150, 199, *range(150, 200)], 100:200].write(0).result()
    assert not (tmp_path / "c/0/0").exists()
    assert not array.read().result().any()


@pytest.mark.parametrize("count", [4, 64])
@pytest.mark.parametrize("codecs", [[BYTES], [BYTES, ZSTD]])
def test_sub_chunks_of_fill_values_are_left_out(tmp_path, count, codecs):
    """Few or many, compressed or plain: a shard has no entry for a sub-chunk that equals the fill value."""
    side = 256 // int(count**0.5)
    shard = {
        "name": "sharding_indexed",
        "configuration": {"chunk_shape": [side, side], "codecs": codecs, "index_codecs": [BYTES]},
    }
    array = created(tmp_path, [256, 256], [256, 256], [shard])
    values = np.zeros((256, 256), "u2")
    values[side, side] = 7
    array.write(values).result()
    index = np.frombuffer((tmp_path / "c/0/0").read_bytes()[-16 * count :], "<u8").reshape(count, 2)
    assert (index[:, 0] != 2**64 - 1).sum() == 1
    assert (array.read().result() == values).all()


def _with_last_changed(array):
    array[(-1,) * array.ndim] = 1
    return array


CASES = [
    (np.zeros((3, 4), "f4"), 0.0, True),
    (np.full((3, 4), -0.0, "f4"), 0.0, False),
    (np.full((2, 2), np.nan, "f8"), np.nan, True),
    (np.zeros((4, 6), "u2")[::2, ::3], 0, True),
    (np.arange(4, dtype="u2")[::-1], 3, False),
    (np.zeros((0, 2), "i4"), 5, True),
    (np.full(3, 1 + 2j, "c16"), 1 + 2j, True),
    (np.full((3, 100_000), 1 + 2j, "c16"), 1 + 2j, True),
    (np.broadcast_to(np.uint16(7), (1, 1_100_000)), 7, True),
    (np.broadcast_to(np.uint16(7), (1200, 1, 900)), 8, False),
    (_with_last_changed(np.zeros((1001, 1, 1003), "u2")), 0, False),
    (_with_last_changed(np.zeros((1001, 1003), "u2", order="F")), 0, False),
    (_with_last_changed(np.zeros((1003, 1003), "c16"))[::3, ::2], 0, False),
]


@pytest.mark.parametrize(("chunk", "fill", "same"), CASES)
def test_equal_to_the_fill_value(chunk, fill, same):
    """Bits decide, strides do not matter, and rows agree with chunks."""
    value = chunk.dtype.type(fill)
    assert equals_fill(chunk, value) is same
    rows = np.ascontiguousarray(np.stack([chunk, chunk]))
    if chunk.size:
        assert rows_equal_fill(rows, value).tolist() == [same, same]


def test_a_request_of_some_chunks_is_encoded_by_several_threads(tmp_path, monkeypatch):
    """Two threads meet while they encode chunks of which a part is written."""
    monkeypatch.setattr(execution, "core_count", lambda: 2)
    together = threading.Barrier(2, timeout=30)
    encode, first = BoundZstd.encode, iter(())

    def meet(self, chunk):
        if next(first, False):
            together.wait()
        return encode(self, chunk)

    monkeypatch.setattr(BoundZstd, "encode", meet)
    array = created(tmp_path, [1024, 1024], [256, 256], [BYTES, ZSTD])
    values = np.arange(1024 * 1024, dtype="u4").astype("u2").reshape(1024, 1024)
    array.write(values).result()
    first = iter([True] * 2)
    array[10:900, 10:900].write(7).result()
    assert next(first, None) is None
    values[10:900, 10:900] = 7
    np.testing.assert_array_equal(array.read().result(), values)


def test_a_few_small_chunks_are_one_window(tmp_path, monkeypatch):
    """Chunks of a small request are read together and written together."""
    array = created(tmp_path, [256, 256], [64, 64], [BYTES, ZSTD])
    before = np.arange(256 * 256, dtype="u2").reshape(256, 256)
    array.write(before).result()
    reading, writing = Counted(LocalDriver.read_many), Counted(LocalDriver.write_many)
    monkeypatch.setattr(LocalDriver, "read_many", reading)
    monkeypatch.setattr(LocalDriver, "write_many", writing)
    array[10:200, 10:200].write(7).result()
    assert (reading.calls, writing.calls) == (1, 1)
    before[10:200, 10:200] = 7
    np.testing.assert_array_equal(array.read().result(), before)
