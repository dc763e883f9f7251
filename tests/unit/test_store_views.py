"""Stores made of functions, batches of array reads, and what casts and views say of their base."""

from __future__ import annotations

import asyncio
import pickle
import threading
from typing import Any

import numpy as np
import pytest

import fsstore as ts


def _source(values: Any, seen: list[Any]) -> Any:
    def read(domain: Any, array: Any, parameters: Any) -> None:
        seen.append(tuple(domain.inclusive_min))
        assert parameters == ts.VirtualChunkedReadParameters()
        array[...] = values[domain.index_exp]

    return read


def test_each_chunk_is_asked_for_once() -> None:
    """A read asks for the chunks it touches, each once and whole, whatever the order of the elements wanted."""
    values, seen = np.arange(60).reshape(6, 10), []
    store = ts.virtual_chunked(
        _source(values, seen), dtype="int64", shape=[6, 10], chunk_layout=ts.ChunkLayout(chunk_shape=[2, 4])
    )
    np.testing.assert_array_equal(store.vindex[[5, 0, 5, 1], [9, 0, 8, 3]].read().result(), [59, 0, 58, 13])
    assert sorted(seen) == [(0, 0), (4, 8)]
    np.testing.assert_array_equal(store.T.read().result(), values.T)
    assert store.chunk_layout.read_chunk.shape == (2, 4)


def test_partial_writes_read_the_chunk_first() -> None:
    """A chunk written in part is read, changed and written; a whole one is written at once."""
    values, seen, written = np.zeros((4, 4), np.int64), [], []

    def write(domain: Any, array: Any, parameters: Any) -> None:
        assert parameters == ts.VirtualChunkedWriteParameters()
        written.append(tuple(domain.inclusive_min))
        values[domain.index_exp] = array

    store = ts.virtual_chunked(
        _source(values, seen), write, dtype="int64", shape=[4, 4], chunk_layout=ts.ChunkLayout(chunk_shape=[2, 2])
    )
    store[0:2, 0:2] = 1
    assert (seen, written) == ([], [(0, 0)])
    store[1:3, 1:3] = 5
    assert sorted(seen) == sorted([(0, 0), (0, 2), (2, 0), (2, 2)])
    np.testing.assert_array_equal(values[:3, :3], [[1, 1, 0], [1, 5, 5], [0, 5, 5]])


def test_coroutine_functions_run_on_the_callers_loop() -> None:
    """A coroutine function runs on the loop that runs when the store is made; without one it is refused."""
    threads = []

    async def read(domain: Any, array: Any, parameters: Any) -> None:
        await asyncio.sleep(0)
        threads.append(threading.get_ident())
        array[...] = 3

    async def use() -> Any:
        return await ts.virtual_chunked(read, dtype="int8", shape=[3]).read()

    assert asyncio.run(use()).tolist() == [3, 3, 3]
    assert threads == [threading.get_ident()]
    with pytest.raises(ValueError, match="no event loop"):
        ts.virtual_chunked(read, dtype="int8", shape=[3]).read().result()


def test_errors_of_functions_reach_the_reader() -> None:
    """What a function raises is what the future raises."""

    def read(domain: Any, array: Any, parameters: Any) -> None:
        raise LookupError("nothing there")

    with pytest.raises(LookupError, match="nothing there"):
        ts.virtual_chunked(read, dtype="int8", shape=[3]).read().result()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "int8"}, "rank must be specified"),
        ({"shape": [3]}, "dtype must be specified"),
        ({"dtype": "int8", "shape": [3], "schema": ts.Schema(fill_value=1)}, "fill_value not supported"),
    ],
)
def test_incomplete_functions_are_refused(options: dict[str, Any], message: str) -> None:
    """What is missing is said before anything is read."""
    with pytest.raises(ValueError, match=message):
        ts.virtual_chunked(lambda *_: None, **options)
    with pytest.raises(ValueError, match="Must specify"):
        ts.virtual_chunked(dtype="int8", shape=[3])


def test_functions_cannot_be_written_down() -> None:
    """A store of functions has no JSON and no URL, its repr says no more, and only what pickles can be pickled."""
    store = ts.virtual_chunked(lambda *_: None, dtype="int8", shape=[3])
    assert repr(store) == "TensorStore(...)"
    assert repr(store.spec()) == "Spec(...)"
    assert store == store[:]  # the same view of the same functions
    for refused in (store.spec().to_json, lambda: store.url, lambda: store.spec().url):
        with pytest.raises(NotImplementedError):
            refused()
    with pytest.raises((pickle.PicklingError, AttributeError)):
        pickle.dumps(store)


def _fill(domain: Any, array: Any, parameters: Any) -> None:
    array[...] = domain.inclusive_min[0]


def test_functions_are_pickled_by_name() -> None:
    """Stores and specs of functions that pickle knows go to other processes; a loop stays behind."""

    async def make() -> Any:
        return ts.virtual_chunked(_fill, dtype="int8", shape=[6], chunk_layout=ts.ChunkLayout(chunk_shape=[2]))

    view = asyncio.run(make())[1:]
    for again in (pickle.loads(pickle.dumps(view)), ts.open(pickle.loads(pickle.dumps(view.spec()))).result()):
        assert again.domain == view.domain
        assert again.schema == view.schema
        assert again.read().result().tolist() == [0, 2, 2, 4, 4]
    cast = pickle.loads(pickle.dumps(ts.cast(view, "float32")))
    assert cast.read().result().tolist() == [0.0, 2.0, 2.0, 4.0, 4.0]


def test_reads_of_a_batch_wait_for_it() -> None:
    """Reads given a batch begin when it is submitted, in all three ways of submitting it."""
    store = ts.open("memory://|zarr3:", create=True, dtype="int64", shape=[4]).result()
    store[...] = [1, 2, 3, 4]
    with ts.Batch() as batch:
        inside = store[:2].read(batch=batch)
        with pytest.raises(TimeoutError):
            inside.result(timeout=0)
    assert inside.result(timeout=10).tolist() == [1, 2]
    batch = ts.Batch()
    called = store[2:].read(batch=batch)
    batch.submit()
    assert called.result(timeout=10).tolist() == [3, 4]
    batch = ts.Batch()
    dropped = store.read(batch=batch)
    del batch
    assert dropped.result(timeout=10).tolist() == [1, 2, 3, 4]


def test_options_of_a_cast_reach_its_base() -> None:
    """`create`, shape and the like, given to a cast, are those of the array below it."""
    spec = ts.Spec({"driver": "cast", "dtype": "float32", "base": {"driver": "zarr3", "kvstore": "memory://"}})
    spec.update(create=True, shape=[3], fill_value=2)
    assert spec.base.open_mode == ts.OpenMode(create=True)
    assert spec.to_json()["base"]["schema"]["domain"]["exclusive_max"] == [3]
    spec = ts.Spec({"driver": "cast", "dtype": "float32", "base": {**spec.to_json()["base"], "dtype": "int16"}})
    assert ts.open(spec).result().read().result().tolist() == [2.0, 2.0, 2.0]


def test_lists_of_large_integers_stay_exact() -> None:
    """Integers of 64 bits in lists are not taken for floating-point numbers."""
    values = [2**64 - 8, 3]
    assert ts.array(values, dtype="uint64").read().result().tolist() == values
    store = ts.open("memory://|zarr3:", create=True, dtype="uint64", shape=[2]).result()
    store.write(values).result()
    assert store.read().result().tolist() == values


def test_dictionaries_are_stores() -> None:
    """A dictionary given as an argument is a store; in a spec it is one if it holds bytes, and a spec otherwise."""
    store: dict[str, bytes] = {}
    array = ts.open({"driver": "zarr3"}, kvstore=store, create=True, dtype="int8", shape=[3]).result()
    array.write([1, 2, 3]).result()
    assert set(store) == {"zarr.json", "c/0"}
    for spec in ({"driver": "zarr3", "kvstore": store}, {"driver": "auto", "kvstore": store}, store):
        assert ts.open(spec).result().read().result().tolist() == [1, 2, 3]
    inside = ts.open({"driver": "zarr3", "kvstore": store})
    inside.result().write([4, 5, 6]).result()
    assert array.read().result().tolist() == [4, 5, 6]
    assert ts.KvStore.open(store).result()["c/0"] == store["c/0"] == b"\4\5\6"
    for malformed in ({}, {"path": "x"}):
        with pytest.raises(ValueError, match='"driver": Expected string, but member is missing'):
            ts.open({"driver": "zarr3", "kvstore": malformed})
        with pytest.raises(ValueError, match='"driver": Expected string, but member is missing'):
            ts.open(malformed)


@pytest.mark.parametrize("scheme", ["zarr3", "zarr2"])
def test_reversed_empty_dimensions(scheme: str) -> None:
    """A dimension without elements can be reversed, read and written; nothing is stored (TensorStore refuses)."""
    store = ts.open(f"memory://|{scheme}:", create=True, dtype="int8", shape=[0, 2]).result()
    for view, shape in ((store[::-1], (0, 2)), (store[ts.newaxis, ::-1, 0], (1, 0)), (store.T[:, ::-2], (2, 0))):
        assert view.read().result().shape == view.resolve().result().shape == shape
        view.write(1).result()
    assert len(store.kvstore.list().result()) == 1
