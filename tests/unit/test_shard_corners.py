"""Parts of one shard: what is read is what NumPy selects, and the shards are not planned beside their sub-chunks."""

from __future__ import annotations

import random

import numpy as np
import pytest

import fsstore
from fsstore.chunk.read import reader as chunk_read
from fsstore.codec.chain.chain import CodecChain
from fsstore.codec.contract import ChunkSpec

LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}


def sharding(side, *codecs, location="end"):
    """Return the configuration of shards with cubes as sub-chunks."""
    configuration = {
        "chunk_shape": [side] * 3,
        "codecs": list(codecs),
        "index_codecs": [LITTLE, {"name": "crc32c"}],
        "index_location": location,
    }
    return {"name": "sharding_indexed", "configuration": configuration}


TRANSPOSE = {"name": "transpose", "configuration": {"order": [2, 0, 1]}}
CHAINS = {
    "plain": [sharding(4, LITTLE)],
    "index first": [sharding(4, LITTLE, {"name": "zstd", "configuration": {"level": 1}}, location="start")],
    "transposed": [TRANSPOSE, sharding(4, TRANSPOSE, LITTLE)],
    "shards in shards": [sharding(8, sharding(4, LITTLE))],
}


def opened(codecs, **context):
    """Return an array of shards of 16³, some of whose sub-chunks are missing, and what is in it."""
    data = np.arange(20 * 33 * 16, dtype="u2").reshape(20, 33, 16)
    data[:4, :10] = data[8:, 20:30] = 0
    spec = {
        "driver": "zarr3",
        "kvstore": "memory://",
        "context": context,
        "metadata": {
            "shape": list(data.shape),
            "data_type": "uint16",
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [16] * 3}},
            "codecs": codecs,
        },
    }
    array = fsstore.open(spec, create=True).result()
    array.write(data).result()
    return array, data


@pytest.mark.parametrize("pool", [0, 1 << 20])
@pytest.mark.parametrize("codecs", CHAINS.values(), ids=CHAINS)
def test_boxes_of_shards_are_what_numpy_selects(codecs, pool):
    """Boxes, strides and single planes within a shard or across several, by themselves and begun together."""
    array, data = opened(codecs, cache_pool={"total_bytes_limit": pool})
    rng = random.Random(7)
    keys = []
    for _ in range(80):
        key = []
        for size in data.shape:
            low = rng.randrange(size)
            stop = rng.randint(low + 1, min(size, low + rng.choice([3, 9, 33])))
            # a view keeps its coordinates: those of a stride are divided by it
            key.append(rng.choice([low, slice(low, stop), slice(low, stop), slice(low, stop, 2)]))
        keys.append(tuple(key))
    for key in keys:
        np.testing.assert_array_equal(array[key].read().result(), data[key])
    begun = [array[key].read() for key in keys]
    for key, future in zip(keys, begun, strict=True):
        np.testing.assert_array_equal(future.result(), data[key])


def test_a_part_of_one_shard_is_planned_once(monkeypatch):
    """Its sub-chunks are planned, the shard is not; all of a shard, or parts of several, are planned both ways."""
    array, data = opened(CHAINS["plain"])
    planned = []

    def noticed(*arguments):
        planned.append(arguments)
        return plan(*arguments)

    plan = chunk_read.plan
    monkeypatch.setattr(chunk_read, "plan", noticed)
    for key, count in [
        (np.s_[:8, 16:20, :8], 0),
        (np.s_[5, 17, 3], 0),
        (np.s_[:8, 12:20, :8], 1),
        (np.s_[:16, :16], 1),
    ]:
        planned.clear()
        np.testing.assert_array_equal(array[key].read().result(), data[key])
        assert len(planned) == count, key


def rebuilt(shard, value, change, path=()):
    """Return a shard with every innermost sub-chunk replaced by what `change` makes of its place and its bytes."""
    parts = []
    for number, part in enumerate(shard.split(value)):
        place, inner = (*path, number), shard.inner.shard
        if part is None:
            parts.append(None)
        else:
            parts.append(change(place, bytes(part)) if inner is None else rebuilt(inner, part, change, place))
    return shard.assemble(parts)


@pytest.mark.parametrize("codecs", CHAINS.values(), ids=CHAINS)
def test_a_changed_part_leaves_the_bytes_of_the_others(codecs):
    """A write to one sub-chunk neither decodes nor encodes the others: nonsense in their place stays as it is."""
    array, data = opened(codecs)
    chain = CodecChain.from_json(array.spec().to_json()["metadata"]["codecs"])
    shard = chain.bind(ChunkSpec(data.dtype, (16, 16, 16), data.dtype.type(0))).shard
    key, element, rng = "c/0/0/0", array[6, 13, 2], random.Random(3)

    def leaves():
        found = {}
        rebuilt(shard, array.kvstore[key], lambda place, part: found.setdefault(place, part))
        return found

    original, before = array.kvstore[key], leaves()
    element.write(5).result()
    after = leaves()
    [changed] = [place for place in before if before[place] != after[place]]
    nonsense = {place: rng.randbytes(rng.randint(1, 300)) for place in before if place != changed}
    array.kvstore[key] = rebuilt(shard, original, lambda place, part: nonsense.get(place, part))
    element.write(5).result()
    assert leaves() == {**nonsense, changed: after[changed]}
    assert element.read().result() == 5
    assert len(nonsense) == 64 - 8 - 1  # eight are missing


@pytest.mark.parametrize("rank", [31, 32])
def test_shards_have_at_most_31_dimensions(rank):
    """The index of a shard has one more than the array, and no array has more than 32: TensorStore refuses those too."""
    ones = [1] * rank
    shards = {
        "name": "sharding_indexed",
        "configuration": {"chunk_shape": ones, "codecs": [LITTLE], "index_codecs": [LITTLE]},
    }
    grid = {"name": "regular", "configuration": {"chunk_shape": ones}}
    metadata = {"shape": ones, "data_type": "uint8", "chunk_grid": grid, "codecs": [shards]}
    opening = fsstore.open({"driver": "zarr3", "kvstore": "memory://", "metadata": metadata}, create=True)
    if rank == 31:
        assert opening.result().rank == 31
        return
    with pytest.raises(fsstore.errors.StoreError, match="maximum rank of 31"):
        opening.result()
