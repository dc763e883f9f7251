"""Ctrl-C at every moment of a write at which the interpreter looks for it: nothing stays locked, open, or half done.

CPython looks when a function begins, after a call, and when a loop goes round; a tracer that raises there, once at each
such moment, stands for the key.  The exception is kept while its consequences are looked at, as an interactive session
keeps the last one, and with it every frame it passed.
"""

import contextlib
import dis
import os
import sys
import time
from itertools import product
from pathlib import Path

import pytest

import fsstore
from fsstore._runtime import drive
from fsstore.kvstore.contract import NO_VALUE, LateWrite, Write
from fsstore.kvstore.key_range import KeyRange
from fsstore.kvstore.local import LocalDriver
from fsstore.kvstore.local_lock import hold_if_free
from fsstore.kvstore.local_stage import Protocol

PLACES = (str(Path(fsstore.__file__).parent), contextlib.__file__)
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
        if self.came or code.co_name == "__del__" or not code.co_filename.startswith(PLACES):
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
    [
        *product(["os", "lockfile"], OPERATIONS),
        ("none", "batch"),
        ("none", "create"),
        ("non_atomic", "write"),
    ],
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
        assert eventually(lambda: descriptors() == before)
        held = eventually(lambda: hold_if_free(b"a/k", mode, set()))
        assert held is not None
        held.let_go()
        drive(driver.write_many([Write("a/k", b"old"), Write("a/other", b"old")]))
        assert eventually(lambda: not list(Path("a").glob("*__lock")))
        assert caught.__traceback__ is not None
