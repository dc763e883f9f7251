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
import json, os, re, sys, time
import numpy as np
import fsstore as ts
from fsstore.runtime import execution

def memory(name):  # in MB; `ru_maxrss` would include what the parent had when it forked
    return int(re.search(name + r":\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1024

spec, operation, view = json.loads(sys.argv[1]), *sys.argv[2:4]
execution.core_count = lambda: int(sys.argv[4])
spec["context"] = {**spec.get("context", {}), "file_io_sync": False}
store = ts.open(spec, open=True, create=True).result()
corner = store[:2, :2, :2].read().result()
if operation == "write":
    store[:2, :2, :2].write(corner).result()
if sys.argv[5:]:
    quick = os.writev
    os.writev = lambda *args: time.sleep(0.004) or quick(*args)
part, before = eval("store" + view), memory("VmRSS")
if operation == "write":
    values = np.empty(part.shape, part.dtype.numpy_dtype)
    numbers = np.random.default_rng(0)
    for plane in values:
        plane[...] = numbers.integers(0, 2**16, plane.shape, "u2")
    part.write(values).result()
else:
    values = part.read().result()
    assert values.any(axis=(1, 2)).all()
print(memory("VmHWM") - before - values.nbytes / 2**20)
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
GZIP, CRC32C = {"name": "gzip", "configuration": {"level": 1}}, {"name": "crc32c"}
TRANSPOSE = {"name": "transpose", "configuration": {"order": [2, 1, 0]}}
DELTA, SHUFFLE = {"id": "delta", "dtype": "<u2"}, {"id": "shuffle", "elementsize": 2}
SCALE = {"id": "fixedscaleoffset", "offset": 0, "scale": 1, "dtype": "<u2", "astype": "<f8"}
SAME_SCALE = {**SCALE, "astype": "<u2"}
CASES = {
    "raw": (zarr3([128] * 3, BYTES), WHOLE),
    "zstd": (zarr3([128] * 3, BYTES, ZSTD), WHOLE),
    "gzip, chunks of 16 MB": (zarr3([128, 256, 256], BYTES, GZIP), WHOLE),
    "zstd and crc32c, chunks of 16 MB": (zarr3([128, 256, 256], BYTES, ZSTD, CRC32C), WHOLE),
    "small chunks": (zarr3([64] * 3, BYTES, ZSTD), WHOLE),
    "raw shards": (zarr3([256] * 3, sharding([16] * 3, BYTES)), WHOLE),
    "one raw shard": (zarr3([256, 512, 512], sharding([32] * 3, BYTES)), WHOLE),
    "shards in a shard": (zarr3([256, 512, 512], sharding([64] * 3, sharding([32] * 3, BYTES))), WHOLE),
    "one shard": (zarr3([256, 512, 512], sharding([32] * 3, BYTES, ZSTD)), WHOLE),
    "parts of shards": (zarr3([256, 256, 128], sharding([32] * 3, BYTES, ZSTD)), INSIDE),
    "v2": (zarr2(order="F"), WHOLE),
    "v2, filters": (zarr2(filters=[DELTA, SHUFFLE]), WHOLE),
    "v2, filters, chunks of 16 MB": (zarr2(filters=[DELTA, SHUFFLE], chunks=[128, 256, 256]), WHOLE),
    "v2, wide filters": (zarr2(filters=[SCALE], chunks=[64, 128, 128]), WHOLE),
    "v2, scaled chunks of 16 MB": (zarr2(filters=[SAME_SCALE], chunks=[128, 256, 256]), WHOLE),
    "v2, a field": ({**zarr2(dtype=[["a", "<u2"], ["b", "|u1"]], fill_value=None), "field": "a"}, STEPS),
}


def taken(spec, path, operation, view=WHOLE, cores=2, *disk):
    """Return how many MB a write or read takes beside its array in a process of its own; the disk may be "slow"."""
    spec = {"kvstore": {"driver": "file", "path": f"{path}/a/"}, **spec}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(spec), operation, view, str(cores), *disk],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return float(done.stdout)


# each stands for the way of writing and reading that the others share
USUAL = {"small chunks", "raw shards", "one shard", "v2, filters, chunks of 16 MB", "v2, a field"}


def cases(names):
    """Return cases as parameters; those that are like another run with the long tests."""
    return [pytest.param(name, marks=() if name in USUAL else pytest.mark.long) for name in names]


on_linux = pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")


@on_linux
@pytest.mark.parametrize("name", cases(CASES))
def test_peak_memory(name, tmp_path):
    """Beyond its array, neither a write nor a rewriting of parts nor a read takes more than the window."""
    spec, view = CASES[name]
    assert taken(spec, tmp_path, "write", view) < WINDOW_MB
    if view == WHOLE:
        assert taken(spec, tmp_path, "write", INSIDE) < WINDOW_MB
    assert taken(spec, tmp_path, "read", view) < WINDOW_MB


@on_linux
@pytest.mark.parametrize(
    "name",
    cases(
        [
            "raw",
            "zstd",
            "gzip, chunks of 16 MB",
            "zstd and crc32c, chunks of 16 MB",
            "small chunks",
            "v2, filters",
            "v2, filters, chunks of 16 MB",
            "v2, scaled chunks of 16 MB",
        ]
    ),
)
def test_peak_memory_over_a_store_that_waits(name, tmp_path):
    """Nor does it where chunks are under way between the store and its threads."""
    kvstore = {"driver": "fsspec", "url": f"file://{tmp_path}/a/", "single_writer": True}
    spec = {**CASES[name][0], "kvstore": kvstore}
    for operation, view in [("write", WHOLE), ("write", INSIDE), ("read", WHOLE)]:
        assert taken(spec, tmp_path, operation, view) < WINDOW_MB


@on_linux
@pytest.mark.long
def test_peak_memory_over_a_slow_disk(tmp_path):
    """What is encoded does not pile up where writing takes longer."""
    for name in ["one shard", "shards in a shard"]:
        for view in [WHOLE, INSIDE]:
            assert taken(CASES[name][0], tmp_path / name, "write", view, 2, "slow") < WINDOW_MB


@on_linux
@pytest.mark.parametrize(
    "codecs",
    [
        pytest.param([], id="raw", marks=pytest.mark.long),
        pytest.param([ZSTD], id="zstd"),
        pytest.param([CRC32C], id="crc32c", marks=pytest.mark.long),
    ],
)
def test_peak_memory_of_large_chunks(codecs, tmp_path):
    """Chunks of which one takes the window are worked on one after the other, however many cores there are."""
    spec = zarr3([256, 256, 256], TRANSPOSE, BYTES, *codecs)  # 32 MB
    for view in (WHOLE, INSIDE):
        assert taken(spec, tmp_path, "write", view, cores=8) < WINDOW_MB
    assert taken(spec, tmp_path, "read", cores=8) < WINDOW_MB + 32  # what is stored, and what it is decoded to


@on_linux
@pytest.mark.long
def test_peak_memory_of_large_filtered_chunks(tmp_path):
    """Nor do steps keep what they were given: there are five, of 16 MB each."""
    spec, _ = CASES["v2, filters, chunks of 16 MB"]
    for operation, where in [("write", WHOLE), ("write", INSIDE), ("read", WHOLE)]:
        assert taken(spec, tmp_path, operation, where, cores=8) < WINDOW_MB


@on_linux
def test_peak_memory_with_many_cores(tmp_path):
    """Nor does the memory grow with the cores, unless a number of threads is asked for."""
    spec = zarr3([128] * 3, BYTES, ZSTD)
    assert taken(spec, tmp_path, "write", cores=64) < WINDOW_MB
    assert taken(spec, tmp_path, "read", cores=64) < WINDOW_MB
    spec["context"] = {"data_copy_concurrency": {"limit": 32}}
    assert taken(spec, tmp_path, "read", cores=64) > WINDOW_MB


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


@pytest.mark.parametrize(("metadata", "value"), [(SHARDS, 7), (STRINGS, "x" * 400)], ids=["shards", "strings"])
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
