"""Partial chains merge, resolve and fail as in tensorstore 0.1.86."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
import tensorstore as ts

from fsstore.codec.chain import CodecChain
from fsstore.codec.chain_spec import ChainSpec, merge_specs, resolve
from fsstore.codec.contract import ChunkSpec
from fsstore.codec.numcodecs import compressor_v2
from fsstore.errors import StoreError


def sharding(**configuration):
    return {"name": "sharding_indexed", "configuration": configuration}


def random_chain(choose, depth=0):
    """A random partial chain for two dimensions."""
    chain = [
        {"name": "transpose", "configuration": {"order": choose.choice([[1, 0], [0, 1], "C", "F"])}}
        for _ in range(choose.choice([0, 0, 0, 1, 2]))
    ]
    kind = choose.random()
    if kind < 0.3:
        chain.append(
            choose.choice(["bytes", {"name": "bytes", "configuration": {"endian": choose.choice(["little", "big"])}}])
        )
    elif kind < 0.6 and depth < 2:
        options = {
            "chunk_shape": choose.choice([None, None, [2, 3], [2, 2], [1, 1], [4, 6]]), "codecs": random_chain(choose, depth + 1) if choose.random() < 0.6 else None,
            "index_codecs": choose.choice([None, None, None, ["bytes"], ["crc32c"]]), "index_location": choose.choice([None, None, None, "start", "end"]),
        }  # fmt: skip
        chain.append(sharding(**{name: value for name, value in options.items() if value is not None}))
    for _ in range(choose.choice([0, 0, 1, 1, 2])):
        chain.append(choose.choice([
            "gzip", "zstd", "crc32c", "blosc", {"name": "gzip", "configuration": {"level": choose.choice([1, 2])}}, {"name": "zstd", "configuration": {"checksum": True}},
            {"name": "blosc", "configuration": {"shuffle": choose.choice(["noshuffle", "bitshuffle"])}}, {"name": "blosc", "configuration": {"typesize": 3}},
        ]))  # fmt: skip
    return chain


def spec(codecs):
    return {"driver": "zarr3", "codecs": codecs}


def oracle_merge(left, right):
    schema = ts.Schema(codec=ts.CodecSpec(left))
    schema.update(codec=ts.CodecSpec(right))
    return schema.codec.to_json()


def result(function, *arguments):
    """The result as canonical JSON, or None when the arguments are refused."""
    try:
        return json.dumps(function(*arguments), sort_keys=True)
    except (ValueError, NotImplementedError):
        return None


def test_random_chains_merge_as_in_tensorstore():
    """2000 random pairs: the same result, or both refuse."""
    choose = random.Random(3)
    for _ in range(2000):
        left = random_chain(choose)
        right = json.loads(json.dumps(left)) if choose.random() < 0.5 else random_chain(choose)
        right = right[:-1] if choose.random() < 0.3 else right
        pair = spec(left), spec(right)
        assert result(merge_specs, *pair) == result(oracle_merge, *pair), pair


def create(codecs, dtype, read, write, inner_order):
    """What tensorstore stores for a wished-for chain: codecs, inner order, read chunk."""
    layout = {
        "read_chunk": {"shape": read},
        "write_chunk": {"shape": write},
        **({"inner_order": inner_order} if inner_order else {}),
    }
    schema = {"dtype": dtype, "domain": {"shape": [8, 12]}, "chunk_layout": layout, "codec": spec(codecs)}
    store = ts.open({"driver": "zarr3", "kvstore": {"driver": "memory"}, "schema": schema}, create=True).result()
    stored = json.loads(store.kvstore["zarr.json"])["codecs"]
    return [stored, list(store.chunk_layout.inner_order), list(store.chunk_layout.read_chunk.shape)]


def ours(codecs, dtype, read, write, inner_order):
    chunk = ChunkSpec(np.dtype(dtype), tuple(write))
    chain = resolve(ChainSpec.from_json(codecs), chunk, read_shape=read, inner_order=inner_order)
    assert CodecChain.from_json(chain.to_json()) == chain
    bound = chain.bind(chunk)
    return [chain.to_json(), list(bound.inner_order), list(bound.read_shape)]


def test_random_chains_resolve_as_in_tensorstore():
    """400 random wishes: the same stored chain, inner order and read chunk, or both refuse."""
    choose = random.Random(4)
    for _ in range(400):
        wish = (
            random_chain(choose), choose.choice(["uint8", "uint16", "float64"]), choose.choice([[2, 3], [4, 6]]), [4, 6],
            choose.choice([None, None, [0, 1], [1, 0]]),
        )  # fmt: skip
        assert result(ours, *wish) == result(create, *wish), wish


MALFORMED = [
    ["foo"], ["transpose"], ["gzip", "bytes"], ["bytes", "bytes"], [5], [{}], None, "gzip", [{"name": "gzip", "y": 1}],
    [{"name": "gzip", "configuration": {"level": 10}}], [{"name": "gzip", "configuration": {"level": "5"}}], [{"name": "bytes", "configuration": {"endian": "middle"}}],
    [{"name": "transpose", "configuration": {"order": [0, 0]}}], [{"name": "transpose", "configuration": {"order": "X"}}], [{"name": "crc32c", "configuration": {"a": 1}}],
    [{"name": "zstd", "configuration": {"checksum": 1}}], [sharding(chunk_shape=[0])],
]  # fmt: skip


@pytest.mark.parametrize("codecs", MALFORMED, ids=json.dumps)
def test_malformed_chains_are_named_as_tensorstore_names_them(codecs):
    """One problem gives one message, word by word."""
    with pytest.raises(ValueError) as theirs:
        ts.CodecSpec(spec(codecs))
    with pytest.raises(StoreError) as caught:
        merge_specs(spec(codecs), spec([]))
    assert str(caught.value) == str(theirs.value)


def test_conflicts_are_named_as_tensorstore_names_them():
    """The message of a conflict names both chains, both codecs and both values."""
    left, right = (spec([{"name": "gzip", "configuration": {"level": level}}]) for level in (3, 4))
    with pytest.raises(ValueError) as theirs:
        oracle_merge(left, right)
    with pytest.raises(StoreError) as caught:
        merge_specs(left, right)
    assert str(caught.value) == str(theirs.value).replace("Invalid codec: ", "")
    assert str(caught.value).endswith('Incompatible "level": 3 vs 4')


V2 = [
    {}, {"compressor": None}, {"compressor": {"id": "zlib"}}, {"compressor": {"id": "zlib", "level": 3}}, {"compressor": {"id": "gzip"}}, {"compressor": {"id": "bz2"}},
    {"compressor": {"id": "zstd", "level": 3}}, {"compressor": {"id": "blosc"}}, {"compressor": {"id": "blosc", "cname": "zstd", "shuffle": 1}}, {"filters": None},
    {"compressor": {"id": "nothing"}}, {"compressor": {"id": "bz2", "level": 0}}, {"compressor": {"level": 3}}, {"compressor": {"id": "blosc", "blocksize": -1}}, {"foo": 1},
]  # fmt: skip


def test_version_2_specs_merge_as_in_tensorstore():
    """Every pair of compressor wishes merges to the same JSON, or both refuse."""
    for left in V2:
        for right in V2:
            pair = {"driver": "zarr", **left}, {"driver": "zarr", **right}
            assert result(compressor_v2.merge_specs, *pair) == result(oracle_merge, *pair), pair


@pytest.mark.parametrize("codecs", [
    [{"name": "gzip", "configuration": {"level": 3}}], ["gzip"], [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "gzip"}],
    [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "blosc", "configuration": {"cname": "lz4", "clevel": 5, "shuffle": "shuffle", "blocksize": 0}}],
    [{"name": "bytes"}], [sharding(chunk_shape=[2], codecs=[{"name": "bytes", "configuration": {"endian": "little"}}])],
    [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "bytes", "configuration": {"endian": "little"}}],
], ids=json.dumps)  # fmt: skip
def test_incomplete_stored_chains_are_refused_like_tensorstore(tmp_path, codecs):
    """What tensorstore refuses in a stored document is refused, for the reason that it names."""
    document = {"zarr_format": 3, "node_type": "array", "shape": [4], "data_type": "int32", "fill_value": 0, "codecs": codecs,
                "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4]}}, "chunk_key_encoding": {"name": "default"}}  # fmt: skip
    (tmp_path / "zarr.json").write_text(json.dumps(document))
    with pytest.raises(ValueError) as theirs:
        ts.open({"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{tmp_path}/"}}, open=True).result()
    with pytest.raises(StoreError) as caught:
        CodecChain.from_json(codecs).bind(ChunkSpec(np.dtype("i4"), (4,)))
    # tensorstore prints a missing integer as a value that it discarded
    assert caught.value.message in str(theirs.value).replace("but received: <discarded>", "but member is missing")
