"""Saved indexes of scanned files, and first touches that share one read."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import h5py
import netCDF4
import numpy as np
import pytest
import xarray as xr

import fsstore as ts
from fsstore import references


class Far:
    """A directory that the object server shows, counted."""

    def __init__(self, server, folder):
        self.folder, self.url, self._server = folder, f"{server.url}/", server

    def show(self):
        """Show what is in the directory now; begin to count."""
        for path in self.folder.iterdir():
            if path.is_file():
                self._server.put(path.name, path.read_bytes())
        self.cost()

    def cost(self):
        """Return the requests and bytes since the last call."""
        found = len(self._server.log), self._server.bytes_sent
        self._server.log.clear()
        self._server.bytes_sent = 0
        return found


@pytest.fixture
def server(object_server, tmp_path):
    """Give a directory that is shown by a server, which counts requests."""
    return Far(object_server, tmp_path)


def write(path, first=0):
    """Write a file of two variables, one of strings."""
    with netCDF4.Dataset(path, "w") as file:
        file.createDimension("t", 40)
        found = file.createVariable("v", "i4", ("t",), zlib=True, chunksizes=(2,))
        found.units = "m"
        found[:] = np.arange(first, first + 40)
        file.createVariable("s", str, ("t",))[:] = np.array([f"s{each}" for each in range(40)], object)


def indexed(url, index, name="hdf5"):
    """Return the spec of a scanned file that is read through an index."""
    return {"driver": name, "base": url, "index": index}


@pytest.mark.parametrize("form", ["a.nc.json", "a.nc.json.zst", "a.nc.parq", "elsewhere/a.parq"])
def test_an_index_shows_what_a_scan_shows(tmp_path, form):
    """A file opened with its index is identical to the file scanned, wherever the index lies."""
    write(tmp_path / "a.nc")
    (tmp_path / "elsewhere").mkdir()
    references.open(f"file://{tmp_path}/a.nc").save(f"file://{tmp_path}/{form}")
    spec = indexed(f"file://{tmp_path}/a.nc", str(tmp_path / form))
    got = xr.open_dataset(spec, engine="fsstore").load()
    with xr.open_dataset(tmp_path / "a.nc", engine="netcdf4") as want:
        assert got.identical(want.load())


def test_an_index_saves_the_scan(server):
    """With an index nothing of the structure is read: one request for the version, one for the chunk."""
    write(server.folder / "a.nc")
    server.show()
    references.open(f"{server.url}a.nc").save(f"file://{server.folder}/a.parq")
    server.cost()
    spec = {
        "driver": "zarr",
        "kvstore": {**indexed(f"{server.url}a.nc", f"file://{server.folder}/a.parq"), "path": "v/"},
    }
    array = ts.open(spec).result()
    assert array[7].read().result() == 7
    requests, octets = server.cost()
    assert requests <= 2
    assert octets < 1000


@pytest.mark.parametrize("far", [False, True])
def test_a_stale_index_is_refused(server, far):
    """After the file was replaced, by one of another size or of the same, its index is refused, and says why."""
    url = f"{server.url}a.nc" if far else f"file://{server.folder}/a.nc"
    write(server.folder / "a.nc")
    server.show()
    index = f"file://{server.folder}/a.json"
    references.open(url).save(index)
    assert ts.KvStore.open(indexed(url, index)).result().read("v/.zarray").result().state == "value"
    write(server.folder / "a.nc", first=1000)
    server.show()
    with pytest.raises(ts.errors.FailedPreconditionError, match=r"as it is now: .*overwrite=True"):
        ts.KvStore.open(indexed(url, index)).result().read("v/.zarray").result()
    with (server.folder / "a.nc").open("ab") as file:
        file.write(bytes(10))
    server.show()
    with pytest.raises(ts.errors.FailedPreconditionError, match="bytes, and had"):
        ts.KvStore.open(indexed(url, index)).result().read("v/.zarray").result()


def test_what_is_no_index_is_refused(tmp_path):
    """A set that does not say what it was made of, one of another format, and none at all are errors of ours."""
    write(tmp_path / "a.nc")
    url = f"file://{tmp_path}/a.nc"
    refs = references.open(url)
    refs.save(f"file://{tmp_path}/good.json")
    refs.rename("v/", "w/").save(f"file://{tmp_path}/changed.json")
    for spec, message in (
        (indexed(url, f"file://{tmp_path}/changed.json"), "names no file"),
        (indexed(url, f"file://{tmp_path}/good.json", "netcdf3"), "one of the format"),
        (indexed(url, f"file://{tmp_path}/none.json"), "There is no index"),
    ):
        with pytest.raises(ts.errors.StoreError, match=message):
            ts.KvStore.open(spec).result().read("v/.zarray").result()
    with pytest.raises(ts.errors.JsonError, match="index"):
        ts.KvStore.open(indexed(url, 5)).result()


def test_an_index_needs_no_hdf5_library(tmp_path):
    """A process in which h5py cannot be imported reads a file through its index, strings of any length too."""
    write(tmp_path / "a.nc")
    references.open(f"file://{tmp_path}/a.nc").save(f"file://{tmp_path}/a.json")
    code = """
import sys
sys.modules["h5py"] = None
import fsstore as ts
store = {"driver": "hdf5", "base": f"file://{sys.argv[1]}/a.nc", "index": f"{sys.argv[1]}/a.json"}
for name in ("v", "s"):
    print(ts.open({"driver": "zarr", "kvstore": {**store, "path": f"{name}/"}}).result()[3].read().result())
"""
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout.split() == ["3", "s3"], done.stderr


def test_a_classic_file_has_an_index_too(tmp_path):
    """The option is one of all scanned formats."""
    with netCDF4.Dataset(tmp_path / "a.nc", "w", format="NETCDF3_CLASSIC") as file:
        file.createDimension("x", 5)
        file.createVariable("v", "f8", ("x",))[:] = np.arange(5)
    references.open(str(tmp_path / "a.nc")).save(str(tmp_path / "a.json"))
    spec = indexed(f"file://{tmp_path}/a.nc", str(tmp_path / "a.json"), "netcdf3")
    assert xr.open_dataset(spec, engine="fsstore")["v"].values.tolist() == [0, 1, 2, 3, 4]


def write_many(path):
    """Write two datasets of 4,000 chunks."""
    with h5py.File(path, "w", libver="earliest") as file:
        for name in ("v", "w"):
            data = np.arange(64_000).reshape(4000, 16)
            file.create_dataset(name, data=data, chunks=(1, 16), compression="gzip")


def test_concurrent_first_reads_share_one_read_of_the_index(server):
    """Sixteen first reads of one far array at the same time read its index once."""
    write_many(server.folder / "a.h5")
    server.show()
    array = ts.open(f"{server.url}a.h5|hdf5:v").result()
    server.cost()
    assert array[100].read().result()[0] == 1600
    alone = server.cost()[0]
    array = ts.open(f"{server.url}a.h5|hdf5:v", context={"cache_pool": {}}).result()
    server.cost()
    reads = [array[number * 100].read() for number in range(16)]
    assert [read.result()[0] for read in reads] == [number * 1600 for number in range(16)]
    assert server.cost()[0] <= alone + 15


def test_threads_share_the_index_of_a_local_file(tmp_path, monkeypatch):
    """Eight threads that touch a local array together read its index once, and all of them get their values."""
    from fsstore.scan.hdf5 import scanner

    write_many(tmp_path / "a.h5")
    array = ts.open(f"file://{tmp_path}/a.h5|hdf5:v").result()
    counted, inside, tables = [], threading.Event(), scanner.Hdf5File.tables

    async def slow(self, paths):
        counted.append(list(paths))
        inside.set()
        assert release.wait(20)
        return await tables(self, paths)

    release = threading.Event()
    monkeypatch.setattr(scanner.Hdf5File, "tables", slow)
    with ThreadPoolExecutor(8) as pool:
        first = pool.submit(lambda: array[0].read().result()[0])
        assert inside.wait(20)
        others = [pool.submit(lambda at=at: array[at].read().result()[0]) for at in range(1, 8)]
        release.set()
        assert [each.result(20) for each in (first, *others)] == [16 * at for at in range(8)]
    assert counted == [["v"]]


def test_paths_that_end_with_numbers(tmp_path):
    """Numbers at the end of a path are told from those of chunks in the set that is made of a file."""
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        for name in ("1", "g/2", "g/3/4", "v", "scalar/5"):
            file.create_dataset(name, data=np.arange(6).reshape(2, 3), chunks=(1, 2))
        file["6"] = 3.5
    store = ts.KvStore.open(f"file://{path}|hdf5:").result()
    found = references.scan(str(path))
    keys = sorted(key.decode() for key in store.list().result())
    assert sorted(found) == keys
    assert len(found) == len(keys)
    assert all(found[key] is not None for key in keys)
