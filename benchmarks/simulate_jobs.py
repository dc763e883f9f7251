"""A simulation of jobs on 1 to 512 workers over S3: plan, pace, runner and journal as they are, on a clock that jumps.

python -m benchmarks.simulate_jobs                          10 TB over S3, a table
python -m benchmarks.simulate_jobs --bytes 1e12 --seed 1    another size, and a seed
python -m benchmarks.simulate_jobs --bucket bucket.json     over a bucket that `benchmarks.measure_bucket` has measured
python -m benchmarks.simulate_jobs --numbers                what is measured, published and assumed

Time passes only where something waits for it, so the result depends on the seed alone.  What is simulated are workers:
their start, the requests that they make, the codecs, tasks that fail and stragglers; and the scheduler, which takes its
time for each task.  The numbers are distributions in `benchmarks/profiles`, each with its source.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import random
import selectors
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.distributions import Profile
from fsstore.chunk.regions import BoxSlabs
from fsstore.errors import UnavailableError
from fsstore.job.passes import Order, box_pass
from fsstore.job.plan import ChunkSides, memory_of_tasks, plan_boxes
from fsstore.job.work import UNKNOWN_JOB, Done, work_on
from fsstore.task.claim import Journal
from fsstore.task.runner import Reporter, Task, TaskSlowError

PROFILES = Path(__file__).with_name("profiles")
MEMORY = 512_000_000  # the default of `copy`
CHUNK = (8, 512, 512)  # of float32: 8.4 MB
REQUESTS_AT_ONCE = 32  # of a worker: the limit of the client
_DRAWN = 256  # boxes whose times are drawn together, since that is quicker
REPEATED_AFTER_S = (0.5, 1.0)  # pause of the client before a request that failed is repeated


@dataclass(frozen=True, slots=True)
class Faults:
    """The share of tasks that fail at some moment and that straggle, and how many times longer those take."""

    fails: float = 0.01
    straggles: float = 0.01
    slower: tuple[float, float] = (2.0, 10.0)


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
class TaskModel:
    """How long workers take for boxes: requests to a store, beside each other, and the codecs of one thread.

    Nothing overlaps but requests with requests, which is less than workers do.
    """

    store: Profile
    worker: Profile
    dice: np.random.Generator
    at_once: int = REQUESTS_AT_ONCE
    _drawn: dict[tuple[int, int, int], list[float]] = field(default_factory=dict)

    def requests_s(self, kind: str, count: int, nbytes: float, boxes: int = 1) -> Any:
        """Return how long requests of one kind take that move so many bytes together, for so many boxes."""

        def drawn(name: str) -> Any:
            return self.store[name].draw(self.dice, boxes * count).reshape(boxes, count)

        each = nbytes / count / drawn(f"{kind}_bytes_per_s") + drawn(f"{kind}_first_byte_s")
        failing = self.dice.random((boxes, count)) < drawn("failing_requests")
        each += failing * self.dice.uniform(*REPEATED_AFTER_S, (boxes, count))
        rounds = np.maximum.reduceat(each, np.arange(0, count, self.at_once), axis=1)
        return np.maximum(rounds.sum(axis=1), nbytes / self.store["worker_bytes_per_s"].draw(self.dice, boxes))

    def box_s(self, reads: int, writes: int, nbytes: int) -> float:
        """Return how long a box takes that is read in so many requests, converted, and written."""
        left = self._drawn.setdefault((reads, writes, nbytes), [])
        if not left:
            left.extend(self._boxes_s(reads, writes, nbytes).tolist())
        return left.pop()

    def _boxes_s(self, reads: int, writes: int, nbytes: int) -> Any:
        stored = nbytes * self.worker["encoded_share"].at(0.5)
        codecs = sum(
            nbytes / self.worker[name].draw(self.dice, _DRAWN)
            for name in ("decoded_bytes_per_s", "encoded_bytes_per_s")
        )
        read, written = (
            self.requests_s(kind, count, stored, _DRAWN) for kind, count in (("get", reads), ("put", writes))
        )
        return read + codecs + written


@dataclass
class _Limit:
    """Requests a second that a prefix answers; those above it wait, as the pauses of a client have them do."""

    rate: float
    free: float = 0.0

    def wait(self, now: float, requests: int) -> float:
        """Return how long requests wait that are begun now."""
        waited = max(0.0, self.free - now)
        self.free = max(self.free, now) + requests / self.rate
        return waited


@dataclass
class Workers(Executor):
    """Simulated workers: each takes the next task when it is done with one."""

    loop: JumpingLoop
    count: int
    model: TaskModel
    pieces: BoxSlabs
    faults: Faults = Faults()
    itemsize: int = 4
    needed_s: float = 0.0
    """What the tasks would have taken that nothing has disturbed."""
    tasks_s: list[float] = field(default_factory=list)
    waiting: deque[tuple[Future[Any], tuple[Any, ...]]] = field(default_factory=deque)
    idle: list[int] = field(default_factory=list)
    knowing: set[int] = field(default_factory=set)
    scheduler_free: float = 0.0
    _max_workers: int = 0

    def __post_init__(self) -> None:
        """Begin to start the workers."""
        self._max_workers, numbers = self.count, self.model.store.numbers
        endless = float("inf")
        self.gets = _Limit(numbers["gets_per_s"].at(0.5) if "gets_per_s" in numbers else endless)
        self.puts = _Limit(numbers["puts_per_s"].at(0.5) if "puts_per_s" in numbers else endless)
        for worker, start in enumerate(self.model.worker["start_s"].draw(self.model.dice, self.count)):
            self.loop.call_later(float(start) + 2 * self._latency(), self._free, worker)

    def _latency(self) -> float:
        return float(self.model.store["get_first_byte_s"].draw(self.model.dice, 1)[0])

    def submit(self, function: Any, /, *args: Any, **_: Any) -> Future[Any]:
        """Queue a task, after those that the scheduler is busy with."""
        future: Future[Any] = Future()
        took = float(self.model.worker["scheduler_s"].draw(self.model.dice, 1)[0])
        self.scheduler_free = max(self.loop.time(), self.scheduler_free) + took
        self.loop.call_at(self.scheduler_free, self._arrive, future, args)
        return future

    def _arrive(self, future: Future[Any], args: tuple[Any, ...]) -> None:
        if self.idle:
            self._work(self.idle.pop(), future, args)
        else:
            self.waiting.append((future, args))

    def _free(self, worker: int) -> None:
        if self.waiting:
            self._work(worker, *self.waiting.popleft())
        else:
            self.idle.append(worker)

    def _work(self, worker: int, future: Future[Any], args: tuple[Any, ...]) -> None:
        """Answer as `run_task` does: the job comes with the second call if the worker does not know it."""
        *_, payload, limit_s, order = args
        if order is None and worker not in self.knowing:
            future.set_result(UNKNOWN_JOB)
            self._free(worker)
            return
        self.knowing.add(worker)
        took, outcome = self._outcome(payload, limit_s)

        def end() -> None:
            if isinstance(outcome, Exception):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)
            self._free(worker)

        self.loop.call_later(took, end)

    def _outcome(self, payload: tuple[int, int], limit_s: float) -> tuple[float, Done | Exception]:
        """Return how long a task takes, and how it ends."""
        dice, parts = self.model.dice, self._parts(payload)
        faults = self.faults
        slower = float(dice.uniform(*faults.slower)) if dice.random() < faults.straggles else 1.0
        requests = sum(part.requests for part in parts)
        waits = self.gets.wait(self.loop.time(), requests) + self.puts.wait(self.loop.time(), requests)
        whole = waits + slower * sum(part.seconds for part in parts)
        left = whole * float(dice.random()) if dice.random() < faults.fails else math.inf
        is_slow, left = limit_s < left, min(left, limit_s)
        answers, took = list[int](), waits
        for part in parts:
            took += slower * part.seconds
            if took > left:
                error = (TaskSlowError if is_slow else UnavailableError)("simulated")
                return left, Done(answers, left, part.begin) if answers else error
            answers.append(part.nbytes)
            self.needed_s += part.seconds
        self.tasks_s.append(took)
        return took, Done(answers, took)

    def _parts(self, payload: tuple[int, int]) -> list[_Part]:
        parts = []
        for begin, box in self.pieces.split(*payload):
            nbytes = math.prod(box.shape) * self.itemsize
            requests = max(1, round(nbytes / (math.prod(CHUNK) * self.itemsize)))
            parts.append(_Part(begin, requests, nbytes, self.model.box_s(requests, requests, nbytes)))
        return parts


class _Part(NamedTuple):
    begin: int
    requests: int
    nbytes: int
    seconds: float


@dataclass
class _Notes:
    """The store of a journal: each write takes as long as a request does."""

    model: TaskModel
    values: dict[str, bytes] = field(default_factory=dict)

    async def write(self, key: str, value: str | None) -> None:
        """Write or delete a note."""
        await asyncio.sleep(float(self.model.requests_s("put", 1, 1000)[0]))
        if value is None:
            self.values.pop(key, None)
        else:
            self.values[key] = value.encode()


class Outcome(NamedTuple):
    """What a simulated job took; `efficiency` is the work that was needed by the time that workers were there."""

    seconds: float
    efficiency: float
    tasks_s: list[float]


def planned(nbytes: float) -> BoxSlabs:
    """Return the pieces of a copy of an array of so many bytes to another codec, as it is planned."""
    shape = (max(1, int(nbytes / (4 * 4096 * 4096))), 4096, 4096)
    sides = ChunkSides(CHUNK, CHUNK, 4)
    return plan_boxes(shape, sides, sides, memory_of_tasks(MEMORY), spills=True).pieces


def simulate(
    nbytes: float,
    workers: int,
    seed: int = 0,
    store: Profile | None = None,
    worker: Profile | None = None,
    faults: Faults | None = None,
) -> Outcome:
    """Return what a job takes."""
    loop, pieces = JumpingLoop(), planned(nbytes)
    random.seed(seed)  # pauses before another attempt
    found = store or Profile.load(PROFILES / "s3.json"), worker or Profile.load(PROFILES / "worker.json")
    model = TaskModel(*found, np.random.default_rng(seed))
    executor = Workers(loop, workers, model, pieces, faults or Faults())
    notes = _Notes(model)
    journal = Journal(notes, "simulated")  # type: ignore[arg-type]  # the part of a store that it writes with

    async def run() -> float:
        reporter = Reporter("simulated", len(pieces), int(nbytes), None)
        order = Order("simulated", targets=pieces.boxes, pieces=pieces)

        def note(task: Task, _answers: Any) -> None:
            journal.note(task.work, task.numbers)

        await work_on(order, box_pass("box", pieces, int(nbytes)), executor, reporter, note)
        await journal.settle()
        assert reporter.state.tasks == len(pieces)
        return loop.time()

    try:
        took = loop.run_until_complete(run())
    finally:
        loop.close()
    return Outcome(took, executor.needed_s / (took * workers), executor.tasks_s)


def rows(nbytes: float, counts: list[int], seed: int, store: Profile, worker: Profile) -> Iterator[str]:
    """Yield a table, line by line."""
    yield f"| workers | {nbytes / 1e12:g} TB in hours | efficiency | tasks take (5 %, median, 95 %) |"
    yield "|---|---|---|---|"
    for count in counts:
        took, efficiency, tasks = simulate(nbytes, count, seed, store, worker)
        low, middle, high = np.quantile(tasks, (0.05, 0.5, 0.95))
        lengths = f"{low:.1f}, {middle:.1f}, {high:.1f} s"
        yield f"| {count} | {took / 3600:.2f} | {efficiency:.3f} | {lengths} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Simulate jobs on many workers.")
    parser.add_argument("--bytes", type=float, default=10e12)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--bucket", default=PROFILES / "s3.json", help="a profile of measure_bucket")
    parser.add_argument("--worker", default=PROFILES / "worker.json", help="a profile of measure_worker")
    parser.add_argument("--workers", default="1,2,4,8,16,32,64,128,256,512")
    parser.add_argument("--numbers", action="store_true", help="show the numbers and where they come from")
    options = parser.parse_args()
    store, worker = Profile.load(options.bucket), Profile.load(options.worker)
    if options.numbers:
        print(store, worker, sep="\n\n")
        return
    counts = [int(each) for each in options.workers.split(",")]
    for row in rows(options.bytes, counts, options.seed, store, worker):
        print(row, flush=True)


if __name__ == "__main__":
    main()
