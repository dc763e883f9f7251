"""Arrays of zarr-python, in formats 2 and 3: each library reads what the other wrote, beyond TensorStore's formats too."""

import json
import warnings

import numcodecs
import numpy as np
import pytest
import zarr
from zarr.codecs import numcodecs as v3_numcodecs

import fsstore as ts

pytestmark = pytest.mark.filterwarnings("ignore")
DTYPES = "bool i1 u1 <i2 >i2 <u4 >u4 <i8 >i8 <f2 <f4 >f4 <f8 >f8 <c8 <c16 >c16 M8[ns] M8[10us] m8[s] U5 S5 V4".split()
TEXT = np.array([["a", "é", ""], ["zz", "q", "wé"]], dtype=object)
OCTETS = np.array([[b"a", b"\x00", b""], [b"zz", b"q", b"\xff\xfe"]], dtype=object)


def values(dtype, shape=(7, 5)):
    """Return values of a dtype."""
    rng = np.random.default_rng(0)
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.kind in "Mm":
        return rng.integers(-(10**6), 10**6, shape).astype("i8").view(dtype)
    if dtype.kind in "US":
        words = ["", "a", "bb", "xyz", "abcde"] + (["é"] if dtype.kind == "U" else [])
        return np.array(rng.choice(words, shape), dtype=dtype)
    if dtype.kind == "V":
        return rng.integers(0, 256, (*shape, dtype.itemsize), dtype="u1").view(dtype)[..., 0]
    if dtype.kind == "c":
        return (rng.normal(size=shape) + 1j * rng.normal(size=shape)).astype(dtype)
    return np.round(rng.normal(size=shape) * 50).astype(dtype)


def by_zarr(folder, data, zarr_format, **options):
    """Write an array with zarr-python."""
    options = {"dtype": data.dtype, "chunks": (3, 2), **options}
    made = zarr.create_array(store=str(folder), shape=data.shape, zarr_format=zarr_format, **options)
    made[...] = data


def spec(folder, zarr_format, **members):
    """Return the spec of an array in a folder."""
    driver = "zarr3" if zarr_format == 3 else "zarr"
    return {"driver": driver, "kvstore": {"driver": "file", "path": f"{folder}/"}, **members}


def agree(folder, data, zarr_format, **options):
    """Write with zarr-python, read and change with fsstore, create anew with the same metadata, read with zarr-python."""
    by_zarr(folder / "z", data, zarr_format, **options)
    store = ts.open(spec(folder / "z", zarr_format)).result()
    assert (store.read().result() == data).all()
    store[1:].write(data[:-1]).result()
    changed = np.concatenate([data[:1], data[:-1]])
    assert (np.asarray(zarr.open_array(str(folder / "z"), mode="r")[...]) == changed).all()
    document = json.loads((folder / "z" / ("zarr.json" if zarr_format == 3 else ".zarray")).read_text())
    metadata = {name: value for name, value in document.items() if name != "storage_transformers"}
    made = ts.open(spec(folder / "f", zarr_format, metadata=metadata), create=True).result()
    made.write(data).result()
    again = zarr.open_array(str(folder / "f"), mode="r")
    assert (np.asarray(again[...]) == data).all()
    assert again.shape == data.shape


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes(dtype, zarr_format, tmp_path):
    """Data types, in either byte order; times and fixed-length strings too."""
    agree(tmp_path, values(dtype), zarr_format)


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("name", ["text", "octets"])
def test_variable_length(name, zarr_format, tmp_path):
    """Strings and bytes of variable length."""
    kind = zarr.dtype.VariableLengthUTF8() if name == "text" else zarr.dtype.VariableLengthBytes()
    agree(tmp_path, TEXT if name == "text" else OCTETS, zarr_format, dtype=kind)


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("dtype", ["i4", "M8[s]", "U3", "S3", "ustring", "string"])
def test_created_by_dtype(dtype, zarr_format, tmp_path):
    """Arrays created by a dtype alone are read by zarr-python; what was not written is empty."""
    kind = ts.dtype(dtype) if dtype in ("ustring", "string") else np.dtype(dtype)
    store = ts.open(spec(tmp_path / "a", zarr_format), create=True, dtype=kind, shape=[4, 5]).result()
    data = {"ustring": TEXT, "string": OCTETS}.get(dtype, values(dtype if len(dtype) < 6 else "i4", (2, 3)))
    store[:2, :3].write(data).result()
    found = np.asarray(zarr.open_array(str(tmp_path / "a"), mode="r")[...])
    assert (found[:2, :3] == data).all()
    np.testing.assert_array_equal(found, store.read().result())


FILTERS = [
    (numcodecs.Delta(dtype="i4"), "i4"),
    (numcodecs.FixedScaleOffset(offset=0, scale=1, dtype="i4"), "i4"),
    (numcodecs.Quantize(3, "f8"), "f8"),
    (numcodecs.BitRound(10), "f4"),
    (numcodecs.Shuffle(4), "i4"),
    (numcodecs.PackBits(), "bool"),
    (numcodecs.AsType("i4", "i8"), "i8"),
]
COMPRESSORS = [
    None,
    numcodecs.LZ4(),
    numcodecs.LZMA(),
    numcodecs.BZ2(),
    numcodecs.GZip(),
    numcodecs.Zlib(),
    numcodecs.Zstd(),
    numcodecs.Blosc(),
    numcodecs.Blosc("zstd", shuffle=2),
]


@pytest.mark.parametrize(("codec", "dtype"), FILTERS, ids=lambda value: getattr(value, "codec_id", ""))
def test_filters(codec, dtype, tmp_path):
    """zarr v2 filters."""
    agree(tmp_path, values(dtype), 2, filters=[codec])


@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("codec", COMPRESSORS, ids=lambda codec: getattr(codec, "codec_id", "none"))
def test_compressors(codec, order, tmp_path):
    """zarr v2 compressors, in both orders."""
    agree(tmp_path, values("i4"), 2, compressors=codec, order=order)


NAMED = "LZ4 BZ2 Zlib LZMA GZip Zstd Blosc CRC32 Adler32 Fletcher32 JenkinsLookup3".split()
V3 = {
    "delta": lambda: {"filters": [v3_numcodecs.Delta(dtype="<i4")]},
    "shuffle": lambda: {"compressors": [v3_numcodecs.Shuffle(elementsize=4)]},
    **{name: lambda name=name: {"compressors": [getattr(v3_numcodecs, name)()]} for name in NAMED},
    "shards": lambda: {"shards": (6, 4)},
    "gzip": lambda: {"compressors": [zarr.codecs.GzipCodec(level=3)]},
    "blosc": lambda: {"compressors": [zarr.codecs.BloscCodec()]},
    "transpose": lambda: {"filters": [zarr.codecs.TransposeCodec(order=(1, 0))]},
    "crc32c": lambda: {"compressors": [zarr.codecs.Crc32cCodec()]},
    "big": lambda: {"serializer": zarr.codecs.BytesCodec(endian="big")},
}


@pytest.mark.parametrize("name", V3)
def test_v3_codecs(name, tmp_path):
    """zarr v3 codecs, those of numcodecs included."""
    agree(tmp_path, values("i4"), 3, **V3[name]())


@pytest.mark.parametrize("field", ["a", "b"])
def test_v2_fields(field, tmp_path):
    """A field of a structured zarr v2 array; writing it leaves the other alone."""
    data = np.zeros((7, 5), [("a", "<i4"), ("b", ">f8")])
    data["a"], data["b"] = values("i4"), values("f8")
    by_zarr(tmp_path / "a", data, 2)
    store = ts.open(spec(tmp_path / "a", 2, field=field)).result()
    assert (store.read().result() == data[field]).all()
    store[2:4, 1:3].write(data[field][:2, :2]).result()
    data[field][2:4, 1:3] = data[field][:2, :2]
    assert (zarr.open_array(str(tmp_path / "a"), mode="r")[...] == data).all()


FIELDS = np.dtype([("a", "<M8[s]"), ("b", "<i4")])


@pytest.mark.parametrize("dtype", [*DTYPES, ">M8[s]", FIELDS], ids=str)
def test_no_fill_value(dtype, tmp_path):
    """What is not stored of an array of zarr v2 without a fill value reads alike, also beside what is."""
    made = zarr.create_array(str(tmp_path), shape=6, chunks=2, dtype=np.dtype(dtype), fill_value=None, zarr_format=2)
    field = {"field": "a"} if dtype is FIELDS else {}
    store = ts.open(spec(tmp_path, 2, **field)).result()
    store[3].write(values(dtype if dtype is not FIELDS else "M8[s]")[0, 0]).result()
    theirs = np.asarray(made[:])
    np.testing.assert_array_equal(store.read().result(), theirs["a"] if field else theirs)


def test_v3_structures(tmp_path):
    """A structured zarr v3 array as a whole."""
    data = np.zeros((7, 5), [("a", "<i4"), ("b", "<f8")])
    data["a"], data["b"] = values("i4"), values("f8")
    agree(tmp_path, data, 3)


def test_consolidated_and_groups(tmp_path):
    """Arrays in a group with consolidated metadata open by their path; the group itself is no array."""
    for zarr_format in (2, 3):
        root = zarr.open_group(str(tmp_path / f"g{zarr_format}"), mode="w", zarr_format=zarr_format)
        made = root.create_array("x/y", shape=(4,), dtype="i4", chunks=(2,))
        made[...] = [1, 2, 3, 4]
        with warnings.catch_warnings():
            zarr.consolidate_metadata(str(tmp_path / f"g{zarr_format}"))
        store = ts.open(spec(tmp_path / f"g{zarr_format}" / "x" / "y", zarr_format)).result()
        assert store.read().result().tolist() == [1, 2, 3, 4]
        with pytest.raises(ValueError, match="Error opening"):
            ts.open(spec(tmp_path / f"g{zarr_format}", zarr_format)).result()


def test_names_and_attributes(tmp_path):
    """Dimension names are labels; attributes are kept, also when the array is resized."""
    by_zarr(tmp_path / "a", values("i4"), 3, dimension_names=("y", "x"), attributes={"a": [1, {"b": None}]})
    store = ts.open(spec(tmp_path / "a", 3)).result()
    assert store.domain.labels == ("y", "x")
    store.resize(exclusive_max=[9, 5]).result()
    again = zarr.open_array(str(tmp_path / "a"), mode="r")
    assert again.shape == (9, 5)
    assert dict(again.attrs) == {"a": [1, {"b": None}]}
    assert again.metadata.dimension_names == ("y", "x")
