"""Tasks take between 1 and 5 seconds, whatever a store moves in a second, where there is work enough and memory."""

from __future__ import annotations

import asyncio
import math
import time
from concurrent.futures import Executor, Future

import numpy as np
import pytest

import fsstore as ts
from benchmarks.simulate_jobs import JumpingLoop
from fsstore.job import work
from fsstore.job.passes import Order, box_pass
from fsstore.job.plan import ChunkSides, plan_boxes
from fsstore.job.work import UNKNOWN_JOB, Done, work_on
from fsstore.task.runner import Reporter

CHUNK = (8, 512, 512)


class Known(Executor):
    """Workers that move so many bytes a second, each request late, on a clock that jumps."""

    def __init__(self, loop, count, pieces, speed):
        """Make workers; `speed` is bytes a second, at a time."""
        self.loop, self.idle, self.pieces, self.speed = loop, count, pieces, speed
        self._max_workers, self.waiting, self.tasks = count, [], []

    def submit(self, function, /, *args, **_):
        """Queue a task."""
        future = Future()
        self.waiting.append((future, args))
        self.begin()
        return future

    def begin(self):
        while self.idle and self.waiting:
            self.idle -= 1
            future, (*_, payload, _, order) = self.waiting.pop(0)
            if order is None and not self.tasks and not getattr(self, "told", False):
                self.told, took, answer = True, 0.0, UNKNOWN_JOB
            else:
                sizes = [4 * math.prod(box.shape) for _, box in self.pieces.split(*payload)]
                took = 0.1 + sum(sizes) / self.speed(self.loop.time())
                answer = Done(sizes, took)
                self.tasks.append(took)
            self.loop.call_later(took, self.end, future, answer)

    def end(self, future, answer):
        self.idle += 1
        future.set_result(answer)
        self.begin()


def tasks_of(shape, source, target, memory, speed, workers=4):
    """Return how long the tasks of a job take."""
    plan = plan_boxes(shape, ChunkSides(source, source, 4), ChunkSides(target, target, 4), memory, spills=True)
    loop = JumpingLoop()
    executor = Known(loop, workers, plan.pieces, speed)
    reporter = Reporter("known", len(plan.pieces), 0, None)

    async def run():
        order = Order("known", targets=plan.targets, pieces=plan.pieces)
        await work_on(order, box_pass("box", plan.pieces, 0), executor, reporter, lambda task, answers: None)

    try:
        loop.run_until_complete(run())
    finally:
        loop.close()
    assert reporter.state.tasks == len(plan.pieces)
    return executor.tasks


def middle(tasks, workers=4):
    """Return the tasks after the first ones, which are short to learn from, and before the end is shared out."""
    handed = 8 * workers
    return tasks[4 * handed : len(tasks) - 3 * handed]


@pytest.mark.parametrize("megabytes_per_s", [5, 30, 300, 3000])
@pytest.mark.parametrize("target", [CHUNK, (16, 256, 512)], ids=["same chunks", "other chunks"])
def test_tasks_take_seconds_at_any_speed(megabytes_per_s, target):
    """A thousandfold of speed makes tasks of more pieces, and not shorter ones."""
    seconds = 1500  # of work
    shape = (max(8, int(megabytes_per_s * 1e6 * seconds / (4 * 4096 * 4096)) // 16 * 16), 4096, 4096)
    tasks = middle(tasks_of(shape, CHUNK, target, 384_000_000, lambda _: megabytes_per_s * 1e6))
    assert len(tasks) > 100
    assert min(tasks) >= 1
    assert max(tasks) <= 5


def test_tasks_follow_a_store_that_changes():
    """A store that becomes ten times slower has tasks of its new pace after those that were handed out."""
    shape = (3200, 4096, 4096)
    tasks = tasks_of(shape, CHUNK, CHUNK, 384_000_000, lambda now: 200e6 if now < 100 else 20e6)
    later = tasks[-len(tasks) // 3 : -100]
    assert np.mean([1 <= each <= 5 for each in later]) > 0.99


def test_what_is_too_large_takes_longer():
    """A single shard is the least that a task can be, and the plan says from which speed on it takes longer."""
    shard = (64, 1024, 1024)  # 268 MB
    tasks = tasks_of((640, 4096, 4096), shard, shard, 10**9, lambda _: 20e6)
    assert min(tasks) == pytest.approx(0.1 + 268.4 / 20, rel=0.01)
    group = ts.open_group("memory://a/", mode="w", context=ts.Context()).result()
    array = group.create_array("a", shape=[640, 4096, 4096], dtype="f4", chunks=shard).result()
    plan = ts.plan_copy(array, "memory://b/", schema={"codec": "gzip"}, max_memory="4GB").result()
    assert "pieces of 268.4 MB" in plan.why
    assert "longer where a worker moves less than 53.7 MB/s" in plan.why


def test_what_is_too_small_takes_less():
    """The plan of a small job says how small it is, and its workers share it evenly."""
    group = ts.open_group("memory://a/", mode="w", context=ts.Context()).result()
    array = group.create_array("a", shape=[80, 512, 512], dtype="f4", chunks=CHUNK).result()
    plan = ts.plan_copy(array, "memory://b/", schema={"codec": "gzip"}).result()
    assert "all take less where it moves 83.9 MB/s" in plan.why
    one = ts.plan_copy(array[:8], "memory://b/", schema={"codec": "gzip"}).result()
    assert "all of it is one task, of 8.4 MB" in one.why
    tasks = tasks_of((80, 512, 512), CHUNK, CHUNK, 384_000_000, lambda _: 84e6)
    assert len(tasks) == 10  # a piece each: nobody takes two while others have none
    assert max(tasks) < 1


@pytest.mark.long
def test_tasks_of_a_store_behind_a_slow_line(tmp_path):
    """Copies over HTTP at 10 MB/s: real tasks that are not the first or the last take between 1 and 5 s."""
    from benchmarks.far_server import FarServer

    group = ts.open_group(tmp_path / "a", mode="w", context=ts.Context({"file_io_sync": False})).result()
    array = group.create_array("x", shape=[400, 512, 512], dtype="f4", chunks=[1, 512, 512], codec=None).result()
    for at in range(0, 400, 100):
        array[at : at + 100] = np.random.default_rng(at).random((100, 512, 512), "f4")
    server, took = FarServer(tmp_path, 0.03, 10e6), []
    real = work.do

    async def timed(*arguments):
        began = time.monotonic()
        done = await real(*arguments)
        took.append((began, done.seconds))
        return done

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(work, "do", timed)
        source = ts.open(f"{server.url}/a/x/|zarr3:").result()
        ts.copy(source, tmp_path / "b", schema={"chunks": [1, 512, 256]}).result()
    assert np.array_equal(ts.open(f"file://{tmp_path}/b/").result()[390:].read().result(), array[390:].read().result())
    seconds = [each for _, each in sorted(took)]
    assert len(seconds) > 20
    inside = [1 <= each <= 5 for each in seconds[4:-6]]
    assert np.mean(inside) > 0.9
    assert max(seconds) < 7


def test_a_failure_on_the_way_keeps_what_was_done(tmp_path, monkeypatch, tune):
    """A task of several pieces that fails at one of them does not do those before it again."""
    group = ts.open_group(tmp_path / "a", mode="w").result()
    array = group.create_array("x", shape=[64, 8], dtype="i4", chunks=[2, 8]).result()
    array[:] = np.arange(512, dtype="i4").reshape(64, 8)
    real, seen, failed = work.WORK["box"], [], []

    async def flaky(order, box):
        if len(seen) == 7 and not failed:
            failed.append(box)
            raise ts.errors.UnavailableError("503 Slow Down")
        seen.append(box)
        return await real(order, box)

    monkeypatch.setitem(work.WORK, "box", flaky)
    tune("task", TASK_PAUSE_S=0.001)
    report = ts.copy(array, tmp_path / "b", schema={"codec": "gzip"}, max_memory="1kB").result()
    assert (report.retries, len(failed)) == (1, 1)
    assert len(seen) == len(set(seen))
    assert np.array_equal(ts.open(f"file://{tmp_path}/b/").result().read().result(), array.read().result())


def test_the_pace_of_asyncio_is_untouched():
    """The simulated clock moves only where something waits for it."""
    loop = JumpingLoop()
    try:
        began = time.monotonic()
        loop.run_until_complete(asyncio.sleep(1000))
        assert loop.time() == pytest.approx(1000)
        assert time.monotonic() - began < 5
    finally:
        loop.close()
