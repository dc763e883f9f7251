"""Combining, saving and appending, killed before each change of a directory: the saved dataset is the old or the new one."""

from __future__ import annotations

import itertools
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from fsstore import references
from fsstore.errors import StoreError
from tests.fault.test_job_deletions import killed

sys.path.insert(0, str(Path(__file__).parents[1] / "interop"))

from many_files import drifted, expected, series, write

sys.path.pop(0)

CHANGES = ("mkdir", "link", "unlink", "rmdir", "rename", "replace", "write", "writev")


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Give four files, of which the third is stored in another way, and what each number of them holds together."""
    monkeypatch.chdir(tmp_path)
    made = drifted(series(4), 2, scale=0.25, zlib=False)
    paths = [tmp_path / f"{number}.nc" for number in range(4)]
    for path, of in zip(paths, made, strict=True):
        write(path, of)
    return [path.name for path in paths], [expected(paths[:count], made[:count]) for count in range(1, 5)]


def seen(place: Path) -> np.ndarray | None:
    """Return the values that a reader finds in a dataset, opened now; None where there is none."""
    if not place.exists():
        return None
    with xr.open_dataset(str(place), engine="fsstore") as found:
        assert np.array_equal(found["time"].values, np.sort(found["time"].values))
        return found["v"].values


def is_one_of(found: np.ndarray | None, *wanted: np.ndarray | None) -> bool:
    return any(
        found is each or (found is not None and each is not None and np.array_equal(found, each, True))
        for each in wanted
    )


@pytest.mark.parametrize("name", ["all.mosaic", "all.mosaic.json"])
@pytest.mark.parametrize("before", [0, 2])
def test_combining_with_a_journal_is_finished_by_the_same_call(files, tmp_path, name, before):
    """A dataset that is made, or takes the place of another, is absent, old or new; a torn note is not believed."""
    names, values = files
    old = values[before - 1] if before else None
    for number in itertools.count(1):
        folder = tmp_path / str(number)
        folder.mkdir()
        place = folder / name
        if before:
            references.combine(names[:before], "time").result().save(place)

        def call(folder=folder, place=place):
            made = references.combine(names, "time", batch=1, journal=folder / "notes").result()
            made.save(place, overwrite=bool(before))

        more = killed(call, number, CHANGES)
        assert is_one_of(seen(place), old, values[3]), number
        try:
            call()
        except StoreError:  # killed when it was saved: nothing is overwritten unasked
            assert not before and is_one_of(seen(place), values[3]), number
        assert is_one_of(seen(place), values[3]), number
        shutil.rmtree(folder)
        if not more:
            break
    assert number > 8


@pytest.mark.parametrize("name", ["all.mosaic", "all.mosaic.json"])
def test_a_killed_append_of_files_is_there_once(files, tmp_path, name):
    """The dataset is the old or the new one; the same call appends the files, or says that they are there."""
    names, values = files
    for number in itertools.count(1):
        folder = tmp_path / str(number)
        folder.mkdir()
        place = folder / name
        references.combine(names[:2], "time").result().save(place)

        def call(folder=folder, place=place):
            references.append(place, names[2:], journal=folder / "notes").result()

        more = killed(call, number, CHANGES)
        assert is_one_of(seen(place), values[1], values[3]), number
        if is_one_of(seen(place), values[1]):
            call()
        else:
            with pytest.raises(references.CombineError, match="has .* already"):
                call()
        assert is_one_of(seen(place), values[3]), number
        shutil.rmtree(folder)
        if not more:
            break
    assert number > 5


def test_others_append_beside_a_killed_append(files, tmp_path):
    """Whatever a killed append left, such as a lock file, keeps no other append out, and its rows are there once."""
    names, values = files
    for number in itertools.count(1):
        folder = tmp_path / str(number)
        folder.mkdir()
        place = folder / "all.mosaic"
        references.combine(names[:2], "time").result().save(place)
        more = killed(lambda place=place: references.append(place, names[2]).result(), number, CHANGES)
        is_there = is_one_of(seen(place), values[2])
        assert is_there or is_one_of(seen(place), values[1]), number
        references.append(place, names[3] if is_there else names[2:]).result()
        assert is_one_of(seen(place), values[3]), number
        assert [each.name for each in folder.iterdir()] == ["all.mosaic"], number
        shutil.rmtree(folder)
        if not more:
            break
    assert number > 1
