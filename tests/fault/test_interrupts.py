"""Ctrl-C at every moment of a write at which the interpreter looks for it: nothing stays locked, open, or half done.

CPython looks when a function begins, after a call, and when a loop goes round; a tracer that raises there, once at each
such moment, stands for the key.  The exception is kept while its consequences are looked at, as an interactive session
keeps the last one, and with it every frame it passed.
"""

import contextlib
import dis
import os
import sys
import threading
import time
from itertools import product
from pathlib import Path

import pytest

import fsstore
from fsstore.errors import StoreError
from fsstore.kvstore import operation as write_queue
from fsstore.kvstore.contract.driver import NO_VALUE, LateWrite, Read, Write
from fsstore.kvstore.contract.request import KeyRange
from fsstore.kvstore.local.driver import LocalDriver
from fsstore.kvstore.local.lock import hold_if_free
from fsstore.kvstore.local.stage import Protocol
from fsstore.kvstore.memory import MemoryDriver
from fsstore.kvstore.operation import queued
from fsstore.runtime.execution import drive
from fsstore.runtime.together import CommitQueue

PLACES = (str(Path(fsstore.__file__).parent), contextlib.__file__)
NO_MOMENT = {"__del__"}
LOOKS_AFTER = {"CALL", "CALL_KW", "CALL_FUNCTION_EX", "JUMP_BACKWARD"}


class CtrlC:
    """Raises `KeyboardInterrupt` in this thread at moment number `turn`; `came` says whether there were so many.

    A finalizer is no such moment: the interpreter prints what is raised there and goes on.
    """

    def __init__(self, turn):
        self.left, self.came, self._names = turn, False, {}

    def __enter__(self):
        sys.settrace(self._call)
        return self

    def __exit__(self, *_):
        sys.settrace(None)

    def _call(self, frame, _event, _argument):
        code = frame.f_code
        names = {code.co_name, frame.f_back.f_code.co_name}
        if self.came or not names.isdisjoint(NO_MOMENT) or not code.co_filename.startswith(PLACES):
            return None
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        if code not in self._names:
            self._names[code] = {step.offset: step.opname for step in dis.get_instructions(code)}
        self._moment()
        names, before = self._names[code], ""

        def step(frame, event, _argument):
            nonlocal before
            if event == "opcode":
                last, before = before, names.get(frame.f_lasti, "")
                if last in LOOKS_AFTER:
                    self._moment()
            return step

        return step

    def _moment(self):
        self.left -= 1
        if self.left == 0:
            self.came = True
            sys.settrace(None)
            raise KeyboardInterrupt


def interrupted(work):
    """Yield the exception of `work` interrupted at its first moment, at its second, and so on until it has no more."""
    turn, came = 0, True
    while came:
        turn += 1
        with CtrlC(turn) as key:
            try:
                work()
            except KeyboardInterrupt as error:
                caught = error
        came = key.came
        if came:
            yield caught
    assert turn > 10


def run(coroutine):
    """Run a coroutine that never waits."""
    try:  # a moment within `suppress` would come before the coroutine has begun
        coroutine.send(None)
    except StopIteration:
        return


def descriptors():
    """Return how many files are open."""
    return len(os.listdir("/dev/fd"))


def eventually(look):
    """Return what `look` says, as soon as it is true: a thread may be at work that nobody waits for any more."""
    for _ in range(2000):
        if (found := look()) is not None and found is not False:
            return found
        time.sleep(0.01)
    return None


def listed(driver):
    """Return the batches of a listing of everything."""

    async def scan():
        return [batch async for batch in driver.scan(KeyRange())]

    return drive(scan())


def late(driver, value):
    """Write the key by `write_late`."""
    return driver.write_late([lambda: LateWrite("a/k", value)])


OPERATIONS = {
    "write": lambda driver: driver.write_many([Write("a/k", b"new")]),
    "batch": lambda driver: driver.write_many([Write("a/k", b"new"), Write("a/other", b"new")]),
    "refused": lambda driver: driver.write_many([Write("a/k", b"new", b"no such generation")]),
    "create": lambda driver: driver.write_many([Write("a/k", b"new", NO_VALUE)]),
    "delete": lambda driver: driver.write_many([Write("a/k", None)]),
    "late": lambda driver: late(driver, b"new"),
    "portions": lambda driver: late(driver, (part for part in [[b"n"], [b"e", b"w"]])),
    "range": lambda driver: driver.delete_range(KeyRange.prefix("a/")),
}


@pytest.mark.filterwarnings("ignore:unclosed scandir iterator")
@pytest.mark.parametrize(
    ("mode", "operation"),
    [*product(["os", "lockfile"], OPERATIONS), ("none", "batch"), ("none", "create"), ("non_atomic", "write")],
)
def test_local_files(tmp_path, monkeypatch, mode, operation):
    """The key can be locked and written at once, has an old or a new value till then, and no file is open."""
    monkeypatch.chdir(tmp_path)
    driver = LocalDriver(Protocol(mode, 0.0))
    drive(driver.write_many([Write("a/k", b"old")]))
    before = descriptors()
    for caught in interrupted(lambda: run(OPERATIONS[operation](driver))):
        found = Path("a/k").read_bytes() if Path("a/k").exists() else None
        assert found in {b"old", b"new", None} or mode == "non_atomic"
        assert eventually(lambda: descriptors() <= before)  # what earlier tests left may be closed meanwhile
        held = eventually(lambda: hold_if_free(b"a/k", mode, set()))
        assert held is not None
        held.let_go()
        drive(driver.write_many([Write("a/k", b"old"), Write("a/other", b"old")]))
        assert eventually(lambda: not list(Path("a").glob("*__lock")))
        assert caught.__traceback__ is not None


def submitted(queue, request, answers):
    """Submit a request in a thread of its own, which adds its answer to `answers`; return the thread."""

    def submit():
        try:
            drive(queue.submit(request))
        except StoreError as error:
            answers.append((request, str(error)))
        else:
            answers.append((request, "done"))

    thread = threading.Thread(target=submit, daemon=True)  # one that waits for ever fails the test, and ends with it
    thread.start()
    return thread


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
@pytest.mark.parametrize("fails", [False, True], ids=["stored", "failed"])
def test_commit_queue(fails):
    """Whoever leads may be interrupted: those in his commit and those who came meanwhile are answered, and truly.

    One leads until he and another wait for the next commit, which is his; during that a third comes.
    """
    committed, answers, threads = [], [], []
    over = threading.Event()

    def join_in(name):
        """Submit a request, and return when it waits, or has been answered."""
        threads.append(submitted(queue, name, answers))
        assert eventually(lambda: name in [ticket.request for ticket in queue._waiting] or not threads[-1].is_alive())

    async def commit(requests):
        if "first" in requests:
            assert eventually(lambda: queue._waiting or over.is_set()) is not None
            join_in("second")
        if "interrupted" in requests:
            join_in("third")
        if fails and "last" not in requests:
            raise StoreError("told so")
        committed.extend(requests)

    def work():
        over.clear()
        threads.append(submitted(queue, "first", answers))
        assert eventually(lambda: queue._busy)
        with contextlib.suppress(StoreError):
            run(queue.submit("interrupted"))

    queue = CommitQueue(commit, waits=False)
    for _ in interrupted(work):
        over.set()
        threads.append(submitted(queue, "last", answers))
        for thread in threads:
            thread.join(20)
            assert not thread.is_alive()
        assert all((answer == "done") == (request in committed) for request, answer in answers)
        assert {"first", "second", "last"} <= {request for request, _ in answers}
        for one in [committed, answers, threads]:
            one.clear()


def test_memory():
    """A transaction in memory is there as a whole or not at all, for listings too, and the store is not locked."""
    driver = MemoryDriver()
    before = {f"a/{number}": b"old" for number in range(4)}
    after = {"a/3": b"new", "a/4": b"new", "b/1": b"new"}
    writes = [Write("a/1", None), *[Write(key, value) for key, value in after.items()]]

    def stored():
        keys = [entry.key for batch in listed(driver) for entry in batch]
        return {key: bytes(drive(driver.read_many([Read(key)]))[0].value) for key in keys}

    drive(driver.write_many([Write(*item) for item in before.items()]))
    seen = []
    for _ in interrupted(lambda: run(driver.write_atomic(writes, unchanged={}, deleted=[KeyRange.prefix("a/")]))):
        assert not driver.storage.lock._is_owned()
        seen.append(stored())
        drive(driver.delete_range(KeyRange()))
        drive(driver.write_many([Write(*item) for item in before.items()]))
    assert before in seen
    assert after in seen
    assert all(found in (before, after) for found in seen)


def test_queued_writes():
    """A write begun alone that is interrupted is made or not; those before and after it are, by as many threads."""
    driver, begun = MemoryDriver(), []

    def work():
        begun.extend(queued(driver, Write(key, b"1")) for key in "abc")

    for _ in interrupted(work):
        for write in begun:
            write.result(timeout=5)
        begun.clear()
        queued(driver, Write("d", b"2")).result(timeout=5)
        assert not write_queue._queues.now[driver]._waiting
        assert eventually(lambda: not write_queue._queues.now[driver]._jobs)
