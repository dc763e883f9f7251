"""Where few threads may be started, or none: slower, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "few_threads.py"


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is one of Linux")
@pytest.mark.parametrize("count", range(5))
def test_few_threads(tmp_path, count):
    """Reads, writes, commits and resizes end and are right, with no more threads than there may be."""
    command = [sys.executable, "-W", "error", SCRIPT, str(count), tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)  # noqa: S603  # our own script
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[1]) <= count
