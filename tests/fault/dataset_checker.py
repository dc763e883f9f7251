"""Random programs of datasets, checked against NumPy: `dataset_checker.py PROGRAMS FIRST STEPS [ENDPOINT BUCKET]`.

A program makes a dataset at a place and changes it in some steps, STEPS at most: it grows, regions are written by several writers at
once, variables are added or written over, all of it is replaced.  Blocks of dask lie anywhere to the chunks.  Some steps
are done by a child that is killed at a random change of a file or request of a bucket, and are then called again; beside
some a reader looks at the dataset all the time.  After each step every element is compared.
"""

from __future__ import annotations

import gc
import os
import random
import signal
import sys
import tempfile
import threading
import traceback
import warnings
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pandas as pd
import xarray as xr

sys.path.insert(0, str(Path(__file__).parent))
from job_bucket import FaultyBucket
from job_faults import Fault, Injected

import fsstore as ts
from fsstore.errors import FailedPreconditionError, NotFoundError
from fsstore.interop.xarray import FsstoreBackend

warnings.simplefilter("ignore")
TIMES = pd.date_range("2000-03-01", periods=400, freq="D")
PLACES = ("directory", "directory", "directory", "bucket", "memory", "zip", "database")
KILLED = ("kill", "kill after")
COUNTS: Counter[str] = Counter()
POOL = ThreadPoolExecutor(2)


def assert_same(found: xr.Dataset, expected: xr.Dataset) -> None:
    """Fail unless all variables are equal."""
    assert found.sizes == expected.sizes
    for name in expected.variables:
        xr.testing.assert_equal(found[name], expected[name])


@dataclass
class Program:
    """A dataset as it should be, and the place at which it is."""

    seed: int
    kind: str
    url: str
    folder: Path
    bucket: FaultyBucket | None
    options: dict[str, Any]
    most: int
    """How many steps it has at most."""

    def __post_init__(self) -> None:
        self.dice = random.Random(self.seed)
        self.values = np.random.default_rng(self.seed)
        self.context = ts.Context({"file_io_sync": False})
        self.expected = xr.Dataset()
        self.log: list[str] = []

    # --- datasets

    def made(self) -> xr.Dataset:
        """Return a new dataset with random variables."""
        dice, sizes = self.dice, {"time": self.dice.randint(1, 9)}
        sizes |= {name: dice.randint(1, 9) for name in ("y", "x")[: dice.randint(0, 2)]}
        self.first = dice.randint(0, 20)
        coordinates: dict[str, Any] = {"time": TIMES[self.first : self.first + sizes["time"]]}
        coordinates |= {name: np.arange(size) * 2.0 for name, size in sizes.items() if name != "time"}
        variables = {}
        self.packed = {}
        for name in ("a", "b", "c")[: dice.randint(1, 3)]:
            dims = ("time", *[each for each in sizes if each != "time" and dice.random() < 0.7])
            if dice.random() < 0.3:
                dims = dims[::-1]
            kind = dice.choice(["f4", "f8", "i4", "i2", "u1", "packed", "M8[ns]"])
            self.packed[name] = kind == "packed"
            dtype = "f8" if kind == "packed" else kind
            variables[name] = (dims, self.drawn(tuple(sizes[each] for each in dims), dtype))
        return xr.Dataset(variables, coordinates, {"made": self.seed})

    def drawn(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """Return values that every encoding keeps."""
        whole = self.values.integers(1, 100, shape)
        if np.dtype(dtype).kind == "M":
            return TIMES.to_numpy()[whole].astype(dtype)
        return (whole / 4 if np.dtype(dtype).kind == "f" else whole).astype(dtype)

    def renewed(self, dataset: xr.Dataset) -> xr.Dataset:
        """Return a dataset of the same shape with other values."""
        data = {
            name: (each.dims, self.drawn(each.shape, each.dtype), each.attrs)
            for name, each in dataset.data_vars.items()
        }
        return dataset.assign(data)

    def blocks(self, dataset: xr.Dataset) -> xr.Dataset:
        """Return a dataset of dask with blocks of random sizes, or the same."""
        if self.dice.random() < 0.25:
            return dataset
        chunks = {}
        for name, size in dataset.sizes.items():
            cuts = sorted(self.dice.sample(range(1, size), min(size - 1, self.dice.randint(0, 3))))
            chunks[name] = tuple(np.diff([0, *cuts, size]).tolist())
        return dataset.chunk({name: sizes for name, sizes in chunks.items() if sum(sizes)})

    def encoding(self, dataset: xr.Dataset) -> dict[str, Any]:
        """Return encodings with random chunks, shards and packing."""
        found: dict[str, Any] = {}
        for name, each in dataset.data_vars.items():
            one: dict[str, Any] = {}
            if self.dice.random() < 0.8:
                chunks = tuple(self.dice.randint(1, max(1, size)) for size in each.shape)
                one["chunks"] = chunks
                if self.zarr_format == 3 and self.dice.random() < 0.3:
                    one["shards"] = tuple(side * self.dice.randint(1, 3) for side in chunks)
            if self.packed.get(name):
                one |= {"dtype": "i2", "scale_factor": 0.25, "add_offset": 1.0, "_FillValue": -999}
            if each.dtype.kind == "M":
                one |= {"units": "days since 1999-01-01", "dtype": "i4"}
            found[name] = one
        found["time"] = {"units": "hours since 1990-01-01", "dtype": "i8", "chunks": (self.dice.randint(1, 20),)}
        return found

    # --- doing

    def write(self, dataset: xr.Dataset, **options: Any) -> Any:
        """Write to the place."""
        memory = self.dice.choice([400, 20_000, "512MB"])
        kind = self.dice.choice(["synchronous", "threads"])
        with dask.config.set(scheduler=kind, pool=POOL):
            return ts.write_dataset(
                dataset, self.url, max_memory=memory, context=self.context, **self.options, **options
            )

    def read(self) -> xr.Dataset:
        """Return what is at the place."""
        return xr.open_dataset(
            self.url, engine=FsstoreBackend, context=self.context, cache=False, **self.options
        ).load()

    def check(self, what: str) -> None:
        """Fail unless the dataset is what it should be."""
        found = self.read()
        assert_same(found, self.expected)
        assert set(found.variables) == set(self.expected.variables), what
        for name, each in found.data_vars.items():
            assert each.dims == self.expected[name].dims

    def step(self, dataset: xr.Dataset, after: xr.Dataset, **options: Any) -> None:
        """Write, perhaps killed before or beside a reader; afterwards all is as it should be."""
        before, lazy = self.expected, self.blocks(dataset)
        self.log.append(f"{options} {dict(lazy.chunksizes)}")
        can_kill = (
            self.kind in ("directory", "zip", "database", "bucket") and "DATASETS_WITHOUT_KILLS" not in os.environ
        )
        if can_kill and self.dice.random() < 0.35:
            self.killed(lazy, before, after, options)
        watched = self.dice.random() < 0.25 and "mode" not in options
        stop, wrong = threading.Event(), []
        watcher = threading.Thread(target=self.watch, args=(before, after, stop, wrong))
        if watched:
            COUNTS["read beside"] += 1
            watcher.start()
        try:
            self.write(lazy, **options)
        except FailedPreconditionError as error:  # the child had ended
            if "are stored already" not in str(error) or not self.is_at(after):
                raise
        finally:
            stop.set()
            if watched:
                watcher.join()
        assert not wrong, wrong[0]
        self.expected = after
        self.check(str(options))

    def is_at(self, state: xr.Dataset) -> bool:
        """Whether a dataset is what is at the place."""
        found = self.read()
        return found.sizes == state.sizes and all(found[name].equals(state[name]) for name in state.variables)

    def killed(self, dataset: xr.Dataset, before: xr.Dataset, after: xr.Dataset, options: Any) -> None:
        """Have a child do it, and kill it on the way; then the old state or the new one is there."""
        fault = Fault(self.dice.choice(KILLED), int(self.dice.expovariate(1 / 25)) + 1)
        if self.bucket is not None:
            self.bucket.aim(fault)
        child = os.fork()
        if not child:
            self.be_killed(dataset, fault, options)
        if self.bucket is not None:
            self.bucket.befall(child)
        _, status = os.waitpid(child, 0)
        if self.bucket is not None:
            self.bucket.aim(None)
        ended = os.waitstatus_to_exitcode(status)
        assert ended in (0, -signal.SIGKILL), ended
        COUNTS["killed" if ended else "ended before"] += 1
        self.log.append(f"{fault} {ended}")
        if not ended:
            return
        if "region" in options or options.get("mode") == "a":
            self.compare(self.fresh(), before, after)
            return
        if options.get("mode") == "w":
            self.check_replaced(before, after)
            return
        found = self.fresh()
        states = [each for each in (before, after) if each.sizes.get("time") == found.sizes["time"]]
        self.compare(found, states[-1], states[-1])

    def check_replaced(self, before: xr.Dataset, after: xr.Dataset) -> None:
        """Fail unless the old dataset is there or the new one; in a bucket, a part of the variables of one."""
        try:
            found = self.fresh()
        except NotFoundError:
            assert self.bucket is not None
            COUNTS["between"] += 1
            return
        for state in (before, after):
            names = set(found.variables) & set(state.variables) if self.bucket else set(state.variables)
            values, wanted = found.variables, state.variables  # coordinates may be still to come
            if names == set(values) and all(values[name].equals(wanted[name]) for name in names):
                return
        raise AssertionError(f"neither the old nor the new: {found}")

    def fresh(self) -> xr.Dataset:
        """Return what another process would find now, which does not know what this one has kept."""
        self.context = ts.Context({"file_io_sync": False})
        return self.read()

    def be_killed(self, dataset: xr.Dataset, fault: Fault, options: Any) -> None:
        """Write in this process, which is a child, until its end."""
        code = 0
        try:
            if self.bucket is None:
                Injected(fault, str(self.folder), lambda: None).install()
            self.context = ts.Context({"file_io_sync": False})
            with dask.config.set(scheduler="synchronous"):
                ts.write_dataset(dataset, self.url, context=self.context, **self.options, **options)
        except BaseException:
            traceback.print_exc()
            code = 3
        finally:
            sys.stderr.flush()
            os._exit(code)

    def watch(self, before: xr.Dataset, after: xr.Dataset, stop: threading.Event, wrong: list[str]) -> None:
        """Read until told to stop; every element is as it was or as it will be."""
        while not stop.wait(0.01):
            try:
                self.compare(self.read(), before, after)
            except NotFoundError:
                pass  # before the first step
            except Exception:
                wrong.append(traceback.format_exc())
                return

    def compare(self, found: xr.Dataset, before: xr.Dataset, after: xr.Dataset) -> None:
        """Fail unless each element is the one before or the one after."""
        assert found.sizes["time"] in (before.sizes.get("time"), after.sizes["time"]), found.sizes
        for name, each in found.data_vars.items():
            states = [
                state[name].transpose(*each.dims)[
                    each.dims.index("time") * (slice(None),) + (slice(0, found.sizes["time"]),)
                ]
                for state in (before, after)
                if name in state
            ]
            fits = [each.to_numpy() == state.to_numpy() for state in states if state.shape == each.shape]
            assert fits, (name, each.shape)
            assert np.logical_or.reduce(fits).all(), f"{name}: {each.to_numpy()} of {[s.to_numpy() for s in states]}"

    # --- steps

    def run(self) -> None:
        """Run the program."""
        self.zarr_format = self.dice.choice([2, 3])
        dataset = self.made()
        how = {"encoding": self.encoding(dataset), "schema": {"zarr_format": self.zarr_format}}
        self.write(self.blocks(dataset), append="time", **how)
        self.expected = dataset
        self.check("made")
        steps = [self.append, self.append, self.region, self.regions, self.overlap, self.over, self.replace]
        for _ in range(self.dice.randint(1, self.most)):
            step = self.dice.choice(steps)
            COUNTS[step.__name__] += 1
            step()
        self.others()

    def more(self, back: int = 0) -> xr.Dataset:
        """Return days that follow, beginning some days before the end."""
        begin = self.first + self.expected.sizes["time"] - back
        count = self.dice.randint(1, 7) + back
        template = self.expected.isel(time=[0] * count).assign_coords(time=TIMES[begin : begin + count])
        return self.renewed(template)

    def append(self) -> None:
        """Append days."""
        new = self.more()
        self.step(new, xr.concat([self.expected, new], "time"), append="time")

    def overlap(self) -> None:
        """Append days of which some are stored."""
        back = self.dice.randint(1, self.expected.sizes["time"])
        new, kept = self.more(back), self.expected.sizes["time"] - back
        if self.dice.random() < 0.5:
            after = xr.concat([self.expected, new.isel(time=slice(back, None))], "time")
            self.step(new, after, append="time", overlap="skip")
            return
        self.expected = self.expected.copy()
        after = xr.concat([self.expected.isel(time=slice(0, kept)), new], "time")
        self.write(self.blocks(new), append="time", overlap="replace")
        self.expected = after
        self.check("replaced")

    def part(self, begin: int, end: int) -> xr.Dataset:
        """Return some days of what is stored with other values."""
        return self.renewed(self.expected.isel(time=slice(begin, end)))

    def with_part(self, state: xr.Dataset, part: xr.Dataset, begin: int, end: int) -> xr.Dataset:
        pieces = [state.isel(time=slice(0, begin)), part, state.isel(time=slice(end, None))]
        return xr.concat([each for each in pieces if each.sizes["time"]], "time")

    def region(self) -> None:
        """Write a region."""
        size = self.expected.sizes["time"]
        begin = self.dice.randrange(size)
        end = self.dice.randint(begin + 1, size)
        part = self.part(begin, end)
        region = self.dice.choice(["auto", {"time": slice(begin, end)}])
        self.step(part, self.with_part(self.expected, part, begin, end), region=region)

    def regions(self) -> None:
        """Write all of it by several writers at once, whose regions share chunks; while somebody appends, perhaps."""
        size = self.expected.sizes["time"]
        cuts = sorted(self.dice.sample(range(1, size), min(size - 1, self.dice.randint(1, 3))))
        borders = [0, *cuts, size]
        parts = [self.part(*each) for each in zip(borders, borders[1:], strict=False)]
        after = xr.concat(parts, "time")
        jobs = [(self.blocks(part), {"region": "auto"}) for part in parts]
        if self.dice.random() < 0.4 and self.kind != "zip":
            new = self.more()
            jobs.append((self.blocks(new), {"append": "time"}))
            after = xr.concat([after, new], "time")
        if self.kind == "zip":  # is written as one, so one writer at a time
            for part, options in jobs:
                self.write(part, **options)
        else:
            COUNTS["writers at once"] += len(jobs)
            with dask.config.set(scheduler="synchronous"), ThreadPoolExecutor(len(jobs)) as writers:
                begun = [
                    writers.submit(ts.write_dataset, part, self.url, context=self.context, **self.options, **options)
                    for part, options in jobs
                ]
                for each in begun:
                    each.result()
        self.expected = after
        self.check("regions")

    def over(self) -> None:
        """Write over variables, and add one."""
        names = self.dice.sample(sorted(self.expected.data_vars), 1)
        new = self.renewed(self.expected[names])
        if self.dice.random() < 0.5 and "d" not in self.expected:
            new["d"] = new[names[0]].copy(data=self.drawn(new[names[0]].shape, "f8"))
            new["d"].attrs, new["d"].encoding = {}, {}
        self.step(new, self.expected.assign(new.data_vars), mode="a")

    def replace(self) -> None:
        """Replace all of it by another dataset."""
        if self.dice.random() < 0.5:
            return
        dataset = self.made()
        how = {"encoding": self.encoding(dataset), "schema": {"zarr_format": self.zarr_format}}
        self.step(dataset, dataset, mode="w", **how)

    def others(self) -> None:
        """Let xarray's own engine and zarr-python read the files at the end."""
        if self.kind != "directory" or self.dice.random() < 0.5:
            return
        COUNTS["read by others"] += 1
        import zarr

        found = xr.open_zarr(self.folder / "set", chunks=None).load()
        assert_same(found, self.expected)
        group = zarr.open_group(self.folder / "set", mode="r")
        raw = xr.open_zarr(self.folder / "set", chunks=None, decode_cf=False)
        for name in self.expected.variables:
            array = group[name]
            assert np.array_equal(array[...], raw[name].values), name
            assert array.shape == self.expected[name].shape


def place_of(kind: str, folder: Path, number: int, remote: tuple[str, str] | None, bucket: FaultyBucket) -> Any:
    """Return the URL of a place, its options, and the bucket whose requests may kill."""
    if kind == "bucket" and remote is not None:
        return f"s3://{remote[1]}/set-{number}", {"storage_options": {"endpoint_url": remote[0]}}, None
    if kind == "bucket":
        return f"s3://bucket/set-{number}", {"storage_options": {"endpoint_url": bucket.url}}, bucket
    urls = {
        "directory": f"file://{folder}/set/", "memory": f"memory://set-{number}/",
        "zip": f"file://{folder}/set.zip|zip:", "database": f"file://{folder}/set.ocdbt/|ocdbt:",
    }  # fmt: skip
    return urls[kind], {}, None


def main() -> None:
    """Run programs; the first that goes wrong is told, and ends it."""
    programs, first, steps = map(int, sys.argv[1:4])
    remote = (sys.argv[4], sys.argv[5]) if len(sys.argv) > 4 else None
    bucket = FaultyBucket()
    gc.freeze()  # what is imported stays, and children share its memory
    gc.set_threshold(20_000, 50, 100)
    for number in range(first, first + programs):
        kind = "bucket" if remote is not None else random.Random(-number).choice(PLACES)
        with tempfile.TemporaryDirectory(prefix="fsstore-datasets-") as folder:
            url, options, faulty = place_of(kind, Path(folder), number, remote, bucket)
            program = Program(number, kind, url, Path(folder), faulty, options, steps)
            COUNTS[kind] += 1
            try:
                if remote is not None:
                    program.kind = "remote"
                program.run()
            except BaseException:
                print(f"program {number} at {kind}:", *program.log, sep="\n  ")
                traceback.print_exc(file=sys.stdout)
                sys.stdout.flush()
                os._exit(1)
    bucket.close()
    COUNTS["programs"] = programs
    for name, count in sorted(COUNTS.items()):
        print(f"{name}: {count}")


if __name__ == "__main__":
    main()
