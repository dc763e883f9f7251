"""Readers that look again and again while jobs are killed and continued: each time they see the old or the new, whole.

A job and a reader are children of this process.  The job is killed with SIGKILL at random moments and begun again until
it ends; the reader opens the target anew each time, and every read is one of the two states.
Run by itself it takes the number of kills of each kind and a seed: `python tests/fault/job_reader_loop.py 5 0`.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

import fsstore as ts
from fsstore import references
from fsstore.job import passes, work
from fsstore.task import runner

try:
    from tests.fault.job_kill_loop import child, slowed
except ImportError:  # run as a script
    from job_kill_loop import child, slowed

OLD = np.full((24, 8), 1, "i4")
NEW = np.arange(100, 100 + 32 * 8, dtype="i4").reshape(32, 8)
LONG = np.concatenate([OLD, NEW[:8]])
SAME = NEW[:24]


@dataclass
class Kind:
    """A job that changes an array in one step: what is there before, what is done, and the two states."""

    name: str
    place: str
    run: Callable[[str, Path], None]
    new: np.ndarray
    before: Callable[[str, Path], None] = lambda place, folder: ts.copy(str(folder / "in/old"), place).result()
    old: np.ndarray | None = field(default_factory=lambda: OLD)
    """What readers find before; None for no array."""


def source(folder: Path) -> None:
    group = ts.open_group(folder / "in", mode="w").result()
    for name, values in {"old": OLD, "new": NEW, "more": NEW[:8], "same": SAME}.items():
        group.create_array(
            name, shape=values.shape, dtype="i4", chunks=[2, 8], fill_value=0, dimension_names=["time", "x"]
        ).result()[:] = values


def replaced(place: str, folder: Path) -> None:
    options = {"schema": {"chunks": [2, 4]}, "max_memory": "200B"}
    ts.copy(str(folder / "in/new"), place, atomic=True, if_exists="replace", **options).result()


def untouched(place: str, folder: Path) -> None:
    ts.copy(str(folder / "in/new"), place, atomic=True, if_exists="replace").result()


def updated(place: str, folder: Path) -> None:
    ts.copy(str(folder / "in/new"), place, atomic=True, if_exists="update", max_memory="200B").result()


def same(place: str, folder: Path) -> None:
    ts.copy(str(folder / "in/same"), place, atomic=True, if_exists="replace").result()


def made(place: str, folder: Path) -> None:
    """Make an array that is new, with references in several files."""
    ts.copy(str(folder / "in/same"), place, atomic=True, if_exists="skip").result()


def taken(place: str, folder: Path) -> None:
    """Replace an array of a virtual dataset."""
    options = {"schema": {"zarr_format": 2, "chunks": [2, 4]}, "max_memory": "200B"}
    ts.copy(str(folder / "in/new"), place, atomic=True, if_exists="replace", **options).result()


def grown(place: str, folder: Path) -> None:
    """Append under a name, which stays noted: whether a run that was killed had ended or not, the next one knows."""
    ts.append(place, str(folder / "in/more"), append_id="more", max_memory="200B").result()


def joined(place: str, folder: Path) -> None:
    """Copy beside a virtual dataset, and then have that take the copy."""
    ts.copy(str(folder / "in/more"), folder / "later/v", schema={"chunks": [1, 4]}, if_exists="skip").result()
    if ts.open(place).result().shape == OLD.shape:
        references.append(place.partition("|")[0], str(folder / "later")).result()


def combined(place: str, folder: Path) -> None:
    ts.open_group(folder / "first", mode="w").result()
    ts.open_group(folder / "later", mode="w").result()
    ts.copy(str(folder / "in/old"), folder / "first/v").result()
    references.combine([str(folder / "first")], "time").result().save(place.partition("|")[0])


def small_files(place: str, folder: Path) -> None:
    """Make a parquet set whose files have few references."""
    del place
    (folder / "few.parquet").mkdir()
    (folder / "few.parquet/.zmetadata").write_text('{"metadata":{},"record_size":5}')


KINDS = [
    Kind("database", "file://{folder}/db/|ocdbt:x/|zarr3:", replaced, NEW),
    Kind("database, untouched", "file://{folder}/db/|ocdbt:x/|zarr3:", untouched, NEW),
    Kind("reference set", "file://{folder}/refs.json|reference:x/|zarr3:", replaced, NEW),
    Kind("reference set, untouched", "file://{folder}/refs.json|reference:x/|zarr3:", untouched, NEW),
    Kind("database, update", "file://{folder}/db/|ocdbt:x/|zarr3:", updated, NEW),
    Kind("reference set, update", "file://{folder}/refs.json|reference:x/|zarr3:", updated, NEW),
    Kind("parquet set", "file://{folder}/few.parquet|reference:x/|zarr3:", made, SAME, small_files, None),
    Kind("parquet set, replaced", "file://{folder}/one.parquet|reference:x/|zarr3:", same, SAME),
    Kind("virtual dataset, replaced", "file://{folder}/all.mosaic|mosaic:v/", taken, NEW, combined),
    Kind("append", "file://{folder}/x/|zarr3:", grown, LONG),
    Kind("virtual dataset", "file://{folder}/all.mosaic|mosaic:v/", joined, LONG, combined),
]  # fmt: skip


def begin(kind: Kind, folder: Path) -> str:
    shutil.rmtree(folder, ignore_errors=True)
    source(folder)
    place = kind.place.format(folder=folder)
    kind.before(place, folder)
    return place


def newest(place: str) -> str:
    """Return a place as it is now: of a database, which else shows each read what is newest then, its last version."""
    database, bar, rest = place.partition("|ocdbt:")
    if not bar:
        return place
    number = ts.ocdbt.versions(f"{database}|ocdbt:").result()[-1].generation
    return f"{database}|ocdbt:@v{number}/{rest}"


def found_at(place: str) -> np.ndarray | None:
    try:
        return ts.open(newest(place)).result().read().result()
    except ts.errors.NotFoundError:
        return None


def watched(kind: Kind, place: str, folder: Path) -> int:
    """Begin to read in a child, until there is a file `over`; it fails at the first read that is neither state."""

    def read() -> None:
        count = seen = 0
        while not (folder / "over").exists() or not count:
            found = found_at(place)
            is_new = np.array_equal(found, kind.new)
            is_old = found is None if kind.old is None else np.array_equal(found, kind.old)
            assert is_new or is_old, found if found is None else (found.shape, found.tolist())
            assert is_new >= seen, "the old came back"
            count, seen = count + 1, is_new
        (folder / "count").write_text(str(count))

    pid = os.fork()
    if pid:
        return pid
    try:
        read()
    except BaseException:
        import traceback

        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def killed_and_read(kind: Kind, kills: int, dice: random.Random, folder: Path) -> tuple[int, int]:
    """Kill a job of a kind so often, and continue it to its end, while a reader looks; return kills and reads."""
    place, done = begin(kind, folder), 0

    class Job:
        run = staticmethod(lambda at: kind.run(place, at))

    reader = watched(kind, place, folder)
    for _ in range(kills):
        pid = child(Job, folder)
        time.sleep(dice.random() * 0.15)  # a moment to be killed in
        os.kill(pid, signal.SIGKILL)
        done += os.WIFSIGNALED(os.waitpid(pid, 0)[1])
    assert os.waitpid(child(Job, folder), 0)[1] == 0, kind.name
    (folder / "over").touch()
    assert os.waitpid(reader, 0)[1] == 0, kind.name
    assert np.array_equal(ts.open(place).result().read().result(), kind.new)
    nothing_left(folder)
    return done, int((folder / "count").read_text())


def nothing_left(folder: Path) -> None:
    """Raise if there is anything of a job in a folder but data that readers may still look at."""
    names = [str(path.relative_to(folder)) for path in folder.rglob("*")]
    kept = [str(path.relative_to(folder)) for path in folder.glob("x/.fsstore-job/appended-*")]
    assert len(kept) <= 1, kept  # the name of an append stays noted, below its array
    names = [name for name in names if name not in kept and (not kept or name != "x/.fsstore-job")]
    left = [name for name in names if "fsstore-job" in name or name.endswith(".__lock")]
    left += [name for name in names if "fsstore-data" in name and name.endswith("manifest.ocdbt")]
    left += [name for name in names if name.endswith(".zmetadata") and "claim" in (folder / name).read_text()]
    assert not left, left


def main() -> None:
    """Run the loop and print how often each kind was killed and read."""
    kills, dice = int(sys.argv[1]), random.Random(int(sys.argv[2]))
    for name, function in list(work.WORK.items()):
        work.WORK[name] = slowed(function)
    passes.PIECE_KEYS, runner.TASK_S = 1, 0.015  # many tasks
    with tempfile.TemporaryDirectory() as folder:
        for kind in KINDS:
            print(kind.name, *killed_and_read(kind, kills, dice, Path(folder) / "place"), sep=": ", flush=True)


if __name__ == "__main__":
    main()
