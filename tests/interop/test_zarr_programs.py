"""Random programs over zarr v2 and v3 arrays: fsstore does what TensorStore does, and each reads the other's files.

zarr-python reads the files of both too, and they what it writes.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("zarr_programs.py")


def run(first, count):
    """Work through seeds in a process of its own; a crash of TensorStore costs the seed and no more."""
    problems, tallies, end, crashes = [], [], first + count, 0
    while first < end:
        done = subprocess.run(
            [sys.executable, str(PROGRAM), str(first), str(end - first)],
            capture_output=True,
            text=True,
            check=False,
            timeout=3000,
        )
        lines = done.stdout.splitlines()
        problems += [json.loads(line) for line in lines if line.startswith('{"seed"')]
        tallies += [json.loads(line) for line in lines if line.startswith('{"done"')]
        if done.returncode == 0:
            break
        assert done.returncode < 0, done.stderr[-2000:]
        seeds = [line for line in lines if line.startswith("seed ")]
        first = int(seeds[-1].split()[1]) + 1
        crashes += 1
    assert crashes <= count // 100, "TensorStore crashes too often to compare with"
    refused = sum(tally["done"]["refused"] for tally in tallies)
    assert refused <= count // 20, "what both refuse compares little"
    for verb, share in (("read", 2), ("written", 4)):
        for tally in tallies:
            assert tally["done"][f"{verb} by zarr-python"] >= tally["done"]["agreed"] // share
    return problems


def test_programs_agree():
    """Creation, metadata, reads, writes, resizes, files and reading the other's files agree on 150 random programs."""
    assert run(0, 150) == []


@pytest.mark.long
def test_many_programs_agree():
    """The same on 5,000 programs."""
    assert run(1000, 5000) == []
