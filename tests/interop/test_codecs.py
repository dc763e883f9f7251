"""Chunks that we encode are read by tensorstore 0.1.86 and zarr 3.1.6, and what they write is read by us."""

from __future__ import annotations

import json
import warnings

import ml_dtypes
import numpy as np
import pytest
import tensorstore as ts
import zarr

from fsstore.codec.chain import CodecChain
from fsstore.codec.chain_spec import ChainSpec, resolve
from fsstore.codec.contract import ChunkSpec
from fsstore.codec.numcodecs.compressor_v2 import V2Pipeline
from fsstore.codec.numcodecs.numcodecs_v2 import PACKING_CODECS

SHAPE = (6, 10)
SHARD = {"name": "sharding_indexed", "configuration": {"chunk_shape": [3, 5], "codecs": ["zstd"]}}
NESTED = {"name": "sharding_indexed", "configuration": {"chunk_shape": [6, 5], "codecs": [
    {"name": "sharding_indexed", "configuration": {"chunk_shape": [2, 5], "codecs": ["gzip"], "index_location": "start"}}]}}  # fmt: skip
TRANSPOSE = {"name": "transpose", "configuration": {"order": [1, 0]}}
CHAINS = {
    "raw": [], "big": [{"name": "bytes", "configuration": {"endian": "big"}}], "gzip": ["gzip"], "zstd": ["zstd"],
    "zstd-checksum": [{"name": "zstd", "configuration": {"checksum": True, "level": 7}}], "blosc": ["blosc"],
    "blosc-zstd": [{"name": "blosc", "configuration": {"cname": "zstd", "shuffle": "bitshuffle"}}],
    "blosc-snappy": [{"name": "blosc", "configuration": {"cname": "snappy", "blocksize": 64}}],
    "blosc-none": [{"name": "blosc", "configuration": {"cname": "zlib", "shuffle": "noshuffle"}}], "crc32c": ["crc32c"],
    "transpose": [TRANSPOSE, "zstd", "crc32c"], "gzip-blosc": ["gzip", "blosc"], "shard": [SHARD],
    "shard-start": [{**SHARD, "configuration": {**SHARD["configuration"], "index_location": "start"}}],
    "transpose-shard": [TRANSPOSE, {"name": "sharding_indexed", "configuration": {"chunk_shape": [5, 2], "codecs": [TRANSPOSE, "blosc"]}}],
    "nested": [NESTED],
}  # fmt: skip
V3_DTYPES = "bool int8 uint8 int16 uint16 int32 uint32 int64 uint64 float16 float32 float64 complex64 complex128 bfloat16 int4 int2 float8_e4m3fn".split()
V2_DTYPES = ["|b1", "|i1", "|u1", "<i2", ">i2", "<u4", ">u8", "<f2", ">f4", "<f8", "<c8", ">c16", "bfloat16", "int4"]
COMPRESSORS = [
    None, {"id": "zlib"}, {"id": "zlib", "level": 9}, {"id": "gzip", "level": 3}, {"id": "bz2"}, {"id": "zstd", "level": 2}, {"id": "blosc"},
    {"id": "blosc", "shuffle": 2, "cname": "zstd"}, {"id": "blosc", "shuffle": 0, "clevel": 1, "cname": "lz4hc"}, {"id": "blosc", "cname": "blosclz", "blocksize": 64},
]  # fmt: skip


def numpy_dtype(name):
    return np.dtype(getattr(ml_dtypes, name)) if hasattr(ml_dtypes, name) else np.dtype(name)


def values(dtype):
    base = np.arange(60).reshape(SHAPE)
    if dtype.kind == "b" or dtype.itemsize == 1:
        base = base % 2
    return base.astype(dtype)


def fill_json(dtype):
    if dtype.kind == "c":
        return [0.0, 0.0]
    return False if dtype.kind == "b" else 0 if dtype.kind in "iu" or "int" in dtype.name else 0.0


def bits(array):
    return np.ascontiguousarray(array).tobytes()


def write_v3(path, name, chain, chunk):
    document = {
        "zarr_format": 3, "node_type": "array", "shape": list(SHAPE), "data_type": name, "fill_value": fill_json(numpy_dtype(name)),
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(SHAPE)}}, "attributes": {},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}}, "codecs": chain,
    }  # fmt: skip
    (path / "c/0").mkdir(parents=True)
    (path / "zarr.json").write_text(json.dumps(document))
    (path / "c/0/0").write_bytes(chunk)


def open_ts(path, driver="zarr3"):
    return ts.open({"driver": driver, "kvstore": {"driver": "file", "path": f"{path}/"}}, open=True).result()


@pytest.mark.parametrize("key", CHAINS)
def test_v3_chunks_of_ours_are_read_by_tensorstore_and_zarr(tmp_path, key):
    """For every chain and type, tensorstore and zarr read the values that we encoded."""
    for name in V3_DTYPES:
        dtype = numpy_dtype(name)
        chunk = ChunkSpec(dtype, SHAPE, np.zeros((), dtype)[()])
        chain = resolve(ChainSpec.from_json(CHAINS[key]), chunk)
        path = tmp_path / name
        data = values(dtype)
        write_v3(path, name, chain.to_json(), chain.bind(chunk).encode(data))
        assert bits(open_ts(path).read().result()) == bits(data), name
        # zarr-python compares the sub-chunks of a transposed shard with the chunk before transposing it, and has no snappy
        if not hasattr(ml_dtypes, name) and key not in ("transpose-shard", "blosc-snappy"):
            assert bits(zarr.open_array(path, mode="r")[...]) == bits(data), name


@pytest.mark.parametrize("key", CHAINS)
def test_v3_chunks_of_tensorstore_are_read_by_us(tmp_path, key):
    """For every chain and type, we decode what tensorstore wrote, and resolve the chain to what it stored."""
    for name in V3_DTYPES:
        dtype = numpy_dtype(name)
        data = values(dtype)
        path = tmp_path / name
        spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{path}/"}, "schema": {
            "dtype": name, "domain": {"shape": list(SHAPE)}, "codec": {"driver": "zarr3", "codecs": CHAINS[key]},
            "chunk_layout": {"write_chunk": {"shape": list(SHAPE)}}}}  # fmt: skip
        ts.open(spec, create=True).result()[...] = data
        stored = json.loads((path / "zarr.json").read_text())["codecs"]
        chunk = ChunkSpec(dtype, SHAPE)
        assert resolve(ChainSpec.from_json(CHAINS[key]), chunk).to_json() == stored
        bound = CodecChain.from_json(stored).bind(chunk)
        raw = (path / "c/0/0").read_bytes()
        assert bits(bound.decode(raw)) == bits(data), name
        out = np.zeros((6, 20), dtype)[:, ::2]
        bound.decode(raw, out)
        assert bits(out) == bits(data), name


def write_v2(path, dtype, pipeline, chunk, fill=None):
    document = {
        "zarr_format": 2,
        "shape": list(SHAPE),
        "chunks": list(SHAPE),
        "dtype": dtype,
        "fill_value": fill,
        **pipeline.to_json(),
    }
    path.mkdir(parents=True)
    (path / ".zarray").write_text(json.dumps(document))
    (path / "0.0").write_bytes(chunk)


@pytest.mark.parametrize("compressor", COMPRESSORS, ids=json.dumps)
@pytest.mark.parametrize("order", ["C", "F"])
def test_v2_chunks_pass_both_ways(tmp_path, compressor, order):
    """tensorstore and zarr read our zarr v2 chunks and we read tensorstore's, for every type, order and compressor."""
    pipeline = V2Pipeline.from_json(compressor, None, order)
    for position, name in enumerate(V2_DTYPES):
        dtype = numpy_dtype(name)
        data = values(dtype)
        bound = pipeline.bind(ChunkSpec(dtype, SHAPE))
        path = tmp_path / str(position)
        write_v2(path, name, pipeline, bound.encode(data))
        store = open_ts(path, "zarr")
        assert bits(store.read().result().astype(dtype)) == bits(data), name
        if not hasattr(ml_dtypes, name):
            assert bits(zarr.open_array(path, mode="r", zarr_format=2)[...].astype(dtype)) == bits(data), name
        store[...] = data[::-1].astype(store.dtype.numpy_dtype)
        assert bits(bound.decode((path / "0.0").read_bytes())) == bits(data[::-1]), name


def test_zstd_with_checksum_member_is_what_numcodecs_writes(tmp_path):
    """zarr-python's zstd compressor, whose `checksum` member tensorstore refuses, is read and kept (deliberate)."""
    array = zarr.create_array(tmp_path / "a", shape=SHAPE, chunks=SHAPE, dtype="i4", zarr_format=2)
    array[...] = values(np.dtype("i4"))
    document = json.loads((tmp_path / "a/.zarray").read_text())
    pipeline = V2Pipeline.from_json(document["compressor"], document["filters"], document["order"])
    assert pipeline.to_json()["compressor"] == document["compressor"]
    decoded = pipeline.bind(ChunkSpec(np.dtype("i4"), SHAPE)).decode((tmp_path / "a/0.0").read_bytes())
    assert bits(decoded) == bits(array[...])


FILTERS = [
    ([{"id": "delta", "dtype": "<i4"}], "<i4"), ([{"id": "delta", "dtype": "<i4", "astype": "<i2"}], "<i4"), ([{"id": "shuffle", "elementsize": 4}], "<i4"),
    ([{"id": "fixedscaleoffset", "scale": 10, "offset": 1, "dtype": "<f8", "astype": "<i2"}], "<f8"), ([{"id": "fletcher32"}], "<i4"), ([{"id": "crc32"}], "<i4"),
    ([{"id": "packbits"}], "|b1"), ([{"id": "quantize", "digits": 2, "dtype": "<f4"}], "<f4"), ([{"id": "astype", "encode_dtype": "<i2", "decode_dtype": "<i4"}], "<i4"),
    ([{"id": "bitround", "keepbits": 5}], "<f4"), ([{"id": "delta", "dtype": "<i4"}, {"id": "shuffle", "elementsize": 4}, {"id": "fletcher32"}], "<i4"),
    ([{"id": "zlib", "level": 1}], "<i4"), ([{"id": "lz4", "acceleration": 1}], "<i4"), ([{"id": "base64"}], "<i4"), ([{"id": "delta", "dtype": "<i4"}, {"id": "base64"}], "<i4"),
    ([{"id": "pcodec"}], "<i4"), ([{"id": "delta", "dtype": "<i4"}, {"id": "pcodec", "level": 3}], "<i4"),
]  # fmt: skip


@pytest.mark.parametrize("filters, dtype", FILTERS, ids=str)
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize(
    "compressor",
    [
        None,
        {"id": "lzma", "format": 1, "check": -1, "preset": None, "filters": None},
        {"id": "lz4", "acceleration": 1},
        {"id": "blosc"},
        {"id": "base64"},
    ],
    ids=json.dumps,
)
def test_v2_filters_pass_both_ways(tmp_path, filters, dtype, order, compressor):
    """Filters and the other compressors agree with zarr-python, in both orders and both directions."""
    pipeline = V2Pipeline.from_json(compressor, filters, order)
    data = values(np.dtype(dtype))
    bound = pipeline.bind(ChunkSpec(np.dtype(dtype), SHAPE))
    write_v2(tmp_path / "a", dtype, pipeline, bound.encode(data))
    array = zarr.open_array(tmp_path / "a", mode="r+", zarr_format=2)
    np.testing.assert_allclose(array[...].astype(float), data.astype(float), rtol=0.05)
    if order == "F" and filters[0]["id"] == "bitround":
        return  # numcodecs copies the chunk into order C, so that not even zarr-python reads back what it wrote
    array[...] = data[::-1]
    np.testing.assert_allclose(
        bound.decode((tmp_path / "a/0.0").read_bytes()).astype(float), data[::-1].astype(float), rtol=0.05
    )


TEXT = np.array([["a", "", "snow ☃"], ["längeres Wort", "b", "c"]], object)


@pytest.mark.parametrize(
    "filters",
    [
        [{"id": "vlen-utf8"}],
        [{"id": "json2", "encoding": "utf-8"}],
        [{"id": "msgpack2"}],
        [{"id": "msgpack2", "use_single_float": True}],
    ],
    ids=json.dumps,
)
@pytest.mark.parametrize("order", ["C", "F"])
def test_v2_objects_agree_with_numcodecs(filters, order):
    """Text filters encode to what numcodecs decodes and the reverse, in the order of the chunk in memory."""
    import numcodecs

    pipeline = V2Pipeline.from_json(None, filters, order)
    bound = pipeline.bind(ChunkSpec(np.dtype(object), TEXT.shape))
    peer = numcodecs.get_codec(filters[0])
    chunk = np.asarray(TEXT, order=order)
    theirs = peer.decode(bytes(bound.encode(TEXT)))
    assert (theirs.reshape(TEXT.shape, order=order) == TEXT).all()
    assert (bound.decode(bytes(peer.encode(chunk))) == TEXT).all()


@pytest.mark.parametrize("name", ["json2", "msgpack2"])
def test_v2_objects_without_dimensions(name):
    """The one element of a chunk without dimensions is read back; what it is does not matter."""
    bound = V2Pipeline.from_json(None, [{"id": name}]).bind(ChunkSpec(np.dtype(object), ()))
    for item in ITEMS[:3] + ITEMS[4:]:
        data = np.empty((), object)
        data[()] = item
        assert bound.decode(bytes(bound.encode(data))).tolist() == item


ITEMS = [None, True, -7, 2**63, 1.5, "snow ☃", [1, [2, "x"]], {"a": {"b": []}}]


@pytest.mark.parametrize("options", [{}, {"use_single_float": True}, {"use_bin_type": False}, {"raw": True}], ids=str)
@pytest.mark.parametrize("shape", [(8,), (2, 4), (2, 2, 2)])
def test_v2_msgpack_agrees_with_numcodecs(options, shape):
    """Anything that MessagePack can hold gives the bytes of numcodecs and is read back as numcodecs reads it."""
    import numcodecs

    data = np.empty(8, object)
    data[:] = [*ITEMS[:-2], b"bytes", ITEMS[-1]]
    data = data.reshape(shape)
    peer = numcodecs.MsgPack(**options)
    bound = V2Pipeline.from_json(None, [peer.get_config()]).bind(ChunkSpec(np.dtype(object), shape))
    if options.get("use_bin_type") is False:
        data.reshape(-1)[6] = "text"  # bytes would be read as text
    if options.get("raw"):
        data.reshape(-1)[7] = None
    encoded = bytes(bound.encode(data))
    assert encoded == peer.encode(data)
    assert bound.decode(encoded).tolist() == peer.decode(encoded).tolist()


NUMERIC = [
    ({"id": "pcodec"}, ["<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f2", "<f4", "<f8", "<M8[s]", "<m8[ns]"]),
    ({"id": "pcodec", "level": 1, "delta_spec": "try_lookback", "equal_pages_up_to": 7}, ["<i4", "<f8"]),
    ({"id": "pcodec", "mode_spec": "classic", "delta_encoding_order": 1}, ["<i4", "<f8"]),
    ({"id": "zfpy"}, ["<i4", "<i8", "<f4", "<f8", "<M8[s]"]),
    ({"id": "zfpy", "mode": 4, "tolerance": 0.25, "rate": -1, "precision": -1}, ["<f4", "<f8"]),
    ({"id": "zfpy", "mode": 2, "tolerance": -1, "rate": 16, "precision": -1}, ["<f4", "<f8"]),
    ({"id": "zfpy", "mode": 3, "tolerance": -1, "rate": -1, "precision": 24}, ["<f4", "<f8"]),
]


@pytest.mark.parametrize(("compressor", "dtypes"), NUMERIC, ids=lambda value: str(value)[:60])
@pytest.mark.parametrize("order", ["C", "F"])
def test_v2_codecs_of_numbers_pass_both_ways(tmp_path, compressor, dtypes, order):
    """pcodec and zfpy give zarr-python what it would have written, and read what it wrote, for every type they know."""
    pipeline = V2Pipeline.from_json(compressor, None, order)
    for name in dtypes:
        dtype = np.dtype(name)
        data = np.arange(60).reshape(SHAPE).astype(dtype)
        bound = pipeline.bind(ChunkSpec(dtype, SHAPE))
        encoded = bytes(bound.encode(data))
        # without a fill value zarr makes a time of no unit, which newer versions of NumPy deprecate
        write_v2(tmp_path / dtype.name, name, pipeline, encoded, fill=0)
        array = zarr.open_array(tmp_path / dtype.name, mode="r+", zarr_format=2)
        assert bits(array[...]) == bits(bound.decode(encoded))
        np.testing.assert_allclose(array[...].astype(float), data.astype(float), atol=0.5)
        if order == "F" and compressor["id"] == "zfpy":
            continue  # numcodecs refuses to encode such a chunk
        array[...] = data
        theirs = (tmp_path / dtype.name / "0.0").read_bytes()
        assert theirs == encoded
        assert bits(bound.decode(theirs)) == bits(array[...])


def test_v2_vlen_array_and_categories():
    """Arrays of arrays and categories agree with numcodecs."""
    import numcodecs

    rows = np.empty(2, object)
    rows[:] = [np.array([1, 2], "i4"), np.array([3], "i4")]
    bound = V2Pipeline.from_json(None, [{"id": "vlen-array", "dtype": "<i4"}]).bind(ChunkSpec(np.dtype(object), (2,)))
    decoded = bound.decode(bytes(numcodecs.VLenArray("<i4").encode(rows)))
    assert [row.tolist() for row in decoded] == [[1, 2], [3]]
    words = np.array(["x", "y", "x"], object)
    options = {"id": "categorize", "labels": ["x", "y"], "dtype": "|O", "astype": "|u1"}
    bound = V2Pipeline.from_json(None, [options]).bind(ChunkSpec(np.dtype(object), (3,)))
    assert bytes(bound.encode(words)) == numcodecs.get_codec(options).encode(words).tobytes()
    assert bound.decode(bound.encode(words)).tolist() == ["x", "y", "x"]


@pytest.mark.parametrize("kind", ["string", "bytes"])
def test_v3_strings_pass_both_ways(tmp_path, kind):
    """zarr-python reads our vlen chunks and we read its, compressed or not."""
    from zarr.core.dtype import VariableLengthBytes

    data = TEXT if kind == "string" else np.array([[text.encode() for text in row] for row in TEXT], object)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dtype = str if kind == "string" else VariableLengthBytes()
        array = zarr.create_array(tmp_path / "a", shape=(2, 3), chunks=(2, 3), dtype=dtype)
        array[...] = data
        document = json.loads((tmp_path / "a/zarr.json").read_text())
        bound = CodecChain.from_json(document["codecs"]).bind(ChunkSpec(np.dtype(object), (2, 3)))
        assert (bound.decode((tmp_path / "a/c/0/0").read_bytes()) == data).all()
        (tmp_path / "a/c/0/0").write_bytes(bound.encode(data[::-1]))
        assert (zarr.open_array(tmp_path / "a")[...] == data[::-1]).all()


V3_NUMCODECS = [
    ([{"name": "numcodecs.delta", "configuration": {"dtype": "<i4"}}], "int32"), ([{"name": "numcodecs.packbits", "configuration": {}}], "bool"),
    ([{"name": "numcodecs.fixedscaleoffset", "configuration": {"offset": 0, "scale": 10, "dtype": "<f8", "astype": "<i4"}}], "float64"),
    ([{"name": "numcodecs.astype", "configuration": {"encode_dtype": "<i2", "decode_dtype": "<i4"}}], "int32"),
    ([{"name": "numcodecs.pcodec", "configuration": {}}], "int32"), ([{"name": "numcodecs.zfpy", "configuration": {"mode": 4, "tolerance": 0.001}}], "float32"),
    ([{"name": "numcodecs.pcodec", "configuration": {"level": 2}}, {"name": "crc32c"}], "float64"), ([{"name": "numcodecs.zfpy", "configuration": {}}], "int64"),
    ([{"name": "numcodecs.bitround", "configuration": {"keepbits": 8}}], "float32"), ([{"name": "numcodecs.quantize", "configuration": {"digits": 2, "dtype": "<f4"}}], "float32"),
]  # fmt: skip
V3_BYTES = [
    "shuffle",
    "lz4",
    "zlib",
    "bz2",
    "lzma",
    "zstd",
    "gzip",
    "blosc",
    "crc32",
    "adler32",
    "fletcher32",
    "jenkins_lookup3",
    "crc32c",
]
V3_NUMCODECS += [
    ([{"name": f"numcodecs.{name}", "configuration": {"elementsize": 4} if name == "shuffle" else {}}], "int32")
    for name in V3_BYTES
]


@pytest.mark.parametrize("codecs, name", V3_NUMCODECS, ids=str)
def test_v3_numcodecs_pass_both_ways(tmp_path, codecs, name):
    """zarr-python reads our `numcodecs.*` chunks and we read its."""
    little = {"name": "bytes", "configuration": {"endian": "little"}}
    array_codec = codecs[0]["name"].removeprefix("numcodecs.") not in V3_BYTES
    packs = codecs[0]["name"].removeprefix("numcodecs.") in PACKING_CODECS
    stored = codecs if packs else [*codecs, little] if array_codec else [little, *codecs]
    dtype = np.dtype(name)
    data = values(dtype)
    bound = CodecChain.from_json(stored).bind(ChunkSpec(dtype, SHAPE))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        write_v3(tmp_path / "a", name, stored, bound.encode(data))
        array = zarr.open_array(tmp_path / "a", mode="r+")
        np.testing.assert_allclose(array[...].astype(float), data.astype(float), rtol=0.01)
        array[...] = data[::-1].copy()
    decoded = bound.decode((tmp_path / "a/c/0/0").read_bytes())
    np.testing.assert_allclose(decoded.astype(float), data[::-1].astype(float), rtol=0.01)
