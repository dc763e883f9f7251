"""Jobs that delete what stands at a place, killed before each change of a directory: nothing old shows through later."""

from __future__ import annotations

import itertools
import os
import shutil
from pathlib import Path

import pytest

import fsstore as ts

QUICK = ts.Context({"file_io_sync": False})


def killed(job, number: int, changes: tuple[str, ...] = ("unlink", "rmdir", "rename", "replace", "link")) -> bool:
    """Do a job in a child that dies before a change of a directory by number; return whether it came to that."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    try:
        left = itertools.count(number, -1)
        for name in changes:
            change = getattr(os, name)

            def counted(*arguments, change=change, **options):
                if not next(left):
                    os._exit(9)
                return change(*arguments, **options)

            setattr(os, name, counted)
        job()
    finally:
        os._exit(0)


def made(place: Path, path: str, values: list[int], stored: int) -> ts.TensorStore:
    group = ts.open_group(place, mode="a").result()
    array = group.create_array(path, shape=[len(values)], dtype="i4", chunks=[1]).result()
    array[:stored] = values[:stored]
    return array


def contents(place: Path) -> list[str]:
    return sorted(str(path.relative_to(place)) for path in place.rglob("*"))


def test_replacing_an_array_is_finished_after_a_kill(tmp_path):
    """Chunks of the old array never become those of the new one, which stores fewer; other files are none of ours."""
    new = made(tmp_path / "a", "new", [0, 0], 0)
    made(tmp_path / "a", "old", [1, 2], 2)
    ts.copy(new, tmp_path / "whole").result()
    for number in itertools.count(1):
        place = tmp_path / str(number)
        shutil.copytree(tmp_path / "a/old", place)
        more = killed(lambda place=place: ts.copy(new, place, if_exists="replace", context=QUICK).result(), number)
        try:
            seen = ts.open(f"file://{place}/").result().read().result().tolist()
        except (ts.errors.NotFoundError, ts.errors.FailedPreconditionError):
            seen = None
        assert seen in ([1, 2], None, [0, 0]), number
        ts.copy(new, place, if_exists="replace", context=QUICK).result()
        assert contents(place) == contents(tmp_path / "whole"), number
        if not more:
            break
    assert number > 10


def test_another_copy_takes_the_place_of_a_killed_one(tmp_path):
    """Chunks that a killed copy left go when another is made there; other files in the directory stay."""
    old = made(tmp_path / "a", "old", [1, 2, 3, 4], 4)
    new = made(tmp_path / "a", "new", [5, 6, 0, 0], 2)
    place = tmp_path / "b"
    for number in itertools.count(1):
        (place / "notes").mkdir(parents=True)
        (place / "notes/1.txt").write_text("kept")
        assert killed(lambda: ts.copy(old, place, schema={"zarr_format": 2}).result(), number)
        if any(name.isdigit() for name in contents(place)):
            break
        shutil.rmtree(place)
    ts.copy(new, place).result()
    assert [name for name in contents(place) if "/" not in name] == ["c", "notes", "zarr.json"]
    assert contents(place / "c") == ["0", "1"]
    assert (place / "notes/1.txt").read_text() == "kept"


def test_deleting_is_finished_after_a_kill(tmp_path):
    """A delete of a group that was killed leaves arrays as they were or none, and the same call does the rest."""
    made(tmp_path / "a", "g/x", [1, 2], 2)
    for number in itertools.count(1):
        place = tmp_path / str(number)
        shutil.copytree(tmp_path / "a", place)
        more = killed(lambda place=place: ts.delete(place, context=QUICK).result(), number)
        try:
            seen = ts.open(f"file://{place}/g/x/").result().read().result().tolist()
        except (ts.errors.NotFoundError, ts.errors.FailedPreconditionError):
            seen = None
        assert seen in ([1, 2], None), number
        if more:
            try:
                ts.delete(place, context=QUICK).result()
            except ts.errors.NotFoundError:  # it was killed when everything was gone
                assert seen is None
        assert not place.exists(), number
        if not more:
            break
    assert number > 8


def test_what_is_no_array_is_not_deleted(tmp_path):
    """A directory of other files is told to be no array, and stays."""
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/1.jpg").write_bytes(b"x")
    with pytest.raises(ts.errors.StoreError, match="photos"):
        ts.delete(tmp_path / "photos").result()
    assert contents(tmp_path) == ["photos", "photos/1.jpg"]
