"""Plans in files: parts in any order, any number of times and at once, killed anywhere: right data or an error."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys

import numpy as np
import pytest

import fsstore as ts
from fsstore.errors import (
    AbortedError,
    AlreadyExistsError,
    DataLossError,
    FailedPreconditionError,
    NotFoundError,
    StoreError,
    UnimplementedError,
)
from fsstore.job.work import WORK

VALUES = np.random.default_rng(0).random((60, 20, 12)).astype("f4")
VALUES[:15] = 0  # chunks of mere fill are not stored
LAYOUTS = {
    "untouched": {},
    "another codec": {"schema": {"codec": "gzip"}},
    "two passes": {"schema": {"chunks": [60, 4, 4]}, "max_memory": "30kB"},
}


def array_at(place, values=VALUES):
    """Return an array with values at a place."""
    options = {"dtype": values.dtype.name, "shape": values.shape, "chunks": (5, *values.shape[1:])}
    made = ts.open(f"file://{place}/|zarr3:", create=True, **options).result()
    made[:] = values
    return made


@pytest.fixture(params=LAYOUTS)
def plan(request, tmp_path):
    """Save the plan of a copy, and return its place."""
    array_at(tmp_path / "in")
    planned = ts.plan_copy(tmp_path / "in", tmp_path / "out", **LAYOUTS[request.param]).result()
    planned.save(tmp_path / "plan.json")
    return tmp_path / "plan.json"


@pytest.fixture
def simple(tmp_path):
    """Save the plan of a copy in one pass, and return its place."""
    array_at(tmp_path / "in")
    ts.plan_copy(tmp_path / "in", tmp_path / "out", schema={"codec": "gzip"}).result().save(tmp_path / "plan.json")
    return tmp_path / "plan.json"


def run_all(plan, parts, order=None):
    """Run all parts until none waits for another."""
    for _ in range(2):
        for part in order or range(parts):
            ts.run(plan, (part, parts)).result()


def check_copied(plan, values=VALUES):
    """See that the copy is there, and nothing beside it."""
    out = plan.parent / "out"
    assert np.array_equal(ts.open(str(out), context=ts.Context()).result().read().result(), values)
    assert not [name for _, names, files in os.walk(out) for name in names + files if "fsstore" in name]


def test_parts_are_run_in_any_order_and_again(plan):
    """Whatever divisions they are of; what is done is not done again, and the copy appears with the end."""
    parts = list(range(7))
    random.Random(1).shuffle(parts)
    run_all(plan, 7, parts)
    assert ts.run(plan, (0, 3)).result().tasks == 0
    assert not (plan.parent / "out" / "zarr.json").exists()
    assert ts.status(plan).result()
    assert ts.finish(plan, verify="values").result().tasks == 0
    check_copied(plan)


def test_what_is_missing_is_told_by_the_part(plan):
    """`status` knows it while parts are missing, and `finish` refuses with their numbers; then it can be done."""
    for part in (0, 2, 3):
        ts.run(plan, (part, 5)).result()
    found = ts.status(plan).result()
    assert {1, 4} <= set(found.missing_parts(5))
    assert 0 < found.done < found.total
    assert not found
    with pytest.raises(FailedPreconditionError, match=r"tasks are missing, in parts .*4 of 5; run these"):
        ts.finish(plan).result()
    run_all(plan, 5)
    ts.finish(plan).result()
    check_copied(plan)


def test_the_second_pass_waits_for_the_first(tmp_path):
    """A part that cannot go on says for how many tasks it waits, and does the rest when it is run again."""
    array_at(tmp_path / "in")
    plan = tmp_path / "plan.json"
    ts.plan_copy(tmp_path / "in", tmp_path / "out", **LAYOUTS["two passes"]).result().save(plan)
    assert ts.run(plan, (0, 2)).result().waits > 0
    assert ts.run(plan, (1, 2)).result().waits == 0
    assert ts.run(plan, (0, 2)).result().waits == 0
    ts.finish(plan).result()
    check_copied(plan)


def test_chunks_that_are_gone_are_made_again(plan):
    """Nothing reads as fill that was data."""
    run_all(plan, 2)
    chunks = sorted(path for path in (plan.parent / "out/c").rglob("*") if path.is_file())
    chunks[len(chunks) // 2].unlink()
    assert ts.finish(plan).result().tasks > 0
    check_copied(plan)


def test_a_target_that_was_emptied_is_an_error(simple):
    """`rm -rf target/*` leaves the notes, which tell of nothing that is there; giving up makes room to run again."""
    ts.run(simple, (0, 2)).result()
    for path in (simple.parent / "out").iterdir():
        if not path.name.startswith("."):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for end in (lambda: ts.run(simple, (1, 2)), lambda: ts.finish(simple)):
        with pytest.raises(AbortedError, match="is not what the plan .* has begun"):
            end().result()
    ts.finish(simple, give_up=True).result()
    run_all(simple, 2)
    ts.finish(simple).result()
    check_copied(simple)


@pytest.mark.parametrize("begun", [False, True])
def test_a_source_that_was_written_is_refused(simple, begun):
    """Before the first part nothing is done, and afterwards the end is refused, and the array does not appear."""
    if begun:
        run_all(simple, 2)
    ts.open(str(simple.parent / "in")).result()[:5] = 7
    with pytest.raises(AbortedError, match="was written while it was copied"):
        (ts.finish(simple) if begun else ts.run(simple, (0, 2))).result()
    assert not (simple.parent / "out/zarr.json").exists()


def test_a_source_of_another_layout_is_refused(simple):
    """No part is run of an array that took the place of the source."""
    shutil.rmtree(simple.parent / "in")
    array_at(simple.parent / "in", VALUES.astype("f8"))
    with pytest.raises(StoreError, match=r"dtype|another source"):
        ts.run(simple, (0, 2)).result()
    assert not (simple.parent / "out").exists()


def changed(plan, **changes):
    """Change a plan, as its makers do who know its digest."""
    from fsstore.task.claim import job_name

    document = json.loads(plan.read_text()) | changes
    document.pop("digest")
    plan.write_text(json.dumps(document | {"digest": job_name(document)}))


def test_bad_plans_are_told_in_a_sentence(simple):
    """A part out of range, a file that is no plan or was changed, newer versions; nothing is written."""
    with pytest.raises(ValueError, match="no part 5 of 5; parts are numbered from 0 to 4"):
        ts.run(simple, (5, 5)).result()
    text = simple.read_text()
    for content, error, match in (
        (text[:200], DataLossError, "is no plan of fsstore, or was cut off"),
        ("[1]", DataLossError, "is no plan of fsstore"),
        (text.replace('"memory": ', '"memory": 1'), DataLossError, "was changed after it was saved"),
        (text.replace('"fsstore_plan": 2', '"fsstore_plan": 3'), UnimplementedError, "is of version 3"),
    ):
        simple.write_text(content)
        with pytest.raises(error, match=match):
            ts.run(simple, (0, 2)).result()
    simple.write_text(text)
    changed(simple, fsstore="9.9")
    with pytest.raises(FailedPreconditionError, match=r"made by fsstore 9\.9, and this is"):
        ts.status(simple).result()
    simple.write_text(text)
    (member,) = json.loads(text)["members"]
    changed(simple, members=[member | {"target": {"driver": "file", "path": f"{simple.parent}/elsewhere/"}}])
    with pytest.raises(FailedPreconditionError, match="is of another source or target"):
        ts.run(simple).result()
    simple.unlink()
    with pytest.raises(NotFoundError, match="There is no plan at"):
        ts.finish(simple).result()
    assert sorted(os.listdir(simple.parent)) == ["in"]


def test_what_cannot_be_planned_is_refused_before_anything_is_written(tmp_path):
    """Memory of this process in a plan for others, databases, a target in the source, a plan over a file."""
    array = array_at(tmp_path / "in")
    for target, match in (
        ("memory://here/", "cannot see the memory of this one"),
        (f"file://{tmp_path}/db/|ocdbt:", "writes to a directory or a bucket"),
    ):
        with pytest.raises(UnimplementedError, match=match):
            ts.plan_copy(array, target).result().save(tmp_path / "plan.json")
    with pytest.raises(FailedPreconditionError, match="lies in what is read"):
        ts.plan_copy(array, tmp_path / "in/below").result()
    (tmp_path / "plan.json").write_text("mine")
    plan = ts.plan_copy(array, tmp_path / "out").result()
    with pytest.raises(AlreadyExistsError, match="overwrite=True replaces it"):
        plan.save(tmp_path / "plan.json")
    assert (tmp_path / "plan.json").read_text() == "mine"
    plan.save(tmp_path / "plan.json", overwrite=True)
    assert sorted(os.listdir(tmp_path)) == ["in", "plan.json"]


def test_a_plan_holds_no_secrets(tmp_path):
    """Neither those of options nor those of headers and URLs."""
    array_at(tmp_path / "in")
    options = {"key": "hush", "secret": "hush", "client_kwargs": {"headers": {"Authorization": "hush"}}}
    target = {"driver": "s3", "bucket": "bucket", "path": "out/", "engine": "fsspec", "storage_options": options}
    plan = ts.plan_copy(tmp_path / "in", target).result()
    plan.save(tmp_path / "plan.json")
    assert "hush" not in (tmp_path / "plan.json").read_text()


def test_other_jobs_are_kept_away_until_the_end(simple):
    """By an error that names the plan, though no process holds the target; giving up leaves nothing."""
    ts.run(simple, (0, 2)).result()
    for job in (
        lambda: ts.copy(simple.parent / "in", simple.parent / "out"),
        lambda: ts.copy(simple.parent / "in", simple.parent / "out", if_exists="replace"),
    ):
        with pytest.raises(FailedPreconditionError, match=r"being changed by the plan .*plan\.json"):
            job().result()
    ts.finish(simple, give_up=True).result()
    assert not [path for path in (simple.parent / "out").rglob("*") if path.is_file()]
    with pytest.raises(FailedPreconditionError, match=r"no part was run yet, or the plan is finished or given up"):
        ts.finish(simple).result()
    ts.copy(simple.parent / "in", simple.parent / "out").result()


def test_a_finished_plan_changes_nothing_any_more(simple):
    """A part that an engine repeats late is an error, and so is a second end; the array stays as its owner changed it."""
    run_all(simple, 2)
    ts.finish(simple).result()
    array = ts.open(str(simple.parent / "out")).result()
    array[:] = 1
    with pytest.raises(AlreadyExistsError, match="as when the plan .* is finished"):
        ts.run(simple, (0, 2)).result()
    with pytest.raises(FailedPreconditionError, match="is finished or given up"):
        ts.finish(simple).result()
    assert (array.read().result() == 1).all()


def test_a_full_disk_ends_a_part_and_nothing_else(simple, monkeypatch):
    """The other parts go on, and the same part once there is room."""
    ts.run(simple, (0, 2)).result()

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        patch.setattr(os, "writev", full)
        with pytest.raises(StoreError, match=r"[Nn]o space|space left"):
            ts.run(simple, (1, 2)).result()
    run_all(simple, 2)
    ts.finish(simple).result()
    check_copied(simple)


KILLED = """
import os, sys
import numpy as np
import fsstore as ts
import fsstore.job.fleet, fsstore.job.planned, fsstore.driver.chunked_array, fsstore.format.zarr3
from fsstore.kvstore.local.driver import LocalDriver

folder, *steps = sys.argv[1:]
values = np.arange(600, dtype="i4").reshape(20, 30)

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
    made = ts.open(f"file://{home}/in/|zarr3:", create=True, dtype="i4", shape=values.shape, chunks=(5, 30)).result()
    made[:] = values
    ts.plan_copy(f"{home}/in", f"{home}/out", schema={"chunks": [20, 3]}, max_memory="4kB").result().save(f"{home}/plan")

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

    for name in ("write_many", "delete_range", "take_values", "remove_directory"):
        setattr(LocalDriver, name, counted(getattr(LocalDriver, name)))
    for part in (1, 0, 1, 0):
        ts.run(f"{home}/plan", (part, 2)).result()
    ts.finish(f"{home}/plan").result()

def looked(home, is_end):
    try:
        found = ts.open(f"{home}/out").result().read().result()
    except ts.errors.StoreError:
        assert not is_end, "nothing is there"
        return
    assert np.array_equal(found, values)

for at in map(int, steps):
    home = f"{folder}/{at}"
    assert apart(planned, home) == 0
    ended = apart(done, home, at)
    assert ended in (0, 9), (at, ended)
    assert apart(looked, home, False) == 0, at
    if apart(done, home, 0):  # it was killed behind the metadata: the array is whole, and only its notes may be left
        assert apart(looked, home, True) == 0, at
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
        capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_plan_that_was_killed_goes_on(tmp_path):
    """In the beginning, in parts, and in the end."""
    assert "killed each time 40" in killed(tmp_path, (4, 20, 40))


@pytest.mark.long
def test_a_plan_that_was_killed_anywhere_goes_on(tmp_path):
    """At each step until the end."""
    assert "at the end" in killed(tmp_path, range(1, 400))


TOGETHER = """
import sys
import fsstore as ts

plan, number = sys.argv[1], int(sys.argv[2])
sys.stdin.readline()
told = []
for part in (0, 1, 2, 0, 1, 2):
    try:
        ts.run(plan, (part, 3)).result()
    except ts.errors.StoreError as error:
        told.append(type(error).__name__)
try:
    ts.finish(plan).result()
    told.append("finished")
except ts.errors.StoreError as error:
    told.append(type(error).__name__)
print(*told, flush=True)
"""


def test_the_same_parts_at_once_and_an_end_beside_them(plan):
    """Of three processes that run all parts and finish, one finishes; the others are done or told by an error."""
    command = [sys.executable, "-c", TOGETHER, str(plan)]
    several = [
        subprocess.Popen([*command, str(number)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for number in range(3)
    ]
    for each in several:
        each.stdin.write("go\n")
        each.stdin.flush()
    told = [each.communicate(timeout=100)[0].split() for each in several]
    allowed = {"finished", "AbortedError", "FailedPreconditionError", "AlreadyExistsError"}
    assert all(set(each) <= allowed for each in told), told
    if not any("finished" in each for each in told):  # each was told of another that was still at it
        ts.finish(plan).result()
    check_copied(plan)


def test_an_end_beside_a_running_part_is_refused(simple, monkeypatch):
    """It names the part, which goes on to its end."""
    told, copied = [], WORK["box"]

    async def copied_beside_an_end(order, box):
        if not told:
            told.append("begun")
            with pytest.raises(FailedPreconditionError, match=r"part 0 of 1 of the plan .*plan\.json"):
                await ts.finish(simple)
            told.append("refused")
        return await copied(order, box)

    with monkeypatch.context() as patch:
        patch.setitem(WORK, "box", copied_beside_an_end)
        ts.run(simple).result()
    assert told == ["begun", "refused"]
    ts.finish(simple).result()
    check_copied(simple)


def test_commands_run_a_plan(tmp_path):
    """`fsstore copy --save-plan`, `run`, `status` and `finish`; exit codes tell an engine what to do again."""

    def command(*arguments):
        done = subprocess.run(
            [sys.executable, "-m", "fsstore", *map(str, arguments)], capture_output=True, text=True, timeout=100
        )
        return done.returncode, done.stdout + done.stderr

    array_at(tmp_path / "in")
    plan = tmp_path / "p.json"
    options = ("--chunks", "60,4,4", "--max-memory", "30kB", "--save-plan", plan)
    assert command("rechunk", tmp_path / "in", tmp_path / "out", *options)[0] == 0
    assert command("run", plan, "--part", "1/2")[0] == 1
    code, said = command("finish", plan)
    assert code == 3
    assert "run these and finish again" in said
    assert command("status", plan, "--parts", "2") == (1, "0 1\n")
    assert [command("run", plan, "--part", part)[0] for part in ("0/2", "1/2", "2/2")] == [0, 0, 3]
    assert command("status", plan)[0] == 0
    assert command("finish", plan)[0] == 0
    check_copied(plan)


def test_a_plan_between_buckets(object_server, s3_credentials, tmp_path):
    """The plan, its notes and its claims are objects; nothing but the copy is left."""
    pytest.importorskip("s3fs")

    def place(path):
        return {"driver": "s3", "bucket": "bucket", "path": path, "endpoint": object_server.url, "engine": "fsspec"}

    options = {"dtype": "f4", "shape": VALUES.shape, "chunks": (5, 20, 12), "create": True}
    made = ts.open({"driver": "zarr3", "kvstore": place("in/")}, **options).result()
    made[:] = VALUES
    planned = ts.plan_copy(made, place("out/"), schema={"chunks": [60, 4, 4]}, max_memory="30kB").result()
    planned.save(place("copy.plan"))
    run_all(place("copy.plan"), 3)
    assert ts.status(place("copy.plan")).result()
    ts.finish(place("copy.plan")).result()
    copied = ts.open({"driver": "zarr3", "kvstore": place("out/")}, context=ts.Context()).result()
    assert np.array_equal(copied.read().result(), VALUES)
    assert not [path for path in object_server.objects if "fsstore" in path]
    assert b"secret" not in object_server.objects["/bucket/copy.plan"]
