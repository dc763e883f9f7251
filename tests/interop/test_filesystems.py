"""The fsspec protocols, driven by the tools people use: zarr-python, xarray, dask, pandas, universal_pathlib, fsspec."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import pickle
import warnings
import zipfile

import dask.array
import fsspec
import numpy as np
import pandas as pd
import pytest
import tensorstore
import xarray
import zarr

import fsstore as ts
from fsstore.context.context import Context
from fsstore.dataset.listing import list_arrays, tree
from fsstore.errors import FailedPreconditionError
from fsstore.filesystem.kv import KvFileSystem
from fsstore.filesystem.place import live_kv
from fsstore.filesystem.protocols import get_mapper
from fsstore.filesystem.view import open_view
from fsstore.kvstore.contract.driver import KvPrefix, Read
from fsstore.kvstore.local.driver import LocalDriver
from fsstore.runtime import execution
from fsstore.testing.doubles import Recording

DATA = np.arange(20, dtype="float64").reshape(4, 5)


@pytest.fixture(autouse=True)
def _quiet():
    """Let the tools warn of what they do not like in the formats they write."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _dataset():
    values = DATA.copy()
    values[0, 0] = np.nan
    return xarray.Dataset(
        {"t": (("y", "x"), values, {"units": "K"}), "n": ("x", np.arange(5)), "s": ("y", list("abcd"))},
        coords={"x": np.arange(5) * 10.0},
        attrs={"title": "example"},
    )


@pytest.fixture
def archive(tmp_path):
    """Give a ZIP archive with two tables."""
    with zipfile.ZipFile(tmp_path / "csv.zip", "w") as file:
        file.writestr("a.csv", "x,y\n1,2\n")
        file.writestr("b/c.csv", "x\n3\n")
    return tmp_path / "csv.zip"


@pytest.fixture
def references(tmp_path):
    """Give a reference set with groups, a filled array and attributes."""
    array = {"zarr_format": 2, "compressor": None, "filters": None, "order": "C"}
    (tmp_path / "data").write_bytes(DATA.astype("<i4").tobytes())
    refs = {
        ".zgroup": '{"zarr_format": 2}',
        ".zattrs": '{"title": "refs"}',
        "g/.zgroup": '{"zarr_format": 2}',
        "g/v/.zarray": json.dumps({**array, "shape": [4, 5], "chunks": [2, 5], "dtype": "<i4", "fill_value": -1}),
        "g/v/.zattrs": json.dumps({"_ARRAY_DIMENSIONS": ["y", "x"], "units": "m"}),
        "g/v/0.0": [str(tmp_path / "data"), 0, 40],
    }
    (tmp_path / "refs.json").write_text(json.dumps({"version": 1, "refs": refs}))
    return tmp_path / "refs.json"


def test_protocols_are_registered():
    """Each protocol leads to its class, and none of the names is taken by somebody else."""
    for name in ("auto", "fsstore", "ocdbt", "zarr", "zarr2", "zarr3"):
        assert fsspec.get_filesystem_class(name).__module__.startswith("fsstore.filesystem.")


@pytest.mark.parametrize("shown", [2, 3])
@pytest.mark.parametrize("stored", [2, 3])
def test_xarray_sees_the_same_through_a_view(tmp_path, stored, shown):
    """A dataset stored as one zarr format and shown as the other is identical, missing values included."""
    _dataset().to_zarr(tmp_path / "x", zarr_format=stored, mode="w")
    direct = xarray.open_zarr(tmp_path / "x")
    for engine in (xarray.open_zarr, lambda url: xarray.open_dataset(url, engine="zarr")):
        through = engine(f"zarr{shown}::file://{tmp_path}/x").load()
        assert through.identical(direct)


def test_a_reference_set_is_a_hierarchy(references):
    """Groups, attributes, dimension names and missing chunks of a reference set arrive in zarr v3."""
    group = zarr.open_group(f"zarr3::file://{references}", mode="r")
    assert group.metadata.zarr_format == 3
    assert group.metadata.consolidated_metadata is not None
    array = group["g/v"]
    assert dict(group.attrs) == {"title": "refs"}
    assert array.metadata.dimension_names == ("y", "x")
    assert array.attrs["units"] == "m"
    assert array[:2].tolist() == DATA[:2].astype(int).tolist()
    assert (array[2:] == -1).all()
    assert np.isnan(xarray.open_zarr(f"zarr3::file://{references}", group="g").v[2:]).all()


@pytest.mark.parametrize(
    "chain", ["zarr3::reference://::{}", "zarr3::file://{}", "fsstore://file://{}|reference:|zarr3:"]
)
def test_ways_to_a_reference_set(references, chain):
    """fsspec's own reference filesystem, detection and a pipeline lead to the same arrays."""
    group = zarr.open_group(chain.format(references), mode="r")
    assert group["g/v"][0].tolist() == DATA[0].astype(int).tolist()


def test_ocdbt_is_read_and_written(tmp_path):
    """zarr-python creates an array in a database, which TensorStore reads; and the other way round."""
    url = f"ocdbt::file://{tmp_path}/db"
    array = zarr.create_array(url, shape=(4, 5), chunks=(2, 5), dtype="f8")
    array[:] = DATA
    array.attrs["a"] = 1
    theirs = tensorstore.open(f"file://{tmp_path}/db/|ocdbt:|zarr3:").result()
    assert np.array_equal(theirs.read().result(), DATA)
    theirs[0, 0] = 99
    assert zarr.open_array(url, mode="r")[0, 0] == 99


def test_a_store_of_the_format_is_written_through(tmp_path):
    """A store that has the format asked for already, or nothing yet, is shown as it is."""
    array = zarr.create_array(f"zarr3::file://{tmp_path}/x", shape=(4, 5), chunks=(2, 5), dtype="f8")
    array[:] = DATA
    assert np.array_equal(ts.open(f"file://{tmp_path}/x").result().read().result(), DATA)
    zarr.open_array(f"zarr3::file://{tmp_path}/x", mode="r+")[0, 0] = 7
    assert ts.open(f"file://{tmp_path}/x").result()[0, 0].read().result() == 7


def test_what_is_presented_is_read_only(tmp_path):
    """Another format cannot be written through a view, and says so."""
    ts.open(f"file://{tmp_path}/x|zarr2:", create=True, dtype="int8", shape=[4]).result()
    with pytest.raises(NotImplementedError, match="does not support writing"):
        fsspec.filesystem("zarr3", fo=f"{tmp_path}/x").pipe_file("c/0", b"1234")
    for mode in ("wb", "xb", "ab"):
        with pytest.raises(NotImplementedError, match='does not support writing: "c/9" in a view'):
            fsspec.filesystem("zarr3", fo=f"{tmp_path}/x").open("c/9", mode)


def test_removing_what_is_not_there_is_an_error(tmp_path):
    """As in other filesystems; with `recursive` a directory may be empty, which no store tells from a missing one."""
    fs = fsspec.filesystem("ocdbt", fo=f"{tmp_path}/db")
    fs.pipe({"a/b": b"1", "c": b"2"})
    with pytest.raises(FileNotFoundError):
        fs.rm("nope")
    fs.rm("c")
    fs.rm("a", recursive=True)
    fs.rm("a", recursive=True)
    assert fs.find("") == []


DTYPES = ["bool", "int8", "uint16", "int32", "uint64", "float16", "float32", "float64", "complex64", "complex128"]


@pytest.mark.parametrize("shown", [2, 3])
@pytest.mark.parametrize("name", [*DTYPES, "bfloat16", "int4", "float8_e4m3fn"])
def test_values_are_bit_exact(tmp_path, name, shown):
    """Every pattern of bits survives: values are compared as bytes, with edge chunks, in both directions."""
    stored = 5 - shown
    kind = getattr(ts, {"bool": "bool"}.get(name, name))
    random = np.random.default_rng(1).bytes(35 * kind.numpy_dtype.itemsize)
    values = np.frombuffer(random, kind.numpy_dtype).reshape(5, 7)
    if name in ("bool", "int4"):
        values = np.random.default_rng(1).integers(0, 2, (5, 7)).astype(kind.numpy_dtype)
    array = ts.open(
        f"file://{tmp_path}/x|zarr{stored}:", create=True, dtype=kind, shape=[5, 7],
        chunk_layout=ts.ChunkLayout(chunk_shape=[2, 3]),
    ).result()  # fmt: skip
    array[...] = values
    mapper = get_mapper(f"file://{tmp_path}/x|zarr{shown}:")
    copied = live_kv(KvPrefix(_memory(mapper))).spec
    again = ts.open({"driver": f"zarr{shown}", "kvstore": copied}).result()
    assert again.read().result().tobytes() == values.tobytes()
    if name in DTYPES:
        assert zarr.open_array(dict_store(mapper), mode="r")[:].tobytes() == values.tobytes()


def dict_store(mapper):
    """Return what zarr-python reads from memory."""
    from zarr.core.buffer import default_buffer_prototype

    make = default_buffer_prototype().buffer.from_bytes
    return zarr.storage.MemoryStore({key: make(value) for key, value in mapper.items()})


@pytest.mark.parametrize("dtype", ["<M8[s]", "|S4", "<U3", "<m8[ns]"])
def test_types_of_zarr_python(tmp_path, dtype):
    """Times and fixed-length strings of zarr v2 are shown with the v3 types of zarr-python."""
    values = np.array([1, 2, 3]).astype(dtype)
    array = zarr.create_array(tmp_path / "x", shape=(3,), dtype=dtype, zarr_format=2)
    array[:] = values
    assert zarr.open_array(f"zarr3::file://{tmp_path}/x", mode="r")[:].tolist() == values.tolist()


def test_shards_are_shown_as_sub_chunks_on_request(tmp_path):
    """`explode_shards` shows a sharded array in chunks of its sub-chunks; otherwise the shards stand."""
    array = zarr.create_array(tmp_path / "x", shape=(8, 8), chunks=(2, 2), shards=(4, 4), dtype="i4")
    array[:] = np.arange(64).reshape(8, 8)
    url = f"zarr3::file://{tmp_path}/x"
    plain = zarr.open_array(url, mode="r")
    assert plain.shards == (4, 4)
    split = zarr.open_array(url, mode="r", storage_options={"zarr3": {"explode_shards": True}})
    assert (split.chunks, split.shards) == ((2, 2), None)
    assert np.array_equal(split[:], array[:])


def test_dask(tmp_path):
    """dask reads and writes through the protocols."""
    dask.array.from_array(DATA, chunks=(2, 5)).to_zarr(f"ocdbt::file://{tmp_path}/db")
    assert dask.array.from_zarr(f"zarr2::file://{tmp_path}/db").sum().compute() == DATA.sum()


@pytest.mark.parametrize(
    "url",
    [
        "auto://a.csv::file://{}",
        "simplecache::auto://a.csv::file://{}",
        "auto://a.csv::simplecache::file://{}",
        "fsstore://file://{}|zip:a.csv",
    ],
)
def test_pandas_reads_a_table(archive, tmp_path, url):
    """pandas reads a member of an archive, with caches anywhere in the chain."""
    options = {"simplecache": {"cache_storage": str(tmp_path / "cache")}} if "simplecache" in url else None
    assert pd.read_csv(url.format(archive), storage_options=options).y[0] == 2


def test_a_file_decompressed_is_a_file(tmp_path):
    """The one value of a compressed file has the empty key; it is a file for those who ask before they read."""
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"x,y\n1,2\n"))
    url = f"fsstore://file://{tmp_path}/a.csv.gz|gzip:"
    fs = fsspec.filesystem("fsstore")
    assert fs.isfile(url) and fs.size(url) == 8 and fs.exists(url)
    assert [entry["size"] for entry in fs.ls(url)] == [8]
    assert pd.read_csv(url, compression=None).y[0] == 2
    assert fs.isdir(f"fsstore://file://{tmp_path}/|gzip:")
    assert fs.isfile(f"fsstore://file://{tmp_path}/|gzip:a.csv.gz")


def test_universal_pathlib(archive):
    """Paths of universal_pathlib list and read."""
    from upath import UPath

    root = UPath(f"auto://::file://{archive}")
    assert sorted(path.name for path in root.iterdir()) == ["a.csv", "b"]
    assert (root / "b" / "c.csv").read_text() == "x\n3\n"


def test_globs_and_mappers_of_fsspec(archive):
    """`open_files` expands patterns, `get_mapper` gives all keys."""
    files = fsspec.open_files(f"auto://**/*.csv::file://{archive}")
    assert [file.path for file in files] == ["a.csv", "b/c.csv"]
    with files[0] as file:
        assert file.read() == b"x,y\n1,2\n"
    mapper = fsspec.get_mapper(f"auto::file://{archive}")
    assert dict(mapper) == {"a.csv": b"x,y\n1,2\n", "b/c.csv": b"x\n3\n"}


def test_listings(archive):
    """Directories, sizes, trees and missing paths are those of a filesystem."""
    fs = fsspec.filesystem("auto", fo=str(archive))
    assert fs.ls("", detail=False) == ["a.csv", "b"]
    assert fs.ls("b", detail=False) == ["b/c.csv"]
    assert fs.info("a.csv") == {"name": "a.csv", "size": 8, "type": "file"}
    assert fs.info("b")["type"] == "directory"
    assert fs.isdir("b") and fs.isfile("a.csv") and not fs.exists("nope")
    assert fs.find("") == ["a.csv", "b/c.csv"]
    assert fs.glob("*") == ["a.csv", "b"]
    for call in (fs.ls, fs.info, fs.cat_file):
        with pytest.raises(FileNotFoundError):
            call("nope")


def test_reading_is_slicing(archive):
    """Ranges are Python's slices: beyond the end there is nothing, negative numbers count from there."""
    fs = fsspec.filesystem("auto", fo=str(archive))
    value = b"x,y\n1,2\n"
    for start in (None, 0, 2, 7, 8, 99, -3):
        for end in (None, 0, 2, 5, 8, 99, -1):
            assert fs.cat_file("a.csv", start, end) == value[start:end], (start, end)
    assert fs.cat(["a.csv", "b/c.csv"]) == {"a.csv": value, "b/c.csv": b"x\n3\n"}
    assert fs.cat_ranges(["a.csv"] * 2, [0, 4], [3, 99]) == [value[:3], value[4:]]
    missing = fs.cat_ranges(["a.csv", "nope"], [0, 0], [1, 1])
    assert missing[0] == b"x" and isinstance(missing[1], FileNotFoundError)
    with pytest.raises(FileNotFoundError):
        fs.cat_ranges(["nope"], [0], [1], on_error="raise")
    assert fs.cat(["a.csv", "nope"], on_error="omit") == {"a.csv": value}
    with fs.open("a.csv") as file:
        file.seek(4)
        assert file.read() == value[4:]


def test_writing(tmp_path):
    """Values are written, created only where there is nothing, copied, moved and removed."""
    fs = fsspec.filesystem("ocdbt", fo=f"{tmp_path}/db")
    fs.pipe({"a/b": b"1", "a/c": b"22"})
    with fs.open("d", "wb") as file:
        file.write(b"333")
    with fs.open("e", "w") as file:
        file.write("text")
    assert fs.find("") == ["a/b", "a/c", "d", "e"]
    with pytest.raises(FileExistsError):
        fs.pipe_file("d", b"", mode="create")
    fs.copy("d", "x/d")
    fs.mv("a/b", "y")
    fs.rm("a", recursive=True)
    assert fs.find("") == ["d", "e", "x/d", "y"]
    fs.get("x", f"{tmp_path}/out", recursive=True)
    assert (tmp_path / "out" / "d").read_bytes() == b"333"
    fs.put(f"{tmp_path}/out/", "back/", recursive=True)
    fs.get_file("d", buffer := io.BytesIO())
    assert buffer.getvalue() == b"333"
    with pytest.raises(FileNotFoundError):  # a database has no value at its root
        fs.cat_file("")
    assert fs.cat_file("back/d") == b"333"
    before = fs.ukey("d")
    fs.pipe_file("d", b"new")
    assert fs.ukey("d") != before


def test_asynchronous(tmp_path, archive):
    """The same class answers on the caller's event loop."""

    async def main():
        fs = fsspec.filesystem("auto", fo=str(archive), asynchronous=True)
        writing = fsspec.filesystem("ocdbt", fo=f"{tmp_path}/db", asynchronous=True)
        await writing._pipe_file("k", b"v")
        return await asyncio.gather(fs._cat_file("a.csv"), fs._ls("", detail=False), writing._cat_file("k"))

    assert asyncio.run(main()) == [b"x,y\n1,2\n", ["a.csv", "b"], b"v"]


def test_instances_are_shared_and_pickled(archive):
    """Equal arguments give one instance; a pickled one opens its store again."""
    fs = fsspec.filesystem("auto", fo=str(archive))
    assert fsspec.filesystem("auto", fo=str(archive)) is fs
    again = pickle.loads(pickle.dumps(fs))
    assert again.cat_file("a.csv") == b"x,y\n1,2\n"
    fsspec.filesystem("auto").clear_instance_cache()
    assert pickle.loads(pickle.dumps(fs)).cat_file("a.csv") == b"x,y\n1,2\n"


def test_any_store_is_a_filesystem():
    """An open store has a filesystem of its own."""
    store = ts.KvStore.open("memory://").result()
    store["a/b"] = b"v"
    assert KvFileSystem.of(store).find("") == ["a/b"]
    assert KvFileSystem.of(store).cat_file("a/b") == b"v"


def test_pipelines(archive):
    """`fsstore://` names keep the pipeline, so that they can be used again."""
    fs = fsspec.filesystem("fsstore")
    root = f"fsstore://file://{archive}|zip:"
    names = fs.ls(root, detail=False)
    assert names == [f"file://{archive}|zip:/a.csv", f"file://{archive}|zip:/b"]
    assert fs.cat_file(names[0]) == b"x,y\n1,2\n"
    assert fs.cat_file(f"fsstore://file://{archive}") == archive.read_bytes()
    for pattern in ("*.csv", "/*.csv"):
        assert fs.glob(f"{root}{pattern}") == names[:1]
        assert [file.path for file in fsspec.open_files(f"{root}{pattern}")] == names[:1]
    for wrong in ("fsstore://", "fsstore://nope"):
        with pytest.raises(ValueError):
            fs.cat_file(wrong)


def test_absent_keys_of_a_view_cost_no_request():
    """What a view does not have is known from the metadata: looking for it asks nothing of the store."""
    driver = _memory({})
    spec = {"driver": "zarr2", "kvstore": live_kv(KvPrefix(driver)).spec}
    array = ts.open(spec, create=True, dtype="int8", shape=[4], chunk_layout=ts.ChunkLayout(chunk_shape=[2])).result()
    array[...] = np.arange(4, dtype="int8")
    recording = Recording(driver)
    view = execution.call(open_view(live_kv(KvPrefix(recording)), Context(), zarr_format=3))
    recording.reset()
    for key in (".zarray", ".zattrs", "c/2", "c/00", "c", "zarr.json/c/0", "x/zarr.json"):
        assert execution.call(view.prefix.read(key)).state == "missing"
    keys = [entry.key for batch in execution.call(_listed(view.prefix)) for entry in batch]
    assert keys == ["c/0", "c/1", "zarr.json"]
    assert recording.calls["read"] == recording.calls["scan"] == 0
    assert execution.call(view.prefix.read("c/1")).value == execution.drive(driver.read_many([Read("1")]))[0].value
    assert [read.key for read in recording.reads] == ["1", ".zarray"]  # the latter: whether the array is the same


async def _listed(prefix):
    return [batch async for batch in prefix.scan()]


def _memory(files):
    from fsstore.kvstore.contract.driver import Write
    from fsstore.kvstore.memory import MemoryDriver

    driver = MemoryDriver()
    execution.drive(driver.write_many([Write(key, value) for key, value in files.items()]))
    return driver


def test_mappers(tmp_path, archive):
    """`get_mapper` gives a mutable mapping over stores, views and chains."""
    mapper = get_mapper(f"file://{tmp_path}/x/")
    mapper["a"] = b"1"
    mapper["b"] = np.arange(2, dtype="u1")
    assert dict(mapper) == {"a": b"1", "b": b"\0\1"}
    assert mapper.getitems(["a", "nope"]) == {"a": b"1"}
    del mapper["a"]
    assert "a" not in mapper and len(mapper) == 1
    with pytest.raises(KeyError):
        mapper["a"]
    with pytest.raises(KeyError):
        del mapper["a"]
    mapper.clear()
    assert list(mapper) == []
    assert list(get_mapper(f"auto::file://{archive}")) == ["a.csv", "b/c.csv"]


def test_tables_are_read_through_detection(tmp_path):
    """A file that is no container is shown as the file it is: pandas reads all of it, and not an empty directory."""
    table = pd.DataFrame({"x": range(100), "y": [0.5 * n for n in range(100)]})
    table.to_parquet(tmp_path / "p.parquet")
    table.to_csv(tmp_path / "p.csv", index=False)
    assert pd.read_parquet(f"auto::file://{tmp_path}/p.parquet").equals(table)
    assert pd.read_csv(f"auto::file://{tmp_path}/p.csv").equals(table)
    filesystem, path = fsspec.core.url_to_fs(f"auto::file://{tmp_path}/p.parquet")
    assert filesystem.info(path)["size"] == (tmp_path / "p.parquet").stat().st_size
    assert filesystem.isfile(path)
    assert sorted(fsspec.core.url_to_fs(f"auto::file://{tmp_path}")[0].find("")) == ["p.csv", "p.parquet"]


def test_mappers_take_options_for_each_protocol(tmp_path):
    """Keyword arguments of `get_mapper` are options of the protocols in a chain."""
    zarr.create_array(tmp_path / "x", shape=(8,), chunks=(2,), shards=(4,), dtype="i1")[...] = np.arange(8)
    url = f"zarr3::file://{tmp_path}/x"
    assert set(get_mapper(url)) == {"zarr.json", "c/0", "c/1"}
    split = get_mapper(url, storage_options={"zarr3": {"explode_shards": True}})
    assert set(split) == {"zarr.json", "c/0", "c/1", "c/2", "c/3"}
    assert split["c/3"] == bytes([6, 7])


def test_arrays_below_a_place(tmp_path, references):
    """Listings come from consolidated metadata where they are, and from the keys otherwise."""
    found = list_arrays(f"file://{references}")
    assert [(each.path, each.shape, each.dtype, each.chunks) for each in found] == [("g/v", (4, 5), "<i4", (2, 5))]
    assert tree(f"file://{references}") == "/\n  g/\n    v <i4 (4, 5) in chunks of (2, 5)"
    for consolidated in (True, False):
        for zarr_format in (2, 3):
            path = tmp_path / f"{consolidated}{zarr_format}"
            _dataset().to_zarr(path, zarr_format=zarr_format, consolidated=consolidated)
            assert [each.path for each in list_arrays(f"file://{path}")] == ["n", "s", "t", "x"]
    assert list_arrays(f"file://{tmp_path}/nope/") == []
    (tmp_path / "empty").write_bytes(b"")
    assert list_arrays(f"file://{tmp_path}/empty") == []


def test_a_hierarchy_of_n5(tmp_path):
    """Arrays of N5 are listed, named where their group is opened, and shown as zarr, values and attributes alike."""
    for name, size in (("a/b", 4), ("c", 6)):
        array = ts.open(f"file://{tmp_path}/n5/{name}|n5:", create=True, dtype="int16", shape=[size, 2]).result()
        array[...] = np.arange(size * 2, dtype="int16").reshape(size, 2)
    (tmp_path / "n5" / "attributes.json").write_text('{"n5": "2.5.0"}')
    url = f"file://{tmp_path}/n5"
    assert [(each.path, each.shape, each.dtype, each.chunks, each.zarr_format) for each in list_arrays(url)] == [
        ("a/b", (4, 2), "int16", (4, 2), 0),
        ("c", (6, 2), "int16", (6, 2), 0),
    ]
    assert tree(f"{url}/c") == "/ int16 (6, 2) in chunks of (6, 2)"
    with pytest.raises(FailedPreconditionError, match='is a group and no array; .* one of its arrays: "a/b", "c"'):
        ts.open(url).result()
    for protocol in ("zarr2", "zarr3"):
        group = zarr.open_group(f"{protocol}::{url}", mode="r")
        assert np.array_equal(group["c"][...], np.arange(12).reshape(6, 2))
        assert np.array_equal(zarr.open_array(f"{protocol}::{url}/a/b", mode="r")[...], np.arange(8).reshape(4, 2))


def test_listing_leaves_chunks_out():
    """In a store that lists in order, an array with many chunks costs a few requests and not all of its keys."""
    from fsstore.driver.auto import hierarchy

    document = b'{"zarr_format": 3, "node_type": "array"}'
    files = {f"a/c/{i}/{j}": b"" for i in range(40) for j in range(100)} | {"a/zarr.json": document}
    files |= {f"b/{i}.{j}": b"" for i in range(40) for j in range(100)} | {"b/.zarray": b"{}", "b/.zattrs": b"{}"}
    files |= {"c/zarr.json": document}
    recording = Recording(_memory(files))
    nodes = execution.call(hierarchy(KvPrefix(recording))).nodes
    assert list(nodes) == ["a", "b", "c"]
    assert recording.calls["scan"] < 12


def test_auto_asks_for_a_detected_directory_once(tmp_path, monkeypatch):
    """Where an array stands there is no file: of a path without a slash no more is asked than detection asks."""
    ts.open(f"file://{tmp_path}/a|zarr3:", create=True, dtype="uint8", shape=[4]).result()
    asked = []
    real = LocalDriver.read_many

    async def read_many(self, reads):
        asked.append([read.key.removeprefix(f"{tmp_path}/") for read in reads])
        return await real(self, reads)

    monkeypatch.setattr(LocalDriver, "read_many", read_many)
    filesystem, _ = fsspec.core.url_to_fs(f"auto::file://{tmp_path}/a")
    assert filesystem.find("") == ["zarr.json"]
    assert asked[0] == ["a", "a"]
    assert "a/zarr.json" in asked[1]
    assert "a" not in sum(asked[1:], [])
