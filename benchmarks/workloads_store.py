"""Key-value stores, opening arrays, and index arithmetic: what surrounds the reading of chunks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from benchmarks.harness import Contender, workload
from benchmarks.workloads_read import BYTES, prepare


def both(make: Any) -> Mapping[str, Contender]:
    """Return what `make` gives for fsstore and for tensorstore: their interfaces are the same."""
    import tensorstore

    import fsstore

    return {"fsstore": make(fsstore), "tensorstore": make(tensorstore)}


@workload("open a zarr3 array from its spec")
def open_spec(folder: Path) -> Mapping[str, Contender]:
    """Open an array whose driver is known."""
    spec = prepare(folder, (64, 64, 64), (16, 16, 16), [BYTES])
    return both(lambda ts: lambda: tuple(ts.open(spec).result().shape))


@workload("open a zarr3 array by URL, detected")
def open_url(folder: Path) -> Mapping[str, Contender]:
    """Open an array of which only the place is known."""
    spec = prepare(folder, (64, 64, 64), (16, 16, 16), [BYTES])
    url = f"file://{spec['kvstore']['path']}"
    return both(lambda ts: lambda: tuple(ts.open(url).result().shape))


def _index_ten(array: Any) -> str:
    for _ in range(10):
        part = array[5:60:5, 10:20].translate_to[0, 0, 0]
    return str(part.domain)


@workload("index an array ten times")
def index(folder: Path) -> Mapping[str, Contender]:
    """Compose index expressions without reading."""
    spec = prepare(folder, (64, 64, 64), (16, 16, 16), [BYTES])

    def make(ts: ModuleType) -> Contender:
        array = ts.open(spec).result()
        return lambda: _index_ten(array)

    return both(make)


@workload("index an array by a million points")
def index_by_points(folder: Path) -> Mapping[str, Contender]:
    """Compose index arrays without reading."""
    spec = prepare(folder, (64, 64, 64), (16, 16, 16), [BYTES])
    points = np.random.default_rng(5).integers(0, 64, (3, 10**6))

    def make(ts: ModuleType) -> Contender:
        array = ts.open(spec).result()
        return lambda: str(array.vindex[points[0], points[1], points[2]][5::2].domain)

    return both(make)


def _fill(store: Any, count: int) -> None:
    for future in [store.write(f"k/{number:05}", b"%08d" % number) for number in range(count)]:
        future.result()


@workload("kvstore: read 1000 keys in memory, one by one")
def memory_keys(folder: Path) -> Mapping[str, Contender]:
    """A thousand separate reads."""
    del folder

    def make(ts: ModuleType) -> Contender:
        store = ts.KvStore.open("memory://").result()
        _fill(store, 1000)
        return lambda: [bytes(store.read(f"k/{number:05}").result().value) for number in range(1000)]

    return both(make)


@workload("kvstore: list 1000 files")
def listing(folder: Path) -> Mapping[str, Contender]:
    """List a folder of a thousand files, two levels deep."""

    def make(ts: ModuleType) -> Contender:
        store = ts.KvStore.open(f"file://{folder}/{ts.__name__}/").result()
        _fill(store, 1000)
        return lambda: sorted(store.list().result())

    return both(make)
