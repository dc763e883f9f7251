"""The benchmark harness measures what it says and hides no failure."""

import numpy as np
import pytest

from benchmarks import harness


def outcome(contenders, rounds=3):
    """Measure contenders without preparation."""
    work = harness.Workload("work", lambda folder: contenders)
    return harness.measure(work, rounds=rounds, seconds=1)


def test_contenders_take_turns():
    """Each round runs every contender once, and each comes first in turn."""
    order = []
    contenders = {name: (lambda name=name: order.append(name)) for name in ("fsstore", "b", "c")}
    outcome(contenders)
    assert order[3:] == ["fsstore", "b", "c", "b", "c", "fsstore", "c", "fsstore", "b"]


def test_differing_results_are_not_timed():
    """A library whose result differs is reported, and takes no part."""
    found = outcome({"fsstore": lambda: np.arange(3), "other": lambda: np.arange(3) + 1})
    assert list(found.times) == ["fsstore"]
    assert found.problems == ["other and fsstore give different results"]


def test_failures_are_reported():
    """A library that raises is reported with its error."""
    found = outcome({"fsstore": lambda: 1 / 0, "other": lambda: 1})
    assert found.problems == ["fsstore failed: ZeroDivisionError: division by zero"]
    assert found.ratio is None
    assert "! work: fsstore failed" in harness.table([found])


def test_ratio_is_ours_over_the_best_peer():
    """The ratio compares medians with the fastest other library."""
    found = harness.Outcome("work", times={"fsstore": [2.0, 9.0, 2.0], "slow": [8.0], "fast": [1.0]})
    assert (found.best_peer, found.ratio) == ("fast", 2.0)


@pytest.mark.parametrize(
    ("left", "right", "equal"),
    [
        (np.array([1.0, np.nan]), np.array([1.0, np.nan]), True),
        (np.array([1], "i4"), np.array([1], "i8"), False),
        ([np.arange(2), 1], [np.arange(2), 1], True),
        ([np.arange(2)], [np.arange(3)], False),
        ("a", "a", True),
    ],
)
def test_results_are_compared_by_value_and_type(left, right, equal):
    """Arrays are equal if type, shape and elements are; containers if their elements are."""
    assert harness.same(left, right) is equal
