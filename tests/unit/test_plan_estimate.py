"""What a plan may cost: requests, bytes, hours and money, from rates that a caller can replace."""

from __future__ import annotations

import pytest

from fsstore.job.estimate import Estimate, Rates


def estimate(workers=10, **rates):
    """Return the estimate of a copy of 7 TB in a million chunks."""
    return Estimate(10**6, 10**6, 7 * 10**12, 7 * 10**12, workers, Rates.of(rates))


def test_hours_are_those_of_the_workers_or_of_the_store():
    """Twice the workers take half the time, until the store answers no more requests a second."""
    assert estimate(10).hours == pytest.approx(7e12 / 70e6 / 10 / 3600)
    assert estimate(20).hours == pytest.approx(estimate(10).hours / 2)
    assert estimate(100_000).hours == pytest.approx(10**6 / 3500 / 3600)


def test_money_is_of_requests_traffic_and_workers():
    """Each rate is given by the caller, and counts by itself."""
    free = {"per_1000_reads": 0, "per_1000_writes": 0, "per_worker_hour": 0}
    assert estimate(**free).money == 0
    assert estimate(**free | {"per_1000_reads": 0.5}).money == pytest.approx(500)
    assert estimate(**free | {"per_1000_writes": 2}).money == pytest.approx(2000)
    assert estimate(**free | {"per_gigabyte": 0.09}).money == pytest.approx(630)
    assert estimate(**free | {"per_worker_hour": 3}).money == pytest.approx(3 * 7e12 / 70e6 / 3600)


def test_an_estimate_says_what_it_assumes():
    """The text has the figures and each rate, and JSON has them too."""
    text = str(estimate(2, currency="EUR", worker_bytes_per_s=5e6))
    assert "1,000,000 reads, 1,000,000 writes, 7.0 TB read, 7.0 TB written" in text
    assert all(part in text for part in ("of 2 workers", "EUR", "5.0 MB/s", "5500 reads", "3500 writes", "0.0004"))
    found = estimate(2).to_json()
    assert found["hours"] * 2 == pytest.approx(found["worker_hours"])
    assert found["rates"]["per_1000_writes"] == 0.005


def test_the_rest_costs_its_share():
    """Half of the work is half of everything."""
    whole, half = estimate(), estimate().scaled(0.5)
    assert (half.reads, half.bytes_written) == (whole.reads // 2, whole.bytes_written // 2)
    assert half.money == pytest.approx(whole.money / 2)
    assert estimate().scaled(0.0).money == 0


@pytest.mark.parametrize(
    ("rates", "match"),
    [
        ({"per_hour": 1}, "has no rate 'per_hour'; there are currency, "),
        ({"per_gigabyte": -1}, "not negative"), ({"per_gigabyte": float("nan")}, "not negative"),
        ({"writes_per_s": 0}, "nothing would ever end"),
    ],
)  # fmt: skip
def test_wrong_rates_are_told(rates, match):
    """Names that there are not, and numbers that say nothing."""
    with pytest.raises(ValueError, match=match):
        estimate(**rates)
    with pytest.raises(ValueError, match="one worker or more, not 0"):
        estimate(0)
