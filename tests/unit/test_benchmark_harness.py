"""The benchmark harness measures what it says and hides no failure."""

import time

import numpy as np
import pytest

from benchmarks import cost_fit, harness, history
from benchmarks.space import watched
from benchmarks.space.cell import draw
from benchmarks.workloads_read import BYTES, ZSTD


def outcome(contenders, rounds=3, seconds=0.001):
    """Measure contenders without preparation."""
    work = harness.Workload("work", lambda folder: contenders)
    return harness.measure(work, rounds=rounds, seconds=seconds)


def test_contenders_take_turns():
    """Each round runs every contender once, and each comes first in turn."""
    order = []
    contenders = {name: (lambda name=name: order.append(name)) for name in ("fsstore", "b", "c")}
    outcome(contenders)
    assert order[3:12] == ["fsstore", "b", "c", "b", "c", "fsstore", "c", "fsstore", "b"]


def test_short_work_is_measured_often():
    """What takes no time gets many rounds, what takes the whole time three."""
    assert len(outcome({"fsstore": int}, rounds=5, seconds=60).times["fsstore"]) == 400
    slow = outcome({"fsstore": lambda: time.sleep(0.002)}, rounds=5)
    assert len(slow.times["fsstore"]) == 3


def test_who_is_far_behind_takes_part_in_three_rounds():
    """The time is left to those that are compared; ours stays whatever it takes."""
    now = [0]

    def takes(ticks):
        def contender():
            now[0] += ticks

        return contender

    contenders = {"fsstore": takes(50), "best": takes(1), "near": takes(3), "far": takes(4)}
    work = harness.Workload("work", lambda _: contenders)
    found = harness.measure(work, rounds=9, seconds=60, clock=lambda: now[0]).times
    rounds = {name: len(times) for name, times in found.items()}
    assert rounds == {"fsstore": 400, "best": 400, "near": 400, "far": 3}
    assert found["fsstore"][0] == 50


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


def test_costs_are_fitted():
    """Times that follow the model give its numbers; a cost that would be negative is none."""
    chunks = np.array([1.0, 8.0, 64.0, 8.0, 1.0, 512.0])
    megabytes = np.array([0.1, 0.1, 0.6, 7.0, 30.0, 30.0])
    found = cost_fit.fit(chunks, megabytes, 1e-4 + 2e-5 * chunks + 3e-4 * megabytes)
    np.testing.assert_allclose(found, (1e-4, 2e-5, 3e-4, 0), atol=1e-9)
    found = cost_fit.fit(chunks, megabytes, 1e-3 + 3e-4 * megabytes - 1e-7 * chunks)
    assert found.chunk == 0
    assert found.misses < 0.05


def test_reads_are_measured(monkeypatch):
    """Whole chunks and sub-chunks of shards are read, and counted right."""
    monkeypatch.setattr(cost_fit, "GRIDS", [(16, 2)])
    monkeypatch.setattr(cost_fit, "SHARDS", [(32, 2)])
    for in_shards, side in ((False, 32), (True, 64)):
        ((chunks, megabytes, seconds),) = cost_fit.measure([BYTES, ZSTD], in_shards=in_shards, budget_s=0)
        assert (chunks, megabytes) == (8, side**3 * 2 / 1e6)
        assert seconds > 0


def test_calls_in_a_row_are_one_turn():
    """What a call leaves to be done is part of its library's own time; the mean of a turn is noted."""
    calls = []

    def contender(name):
        return lambda: calls.append(name)

    work = harness.Workload("w", lambda _: {"fsstore": contender("a"), "peer": contender("b")}, in_a_row=3)
    ticks = iter(range(0, 10_000, 6))
    outcome = harness.measure(work, rounds=3, seconds=0, clock=lambda: next(ticks))
    assert "".join(calls[2:14]) == "aaabbbbbbaaa"
    assert set(outcome.times["fsstore"]) == {2.0}


def test_a_cell_that_hangs_is_told():
    """It is ended after the limit, and another process measures the next one."""
    with watched.watched_run(watched.Terms(rounds=3, seconds=0.01, clock="cpu", limit=0.01)) as run:
        for _ in range(2):
            found = run.measure(draw(950_000))
            assert found.ratio is None
            assert found.outcome.problems == ["no result within 0.01 seconds"]


def test_a_cell_is_measured_in_a_process_of_its_own(tmp_path, monkeypatch):
    """Times come back, and no file of it stays."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    terms = watched.Terms(rounds=3, seconds=0.01, clock="cpu", limit=60)
    with watched.watched_run(terms) as run:
        found = run.measure(draw(950_000))
    assert {"fsstore", "tensorstore"} <= set(found.outcome.times)
    assert not found.outcome.problems
    assert not list(tmp_path.iterdir())


def test_a_run_is_kept(tmp_path):
    """A record has the commit, the machine and the medians in milliseconds, and the page has its ratios."""
    outcome = harness.Outcome("read", None, {"fsstore": [0.002, 0.001, 0.003], "zarr": [0.004], "zarrs": [0.008]})
    alone = harness.Outcome("write", None, {"fsstore": [0.001]})
    for _ in range(2):
        history.append([outcome, alone], tmp_path / "history.jsonl")
    kept = history.records(tmp_path / "history.jsonl")
    assert kept[0]["ms"] == {"read": {"fsstore": 2.0, "zarr": 4.0, "zarrs": 8.0}, "write": {"fsstore": 1.0}}
    assert kept[0].keys() == {"commit", "date", "machine", "python", "ms"}
    assert history.page(kept).endswith("| read | 0.50 | 0.50 |\n| write | – | – |\n")


def test_the_page_is_that_of_the_records():
    """docs/growth.md is what the kept runs give."""
    assert history.PAGE.read_text() == history.page(history.records())
