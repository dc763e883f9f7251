"""Running tasks on an executor: a bounded number under way, failures tried again, finished ones noted.

Any `concurrent.futures.Executor` will do; without one, tasks run on threads of this process.  Doing a task twice does
no harm, but a task is never begun a second time while the first may still run: a straggler that ends late could
otherwise write over what a user has changed since.
"""

from __future__ import annotations

import asyncio
import random
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor
from dataclasses import dataclass
from typing import Any, TypeAlias
from uuid import uuid4

from fsstore.errors import StoreError, UnavailableError
from fsstore.runtime import execution
from fsstore.task.progress import Reporter
from fsstore.task.tuning import (
    STOPPED_S,
    TASK_ATTEMPTS,
    TASK_PAUSE_S,
    TASK_THREADS,
    TASKS_AHEAD,
    TASKS_UNDER_WAY,
    UNKNOWN_WIDTH,
)

__all__ = [
    "MISTAKES",
    "Ask",
    "Finished",
    "Partly",
    "Task",
    "TaskCancelledError",
    "answered",
    "run_tasks",
    "width_of",
    "workers_of",
]

MISTAKES = (ArithmeticError, LookupError, TypeError)
"""Errors that happen again when the same is tried again."""


class TaskCancelledError(UnavailableError):
    """An executor has cancelled a call, at which a worker may still be."""


@dataclass(frozen=True, slots=True)
class Task:
    """Pieces of work that are done together: their numbers, a function, and its arguments.

    A piece has the same number in every run of the job.
    """

    numbers: Sequence[int]
    work: Any
    """A function, or what `Ask` knows the work by."""
    arguments: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Partly:
    """The answer of a worker that has done the first pieces of a task, and failed at the next one."""

    done: Task
    answer: Any
    rest: Task


Finished: TypeAlias = Callable[[Task, Any], Awaitable[None] | None]
"""Notes a task and its answer; the next task waits for it if it can be awaited."""

Ask: TypeAlias = Callable[[Task], Awaitable[Any]]
"""Hands a task to a worker and returns its answer; tasks that do not say otherwise are plain calls."""


def width_of(executor: Executor | None) -> int:
    """Return how many tasks are under way at once."""
    if executor is None:
        return TASK_THREADS
    workers = _known_workers(executor)
    return max(1, min(TASKS_UNDER_WAY, TASKS_AHEAD * workers)) if workers else UNKNOWN_WIDTH


def workers_of(executor: Executor | None) -> int:
    """Return how many workers there are; of an executor that does not say so, how many it may have."""
    return TASK_THREADS if executor is None else _known_workers(executor) or UNKNOWN_WIDTH


def _known_workers(executor: Executor) -> int:
    workers = getattr(executor, "_max_workers", None)  # what ThreadPoolExecutor and ProcessPoolExecutor keep
    client = getattr(executor, "_client", None)  # of dask.distributed
    if workers is None and client is not None:
        workers = sum(client.nthreads().values())
    return int(workers or 0)


async def run_tasks(
    tasks: Iterator[Task] | AsyncIterator[Task],
    executor: Executor | None,
    reporter: Reporter,
    finished: Finished,
    *,
    most: int | None = None,
    ask: Ask | None = None,
) -> None:
    """Run all tasks; the first failure that stays ends the run, after those under way have ended.

    At most `most` are under way at once, or as many as suit the executor; the next one is asked for when there is room
    for it.  An answer that is a number, or begins with one, counts as bytes, and a list of answers as all of theirs.
    A cancellation ends the run at once: what can be stopped is stopped, and what is not noted is done again later.
    """
    width = width_of(executor)
    room = asyncio.Semaphore(width if most is None else max(1, min(width, most)))
    running: set[asyncio.Task[None]] = set()
    failures: list[BaseException] = []
    asked = ask or _asking(executor)

    async def one(task: Task) -> None:
        try:
            await _done(task, asked, reporter, finished)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  # raised below, once the others have ended
            failures.append(error)
        finally:
            room.release()

    try:
        drawn = _drawn(tasks)
        while True:
            await room.acquire()
            task = None if failures else await anext(drawn, None)
            if task is None:
                break
            started = asyncio.ensure_future(one(task))
            running.add(started)
            started.add_done_callback(running.discard)
        await asyncio.gather(*running, return_exceptions=True)
    except BaseException:
        for other in list(running):
            other.cancel()
        if running:
            await asyncio.wait(running, timeout=STOPPED_S)
        raise
    if failures:
        raise failures[0]


async def _done(task: Task, ask: Ask, reporter: Reporter, finished: Finished) -> None:
    """Return when a task is done and noted, in parts where its worker fails on the way."""
    left: Task | None = task
    while left is not None:
        answer = await _attempted(left, ask, reporter)
        done, left = left, None
        if isinstance(answer, Partly):
            done, answer, left = answer.done, answer.answer, answer.rest
        if (noting := finished(done, answer)) is not None:
            await noting
        reporter.done(_bytes_of(answer), tasks=len(done.numbers))
        if left is not None:
            await _pause(0, reporter)


def _bytes_of(answer: Any) -> int:
    """Return how many bytes an answer says were moved: a number, or the first of several things."""
    if isinstance(answer, list):
        return sum(map(_bytes_of, answer))
    first = answer[0] if isinstance(answer, tuple) and answer else answer
    return first if isinstance(first, int) else 0


async def _drawn(tasks: Iterator[Task] | AsyncIterator[Task]) -> AsyncIterator[Task]:
    if isinstance(tasks, AsyncIterator):
        async for task in tasks:
            yield task
    else:
        for task in tasks:
            yield task


def _asking(executor: Executor | None) -> Ask:
    async def ask(task: Task) -> Any:
        if executor is None:
            return await execution.offload(task.work, *task.arguments)
        return await answered(executor, task.work, *task.arguments)

    return ask


async def answered(executor: Executor, work: Callable[..., Any], *arguments: Any) -> Any:
    """Return what an executor answers to a call, which is handed to it as another one than all before.

    Dask takes a call with equal arguments for one that it has made already: a second attempt would be answered with the
    failure of the first, and a task of another run with what the first run did.
    """
    try:
        submitted = executor.submit(attempt, uuid4().hex, work, *arguments)
    except BrokenExecutor:
        raise
    except RuntimeError as error:  # that it was shut down
        raise BrokenExecutor(f"The executor takes no more tasks: {error}") from error
    try:
        answer = await asyncio.wrap_future(submitted)
    except asyncio.CancelledError:
        if _is_being_cancelled():
            raise
        raise TaskCancelledError(
            "The executor has cancelled the task, as when its workers are restarted; call the same again to go on"
        ) from None
    except MISTAKES as error:
        why = f"{type(error).__name__}: {error}"
        raise UnavailableError(f"The executor gave no answer of its worker ({why})") from error
    if isinstance(answer, _Mistake):
        raise answer.told()
    return answer


def _is_being_cancelled() -> bool:
    current = asyncio.current_task()
    return current is not None and current.cancelling() > 0


def attempt(token: str, work: Callable[..., Any], *arguments: Any) -> Any:
    """Return what work answers, or the mistake that it raises; the token is another one each time.

    A mistake is returned, so that it is known from a trip of the executor: Dask's raises a `TypeError` if a worker is
    lost while its answer is fetched.
    """
    del token
    try:
        return work(*arguments)
    except MISTAKES as error:
        return _Mistake(error, "".join(traceback.format_exception(error)))


@dataclass(frozen=True, slots=True)
class _Mistake:
    """An error of a worker that would happen again."""

    error: Exception
    trace: str

    def told(self) -> Exception:
        """Return the error; one of another process has lost its traceback and gets it as a note."""
        if self.error.__traceback__ is None:
            self.error.add_note(f"On the worker:\n{self.trace}")
        return self.error


async def _attempted(task: Task, ask: Ask, reporter: Reporter) -> Any:
    """Return what a task answers; a failure of a worker or a store is tried again."""
    for attempt in range(TASK_ATTEMPTS):
        try:
            return await ask(task)
        except (*MISTAKES, TaskCancelledError):
            raise
        except Exception as error:
            final = isinstance(error, ValueError) and not isinstance(error, StoreError)
            if final or attempt == TASK_ATTEMPTS - 1:
                raise
        await _pause(attempt, reporter)
    raise AssertionError  # the last attempt returns or raises


async def _pause(attempt: int, reporter: Reporter) -> None:
    """Count a failure and wait; spread, so that tasks that failed together do not come back together."""
    reporter.retried()
    await asyncio.sleep(TASK_PAUSE_S * 2**attempt * (0.5 + random.random()))
