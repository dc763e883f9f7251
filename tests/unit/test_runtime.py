"""The runtime: inline driving, the loop, pools, and a clean start after a fork."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import os
import threading
import time

import pytest

from fsstore import errors
from fsstore.runtime import execution
from fsstore.runtime import future as futures
from fsstore.runtime.execution import WorkEnd


async def _double(value):
    return 2 * value


async def _suspend():
    await asyncio.sleep(0)


async def _blocking():
    return await execution.offload(threading.get_ident)


def test_driving_runs_here():
    """A coroutine that never waits runs on the calling thread, offloaded calls included."""
    assert execution.drive(_double(4)) == 8
    assert execution.drive(_blocking()) == threading.get_ident()


def test_driving_does_not_see_the_callers_loop():
    """Inside somebody's event loop a driven coroutine still runs inline."""

    async def main():
        return execution.drive(_blocking())

    assert asyncio.run(main()) == threading.get_ident()


def test_a_suspending_coroutine_is_a_bug_that_raises():
    """A coroutine that waits although its store says it does not raises instead of hanging."""
    with pytest.raises(errors.FailedPreconditionError, match="never waits"):
        execution.drive(_suspend())


def test_waiting_coroutines_run_on_the_loop_and_offload_to_a_pool():
    """On the loop, blocking work goes to another thread."""

    async def both():
        return execution.on_loop_thread(), await _blocking()

    on_loop, worker = execution.start(both()).result()
    assert on_loop
    assert worker != threading.get_ident()


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("tasks", [1, 3])
def test_whatever_offloaded_work_raises_comes_to_who_waits(kind, tasks):
    """An interrupt in a callback of the user ends the operation that made the call, and the loop goes on for others."""

    async def work():
        await execution.offload(_raise, kind())

    async def several():
        await execution.gather([work(), *(asyncio.sleep(0) for _ in range(tasks - 1))])

    with pytest.raises(kind):
        execution.start(several()).result(timeout=10)
    with pytest.raises(kind):
        execution.start(work()).result(timeout=10)
    assert execution.start(_double(4)).result(timeout=10) == 8


def _raise(error):
    raise error


def test_map_blocking_keeps_order_and_raises_the_first_error():
    """Results are in order; an error stops the rest and is raised."""
    assert execution.map_blocking(lambda n: n * n, range(50)) == [n * n for n in range(50)]
    with pytest.raises(ZeroDivisionError):
        execution.map_blocking(lambda n: 1 // (n - 3), range(50))


def test_map_in_order_goes_on_beside_its_caller():
    """Results come in order, one by one; who stops drawing waits for what has begun and for nothing else."""
    assert list(execution.map_in_order(lambda n: n * n, range(50))) == [n * n for n in range(50)]
    begun = []
    results = execution.map_in_order(lambda n: begun.append(n) or n, range(10_000), kind="io", limit=2)
    assert next(results) == 0
    results.close()
    count = len(begun)
    assert sorted(begun) == list(range(count))
    assert list(execution.map_blocking(lambda n: n, range(4), kind="io", limit=2)) == [0, 1, 2, 3]
    assert len(begun) == count


@pytest.mark.parametrize("ahead", [1, 2, 7])
def test_map_in_order_waits_for_who_draws(ahead):
    """Threads go on until as many are begun as may be ahead of who draws; beyond these each has one in hand at most."""
    begun = []
    results = execution.map_in_order(lambda n: begun.append(n) or n, range(40), kind="io", limit=4, ahead=ahead)
    for number in range(40):
        assert next(results) == number
        deadline = time.monotonic() + 30
        while len(begun) < min(40, number + ahead) and time.monotonic() < deadline:
            time.sleep(0.0005)
        assert min(40, number + ahead) <= len(begun) <= number + ahead + 3
    assert list(results) == []


def test_map_in_order_without_threads(monkeypatch):
    """Who draws does everything himself if no thread can be had, not further ahead than others would."""
    monkeypatch.setattr(execution, "submit", lambda work, **_: work() or futures.ready(None))
    begun = []
    results = execution.map_in_order(lambda n: begun.append(n) or n, range(40), kind="io", limit=4, ahead=3)
    for number in range(40):
        assert next(results) == number
        assert len(begun) <= number + 3


def test_map_in_order_raises_an_error_in_its_place():
    """What comes before an error is yielded; the error ends it."""
    results = execution.map_in_order(lambda n: 1 // (n - 40), range(50), limit=1)
    assert [next(results) for _ in range(40)] == [1 // (n - 40) for n in range(40)]
    with pytest.raises(ZeroDivisionError):
        next(results)
    with pytest.raises(ZeroDivisionError):
        list(execution.map_in_order(lambda n: 1 // (n - 40), range(50), kind="io", limit=4))


@pytest.mark.parametrize("begun", [0, 1, 3])
def test_an_interrupted_spread_leaves_nobody_at_work(begun, monkeypatch):
    """Who is interrupted while he asks for workers waits for those that began; the others never do."""
    submit, asked, running, ended = execution.submit, [], [], []

    def interrupted(work, **how):
        if len(asked) == 3:
            raise KeyboardInterrupt
        asked.append(submit(work, **how) if len(asked) < begun else work)

    def function(item):
        running.append(item)
        time.sleep(0.01)
        running.remove(item)

    monkeypatch.setattr(execution, "submit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        execution.spread(
            function, itertools.count(), workers=5, kind="io", ended=WorkEnd(lambda: ended.append(list(running)))
        )
    assert (running, ended) == ([], [[]])
    for late in asked[begun:]:
        late()
    assert (running, ended) == ([], [[]])


def test_map_blocking_nests_without_deadlock():
    """A pool thread may spread work again."""
    nested = execution.map_blocking(lambda _: sum(execution.map_blocking(lambda n: n, range(10))), range(10))
    assert nested == [45] * 10


def test_spread_draws_lazily_and_stops_at_an_error():
    """Items are drawn as workers are free; after an error no more are drawn."""
    drawn = []

    def items():
        for number in range(1000):
            drawn.append(number)
            yield number

    def work(number):
        if number == 5:
            raise ValueError("five")

    with pytest.raises(ValueError, match="five"):
        execution.spread(work, items(), workers=2).result()
    assert len(drawn) < 1000


def test_gather_cancels_the_others():
    """The first error cancels the coroutines still running."""
    cancelled = threading.Event()

    async def slow():
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async def fails():
        raise KeyError("first")

    async def both():
        await execution.gather([slow(), fails()])

    with pytest.raises(KeyError):
        execution.start(both()).result(timeout=10)
    assert cancelled.is_set()


def test_gather_without_a_loop_drops_the_others():
    """After an error the coroutines behind it are closed, and nobody is warned that they were not awaited."""

    async def fails():
        raise KeyError("first")

    calls = [fails(), _double(1), _double(2)]
    with pytest.raises(KeyError):
        execution.drive(execution.gather(calls))
    assert {inspect.getcoroutinestate(call) for call in calls} == {inspect.CORO_CLOSED}


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_starts_afresh():
    """After a fork the child has a loop and pools of its own."""
    assert execution.start(_double(1)).result() == 2
    child = os.fork()
    if child == 0:
        status = 1
        try:
            good = execution.start(_double(21)).result(timeout=20) == 42
            good = good and execution.map_blocking(lambda n: n, range(4)) == [0, 1, 2, 3]
            status = 0 if good else 1
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_one_alone_is_awaited_at_once():
    """What would be a group of one is no task of its own: it has begun before anything else on the loop has a turn."""
    order = []

    async def work():
        order.append("work")
        await asyncio.sleep(0)
        return asyncio.current_task()

    async def run():
        asyncio.get_running_loop().call_soon(order.append, "other")
        (task,) = await execution.gather([work()])
        return task is asyncio.current_task()

    assert execution.call(run())
    assert order == ["work", "other"]


def refused(*_):
    """Be the start of a thread where there may be no more."""
    raise RuntimeError("can't start new thread")


def refuse_threads(patch):
    """Let no thread be started."""
    patch.setattr(threading.Thread, "start", refused)
    patch.setattr("_thread.start_new_thread", refused)


def test_a_job_for_which_there_is_no_thread_is_done_here(monkeypatch):
    """Who waits for it has its result or its error, whether he asked for one or for many."""
    refuse_threads(monkeypatch)
    done = []
    assert execution.submit(lambda: done.append(1) or 7, kind="io", limit=29).result(10) == 7
    with pytest.raises(ZeroDivisionError):
        execution.submit(lambda: 1 // 0, kind="io", limit=29).result(10)
    assert execution.map_blocking(lambda n: n * n, range(50), kind="io", limit=29) == [n * n for n in range(50)]
    execution.spread(done.append, [2, 3], workers=4, kind="request").result(10)
    assert sorted(done) == [1, 2, 3]


def test_a_job_for_which_there_is_no_thread_is_not_done_again_later(monkeypatch):
    """The executor has queued it all the same; a thread that can be started later leaves it."""
    done = []
    with monkeypatch.context() as patch:
        refuse_threads(patch)
        execution.submit(done.append, 1, kind="io", limit=28)
        execution.submit(done.append, 1, kind="io", limit=28)
    go_on = threading.Event()
    waiting = [execution.submit(go_on.wait, 20, kind="io", limit=28) for _ in range(3)]
    execution.submit(done.append, 2, kind="io", limit=28).result(10)  # by a thread of its own
    assert done == [1, 1, 2]
    go_on.set()
    assert all(each.result(10) for each in waiting)


def test_a_job_for_which_no_thread_can_be_added_is_done_by_those_there_are(monkeypatch):
    """It waits for its turn."""
    go_on, done = threading.Event(), []
    first = execution.submit(go_on.wait, 20, kind="io", limit=27)
    refuse_threads(monkeypatch)
    second = execution.submit(lambda: done.append(threading.current_thread()), kind="io", limit=27)
    assert not second.done()
    go_on.set()
    assert first.result(10)
    second.result(10)
    assert done != [threading.current_thread()]


def test_no_thread_for_the_loop_is_an_error(monkeypatch):
    """The future fails; nothing is left open, and the next call tries again."""
    monkeypatch.setattr(execution, "_state", execution._State())
    with monkeypatch.context() as patch:
        refuse_threads(patch)
        with pytest.raises(errors.ResourceExhaustedError, match="no thread can be had for the event loop"):
            execution.start(_double(1)).result(10)
