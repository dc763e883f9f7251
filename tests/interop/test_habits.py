"""What people type who come from numpy, zarr-python and dask works, or is refused in words that help."""

from __future__ import annotations

import array as memory_arrays

import fsspec
import IPython.lib.pretty
import numpy as np
import pytest
import xarray as xr
import zarr

import fsstore as ts
import fsstore.sync as fs

DATA = np.arange(200, dtype="f4").reshape(10, 20)


@pytest.fixture
def stored(tmp_path, monkeypatch):
    """Give an array of chunks in a relative path of a directory of its own."""
    monkeypatch.chdir(tmp_path)
    options = {"mode": "w", "dtype": "f4", "shape": [10, 20], "chunks": [3, 5], "codec": "zstd"}
    store = ts.open("x.zarr|zarr3:", **options).result()
    store.write(DATA).result()
    return store


def test_facts_have_the_names_of_zarr(stored):
    """`chunks`, `shards`, `nbytes`, `nchunks` and `len` agree with zarr-python's of the same array."""
    theirs = zarr.open_array("x.zarr", mode="r")
    assert (stored.chunks, stored.shards) == (theirs.chunks, theirs.shards) == ((3, 5), None)
    assert (stored.nbytes, stored.nchunks, len(stored)) == (theirs.nbytes, theirs.nchunks, 10)
    assert stored[2:4, 4:6].nchunks == 4
    sharded = ts.open("y.zarr|zarr3:", mode="w", dtype="<i2", shape=[16, 20], chunks=[2, 5], shards=[8, 10]).result()
    theirs = zarr.open_array("y.zarr", mode="r")
    assert (sharded.chunks, sharded.shards, sharded.nchunks) == (theirs.chunks, theirs.shards, theirs.nchunks)


def test_info_asks_the_storage_only_where_that_is_wanted(stored):
    """`info` has the facts of the metadata; `info_complete` counts what is stored, and how well it is compressed."""
    assert stored.info.stored_bytes is None
    assert stored.info() == stored.info
    ts.open("z.zarr|zarr3:", mode="w", dtype="u1", shape=[100], chunks=[10]).result()[:25].write(1).result()
    found = ts.open("z.zarr").result().info_complete()
    assert (found.stored_chunks, found.stored_bytes, found.ratio) == (3, 30, 100 / 30)
    assert "Stored chunks     3" in str(found)


@pytest.mark.parametrize(
    ("place", "codec", "written"),
    [
        ("e|zarr3:", {"name": "zstd", "level": 9}, {"name": "zstd", "configuration": {"level": 9}}),
        ("e|zarr3:", {"name": "blosc", "level": 9}, {"name": "blosc", "configuration": {"clevel": 9}}),
        ("f|zarr2:", {"name": "zstd", "level": 9}, {"id": "zstd", "level": 9}),
        ("g|n5:", {"name": "gzip", "level": 9}, {"type": "gzip", "level": 9}),
        ("h|zarr2:", {"id": "zlib", "level": 2}, {"id": "zlib", "level": 2}),
        ("i|zarr3:", [{"name": "bytes"}, {"name": "crc32c"}], {"name": "crc32c"}),
        ("j|zarr3:", {"driver": "zarr3", "codecs": ["crc32c"]}, {"name": "crc32c"}),
        ("a|zarr3:", "zstd", {"name": "zstd", "configuration": {"level": 3}}),
        ("b|zarr3:", "gzip", {"name": "gzip", "configuration": {"level": 6}}),
        ("c|zarr2:", "zstd", {"id": "zstd", "level": 3}),
        ("d|n5:", "gzip", {"type": "gzip", "level": 6, "useZlib": False}),
    ],
)
def test_codecs_have_short_names(tmp_path, place, codec, written):
    """`codec="zstd"`, with its level or without, is that codec in the words of each format, as a spec of one is."""
    name, _, driver = place.partition("|")
    version = {"zarr3:": 3, "zarr2:": 2, "n5:": 0}[driver]
    group = ts.open_group(f"{tmp_path}/group", mode="w", zarr_format=version).result()
    ts.open(f"{tmp_path}/{place}", mode="w", dtype="f8", shape=[4], chunks=[2], codec=codec).result()
    for store in (
        ts.open(f"{tmp_path}/{name}").result(),
        group.create_array("a", dtype="f8", shape=[4], chunks=[2], codec=codec).result(),
    ):
        metadata = store.spec().to_json()["metadata"]
        found = metadata.get("codecs", [metadata.get("compressor") or metadata.get("compression")])[-1]
        inner = "configuration" if version == 3 and "configuration" in written else None
        assert {**written, **found} == found or written[inner].items() <= found[inner].items()


def test_modes_are_those_of_zarr(tmp_path):
    """`r` cannot write, `w-` refuses what exists, `a` opens or creates, `w` replaces."""
    place, options = f"{tmp_path}/a|zarr3:", {"dtype": "f4", "shape": [4]}
    with pytest.raises(ts.errors.NotFoundError):
        ts.open(place, mode="r+").result()
    ts.open(place, mode="a", **options).result().write(1).result()
    assert ts.open(place, mode="a", **options).result()[0].read().result() == 1
    assert ts.open(place, mode="r").result().mode == "r"
    with pytest.raises(ts.errors.AlreadyExistsError):
        ts.open(place, mode="w-", **options).result()
    assert ts.open(place, mode="w", **options).result()[0].read().result() == 0
    with pytest.raises(ValueError, match="mode is one of r, r\\+, a, w, w-, not 'rw'"):
        ts.open(place, mode="rw")


def test_paths_are_places_at_every_door(stored, tmp_path):
    """Relative and absolute paths, with a format behind them or without, mean the local files."""
    for place in ("x.zarr", "./x.zarr", f"{tmp_path}/x.zarr", f"{tmp_path}/x.zarr|zarr3:", "x.zarr/"):
        assert ts.open(place).result().shape == (10, 20)
    assert ts.open({"driver": "zarr3", "kvstore": "x.zarr"}).result().shape == (10, 20)
    for place in ("x.zarr/", f"{tmp_path}/x.zarr/"):
        assert b"zarr.json" in ts.KvStore.open(place).result().list().result()
        assert [each.shape for each in ts.list_arrays(place)] == [(10, 20)]
        assert "zarr.json" in ts.get_mapper(place)
    with pytest.raises(ts.errors.NotFoundError, match="nothing.zarr"):
        ts.open("nothing.zarr|zarr3:").result()


REFUSED = {
    "rows": (lambda s: list(s), TypeError, "store\\[:100\\].read().result()"),
    "a number": (lambda s: s == 1, TypeError, "store.read().result() == value"),
    "an array": (lambda s: s == DATA, TypeError, "store.read().result() == value"),
    "a method of numpy": (lambda s: s.mean(), AttributeError, "store.read().result().mean()"),
    "a close word": (lambda s: s.chunk, AttributeError, "did you mean 'chunks'"),
    "a sum": (lambda s: 1 + s, TypeError, "read what you need first: store.read().result() + 1"),
    "a mask": (lambda s: s > 5, TypeError, "read what you need first: store.read().result()"),
    "a number of it": (lambda s: float(s[2, 3]), TypeError, "float(store.read().result())"),
    "a level": (lambda s: ts.open("q", mode="w", codec="zstd", level=9), TypeError, 'codec={"name": "zstd", "level": 9}'),
    "a mean without futures": (lambda s: fs.open("x.zarr").mean(), AttributeError, "read first: array[...].mean()"),
    "a sum without futures": (lambda s: fs.open("x.zarr") + 1, TypeError, "first: array[...] + 1"),
    "an append": (lambda s: s.append(DATA), AttributeError, "; fsstore.append(store, values)"),
    "an unfinished open": (lambda s: ts.open("x.zarr").shape, AttributeError, "await it or call .result() first"),
    "an unfinished read": (lambda s: s.read()[0], TypeError, "await it or call .result() first"),
    "a wrong keyword": (lambda s: ts.open("x.zarr", dtpe="f4"), TypeError, "did you mean 'dtype'"),
    "no dimensions": (lambda s: len(s[0, 0]), TypeError, "without dimensions"),
    "another shape": (lambda s: s.read(out=np.zeros(3, "f4")), ts.errors.StoreError, "shape (3,)"),
    "another type": (lambda s: s.read(out=np.zeros((10, 20))), ts.errors.StoreError, "type float64"),
    "a list": (lambda s: s.read(out=[0]), TypeError, "out must be memory"),
    "chunks that are a number": (lambda s: ts.open("q|zarr3:", mode="w", dtype="f4", shape=[4], chunks=2), TypeError, "a size for each dimension"),
    "a codec that is none": (lambda s: ts.open("q|zarr3:", mode="w", dtype="f4", shape=[4], codec="zst"), ValueError, "zstd, gzip, blosc"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_refusals_say_what_to_type_instead(stored, what):
    """What would read everything unasked, or is meant for the result, is an error that names the way."""
    action, kind, says = REFUSED[what]
    with pytest.raises(kind) as error:
        action(stored)
    assert says.replace("\\", "") in str(error.value)


def test_types_have_numpys_names_at_every_door(stored):
    """What NumPy calls a type is that type for `dtype`, in comparisons and where elements are converted; not in specs."""
    assert stored.dtype == "f4"
    assert stored.dtype == "<f4"
    assert stored.dtype not in ("f8", "abc", "a")
    assert ts.dtype("i2") == ts.int16
    assert stored.astype("f8").dtype == ts.cast(stored, "f8").dtype == ts.array([1], dtype="f8").dtype == ts.float64
    assert ts.Schema(dtype="M8[s]").dtype.name == "datetime64[s]"
    with pytest.raises(ts.errors.StoreError, match="No TensorStore data type"):
        ts.Spec({"driver": "zarr3", "dtype": "f4"})


def test_results_say_at_the_prompt_what_they_are(stored):
    """A future says what it is of and how to have it; a report of a job is the sentence that the command line prints."""
    coming = ts.copy("x.zarr", "y.zarr")
    assert ".result() " in repr(coming)
    assert repr(coming.result()) == str(coming.result())
    assert repr(coming) == "<Future: done; .result() returns CopyReport>"
    assert repr(ts.verify("y.zarr", "x.zarr").result()).startswith("1 array, ")
    assert repr(ts.plan_copy("x.zarr", "z.zarr").result()).startswith("from ")
    missing = ts.open("nothing.zarr")
    assert missing.exception() is not None
    assert repr(missing) == f"<Future: failed; .result() raises {type(missing.exception()).__name__}>"
    written = stored.write(1)
    written.result()
    assert repr(written) == "<WriteFutures: done; .result() returns None>"


def test_arrays_and_groups_say_at_the_prompt_what_they_are(stored):
    """IPython shows the place and the facts in a few lines; a group names its members."""
    shown = IPython.lib.pretty.pretty(stored)
    assert shown.startswith(f"TensorStore {stored.url}\nShape             (10, 20)\n")
    assert len(shown.splitlines()) < 9
    group = ts.open_group("g", mode="a").result()
    assert repr(group).endswith('/g/">: nothing in it')
    group["t"], group["deep/u"] = DATA, DATA
    assert repr(group).endswith('/g/">: deep, t')
    assert repr(fs.open_group("g")) == repr(group)


@pytest.mark.parametrize("shape", [[8, 10], (10, 20), [12, 1]])
def test_a_resize_takes_a_shape(stored, shape):
    """`resize(shape)` gives that shape; lower bounds by name, or beside upper ones, are refused as TensorStore does."""
    assert stored.resize(shape).result().shape == tuple(shape)
    with pytest.raises(ValueError, match="Cannot change explicit lower bound"):
        stored.resize(inclusive_min=[2, 0]).result()
    with pytest.raises(ValueError, match="Cannot change explicit lower bound"):
        stored.resize([2, 0], [3, 1]).result()
    assert stored.resolve().result().shape == tuple(shape)


INDICES = {
    "the last": (lambda s: s[-1], "-1 does not count from the end of { [0, 10*), [0, 20*) }; use store.shape[0] - 1, or fsstore.sync"),
    "but the last two": (lambda s: s[1, :-2], "-2 does not count from the end of { [0, 10*), [0, 20*) }; use store.shape[1] - 2"),
    "an assignment": (lambda s: s.__setitem__(-1, 0), "-1 does not count from the end"),
    "a view": (lambda s: s[2:4][0], "This view has the positions { [2, 4), [0, 20*) } of its array; view.translate_to[0]"),
}  # fmt: skip


@pytest.mark.parametrize("what", INDICES)
def test_positions_of_numpy_are_told_first(stored, what):
    """What NumPy would count from the end, or from the begin of a view, is refused with what to type."""
    action, says = INDICES[what]
    with pytest.raises(IndexError) as error:
        action(stored)
    assert str(error.value).removeprefix("OUT_OF_RANGE: ").startswith(says)


def test_a_copy_takes_its_wishes_by_name(stored):
    """`chunks`, `shards` and `codec` need no `schema`; what is none is refused with what it may be."""
    ts.copy("x.zarr", "y.zarr", chunks=(5, 5), shards=(10, 10), codec="gzip").result()
    made = ts.open("y.zarr").result()
    assert (made.chunks, made.shards) == ((5, 5), (10, 10))
    assert ts.plan_copy("x.zarr", "z.zarr", chunks=(5, 5)).result().passes == 1
    with pytest.raises(TypeError, match="did you mean 'if_exists'"):
        ts.copy("x.zarr", "y.zarr", if_exist="skip")


@pytest.mark.parametrize("words", [{"axis": 1}, {"dim": 1}, {"dimension": 1}])
def test_an_append_takes_the_words_of_numpy_and_xarray(stored, words):
    """`axis` and `dim` are `dimension`."""
    ts.append("x.zarr", DATA, **words).result()
    assert ts.open("x.zarr").result().shape == (10, 40)


def test_values_are_saved_in_one_call(tmp_path):
    """`save` returns when they are stored, and replaces nothing unasked."""
    assert np.array_equal(ts.save(tmp_path / "a", DATA)[-1], DATA[-1])
    with pytest.raises(FileExistsError):
        ts.save(tmp_path / "a", DATA)
    assert ts.save(tmp_path / "a", [1, 2], mode="w", chunks=[1]).chunks == (1,)


def test_no_private_name_is_suggested(stored):
    """What is meant is never a name that begins with an underscore."""
    with pytest.raises(AttributeError) as error:
        stored.opened
    assert "_opened" not in str(error.value)


def test_a_store_is_itself_and_nothing_else(stored):
    """Comparisons with stores and other objects still answer, and an open store is true whatever its size."""
    assert stored == stored[...]
    assert stored != stored[:2]
    assert stored is not None
    assert stored != "x.zarr"
    assert stored[:0]


VIEWS = {
    "whole": lambda s: s,
    "strided": lambda s: s[1:7, 3:18:2],
    "turned": lambda s: s[ts.d[:].transpose[::-1]],
    "row": lambda s: s[5],
    "list": lambda s: s.oindex[[1, 5, 2]],
    "cast": lambda s: ts.cast(s, "float64"),
    "stacked": lambda s: ts.stack([s, s]),
    "scalar": lambda s: s[2, 3],
}
LAYOUTS = {
    "C": np.zeros,
    "F": lambda shape, dtype: np.zeros(shape, dtype, order="F"),
    "gaps": lambda shape, dtype: np.zeros([2 * size for size in shape], dtype)[(np.s_[::2],) * len(shape)],
    "backwards": lambda shape, dtype: np.zeros(shape, dtype)[(np.s_[::-1],) * len(shape)],
}


@pytest.mark.parametrize("view", VIEWS)
def test_reading_into_memory_that_is_there(stored, view):
    """`out` is filled, in any layout and for any view, and is the result; stored and cached chunks alike."""
    for store in (stored, ts.open("x.zarr", context={"cache_pool": {"total_bytes_limit": 10**7}}).result()):
        wanted = VIEWS[view](store).read().result()
        for make in list(LAYOUTS.values())[: 4 if wanted.ndim else 2]:
            out = make(wanted.shape, wanted.dtype)
            assert VIEWS[view](store).read(out=out).result() is out
            assert np.array_equal(out, wanted)


def test_reading_into_foreign_memory():
    """Memory with the buffer protocol is filled, shards and batches too; what is read-only is refused."""
    store = ts.open("memory://|zarr3:", mode="w", dtype="f8", shape=[40], chunks=[2], shards=[20]).result()
    store.write(np.arange(40.0)).result()
    out = memory_arrays.array("d", [0.0] * 40)
    with ts.Batch() as batch:
        future = store.read(out=out, batch=batch)
    assert future.result() is out
    assert out.tolist() == list(range(40))
    fixed = np.zeros(40)
    fixed.flags.writeable = False
    with pytest.raises(ts.errors.StoreError, match="read-only"):
        store.read(out=fixed)


def test_other_libraries_take_a_store(stored):
    """DLPack and numpy read it, and a mapper of it is an `FSMap` that zarr-python and xarray open and write."""
    assert np.array_equal(np.from_dlpack(stored), DATA)
    assert stored.__dlpack_device__() == (1, 0)
    mapper = ts.get_mapper("x.zarr")
    assert isinstance(mapper, fsspec.FSMap)
    assert zarr.open_array(mapper)[:].sum() == DATA.sum()
    assert zarr.open_array(ts.get_mapper("x.zarr|zarr2:"), mode="r").metadata.zarr_format == 2
    kvstore = ts.KvStore.open("memory://").result()
    dataset = xr.Dataset({"t": ("x", [1, 2, 3])})
    dataset.to_zarr(ts.get_mapper(kvstore), zarr_format=3, consolidated=False)
    assert xr.open_zarr(ts.get_mapper(kvstore), consolidated=False).t.values.tolist() == [1, 2, 3]


def test_a_new_array_needs_no_format(tmp_path, monkeypatch):
    """Zarr's modes for new arrays make one of version 3; `w-` refuses one that is there, `w` replaces it."""
    monkeypatch.chdir(tmp_path)
    ts.open("a.zarr", mode="w", shape=[4], dtype="f4", chunks=[2]).result()[:] = 1
    assert zarr.open_array("a.zarr", mode="r").metadata.zarr_format == 3
    with pytest.raises(FileExistsError):
        ts.open("a.zarr", mode="w-", shape=[4], dtype="f4").result()
    assert ts.open("a.zarr", mode="w", shape=[2], dtype="i2").result().shape == (2,)
    assert ts.open("b.zarr|zarr2:", mode="w", shape=[2], dtype="i2").result().spec().to_json()["driver"] == "zarr"


@pytest.mark.parametrize("place", ["a.zarr", "a.zip|zip:", "a.zarr|zarr2:", "memory://a/"])
def test_an_array_is_made_of_its_values(tmp_path, monkeypatch, place):
    """`data` gives the shape, the type and the values; options add to it, and what is there is not written over."""
    monkeypatch.chdir(tmp_path)
    made = ts.open(place, data=DATA, chunks=[3, 5]).result()
    assert (made.shape, made.dtype.name, made.chunks) == ((10, 20), "float32", (3, 5))
    assert np.array_equal(made, DATA)
    if "memory" not in place:
        with pytest.raises(FileExistsError):
            ts.open(place, data=[1, 2]).result()
        assert np.array_equal(ts.open(place, mode="w", data=[1, 2]).result(), [1, 2])
        assert np.array_equal(ts.open("copy.zarr", data=ts.open(place).result()).result(), [1, 2])


def test_a_group_takes_values(tmp_path):
    """`group[name] = values` makes an array of them, and so does `create_array(name, data=values)` with its options."""
    group = ts.open_group(tmp_path / "g", mode="w").result()
    group["t"] = DATA
    group.create_array("in/v", data=[1, 2, 3], dtype="i2", chunks=[2]).result()
    assert np.array_equal(group["t"], DATA)
    assert group["in/v"].dtype == ts.int16
    assert np.array_equal(group["in/v"], [1, 2, 3])
    with pytest.raises(FileExistsError):
        group["t"] = DATA
    with pytest.raises(TypeError, match="needs a shape and a dtype, or `data`"):
        group.create_array("x", shape=[2])
    with pytest.raises(ts.errors.StoreError, match="opened for reading"):
        ts.open_group(tmp_path / "g", mode="r").result()["u"] = DATA


def test_missing_chunks_are_errors_at_every_door(tmp_path):
    """`fill_missing_data_reads=False` is understood by `open`, of a place and a spec, and by the xarray engine."""
    xr.Dataset({"v": ("x", np.arange(8.0))}).chunk(x=4).to_zarr(tmp_path / "s", zarr_format=2)
    (tmp_path / "s" / "v" / "1").unlink()
    place = tmp_path / "s" / "v"
    assert np.isnan(ts.open(place).result()[4:].read().result()).all()
    for given in (place, {"driver": "zarr", "kvstore": f"file://{place}/"}):
        strict = ts.open(given, fill_missing_data_reads=False).result()
        with pytest.raises(ts.errors.StoreError, match="missing"):
            strict[4:].read().result()
    described = {"driver": "auto", "kvstore": f"file://{place}/", "fill_missing_data_reads": False}
    with pytest.raises(ts.errors.StoreError, match="missing"):
        ts.open(described).result().read().result()
    assert np.isnan(xr.open_dataset(tmp_path / "s", engine="fsstore").v[4:]).all()
    strict = xr.open_dataset(tmp_path / "s", engine="fsstore", fill_missing_data_reads=False)
    with pytest.raises(ts.errors.StoreError, match="missing"):
        strict.v.load()
