"""Far servers, full lines and many threads: how often a library waits, and how near the limit of a line it comes.

A server on the loopback address answers 5, 30 and 100 ms late, by HTTP and as S3.  What a job takes longer for each
millisecond that answers are later is the number of rounds it waits, one after another: processor time and the load of
the machine do not count.  `requests` are those of one run.

python -m benchmarks.environments                 all of it
python -m benchmarks.environments rounds xarray   the jobs whose names contain a word
python -m benchmarks.environments line            a thousand small requests over a line that they fill
python -m benchmarks.environments dask            threads and processes
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, ProcessPoolExecutor
from functools import partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.far_server import FarServer
from benchmarks.far_ways import BUCKET, Way, ways

__all__ = ["main"]

_DELAYS_S = (0.005, 0.03, 0.1)
_RUNS = 2
_SPEED = 20e6  # bytes a second of the line that is filled
_ARRAYS = 100
_KEYS = 2500
_PIECES = 16
_BATCH = 6  # of them that dask sends to a process together

Work = Callable[[Way, str], Any]


class Job(NamedTuple):
    """What is done by each way that can; `least` is how many rounds it needs, with 32 requests under way at once."""

    name: str
    least: str
    work: Work
    able: Callable[[Way], bool] = lambda way: True


def _array(folder: Path, shape: tuple[int, ...], chunk: tuple[int, ...], shard: tuple[int, ...] | None = None) -> None:
    import zarr

    values = np.random.default_rng(0).random(shape, "f4")
    zarr.create_array(folder, data=values, chunks=chunk, shards=shard, compressors=None)


def prepare(root: Path) -> None:
    """Write the arrays and the datasets that are served."""
    import xarray

    bucket = root / BUCKET
    _array(bucket / "chunks", (1024, 1024), (256, 256))
    _array(bucket / "many", (1024, 1024), (64, 64))
    _array(bucket / "shards", (256, 256), (16, 16), (128, 128))
    _array(bucket / "small", (1000, 1024), (1, 1024))
    data = {f"v{number}": (("x",), np.arange(50.0) + number) for number in range(_ARRAYS)}
    for name, consolidated in (("set", True), ("plain", False)):
        xarray.Dataset(data).to_zarr(bucket / name, zarr_format=3, consolidated=consolidated)
    for number in range(_KEYS):
        path = bucket / "keys" / f"{number % 50}" / f"{number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")


def _dataset(name: str) -> Work:
    def open_dataset(way: Way, url: str) -> Any:
        assert way.dataset is not None
        found = way.dataset(url, name)
        if len(found.variables) != _ARRAYS:
            raise AssertionError(f"{way.name} found {len(found.variables)} variables")
        return found

    return open_dataset


def _listed(way: Way, url: str) -> None:
    assert way.keys is not None
    if way.keys(url, "keys") != _KEYS:
        raise AssertionError(f"{way.name} did not list all keys")


_HAS_DATASETS = lambda way: way.dataset is not None  # noqa: E731  a name for what two rows say
JOBS = (
    Job("open an array", "1", lambda way, url: way.array(url, "chunks")),
    Job("open, read 16 chunks", "2", lambda way, url: way.array(url, "chunks")[:, :]),
    Job("open, read 256 chunks", "1 + 8", lambda way, url: way.array(url, "many")[:, :]),
    Job("open, read a part of 4 shards", "3", lambda way, url: way.array(url, "shards")[100:140, 100:140]),
    Job(f"list {_KEYS} keys", "3", _listed, lambda way: way.keys is not None),
    Job("xarray, 100 arrays, consolidated", "1", _dataset("set"), _HAS_DATASETS),
    Job(
        "xarray, 100 arrays, listed",
        "1 + 4",
        _dataset("plain"),
        lambda way: way.dataset is not None and way.keys is not None,
    ),
)


class _Time(NamedTuple):
    """Seconds, by the wall clock and of the processor."""

    wall: float
    used: float

    def __str__(self) -> str:
        """Return milliseconds."""
        return f"{self.wall * 1e3:.0f}"


def _time(work: Callable[[], Any]) -> _Time:
    """Return the time of the quickest of a few runs: on a busy machine the others say less."""
    times = []
    for _ in range(_RUNS):
        begun, used = time.perf_counter(), time.process_time()
        work()
        times.append(_Time(time.perf_counter() - begun, time.process_time() - used))
    return min(times)


def _slope(times: list[_Time]) -> float:
    return float(np.polyfit(_DELAYS_S, [each.wall for each in times], 1)[0])


def rounds(root: Path, words: list[str], chosen: Mapping[str, Way]) -> None:
    """Print the rounds of each job by each way, its requests, and its milliseconds at the three distances."""
    servers = [FarServer(root, delay) for delay in _DELAYS_S]
    print("| job | least | by | rounds | requests | ms at 5, 30 and 100 ms |\n|---|---|---|---|---|---|")
    for job in JOBS:
        if words and not any(word in job.name for word in words):
            continue
        for way in filter(job.able, chosen.values()):
            job.work(way, servers[0].url)
            before = servers[0].traffic
            times = [_time(partial(job.work, way, server.url)) for server in servers]
            asked = servers[0].traffic.since(before).requests / _RUNS
            told = f"{_slope(times):.1f} | {asked:.0f} | {', '.join(map(str, times))}"
            print(f"| {job.name} | {job.least} | {way.name} | {told} |", flush=True)


def line(root: Path, words: list[str], chosen: Mapping[str, Way]) -> None:
    """Print how long a thousand chunks of 4 KB take over a line that they fill, and how long they need to."""
    print("| late by | at once | least, ms | by | ms | processor |\n|---|---|---|---|---|---|")
    for delay, at_once in product(_DELAYS_S, (32, 256)):
        server = FarServer(root, delay, _SPEED)
        for way in chosen.values():
            if at_once != 32 and way.limited is None:
                continue
            limited = way.array if way.limited is None else partial(way.limited, count=at_once)
            array = limited(server.url, "small")
            size = math.prod(array.shape) * array.dtype.itemsize
            least_s = max(size / _SPEED, delay * math.ceil(array.shape[0] / at_once))
            spent = _time(partial(array.__getitem__, (slice(None), slice(None))))
            told = f"{least_s * 1e3:.0f} | {way.name} | {spent} | {spent.used * 1e3:.0f}"
            print(f"| {delay * 1e3:.0f} ms | {at_once} | {told} |", flush=True)


def _pieces(array: Any, scheduler: str, workers: int, pool: Executor | None) -> Any:
    import dask
    import dask.array

    side = array.shape[0] // int(math.sqrt(_PIECES))
    lazy = dask.array.from_array(array, chunks=(side, side), asarray=False, name=False)
    found = {"pool": pool} if pool is not None else {}
    with dask.config.set(scheduler=scheduler, num_workers=workers, **found):
        return lazy.sum().compute()


def _in_a_row(workers: int, batch: int) -> int:
    """Return how many pieces one worker reads after each other at least, where it is given batches."""
    batches = [min(batch, _PIECES - first) for first in range(0, _PIECES, batch)]
    return max(sum(batches[first::workers]) for first in range(min(workers, len(batches))))


def _warm(number: int) -> int:
    import dask.array
    import zarr

    import fsstore

    time.sleep(0.3)
    return len(dask.array.__name__ + zarr.__name__ + fsstore.__name__) + number


def _pools() -> Iterator[tuple[str, str, int, Executor | None]]:
    """Yield schedulers by name, with how many workers they have."""
    for workers in (2, 8):
        yield f"{workers} threads", "threads", workers, None
    for workers in (2, 4):
        with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
            list(pool.map(_warm, range(workers)))
            yield f"{workers} processes", "processes", workers, pool


def dask(root: Path, words: list[str], chosen: Mapping[str, Way]) -> None:
    """Print the rounds of 16 pieces of a chunk that dask reads, each by itself."""
    servers = [FarServer(root, delay) for delay in _DELAYS_S]
    print("| dask with | least | by | rounds | requests | ms at 5, 30 and 100 ms |\n|---|---|---|---|---|---|")
    for name, scheduler, workers, pool in _pools():
        least = f"1 + {_in_a_row(workers, _BATCH if pool is not None else 1)}"
        for way in chosen.values():
            run = lambda url, way=way: _pieces(way.array(url, "chunks"), scheduler, workers, pool)  # noqa: E731,B023
            try:
                run(servers[0].url)
            except Exception as error:  # what cannot be sent to another process
                print(f"| {name} | | {way.name} | {type(error).__name__} | | |", flush=True)
                continue
            before = servers[0].traffic
            times = [_time(partial(run, server.url)) for server in servers]
            asked = servers[0].traffic.since(before).requests / _RUNS
            told = f"{_slope(times):.1f} | {asked:.0f} | {', '.join(map(str, times))}"
            print(f"| {name} | {least} | {way.name} | {told} |", flush=True)


PARTS: Mapping[str, Callable[[Path, list[str], Mapping[str, Way]], None]] = {
    "rounds": rounds,
    "line": line,
    "dask": dask,
}


def main() -> int:
    """Print what the command line asks for."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.environments", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("words", nargs="*", help=f"{', '.join(PARTS)}, or words in the names of jobs")
    parser.add_argument("--by", nargs="*", default=[], help="words in the names of libraries and clients")
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # of xarray and zarr, about metadata that are not consolidated
    parts = [part for part in PARTS if part in options.words] or list(PARTS)
    words = [word for word in options.words if word not in PARTS]
    chosen = {name: way for name, way in ways().items() if not options.by or any(word in name for word in options.by)}
    with tempfile.TemporaryDirectory(prefix="fsstore-environments-") as folder:
        prepare(Path(folder))
        for part in parts:
            PARTS[part](Path(folder), words, chosen)
            print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
