"""Cells measured in a process of their own, which is ended with its servers when one of them hangs.

A library that hangs would otherwise stop a run of hundreds of cells, and all that was measured before would be lost.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Literal

from benchmarks.harness import Outcome, Workload, measure
from benchmarks.space.cell import Cell
from benchmarks.space.place import contenders
from benchmarks.space.report import Measured

__all__ = ["Clock", "Terms", "WatchedRun", "watched_run"]

Clock = Literal["wall", "cpu"]
_CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


@dataclass(frozen=True)
class Terms:
    """How each cell is measured, and after how many seconds it counts as hanging."""

    rounds: int
    seconds: float
    clock: Clock
    limit: float


class WatchedRun:
    """A process that measures one cell after another; the next cell gets another one when it had to be ended."""

    def __init__(self, terms: Terms, folder: str) -> None:
        self._terms, self._folder = terms, folder
        self._worker: tuple[BaseProcess, Connection] | None = None

    def measure(self, cell: Cell) -> Measured:
        """Return the times of a cell; a problem says whether its process hung or ended."""
        _, line = self._worker = self._worker or self._started()
        line.send(cell)
        try:
            if line.poll(self._terms.limit):
                outcome: Outcome = line.recv()
                return Measured(cell, outcome)
            problem = f"no result within {self._terms.limit:g} seconds"
        except EOFError:
            problem = "the process that measured it ended"
        self.end()
        return Measured(cell, Outcome(str(cell), problems=[problem]))

    def end(self) -> None:
        """End the process and the servers it has started."""
        if self._worker is None:
            return
        (process, line), self._worker = self._worker, None
        line.close()
        assert process.pid is not None, "it was started"
        os.killpg(process.pid, signal.SIGKILL)
        process.join()

    def _started(self) -> tuple[BaseProcess, Connection]:
        fresh = multiprocessing.get_context("spawn")
        line, theirs = fresh.Pipe()
        process = fresh.Process(target=_serve, args=(theirs, self._terms, self._folder), daemon=True)
        process.start()
        theirs.close()
        assert line.recv() == "ready", "the process is the leader of its group now"
        return process, line


@contextmanager
def watched_run(terms: Terms) -> Iterator[WatchedRun]:
    """Return a run whose process and files end with the block."""
    with tempfile.TemporaryDirectory(prefix="fsstore-space-", ignore_cleanup_errors=True) as folder:
        run = WatchedRun(terms, folder)
        try:
            yield run
        finally:
            run.end()


def _serve(line: Connection, terms: Terms, folder: str) -> None:
    """Measure each cell that comes, in files of a folder, until nobody is there to ask."""
    os.setpgid(0, 0)
    tempfile.tempdir = folder
    line.send("ready")
    while True:
        try:
            cell: Cell = line.recv()
        except EOFError:
            return
        work = Workload(str(cell), lambda folder, cell=cell: contenders(cell, folder), cell.nbytes)
        line.send(measure(work, rounds=terms.rounds, seconds=terms.seconds, clock=_CLOCKS[terms.clock]))
