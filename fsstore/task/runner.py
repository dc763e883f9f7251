"""Running tasks on an executor: a bounded number under way, failures tried again, finished ones noted.

Any `concurrent.futures.Executor` will do; without one, tasks run on threads of this process.  Tasks are plain functions
of picklable arguments, and doing one twice does no harm.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, TypeAlias

from fsstore.errors import StoreError
from fsstore.runtime import execution
from fsstore.task.progress import Reporter

__all__ = ["Task", "run_tasks", "width_of"]

_AHEAD = 2  # tasks a worker that are handed over before it has finished the one before
_THREADS = 2  # tasks under way in this process: one reads while the other writes
_MOST = 4096  # tasks under way on an executor that does not say how many workers it has


@dataclass(frozen=True, slots=True)
class Task:
    """A piece of work: a number that is the same in every run of the job, a function, and its arguments."""

    number: int
    work: Callable[..., int]
    arguments: tuple[Any, ...]


Finished: TypeAlias = Callable[[Task], Awaitable[None]]


def width_of(executor: Executor | None) -> int:
    """Return how many tasks are under way at once."""
    if executor is None:
        return _THREADS
    workers = getattr(executor, "_max_workers", None)  # what ThreadPoolExecutor and ProcessPoolExecutor keep
    return min(_MOST, _AHEAD * int(workers)) if workers else 64


async def run_tasks(
    tasks: Iterator[Task],
    executor: Executor | None,
    reporter: Reporter,
    finished: Finished,
    *,
    attempts: int = 3,
) -> None:
    """Run all tasks; the first failure that stays ends the run, after those under way have ended."""
    room = asyncio.Semaphore(width_of(executor))
    running: set[asyncio.Task[None]] = set()
    failures: list[BaseException] = []

    async def one(task: Task) -> None:
        try:
            nbytes = await _attempted(task, executor, reporter, attempts)
            await finished(task)
            reporter.done(nbytes)
        except Exception as error:  # noqa: BLE001  # raised below, once the others have ended
            failures.append(error)
        finally:
            room.release()

    try:
        for task in tasks:
            await room.acquire()
            if failures:
                break
            begun = asyncio.ensure_future(one(task))
            running.add(begun)
            begun.add_done_callback(running.discard)
    finally:
        if running:
            await asyncio.gather(*running, return_exceptions=True)
    if failures:
        raise failures[0]


async def _attempted(task: Task, executor: Executor | None, reporter: Reporter, attempts: int) -> int:
    """Return what a task answers; a failure of a worker or a store is tried again."""
    for attempt in range(attempts):
        try:
            if executor is None:
                return await execution.offload(task.work, *task.arguments)
            return int(await asyncio.wrap_future(executor.submit(task.work, *task.arguments)))
        except (ArithmeticError, LookupError, TypeError):
            raise  # a mistake, which happens again
        except Exception as error:
            final = isinstance(error, ValueError) and not isinstance(error, StoreError)
            if final or attempt == attempts - 1:
                raise
            reporter.retried()
    raise AssertionError  # the last attempt returns or raises
