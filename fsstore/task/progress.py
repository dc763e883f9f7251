"""Progress of a long operation: how much is done, how fast, and how long the rest takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from fsstore.runtime import fork
from fsstore.task.tuning import PROGRESS_S

__all__ = ["Progress", "Reporter", "Told", "bytes_text", "reporter_of"]


@dataclass(frozen=True, slots=True)
class Progress:
    """How far an operation is.  `tasks` of `total` are done, which are `nbytes` of about `total_bytes`.

    The work of an earlier run of the same job is counted in `resumed`, and does not make the rate better.  `ended` is
    true the last time that it is told.
    """

    what: str
    tasks: int = 0
    total: int = 0
    nbytes: int = 0
    total_bytes: int = 0
    retries: int = 0
    elapsed_s: float = 0.0
    resumed: int = 0
    resumed_bytes: int = 0
    ended: bool = False

    @property
    def rate(self) -> float:
        """Bytes a second so far."""
        return self.nbytes / self.elapsed_s if self.elapsed_s > 0 else 0.0

    @property
    def share(self) -> float:
        """How much is done, between 0 and 1."""
        if self.total_bytes:
            return min(1.0, (self.nbytes + self.resumed_bytes) / self.total_bytes)
        return min(1.0, (self.tasks + self.resumed) / self.total) if self.total else float(self.ended)

    @property
    def remaining_s(self) -> float | None:
        """How long the rest takes at the rate so far; None before anything was done."""
        share = self.share
        before = (
            self.resumed_bytes / self.total_bytes if self.total_bytes else self.resumed / max(1, self.total)
        )
        return self.elapsed_s * (1 - share) / (share - before) if share > before else None

    def __str__(self) -> str:
        """Return one line of text."""
        left = self.remaining_s
        parts = [f"{bytes_text(int(self.rate))}/s"] if self.total_bytes else []
        parts += [] if left is None or self.ended else [f"{left:.0f} s left"]
        parts += [f"{self.retries} retries"] if self.retries else []
        done = f"{self.tasks + self.resumed} of {self.total}"
        if self.total_bytes:
            done = f"{bytes_text(self.nbytes + self.resumed_bytes)} of {bytes_text(self.total_bytes)}"
        return ", ".join([f"{self.what}: {self.share:4.0%}  {done}", *parts])


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
            state = self.state
            due = elapsed - self._last >= PROGRESS_S or state.tasks + state.resumed == state.total
            if due:
                self._last = elapsed
        if due and self._told is not None:
            self._told(state)

    def resumed(self, tasks: int, nbytes: int) -> None:
        """Count what an earlier run has done; it says nothing about how fast this one is."""
        with self._lock:
            state = self.state
            self.state = replace(
                state, resumed=state.resumed + tasks, resumed_bytes=state.resumed_bytes + nbytes
            )

    def retried(self) -> None:
        """Count a task that is done again."""
        with self._lock:
            self.state = replace(self.state, retries=self.state.retries + 1)

    def ended(self) -> None:
        """Tell that nothing more will be done, whether everything was or not."""
        with self._lock:
            self.state = replace(self.state, elapsed_s=time.monotonic() - self._began, ended=True)
        if self._told is not None:
            self._told(self.state)


def reporter_of(progress: Any, what: str, total: int, total_bytes: int) -> Reporter:
    """Return the reporter for what a caller gave as `progress`.

    True shows a bar of tqdm if that is installed, a bar in notebooks, and otherwise a line on standard error; a
    function is called with a `Progress`, and a `Callback` of fsspec is told bytes.  None and False tell nobody.
    """
    told: Told | None = None
    if progress is True:
        from fsstore.task.display import display

        told = display(what, total_bytes)
    elif hasattr(progress, "absolute_update"):
        progress.set_size(total_bytes)

        def told(state: Progress) -> None:
            progress.absolute_update(state.nbytes + state.resumed_bytes)

    elif callable(progress):
        told = progress
    elif progress:
        raise TypeError(
            f"progress is True, a function or a Callback of fsspec, not {type(progress).__name__}"
        )
    return Reporter(what, total, total_bytes, told)


def bytes_text(count: int) -> str:
    """Return a number of bytes as people write it: `1.5 GB`."""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(size) < 1000 or unit == "TB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    raise AssertionError  # the last unit takes everything
