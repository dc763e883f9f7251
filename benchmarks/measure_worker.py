"""How quick a worker is: what the simulation of jobs has to know of it, measured with real jobs.

python -m benchmarks.measure_worker benchmarks/profiles/worker.json

A bucket of moto stands in for the storage.  Measured are the codecs of real tasks, the writes of journals, the last
write of a job, the start of a process that opens a store, what the scheduler of dask.distributed takes for a task, and
whole tasks beside what `simulate_jobs.TaskModel` says of them when it is given what moto takes.
"""

from __future__ import annotations

import argparse
import asyncio
import operator
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np

import fsstore as ts
from benchmarks.distributions import Distribution, Profile
from benchmarks.jobs import make, shape_of, values
from benchmarks.measure_bucket import measure
from benchmarks.simulate_jobs import TaskModel
from benchmarks.space.bucket import bucket
from fsstore.job import array_copy, work
from fsstore.task import claim
from fsstore.task.runner import answered

CHUNK_BYTES = 4 * 4 * 512 * 512  # of the arrays of `jobs.make`
SCHEMAS = {  # all of zstd
    "larger chunks": {"chunks": (8, 512, 512)},
    "shards": {"zarr_format": 3, "chunks": (4, 128, 128), "shards": (16, 512, 512)},
    "other chunks": {"chunks": (16, 256, 256)},
}
_START = "import fsstore as ts; ts.open({spec!r}, read=True).result()"


@contextmanager
def timed(owner: Any, name: str) -> Iterator[list[tuple[float, Any]]]:
    """Yield a list that gets the seconds and the answer of each call of a coroutine function."""
    real, found = getattr(owner, name), []

    @wraps(real)
    async def call(*arguments: Any, **options: Any) -> Any:
        began = time.perf_counter()
        answer = await real(*arguments, **options)
        found.append((time.perf_counter() - began, answer))
        return answer

    setattr(owner, name, call)
    try:
        yield found
    finally:
        setattr(owner, name, real)


def jobs(rounds: int, megabytes: int) -> dict[str, list[float]]:
    """Run copies and rechunks on the bucket; return what was measured of them, by name."""
    found: dict[str, list[float]] = {name: [] for name in ("task", "bytes", "journal", "commit", "retries")}
    place = bucket()
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder) / "a", megabytes, 2)
        place.fill(Path(folder) / "a", "a")
        stored = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
    found["share"] = [stored / (4 * np.prod(shape_of(megabytes)))]
    for number in range(rounds):
        for name, schema in SCHEMAS.items():
            context = ts.Context()
            source = ts.open({"driver": "zarr", "kvstore": place.spec("a")}, read=True, context=context).result()
            target = ts.KvStore.open(place.spec(f"{name}{number}"), context=context).result()
            with (
                timed(work, "do") as tasks,
                timed(claim.Journal, "_write") as notes,
                timed(array_copy.ArrayCopy, "finish") as commits,
            ):
                report = ts.copy(source, target, schema=schema, max_memory="64MB", context=context).result()
            found["task"] += [done.seconds for _, done in tasks]
            found["bytes"] += [sum(done.answers) for _, done in tasks]
            found["journal"] += [seconds for seconds, _ in notes]
            found["commit"] += [seconds for seconds, _ in commits]
            found["retries"].append(report.retries)
            ts.delete(target).result()
    return found


def codecs(rounds: int) -> tuple[list[float], list[float]]:
    """Return bytes of a chunk that are decoded and encoded in a second of processor time, from and to memory."""
    data = np.stack([values((4, 512, 512), at) for at in range(4)])
    group = ts.open_group("memory://codecs/", mode="w", context=ts.Context()).result()
    store = group.create_array("a", shape=data.shape, dtype="f4", chunks=data.shape, codec="zstd").result()
    decoded, encoded = [], []
    for _ in range(rounds):
        began = time.process_time()
        store.write(data).commit.result()
        middle = time.process_time()
        store.read().result()
        encoded.append(data.nbytes / (middle - began))
        decoded.append(data.nbytes / (time.process_time() - middle))
    return decoded, encoded


def starts(rounds: int) -> list[float]:
    """Return the processor time that a process takes from its start until a store in the bucket is open."""
    command = [sys.executable, "-c", _START.format(spec={"driver": "zarr", "kvstore": bucket().spec("a")})]
    times = []
    for _ in range(rounds):
        before = _of_children()
        subprocess.run(command, check=True, env=os.environ)
        times.append(_of_children() - before)
    return times


def _of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def scheduling(count: int) -> list[float]:
    """Return the processor time of a task that does nothing, in the process of the client and of dask's scheduler.

    Where the scheduler is elsewhere the two work at once, and it is less.
    """
    import distributed

    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
    with (
        distributed.LocalCluster(**options) as cluster,
        distributed.Client(cluster) as client,
        client.get_executor() as executor,
    ):

        async def run() -> list[float]:
            room, used = asyncio.Semaphore(16), [time.process_time()]

            async def one(number: int) -> None:
                async with room:
                    await answered(executor, operator.neg, number)
                    used.append(time.process_time())

            await asyncio.gather(*map(one, range(count)))
            return used

        asyncio.run(run())  # warm
        used = asyncio.run(run())
    # of twenty answers together: they come in batches
    return list(np.diff(used[::20]) / 20)


def main() -> None:
    """Measure and write the profile."""
    parser = argparse.ArgumentParser(description="Measure workers for the simulation of jobs.")
    parser.add_argument("profile", help="the JSON file to write")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--megabytes", type=int, default=64)
    options = parser.parse_args()
    place, context = bucket(), ts.Context()
    here = measure(ts.KvStore.open(place.spec("here"), context=context).result(), context, 60, CHUNK_BYTES)
    found = jobs(options.rounds, options.megabytes)
    decoded, encoded = codecs(40)
    numbers = {
        "decoded_bytes_per_s": Distribution.of(decoded, "chunks of float32 read from memory (zstd), processor time"),
        "encoded_bytes_per_s": Distribution.of(encoded, "chunks of float32 written to memory (zstd), processor time"),
        "encoded_share": Distribution.of(found["share"], "array, by its bytes as stored and decoded"),
        "scheduler_s": Distribution.of(scheduling(2000), "times 20 tasks of dask, processor time of its client"),
        "start_s": Distribution.of(starts(10), "processes that import fsstore and open an array, processor time"),
        "journal_s": Distribution.of(found["journal"], "rounds of a journal's writes on moto"),
        "commit_s": Distribution.of(found["commit"], "last writes of jobs on moto"),
        "task_s": Distribution.of(found["task"], "tasks on moto, the first of each job short by design"),
        "task_retries": Distribution.of(found["retries"], "jobs, of which so many tasks were tried again"),
    }  # fmt: skip
    profile = Profile(f"workers with one thread, measured on {os.cpu_count()} cores", numbers)
    profile.save(options.profile)
    print(profile)
    # moto answers one request after the other, all of them on one interpreter
    model = TaskModel(Profile("moto", here), profile, np.random.default_rng(0), at_once=1)
    said = [
        model.box_s(max(1, round(nbytes / CHUNK_BYTES)), max(1, round(nbytes / CHUNK_BYTES)), nbytes)
        for nbytes in found["bytes"]
    ]
    print(f"tasks took {sum(found['task']):.1f} s, and the model says {sum(said):.1f} s")


if __name__ == "__main__":
    main()
