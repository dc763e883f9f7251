"""What a read costs: measured over sizes and numbers of chunks, fitted, and printed as a table.

The time of reading an array from local files, in the page cache, is close to

    fixed + chunks * (cost of a chunk) + megabytes * (cost of a megabyte)

with three numbers for each way to store it.  They are fitted by least squares of relative errors, so that a read of a
tenth of a millisecond counts as much as one of a tenth of a second.  A megabyte is 10⁶ bytes of elements.  `misses` is
the middle relative distance of the measured times from the fit.

python -m benchmarks.cost_fit              all
python -m benchmarks.cost_fit zstd raw     those whose name contains one of the words
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.workloads_read import BLOSC, BYTES, GZIP, ZSTD, prepare, sharded

LAYOUTS: dict[str, list[Any]] = {
    "raw": [BYTES],
    "blosc, lz4": [BYTES, BLOSC],
    "zstd": [BYTES, ZSTD],
    "gzip": [BYTES, GZIP],
    "sub-chunks of shards of 256³, raw": [BYTES],
    "sub-chunks of shards of 256³, zstd": [BYTES, ZSTD],
}
GRIDS = [(16, 1), (64, 1), (128, 1), (16, 4), (64, 2), (16, 8), (32, 4), (128, 2), (16, 16), (32, 8), (64, 4)]
SHARDS = [(16, 1), (16, 2), (16, 8), (16, 16), (32, 1), (32, 8), (64, 2), (64, 4), (128, 1), (128, 2)]


class Cost(NamedTuple):
    """The fitted numbers, in seconds, and the middle relative distance from them."""

    fixed: float
    chunk: float
    megabyte: float
    misses: float


def fit(chunks: np.ndarray, megabytes: np.ndarray, seconds: np.ndarray) -> Cost:
    """Return the three costs that fit best; none is negative."""
    terms = np.stack([np.ones_like(seconds), chunks, megabytes], axis=1)
    used = [0, 1, 2]
    while True:
        found, *_ = np.linalg.lstsq(terms[:, used] / seconds[:, None], np.ones_like(seconds), rcond=None)
        if (found >= 0).all():
            break
        del used[int(np.argmin(found))]
    costs = np.zeros(3)
    costs[used] = found
    misses = np.abs(terms @ costs / seconds - 1)
    return Cost(*costs.tolist(), float(np.median(misses)))


def seconds_of(read: Any, budget_s: float) -> float:
    """Return the median time of a call, over at least five and as many as the budget allows."""
    read()
    times: list[float] = []
    end = time.perf_counter() + budget_s
    while len(times) < 5 or (time.perf_counter() < end and len(times) < 200):
        start = time.perf_counter()
        read()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def measure(codecs: list[Any], *, in_shards: bool, budget_s: float) -> Iterator[tuple[int, float, float]]:
    """Yield chunks, megabytes and seconds of one read after another."""
    import fsstore

    for side, count in SHARDS if in_shards else GRIDS:
        extent = side * count
        with tempfile.TemporaryDirectory(prefix="fsstore-cost-") as folder:
            shape = (256,) * 3 if in_shards else (extent,) * 3
            chunk, stored = (shape, [sharded(side, codecs)]) if in_shards else ((side,) * 3, codecs)
            spec = prepare(Path(folder), shape, chunk, stored)
            view = fsstore.open(spec).result()[:extent, :extent, :extent]
            seconds = seconds_of(lambda view=view: view.read().result(), budget_s)
        yield count**3, extent**3 * 2 / 1e6, seconds


def main() -> int:
    """Print a line for each way to store an array."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("words", nargs="*", help="only layouts whose name contains one of these")
    parser.add_argument("--seconds", type=float, default=0.3, help="about so long a measurement")
    options = parser.parse_args()
    print("| chunks | a read, µs | a chunk, µs | a megabyte, µs | megabytes a second | misses |")
    print("|---|---|---|---|---|---|")
    for name, codecs in LAYOUTS.items():
        if options.words and not any(word in name for word in options.words):
            continue
        rows = measure(codecs, in_shards="shards" in name, budget_s=options.seconds)
        cost = fit(*map(np.array, zip(*((float(n), size, spent) for n, size, spent in rows), strict=True)))
        speed = f"{1 / cost.megabyte:.0f}" if cost.megabyte else "–"
        micro = " | ".join(f"{value * 1e6:.0f}" for value in cost[:3])
        print(f"| {name} | {micro} | {speed} | {cost.misses:.0%} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
