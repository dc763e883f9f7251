"""What opening large reference sets costs, in fresh interpreters: seconds, and peak memory beyond the imports.

A million references in JSON and in parquet are opened, and one chunk is read; fsspec's `ReferenceFileSystem` does the
same.  Interpreters take turns; the smallest time and memory of each count.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

COUNT = 1_000_000
RECORD = 10_000

_CHUNK = 777_777
_OURS = """
import fsstore
def run(url):
    store = fsstore.KvStore.open(url + "|reference:").result()
    return bytes(store["x/{chunk}"])
import fsstore.kvstore.reference.driver, numpy
"""
_FSSPEC = """
import fsspec, fsspec.implementations.reference, ujson
def run(url):
    files = fsspec.filesystem("reference", fo=url, remote_protocol="file", skip_instance_cache=True)
    return files.cat_file("x/{chunk}")
"""
_MEASURE = """
import re, sys, time
def memory(name):
    return int(re.search(name + r":\\s+(\\d+)", open("/proc/self/status").read())[1])
url = sys.argv[1]
before = memory("VmRSS")
wall, cpu = time.perf_counter(), time.process_time()
value = run(url)
wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
print(len(value), wall, cpu, (memory("VmHWM") - before) / 1024)
"""


def write_sets(folder: Path) -> None:
    """Write the sets, and the file that the chunk to be read lies in."""
    (folder / "t").write_bytes(bytes(range(250)) * 4)
    zarray = {
        "zarr_format": 2,
        "shape": [COUNT],
        "chunks": [1],
        "dtype": "|u1",
        "order": "C",
        "compressor": None,
        "filters": None,
        "fill_value": 0,
    }
    with (folder / "refs.json").open("w", encoding="utf-8") as file:
        file.write('{"version": 1, "refs": {".zgroup": "{\\"zarr_format\\": 2}", "x/.zarray": ')
        file.write(json.dumps(json.dumps(zarray)))
        file.writelines(_lines(folder))
        file.write("}}")
    from fsstore import references

    references.open(folder / "refs.json").save(folder / "refs.parq", record_size=RECORD)


def _lines(folder: Path) -> Iterator[str]:
    for number in range(COUNT):
        yield f', "x/{number}": ["{folder}/t", {number % 900}, {50 + number % 50}]'


def measure(code: str, url: str) -> tuple[float, float, float]:
    """Return seconds, processor seconds and MiB of one fresh interpreter."""
    program = code.replace("{chunk}", str(_CHUNK)) + _MEASURE
    done = subprocess.run([sys.executable, "-c", program, url], check=True, capture_output=True, text=True)
    size, wall, cpu, memory = map(float, done.stdout.split())
    if size != 50 + _CHUNK % 50:
        raise RuntimeError(f"{url}: {size:.0f} bytes were read")
    return wall, cpu, memory


def main(rounds: int = 3) -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory(prefix="fsstore-bench-") as name:
        folder = Path(name)
        write_sets(folder)
        for form in ("refs.json", "refs.parq"):
            ours, theirs = [], []
            for _ in range(rounds):
                ours.append(measure(_OURS, f"file://{folder}/{form}"))
                theirs.append(measure(_FSSPEC, f"{folder}/{form}"))
            best = [[min(column) for column in zip(*runs, strict=True)] for runs in (ours, theirs)]
            for label, (wall, cpu, memory) in zip(("fsstore", "fsspec"), best, strict=True):
                print(
                    f"{form:10}  {label:8} {wall * 1e3:9.1f} ms wall {cpu * 1e3:9.1f} ms cpu {memory:8.1f} MiB"
                )


if __name__ == "__main__":
    main()
