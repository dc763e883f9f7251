"""Asking the system to begin to write a file to disk, without waiting for it.

Whoever syncs several files one after another waits for each in turn: the first sync writes one file and commits the
journal, and the second begins with nothing of its own on disk.  When all are on their way before the first sync, the
disk takes them together and one commit covers them.  It is advice only: what is durable is decided by the sync.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

__all__ = ["begin_writeback"]

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
