"""Random damage of stored values under whole stacks: the right data or an error of the library, quickly (stack_fuzz)."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("stack_fuzz.py")
ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="the memory of the process is read from /proc")


def fuzz(first, count):
    """Run executions in a process of limited memory; return what came of them."""
    command = [sys.executable, "-W", "error", str(PROGRAM), str(first), str(count)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


@ON_LINUX
def test_damaged_stacks():
    """Four hundred damaged arrays, bare and in containers."""
    outcomes = fuzz(0, 400)
    assert outcomes["refused"] > 100
    assert outcomes["passed"] > 20


@ON_LINUX
@pytest.mark.long
@pytest.mark.timeout(3600)
def test_many_damaged_stacks():
    """Sixty thousand."""
    fuzz(10_000, 60_000)
