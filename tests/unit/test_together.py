"""What queues of work have in common: results item by item, futures told at once, moments waited for."""

from __future__ import annotations

import asyncio
import threading

import pytest

from fsstore.runtime import execution
from fsstore.runtime import future as futures
from fsstore.runtime.together import Moment, outcomes, tell


class Maker:
    """Doubles numbers, and fails on a batch that holds a bad one; it notes the batches it was given."""

    def __init__(self, *bad):
        self.bad, self.made = bad, []

    async def __call__(self, items):
        self.made.append(list(items))
        for item in items:
            if item in self.bad:
                raise ValueError(f"bad {item}")
        return [2 * item for item in items]


def test_a_good_batch_is_made_once():
    """All items of a batch that succeeds are made together."""
    make = Maker()
    assert execution.drive(outcomes(make, [1, 2, 3])) == [2, 4, 6]
    assert make.made == [[1, 2, 3]]


@pytest.mark.parametrize("suspends", [False, True])
def test_errors_belong_to_their_items(suspends):
    """A batch that fails is made again item by item, in order, and each has its own outcome."""
    make = Maker(2, 4)
    call = outcomes(make, [1, 2, 3, 4])
    found = asyncio.run(call) if suspends else execution.drive(call)
    assert [str(outcome) for outcome in found] == ["2", "bad 2", "6", "bad 4"]
    assert make.made == [[1, 2, 3, 4], [1], [2], [3], [4]]


def test_a_lone_item_is_not_made_twice():
    """The failure of a batch of one is that of its item."""
    make = Maker(1)
    (outcome,) = execution.drive(outcomes(make, [1]))
    assert str(outcome) == "bad 1"
    assert make.made == [[1]]


def test_interrupts_are_no_outcomes():
    """Ctrl-C ends the batch instead of becoming the error of an item."""

    async def make(items):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execution.drive(outcomes(make, [1, 2]))


def test_futures_are_told_and_done_ones_stay():
    """Every future has its result or its error; one that was cancelled stays so."""
    waiting = [futures.pending() for _ in range(3)]
    waiting[1].cancel()
    tell(waiting, [1, 2, ValueError("no")])
    assert waiting[0].result() == 1
    assert waiting[1].cancelled()
    with pytest.raises(ValueError, match="no"):
        waiting[2].result()


def test_a_moment_is_heard_on_threads_and_loops():
    """Those who wait on a thread, on an event loop, or come too late all go on."""
    moment, heard, ready = Moment(), [], threading.Semaphore(0)

    def on_thread():
        ready.release()
        execution.drive(moment.wait())
        heard.append("thread")

    async def on_loop():
        ready.release()
        await moment.wait()
        heard.append("loop")

    threads = [threading.Thread(target=on_thread), threading.Thread(target=lambda: asyncio.run(on_loop()))]
    for thread in threads:
        thread.start()
    for _ in threads:
        assert ready.acquire(timeout=20)
    moment.come()
    for thread in threads:
        thread.join(20)
    asyncio.run(moment.wait())
    execution.drive(moment.wait())
    assert sorted(heard) == ["loop", "thread"]
