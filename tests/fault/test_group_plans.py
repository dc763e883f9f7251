"""Plans of groups: one plan, whose parts go over all arrays; killed and repeated anywhere, right data or an error."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys

import numpy as np
import pytest

import fsstore as ts
from fsstore.errors import AbortedError, AlreadyExistsError, FailedPreconditionError, UnimplementedError

VALUES = {
    "deep/t": np.random.default_rng(0).random((60, 20, 12)).astype("f4"),
    "deep/salt": np.random.default_rng(1).random((30, 8)).astype("f8"),
    "x": np.arange(12, dtype="i4"),
    "empty": np.zeros((0, 3), "i2"),
    "number": np.array(7, "i8"),
}


def group_at(place):
    """Return a group with arrays at a place."""
    group = ts.open_group(place, mode="w").result()
    group.attrs.update({"title": "all"})
    group.create_group("deep", attributes={"unit": "m"}).result()
    for name, values in VALUES.items():
        chunks = {"chunks": [5, *values.shape[1:]]} if values.size > 1 else {}
        group.create_array(name, shape=values.shape, dtype=values.dtype.name, **chunks).result()[...] = values
    return group


@pytest.fixture
def plan(tmp_path):
    """Save the plan of a group in another codec, and return its place."""
    ts.plan_copy(group_at(tmp_path / "in"), tmp_path / "out", codec="gzip").result().save(tmp_path / "plan.json")
    return tmp_path / "plan.json"


def check_copied(plan):
    """See that the copy is there, and nothing beside it."""
    out = plan.parent / "out"
    made = ts.open_group(out, mode="r", context=ts.Context()).result()
    assert made.attrs.asdict() == {"title": "all"}
    assert made["deep"].attrs.asdict() == {"unit": "m"}
    for name, values in VALUES.items():
        assert np.array_equal(made[name].read().result(), values)
    assert not [name for _, names, files in os.walk(out) for name in names + files if "fsstore" in name]


def test_parts_go_over_all_arrays(plan):
    """Each task is of one part, in any order and again; nothing is seen before the end, and all of it then."""
    parts, total = list(range(7)), ts.status(plan).result().total
    random.Random(2).shuffle(parts)
    done = [ts.run(plan, (part, 7)).result().tasks for part in parts]
    assert sum(done) == total
    assert max(done) <= -(-total // 7)
    assert ts.run(plan, (1, 3)).result().tasks == 0
    assert not list((plan.parent / "out").rglob("zarr.json"))
    assert ts.status(plan).result()
    assert ts.finish(plan, verify="values").result().resumed == total
    check_copied(plan)


def test_what_is_missing_is_told_over_all_arrays(plan):
    """`status` and `finish` name the parts, and nothing of the group appears."""
    for part in (0, 2):
        ts.run(plan, (part, 4)).result()
    assert ts.status(plan).result().missing_parts(4) == [1, 3]
    with pytest.raises(FailedPreconditionError, match="tasks are missing, in parts 1, 3 of 4; run these"):
        ts.finish(plan).result()
    assert not list((plan.parent / "out").rglob("zarr.json"))
    for part in (1, 3):
        ts.run(plan, (part, 4)).result()
    ts.finish(plan).result()
    check_copied(plan)


def test_second_passes_wait_for_the_first_of_their_array(tmp_path):
    """A part does what it can, and says for how many tasks the rest waits."""
    plan = tmp_path / "plan.json"
    group = ts.open_group(tmp_path / "one", mode="w").result()
    for name in ("a", "b"):
        group.create_array(name, shape=[60, 40], dtype="f4", chunks=[2, 40]).result()[...] = np.ones((60, 40), "f4")
    ts.plan_copy(group, tmp_path / "out", max_memory="2kB", chunks=[60, 2]).result().save(plan)
    assert ts.run(plan, (0, 3)).result().waits > 0
    assert "second pass" in str(ts.status(plan).result())
    with pytest.raises(FailedPreconditionError, match="run these and finish again. First come those of arrays"):
        ts.finish(plan).result()
    assert [ts.run(plan, (part, 3)).result().waits > 0 for part in (1, 2, 0, 1)] == [True, False, False, False]
    ts.finish(plan, verify="values").result()
    assert ts.open_group(tmp_path / "out").result()["b"][3, 3].read().result() == 1


def test_other_jobs_are_kept_away_from_the_group_and_its_arrays(plan):
    """Until the plan is finished or given up, which leaves nothing."""
    ts.run(plan, (0, 2)).result()
    out, source = plan.parent / "out", plan.parent / "in"
    for job in (lambda: ts.copy(source, out), lambda: ts.copy(source / "deep/t", out / "deep/t")):
        with pytest.raises(FailedPreconditionError, match=r"being changed by the plan .*plan\.json"):
            job().result()
    ts.finish(plan, give_up=True).result()
    assert not [path for path in out.rglob("*") if path.is_file()]
    with pytest.raises(FailedPreconditionError, match="no part was run yet, or the plan is finished or given up"):
        ts.finish(plan).result()


def test_what_is_there_is_not_written_over(plan):
    """An array in the way is named by the first part, whichever that is, and a late part of a finished plan too."""
    ts.copy(plan.parent / "in/x", plan.parent / "out/x").result()
    with pytest.raises(AlreadyExistsError, match=r"already an array or a group at .*out/x/"):
        ts.run(plan, (0, 4)).result()
    ts.delete(plan.parent / "out/x").result()
    ts.run(plan).result()
    ts.finish(plan).result()
    with pytest.raises(AlreadyExistsError, match="as when the plan .* is finished"):
        ts.run(plan, (0, 4)).result()
    check_copied(plan)


@pytest.mark.parametrize("begun", [False, True])
def test_a_source_that_was_written_is_refused(plan, begun):
    """The array is named, and nothing of the group appears."""
    if begun:
        ts.run(plan).result()
    ts.open(str(plan.parent / "in/deep/t")).result()[:5] = 7
    with pytest.raises(AbortedError, match=r"in/deep/t/.* was written while it was copied"):
        (ts.finish(plan) if begun else ts.run(plan)).result()
    assert not list((plan.parent / "out").rglob("zarr.json"))


def test_bad_calls_are_told_in_a_sentence(plan, tmp_path):
    """A part out of range, a region of a group, a database as the target; nothing is written."""
    with pytest.raises(ValueError, match="no part 9 of 9"):
        ts.run(plan, (9, 9)).result()
    with pytest.raises(ValueError, match="A region is of one array"):
        ts.plan_copy(tmp_path / "in", tmp_path / "out", region=slice(3)).result()
    with pytest.raises(UnimplementedError, match="writes to a directory or a bucket"):
        ts.plan_copy(tmp_path / "in", f"file://{tmp_path}/db/|ocdbt:").result().save(tmp_path / "other.json")
    assert sorted(os.listdir(tmp_path)) == ["in", "plan.json"]
    assert len(json.loads(plan.read_text())["members"]) == len(VALUES)


KILLED = """
import os, sys
import numpy as np
import fsstore as ts
import fsstore.job.fleet, fsstore.job.planned, fsstore.driver.chunked_array, fsstore.format.zarr3
from fsstore.kvstore.local.driver import LocalDriver

folder, *steps = sys.argv[1:]

def apart(function, *arguments):
    child = os.fork()  # no thread runs here
    if not child:
        try:
            function(*arguments)
        except BaseException as error:
            print(repr(error), flush=True)
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

def planned(home):
    group = ts.open_group(f"{home}/in", mode="w").result()
    for name in ("a", "b"):
        group.create_array(name, shape=[20, 6], dtype="i4", chunks=[5, 6]).result()[...] = np.full((20, 6), 3, "i4")
    ts.plan_copy(f"{home}/in", f"{home}/out", codec="gzip").result().save(f"{home}/plan")

def done(home, at):
    count = 0

    def counted(function):
        def run(*arguments, **named):
            nonlocal count
            count += 1
            if count == at:
                os._exit(9)
            return function(*arguments, **named)
        return run

    for name in ("write_many", "delete_range", "remove_directory"):
        setattr(LocalDriver, name, counted(getattr(LocalDriver, name)))
    for part in (1, 0):
        ts.run(f"{home}/plan", (part, 2)).result()
    ts.finish(f"{home}/plan").result()

def looked(home, is_end):
    for name in ("a", "b"):
        try:
            found = ts.open(f"{home}/out/{name}").result().read().result()
        except ts.errors.StoreError:
            assert not is_end, "nothing is there"
            continue
        assert (found == 3).all() and found.shape == (20, 6)
    if is_end:
        assert sorted(ts.open_group(f"{home}/out").result()) == ["a", "b"]

for at in map(int, steps):
    home = f"{folder}/{at}"
    assert apart(planned, home) == 0
    ended = apart(done, home, at)
    assert ended in (0, 9), (at, ended)
    assert apart(looked, home, False) == 0, at
    if apart(done, home, 0):  # it was killed behind the documents of the group: only notes may be left
        apart(lambda: ts.finish(f"{home}/plan").result())
    assert apart(looked, home, True) == 0, at
    left = [name for _, names, files in os.walk(f"{home}/out") for name in names + files if "fsstore-job" in name]
    assert not left, (at, left)
    if not ended:
        break
print("at the end" if not ended else "killed each time", at)
"""


def killed(tmp_path, steps):
    """Kill a plan at each step in turn, and see that the same calls end it; return how it ended."""
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path), *map(str, steps)],
        capture_output=True, text=True, timeout=1500,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_plan_of_a_group_that_was_killed_goes_on(tmp_path):
    """In the beginning, in parts, and in the end between two arrays."""
    assert "killed each time 44" in killed(tmp_path, (5, 25, 44))


@pytest.mark.long
def test_a_plan_of_a_group_that_was_killed_anywhere_goes_on(tmp_path):
    """At each step until the end."""
    assert "at the end" in killed(tmp_path, range(1, 400))
