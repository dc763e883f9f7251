"""Replacing an array, also by itself in other chunks: killed at any step, the old or the new is there."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import fsstore as ts
from fsstore.errors import DataLossError, StoreError

OLD = np.arange(600, dtype="i4").reshape(20, 30)
NEW = OLD + 1000

PROGRAM = """
import os, sys
import numpy as np
import fsstore as ts
from fsstore.job import delete as replacing
from fsstore.kvstore.local.driver import LocalDriver

folder, itself, exchanges, *steps = sys.argv[1:]
itself, exchanges = itself == "True", exchanges == "True"
old = np.arange(600, dtype="i4").reshape(20, 30)
source = "a" if itself else "b"

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

def made(home):
    group = ts.open_group(home, mode="a").result()
    for name, add in (("a", 0), ("b", 1000)):
        group.create_array(name, shape=old.shape, dtype="i4", chunks=(5, 30)).result()[:] = old + add

def copied(home, at):
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
    real = counted(replacing.exchanged) if exchanges else (lambda *_: False)
    replacing.exchanged = lambda *given: real(*given)
    ts.copy(f"{home}/{source}", f"{home}/a", schema={"chunks": [20, 3]}, if_exists="replace").result()

def looked(home, is_end):
    try:
        array = ts.open(f"{home}/a").result()
    except ts.errors.StoreError:
        assert not is_end and not exchanges, "nothing is there"
        return
    found, new = array.read().result(), old if itself else old + 1000
    if is_end:
        assert array.chunk_layout.write_chunk.shape == (20, 3)
    assert np.array_equal(found, new) or (not is_end and np.array_equal(found, old)), "neither"

for at in map(int, steps):
    home = f"{folder}/{at}"
    assert apart(made, home) == 0
    ended = apart(copied, home, at)
    assert ended in (0, 9), (at, ended)
    assert apart(looked, home, False) == 0, at
    assert apart(copied, home, 0) == 0, at
    assert apart(looked, home, True) == 0, at
    left = [name for _, names, files in os.walk(home) for name in names + files if "fsstore-job" in name or "__lock" in name]
    assert not left, (at, left)
    if not ended:
        break
print("at the end" if not ended else "killed each time", at)
"""


def place_of(folder, values, name, chunks=(5, 30)):
    """Make an array with values, and return its place."""
    group = ts.open_group(folder, mode="a").result()
    group.create_array(name, shape=values.shape, dtype="i4", chunks=chunks).result()[:] = values
    return str(folder / name)


def seen(place):
    """Return what stands at a place, None if nothing can be opened there."""
    try:
        return ts.open(place).result().read().result()
    except StoreError:
        return None


def left_in(folder):
    """Return what jobs have left."""
    return [path.name for path in folder.rglob("*") if "fsstore-job" in path.name or "__lock" in path.name]


def check_kills(tmp_path, steps, *, itself, exchanges):
    """Kill a replacement at each step in turn; see what is there, and that the same call ends it; return the last."""
    command = [sys.executable, "-c", PROGRAM, tmp_path, itself, exchanges, *steps]
    ended = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=600)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.mark.parametrize(
    ("itself", "exchanges"), [(True, True), (False, False)], ids=["itself, exchanged", "another, copied"]
)
def test_a_kill_leaves_the_old_or_the_new(tmp_path, itself, exchanges):
    """At steps of each part; where directories cannot be exchanged nothing may be open, and the same call ends it."""
    check_kills(tmp_path, (16, 20, 24, 39), itself=itself, exchanges=exchanges)


@pytest.mark.long
@pytest.mark.parametrize("exchanges", [True, False], ids=["exchanged", "copied"])
@pytest.mark.parametrize("itself", [True, False], ids=["itself", "another"])
def test_a_kill_at_any_step_leaves_the_old_or_the_new(tmp_path, itself, exchanges):
    """At each step until the end."""
    assert "at the end" in check_kills(tmp_path, range(1, 500), itself=itself, exchanges=exchanges)


def test_a_check_comes_before_the_switch(tmp_path, monkeypatch):
    """A new array that is not what its source is never takes the place of the old one."""
    from fsstore.job import copy

    target, source = place_of(tmp_path, OLD, "a"), place_of(tmp_path, NEW, "b")
    made = copy.made_elsewhere

    async def damaged(job):
        found = await made(job)
        finish = type(found.job).finish

        async def spoiled(self):
            array = await finish(self)
            await array[0, 0].write(-1).commit
            return array

        monkeypatch.setattr(type(found.job), "finish", spoiled)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(copy, "made_elsewhere", damaged)
        with pytest.raises(DataLossError, match="not what its source is"):
            ts.copy(source, target, if_exists="replace", verify="values").result()
    assert np.array_equal(seen(target), OLD)


def test_there_is_an_array_at_every_moment(tmp_path):
    """Whoever opens the array beside its replacement finds the old or the new one."""
    target, source = place_of(tmp_path, OLD, "a"), place_of(tmp_path, NEW, "b")
    layouts, seen_layouts = [[20, 3], [5, 30]], set()
    for number in range(6):
        job = ts.copy(source, target, schema={"chunks": layouts[number % 2]}, if_exists="replace")
        while not job.done():
            seen_layouts.add(ts.open(target).result().chunk_layout.write_chunk.shape)
        job.result()
    assert seen_layouts == {(20, 3), (5, 30)}
    assert left_in(tmp_path) == []


def test_a_directory_behind_a_link_is_replaced(tmp_path):
    """The link stays, and what it leads to is the new array."""
    target = place_of(tmp_path, OLD, "a")
    (tmp_path / "link").symlink_to(target)
    ts.copy(place_of(tmp_path, NEW, "b"), tmp_path / "link", if_exists="replace").result()
    assert (tmp_path / "link").is_symlink()
    assert np.array_equal(seen(target), NEW)
    assert left_in(tmp_path) == []


def test_memory_is_replaced_in_one_step():
    """Every listing has the documents and all chunks of one of the arrays."""
    context = ts.Context()
    target = ts.KvStore.open("memory://a/", context=context).result()
    ts.copy(ts.array(OLD), target, schema={"chunks": [5, 30]}).result()
    ts.copy(ts.array(NEW), target, schema={"chunks": [20, 3]}, if_exists="replace", verify="values").result()
    assert sorted(target.list().result()) == sorted([b"zarr.json", *(b"c/0/%d" % n for n in range(10))])


def test_a_note_cannot_name_any_other_directory(tmp_path):
    """A note of an exchange is of a directory of a job, or an error: nothing else is removed."""
    target = place_of(tmp_path, OLD, "a")
    other = place_of(tmp_path, NEW, "b")
    (tmp_path / "a/.fsstore-job").mkdir()
    (tmp_path / "a/.fsstore-job/exchanged").write_text("b")
    with pytest.raises(DataLossError, match="no directory of a job"):
        ts.copy(other, target, if_exists="replace").result()
    assert np.array_equal(seen(other), NEW)
