"""Stored documents of zarr v3, most of them odd: both libraries refuse them, or show, read, change and store the same.

TensorStore 0.1.86.  Every document is one that both can read with some members replaced.
"""

import json

import numpy as np
import pytest
import tensorstore

import fsstore

BYTES, LITTLE, BIG = ({"name": "bytes", **more} for more in (
    {}, {"configuration": {"endian": "little"}}, {"configuration": {"endian": "big"}}))  # fmt: skip
CRC = {"name": "crc32c"}
PLAIN = {
    "zarr_format": 3,
    "node_type": "array",
    "shape": [5],
    "data_type": "int32",
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4]}},
    "chunk_key_encoding": {"name": "default"},
    "codecs": [LITTLE],
    "fill_value": 0,
}
ONE_BYTE = "bool int2 int4 int8 uint8".split()


def codec(name, **configuration):
    """Return a codec with its configuration."""
    return {"name": name, "configuration": configuration}


def shard(shape, codecs=(LITTLE,), index=(LITTLE, CRC), **options):
    """Return a sharding codec."""
    return codec("sharding_indexed", chunk_shape=shape, codecs=list(codecs), index_codecs=list(index), **options)


def grid(*sizes):
    """Return a grid of equal chunks."""
    return codec("regular", chunk_shape=list(sizes))


def blosc(**options):
    """Return a blosc codec."""
    usual = {"cname": "lz4", "clevel": 5, "shuffle": "shuffle", "typesize": 4, "blocksize": 0}
    return codec("blosc", **{**usual, **options})


def fills(name, *values):
    """Return documents of a data type with fill values."""
    small = name in ONE_BYTE or name.startswith(("float8", "float4"))
    return [{"data_type": name, "fill_value": value, "codecs": [BYTES if small else LITTLE]} for value in values]  # fmt: skip


def chains(*all_codecs):
    """Return documents with chains."""
    return [{"codecs": codecs} for codecs in all_codecs]


def members(name, *values):
    """Return documents with values of one member."""
    return [{name: value} for value in values]


def attributes(*units):
    """Return documents with units of dimensions."""
    return [{"attributes": {"dimension_units": value}} for value in units]


def square(codecs, **more):
    """Return a document of two dimensions in chunks of 4 by 6."""
    return {"shape": [5, 7], "chunk_grid": grid(4, 6), "codecs": codecs, **more}


SPECIAL = ["NaN", "Infinity", "-Infinity", 0, -0.0, 1, 0.1]
NOT_FLOAT = ["+Infinity", "nan", "1.5", "0x", "0X1", "0x 1", "0x+1", "0x-1", "0x1_0", "1x0", "0xg", None, True, [1]]
EIGHT_BITS = ["0x7f", "0xff", "0x80", "0x7c", "0x7e", "0x01", "0x100", 0.3, 1e6]
TYPED = [
    *fills("float32", *SPECIAL, *NOT_FLOAT, "0x7fc00000", "0x7fc00001", "0xFFC00001", "0x7f800001", "0x80000000", "0x1", "0x123456789", 1e39, 1e-50, 2**24 + 1, 2**70),
    *fills("float64", *SPECIAL, "0x7ff8000000000000", "0xfff8000000000000", "0x7ff0000000000001", 5e-324, 1.7976931348623157e308, 1e16, 5e-7),
    *fills("float16", *SPECIAL, "0x7e00", "0x7e01", "0xfe00", "0x7c01", "0x12345", 65519, 65520, 2.9e-8),
    *fills("bfloat16", *SPECIAL, "0x7fc0", "0xffc0", "0x7f81", 3.4e38, 1e39),
    *(each for kind in ("e3m4", "e4m3fn", "e4m3fnuz", "e4m3b11fnuz", "e5m2", "e5m2fnuz") for each in fills(f"float8_{kind}", *SPECIAL, *EIGHT_BITS)),
    *fills("float4_e2m1fn", 0, -0.0, 1, 6, 0.3, "0x0f", "0x08"),
    *fills("int2", 1, 2, -3), *fills("int4", 7, 8, -9), *fills("int8", -128, 127, 128, 1.0, 1.5, "1", True), *fills("uint8", 255, 256, -1),
    *fills("int64", 2**63 - 1, -(2**63), 2**63), *fills("uint64", 2**64 - 1, 2**64), *fills("uint32", 2**32 - 1, 2**32),
    *fills("bool", 0, 1, True, "true", None),
    *fills("complex64", [0, 0], [0], [0, 0, 0], ["NaN", "0x7fc00001"], ["0x80000000", -0.0], [1, "Infinity"], 0, "NaN", None, [True, 0]),
    *fills("complex128", ["NaN", "0x7ff8000000000001"], [-0.0, 1e308]),
    *members("data_type", {"name": "int32", "configuration": {}}, "<i4", "i4", "uint2", "int1", "float", "complex256", "r0", "r7", "r", None, 4, {}, "float6_e2m3fn"),
    *({"data_type": name, "fill_value": 0, "codecs": [pack]} for name in ("int4", "uint8") for pack in (LITTLE, BIG)),
    *({"data_type": name, "fill_value": "0x7f81", "codecs": [BIG]} for name in ("float16", "bfloat16")),
    {"data_type": "complex64", "fill_value": ["0x7fc00001", -0.0], "codecs": [BIG]},
]  # fmt: skip
CHAINS = [
    *chains([BYTES], [BIG], [LITTLE, CRC, CRC], [LITTLE, codec("crc32c")], [codec("transpose", order=[0]), LITTLE], [codec("transpose", order="F"), BIG]),
    *chains([codec("transpose", order=[]), LITTLE], [codec("transpose", order=[0, 1]), LITTLE], [codec("transpose", order=[-1]), LITTLE], [codec("transpose"), LITTLE]),
    *chains(*([LITTLE, codec("gzip", level=level)] for level in (5.0, 10, -1, "5")), [LITTLE, {"name": "gzip"}], [LITTLE, "gzip"]),
    *chains(*([LITTLE, codec("zstd", level=level)] for level in (23, -131073, -131072, 22)), [LITTLE, codec("zstd", level=1, checksum=1)], [LITTLE, {"name": "zstd"}]),
    *chains(*([LITTLE, blosc(cname=name)] for name in ("blosclz", "lz4", "lz4hc", "snappy", "zlib", "zstd", "LZ4"))),
    *chains(*([LITTLE, blosc(shuffle=shuffle)] for shuffle in ("noshuffle", "bitshuffle", 1, "auto"))),
    *chains(*([LITTLE, blosc(typesize=size)] for size in (0, 1, 255, 256)), *([LITTLE, blosc(blocksize=size)] for size in (64, -1, 715827543))),
    *chains([CRC, LITTLE], [LITTLE, LITTLE], [], None, "bytes", ["bytes"], [{}], [codec("bytes", endian="little", x=1)], [codec("bytes", endian="middle")]),
    *chains([{**LITTLE, "must_understand": False}], [{"name": "foo", "must_understand": False}, LITTLE], [codec("endian", endian="little")], [{"name": "no_such_codec"}]),
    *chains([shard([2])], [shard([4])], [shard([1], [BIG, CRC])], [shard([3])], [shard([0])], [shard([8])], [shard([2, 1])], [shard([2], extra=1)], [shard([2], [])]),
    *chains(*([shard([2], index_location=place)] for place in ("start", "end", "middle"))),
    *chains(*([shard([2], index=index)] for index in ([BIG], [BYTES], [LITTLE], [LITTLE, CRC, CRC], [LITTLE, codec("gzip", level=1)], [shard([1, 2], index=[LITTLE])]))),
    *chains([shard([2], index=[codec("transpose", order=[1, 0]), LITTLE])], [shard([2], index=[codec("transpose", order=[0]), LITTLE])]),
    *chains([shard([2], [shard([1], [LITTLE, CRC])])], [shard([4], [shard([2], [shard([1])], index_location="start")])]),
    *chains([codec("sharding_indexed", chunk_shape=[2], codecs=[LITTLE])], [codec("sharding_indexed", codecs=[LITTLE], index_codecs=[LITTLE])]),
    square([codec("transpose", order=[1, 0]), shard([3, 2], [codec("transpose", order="F"), BIG, CRC], index_location="start")]),
    square([codec("transpose", order=[1, 0]), shard([6, 2], [codec("transpose", order=[1, 0]), shard([1, 3])])]),
]  # fmt: skip
SHAPES = [
    *members("shape", [0], [1], [4], [], [4, 4], [2**62 - 2], [-1], [True], ["4"], [4.0], [4.5], None, 4),
    *members("chunk_grid", grid(), grid(0), grid(1), grid(9), grid(1.0), grid("4"), grid(True), grid(2**63), {"name": "regular"}, "regular", None),
    *members("chunk_grid", codec("regular", chunk_shape=[4], x=1), {**grid(4), "x": 1}, codec("irregular", chunk_shape=[4])),
    *({"shape": [], "chunk_grid": grid(), "codecs": codecs} for codecs in ([LITTLE], [codec("transpose", order=[]), BIG], [shard([], [LITTLE, CRC])], [shard([], [shard([])])])),
    *({"shape": [0, 5], "chunk_grid": grid(2, 5), "codecs": codecs} for codecs in ([LITTLE], [shard([1, 5])])),
    *members("chunk_key_encoding", *(codec(name, separator=mark) for name in ("default", "v2") for mark in ("/", ".", "-", "", None))),
    *members("chunk_key_encoding", codec("v2"), {"name": "default", "x": 1}, {"name": "v3"}, "default", None, codec("default", separator="/", x=1)),
    *({"shape": [], "chunk_grid": grid(), "chunk_key_encoding": {"name": name}} for name in ("default", "v2")),
]  # fmt: skip
NAMES = [
    *members("attributes", {}, None, [], {"a": None}, {"a": [1, 1.0, {"é": 2**63}]}),
    *attributes(["4 nm"], [None], [""], None, [], ["a", "b"], [4], [[4, "nm"]], "nm", ["1e3nm"], ["  nm "], ["4"], ["-4 nm"]),
    *members("dimension_names", None, [], ["x"], [None], [""], ["x", "y"], [1], "x", ["é"], ["a b"]),
    *members("storage_transformers", [], None, [{"name": "x"}], [{"name": "x", "must_understand": False}], {}),
    *members("unknown", 1, None, {}, {"must_understand": True}, {"must_understand": 0}, {"must_understand": False, "x": [1, {"a": None}]}),
    *members("zarr_format", 2, 3.0, "3", 4), *members("node_type", "Array", "group", None),
    square([LITTLE], dimension_names=[None, "x"], attributes={"dimension_units": [None, "nm"], "a": 1}),
    square([LITTLE], dimension_names=["", ""]),
]  # fmt: skip


def outcome(module, document):
    """Return what a library makes of a document: None if it refuses it, else all that can be seen."""
    context = module.Context()
    kvstore = module.KvStore.open("memory://", context=context).result()
    kvstore.write("zarr.json", json.dumps(document).encode()).result()
    try:
        store = module.open({"driver": "zarr3", "kvstore": "memory://"}, context=context).result()
    except (ValueError, NotImplementedError):
        return None
    shown = [store.spec().to_json(), store.schema.to_json()]
    if max(store.shape, default=0) > 100:  # TensorStore would ask for every chunk that there might be
        return shown
    missing = store.read().result()
    shown.append((missing.shape, str(missing.dtype), octets(missing)))
    one = np.ones((), missing.dtype)
    if missing.size:
        store[tuple(slice(0, min(3, size)) for size in store.shape)].write(one).result()
        shown.append(octets(store.read().result()))
        store.write(one).result()
    shown.append([(key, bytes(kvstore.read(key).result().value)) for key in keys(kvstore, document)])
    if store.rank:
        store.resize(exclusive_max=[2, *store.shape[1:]]).result()
    return [*shown, keys(kvstore, {}), json.loads(kvstore.read("zarr.json").result().value)]


def keys(kvstore, document):
    """Return the keys of chunks; none where bytes differ by library: those of compressors."""
    is_plain = not {"gzip", "zstd", "blosc"} & {str(each.get("name")) for each in document.get("codecs", ())}
    return [key for key in sorted(kvstore.list().result()) if key != b"zarr.json" and is_plain]


def octets(array):
    """Return the bytes of elements; of the smallest integers TensorStore extends the sign."""
    return (array.astype(np.int8) if array.dtype.name in ("int2", "int4") else array).tobytes()


def _is(changes, met):
    """Return whether a change is one that is met; true is not 1."""
    return all(
        name in changes and changes[name] == value and type(changes[name]) is type(value) for name, value in met.items()
    )


MET = (
    {"data_type": "bool", "fill_value": 0},
    {"data_type": "bool", "fill_value": 1},
    {"dimension_names": None},
    {"data_type": "uint2"},
    {"data_type": "float6_e2m3fn"},
    {"codecs": [{**LITTLE, "must_understand": False}]},
)
"""What other writers have written, or the registry has, and TensorStore refuses: read here, see `test_lenient_metadata`."""


@pytest.mark.parametrize("group", ["TYPED", "CHAINS", "SHAPES", "NAMES"])
def test_documents(group):
    """The verdicts agree, and so do spec, schema, missing and written elements, files, and the document after a resize."""
    different, accepted = [], 0
    for changes in globals()[group]:
        ours, theirs = (outcome(module, {**PLAIN, **changes}) for module in (fsstore, tensorstore))
        accepted += ours is not None
        if any(_is(changes, each) for each in MET):
            assert ours is not None and theirs is None
            continue
        if json.dumps(ours, sort_keys=True, default=str) != json.dumps(theirs, sort_keys=True, default=str):
            different.append((changes, ours, theirs))
    assert not different
    assert 10 < accepted < len(globals()[group]) - 10


@pytest.mark.parametrize("rank", [31, 32])
def test_shards_have_no_more_dimensions_than_their_index_may(rank, tmp_path):
    """The index has one dimension more than the array, and 32 is the most; no array is made that nobody else reads."""
    layout = {"write_chunk": {"shape": [1] * (rank - 1) + [2]}, "read_chunk": {"shape": [1] * rank}}
    schema = {"domain": {"shape": [2] * rank}, "dtype": "uint8", "chunk_layout": layout}
    made = []
    for library in (fsstore, tensorstore):
        spec = {"driver": "zarr3", "kvstore": f"file://{tmp_path}/{library.__name__}/", "schema": schema}
        try:
            made.append(library.open(spec, create=True).result().rank)
        except ValueError as error:
            assert "sharding_indexed" in str(error)
    assert made == ([rank, rank] if rank == 31 else [])
