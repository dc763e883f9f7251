"""How quick a bucket is: what the simulation of jobs has to know of it, measured through our own client.

python -m benchmarks.measure_bucket s3://bucket/place/ bucket.json
python -m benchmarks.simulate_jobs --bucket bucket.json

Any URL of a key-value store will do.  Objects of 8 MB are written below the place, read, and deleted again: about
a gigabyte of traffic with the numbers below.  The context of the store is the usual one, with its credentials.
Run it where the workers will be.
"""

from __future__ import annotations

import argparse
import time
from typing import Any
from uuid import uuid4

import numpy as np

import fsstore as ts
from benchmarks.distributions import Distribution, Profile

_LARGE = 8_000_000
_SMALL = 1
_AT_ONCE = 16


def _timed(count: int, begin: Any) -> list[float]:
    """Return how long calls take, one after the other."""
    times = []
    for number in range(count):
        began = time.perf_counter()
        begin(number).result()
        times.append(time.perf_counter() - began)
    return times


def _speeds(whole: list[float], first: float, size: int) -> list[float]:
    """Return bytes a second of single requests, after the time that the first byte takes."""
    return [size / max(each - first, 1e-6) for each in whole]


def measure(store: ts.KvStore, context: ts.Context, rounds: int, size: int = _LARGE) -> dict[str, Distribution]:
    """Return the numbers of a store, which has room for a few objects; they are deleted at the end."""
    place, large = store / f"fsstore-measures-{uuid4().hex[:8]}/", np.random.default_rng(0).bytes(size)
    before = context.statistics()
    try:
        put = _timed(rounds, lambda number: place.write(f"small{number}", b"x" * _SMALL))
        get = _timed(rounds, lambda number: place.read(f"small{number}"))
        few = max(4, rounds // 4)
        put_large = _timed(few, lambda number: place.write(f"large{number}", large))
        get_large = _timed(few, lambda number: place.read(f"large{number}"))
        line = []
        for _ in range(max(2, rounds // 16)):
            began = time.perf_counter()
            for answer in [place.read(f"large{number % few}") for number in range(_AT_ONCE)]:
                assert len(answer.result().value) == size
            line.append(_AT_ONCE * size / (time.perf_counter() - began))
        after = context.statistics()
    finally:
        place.delete_range(ts.KvStore.KeyRange()).result()
    failed, asked = (_counted(after, names) - _counted(before, names) for names in (("retries",), ("reads", "writes")))
    return {
        "get_first_byte_s": Distribution.of(get, "reads of a byte, one after the other"),
        "put_first_byte_s": Distribution.of(put, "writes of a byte, one after the other"),
        "get_bytes_per_s": Distribution.of(_speeds(get_large, float(np.median(get)), size), f"reads of {size} bytes"),
        "put_bytes_per_s": Distribution.of(_speeds(put_large, float(np.median(put)), size), f"writes of {size} bytes"),
        "worker_bytes_per_s": Distribution.of(line, f"times {_AT_ONCE} reads of {size} bytes at once"),
        "failing_requests": Distribution.of([failed / max(1, asked)], f"run: {failed} of {asked} were repeated"),
    }  # fmt: skip


def _counted(statistics: Any, names: tuple[str, ...]) -> int:
    return sum(getattr(each, name) for each in statistics.stores.values() for name in names)


def main() -> None:
    """Measure a place and write the profile."""
    parser = argparse.ArgumentParser(description="Measure a bucket for the simulation of jobs.")
    parser.add_argument("url", help="a place to write to: s3://bucket/place/")
    parser.add_argument("profile", help="the JSON file to write")
    parser.add_argument("--rounds", type=int, default=200, help="requests of each kind")
    options = parser.parse_args()
    context = ts.Context()
    store = ts.KvStore.open(options.url, context=context).result()
    found = Profile(f"{store.url}, measured", measure(store, context, options.rounds))
    found.save(options.profile)
    print(found)


if __name__ == "__main__":
    main()
