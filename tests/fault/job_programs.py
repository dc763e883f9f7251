"""Random programs of jobs: a call with its source, target and options, and what happens to it; the states it may leave."""

from __future__ import annotations

import json
import random
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from job_bucket import BUCKET_FAULTS
from job_faults import KILLS, KINDS, Fault

import fsstore as ts

QUICK = ts.Context({"file_io_sync": False})


@dataclass(frozen=True, slots=True)
class Seen:
    """An array as a reader finds it."""

    shape: tuple[int, ...]
    dtype: str
    data: bytes
    attributes: str

    @property
    def values(self) -> np.ndarray:
        return np.frombuffer(self.data, self.dtype).reshape(self.shape)


def part(array: Any) -> Any:
    """Return the view of an array that is copied."""
    return array[1:] if len(array.shape) == 1 else array[1:, ..., ::-1]


State = dict[str, Seen]
"""What is at a place: arrays by their paths."""


def seen(values: np.ndarray, attributes: dict[str, Any]) -> Seen:
    plain = np.ascontiguousarray(values.astype(values.dtype.newbyteorder("<")))
    kept = {name: each for name, each in attributes.items() if not name.startswith("_ARRAY")}
    return Seen(values.shape, plain.dtype.str, plain.tobytes(), json.dumps(kept, sort_keys=True))


@dataclass(frozen=True, slots=True)
class Source:
    """Where the data come from; all that is random about it follows from its seed."""

    kind: str
    seed: int
    dtype: str
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    shards: tuple[int, ...] | None
    driver: int
    rough: bool = False
    """Whether values have fractions, or do not fit into smaller types."""

    def values(self, name: str, version: int) -> np.ndarray:
        """Return the values of an array; some chunks have nothing but the fill value."""
        dice = np.random.default_rng([self.seed, version, sum(name.encode())])
        values = dice.integers(1, 100, self.shape).astype(self.dtype)
        if dice.integers(2):
            values[tuple(slice(0, side) for side in self.chunks)] = 0
        return values * values.dtype.type(2.5 if values.dtype.kind == "f" else 200) if self.rough else values

    @property
    def names(self) -> tuple[str, ...]:
        return ("a", "g/b", "g/h/c") if self.kind == "group" else ("a",)

    def make(self, folder: Path, version: int) -> None:
        """Write a version of it beside the source."""
        group = ts.open_group(folder / f"version-{version}", mode="w", zarr_format=self.driver, context=QUICK).result()
        for name in self.names:
            shards = {"shards": list(self.shards)} if self.shards and self.driver == 3 else {}
            array = group.create_array(
                name,
                shape=list(self.shape),
                dtype=self.dtype,
                chunks=list(self.chunks),
                attributes={"mark": self.seed},
                **shards,
            ).result()
            array[...] = self.values(name, version)

    def put(self, folder: Path, version: int) -> None:
        """Let a version be the source: file by file, as writers do who know of no readers."""
        new, place = folder / f"version-{version}", folder / "in"
        names = [path.relative_to(new) for path in sorted(new.rglob("*")) if path.is_file()]
        for path in sorted(place.rglob("*")):
            if path.is_file() and path.relative_to(place) not in names:
                path.unlink()
        for name in names:
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(new / name, place / f"{name}.new")
            (place / f"{name}.new").replace(place / name)
        if self.kind == "references":
            self._refer(folder)

    def _refer(self, folder: Path) -> None:
        references: dict[str, Any] = {}
        for path in (folder / "in").rglob("*"):
            if path.is_file():
                name = str(path.relative_to(folder / "in"))
                is_document = path.name.startswith(".z")
                references[name] = path.read_text() if is_document else [f"file://{path}"]
        (folder / "refs.json").write_text(json.dumps({"version": 1, "refs": references}))

    def given(self, folder: Path) -> Any:
        """Return what is passed to a call."""
        if self.kind == "group":
            return folder / "in"
        if self.kind == "references":
            return f"file://{folder}/refs.json|reference:a/"
        if self.kind == "view":
            return part(ts.open(f"file://{folder}/in/a/").result())
        return f"file://{folder}/in/a/"

    def state(self, version: int) -> State:
        """Return the state of a copy."""
        state = {}
        for name in self.names:
            values = self.values(name, version)
            values = part(values) if self.kind == "view" else values
            state[name if self.kind == "group" else ""] = seen(values, {"mark": self.seed})
        return state


@dataclass(frozen=True, slots=True)
class Program:
    """A call, and what happens to it."""

    seed: int
    call: str
    source: Source
    target: str
    options: dict[str, Any]
    old: str
    steps: tuple[Any, ...]
    engine: str = "obstore"
    """Of buckets."""

    def __str__(self) -> str:
        steps = "".join(f"\n  {step}" for step in self.steps)
        return (
            f"program {self.seed}: {self.call} {self.source} -> {self.target}, {self.options}, old: {self.old}{steps}"
        )


@dataclass(frozen=True, slots=True)
class Run:
    """The call in a child of its own, and a fault in it; `again` makes it once more in the same process."""

    fault: Fault | None
    again: bool = False


@dataclass(frozen=True, slots=True)
class Twice:
    """Two calls at once, in two children."""


def drawn(seed: int) -> Program:
    """Return the program of a seed."""
    dice = random.Random(seed)
    rank = dice.randint(1, 3)
    shape = tuple(dice.randint(2, 9) for _ in range(rank))
    chunks = tuple(dice.randint(1, side) for side in shape)
    shards = tuple(each * dice.randint(1, 3) for each in chunks) if dice.random() < 0.3 else None
    call = dice.choices(["copy", "append", "delete", "move", "pyramid"], [12, 3, 2, 2, 1])[0]
    kind = dice.choices(["array", "view", "group", "references"], [5, 2, 3, 2])[0] if call == "copy" else "array"
    driver = 2 if kind == "references" else dice.choice([3, 3, 2])
    dtype = dice.choice(["u1", "i2", "i4", "f4", "f8"])
    rough = dtype != "u1" and dice.random() < 0.3
    source = Source(kind, seed, dtype, shape, chunks, shards, driver, rough)
    target, options, old = "file", {}, "nothing"
    if call == "copy":
        target = dice.choices(["file", "s3", "zip", "ocdbt"], [8, 3, 1, 2])[0]
        old = dice.choice(["nothing", "nothing", "smaller", "another"]) if target in ("file", "s3") else "nothing"
        options["if_exists"] = dice.choice(
            ["raise", "skip", "replace", "update"] if old != "nothing" else ["raise", "skip"]
        )
        schema: dict[str, Any] = {}
        if dice.random() < 0.5:
            schema["chunks"] = [dice.randint(1, side) for side in shape]
        if dice.random() < 0.2 and kind != "group":
            schema["dtype"] = {"u1": "i4", "i2": "f4", "i4": "f8", "f4": "f8", "f8": "f8"}[dtype]
        elif dice.random() < 0.3 and kind != "group":
            schema["dtype"] = {"u1": "u1", "i2": "u1", "i4": "u1", "f4": "i2", "f8": "i2"}[dtype]
            options |= {"casting": "unsafe"} if dice.random() < 0.4 else {}
        if dice.random() < 0.3:
            schema["zarr_format"] = dice.choice([2, 3])
        options |= {"schema": schema} if schema else {}
        options |= {"atomic": True} if target == "ocdbt" and dice.random() < 0.7 else {}
        options |= {"verify": "values"} if dice.random() < 0.2 else {}
    if call == "append":
        old = "longer"
        options |= {"append_id": str(seed)} if dice.random() < 0.5 else {}
    if dice.random() < 0.5 and call not in ("delete", "move"):
        options["max_memory"] = f"{dice.randint(1, 20)}kB"
    if dice.random() < 0.2 and call != "move":
        options["workers"] = dice.randint(1, 3)
    options |= {"synced": True} if dice.random() < 0.2 else {}
    engine = dice.choice(["obstore", "fsspec"])
    return Program(seed, call, source, target, options, old, steps_of(dice, call, target, options), engine)


def steps_of(dice: random.Random, call: str, target: str, options: dict[str, Any]) -> tuple[Any, ...]:
    """Return random steps."""
    steps: list[Any] = []
    most = {"copy": 350, "append": 200, "delete": 120, "move": 250, "pyramid": 300}[call]
    most = 40 if target == "s3" else most
    for _ in range(dice.choice([1, 1, 2, 2, 3])):
        if steps and dice.random() < 0.35 and call == "copy" and target == "file":
            steps.append(dice.choice(BETWEEN))
        elif dice.random() < 0.06 and call == "copy":
            steps.append(Twice())
        else:
            kinds = BUCKET_FAULTS if target == "s3" else KINDS
            kind = dice.choices(kinds, [3 if each in KILLS else 1 for each in kinds])[0]
            if kind == "interrupt" and call == "append" and "append_id" not in options:
                kind = "cancel"  # a caller that is interrupted when the values are there has to be told apart by an id
            number = int(most ** dice.uniform(0.2, 1))
            steps.append(Run(Fault(kind, number), again=dice.random() < 0.25 and kind not in KILLS))
    return tuple(steps)


BETWEEN = ("rm target/*", "rm a chunk", "source rewritten", "backup restored", "directory copied")


def mixed(old: Seen | None, new: Seen | None, there: Seen | None) -> bool:
    """Return whether each element is old or new, as an update in place leaves them: attributes and extent come last."""
    if old is None or new is None or there is None or there.attributes not in (old.attributes, new.attributes):
        return False
    if there.shape == new.shape != old.shape:
        return there.data == new.data
    part = new.values[tuple(slice(0, side) for side in old.shape)]
    return old.shape == there.shape and bool(np.all((there.values == old.values) | (there.values == part)))


def short(each: Seen | None) -> str:
    return "nothing" if each is None else f"{each.shape} {each.dtype} {each.values.ravel()[:8]} {each.attributes}"
