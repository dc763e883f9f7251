"""Jobs that are killed at any moment continue to the same bytes, and leave nothing over."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

LOOP = Path(__file__).with_name("job_kill_loop.py")


def killed(kills: int, timeout: int) -> int:
    """Return how many jobs were killed while they were under way."""
    done = subprocess.run([sys.executable, str(LOOP), str(kills), "0"], capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, done.stderr
    return sum(int(line.split()[-4]) for line in done.stdout.splitlines())


def test_jobs_of_each_kind_survive_a_kill():
    """One kill of each kind of job, at a random moment."""
    assert killed(8, 250) >= 1


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_jobs_survive_a_hundred_kills():
    """A hundred kills over all kinds of jobs."""
    assert killed(160, 3500) >= 100  # some jobs end before they are killed, more of them on a busy machine
