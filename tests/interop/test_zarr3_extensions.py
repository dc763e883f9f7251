"""Extensions of zarr version 3 against their other implementations: N5 of TensorStore, zfp, and the registry's bytes."""

from __future__ import annotations

import json
from typing import Any

import imagecodecs
import ml_dtypes
import numpy as np
import pytest
import tensorstore
import zfpy

import fsstore
from fsstore.errors import StoreError


def array(values: Any, codecs: list[Any], chunks: tuple[int, ...], kind: str | None = None, **members: Any) -> Any:
    """Return a new array in memory that holds the values."""
    metadata = {
        "shape": list(values.shape),
        "data_type": kind or values.dtype.name,
        "codecs": codecs,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(chunks)}},
        **members,
    }
    store = fsstore.open({"driver": "zarr3", "kvstore": "memory://", "metadata": metadata}, create=True).result()
    store.write(values).result()
    return store


def reread(store: Any) -> Any:
    """Return what a store holds, opened again."""
    return fsstore.open({"driver": "zarr3"}, kvstore=store.kvstore).result().read().result()


REVERSED = {"name": "transpose", "configuration": {"order": [1, 0]}}
BIG = {"name": "bytes", "configuration": {"endian": "big"}}


@pytest.mark.parametrize("stage", [[], [{"name": "gzip", "configuration": {"level": 6}}]])
@pytest.mark.parametrize("dtype", ["uint16", "float64", "int8"])
def test_blocks_of_n5(stage: list[Any], dtype: str):
    """`n5_default` writes what TensorStore's `n5` writes, byte by byte, and reads it, short blocks too."""
    values = np.arange(35).reshape(7, 5).astype(dtype)
    pack = BIG if values.itemsize > 1 else {"name": "bytes"}
    codec = {"name": "n5_default", "configuration": {"codecs": [REVERSED, pack, *stage]}}
    keys = {"name": "v2", "configuration": {"separator": "/"}}
    ours = array(values, [codec], (3, 2), chunk_key_encoding=keys)
    compression = {"type": "gzip", "level": 6} if stage else {"type": "raw"}
    n5 = {
        "driver": "n5", "kvstore": "memory://", "metadata": {
            "compression": compression, "dataType": dtype, "dimensions": [7, 5], "blockSize": [3, 2],
        },
    }  # fmt: skip
    theirs = tensorstore.open(n5, create=True).result()
    theirs.write(values).result()
    blocks = {key: theirs.kvstore[key] for key in theirs.kvstore.list().result() if key != b"attributes.json"}
    assert len(blocks) == 9
    for key, block in blocks.items():
        if not stage:
            full = not key.startswith(b"2") and not key.endswith(b"2")
            assert not full or ours.kvstore[key] == block
        ours.kvstore[key] = block
    assert (reread(ours) == values).all()


def test_blocks_of_another_size():
    """A short block is followed by the fill value, a longer one is cut; what is no block is an error."""
    codec = {"name": "n5_default", "configuration": {"codecs": [REVERSED, BIG]}}
    store = array(np.ones((4, 4), "u2"), [codec], (4, 4), fill_value=9)
    key = b"c/0/0"
    store.kvstore[key] = bytes.fromhex("0000000200000001000000020007 0008")
    assert reread(store).tolist() == [[7, 8, 9, 9], *[[9] * 4] * 3]
    store.kvstore[key] = bytes.fromhex("00000002") + (5).to_bytes(4, "big") * 2 + np.arange(25, dtype=">u2").tobytes()
    assert reread(store).tolist() == np.arange(25).reshape(5, 5).T[:4, :4].tolist()
    for bad in ("", "0000", "000100020000000200000001", "00000003" + "00000001" * 3, "00000002ffffffffffffffff00"):
        store.kvstore[key] = bytes.fromhex(bad)
        with pytest.raises(StoreError, match="c/0/0"):
            reread(store)


@pytest.mark.parametrize("inner", [[BIG], [REVERSED, {"name": "bytes", "configuration": {"endian": "little"}}],
                                   [{"name": "transpose", "configuration": {"order": [0, 1]}}, BIG],
                                   [REVERSED, BIG, {"name": "gzip", "configuration": {"level": 1}}, {"name": "crc32c"}]])  # fmt: skip
def test_codecs_that_make_no_block(inner: list[Any]):
    """What an N5 reader could not read is refused."""
    with pytest.raises(ValueError, match="n5_default"):
        array(np.ones((4, 4), "u2"), [{"name": "n5_default", "configuration": {"codecs": inner}}], (2, 2))


MODES = (
    ({"mode": "reversible"}, {}), ({"mode": "fixed_accuracy", "tolerance": 0.25}, {"tolerance": 0.25}),
    ({"mode": "fixed_rate", "rate": 12}, {"rate": 12}), ({"mode": "fixed_precision", "precision": 19}, {"precision": 19}),
)  # fmt: skip


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode[0]["mode"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64"])
@pytest.mark.parametrize("shape", [(), (7,), (5, 6), (3, 4, 5), (2, 3, 4, 5)])
def test_zfp(mode: Any, dtype: str, shape: tuple[int, ...]):
    """Chunks are what zfpy writes without a header, and are read as zfpy reads them."""
    if mode[1].get("tolerance") and dtype.startswith("int"):
        return  # zfp has no tolerance of integers
    values = np.asarray((np.random.default_rng(1).standard_normal(shape) * 1000)).astype(dtype)
    store = array(values, [{"name": "zfp", "configuration": mode[0]}], shape)
    [key] = [key for key in store.kvstore.list().result() if key != b"zarr.json"]
    expected = zfpy.compress_numpy(values.reshape(shape or (1,)), write_header=False, **mode[1])
    assert store.kvstore[key] == expected
    headed = zfpy.compress_numpy(values.reshape(shape or (1,)), **mode[1])
    assert np.array_equal(reread(store), zfpy.decompress_numpy(headed).reshape(shape))
    whole = reread(store)
    for damaged in (expected[: len(expected) // 16 * 8], expected[:-3], b""):
        store.kvstore[key] = damaged
        with pytest.raises(StoreError, match="zfp"):
            reread(store)
    store.kvstore[key] = expected[:-8]  # a word may be left over; if it is not, that is noticed
    try:
        found = reread(store)
    except StoreError as error:
        assert "Truncated" in str(error)
    else:
        assert np.array_equal(found, whole)


EXPERT = (
    (1, 2000, 16, -20), (1, 300, 12, -1074), (64, 64, 64, -1074), (0, 16658, 64, -1074), (100, 200, 30, 0), (13, 13, 19, -2),
    (600, 9000, 20, 3), (1, 16658, 64, -1075),
)  # fmt: skip


@pytest.mark.parametrize("parameters", EXPERT, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64"])
def test_zfp_by_experts(parameters: tuple[int, int, int, int], dtype: str):
    """The mode `expert` gives the numbers that imagecodecs and zfpy give, and where it means another mode, its bytes."""
    mode = dict(zip(("minbits", "maxbits", "maxprec", "minexp"), parameters, strict=True))
    for shape in ((), (7,), (5, 6), (3, 4, 5), (2, 3, 4, 5), (40, 41)):
        values = np.asarray((np.random.default_rng(1).standard_normal(shape) * 1000)).astype(dtype)
        store = array(values, [{"name": "zfp", "configuration": {"mode": "expert", **mode}}], shape)
        [key] = [key for key in store.kvstore.list().result() if key != b"zarr.json"]
        flat = values.reshape(shape or (1,))
        headed = imagecodecs.zfp_encode(flat, (*parameters[:3], parameters[3] % 2**32), mode="expert")
        assert np.array_equal(reread(store), zfpy.decompress_numpy(headed).reshape(shape))
        if parameters == (64, 64, 64, -1074):
            assert store.kvstore[key] == zfpy.compress_numpy(flat, write_header=False, rate=64 / 4**flat.ndim)
        whole = store.kvstore[key]
        for damaged in (whole[:-3], whole[: len(whole) // 16 * 8], b"", whole * 1000):
            store.kvstore[key] = damaged
            with pytest.raises(StoreError, match="zfp|decode|long"):
                reread(store)


def test_zfp_that_experts_cannot_have():
    """Fewer bits at most than at least, or than an exponent takes, are refused when the array is made."""
    for wrong in ({"minbits": 9, "maxbits": 8}, {"minbits": 1, "maxbits": 8}):
        mode = {"mode": "expert", "maxprec": 64, "minexp": -1074, **wrong}
        with pytest.raises(StoreError, match="maxbits"):
            array(np.zeros(4, "f4"), [{"name": "zfp", "configuration": mode}], (4,))


@pytest.mark.parametrize("configuration", [{}, {"mode": "fixed_rate"}, {"mode": "reversible", "rate": 3}, {"mode": "x"},
                                           {"mode": "expert", "minbits": 1}, {"mode": "reversible", "minexp": 1}])  # fmt: skip
def test_zfp_that_is_not_said_right(configuration: dict[str, Any]):
    """A mode has its parameter and no other."""
    document = {
        "zarr_format": 3, "node_type": "array", "shape": [4], "data_type": "float32", "fill_value": 0,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4]}},
        "chunk_key_encoding": {"name": "default"}, "codecs": [{"name": "zfp", "configuration": configuration}],
    }  # fmt: skip
    store = fsstore.KvStore.open("memory://").result()
    store["zarr.json"] = json.dumps(document).encode()
    with pytest.raises((ValueError, NotImplementedError), match="mode"):
        fsstore.open({"driver": "zarr3"}, kvstore=store).result()


SMALL = {"uint2": 4, "uint4": 16, "float6_e2m3fn": 64, "float6_e3m2fn": 64, "float8_e4m3": 256, "int2": 4, "int4": 16}


@pytest.mark.parametrize("name", SMALL)
def test_small_types(name: str):
    """Every value of a small type is stored as the registry says: its low bits, one byte an element, or packed."""
    native = np.dtype(getattr(ml_dtypes, name))
    codes = np.arange(SMALL[name], dtype="u1")
    values = codes.view(native)
    if name in ("int2", "int4"):  # held with their sign in all of the byte
        values = np.arange(-SMALL[name] // 2, SMALL[name] // 2).astype(native)
    plain = array(values, [{"name": "bytes"}], (len(codes),), name, fill_value=1)
    stored = np.frombuffer(plain.kvstore[b"c/0"], "u1")
    assert ((stored & (SMALL[name] - 1)) == (values.view("u1") & (SMALL[name] - 1))).all()
    assert np.array_equal(reread(plain).astype("f4"), values.astype("f4"), equal_nan=True)
    packed = array(values, [{"name": "packbits"}], (len(codes),), name, fill_value=1)
    assert len(packed.kvstore[b"c/0"]) == -(-len(codes) * (SMALL[name] - 1).bit_length() // 8)
    assert np.array_equal(reread(packed).astype("f4"), values.astype("f4"), equal_nan=True)
    assert fsstore.Spec(plain.spec().to_json()).dtype.name == name
    shown = fsstore.cast(plain, "float32").read().result()
    assert np.array_equal(shown, values.astype("f4"), equal_nan=True)


def test_types_beside_those_of_tensorstore_are_named_alike():
    """They are found by name, by NumPy type and as scalars, as TensorStore's own small types are."""
    for name in set(SMALL) - {"int2", "int4"}:
        kind = getattr(ml_dtypes, name)
        assert fsstore.dtype(kind) == fsstore.dtype(np.dtype(kind)) == fsstore.dtype(name)
        assert fsstore.Schema(dtype=name, fill_value=kind(1)).to_json()["fill_value"] == 1
        assert fsstore.open(fsstore.array(np.ones(2, kind)).spec()).result().read().result().tolist() == [1, 1]


@pytest.mark.parametrize("place", ["codecs", "chunk_grid", "chunk_key_encoding", "data_type"])
@pytest.mark.parametrize("flag", [True, False])
def test_what_is_known_may_say_whether_it_must_be_understood(place: str, flag: bool):
    """`must_understand` beside a name that is known changes nothing; one that is not known is refused all the same."""
    document: dict[str, Any] = {
        "zarr_format": 3, "node_type": "array", "shape": [4], "data_type": {"name": "int8"}, "fill_value": 0,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4]}},
        "chunk_key_encoding": {"name": "default"}, "codecs": [{"name": "bytes"}],
    }  # fmt: skip
    member = document[place][0] if place == "codecs" else document[place]
    store = fsstore.KvStore.open("memory://").result()
    for wanted, opens in ((flag, True), ("yes", False)):
        member["must_understand"] = wanted
        store["zarr.json"] = json.dumps(document).encode()
        opening = fsstore.open({"driver": "zarr3"}, kvstore=store)
        assert (opening.exception() is None) == opens
    member |= {"must_understand": flag, "name": "nobody.knows"}
    store["zarr.json"] = json.dumps(document).encode()
    with pytest.raises(ValueError, match=r"nobody\.knows"):
        fsstore.open({"driver": "zarr3"}, kvstore=store).result()
