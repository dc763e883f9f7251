"""What an executor answers: the answer of a worker, its mistake, or a trip of the executor itself."""

from __future__ import annotations

import asyncio
import multiprocessing
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor

import pytest

from fsstore.errors import UnavailableError
from fsstore.task.progress import reporter_of
from fsstore.task.runner import Task, answered, run_tasks


class _Tripping(ThreadPoolExecutor):
    """Loses some answers as Dask's executor does, when a worker dies just after it has answered."""

    def __init__(self, lost):
        super().__init__(1)
        self.lost = lost

    def submit(self, /, *call, **kwargs):
        answer = super().submit(*call, **kwargs)
        if not self.lost:
            return answer
        self.lost -= 1
        answer.result()
        tripped = Future()
        tripped.set_exception(TypeError("cannot unpack non-iterable object"))
        return tripped


def _mistaken(calls):
    calls.append(1)
    return {}["missing"]


def _far_mistaken():
    return {}["missing"]


def _answered(executor, work, *arguments):
    return asyncio.run(answered(executor, work, *arguments))


def _run(task, executor, noted):
    asyncio.run(run_tasks(iter([task]), executor, reporter_of(None, "", 1, 0), noted))


def test_a_trip_of_the_executor_is_no_mistake():
    """A `TypeError` that no work has raised is a failure that may pass, and says whose it is."""
    with _Tripping(1) as executor:
        with pytest.raises(
            UnavailableError, match=r"gave no answer of its worker \(TypeError: cannot unpack"
        ):
            _answered(executor, len, [1])
        assert _answered(executor, len, [1]) == 1


def test_a_task_whose_answer_is_lost_is_done_again():
    """Its answer is noted once."""
    noted = []
    with _Tripping(1) as executor:
        _run(Task([0], len, ([1, 2],)), executor, lambda _, answer: noted.append(answer))
    assert noted == [2]


def test_a_mistake_of_the_work_is_not_tried_again():
    """It is raised as it is, after one call."""
    calls = []
    with ThreadPoolExecutor(1) as executor, pytest.raises(KeyError, match="missing") as raised:
        _run(Task([0], _mistaken, (calls,)), executor, lambda *_: None)
    assert len(calls) == 1
    assert not hasattr(raised.value, "__notes__")


def test_a_mistake_on_another_process_says_where_it_was():
    """Pickles of exceptions have no traceback; a note has it."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as executor, pytest.raises(KeyError) as raised:
        _answered(executor, _far_mistaken)
    assert "in _far_mistaken" in raised.value.__notes__[0]
