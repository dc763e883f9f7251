"""What a copy takes from an earlier run that was killed: only what is there, of the same source and target."""

from __future__ import annotations

import os
import shutil

import numpy as np
import pytest

import fsstore as ts
from fsstore.errors import AbortedError, FailedPreconditionError
from fsstore.job.array_copy import ArrayCopy

VALUES = np.random.default_rng(0).integers(1, 1 << 30, (40, 50), dtype="i4")
SCHEMAS = [{}, {"chunks": [50, 10]}]


class _KilledError(Exception):
    """Stands for a kill."""


@pytest.fixture(params=SCHEMAS, ids=["untouched", "other chunks"])
def begun(request, tmp_path, monkeypatch):
    """A source, and a copy whose tasks are all noted, but whose metadata are not written yet; returns how to go on."""
    group = ts.open_group(tmp_path / "in", mode="w").result()
    array = group.create_array("a", shape=VALUES.shape, dtype="i4", chunks=[5, 50]).result()
    array[:] = VALUES

    async def killed(_self):
        raise _KilledError

    def copy():
        options = {"schema": request.param, "max_memory": "20kB"}
        return ts.copy(str(tmp_path / "in/a"), tmp_path / "out", **options).result()

    with monkeypatch.context() as patch:
        patch.setattr(ArrayCopy, "finish", killed)
        with pytest.raises(_KilledError):
            copy()
    return array, copy


def read(tmp_path):
    """Return the copy; nothing of a job may be beside it."""
    assert [name for name in os.listdir(tmp_path / "out") if "fsstore" in name] == []
    return ts.open(str(tmp_path / "out")).result().read().result()


def test_what_is_there_is_not_done_again(begun, tmp_path):
    """The same call finds all tasks finished."""
    report = begun[1]()
    assert report.resumed >= 1
    assert report.tasks == report.resumed or report.nbytes == 0
    assert np.array_equal(read(tmp_path), VALUES)


def test_an_emptied_target_is_begun_anew(begun, tmp_path):
    """`rm -rf target/*` leaves the journal, whose name begins with a dot, and nothing that it tells of."""
    for path in (tmp_path / "out").iterdir():
        if not path.name.startswith("."):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert begun[1]().resumed == 0
    assert np.array_equal(read(tmp_path), VALUES)


def test_a_chunk_that_is_gone_is_made_again(begun, tmp_path):
    """The others stay."""
    chunks = [path for path in (tmp_path / "out/c").rglob("*") if path.is_file()]
    chunks[len(chunks) // 2].unlink()
    begun[1]()
    assert np.array_equal(read(tmp_path), VALUES)


def test_a_source_that_was_written_is_copied_anew(begun, tmp_path):
    """No value of the old one stays, though shape and type are the same."""
    array, copy = begun
    array[:] = VALUES + 1
    assert copy().resumed == 0
    assert np.array_equal(read(tmp_path), VALUES + 1)


def test_chunks_from_a_backup_are_not_taken_for_those_of_the_job(begun, tmp_path):
    """Chunks of another copy came under the same names, without the journal: the mark of that copy came along."""
    for path in (tmp_path / "out/c").rglob("*"):
        if path.is_file():
            path.write_bytes(b"\0" * path.stat().st_size)
    (tmp_path / "out/fsstore-job").write_text("another")
    begun[1]()
    assert np.array_equal(read(tmp_path), VALUES)


def test_a_copied_target_is_begun_anew(begun, tmp_path):
    """The journal in it is of another place."""
    shutil.copytree(tmp_path / "out", tmp_path / "other")
    victims = [path for path in (tmp_path / "other/c").rglob("*") if path.is_file()]
    victims[0].write_bytes(b"\0" * victims[0].stat().st_size)
    report = ts.copy(str(tmp_path / "in/a"), tmp_path / "other", schema={"chunks": [50, 10]}).result()
    assert report.resumed == 0
    assert np.array_equal(ts.open(str(tmp_path / "other")).result().read().result(), VALUES)


def test_a_source_that_is_written_meanwhile_is_an_error(tmp_path, monkeypatch):
    """The array does not appear, and the same call makes it."""
    group = ts.open_group(tmp_path / "in", mode="w").result()
    array = group.create_array("a", shape=VALUES.shape, dtype="i4", chunks=[5, 50]).result()
    array[:] = VALUES
    heard = []

    def written(progress):
        if not heard:
            heard.append(progress)
            array[:5] = 0

    with pytest.raises(ts.errors.AbortedError, match="was written while it was copied"):
        ts.copy(array, tmp_path / "out", schema={"chunks": [50, 10]}, progress=written).result()
    assert not (tmp_path / "out/zarr.json").exists()
    ts.copy(array, tmp_path / "out", schema={"chunks": [50, 10]}).result()
    assert np.array_equal(read(tmp_path), array.read().result())


def test_a_group_goes_on_after_the_arrays_that_are_done(tmp_path, monkeypatch):
    """The same call leaves them alone and copies the rest; a new copy onto what is there is refused beforehand."""
    source = ts.open_group(tmp_path / "in", mode="w").result()
    for number in range(4):
        made = source.create_array(f"a{number}", shape=[20], dtype="i4").result()
        made[:] = np.full(20, number + 1, "i4")
    finish, done = ArrayCopy.finish, []

    async def killed_at_the_third(self):
        if len(done) == 2:
            raise _KilledError
        done.append(self.path)
        return await finish(self)

    with monkeypatch.context() as patch:
        patch.setattr(ArrayCopy, "finish", killed_at_the_third)
        with pytest.raises(_KilledError):
            ts.copy(source, tmp_path / "out").result()
    before = (tmp_path / "out/a0/zarr.json").stat().st_ino
    ts.copy(source, tmp_path / "out").result()
    assert (tmp_path / "out/a0/zarr.json").stat().st_ino == before
    made = ts.open_group(tmp_path / "out").result()
    assert [int(made.open(f"a{n}").result()[0].read().result()) for n in range(4)] == [1, 2, 3, 4]
    assert not [path for path in (tmp_path / "out").rglob("*") if "fsstore-job" in path.name]
    (tmp_path / "out/zarr.json").unlink()
    shutil.rmtree(tmp_path / "out/a0")
    with pytest.raises(ts.errors.AlreadyExistsError):
        ts.copy(source, tmp_path / "out").result()
    assert not (tmp_path / "out/a0").exists()  # nothing was begun


def writing(place, name):
    """Return a report of progress that writes the source at the first task, once."""
    wrote = []

    def report(_state):
        if not wrote:
            wrote.append(True)
            ts.open(str(place / name)).result().write(VALUES[::-1]).result()

    return report


def test_a_group_of_which_an_array_is_written_meanwhile_is_no_success(tmp_path):
    """Arrays that are done when their source is written would be older than those that follow."""
    group = ts.open_group(tmp_path / "in", mode="w").result()
    for name in "ab":
        group.create_array(name, shape=VALUES.shape, dtype="i4", chunks=[5, 50]).result().write(VALUES).result()
    begun = []

    def report(state):
        begun.append(state)
        if (tmp_path / "out/a/zarr.json").exists():
            writes(state)

    writes = writing(tmp_path, "in/a")
    options = {"schema": {"chunks": [10, 10]}, "max_memory": "20kB"}
    with pytest.raises(AbortedError, match=r'in/a.* was written while .*if_exists="replace"'):
        ts.copy(str(tmp_path / "in"), tmp_path / "out", progress=report, **options).result()
    ts.copy(str(tmp_path / "in"), tmp_path / "out", if_exists="replace", **options).result()
    assert np.array_equal(ts.open(str(tmp_path / "out/a")).result().read().result(), VALUES[::-1])


@pytest.mark.parametrize("named", [False, True])
def test_an_append_whose_source_is_written_meanwhile_is_no_success(tmp_path, named):
    """Its rows would be of two states; the array is as it was, and the next call appends what is there then."""
    group = ts.open_group(tmp_path / "in", mode="w").result()
    for name in "ab":
        group.create_array(name, shape=VALUES.shape, dtype="i4", chunks=[5, 50]).result().write(VALUES).result()
    target, source = str(tmp_path / "in/b"), str(tmp_path / "in/a")
    options = {"max_memory": "20kB"} | ({"append_id": "today"} if named else {})
    with pytest.raises(FailedPreconditionError, match="was written meanwhile, and the array is as it was"):
        ts.append(target, source, progress=writing(tmp_path, "in/a"), **options).result()
    assert ts.open(target).result().shape == VALUES.shape
    ts.append(target, source, **options).result()
    found = ts.open(target).result().read().result()
    assert np.array_equal(found, np.concatenate([VALUES, VALUES[::-1]]))


def test_an_append_by_name_takes_nothing_of_other_values(tmp_path):
    """A call with the name of an append that was stopped, and with other values, begins anew."""
    group = ts.open_group(tmp_path / "in", mode="w").result()
    group.create_array("b", shape=VALUES.shape, dtype="i4", chunks=[5, 50]).result().write(VALUES).result()
    target, options = str(tmp_path / "in/b"), {"append_id": "today", "max_memory": "20kB"}

    def stopped(state):
        if state.tasks > 2:
            raise _KilledError

    with pytest.raises(_KilledError):
        ts.append(target, VALUES, progress=stopped, **options).result()
    ts.append(target, VALUES[::-1], **options).result()
    found = ts.open(target).result().read().result()
    assert np.array_equal(found, np.concatenate([VALUES, VALUES[::-1]]))
