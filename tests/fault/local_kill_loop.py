"""Kill writers at random moments, and check what they leave.  Run by test_local_faults.

    local_kill_loop.py DIRECTORY MODE SYNC ROUNDS SEED

Each round forks a writer that replaces and deletes keys without pause and reports every answered write through a
pipe.  After a random number of reports it is killed.  Then every key must hold a whole value, at least as new as the
last one reported, and the next write must find its way.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import zlib

from fsstore.kvstore.contract.driver import KvPrefix, Read, Write
from fsstore.kvstore.local.driver import LocalDriver
from fsstore.kvstore.local.stage import Protocol
from fsstore.runtime.execution import drive

KEYS = [f"d{number % 2}/k{number}" for number in range(4)]


def value_of(number):
    body = number.to_bytes(8, "little") * (1 + number * 7919 % 4000)
    return body + zlib.crc32(body).to_bytes(4, "little")


def number_of(value):
    body = bytes(value[:-4])
    assert zlib.crc32(body).to_bytes(4, "little") == bytes(value[-4:]), "torn value"
    return int.from_bytes(body[:8], "little")


def write_for_ever(store, first, pipe):
    number = first
    while True:
        batch = [Write(key, value_of(number)) for key in KEYS[: 1 + number % len(KEYS)]]
        drive(store.write_many(batch))
        os.write(pipe, number.to_bytes(8, "little"))
        number += 1


def fork_writer(store, first):
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            write_for_ever(store, first, writing)
        finally:
            os._exit(1)
    os.close(writing)
    return child, reading


def read_report(reading):
    data = b""
    while len(data) < 8:
        part = os.read(reading, 8 - len(data))
        assert part, "the writer died by itself"
        data += part
    return int.from_bytes(data, "little")


def remove_stale_locks(path):
    left = [os.path.join(root, name) for root, _, names in os.walk(path) for name in names if name.endswith(".__lock")]
    for name in left:
        os.unlink(name)
    return len(left)


def round_(store, mode, number, chance):
    child, reading = fork_writer(store, number)
    reports = [read_report(reading) for _ in range(chance.randrange(1, 12))]
    os.kill(child, signal.SIGKILL)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    while True:  # what was answered before the kill counts too
        late = os.read(reading, 8)
        if len(late) < 8:
            break
        reports.append(int.from_bytes(late, "little"))
    os.close(reading)
    for position, (key, result) in enumerate(
        zip(KEYS, drive(store.read_many([Read(key) for key in KEYS])), strict=True)
    ):
        answered = [report for report in reports if report % len(KEYS) >= position]
        if answered:
            assert number_of(result.value) >= answered[-1], f"{key} lost an answered write"
        elif result.state == "value":
            number_of(result.value)
    stale = remove_stale_locks(store.path) if mode != "os" else 0
    drive(store.write_many([Write(key, value_of(reports[-1] + 2)) for key in KEYS]))
    return reports[-1] + 3, stale


def main(path, mode, sync, rounds, seed):
    chance = random.Random(seed)
    store = KvPrefix(LocalDriver(Protocol(mode, 5.0, sync == "sync")), f"{path}/")
    number = 1
    for _ in range(int(rounds)):
        number, _ = round_(store, mode, number, chance)
    remaining = remove_stale_locks(path)
    assert remaining == 0, f"{remaining} lock files left after a write to every key"
    print("survived", rounds)


if __name__ == "__main__":
    main(*sys.argv[1:])
