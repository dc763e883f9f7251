"""What it costs that one can see what goes on: the same read counted, not counted, and by code that cannot count."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import Contender, workload

_CHUNK = 4096
_READS = 50  # a turn of a millisecond or two: what disturbs the machine meets all of them


@workload("observation: a read of 4 KB, counting on and off", size=_CHUNK * _READS)
def read_counted(folder: Path) -> Mapping[str, Contender]:
    """Read one chunk of a local array many times, as usual and with `FSSTORE_STATISTICS=0` (`off`)."""
    opened = _opener(folder)
    return {"fsstore": _reading(opened(counted=True)), "off": _reading(opened(counted=False))}


@workload("observation: a read of 4 KB, off and not there", size=_CHUNK * _READS)
def read_off(folder: Path) -> Mapping[str, Contender]:
    """Read the same with `FSSTORE_STATISTICS=0`, and with the lines that would count taken out (`bare`)."""
    opened = _opener(folder)
    return {"fsstore": _reading(opened(counted=False)), "bare": _bare(opened(counted=False))}


def _opener(folder: Path) -> Callable[..., Any]:
    """Return what opens the array with a context of its own."""
    import fsstore as ts

    spec = {"driver": "zarr3", "kvstore": f"file://{folder}/", "metadata": {"codecs": ["bytes"]}}
    layout = ts.ChunkLayout(chunk_shape=[_CHUNK])
    made = ts.open(spec, create=True, dtype="uint8", shape=[_CHUNK], chunk_layout=layout).result()
    made[:] = np.full(_CHUNK, 7, "u1")

    def opened(*, counted: bool) -> Any:
        os.environ["FSSTORE_STATISTICS"] = "1" if counted else "0"
        try:
            store = ts.open(spec, context=ts.Context()).result()
        finally:
            del os.environ["FSSTORE_STATISTICS"]
        if (store.kvstore._open.meter is not None) != counted:
            raise ValueError("counting is not what was asked for")
        return store

    return opened


def _reading(store: Any) -> Contender:
    def run() -> int:
        return sum(int(store.read().result()[0]) for _ in range(_READS))

    return run


def _bare(store: Any) -> Contender:
    """Return the same reading where neither files nor decoding know of meters."""
    from fsstore.chunk.read import reader, window
    from fsstore.kvstore.local.driver import LocalDriver
    from fsstore.kvstore.local.file import read_batch

    class Bare(LocalDriver):
        async def read_many(self, reads: Sequence[Any]) -> list[Any]:
            return read_batch(reads, mapped=self.mapped)

    store.kvstore._open.driver.__class__ = Bare
    plain = _reading(store)

    def run() -> int:
        reader.decode = window._decode
        try:
            return plain()
        finally:
            reader.decode = window.decode

    return run
