"""Use arrays where the system lets a process start only so many threads.  Run by test_few_threads.

The limit is one of memory: each thread wants a stack so large that the address space holds no more.
"""

from __future__ import annotations

import faulthandler
import resource
import sys
import threading
from pathlib import Path

import numpy as np

import fsstore
from fsstore.runtime import execution

STACK = 8 << 30
LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}
ZSTD = [LITTLE, {"name": "zstd", "configuration": {"level": 1}}]
SHARD = [{"name": "sharding_indexed", "configuration": {"chunk_shape": [16, 16], "codecs": ZSTD}}]
VALUES = np.arange(512 * 512, dtype=np.uint32).reshape(512, 512)


def limit_threads(count):
    """Let `count` more threads be started."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    threading.stack_size(STACK)
    resource.setrlimit(resource.RLIMIT_AS, (used + count * STACK + STACK // 2,) * 2)


def use(where, chunk, codecs):
    """Write, read, commit and resize one array, each awaited and not."""
    grid = {"name": "regular", "configuration": {"chunk_shape": [chunk, chunk]}}
    metadata = {"shape": VALUES.shape, "data_type": "uint32", "chunk_grid": grid, "codecs": codecs}
    spec = {"driver": "zarr3", "kvstore": where, "metadata": metadata}
    array = fsstore.open(spec, create=True, delete_existing=True).result(30)
    array.write(VALUES).result(30)
    assert (array.read().result(30) == VALUES).all()
    boxes = [np.s_[at : at + 40, at : at + 40] for at in range(0, 200, 20)]
    futures = [array[box].write(VALUES[box]) for box in boxes] + [array[box].read() for box in boxes]
    [future.result(30) for future in futures]
    with fsstore.Transaction() as transaction:
        array.with_transaction(transaction)[3:30].write(5).result(30)
    assert (array[3:30].read().result(30) == 5).all()
    assert (array.read().result(30)[30:] == VALUES[30:]).all()
    array.resize(exclusive_max=[300, 300]).result(30)


def main(count, folder):
    """Use arrays in memory, in files, and by way of the event loop if there is a thread for it."""
    limit_threads(int(count))
    places = ["memory://a/", f"file://{folder}/a/"]
    try:
        execution.loop()
        places.append({"driver": "fsspec", "url": "memory://far/", "single_writer": True})
    except fsstore.errors.ResourceExhaustedError:
        assert count == "0"
    for where in places:
        for chunk in (32, 256, 512):
            for codecs in (ZSTD, SHARD):
                use(where, chunk, codecs)
        store = fsstore.KvStore.open(where).result(30)
        [future.result(30) for future in [store.write(f"k{number}", b"x") for number in range(50)]]
        [future.result(30) for future in [store.read(f"k{number}") for number in range(50)]]
    print("threads", threading.active_count() - 1)


if __name__ == "__main__":
    faulthandler.dump_traceback_later(100, exit=True)
    main(*sys.argv[1:])
