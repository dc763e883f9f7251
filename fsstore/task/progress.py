"""What a long operation tells while it runs: how much is done, how fast, and how long the rest takes."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from fsstore.runtime import fork

__all__ = ["Progress", "Reporter", "bytes_text", "reporter_of"]

_EVERY_S = 0.5  # between two lines of text


@dataclass(frozen=True, slots=True)
class Progress:
    """How far an operation is.  `nbytes` counts decoded bytes; `tasks` and `total` count what is handed to workers."""

    what: str
    tasks: int = 0
    total: int = 0
    nbytes: int = 0
    total_bytes: int = 0
    retries: int = 0
    elapsed_s: float = 0.0

    @property
    def rate(self) -> float:
        """Bytes a second so far."""
        return self.nbytes / self.elapsed_s if self.elapsed_s > 0 else 0.0

    @property
    def remaining_s(self) -> float | None:
        """How long the rest takes at the rate so far; None before anything was done."""
        return (self.total_bytes - self.nbytes) / self.rate if self.rate else None

    def __str__(self) -> str:
        """Return one line of text."""
        share = (
            self.nbytes / self.total_bytes
            if self.total_bytes
            else self.tasks / self.total
            if self.total
            else 1.0
        )
        left = "" if self.remaining_s is None else f", {self.remaining_s:.0f} s left"
        again = f", {self.retries} retries" if self.retries else ""
        done = f"{bytes_text(self.nbytes)} of {bytes_text(self.total_bytes)}"
        return f"{self.what}: {share:4.0%}  {done}, {bytes_text(int(self.rate))}/s{left}{again}"


Told: TypeAlias = Callable[[Progress], Any]


class Reporter:
    """Counts what workers finish, and tells one callback, at most twice a second and at the end."""

    def __init__(self, what: str, total: int, total_bytes: int, told: Told | None) -> None:
        self._told, self._lock = told, fork.lock()
        self._began = time.monotonic()
        self._last = float("-inf")
        self.state = Progress(what, total=total, total_bytes=total_bytes)

    def done(self, nbytes: int, *, tasks: int = 1) -> None:
        """Count finished tasks."""
        with self._lock:
            elapsed = time.monotonic() - self._began
            self.state = replace(
                self.state,
                tasks=self.state.tasks + tasks,
                nbytes=self.state.nbytes + nbytes,
                elapsed_s=elapsed,
            )
            state, due = self.state, elapsed - self._last >= _EVERY_S or self.state.tasks == self.state.total
            if due:
                self._last = elapsed
        if due and self._told is not None:
            self._told(state)

    def retried(self) -> None:
        """Count a task that is done again."""
        with self._lock:
            self.state = replace(self.state, retries=self.state.retries + 1)


def reporter_of(progress: Any, what: str, total: int, total_bytes: int) -> Reporter:
    """Return the reporter for what a caller gave as `progress`.

    True prints a line on standard error, a function is called with a `Progress`, and a `Callback` of fsspec is told
    bytes; None and False tell nobody.
    """
    told: Told | None = None
    if progress is True:
        told = _printed
    elif hasattr(progress, "absolute_update"):
        progress.set_size(total_bytes)

        def told(state: Progress) -> None:
            progress.absolute_update(state.nbytes)

    elif callable(progress):
        told = progress
    elif progress:
        raise TypeError(
            f"progress is True, a function or a Callback of fsspec, not {type(progress).__name__}"
        )
    return Reporter(what, total, total_bytes, told)


def _printed(state: Progress) -> None:
    end = "\n" if state.tasks >= state.total else ""
    start = "\r" if sys.stderr.isatty() else ""
    sys.stderr.write(f"{start}{state}{end or ('' if start else chr(10))}")
    sys.stderr.flush()


def bytes_text(count: int) -> str:
    """Return a number of bytes as people write it: `1.5 GB`."""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(size) < 1000 or unit == "TB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    raise AssertionError  # the last unit takes everything
