"""A bucket is measured through our own client, and the profile is one that the simulation of jobs takes."""

from __future__ import annotations

import json

import pytest

import fsstore as ts
from benchmarks.distributions import Distribution, Profile
from benchmarks.measure_bucket import measure
from benchmarks.simulate_jobs import PROFILES, simulate


def test_a_bucket_is_measured(moto_bucket, s3_credentials, tmp_path):
    """Every number that the simulation asks for is measured, nothing is left in the bucket, and the file can be used."""
    endpoint, bucket = moto_bucket
    context = ts.Context()
    spec = {"driver": "s3", "bucket": bucket, "endpoint": endpoint, "aws_region": "us-east-1", "path": "measured/"}
    store = ts.KvStore.open(spec, context=context).result()
    found = Profile("a bucket of moto", measure(store, context, 8, 100_000))
    assert store.list().result() == []
    assert all(each.kind == "measured" for each in found.numbers.values())
    assert 0 < found["get_first_byte_s"].at(0.5) < found["get_first_byte_s"].at(1.0) < 10
    assert found["failing_requests"].at(0.5) == 0
    found.save(tmp_path / "bucket.json")
    read = Profile.load(tmp_path / "bucket.json")
    assert read == found
    assert 0 < simulate(20e9, 4, store=read).efficiency <= 1


@pytest.mark.parametrize("name", ["s3.json", "worker.json"])
def test_every_number_says_where_it_comes_from(name):
    """Numbers of the profiles in this folder are measured, published or assumed, and name their source."""
    found = Profile.load(PROFILES / name)
    for each in found.numbers.values():
        assert each.kind in ("measured", "published", "assumed")
        assert len(each.source) > 10
        assert list(each.shares) == sorted(each.shares)
        assert list(each.values) == sorted(each.values)


def test_numbers_without_a_source_are_refused(tmp_path):
    """A profile of somebody who does not say where a number comes from is not taken."""
    number = {"quantiles": {"0.5": 1}, "kind": "guessed", "source": "nobody"}
    (tmp_path / "a.json").write_text(json.dumps({"what": "a", "numbers": {"get_first_byte_s": number}}))
    with pytest.raises(ValueError, match="get_first_byte_s says its `kind`"):
        Profile.load(tmp_path / "a.json")


def test_values_are_drawn_between_quantiles():
    """Half of what is drawn lies above the median, and nothing beyond what is known."""
    import numpy as np

    known = Distribution.of(range(101), "numbers")
    drawn = known.draw(np.random.default_rng(0), 10_000)
    assert abs(np.median(drawn) - 50) < 2
    assert 0 <= drawn.min() < drawn.max() <= 100
