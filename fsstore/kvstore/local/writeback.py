"""Asking the system to begin to write a file to disk, without waiting for it, or to finish everything.

A thread that syncs several files one after another waits for each in turn: the first sync writes one file and commits
the journal, and the second begins with nothing of its own on disk.  When all are on their way before the first sync,
the disk takes them together and one commit covers them.  It is advice only: what is durable is decided by the sync.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable

from fsstore.kvstore.local.path import os_failure, parent

__all__ = ["begin_writeback", "sync_filesystem"]

_BEGIN = 2  # SYNC_FILE_RANGE_WRITE; a length of zero reaches to the end of the file


def _system_call() -> Callable[[int], object] | None:
    try:
        call = ctypes.CDLL(None).sync_file_range
    except (AttributeError, OSError, TypeError):  # only Linux has it
        return None
    call.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    return lambda fd: call(fd, 0, 0, _BEGIN)


begin_writeback = _system_call()
"""Begin to write the dirty pages of an open file; None where the system has no such call."""


def sync_filesystem(path: bytes) -> None:
    """Return when everything that was written to the filesystem of `path` is on disk.

    One call takes many files in the time of a few: a sync for each of 256 files of half a megabyte takes four times as
    long.  The directory of `path` may be missing; then the nearest above it stands for it.
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
