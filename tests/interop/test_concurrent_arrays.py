"""Processes that write parts of one chunk, or of one shard, at the same time: nothing is lost, with TensorStore too."""

import subprocess
import sys
from pathlib import Path

import pytest

import fsstore as ts

WRITER = Path(__file__).with_name("concurrent_writer.py")
CHAINS = {
    "chunk": [
        {"name": "bytes", "configuration": {"endian": "little"}},
        {"name": "zstd", "configuration": {"level": 1}},
    ],
    "shard": [
        {
            "name": "sharding_indexed",
            "configuration": {
                "chunk_shape": [8],
                "codecs": [{"name": "sharding_indexed", "configuration": {"chunk_shape": [2]}}],
                "index_location": "start",
            },
        }
    ],
}


def race(folder, kind, libraries, size):
    """Let a process a library write its share of one chunk, all at once; return the array afterwards."""
    metadata = {
        "shape": [size],
        "data_type": "int32",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [size]}},
        "codecs": CHAINS[kind],
    }
    path = f"{folder}/a/"
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": path}, "metadata": metadata}
    store = ts.open(spec, create=True).result()
    writers = [
        subprocess.Popen(
            [sys.executable, str(WRITER), library, path, str(number), str(len(libraries))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number, library in enumerate(libraries)
    ]
    for writer in writers:
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        writer.stdin.write("\n")
        writer.stdin.flush()
    for writer in writers:
        writer.communicate(timeout=300)
        assert writer.returncode == 0
    return store.read().result().tolist()


@pytest.mark.parametrize("kind", CHAINS)
def test_four_processes(kind, tmp_path):
    """Two processes with fsstore and two with TensorStore write one chunk or shard of shards, and every element arrives."""
    assert race(tmp_path, kind, ["fsstore", "tensorstore"] * 2, 32) == list(range(1, 33))


@pytest.mark.long
@pytest.mark.parametrize("kind", CHAINS)
@pytest.mark.parametrize("libraries", [["fsstore"] * 8, ["fsstore", "tensorstore"] * 4], ids=["fsstore", "both"])
def test_eight_processes(kind, libraries, tmp_path):
    """Eight processes, more elements."""
    assert race(tmp_path, kind, libraries, 800) == list(range(1, 801))
