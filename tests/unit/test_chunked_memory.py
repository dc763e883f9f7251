"""Reading and writing a large array takes the memory of its elements and a bounded window more."""

import subprocess
import sys

import pytest

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
