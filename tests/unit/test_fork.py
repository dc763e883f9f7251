"""The registry of forks: locks are free in a child and whole at the fork, and futures of a parent do not hang there."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

import fsstore
from fsstore.errors import FailedPreconditionError
from fsstore.kvstore.contract.driver import Write
from fsstore.kvstore.memory import MemoryDriver
from fsstore.runtime import execution, fork
from fsstore.runtime import future as futures
from fsstore.runtime.future import Promise

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]
CHILD_S = 10


def in_child(work):
    """Return what `work` returns or raises in a forked child, as text; a child that hangs is killed and told of."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        import signal

        signal.alarm(CHILD_S)
        try:
            os.write(writing, repr(work()).encode())
        except BaseException as error:
            os.write(writing, repr(error).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        answer = pipe.read().decode()
    status = os.waitpid(child, 0)[1]
    return answer if status == 0 else f"ended by signal {status & 127}"


def held_elsewhere(lock):
    """Return an event that lets another thread give up a lock, which it holds."""
    taken, over = threading.Event(), threading.Event()

    def hold():
        with lock:
            taken.set()
            over.wait(30)

    threading.Thread(target=hold, daemon=True).start()
    assert taken.wait(30)
    return over


def test_nothing_else_listens_to_forks():
    """Every other module leaves its state to the registry, so that there is one order in which things are reset."""
    package = Path(fsstore.__file__).parent
    users = [path.name for path in package.rglob("*.py") if "register_at_fork(" in path.read_text()]
    assert users == ["fork.py"]


def test_a_lock_that_another_thread_holds_is_free_in_the_child():
    """A fork does not wait long for it, and the parent keeps it."""
    lock = fork.lock()
    over = held_elsewhere(lock)
    begun = time.monotonic()
    assert in_child(lambda: lock.acquire(timeout=5)) == "True"
    assert time.monotonic() - begun < CHILD_S
    assert not lock.acquire(timeout=0.01)
    over.set()
    assert lock.acquire(timeout=10)
    lock.release()


def test_a_lock_that_is_held_for_long_costs_the_others_nothing():
    """Those that are free are taken all the same, wherever they stand, so that the child sees what they guard whole."""
    registry = fork.ForkRegistry()  # that of the process has its locks in no order
    held, free = [fork.brief_lock() for _ in range(3)], [fork.brief_lock() for _ in range(3)]
    registry.locks = [*held, *free]
    over = [held_elsewhere(lock) for lock in held]
    registry.prepare()
    assert registry.go_on() == free
    for each in over:
        each.set()


def test_locks_are_kept_no_longer_than_their_owners():
    """A process that opens a million arrays has no million locks to take at a fork."""
    group = fork.WeakGroup()
    kept, gone = fork.brief_lock(), fork.brief_lock()
    group.add(kept)
    group.add(gone)
    group.add(kept)
    assert {id(each) for each in group} == {id(kept), id(gone)}
    del gone
    assert list(group) == [kept]


def test_a_lock_of_the_thread_that_forks_stays_its_own():
    """A fork inside a finalizer or a signal handler does not break what it interrupted."""
    lock = fork.lock()

    def work():
        inside = lock._is_owned()
        lock.release()
        return inside, lock._is_owned()

    with lock:
        assert in_child(work) == "(True, False)"
        assert lock._is_owned()
    assert not lock._is_owned()


def test_a_child_sees_whole_transactions():
    """A transaction in memory that another thread applies while the process forks is in the child, or is not."""
    driver, stop = MemoryDriver(), threading.Event()
    halves = [[f"{half}{number}" for number in range(400)] for half in "ab"]

    def move(before, after):
        writes = [Write(key, None) for key in before] + [Write(key, b"1") for key in after]
        execution.drive(driver.write_atomic(writes, unchanged={}, deleted=[]))

    def write():
        while not stop.is_set():
            move(*halves)
            halves.reverse()

    move(*reversed(halves))
    thread = threading.Thread(target=write)
    thread.start()
    try:
        assert {in_child(lambda: len(driver.storage.values)) for _ in range(40)} == {"400"}
    finally:
        stop.set()
        thread.join()


def test_threads_that_fork_at_once_give_back_all_locks():
    """Each gives back what it took, whoever comes first."""
    lock = fork.lock()
    answers = []
    threads = [
        threading.Thread(target=lambda: answers.append(in_child(lambda: lock.acquire(timeout=5)))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert answers == ["True"] * 4
    assert lock.acquire(timeout=1)
    lock.release()


def test_what_the_parent_has_under_way_fails_in_the_child():
    """Its threads are not there; a future that waited for them would wait for ever, also through others."""
    go_on = threading.Event()
    begun = execution.spread(lambda _: go_on.wait(30), [0], workers=1)
    following = futures.mapped(begun, 5)
    for future in (begun, following):
        answer = in_child(lambda future=future: future.result(timeout=5))
        assert answer.startswith(FailedPreconditionError.__name__), answer
        assert "begin it again in the child" in answer
    go_on.set()
    assert following.result(timeout=10) == 5


def test_what_is_not_begun_is_begun_in_the_child():
    """A read that waits to be asked for is made by whoever asks, in the parent and in the child."""
    begun = []
    future = futures.pending(start=lambda: begun.append(1) or futures.resolve(future, len(begun)))
    assert in_child(lambda: future.result(timeout=5)) == "1"
    assert future.result(timeout=5) == 1


def test_a_promise_made_before_a_fork_can_be_kept_in_the_child():
    """Whoever has the promise resolves it, in whichever process."""
    promise, future = Promise.new()

    def work():
        threading.Timer(0.05, promise.set_result, [7]).start()
        return future.result(timeout=5)

    assert in_child(work) == "7"
    assert not future.done()
