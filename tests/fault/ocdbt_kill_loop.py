"""Kill OCDBT writers in the middle of commits, and check what they leave.  Run by test_ocdbt_damage.

    ocdbt_kill_loop.py DIRECTORY KIND ROUNDS SEED

Each round forks a writer that commits without pause: two new keys (one value inside the tree, one outside), a
counter, and now and then the deletion of a range.  It reports each acknowledged number through a pipe, and is killed a
random moment after a random number of reports.  Then the newest version must be that of the last report or the
one after it, hold exactly what its number implies, and verify; so must the version of an earlier report.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time

from fsstore.kvstore.contract.driver import KvPrefix, Read, Write
from fsstore.kvstore.contract.request import KeyRange
from fsstore.kvstore.local.driver import LocalDriver
from fsstore.ocdbt.driver import open_database
from fsstore.ocdbt.tool import verify
from fsstore.runtime.execution import drive

WINDOW = 40
"""How many numbers have keys: every commit of a multiple of it deletes what is older."""


def open_at(path, kind, **members):
    config = {"manifest_kind": kind, "max_decoded_node_bytes": 600, "version_tree_arity_log2": 2}
    return open_database(KvPrefix(LocalDriver(), f"{path}/"), {"config": config, **members})


def value_of(number, size):
    return (b"%d " % number * size)[:size]


def wanted_at(number):
    """Return what the database holds after the commit of a number."""
    first = max(1, number // WINDOW * WINDOW)
    keys = {f"k{one:08}/{size}": value_of(one, size) for one in range(first, number + 1) for size in (50, 500)}
    return {**keys, "number": b"%d" % number}


def write_for_ever(driver, number, pipe):
    while True:
        number += 1
        keys = [Write(f"k{number:08}/{size}", value_of(number, size)) for size in (50, 500)]
        deleted = [KeyRange("k", f"k{number:08}")] if number % WINDOW == 0 else []
        drive(driver.write_atomic([*keys, Write("number", b"%d" % number)], unchanged={}, deleted=deleted))
        os.write(pipe, number.to_bytes(8, "little"))


def fork_writer(path, kind, number):
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            write_for_ever(open_at(path, kind), number, writing)
        finally:
            os._exit(1)
    os.close(writing)
    return child, reading


def killed_writer(path, kind, number, chance):
    """Return the last number a writer reported before it was killed."""
    child, reading = fork_writer(path, kind, number)
    with os.fdopen(reading, "rb") as reports:
        for _ in range(chance.randrange(1, 10)):
            last = reports.read(8)
            assert len(last) == 8, "the writer died by itself"
        time.sleep(chance.random() * 0.01)
        os.kill(child, signal.SIGKILL)
        assert os.waitpid(child, 0)[1] == signal.SIGKILL
        rest = reports.read()  # what was acknowledged before the kill counts too
    return int.from_bytes((rest or last)[-8:], "little")


async def contents(driver):
    keys = [entry.key async for batch in driver.scan(KeyRange()) for entry in batch]
    values = await driver.read_many([Read(key) for key in keys])
    return {key: bytes(value.value) for key, value in zip(keys, values, strict=True)}


def check(driver):
    """Return the number and generation of the version a driver reads, which must be whole."""
    found = drive(contents(driver))
    number = int(found["number"])
    assert found == wanted_at(number)
    version, _ = drive(driver.version())
    report = drive(verify(driver.source, version))
    assert report.ok, report.problems
    return number, version.generation


def main(path, kind, rounds, seed):
    chance = random.Random(seed)
    number, generations = 0, {}
    for _ in range(int(rounds)):
        last = killed_writer(path, kind, number, chance)
        number, generation = check(open_at(path, kind))
        assert number in (last, last + 1), f"{last} was acknowledged, but the newest version is {number}"
        generations[generation] = number
        old = chance.choice(list(generations))
        assert check(open_at(path, kind, version=old)) == (generations[old], old)
    driver = open_at(path, kind)
    drive(driver.write_many([Write("last", b"")]))
    left = [name for name in os.listdir(f"{path}/d") if name.endswith(".__lock")]
    assert not left, f"killed writers left {left}"
    print("survived", rounds)


if __name__ == "__main__":
    main(*sys.argv[1:])
