"""Encoding while writing: how many at once, and what counts as equal to the fill value."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import fsstore
from fsstore.codec.bound_chain import BoundChain
from fsstore.codec.fill import equals_fill, rows_equal_fill
from fsstore.codec.shard_layout import ShardLayout

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
        with self._lock:
            self.now += 1
            self.calls += 1
            self.most = max(self.most, self.now)
        try:
            return self._method(*arguments, **options)
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


@pytest.mark.parametrize("limit", [1, 2])
def test_chunks_encoded_at_once(tmp_path, monkeypatch, limit):
    """`data_copy_concurrency` bounds how many windows are encoded at once, however many wait for the disk."""
    counted = Counted(BoundChain.encode)
    array = created(
        tmp_path, [16, 256, 256], [1, 256, 256], [BYTES, ZSTD], data_copy_concurrency={"limit": limit}
    )
    values = np.arange(1, 1 + 16 * 256 * 256, dtype="u2").reshape(16, 256, 256)
    monkeypatch.setattr(BoundChain, "encode", counted)
    array.write(values).result()
    assert counted.calls == 16
    assert counted.most <= limit
    assert (array.read().result() == values).all()


def test_shards_that_use_every_core_are_encoded_one_by_one(tmp_path, monkeypatch):
    """While one shard is on its way to the disk the next has all cores."""
    counted = Counted(ShardLayout.encode_parts)
    shard = {
        "name": "sharding_indexed",
        "configuration": {"chunk_shape": [1, 64, 64], "codecs": [BYTES, ZSTD], "index_codecs": [BYTES]},
    }
    array = created(tmp_path, [8, 256, 256], [2, 256, 256], [shard])
    values = np.arange(1, 1 + 8 * 256 * 256, dtype="u2").reshape(8, 256, 256)
    values[0] = 0
    monkeypatch.setattr(ShardLayout, "encode_parts", counted)
    array.write(values).result()
    assert (counted.calls, counted.most) == (4, 1)
    assert (array.read().result() == values).all()


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


CASES = [
    (np.zeros((3, 4), "f4"), 0.0, True),
    (np.full((3, 4), -0.0, "f4"), 0.0, False),
    (np.full((2, 2), np.nan, "f8"), np.nan, True),
    (np.zeros((4, 6), "u2")[::2, ::3], 0, True),
    (np.arange(4, dtype="u2")[::-1], 3, False),
    (np.zeros((0, 2), "i4"), 5, True),
    (np.full(3, 1 + 2j, "c16"), 1 + 2j, True),
]


@pytest.mark.parametrize(("chunk", "fill", "same"), CASES)
def test_equal_to_the_fill_value(chunk, fill, same):
    """Bits decide, strides do not matter, and rows agree with chunks."""
    value = chunk.dtype.type(fill)
    assert equals_fill(chunk, value) is same
    rows = np.ascontiguousarray(np.stack([chunk, chunk]))
    if chunk.size:
        assert rows_equal_fill(rows, value).tolist() == [same, same]
