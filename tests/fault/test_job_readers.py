"""Readers beside jobs that are killed and continued see the old or the new, and nothing between."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

LOOP = Path(__file__).with_name("job_reader_loop.py")


def seen(kills: int, timeout: int) -> tuple[int, int]:
    """Return how many jobs were killed while they were under way, and how often a reader looked."""
    done = subprocess.run([sys.executable, str(LOOP), str(kills), "0"], capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, done.stderr
    counts = [[int(text) for text in line.split(": ")[1:]] for line in done.stdout.splitlines()]
    assert len(counts) == 11
    assert all(reads for _, reads in counts)
    return sum(killed for killed, _ in counts), sum(reads for _, reads in counts)


def test_readers_see_the_old_or_the_new():
    """Two attempts to kill each kind of job that changes an array in one step, while a reader looks."""
    killed, reads = seen(2, 250)
    assert killed >= 1
    assert reads > 12


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_readers_see_the_old_or_the_new_through_many_kills():
    """Fifty attempts to kill each kind."""
    killed, _ = seen(50, 3500)
    assert killed >= 60
