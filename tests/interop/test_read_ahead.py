"""Reads that follow each other bring what comes next, once, and never anything that is not so any more."""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from collections import Counter

import numpy as np
import pytest
import xarray as xr

import fsstore as ts
from fsstore.errors import StoreError
from fsstore.filesystem.place import live_kv
from fsstore.kvstore.contract.driver import KvPrefix
from fsstore.kvstore.memory import MemoryDriver
from fsstore.testing.doubles import Faulty, Recording, Slow

VALUES = np.arange(40 * 6 * 4, dtype="i4").reshape(40, 6, 4)
DEPTH = 4


async def a_moment(_operation):
    """Answer as late as a server nearby."""
    await asyncio.sleep(0.003)


def far_array(inner=None, *, chunks=(2, 6, 4), shards=None, limit=1 << 20, depth=DEPTH, recheck="open"):
    """Return an array in storage that has to be waited for, opened to read ahead, and what its storage is asked."""
    driver = Recording(Slow(inner or MemoryDriver(), a_moment))
    kvstore = live_kv(KvPrefix(driver)).spec
    made = ts.open(
        {"driver": "zarr3", "kvstore": kvstore},
        create=True,
        dtype="i4",
        shape=VALUES.shape,
        chunks=chunks,
        shards=shards,
    )
    made.result().write(VALUES).result()
    pool = {"total_bytes_limit": limit, "read_ahead": depth}
    spec = {"driver": "zarr3", "kvstore": kvstore, "recheck_cached_data": recheck, "recheck_cached_metadata": "open"}
    array = ts.open(spec, context=ts.Context({"cache_pool": pool})).result()
    driver.reset()
    return array, driver


def chunks_read(driver):
    """Return how often each chunk was asked for."""
    return Counter(read.key for read in driver.reads if read.key.startswith("c/"))


def settled(driver, count):
    """Wait until so many chunks were asked for."""
    deadline = time.monotonic() + 10
    while len(chunks_read(driver)) < count:
        assert time.monotonic() < deadline, chunks_read(driver)
        time.sleep(0.001)


@pytest.mark.parametrize("step", [1, 2, 3, 5])
@pytest.mark.parametrize("backwards", [False, True])
def test_each_chunk_is_read_once(step, backwards):
    """Small steps, whole chunks and more of them, up and down: right values, and each chunk is asked for once."""
    array, driver = far_array()
    starts = range(0, 40, step)
    for low in reversed(starts) if backwards else starts:
        high = min(40, low + step)
        assert (array[low:high].read().result() == VALUES[low:high]).all()
    assert chunks_read(driver) == {f"c/{n}/0/0": 1 for n in range(20)}


def test_what_comes_next_is_under_way():
    """After two reads in a row the next four chunks are asked for, and no more."""
    array, driver = far_array()
    array[0:2].read().result()
    assert len(chunks_read(driver)) == 1
    array[2:4].read().result()
    settled(driver, 2 + DEPTH)
    array[4:5].read().result()
    array[5].read().result()
    time.sleep(0.02)
    assert set(chunks_read(driver)) == {f"c/{n}/0/0" for n in range(3 + DEPTH)}


def test_boxes_of_any_size():
    """Sizes that change, and single elements, give the right values."""
    array, _ = far_array()
    low, chance = 0, random.Random(3)
    while low < 40:
        high = min(40, low + chance.choice((1, 1, 2, 3, 3, 3, 7)))
        assert (array[low:high, 1:5].read().result() == VALUES[low:high, 1:5]).all()
        low = high
    for element in range(4):
        assert array[3, 2, element].read().result() == VALUES[3, 2, element]
    moved = array[:10].translate_to[100, 0, 0]
    for row in range(100, 110):
        assert (moved[row].read().result() == VALUES[row - 100]).all()


def test_other_dimensions_and_indexes():
    """Columns follow each other as well, whichever dimensions the view has, and constants move like ranges."""
    array, driver = far_array(chunks=(40, 1, 4))
    for column in range(6):
        assert (array[:, column].transpose([1, 0]).read().result() == VALUES[:, column].T).all()
    assert chunks_read(driver) == {f"c/0/{n}/0": 1 for n in range(6)}


def test_parts_of_shards():
    """In shards the parts are what is read ahead."""
    array, driver = far_array(chunks=(1, 6, 4), shards=(20, 6, 4))
    for row in range(40):
        assert (array[row].read().result() == VALUES[row]).all()
    parts = Counter((read.key, read.start) for read in driver.reads if read.start >= 0 and read.key[0] == "c")
    assert len(parts) == 40
    assert max(parts.values()) == 1


@pytest.mark.parametrize(
    "reads",
    [
        [slice(0, 2), slice(6, 8), slice(2, 4)],
        [slice(0, 40, 2), slice(1, 40, 2)],
        [slice(0, 2), slice(0, 2)],
        [slice(0, 2), slice(2, 6)],
        [slice(0, 2), slice(2, 2), slice(2, 2)],
    ],
)
def test_reads_that_do_not_follow_bring_nothing(reads):
    """Leaps, strides, repetitions and larger boxes announce nothing."""
    array, driver = far_array()
    for part in reads:
        array[part].read().result()
    time.sleep(0.02)
    assert set(chunks_read(driver)) <= {f"c/{n // 2}/0/0" for part in reads for n in range(40)[part]}


@pytest.mark.parametrize(("recheck", "limit"), [(True, 1 << 20), ("open", 300)])
def test_where_it_would_not_help(recheck, limit):
    """Chunks that are asked for again at each use, or have no room, are not read ahead."""
    array, driver = far_array(recheck=recheck, limit=limit)
    for low in range(0, 12, 2):
        array[low : low + 2].read().result()
    time.sleep(0.02)
    assert len(chunks_read(driver)) == 6


def test_room_is_kept():
    """What is ahead has half of the budget, so that it does not drive out what is in use."""
    array, driver = far_array(limit=2 * (2 * 6 * 4 * 4 + 256) * 3, depth=100)
    array[0:2].read().result()
    array[2:4].read().result()
    time.sleep(0.05)
    assert len(chunks_read(driver)) == 2 + 3


def test_local_files_are_read_when_asked(tmp_path):
    """Storage that answers at once has nothing to gain."""
    ts.open(f"file://{tmp_path}/|zarr3:", create=True, dtype="i4", shape=[8], chunks=(1,)).result().write(
        np.arange(8, dtype="i4")
    ).result()
    context = ts.Context({"cache_pool": {"total_bytes_limit": 1 << 20, "read_ahead": 4}})
    array = ts.open(f"file://{tmp_path}/|zarr3:", context=context, recheck_cached_data=False).result()
    assert [int(array[n].read().result()) for n in range(3)] == [0, 1, 2]
    (tmp_path / "c/5").unlink()
    assert int(array[5].read().result()) == 0


def test_writes_are_seen():
    """A chunk that was read ahead and written since, by this handle or another, is read anew; at any moment."""
    array, _ = far_array()
    chance = random.Random(1)
    known = VALUES.copy()
    for low in range(0, 38, 2):
        ahead = chance.randrange(low + 2, 40)
        known[ahead] = low
        write = array[ahead].write(np.full((6, 4), low, "i4"))
        if chance.random() < 0.5:
            write.result()
        assert (array[low : low + 2].read().result() == known[low : low + 2]).all()
        write.result()
    assert (array.read().result() == known).all()


def test_an_error_comes_where_it_belongs():
    """What cannot be read ahead is an error of the read that wants it, and of no other."""

    def fails(operation, key):
        return StoreError("broken") if operation == "read" and key == "c/5/0/0" else None

    array, _ = far_array(Faulty(MemoryDriver(), fails))
    for low in range(0, 20, 2):
        if low == 10:
            with pytest.raises(StoreError, match="broken"):
                array[low : low + 2].read().result()
        else:
            assert (array[low : low + 2].read().result() == VALUES[low : low + 2]).all()


def test_threads_share_a_handle():
    """Each gets its values, whatever the others make of the order."""
    array, _ = far_array()
    failed = []

    def work(first):
        try:
            for low in range(first, 40, 2):
                assert (array[low : low + 2].read().result() == VALUES[low : low + 2]).all()
        except BaseException as error:  # noqa: BLE001  # the test reports it
            failed.append(error)

    threads = [threading.Thread(target=work, args=(2 * n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_a_child_begins_anew():
    """What was under way when the process forked is not waited for in the child."""
    array, _ = far_array()
    for low in range(0, 8, 2):
        array[low : low + 2].read().result()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            right = all((array[n].read().result(10) == VALUES[n]).all() for n in range(8, 16))
            status = 0 if right else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_an_xarray_dataset_reads_ahead(tmp_path, object_server):
    """Steps along time bring the next steps through the engine of xarray, too."""
    data = xr.Dataset({"t": (("time", "y", "x"), VALUES)})
    data.to_zarr(tmp_path / "d", zarr_format=2, consolidated=True, encoding={"t": {"chunks": (2, 6, 4)}})
    for path in (tmp_path / "d").rglob("*"):
        if path.is_file():
            object_server.put(f"d/{path.relative_to(tmp_path / 'd')}", path.read_bytes())
    context = ts.Context({"cache_pool": {"total_bytes_limit": 1 << 20, "read_ahead": 4}})
    opened = xr.open_dataset(f"{object_server.url}/d/", engine="fsstore", context=context, cache=False)

    def asked():
        return Counter(path for _, path, _ in object_server.log if path.endswith(".0.0"))

    for time_step in range(3):
        assert (opened.t.isel(time=time_step).values == VALUES[time_step]).all()
    deadline = time.monotonic() + 10
    while len(asked()) < 6:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    for time_step in range(40):
        assert (opened.t.isel(time=time_step).values == VALUES[time_step]).all()
    assert asked() == {f"/d/t/{n}.0.0": 1 for n in range(20)}


def test_its_memory_has_to_be_said():
    """Without a budget there is nowhere to put what is read ahead."""
    with pytest.raises(ValueError, match="total_bytes_limit"):
        ts.Context({"cache_pool": {"read_ahead": 4}})
    pool = {"total_bytes_limit": 10, "read_ahead": 4}
    assert ts.Context.Spec({"cache_pool": pool}).to_json() == {"cache_pool": pool}
