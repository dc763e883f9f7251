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


def counted(programs: int, first: int, timeout: int, *bucket: str) -> dict[str, int]:
    """Run programs; return how often each thing was met."""
    done = subprocess.run(
        [sys.executable, str(CHECKER), str(programs), str(first), *bucket],
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return {name: int(count) for name, count in (line.rsplit(": ", 1) for line in done.stdout.splitlines())}


def check(counts: dict[str, int], programs: int) -> None:
    """Fail unless the programs met everything that they are for."""
    assert counts["programs"] == programs
    assert all(counts[name] >= programs // 8 for name in STEPS), counts
    assert counts["killed"] >= programs // 6, counts
    assert counts["read beside"] >= programs // 6, counts
    assert counts["writers at once"] >= programs // 2, counts
    places = ("directory", "bucket", "memory", "zip", "database")
    assert all(counts[name] >= programs // 20 for name in places), counts


@pytest.mark.timeout(600)
def test_datasets_are_right_after_every_step():
    """A hundred programs, half of them in another process at the same time."""
    with ThreadPoolExecutor(2) as processes:
        begun = [processes.submit(counted, 50, first, 580) for first in (0, 50)]
        counts: dict[str, int] = {}
        for each in begun:
            for name, count in each.result().items():
                counts[name] = counts.get(name, 0) + count
    check(counts, 100)


@pytest.mark.timeout(300)
def test_datasets_in_a_bucket_of_moto_are_right(moto_bucket, s3_credentials):
    """Five programs on S3 as moto speaks it."""
    endpoint, bucket = moto_bucket
    assert counted(5, 2000, 280, endpoint, bucket)["programs"] == 5


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("first", range(10_000, 20_000, 500))
def test_ten_thousand_programs_are_right(first: int):
    """Ten thousand others, five hundred a call, so that all processors have their share."""
    check(counted(500, first, 3500), 500)
