"""Key-value stores: batches of reads, merged ranges, durable writes, and databases."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from benchmarks.harness import Contender, workload
from benchmarks.loopback import LoopbackServer
from benchmarks.workloads_store import both

_SIZE = 8192
_COUNT = 4096
_BATCH_BYTES = _SIZE * _COUNT
_RANGES = 20_000
_DATABASE = 100_000


def _open(ts: ModuleType, spec: Any) -> Any:
    return ts.KvStore.open(spec).result()


def _read_batch(ts: ModuleType, store: Any, keys: list[str]) -> bytes:
    """Read keys in one batch; return the last value, which tells that all are there."""
    batch = ts.Batch()
    futures = [store.read(key, batch=batch) for key in keys]
    batch.submit()
    return bytes([future.result().value for future in futures][-1])


@workload("kvstore: 4096 files of 8 KB in one batch", size=_BATCH_BYTES)
def read_files(folder: Path) -> Mapping[str, Contender]:
    """Read many small files at once."""
    keys = [f"c/{number // 64}/{number % 64}" for number in range(_COUNT)]
    for number, key in enumerate(keys):
        path = folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(number.to_bytes(4, "little") * (_SIZE // 4))

    def make(ts: ModuleType) -> Contender:
        store = _open(ts, f"file://{folder}/")
        return lambda: _read_batch(ts, store, keys)

    return both(make)


@workload("kvstore: 4096 values of 8 KB over HTTP in one batch", size=_BATCH_BYTES)
def read_http(folder: Path) -> Mapping[str, Contender]:
    """Read many small values from a web server, with each client; `cat` is fsspec's own way."""
    del folder
    import fsspec
    import tensorstore

    import fsstore

    server = LoopbackServer(_SIZE)
    keys = [f"/c/{number}" for number in range(_COUNT)]
    urls = [server.url + key for key in keys]
    filesystem = fsspec.filesystem("http", skip_instance_cache=True)

    def make(ts: ModuleType, engine: Mapping[str, str]) -> Contender:
        store = _open(ts, {"driver": "http", "base_url": server.url, **engine})
        return lambda: _read_batch(ts, store, keys)

    def cat() -> bytes:
        return list(filesystem.cat(urls).values())[-1] if server else b""

    return {
        "fsstore": make(fsstore, {}),
        "fsstore (obstore)": make(fsstore, {"engine": "obstore"}),
        "tensorstore": make(tensorstore, {}),
        "fsspec cat": cat,
    }


def _read_ranges(ts: ModuleType, store: Any, spans: list[slice]) -> bytes:
    batch = ts.Batch()
    futures = [store.read("data", byte_range=span, batch=batch) for span in spans]
    batch.submit()
    return bytes([future.result().value for future in futures][-1])


@workload("kvstore: 20000 ranges of one file, merged", size=_RANGES * 100)
def merged_ranges(folder: Path) -> Mapping[str, Contender]:
    """Read many ranges of one file in a batch; `raw read` reads the file and cuts, which is the least there is."""
    (folder / "data").write_bytes(os.urandom(_RANGES * 120))
    spans = [slice(number * 120, number * 120 + 100) for number in range(_RANGES)]

    def raw() -> bytes:
        data = (folder / "data").read_bytes()
        return [data[span] for span in spans][-1]

    def make(ts: ModuleType) -> Contender:
        store = _open(ts, f"file://{folder}/")
        return lambda: _read_ranges(ts, store, spans)

    return {**both(make), "raw read": raw}


@workload("kvstore: one durable write")
def durable_write(folder: Path) -> Mapping[str, Contender]:
    """Write a value and wait until it is on the disk."""

    def make(ts: ModuleType) -> Contender:
        store = _open(ts, f"file://{folder}/{ts.__name__}/")

        def write() -> bytes:
            store["k"] = b"x" * _SIZE
            return bytes(store["k"])

        return write

    return both(make)


@workload("kvstore: 200 durable writes, all begun before any is awaited")
def durable_futures(folder: Path) -> Mapping[str, Contender]:
    """Begin many writes, then wait for all."""

    def make(ts: ModuleType) -> Contender:
        store = _open(ts, f"file://{folder}/{ts.__name__}/")

        def write() -> int:
            futures = [store.write(f"d{number % 10}/{number}", b"x" * 100) for number in range(200)]
            return len([future.result() for future in futures])

        return write

    return both(make)


@workload("kvstore: 200 durable writes in a transaction")
def durable_transaction(folder: Path) -> Mapping[str, Contender]:
    """Write many values at the end of a transaction."""

    def make(ts: ModuleType) -> Contender:
        store = _open(ts, f"file://{folder}/{ts.__name__}/")

        def write() -> None:
            with ts.Transaction() as transaction:
                bound = store.with_transaction(transaction)
                for number in range(200):
                    bound[f"d{number % 10}/{number}"] = b"x" * 100

        return write

    return both(make)


def _database(folder: Path) -> str:
    """Write a database of many keys with tensorstore, which both libraries read; return its URL."""
    import tensorstore

    url = f"file://{folder}/database/|ocdbt:"
    with tensorstore.Transaction() as transaction:
        store = _open(tensorstore, url).with_transaction(transaction)
        for number in range(_DATABASE):
            store[f"k/{number:06}"] = b"%06d" % number
    return url


@workload("ocdbt: 5000 reads from 100000 keys")
def database_reads(folder: Path) -> Mapping[str, Contender]:
    """Read keys spread over a database in one batch, each time with an empty cache."""
    url = _database(folder)
    keys = [f"k/{number * 7919 % _DATABASE:06}" for number in range(5000)]
    return both(lambda ts: lambda: _read_batch(ts, _open(ts, url), keys))


@workload("ocdbt: list 100000 keys")
def database_listing(folder: Path) -> Mapping[str, Contender]:
    """List all keys of a database."""
    url = _database(folder)
    return both(lambda ts: lambda: len(_open(ts, url).list().result()))


@workload("ocdbt: commit 10000 small values")
def database_commit(folder: Path) -> Mapping[str, Contender]:
    """Write many small values in one commit."""

    def make(ts: ModuleType) -> Contender:
        url = f"file://{folder}/{ts.__name__}/|ocdbt:"

        def commit() -> None:
            with ts.Transaction() as transaction:
                store = _open(ts, url).with_transaction(transaction)
                for number in range(10_000):
                    store.write(f"k/{number:05}", b"%05d" % number)

        return commit

    return both(make)


@workload("ocdbt: read a zarr3 array of 4096 chunks of 8 KB", size=_BATCH_BYTES)
def database_array(folder: Path) -> Mapping[str, Contender]:
    """Read an array whose chunks are values of a database."""
    import tensorstore

    spec = {
        "driver": "zarr3",
        "kvstore": f"file://{folder}/array/|ocdbt:",
        "metadata": {
            "shape": [64 * 64, 64 * 16],
            "data_type": "float64",
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [64, 16]}},
            "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
        },
    }
    values = np.arange(64 * 64 * 64 * 16, dtype="f8").reshape(64 * 64, 64 * 16)
    tensorstore.open(spec, create=True).result().write(values).result()

    def make(ts: ModuleType) -> Contender:
        array = ts.open(spec).result()
        return lambda: array.read().result()

    return both(make)
