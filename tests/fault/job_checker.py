"""A model checker of jobs: random programs of calls, faults, kills and repeats, whose ends are compared with a model.

A program is a call (a copy, an append, a deletion, a move or a pyramid) with a random source, target and options, and
steps: runs of the call in a child that a fault befalls, and what people do between runs.  At the end the call is made
once more without a fault.  The model allows two ends of each run: the right data, or an error with the old data intact.

Run by itself it takes the number of programs and the first seed: `python tests/fault/job_checker.py 200 0`.  A program
that fails is made shorter as long as it fails, and printed with its seed.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import importlib
import json
import os
import pickle
import shutil
import signal
import sys
import tempfile
import traceback
import zipfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from job_bucket import FAST, FaultyBucket
from job_faults import Fault, Injected
from job_programs import QUICK, Program, Run, State, Twice, drawn, mixed, seen, short

import fsstore as ts

SECONDS = 150  # after which a call that should take a tenth of one counts as hanging
MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None  # disks are slow where many tests run
DOCUMENTS = ("zarr.json", ".zarray", ".zgroup", "attributes.json")


def observed(folder: Path) -> State:
    """Return the arrays below a folder as a new reader finds them."""
    found = {}
    for root, _, names in os.walk(folder):
        path = Path(root)
        if "fsstore" in str(path.relative_to(folder)) or not set(names) & set(DOCUMENTS):
            continue
        documents = {name: json.loads((path / name).read_bytes()) for name in names if name in DOCUMENTS}
        shown = documents.get("zarr.json", {})
        if (
            ".zarray" in documents
            or shown.get("node_type") == "array"
            or "dimensions" in documents.get("attributes.json", {})
        ):
            array = ts.open(f"file://{path}/", context=ts.Context()).result()
            driver = array.spec().to_json()["driver"]
            attributes = shown.get("attributes", {})
            if driver == "zarr" and (path / ".zattrs").exists():
                attributes = json.loads((path / ".zattrs").read_bytes())
            if driver == "n5":
                attributes = {name: each for name, each in documents["attributes.json"].items() if name == "mark"}
            relative = str(path.relative_to(folder))
            found["" if relative == "." else relative] = seen(np.asarray(array.read().result()), attributes)
    return found


class Wrong(AssertionError):
    """An end that the model does not allow."""


@dataclass
class World:
    """A program while it is run: its folder, and what has been seen so far."""

    program: Program
    folder: Path
    counts: Counter[str]
    bucket: FaultyBucket
    version: int = 0
    base: State = field(default_factory=dict)
    """What is certainly there, unless the call under way has changed it."""
    now: State = field(default_factory=dict)
    first: State = field(default_factory=dict)
    name: str = "x"
    log: list[str] = field(default_factory=list)

    # -- places

    @property
    def place(self) -> Path:
        return self.folder / "out" / self.name

    @property
    def target(self) -> Any:
        return {
            "file": str(self.place),
            "zip": f"file://{self.place}.zip|zip:",
            "ocdbt": f"file://{self.place}.db/|ocdbt:x/",
            "s3": {
                "driver": "s3",
                "bucket": "jobs",
                "path": f"{self.name}/",
                "endpoint": self.bucket.url,
                "engine": self.program.engine,
            },
        }[self.program.target]

    def look(self) -> State:
        """Return what a new reader sees at the target."""
        try:
            return self._look()
        except ts.errors.StoreError as error:
            raise Wrong(f"a reader fails with {type(error).__name__}: {error}") from error

    def _look(self) -> State:
        if self.program.target == "file":
            return observed(self.place) if self.place.exists() else {}
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            if self.program.target == "zip":
                if not Path(f"{self.place}.zip").exists():
                    return {}
                with zipfile.ZipFile(f"{self.place}.zip") as archive:
                    archive.extractall(folder)
            elif self.program.target == "s3":
                for key, data in self.bucket.files(f"/jobs/{self.name}/").items():
                    (folder / key).parent.mkdir(parents=True, exist_ok=True)
                    (folder / key).write_bytes(data)
            elif Path(f"{self.place}.db").exists():
                store = ts.KvStore.open(f"file://{self.place}.db/|ocdbt:x/", context=ts.Context()).result()
                for key in store.list().result():
                    (folder / key.decode()).parent.mkdir(parents=True, exist_ok=True)
                    (folder / key.decode()).write_bytes(bytes(store[key]))
            return observed(folder)

    # -- the model

    def begin(self) -> None:
        """Make what is there before the first run."""
        program, source = self.program, self.program.source
        self.source_of(0)
        source.put(self.folder, 0)
        (self.folder / "out").mkdir()
        if program.call in ("delete", "move", "pyramid"):
            shutil.copytree(self.folder / "in", self.place)
            if program.call == "pyramid":
                group = ts.open_group(self.place, mode="a", zarr_format=source.driver).result()
                group.move("a", "0").result()
        elif program.old != "nothing":
            dice = np.random.default_rng(source.seed)
            shape = source.state(0)["a" if source.kind == "group" else ""].shape
            if program.old == "smaller":
                shape = tuple(int(dice.integers(1, side + 1)) for side in shape)
            if program.old == "longer":
                shape = (int(dice.integers(1, 9)), *shape[1:])
            group = ts.open_group(self.folder / "before", mode="w", zarr_format=source.driver, context=QUICK).result()
            names = source.names if source.kind == "group" else ("a",)
            for name in names[:2]:
                array = group.create_array(
                    name,
                    shape=list(shape),
                    dtype=source.dtype,
                    chunks=[max(1, side // 2) for side in shape],
                    attributes={"mark": -1},
                ).result()
                array[...] = dice.integers(100, 120, shape).astype(source.dtype)
            shutil.copytree(self.folder / "before" / ("a" if source.kind != "group" else ""), self.place)
        if program.target == "s3":
            self.bucket.reset()
            self.bucket.put_folder(self.place, f"jobs/{self.name}/")
        self.base = self.now = self.first = self.look()
        shutil.copytree(self.folder / "out", self.folder / "backup")

    def source_of(self, version: int) -> None:
        """Have a version of the source at hand."""
        if not (self.folder / f"version-{version}").exists():
            self.program.source.make(self.folder, version)

    @property
    def loses(self) -> bool:
        """Return whether a copy would change values, so that it has to be refused."""
        program, source = self.program, self.program.source
        dtype = program.options.get("schema", {}).get("dtype", source.dtype)
        if (
            program.call != "copy"
            or "casting" in program.options
            or (self.base and program.options["if_exists"] != "replace")
        ):
            return False
        values = [each.values for each in source.state(self.version).values()]
        return any(not np.array_equal(each.astype(dtype).astype(source.dtype), each) for each in values)

    def wanted(self) -> State:
        """Return the state after a call that ends well."""
        program, source = self.program, self.program.source
        if self.loses:
            return self.base
        if program.call == "delete":
            return {}
        if program.call == "move":
            return {"moved": self.first["a"]}
        if program.call == "append":
            if "append_id" in program.options and self.base != self.first:
                return self.base
            old, new = self.base[""], source.state(self.version)[""]
            return {"": seen(np.concatenate([old.values, new.values]), json.loads(old.attributes))}
        if program.call == "pyramid":
            return self.base
        made = dict(self.base) if source.kind == "group" else {}
        for name, each in source.state(self.version).items():
            dtype = program.options.get("schema", {}).get("dtype", source.dtype)
            old = self.base.get(name)
            if old is not None and program.options["if_exists"] == "skip":
                made[name] = old
                continue
            if old is not None and program.options["if_exists"] == "update":
                dtype = old.dtype
            made[name] = seen(each.values.astype(dtype), json.loads(each.attributes))
        return made

    def may_refuse(self) -> bool:
        """Return whether an error is the right answer to a call without a fault."""
        program = self.program
        if program.call == "copy":
            there = set(self.now) & set(program.source.state(0))
            kept = program.options["if_exists"] == "skip" and "verify" in program.options
            if self.loses:
                self.counts["casts that lose"] += 1
                return True
            return bool(there) and (kept or program.options["if_exists"] == "raise")
        if program.call == "pyramid":
            return True  # images with nothing to make smaller
        return program.call in ("delete", "move") and self.now != self.first

    def check_between(self, found: State) -> None:
        """Raise unless what is there after an error or a kill is old or new, each array whole."""
        new, program = self.wanted(), self.program
        for name in set(self.base) | set(new) | set(found):
            old, right, there = self.base.get(name), new.get(name), found.get(name)
            if there in (old, right):
                continue
            if program.call == "pyramid" and old is None:
                continue
            if program.call == "copy" and program.options["if_exists"] == "update" and mixed(old, right, there):
                continue
            raise Wrong(f"{name!r} is neither old nor new: {short(there)}; old {short(old)}; new {short(right)}")
        if program.call == "move" and not found:
            raise Wrong("the array is under no name")

    def check_done(self, found: State) -> None:
        """Raise unless what is there after success is right."""
        new = self.wanted()
        if self.program.call == "pyramid":
            new = {**found, **new}
        if found != new:
            wrong = next(name for name in {*found, *new} if found.get(name) != new.get(name))
            raise Wrong(f"success, and {wrong!r} is {short(found.get(wrong))}, not {short(new.get(wrong))}")

    # -- steps

    def call(self) -> Any:
        """Begin the call; return its future."""
        program = self.program
        options = dict(program.options)
        if not options.pop("synced", False):
            options["context"] = FAST if program.target == "s3" else QUICK
        if "workers" in options:
            options["executor"] = concurrent.futures.ThreadPoolExecutor(options.pop("workers"))
        if program.call == "copy":
            return ts.copy(program.source.given(self.folder), self.target, **options)
        if program.call == "append":
            return ts.append(self.target, program.source.given(self.folder), **options)
        if program.call == "delete":
            options.pop("max_memory", None)
            return ts.delete(self.target, **options)
        group = ts.open_group(self.place, mode="r+", context=options.get("context")).result()
        if program.call == "move":
            return group.move("a", "moved")
        return ts.build_pyramid(group, "0", levels=2, **options)

    def child(self, run: Run) -> tuple[int, int]:
        """Begin a run in a child; return its number, and where its answer is read."""
        reading, writing = os.pipe()
        self.bucket.aim(run.fault)
        pid = os.fork()
        if pid:
            self.bucket.befall(pid)
            os.close(writing)
            return pid, reading
        answer: Any = ("wrong", "nothing", False)
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            answer = self._answer(run)
        except BaseException:
            answer = ("wrong", traceback.format_exc(), False)
        finally:
            os.write(writing, pickle.dumps(answer))
            os._exit(0)

    def _answer(self, run: Run) -> tuple[str, str, bool]:
        fault = run.fault if run.fault and self.program.target != "s3" else Fault("none", 0)

        injected = Injected(fault, str(self.folder), lambda: self.program.source.put(self.folder, self.version + 1))
        injected.install()
        answer = self._once(injected)
        if run.again and answer[0] == "error":
            injected.lift()
            answer = self._once(injected)
        return (*answer, injected.hit)

    def _once(self, injected: Injected) -> tuple[str, str]:
        try:
            future = self.call()
            injected.cancel = future.cancel
            future.result()
        except (
            ts.errors.StoreError,
            KeyboardInterrupt,
            concurrent.futures.CancelledError,
            asyncio.CancelledError,
        ) as error:
            return "error", f"{type(error).__name__}: {error}"
        return "done", ""

    def answer(self, pid: int, reading: int) -> tuple[str, str, bool]:
        """Wait for a child; return how it ended, why, and whether the fault befell it."""
        with concurrent.futures.ThreadPoolExecutor(1) as pool, os.fdopen(reading, "rb") as pipe:
            told = pool.submit(pipe.read)
            try:
                text = told.result(SECONDS)
            except TimeoutError:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                raise Wrong(f"it hung for {SECONDS} s") from None
            os.waitpid(pid, 0)
        return pickle.loads(text) if text else ("killed", "", True)

    def run(self, run: Run) -> None:
        """Make the call in a child and check its end."""
        if run.fault and run.fault.kind == "source":
            self.source_of(self.version + 1)
        how, why, hit = self.answer(*self.child(run))
        self.log.append(f"{run}: {how} {why}")
        if self.program.target == "s3":
            hit = self.bucket.hit
        if hit and run.fault:
            self.counts[f"fault {run.fault.kind}"] += 1
            self.counts["faults of buckets"] += self.program.target == "s3"
        if how == "wrong":
            raise Wrong(f"it ended with what is none of our errors: {why}")
        if hit and run.fault and run.fault.kind == "source":
            self.after_change(how)
            return
        self.settle(how)
        if run.fault is None or not hit:
            if how == "error" and not self.may_refuse_before:
                raise Wrong(f"without a fault it ended with {why}")

    may_refuse_before: bool = False

    def after_change(self, how: str) -> None:
        """Check the end of a run while the source was rewritten: success means all of the old source, or of the new."""
        found, self.now = self.look(), self.now
        if how == "done":
            try:
                self.check_done(found)
            except Wrong:
                self.version += 1
                self.check_done(found)
                self.base = self.now = found
                return
            self.base = found
        elif self.program.call == "copy":  # the check after it found what the source is by now
            old = self.wanted()
            self.base = self.base | {name: each for name, each in found.items() if each == old.get(name)}
        self.now = found
        self.version += 1

    def settle(self, how: str) -> None:
        found = self.look()
        self.may_refuse_before = self.may_refuse()
        if how == "done":
            if self.loses:
                raise Wrong("a copy that changes values ended with success")
            self.check_done(found)
            self.base = found
        else:
            self.check_between(found)
            if self.program.call == "copy":  # an array that is there is what the next call finds
                new = self.wanted()
                self.base = self.base | {name: each for name, each in found.items() if each == new.get(name)}
            if self.program.call == "append" and found == self.wanted() and not self.notes():
                self.base = found  # it was over, and its caller died before it was told
        self.now = found

    def notes(self) -> list[Path]:
        """Return what appends keep until their callers are told."""
        return [path for path in self.place.rglob("append-*") if path.is_file() and path.suffix != ".__lock"]

    def twice(self) -> None:
        """Make the call in two children at once."""
        children = [self.child(Run(None)) for _ in range(2)]
        ends = [self.answer(*each) for each in children]
        self.log.append(f"twice: {ends}")
        self.counts["two at once"] += 1
        if any(how == "wrong" for how, *_ in ends):
            raise Wrong(f"one of two ended with what is none of our errors: {ends}")
        self.settle("done" if any(how == "done" for how, *_ in ends) else "error")

    def between(self, what: str) -> None:
        """Do what people do between two runs."""
        self.log.append(what)
        self.counts[what] += 1
        if what == "rm target/*" and self.place.exists():
            for path in self.place.glob("[!.]*"):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            self.base = self.now = self.look()
        elif what == "rm a chunk" and not self.now and self.place.exists():
            chunks = [path for path in sorted(self.place.rglob("*")) if path.is_file() and path.name.isdigit()]
            if chunks:
                chunks[self.program.seed % len(chunks)].unlink()
        elif what == "source rewritten":
            self.version += 1
            self.source_of(self.version)
            self.program.source.put(self.folder, self.version)
        elif what == "backup restored":
            shutil.rmtree(self.folder / "out")
            shutil.copytree(self.folder / "backup", self.folder / "out")
            self.base = self.now = self.look()
        elif what == "directory copied" and self.place.exists():
            old, self.name = self.place, f"{self.name}y"
            shutil.copytree(old, self.place)
            # what a call that was not finished has left is what the next one finds
            self.base = self.now

    def play(self) -> None:
        """Run the program to its end."""
        self.begin()
        for step in self.program.steps:
            if isinstance(step, Run):
                self.run(step)
            elif isinstance(step, Twice):
                self.twice()
            else:
                self.between(step)
        self.finish()

    def finish(self) -> None:
        """Make the call once more without a fault, and count how the program ends."""
        how, why, _ = self.answer(*self.child(Run(None)))
        self.log.append(f"at the end: {how} {why}")
        refused = self.may_refuse()
        if how == "wrong":
            raise Wrong(f"it ended with what is none of our errors: {why}")
        if how == "error" and not refused:
            raise Wrong(f"the call without a fault ended with {why}")
        self.settle(how)
        self.counts["right data" if how == "done" or self.now == self.wanted() else "error"] += 1


def played(program: Program, counts: Counter[str], bucket: FaultyBucket) -> str:
    """Run a program; return what is wrong about it, or nothing."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        world = World(program, Path(os.path.realpath(folder)), counts, bucket)
        try:
            world.play()
        except Wrong as wrong:
            return "\n".join([*world.log, str(wrong)])
    return ""


def shrunk(program: Program, wrong: str, bucket: FaultyBucket) -> tuple[Program, str]:
    """Return a shorter program that fails too, and how; the same if chance has to do with it."""
    shorter = True
    while shorter:
        shorter = False
        simpler = [
            replace(program, steps=program.steps[:number] + program.steps[number + 1 :])
            for number in range(len(program.steps))
        ]
        simpler += [
            replace(program, options={name: each for name, each in program.options.items() if name != left})
            for left in program.options
            if left not in ("if_exists", "append_id")
        ]
        for each in simpler:
            found = played(each, Counter(), bucket)
            if found:
                program, wrong, shorter = each, found, True
                break
    return program, wrong


def check(seeds: range, report: Callable[[str], None] = print) -> tuple[Counter[str], int]:
    """Run the programs of seeds; report the failing ones; return what was counted, and how many failed."""
    counts: Counter[str] = Counter()
    failed = 0
    bucket = FaultyBucket()
    with tempfile.TemporaryDirectory() as folder:
        warm(Path(folder))
    for seed in seeds:
        program = drawn(seed)
        counts["programs"] += 1
        counts[f"call {program.call}"] += 1
        wrong = played(program, counts, bucket)
        if wrong:
            failed += 1
            report("{}\n{}\n".format(*shrunk(program, wrong, bucket)))
    bucket.close()
    return counts, failed


def warm(folder: Path) -> None:
    """Have everything imported that children need, so that each does not do it again."""
    for name in ("obstore", "s3fs"):
        importlib.import_module(name)
    group = ts.open_group(folder, mode="w").result()
    array = group.create_array("0", shape=[8, 8], dtype="i4", chunks=[4, 4], dimension_names=["y", "x"]).result()
    array[...] = 1
    ts.copy(array, folder / "1", schema={"chunks": [8, 2]}, max_memory="1kB", verify="values").result()
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        ts.copy(array, f"file://{folder}/db/|ocdbt:x/", atomic=True, executor=pool).result()
    ts.copy(array, f"file://{folder}/x.zip|zip:").result()
    ts.copy(array, folder / "1", if_exists="update").result()
    ts.append(folder / "1", array).result()
    group.move("1", "2").result()
    ts.delete(folder / "2").result()
    ts.build_pyramid(group, levels=2).result()


def main() -> None:
    """Run programs and print what was counted."""
    number, first = int(sys.argv[1]), int(sys.argv[2])
    counts, failed = check(range(first, first + number))
    for name, count in sorted(counts.items()):
        print(f"{name}: {count}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
