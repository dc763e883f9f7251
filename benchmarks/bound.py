"""How near whole reads are to their bound: reading the files, the decoder of each chunk, and one copy, on all cores.

The bound is made of the libraries alone: as many threads as cores read a file, call the decompressor and copy what it
gave to its place, with nothing planned, checked or looked up.

python -m benchmarks.bound
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.workloads_read import BLOSC, BYTES, GZIP, ZSTD, prepare

_SIDE, _COUNT, _ROUNDS = 64, 4, 9
_SHAPE = (_SIDE * _COUNT,) * 3


def _zstd(data: bytes, size: int) -> Any:
    import zstandard

    return zstandard.ZstdDecompressor().decompress(data, max_output_size=size)


def _gzip(data: bytes, size: int) -> Any:
    import imagecodecs

    return imagecodecs.gzip_decode(data, out=size)


def _blosc(data: bytes, size: int) -> Any:
    from numcodecs import blosc

    return blosc.decompress(data)


Decoder = Callable[[bytes, int], Any]
CODECS: dict[str, tuple[list[Any], Decoder]] = {
    "raw": ([BYTES], lambda data, size: data),
    "blosc, lz4": ([BYTES, BLOSC], _blosc),
    "zstd": ([BYTES, ZSTD], _zstd),
    "gzip": ([BYTES, GZIP], _gzip),
}


def _alone(folder: Path, decode: Decoder, dtype: Any) -> Callable[[], Any]:
    """Return what reads, decodes and copies all chunks of a folder."""
    numbers = [
        (x, y, z, folder / "c" / str(x) / str(y) / str(z))
        for x in range(_COUNT)
        for y in range(_COUNT)
        for z in range(_COUNT)
    ]
    size = _SIDE**3 * dtype.itemsize
    threads = ThreadPoolExecutor(os.cpu_count())

    def read() -> Any:
        out = np.empty(_SHAPE, dtype)
        blocks = out.reshape((_COUNT, _SIDE) * 3).transpose(0, 2, 4, 1, 3, 5)

        def place(chunk: tuple[int, int, int, Path]) -> None:
            x, y, z, path = chunk
            blocks[x, y, z] = np.frombuffer(decode(path.read_bytes(), size), dtype).reshape((_SIDE,) * 3)

        list(threads.map(place, numbers))
        return out

    return read


def main() -> int:
    """Print a line for each codec."""
    import fsstore

    print("| codec | read, ms | bound, ms | ratio | processor |\n|---|---|---|---|---|")
    for name, (codecs, decode) in CODECS.items():
        with tempfile.TemporaryDirectory(prefix="fsstore-bound-") as folder:
            spec = prepare(Path(folder), _SHAPE, (_SIDE,) * 3, codecs)
            array = fsstore.open(spec).result()
            ours = lambda array=array: array.read().result()  # noqa: E731  two contenders of one kind
            theirs = _alone(Path(spec["kvstore"]["path"]), decode, array.dtype.numpy_dtype)
            if not np.array_equal(ours(), theirs()):
                raise AssertionError(f"the results of {name} differ")
            times: list[list[float]] = [[], [], [], []]
            for _ in range(_ROUNDS):
                for place, work in enumerate((ours, theirs)):
                    wall, used = time.perf_counter(), time.process_time()
                    work()
                    times[place].append(time.perf_counter() - wall)
                    times[place + 2].append(time.process_time() - used)
        read, bound, used, least = map(statistics.median, times)
        shown = f"{read * 1e3:.1f} | {bound * 1e3:.1f} | {read / bound:.2f} | {used / least:.2f}"
        print(f"| {name} | {shown} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
