"""Mutated files of every format, opened and read: errors of fsstore only, soon and within bounded memory (coverage_fuzz)."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import coverage_fuzz
from fuzz_targets import TARGETS

sys.path.pop(0)

ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="the memory of the process is read from /proc")
COUNT = 4000


@pytest.mark.parametrize("name", TARGETS)
def test_some_mutated_files(name, capfd):
    """A few mutations of each target give values or errors of fsstore; the files themselves can be used."""
    judge = coverage_fuzz.Judge(name, *coverage_fuzz.target(name))
    for data in judge.seeds:
        judge.run(data)
    assert not judge.outcomes["refused"]
    draw = random.Random(name)
    for _ in range(8):
        judge.run(coverage_fuzz.mutated(draw, draw.choice(judge.seeds)))
    lines = capfd.readouterr().out.splitlines()
    found = [json.loads(line) for line in lines if line.startswith("{")]
    assert not [each for each in found if each["finding"] not in ("slow", "memory")]  # measured alone, below


@ON_LINUX
@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", TARGETS)
def test_many_mutated_files(name, tmp_path):
    """The same at length in a process of its own, in time and memory too, led by coverage where atheris is installed."""
    command = [sys.executable, coverage_fuzz.__file__, name, str(COUNT), "1"]
    root = str(Path(coverage_fuzz.__file__).parents[2])
    environment = {**os.environ, "FUZZ_INPUT": str(tmp_path / "input"), "PYTHONPATH": root}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, errors="replace")
    last = (tmp_path / "input").read_bytes().hex()
    assert done.returncode == 0, f"{done.stderr[-3000:]}\nwith the input {last[:20000]}"
    *found, summary = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert not found
    assert summary["done"] >= COUNT
