"""The lock of a key on local disk: a file beside it, into which the new value is written.

This is TensorStore's protocol, so both libraries may write the same store at once:

* `os`: `<key>.__lock` is opened (created if need be) and locked as a whole with an open-file-description lock.  The
  previous holder has renamed the file over the key or removed it, so the path is checked again: if it leads to another
  file by now, the procedure starts over.  The system drops the lock when its holder dies; the file stays, and the next
  writer empties and uses it.
* `lockfile`: the file is created exclusively; its existence is the lock.  It outlives its holder.
* `none`: a file of a random name, no exclusion.

The lock is the temporary file, so readers never wait.  `write` decides the order of writes.

Ctrl-C may come between any two steps, even when a lock has just been taken and is not yet recorded, or is about to be
released.  So an object owns an open file from the moment it is opened, and releases it when the object is dropped;
`forgetting` ensures that the files of an interrupted call are dropped at once.
"""

# ruff: noqa: PTH102, PTH108  # paths are bytes here, which pathlib does not know, and a Path costs as much as the call

from __future__ import annotations

import errno
import os
import secrets
import struct
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

from fsstore.errors import DeadlineExceededError, StoreError, UnimplementedError
from fsstore.kvstore.local.file import LOCK_SUFFIX, os_failure, parent
from fsstore.runtime.tuning import HOP_S, MOMENT_S, READ_ATTEMPTS
from fsstore.values.json_value import quote

try:
    import fcntl
except ImportError:
    raise UnimplementedError(
        "Files of this machine cannot be opened, because they are locked by `fcntl`, which this system does not have."
        " Use another store, or Linux in a virtual machine, such as WSL on Windows"
    ) from None

_SUFFIX = LOCK_SUFFIX.encode()
# A symbolic link in place of a lock file is not followed: its target would be emptied.
_OPEN = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
_LOCK_WAIT = getattr(fcntl, "F_OFD_SETLKW", None)
_LOCK = getattr(fcntl, "F_OFD_SETLK", None)
_FLOCK = struct.Struct("hhqqi4x")
_WHOLE_FILE = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
_NOTHING = _FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, 0, 0, 0)
_MODE = 0o666
F = TypeVar("F", bound="OpenFile")


class OpenFile:
    """A file that is open until it is released or dropped."""

    __slots__ = ("_owned", "path")

    def __init__(self, path: bytes, flags: int) -> None:
        self.path = path
        self._owned: list[int] = []
        self._owned.extend(map(os.open, (path,), (flags,), (_MODE,)))  # Ctrl-C comes before or after it

    @property
    def fd(self) -> int:
        """The descriptor."""
        return self._owned[0]

    def let_go(self) -> None:
        """Close the file; systems that write late report failures here."""
        try:
            any(map(os.close, map(self._owned.pop, (-1,))))  # one step, as above
        except OSError as error:
            raise os_failure("close", self.path, error) from error

    def __del__(self) -> None:
        """Release a dropped file."""
        if getattr(self, "_owned", None):
            with suppress(StoreError):
                self.let_go()


class Held(OpenFile):
    """An open file under the lock of a key: empty, and to be renamed over the key or removed.

    If `temporary`, releasing removes it; if `locked`, it may have to be unlocked.
    """

    __slots__ = ("locked", "temporary")

    def __init__(self, path: bytes, flags: int) -> None:
        self.locked = False
        self.temporary = bool(flags & os.O_EXCL)
        super().__init__(path, flags)

    def let_go(self) -> None:
        """Release the lock, and remove the file unless it became the value.

        Closing alone is not enough: a child forked meanwhile has inherited the open file, and with it the lock.
        """
        try:
            if self.temporary and _status_if_at(self.path, self.fd):  # its renaming may have been interrupted
                os.unlink(self.path)
        except OSError:
            pass  # the lock file is empty or stale; the next writer uses or reports it
        try:
            if self.locked:
                _unlock(self.fd)
        finally:
            super().let_go()


@contextmanager
def forgetting() -> Iterator[None]:
    """Release files that were open in the block when Ctrl-C came.

    The exception refers to every frame it passed, with all objects there, and interactive sessions keep the last
    exception.
    """
    try:
        yield
    except Exception:
        raise
    except BaseException as error:
        forgotten: BaseException | None = error
        while forgotten is not None:
            traceback.clear_frames(forgotten.__traceback__)
            forgotten = forgotten.__context__
        raise


def hold(target: bytes, mode: str, timeout_s: float, dirty: set[bytes]) -> Held:
    """Return the lock of `target`, waiting for it.  Missing directories are created; their parents go into `dirty`."""
    if mode == "lockfile":
        return _hold_file(target + _SUFFIX, timeout_s, dirty)
    held = None
    while held is None:
        held = _hold_os(target + _SUFFIX, dirty, wait=True) if mode == "os" else _hold_own(target, dirty)
    return held


def hold_if_free(target: bytes, mode: str, dirty: set[bytes]) -> Held | None:
    """Return the lock of `target`, or None if it is taken."""
    if mode == "os":
        return _hold_os(target + _SUFFIX, dirty, wait=False)
    if mode == "lockfile":
        return _create(target + _SUFFIX, dirty)
    return _hold_own(target, dirty)


def open_creating(kind: type[F], path: bytes, flags: int, dirty: set[bytes]) -> F:
    """Open `path`; create missing parent directories."""
    for _ in range(READ_ATTEMPTS):
        try:
            return kind(path, flags)
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
    missing, absent = [path], READ_ATTEMPTS + path.count(b"/")
    while missing:
        try:
            os.mkdir(missing[-1])
        except FileExistsError:
            missing.pop()
        except FileNotFoundError as error:
            if not absent:  # below a broken link, or in a filesystem without new directories, such as /proc
                raise os_failure("create directory", missing[-1], error) from error
            absent -= 1
            missing.append(parent(missing[-1]))
        except OSError as error:
            raise os_failure("create directory", missing[-1], error) from error
        else:
            dirty.add(parent(missing.pop()))


def _hold_own(target: bytes, dirty: set[bytes]) -> Held | None:
    return _create(target + b"_" + secrets.token_hex(8).encode() + _SUFFIX, dirty)


def _create(path: bytes, dirty: set[bytes]) -> Held | None:
    try:
        return open_creating(Held, path, _OPEN | os.O_EXCL, dirty)
    except FileExistsError:
        return None


def _hold_os(path: bytes, dirty: set[bytes], *, wait: bool) -> Held | None:
    """Return the lock, or None if it is taken or its file became a value meanwhile."""
    held = open_creating(Held, path, _OPEN, dirty)
    held.locked = True
    fd = held.fd
    try:
        held.temporary = _lock(fd, path, wait=wait) and _empty_if_at(path, fd)
    finally:
        if not held.temporary:
            held.let_go()
    return held if held.temporary else None


def _empty_if_at(path: bytes, fd: int) -> bool:
    """Empty the locked file; return False if the path now leads elsewhere."""
    try:
        status = _status_if_at(path, fd)
        if status is not None and status.st_size:
            os.ftruncate(fd, 0)
    except OSError as error:
        raise os_failure("lock", path, error) from error
    return status is not None


def _status_if_at(path: bytes, fd: int) -> os.stat_result | None:
    """Return the status of an open file, or None if the path now leads elsewhere."""
    try:
        mine, there = os.fstat(fd), os.lstat(path)
    except FileNotFoundError:
        return None
    return mine if (there.st_ino, there.st_dev) == (mine.st_ino, mine.st_dev) else None


def _unlock(fd: int) -> None:
    if _LOCK is None:
        fcntl.flock(fd, fcntl.LOCK_UN)
    else:
        fcntl.fcntl(fd, _LOCK, _NOTHING)


def _lock(fd: int, path: bytes, *, wait: bool) -> bool:
    """Lock the whole file; return False if it is locked already and `wait` is false."""
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
    sleep_s = 10 * HOP_S
    while (held := _create(path, dirty)) is None:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise DeadlineExceededError(
                f"Failed to open lock file: {quote(path)}: it still exists after {timeout_s:g} s; "
                "remove it if its writer is gone"
            )
        _pause(min(sleep_s, left_s))
        sleep_s = min(2 * sleep_s, MOMENT_S)
    return held


_pause: Callable[[float], None] = time.sleep
