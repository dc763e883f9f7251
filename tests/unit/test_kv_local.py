"""Local files as a key-value store: what the shared battery does not say."""

from __future__ import annotations

import os
import stat
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

import pytest

import fsstore as ts
from fsstore.context.context import Context
from fsstore.errors import (
    DeadlineExceededError,
    FailedPreconditionError,
    NotFoundError,
    OutOfRangeError,
    ResourceExhaustedError,
    StoreError,
    UnimplementedError,
    UrlError,
)
from fsstore.kvstore.contract.driver import NO_VALUE, UNKNOWN, KvOpening, KvPrefix, LateWrite, Read, ReadUpTo, Write
from fsstore.kvstore.contract.request import KeyRange
from fsstore.kvstore.kv_store import KvStore
from fsstore.kvstore.local import file as local_read
from fsstore.kvstore.local import stage as local_stage
from fsstore.kvstore.local import write as local_write
from fsstore.kvstore.local.driver import KIND, LocalDriver
from fsstore.kvstore.local.lock import hold, hold_if_free
from fsstore.kvstore.local.stage import Protocol
from fsstore.runtime.execution import drive
from fsstore.runtime.tuning import MOMENT_S
from fsstore.values.json_value import Fields

FAST = LocalDriver(Protocol(sync=False))
INVALID = [
    "",
    "/a",
    "a/",
    "a//b",
    ".",
    "..",
    "../x",
    "a/./b",
    "a/../b",
    "a.__lock",
    "a.__lock/b",
    "x\0y",
    "a/.",
    "\ud800",
]


@pytest.fixture
def store(tmp_path):
    """A store in a directory that does not exist yet."""
    return KvPrefix(FAST, f"{tmp_path}/new/store/")


def write(store, key, value, if_equal=UNKNOWN):
    return drive(store.write(key, value, if_equal))


def keys(store, key_range=None):
    async def collect():
        return sorted([entry.key async for batch in store.scan(key_range) for entry in batch])

    return drive(collect())


def recorded(monkeypatch, *names):
    """Return the list in which calls of these functions of the system leave their names."""
    calls = []
    for name in names:
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *a, real=real, name=name: calls.append(name) or real(*a))
    return calls


@pytest.mark.parametrize("key", INVALID)
def test_keys_that_are_no_paths(store, key):
    """A key that leaves the tree, folds onto another, or names a lock file is refused for reads and writes."""
    for call in (lambda: store.read(key), lambda: store.write(key, b"x"), lambda: store.write(key, None)):
        with pytest.raises(StoreError, match="Invalid key: "):
            drive(call())
    assert not os.path.exists(store.path)


@pytest.mark.parametrize("key", [".a", "..a", "a/...", "a/..b", "a.", "x.__locks", "__lock", "a b/é", "-", "~"])
def test_keys_that_only_look_odd(store, key):
    """Dots inside names, and names that merely resemble lock files, are keys."""
    write(store, key, b"v")
    assert drive(store.read(key)).value == b"v"
    assert keys(store) == [key]


def test_what_reads_as_missing(tmp_path):
    """A directory, a broken link, and a path below a file hold no value."""
    store = KvPrefix(FAST, f"{tmp_path}/")
    (tmp_path / "directory").mkdir()
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "broken").symlink_to("nowhere")
    for key in ("directory", "broken", "file/below", "none"):
        assert drive(store.read(key)).state == "missing"
    assert {result.state for result in drive(store.read_many([Read("file/below"), Read("file/below", 1)]))} == {
        "missing"
    }


def test_pipe_is_an_error_and_does_not_hang(tmp_path):
    """A named pipe is neither a value nor missing."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FailedPreconditionError, match="pipe.*not a regular file"):
        drive(KvPrefix(FAST, f"{tmp_path}/").read("pipe"))


def test_links_are_read_through_and_replaced(tmp_path):
    """Reading follows a link; writing replaces the link and leaves its target."""
    store = KvPrefix(FAST, f"{tmp_path}/")
    write(store, "target", b"old")
    (tmp_path / "link").symlink_to("target")
    assert drive(store.read("link")).value == b"old"
    write(store, "link", b"new")
    assert drive(store.read("target")).value == b"old"
    assert not (tmp_path / "link").is_symlink()


@pytest.mark.parametrize("mode", ["os", "lockfile", "none"])
@pytest.mark.parametrize("below", ["", "a/b/"])
def test_writing_below_a_link_to_nothing_is_an_error_and_does_not_hang(tmp_path, mode, below):
    """No directory can be made below a link to nothing: it is there, and what is in it is not."""
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    place = {"driver": "file", "path": f"{tmp_path}/link/{below}", "context": {"file_io_locking": {"mode": mode}}}
    store = ts.KvStore.open(place).result()
    with pytest.raises(NotFoundError, match=r"Failed to .*link"):
        store.write("k", b"1").result(timeout=30)


def test_link_in_place_of_the_lock_is_not_followed(tmp_path):
    """A planted link cannot make a write empty another file."""
    (tmp_path / "precious").write_bytes(b"precious")
    (tmp_path / "k.__lock").symlink_to("precious")
    with pytest.raises(FailedPreconditionError, match=r"Failed to open: .*k\.__lock"):
        write(KvPrefix(FAST, f"{tmp_path}/"), "k", b"v")
    assert (tmp_path / "precious").read_bytes() == b"precious"


def test_errors_of_writing(tmp_path):
    """A write onto a directory or below a file says which path and why, and leaves no lock file."""
    store = KvPrefix(FAST, f"{tmp_path}/")
    (tmp_path / "directory").mkdir()
    write(store, "file", b"x")
    with pytest.raises(
        FailedPreconditionError, match=r"Failed to rename: .*directory\".*Is a directory \[os_error_code='21'\]"
    ):
        write(store, "directory", b"v")
    with pytest.raises(FailedPreconditionError, match=r"Failed to open directory: .*file\": Not a directory"):
        write(store, "file/below", b"v")
    with pytest.raises(FailedPreconditionError, match=r"Failed to delete: .*directory\": Is a directory"):
        write(store, "directory", None)
    with pytest.raises(StoreError, match=r"File name too long \[os_error_code='36'\]"):
        drive(store.read("n" * 300))
    assert sorted(os.listdir(tmp_path)) == ["directory", "file"]


@pytest.mark.parametrize("mode", ["os", "lockfile", "none", "non_atomic"])
def test_a_directory_has_no_generation(tmp_path, mode):
    """It is no value: that there is none holds as a condition, and what then fails is the write."""
    (tmp_path / "directory").mkdir()
    store = KvPrefix(LocalDriver(Protocol(mode, sync=False)), f"{tmp_path}/")
    for condition in (UNKNOWN, NO_VALUE):
        with pytest.raises(FailedPreconditionError, match="Is a directory"):
            write(store, "directory", b"v", condition)
    assert write(store, "directory", b"v", b"\0x").generation == UNKNOWN
    assert os.listdir(tmp_path) == ["directory"]


def test_deleting_makes_no_directories(store):
    """Deleting a key whose directory is missing is fine and creates nothing."""
    assert write(store, "a/b/c", None).generation == NO_VALUE
    assert write(store, "a/b/c", None, b"\0x").generation == UNKNOWN
    assert not os.path.exists(store.path)


@pytest.mark.parametrize("mode", ["os", "lockfile", "none"])
def test_failed_condition_leaves_nothing(tmp_path, mode):
    """A write whose condition fails leaves neither value nor lock file."""
    store = KvPrefix(LocalDriver(Protocol(mode, sync=False)), f"{tmp_path}/")
    assert write(store, "k", b"v", b"\0x").generation == UNKNOWN
    write(store, "k", b"v")
    assert write(store, "k", b"w", NO_VALUE).generation == UNKNOWN
    assert os.listdir(tmp_path) == ["k"]


def test_stale_lock_is_emptied(tmp_path):
    """What a dead writer left in the lock file is not part of the next value."""
    (tmp_path / "k.__lock").write_bytes(b"left by a writer that died")
    write(KvPrefix(FAST, f"{tmp_path}/"), "k", b"v")
    assert (tmp_path / "k").read_bytes() == b"v"
    assert os.listdir(tmp_path) == ["k"]


def test_lock_file_of_somebody_else_times_out(tmp_path):
    """In mode `lockfile` an existing lock file is waited for, then an error, and it stays."""
    (tmp_path / "k.__lock").touch()
    driver = LocalDriver(Protocol("lockfile", acquire_timeout_s=0.01))
    with pytest.raises(DeadlineExceededError, match="DEADLINE_EXCEEDED: Failed to open lock file: "):
        write(KvPrefix(driver, f"{tmp_path}/"), "k", b"v")
    assert os.listdir(tmp_path) == ["k.__lock"]


def test_listing_of_odd_entries(tmp_path):
    """Links are keys and are not followed; lock files and empty directories are not listed."""
    store = KvPrefix(FAST, f"{tmp_path}/")
    write(store, "d/x", b"")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "broken").symlink_to("nowhere")
    (tmp_path / "empty").mkdir()
    (tmp_path / "k.__lock").touch()
    assert keys(store) == ["broken", "d/x", "loop", "pipe"]
    assert keys(store.join("d")) == ["/x"]
    assert keys(store.join("d/x")) == [""]
    assert keys(store.join("none/")) == []
    with pytest.raises(NotFoundError, match="NOT_FOUND: Cannot list non-directory: "):
        keys(store.join("d/x/"))


def test_directories_go_with_a_range_that_covers_them(tmp_path):
    """Deleting a prefix with slash keeps the directory it names; a wider range removes it; the root stays."""
    store = KvPrefix(FAST, f"{tmp_path}/")
    for key in ("p/q/r/1", "p/q/2", "p/3", "z"):
        write(store, key, b"")
    drive(store.delete_range(KeyRange("p/q/", "p/q0")))
    assert (tmp_path / "p/q").is_dir()
    assert not (tmp_path / "p/q/r").exists()
    drive(store.delete_range(KeyRange("p", "q")))
    assert not (tmp_path / "p").exists()
    drive(store.delete_range(KeyRange()))
    assert os.listdir(tmp_path) == []


def test_a_range_is_deleted_without_locks_but_where_there_are_some(tmp_path, monkeypatch):
    """A key that somebody writes is deleted under its lock, which goes too; no lock file is made for the others."""
    store = KvPrefix(FAST, f"{tmp_path}/")
    for key in ("a", "b", "d/c"):
        write(store, key, b"1")
    (tmp_path / "b.__lock").touch()
    held = []
    monkeypatch.setattr(local_stage, "hold", lambda path, *rest: held.append(path) or hold(path, *rest))
    drive(store.delete_range(KeyRange()))
    assert held == [os.fsencode(tmp_path / "b")]
    assert os.listdir(tmp_path) == []


def test_generation_never_repeats_on_a_coarse_clock(tmp_path, monkeypatch):
    """A value written in the same tick of the clock, into the same inode, still has a new generation."""
    store = KvPrefix(FAST, f"{tmp_path}/")
    real = os.write

    def at_one_moment(fd, value):
        written = real(fd, value)
        if stat.S_ISREG(os.fstat(fd).st_mode):
            os.utime(fd, ns=(10**18, 10**18))
        return written

    monkeypatch.setattr(os, "write", at_one_moment)
    seen = [write(store, "k", b"v").generation for _ in range(20)]
    assert len(set(seen)) == 20
    assert drive(store.read("k")).generation == seen[-1]


def test_truncation_during_a_read_is_an_error(tmp_path, monkeypatch):
    """A file that became shorter after its size was taken is damaged, not short."""
    (tmp_path / "k").write_bytes(b"0123456789")
    real = os.pread
    monkeypatch.setattr(local_read.os, "pread", lambda fd, size, at: real(fd, size, at)[: max(0, 4 - at)])
    with pytest.raises(StoreError, match="DATA_LOSS: Error reading local file .*ended at byte 4 of 10"):
        drive(KvPrefix(FAST, f"{tmp_path}/").read("k"))


def test_large_values_are_read_in_pieces(tmp_path, monkeypatch, tune):
    """Values large enough for memory of their own arrive whole, read-only, and an early end is an error."""
    value = bytes(range(250)) * 12
    (tmp_path / "a").write_bytes(value)
    tune("kvstore", _LARGE_PAGES_BYTES=1000, _READ_BYTES=700)
    (found,) = local_read.read_batch([Read(f"{tmp_path}/a", 1, None)])
    assert found.value == value[1:]
    assert memoryview(found.value).readonly
    preadv = os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, parts, at: 0 if at > 2000 else preadv(fd, parts, at))
    with pytest.raises(StoreError, match="DATA_LOSS: .*byte 2100 of 3000"):
        local_read.read_batch([Read(f"{tmp_path}/a", 0, None)])


def test_pieces_are_joined(tmp_path, monkeypatch):
    """A system that reads and writes less than asked at a time changes nothing."""
    pread, written = os.pread, os.write
    monkeypatch.setattr(local_read.os, "pread", lambda fd, size, at: pread(fd, min(size, 3), at))
    monkeypatch.setattr(local_write.os, "write", lambda fd, data: written(fd, memoryview(data)[:2]))
    store = KvPrefix(FAST, f"{tmp_path}/")
    write(store, "k", b"0123456789")
    assert drive(store.read("k")).value == b"0123456789"
    assert drive(store.read("k", 1, 9)).value == b"12345678"


def test_number_of_system_calls(tmp_path, monkeypatch):
    """A whole value takes one open, one fstat and one pread; ranges of one key share them."""
    store = KvPrefix(FAST, f"{tmp_path}/")
    write(store, "k", bytes(1_000_000))
    calls = recorded(monkeypatch, "open", "fstat", "pread", "close", "stat", "lseek")
    drive(store.read("k"))
    assert calls == ["open", "fstat", "pread", "close"]
    calls.clear()
    drive(store.read_many([Read("k", 100 * n, 100 * n + 50) for n in range(1000)]))
    assert calls == ["open", "fstat", "pread", "close"]


def test_syncing(tmp_path, monkeypatch):
    """With sync each value and each directory is synced, once a batch, new parents included; without, nothing is."""
    synced = []

    def fsync(fd):
        synced.append("directory" if stat.S_ISDIR(os.fstat(fd).st_mode) else "file")

    monkeypatch.setattr(local_write.os, "fsync", fsync)
    writes = [Write(f"{tmp_path}/a/b/{n}", b"v") for n in range(5)]
    drive(LocalDriver().write_many(writes))
    assert (synced.count("file"), synced.count("directory")) == (5, 3)  # a/b, a, and the directory of a
    synced.clear()
    drive(LocalDriver().write_many(writes))
    assert (synced.count("file"), synced.count("directory")) == (5, 1)
    synced.clear()
    drive(LocalDriver().write_many([Write(writes[0].key, None)]))
    assert synced == ["directory"]
    synced.clear()
    drive(FAST.write_many(writes))
    drive(FAST.delete_range(KeyRange.prefix(f"{tmp_path}/")))
    assert synced == []


def test_a_value_is_written_while_it_is_made(tmp_path, monkeypatch, tune):
    """Each part is asked for when those before are written, full steps on their way to the disk; the sync comes last."""
    calls = recorded(monkeypatch, "writev", "fsync", "rename")
    monkeypatch.setattr(local_stage, "begin_writeback", lambda fd: calls.append("begin"))
    tune("kvstore", PIECE_BYTES=4)

    def value():
        for portion in ([b"0123456789"], [b"ab", memoryview(b"cdef")], [b"g", b"", b"h"]):
            calls.append("ask")
            yield portion

    for driver in (LocalDriver(), FAST):
        calls.clear()
        stamp = drive(driver.write_late([lambda: LateWrite(f"{tmp_path}/k", value())]))[0]
        found = drive(driver.read_many([Read(f"{tmp_path}/k")]))[0]
        assert (bytes(found.value), found.generation) == (b"0123456789abcdefgh", stamp.generation)
        written = [call for call in calls if call not in ("begin", "fsync")]
        if driver is FAST:
            assert calls == written == ["ask", "writev"] * 3 + ["rename"]
        else:
            cut = ["writev", "begin", "writev", "begin", "writev"]
            rest = ["ask", "writev", "begin", "ask", "writev", "fsync", "rename", "fsync"]
            assert calls == ["ask", *cut, *rest]


@pytest.mark.parametrize("mode", ["os", "lockfile", "none", "non_atomic"])
def test_a_value_that_cannot_be_made_changes_nothing(tmp_path, mode):
    """Neither when making it fails nor when its condition does not hold, which is found out before it is made."""
    driver = LocalDriver(Protocol(mode, sync=False))
    key = f"{tmp_path}/k"
    drive(driver.write_many([Write(key, b"old")]))

    def fails():
        yield [b"new"]
        raise StoreError("no more")

    def unasked():
        raise AssertionError("the condition does not hold")
        yield []

    with pytest.raises(StoreError, match="no more"):
        drive(driver.write_late([lambda: LateWrite(key, fails())]))
    if mode != "non_atomic":
        late = LateWrite(key, unasked(), NO_VALUE)
        assert drive(driver.write_late([lambda: late]))[0].generation == UNKNOWN
    assert drive(driver.read_many([Read(key)]))[0].value == b"old"
    assert os.listdir(tmp_path) == ["k"]


def test_the_system_may_take_less_than_it_is_given(tmp_path, monkeypatch):
    """What a call leaves over is written by the next."""
    real = os.writev
    monkeypatch.setattr(local_write.os, "writev", lambda fd, parts: real(fd, [b"".join(parts)[:3]]))

    def value():
        yield from ([b"01", b"2345"], [b"678"], [b"9abcd"])

    drive(FAST.write_late([lambda: LateWrite(f"{tmp_path}/k", value())]))
    assert (tmp_path / "k").read_bytes() == b"0123456789abcd"


@pytest.mark.parametrize("mode", ["os", "lockfile", "none"])
def test_files_of_a_batch_are_synced_together(tmp_path, monkeypatch, mode):
    """All values of a group are written and on their way before the first is waited for; names come after."""
    calls = recorded(monkeypatch, "write", "fsync", "rename")
    monkeypatch.setattr(local_stage, "begin_writeback", lambda fd: calls.append("begin"))
    driver = LocalDriver(Protocol(mode), io_limit=1)
    drive(driver.write_many([Write(f"{tmp_path}/{n}", b"v") for n in range(5)]))
    assert calls == ["write"] * 5 + ["begin"] * 5 + ["fsync"] * 5 + ["rename"] * 5 + ["fsync"]
    assert sorted(os.listdir(tmp_path)) == ["0", "1", "2", "3", "4"]


def at_once(driver, batch):
    """Write values that are there."""
    return drive(driver.write_many(batch))


def late(driver, batch):
    """Write values that are made when they are asked for."""
    return drive(driver.write_late([partial(LateWrite, *write) for write in batch]))


WAYS = pytest.mark.parametrize("put", [at_once, late])


@WAYS
def test_a_batch_waits_for_a_lock_with_empty_hands(tmp_path, put):
    """Values whose locks are free are stored before a lock is waited for that somebody else has."""
    held = hold(os.fsencode(tmp_path / "b"), "os", 1.0, set())
    driver = LocalDriver(Protocol(sync=False))
    batch = [Write(f"{tmp_path}/{name}", b"v") for name in "abc"]
    with ThreadPoolExecutor(1) as threads:
        try:
            done = threads.submit(put, driver, batch)
            stored = ["a"] if put is at_once else ["a", "c"]
            for _ in range(1000):
                if all((tmp_path / name).exists() for name in stored):
                    break
                time.sleep(0.01)
            assert sorted(os.listdir(tmp_path)) == sorted([*stored, "b.__lock"])
        finally:
            held.let_go()
        assert len(done.result(30)) == 3
    assert sorted(os.listdir(tmp_path)) == ["a", "b", "c"]


@WAYS
@pytest.mark.parametrize("mode", ["os", "lockfile"])
def test_batches_of_the_same_keys_in_any_order_finish(tmp_path, mode, put):
    """Writers that want the same locks in opposite orders, some to delete, do not wait for each other for ever."""
    driver = LocalDriver(Protocol(mode, sync=False))
    names = [f"{tmp_path}/{n}" for n in range(6)]

    def work(number):
        for step in range(20):
            keys = names if (number + step) % 2 else names[::-1]
            put(driver, [Write(key, b"%d" % number if at % 3 else None) for at, key in enumerate(keys)])
        put(driver, [Write(key, b"%d" % number) for key in keys])

    with ThreadPoolExecutor(4) as threads:
        assert len(list(threads.map(work, range(4), timeout=60))) == 4
    assert sorted(os.listdir(tmp_path)) == [str(n) for n in range(6)]


@WAYS
def test_an_error_in_a_batch_leaves_no_lock_file(tmp_path, put):
    """The locks and temporary files of the whole group go when one write of it fails."""
    (tmp_path / "file").write_bytes(b"")
    batch = [Write(f"{tmp_path}/{name}", b"v") for name in ("a", "b", "file/below", "c")]
    with pytest.raises(FailedPreconditionError, match="Not a directory"):
        put(LocalDriver(io_limit=1), batch)
    stored = {"a", "b", "c"} if put is late else set()  # some may have their names by then
    assert set(os.listdir(tmp_path)) - stored == {"file"}


@WAYS
def test_too_many_open_files_make_smaller_groups(tmp_path, monkeypatch, put):
    """When no further file can be opened beside those of the group, the group is finished first."""

    def refuse(*_arguments):
        raise ResourceExhaustedError("too many open files")

    monkeypatch.setattr(local_stage, "hold_if_free", refuse)
    stamps = put(LocalDriver(io_limit=1), [Write(f"{tmp_path}/{n}", b"v", NO_VALUE) for n in range(5)])
    assert UNKNOWN not in {stamp.generation for stamp in stamps}
    assert sorted(os.listdir(tmp_path)) == ["0", "1", "2", "3", "4"]


@WAYS
def test_a_batch_of_values_deletions_and_failed_conditions(tmp_path, put):
    """Each write of a group has its own outcome, in order."""
    driver = LocalDriver(io_limit=1)
    store = KvPrefix(driver, f"{tmp_path}/")
    write(store, "old", b"1")
    write(store, "was", b"1")
    batch = [
        Write(f"{tmp_path}/new", b"2", NO_VALUE),
        Write(f"{tmp_path}/old", b"3", NO_VALUE),
        Write(f"{tmp_path}/gone", None),
        Write(f"{tmp_path}/other", b"4"),
        Write(f"{tmp_path}/was", None),
    ]
    generations = [stamp.generation for stamp in put(driver, batch)]
    assert generations[1:3] == [UNKNOWN, NO_VALUE]
    assert generations[4] == NO_VALUE
    assert [drive(store.read(key)).generation for key in ("new", "other")] == [generations[0], generations[3]]
    assert sorted(os.listdir(tmp_path)) == ["new", "old", "other"]


@pytest.mark.parametrize(("count", "published"), [(3, ["fsync", "rename"] * 3), (20, ["fsync"] * 20 + ["rename"] * 20)])
def test_a_value_is_written_before_the_next_is_made(tmp_path, monkeypatch, count, published):
    """A thread that makes several has each on its way to the disk first; then they are published, many together."""
    calls = recorded(monkeypatch, "write", "fsync", "rename")
    monkeypatch.setattr(local_write, "begin_writeback", lambda fd: calls.append("begin"))
    monkeypatch.setattr(local_stage, "begin_writeback", None)

    def make(n):
        calls.append("make")
        return LateWrite(f"{tmp_path}/{n}", b"v")

    drive(LocalDriver(io_limit=1).write_late([partial(make, n) for n in range(count)], 1))
    assert calls == ["make", "write", "begin"] * count + [*published, "fsync"]


def test_a_value_that_needs_no_sync_has_its_name_before_the_next_is_made(tmp_path, monkeypatch):
    """Many threads make values, and none has to name them all in the end."""
    calls = recorded(monkeypatch, "write", "fsync", "rename")

    def make(n):
        calls.append("make")
        return LateWrite(f"{tmp_path}/{n}", b"v")

    drive(LocalDriver(Protocol(sync=False)).write_late([partial(make, n) for n in range(20)], 1))
    assert calls == ["make", "write", "rename"] * 20


def test_who_has_nothing_left_to_make_publishes_what_is_there(tmp_path):
    """While another thread makes the last value, all others get their names, also without a thread to help."""
    others = [f"{n}" for n in range(5)]

    def make(n):
        for _ in range(1000 if n == 5 else 0):
            if set(others) <= set(os.listdir(tmp_path)):
                break
            time.sleep(0.01)
        return LateWrite(f"{tmp_path}/{n}", b"v" if n < 5 else os.fsencode("".join(sorted(os.listdir(tmp_path)))))

    drive(LocalDriver(io_limit=1).write_late([partial(make, n) for n in range(6)], 2))
    assert (tmp_path / "5").read_bytes() == b"01234"


@pytest.mark.parametrize(("folders", "together"), [("aa", 1), ("ab", 2)])
def test_one_thread_at_a_time_gives_names_in_a_directory(tmp_path, monkeypatch, folders, together):
    """Others wait for it, a moment at most; in another directory nobody does."""
    met = threading.Barrier(2)
    inside, most = {}, []
    rename = os.rename

    def meeting(source, target):
        inside[source] = time.monotonic()
        most.append(sum(time.monotonic() - begun < MOMENT_S for begun in inside.values()))
        with suppress(threading.BrokenBarrierError):
            met.wait(0.2 if together == 1 else 60)
        rename(source, target)
        del inside[source]

    monkeypatch.setattr(os, "rename", meeting)
    paths = [tmp_path / folder / f"{number}" for number, folder in enumerate(folders)]
    with ThreadPoolExecutor(2) as threads:
        for path in paths:
            threads.submit(write, KvPrefix(FAST, ""), str(path), b"x")
    assert max(most) == together
    assert [path.read_bytes() for path in paths] == [b"x", b"x"]


@pytest.mark.parametrize("count", [8, 40])
def test_directories_are_synced_when_their_last_file_has_its_name(tmp_path, monkeypatch, count):
    """Whichever thread is the last, each is synced after its renames, and by itself."""
    events = []
    rename, sync = os.rename, os.fsync

    def fsync(fd):
        status = os.fstat(fd)
        if stat.S_ISDIR(status.st_mode):
            folders = [each for each in tmp_path.iterdir() if os.path.samestat(each.stat(), status)]
            events.extend((os.fsencode(each),) for each in folders)
        sync(fd)

    monkeypatch.setattr(os, "rename", lambda old, new: (rename(old, new), events.append(os.path.dirname(new))))
    monkeypatch.setattr(os, "fsync", fsync)
    names = [f"{n % 4}/{n}" for n in range(count)]
    for _ in range(5):
        events.clear()
        drive(LocalDriver().write_late([partial(LateWrite, f"{tmp_path}/{name}", b"v") for name in names], 2))
        for n in range(4):
            mine = [event for event in events if os.fsencode(f"{tmp_path}/{n}") in (event, *event[:1])]
            assert len(mine) > count // 4
            assert isinstance(mine[-1], tuple)
            assert sum(isinstance(event, bytes) for event in mine) == count // 4


@pytest.mark.parametrize("large", [2, 10])
@pytest.mark.parametrize("mode", ["os", "lockfile", "none"])
def test_one_value_that_cannot_be_made_fails_the_batch(tmp_path, tune, mode, large):
    """What waits beside it is dropped, what is on its way to the disk is stored, and no lock is left."""

    def make(n):
        if n == 3:
            raise StoreError("no more")
        return LateWrite(f"{tmp_path}/{n}", b"v" * (n + 1))

    tune("kvstore", PIECE_BYTES=large)
    with pytest.raises(StoreError, match="no more"):
        drive(LocalDriver(Protocol(mode)).write_late([partial(make, n) for n in range(5)], 1))
    assert sorted(os.listdir(tmp_path)) == [str(n) for n in range(3) if n + 1 >= large]


def test_values_are_made_while_the_disk_is_waited_for(tmp_path, monkeypatch, tune):
    """A thread that makes large values never waits for the disk, and is not ahead of it by more than a few."""
    disk, made, opened = threading.Event(), [], threading.Semaphore(0)
    real = os.fsync

    def slow(fd):
        opened.release()
        assert disk.wait(60)
        real(fd)

    monkeypatch.setattr(local_stage.os, "fsync", slow)
    tune("kvstore", PIECE_BYTES=1)

    def make(n):
        made.append(n)
        return LateWrite(f"{tmp_path}/{n}", b"value")

    with ThreadPoolExecutor(1) as threads:
        done = threads.submit(drive, LocalDriver(io_limit=3).write_late([partial(make, n) for n in range(9)], 1))
        try:
            for _ in range(3):
                assert opened.acquire(timeout=60)
            for _ in range(1000):
                if len(os.listdir(tmp_path)) == 4:
                    break
                time.sleep(0.01)
            assert sorted(os.listdir(tmp_path)) == [f"{n}.__lock" for n in range(4)]
            assert made == [0, 1, 2, 3]  # three wait for the disk, and one for them
        finally:
            disk.set()
        assert len(done.result(60)) == 9
    assert sorted(os.listdir(tmp_path)) == [str(n) for n in range(9)]


def test_mapping_gives_the_same_bytes(tmp_path):
    """Memory-mapped ranges at any offset equal those read, and outlive the file."""
    data = os.urandom(300_000)
    driver = LocalDriver(Protocol(sync=False), mapped=True)
    store = KvPrefix(driver, f"{tmp_path}/")
    write(store, "k", data)
    spans = [(0, 300_000), (1, 299_999), (4096, 200_000), (65_537, 131_073), (5, 9), (299_000, 300_000)]
    results = drive(store.read_many([Read("k", low, high) for low, high in spans]))
    write(store, "k", None)
    assert [bytes(result.value) for result in results] == [data[low:high] for low, high in spans]
    with pytest.raises(TypeError):
        results[0].value[0] = 1


def test_batch_fails_as_a_whole_for_a_bad_range(tmp_path):
    """One range outside its value fails the batch with the key's name."""
    store = KvPrefix(FAST, f"{tmp_path}/")
    write(store, "k", b"0123456789")
    with pytest.raises(
        OutOfRangeError, match=r"Error reading local file .*/k\": Requested byte range \[5, 11\) is not valid"
    ):
        drive(store.read_many([Read("k", 0, 1), Read("k", 5, 11)]))


URLS = [
    ("/data/x", "/data/x", "file:///data/x"),
    ("tmp/x/", "tmp/x/", "file://tmp/x/"),
    ("C:/Users/abc/dataset/", "C:/Users/abc/dataset/", "file://C:/Users/abc/dataset/"),
    ("localhost/data/x", "/data/x", "file:///data/x"),
    ("./localhost/x", "localhost/x", "file://./localhost/x"),
    ("/a/../b", "/b", "file:///b"),
    ("/a/./b/.", "/a/b/", "file:///a/b/"),
    ("//a//b", "/a/b", "file:///a/b"),
    ("/..", "/", "file:///"),
    ("/", "/", "file:///"),
    ("", "", "file://"),
    ("a/..", "", "file://"),
    ("/a%2Fb", "/a/b", "file:///a/b"),
    ("/a b@\\%7C", "/a b@\\|", "file:///a%20b@\\%7C"),
    ("/%C3%A9%FF", "/é\udcff", "file:///%C3%A9%FF"),
]


@pytest.mark.parametrize(("rest", "path", "url"), URLS)
def test_urls(rest, path, url):
    """URLs and paths are inverses of each other; a URL is normalised as text."""
    assert KIND.from_url("file", rest) == (path, {})
    assert KIND.to_url(path, {}) == url
    assert KIND.from_url("file", url.removeprefix("file://")) == (path, {})


@pytest.mark.parametrize("rest", ["../x", "a/../../b", "/a%00b", "/x.__lock/y", "/a?b", "/a#b", "/%zz"])
def test_bad_urls(rest):
    """A URL that leaves its root, hides a NUL, or has a query is refused."""
    with pytest.raises(StoreError):
        KIND.from_url("file", rest)


@pytest.mark.parametrize("path", ["/a/../b", "/a//b", "a/./b", "//a", ".", "a.__lock", "x\0y", "/a/b//", ".."])
def test_bad_paths(path):
    """Paths in specs are not normalised but refused."""
    with pytest.raises(StoreError, match="Invalid file path: "):
        KIND.check_path(path)


@pytest.mark.parametrize("path", ["", "/", "a/", "/a/b", ".a/b", "a.b/", "/é/"])
def test_good_paths(path):
    """Paths, relative and absolute, with slash at the end or without, stay as they are."""
    assert KIND.check_path(path) == path


def test_newer_members_are_understood():
    """`file_io_mode` may become `file_io_memmap`; what there is not is refused by opening, junk by reading."""

    def members(json):
        fields = Fields(json)
        taken = KIND.members(fields)
        fields.finish()
        return taken

    assert members({"file_io_mode": {"mode": "memmap"}}) == {"file_io_memmap": True}
    for defaults in ({"file_io_mode": {}, "file_io_retries": {}}, {"file_io_retries": {"max_retries": 0}}):
        assert members(defaults) == {}
    for name, wish in (("file_io_mode", {"mode": "direct"}), ("file_io_retries", {"max_retries": 3})):
        asked = members({name: wish})
        assert asked == {name: wish}
        with pytest.raises(UnimplementedError, match=f"{name}: .* is not supported for local files"):
            drive(KIND.open(KvOpening(asked)))
    assert members({"file_io_mode": "file_io_mode", "file_io_retries": ["file_io_retries"]}) == {}
    for bad in ({"file_io_mode": {"mode": "x"}}, {"file_io_retries": {"max_retries": -1}}, {"file_io_mode": 5}):
        with pytest.raises(StoreError):
            members(bad)
    driver = drive(KIND.open(KvOpening({"file_io_memmap": True})))
    assert driver.mapped
    assert driver.spec() == {"file_io_memmap": True}


def test_newer_resources_of_a_context_are_heard(tmp_path):
    """What `file_io_mode` and `file_io_retries` ask for in the context holds for the stores opened with it."""
    url = f"file://{tmp_path}/"
    mapped = KvStore.open(url, context=Context({"file_io_mode": {"mode": "memmap"}})).result()
    assert mapped.prefix.driver.mapped
    assert KvStore.open(mapped.spec()).result().prefix.driver.mapped
    assert (
        not KvStore.open(url, context=Context({"file_io_mode": {}, "file_io_retries": {}}))
        .result()
        .prefix.driver.mapped
    )
    for asked in ({"file_io_mode": {"mode": "direct"}}, {"file_io_retries": {"max_retries": 1}}):
        with pytest.raises(UnimplementedError, match="is not supported for local files"):
            KvStore.open(url, context=Context(asked)).result()


def test_query_is_refused_with_its_place():
    """A query string is refused as one."""
    with pytest.raises(UrlError, match="Query string not supported"):
        KIND.from_url("file", "/a?b")


def test_only_lock_files_that_nobody_holds_are_swept(tmp_path):
    """Of keys with the names that are asked for; what a living writer has begun stays, and so does everything else."""
    name = "0123456789abcdef" * 2
    for key in ("d/a" + name[1:], "d/" + name[1:], "d/" + name + "_1", "d/x", "e/" + name, "d/f" + name[1:]):
        (tmp_path / key).parent.mkdir(exist_ok=True)
        (tmp_path / f"{key}.__lock").write_bytes(b"left by a writer that died")
    held = hold_if_free(os.fsencode(f"{tmp_path}/d/f{name[1:]}"), "os", set())
    drive(LocalDriver().sweep_unfinished(f"{tmp_path}/d/", "[0-9a-f]{32}"))
    assert sorted(os.listdir(tmp_path / "d")) == sorted(
        f"{each}.__lock" for each in (name[1:], name + "_1", "x", "f" + name[1:])
    )
    assert os.listdir(tmp_path / "e") == [name + ".__lock"]
    assert held is not None
    held.let_go()
    drive(LocalDriver(Protocol("none")).sweep_unfinished(f"{tmp_path}/d/", ".*"))
    drive(LocalDriver().sweep_unfinished(f"{tmp_path}/none/", ".*"))
    assert len(os.listdir(tmp_path / "d")) == 3


def test_a_directory_is_emptied_of_lock_files_too(tmp_path):
    """Deleting everything below a directory removes what killed writers of new keys left directly in it."""
    (tmp_path / "a").write_bytes(b"1")
    (tmp_path / "b.__lock").touch()
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "d.__lock").touch()
    ts.KvStore.open(f"file://{tmp_path}/").result().delete_range(ts.KvStore.KeyRange()).result()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("start", "stop"), [(-100, None), (0, 100), (-4, None), (0, 4)])
def test_a_file_that_is_shorter_than_may_be_read_is_read_once(tmp_path, start, stop):
    """It is answered whole, where a plain read of as much is an error."""
    (tmp_path / "a").write_bytes(b"0123")
    (answer,) = drive(FAST.read_many([ReadUpTo(f"{tmp_path}/a", start, stop)]))
    assert (answer.state, bytes(answer.value), answer.size) == ("value", b"0123", 4)
    if 100 in (stop, -start):
        with pytest.raises(OutOfRangeError):
            drive(FAST.read_many([Read(f"{tmp_path}/a", start, stop)]))
