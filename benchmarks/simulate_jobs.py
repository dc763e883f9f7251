"""A simulation of jobs on 1 to 512 workers over S3: the runner and the journal as they are, on a clock that jumps.

python -m benchmarks.simulate_jobs            10 TB, a table
python -m benchmarks.simulate_jobs 1e12 0     another size, and a seed

Time passes only where something waits for it, so the result depends on the seed alone.  What is simulated: workers that
take tasks in order, the time that the scheduler takes for each, requests of S3 whose latency and speed vary, tasks that
fail and are tried again, and stragglers.  The numbers are below; they are not measured by this program.
"""

from __future__ import annotations

import asyncio
import random
import selectors
import sys
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from typing import Any

import fsstore as ts
from fsstore.errors import UnavailableError
from fsstore.task.journal import Journal
from fsstore.task.progress import Reporter
from fsstore.task.runner import Task, run_tasks

TASK_BYTES = 160e6
OBJECT_BYTES = 8e6
FIRST_BYTE_S = 0.03  # median; lognormal
FIRST_BYTE_SPREAD = 0.6
REQUESTS_AT_ONCE = 8
WORKER_SPEED = 90e6  # bytes a second of one worker to and from the bucket, median; lognormal
SPEED_SPREAD = 0.25
CODEC_SPEED = 300e6  # decoding and encoding together
FAILS = 0.01  # of the tasks, at any moment of them
STRAGGLES = 0.01  # of the tasks, which take two to ten times as long
SCHEDULER_S = 0.003  # of the scheduler for a task, one after the other
START_S = 1.0  # of a worker that gets the job, opens the stores and reads their metadata


class _JumpingSelector(selectors.SelectSelector):
    """A selector that lets time pass instead of waiting."""

    now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        """Return what is ready now; else be later."""
        ready = super().select(0)
        if not ready and timeout:
            self.now += timeout
        return ready


class JumpingLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next thing that happens."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        """Return the simulated time."""
        return self._jumping.now


@dataclass
class Workers(Executor):
    """Simulated workers: each takes the next task when it is done with one."""

    loop: JumpingLoop
    count: int
    dice: random.Random
    busy_s: float = 0.0
    waiting: deque[Future[int]] = field(default_factory=deque)
    idle: int = 0
    scheduler_free: float = 0.0
    _max_workers: int = 0

    def __post_init__(self) -> None:
        self._max_workers = self.count
        for _ in range(self.count):
            self.loop.call_later(START_S * (0.5 + self.dice.random()), self._free)

    def submit(self, function: Any, /, *args: Any, **_: Any) -> Future[int]:
        """Queue a task."""
        future: Future[int] = Future()
        now = self.loop.time()
        self.scheduler_free = max(now, self.scheduler_free) + SCHEDULER_S
        self.loop.call_at(self.scheduler_free, self._arrive, future)
        return future

    def _arrive(self, future: Future[int]) -> None:
        if self.idle:
            self.idle -= 1
            self._work(future)
        else:
            self.waiting.append(future)

    def _free(self) -> None:
        if self.waiting:
            self._work(self.waiting.popleft())
        else:
            self.idle += 1

    def _work(self, future: Future[int]) -> None:
        took = task_time(self.dice)
        fails = self.dice.random() < FAILS
        if fails:
            took *= self.dice.random()
        else:
            self.busy_s += took

        def end() -> None:
            if fails:
                future.set_exception(UnavailableError("simulated"))
            else:
                future.set_result(int(TASK_BYTES))
            self._free()

        self.loop.call_later(took, end)


def task_time(dice: random.Random) -> float:
    """Return how long a task takes that reads and writes a box."""
    requests = TASK_BYTES / OBJECT_BYTES / REQUESTS_AT_ONCE
    latency = 2 * requests * FIRST_BYTE_S * dice.lognormvariate(0, FIRST_BYTE_SPREAD)
    moved = 2 * TASK_BYTES / (WORKER_SPEED * dice.lognormvariate(0, SPEED_SPREAD))
    took = latency + moved + TASK_BYTES / CODEC_SPEED
    return took * dice.uniform(2, 10) if dice.random() < STRAGGLES else took


def simulate(nbytes: float, workers: int, seed: int = 0) -> tuple[float, float]:
    """Return how long a job takes, and its efficiency: the work that was needed by the time that workers were there."""
    loop = JumpingLoop()
    random.seed(seed)  # pauses before another attempt
    executor = Workers(loop, workers, random.Random(seed))
    count = int(nbytes / TASK_BYTES)
    store = ts.KvStore.open({"driver": "memory", "path": "journal/"}, context=ts.Context()).result()
    journal = Journal(store, "simulated")

    def tasks() -> Iterator[Task]:
        for number in range(count):
            yield Task(number, int, ())

    async def run() -> float:
        reporter = Reporter("simulated", count, int(nbytes), None)
        await run_tasks(tasks(), executor, reporter, lambda task, _: journal.note("box", task.number))
        await journal.settle()
        assert len((await journal.finished())["box"]) == count
        return loop.time()

    try:
        took = loop.run_until_complete(run())
    finally:
        loop.close()
    return took, executor.busy_s / (took * workers)


def main() -> None:
    """Print the table."""
    nbytes = float(sys.argv[1]) if len(sys.argv) > 1 else 10e12
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    print(f"| workers | {nbytes / 1e12:g} TB in hours | efficiency |\n|---|---|---|")
    for exponent in range(10):
        took, efficiency = simulate(nbytes, 2**exponent, seed)
        print(f"| {2**exponent} | {took / 3600:.2f} | {efficiency:.3f} |", flush=True)


if __name__ == "__main__":
    main()
