"""A reference set and an OCDBT database read by the tools people use, in synchronous and in asynchronous programs."""

from __future__ import annotations

import asyncio
import json
import pickle
import re
import warnings
import zipfile
from pathlib import Path

import dask.array
import fsspec
import numpy as np
import pandas as pd
import pytest
import xarray
import zarr
import zarr.api.asynchronous

import fsstore as ts
from fsstore.filesystem.kv import KvFileSystem

DATA = np.arange(20, dtype="<i4").reshape(4, 5)


@pytest.fixture(autouse=True)
def _quiet():
    """Let the tools warn of what they do not like in the formats they read."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.fixture(params=["references", "database"])
def place(request, tmp_path):
    """Give the path of a hierarchy: a reference set of zarr v2, or a database with zarr v3."""
    if request.param == "database":
        url = f"ocdbt::file://{tmp_path}/db"
        dataset = xarray.Dataset({"v": (("y", "x"), DATA, {"units": "m"})}, attrs={"title": "t"})
        dataset.to_zarr(url, group="g", zarr_format=3, consolidated=False)
        return tmp_path / "db"
    (tmp_path / "data").write_bytes(b"head" + DATA.tobytes())
    array = {"zarr_format": 2, "compressor": None, "filters": None, "order": "C", "fill_value": None}
    refs = {
        ".zgroup": '{"zarr_format": 2}',
        "g/.zgroup": '{"zarr_format": 2}',
        "g/.zattrs": '{"title": "t"}',
        "g/v/.zarray": json.dumps({**array, "shape": [4, 5], "chunks": [2, 5], "dtype": "<i4"}),
        "g/v/.zattrs": json.dumps({"_ARRAY_DIMENSIONS": ["y", "x"], "units": "m"}),
        "g/v/0.0": [str(tmp_path / "data"), 4, 40],
        "g/v/1.0": [str(tmp_path / "data"), 44, 40],
    }
    (tmp_path / "refs.json").write_text(json.dumps({"version": 1, "refs": refs}))
    return tmp_path / "refs.json"


SHOWN = pytest.mark.parametrize("protocol", ["zarr2", "zarr3", "zarr", "auto"])


@SHOWN
def test_zarr_python(place, protocol):
    """Groups and arrays open by the path of the hierarchy, and by a path in it."""
    url = f"{protocol}::file://{place}"
    group = zarr.open_group(url, mode="r")
    assert group["g/v"][...].tolist() == DATA.tolist()
    assert group["g"].attrs["title"] == "t"
    assert zarr.open_array(url, path="g/v", mode="r")[1].tolist() == DATA[1].tolist()
    assert zarr.open(f"{protocol}://g::file://{place}", mode="r")["v"][2].tolist() == DATA[2].tolist()


@SHOWN
def test_zarr_python_in_an_event_loop(place, protocol):
    """The same through zarr-python's asynchronous interface."""

    async def main():
        url = f"{protocol}::file://{place}"
        group = await zarr.api.asynchronous.open_group(url, mode="r")
        array = await zarr.api.asynchronous.open_array(store=url, path="g/v", mode="r")
        members = {name async for name, _ in group.members(max_depth=None)}
        return members, await array.getitem((slice(1, 3), slice(None)))

    members, values = asyncio.run(main())
    assert members == {"g", "g/v"}
    assert values.tolist() == DATA[1:3].tolist()


@SHOWN
def test_xarray_and_dask(place, protocol):
    """`open_zarr`, `open_dataset` with and without chunks, and `dask.array.from_zarr` see the same values."""
    url = f"{protocol}::file://{place}"
    for dataset in (
        xarray.open_zarr(url, group="g", consolidated=False),
        xarray.open_dataset(url, engine="zarr", group="g", consolidated=False),
        xarray.open_dataset(url, engine="zarr", group="g", consolidated=False, chunks={}),
    ):
        assert dataset.v.dims == ("y", "x")
        assert (dataset.attrs["title"], dataset.v.attrs["units"]) == ("t", "m")
        assert np.array_equal(dataset.v.values, DATA)
    assert dask.array.from_zarr(url, component="g/v").sum().compute() == DATA.sum()


@pytest.mark.parametrize("url", ["zarr2::file://{}", "fsstore://file://{}|reference:"])
def test_references_to_a_server(tmp_path, object_server, url):
    """Targets that only an event loop can read are read in programs with and without one; no set goes through JSON."""
    object_server.put("t", DATA.tobytes())
    array = {"zarr_format": 2, "compressor": None, "filters": None, "order": "C", "fill_value": None}
    refs = {
        ".zgroup": '{"zarr_format": 2}',
        "v/.zarray": json.dumps({**array, "shape": [4, 5], "chunks": [2, 5], "dtype": "<i4"}),
        **{f"v/{n}.0": [f"{object_server.url}/t", 40 * n, 40] for n in range(2)},
        **{f"w/{n}": ["t", n, 1] for n in range(2000)},
    }
    (tmp_path / "r.json").write_text(json.dumps({"version": 1, "refs": refs}))
    place = url.format(tmp_path / "r.json")
    mapper = fsspec.get_mapper(place)
    assert len(mapper.fs.to_json()) < 1000
    assert len(pickle.dumps(mapper.fs)) < 1000
    for store in (place, mapper, zarr.storage.FsspecStore(mapper.fs, path=mapper.root)):
        assert zarr.open_group(store, mode="r", zarr_format=2)["v"][...].tolist() == DATA.tolist()

    async def main():
        group = await zarr.api.asynchronous.open_group(place, mode="r", zarr_format=2)
        return await (await group.getitem("v")).getitem(...)

    assert asyncio.run(main()).tolist() == DATA.tolist()


def test_fsspec_and_universal_pathlib(place, tmp_path):
    """Mappers, globs, caches in the chain and paths see the same files, with options for each protocol."""
    from upath import UPath

    options = {"zarr3": {}, "simplecache": {"cache_storage": str(tmp_path / "cache")}}
    url = f"simplecache::zarr3::file://{place}"
    mapper = fsspec.get_mapper(url, **options)
    assert json.loads(mapper["g/v/zarr.json"])["shape"] == [4, 5]
    files = fsspec.open_files(f"zarr3://**/zarr.json::file://{place}")
    assert {file.path for file in files} >= {"g/zarr.json", "g/v/zarr.json"}
    root = UPath(f"zarr3://::file://{place}")
    assert json.loads((root / "g" / "zarr.json").read_text())["node_type"] == "group"
    assert {path.name for path in (root / "g").iterdir()} == {"v", "zarr.json"}
    again = pickle.loads(pickle.dumps(fsspec.open(f"zarr3://g/v/zarr.json::file://{place}")))
    with again as file:
        assert json.load(file)["node_type"] == "array"


def test_one_filesystem_serves_many_event_loops(place):
    """An asynchronous filesystem made in one loop answers in the next, and in threads, as zarr-python needs."""
    fs = fsspec.filesystem("zarr3", fo=str(place), asynchronous=True)
    for _ in range(2):
        assert b"node_type" in asyncio.run(fs._cat_file("g/v/zarr.json"))

    async def many():
        return await asyncio.gather(*(fs._cat_file("g/v/zarr.json") for _ in range(50)), fs._find(""))

    assert len(asyncio.run(many())) == 51


@pytest.mark.parametrize("protocol", ["ocdbt", "zarr2", "zarr3"])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_arrays_are_created(tmp_path, protocol, asynchronous):
    """zarr-python creates arrays through the protocols that can be written, and fsstore reads them by their place."""
    url = f"{protocol}::file://{tmp_path}/new"
    zarr_format = 2 if protocol == "zarr2" else 3
    options = {"shape": (4, 5), "chunks": (2, 5), "dtype": "i4", "zarr_format": zarr_format}
    if asynchronous:

        async def main():
            array = await zarr.api.asynchronous.create_array(url, **options)
            await array.setitem(Ellipsis, DATA)

        asyncio.run(main())
    else:
        zarr.create_array(url, **options)[...] = DATA
    assert np.array_equal(ts.open(f"file://{tmp_path}/new").result().read().result(), DATA)


@pytest.mark.parametrize("name", ["a.csv", "b/c.csv"])
def test_pandas_through_detection(tmp_path, name):
    """pandas reads tables out of an archive that is found by its content, compressed or not."""
    import gzip

    with zipfile.ZipFile(tmp_path / "x.bin", "w") as archive:
        archive.writestr(name, "x,y\n1,2\n")
    (tmp_path / "x.gz").write_bytes(gzip.compress((tmp_path / "x.bin").read_bytes()))
    for place in ("x.bin", "x.gz"):
        assert pd.read_csv(f"auto://{name}::file://{tmp_path}/{place}").y[0] == 2


@pytest.mark.parametrize("kind", ["file", "memory", "ocdbt"])
def test_files_and_directories_of_every_store(tmp_path, kind):
    """What is a file and what a directory does not depend on the store: local ones have directories of their own."""
    url = {"file": f"file://{tmp_path}/s/", "memory": "memory://", "ocdbt": f"file://{tmp_path}/s/|ocdbt:"}[kind]
    fs = KvFileSystem.of(ts.KvStore.open(url).result())
    fs.pipe({"a": b"12", "b/c": b"3"})
    assert fs.ls("a", detail=False) == fs.find("a") == ["a"]
    assert fs.info("a") == {"name": "a", "size": 2, "type": "file"}
    assert [fs.exists(path) for path in ("a", "b", "a/x", "b/x", "x")] == [True, True, False, False, False]
    assert [fs.isdir(path) for path in ("a", "b", "x", "")] == [False, True, False, True]
    assert list(fs.walk("")) == [("", ["b"], ["a"]), ("b", [], ["c"])]
    assert fs.find("", withdirs=True) == ["a", "b", "b/c"]
    assert (fs.du(""), fs.head("a", 1), fs.tail("a", 1)) == (3, b"1", b"2")
    for missing in ("x", "a/x", "b/x"):
        with pytest.raises(FileNotFoundError):
            fs.ls(missing)
    with fs.open("a", "ab") as file:
        file.write(b"45")
    assert fs.cat_file("a") == b"1245"
    with pytest.raises(FileExistsError):
        fs.open("a", "xb")
    fs.touch("t")
    assert fs.cat_file("t") == b""
    fs.rm("a", recursive=True)
    fs.rm("b", recursive=True)
    assert fs.find("") == ["t"]
    fs.rm("", recursive=True)
    assert fs.find("") == []


def test_the_size_of_a_local_file_is_not_found_by_reading_it(tmp_path):
    """A sparse file of ten gigabytes is described, opened and read at its end at once."""
    with open(tmp_path / "big", "wb") as file:
        file.truncate(10 * 2**30)
    fs = fsspec.filesystem("auto", fo=str(tmp_path), skip_instance_cache=True)
    assert fs.info("big")["size"] == 10 * 2**30
    with fs.open("big") as file:
        file.seek(-3, 2)
        assert file.read() == bytes(3)
    assert fs.cat_file("big", -5) == bytes(5)


def test_a_filesystem_of_an_open_store_goes_into_zarr_python():
    """zarr-python makes filesystems of mappings again from JSON: in this process that is the same open store."""
    kvstore = ts.KvStore.open("memory://").result()
    zarr.create_array(KvFileSystem.of(kvstore).get_mapper("b"), shape=(4,), dtype="i4")
    assert kvstore.list().result() == [b"b/zarr.json"]
    del kvstore["b/zarr.json"]
    text = re.sub('fsstore-live:[^"]*', "fsstore-live:gone", KvFileSystem.of({}).to_json())
    with pytest.raises(ValueError, match="another process, or of one that is gone"):
        fsspec.AbstractFileSystem.from_json(text)
    filesystem = KvFileSystem.of(kvstore, asynchronous=True)
    array = zarr.create_array(zarr.storage.FsspecStore(filesystem, path="a"), shape=(4,), dtype="i4")
    array[:] = 1
    assert kvstore.list().result() == [b"a/c/0", b"a/zarr.json"]


@pytest.mark.parametrize(
    "kind", [str, Path, lambda path: {"driver": "file", "path": f"{path}/"}], ids=["url", "path", "spec"]
)
def test_mappings_of_filesystems_go_into_zarr_python(tmp_path, kind):
    """Places that JSON can hold are made again by zarr-python."""
    mapper = KvFileSystem(kind(tmp_path)).get_mapper("a")
    zarr.create_array(mapper, shape=(4,), dtype="i4")[:] = 3
    assert zarr.open_array(mapper)[:].tolist() == [3] * 4


@pytest.mark.parametrize("url", ["fsstore::file:///tmp", "fsstore::s3://bucket/a", "fsstore::memory://a"])
def test_a_pipeline_is_no_link_of_a_chain(url):
    """`fsstore::` before a URL says what to write instead."""
    right = re.escape(f"write fsstore://{url.split('::')[1].split('/')[0]}//")
    with pytest.raises(ValueError, match=right):
        fsspec.core.url_to_fs(url)
