"""The traceback of a mistake shows the user's line, and at most two frames of the package."""

from __future__ import annotations

import shutil
import traceback

import numpy as np
import pytest
import xarray as xr

import fsstore as ts
import fsstore.sync as fs
from fsstore.errors import StoreError

MISTAKES = {
    "a group": lambda: ts.open("g.zarr").result(),
    "nothing": lambda: ts.open("nothing.zarr").result(),
    "a document that is cut off": lambda: ts.open("cut.zarr").result(),
    "a chunk that is damaged": lambda: ts.open("damaged.zarr").result().read().result(),
    "a negative index": lambda: ts.open("a.zarr").result()[-1],
    "an index outside": lambda: ts.open("a.zarr").result()[9].read().result(),
    "another shape": lambda: ts.open("a.zarr").result().write(np.zeros(5, "i8")).result(),
    "another shape assigned": lambda: ts.open("a.zarr").result().__setitem__(slice(0, 3), np.zeros(5, "i8")),
    "another type": lambda: ts.open("a.zarr", dtype="f4").result(),
    "an array for a group": lambda: ts.open_group("a.zarr").result(),
    "an array that exists": lambda: ts.open("a.zarr", mode="w-", shape=[3], dtype="i4").result(),
    "a member that exists": lambda: ts.open_group("g.zarr").result().create_array("a", data=[1]).result(),
    "a member that exists, assigned": lambda: ts.open_group("g.zarr").result().__setitem__("a", [1]),
    "a copy of nothing": lambda: ts.copy("nothing.zarr", "b.zarr").result(),
    "nothing to xarray": lambda: xr.open_dataset("nothing.zarr", engine="fsstore"),
    "a dataset that exists": lambda: ts.write_dataset(xr.Dataset({"a": ("x", [1.0])}), "g.zarr"),
    "nothing, not waited for": lambda: fs.open("nothing.zarr"),
    "nothing for a group, not waited for": lambda: fs.open_group("nothing.zarr"),
}


@pytest.fixture
def places(tmp_path, monkeypatch):
    """Give arrays and groups, whole and damaged, in a directory of its own."""
    monkeypatch.chdir(tmp_path)
    group = ts.open_group("g.zarr", mode="a").result()
    group["a"], group["b"] = np.arange(4), np.arange(3)
    ts.open("a.zarr", data=np.arange(6)).result()
    for name, key, size in (("cut.zarr", "zarr.json", 30), ("damaged.zarr", "c/0", 2)):
        shutil.copytree("a.zarr", name)
        (tmp_path / name / key).write_bytes((tmp_path / name / key).read_bytes()[:size])


def frames(error):
    """Return the functions of this package and of this file in a printed traceback, and its lines."""
    text = "".join(traceback.format_exception(error))
    files = [line.split('"')[1] for line in text.splitlines() if line.startswith('  File "')]
    own = [name for name in files if "/fsstore/" in name and "/tests/" not in name]
    return own, [name for name in files if name == __file__], text.splitlines()


@pytest.mark.parametrize("what", MISTAKES)
def test_a_mistake_is_shown_at_the_line_of_its_user(places, what):
    """Two frames of ours at most, in few lines, and no error before the one that tells it all."""
    with pytest.raises((StoreError, IndexError)) as caught:
        MISTAKES[what]()
    own, users, lines = frames(caught.value)
    assert len(own) <= 2, own
    assert len(users) == 2
    assert len(lines) <= 24
    assert not any("direct cause" in line or "During handling" in line for line in lines)


def test_an_error_that_is_raised_twice_has_one_traceback(places):
    """The second call of `result` shows its own line, and not that of the first, too."""
    future = ts.open("nothing.zarr")
    for _ in range(2):
        with pytest.raises(StoreError) as caught:
            future.result()
        assert len(frames(caught.value)[1]) == 1


def test_errors_of_others_are_shown_whole(places):
    """What a function of the user raises keeps its frames: only it knows where it came about."""

    def fail(array, *_):
        raise ArithmeticError("no value")

    array = ts.virtual_chunked(fail, dtype="int32", domain=ts.IndexDomain(shape=[2]))
    with pytest.raises(ArithmeticError) as caught:
        array.read().result()
    assert [each.name for each in traceback.extract_tb(caught.value.__traceback__)][-1] == "fail"


def test_all_is_shown_to_those_who_ask(places, monkeypatch):
    """With the variable in the environment the frames and causes of our errors are there."""
    monkeypatch.setenv("FSSTORE_TRACEBACKS", "full")
    with pytest.raises(StoreError) as caught:
        ts.open("g.zarr").result()
    assert len(frames(caught.value)[0]) > 5
