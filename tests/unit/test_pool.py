"""The pool of threads: who gets a job, and that every job is done once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.thread import BrokenThreadPool
from contextlib import nullcontext
from queue import Empty, SimpleQueue

import pytest

from fsstore.runtime.pool import Pool, _Jobs


def _pool(threads):
    return Pool(threads, "test", lambda: None)


def _idle(pool, count):
    """Wait until as many threads of the pool are idle."""
    for _ in range(2000):
        if len(pool._jobs._idle) == count:
            return
        threading.Event().wait(0.005)
    raise AssertionError("the threads do not become idle")


def test_the_thread_that_became_idle_last_gets_the_next_job():
    """In whatever order threads become idle, and again and again."""
    with _pool(3) as pool:
        gates = [threading.Event() for _ in range(3)]
        jobs = [pool.submit(lambda gate=gate: gate.wait(30) and threading.get_ident()) for gate in gates]
        for count, number in enumerate((1, 2, 0), 1):
            gates[number].set()
            _idle(pool, count)
        latest = jobs[0].result(30)
        for _ in range(5):
            assert pool.submit(threading.get_ident).result(30) == latest
            _idle(pool, 3)


def test_a_job_has_ended_when_its_thread_is_idle_again():
    """So who hears of it and has another one needs no other thread, also if it failed or a callback hears of it."""
    with _pool(4) as pool:
        first = pool.submit(threading.get_ident).result(30)
        for _ in range(300):
            assert pool.submit(threading.get_ident).result(30) == first
            assert isinstance(pool.submit(int, "x").exception(30), ValueError)
        following = SimpleQueue()
        gate = threading.Event()
        job = pool.submit(gate.wait, 30)
        job.add_done_callback(lambda _: following.put(pool.submit(threading.get_ident)))
        gate.set()
        assert following.get(timeout=30).result(30) == first
        assert len(pool._threads) == 1


def test_jobs_of_a_pool_whose_threads_cannot_begin_fail():
    """They are not waited for without end, though no thread is ever idle."""

    def fail():
        raise ValueError("no")

    with Pool(2, "test", fail) as pool:
        job = pool.submit(int)
        with pytest.raises(BrokenThreadPool):
            job.result(30)


def test_jobs_begin_in_their_order():
    """Those that wait for a thread are not overtaken."""
    done = []
    with _pool(1) as pool:
        gate = threading.Event()
        pool.submit(gate.wait, 30)
        for number in range(100):
            pool.submit(done.append, number)
        gate.set()
    assert done == list(range(100))


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_every_job_is_done_once(threads):
    """Whoever brings them, and however many threads there are; a lost job would never be done."""
    done = []

    def bring(start):
        waiting = []
        for number in range(start, start + 500):
            waiting.append(pool.submit(done.append, number))
            if number % 7 == 0:
                waiting.pop().result(60)
        for job in waiting:
            job.result(60)

    with _pool(threads) as pool, ThreadPoolExecutor(4) as others:
        list(others.map(bring, range(0, 4000, 500), timeout=120))
    assert sorted(done) == list(range(4000))


class _Idle(list):
    """Where threads wait, and what happens just before one does."""

    def __init__(self, event):
        super().__init__()
        self.event = event

    def append(self, mine):
        super().append(mine)
        self.event()


def test_a_signal_while_a_job_is_brought_does_not_cost_a_thread(monkeypatch):
    """Whoever is interrupted after a job was given to an idle thread, others get their threads."""
    with _pool(3) as pool:
        pool.submit(int).result(30)
        for _ in range(3):
            _idle(pool, 1)
            with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
                patch.setattr(_Jobs, "none_waits", _interrupted)  # what is asked when a job was given
                pool.submit(int)
        _idle(pool, 1)
        met = threading.Barrier(3)
        jobs = [pool.submit(met.wait, 30) for _ in range(3)]
        assert sorted(job.result(30) for job in jobs) == [0, 1, 2]


def _interrupted(_):
    raise KeyboardInterrupt


def test_a_job_that_comes_before_a_thread_is_seen_to_be_idle_is_found():
    """Who brought it had nobody to give it to."""
    jobs = _Jobs()
    jobs._idle = _Idle(lambda: jobs._jobs.put("job"))
    assert jobs.get() == "job"
    assert not jobs._idle


def test_a_thread_that_finds_a_job_and_is_given_another_does_both():
    """One of them goes back, for whoever asks next."""
    jobs = _Jobs()

    def come():
        jobs._jobs.put("found")
        jobs._idle.pop().put("given")

    jobs._idle = _Idle(come)
    assert jobs.get() == "given"
    assert jobs.get_nowait() == "found"
    with pytest.raises(Empty):
        jobs.get_nowait()


@pytest.mark.parametrize("interrupted", [False, True])
def test_a_thread_that_became_idle_before_a_job_was_there_looks_again(interrupted):
    """Also if a signal comes to who brings it, at the worst moment."""
    jobs = _Jobs()

    class Late(SimpleQueue):
        def put(self, job):
            late.append(threads.submit(jobs.get))
            while not jobs._idle:
                threading.Event().wait(0.001)
            super().put(job)
            if interrupted:
                raise KeyboardInterrupt

    late = []
    jobs._jobs = Late()
    with ThreadPoolExecutor(1) as threads:
        with pytest.raises(KeyboardInterrupt) if interrupted else nullcontext():
            jobs.put("job")
        assert late[0].result(30) == "job"
    assert not jobs._idle
