"""Random programs of datasets end with every element right, whatever is killed or happens at once."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("dask")
CHECKER = Path(__file__).with_name("dataset_checker.py")
STEPS = ("append", "overlap", "region", "regions", "over", "replace")


def counted(programs: int, first: int, steps: int, timeout: int, *bucket: str) -> dict[str, int]:
    """Run programs of some steps at most; return how often each thing was met."""
    done = subprocess.run(
        [sys.executable, str(CHECKER), str(programs), str(first), str(steps), *bucket],
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return {name: int(count) for name, count in (line.rsplit(": ", 1) for line in done.stdout.splitlines())}


def check(counts: dict[str, int], programs: int) -> None:
    """Fail unless the programs met everything that they are for."""
    assert counts["programs"] == programs
    steps = sum(counts[name] for name in STEPS)
    assert steps >= programs
    assert all(counts[name] >= steps // 28 for name in STEPS), counts
    assert counts["killed"] >= steps // 21, counts
    assert counts["read beside"] >= steps // 30, counts
    assert counts["writers at once"] >= steps // 7, counts
    assert counts["read by others"] >= steps // 50, counts
    places = ("directory", "bucket", "memory", "zip", "database")
    assert all(counts[name] >= programs // 20 for name in places), counts


@pytest.mark.timeout(600)
def test_datasets_are_right_after_every_step():
    """Three hundred short programs, half of them in another process at the same time."""
    with ThreadPoolExecutor(2) as processes:
        begun = [processes.submit(counted, 150, first, 2, 580) for first in (0, 150)]
        counts: dict[str, int] = {}
        for each in begun:
            for name, count in each.result().items():
                counts[name] = counts.get(name, 0) + count
    check(counts, 300)


@pytest.mark.timeout(300)
def test_datasets_in_a_bucket_of_moto_are_right(moto_bucket, s3_credentials):
    """Five programs on S3 as moto speaks it."""
    endpoint, bucket = moto_bucket
    assert counted(5, 2000, 2, 280, endpoint, bucket)["programs"] == 5


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("first", range(10_000, 20_000, 500))
def test_ten_thousand_programs_are_right(first: int):
    """Ten thousand others, five hundred a call, so that all processors have their share."""
    check(counted(500, first, 5, 3500), 500)
