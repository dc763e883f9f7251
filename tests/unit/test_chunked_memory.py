"""Reading and writing a large array takes the memory of its elements and a bounded window; a cache what it may."""

import gc
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest

import fsstore as ts

PROGRAM = """
import resource, sys
import numpy as np
import fsstore as ts

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

codecs = {
    "raw": [{"name": "bytes", "configuration": {"endian": "little"}}],
    "zstd": [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "zstd", "configuration": {"level": 1}}],
    "shards": [{"name": "sharding_indexed", "configuration": {"chunk_shape": [32, 32, 32]}}],
}[sys.argv[1]]
metadata = {"shape": [256, 512, 512], "data_type": "uint16", "codecs": codecs,
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [128, 128, 128]}}}
spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": sys.argv[2] + "/", "file_io_sync": False},
    "metadata": metadata}
store = ts.open(spec, create=True, open=True).result()
small = store[:2, :2, :2].read().result()
if sys.argv[3] == "write":
    values = np.arange(256 * 512 * 512, dtype=np.uint16).reshape(256, 512, 512)
    before = peak()
    store.write(values).result()
    print(peak() - before)
else:
    before = peak()
    values = store.read().result()
    print(peak() - before - values.nbytes / 2**20)
    assert values[3, 4, 5] == (3 * 512 * 512 + 4 * 512 + 5) % 2**16
"""
WINDOW_MB = 64


@pytest.mark.parametrize("kind", ["raw", "zstd", "shards"])
def test_peak_memory(kind, tmp_path):
    """Beyond the caller's array of 128 MB, neither a write nor a read of it takes more than a window."""
    for operation in ("write", "read"):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, kind, str(tmp_path / "a"), operation],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        assert float(done.stdout) < WINDOW_MB, operation


def _live_bytes(run):
    """Return how much of the memory that a function takes is still held when it has returned."""
    gc.collect()
    tracemalloc.start()
    try:
        run()
        gc.collect()
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


SHARDS = {
    "data_type": "uint8",
    "shape": [4096, 512],
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [512, 512]}},
    "codecs": [{"name": "sharding_indexed", "configuration": {"chunk_shape": [64, 64]}}],
}
STRINGS = {
    "data_type": "string",
    "shape": [4096],
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [512]}},
    "codecs": ["vlen-utf8"],
}


@pytest.mark.parametrize(
    ("metadata", "value"), [(SHARDS, 7), (STRINGS, "x" * 400)], ids=["shards", "strings"]
)
def test_memory_of_a_pool(metadata, value, tmp_path):
    """What a pool keeps alive is what it counts: a part of a shard does not keep the shard, and strings have a size."""
    spec = {"driver": "zarr3", "kvstore": f"file://{tmp_path}/a/", "metadata": metadata}
    store = ts.open(spec, create=True, recheck_cached_data=False).result()
    values = np.full(store.shape, value, dtype=store.dtype.numpy_dtype)
    if metadata is STRINGS:
        values[:] = [value + str(number) for number in range(len(values))]
    store.write(values).result()
    limit = 400_000
    context = ts.Context({"cache_pool": {"total_bytes_limit": limit}})
    reader = ts.open(spec, context=context, recheck_cached_data=False).result()
    reader[0].read().result()

    def run():
        for begin in range(0, 4096, 512):
            reader[begin : begin + 512].read().result()
            for earlier in range(0, begin, 512):  # used again, so that other parts go first
                reader[(earlier, *(0 for _ in range(1, reader.rank)))].read().result()

    live = _live_bytes(run)
    used = context["cache_pool"].value.used_bytes
    assert limit / 2 < used <= limit
    assert live < 1.3 * limit
    assert reader.read().result().tolist() == values.tolist()
