"""What an executor answers: the answer of a worker, its mistake, or a trip of the executor itself."""

from __future__ import annotations

import asyncio
import multiprocessing
import threading
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor

import numpy as np
import pytest

import fsstore as ts
from fsstore.chunk.regions import BoxSlabs, Regions
from fsstore.errors import FailedPreconditionError, UnavailableError
from fsstore.job.passes import Order, box_pass
from fsstore.job.work import WORK, do, work_on
from fsstore.task.runner import Task, TaskSlowError, answered, reporter_of, run_tasks


class _Tripping(ThreadPoolExecutor):
    """Loses some answers as Dask's executor does, when a worker dies just after it has answered."""

    def __init__(self, lost):
        super().__init__(1)
        self.lost = lost

    def submit(self, /, *call, **kwargs):
        answer = super().submit(*call, **kwargs)
        if not self.lost:
            return answer
        self.lost -= 1
        answer.result()
        tripped = Future()
        tripped.set_exception(TypeError("cannot unpack non-iterable object"))
        return tripped


class _Cancelling(ThreadPoolExecutor):
    """Cancels some calls, as Dask's does when the workers are restarted."""

    def __init__(self, lost):
        super().__init__(1)
        self.lost = lost

    def submit(self, /, *call, **kwargs):
        if not self.lost:
            return super().submit(*call, **kwargs)
        self.lost -= 1
        cancelled = Future()
        cancelled.cancel()
        return cancelled


def _mistaken(calls):
    calls.append(1)
    return {}["missing"]


def _far_mistaken():
    return {}["missing"]


def _answered(executor, work, *arguments):
    return asyncio.run(answered(executor, work, *arguments))


def _run(task, executor, noted):
    asyncio.run(run_tasks(iter([task]), executor, reporter_of(None, "", 1, 0), noted))


def test_a_trip_of_the_executor_is_no_mistake():
    """A `TypeError` that no work has raised is a failure that may pass, and says whose it is."""
    with _Tripping(1) as executor:
        with pytest.raises(UnavailableError, match=r"gave no answer of its worker \(TypeError: cannot unpack"):
            _answered(executor, len, [1])
        assert _answered(executor, len, [1]) == 1


def test_a_task_whose_answer_is_lost_is_done_again():
    """Its answer is noted once."""
    noted = []
    with _Tripping(1) as executor:
        _run(Task([0], len, ([1, 2],)), executor, lambda _, answer: noted.append(answer))
    assert noted == [2]


def test_a_task_that_the_executor_cancels_is_an_error():
    """It says what to do; a worker may still be at the task, so it is not begun a second time."""
    executor = _Cancelling(100)
    with executor, pytest.raises(UnavailableError, match="has cancelled the task.*again to go on"):
        _run(Task([0], len, ([],)), executor, lambda *_: pytest.fail("noted"))
    assert executor.lost == 99


def test_a_copy_whose_tasks_are_cancelled_is_no_copy(tmp_path):
    """It fails, and writes no metadata: an array without its chunks would be read as fill values.  The same call goes on."""
    source = ts.array(np.arange(1, 65, dtype="int32").reshape(8, 8))
    with _Cancelling(100) as executor, pytest.raises(UnavailableError, match="executor has cancelled"):
        ts.copy(source, tmp_path / "copy", executor=executor).result(timeout=60)
    with pytest.raises(FailedPreconditionError, match="no array"):
        ts.open(tmp_path / "copy").result()
    with _Cancelling(0) as executor:
        ts.copy(source, tmp_path / "copy", executor=executor).result(timeout=60)
    assert (ts.open(tmp_path / "copy").result().read().result() == source.read().result()).all()


def test_a_cancelled_run_is_no_finished_one():
    """A task that ends as cancelled by itself ends the run."""

    async def ask(task):
        raise asyncio.CancelledError

    async def run():
        task = Task([0], len, ([],))
        await run_tasks(iter([task]), None, reporter_of(None, "", 1, 0), lambda *_: None, ask=ask)

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(run())


def test_a_run_that_is_cancelled_from_outside_ends_at_once():
    """Its tasks are not tried again."""
    begun = threading.Event()
    go_on = threading.Event()

    def work():
        begun.set()
        assert go_on.wait(20)

    async def run(executor):
        task = Task([0], work, ())
        running = asyncio.ensure_future(
            run_tasks(iter([task, task]), executor, reporter_of(None, "", 2, 0), lambda *_: None, most=1)
        )
        await asyncio.to_thread(begun.wait, 20)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    with ThreadPoolExecutor(1) as executor:
        asyncio.run(run(executor))
        begun.clear()
        go_on.set()
    assert not begun.is_set()


def test_a_mistake_of_the_work_is_not_tried_again():
    """It is raised as it is, after one call."""
    calls = []
    with ThreadPoolExecutor(1) as executor, pytest.raises(KeyError, match="missing") as raised:
        _run(Task([0], _mistaken, (calls,)), executor, lambda *_: None)
    assert len(calls) == 1
    assert not hasattr(raised.value, "__notes__")


def test_a_mistake_on_another_process_says_where_it_was():
    """Pickles of exceptions have no traceback; a note has it."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as executor, pytest.raises(KeyError) as raised:
        _answered(executor, _far_mistaken)
    assert "in _far_mistaken" in raised.value.__notes__[0]


def _boxes(count):
    """Return an order of so many pieces whose target is far, for a work that is put in the place of another."""
    pieces = BoxSlabs(Regions((0,), (count,), (1,), (0,)), 0, 1)
    target = ts.KvStore.open("http://127.0.0.1:9/", context=ts.Context()).result()
    return Order("slow", target=target, targets=pieces.boxes, pieces=pieces)


def test_a_worker_gives_up_what_takes_far_too_long(monkeypatch):
    """With what it has done, or with an error that says so; nothing of the piece goes on."""
    ended = []

    async def hangs_at_the_third(_order, box):
        try:
            await asyncio.sleep(0 if box.start[0] < 2 else 3600)
        finally:
            ended.append(box.start[0])
        return 1

    monkeypatch.setitem(WORK, "box", hangs_at_the_third)
    done = asyncio.run(do(_boxes(5), "box", (0, 5), 0.3))
    assert (done.answers, done.stopped) == ([1, 1], 2)
    with pytest.raises(TaskSlowError, match="took longer than 0 s, far longer than others"):
        asyncio.run(do(_boxes(5), "box", (2, 5), 0.3))
    assert ended == [0, 1, 2, 2]


def test_what_is_given_up_is_handed_out_again(monkeypatch, tune):
    """To a worker that takes as long as others; the job ends as if nothing had happened."""
    hung = []

    async def hangs_once(_order, box):
        if box.start[0] == 30 and not hung:
            hung.append(1)
            await asyncio.sleep(3600)
        return 1

    monkeypatch.setitem(WORK, "box", hangs_once)
    tune("task", TASK_S=0.05)
    order, noted = _boxes(40), []
    reporter = reporter_of(None, "", 40, 0)

    async def run(executor):
        todo = box_pass("box", order.pieces, 0)
        await work_on(order, todo, executor, reporter, lambda task, _: noted.extend(task.numbers))

    with ThreadPoolExecutor(2) as executor:
        asyncio.run(asyncio.wait_for(run(executor), 60))
    assert sorted(noted) == list(range(40))
    assert hung


def test_what_fails_by_accident_is_tried_more_often_while_others_succeed(tune):
    """A task that fails six times is done in the end; alone it ends the job after three."""
    tune("task", TASK_PAUSE_S=0.02)
    failures = [0]

    def unlucky(number):
        if number == 0 and failures[0] < 6:
            failures[0] += 1
            raise UnavailableError("a worker was lost")
        return 1

    noted = []

    async def after_others(task):
        while task.arguments == (0, 8) and failures[0] > len(noted):
            await asyncio.sleep(0)
        return unlucky(task.numbers[0])

    def run(count):
        tasks = iter([Task([number], unlucky, (number, count)) for number in range(count)])
        reporter = reporter_of(None, "", count, 0)
        done = run_tasks(tasks, None, reporter, lambda task, _: noted.extend(task.numbers), most=8, ask=after_others)
        asyncio.run(done)

    with pytest.raises(UnavailableError):
        run(1)
    assert failures == [3]
    failures[0] = 0
    run(8)
    assert sorted(noted) == list(range(8))


def _against_a_limit(tasks, workers, limit):
    """Run tasks of a second on workers of a store that answers so many at once; return seconds and refusals."""
    from benchmarks.simulate_jobs import JumpingLoop

    loop, inside, refused = JumpingLoop(), [], []

    async def ask(task):
        if len(inside) >= limit:
            await asyncio.sleep(0.1)
            error = UnavailableError("503 Slow Down")
            error.busy = True
            refused.append(task)
            raise error
        inside.append(task)
        await asyncio.sleep(1)
        inside.remove(task)
        return 1

    made = (Task([number], len, ()) for number in range(tasks))
    with ThreadPoolExecutor(workers) as executor:
        reporter = reporter_of(None, "", tasks, 0)
        loop.run_until_complete(run_tasks(made, executor, reporter, lambda *_: None, ask=ask))
    took = loop.time()
    loop.close()
    assert reporter.state.tasks == tasks
    return took, len(refused)


def test_a_store_that_wants_fewer_requests_gets_fewer():
    """Of 64 workers as many go on as a store answers that takes 16, at four fifths of its speed or more."""
    took, refused = _against_a_limit(2000, 64, 16)
    assert 2000 / 16 / took >= 0.8
    assert refused < 2000


def test_a_store_that_answers_all_is_used_fully():
    """Nothing is refused, and as many tasks are under way as are handed over beforehand: eight a worker."""
    took, refused = _against_a_limit(640, 16, 1000)
    assert refused == 0
    assert took <= 640 / (8 * 16) * 1.01
