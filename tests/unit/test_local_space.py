"""The space of replaced files: held until a write is answered, and given back whatever happens."""

import errno
import os
import threading
import time
from types import SimpleNamespace

import pytest

from fsstore.errors import FailedPreconditionError
from fsstore.kvstore.contract.driver import Write
from fsstore.kvstore.local import stage as local_space
from fsstore.kvstore.local import write as local_write
from fsstore.kvstore.local.driver import LocalDriver
from fsstore.kvstore.local.stage import Protocol, give_back, hold_space
from fsstore.runtime import execution
from fsstore.runtime.execution import drive

pytestmark = pytest.mark.skipif(not hasattr(os, "O_PATH"), reason="files are held on Linux only")

LARGE = b"x" * 200_000


@pytest.fixture(autouse=True)
def on_a_disk(monkeypatch):
    """Nothing is held at first, and the files of the test are held wherever it runs."""
    wait_for_nothing_held()
    monkeypatch.setattr(os, "major", lambda _: 8)


@pytest.fixture
def later(monkeypatch):
    """Jobs that give space back, which the test does when it likes."""
    jobs = []
    pool = SimpleNamespace(hand_over=lambda job, kind: jobs.append(job))
    monkeypatch.setattr(local_space, "execution", pool)
    return jobs


def held(folder):
    """Return the paths of held files below a folder."""
    links = [f"/proc/self/fd/{fd}" for fd in local_space.held()]
    return [path for path in map(os.readlink, links) if path.startswith(str(folder))]


def wait_for_nothing_held():
    """Wait until all space is given back."""
    ends = time.monotonic() + 60
    while local_space.held():
        assert time.monotonic() < ends, local_space.held()
        time.sleep(0.001)


def put(folder, *names, value=LARGE):
    """Write values of keys below a folder together."""
    return drive(LocalDriver().write_many([Write(f"{folder}/{name}", value) for name in names]))


def test_replaced_files_are_held_until_the_answer(tmp_path, monkeypatch):
    """Their space is not given back before the names are synced, and then by another thread."""
    put(tmp_path, "a", "b", "c")
    assert held(tmp_path) == []
    seen = []
    original = local_write.sync_directories
    monkeypatch.setattr(local_write, "sync_directories", lambda paths: (seen.extend(held(tmp_path)), original(paths)))
    put(tmp_path, "a", "b", value=b"new")
    assert sorted(seen) == [f"{tmp_path}/a (deleted)", f"{tmp_path}/b (deleted)"]
    wait_for_nothing_held()
    assert (tmp_path / "a").read_bytes() == b"new"


@pytest.mark.parametrize("mode", ["lockfile", "none"])
def test_every_mode_that_replaces_gives_back(tmp_path, later, mode):
    """The file is held while it has its old name."""
    driver = LocalDriver(Protocol(mode=mode))
    for value in (LARGE, b"new"):
        drive(driver.write_many([Write(f"{tmp_path}/a", value)]))
    assert held(tmp_path) == [f"{tmp_path}/a (deleted)"]
    for job in later:
        job()
    wait_for_nothing_held()


def test_small_files_and_files_of_other_machines_are_not_held(tmp_path, later, monkeypatch):
    """A network file system moves aside what is open when it is replaced."""
    put(tmp_path, "small", value=b"1")
    put(tmp_path, "small", value=b"2")
    put(tmp_path, "far")
    monkeypatch.setattr(os, "major", lambda _: 0)
    put(tmp_path, "far")
    assert later == []
    assert held(tmp_path) == []


def test_what_is_held_is_bounded(tmp_path, later, tune):
    """Beyond so many files, or bytes, a file is replaced as it is."""
    tune("kvstore", KEPT=3)
    names = [f"{number}" for number in range(5)]
    put(tmp_path, *names)
    put(tmp_path, *names)
    assert len(held(tmp_path)) == 3
    for job in later:
        job()
    wait_for_nothing_held()
    tune("kvstore", KEPT=64, KEPT_BYTES=2 * len(LARGE))
    put(tmp_path, *names)
    assert len(held(tmp_path)) == 2
    give_back()
    later[-1]()
    wait_for_nothing_held()


def test_a_write_that_fails_gives_back(tmp_path):
    """Also what was replaced before the failure."""
    put(tmp_path, "a")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(FailedPreconditionError, match="Not a directory"):
        drive(
            LocalDriver(io_limit=1).write_many(
                [Write(f"{tmp_path}/a", b"1"), Write(f"{tmp_path}/gone", None), Write(f"{tmp_path}/file/b", b"2")]
            )
        )
    assert (tmp_path / "a").read_bytes() == b"1"
    wait_for_nothing_held()


def test_a_file_that_cannot_be_opened_is_replaced_as_it_is(tmp_path, later, monkeypatch):
    """For want of descriptors nothing fails."""
    put(tmp_path, "a")
    original = os.open

    def refuse(path, flags, *mode):
        if flags & os.O_PATH:
            raise OSError(errno.EMFILE, "too many open files")
        return original(path, flags, *mode)

    monkeypatch.setattr(os, "open", refuse)
    put(tmp_path, "a", value=b"new")
    assert (tmp_path / "a").read_bytes() == b"new"
    assert later == []
    wait_for_nothing_held()


def test_threads_that_give_back_at_once_close_each_file_once(tmp_path):
    """Many writers beside each other leave nothing open."""
    names = [f"{number}" for number in range(16)]
    before = set(os.listdir("/proc/self/fd"))
    for _ in range(5):
        execution.map_blocking(lambda name: put(tmp_path, name), names, kind="io")
    wait_for_nothing_held()
    links = [f"/proc/self/fd/{fd}" for fd in set(os.listdir("/proc/self/fd")) - before]
    assert not [link for link in links if os.path.exists(link) and str(tmp_path) in os.readlink(link)]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # newer Pythons warn of forks beside threads
def test_a_forked_child_holds_nothing(tmp_path, later):
    """A child that lives on would keep the space of files that its parent has replaced."""
    path = os.fsencode(tmp_path / "a")
    put(tmp_path, "a")
    hold_space(path, os.stat(path))
    [fd] = local_space.held()
    child = os.fork()
    if child == 0:
        is_open = os.path.exists(f"/proc/self/fd/{fd}")
        os._exit(1 if is_open or local_space.held() else 0)
    assert os.waitpid(child, 0)[1] == 0
    assert os.path.exists(f"/proc/self/fd/{fd}")
    give_back()
    later[-1]()
    wait_for_nothing_held()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_child_forked_while_a_file_is_closed_holds_nothing(tmp_path, later, monkeypatch, when):
    """Nor does it close what has the descriptor since."""
    path = os.fsencode(tmp_path / "a")
    put(tmp_path, "a")
    hold_space(path, os.stat(path))
    [fd] = local_space.held()
    reached, go_on = threading.Event(), threading.Event()

    def close(fd):
        if threading.current_thread() is not threading.main_thread():  # which is that of the child, too
            if when == "after":
                os.dup2(other.fileno(), fd)
            reached.set()
            assert go_on.wait(20)
        os.close(fd)

    monkeypatch.setattr(local_space, "os", SimpleNamespace(**{**vars(os), "close": close}))
    with (tmp_path / "other").open("wb") as other:
        give_back()
        thread = threading.Thread(target=later[-1])
        thread.start()
        assert reached.wait(20)
        child = os.fork()
        if child == 0:
            os._exit(int(os.path.exists(f"/proc/self/fd/{fd}") != (when == "after")))
        go_on.set()
        thread.join()
    assert os.waitpid(child, 0)[1] == 0
