"""Copying local files inside the kernel: their bytes never enter the process, and some filesystems only share blocks.

A copy is written as every value is: into the lock file of its key, which then gets the name of the key.  A new file
that nobody looks for yet needs neither: without locks and names that change, 4 KB are copied in half the time.
"""

# ruff: noqa: PTH104, PTH108, PTH116  # paths are bytes here, which pathlib does not know, and a Path costs as much as the call

from __future__ import annotations

import errno
import os
from collections.abc import Sequence

from fsstore.kvstore.contract.driver import NO_VALUE, ReadResult, now
from fsstore.kvstore.local.lock import OpenFile, hold, open_creating
from fsstore.kvstore.local.path import file_path, os_failure, parent
from fsstore.kvstore.local.read import generation_of
from fsstore.kvstore.local.stage import Protocol, make_durable
from fsstore.kvstore.tuning import TAKEN_PIECE_BYTES, TAKEN_STEP_BYTES

__all__ = ["take_batch"]

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_NOT_HERE = frozenset((errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM))


def take_batch(
    pairs: Sequence[tuple[str, str]], protocol: Protocol, dirty: set[bytes], *, unseen: bool
) -> list[ReadResult]:
    """Copy files to other names; say of each whether it was there, and how large it is."""
    return [
        _take(file_path(source), file_path(target), protocol, dirty, unseen=unseen)
        for source, target in pairs
    ]


def _take(source: bytes, target: bytes, protocol: Protocol, dirty: set[bytes], *, unseen: bool) -> ReadResult:
    try:
        opened = OpenFile(source, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return ReadResult("missing", b"", NO_VALUE, now())
    except OSError as error:
        raise os_failure("open", source, error) from error
    try:
        made = _made(opened, target, protocol, dirty) if unseen else None
        return made or _replaced(opened, target, protocol, dirty)
    finally:
        opened.let_go()


def _made(opened: OpenFile, target: bytes, protocol: Protocol, dirty: set[bytes]) -> ReadResult | None:
    """Copy a file to a name that is new, None if it is not: what a killed run has left there may be a part."""
    try:
        made = open_creating(OpenFile, target, _NEW, dirty)
    except FileExistsError:
        return None
    try:
        _pour(opened, made)
        status = os.fstat(made.fd)
        if protocol.sync:
            make_durable([made])
    except BaseException as error:
        os.unlink(target)
        if isinstance(error, OSError):
            raise os_failure("write", target, error) from error
        raise
    finally:
        made.let_go()
    dirty.add(parent(target))
    return ReadResult("value", b"", generation_of(status), now(), status.st_size)


def _replaced(opened: OpenFile, target: bytes, protocol: Protocol, dirty: set[bytes]) -> ReadResult:
    held = hold(target, protocol.mode, protocol.acquire_timeout_s, dirty)
    try:
        _pour(opened, held)
        status = _status_after(held, target)
        if protocol.sync:
            make_durable([held])
        os.rename(held.path, target)
        held.temporary = False
    except OSError as error:
        raise os_failure("write", target, error) from error
    finally:
        held.let_go()
    dirty.add(parent(target))
    return ReadResult("value", b"", generation_of(status), now(), status.st_size)


def _status_after(held: OpenFile, target: bytes) -> os.stat_result:
    """Return the status of the new value, whose modification time is past that of the value it replaces."""
    status = os.fstat(held.fd)
    try:
        before = os.stat(target).st_mtime_ns
    except (FileNotFoundError, NotADirectoryError):
        return status
    if status.st_mtime_ns > before:
        return status
    os.utime(held.fd, ns=(status.st_atime_ns, before + 1))
    return os.fstat(held.fd)


def _pour(source: OpenFile, target: OpenFile) -> None:
    left = os.fstat(source.fd).st_size
    try:
        while left and (count := os.copy_file_range(source.fd, target.fd, min(left, TAKEN_STEP_BYTES))):
            left -= count
    except (AttributeError, OSError) as error:  # another system, or another filesystem
        if isinstance(error, OSError) and error.errno not in _NOT_HERE:
            raise
    if not left:
        return
    # what the kernel did not copy: some filesystems answer zero for what they cannot
    while portion := os.read(source.fd, TAKEN_PIECE_BYTES):
        view = memoryview(portion)
        while view:
            view = view[os.write(target.fd, view) :]
