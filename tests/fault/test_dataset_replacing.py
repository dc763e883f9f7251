"""A dataset that takes the place of another one: killed at any step, the old or the new is there, and never a mixture."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import xarray as xr

import fsstore as ts
from fsstore.errors import FailedPreconditionError, NotFoundError

pytest.importorskip("dask")

PROGRAM = """
import os, sys, warnings
import dask
import numpy as np
import xarray as xr
import fsstore as ts
from fsstore.job import delete as replacing
from fsstore.kvstore.local.driver import LocalDriver

warnings.simplefilter("ignore")
folder, kind, zarr_format, *steps = sys.argv[1:]

def made(add):
    values = np.arange(60.0).reshape(6, 10) + add
    found = xr.Dataset({"a": (("t", "x"), values), "b": ("t", values[:, 0])}, {"t": np.arange(6) + add})
    return found if add else found.assign(c=found.b * 2)

OLD, NEW = made(0), made(1000)
SCHEMA = {"zarr_format": int(zarr_format), "chunks": {"t": 4, "x": 10}}
GROUP = "g/h" if kind == "group" else ""
CHAIN = "|ocdbt:" if kind == "database" else ""

def apart(function, *arguments):
    child = os.fork()  # no thread runs here
    if not child:
        try:
            with dask.config.set(scheduler="synchronous"):
                function(*arguments)
        except BaseException as error:
            print(repr(error), flush=True)
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

def written(home, data, mode):
    schema = SCHEMA if mode == "w-" else {**SCHEMA, "chunks": {"t": 3, "x": 5}}
    ts.write_dataset(data, f"file://{home}/set/{CHAIN}", mode=mode, group=GROUP, schema=schema, max_memory=100)

def begun(home):
    if GROUP:
        ts.write_dataset(OLD, f"file://{home}/set/", schema=SCHEMA)
    written(home, OLD, "w-")

def killed(home, at):
    count = 0

    def counted(function):
        def run(*arguments, **named):
            nonlocal count
            count += 1
            if count == at:
                os._exit(9)
            return function(*arguments, **named)
        return run

    for name in ("write_many", "delete_range", "take_values", "remove_directory", "sweep_unfinished"):
        setattr(LocalDriver, name, counted(getattr(LocalDriver, name)))
    real = (lambda *_: False) if kind == "copied" else counted(replacing.exchanged)
    replacing.exchanged = lambda *given: real(*given)
    written(home, NEW.chunk(t=2, x=3), "w")

def looked(home, is_end):
    def opened():
        return xr.open_dataset(f"file://{home}/set/{CHAIN}", engine="fsstore", group=GROUP or None).load()

    try:
        found = opened()
    except ts.errors.StoreError:
        assert not is_end and kind in ("copied", "group"), "nothing is there"
        return
    if is_end:
        xr.testing.assert_identical(found, NEW)
        assert found.a.encoding["chunks"] == (3, 5)
    elif kind == "copied":  # in the middle not all variables are there, and none is mixed
        assert any(all(name in state and found[name].equals(state[name]) for name in found.variables) for state in (OLD, NEW))
    else:
        assert found.identical(OLD) or found.identical(NEW), found
    if GROUP:
        assert xr.open_dataset(f"file://{home}/set/", engine="fsstore").load().identical(OLD)

def ended(home):
    if GROUP:  # another job ends what is left beside the group
        ts.write_dataset(OLD[["b"]], f"file://{home}/set/", mode="a")
    written(home, NEW.chunk(t=2, x=3), "w")

for at in map(int, steps):
    home = f"{folder}/{at}"
    assert apart(begun, home) == 0
    end = apart(killed, home, at)
    assert end in (0, 9), (at, end)
    assert apart(looked, home, False) == 0, at
    assert apart(ended, home) == 0, at
    assert apart(looked, home, True) == 0, at
    left = [name for _, names, files in os.walk(home) for name in names + files if "fsstore-job" in name or "__lock" in name]
    assert not left, (at, left)
    if not end:
        break
print("at the end" if not end else "killed each time", at)
"""
KINDS = ["exchanged", "copied", "group", "database"]


def check_kills(tmp_path, kind, zarr_format, steps):
    """Kill a replacement at each step in turn; see what is there, and that the same call ends it; return the last."""
    command = [sys.executable, "-c", PROGRAM, tmp_path, kind, zarr_format, *steps]
    ended = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=1500)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("kind", "zarr_format"), [*zip(KINDS, (3, 2, 3, 3), strict=True)])
def test_a_kill_leaves_the_old_or_the_new(tmp_path, kind, zarr_format):
    """While it is made and in the switch; the same call begins anew or ends it, and nothing is left over."""
    check_kills(tmp_path, kind, zarr_format, (30, 50))


@pytest.fixture
def places(tmp_path, moto_bucket, s3_credentials):
    """Return a place of each kind with the options by which it is opened."""
    endpoint, bucket = moto_bucket
    here = {"context": ts.Context()}
    return {
        "directory": (f"file://{tmp_path}/set/", here),
        "memory": ("memory://set/", here),
        "archive": (f"file://{tmp_path}/set.zip|zip:", here),
        "database": (f"file://{tmp_path}/set.ocdbt/|ocdbt:", here),
        "bucket": (f"s3://{bucket}/{tmp_path.name}/set/", here | {"storage_options": {"endpoint_url": endpoint}}),
    }


@pytest.mark.parametrize("group", ["", "g"])
@pytest.mark.parametrize("kind", ["directory", "memory", "archive", "database", "bucket"])
def test_readers_see_the_old_until_the_new_is_whole(places, kind, group):
    """Whoever opens it while a block of the new one is computed finds the old one, and so does one whose block fails.

    A second job meanwhile is told who is at it.
    """
    place, options = places[kind]
    old = xr.Dataset({"a": ("x", np.arange(6.0)), "b": ("x", np.arange(6))})
    new = xr.Dataset({"a": ("x", np.arange(8.0) + 100)})
    ts.write_dataset(old, place, group=group, **options)

    def found():
        return xr.open_dataset(place, engine="fsstore", group=group or None, cache=False, **options).load()

    def lazy(look):
        blocks = new.chunk(x=3)
        return blocks.assign(a=blocks.a.copy(data=blocks.a.data.map_blocks(look, dtype="f8", meta=np.empty(0))))

    def fail(block):
        raise ArithmeticError("no value")

    def look(block):
        seen.append(found())
        if kind != "archive":  # is made apart, and written as one at the end
            with pytest.raises(FailedPreconditionError, match="is being changed by a write of a dataset"):
                ts.write_dataset(old, place, mode="w", group=group, **options)
        return block

    seen = []
    for mode in ({"mode": "w"}, {"if_exists": "replace"}):
        with pytest.raises(ArithmeticError):
            ts.write_dataset(lazy(fail), place, group=group, max_memory=40, **mode, **options)
        xr.testing.assert_identical(found(), old)
    ts.write_dataset(lazy(look), place, mode="w", group=group, max_memory=40, **options)
    assert len(seen) == 3
    assert all(each.identical(old) for each in seen)
    xr.testing.assert_identical(found(), new)
    keys = ts.KvStore.open(place, **options).result().list().result()
    assert not [key for key in keys if b"fsstore-job" in key or b"b/" in key]


def test_a_replacement_on_a_bucket_is_ended_by_any_later_job(places, monkeypatch):
    """A job that is killed when the old documents are gone has noted that the new dataset is whole."""
    place, options = places["bucket"]
    old, new = (xr.Dataset({"a": ("x", np.arange(4.0) + add)}, {"x": np.arange(4)}) for add in (0, 100))
    ts.write_dataset(old, place, **options)

    async def killed(*_arguments):
        raise InterruptedError

    with monkeypatch.context() as patched:
        patched.setattr("fsstore.job.delete.work_on", killed)
        with pytest.raises(InterruptedError):
            ts.write_dataset(new, place, mode="w", **options)
    with pytest.raises(NotFoundError):
        xr.open_dataset(place, engine="fsstore", **options)
    more = new.assign_coords(x=np.arange(4, 8))
    ts.write_dataset(more, place, append="x", **options)
    xr.testing.assert_identical(xr.open_dataset(place, engine="fsstore", **options).load(), xr.concat([new, more], "x"))


@pytest.mark.long
@pytest.mark.timeout(1600)
@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_a_kill_at_any_step_leaves_the_old_or_the_new(tmp_path, kind, zarr_format):
    """At each step until the end."""
    assert "at the end" in check_kills(tmp_path, kind, zarr_format, range(1, 1000))
