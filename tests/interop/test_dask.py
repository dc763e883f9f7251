"""Arrays of ours in dask: blocks along the stored chunks, stable names, threads, processes and writing."""

from __future__ import annotations

import json
import os
import pickle

import dask
import dask.array as da
import numpy as np
import pytest

import fsstore as ts
from fsstore.interop.dask import from_tensorstore, to_tensorstore

DATA = np.arange(10 * 12, dtype="f4").reshape(10, 12)


def create(url, chunks=(4, 5)):
    """Return a new array of the shape of the data."""
    layout = ts.ChunkLayout(chunk_shape=list(chunks))
    return ts.open(url, create=True, dtype="float32", shape=DATA.shape, chunk_layout=layout).result()


@pytest.fixture
def url(tmp_path):
    """Give the URL of a zarr array that holds the data."""
    create(f"file://{tmp_path}/a.zarr/|zarr3:").write(DATA).result()
    return f"file://{tmp_path}/a.zarr/|zarr3:"


VIEWS = {
    "whole": (lambda store: store, DATA, ((4, 4, 2), (5, 5, 2))),
    "part": (lambda store: store[2:9, 5:7], DATA[2:9, 5:7], ((2, 4, 1), (2,))),
    "shifted": (lambda store: store[ts.d[0].translate_to[-100]], DATA, ((4, 4, 2), (5, 5, 2))),
    "strided": (lambda store: store[::2], DATA[::2], ((2, 2, 1), (5, 5, 2))),
    "turned": (lambda store: store[ts.d[:].transpose[::-1]], DATA.T, ((5, 5, 2), (4, 4, 2))),
    "row": (lambda store: store[3], DATA[3], ((5, 5, 2),)),
    "scalar": (lambda store: store[3, 4], DATA[3, 4], ()),
}


@pytest.mark.parametrize("name", VIEWS)
def test_blocks_follow_the_stored_chunks(url, name):
    """Of a view too, wherever it begins; indices of dask count from zero."""
    view, expected, chunks = VIEWS[name]
    array = from_tensorstore(view(ts.open(url).result()), chunks=None)
    assert array.chunks == chunks
    assert array.dtype == np.float32
    assert np.array_equal(array.compute(), expected)


def test_small_chunks_are_joined_into_larger_blocks(url):
    """By default blocks consist of whole stored chunks, as many as dask's configuration says."""
    store = ts.open(url).result()
    assert from_tensorstore(store).chunks == ((10,), (12,))
    with dask.config.set({"array.chunk-size": "160B"}):
        rows, columns = from_tensorstore(store).chunks
        assert rows == (4, 4, 2)
        assert len(columns) == 2
        assert columns[0] in (5, 10)
    assert from_tensorstore(store, chunks=(5, 6)).chunks == ((5, 5), (6, 6))


def test_an_array_of_some_megabytes_has_work_for_many_workers():
    """Blocks stay below dask's chunk size, and 93 MB are not one block; a stored chunk is never cut for that."""
    layout = ts.ChunkLayout(chunk_shape=[10, 500, 500])
    options = {"create": True, "dtype": "float32", "shape": [93, 500, 500], "chunk_layout": layout}
    array = from_tensorstore(ts.open("memory://|zarr3:", **options).result())
    assert array.npartitions == 10
    with dask.config.set({"array.chunk-size": "1MB"}):
        small = from_tensorstore(ts.open("memory://|zarr3:", **options).result())
    assert np.prod(small.chunksize) * 4 <= 1_000_000


SELECTIONS = [
    np.s_[::-1],
    np.s_[8:1:-3, -4:],
    np.s_[[5, 0, 5]],
    np.s_[:, [1, -1]],
    np.s_[-1],
    np.s_[None, 2:2],
    np.s_[..., 0],
]


@pytest.mark.parametrize("key", SELECTIONS, ids=range(len(SELECTIONS)))
def test_selections_mean_what_numpy_means(url, key):
    """Negative positions and steps, lists and new axes, pushed into the read or not."""
    array = from_tensorstore(ts.open(url).result(), chunks=None)
    assert np.array_equal(array[key].compute(), DATA[key])


def test_names_are_made_of_specs(url, tmp_path):
    """The same view has the same name, opened twice or unpickled; another view, array or memory has another."""
    store = ts.open(url).result()
    name = from_tensorstore(store).name
    assert from_tensorstore(ts.open(url).result()).name == name
    assert from_tensorstore(pickle.loads(pickle.dumps(store))).name == name
    others = [store[1:], store[ts.d[:].transpose[::-1]], create(f"file://{tmp_path}/b.zarr/|zarr3:")]
    others += [create("memory://a/|zarr3:") for _ in range(2)]
    names = {from_tensorstore(other).name for other in others} | {from_tensorstore(store, (5, 5)).name}
    assert len(names | {name}) == len(others) + 2


def test_writing_needs_no_lock(tmp_path):
    """Blocks that share stored chunks lose nothing, and a view takes an array of its shape."""
    target = create(f"file://{tmp_path}/b.zarr/|zarr3:")
    to_tensorstore(da.from_array(DATA, chunks=(3, 3)), target)
    assert np.array_equal(target.read().result(), DATA)
    to_tensorstore(da.from_array(-DATA[:4], chunks=2), target[2:6])
    assert np.array_equal(target[2:6].read().result(), -DATA[:4])
    later = to_tensorstore(da.zeros((10, 12), dtype="f4"), target, compute=False)
    assert target[0, 1].read().result() == 1
    later.compute()
    assert not target.read().result().any()
    with pytest.raises(ValueError, match="shape"):
        to_tensorstore(da.zeros((2, 2)), target)


def test_a_plain_from_array_reads_too(url):
    """`dask.array.from_array` takes a store whose domain begins at zero."""
    array = da.from_array(ts.open(url).result(), chunks=(4, 5))
    assert np.array_equal(array.compute(), DATA)


def test_a_cluster_of_processes_in_another_directory(tmp_path, monkeypatch):
    """Reference sets, relative paths, writes and xarray's datasets work on workers whose directory is another."""
    import distributed
    import xarray as xr

    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").write_bytes(DATA.astype("<f4").tobytes())
    document = {"zarr_format": 2, "shape": [10, 12], "chunks": [2, 12], "dtype": "<f4", "compressor": None, "filters": None, "order": "C", "fill_value": None}  # fmt: skip
    refs = {"x/.zarray": json.dumps(document), **{f"x/{n}.0": ["data", n * 96, 96] for n in range(5)}}
    (tmp_path / "r.json").write_text(json.dumps({"version": 1, "refs": refs}))
    array = from_tensorstore(ts.open("file://r.json|reference:x/|zarr2:").result(), chunks=None)
    target = create("file://b.zarr/|zarr3:")
    group = ts.open_group("g", mode="w").result()
    options = {"shape": DATA.shape, "dtype": "f4", "chunks": [4, 5], "dimension_names": ["y", "x"]}
    group.create_array("v", **options).result().write(DATA).result()
    lazy = xr.open_dataset("file://g/", engine="fsstore", chunks={})
    assert len(pickle.dumps(array)) < 10_000
    patient = dask.config.set(
        {"distributed.comm.timeouts.connect": "120s", "temporary_directory": str(tmp_path / "dask")}
    )
    options = {"n_workers": 1, "threads_per_worker": 2, "processes": True, "dashboard_address": ":0"}
    with patient, distributed.LocalCluster(**options) as cluster, distributed.Client(cluster, timeout=120) as client:
        client.run(os.chdir, "/")
        assert np.array_equal((array + 1).compute(), DATA + 1)
        to_tensorstore(array * 2, target)
        assert np.array_equal(target.read().result(), DATA * 2)
        assert np.array_equal(lazy.v.mean("x").compute(), DATA.mean(axis=1))


@pytest.mark.parametrize("call", [from_tensorstore, lambda other: to_tensorstore(da.zeros(3), other)])
def test_what_is_no_store_is_refused(call):
    """An array of NumPy in place of a store is an error that says what is expected."""
    with pytest.raises(TypeError, match=r"Expected an fsstore\.TensorStore, but received: ndarray"):
        call(np.zeros(3))
