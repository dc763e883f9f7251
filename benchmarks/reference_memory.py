"""What opening large reference sets costs, in fresh interpreters: seconds, and peak memory beyond the imports.

A million references in JSON and in parquet are opened, and one chunk is read; fsspec's `ReferenceFileSystem` and
VirtualiZarr's parsers do the same, and icechunk over a repository with the same virtual references.  Interpreters take
turns; the smallest time and memory of each count.  VirtualiZarr, which needs half a minute, has one turn.
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
import fsstore.reference.driver, numpy
"""
_FSSPEC = """
import fsspec, fsspec.implementations.reference, ujson
def run(url):
    files = fsspec.filesystem("reference", fo=url, remote_protocol="file", skip_instance_cache=True)
    return files.cat_file("x/{chunk}")
"""
_VIRTUALIZARR = """
import asyncio
from obspec_utils.registry import ObjectStoreRegistry
from obstore.store import LocalStore
from virtualizarr.parsers import KerchunkJSONParser, KerchunkParquetParser
from zarr.core.buffer import default_buffer_prototype
def run(url):
    parser = KerchunkJSONParser() if url.endswith(".json") else KerchunkParquetParser()
    store = parser("file://" + url, ObjectStoreRegistry({"file://": LocalStore()}))
    return asyncio.run(store.get("x/c/{chunk}", default_buffer_prototype())).to_bytes()
"""
_ICECHUNK = """
import asyncio
import icechunk
from zarr.core.buffer import default_buffer_prototype
def run(url):
    granted = icechunk.containers_credentials({"file://" + url.rpartition("/")[0] + "/": None})
    storage = icechunk.local_filesystem_storage(url)
    repository = icechunk.Repository.open(storage, authorize_virtual_chunk_access=granted)
    store = repository.readonly_session("main").store
    return asyncio.run(store.get("x/c/{chunk}", default_buffer_prototype())).to_bytes()
"""
_CONTENDERS = {
    "refs.json": {"fsstore": _OURS, "fsspec": _FSSPEC, "VirtualiZarr": _VIRTUALIZARR},
    "refs.parq": {"fsstore": _OURS, "fsspec": _FSSPEC, "VirtualiZarr": _VIRTUALIZARR},
    "refs.icechunk": {"icechunk": _ICECHUNK},
}
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
        file.write(', "x/.zattrs": "{\\"_ARRAY_DIMENSIONS\\": [\\"x\\"]}"')
        file.writelines(_lines(folder))
        file.write("}}")
    from fsstore import references

    references.open(folder / "refs.json").save(folder / "refs.parq", record_size=RECORD)
    _write_icechunk(folder)


def _write_icechunk(folder: Path) -> None:
    import icechunk as ice
    import zarr

    place = f"file://{folder}/"
    config = ice.RepositoryConfig.default()
    config.set_virtual_chunk_container(ice.VirtualChunkContainer(place, ice.local_filesystem_store(str(folder))))
    repository = ice.Repository.create(ice.local_filesystem_storage(str(folder / "refs.icechunk")), config)
    repository.save_config()
    session = repository.writable_session("main")
    zarr.create_array(session.store, name="x", shape=(COUNT,), chunks=(1,), dtype="u1", compressors=None)
    chunks = [ice.VirtualChunkSpec([number], f"{place}t", number % 900, 50 + number % 50) for number in range(COUNT)]
    session.store.set_virtual_refs("x", chunks)
    session.commit("references")


def _lines(folder: Path) -> Iterator[str]:
    for number in range(COUNT):
        yield f', "x/{number}": ["{folder}/t", {number % 900}, {50 + number % 50}]'


def measure(code: str, url: str) -> tuple[float, float, float]:
    """Return seconds, processor seconds and MiB of one fresh interpreter."""
    program = code.replace("{chunk}", str(_CHUNK)) + _MEASURE
    done = subprocess.run([sys.executable, "-c", program, url], check=True, capture_output=True, text=True)
    size, wall, cpu, memory = map(float, done.stdout.splitlines()[-1].split())  # icechunk logs above
    if size != 50 + _CHUNK % 50:
        raise RuntimeError(f"{url}: {size:.0f} bytes were read")
    return wall, cpu, memory


def main(rounds: int = 3) -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory(prefix="fsstore-bench-") as name:
        folder = Path(name)
        write_sets(folder)
        for form, contenders in _CONTENDERS.items():
            runs: dict[str, list[tuple[float, float, float]]] = {label: [] for label in contenders}
            for turn in range(rounds):
                for label, code in contenders.items():
                    if turn == 0 or label != "VirtualiZarr":
                        url = f"file://{folder}/{form}" if code is _OURS else f"{folder}/{form}"
                        runs[label].append(measure(code, url))
            for label, measured in runs.items():
                wall, cpu, memory = (min(column) for column in zip(*measured, strict=True))
                print(f"{form:14}{label:14}{wall * 1e3:9.1f} ms wall{cpu * 1e3:10.1f} ms cpu{memory:9.1f} MiB")


if __name__ == "__main__":
    main()
