"""Mutated bytes in every parser, called directly: errors of fsstore only, within a time and a memory (parser_targets)."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
import traceback
import warnings
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import coverage_fuzz
from parser_targets import Parser, parsers

sys.path.pop(0)

from fsstore.errors import StoreError

PARSERS = parsers()
FEW, MESSAGES = 1000, 300  # ecCodes takes most of the time
MANY, MANY_MESSAGES = 50_000, 15_000
MOST_S, MOST_BYTES, AT_ONCE = 10.0, 32 << 20, 250
MOST_OF_ECCODES = 1 << 30  # it loads tables for each centre, and computes as many points as a message claims


def run(parser: Parser, data: bytes) -> str:
    """Return how it ended: anything but an error of fsstore passes on."""
    try:
        parser.parse(data)
    except StoreError:
        return "refused"
    return "parsed"


def found_in(name: str, count: int, seed: int) -> tuple[list[str], int]:
    """Return what should not have come of mutated files, and how many of them were taken."""
    parser, draw = PARSERS[name], random.Random(f"{name} {seed}")
    findings, taken = [], 0
    for _ in range(0, count, AT_ONCE):
        before = coverage_fuzz.memory_begun()
        for _ in range(min(AT_ONCE, count)):
            data = coverage_fuzz.mutated(draw, b"\0" + draw.choice(parser.seeds))[1:]
            began = time.process_time()
            try:
                taken += run(parser, data) == "parsed"
            except Exception as error:  # noqa: BLE001  # what is looked for
                where = traceback.extract_tb(error.__traceback__)[-1]
                findings.append(f"{type(error).__name__} {where.filename}:{where.lineno}: {error} {data.hex()}"[:20000])
            if time.process_time() - began > MOST_S:
                findings.append(f"slow: {data.hex()}")
        more = coverage_fuzz.memory("VmHWM") - before
        if more > (MOST_OF_ECCODES if name == "grib" else MOST_BYTES):
            findings.append(f"{more >> 20} MiB in {AT_ONCE} files of seed {seed}")
    return findings, taken


@pytest.mark.parametrize("name", PARSERS)
def test_files_that_are_whole_are_parsed(name):
    """Each parser takes the files that it begins with, else nothing behind their first check would be reached."""
    assert [run(PARSERS[name], data) for data in PARSERS[name].seeds] == ["parsed"] * len(PARSERS[name].seeds)


def apart(name: str, count: int, seed: int) -> tuple[list[str], int]:
    """Return what a process of its own finds; where an assertion of ecCodes ends it, another goes on behind that."""
    findings, done = [], 0
    while done < count:
        command = [sys.executable, __file__, name, str(count - done), f"{seed + done}"]
        ended = subprocess.run(command, capture_output=True, text=True, check=False, errors="replace")
        lines = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]
        findings += [each for line in lines for each in line["findings"]]
        done += sum(line["done"] for line in lines)
        if ended.returncode:
            is_known = ended.returncode == -signal.SIGABRT and "ecCodes assertion failed" in ended.stderr
            assert is_known, ended.stderr[-3000:]
            done += 1  # that of the assertion
    return findings, done


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [name for name in PARSERS if name != "grib"])
def test_mutated_files(name):
    """A thousand mutated files of each parser give structures or errors of fsstore, and little memory."""
    findings, taken = found_in(name, FEW, 0)
    assert not findings
    assert 0 < taken < FEW or name == "sizes of pictures"


def test_mutated_messages():
    """Some hundred GRIB messages do, in a process that ecCodes may end."""
    findings, done = apart("grib", MESSAGES, 0)
    assert not findings
    assert done >= MESSAGES


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", PARSERS)
def test_many_mutated_files(name):
    """The same at length, in a process of its own."""
    count = MANY_MESSAGES if name == "grib" else MANY
    findings, done = apart(name, count, 1)
    assert not findings
    assert done >= count


def main(name: str, count: int, seed: int) -> None:
    """Take mutated files, and print what is found after every batch."""
    warnings.simplefilter("ignore")
    for first in range(0, count, AT_ONCE):
        size = min(AT_ONCE, count - first)
        print(json.dumps({"findings": found_in(name, size, seed + first)[0], "done": size}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
