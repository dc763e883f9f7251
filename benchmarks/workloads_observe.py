"""What counting costs: the same read with and without a meter."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from benchmarks.harness import Contender, workload

_CHUNK = 4096
_READS = 200


@workload("observation: a read of 4 KB, counted and not", size=_CHUNK * _READS)
def read_counted(folder: Path) -> Mapping[str, Contender]:
    """Read one chunk of a local array many times; `uncounted` is the same array without a meter."""
    import fsstore as ts

    spec = {"driver": "zarr3", "kvstore": f"file://{folder}/", "metadata": {"codecs": ["bytes"]}}
    made = ts.open(
        spec,
        create=True,
        dtype="uint8",
        shape=[_CHUNK],
        chunk_layout=ts.ChunkLayout(chunk_shape=[_CHUNK]),
    ).result()
    made[:] = np.full(_CHUNK, 7, "u1")

    def contender(*, counted: bool) -> Contender:
        store = ts.open(spec, context=ts.Context()).result()
        if not counted:
            store.kvstore._open.driver.meter = None

        def run() -> int:
            return sum(int(store.read().result()[0]) for _ in range(_READS))

        return run

    return {"fsstore": contender(counted=True), "uncounted": contender(counted=False)}
