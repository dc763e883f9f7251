"""Parts of one shard: what is read is what NumPy selects, and the shards are not planned beside their sub-chunks."""

from __future__ import annotations

import random
from types import SimpleNamespace

import numpy as np
import pytest

import fsstore
from fsstore.chunk.shard_entries import entries_at
from fsstore.chunk.shard_source import shard_grid
from fsstore.codec.chain import CodecChain
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
    # views without strides are planned by columns, wherever they begin: next to sub-chunks that are missing, too
    keys += [(slice(at % 17, at % 17 + 4), slice(at % 29, at % 29 + 3), at % 16) for at in range(40)]
    begun = [array[key].read() for key in keys]
    for key, future in zip(keys, begun, strict=True):
        np.testing.assert_array_equal(future.result(), data[key])


@pytest.mark.parametrize("codec", ["zstd", "blosc"])
def test_large_sub_chunks_of_transposed_shards(codec):
    """What is decoded of a sub-chunk that is not decoded whole is found where the transpose before the shard puts it."""
    blosc = {"cname": "lz4", "clevel": 5, "shuffle": "shuffle", "typesize": 4, "blocksize": 4096}
    last = {"name": codec, "configuration": blosc if codec == "blosc" else {"level": 1}}
    inner = {"chunk_shape": [128, 16, 64], "codecs": [LITTLE, last], "index_codecs": [LITTLE]}
    grid = {"name": "regular", "configuration": {"chunk_shape": [32, 64, 256]}}
    metadata = {"shape": [32, 64, 256], "data_type": "int32", "chunk_grid": grid}
    metadata["codecs"] = [TRANSPOSE, {"name": "sharding_indexed", "configuration": inner}]
    spec = {"driver": "zarr3", "kvstore": "memory://", "metadata": metadata}
    array = fsstore.open(spec, create=True).result()
    data = np.random.default_rng(0).integers(0, 1000, (32, 64, 256)).astype("i4")
    array.write(data).result()
    for key in [np.s_[0:2, 0:3, 0:5], np.s_[10:14, 30:50, 60:70], np.s_[3:5, 2:9, 200:201], np.s_[15:16], np.s_[:, 5]]:
        np.testing.assert_array_equal(array[key].read().result(), data[key])


@pytest.mark.parametrize("codecs", CHAINS.values(), ids=CHAINS)
def test_windows_of_many_shards(codecs, tune):
    """Shards are read some at a time, a box of their grid; what is read is what NumPy selects, whatever the number."""
    array, data = opened(codecs)
    keys = [np.s_[:], np.s_[::-1, ::3], np.s_[:, 17], np.s_[3, ::-2, 5:9], np.s_[2:19, 30:3:-1, ::7]]
    for most in (1 << 12, 1 << 14, 1 << 22):
        tune("chunk", INLINE_READ_BYTES=most)
        for key in keys:
            np.testing.assert_array_equal(array[key].read().result(), data[key])
    rows = np.array([19, 3, 3, 0, 12])
    columns = np.array([32, 1, 16, 15, 31])
    np.testing.assert_array_equal(array.vindex[rows, columns].read().result(), data[rows, columns])
    np.testing.assert_array_equal(array.oindex[rows, columns].read().result(), data[np.ix_(rows, columns)])


def test_a_part_of_one_shard():
    """A corner of a shard, one element, all of one shard, and parts of several."""
    array, data = opened(CHAINS["plain"])
    for key in [np.s_[:8, 16:20, :8], np.s_[5, 17, 3], np.s_[:8, 12:20, :8], np.s_[:16, :16]]:
        np.testing.assert_array_equal(array[key].read().result(), data[key])


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


@pytest.mark.parametrize("location", ["start", "end"])
def test_full_and_partial_shards_have_their_own_index(location):
    """Uncompressed shards with all sub-chunks and with gaps, written by turns to one array, are those of TensorStore."""
    import tensorstore

    grid = {"name": "regular", "configuration": {"chunk_shape": [8] * 3}}
    codecs = [sharding(4, LITTLE, location=location)]
    metadata = {"shape": [40, 8, 8], "data_type": "uint16", "chunk_grid": grid, "codecs": codecs}
    spec = {"driver": "zarr3", "kvstore": "memory://", "metadata": metadata}
    ours, theirs = [library.open(spec, create=True).result() for library in (fsstore, tensorstore)]
    data = np.arange(1, 40 * 64 + 1, dtype="u2").reshape(40, 8, 8)
    data[10:14, :4, 4:] = data[28:32] = 0
    for array in (ours, theirs):
        array.write(data).result()
    for number in range(5):
        key = f"c/{number}/0/0"
        assert bytes(ours.kvstore[key]) == bytes(theirs.kvstore[key])


def test_no_sub_chunks_have_no_names():
    """Boxes begun together may all lie outside an array that somebody has made smaller meanwhile."""
    chain = CodecChain.from_json([sharding(2, LITTLE)])
    grid = shard_grid(chain.bind(ChunkSpec(np.dtype("u2"), (4, 6, 2))))
    none = np.zeros(0, np.int64)
    model = SimpleNamespace(keys_of=lambda columns: ["/".join(map(str, each)) for each in zip(*columns, strict=True)])
    assert list(entries_at([none, none, none], grid, model)) == []
    one = np.array([2, 3])
    assert list(entries_at([one, one, one * 0], grid, model)) == [("1/0/0", 2), ("1/1/0", 3)]
