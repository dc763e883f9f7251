"""Jobs of every kind, killed with SIGKILL at random moments and continued: equal bytes, and nothing left over.

Each kind is run once to its end, and then killed again and again; the child is a fork, so a kill costs no start of an
interpreter.  Run by itself it takes the number of kills and a seed: `python tests/fault/job_kill_loop.py 100 0`.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

import fsstore as ts
from fsstore.job import passes, work
from fsstore.task import runner

VALUES = np.random.default_rng(3).integers(1, 1000, (32, 24, 16)).astype("i4")
MOST_RUNS = 60


@dataclass
class Kind:
    """A kind of job: what is there before, what is done, and what is looked at afterwards."""

    name: str
    begin: Callable[[Path], None]
    run: Callable[[Path], None]
    kills: int = 0
    resumed: int = 0
    times: list[float] = field(default_factory=list)


def source(folder: Path) -> None:
    group = ts.open_group(folder / "in", mode="w").result()
    array = group.create_array("a", shape=VALUES.shape, dtype="i4", chunks=[4, 12, 16]).result()
    array[:28] = VALUES[:28]
    image = (
        ts.open_group(folder / "out", mode="w").result().create_array("0", shape=[32, 24], dtype="i4", chunks=[8, 8])
    )
    image.result()[:] = VALUES[:, :, 0]


def grown(folder: Path) -> None:
    source(folder)
    array = ts.open(f"file://{folder}/in/a/").result()
    ts.copy(array[:10], folder / "out/x", schema={"chunks": [4, 8, 8]}).result()


def copied(target: str, **options):
    def run(folder: Path) -> None:
        ts.copy(str(folder / "in/a"), target.format(folder=folder), max_memory="60kB", **options).result()

    return run


def appended(folder: Path) -> None:
    array = ts.open(f"file://{folder}/in/a/").result()
    length = ts.open(f"file://{folder}/out/x/").result().shape[0]
    # of nothing, if the run was killed when it had ended but not cleared away: the next append does that
    ts.append(str(folder / "out/x"), array[10 if length == 10 else 32 :], max_memory="30kB").result()


def pyramid(folder: Path) -> None:
    group = ts.open_group(folder / "out").result()
    if "ome" not in group.attrs:
        ts.build_pyramid(group, levels=3, max_memory="8kB").result()


def deleted(folder: Path) -> None:
    with suppress(ts.errors.NotFoundError):  # the run that was killed had deleted everything
        ts.delete(folder / "out/0").result()


KINDS = [
    Kind("untouched", source, copied("{folder}/out/x", if_exists="skip")),
    Kind("one pass", source, copied("{folder}/out/x", schema={"chunks": [4, 8, 8]}, if_exists="skip")),
    Kind("two passes", source, copied("{folder}/out/x", schema={"chunks": [32, 4, 4]}, if_exists="skip")),
    Kind("update", grown, copied("{folder}/out/x", if_exists="update")),
    Kind(
        "one commit", source,
        copied("file://{folder}/db/|ocdbt:x/", schema={"chunks": [4, 8, 8]}, atomic=True, if_exists="skip"),
    ),
    Kind("append", grown, appended),
    Kind("pyramid", source, pyramid),
    Kind("delete", source, deleted),
]  # fmt: skip


def state(folder: Path) -> dict[str, bytes]:
    """Return everything that a reader finds: files, and the keys of the database."""
    found = {str(path.relative_to(folder)): path.read_bytes() for path in (folder / "out").rglob("*") if path.is_file()}
    if (folder / "db").exists():
        store = ts.KvStore.open(f"file://{folder}/db/|ocdbt:").result()
        found |= {key.decode(): bytes(store[key]) for key in store.list().result()}
        assert ts.ocdbt.verify(f"file://{folder}/db/|ocdbt:").result().ok
    left = [str(path) for path in folder.rglob("*") if "fsstore-job" in path.name or path.name.endswith(".__lock")]
    assert not left, left
    return found


def slowed(function):
    async def run(*arguments):
        await asyncio.sleep(0.005)
        return await function(*arguments)

    return run


def child(kind: Kind, folder: Path) -> int:
    """Begin a run of the job in a child and return its number."""
    pid = os.fork()
    if pid:
        return pid
    try:
        kind.run(folder)
    except BaseException:
        import traceback

        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def kill_once(kind: Kind, folder: Path, whole: dict[str, bytes], dice: random.Random) -> None:
    """Kill a job at a random moment, continue it to its end, and compare."""
    shutil.rmtree(folder, ignore_errors=True)
    kind.begin(folder)
    pid = child(kind, folder)
    time.sleep(dice.random() * 0.9 * kind.times[-1])  # a moment to be killed in; whichever it is, the promise holds
    os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        kind.kills += 1
    else:  # the machine is less busy than when the job was timed
        kind.times.append(0.8 * kind.times[-1])
    pid = child(kind, folder)
    _, status = os.waitpid(pid, 0)
    assert status == 0, (kind.name, status)
    try:
        found = state(folder)
    except AssertionError as error:
        raise AssertionError(kind.name) from error
    assert found == whole, kind.name


def loop(kills: int, seed: int, folder: Path) -> list[Kind]:
    """Kill jobs of all kinds by turns; return what was done."""
    for name, function in list(work.WORK.items()):
        work.WORK[name] = slowed(function)
    passes.PIECE_KEYS, runner.TASK_S = 1, 0.015  # many tasks
    dice, wholes = random.Random(seed), {}
    for kind in [*KINDS, *KINDS]:  # the second time is what a run takes when everything is imported
        kind.begin(folder / "whole")
        began = time.monotonic()
        _, status = os.waitpid(child(kind, folder / "whole"), 0)
        assert status == 0, kind.name
        kind.times.append(time.monotonic() - began)
        wholes[kind.name] = state(folder / "whole")
        shutil.rmtree(folder / "whole")
    for number in range(kills):
        kind = KINDS[number % len(KINDS)]
        kill_once(kind, folder / "killed", wholes[kind.name], dice)
    return KINDS


def main() -> None:
    """Run the loop and print how often each kind was killed."""
    kills, seed = (int(text) for text in sys.argv[1:3])
    with tempfile.TemporaryDirectory() as folder:
        for kind in loop(kills, seed, Path(folder)):
            print(f"{kind.name}: killed {kind.kills} times under way")


if __name__ == "__main__":
    main()
