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

__all__ = ["Held", "close", "hold", "hold_if_free", "open_creating", "release"]

_SUFFIX = LOCK_SUFFIX.encode()
# A symbolic link planted in place of a lock file is not followed: it would be emptied.
_OPEN = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
_LOCK_WAIT = getattr(fcntl, "F_OFD_SETLKW", None)
_LOCK = getattr(fcntl, "F_OFD_SETLK", None)
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
    if mode == "lockfile":
        return _hold_file(target + _SUFFIX, timeout_s, dirty)
    held = None
    while held is None:
        held = _hold_os(target + _SUFFIX, dirty, wait=True) if mode == "os" else _hold_own(target, dirty)
    return held


def hold_if_free(target: bytes, mode: str, dirty: set[bytes]) -> Held | None:
    """Return the lock of `target`, or None if somebody else has it."""
    if mode == "os":
        return _hold_os(target + _SUFFIX, dirty, wait=False)
    if mode == "lockfile":
        return _create(target + _SUFFIX, dirty)
    return _hold_own(target, dirty)


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


def _hold_own(target: bytes, dirty: set[bytes]) -> Held | None:
    return _create(target + b"_" + secrets.token_hex(8).encode() + _SUFFIX, dirty)


def _create(path: bytes, dirty: set[bytes]) -> Held | None:
    try:
        return Held(open_creating(path, _OPEN | os.O_EXCL, dirty), path)
    except FileExistsError:
        return None


def _hold_os(path: bytes, dirty: set[bytes], *, wait: bool) -> Held | None:
    """Return the lock, or None if it is taken or its file became a value meanwhile."""
    fd = open_creating(path, _OPEN, dirty)
    taken = False
    try:
        taken = _lock(fd, path, wait=wait) and _empty_if_at(path, fd)
    finally:
        if not taken:
            close(fd, path)
    return Held(fd, path, locked=True) if taken else None


def release(held: Held) -> None:
    """Unlock and close.

    Closing alone is not enough: a child forked meanwhile has inherited the open file, and with it the lock.
    """
    try:
        if held.locked and _LOCK is not None:
            fcntl.fcntl(held.fd, _LOCK, _NOTHING)
        elif held.locked:
            fcntl.flock(held.fd, fcntl.LOCK_UN)
    finally:
        close(held.fd, held.path)


def close(fd: int, path: bytes) -> None:
    """Close a file; systems that write late say here what they could not."""
    try:
        os.close(fd)
    except OSError as error:
        raise os_failure("close", path, error) from error


def _empty_if_at(path: bytes, fd: int) -> bool:
    """Empty the locked file; return False if the path leads elsewhere by now."""
    try:
        mine, there = os.fstat(fd), os.lstat(path)
        if (there.st_ino, there.st_dev) != (mine.st_ino, mine.st_dev):
            return False
        if mine.st_size:
            os.ftruncate(fd, 0)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise os_failure("lock", path, error) from error
    return True


def _lock(fd: int, path: bytes, *, wait: bool) -> bool:
    """Lock the whole file; return False if that would mean to wait and `wait` is not set."""
    while True:
        try:
            if _LOCK is None or _LOCK_WAIT is None:
                fcntl.flock(fd, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
            else:
                fcntl.fcntl(fd, _LOCK_WAIT if wait else _LOCK, _WHOLE_FILE)
        except InterruptedError:
            continue
        except OSError as error:
            if not wait and error.errno in (errno.EAGAIN, errno.EACCES):
                return False
            raise os_failure("lock", path, error) from error
        return True


def _hold_file(path: bytes, timeout_s: float, dirty: set[bytes]) -> Held:
    deadline = time.monotonic() + timeout_s
    sleep_s = _FIRST_SLEEP_S
    while (held := _create(path, dirty)) is None:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise DeadlineExceededError(
                f"Failed to open lock file: {quote(path)}: it still exists after {timeout_s:g} s; "
                "remove it if its writer is gone"
            )
        _pause(min(sleep_s, left_s))
        sleep_s = min(2 * sleep_s, _LONGEST_SLEEP_S)
    return held


_pause: Callable[[float], None] = time.sleep
