"""Local files when processes die, race, or lack permission."""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from fsstore.kvstore.contract.driver import KvPrefix, LateWrite, Write
from fsstore.kvstore.contract.request import KeyRange
from fsstore.kvstore.local import stage as local_stage
from fsstore.kvstore.local.driver import LocalDriver
from fsstore.kvstore.local.lock import hold
from fsstore.kvstore.local.stage import Protocol
from fsstore.runtime import execution
from fsstore.runtime.execution import drive

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def command(script, *arguments):
    return [sys.executable, "-W", "error", str(HERE / script), *map(str, arguments)]


def run_script(script, *arguments):
    done = subprocess.run(command(script, *arguments), cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def kill_writers(path, mode, sync, rounds):
    seed = zlib.crc32(f"{mode} {sync} {rounds}".encode())
    assert run_script("local_kill_loop.py", path, mode, sync, rounds, seed) == f"survived {rounds}\n"


@pytest.mark.parametrize("sync", ["sync", "nosync"])
@pytest.mark.parametrize("mode", ["os", "lockfile", "none"])
def test_killed_writers(tmp_path, mode, sync):
    """A writer killed at any moment leaves whole values, loses nothing answered, and blocks nobody in mode `os`."""
    kill_writers(tmp_path, mode, sync, 10)


@pytest.mark.long
@pytest.mark.parametrize("sync", ["sync", "nosync"])
@pytest.mark.parametrize("mode", ["os", "lockfile", "none"])
def test_many_killed_writers(tmp_path, mode, sync):
    """The same two hundred times."""
    kill_writers(tmp_path, mode, sync, 200)


def count_up(path, mode, libraries, count):
    """Let one process per library name raise the same counter; return its final value."""
    (path / "n").write_bytes(b"0")
    processes = [
        subprocess.Popen(
            command("local_increment.py", library, path, mode, count),
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for library in libraries
    ]
    try:
        for process in processes:
            assert process.stdout.readline() == b"ready\n"
        for process in processes:
            process.stdin.write(b"\n")
            process.stdin.close()
        assert [process.wait() for process in processes] == [0] * len(processes)
    finally:
        for process in processes:
            process.kill()
            process.wait()
            process.stdout.close()
            process.stdin.close()
    assert os.listdir(path) == ["n"]
    return int((path / "n").read_bytes())


@pytest.mark.parametrize("mode", ["os", "lockfile"])
def test_no_update_lost_between_processes(tmp_path, mode):
    """Processes that raise one counter by conditional writes lose nothing."""
    assert count_up(tmp_path, mode, ["fsstore"] * 3, 60) == 180


def test_no_update_lost_beside_tensorstore(tmp_path):
    """Nor do they when tensorstore writes the same key."""
    assert count_up(tmp_path, "os", ["fsstore", "tensorstore"] * 2, 60) == 240


@pytest.mark.long
@pytest.mark.parametrize("mode", ["os", "lockfile"])
def test_no_update_lost_between_many_processes(tmp_path, mode):
    """Eight processes, five hundred increments each."""
    assert count_up(tmp_path, mode, ["fsstore"] * 8, 500) == 4000


@pytest.mark.long
@pytest.mark.parametrize("mode", ["os", "lockfile"])
def test_no_update_lost_beside_many_tensorstores(tmp_path, mode):
    """Four processes of each library, five hundred increments each."""
    assert count_up(tmp_path, mode, ["fsstore", "tensorstore"] * 4, 500) == 4000


def test_permission_denied(tmp_path):
    """What the system forbids is `PERMISSION_DENIED` with path and reason, never missing."""
    folder = tmp_path / "closed"
    folder.mkdir()
    (folder / "secret").write_bytes(b"x")
    (folder / "secret").chmod(0)
    folder.chmod(0o555)
    for path in (tmp_path, *tmp_path.parents):
        if path.stat().st_uid == os.getuid() and path != Path("/tmp"):
            path.chmod(path.stat().st_mode | 0o011)
    try:
        lines = run_script("local_permission.py", folder).splitlines()
        assert all("PERMISSION_DENIED: Failed to " in line and "Permission denied" in line for line in lines[:3]), lines
        assert f'open: "{folder}/secret"' in lines[0]
        assert f'open: "{folder}/new.__lock"' in lines[1]
        assert lines[3] == "allowed"
        folder.chmod(0)
        lines = run_script("local_permission.py", folder).splitlines()
        assert all("PERMISSION_DENIED: Failed to " in line for line in lines), lines
    finally:
        folder.chmod(0o755)


def test_files_that_come_and_go(tmp_path):
    """Reading and listing beside writers that replace and delete never fails and never sees half a value."""
    store = KvPrefix(LocalDriver(Protocol(sync=False)), f"{tmp_path}/")
    values = {b"a" * 10, b"b" * 70_000, b""}

    async def names():
        return [entry.key async for batch in store.scan() for entry in batch]

    def work(number):
        for step in range(60):
            key = f"d{step % 3}/e/k{step % 5}"
            if number == 0:
                drive(
                    store.write_many([Write(key, b"ab"[step % 2 : step % 2 + 1] * (10 if step % 2 == 0 else 70_000))])
                )
            elif number == 1:
                drive(store.delete_range(KeyRange.prefix(f"d{step % 3}")))
            else:
                result = drive(store.read(key))
                assert bytes(result.value) in values
                assert set(drive(names())) <= {f"d{a}/e/k{b}" for a in range(3) for b in range(5)}

    execution.map_blocking(work, range(4), kind="io")


def test_lock_does_not_live_on_in_a_forked_child(tmp_path, monkeypatch):
    """A child forked while a lock is held inherits the open file, but the lock ends with the write."""
    inherited = []

    def hold_and_fork(*arguments):
        held = hold(*arguments)
        inherited.append(os.dup(held.fd))  # what a fork does to the descriptor
        return held

    monkeypatch.setattr(local_stage, "hold", hold_and_fork)
    store = KvPrefix(LocalDriver(Protocol(sync=False)), f"{tmp_path}/")
    drive(store.write("k", b"v"))
    try:
        with open(tmp_path / "k", "r+b") as again:
            fcntl.fcntl(again, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
    finally:
        os.close(inherited[0])


SHORT_OF = """
import resource, signal, sys
import fsstore as ts

place, limit, value = sys.argv[1], getattr(resource, sys.argv[2]), int(sys.argv[3])
side = int(sys.argv[4])
chunks = ts.ChunkLayout(chunk_shape=[side])
store = ts.open(f"file://{place}|zarr3:", create=True, dtype="float64", shape=[4 * side], chunk_layout=chunks,
    codec=ts.CodecSpec({"driver": "zarr3", "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}]})).result()
store[...] = 1.0
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
soft, hard = resource.getrlimit(limit)
resource.setrlimit(limit, (value, hard))
try:
    store[...] = 2.0
    print("written")
except ts.errors.StoreError as error:
    print(type(error).__name__)
resource.setrlimit(limit, (soft, hard))
print(sorted(set(store.read().result().tolist())))
store[...] = 3.0
print(sorted(set(store.read().result().tolist())))
"""


@pytest.mark.parametrize("side", [1000, 300_000])
@pytest.mark.parametrize(
    ("limit", "value"), [("RLIMIT_FSIZE", 5000), ("RLIMIT_NOFILE", 0)], ids=["room", "descriptors"]
)
def test_a_machine_that_is_short_of_something(tmp_path, limit, value, side):
    """Files that may not grow, and descriptors that are used up, are errors; what was stored stays, and nothing else."""
    place = tmp_path / "a"
    done = subprocess.run(
        [sys.executable, "-c", SHORT_OF, str(place), limit, str(value), str(side)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["ResourceExhaustedError", "[1.0]", "[3.0]"]
    names = {str(path.relative_to(place)) for path in place.rglob("*") if path.is_file()}
    assert names == {"zarr.json", *(f"c/{number}" for number in range(4))}


@pytest.mark.parametrize("meanwhile", ["before", "during"])
def test_a_file_that_another_process_removes_is_gone_durably(tmp_path, monkeypatch, meanwhile):
    """A deletion is answered when the directory is synced, whoever removed the file: the other may not be so far."""
    driver, key, synced = LocalDriver(), str(tmp_path / "k"), []
    real_unlink, real_fsync = os.unlink, os.fsync

    def unlink(path):
        if os.fsdecode(path) == key and meanwhile == "during":
            real_unlink(path)
        real_unlink(path)

    def fsync(fd):
        synced.append(os.fstat(fd).st_ino)
        real_fsync(fd)

    if meanwhile == "during":
        drive(driver.write_many([Write(key, b"value")]))
    monkeypatch.setattr(os, "unlink", unlink)
    monkeypatch.setattr(os, "fsync", fsync)
    drive(driver.write_many([Write(key, None)]))
    assert synced == [tmp_path.stat().st_ino]


def test_what_the_system_writes_in_part_is_written_on(tmp_path, monkeypatch):
    """A system call may take less than it is given, anywhere in the buffers."""
    real = os.write
    monkeypatch.setattr(os, "writev", lambda fd, buffers: real(fd, b"".join(buffers)[:1500]))
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, memoryview(data)[:700]))
    for portion in [[5000], [1000, 1000, 1000], [0, 3000, 0], [1] * 500, [0]]:
        write_and_compare(tmp_path / "k", portion)


@pytest.mark.parametrize("sync", [True, False])
def test_no_system_call_is_given_very_much(tmp_path, monkeypatch, tune, sync):
    """However large a value is, and the buffers it comes in: macOS refuses to write 2 GB."""
    real = os.writev

    def writev(fd, buffers):
        assert sum(map(len, buffers)) <= 10000
        return real(fd, buffers)

    monkeypatch.setattr(os, "writev", writev)
    tune("kvstore", PIECE_BYTES=10000, FLIGHT_BYTES=10000)
    for portion in [[25000], [1000, 9000], [1000, 9001], [10, 25000, 10]]:
        write_and_compare(tmp_path / "k", portion, sync=sync)


def write_and_compare(path, sizes, *, sync=True):
    """Write random buffers of these sizes as one portion between others, and read them."""
    parts = [os.urandom(size) for size in sizes]
    portions = (portion for portion in [[b"first"], parts, [b"last"]])
    drive(LocalDriver(Protocol(sync=sync)).write_late([lambda: LateWrite(str(path), portions)]))
    assert path.read_bytes() == b"first" + b"".join(parts) + b"last"
