"""Damaged chunks and shards of precomputed volumes: an error, or what TensorStore 0.1.86 makes of the same bytes.

Indexes that are compressed are damaged inside and compressed again, so the damage reaches the parser.
"""

from __future__ import annotations

import gzip
import json
import random
import struct
from typing import Any

import numpy as np
import pytest
import tensorstore

import fsstore
from fsstore.errors import StoreError

KEY = "s/0-5_0-4_0-3"
INFO = {
    "@type": "neuroglancer_multiscale_volume", "type": "segmentation", "num_channels": 2,
    "scales": [{
        "key": "s", "size": [5, 4, 3], "resolution": [1, 1, 1], "chunk_sizes": [[5, 4, 3]],
        "encoding": "compressed_segmentation", "compressed_segmentation_block_size": [2, 3, 2],
    }],
}  # fmt: skip


def mutated(draw: random.Random, data: bytes) -> bytes:
    """Return data with a few bytes changed, words replaced by telling ones, cut off or continued."""
    out = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 4))):
        kind = draw.randrange(5)
        if kind == 0 and out:
            out[draw.randrange(len(out))] = draw.randrange(256)
        elif kind == 1 and len(out) >= 8:
            at = draw.randrange(len(out) // 8) * 8
            telling = draw.choice(
                (0, 1, 7, len(out), len(out) - 1, 2**31, 2**32, 2**63, 2**64 - 1, draw.getrandbits(64))
            )
            out[at : at + 8] = struct.pack("<Q", telling)
        elif kind == 2 and len(out) >= 4:
            at = draw.randrange(len(out) // 4) * 4
            out[at : at + 4] = struct.pack(
                "<I", draw.choice((0, 1, len(out) // 4, 2**24, 1 << 30, draw.getrandbits(32)))
            )
        elif kind == 3:
            del out[draw.randrange(len(out) + 1) :]
        else:
            out += draw.randbytes(draw.randrange(9))
    return bytes(out)


def volume(library: Any, dtype: str) -> Any:
    """Return an open volume in memory."""
    context = library.Context()
    store = library.KvStore.open("memory://", context=context).result()
    store["info"] = json.dumps({**INFO, "data_type": dtype}).encode()
    spec = {"driver": "neuroglancer_precomputed", "kvstore": "memory://"}
    return library.open(spec, context=context, recheck_cached_data=True).result()


def chunk(array: Any, data: bytes) -> Any:
    """Return what is read of a chunk, or None if it is damaged."""
    array.kvstore[KEY] = data
    try:
        return array.read().result()
    except ValueError as error:
        assert KEY in str(error)
        return None


def compare_chunks(count: int, seed: int) -> int:
    """Compare both libraries over damaged chunks; return how many both could read."""
    draw, readable = random.Random(seed), 0
    for dtype in ("uint32", "uint64"):
        ours, theirs = volume(fsstore, dtype), volume(tensorstore, dtype)
        seeds = []
        for values in (3, 9, 300):
            ours.write(np.random.default_rng(values).integers(1, values, (5, 4, 3, 2)).astype(dtype)).result()
            seeds.append(bytes(ours.kvstore[KEY]))
        for _ in range(count):
            data = mutated(draw, draw.choice(seeds))
            found, wanted = chunk(ours, data), chunk(theirs, data)
            assert (found is None) == (wanted is None), data.hex()
            if found is not None:
                readable += 1
                assert (found == wanted).all(), data.hex()
    return readable


def test_some_damaged_segmentations():
    """Both read the same, or neither does; places outside of the chunk are among the damage."""
    assert 20 < compare_chunks(200, 1) < 380


@pytest.mark.long
@pytest.mark.timeout(3000)
def test_many_damaged_segmentations():
    """The same at length."""
    assert compare_chunks(100_000, 2) > 1000


@pytest.mark.parametrize(
    ("place", "word"),
    [(0, 1000), (0, 2**32 - 1), (2, 1 << 24 | 0xFFFFFF), (2, 32 << 24), (2, 5 << 24), (3, 0xFFFFFF), (3, 2**32 - 1)],
)
def test_blocks_that_point_outside(place: int, word: int):
    """A channel, a table or indices outside of the chunk are an error that names the chunk."""
    array = volume(fsstore, "uint32")
    array.write(np.arange(120, dtype="u4").reshape(5, 4, 3, 2)).result()
    words = np.frombuffer(array.kvstore[KEY], "<u4").copy()
    words[place] = word
    array.kvstore[KEY] = words.tobytes()
    with pytest.raises(StoreError, match="s/0-5_0-4_0-3.*Corrupted Neuroglancer compressed segmentation"):
        array.read().result()


METADATA = {
    "@type": "neuroglancer_uint64_sharded_v1", "preshift_bits": 1, "hash": "identity", "minishard_bits": 1, "shard_bits": 0,
    "data_encoding": "raw", "minishard_index_encoding": "gzip",
}  # fmt: skip
IDS = (0, 1, 2, 3, 6, 9)


def shards(library: Any) -> tuple[Any, Any]:
    """Return a store of shards in memory, and the memory."""
    context = library.Context()
    spec = {"driver": "neuroglancer_uint64_sharded", "base": "memory://", "metadata": METADATA}
    return library.KvStore.open(spec, context=context).result(), library.KvStore.open(
        "memory://", context=context
    ).result()


def rebuilt(draw: random.Random, data: bytes) -> bytes:
    """Return a shard with an index damaged: that of the shard, or that of a minishard, compressed again."""
    if draw.random() < 0.4:
        head = mutated(draw, data[:32])
        return head + data[32:] if len(head) == 32 else mutated(draw, data)
    number = draw.randrange(2)
    low, high = struct.unpack_from("<2Q", data, 16 * number)
    index = gzip.compress(mutated(draw, gzip.decompress(data[32 + low : 32 + high])), mtime=0)
    head = bytearray(data[:32])
    struct.pack_into("<2Q", head, 16 * number, len(data) - 32, len(data) - 32 + len(index))
    return bytes(head) + data[32:] + index


def looked_up(store: Any, key: bytes) -> Any:
    """Return a value, `missing`, or `damaged`."""
    try:
        answer = store.read(key).result()
    except ValueError as error:
        assert "0.shard" in str(error) or not isinstance(error, StoreError)
        return "damaged"
    return bytes(answer.value) if answer.state == "value" else answer.state


def compare_shards(count: int, seed: int) -> set[str]:
    """Compare lookups in damaged shards, and have changes of them refused or made; return what happened."""
    draw, happened = random.Random(seed), set[str]()
    ours, base = shards(fsstore)
    theirs, other = shards(tensorstore)
    for number in IDS:
        ours.write(struct.pack(">Q", number), b"value %d" % number).result()
    whole = bytes(base["0.shard"])
    for _ in range(count):
        data = rebuilt(draw, whole)
        base["0.shard"] = other["0.shard"] = data
        for number in (*IDS, 4):
            key = struct.pack(">Q", number)
            found, wanted = looked_up(ours, key), looked_up(theirs, key)
            # all entries of an index are checked here, and the one that is looked up there
            # an empty value takes no request, wherever it is said to be
            assert found in (wanted, "damaged", b""), (number, data.hex())
            assert found != b"" or wanted in (b"", "damaged"), (number, data.hex())
            happened.add(found if isinstance(found, str) else "value")
        try:
            ours.write(struct.pack(">Q", 5), b"new").result()
        except ValueError:
            assert bytes(base["0.shard"]) == data
            happened.add("refused")
        else:
            assert looked_up(ours, struct.pack(">Q", 5)) == b"new"
            happened.add("changed")
    return happened


def test_some_damaged_shards():
    """Lookups are those of TensorStore, or errors; a shard that cannot be read whole is not changed."""
    assert compare_shards(60, 1) >= {"value", "damaged", "refused", "changed"}


@pytest.mark.long
@pytest.mark.timeout(3000)
def test_many_damaged_shards():
    """The same at length."""
    assert compare_shards(30_000, 2)
