"""`open_group` beside zarr-python: what one makes the other reads, and what several writers change stays."""

from __future__ import annotations

import json
import pickle
import threading
import warnings

import numpy as np
import pytest
import xarray
import zarr

import fsstore as ts
from fsstore.errors import StoreError
from fsstore.filesystem.place import live_kv
from fsstore.kvstore.contract.driver import KvPrefix
from fsstore.testing.doubles import Recording
from fsstore.values.dtypes import NAMES

FORMATS = {"zarr 3": 3, "zarr 2": 2, "n5": 0}
WITH_ZARR = {name: number for name, number in FORMATS.items() if number}
VALUES = np.arange(24, dtype="float32").reshape(4, 6)


@pytest.fixture(params=FORMATS.values(), ids=FORMATS.keys())
def version(request):
    return request.param


def made(place, version, **options):
    """Return a group with an array in a group in it."""
    group = ts.open_group(place, mode="w", zarr_format=version).result()
    options = {"chunks": (2, 3), "dimension_names": ["time", "x"], "attributes": {"unit": "K"}, **options}
    array = group.create_array("ocean/temperature", shape=VALUES.shape, dtype="f4", **options).result()
    array[:] = VALUES
    group.create_array("ocean/time", shape=[4], dtype="<i8", dimension_names=["time"]).result()[:] = np.arange(4)
    return group


@pytest.mark.parametrize("codec", ["zstd", "gzip", "blosc", None])
def test_members_are_made_and_read(tmp_path, version, codec):
    """Arrays are made in every format with every short name of a codec, and read back with their attributes."""
    group = made(tmp_path, version, codec=codec)
    again = ts.open_group(str(tmp_path), mode="r").result()
    array = again["ocean/temperature"]
    assert np.array_equal(array.read().result(), VALUES)
    assert dict(array.attrs)["unit"] == "K"
    assert array.chunk_layout.write_chunk.shape == (2, 3)
    assert [name for name, _ in again["ocean"].arrays()] == ["temperature", "time"]
    assert [name for name, _ in again.groups()] == ["ocean"] == list(again) == group.keys()
    assert len(again["ocean"]) == 2


@pytest.mark.parametrize("version", WITH_ZARR.values(), ids=WITH_ZARR.keys())
def test_zarr_python_reads_what_was_made(tmp_path, version):
    """zarr-python and xarray see the same arrays, names of dimensions and attributes, also consolidated."""
    group = made(tmp_path, version)
    group.attrs.update(title="Sea", levels=[1, 2.5, None])
    group["ocean"].attrs["depth"] = {"m": 10}
    assert group.consolidate().result() == []
    for consolidated in (True, False):
        theirs = zarr.open_group(tmp_path, mode="r", use_consolidated=consolidated)
        assert dict(theirs.attrs) == {"title": "Sea", "levels": [1, 2.5, None]}
        assert dict(theirs["ocean"].attrs) == {"depth": {"m": 10}}
        assert np.array_equal(theirs["ocean/temperature"][:], VALUES)
        dataset = xarray.open_zarr(tmp_path, group="ocean", consolidated=False)
        assert dict(dataset.sizes) == {"time": 4, "x": 6}


@pytest.mark.parametrize("version", WITH_ZARR.values(), ids=WITH_ZARR.keys())
def test_what_zarr_python_made_is_changed(tmp_path, version):
    """A group of zarr-python is opened, added to, and read by it again."""
    theirs = zarr.create_group(tmp_path, zarr_format=version, attributes={"a": 1})
    theirs.create_array("x", shape=(3,), dtype="int16", attributes={"deep": {"er": [True]}})[:] = [1, 2, 3]
    group = ts.open_group(tmp_path).result()
    assert group.zarr_format == version
    assert dict(group.attrs) == {"a": 1}
    assert dict(group["x"].attrs) == {"deep": {"er": [True]}}
    group["x"].attrs["new"] = "ü"
    del group["x"].attrs["deep"]
    group.create_group("inner", attributes={"b": 2}).result()
    again = zarr.open_group(tmp_path, mode="r")
    assert dict(again["x"].attrs) == {"new": "ü"}
    assert dict(again["inner"].attrs) == {"b": 2}
    assert again["x"][:].tolist() == [1, 2, 3]


def test_shards(tmp_path):
    """`shards` makes an array of zarr v3 whose chunks lie in shards; other formats refuse by name."""
    group = ts.open_group(tmp_path, mode="a").result()
    store = group.create_array("s", shape=(8, 8), dtype=np.uint8, chunks=(2, 2), shards=(4, 4)).result()
    assert store.chunk_layout.read_chunk.shape == (2, 2)
    assert zarr.open_array(tmp_path / "s").shards == (4, 4)
    other = ts.open_group(tmp_path / "two", mode="a", zarr_format=2).result()
    with pytest.raises(ValueError, match="Shards exist in zarr version 3 only"):
        other.create_array("s", shape=(8, 8), dtype="u1", chunks=(2, 2), shards=(4, 4)).result()


def test_two_writers_of_attributes_lose_nothing(tmp_path, version):
    """Threads that add attributes to one array through stores of their own all find theirs afterwards."""
    made(tmp_path, version)
    handles = [ts.open_group(tmp_path).result()["ocean/temperature"] for _ in range(4)]

    def add(number):
        for step in range(12):
            handles[number].attrs[f"a{number}-{step}"] = step

    threads = [threading.Thread(target=add, args=[number]) for number in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    found = dict(handles[0].attrs.refresh())
    assert {f"a{number}-{step}" for number in range(4) for step in range(12)} <= set(found)
    assert np.array_equal(handles[0].read().result(), VALUES)


@pytest.mark.parametrize("version", WITH_ZARR.values(), ids=WITH_ZARR.keys())
def test_resizing_along_a_dimension(tmp_path, version):
    """All arrays that name the dimension are resized, and consolidated metadata follow."""
    group = made(tmp_path, version)
    group.consolidate().result()
    group.resize(time=6).result()
    theirs = zarr.open_consolidated(tmp_path)
    assert theirs["ocean/temperature"].shape == (6, 6)
    assert theirs["ocean/time"].shape == (6,)
    with pytest.raises(ts.errors.NotFoundError, match='no dimension|has a dimension "tme"; there are time, x'):
        group.resize(tme=3).result()


@pytest.mark.parametrize("version", WITH_ZARR.values(), ids=WITH_ZARR.keys())
def test_consolidated_metadata_follow_changes(tmp_path, version):
    """What is made, deleted, moved or described through a group is so in its consolidated metadata too."""
    group = made(tmp_path, version)
    group.consolidate().result()
    group.create_array("ocean/new", shape=[2], dtype="int8").result()
    group["ocean"].attrs["k"] = 1
    assert zarr.open_consolidated(tmp_path)["ocean/new"].shape == (2,)
    assert dict(zarr.open_consolidated(tmp_path)["ocean"].attrs) == {"k": 1}
    group.move("ocean/new", "land/new").result()
    group.delete("ocean/time").result()
    theirs = zarr.open_consolidated(tmp_path)
    assert sorted(name for name, _ in theirs["ocean"].members()) == ["temperature"]
    assert theirs["land/new"].shape == (2,)
    assert group.consolidate().result() == []


@pytest.mark.parametrize("version", WITH_ZARR.values(), ids=WITH_ZARR.keys())
def test_stale_consolidated_metadata_are_named(tmp_path, version):
    """An array of which consolidated metadata say something else is opened as it is, with a warning that names it."""
    made(tmp_path, version).consolidate().result()
    ts.open(f"file://{tmp_path}/ocean/temperature/|auto:").result()
    document = tmp_path / "ocean/temperature" / ("zarr.json" if version == 3 else ".zarray")
    changed = json.loads(document.read_text())
    changed["shape"] = [5, 6]
    document.write_text(json.dumps(changed))
    group = ts.open_group(tmp_path).result()
    with pytest.warns(UserWarning, match='say something else about "ocean/temperature"'):
        assert group["ocean/temperature"].shape == (5, 6)
    assert group.consolidate().result() == ["ocean/temperature"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert group["ocean/temperature"].shape == (5, 6)


def test_a_prefix_is_no_member(tmp_path, version):
    """A path is names between slashes: `l` is neither `lat` nor `lon`, and deleting it deletes nothing."""
    group = ts.open_group(tmp_path, mode="a", zarr_format=version).result()
    for name in ("lat", "lon"):
        group.create_array(name, shape=[2], dtype="int8").result()[:] = [1, 2]
    assert "l" not in group
    with pytest.raises(ts.errors.NotFoundError, match="no array or group"):
        group.delete("l").result()
    with pytest.raises(KeyError, match='did you mean "lat"'):
        group["latt"]
    assert list(group) == ["lat", "lon"]
    assert list(ts.open_group(f"file://{tmp_path}").result()) == ["lat", "lon"]


def test_members_are_deleted_and_moved(tmp_path, version):
    """Nothing is left of what was deleted; what was moved is the same elsewhere, and nothing is overwritten."""
    group = made(tmp_path, version)
    group.move("ocean/temperature", "archive/old/t").result()
    assert np.array_equal(group["archive/old/t"].read().result(), VALUES)
    assert "ocean/temperature" not in group
    with pytest.raises(ts.errors.AlreadyExistsError):
        group.move("ocean", "archive").result()
    with pytest.raises(ValueError, match="lies inside it"):
        group.move("archive", "archive/inner").result()
    del group["archive"]
    assert [path for path in tmp_path.rglob("*") if "archive" in path.parts and path.is_file()] == []
    assert list(group) == ["ocean"]


def test_what_is_there_is_not_overwritten(tmp_path, version):
    """Creating over something is refused unless `overwrite` says so; `require_*` takes what fits."""
    group = made(tmp_path, version)
    with pytest.raises(ts.errors.AlreadyExistsError, match="overwrite=True"):
        group.create_array("ocean/time", shape=[1], dtype="int8").result()
    with pytest.raises(ValueError, match="is an array, and nothing can be made inside one"):
        group.create_array("ocean/time/x", shape=[1], dtype="int8").result()
    kept = group.require_array("ocean/time", shape=[4], dtype="int64").result()
    assert kept.read().result().tolist() == [0, 1, 2, 3]
    with pytest.raises(ts.errors.FailedPreconditionError, match="no array of shape"):
        group.require_array("ocean/time", shape=[5], dtype="int64").result()
    fresh = group.create_array("ocean/time", shape=[1], dtype="int8", overwrite=True).result()
    assert fresh.read().result().tolist() == [0]
    assert group.require_group("ocean").result().path == "ocean"
    with pytest.raises(ts.errors.FailedPreconditionError, match="is an array"):
        group.require_group("ocean/time").result()


def test_modes(tmp_path):
    """The modes are those of zarr-python, and a group that was opened for reading refuses changes by name."""
    with pytest.raises(ts.errors.NotFoundError, match='create a group with mode="a"'):
        ts.open_group(tmp_path / "none").result()
    made(tmp_path / "g", 3)
    with pytest.raises(ValueError, match='mode="a" opens it'):
        ts.open_group(tmp_path / "g", mode="w-").result()
    assert list(ts.open_group(tmp_path / "g", mode="a").result()) == ["ocean"]
    reader = ts.open_group(tmp_path / "g", mode="r").result()
    for change in (
        lambda: reader.create_group("x"), lambda: reader.delete("ocean"), lambda: reader.consolidate(),
        lambda: reader.attrs.update(a=1), lambda: reader["ocean/time"].attrs.update(a=1),
        lambda: reader.resize(time=2), lambda: reader["ocean/time"].write(0).result(),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="opened for reading|does not support writing"):
            change()
    assert list(ts.open_group(tmp_path / "g", mode="w").result()) == []
    with pytest.raises(ValueError, match="is an array and no group"):
        ts.open_group(tmp_path / "g", mode="a").result().create_array("a", shape=[1], dtype="i1").result()
        ts.open_group(tmp_path / "g" / "a").result()


def test_groups_travel(tmp_path):
    """A pickled group opens the same members, below the same path."""
    group = made(tmp_path, 3)["ocean"]
    again = pickle.loads(pickle.dumps(group))
    assert again.path == "ocean"
    assert np.array_equal(again["temperature"].read().result(), VALUES)


@pytest.mark.parametrize("place", ["memory://g/", "{path}/x.ocdbt|ocdbt:g/"], ids=["memory", "ocdbt"])
def test_other_stores(tmp_path, place):
    """Groups are made and changed in memory and in databases, too."""
    context = ts.Context()
    url = place.format(path=f"file://{tmp_path}")
    group = ts.open_group(url, mode="a", context=context).result()
    group.create_array("a/b", shape=[3], dtype="int16").result()[:] = np.array([1, 2, 3], "int16")
    group["a"].attrs["k"] = "v"
    group.move("a/b", "a/c").result()
    again = ts.open_group(url, context=context).result()
    assert again["a/c"].read().result().tolist() == [1, 2, 3]
    assert dict(again["a"].attrs) == {"k": "v"}


def test_reference_sets_are_groups(tmp_path):
    """The arrays of a kerchunk set are members; the set is detected."""
    group = ts.open_group("file://examples/data/ocean.json").result()
    assert "sst" in group
    assert group["sst"].read().result().shape == group["sst"].shape
    assert "sst" in group.tree()


@pytest.mark.parametrize(
    ("value", "message"), [({"a": np.int64(3)}, "cannot be stored as JSON"), ({3: 1}, "name of an attribute is text")]
)
def test_attributes_are_json(tmp_path, value, message):
    """What JSON does not know is refused by name, and nothing is stored."""
    group = ts.open_group(tmp_path, mode="a").result()
    with pytest.raises(TypeError, match=message):
        group.attrs.put(value)
    assert dict(ts.open_group(tmp_path).result().attrs) == {}


def test_options_of_new_arrays_are_checked(tmp_path):
    """A misspelt option is named, with the one that was meant."""
    group = ts.open_group(tmp_path, mode="a").result()
    with pytest.raises(TypeError, match="did you mean 'chunks'"):
        group.create_array("a", shape=[1], dtype="i1", chunk=(1,))
    with pytest.raises(ValueError, match='"zst" is no codec'):
        group.create_array("a", shape=[1], dtype="i1", codec="zst").result()
    with pytest.raises(ValueError, match="no path of a member"):
        group["a//b"]
    with pytest.raises(TypeError, match="named by text"):
        group[0]
    assert list(group) == []


def test_names_with_markup_are_shown_as_text(tmp_path):
    """The picture for notebooks shows names and attributes that hold HTML as the text they are."""
    group = ts.open_group(tmp_path, mode="a").result()
    name = "<script>alert(1)<" + "!--"
    group.create_array(name, shape=[1], dtype="i1", attributes={"'><b>": '"><img src=x onerror=alert(1)>'}).result()
    html = group._repr_html_()
    assert "<script" not in html
    assert "<img" not in html
    assert "&lt;script&gt;" in html


def test_opening_reads_the_root_only():
    """Opening a group asks for its own documents once; a member costs one look and its own opening."""
    store = ts.KvStore.open("memory://").result()
    made(store, 3)
    recording = Recording(store.prefix.driver)
    group = ts.open_group(ts.KvStore.of(live_kv(KvPrefix(recording))), mode="r").result()
    assert [read.key for read in recording.reads if "/" in read.key] == []
    recording.reset()
    assert group["ocean/temperature"].shape == VALUES.shape
    assert all(read.key.startswith("ocean/temperature/") for read in recording.reads)
    assert recording.calls["read"] <= 2


_OBJECTS = {"ustring": ["a", "bé", ""], "string": [b"a", b"\0b", b""]}
_V2_LACKS = {"json"}  # TensorStore's zarr v2 driver lacks it too
_V3_LACKS = {"json"}
_N5_HAS = {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)} | {"float32", "float64", ">i4"}
_EVERY = [*sorted(NAMES), "datetime64[ns]", "timedelta64[s]", "<U5", "S5", "V4", ">i4"]


@pytest.mark.parametrize("zarr_format", [3, 2, 0])
@pytest.mark.parametrize("name", _EVERY)
def test_every_type_is_created_with_every_short_name_of_a_codec(zarr_format, name):
    """Each type that the format holds is written and read back, compressed and not, in shards too; others are refused."""
    group = ts.open_group("memory://", mode="w", zarr_format=zarr_format).result()
    by_format = {3: name not in _V3_LACKS, 2: name not in _V2_LACKS, 0: name in _N5_HAS}
    held = by_format[zarr_format]
    for codec in ("zstd", "gzip", "blosc", None):
        for shards in [{}] if zarr_format != 3 else [{}, {"shards": [4]}]:
            options = {"shape": [3], "dtype": name, "codec": codec, "chunks": [2], **shards}
            made = group.create_array("a", **options, overwrite=True)
            if not held:
                with pytest.raises(ts.errors.StoreError, match=r"not supported|supported data types"):
                    made.result()
                continue
            kind = made.result().dtype
            values = np.array(_OBJECTS[kind.name], object) if kind.name in _OBJECTS else np.zeros(3, kind.numpy_dtype)
            if kind.name not in _OBJECTS:
                values[1:] = np.frombuffer(b"\x01" * values.itemsize, values.dtype)[0]
            made.result().write(values).result()
            assert group["a"].read().result().tolist() == values.tolist()


@pytest.mark.parametrize("version", WITH_ZARR.values(), ids=WITH_ZARR.keys())
@pytest.mark.parametrize("path", ["", "deep"])
@pytest.mark.filterwarnings("ignore:Consolidated metadata is currently")
def test_attributes_of_groups_reach_consolidated_metadata(tmp_path, version, path):
    """What is assigned to a group that has consolidated metadata, or lies in one, is seen by readers who believe them."""
    xarray.Dataset({"t": ("x", [1.0])}, attrs={"old": 1}).to_zarr(
        tmp_path / "a" / path, zarr_format=version, consolidated=True
    )
    if path:
        ts.open_group(tmp_path / "a", mode="a", zarr_format=version).result().consolidate().result()
    group = ts.open_group(tmp_path / "a").result()
    group = group[path] if path else group
    group.attrs["title"] = "Sea"
    del group.attrs["old"]
    for engine in ("fsstore", "zarr"):
        assert xarray.open_dataset(str(tmp_path / "a" / path), engine=engine).attrs == {"title": "Sea"}, engine
    whole = zarr.open_consolidated(tmp_path / "a", zarr_format=version)
    assert dict((whole[path] if path else whole).attrs) == {"title": "Sea"}


INLINE = {"kind": "inline", "must_understand": False, "metadata": {}}
UNDERSTOOD = {
    "a member that says so": {"note": {"must_understand": False, "name": "x"}},
    "no consolidated metadata": {"consolidated_metadata": None},
    "another kind that says so": {"consolidated_metadata": {"kind": "elsewhere", "must_understand": False}},
    "attributes are free": {"attributes": {"must_understand": True, "x": {"must_understand": True}}},
}
NOT_UNDERSTOOD = {
    "text": {"note": "x"},
    "an object that does not say": {"note": {"name": "x"}},
    "an object that insists": {"note": {"must_understand": True}},
    "a list": {"extensions": [{"must_understand": False}]},
    "another kind that insists": {"consolidated_metadata": {"kind": "elsewhere", "must_understand": True}},
}


def group_with(place, members):
    """Write a group with members beyond the usual, an array in it, and a group around it."""
    whole = {"zarr_format": 3, "node_type": "group", "attributes": {"a": 1}}
    outer = ts.open_group(place, mode="w").result()
    outer.create_array("inner/x", shape=[2], dtype="int8").result()
    (place / "inner" / "zarr.json").write_text(json.dumps({**whole, **members}))
    return place / "inner"


@pytest.mark.parametrize("members", UNDERSTOOD.values(), ids=UNDERSTOOD)
def test_members_of_groups_that_may_be_left_out(tmp_path, members):
    """A group opens, lists and changes; members that are not known stay in its document."""
    place = group_with(tmp_path, members)
    group = ts.open_group(place).result()
    assert sorted(group) == ["x"]
    group.attrs["b"] = 2
    stored = json.loads((place / "zarr.json").read_bytes())
    assert {name: stored[name] for name in members if name != "attributes"} == {
        name: value for name, value in members.items() if name != "attributes"
    }
    assert ts.open_group(tmp_path).result()["inner"].attrs["b"] == 2


@pytest.mark.parametrize("members", NOT_UNDERSTOOD.values(), ids=NOT_UNDERSTOOD)
def test_members_of_groups_that_must_be_understood(tmp_path, members):
    """A group whose document asks for more than is known is refused, opened by itself, from above, and in a listing."""
    place = group_with(tmp_path, members)
    asked = "is not marked"
    with pytest.raises(StoreError, match=asked):
        ts.open_group(place).result()
    outer = ts.open_group(tmp_path).result()
    with pytest.raises(StoreError, match=asked):
        outer["inner"]
    document = json.loads((tmp_path / "zarr.json").read_bytes())
    inner = json.loads((place / "zarr.json").read_bytes())
    document["consolidated_metadata"] = {**INLINE, "metadata": {"inner": inner}}
    (tmp_path / "zarr.json").write_text(json.dumps(document))
    with pytest.raises(StoreError, match=asked):
        ts.open_group(tmp_path).result()["inner"]


STRUCTURES = [
    [("a", "f4"), ("b", "i2")],
    [("a", "<f8"), ("text", "S3"), ("yes", "?"), ("many", "<u8"), ("pair", "<c8")],
    [("a", ">i4"), ("b", "<i2")],
]
NESTED = [[("a", "<f8"), ("pair", "<u2", (2, 3))], [("a", "<i4"), ("inner", [("x", "<i2"), ("text", "S3")])]]
"""zarr-python reads no such arrays of zarr version 2."""


def structures(kind):
    """Return seven elements of a structured type."""
    values = np.zeros(7, kind)
    values["a"] = np.arange(7)
    for name in values.dtype.names[1:]:
        values[name][3] = np.ones(1, values.dtype[name])[0] if values.dtype[name].names is None else (7, b"ab")
    return values


@pytest.mark.parametrize("kind", [*STRUCTURES, *NESTED])
def test_arrays_of_structures(tmp_path, kind):
    """A group of zarr version 2 creates arrays of structures, opens them whole, and pickles them so."""
    values = structures(kind)
    group = ts.open_group(tmp_path / "g", mode="w", zarr_format=2).result()
    group.create_array("v", shape=(7,), chunks=(3,), dtype=kind).result().write(values).result()
    assert (pickle.loads(pickle.dumps(group["v"])).read().result() == values).all()
    place = {"driver": "zarr", "kvstore": f"file://{tmp_path}/g/v/", "field": "a"}
    assert (ts.open(place).result().read().result() == values["a"]).all()


@pytest.mark.parametrize("kind", STRUCTURES)
def test_arrays_of_structures_are_shared_with_zarr(tmp_path, kind):
    """zarr-python reads and changes them, and those that it makes are read and changed."""
    values = structures(kind)
    group = ts.open_group(tmp_path / "g", mode="w", zarr_format=2).result()
    group.create_array("v", shape=(7,), chunks=(3,), dtype=kind).result().write(values).result()
    beside = zarr.open_array(tmp_path / "g/v", mode="r+")
    assert (beside[:] == values).all()
    beside[5:] = values[2:4]
    assert (group["v"].read().result() == np.concatenate([values[:5], values[2:4]])).all()
    theirs = zarr.create_array(tmp_path / "g/w", shape=(7,), chunks=(3,), dtype=values.dtype, zarr_format=2)
    theirs[:] = values
    assert (group["w"].read().result() == values).all()
    group["w"][1].write(values[3]).result()
    assert theirs[1] == values[3]


@pytest.mark.parametrize("name", ["refs.json", "refs.parq"])
def test_a_group_over_a_reference_set_sees_its_own_arrays(tmp_path, name):
    """An array that a group creates in a set is a member at once, and later handles of the group see its values."""
    place = f"file://{tmp_path}/{name}|reference:"
    group = ts.open_group(place, mode="a", zarr_format=2).result()
    array = group.create_array("ocean/sst", shape=[4], dtype="i4").result()
    array[:] = [1, 2, 3, 4]
    assert list(group) == ["ocean"]
    assert "ocean/sst" in group
    assert group["ocean/sst"].read().result().tolist() == [1, 2, 3, 4]
    group["ocean/sst"][1:3] = 7
    assert array.read().result().tolist() == [1, 7, 7, 4]
    assert ts.open_group(place, mode="r").result()["ocean/sst"].read().result().tolist() == [1, 7, 7, 4]
    del group["ocean/sst"]
    assert "ocean/sst" not in group
