"""Files on filesystems that know when a file was changed and no version of it: the date stands in for one."""

from __future__ import annotations

import os
import time
import uuid
import zipfile
from datetime import UTC, datetime

import fsspec
import h5py
import numpy as np
import pytest
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem
from fsspec.spec import AbstractFileSystem

import fsstore as ts
from fsstore import references

FORMS = {
    "seconds": lambda stamp: stamp,
    "datetime": lambda stamp: datetime.fromtimestamp(stamp, UTC),
    "without a zone": lambda stamp: datetime.fromtimestamp(stamp, UTC).replace(tzinfo=None),
    "text": lambda stamp: datetime.fromtimestamp(stamp, UTC).isoformat(),
    "none": lambda _: None,
    "digits": lambda stamp: datetime.fromtimestamp(stamp, UTC).strftime("%Y%m%d%H%M%S"),
}


class Dated(AbstractFileSystem):
    """A directory whose files have dates of a form; `asked` has the verbs in order.  Each test has a class of its own."""

    protocol, cachable = "dated", False
    names = ("mtime", "modified", "modify", "LastModified", "last_modified", "updated")

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.inner = DirFileSystem(self.folder, LocalFileSystem())

    def info(self, path, **kwargs):
        """Return the facts of a file."""
        self.asked.append("info")
        found = self.inner.info(self._strip_protocol(path).lstrip("/"))
        shown = {"name": path, "size": found["size"], "type": found["type"]}
        return {**shown, self.name: self.form(found["mtime"])}

    def ls(self, path, detail=True, **kwargs):
        """List nothing: whatever is read here is named."""
        raise FileNotFoundError(path)

    def cat_file(self, path, start=None, end=None, **kwargs):
        """Return bytes."""
        self.asked.append((start or 0, end))
        return self.inner.cat_file(self._strip_protocol(path).lstrip("/"), start, end)


@pytest.fixture
def store(tmp_path):
    """Return a function that gives an own filesystem of the directory, and the JSON of a store over it."""

    def make(form="seconds", name="mtime"):
        protocol = f"dated{uuid.uuid4().hex[:8]}"
        own = {
            "protocol": protocol,
            "folder": str(tmp_path),
            "form": staticmethod(FORMS[form]),
            "name": name,
            "asked": [],
        }
        made = type("Own", (Dated,), own)
        fsspec.register_implementation(protocol, made)
        return made, {"driver": "fsspec", "url": f"{protocol}://", "path": ""}

    return make


def write(folder, values, age_s=100.0):
    """Write a file with an array of chunks of ten, changed so long ago."""
    with h5py.File(folder / "fresh", "w") as file:
        file.create_dataset("v", data=values, chunks=(10,))
    stamp = time.time() - age_s
    os.utime(folder / "fresh", (stamp, stamp))
    (folder / "fresh").rename(folder / "a.h5")


def opened(store):
    """Open the array of the file."""
    base = {**store, "path": "a.h5"}
    return ts.open({"driver": "zarr", "kvstore": {"driver": "hdf5", "base": base, "path": "v/"}}).result()


@pytest.mark.parametrize("form", [form for form in FORMS if form != "none"])
def test_the_structure_of_a_file_is_read_once(store, tmp_path, tune, form):
    """A second array of the file, and chunks of the first, read nothing but what they need, and ask for the date."""
    tune("kvstore", TRUSTED_S=0.0)
    tune("scan", TRUSTED_S=0.0)
    values = np.arange(20_000)
    write(tmp_path, values)
    filesystem, place = store(form)
    array = opened(place)
    assert array[5].read().result() == 5
    assert array[19_995].read().result() == 19_995
    filesystem.asked.clear()
    for number in range(1000, 1050, 10):
        assert array[number].read().result() == number
    reads = [each for each in filesystem.asked if each != "info"]
    assert len(reads) == 5
    assert all(stop - start == 80 for start, stop in reads)


@pytest.mark.parametrize("name", Dated.names)
def test_a_file_with_another_date_is_another_file(store, tmp_path, tune, name):
    """A replaced file is scanned again, whatever its filesystem calls the date."""
    tune("kvstore", TRUSTED_S=0.0)
    tune("scan", TRUSTED_S=0.0)
    write(tmp_path, np.arange(100))
    _, place = store("datetime", name)
    array = opened(place)
    assert array[5].read().result() == 5
    write(tmp_path, np.arange(100, 200), age_s=50.0)
    assert array[5].read().result() == 105
    assert array[95].read().result() == 195


@pytest.mark.parametrize("form", ["seconds", "none"])
def test_a_date_that_says_nothing_is_not_believed(store, tmp_path, tune, form):
    """A file that was changed a moment ago, or has no date, is scanned for each access: it may change unseen."""
    tune("scan", TRUSTED_S=0.0)
    write(tmp_path, np.arange(100), age_s=0.0)
    _, place = store(form)
    array = opened(place)
    assert array[5].read().result() == 5
    stamp = (tmp_path / "a.h5").stat().st_mtime
    write(tmp_path, np.arange(100, 200))
    os.utime(tmp_path / "a.h5", (stamp, stamp))
    assert array[5].read().result() == 105


def test_the_directory_of_an_archive_is_read_once(store, tmp_path, tune):
    """Members of a ZIP archive are read without its directory, which is read again when the archive is another one."""
    tune("kvstore", TRUSTED_S=0.0)

    def archive(first, age_s):
        with zipfile.ZipFile(tmp_path / "a.zip", "w") as file:
            for number in range(3000):
                file.writestr(f"{number:05}", f"{first + number}")
        os.utime(tmp_path / "a.zip", (time.time() - age_s,) * 2)

    archive(0, 100.0)
    filesystem, place = store()
    members = ts.KvStore.open({"driver": "zip", "base": {**place, "path": "a.zip"}}).result()
    assert members["00007"] == b"7"
    filesystem.asked.clear()
    assert [members[f"{number:05}"] for number in (9, 2000)] == [b"9", b"2000"]
    assert [each for each in filesystem.asked if each != "info" and each[1] - each[0] > 1000] == []
    archive(1, 50.0)
    assert members["00007"] == b"8"


def test_the_date_of_a_missing_file_is_none(store, tmp_path):
    """A file that disappears is an error that says so."""
    write(tmp_path, np.arange(100))
    _, place = store()
    array = opened(place)
    assert array[5].read().result() == 5
    (tmp_path / "a.h5").unlink()
    with pytest.raises(FileNotFoundError, match=r"a\.h5"):
        array[95].read().result()


def test_what_is_saved_of_files_holds_no_dates(store, tmp_path):
    """Saved scans and combined files know versions of stores only: a date would be one that no later answer has."""
    urls, folder = [], tmp_path / "f"
    folder.mkdir()
    filesystem, place = store()
    for number in range(2):
        with h5py.File(folder / f"{number}.h5", "w") as file:
            file.create_dataset("time", data=[number]).make_scale("time")
            file.create_dataset("v", data=np.full((1, 50), number)).dims[0].attach_scale(file["time"])
        os.utime(folder / f"{number}.h5", (1e9, 1e9))
        urls.append(f"{filesystem.protocol}://f/{number}.h5")
    references.combine(urls, "time").result().save(str(tmp_path / "all.json"))
    references.scan(urls[1]).save(str(tmp_path / "one.json"))
    known = {f"{filesystem.protocol}://": place}
    for name, sums in (("all.json", [0, 50]), ("one.json", [50])):
        base = {"driver": "file", "path": str(tmp_path / name)}
        spec = {"driver": "reference", "base": base, "targets": known, "path": "v/"}
        assert ts.open({"driver": "auto", "kvstore": spec}).result().read().result().sum(axis=1).tolist() == sums
    for name in ("all.json", "one.json"):
        assert "modified" not in (tmp_path / name).read_text()
