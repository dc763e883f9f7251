"""Registration, timing and the table.

A workload is a function that gets an empty folder, prepares what it needs there, and returns one callable per library.
All callables of a workload must return the same result; this is checked before anything is timed.  Then they take
turns, in an order that rotates each round, in one process: what disturbs the machine disturbs all of them.
A turn may be several calls in a row: what a library leaves to be done behind its answer is then part of its own time.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

OURS = "fsstore"

_FEWEST, _MANY = 3, 400
_FAR_BEHIND = 3  # times as slow as the fastest: a few rounds tell enough, and leave time to the others
_SHORT = 0.1  # of the time of a workload, in which as many rounds are made as fit

Contender = Callable[[], Any]
Setup = Callable[[Path], Mapping[str, Contender]]


@dataclass(frozen=True)
class Workload:
    """A registered workload: its name, its preparation, how much it moves, if that is worth telling, and its turns."""

    name: str
    setup: Setup
    size: int | None = None
    in_a_row: int = 1


@dataclass
class Outcome:
    """The times of one workload by library, in seconds, and what went wrong."""

    name: str
    size: int | None = None
    times: dict[str, list[float]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def median(self, library: str) -> float | None:
        """Return the median time of a library, or None if it did not take part."""
        times = self.times.get(library)
        return statistics.median(times) if times else None

    def is_near(self, library: str) -> bool:
        """Return whether a library is ours, or not far behind the fastest of the others."""
        if library == OURS or self.best_peer is None:
            return True
        mine, best = (statistics.median(self.times[name]) for name in (library, self.best_peer))
        return mine <= _FAR_BEHIND * best

    @property
    def best_peer(self) -> str | None:
        """The fastest library that is not ours."""
        peers = [library for library in self.times if library != OURS]
        return min(peers, key=lambda library: statistics.median(self.times[library]), default=None)

    @property
    def ratio(self) -> float | None:
        """Our time divided by that of the best peer; below one is faster."""
        ours, peer = self.median(OURS), self.best_peer
        best = self.median(peer) if peer else None
        return ours / best if ours is not None and best else None


WORKLOADS: dict[str, Workload] = {}


def workload(name: str, *, size: int | None = None, in_a_row: int = 1) -> Callable[[Setup], Setup]:
    """Register the decorated function as a workload.

    `size` is the number of bytes it moves, and `in_a_row` how many calls are one turn, of which the mean is noted.
    """

    def register(setup: Setup) -> Setup:
        if name in WORKLOADS:
            raise ValueError(f"two workloads are called {name!r}")
        WORKLOADS[name] = Workload(name, setup, size, in_a_row)
        return setup

    return register


def same(left: Any, right: Any) -> bool:
    """Return whether two results are equal: arrays by value, type and shape, containers by their elements."""
    if isinstance(left, np.ndarray | np.generic) or isinstance(right, np.ndarray | np.generic):
        left, right = np.asarray(left), np.asarray(right)
        both_float = left.dtype.kind == right.dtype.kind == "f"
        return left.dtype == right.dtype and np.array_equal(left, right, equal_nan=both_float)
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)


def _warm_up(contenders: Mapping[str, Contender], outcome: Outcome) -> dict[str, Contender]:
    """Run each contender once; return those that work and agree with the first that works."""
    working: dict[str, Contender] = {}
    reference: tuple[str, Any] | None = None
    for library, contender in contenders.items():
        try:
            result = contender()
        except Exception as error:
            outcome.problems.append(f"{library} failed: {type(error).__name__}: {error}")
            continue
        if reference is None:
            reference = (library, result)
        elif not same(reference[1], result):
            outcome.problems.append(f"{library} and {reference[0]} give different results")
            continue
        working[library] = contender
    return working


def measure(work: Workload, *, rounds: int, seconds: float, clock: Callable[[], float] = time.perf_counter) -> Outcome:
    """Return the times of one workload, of about `seconds` in all: at most `rounds` of them.

    Of what takes microseconds more are made, as a few calls say little: at most 400, in a tenth of the time.
    Other libraries that are far behind the fastest take part in the first rounds only.
    """
    outcome = Outcome(work.name, work.size)
    with tempfile.TemporaryDirectory(prefix="fsstore-bench-") as folder:
        try:
            contenders = work.setup(Path(folder))
        except Exception as error:
            outcome.problems.append(f"preparation failed: {type(error).__name__}: {error}")
            return outcome
        working = list(_warm_up(contenders, outcome).items())
        begun = time.perf_counter()
        for number in range(_MANY if working else 0):
            wanted = seconds if number < rounds else _SHORT * seconds
            if number >= _FEWEST and time.perf_counter() - begun > wanted:
                break
            if number == _FEWEST:
                working = [pair for pair in working if outcome.is_near(pair[0])]
            turn = number % len(working)
            for library, contender in working[turn:] + working[:turn]:
                start = clock()
                for _ in range(work.in_a_row):
                    contender()
                outcome.times.setdefault(library, []).append((clock() - start) / work.in_a_row)
    return outcome


def _show(value: float | None) -> str:
    if value is None:
        return "-"
    milliseconds = value * 1e3
    return f"{milliseconds:.3f}" if milliseconds < 10 else f"{milliseconds:.1f}"


def table(outcomes: Iterable[Outcome]) -> str:
    """Return the table: a row per workload, a column per library, medians in milliseconds, and our ratio."""
    outcomes = list(outcomes)
    libraries = list(dict.fromkeys([OURS, *(library for outcome in outcomes for library in outcome.times)]))
    rows = [["workload (ms)", *libraries, "best peer", "ratio", "MB/s"]]
    for outcome in outcomes:
        ours, ratio = outcome.median(OURS), outcome.ratio
        speed = f"{outcome.size / ours / 1e6:.0f}" if outcome.size and ours else ""
        rows.append(
            [
                outcome.name,
                *(_show(outcome.median(library)) for library in libraries),
                outcome.best_peer or "-",
                f"{ratio:.2f}" if ratio is not None else "-",
                speed,
            ]
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(_align(cell, width, n) for n, (cell, width) in enumerate(zip(row, widths, strict=True)))
        for row in rows
    ]
    lines.insert(1, "-" * len(lines[0]))
    lines += [f"! {outcome.name}: {problem}" for outcome in outcomes for problem in outcome.problems]
    return "\n".join(line.rstrip() for line in lines)


def _align(cell: str, width: int, column: int) -> str:
    return cell.ljust(width) if column == 0 else cell.rjust(width)
