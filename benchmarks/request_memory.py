"""How much memory a read takes beside its result, in fresh interpreters: requests of 1, 10 and 100 MB.

Boxes of arrays of chunks and of shards, and the same read into memory that is there.  The growth is the peak of the
process during the request less what it had before, and less the result if the request makes it.

python -m benchmarks.request_memory
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["main"]

_SIZES_MB = 1, 10, 100
_SIDE = 12_800  # of an array of bytes, 164 MB
_CHUNKS = {"chunks of 1 MB": ((1024, 1024), None), "shards of 16 MB": ((4096, 4096), (256, 256))}
_CODECS: dict[str, list[dict[str, Any]]] = {"raw": [], "zstd": [{"name": "zstd", "configuration": {"level": 1}}]}
_READ = """
import sys
import numpy as np
import fsstore
from benchmarks.request_memory import peak
path, side, into = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "into"
store = fsstore.open({"driver": "zarr3", "kvstore": {"driver": "file", "path": path}}).result()
store[:8, :8].read().result()
part = store[300 : 300 + side, 500 : 500 + side]
out = np.ones((side, side), np.uint8) if into else None
before = peak(reset=True)
found = part.read(out=out).result()
print(peak() - before - (0 if into else found.nbytes))
"""


def peak(*, reset: bool = False) -> int:
    """Return the largest resident size of this process, in bytes, or since the last reset."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition("VmHWM:")[2].split()[0]) << 10


def _made(path: Path, shape: tuple[int, int], sub: tuple[int, int] | None, codec: str) -> None:
    """Write an array of bytes that compress to about half."""
    import fsstore

    inner = [{"name": "bytes"}, *_CODECS[codec]]
    sharding = {"name": "sharding_indexed", "configuration": {"chunk_shape": sub, "codecs": inner}}
    metadata = {
        "shape": [_SIDE, _SIDE],
        "data_type": "uint8",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": shape}},
        "codecs": inner if sub is None else [sharding],
    }
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{path}/"}, "metadata": metadata}
    store = fsstore.open(spec, create=True, context=fsstore.Context({"file_io_sync": False})).result()
    rows = np.random.default_rng(0).integers(0, 16, (shape[0], _SIDE), np.uint8)
    for begin in range(0, _SIDE, len(rows)):
        end = min(begin + len(rows), _SIDE)
        store[begin:end].write(rows[: end - begin]).result()


def _growth(path: Path, megabytes: int, way: str) -> float:
    """Return by how many megabytes a fresh process grows."""
    side = int((megabytes * 1e6) ** 0.5)
    command = [sys.executable, "-c", _READ, f"{path}/", str(side), way]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return int(told) / 1e6


def main() -> int:
    """Print the table."""
    print("| read | codec | " + " | ".join(f"{size} MB" for size in _SIZES_MB) + " |")
    print("|---|---|" + "---|" * len(_SIZES_MB))
    with tempfile.TemporaryDirectory() as folder:
        for name, (shape, sub) in _CHUNKS.items():
            for codec in _CODECS:
                path = Path(folder) / f"{name} {codec}"
                _made(path, shape, sub, codec)
                for way in ("new", "into"):
                    found = [_growth(path, size, way) for size in _SIZES_MB]
                    where = "a box" if way == "new" else "the same into `out`"
                    print(f"| {where}, {name} | {codec} | " + " | ".join(f"{each:.1f}" for each in found) + " |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
