"""Jobs against other ways to move data: each contender in a process of its own, by turns, with its memory measured.

python -m benchmarks.jobs                    everything, of 256 MB
python -m benchmarks.jobs --megabytes 1000   of a gigabyte, as in the docs
python -m benchmarks.jobs copy rechunk       rows whose name contains one of the words
python -m benchmarks.jobs overhead           what a task costs that does nothing

JOBS_MEMORY is the limit of memory for rechunking.
RECHUNKER_PYTHON names the interpreter of an environment with rechunker, zarr 2, NumPy and fsspec.

A row is the median of wall and processor time of each contender, and the most memory that it had beyond what its
imports took.  Processor time is that of the process and its children, and tells more where the machine is busy.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

MEMORY = os.environ.get("JOBS_MEMORY", "256MB")


def shape_of(megabytes: int) -> tuple[int, int, int]:
    """Return a shape of float32 with about so many megabytes: time, and two dimensions of space."""
    return (max(16, megabytes * 250_000 // (512 * 512) // 16 * 16), 512, 512)


def values(shape: tuple[int, ...], at: int) -> Any:
    """Return a slab of a field that compresses like measured ones do."""
    y, x = np.mgrid[: shape[1], : shape[2]].astype("f4")
    noise = np.random.default_rng(at).integers(0, 8, shape[1:]).astype("f4")
    return np.round(np.sin(y / 50 + at / 10) * 100 + np.cos(x / 70) * 50) + noise / 8


def make(folder: Path, megabytes: int, version: int) -> None:
    """Write the source: time-major chunks of zarr v2 or v3, zstd."""
    import zarr
    from numcodecs import Zstd

    shape = shape_of(megabytes)
    options: dict[str, Any] = {"shape": shape, "chunks": (4, 512, 512), "dtype": "f4", "zarr_format": version}
    options["compressors"] = Zstd(level=3) if version == 2 else zarr.codecs.ZstdCodec(level=3)
    array = zarr.create_array(folder, **options)
    for begin in range(0, shape[0], 4):
        array[begin : begin + 4] = np.stack([values(shape, begin + each) for each in range(4)])


def make_files(folder: Path, count: int) -> None:
    """Write an array of small chunks in one directory."""
    import fsstore as ts

    group = ts.open_group(folder.parent / f"{folder.name}-group", mode="w", context=ts.Context({"file_io_sync": False}))
    array = group.result().create_array("x", shape=[count * 65536], dtype="u1", chunks=[65536], codec=None).result()
    array[:] = np.random.default_rng(0).integers(1, 255, count * 65536, dtype="u1")
    (folder.parent / f"{folder.name}-group/x").rename(folder)


def make_objects(endpoint: str, count: int) -> None:
    """Write an array of chunks of 64 KB into a bucket, and a small one beside it."""
    import fsstore as ts

    urllib.request.urlopen(urllib.request.Request(f"{endpoint}/bench", method="PUT")).close()
    for name, number in {"source": count, "source-small": 4}.items():
        spec = {"driver": "zarr3", "kvstore": s3_spec(f"{endpoint}|{name}", "obstore")}
        layout = ts.ChunkLayout(chunk_shape=[65536])
        codecs = [{"name": "bytes"}]
        array = ts.open(
            {**spec, "metadata": {"codecs": codecs}},
            create=True,
            dtype="uint8",
            shape=[number * 65536],
            chunk_layout=layout,
        ).result()
        array[:] = np.random.default_rng(0).integers(1, 255, number * 65536, dtype="u1")


@contextmanager
def served(kinds: set[int]) -> Iterator[str]:
    """Yield the endpoint of a moto server if objects are wanted, an empty text otherwise."""
    if 0 not in kinds:
        yield ""
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, "tests/servers/atomic_moto.py", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    endpoint = f"http://127.0.0.1:{port}"
    try:
        for _ in range(200):
            try:
                urllib.request.urlopen(f"{endpoint}/moto-api/", timeout=1).close()
                break
            except OSError:
                time.sleep(0.1)
        yield endpoint
    finally:
        server.terminate()
        server.wait()


def show_overhead(count: int = 2000) -> None:
    """Print what a task costs that does nothing: the runner, the journal and the executor."""
    import distributed

    def per_task(executor: Any) -> float:
        import asyncio
        import operator

        import fsstore as ts
        from fsstore.task.claim import Journal
        from fsstore.task.runner import Task, reporter_of, run_tasks

        async def run() -> float:
            journal = Journal(await ts.KvStore.open("memory://journal/"), "overhead")
            reporter = reporter_of(None, "overhead", count, 0)
            tasks = (Task((number,), operator.neg, (number,)) for number in range(count))
            began = time.perf_counter()
            await run_tasks(tasks, executor, reporter, lambda task, _: journal.note("box", task.numbers))
            await journal.settle()
            return (time.perf_counter() - began) / count

        return statistics.median(asyncio.run(run()) for _ in range(3))

    with ThreadPoolExecutor(2) as threads:
        print(f"overhead of a task with threads: {per_task(threads) * 1e3:.2f} ms")
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
        client.get_executor() as executor,
    ):
        print(f"overhead of a task with distributed: {per_task(executor) * 1e3:.2f} ms")


# --- contenders: each is run in a process of its own, with a source, a target and the size


def copy_fsstore(source: str, target: str) -> None:
    import fsstore as ts

    ts.copy(source, target).result()


def copy_fsstore_unsynced(source: str, target: str) -> None:
    import fsstore as ts

    ts.copy(source, target, context=ts.Context({"file_io_sync": False})).result()


def copy_cp(source: str, target: str) -> None:
    subprocess.run(["cp", "-r", source, target], check=True)


def s3_store(place: str) -> Any:
    """Return a store of obstore for a place that names an endpoint and a prefix."""
    from obstore.store import S3Store

    endpoint, _, prefix = place.partition("|")
    return S3Store(
        "bench", prefix=prefix, endpoint=endpoint, region="us-east-1", access_key_id="a", secret_access_key="b",
        client_options={"allow_http": True},
    )  # fmt: skip


def s3_spec(place: str, engine: str) -> dict[str, Any]:
    endpoint, _, prefix = place.partition("|")
    options = {"key": "a", "secret": "b"}
    return {
        "driver": "s3", "bucket": "bench", "endpoint": endpoint, "aws_region": "us-east-1", "path": f"{prefix}/",
        "engine": engine, "storage_options": options,
    }  # fmt: skip


def copy_s3_fsstore(source: str, target: str) -> None:
    import fsstore as ts

    array = ts.open({"driver": "zarr3", "kvstore": s3_spec(source, "obstore")}, read=True).result()
    ts.copy(array, ts.KvStore.open(s3_spec(target, "obstore")).result()).result()


def copy_s3_fsstore_s3fs(source: str, target: str) -> None:
    import fsstore as ts

    array = ts.open({"driver": "zarr3", "kvstore": s3_spec(source, "fsspec")}, read=True).result()
    ts.copy(array, ts.KvStore.open(s3_spec(target, "fsspec")).result()).result()


def copy_s3_obstore(source: str, target: str) -> None:
    """Have S3 copy the objects, as many at once as are quickest."""
    import asyncio

    import obstore

    store, prefix = s3_store(source.partition("|")[0] + "|"), source.partition("|")[2]
    into = target.partition("|")[2]
    keys = [each["path"] for page in obstore.list(store, prefix) for each in page]

    async def run() -> None:
        room = asyncio.Semaphore(32)

        async def one(key: str) -> None:
            async with room:
                await obstore.copy_async(store, key, into + key[len(prefix) :])

        await asyncio.gather(*map(one, keys))

    asyncio.run(run())


def copy_cp_synced(source: str, target: str) -> None:
    copy_cp(source, target)
    subprocess.run(["sync", "-f", target], check=True)


def convert_fsstore(source: str, target: str) -> None:
    import fsstore as ts

    schema = {"zarr_format": 3, "chunks": (4, 128, 128), "shards": (16, 512, 512)}
    ts.copy(source, target, schema=schema, context=ts.Context({"file_io_sync": False})).result()


def convert_dask(source: str, target: str) -> None:
    import dask.array as da
    import zarr

    array = da.from_zarr(source).rechunk((16, 512, 512))
    made = zarr.create_array(
        target, shape=array.shape, dtype=array.dtype, chunks=(4, 128, 128), shards=(16, 512, 512),
        compressors=zarr.codecs.ZstdCodec(level=3),
    )  # fmt: skip
    array.to_zarr(made)


def convert_dask_zarrs(source: str, target: str) -> None:
    import zarr
    import zarrs

    _ = zarrs
    zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"})
    convert_dask(source, target)


def rechunk_fsstore(source: str, target: str) -> None:
    import fsstore as ts

    schema = {"zarr_format": 3, "chunks": (10**6, 32, 32)}
    array = ts.open(f"file://{source}/").result()
    schema["chunks"] = (array.shape[0], 32, 32)
    ts.copy(array, target, schema=schema, max_memory=MEMORY, context=ts.Context({"file_io_sync": False})).result()


def rechunk_dask(source: str, target: str) -> None:
    import dask
    import dask.array as da
    import distributed
    import zarr

    # with 256 MB its worker is paused for good before it has begun
    options = {"n_workers": 1, "threads_per_worker": 2, "processes": False, "dashboard_address": None}
    with (
        dask.config.set({"array.rechunk.method": "p2p", "distributed.comm.timeouts.connect": "120s"}),
        distributed.LocalCluster(memory_limit="2GB", **options) as cluster,
        distributed.Client(cluster, timeout=120),
    ):
        array = da.from_zarr(source)
        made = zarr.create_array(
            target, shape=array.shape, dtype=array.dtype, chunks=(array.shape[0], 32, 32),
            compressors=zarr.codecs.ZstdCodec(level=3),
        )  # fmt: skip
        array.rechunk((array.shape[0], 32, 32)).to_zarr(made)


def rechunk_rechunker(source: str, target: str) -> None:
    import zarr
    from numcodecs import Zstd
    from rechunker import rechunk

    array = zarr.open(source, mode="r")
    plan = rechunk(
        array, (array.shape[0], 32, 32), MEMORY, target, target_options={"compressor": Zstd(level=3)},
        temp_store=f"{target}-temp", executor="python",
    )  # fmt: skip
    plan.execute()
    shutil.rmtree(f"{target}-temp", ignore_errors=True)


def rechunk_fsstore_v2(source: str, target: str) -> None:
    import fsstore as ts

    array = ts.open(f"file://{source}/").result()
    schema = {"zarr_format": 2, "chunks": (array.shape[0], 32, 32)}
    ts.copy(array, target, schema=schema, max_memory=MEMORY, context=ts.Context({"file_io_sync": False})).result()


def read_fsstore(source: str, _target: str) -> None:
    import fsstore as ts

    array = ts.open(f"file://{source}/").result()
    for begin in range(0, array.shape[0], 64):
        array[begin : min(begin + 64, array.shape[0])].read().result()


def verify_fsstore(source: str, _target: str) -> None:
    import fsstore as ts

    assert ts.verify(source, level="decode").result()


ROWS: dict[str, tuple[int, tuple[Callable[[str, str], None], ...]]] = {
    "copy of the same layout": (3, (copy_fsstore_unsynced, copy_cp)),
    "copy of the same layout, on disk": (3, (copy_fsstore, copy_cp_synced)),
    "zstd v2 to sharded v3": (2, (convert_fsstore, convert_dask, convert_dask_zarrs)),
    "copy of 4000 files of 64 KB": (1, (copy_fsstore_unsynced, copy_cp)),
    "copy of 4000 files of 64 KB, on disk": (1, (copy_fsstore, copy_cp_synced)),
    "copy inside a bucket": (0, (copy_s3_fsstore, copy_s3_fsstore_s3fs, copy_s3_obstore)),
    f"rechunk time to space within {MEMORY}": (3, (rechunk_fsstore, rechunk_dask)),
    f"rechunk zarr v2 within {MEMORY}": (2, (rechunk_fsstore_v2, rechunk_rechunker)),
    "check": (3, (verify_fsstore, read_fsstore)),
}


@contextmanager
def sampled() -> Iterator[dict[str, float]]:
    """Yield what is filled in when the block ends: wall and processor time, and memory beyond that of the imports."""
    before = _resident()
    found = {"wall": 0.0, "cpu": 0.0, "megabytes": 0.0}
    most, over = [before], threading.Event()

    def watch() -> None:
        while not over.wait(0.005):
            most[0] = max(most[0], _resident())

    watcher = threading.Thread(target=watch)
    watcher.start()
    began, cpu = time.perf_counter(), _cpu()
    try:
        yield found
    finally:
        found.update(wall=time.perf_counter() - began, cpu=_cpu() - cpu)
        over.set()
        watcher.join()
        found["megabytes"] = (most[0] - before) / 1e6


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _cpu() -> float:
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in both)


def contend(name: str, source: str, target: str) -> None:
    """Run a contender in this process, warm, and print what it took as JSON."""
    if "rechunker" not in name:
        import fsstore  # noqa: F401  # what imports take is not counted

    contender = globals()[name]
    contender(source + "-small", target + "-warm")
    if "|" not in target:
        shutil.rmtree(target + "-warm", ignore_errors=True)
    with sampled() as found:
        contender(source, target)
    print(json.dumps(found))


def measured(name: str, source: Path | str, folder: Path) -> dict[str, float]:
    """Return what a contender took in a process of its own."""
    target = folder / "target" if isinstance(source, Path) else f"{source.partition('|')[0]}|{time.time_ns()}"
    python = os.environ.get("RECHUNKER_PYTHON", sys.executable) if "rechunker" in name else sys.executable
    done = subprocess.run(
        [python, "-m", "benchmarks.jobs", "--contend", name, str(source), str(target)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    shutil.rmtree(folder / "target", ignore_errors=True)
    if done.returncode:
        raise RuntimeError(f"{name}: {done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.jobs")
    parser.add_argument("words", nargs="*")
    parser.add_argument("--megabytes", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--contend", nargs=3)
    options = parser.parse_args()
    if options.contend:
        contend(*options.contend)
        return
    print("| row | contender | wall s | processor s | memory MB | ratio wall | ratio processor |")
    print("|---|---|---|---|---|---|---|")
    if not options.words or "overhead" in options.words:
        show_overhead()
    rows = {row: found for row, found in ROWS.items() if not options.words or any(w in row for w in options.words)}
    kinds = {kind for kind, _ in rows.values()}
    with tempfile.TemporaryDirectory() as name, served(kinds) as endpoint:
        folder = Path(name)
        for version in {2, 3} & kinds:
            make(folder / f"v{version}", options.megabytes, version)
            make(folder / f"v{version}-small", 8, version)
        if 1 in kinds:
            make_files(folder / "v1", 4000)
            make_files(folder / "v1-small", 10)
        if endpoint:
            make_objects(endpoint, 1000)
        for row, (version, contenders) in rows.items():
            source = folder / f"v{version}" if version else f"{endpoint}|source"
            times: dict[str, list[dict[str, float]]] = {each.__name__: [] for each in contenders}
            for number in range(options.rounds):
                for each in contenders[number % len(contenders) :] + contenders[: number % len(contenders)]:
                    times[each.__name__].append(measured(each.__name__, source, folder))
            show(row, times)


def show(row: str, times: dict[str, list[dict[str, float]]]) -> None:
    """Print the lines of a row; ratios are ours by theirs."""
    medians = {
        name: {key: statistics.median(one[key] for one in found) for key in found[0]} for name, found in times.items()
    }
    ours = next(iter(medians.values()))
    for name, found in medians.items():
        ratios = [f"{ours[key] / found[key]:.2f}" if found is not ours else "" for key in ("wall", "cpu")]
        print(
            f"| {row} | {name} | {found['wall']:.2f} | {found['cpu']:.2f} | {found['megabytes']:.0f}"
            f" | {ratios[0]} | {ratios[1]} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
