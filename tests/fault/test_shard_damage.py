"""Damaged precomputed volumes and shards: an error that names the place, never other data, bounded in time and memory."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import tensorstore

import fsstore
from fsstore.errors import StoreError
from fsstore.kvstore.shard import GridShard
from fsstore.precomputed.codec import BoundSegmentation
from fsstore.precomputed.info import parse_info
from fsstore.precomputed.shard_layout import Sharding, build_shard, entries_of


def _damaged(rng: random.Random, data: bytes) -> bytes:
    """Return data with some bytes changed, cut off or added."""
    out = bytearray(data)
    for _ in range(rng.randint(1, 3)):
        if out and rng.random() < 0.8:
            out[rng.randrange(len(out))] = rng.choice([0, 1, 255, rng.randrange(256)])
    if rng.random() < 0.2:
        del out[rng.randrange(len(out) + 1) :]
    return bytes(out) + rng.randbytes(4 * rng.randint(0, 2)) * (rng.random() < 0.1)


def _segmentation(rounds: int, seed: int) -> int:
    """Decode damaged chunks with both libraries; return how many were refused."""
    rng = random.Random(seed)
    refused = 0
    shape, block = (1, 5, 6, 7), (4, 3, 2)
    for width in ("uint32", "uint64"):
        codec = BoundSegmentation(np.dtype(width), shape, block)
        values = np.random.default_rng(seed).integers(0, 6, shape).astype(width)
        good = codec.encode(values)
        context = tensorstore.Context()
        head = {"type": "segmentation", "data_type": width, "num_channels": 1}
        scale = {"key": "k", "size": [7, 6, 5], "chunk_size": [7, 6, 5], "resolution": [1, 1, 1]}
        scale |= {"encoding": "compressed_segmentation", "compressed_segmentation_block_size": list(block)}
        spec: Any = {"driver": "neuroglancer_precomputed", "kvstore": "memory://", "create": True}
        spec |= {"multiscale_metadata": head, "scale_metadata": scale}
        theirs = tensorstore.open(spec, context=context).result()
        store = tensorstore.KvStore.open("memory://", context=context).result()
        for _ in range(rounds // 2):
            data = _damaged(rng, good)
            store[b"k/0-7_0-6_0-5"] = data
            try:
                expected: Any = theirs.read().result().T
            except ValueError:
                expected = None
            try:
                found: Any = codec.decode(data)
            except StoreError:
                found = None
            assert (found is None) == (expected is None)
            if found is not None:
                np.testing.assert_array_equal(found, expected)
            refused += found is None
    return refused


def test_damaged_segmentations_are_judged_as_by_tensorstore() -> None:
    """A damaged chunk of compressed_segmentation is refused by both, or decodes to the same labels."""
    assert _segmentation(400, 1) > 20


@pytest.mark.long
def test_many_damaged_segmentations_are_judged_as_by_tensorstore() -> None:
    """The same for very many damaged chunks."""
    assert _segmentation(60_000, 2) > 3000


def _fuzz(rounds: int, seed: int) -> int:
    """Read damaged shards and documents; return how many were refused, and fail on any error but ours."""
    rng = random.Random(seed)
    sharding = Sharding(1, "murmurhash3_x86_128", 2, 0, "raw", "raw")
    shard = build_shard(sharding, {m: {4 * n + m: b"v" * n for n in range(5)} for m in range(3)})
    grid = GridShard((2, 3), ((1, 0, 2),), "little", 0, at_end=True)
    entries = grid.join({0: b"abc", 4: b"", 5: b"xyz"})
    info = (
        b'{"@type":"neuroglancer_multiscale_volume","data_type":"uint8","num_channels":1,"scales":[{"chunk_sizes":'
        b'[[4,4,4]],"encoding":"raw","key":"k","resolution":[1.0,1.0,1.0],"size":[9,9,9],"voxel_offset":[0,0,0]}],'
        b'"type":"image"}'
    )
    targets: list[tuple[bytes, Any]] = [
        (shard, lambda data: list(entries_of(sharding, data))),
        (entries, grid.split),
        (info, parse_info),
    ]
    refused = 0
    for number in range(rounds):
        good, read = targets[number % 3]
        data = _damaged(rng, good)
        try:
            read(data)
        except StoreError:
            refused += 1
    return refused


def test_damaged_shards_and_documents_are_errors_of_ours() -> None:
    """Damaged shards, shard indexes and documents decode within their bytes or are refused with our errors."""
    assert _fuzz(3000, 3) > 300


@pytest.mark.long
def test_very_many_damaged_shards_and_documents_are_errors_of_ours() -> None:
    """The same for two hundred thousand."""
    assert _fuzz(200_000, 4) > 20_000


def test_an_error_names_chunk_and_file() -> None:
    """A minishard index that points outside its file is an error that says which, not an empty chunk."""
    context = fsstore.Context()
    metadata = Sharding(0, "identity", 1, 0).to_json()
    spec = {"driver": "neuroglancer_uint64_sharded", "base": "memory://s/", "metadata": metadata}
    store = fsstore.KvStore.open(spec, context=context).result()
    store[bytes(8)] = b"value"
    files = fsstore.KvStore.open("memory://s/", context=context).result()
    data = bytearray(files[b"0.shard"])
    data[8:16] = (10_000).to_bytes(8, "little")
    files[b"0.shard"] = bytes(data)
    again = fsstore.KvStore.open(spec, context=context).result()
    with pytest.raises(ValueError, match=r'minishard 0.*"s/0.shard"|"s/0.shard".*minishard 0'):
        again.read(bytes(8)).result()
    data[0:8], data[8:16] = data[8:16], data[0:8]
    files[b"0.shard"] = bytes(data)
    with pytest.raises(ValueError, match="invalid byte range"):
        again.read(bytes(8)).result()


def test_a_huge_block_costs_no_memory() -> None:
    """A block size of two thousand million along each side decodes within the size of the chunk."""
    codec = BoundSegmentation(np.dtype("uint32"), (1, 2, 2, 2), (2**31 - 1,) * 3)
    constant = np.array([1, 2 | 0 << 24, 2, 7], "<u4").tobytes()
    assert (codec.decode(constant) == 7).all()
    wide = np.array([1, 2 | 1 << 24, 2, 7], "<u4").tobytes()
    with pytest.raises(StoreError, match="outside the channel"):
        codec.decode(wide)
