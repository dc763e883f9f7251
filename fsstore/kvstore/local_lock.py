"""The lock of a key on local disk: a file beside it, in which the new value is written.

TensorStore's protocol, so that both libraries may write the same store at once:

* `os`: `<key>.__lock` is opened (created if need be) and locked as a whole with an open-file-description lock.
  Whoever held the lock before has renamed the file over the key or removed it, so the path is looked at again: if it
  no longer leads to the file that is locked, begin again.  The system drops the lock when its holder dies; the file
  stays and is used, emptied, by the next writer.
* `lockfile`: the file is created exclusively; its existence is the lock.  It outlives its holder.
* `none`: a file of a random name, no exclusion.

The lock is the temporary file, so readers never wait.  What is written, and when, is `local_write`'s business.
"""

# ruff: noqa: PTH102  # paths are bytes here, which pathlib does not know, and a Path costs as much as the call

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import struct
import time
from collections.abc import Callable
from typing import NamedTuple

from fsstore._json import quote
from fsstore.errors import DeadlineExceededError
from fsstore.kvstore.local_path import LOCK_SUFFIX, os_failure, parent

__all__ = ["Held", "hold", "open_creating", "release"]

_SUFFIX = LOCK_SUFFIX.encode()
# A symbolic link planted in place of a lock file is not followed: it would be emptied.
_OPEN = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
_LOCK_WAIT = getattr(fcntl, "F_OFD_SETLKW", None)
_UNLOCK = getattr(fcntl, "F_OFD_SETLK", None)
_FLOCK = struct.Struct("hhqqi4x")
_WHOLE_FILE = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
_NOTHING = _FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, 0, 0, 0)
_MODE = 0o666
_ATTEMPTS = 100  # against a neighbour that keeps removing the directory
_FIRST_SLEEP_S, _LONGEST_SLEEP_S = 0.001, 1.0


class Held(NamedTuple):
    """An open file under the lock of a key: empty, and to be renamed over the key or removed."""

    fd: int
    path: bytes
    locked: bool = False


def hold(target: bytes, mode: str, timeout_s: float, dirty: set[bytes]) -> Held:
    """Return the lock of `target`, waited for.  Directories are made as needed; their parents go into `dirty`."""
    if mode == "os":
        return _hold_os(target + _SUFFIX, dirty)
    if mode == "lockfile":
        return _hold_file(target + _SUFFIX, timeout_s, dirty)
    path = target + b"_" + secrets.token_hex(8).encode() + _SUFFIX
    return Held(open_creating(path, _OPEN | os.O_EXCL, dirty), path)


def open_creating(path: bytes, flags: int, dirty: set[bytes]) -> int:
    """Return a descriptor of `path`; missing parent directories are made."""
    for _ in range(_ATTEMPTS):
        try:
            return os.open(path, flags, _MODE)
        except FileNotFoundError:
            _make_directories(parent(path), dirty)
        except NotADirectoryError as error:
            raise os_failure("open directory", parent(path), error) from error
        except FileExistsError:
            raise
        except OSError as error:
            raise os_failure("open", path, error) from error
    raise os_failure("open", path, FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)))


def _make_directories(path: bytes, dirty: set[bytes]) -> None:
    missing = [path]
    while missing:
        try:
            os.mkdir(missing[-1])
        except FileExistsError:
            missing.pop()
        except FileNotFoundError:
            missing.append(parent(missing[-1]))
        except OSError as error:
            raise os_failure("create directory", missing[-1], error) from error
        else:
            dirty.add(parent(missing.pop()))


def _hold_os(path: bytes, dirty: set[bytes]) -> Held:
    while True:
        fd = open_creating(path, _OPEN, dirty)
        taken = False
        try:
            _lock(fd, path)
            taken = _empty_if_at(path, fd)
        finally:
            if not taken:
                os.close(fd)
        if taken:
            return Held(fd, path, locked=True)


def release(held: Held) -> None:
    """Unlock and close.

    Closing alone is not enough: a child forked meanwhile has inherited the open file, and with it the lock.
    """
    try:
        if held.locked and _UNLOCK is not None:
            fcntl.fcntl(held.fd, _UNLOCK, _NOTHING)
        elif held.locked:
            fcntl.flock(held.fd, fcntl.LOCK_UN)
    finally:
        os.close(held.fd)


def _empty_if_at(path: bytes, fd: int) -> bool:
    """Empty the locked file; return False if the path leads elsewhere by now."""
    mine = os.fstat(fd)
    try:
        there = os.lstat(path)
    except FileNotFoundError:
        return False
    if (there.st_ino, there.st_dev) != (mine.st_ino, mine.st_dev):
        return False
    if mine.st_size:
        os.ftruncate(fd, 0)
    return True


def _lock(fd: int, path: bytes) -> None:
    while True:
        try:
            if _LOCK_WAIT is None:
                fcntl.flock(fd, fcntl.LOCK_EX)
            else:
                fcntl.fcntl(fd, _LOCK_WAIT, _WHOLE_FILE)
        except InterruptedError:
            continue
        except OSError as error:
            raise os_failure("lock", path, error) from error
        return


def _hold_file(path: bytes, timeout_s: float, dirty: set[bytes]) -> Held:
    deadline = time.monotonic() + timeout_s
    sleep_s = _FIRST_SLEEP_S
    while True:
        try:
            return Held(open_creating(path, _OPEN | os.O_EXCL, dirty), path)
        except FileExistsError:
            left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise DeadlineExceededError(
                f"Failed to open lock file: {quote(path)}: it still exists after {timeout_s:g} s; "
                "remove it if its writer is gone"
            )
        _pause(min(sleep_s, left_s))
        sleep_s = min(2 * sleep_s, _LONGEST_SLEEP_S)


_pause: Callable[[float], None] = time.sleep
