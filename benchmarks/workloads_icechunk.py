"""Icechunk repositories, beside icechunk itself through zarr-python."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import Contender, workload

_CHUNKS, _ELEMENTS = 2000, 1024


@workload("icechunk: open a repository, read 2,000 chunks of 4 KB")
def small_chunks(folder: Path) -> Mapping[str, Contender]:
    """Open a repository on this machine and read all of an array whose chunks are values of their own."""
    import icechunk
    import zarr

    import fsstore

    icechunk.set_logs_filter("error")
    path = folder / "repository"
    repository = icechunk.Repository.create(icechunk.local_filesystem_storage(str(path)))
    session = repository.writable_session("main")
    values = np.random.default_rng(0).integers(0, 2**31, _CHUNKS * _ELEMENTS, dtype="i4")
    array = zarr.create_array(
        session.store, name="v", shape=values.shape, chunks=(_ELEMENTS,), dtype="i4", compressors=None
    )
    array[:] = values
    session.commit("values")

    def by_zarr() -> Any:
        opened = icechunk.Repository.open(icechunk.local_filesystem_storage(str(path)))
        store = opened.readonly_session("main").store
        return zarr.open_array(store, path="v", mode="r")[:]

    return {"fsstore": lambda: fsstore.open(f"file://{path}|icechunk:v").result().read().result(), "icechunk": by_zarr}
