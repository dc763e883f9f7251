"""Reads, and reads ahead, of a file that a writer replaces all the time: each chunk is of one version, and none is torn."""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from contextlib import suppress
from pathlib import Path

import h5py
import numpy as np
import pytest

import fsstore as ts
from fsstore.errors import AbortedError, FailedPreconditionError
from fsstore.filesystem.place import live_kv
from fsstore.kvstore.contract.driver import KvPrefix
from fsstore.kvstore.local.driver import LocalDriver
from fsstore.testing.doubles import Slow

LENGTH, VERSIONS = 24, 4


async def a_moment(_operation):
    """Answer as late as a server nearby, so that it is worth while to read ahead."""
    await asyncio.sleep(0.001)


def values_of(number: int) -> np.ndarray:
    """Return what a version holds: no two chunks are equal, and each has another size when it is compressed."""
    dice = np.random.default_rng(number)
    data = np.full((LENGTH, 40, 50), number, "i4") + np.arange(LENGTH, dtype="i4")[:, None, None] * 100
    data[:, : 3 * number] = dice.integers(0, 9999, (LENGTH, 3 * number, 50))
    return data


VALUES = [values_of(number) for number in range(VERSIONS)]


def scanned(folder: Path, number: int) -> bytes:
    """Return a file of a version, of which the chunks lie elsewhere than in others."""
    with h5py.File(folder / "made.h5", "w") as file:
        file["other"] = np.zeros(1000 * number)
        file.create_dataset("v", data=VALUES[number], chunks=(1, 40, 50), compression="gzip")
    return (folder / "made.h5").read_bytes()


def sharded(folder: Path, number: int) -> bytes:
    """Return a shard of a version, of which the sub-chunks lie elsewhere than in others."""
    shape = list(VALUES[number].shape)
    options = {"dtype": "i4", "shape": shape, "chunks": [1, 40, 50], "shards": shape}
    spec = {"driver": "zarr3", "kvstore": f"file://{folder}/a/"}
    ts.open(spec, create=True, delete_existing=True, **options).result().write(VALUES[number]).result()
    return (folder / "a/c/0/0/0").read_bytes()


@pytest.fixture(params=[(scanned, "made.h5"), (sharded, "a/c/0/0/0")], ids=["scanned", "sharded"])
def replaced(request, tmp_path):
    """Give a function that opens an array of which a thread replaces the file until the test ends."""
    make, name = request.param
    versions = [make(tmp_path, number) for number in range(VERSIONS)]
    ended = threading.Event()

    def replace():
        at = 0
        while not ended.wait(0.01):
            at += 1
            (tmp_path / "fresh").write_bytes(versions[at % VERSIONS])
            os.replace(tmp_path / "fresh", tmp_path / name)

    def opened(*, far, **options):
        driver = Slow(LocalDriver(), a_moment) if far else LocalDriver()
        place = tmp_path / ("made.h5" if make is scanned else "a")
        kvstore = live_kv(KvPrefix(driver, str(place) + ("" if make is scanned else "/"))).spec
        if make is scanned:
            return ts.open(
                {"driver": "zarr", "kvstore": {"driver": "hdf5", "base": kvstore, "path": "v/"}}, **options
            ).result()
        return ts.open({"driver": "zarr3", "kvstore": kvstore}, **options).result()

    thread = threading.Thread(target=replace)
    thread.start()
    yield opened
    ended.set()
    thread.join()


def versions_in(found: np.ndarray, low: int) -> set[int]:
    """Return of which versions the chunks of a read are; each has to be of one."""
    seen = set()
    for row, chunk in enumerate(found):
        of = [number for number, known in enumerate(VALUES) if np.array_equal(chunk, known[low + row])]
        assert len(of) == 1, f"chunk {low + row} is torn"
        seen.add(of[0])
    return seen


@pytest.mark.parametrize("far", [False, True])
def test_a_read_is_of_one_version(replaced, far):
    """A read of a few chunks at once, without a cache, is of the file as it was or as it is, all of it."""
    array, dice, seen = replaced(far=far), random.Random(3), set()
    end = time.monotonic() + 1.5
    while time.monotonic() < end:
        low = dice.randrange(LENGTH - 1)
        try:
            read = array[low : dice.randrange(low + 1, LENGTH)].read().result()
        except AbortedError:  # where this machine is so slow that the file is another one at each attempt
            continue
        found = versions_in(read, low)
        assert len(found) == 1
        seen |= found
    assert len(seen) > 1


def test_chunks_that_are_read_ahead_are_whole(replaced):
    """Each chunk is one of one version, whether it was wanted, fetched ahead, or cached before."""
    context, seen = ts.Context({"cache_pool": {"total_bytes_limit": 1 << 20, "read_ahead": 4}}), set()
    end = time.monotonic() + 1.5
    while time.monotonic() < end:
        array = replaced(far=True, context=context, recheck_cached_data="open")
        for low in range(0, LENGTH, 2):
            with suppress(AbortedError):
                seen |= versions_in(array[low : low + 2].read().result(), low)
    assert len(seen) > 1


@pytest.mark.parametrize("cached", [False, True])
def test_a_large_read_is_of_one_version(tmp_path, cached):
    """A read of a scanned file that takes many requests begins again when the file was replaced meanwhile."""
    files, ended, seen = [], threading.Event(), set()
    for number in range(3):
        with h5py.File(tmp_path / "made.h5", "w") as file:
            file.create_dataset("v", data=np.full((300, 48, 48), number, "i4"), chunks=(1, 48, 48))
        files.append((tmp_path / "made.h5").read_bytes())

    def replace():
        at = 0
        while not ended.wait(0.03):
            at += 1
            (tmp_path / "fresh").write_bytes(files[at % 3])
            os.replace(tmp_path / "fresh", tmp_path / "made.h5")

    context = ts.Context({"cache_pool": {"total_bytes_limit": 1 << 28 if cached else 0}})
    array = ts.open(f"file://{tmp_path}/made.h5|hdf5:v/", context=context).result()
    thread = threading.Thread(target=replace)
    thread.start()
    try:
        end = time.monotonic() + 2
        while time.monotonic() < end:
            with suppress(AbortedError):  # where this machine is so slow
                found = set(np.unique(array.read().result()).tolist())
                assert len(found) == 1
                seen |= found
    finally:
        ended.set()
        thread.join()
    assert seen


@pytest.mark.parametrize("far", [False, True])
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize(
    ("values", "how", "says"),
    [
        (np.full((40, 80), 1.5, "f4"), {}, '"dtype" was "<i4" and is "<f4"'),
        (np.full((40, 80), 2, "i4"), {"fillvalue": 7}, '"fill_value" was null and is 7'),
        (np.full((40, 80), 2, "i4"), {"compression": "gzip"}, '"filters" was null and is'),
        (np.full((30, 80), 2, "i4"), {}, r"had shape \(40, 80\) when the array was opened, and has \(30, 80\)"),
    ],
)
def test_an_open_array_is_not_read_as_what_it_was(tmp_path, far, whole, values, how, says):
    """A file that takes the place of another, and in which the array is another one or smaller, is an error of reads."""
    with h5py.File(tmp_path / "made.h5", "w") as file:
        file.create_dataset("v", data=np.ones((40, 80), "i4"), chunks=(1, 80))
    place = KvPrefix(Slow(LocalDriver(), a_moment) if far else LocalDriver(), f"{tmp_path}/made.h5")
    kvstore = {"driver": "hdf5", "base": live_kv(place).spec, "path": "v/"}
    array = ts.open({"driver": "zarr", "kvstore": kvstore}).result()
    view = array if whole else array[3, 5]
    assert view.read().result().max() == 1
    with h5py.File(tmp_path / "fresh", "w") as file:
        file.create_dataset("v", data=values, chunks=(1, 80), **how)
    os.replace(tmp_path / "fresh", tmp_path / "made.h5")
    with pytest.raises(FailedPreconditionError, match=says):
        view.read().result()


def test_an_open_array_is_read_where_another_file_has_all_of_it(tmp_path):
    """A file that takes the place of another, and in which the array has only become longer, is read."""
    arrays = []
    for number in (1, 2):
        with h5py.File(tmp_path / "fresh", "w") as file:
            file.create_dataset("v", data=np.full((3 + number, 8), number), chunks=(1, 8), maxshape=(None, 8))
        os.replace(tmp_path / "fresh", tmp_path / "made.h5")
        arrays.append(ts.open(f"file://{tmp_path}/made.h5|hdf5:v/").result())
        assert (arrays[0][:4].read().result() == number).all()
