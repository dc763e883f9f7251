"""Futures and promises: every way to wait, once resolved for ever, never a deadlock."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from fsstore import Future, Promise, errors
from fsstore.runtime import execution
from fsstore.runtime import future as futures


def test_promise_resolves_its_future_once():
    """The first result stays; later ones have no effect."""
    promise, future = Promise.new()
    promise.set_result(5)
    promise.set_exception(RuntimeError("late"))
    assert future.result() == 5
    assert future.exception() is None


def test_an_exception_is_raised_and_returned():
    """`result` raises what `exception` returns."""
    promise, future = Promise.new()
    promise.set_exception(KeyError("k"))
    assert isinstance(future.exception(), KeyError)
    with pytest.raises(KeyError):
        future.result()


def test_timeouts_raise():
    """A pending future raises `TimeoutError` after `timeout`, or at `deadline`."""
    _, future = Promise.new()
    with pytest.raises(TimeoutError):
        future.result(timeout=0.01)
    with pytest.raises(TimeoutError):
        future.result(deadline=time.time() + 0.01)


def test_cancelling_is_final():
    """A cancelled future stays cancelled, and says so."""
    promise, future = Promise.new()
    assert future.cancel()
    assert not future.cancel()
    promise.set_result(1)
    assert future.cancelled()
    with pytest.raises(asyncio.CancelledError):
        future.result()


def test_callbacks_run_once_from_any_thread():
    """A callback registered before or after the result is called exactly once with the future."""
    promise, future = Promise.new()
    seen = []
    future.add_done_callback(lambda done: seen.append(done.result()))
    thread = threading.Thread(target=promise.set_result, args=(3,))
    thread.start()
    thread.join()
    future.add_done_callback(lambda done: seen.append(done.result()))
    assert seen == [3, 3]


def test_removed_callbacks_do_not_run():
    """`remove_done_callback` tells how many registrations it removed."""
    promise, future = Promise.new()
    seen = []
    future.add_done_callback(seen.append)
    future.add_done_callback(seen.append)
    assert future.remove_done_callback(seen.append) == 2
    promise.set_result(None)
    assert seen == []


def test_awaiting_works_in_any_loop():
    """A future resolved on another thread wakes the event loop that awaits it."""
    promise, future = Promise.new()

    async def main():
        threading.Timer(0.01, promise.set_result, args=(7,)).start()
        return await future

    assert asyncio.run(main()) == 7


def test_cancelling_the_task_cancels_the_operation():
    """Cancelling a task that awaits a future cancels the future."""
    _, future = Promise.new()

    async def main():
        task = asyncio.ensure_future(_wait(future))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert future.cancelled()


async def _wait(future):
    return await future


def test_blocking_on_the_loop_thread_is_refused():
    """`result()` on the runtime's own thread raises instead of waiting for itself."""
    _, future = Promise.new()

    async def block():
        return future.result()

    with pytest.raises(errors.FailedPreconditionError, match="wait for ever|wait forever"):
        execution.start(block()).result(timeout=10)


def test_values_and_futures_convert():
    """`Future(x)` of a value is done; of a future it is the same future."""
    done = Future(3)
    assert done.done()
    assert Future(done) is done


def test_forcing_starts_once():
    """`force` starts a deferred operation once, and waiting forces."""
    started = []
    future = futures.pending(start=lambda: started.append(futures.resolve(future, 1)))
    assert not future.done()
    future.force()
    future.force()
    assert future.result() == 1
    assert started == [True]


def test_control_c_interrupts_within_a_second():
    """SIGINT during `result()` on the main thread raises `KeyboardInterrupt` at once, and cancels what is waited for."""
    script = """
import os, signal, sys, threading, time
import fsstore as ts

signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs inherit it ignored

def is_waiting():
    frame, names = sys._current_frames()[threading.main_thread().ident], []
    while frame is not None:
        names.append(frame.f_code.co_name)
        frame = frame.f_back
    return names[0] == "wait_until" and "result" in names

def interrupt():
    global begin
    while not is_waiting():
        time.sleep(0.01)
    begin = time.monotonic()
    os.kill(os.getpid(), signal.SIGINT)

_, future = ts.Promise.new()
thread = threading.Thread(target=interrupt)
thread.start()
try:
    future.result()
except KeyboardInterrupt:
    print("interrupted", future.cancelled(), time.monotonic() - begin < 1)
thread.join()
"""
    done = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["interrupted", "True", "True"]


def test_resolving_inside_a_comparison_of_callbacks_does_not_deadlock():
    """Code of the user that runs while a future is changed, here `__eq__`, may resolve another one."""
    promise, other = Promise.new()

    class Callback:
        def __call__(self, done):
            raise AssertionError("it was removed")

        def __eq__(self, _):
            promise.set_result(8)
            return True

        __hash__ = None

    _, future = Promise.new()
    future.add_done_callback(Callback())
    assert future.remove_done_callback(Callback()) == 1
    assert other.result(timeout=10) == 8


def test_many_are_resolved_in_one_step():
    """Those that wait are woken, callbacks are called, and what was done before stays as it was."""
    waiting = [futures.pending() for _ in range(4)]
    seen = []
    waiting[1].add_done_callback(lambda done: seen.append(done.result()))
    waiting[2].cancel()
    thread = threading.Thread(target=lambda: seen.append(waiting[3].result(timeout=60)))
    thread.start()
    futures.resolve_all(waiting, "abcd")
    thread.join()
    assert sorted(seen) == ["b", "d"]
    assert waiting[0].result() == "a"
    assert waiting[2].cancelled()


def test_a_canceller_that_comes_late_is_called():
    """Work that begins just when its future is cancelled learns of it."""
    future = futures.pending()
    future.cancel()
    called = []
    futures.on_cancel(future, lambda: called.append(True))
    assert called == [True]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_can_resolve_futures_whoever_held_the_lock():
    """A thread that does not live on in the child leaves no lock behind."""
    held, release = threading.Event(), threading.Event()

    def hold():
        with futures._LOCK:
            held.set()
            release.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(60)
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        promise, future = Promise.new()
        promise.set_result(4)
        os._exit(future.result())
    release.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 4
