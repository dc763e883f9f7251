"""The reference store keeps the contract of key-value stores: over a document that is written to, and in memory."""

from __future__ import annotations

import itertools
import json

import pytest

from fsstore.kvstore.contract.driver import KvPrefix
from fsstore.kvstore.local.driver import LocalDriver
from fsstore.kvstore.local.stage import Protocol
from fsstore.kvstore.memory import MemoryDriver
from fsstore.reference.driver import reference_driver
from fsstore.reference.kind import open_reference
from fsstore.reference.table.refset import TableSet
from fsstore.reference.table.set_state import Overlay, State
from fsstore.reference.table.table import Table
from fsstore.runtime import execution
from fsstore.testing.kvstore_reading import READING
from fsstore.testing.kvstore_suite import CHECKS, filled


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
@pytest.mark.parametrize("kind", ["file", "memory"])
def test_document(check, kind, tmp_path):
    """A set whose document lies in a store that can be written keeps the contract, saved at every batch."""
    numbers = itertools.count()

    def make(contents):
        driver = LocalDriver(Protocol(sync=False)) if kind == "file" else MemoryDriver()
        base = KvPrefix(driver, f"{tmp_path}/{next(numbers)}.json")
        execution.call(base.write("", b'{"version":1,"refs":{}}'), waits=False)
        return filled(KvPrefix(execution.call(open_reference(base, {}), waits=False), "p/"), contents)

    check(make)


@pytest.mark.parametrize("check", READING.values(), ids=READING)
@pytest.mark.parametrize("whole", [True, False], ids=["whole", "ranges"])
def test_targets(check, whole):
    """Values that lie in other files, each in its own or all in one, are read as any others."""
    if check is READING["keys_of_bytes"] or (whole and check is READING["range_outside"]):
        return  # keys of a document are text; a file that is shorter than what is asked of it is damage of the set

    def make(contents):
        files, refs, data = MemoryDriver(), {}, b"before"
        for number, (key, value) in enumerate(contents.items()):
            refs[f"p/{key}"] = [f"{number}"] if whole else ["all", len(data), len(value)]
            files.storage.put(f"d/{number}", value)
            data += value
        files.storage.put("d/all", data)
        files.storage.put("d/r.json", json.dumps({"version": 1, "refs": refs}).encode())
        return KvPrefix(execution.call(open_reference(KvPrefix(files, "d/r.json"), {}), waits=False), "p/")

    check(make)


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_in_memory(check):
    """A set without a document keeps the contract."""

    def make(contents):
        overlay = Overlay(State(TableSet(Table())), None, writable=True)
        return filled(KvPrefix(reference_driver(overlay, {}, base=None, described="a set")), contents)

    check(make)
