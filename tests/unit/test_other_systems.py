"""What other systems do differently, with stand-ins: Windows and macOS themselves are not tested."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import fsstore as ts
from fsstore.kvstore.local import file

ROOT = Path(__file__).parents[2]


def run(program, *arguments):
    """Run a program in a process of its own, and return what it prints."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], env=env, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_without_locks_of_files_the_other_stores_work(tmp_path):
    """Where `fcntl` is missing, as on Windows, arrays in memory work, and a file is refused with the reason."""
    program = """
import sys
sys.modules["fcntl"] = None
import fsstore as ts
array = ts.open({"driver": "zarr3", "kvstore": "memory://"}, create=True, dtype="u1", shape=[4]).result()
array[:] = 1
assert array.read().result().tolist() == [1] * 4
try:
    ts.KvStore.open(f"file://{sys.argv[1]}/").result()
except ts.errors.UnimplementedError as error:
    print(error)
"""
    assert "locked by `fcntl`, which this system does not have. Use another store" in run(program, str(tmp_path))


def test_locks_of_processes_are_locks_of_threads_too(tmp_path):
    """Where the system has no locks of open files, as macOS, two threads that count lose nothing."""
    program = """
import fcntl, sys, threading
del fcntl.F_OFD_SETLK, fcntl.F_OFD_SETLKW
import fsstore as ts
store = ts.KvStore.open(f"file://{sys.argv[1]}/").result()
store["n"] = b"0"
def count():
    for _ in range(20):
        while True:
            now = store.read("n").result()
            if store.write("n", b"%d" % (int(now.value) + 1), if_equal=now.stamp.generation).result().generation:
                break
threads = [threading.Thread(target=count) for _ in range(2)]
for each in threads: each.start()
for each in threads: each.join()
print(store["n"].decode())
"""
    assert run(program, str(tmp_path)) == "40"


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/C:/data/a.zarr/", "C:/data/a.zarr/"),
        ("/C:\\data\\a", "C:/data/a"),
        ("\\\\server\\share", None),
        ("d:\\a", "d:/a"),
    ],
)
def test_drive_letters(monkeypatch, path, meant):
    """Backslashes are slashes, and the slash of a URL before a drive letter goes; a share has no path here."""
    monkeypatch.setattr(file, "os", SimpleNamespace(name="nt"))
    if meant is None:
        with pytest.raises(ts.errors.StoreError, match="Invalid file path"):
            file.check_prefix(path)
    else:
        assert file.check_prefix(path) == meant


@pytest.mark.parametrize("code", [errno.EACCES, errno.EBUSY])
def test_a_value_that_cannot_be_replaced_stays(tmp_path, monkeypatch, code):
    """Where a file cannot be replaced while somebody reads it, a write is an error, the old value stays, and no lock does."""
    store = ts.KvStore.open(f"file://{tmp_path}/").result()
    store["a"] = b"old"

    def refused(*_, **__):
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patched:
        for name in ("rename", "replace", "link"):
            patched.setattr(os, name, refused)
        with pytest.raises(ts.errors.StoreError, match=os.strerror(code)):
            store.write("a", b"new").result()
        assert store["a"] == b"old"
    store["a"] = b"new"
    assert store["a"] == b"new"
    assert [each.name for each in tmp_path.iterdir()] == ["a"]


def test_names_that_differ_in_case_are_listed_as_they_are_stored(tmp_path):
    """A listing tells names as the system stores them, and a key is not another one because its letters are larger."""
    store = ts.KvStore.open(f"file://{tmp_path}/").result()
    store["A/c"] = b"1"
    assert store.list().result() == [b"A/c"]
    is_one = (tmp_path / "a").exists()  # a disk on which both are one, as those of Windows and macOS
    assert (store.read("a/c").result().state == "value") is is_one
