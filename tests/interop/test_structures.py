"""Elements that are structures: one field of them, or their bytes, in zarr v2 and v3; compared with TensorStore."""

import ctypes
import json
import pickle

import numpy as np
import pytest
import tensorstore
import zarr

import fsstore as ts
from fsstore.errors import StoreError

KNOWS_STRUCT = hasattr(zarr.dtype, "Struct")  # zarr-python 3.1 has `structured` only
PAIRS = [["x", "uint8"], ["y", "int16"]]
OBJECTS = [{"name": name, "data_type": kind} for name, kind in PAIRS]
STRUCT = {"name": "struct", "configuration": {"fields": OBJECTS}}
GRID = {"name": "regular", "configuration": {"chunk_shape": [4, 3]}}
LITTLE, BIG = ([{"name": "bytes", "configuration": {"endian": order}}] for order in ("little", "big"))
SHARDS = [{"name": "sharding_indexed", "configuration": {"chunk_shape": [2, 3], "codecs": BIG}}]
TURNED = [
    {"name": "transpose", "configuration": {"order": [1, 0]}},
    {"name": "sharding_indexed", "configuration": {"chunk_shape": [3, 2]}},
]
V3 = {
    "plain": {"data_type": STRUCT, "codecs": LITTLE},
    "big": {"data_type": STRUCT, "codecs": BIG, "fill_value": {"x": 1, "y": 258}},
    "zstd": {"data_type": STRUCT, "codecs": [*LITTLE, {"name": "zstd", "configuration": {"level": 1}}]},
    "shards": {"data_type": STRUCT, "codecs": SHARDS, "fill_value": {"x": 3, "y": -2}},
    "turned shards": {"data_type": STRUCT, "codecs": TURNED},
}
FIELDS = [["x", "|u1"], ["y", ">i2"], ["z", "<f4", [2]]]
V2 = {
    "C": {"dtype": FIELDS, "compressor": None},
    "F": {"dtype": FIELDS, "order": "F", "compressor": {"id": "zlib", "level": 1}},
    "fill": {"dtype": FIELDS[:2], "fill_value": "AQEC"},
    "fill of parts": {"dtype": FIELDS, "fill_value": "AQECAACAPwAAAEA="},
}
ARRAYS = [("zarr3", name, {"chunk_grid": GRID, **each}) for name, each in V3.items()]
ARRAYS += [("zarr", name, {"chunks": [4, 3], **each}) for name, each in V2.items()]
EVERY = pytest.mark.parametrize(
    ("driver", "metadata"),
    [(driver, metadata) for driver, _, metadata in ARRAYS],
    ids=[f"{driver} {name}" for driver, name, _ in ARRAYS],
)


def fields_of(metadata):
    """Return the fields of an array and the shapes they add."""
    if "dtype" in metadata:
        return {name: tuple(*shape) for name, _, *shape in metadata["dtype"]}
    return {"x": (), "y": ()}


class Both:
    """The same array in both libraries."""

    def __init__(self, driver, metadata):
        self.spec = {"driver": driver, "kvstore": {"driver": "memory"}}
        self.metadata = {"shape": [6, 5], **metadata}
        self.contexts = {module: module.Context() for module in (ts, tensorstore)}

    def open(self, module, **members):
        """Open it, or the part that the members choose."""
        return module.open({**self.spec, **members}, context=self.contexts[module]).result()

    def create(self, **members):
        """Create it in both."""
        for module in (ts, tensorstore):
            spec = {**self.spec, "metadata": self.metadata, **members}
            module.open(spec, create=True, context=self.contexts[module]).result()

    def files(self):
        """Return all files of both."""
        found = []
        for module, context in self.contexts.items():
            store = module.KvStore.open({"driver": "memory"}, context=context).result()
            found.append({key: store[key] for key in store.list().result()})
        return found


@EVERY
def test_fields(driver, metadata):
    """Fields are read and written alike; writing a part of one keeps the others; the files are the same."""
    both = Both(driver, metadata)
    names = fields_of(metadata)
    both.create(field="y")
    rng = np.random.default_rng(0)
    for name, inner in names.items():
        stores = [both.open(module, field=name) for module in (ts, tensorstore)]
        assert stores[0].domain == ts.IndexDomain(json=stores[1].domain.to_json())
        for part in (slice(None), slice(1, 5), slice(0, 6, 2)):
            values = rng.integers(0, 99, stores[0][part].shape).astype(stores[0].dtype.numpy_dtype)
            for store in stores:
                store[part].write(values).result()
        assert stores[0].read().result().tolist() == stores[1].read().result().tolist()
        assert stores[0][2, 1].read().result().shape == inner
        assert stores[0].schema.to_json() == stores[1].schema.to_json()
        assert stores[0].spec().to_json() == stores[1].spec().to_json()
    mine, theirs = both.files()
    assert mine.keys() == theirs.keys()
    if metadata.get("compressor", 0) is None or "codecs" in metadata:
        assert {key: value for key, value in mine.items() if b"zarr" not in key} == {
            key: value for key, value in theirs.items() if b"zarr" not in key
        }
    other = module_with(tensorstore, mine)
    for name in names:
        read = tensorstore.open({**both.spec, "field": name}, context=other).result().read().result()
        assert read.tolist() == both.open(ts, field=name).read().result().tolist()


def module_with(module, files):
    """Return a context whose memory store has the files."""
    context = module.Context()
    store = module.KvStore.open({"driver": "memory"}, context=context).result()
    for key, value in files.items():
        store[key] = value
    return context


@EVERY
def test_bytes(driver, metadata):
    """Opened as void, elements are the bytes that are stored, in a dimension of their own."""
    both = Both(driver, metadata)
    both.create(field="x")
    both.open(ts, field="y")[1:4].write(np.arange(15, dtype="i2").reshape(3, 5)).result()
    both.open(tensorstore, field="y")[1:4].write(np.arange(15, dtype="i2").reshape(3, 5)).result()
    mine, theirs = (both.open(module, open_as_void=True) for module in (ts, tensorstore))
    assert mine.dtype == "byte"
    assert mine.domain == ts.IndexDomain(json=theirs.domain.to_json())
    values, other = mine.read().result(), theirs.read().result()
    assert values.tobytes() == ctypes.string_at(other.ctypes.data, values.size)
    chunk = ts.IndexDomain(shape=[4, 3, values.shape[2]])
    assert mine.chunk_layout.write_chunk_template == chunk
    whole = np.random.default_rng(0).integers(0, 256, values.shape, np.uint8)
    mine.write(whole.view("V1")).result()
    assert (mine.read().result().view(np.uint8) == whole).all()
    assert (mine[2:5, 1, 1:3].read().result().view(np.uint8) == whole[2:5, 1, 1:3]).all()
    mine[3, 2, 0].write(np.array(7, np.uint8).view("V1")).result()
    assert both.open(ts, field="x")[3, 2].read().result() == 7
    again = tensorstore.open({**both.spec, "field": "y"}, context=module_with(tensorstore, both.files()[0])).result()
    assert again.read().result().tolist() == both.open(ts, field="y").read().result().tolist()


@EVERY
def test_created_as_bytes(driver, metadata):
    """An array may be created through either part of it; the document is the same."""
    documents = []
    for part in ({"field": "y"}, {"open_as_void": True}):
        spec = {"driver": driver, "kvstore": {"driver": "memory"}, "metadata": {"shape": [6, 5], **metadata}}
        store = ts.open({**spec, **part}, create=True).result()
        document = "zarr.json" if driver == "zarr3" else ".zarray"
        documents.append(store.kvstore[document])
        assert {name: store.spec().to_json().get(name) for name in part} == part
        copy = pickle.loads(pickle.dumps(store))
        assert (copy.dtype, copy.domain) == (store.dtype, store.domain)
        assert ts.Spec(store.spec().to_json()).domain.shape == store.domain.shape
    assert documents[0] == documents[1]


@EVERY
def test_missing_elements(driver, metadata):
    """What was never written is the part of the fill value, for fields and for bytes."""
    both = Both(driver, metadata)
    both.create(field="y")
    for name in fields_of(metadata):
        mine, theirs = (both.open(module, field=name) for module in (ts, tensorstore))
        assert mine.read().result().tolist() == theirs.read().result().tolist()
        assert np.asarray(mine.fill_value).tolist() == np.asarray(theirs.fill_value).tolist()
        for part in (np.s_[2:5], np.s_[1, 2:5], np.s_[1:2, 1], np.s_[3, 3], np.s_[..., -1 + (mine.shape[-1]) :]):
            assert mine[part].read().result().tolist() == theirs[part].read().result().tolist()
    mine, theirs = (both.open(module, open_as_void=True) for module in (ts, tensorstore))
    values, other = mine.read().result(), theirs.read().result()
    assert values.tobytes() == ctypes.string_at(other.ctypes.data, values.size)


@EVERY
def test_resizing(driver, metadata):
    """A resize through one field of several wants leave, as it changes the others; through the bytes it does not."""
    both = Both(driver, metadata)
    both.create(field="y")
    for module in (ts, tensorstore):
        store = both.open(module, field="x")
        with pytest.raises(ValueError, match="resize_tied_bounds"):
            store.resize(exclusive_max=[7, 5]).result()
        store = store.resize(exclusive_max=[7, 5], resize_tied_bounds=True).result()
        assert store.shape == (7, 5)
        octets = both.open(module, open_as_void=True)
        shrunk = octets.resize(exclusive_max=[3, 2, None]).result()
        if (module, driver) != (tensorstore, "zarr3"):  # which goes on with the shape it had
            assert shrunk.shape[:2] == (3, 2)
        with pytest.raises(ValueError, match="Cannot change explicit upper bound"):
            octets.resize(exclusive_max=[None, None, 9]).result()
    assert both.files()[0].keys() == both.files()[1].keys()


REFUSED = {
    "both": {"field": "x", "open_as_void": True},
    "no boolean": {"open_as_void": 1},
    "no text": {"field": 1},
    "unknown": {"field": "q"},
}


@EVERY
@pytest.mark.parametrize("members", REFUSED.values(), ids=REFUSED)
def test_refused(driver, metadata, members):
    """A field that does not exist, and two choices at once, are refused by both."""
    both = Both(driver, metadata)
    both.create(field="x")
    messages = []
    for module in (ts, tensorstore):
        with pytest.raises(ValueError) as caught:  # noqa: PT011  compared below
            both.open(module, **members)
        messages.append(str(caught.value).partition("driver: ")[2] or str(caught.value))
    wanted = messages[1].partition(" [tensorstore_spec")[0]
    assert wanted in messages[0]


@pytest.mark.parametrize("driver", ["zarr3", "zarr"])
def test_plain_elements(driver):
    """Elements that are no structures have no fields, but have bytes; a choice wants the type in the metadata."""
    both = Both(driver, {"data_type" if driver == "zarr3" else "dtype": {"zarr3": "int16", "zarr": ">i2"}[driver]})
    both.create()
    both.open(ts)[2, 3] = 258
    octets = both.open(ts, open_as_void=True)[2, 3].read().result()
    assert octets.tobytes() == (b"\x02\x01" if driver == "zarr3" else b"\x01\x02")
    for module in (ts, tensorstore):
        with pytest.raises(ValueError, match="dtype does not have named fields"):
            both.open(module, field="x")
        for part in ({"field": "x"}, {"open_as_void": True}):
            spec = {"driver": driver, "kvstore": {"driver": "memory"}, **part}
            told = '"dtype" must be specified in "metadata"' if module is ts or "field" in part else "Cannot create"
            with pytest.raises(ValueError, match=told):
                module.open(spec, create=True, dtype="int8", shape=[3, 2]).result()


def test_no_url():
    """A part of the elements has no URL."""
    for driver, what in (("zarr3", "zarr3"), ("zarr", "zarr2")):
        for part, told in (({"field": "x"}, "selected_field"), ({"open_as_void": True}, "open_as_void")):
            for module in (ts, tensorstore):
                spec = module.Spec({"driver": driver, "kvstore": {"driver": "memory"}, **part})
                with pytest.raises(ValueError, match=f"{what} URL syntax not supported with {told} specified"):
                    _ = spec.url


def test_objects_have_no_bytes():
    """Elements of variable length cannot be shown as bytes."""
    context = ts.Context()
    place = {"driver": "zarr3", "kvstore": {"driver": "memory"}}
    ts.open(place, create=True, dtype="ustring", shape=[2], context=context).result()
    with pytest.raises(StoreError, match="fixed size"):
        ts.open({**place, "open_as_void": True}, context=context).result()


def test_whole_structures(tmp_path):
    """Without a choice a structure of several fields is one element, as in zarr-python; of one field it is that field."""
    place = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{tmp_path}/a/"}}
    kind = ts.dtype(np.dtype([("x", "u1"), ("y", "<i2")]))
    whole = ts.open(place, create=True, dtype=kind, shape=[3]).result()
    whole[1] = np.array((1, 258), kind.numpy_dtype)
    assert whole.read().result().tolist() == [(0, 0), (1, 258), (0, 0)]
    assert ts.open({**place, "field": "y"}).result().read().result().tolist() == [0, 258, 0]
    assert tensorstore.open({**place, "field": "y"}).result().read().result().tolist() == [0, 258, 0]
    assert json.loads((tmp_path / "a" / "zarr.json").read_bytes())["data_type"] == STRUCT
    single = {"name": "struct", "configuration": {"fields": OBJECTS[1:]}}
    both = Both("zarr3", {"data_type": single})
    both.create()
    assert both.open(ts).dtype == "int16"
    assert both.open(tensorstore).spec().to_json()["field"] == both.open(ts).spec().to_json()["field"] == "y"
    document = json.loads(both.files()[0][b"zarr.json"])
    assert document["codecs"] == json.loads(both.files()[1][b"zarr.json"])["codecs"]


WHOLES = {
    "flat": np.dtype([("a", "u1"), ("b", "<i4"), ("c", "<f8")]),
    "octets": np.dtype([("a", "u1"), ("b", "i1")]),
    "nested": np.dtype([("a", "u1"), ("n", [("x", "<f4"), ("y", "<i2")])]),
    "extensions": np.dtype(
        [("t", "M8[ns]"), ("s", "U3"), ("r", "S2"), ("v", "V3"), ("d", "m8[s]"), ("z", "c8"), ("q", "?")]
    ),
}


def structures(kind):
    """Return six elements of a type, none of them zero."""
    rows = {"U": ["ab", "c", "def"], "S": [b"a", b"bc", b"d"], "b": [True, False, True]}
    data = np.zeros(6, kind)
    for name in kind.names:
        part = kind[name]
        octets = np.arange(1, 1 + 6 * part.itemsize, dtype=np.uint8)
        data[name] = rows[part.kind] * 2 if part.kind in rows else octets.view(part)
    return data


def older_name(kind):
    """Return a data type with structures under the older name, whose fields are pairs."""
    if not isinstance(kind, dict) or kind["name"] != "struct":
        return kind
    fields = [[part["name"], older_name(part["data_type"])] for part in kind["configuration"]["fields"]]
    return {"name": "structured", "configuration": {"fields": fields}}


def old_and_new(tmp_path, kind, data):
    """Create the array by a dtype alone, through a group, and by metadata that have the older name; return the places."""
    by_dtype = ts.open(f"{tmp_path}/open|zarr3:", create=True, dtype=kind, shape=[6], fill_value=data[2]).result()
    group = ts.open_group(tmp_path / "group", mode="w").result()
    older = {"data_type": older_name(_json(tmp_path / "open")), "shape": [6]}
    spec = {"driver": "zarr3", "kvstore": f"file://{tmp_path}/older/", "metadata": older}
    stores = {
        "open": by_dtype,
        "group/x": group.create_array("x", shape=(6,), dtype=kind, chunks=(4,)).result(),
        "older": ts.open(spec, create=True).result(),
    }
    for store in stores.values():
        store[:5] = data[:5]
    return stores


def _json(place):
    return json.loads((place / "zarr.json").read_bytes())["data_type"]


@pytest.mark.filterwarnings("ignore:The data type")
@pytest.mark.parametrize("kind", WHOLES.values(), ids=WHOLES)
def test_structures_are_those_of_zarr_python(kind, tmp_path):
    """`struct` is written, by dtype alone too, and `structured` is kept; zarr-python reads the same elements."""
    data = structures(kind)
    for name, store in old_and_new(tmp_path, kind, data).items():
        assert _json(tmp_path / name)["name"] == ("structured" if name == "older" else "struct")
        assert ts.open(tmp_path / name).result()[:5].read().result().tobytes() == data[:5].tobytes()
        if name == "older" or KNOWS_STRUCT:
            theirs = zarr.open_array(str(tmp_path / name), mode="r+")
            assert theirs[...].tobytes() == store.read().result().tobytes()
            theirs[5] = data[5]
            assert store.read().result().tobytes() == data.tobytes()
    theirs = zarr.create_array(str(tmp_path / "theirs"), dtype=kind, shape=(6,), chunks=(4,), fill_value=data[1])
    theirs[:4] = data[:4]
    ours = ts.open(tmp_path / "theirs").result()
    assert ours.read().result().tobytes() == theirs[...].tobytes()
    ours[4:] = data[4:]
    assert theirs[...].tobytes() == data.tobytes()


def test_big_endian_fields_are_created():
    """The byte order of the fields of a dtype does not matter, as that of plain elements does not."""
    kind = np.dtype([("a", ">i4"), ("b", [("c", ">f8")])])
    fill = np.array((1, (2.5,)), kind)
    store = ts.open("memory://|zarr3:", create=True, dtype=kind, shape=[2], fill_value=fill).result()
    store[1] = np.array((3, (4.5,)), kind)
    assert store.read().result().tolist() == [(1, (2.5,)), (3, (4.5,))]
    assert store.dtype == ts.dtype(kind) == ts.dtype(kind.newbyteorder("<"))


def test_structures_in_structures_of_version_2(tmp_path):
    """A field of zarr v2 may be a structure, or an array of them, as NumPy lays it out; it is read and written."""
    kind = np.dtype([("p", [("x", "<i4"), ("y", ">f4")]), ("q", "u1"), ("r", [("s", "S2")])])
    data = np.array([((n, n / 2), n, (b"ab",)) for n in range(4)], kind)
    described = [["p", [["x", "<i4"], ["y", ">f4"]]], ["q", "|u1"], ["r", [["s", "|S2"]]]]
    document = {"zarr_format": 2, "shape": [4], "chunks": [2], "dtype": described, "order": "C"}
    document |= {"compressor": None, "filters": None, "fill_value": None}
    (tmp_path / ".zarray").write_text(json.dumps(document))
    for number in range(2):
        (tmp_path / str(number)).write_bytes(data[2 * number : 2 * number + 2].tobytes())
    for name in kind.names:
        field = ts.open(
            {"driver": "zarr", "kvstore": {"driver": "file", "path": f"{tmp_path}/"}, "field": name}
        ).result()
        assert field.read().result().tolist() == data[name].tolist()
        field.write(field.read().result()[::-1]).result()
    stored = b"".join((tmp_path / str(number)).read_bytes() for number in range(2))
    assert stored == data[::-1].tobytes()
    metadata = {"dtype": [["r", [["s", "|S2"], ["t", [["u", ">i2", [2]]]]], [3]], ["q", "|u1"]], "shape": [2]}
    spec = {"driver": "zarr", "kvstore": "memory://", "metadata": metadata, "field": "r"}
    ours = ts.open(spec, create=True).result()
    value = np.array((b"ab", ([1, 2],)), ours.dtype.numpy_dtype)
    ours[1, 2] = value
    assert ours.shape == (2, 3)
    assert str(ours[1, 2].read().result()) == str(value)
    assert ours.spec().to_json()["metadata"]["dtype"] == metadata["dtype"]


@pytest.mark.parametrize(
    "fields",
    [[], [["x", "int8"], ["x", "int8"]], [["x"]], [{"name": "x"}], [["x", "string"]], [["x", "nothing"]], "x"],
    ids=repr,
)
def test_fields_that_are_none(fields):
    """No fields, equal names, missing types and types of variable size make no structure."""
    kind = {"name": "struct", "configuration": {"fields": fields}}
    spec = {"driver": "zarr3", "kvstore": {"driver": "memory"}, "metadata": {"data_type": kind, "shape": [2]}}
    with pytest.raises(StoreError):
        ts.open(spec, create=True).result()


@EVERY
def test_views_in_one_cache(driver, metadata):
    """What is written through one field or as octets is seen by those who have cached others of the same chunks."""
    shared = ts.Context({"cache_pool": {"total_bytes_limit": 1_000_000}})
    spec = {"driver": driver, "kvstore": "memory://s/", "recheck_cached_data": False}
    made = {"create": True, "metadata": {"shape": [8, 6], **metadata}}
    x = ts.open({**spec, **made, "field": "x"}, context=shared).result()
    y = ts.open({**spec, "field": "y"}, context=shared).result()
    octets = ts.open({**spec, "open_as_void": True}, context=shared).result()
    x[...], y[...] = 1, 3
    before = octets.read().result()
    assert np.all(x.read().result() == 1)
    assert np.all(y.read().result() == 3)
    x[...] = 2
    assert not np.array_equal(octets.read().result(), before)
    octets[...] = before
    assert np.all(x.read().result() == 1)
    y[...] = 4
    octets[...] = before
    assert np.all(y.read().result() == 3)


VIEWS = [{"field": "x"}, {"field": "y"}, {"open_as_void": True}]


@EVERY
@pytest.mark.parametrize("which", range(3))
def test_a_resize_is_seen_by_handles_of_other_fields(driver, metadata, which):
    """Handles of other fields, and of the octets, have the new shape at once, without looking at what is stored."""
    both = Both(driver, metadata)
    both.create(field="x")
    seen = {}
    # in zarr v3 TensorStore's handles of octets and of fields do not see each other's resizes
    for module in (ts,) if which == 2 and driver == "zarr3" else (ts, tensorstore):
        *fields, octets = [both.open(module, recheck_cached_metadata=False, **view) for view in VIEWS]
        for handle in fields:
            handle.write(1).result()
        found = seen.setdefault(module, [])
        for shape in ([8, 7], [3, 2], [6, 6]):
            resized = [*fields, octets][which]
            resized.resize(exclusive_max=[*shape, *[None] * (resized.rank - 2)], resize_tied_bounds=True).result()
            found.append([handle.resolve().result().domain.to_json() for handle in fields])
            found.append([handle.read().result().tolist() for handle in fields])
            now = fields[which == 0].resolve().result()
            now[shape[0] - 1 :, shape[1] - 1 :].write(2).result()
            found.append([handle.read().result().tolist() for handle in fields])
            assert [handle.read().result().shape for handle in fields] == [tuple(shape)] * 2
            if module is ts:
                fresh = ts.open({**both.spec, "open_as_void": True}, context=module_with(ts, both.files()[0]))
                assert (octets.read().result() == fresh.result().read().result()).all()
    if tensorstore in seen:
        assert seen[ts] == seen[tensorstore]
        assert set(both.files()[0]) == set(both.files()[1])


@pytest.mark.parametrize("commit", [True, False])
def test_a_resize_in_a_transaction_is_seen_by_handles_of_other_fields(commit):
    """Inside at once, outside after the commit."""
    both = Both("zarr", {"chunks": [4, 3], "dtype": FIELDS})
    both.create(field="x")
    for module in (ts, tensorstore):
        first, other = (both.open(module, field=name) for name in "xz")
        transaction = module.Transaction()
        inside = first.with_transaction(transaction)
        inside.resize(exclusive_max=[9, 9], resize_tied_bounds=True).result()
        assert other.with_transaction(transaction).resolve().result().shape == (9, 9, 2)
        assert other.resolve().result().shape == (6, 5, 2)
        transaction.commit_sync() if commit else transaction.abort()
        assert other.resolve().result().shape == ((9, 9, 2) if commit else (6, 5, 2))
        assert first.resolve().result().shape == ((9, 9) if commit else (6, 5))


def test_a_field_that_is_gone_is_noticed():
    """Handles of a field that another array in the place lacks say so as soon as one has looked."""
    both = Both("zarr", {"chunks": [4, 3], "dtype": FIELDS})
    both.create(field="x")
    for module in (ts, tensorstore):
        trusting = both.open(module, field="y", recheck_cached_metadata=False)
        looking = both.open(module, field="y", recheck_cached_metadata=True)
        document = json.loads(looking.kvstore[".zarray"])
        looking.kvstore[".zarray"] = json.dumps({**document, "dtype": FIELDS[:1], "shape": [9, 9]}).encode()
        assert both.open(module, field="x").shape == (9, 9)
        with pytest.raises(ValueError, match="FAILED_PRECONDITION"):
            looking.resolve().result()
        with pytest.raises(ValueError, match="FAILED_PRECONDITION"):  # what one handle has seen, all know
            trusting.resolve().result()
