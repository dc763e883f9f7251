"""How many answers are waited for one after another, and how near the limit of a line a thousand small requests come.

A server on the loopback address answers 5, 30 and 100 ms late.  What a job takes longer for each millisecond that
answers are later is the number of rounds it waits: processor time and the load of the machine do not count.

python -m benchmarks.rounds
"""

from __future__ import annotations

import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.far_server import FarServer

_DELAYS_S = (0.005, 0.03, 0.1)
_SPEED = 20e6  # bytes a second of the line that is full
_RUNS = 3

Job = Callable[[str], Any]


def _array(
    folder: Path, shape: tuple[int, ...], chunk: tuple[int, ...], shard: tuple[int, ...] | None = None
) -> None:
    import fsstore

    little: list[dict[str, Any]] = [{"name": "bytes", "configuration": {"endian": "little"}}]
    codecs = little
    if shard is not None:
        inner = {"chunk_shape": list(chunk), "codecs": little, "index_codecs": [*little, {"name": "crc32c"}]}
        codecs = [{"name": "sharding_indexed", "configuration": inner}]
    grid = {"name": "regular", "configuration": {"chunk_shape": list(shard or chunk)}}
    metadata = {"shape": list(shape), "data_type": "float32", "chunk_grid": grid, "codecs": codecs}
    spec = {"driver": "zarr3", "kvstore": f"file://{folder}/", "metadata": metadata}
    values = np.random.default_rng(0).random(shape, "f4")
    fsstore.open(spec, create=True).result().write(values).result()


def prepare(root: Path) -> None:
    """Write the arrays and the dataset that are served."""
    import xarray

    _array(root / "chunks", (1024, 1024), (256, 256))
    _array(root / "shards", (256, 256), (16, 16), (128, 128))
    _array(root / "small", (1000, 1024), (1, 1024))
    data = {f"v{number}": (("x",), np.arange(50.0) + number) for number in range(100)}
    xarray.Dataset(data).to_zarr(root / "set", zarr_format=3, consolidated=True)


def _opened(url: str, at_once: int = 32) -> Any:
    import fsstore

    context = fsstore.Context({"http_request_concurrency": {"limit": at_once}})
    return fsstore.open(f"{url}/|zarr3:", context=context).result()


def _read(url: str) -> Any:
    return _opened(f"{url}/chunks").read().result()


def _cut(url: str) -> Any:
    return _opened(f"{url}/shards")[100:140, 100:140].read().result()


def _dataset(url: str) -> Any:
    import xarray

    return xarray.open_dataset(f"{url}/set/", engine="fsstore")


def _threads(count: int) -> Job:
    def read(url: str) -> Any:
        import dask
        import dask.array

        array = _opened(f"{url}/chunks")
        pieces = dask.array.from_array(array, chunks=(256, 256))
        with dask.config.set(scheduler="threads", num_workers=count):
            return pieces.mean().compute()

    return read


JOBS: dict[str, tuple[str, Job]] = {
    "open and read 16 chunks": ("2", _read),
    "open and read a part of 4 shards": ("3", _cut),
    "xarray opens 100 variables": ("1", _dataset),
    "dask, 2 threads, 16 pieces": ("1 + 8", _threads(2)),
    "dask, 8 threads, 16 pieces": ("1 + 2", _threads(8)),
}
"""The least number of rounds, and the job: metadata, indexes of shards, and data each need those before them."""


def _seconds(job: Job, url: str) -> float:
    times = []
    for _ in range(_RUNS):
        begun = time.perf_counter()
        job(url)
        times.append(time.perf_counter() - begun)
    return statistics.median(times)


def main() -> int:
    """Print a line for each job, and one for the line that is full."""
    with tempfile.TemporaryDirectory(prefix="fsstore-rounds-") as folder:
        root = Path(folder)
        prepare(root)
        servers = [FarServer(root, delay) for delay in _DELAYS_S]
        print("| job | ms at 5, 30 and 100 ms | rounds | least |\n|---|---|---|---|")
        for name, (least, job) in JOBS.items():
            job(servers[0].url)
            times = [_seconds(job, server.url) for server in servers]
            rounds = np.polyfit(_DELAYS_S, times, 1)[0]
            shown = ", ".join(f"{spent * 1e3:.0f}" for spent in times)
            print(f"| {name} | {shown} | {rounds:.1f} | {least} |", flush=True)
        for delay, at_once in product(_DELAYS_S, (32, 256)):
            server = FarServer(root, delay, _SPEED)
            array = _opened(f"{server.url}/small", at_once)
            spent, line_s = _seconds(lambda _, array=array: array.read().result(), ""), array.nbytes / _SPEED
            least_s = max(line_s, delay * math.ceil(len(array) / at_once))
            told = f"{spent * 1e3:.0f} ms; the line takes {line_s * 1e3:.0f}, and with waiting {least_s * 1e3:.0f}"
            print(f"1000 chunks of 4 KB, {delay * 1e3:.0f} ms late, {at_once} at once: {told}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
