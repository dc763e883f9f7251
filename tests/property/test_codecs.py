"""Laws of codec chains: round trips through any chain, shards whole and in parts, damage that never escapes."""

from __future__ import annotations

from itertools import chain

import ml_dtypes
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fsstore.codec.chain import CodecChain
from fsstore.codec.chain_spec import ChainSpec, merge_specs, resolve, wished_order, wished_read_shape
from fsstore.codec.contract import ChunkSpec
from fsstore.codec.numcodecs.compressor_v2 import V2Pipeline
from fsstore.codec.sharding import MISSING, StoredParts, portions_of_runs, present_in, run_of_one
from fsstore.errors import StoreError

DTYPES = [
    "b1",
    "u1",
    "i2",
    "u4",
    "i8",
    "f2",
    "f4",
    "c8",
    "S3",
    "V5",
    "M8[s]",
    np.dtype(ml_dtypes.bfloat16),
    np.dtype(ml_dtypes.int4),
]
BYTES = [
    "gzip", "zstd", "crc32c", {"name": "gzip", "configuration": {"level": 1}}, {"name": "zstd", "configuration": {"level": 1, "checksum": True}},
    {"name": "blosc", "configuration": {"typesize": 3, "clevel": 1}}, {"name": "blosc", "configuration": {"shuffle": "noshuffle", "cname": "zstd"}},
]  # fmt: skip
FILTERS = [{"id": "shuffle", "elementsize": 2}, {"id": "fletcher32"}, {"id": "zlib", "level": 1}, {"id": "crc32"}]
COMPRESSORS = [
    None,
    {"id": "zlib"},
    {"id": "bz2"},
    {"id": "zstd"},
    {"id": "blosc"},
    {"id": "lz4", "acceleration": 1},
    {"id": "lzma", "preset": 0},
]


@st.composite
def chunks(draw):
    """A chunk: its spec with a fill value, a sub-chunk shape that divides it, and data that is partly the fill value."""
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    sub = tuple(draw(st.lists(st.integers(1, 4), max_size=3)))
    shape = tuple(size * draw(st.integers(1, 3)) for size in sub)
    count = int(np.prod(shape, dtype=int))
    octets = np.frombuffer(draw(st.binary(min_size=1, max_size=64)), "u1")
    octets = np.resize(octets, count * dtype.itemsize)
    if dtype.name in ("bool", "int4"):
        octets = octets & 1
    data = np.frombuffer(octets.tobytes(), dtype).reshape(shape).copy()
    fill = np.zeros((), dtype)[()]
    if draw(st.booleans()) and shape:
        data[tuple(slice(0, size) for size in sub)] = fill
    return ChunkSpec(dtype, shape, fill), sub, data


@st.composite
def wishes(draw, rank, depth=0):
    """A partial chain as a spec may have it, with shards that leave their shape open."""
    chain = []
    if rank and draw(st.booleans()):
        order = draw(st.permutations(range(rank)))
        chain.append({"name": "transpose", "configuration": {"order": draw(st.sampled_from([order, "C", "F"]))}})
    if depth < 2 and draw(st.booleans()):
        inner = draw(wishes(rank, depth + 1))
        location = draw(st.sampled_from([{}, {"index_location": "start"}, {"index_codecs": ["bytes"]}]))
        return [*chain, {"name": "sharding_indexed", "configuration": {"codecs": inner, **location}}]
    return chain + draw(st.lists(st.sampled_from(BYTES), max_size=2))


def same(left, right):
    return np.ascontiguousarray(left).tobytes() == np.ascontiguousarray(right).tobytes()


def destination(draw_step, spec):
    """A strided destination of the chunk's shape."""
    wide = np.zeros([size * draw_step for size in spec.shape], spec.dtype)
    return wide[(*(slice(None, None, draw_step) for _ in spec.shape), ...)]


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_every_chain_round_trips(data):
    """Decoding what any resolved chain encoded gives the same bits, in new and in strided memory."""
    spec, sub, array = data.draw(chunks())
    wish = ChainSpec.from_json(data.draw(wishes(len(spec.shape))))
    order = data.draw(st.none() | st.permutations(range(len(spec.shape))))
    chain = resolve(wish, spec, read_shape=sub, inner_order=order)
    assert CodecChain.from_json(chain.to_json()) == chain
    bound = chain.bind(spec)
    encoded = bound.encode(array)
    assert bound.encoded_size in (None, memoryview(encoded).nbytes)
    assert same(bound.decode(bytes(encoded)), array)
    out = destination(data.draw(st.integers(1, 2)), spec)
    assert same(bound.decode(memoryview(encoded), out), array)
    assert bound.read_shape == (sub if sub != spec.shape or wish.shard_levels else spec.shape)
    if order is not None:
        assert bound.inner_order == tuple(order)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_damaged_chunks_never_escape(data):
    """Whatever is done to the bytes of any chain, decoding gives the right shape or a `StoreError`."""
    spec, sub, array = data.draw(chunks())
    bound = resolve(ChainSpec.from_json(data.draw(wishes(len(spec.shape)))), spec, read_shape=sub).bind(spec)
    damaged = bytearray(bytes(bound.encode(array)))
    for _ in range(data.draw(st.integers(1, 6))):
        if damaged:
            damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    del damaged[data.draw(st.integers(0, len(damaged))) :]
    for cut in (bytes(damaged), data.draw(st.binary(max_size=80))):
        try:
            decoded = bound.decode(cut)
        except StoreError:
            continue
        assert (decoded.dtype, decoded.shape) == (spec.dtype, spec.shape)


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_every_pipeline_of_version_2_round_trips_and_survives_damage(data):
    """Filters and compressors in any combination and order give the bits back, and damage raises a `StoreError`."""
    spec, _, array = data.draw(chunks())
    dtype = spec.dtype.newbyteorder(">") if data.draw(st.booleans()) and spec.dtype.kind in "iuf" else spec.dtype
    size = array.nbytes
    filters = [
        step
        for step in data.draw(st.lists(st.sampled_from(FILTERS), max_size=2))
        if step["id"] != "shuffle" or size % 2 == 0
    ]
    filters = filters if not filters or filters[-1]["id"] != "shuffle" or len(filters) == 1 else filters[:1]
    pipeline = V2Pipeline.from_json(data.draw(st.sampled_from(COMPRESSORS)), filters, data.draw(st.sampled_from("CF")))
    bound = pipeline.bind(ChunkSpec(dtype, spec.shape))
    encoded = bytes(bound.encode(array.astype(dtype)))
    out = np.zeros(spec.shape, spec.dtype)
    assert same(bound.decode(encoded, out), array)
    damaged = bytearray(encoded)
    damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        decoded = bound.decode(bytes(damaged[: data.draw(st.integers(0, len(damaged)))]))
    except StoreError:
        return
    assert (decoded.dtype, decoded.shape) == (dtype, spec.shape)


def _stored_anywhere(parts, data):
    """Return the parts of a shard that are stored in any order, with gaps between some of them."""
    entries = np.full((len(parts), 2), MISSING, np.uint64)
    body = b""
    for number in data.draw(st.permutations(range(len(parts)))):
        if parts[number] is not None:
            body += b"?" * data.draw(st.integers(0, 1))
            entries[number] = len(body), len(parts[number])
            body += bytes(parts[number])
    return StoredParts(memoryview(body), entries)


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_shards_are_the_sum_of_their_parts(data):
    """Splitting a shard, decoding its parts into blocks and assembling them again changes nothing."""
    spec, sub, array = data.draw(chunks())
    location = data.draw(st.sampled_from(["start", "end"]))
    wish = [
        {
            "name": "sharding_indexed",
            "configuration": {"index_location": location, "codecs": data.draw(wishes(len(sub), 2))},
        }
    ]
    bound = resolve(ChainSpec.from_json(wish), spec, read_shape=sub).bind(spec)
    layout = bound.shard
    shard = bound.encode(array)
    parts = layout.split(shard)
    assert layout.assemble(parts) == shard
    cut = data.draw(st.integers(0, layout.count - 1))
    for stored in (StoredParts.of(shard, layout), _stored_anywhere(parts, data)):
        runs = [*stored.runs(0, cut, {}), run_of_one(stored[cut]), *stored.runs(cut + 1, layout.count, {})]
        assert b"".join(chain.from_iterable(portions_of_runs(layout, runs))) == shard
        numbers = data.draw(st.lists(st.integers(0, layout.count - 1), unique=True))
        changed = {number: data.draw(st.none() | st.binary(max_size=5)) for number in sorted(numbers)}
        made = portions_of_runs(layout, stored.runs(0, layout.count, changed))
        expected = [changed[number] if number in changed else part for number, part in enumerate(parts)]
        assert b"".join(chain.from_iterable(made)) == layout.assemble(expected)
    start, stop = layout.index_span(len(shard))
    entries = layout.decode_index(shard[start:stop], len(shard))
    assert present_in(entries).tolist() == [part is not None for part in parts]
    out = np.full(spec.shape, spec.fill_value, spec.dtype)
    blocks = layout.blocks(out)
    for position, part in zip(layout.positions(), parts, strict=True):
        if part is not None:
            layout.inner.decode(part, blocks[(*position, ...)])
    assert same(out, array)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_merging_is_reflexive_and_has_a_neutral_element(data):
    """A wish merged with itself is itself, and so it is with no wish at all."""
    rank = data.draw(st.integers(0, 3))
    wish = {"driver": "zarr3", "codecs": ChainSpec.from_json(data.draw(wishes(rank))).to_json()}
    assert merge_specs(wish, wish) == wish
    assert merge_specs(wish, {"driver": "zarr3"}) == merge_specs({"driver": "zarr3"}, wish) == wish
    chain = ChainSpec.from_json(wish["codecs"])
    assert sorted(wished_order(chain, rank)) == list(range(rank))
    assert wished_read_shape(chain, rank) is None
