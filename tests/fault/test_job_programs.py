"""Random programs of jobs, faults, kills and repeats end with the right data, or an error and the old data."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from job_faults import FAULTS, KILLS

CHECKER = Path(__file__).with_name("job_checker.py")


def counted(programs: int, first: int, timeout: int) -> dict[str, int]:
    """Run programs; return how often each thing was met."""
    done = subprocess.run(
        [sys.executable, str(CHECKER), str(programs), str(first)], capture_output=True, text=True, timeout=timeout
    )
    assert done.returncode == 0, done.stdout or done.stderr
    counts = dict(line.rsplit(": ", 1) for line in done.stdout.splitlines())
    return {name: int(count) for name, count in counts.items()}


def check(programs: int, counts: dict[str, int]) -> None:
    """Fail unless the programs met every fault, and most ended with the right data."""
    assert counts["programs"] == programs
    assert counts["right data"] >= 0.8 * programs, counts
    assert counts["faults of buckets"] >= programs // 10, counts
    for name in FAULTS:
        assert counts[f"fault {name}"] >= programs // 100, counts
    for name in KILLS:
        assert counts[f"fault {name}"] >= programs // 20, counts


@pytest.mark.timeout(900)
def test_programs_end_with_the_right_data_or_an_error():
    """Two hundred programs."""
    check(200, counted(200, 0, 880))


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_many_programs_end_with_the_right_data_or_an_error():
    """Two thousand others."""
    check(2000, counted(2000, 1000, 3500))
