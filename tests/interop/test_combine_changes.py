"""A combined dataset that changes: files added, replaced and dropped, by several writers, in runs that are killed."""

from __future__ import annotations

import os
import shutil
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import fsstore as ts
from fsstore import references
from fsstore.combine import many

sys.path.insert(0, str(Path(__file__).parent))

from many_files import FileOf, expected, series, write

sys.path.pop(0)


@pytest.fixture
def made(tmp_path, monkeypatch):
    """Give the paths and contents of six files, of which the first three are combined, by relative paths."""
    monkeypatch.chdir(tmp_path)
    files = [*series(5), FileOf(start=20, scale=0.25)]
    paths = [tmp_path / f"{number}.nc" for number in range(6)]
    for path, of in zip(paths, files, strict=True):
        write(path, of)
    references.combine([path.name for path in paths[:3]], "time").result().save(tmp_path / "all.mosaic")
    return tmp_path / "all.mosaic", paths, files


def _values(place):
    with xr.open_dataset(str(place), engine="fsstore") as found:
        return found["v"].values


def test_only_new_files_are_scanned(made, monkeypatch):
    """Appending scans what is appended, and the dataset then is that of all files, the layered ones too."""
    place, paths, files = made
    scanned = []
    plain = many.scan_files_here
    monkeypatch.setattr(many, "scan_files_here", lambda urls, dims: scanned.extend(urls) or plain(urls, dims))
    references.append(place, [paths[4], paths[3]]).result()
    references.append(place, paths[5]).result()
    assert sorted(scanned) == sorted(map(str, paths[3:]))
    np.testing.assert_array_equal(_values(place), expected(paths, files))


def test_what_was_opened_before_stays_what_it_was(made):
    """A reader keeps the extent it opened; the next one sees the new one."""
    place, paths, files = made
    before = ts.open(f"{place.as_uri()}|mosaic:v").result()
    references.append(place, paths[3]).result()
    assert before.shape == (12, 3, 5)
    np.testing.assert_array_equal(_values(place), expected(paths[:4], files[:4]))


def test_two_who_append_at_once_lose_nothing(made):
    """Appends at the same time are both there in the end."""
    place, paths, files = made
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda path: references.append(place, path).result(), paths[3:]))
    np.testing.assert_array_equal(_values(place), expected(paths, files))


def test_a_file_cannot_be_added_twice(made):
    """Appending a file that is there is an error that says what to do."""
    place, paths, _ = made
    with pytest.raises(references.CombineError, match="`replace` scans it again"):
        references.append(place, paths[1].name).result()


def test_a_changed_file_is_told_and_replaced(made):
    """Sizes and generations tell which files changed; `check_targets` refuses to read them, `replace` takes them in."""
    place, paths, files = made
    assert references.changed_files(place).result() == {}
    files[1] = FileOf(start=4, offset=100.0, zlib=False)
    write(paths[1], files[1])
    assert list(references.changed_files(place).result()) == ["1.nc"]
    checked = {"driver": "mosaic", "base": place.as_uri(), "check_targets": True, "path": "v/"}
    array = ts.open({"driver": "zarr", "kvstore": checked}).result()
    array[:4].read().result()
    with pytest.raises(ValueError, match=r'"1.nc" .*since it was scanned'):
        array[4:8].read().result()
    references.replace(place, paths[1].name).result()
    assert references.changed_files(place).result() == {}
    np.testing.assert_array_equal(_values(place), expected(paths[:3], files[:3]))


@pytest.mark.parametrize("change", ["longer", "shorter", "another"])
def test_a_file_of_another_size_is_never_read(made, change):
    """Its bytes would be taken for those of the old one; other files are read as before."""
    place, paths, _ = made
    array = ts.open(f"{place.as_uri()}|mosaic:v").result()
    before, data = array[:4].read().result(), paths[1].read_bytes()
    if change == "another":
        write(paths[1], FileOf(start=4, offset=100.0, zlib=False))
    now = paths[1].read_bytes()[:-1] if change == "shorter" else paths[1].read_bytes() + b"x"
    paths[1].write_bytes(now)
    np.testing.assert_array_equal(array[:4].read().result(), before)
    message = rf"1\.nc.*it had {len(data)} bytes when it was scanned, and has {len(now)}; scan it again"
    for box in (np.s_[4:8], np.s_[:], np.s_[5, 0, 0]):
        with pytest.raises(ts.errors.DataLossError, match=message):
            array[box].read().result()


def _dates(path):
    return (path.stat().st_atime_ns, path.stat().st_mtime_ns)


@pytest.mark.parametrize("form", ["all.mosaic", "all.mosaic.json"])
def test_a_file_written_anew_at_the_same_size_is_never_read(made, form):
    """Where the dataset lies where it was saved; one who says that the file is a copy may read it."""
    _, paths, _ = made
    place = paths[0].with_name(form)
    references.combine([path.name for path in paths[:3]], "time").result().save(place, overwrite=True)
    array = ts.open(f"{place.as_uri()}|mosaic:v").result()
    before = array.read().result()
    paths[1].write_bytes(paths[1].read_bytes()[:-1] + b"?")
    np.testing.assert_array_equal(array[:4].read().result(), before[:4])
    for reader in (array, ts.open(f"{place.as_uri()}|mosaic:v").result()):
        with pytest.raises(ts.errors.DataLossError, match=r"1\.nc.*written anew since it was scanned; scan it again"):
            reader[4:8].read().result()


def test_copies_of_a_dataset_are_read(made, tmp_path):
    """Files of a copy have other dates and lie elsewhere; so do those that are restored with their dates."""
    place, paths, files = made
    wanted = expected(paths[:3], files[:3])
    shutil.copytree(tmp_path, tmp_path / "copy")
    for path in paths[:3]:
        os.utime(tmp_path / "copy" / path.name)
    np.testing.assert_array_equal(_values(tmp_path / "copy" / place.name), wanted)
    dates, data = _dates(paths[1]), paths[1].read_bytes()
    paths[1].unlink()
    paths[1].write_bytes(data)
    os.utime(paths[1], ns=dates)
    np.testing.assert_array_equal(_values(place), wanted)
    checked = {"driver": "mosaic", "base": place.as_uri(), "path": "v/"}
    array = ts.open({"driver": "zarr", "kvstore": {**checked, "check_targets": False}}).result()
    before = array.read().result()
    os.utime(paths[1])
    np.testing.assert_array_equal(array.read().result(), before)
    with pytest.raises(ts.errors.DataLossError, match="written anew"):
        _values(place)


def test_what_is_checked_stays_so(made, tmp_path):
    """Adding files, and saving elsewhere, keep the checks; what names other files then, or was copied, has none."""
    place, paths, files = made
    (tmp_path / "away").mkdir()
    (tmp_path / "away" / "moved.mosaic").write_bytes(place.read_bytes())
    for path in paths:
        shutil.copy(path, tmp_path / "away")
    references.append(place, paths[3]).result()
    references.append(tmp_path / "away" / "moved.mosaic", tmp_path / "away" / "3.nc").result()
    references.Combined.open(place).save(tmp_path / "again.mosaic")
    references.Combined.open(place).save(tmp_path / "away" / "there.mosaic", relative="./")
    for path in paths:
        os.utime(path)
        os.utime(tmp_path / "away" / path.name)
    for name in ("all.mosaic", "again.mosaic"):
        with pytest.raises(ts.errors.DataLossError, match="written anew"):
            _values(tmp_path / name)
    for name in ("moved.mosaic", "there.mosaic"):
        np.testing.assert_array_equal(_values(tmp_path / "away" / name), expected(paths[:4], files[:4]))


def test_files_are_dropped_by_name(made):
    """A dropped file is gone from the dataset, and a name that fits none is an error."""
    place, paths, files = made
    report = references.drop(place, "2.nc").result()
    assert report.dims == {"time": 8}
    np.testing.assert_array_equal(_values(place), expected(paths[:2], files[:2]))
    with pytest.raises(FileNotFoundError, match="has no file"):
        references.drop(place, "9.nc").result()


def test_a_dataset_moves_with_its_files(made, tmp_path, monkeypatch):
    """Relative URLs are written relative to the document, so the directory can be moved as a whole."""
    monkeypatch.chdir("/")
    place, paths, files = made
    moved = tmp_path.parent / f"{tmp_path.name}-moved"
    tmp_path.rename(moved)
    np.testing.assert_array_equal(
        _values(moved / place.name), expected([moved / path.name for path in paths[:3]], files[:3])
    )


@pytest.mark.parametrize("form", ["all.mosaic.json", "all.mosaic"])
def test_both_forms_hold_the_same(made, form):
    """The JSON twin is read, detected and appended to like the parquet form."""
    place, paths, files = made
    other = place.parent / f"other-{form}"
    references.combine(paths[3:], "time").result().save(other)
    references.append(other, paths[:3]).result()
    np.testing.assert_array_equal(_values(other), expected(paths, files))
    assert other.read_bytes().startswith(b'{"fsstore_mosaic"' if form.endswith("json") else b"PAR1")


class _Dying(ThreadPoolExecutor):
    """An executor that loses the first task that it is given, or cancels it."""

    def __init__(self, *, cancels):
        super().__init__(1)
        self.lost, self.cancels = 0, cancels

    def submit(self, work, /, *arguments, **options):
        """Lose a task, or do it."""
        if not self.lost:
            self.lost += 1
            failed: Future[object] = Future()
            if self.cancels:
                failed.cancel()
            else:
                failed.set_exception(OSError("the worker is gone"))
            return failed
        return super().submit(work, *arguments, **options)


@pytest.mark.parametrize("cancels", [False, True])
def test_the_batch_of_a_lost_worker_is_scanned_again(made, cancels):
    """An executor that loses a task costs time, not files."""
    _, paths, _ = made
    told = []
    with _Dying(cancels=cancels) as executor:
        combined = references.combine(paths, "time", executor=executor, batch=2, progress=told.append).result()
    assert combined.report.dims == {"time": 24}
    assert told[-1].tasks == told[-1].total == 6
    assert told[-1].retries == 1


def test_an_executor_that_is_shut_down_costs_no_files(made):
    """What it takes no more is scanned here; no file is blamed for it."""
    _, paths, _ = made
    executor = ThreadPoolExecutor(1)

    def close(state):
        executor.shutdown(wait=False, cancel_futures=True)

    combined = references.combine(paths, "time", executor=executor, batch=1, progress=close).result(60)
    assert combined.report.dims == {"time": 24}
    assert not combined.report.left_out


def test_files_that_fail_are_told_by_a_warning(made, tmp_path):
    """Nobody has to look into the report to know that some are missing; of a dry run the report is the answer."""
    place, paths, _ = made
    paths[4].write_bytes(b"no data")
    with pytest.warns(UserWarning, match=r"1 of 2 files cannot be scanned and are left out.*4\.nc"):
        report = references.append(place, paths[3:5]).result()
    assert list(report.left_out) == [str(paths[4])]
    with pytest.warns(UserWarning, match=r"1 of 6 files .* as the report says: .*4\.nc"):
        references.combine(paths, "time").result()
    report = references.combine(paths, "time", dry_run=True).result()
    assert list(report.left_out) == [str(paths[4])]


def test_a_run_that_was_killed_goes_on(made, monkeypatch, tmp_path):
    """Batches that were finished are not scanned again, by the notes in the journal."""
    _, paths, files = made
    plain, scanned = many.scan_files_here, []

    def dying(urls, dims):
        if str(paths[4]) in urls:
            raise RuntimeError("killed")
        return plain(urls, dims)

    monkeypatch.setattr(many, "scan_files_here", dying)
    with pytest.raises(RuntimeError, match="killed"):
        references.combine(paths, "time", batch=2, journal=tmp_path / "notes").result()
    monkeypatch.setattr(many, "scan_files_here", lambda urls, dims: scanned.extend(urls) or plain(urls, dims))
    combined = references.combine(paths, "time", batch=2, journal=tmp_path / "notes").result()
    assert str(paths[0]) not in scanned
    assert str(paths[4]) in scanned
    combined.save(tmp_path / "whole.mosaic")
    np.testing.assert_array_equal(_values(tmp_path / "whole.mosaic"), expected(paths, files))
