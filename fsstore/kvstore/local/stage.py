"""One write of a local file: its value goes into the lock file of its key, which is then renamed to the key.

`lock` provides the lock file; `write` decides the order in which many files are filled, synced and renamed.

A generation consists of device, inode and modification time.  Inodes are reused at once and clocks are coarse, so a
file that was replaced twice could look unchanged: the modification time of a new value is therefore set past that of
the value it replaces.
"""

# ruff: noqa: PTH104, PTH108, PTH116  # paths are bytes here, which pathlib does not know, and a Path costs as much as the call

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Literal, TypeAlias
from weakref import WeakValueDictionary

from fsstore.errors import ResourceExhaustedError
from fsstore.kvstore.contract.driver import NO_VALUE, UNKNOWN, Buffer, LateValue, LateWrite, Stamp, Write, now
from fsstore.kvstore.local.file import file_path, generation_of, os_failure, parent
from fsstore.kvstore.local.lock import Held, OpenFile, hold, hold_if_free, open_creating
from fsstore.runtime import execution, fork
from fsstore.runtime.fork import OfProcess
from fsstore.runtime.tuning import FLIGHT_BYTES, KEPT, KEPT_BYTES, MOMENT_S, PIECE_BYTES, SMALL_BYTES

# The space of replaced files, freed after the answer.

_FLAGS = getattr(os, "O_PATH", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)

_File: TypeAlias = tuple[int, os.stat_result]  # the descriptor, and the status at opening


class _Held:
    """Open descriptors of replaced files, and the bytes of disk that they still hold."""

    def __init__(self) -> None:
        self.lock = fork.lock()
        self.files: list[_File] = []
        self.open: set[_File] = set()  # includes files that a thread is about to close
        self.count = self.size = 0

    def reserve(self, size: int) -> bool:
        """Return whether there is room for one more file, and reserve it."""
        with self.lock:
            if self.count == KEPT or self.size + size > KEPT_BYTES:
                return False
            self.count, self.size = self.count + 1, self.size + size
        return True

    def release(self, size: int) -> None:
        """Return the room of a file."""
        with self.lock:
            self.count, self.size = self.count - 1, self.size - size

    def leave(self) -> None:
        """Close the parent's descriptors in a forked child; otherwise the space would stay in use after the parent
        closes its own.
        """
        for fd, before in self.open:
            with suppress(OSError):  # a thread may have closed it, and the number may belong to another file
                if os.path.samestat(os.fstat(fd), before):
                    os.close(fd)

    def close(self) -> None:
        """Close all held files, which frees their space."""
        while self.files:
            try:
                file = fd, before = self.files.pop()
            except IndexError:  # another thread took the last one
                return
            os.close(fd)
            self.release(before.st_size)
            self.open.discard(file)


_held = OfProcess(_Held, leave=_Held.leave)


def held() -> list[int]:
    """Return the descriptors of replaced files whose space is not freed yet."""
    return [fd for fd, _ in _held.now.open.copy()]


def hold_space(path: bytes, before: os.stat_result) -> None:
    """Let a large file that is about to be replaced keep its space until the write is answered."""
    is_local = hasattr(os, "O_PATH") and os.major(before.st_dev) != 0
    if not is_local or before.st_size < SMALL_BYTES or not _held.now.reserve(before.st_size):
        return
    try:
        fd = os.open(path, _FLAGS)
    except OSError:  # too many open files, or the file is gone: its space is freed at once
        _held.now.release(before.st_size)
    else:
        file = fd, before
        _held.now.open.add(file)
        _held.now.files.append(file)


def give_back() -> None:
    """Free the held space, on another thread."""
    if _held.now.files:
        execution.hand_over(_held.now.close, kind="io")


# The way of a file to the disk.

_BEGIN = 2  # SYNC_FILE_RANGE_WRITE; a length of zero reaches to the end of the file


def _system_call() -> Callable[[int], object] | None:
    try:
        call = ctypes.CDLL(None).sync_file_range
    except (AttributeError, OSError, TypeError):  # only Linux has it
        return None
    call.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    return lambda fd: call(fd, 0, 0, _BEGIN)


begin_writeback = _system_call()
"""Starts writing the dirty pages of an open file; None if the system has no such call."""


def sync_filesystem(path: bytes) -> None:
    """Return once all data written to the filesystem of `path` are on disk.

    One call takes many files in the time of a few: syncing each of 256 files of half a megabyte takes four times as
    long.  If the directory of `path` is missing, the nearest one above is used.
    """
    fd = _nearest(path)
    try:
        if _SYNCFS is None:
            os.sync()
        elif _SYNCFS(fd) != 0:
            raise os_failure("sync", path, OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno())))
    finally:
        os.close(fd)


def _nearest(path: bytes) -> int:
    while True:
        path = parent(path)
        try:
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            if path in (b"/", b"."):
                raise


def _syncfs() -> Callable[[int], int] | None:
    try:
        call = ctypes.CDLL(None, use_errno=True).syncfs
    except (AttributeError, OSError, TypeError):  # only Linux has it
        return None
    call.argtypes, call.restype = (ctypes.c_int,), ctypes.c_int
    return lambda fd: int(call(fd))


_SYNCFS = _syncfs()

_NO_LINK = frozenset((errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EXDEV))


@dataclass(frozen=True, slots=True)
class Protocol:
    """How files are written: the locking mode, the longest wait for a lock file, and whether to sync."""

    mode: Literal["os", "lockfile", "none", "non_atomic"] = "os"
    acquire_timeout_s: float = 60.0
    sync: bool = True


def make_durable(files: Sequence[OpenFile]) -> None:
    """Sync files; if there are several, all are on their way to the disk before the first is waited for."""
    if begin_writeback is not None and len(files) > 1:
        for held in files:
            begin_writeback(held.fd)
    for held in files:
        try:
            os.fsync(held.fd)
        except OSError as error:
            raise os_failure("write", held.path, error) from error


def _status(path: bytes) -> os.stat_result | None:
    """Return the status of a value, None if there is none; a directory is not a value."""
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise os_failure("stat", path, error) from error
    return None if stat.S_ISDIR(status.st_mode) else status


def _is_directory(path: bytes) -> bool:
    """Return whether the path is a directory, so that no value can be there."""
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)
    except OSError:
        return False


def _holds(if_equal: bytes, status: os.stat_result | None) -> bool:
    return if_equal in (UNKNOWN, NO_VALUE if status is None else generation_of(status))


@dataclass(slots=True)
class Staged:
    """A write before its value is synced and renamed; without a file, the outcome of the write."""

    stamp: Stamp
    held: Held | None = None
    target: bytes = b""
    folder: bytes = b""
    exclusive: bool = False
    size: int = 0

    def publish(self, dirty: set[bytes]) -> Stamp:
        """Give the file its name."""
        if self.held is None:
            return self.stamp
        generation = self.stamp.generation
        turn = _turn(self.folder)
        try:
            turn.acquire(timeout=MOMENT_S)
            if not self.exclusive:
                _rename(self.held.path, self.target)
                self.held.temporary = False
            elif not _link(self.held.path, self.target):
                generation = UNKNOWN
        finally:
            with suppress(RuntimeError):  # this thread has not got its turn
                turn.release()
        dirty.add(self.folder)
        self.stamp = Stamp(generation, now())
        return self.stamp

    def let_go(self, *_error: object) -> None:
        """Release the lock, and remove the file unless it became the value."""
        assert self.held is not None
        self.held.let_go()


_turns: OfProcess[WeakValueDictionary[bytes, fork.Lock]] = OfProcess(WeakValueDictionary)


def _turn(folder: bytes) -> fork.Lock:
    """Return the lock of the threads that rename files in a directory; they wait for it at most a moment.

    The system admits one of them at a time, and the others spin meanwhile: replacing 337 small files took 1.5 times the
    processor time.  Two threads at once are harmless, so a thread that has waited in vain proceeds: an interruption of
    the holder, such as a signal handler, may be waiting for that very thread.
    """
    turn = _turns.now.get(folder)
    return _turns.now.setdefault(folder, fork.brief_lock()) if turn is None else turn


def stage(write: Write | LateWrite, protocol: Protocol, dirty: set[bytes], *, wait: bool) -> Staged | None:
    """Write the value into the lock file of its key; None if that would have to wait for the lock."""
    path = file_path(write.key)
    if write.value is None:
        return Staged(Stamp(remove_file(path, write.if_equal, protocol, dirty), now()))
    if protocol.mode == "non_atomic":
        return Staged(Stamp(_overwrite(path, write.value, write.if_equal, protocol, dirty), now()))
    if wait:
        held = hold(path, protocol.mode, protocol.acquire_timeout_s, dirty)
    else:
        free = _hold_another(path, protocol.mode, dirty)
        if free is None:
            return None
        held = free
    exclusive = protocol.mode == "none" and write.if_equal == NO_VALUE
    try:
        before = _status(path)
        holds = _holds(write.if_equal, before)
        status = _fill(held, write.value, before, early=protocol.sync) if holds else None
        if status is not None and before is not None:
            hold_space(path, before)
    except BaseException:
        held.let_go()
        raise
    if status is not None:
        return Staged(Stamp(generation_of(status)), held, path, parent(path), exclusive, status.st_size)
    held.let_go()
    return Staged(Stamp(UNKNOWN, now()))


def _hold_another(path: bytes, mode: str, dirty: set[bytes]) -> Held | None:
    try:
        return hold_if_free(path, mode, dirty)
    except ResourceExhaustedError:  # too many open files: the files of the group are closed first
        return None


def _fill(held: OpenFile, value: LateValue, before: os.stat_result | None, *, early: bool) -> os.stat_result:
    """Write the value into the file and return its final status.

    With `early`, the disk starts on the first parts of a value while the rest is made.
    """
    fd = held.fd
    try:
        if not isinstance(value, Generator):
            _write_all(fd, value)
        else:
            with closing(value):
                _write_portions(fd, value, early=early)
        status = os.fstat(fd)
        if before is not None and status.st_mtime_ns <= before.st_mtime_ns:
            os.utime(fd, ns=(status.st_atime_ns, before.st_mtime_ns + 1))
            status = os.fstat(fd)
    except OSError as error:
        raise os_failure("write", held.path, error) from error
    return status


def _write_all(fd: int, value: Buffer) -> None:
    written = os.write(fd, value)
    view = memoryview(value)
    if written == view.nbytes:
        return
    view = view.cast("B")
    while written < len(view):
        written += os.write(fd, view[written:])


def _write_portions(fd: int, portions: Iterable[Sequence[Buffer]], *, early: bool) -> None:
    """Write portions as they come; if `early`, start writing every full megabyte to disk before the next one.

    The disk then works while the rest is made, and a sync waits for the last part only: writing shards takes 0.88 of
    the time, large blosc chunks 0.95.  Steps of half a megabyte lose the gain.
    """
    size = 0
    for portion in portions:
        for part in _steps(portion, early=early):
            size += _write_portion(fd, part)
            if size >= PIECE_BYTES and early and begin_writeback is not None:
                begin_writeback(fd)
                size = 0


def _steps(portion: Sequence[Buffer], *, early: bool) -> Iterator[Sequence[Buffer]]:
    """Yield a portion in steps if it is one buffer and `early`, or if it is too large for one write."""
    if (len(portion) > 1 or not early) and _size(portion) <= FLIGHT_BYTES:
        yield portion
        return
    for view in [memoryview(buffer).cast("B") for buffer in portion]:
        for start in range(0, len(view), PIECE_BYTES):
            yield [view[start : start + PIECE_BYTES]]


def _size(portion: Sequence[Buffer]) -> int:
    return sum([memoryview(buffer).nbytes for buffer in portion])


def _write_portion(fd: int, portion: Sequence[Buffer]) -> int:
    """Write buffers one after the other; return their size in bytes."""
    size, written = _size(portion), os.writev(fd, portion)
    if written < size:
        _write_all(fd, memoryview(b"".join(portion))[written:])
    return size


def _rename(source: bytes, target: bytes) -> None:
    try:
        os.rename(source, target)
    except OSError as error:
        raise os_failure("rename", source, error, f' to: "{os.fsdecode(target)}"') from error


def _link(source: bytes, target: bytes) -> bool:
    """Give the file the name `target` unless it is taken: exclusive creation without a lock."""
    try:
        os.link(source, target)
    except FileExistsError:
        if not _is_directory(target):
            return False
        _rename(source, target)
    except OSError as error:
        if error.errno not in _NO_LINK:
            raise os_failure("link", source, error, f' to: "{os.fsdecode(target)}"') from error
        _rename(source, target)
    return True


def _overwrite(path: bytes, value: LateValue, if_equal: bytes, protocol: Protocol, dirty: set[bytes]) -> bytes:
    """Write the file in place, for the mode `non_atomic`."""
    if if_equal != UNKNOWN and not _holds(if_equal, _status(path)):
        return UNKNOWN
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        opened = open_creating(OpenFile, path, flags | (os.O_EXCL if if_equal == NO_VALUE else 0), dirty)
    except FileExistsError:
        if not _is_directory(path):
            return UNKNOWN
        raise os_failure("open", path, IsADirectoryError(errno.EISDIR, "")) from None
    try:
        generation = generation_of(_fill(opened, value, None, early=protocol.sync))
        if protocol.sync:
            make_durable([opened])
    finally:
        opened.let_go()
    dirty.add(parent(path))
    return generation


def remove_file(path: bytes, if_equal: bytes, protocol: Protocol, dirty: set[bytes], *, alone: bool = False) -> bytes:
    """Delete a file under its lock; return `NO_VALUE`, or `UNKNOWN` if the condition does not hold.

    A missing file needs no lock: it was missing at the moment of the check.  Nor does an `alone` one, which no other
    writer is writing.
    """
    if alone:
        return _remove(path, if_equal, dirty)
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        dirty.add(parent(path))  # the process that removed it may not have synced yet
        return NO_VALUE if if_equal in (UNKNOWN, NO_VALUE) else UNKNOWN
    except OSError as error:
        raise os_failure("delete", path, error) from error
    if protocol.mode not in ("os", "lockfile"):
        return _remove(path, if_equal, dirty)
    held = hold(path, protocol.mode, protocol.acquire_timeout_s, dirty)
    try:
        return _remove(path, if_equal, dirty)
    finally:
        held.let_go()


def _remove(path: bytes, if_equal: bytes, dirty: set[bytes]) -> bytes:
    if if_equal != UNKNOWN and not _holds(if_equal, _status(path)):
        return UNKNOWN
    dirty.add(parent(path))
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass  # the process that removed it may not have synced yet
    except OSError as error:
        raise os_failure("delete", path, error) from error
    return NO_VALUE
