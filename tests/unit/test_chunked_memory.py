"""Reading and writing a large array takes the memory of its elements and a bounded window; a cache what it may."""

import gc
import json
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest

import fsstore as ts

PROGRAM = """
import json, re, sys
import numpy as np
import fsstore as ts

def peak():  # in MB; `ru_maxrss` would include what the parent had when it forked
    return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1024

spec = json.loads(sys.argv[1])
spec["context"] = {"file_io_sync": False, "data_copy_concurrency": {"limit": 2}}
store = ts.open(spec, create=True).result()
store[:2, :2, :2].write(store[:2, :2, :2].read().result()).result()
part, read = (eval("store" + view) for view in sys.argv[2:])
values = np.empty(part.shape, part.dtype.numpy_dtype)
for number, plane in enumerate(values):
    plane[...] = np.arange(plane.size, dtype="u4").reshape(plane.shape) * 7 + number
before = peak()
part.write(values).result()
written = peak()
del values, plane
found = read.read().result()
assert found.any(axis=(1, 2)).all()
print(json.dumps([written - before, peak() - before]))
"""
WINDOW_MB = 64
BYTES = {"name": "bytes", "configuration": {"endian": "little"}}
ZSTD = {"name": "zstd", "configuration": {"level": 1}}


def zarr3(chunk, *codecs):
    """Return the spec of an array of 128 MB."""
    grid = {"name": "regular", "configuration": {"chunk_shape": chunk}}
    metadata = {"shape": [256, 512, 512], "data_type": "uint16", "codecs": codecs, "chunk_grid": grid}
    return {"driver": "zarr3", "metadata": metadata}


def sharding(part, *codecs):
    """Return the codec of shards."""
    return {"name": "sharding_indexed", "configuration": {"chunk_shape": part, "codecs": codecs}}


def zarr2(**members):
    """Return the spec of an array of 128 MB, compressed."""
    metadata = {"shape": [256, 512, 512], "chunks": [128, 128, 128], "dtype": "<u2", "fill_value": 0}
    return {"driver": "zarr", "metadata": {**metadata, "compressor": {"id": "zstd"}, **members}}


WHOLE, INSIDE, STEPS = "[...]", "[3:250, 5:507, 7:509]", "[:, ::3]"
DELTA, SHUFFLE = {"id": "delta", "dtype": "<u2"}, {"id": "shuffle", "elementsize": 2}
CASES = {
    "raw": (zarr3([128] * 3, BYTES), WHOLE),
    "zstd": (zarr3([128] * 3, BYTES, ZSTD), WHOLE),
    "parts of chunks": (zarr3([128] * 3, BYTES, ZSTD), INSIDE),
    "raw shards": (zarr3([256] * 3, sharding([16] * 3, BYTES)), WHOLE, "[..., :256, :256]"),
    "one raw shard": (zarr3([256, 512, 512], sharding([32] * 3, BYTES)), WHOLE),
    "shards in a shard": (zarr3([256, 512, 512], sharding([64] * 3, sharding([32] * 3, BYTES))), WHOLE),
    "part of one raw shard": (zarr3([256, 512, 512], sharding([16] * 3, BYTES)), INSIDE),
    "one shard": (zarr3([256, 512, 512], sharding([32] * 3, BYTES, ZSTD)), WHOLE),
    "parts of shards": (zarr3([256] * 3, sharding([32] * 3, BYTES, ZSTD)), INSIDE),
    "v2": (zarr2(order="F"), WHOLE),
    "v2, filters": (zarr2(filters=[DELTA, SHUFFLE]), INSIDE),
    "v2, a field": ({**zarr2(dtype=[["a", "<u2"], ["b", "|u1"]], fill_value=None), "field": "a"}, STEPS),
}


@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
@pytest.mark.parametrize("name", CASES)
def test_peak_memory(name, tmp_path):
    """Beyond the caller's array, neither a write nor a read of it takes more than a window, with two threads."""
    spec, *views = CASES[name]
    spec = {**spec, "kvstore": {"driver": "file", "path": f"{tmp_path}/a/"}}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(spec), views[0], views[-1]],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    written, both = json.loads(done.stdout)
    assert written < WINDOW_MB
    assert both < WINDOW_MB


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
