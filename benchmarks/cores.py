"""How reads and writes of zstd chunks behave with 1, 2, 4 and 16 cores: measured as far as there are, and simulated.

Measured is a process that may use so many cores, by the wall clock and, where that is only one, by processor time too,
which tells the same on a busy machine.  Simulated is the same process with its pools made for so many cores and a codec
that holds one of as many places while it sleeps as long as zstd takes: all else is real, the plan, the threads, the
interpreter's lock, files and copies, and runs on the cores that there are.  So the simulation tells what Python costs
where decoders are plenty.  It says nothing of memory that sixteen cores share, and of 16 cores no more than two copy.
Simulated and measured times for the same cores show how far to trust it.

python -m benchmarks.cores
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["main"]

_SHAPE = (256, 256, 128)  # 34 MB of float32
_LAYOUTS: Mapping[str, Mapping[str, Any]] = {
    "large": {"chunks": (64, 64, 32)},
    "written": {"chunks": (64, 64, 32)},
    "small": {"chunks": (16, 16, 16)},
    "shards": {"chunks": (16, 32, 32), "shards": (128, 128, 128)},
}
_BOXES, _SECONDS, _FEWEST = 100, 2.0, 5
_CORES = (1, 2, 4, 16)


def _values() -> np.ndarray[Any, Any]:
    return np.random.default_rng(1).normal(size=_SHAPE).astype("f4").round(1).cumsum(0)


def _prepare(root: Path) -> None:
    import zarr

    steps = _values()
    for name, layout in _LAYOUTS.items():
        codec = zarr.codecs.ZstdCodec(level=1)
        zarr.create_array(root / name, data=steps, compressors=codec, **layout)


def _works(root: Path) -> dict[str, Callable[[], Any]]:
    import fsstore

    def array(name: str) -> Any:
        return fsstore.open(f"file://{root / name}/|zarr3:").result()

    large, written, small, shards = (array(name) for name in _LAYOUTS)
    values = _values()
    random = np.random.default_rng(0)
    starts = [[int(random.integers(0, side - 8)) for side in _SHAPE] for _ in range(_BOXES)]
    boxes = [tuple(slice(at, at + 8) for at in start) for start in starts]

    def many() -> None:
        for future in [small[box].read() for box in boxes]:
            future.result()

    return {
        "read 64 chunks of 512 KB": lambda: large.read().result(),
        "read 2048 chunks of 16 KB": lambda: small.read().result(),
        "read shards of 64 KB sub-chunks": lambda: shards.read().result(),
        "read 100 boxes of 8³, begun at once": many,
        "write 64 chunks of 512 KB": lambda: written.write(values).result(),
    }


class _Rates:
    """Seconds that zstd takes a byte on one core, decoding and encoding."""

    def __init__(self, root: Path) -> None:
        import zstandard

        data = next(path for path in sorted((root / "large" / "c").rglob("*")) if path.is_file()).read_bytes()
        whole = zstandard.ZstdDecompressor().decompress(data)
        self.decode = _least(lambda: zstandard.ZstdDecompressor().decompress(data)) / len(whole)
        self.encode = _least(lambda: zstandard.ZstdCompressor(level=1).compress(whole)) / len(whole)


def _least(work: Callable[[], Any], clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the shortest time of a few seconds of runs: on a busy machine the others say less."""
    times: list[float] = []
    end = time.perf_counter() + _SECONDS
    while len(times) < _FEWEST or time.perf_counter() < end:
        begun = clock()
        work()
        times.append(clock() - begun)
    return min(times)


def _pretend(cores: int, rates: _Rates) -> None:
    """Have fsstore believe in so many cores, and its zstd sleep."""
    from fsstore.codec.zstd import BoundZstd

    os.sched_getaffinity = lambda _: set(range(cores))
    places = threading.Semaphore(cores)

    def work(seconds: float) -> None:
        with places:
            time.sleep(seconds)

    def decode(self: Any, data: Any) -> bytes:
        work(rates.decode * self._size)
        return bytes(self._size)

    def decode_out(self: Any, data: Any, out: Any) -> bool:
        work(rates.decode * len(out))
        return True

    def decode_span(self: Any, data: Any, out: Any, span: tuple[int, int]) -> bool:
        work(rates.decode * span[1])
        return True

    def encode(self: Any, data: Any) -> bytes:
        size = memoryview(data).nbytes
        work(rates.encode * size)
        return bytes(size // 4)

    fakes: dict[str, Any] = {"decode": decode, "decode_into": decode_out, "decode_joined": decode_out}
    for name, fake in {**fakes, "decode_span": decode_span, "encode": encode}.items():
        setattr(BoundZstd, name, fake)
    BoundZstd.encode_pieces = lambda self, data: iter([encode(self, data)])  # type: ignore[method-assign]  # see above


def _child(root: Path, kind: str, cores: int) -> None:
    if kind == "simulated":
        _pretend(cores, _Rates(root))
    else:
        os.sched_setaffinity(0, range(cores))
    clock = time.process_time if kind == "processor" else time.perf_counter
    print(json.dumps({name: _least(work, clock) for name, work in _works(root).items()}))


def main() -> int:
    """Print a table, or in a child what was measured."""
    if len(sys.argv) > 1:
        root, kind, wanted = sys.argv[1:]
        _child(Path(root), kind, int(wanted))
        return 0
    there = len(os.sched_getaffinity(0))
    columns = [("processor", 1)] + [("measured", cores) for cores in _CORES if cores <= there]
    columns += [("simulated", cores) for cores in _CORES]
    found: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory(prefix="fsstore-cores-") as folder:
        _prepare(Path(folder))
        for kind, cores in columns:
            command = [sys.executable, "-m", "benchmarks.cores", folder, kind, str(cores)]
            found.append(json.loads(subprocess.run(command, check=True, capture_output=True).stdout))
    print("| ms | " + " | ".join(f"{kind}, {cores}" for kind, cores in columns) + " |")
    print("|---|" + "---|" * len(columns))
    for name in found[0]:
        print(f"| {name} | " + " | ".join(f"{times[name] * 1e3:.1f}" for times in found) + " |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
