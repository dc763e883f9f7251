"""OCDBT and hostile structures: every field of manifests and nodes damaged, with lengths and checksums repaired."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("ocdbt_fuzz.py")
PART = 50_000
DATABASES = 0.1  # the share of executions that go through a whole database


def fuzz(executions, seed, limit_s):
    """Run the program in a process of its own, whose memory is limited, and check what it reports.

    The program ends at the first thing that is not an error of fsstore, and limits the time of each execution.
    """
    command = [sys.executable, str(PROGRAM), str(executions), str(seed), str(DATABASES)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    report = json.loads(done.stdout)
    assert report["turns"] >= min(report["fields"], executions // 3), "not every field had its turn"
    assert report["passed"] + report["refused"] == executions
    for outcome in ("structure passed", "structure refused", "database passed", "database refused"):
        assert report[outcome] > executions * DATABASES / 20, outcome
    assert report["grown_mib"] < 200


def test_damaged_structures():
    """Twenty thousand damaged structures end in an answer or an error of fsstore, in bounded memory and time."""
    fuzz(20_000, seed=1, limit_s=280)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("part", range(20))
def test_damaged_structures_at_length(part):
    """The same a million times."""
    fuzz(PART, seed=1000 + part, limit_s=1800)
