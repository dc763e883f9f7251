"""Details of bound chains that the battery does not reach: destinations, byte orders, batches, layouts, defaults."""

from __future__ import annotations

import sys

import ml_dtypes
import numpy as np
import pytest

import fsstore as ts
from fsstore.codec import deflate
from fsstore.codec.blosc import BloscCodec
from fsstore.codec.chain import CodecChain
from fsstore.codec.chain_spec import ChainSpec, resolve
from fsstore.codec.contract import ByteSpec, ChunkSpec
from fsstore.codec.deflate import GzipCodec
from fsstore.codec.numcodecs.compressor_v2 import DEFAULT_COMPRESSOR, V2Pipeline, parse_compressor
from fsstore.codec.zstd import ZstdCodec
from fsstore.errors import FailedPreconditionError, JsonError, StoreError, UnimplementedError
from fsstore.values import registry

LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}
BIG = {"name": "bytes", "configuration": {"endian": "big"}}
ZSTD = {"name": "zstd", "configuration": {"level": 3, "checksum": False}}
INDEX = [LITTLE, {"name": "crc32c"}]


def chain(*codecs):
    return CodecChain.from_json(list(codecs))


def shard(shape, *inner):
    return {
        "name": "sharding_indexed",
        "configuration": {"chunk_shape": shape, "codecs": list(inner or [LITTLE]), "index_codecs": INDEX},
    }


@pytest.mark.parametrize("size", [40, 200])
@pytest.mark.parametrize(
    "codecs",
    [
        (LITTLE,),
        (BIG,),
        (LITTLE, ZSTD),
        (BIG, ZSTD),
        ({"name": "transpose", "configuration": {"order": [1, 0]}}, LITTLE, ZSTD),
    ],
    ids=str,
)
def test_destinations_of_any_layout_and_byte_order(codecs, size):
    """Decoding fills contiguous, strided, transposed, reversed and byte-swapped destinations alike."""
    data = np.arange(size * size, dtype="i4").reshape(size, size)
    bound = chain(*codecs).bind(ChunkSpec(data.dtype, data.shape))
    encoded = bytes(bound.encode(data))
    for out in (
        np.zeros((size, size), "i4"), np.zeros((size, size), ">i4"), np.zeros((2 * size, size), "i4")[::2], np.zeros((size, size), "i4").T,
        np.zeros((size, size), "i4")[::-1, ::-1],
    ):  # fmt: skip
        assert bound.decode(encoded, out) is out
        assert (out == data).all()


@pytest.mark.parametrize("codecs", [(LITTLE,), (LITTLE, ZSTD), (shard([5, 10]),)], ids=str)
def test_encode_takes_any_layout_and_byte_order(codecs):
    """Strided, transposed and byte-swapped arrays encode to the bytes of the plain array."""
    data = np.arange(100, dtype="i4").reshape(10, 10)
    bound = chain(*codecs).bind(ChunkSpec(data.dtype, data.shape, 0))
    wanted = bytes(bound.encode(data))
    wide = np.zeros((10, 20), "i4")
    wide[:, ::2] = data
    for same in (wide[:, ::2], np.asfortranarray(data), data.astype(">i4")):
        assert bytes(bound.encode(same)) == wanted


@pytest.mark.parametrize("native", [ml_dtypes.bfloat16, np.float32, np.int16], ids=str)
def test_shards_without_dimensions_swap_the_bytes_of_their_element(native):
    """A shard of rank 0 stores its one element in the byte order of the inner codec."""
    native = np.dtype(native)
    value = np.array(5, native)
    bound = chain(shard([], BIG)).bind(ChunkSpec(native, (), np.zeros((), native)[()]))
    for encoded in (bytes(bound.encode(value)), bytes(bound.encode_all(value))):
        assert encoded[: native.itemsize] == value.tobytes()[::-1]
        assert bound.decode(encoded, np.zeros((), native)) == value


def test_raw_chunks_are_views():
    """Without compression nothing is copied in either direction."""
    data = np.arange(8, dtype="<i4")
    bound = chain(LITTLE).bind(ChunkSpec(data.dtype, (8,)))
    assert np.shares_memory(np.frombuffer(bound.encode(data), "<i4"), data)
    raw = data.tobytes()
    assert np.shares_memory(bound.decode(raw), np.frombuffer(raw, "u1"))


def test_narrow_types_store_high_bits_as_zero():
    """Types narrower than a byte take one byte with zero high bits, whatever the memory held."""
    array = np.array([0xFE, 0x0E, 0x01], "u1").view(ml_dtypes.int4)
    bound = chain({"name": "bytes"}).bind(ChunkSpec(array.dtype, (3,)))
    assert bytes(bound.encode(array)) == b"\x0e\x0e\x01"
    assert bound.decode(b"\x0e\xfe\x01").tolist() == [-2, -2, 1]


@pytest.mark.parametrize(("codecs", "dtype", "message"), [
    ([{"name": "bytes"}], "i4", "option is specified for data type int32"), ([{"name": "vlen-utf8"}], "i4", "elements of variable size"),
    ([LITTLE], "O", "elements of fixed size"), ([{"name": "transpose", "configuration": {"order": [0, 1]}}, LITTLE], "i4", "{0, 1} is not a valid dimension permutation for a rank 1"),
    ([shard([3])], "i4", "sub-chunk shape of {3} does not evenly divide chunk shape of {4}"), ([shard([2, 2])], "i4", "is not compatible with array of rank 1"),
    ([{**shard([2]), "configuration": {**shard([2])["configuration"], "index_codecs": [LITTLE, ZSTD]}}], "i4", "only fixed-size encodings are supported"),
])  # fmt: skip
def test_binding_says_what_does_not_fit(codecs, dtype, message):
    """Everything that depends on type and shape is refused when the chain is bound."""
    with pytest.raises(StoreError) as caught:
        chain(*codecs).bind(ChunkSpec(np.dtype(dtype), (4,)))
    assert message in str(caught.value)


def test_too_many_sub_chunks_are_refused_without_allocating():
    """More than 2^30 sub-chunks in a shard are refused."""
    with pytest.raises(StoreError, match="has more than 1073741824 entries"):
        chain(shard([1, 1])).bind(ChunkSpec(np.dtype("u1"), (2**20, 2**20)))


def test_all_problems_of_a_chain_are_reported_at_once():
    """Two bad codecs give two located problems."""
    with pytest.raises(JsonError) as caught:
        chain({"name": "gzip", "configuration": {"level": 10, "x": 1}}, {"name": "nothing"})
    assert [problem.split(":")[0] for problem in caught.value.problems] == ["Error parsing value at position 0"] * 2 + [
        "Error parsing value at position 1"
    ]


def test_numcodecs_names_of_version_3_need_no_registration():
    """The prefix is enough; what makes no sense in a chain is not registered."""
    assert "numcodecs.delta" not in registry.codecs.names()
    with pytest.raises(JsonError, match="is not registered"):
        chain(LITTLE, {"name": "numcodecs.json2"})
    with pytest.raises(StoreError, match="requires bytes"):
        GzipCodec(1).bind(ChunkSpec(np.dtype("u1"), (1,)))


def test_layout_of_nested_and_transposed_shards():
    """Read shape and inner order are told in dimensions of the array, through every transpose and level."""
    transpose = {"name": "transpose", "configuration": {"order": [2, 0, 1]}}
    nested = chain(transpose, shard([4, 4, 6], transpose, shard([3, 2, 1]))).bind(
        ChunkSpec(np.dtype("u1"), (8, 12, 4), 0)
    )
    assert nested.order == (2, 0, 1)
    assert nested.shard.sub_shape == (4, 4, 6)
    assert nested.shard.inner.shard.sub_shape == (3, 2, 1)
    # the sub-chunk (3, 2, 1) is (2, 1, 3) before the inner transpose and (1, 3, 2) before the outer one
    assert nested.read_shape == (1, 3, 2)
    assert nested.inner_order == (1, 2, 0)
    data = np.arange(8 * 12 * 4, dtype="u1").reshape(8, 12, 4)
    assert (nested.decode(nested.encode(data)) == data).all()


def test_bytes_codecs_after_a_shard_are_read_whole():
    """zarr-python allows them: the shard is decoded, but has no parts that can be reached (deliberate superset)."""
    data = np.arange(4, dtype="i4")
    bound = chain(shard([2]), {"name": "crc32c"}).bind(ChunkSpec(data.dtype, (4,), 0))
    assert bound.shard is None
    assert bound.read_shape == (4,)
    assert (bound.decode(bound.encode(data)) == data).all()


def test_shards_drop_what_equals_the_fill_value_bit_by_bit():
    """Minus zero and other NaNs are stored, the fill value itself is not."""
    fill = np.float32("nan")
    data = np.array([fill, fill, -0.0, 1.0], "f4")
    bound = chain(shard([2])).bind(ChunkSpec(data.dtype, (4,), fill))
    parts = bound.shard.split(bound.encode(data))
    assert [part is None for part in parts] == [True, False]
    zero = chain(shard([2])).bind(ChunkSpec(data.dtype, (4,), np.float32(0)))
    assert [part is None for part in zero.shard.split(zero.encode(np.array([0, 0, -0.0, 0], "f4")))] == [True, False]


def test_defaults_follow_the_elements():
    """Byte order and shuffle are chosen for the type, an unknown element size is not shuffled."""

    def names(wish, dtype):
        return resolve(ChainSpec.from_json(wish), ChunkSpec(np.dtype(dtype), (4,))).to_json()

    assert names([], "u1") == [{"name": "bytes"}]
    assert names([], "O") == [{"name": "vlen-utf8"}]
    assert names(["blosc"], "u1")[1]["configuration"]["shuffle"] == "bitshuffle"
    assert names(["blosc"], "c16")[1]["configuration"]["typesize"] == 16
    assert names(["gzip", "blosc"], "i4")[2]["configuration"]["shuffle"] == "noshuffle"
    with pytest.raises(StoreError, match="typesize must be specified explicitly"):
        names(["gzip", {"name": "blosc", "configuration": {"shuffle": "shuffle"}}], "i4")


@pytest.mark.parametrize(
    ("kind", "codec", "found"), [("string", "vlen-bytes", "not str"), ("bytes", "vlen-utf8", "not bytes")]
)
@pytest.mark.parametrize("sharded", [False, True])
def test_a_codec_of_other_strings_is_refused_when_an_array_is_made(kind, codec, found, sharded):
    """Strings are not byte strings: the array is refused, not its first write."""
    chain = [{"name": codec}]
    if sharded:
        chain = [{"name": "sharding_indexed", "configuration": {"chunk_shape": [1], "codecs": chain}}]
    metadata = {"shape": [2], "data_type": kind, "codecs": chain}
    with pytest.raises(StoreError, match=f'"{codec}" codec requires elements of type .*, {found}'):
        ts.open({"driver": "zarr3", "kvstore": "memory://", "metadata": metadata}, create=True).result()


def test_resolve_takes_a_chain_of_metadata_as_complete():
    """A chain that stands in metadata is neither wrapped in shards nor given a transpose."""
    chunk = ChunkSpec(np.dtype("i4"), (4, 6))
    given = ChainSpec.from_json(["zstd"])
    assert resolve(given, chunk, complete=True).to_json() == [LITTLE, ZSTD]
    with pytest.raises(StoreError, match="Error setting read_chunk shape"):
        resolve(given, chunk, read_shape=(2, 3), complete=True)
    with pytest.raises(FailedPreconditionError, match='Mismatch in "codecs"'):
        resolve(given, chunk, inner_order=(1, 0), complete=True)
    assert resolve(None, chunk, read_shape=(2, 3), complete=True).to_json()[0]["name"] == "sharding_indexed"


def test_gzip_without_accelerators(monkeypatch):
    """The standard library alone gives the same bytes decoded and the same errors."""
    monkeypatch.setattr(deflate, "_fast", lambda framing: None)
    data = np.arange(50000, dtype="i4")
    bound = chain(LITTLE, {"name": "gzip", "configuration": {"level": 1}}).bind(ChunkSpec(data.dtype, data.shape))
    encoded = bytes(bound.encode(data))
    assert (bound.decode(encoded, np.zeros_like(data)) == data).all()
    with pytest.raises(FailedPreconditionError, match="Truncated Zlib-compressed stream"):
        bound.decode(encoded[:-1], np.zeros_like(data))


@pytest.mark.parametrize("name", ["zlib", "gzip"])
def test_deflated_parts_of_other_codecs(name):
    """What another codec hands on, which may be an array, is inflated like bytes of a file."""
    pipeline = V2Pipeline.from_json({"id": "crc32"}, [{"id": name, "level": 1}], "C")
    values = np.arange(50, dtype="uint16")
    bound = pipeline.bind(ChunkSpec(values.dtype, values.shape))
    assert (bound.decode(bound.encode(values)) == values).all()


def test_gzip_output_is_reproducible():
    """No time stamp is written."""
    bound = GzipCodec(6).bind(ByteSpec(100))
    assert bound.encode(bytes(100))[4:8] == bytes(4)


@pytest.mark.parametrize("shuffle", ["noshuffle", "shuffle", "bitshuffle"])
@pytest.mark.parametrize("size", [1, 63, 1000, 70_001])
@pytest.mark.parametrize("blocksize", [0, 64, 5000])
def test_snappy_in_blosc(shuffle, size, blocksize):
    """What is random is stored as it is, anything else gets smaller; all of it and parts are read again."""
    random = np.random.default_rng(0).integers(0, 256, size, np.uint8).tobytes()
    steps = np.resize((np.arange(size) // 9).astype("<i4").view("u1"), size).tobytes()
    for clevel, data in ((0, steps), (5, random), (5, steps)):
        bound = BloscCodec("snappy", clevel, shuffle, 4, blocksize).bind(ByteSpec(size))
        encoded = bound.encode(data)
        assert bytes(bound.decode(encoded)) == data
        assert len(encoded) <= size + 16
        if size >= 1000 and clevel and data is steps:
            assert len(encoded) < size // 2
        for damaged in (encoded[:-1], encoded + b"x"):
            with pytest.raises(FailedPreconditionError, match="Invalid blosc"):
                bound.decode(damaged)


def test_snappy_needs_imagecodecs(monkeypatch):
    """Without it an error says so, of reading and of writing."""
    bound = BloscCodec("snappy", 5, "noshuffle", None, 0).bind(ByteSpec(1000))
    encoded = bound.encode(bytes(1000))
    monkeypatch.setitem(sys.modules, "imagecodecs", None)
    for run in (lambda: bound.encode(bytes(1000)), lambda: bound.decode(encoded)):
        with pytest.raises(UnimplementedError, match='"snappy"; install imagecodecs'):
            run()


def test_version_2_defaults_are_spelled_out():
    """Members left out are written with TensorStore's defaults; the default compressor is blosc."""
    assert parse_compressor({"id": "bz2"}).to_json() == {"id": "bz2", "level": 1}
    assert V2Pipeline().to_json() == {
        "compressor": {"id": "blosc", "blocksize": 0, "clevel": 5, "cname": "lz4", "shuffle": -1},
        "filters": None,
        "order": "C",
    }
    assert parse_compressor({"id": "blosc"}) == DEFAULT_COMPRESSOR
    assert V2Pipeline.from_json(None, []).to_json()["filters"] is None


def test_version_2_fortran_order_is_a_layout():
    """Order F is told as the inner order, and the chunk lies transposed in the bytes."""
    data = np.arange(6, dtype="i4").reshape(2, 3)
    bound = V2Pipeline(None, (), "F").bind(ChunkSpec(data.dtype, data.shape))
    assert bound.inner_order == (1, 0)
    assert bytes(bound.encode(data)) == data.tobytes(order="F")


def test_structured_elements():
    """Fields, sub-arrays and byte orders of structured types pass through unchanged."""
    dtype = np.dtype([("x", "<u2", (2,)), ("y", ">f4")])
    data = np.zeros((3,), dtype)
    data["x"], data["y"] = [[1, 2]] * 3, 1.5
    for pipeline in (V2Pipeline(), V2Pipeline(None), V2Pipeline.from_json({"id": "zlib"})):
        bound = pipeline.bind(ChunkSpec(dtype, (3,)))
        assert bound.decode(bytes(bound.encode(data))).tobytes() == data.tobytes()


def test_elements_without_bytes_are_refused():
    """Strings of length zero have no encoding."""
    for pipeline in (chain({"name": "bytes"}), V2Pipeline(None)):
        with pytest.raises(StoreError, match="have no bytes"):
            pipeline.bind(ChunkSpec(np.dtype("S0"), (4,)))


@pytest.mark.parametrize("checksum", [False, True])
def test_zstd_frames_of_unknown_total_size(checksum):
    """Where nothing says how long the data are, all frames count: plain, run-length and stored blocks, any checksum."""
    noise = np.random.default_rng(1).bytes(200_000)
    pieces = [b"a" * 300_000, noise, b"", b"text " * 50_000, b"z"]
    bound = ZstdCodec(3, checksum).bind(ByteSpec())
    joined = b"".join(bytes(bound.encode(piece)) for piece in pieces)
    assert bound.decode(joined) == b"".join(pieces)
    with pytest.raises(FailedPreconditionError, match="End of data expected; remaining length: 4"):
        bound.decode(joined + b"junk")
