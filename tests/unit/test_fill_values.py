"""Fill values of every kind of element: what is stored, shown, asked for and read is one value."""

import base64
import json

import numpy as np
import pytest

import fsstore as ts

VALUES = [
    ("ustring", "a?é"),
    ("string", b"\xffa"),
    (np.dtype("U3"), "ab"),
    (np.dtype("S3"), b"ab"),
    (np.dtype("M8[ns]"), np.datetime64(5, "ns")),
    (np.dtype("m8[s]"), np.timedelta64("NaT", "s")),
    (np.dtype("V2"), np.void(b"ab")),
    ("bool", True),
    ("int4", -3),
    ("bfloat16", 1.5),
    ("float32", float("nan")),
    ("complex64", complex(1, 2)),
]
DOCUMENTS = {"zarr": ".zarray", "zarr3": "zarr.json"}


@pytest.mark.parametrize("driver", DOCUMENTS)
@pytest.mark.parametrize(("dtype", "value"), VALUES, ids=lambda value: str(value))
def test_created_shown_and_asked_for(driver, dtype, value):
    """A fill value given on creation fills what is missing, is shown by the array and its spec, and opens it again."""
    context = ts.Context()
    spec = {"driver": driver, "kvstore": "memory://a/"}
    store = ts.open(spec, create=True, dtype=dtype, shape=[3], fill_value=value, context=context).result()
    kind = store.dtype.numpy_dtype
    expected = np.array(value, kind)
    found = [store.fill_value, store.schema.fill_value, store.spec().fill_value, store.read().result()[1]]
    found.append(ts.Spec(store.spec().to_json()).fill_value)
    for each in found:
        if kind.kind == "O":
            assert each[()] == value if isinstance(each, np.ndarray) else each == value
        else:
            assert np.asarray(each, kind).tobytes() == expected.tobytes()
    if dtype != "string":  # octets that are no text
        assert ts.Schema(store.schema.to_json()) == store.schema
    again = ts.open(spec, fill_value=value, context=context).result()
    assert again.read().result()[0:1].tolist() == store[0:1].read().result().tolist() or value != value
    with pytest.raises(ValueError, match="schema requires fill value of"):
        other = np.zeros((), kind) if kind.kind != "O" else ("b" if dtype == "ustring" else b"b")
        ts.open(spec, fill_value=other, context=context).result()


@pytest.mark.parametrize("driver", DOCUMENTS)
@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize(("dtype", "value"), VALUES[:6], ids=lambda value: str(value))
def test_one_element_is_written(driver, dtype, value, sharded):
    """Writing one element compares it with the fill value, of objects and texts too: equal ones are not stored."""
    if driver == "zarr" and sharded:
        return
    kind = ts.dtype(dtype).numpy_dtype
    layout = {"write_chunk_shape": [2], "read_chunk_shape": [1]} if sharded else {"chunk_shape": [2]}
    spec = {"driver": driver, "kvstore": "memory://"}
    for shape in ([3], []):
        store = ts.open(
            spec,
            create=True,
            dtype=dtype,
            shape=shape,
            fill_value=value,
            chunk_layout=ts.ChunkLayout(**layout) if shape else None,
        ).result()
        one = store[0] if shape else store
        one.write(value).result()
        assert len(store.kvstore.list().result()) == 1
        other = ("b" if kind.kind == "O" else np.zeros((), kind)) if dtype != "string" else b"b"
        one.write(other).result()
        assert len(store.kvstore.list().result()) == 2
        assert np.asarray(one.read().result()).tolist() == np.asarray(other, kind).tolist()


@pytest.mark.parametrize("dtype", [">M8[ns]", "<M8[ns]", ">m8[us]"])
def test_times_in_either_byte_order(dtype):
    """The fill value of times is a number, whatever the byte order of the elements."""
    metadata = {"shape": [3], "chunks": [2], "dtype": dtype, "fill_value": 7, "compressor": None}
    spec = {"driver": "zarr", "kvstore": "memory://", "metadata": metadata}
    store = ts.open(spec, create=True).result()
    store[0].write(np.array(9, store.dtype.numpy_dtype)).result()
    assert store.read().result().astype("i8").tolist() == [9, 7, 7]
    store.resize(exclusive_max=[4]).result()
    assert json.loads(store.kvstore[".zarray"])["fill_value"] == 7
    assert store.spec().to_json()["metadata"]["fill_value"] == 7


@pytest.mark.parametrize(
    ("fill", "filters", "shown", "read"),
    [
        ("zz", "vlen-utf8", "zz", "zz"),
        (0, "vlen-utf8", "", ""),
        (None, "vlen-utf8", None, ""),
        ("YQ==", "vlen-bytes", b"a", b"a"),
        (None, "vlen-bytes", None, b""),
        ({"a": 2}, "json2", {"a": 2}, {"a": 2}),
        ([1, 2], "json2", [1, 2], [1, 2]),
        (None, "json2", None, None),
    ],
)
def test_objects_of_version_2(fill, filters, shown, read):
    """The fill value of objects is shown as an element; null is none at all."""
    metadata = {"shape": [2], "chunks": [2], "dtype": "|O", "fill_value": fill, "filters": [{"id": filters}]}
    store = ts.open({"driver": "zarr", "kvstore": "memory://", "metadata": metadata}, create=True).result()
    assert (None if store.fill_value is None else store.fill_value[()]) == shown
    assert store.read().result().tolist() == [read, read]
    assert json.loads(store.kvstore[".zarray"])["fill_value"] == fill
    assert ts.open(store.spec(retain_context=True)).result().shape == (2,)


@pytest.mark.parametrize(
    ("fill", "expected"), [("YWI=", b"ab"), ([97, 98], b"ab"), ("", b""), ("Y", None), ("é", None), ([256], None)]
)
def test_octets_of_version_3(fill, expected):
    """Octets are written as base64 or as a list of numbers; anything else is an error of the document."""
    document = {"zarr_format": 3, "node_type": "array", "shape": [2], "data_type": "variable_length_bytes"}
    document["chunk_grid"] = {"name": "regular", "configuration": {"chunk_shape": [2]}}
    document["chunk_key_encoding"] = {"name": "default"}
    document |= {"codecs": [{"name": "vlen-bytes"}], "fill_value": fill}
    context = ts.Context()
    ts.KvStore.open("memory://", context=context).result()["zarr.json"] = json.dumps(document).encode()
    opening = ts.open("memory://|zarr3:", context=context)
    if expected is None:
        with pytest.raises(ValueError, match='Error parsing object member "fill_value"'):
            opening.result()
    else:
        assert opening.result().read().result().tolist() == [expected, expected]


@pytest.mark.parametrize(
    ("driver", "metadata"),
    [("zarr", {"dtype": "<U0", "fill_value": ""}), ("zarr3", {"data_type": "foo", "fill_value": 1})],
)
def test_one_problem_is_one_message(driver, metadata):
    """A bad data type is reported once: the fill value beside it is not called bad too."""
    with pytest.raises(ValueError, match="foo|U0") as caught:
        ts.Spec({"driver": driver, "kvstore": "memory://", "metadata": metadata})
    assert "fill_value" not in str(caught.value)


@pytest.mark.parametrize("value", [b"ab", b"", b"a\0b"])
def test_zeros_at_the_end_of_octets_are_not_stored(value):
    """Strings of fixed length are stored as zarr-python stores them: shorter than an element, where they are."""
    store = ts.open(
        {"driver": "zarr3", "kvstore": "memory://"}, create=True, dtype=np.dtype("S4"), shape=[1], fill_value=value
    ).result()
    document = json.loads(store.kvstore["zarr.json"])
    assert base64.b64decode(document["fill_value"]) == value
    store.resize(exclusive_max=[2]).result()
    assert json.loads(store.kvstore["zarr.json"]) == {**document, "shape": [2]}
    assert store.resolve().result().read().result().tolist() == [value, value]


SIGNALING = [("float16", "0x7c01"), ("bfloat16", "0x7f81"), ("bfloat16", "0xff81")]
SIGNALING += [("float32", "0xff800001"), ("float64", "0x7ff0000000000001"), ("float8_e5m2", "0x7d")]


@pytest.mark.parametrize(("name", "bits"), SIGNALING)
def test_signaling_nans(name, bits):
    """Such a fill value is kept bit by bit, and nothing that is made of it warns."""
    metadata = {"shape": [4], "data_type": name, "fill_value": bits}
    spec = {"driver": "zarr3", "kvstore": "memory://", "metadata": metadata}
    context = ts.Context()
    store = ts.open(spec, create=True, context=context).result()
    assert json.loads(store.kvstore["zarr.json"])["fill_value"] == bits
    assert store.read().result().tobytes() == int(bits, 16).to_bytes(len(bits) // 2 - 1, "little") * 4
    assert np.isnan(float(store.schema.to_json()["fill_value"]))
    assert ts.open(store.spec(), context=context).result().shape == (4,)
    assert np.isnan(ts.downsample(store, [2], "mean").read().result().astype("f8")).all()
    assert np.isnan(ts.cast(store, "float64").read().result()).all()
