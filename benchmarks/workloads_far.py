"""Arrays on a server that answers after 30 ms, opened and read: what latency costs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from benchmarks.far_server import FarServer
from benchmarks.harness import Contender, workload

_SHAPE = (256, 64, 64)
_SHARDS = {"chunks": (1, 32, 32), "shards": (64, 64, 64)}
_CHUNKS = {"chunks": (1, 64, 64)}


_STEPS = 32


def _contenders(folder: Path, layout: Mapping[str, Any], part: Any) -> Mapping[str, Contender]:
    import tensorstore
    import zarr
    from obstore.store import HTTPStore
    from zarr.storage import ObjectStore

    import fsstore

    values = np.random.default_rng(1).random(_SHAPE, np.float32)
    zarr.create_array(folder / "a", data=values, **layout)
    server = FarServer(folder)
    url = f"{server.url}/a/"

    def open_and_read(ts: ModuleType) -> Any:
        return ts.open({"driver": "zarr3", "kvstore": url}).result()[part].read().result()

    def through_obstore() -> Any:
        store = ObjectStore(HTTPStore.from_url(url, client_options={"allow_http": True}), read_only=True)
        return zarr.open_array(store, mode="r")[part]

    return {
        "fsstore": lambda keep=server: open_and_read(fsstore),
        "tensorstore": lambda: open_and_read(tensorstore),
        "zarr": lambda: zarr.open_array(url, mode="r")[part],
        "zarr+obstore": through_obstore,
    }


@workload("far: open and read 256 chunks of 16 KB")
def many_chunks(folder: Path) -> Mapping[str, Contender]:
    """More chunks than requests may be under way."""
    return _contenders(folder, _CHUNKS, slice(None))


@workload("far: open and read 8 chunks of 16 KB")
def few_chunks(folder: Path) -> Mapping[str, Contender]:
    """Two answers after each other: the metadata, then all chunks."""
    return _contenders(folder, _CHUNKS, slice(0, 8))


@workload("far: open and read 32 sub-chunks of 4 shards")
def parts_of_shards(folder: Path) -> Mapping[str, Contender]:
    """Three answers after each other: the metadata, all indexes, all sub-chunks."""
    return _contenders(folder, _SHARDS, slice(0, 256, 32))


@workload("far: read 32 chunks of 16 KB one after the other")
def steps(folder: Path) -> Mapping[str, Contender]:
    """A program that goes along an array and waits for each step; `ahead` has the next eight chunks on their way."""
    import tensorstore
    import zarr

    import fsstore

    values = np.random.default_rng(1).random((_STEPS, 64, 64), np.float32)
    zarr.create_array(folder / "a", data=values, **_CHUNKS)
    server = FarServer(folder)
    spec = {"driver": "zarr3", "kvstore": f"{server.url}/a/", "recheck_cached_data": "open"}

    def along(ts: ModuleType, keep: Any = server, **pool: int) -> Any:
        context = ts.Context({"cache_pool": {"total_bytes_limit": 1 << 26, **pool}})
        array = ts.open(spec, context=context, recheck_cached_metadata="open").result()
        return np.concatenate([array[step : step + 1].read().result() for step in range(_STEPS)])

    array = zarr.open_array(f"{server.url}/a/", mode="r")
    return {
        "fsstore": lambda: along(fsstore, read_ahead=8),
        "fsstore, nothing ahead": lambda: along(fsstore),
        "tensorstore": lambda: along(tensorstore),
        "zarr": lambda: np.concatenate([array[step : step + 1] for step in range(_STEPS)]),
    }
