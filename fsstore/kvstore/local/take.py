"""Copying local files inside the kernel: their bytes never enter the process, and some filesystems only share blocks.

A copy is written as every value is: into the lock file of its key, which then gets the name of the key.
"""

# ruff: noqa: PTH104, PTH116  # paths are bytes here, which pathlib does not know, and a Path costs as much as the call

from __future__ import annotations

import errno
import os
from collections.abc import Sequence

from fsstore.kvstore.contract.driver import NO_VALUE, ReadResult, now
from fsstore.kvstore.local.lock import OpenFile, hold
from fsstore.kvstore.local.path import file_path, os_failure, parent
from fsstore.kvstore.local.read import generation_of
from fsstore.kvstore.local.stage import Protocol, make_durable

__all__ = ["take_batch"]

_STEP_BYTES = 64 * 1024 * 1024  # that the kernel is asked to copy at once
_PIECE_BYTES = 1024 * 1024  # in memory where it does not
_NOT_HERE = frozenset((errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM))


def take_batch(pairs: Sequence[tuple[str, str]], protocol: Protocol, dirty: set[bytes]) -> list[ReadResult]:
    """Copy files to other names; say of each whether it was there, and how large it is."""
    return [_take(file_path(source), file_path(target), protocol, dirty) for source, target in pairs]


def _take(source: bytes, target: bytes, protocol: Protocol, dirty: set[bytes]) -> ReadResult:
    try:
        opened = OpenFile(source, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return ReadResult("missing", b"", NO_VALUE, now())
    except OSError as error:
        raise os_failure("open", source, error) from error
    try:
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
    finally:
        opened.let_go()
    dirty.add(parent(target))
    return ReadResult("value", b"", generation_of(status), now(), status.st_size)


def _status_after(held: OpenFile, target: bytes) -> os.stat_result:
    """Return the status of the new value, whose modification time is past that of the value it replaces."""
    status = os.fstat(held.fd)
    try:
        before = os.stat(target).st_mtime_ns
    except (FileNotFoundError, NotADirectoryError):
        return status
    if status.st_mtime_ns <= before:
        os.utime(held.fd, ns=(status.st_atime_ns, before + 1))
    return os.fstat(held.fd)


def _pour(source: OpenFile, target: OpenFile) -> None:
    try:
        while os.copy_file_range(source.fd, target.fd, _STEP_BYTES):
            pass
    except (AttributeError, OSError) as error:  # another system, or another filesystem
        if isinstance(error, OSError) and error.errno not in _NOT_HERE:
            raise
    # what is left, which is nothing where the kernel copied: some filesystems answer zero for what they cannot
    while portion := os.read(source.fd, _PIECE_BYTES):
        view = memoryview(portion)
        while view:
            view = view[os.write(target.fd, view) :]
