"""Changes that several writers make at once are tried again until no other writer comes between."""

from __future__ import annotations

import pytest

from fsstore.errors import AbortedError, DataLossError
from fsstore.runtime import execution
from fsstore.runtime.together import ChangedError, until_settled, until_unchanged


def run(coroutine):
    """Return the result of a coroutine that never waits."""
    return execution.start(coroutine, waits=False).result()


def test_the_answer_is_that_of_the_first_attempt_that_nobody_disturbed():
    """Attempts end with the first one between whose reading and writing no other writer came."""
    stored = [3]
    others = iter([10, 20])

    async def add_one():
        found = stored[0]
        stored[0] = next(others, found)
        if stored[0] != found:
            raise ChangedError
        stored[0] = found + 1
        return found + 1

    assert run(until_unchanged(add_one, lambda: "the number")) == 21
    assert stored == [21]


def test_an_attempt_may_answer_none():
    """None is an answer like any other."""

    async def nothing():
        return None

    assert run(until_unchanged(nothing, lambda: "it")) is None


def test_each_attempt_is_made_at_what_the_one_before_left():
    """What has been settled is not attempted again."""
    asked = []

    async def settle_one(left):
        asked.append(left)
        return left[1:]

    run(until_settled(settle_one, ["a", "b", "c"], str))
    assert asked == [["a", "b", "c"], ["b", "c"], ["c"]]


@pytest.mark.parametrize(("reads", "most"), [(True, 4), (False, 9)])
def test_attempts_end_with_an_error_that_names_what_is_left(tune, reads, most):
    """Readers and writers make so many attempts, and then fail with the name of what was not settled."""
    tune("runtime", READ_ATTEMPTS=4, WRITE_ATTEMPTS=9, MOMENT_S=0.0)
    made = []

    async def never(left):
        made.append(left)
        return left

    with pytest.raises(AbortedError, match="chunk 7 was changed by other writers at every attempt"):
        run(until_settled(never, 7, lambda left: f"chunk {left}", reads=reads))
    assert len(made) == most


def test_other_errors_are_not_tried_again():
    """An attempt that fails for another reason fails once."""
    made = []

    async def damaged():
        made.append(1)
        raise DataLossError("broken")

    with pytest.raises(DataLossError):
        run(until_unchanged(damaged, lambda: "it"))
    assert len(made) == 1


def test_pauses_are_no_longer_than_the_attempt_before(monkeypatch):
    """The first two attempts follow each other at once; later pauses do not grow, so no writer is left behind."""
    clock, pauses = [0.0], []

    async def pause(seconds):
        pauses.append(seconds)

    monkeypatch.setattr(execution, "pause", pause)
    monkeypatch.setattr("fsstore.runtime.together.time.monotonic", lambda: clock[0])
    monkeypatch.setattr("fsstore.runtime.together.random.uniform", lambda low, high: high)

    async def slow(left):
        clock[0] += [0.03, 0.05, 0.2][left % 3]
        return left - 1

    run(until_settled(slow, 6, str))
    assert pauses == pytest.approx([0.1, 0.05, 0.03, 0.1])
