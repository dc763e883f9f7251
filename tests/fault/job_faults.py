"""Faults of files, by the number of the call that they befall: errors, lost answers, full disks, kills, Ctrl-C.

They befall the functions of `os` that touch a folder, in the process that asks for it: a child that dies anyway.
"""

from __future__ import annotations

import errno
import functools
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

CHANGES = ("write", "writev", "copy_file_range", "rename", "replace", "link", "unlink", "mkdir", "rmdir", "ftruncate")
OTHERS = ("open", "read", "pread", "preadv", "scandir", "stat", "lstat", "fsync")
FILLING = ("write", "writev", "copy_file_range", "mkdir", "link", "open")
FAULTS = ("error", "lost", "full", "read-only", "forbidden", "outage", "interrupt", "cancel", "clock", "source")
KILLS = ("kill", "kill after", "torn")
KINDS = (*FAULTS, *KILLS)


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens, and at which call."""

    kind: str
    number: int


class Injected:
    """A fault in force in this process: `hit` says whether it has come to it."""

    def __init__(self, fault: Fault, folder: str, change_source: Callable[[], None]) -> None:
        self.fault, self.folder, self.change_source = fault, os.fsencode(folder), change_source
        self.hit = False
        self.cancel: Callable[[], Any] = lambda: None
        self._inside = threading.local()
        self._count = 0
        self._lock = threading.Lock()
        self._files: set[int] = set()
        self._os = {name: getattr(os, name) for name in (*CHANGES, *OTHERS, "close")}

    def install(self) -> None:
        """Put the fault in force for what remains of this process."""
        for name, function in self._os.items():
            setattr(os, name, functools.wraps(function)(functools.partial(self._call, name, function)))

    def lift(self) -> None:
        """Return to the functions as they were."""
        for name, function in self._os.items():
            setattr(os, name, function)

    def _concerns(self, first: Any) -> bool:
        if isinstance(first, int):
            return first in self._files
        try:
            return os.fsencode(first).startswith(self.folder)
        except TypeError:
            return False

    def _call(self, name: str, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        if name == "close":
            self._files.discard(arguments[0])
            return function(*arguments)
        if getattr(self._inside, "busy", False) or not arguments or not self._concerns(arguments[0]):
            return function(*arguments, **options)
        self._inside.busy = True
        try:
            before = self._before(name, arguments)
            result = function(*arguments, **options)
            if name == "open":
                self._files.add(result)
            self._after(name, before)
        finally:
            self._inside.busy = False
        return result

    def _before(self, name: str, arguments: tuple[Any, ...]) -> bool:
        """Do what happens before a call; return whether it is the one by number."""
        with self._lock:
            self._count += 1
            due, past = self._count == self.fault.number, self._count >= self.fault.number
        changes = name in CHANGES or (name == "open" and bool(arguments[1] & (os.O_CREAT | os.O_TRUNC)))
        fills = name in FILLING and (name != "open" or bool(arguments[1] & os.O_CREAT))
        kind = self.fault.kind
        lasting = {"full": (errno.ENOSPC, fills), "read-only": (errno.EROFS, changes),
                   "forbidden": (errno.EACCES, changes), "outage": (errno.EIO, True)}  # fmt: skip
        if kind in lasting and past and lasting[kind][1]:
            self.hit = True
            raise OSError(lasting[kind][0], os.strerror(lasting[kind][0]))
        if not due:
            return False
        self.hit = self.hit or kind not in lasting
        if kind == "error":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if kind == "torn" and name == "write" and len(arguments[1]) > 1:
            self._os["write"](arguments[0], bytes(arguments[1])[: len(arguments[1]) // 2])
        if kind in ("kill", "torn"):
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == "interrupt":
            os.kill(os.getpid(), signal.SIGINT)
        if kind == "cancel":
            self.cancel()
        if kind == "clock":
            jump(86400.0 if self.fault.number % 2 else -86400.0)
        if kind == "source":
            self.change_source()
        return True

    def _after(self, name: str, due: bool) -> None:
        if due and self.fault.kind == "lost" and name in CHANGES:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if due and self.fault.kind == "kill after":
            os.kill(os.getpid(), signal.SIGKILL)


def jump(seconds: float) -> None:
    """Let the clock of this process jump."""
    true_time, true_ns = time.time, time.time_ns
    time.time = lambda: true_time() + seconds
    time.time_ns = lambda: true_ns() + int(seconds * 1e9)
