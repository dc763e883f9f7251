"""Checkpoints of orbax: saved and restored through fsstore, and exchanged with those through tensorstore."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("orbax.checkpoint", reason="orbax is not installed: `make test-training` has it")

HERE = Path(__file__).parent


def job(*words, script="orbax_job.py", **environment):
    """Run a job in a process of its own, and return what it says."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", HERE / script, *map(str, words)],
        env={**os.environ, "JAX_PLATFORMS": "cpu", **environment}, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.strip()


def test_checkpoints_are_exchanged(tmp_path):
    """What is saved through either is restored through both: three steps of which two are kept."""
    assert job("ours", "save", tmp_path / "ours") == "restored 7"
    assert job("theirs", "restore", tmp_path / "ours") == "restored 7"
    assert job("theirs", "save", tmp_path / "theirs") == "restored 7"
    assert job("ours", "restore", tmp_path / "theirs") == "restored 7"


def test_arrays_in_a_bucket(moto_bucket):
    """Arrays are saved to S3 and restored, with the endpoint and the credentials of the environment."""
    endpoint, bucket = moto_bucket
    environment = {
        "AWS_ENDPOINT_URL": endpoint, "AWS_ALLOW_HTTP": "true", "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1",
    }  # fmt: skip
    place = f"s3://{bucket}/checkpoints"
    assert job(place, script="orbax_bucket_job.py", **environment) == "restored 3"
