"""Threads and processes that read, write, resize and resolve one array at the same time: what may be seen, and no more.

What each of them checks is told in resize_worker.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

import fsstore
from fsstore.chunk.write import queue as write_order
from fsstore.chunk.write import request as joint_write
from fsstore.kvstore.memory import MemoryKind
from tests.property import resize_worker
from tests.property.resize_worker import ALWAYS, CHUNK, COLUMNS, ROWS, Counts, Worker
from tests.unit.test_write_order import Far

LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}
ZSTD = [LITTLE, {"name": "zstd", "configuration": {"level": 1}}]
SHARD = [{"name": "sharding_indexed", "configuration": {"chunk_shape": [16, 16], "codecs": ZSTD}}]
CACHE = {"cache_pool": {"total_bytes_limit": 3_000_000}}


def created(where, chain, context):
    """Return a new array of all rows."""
    grid = {"name": "regular", "configuration": {"chunk_shape": CHUNK}}
    metadata = {"shape": [ROWS, COLUMNS], "data_type": "uint32", "chunk_grid": grid, "codecs": chain}
    spec = {"driver": "zarr3", "kvstore": where, "metadata": metadata}
    return fsstore.open(spec, create=True, context=context).result()


def counts_of(folder, workers):
    """Return counts of zero."""
    folder.mkdir(exist_ok=True)
    path = folder / "counts"
    np.zeros((workers, 2), np.int64).tofile(path)
    return Counts(path, workers)


def run(seed, place, folder, patch, *, workers=4, steps=80):
    """Run threads in one array, with one handle, one each, or one each that share no metadata."""
    if place == "far":
        far = Far()

        async def opened(self, opening):
            return far

        patch.setattr(MemoryKind, "open", opened)
    counts = counts_of(folder, workers)
    context = fsstore.Context(CACHE if place == "cached" else {})
    where = f"file://{folder}/a/" if place in ("file", "apart") else "memory://a/"
    store = created(where, SHARD if seed % 2 else ZSTD, context)
    handles = [store] * workers
    if place == "apart":
        options = {"recheck_cached_metadata": True}
        handles = [fsstore.open(store.spec(), **options).result() for _ in range(workers)]
    elif seed % 3:
        handles = [fsstore.open(store.spec(), context=context).result() for _ in range(workers)]
    turn, sizes = (threading.Lock(), []) if seed % 4 < 2 else (None, None)
    team = [Worker(handle, number, counts, seed, turn=turn, sizes=sizes) for number, handle in enumerate(handles)]
    threads = [threading.Thread(target=worker.run, args=(steps,)) for worker in team]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    for worker in team:
        if worker.error is not None:
            worker.error.add_note(f"seed {seed}, {place}")
            raise worker.error
    at = counts.quiet()
    for worker in team:
        check(store.resolve().result(), worker.model, worker.known, worker.columns, is_last=worker.known_at == at)
    assert not write_order.unfinished()
    assert not joint_write.unfinished()


def check(store, model, known, columns, *, is_last):
    """Check what one worker leaves; `is_last` says that no resize came after what it knows."""
    found = store.read().result()
    own = slice(columns.start, columns.stop)
    np.testing.assert_array_equal(found[:ALWAYS, own], model[:ALWAYS, own])
    if is_last:
        rows = len(found)
        known = known[:rows, own]
        np.testing.assert_array_equal(found[:, own][known], model[:rows, own][known])


ROOT = Path(__file__).parents[2]
PLACES = ["memory", "far", "file", "apart", "cached"]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("seed", range(4))
def test_threads(seed, place, tmp_path, monkeypatch):
    """Four threads in memory, in files, far away, with a cache, and with handles that know of one another by files."""
    run(seed, place, tmp_path, monkeypatch)


@pytest.mark.long
@pytest.mark.parametrize("place", PLACES)
def test_threads_at_length(place, tmp_path):
    """The same two hundred times."""
    for seed in range(100, 300):
        with pytest.MonkeyPatch.context() as patch:
            run(seed, place, tmp_path / str(seed), patch)


def run_processes(seed, folder, *, workers=3, steps=60):
    """Run processes in one array of files."""
    counts = counts_of(folder, workers)
    created(f"file://{folder}/a/", SHARD if seed % 2 else ZSTD, None)
    url = f"file://{folder}/a/|zarr3:"
    with ExitStack() as stack:
        processes = []
        for number in range(workers):
            command = [
                sys.executable,
                "-m",
                resize_worker.__name__,
                url,
                folder / "counts",
                number,
                workers,
                seed,
                steps,
            ]
            process = subprocess.Popen(  # noqa: S603  # our own script
                list(map(str, command)), cwd=ROOT, stderr=subprocess.PIPE, text=True
            )
            processes.append(stack.enter_context(process))
            stack.callback(process.kill)
        errors = [process.communicate(timeout=120)[1] for process in processes]
    assert not any(process.returncode for process in processes), (seed, errors)
    store = fsstore.open(url, context=fsstore.Context()).result()
    for number in range(workers):
        with np.load(f"{folder}/counts.{number}.npz") as kept:
            columns = range(number * COLUMNS // workers, (number + 1) * COLUMNS // workers)
            check(store, kept["model"], kept["known"], columns, is_last=kept["at"] == counts.quiet())


@pytest.mark.parametrize("seed", range(2))
def test_processes(seed, tmp_path):
    """Three processes that share files and nothing else."""
    run_processes(seed, tmp_path)


@pytest.mark.long
def test_processes_at_length(tmp_path):
    """The same thirty times, longer."""
    for seed in range(100, 130):
        run_processes(seed, Path(tmp_path / str(seed)), steps=200)
