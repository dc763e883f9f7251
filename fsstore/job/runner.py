"""Running tasks on an executor: a bounded number under way, failures tried again, finished ones noted.

Any `concurrent.futures.Executor` will do; without one, tasks run on threads of this process.  Doing a task twice does
no harm, but a task is never begun a second time while the first may still run: a straggler that ends late could
otherwise write over what a user has changed since.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeAlias

from fsstore.errors import StoreError
from fsstore.job.order import Order
from fsstore.job.progress import Reporter
from fsstore.job.work import UNKNOWN_JOB, do, run_task

__all__ = ["Runner", "Task", "width_of"]

_AHEAD = 2  # tasks a worker that are handed over before it has finished the one before
_THREADS = 2  # tasks under way in this process: one reads while the other writes
_UNKNOWN_WIDTH = 64  # tasks under way on an executor that does not say how many workers it has
_MOST = 4096
_PATIENCE_S = 0.5  # for tasks that are stopped by Ctrl-C


@dataclass(frozen=True, slots=True)
class Task:
    """A piece of work: a number that is the same in every run of the job, and what the worker is told."""

    number: int
    kind: str
    payload: Any


Finished: TypeAlias = Callable[[Task, Any], Awaitable[None] | None]


def width_of(executor: Executor | None) -> int:
    """Return how many tasks are under way at once."""
    if executor is None:
        return _THREADS
    workers = getattr(executor, "_max_workers", None)  # what ThreadPoolExecutor and ProcessPoolExecutor keep
    client = getattr(executor, "_client", None)  # of dask.distributed
    if workers is None and client is not None:
        workers = sum(client.nthreads().values())
    return max(1, min(_MOST, _AHEAD * int(workers))) if workers else _UNKNOWN_WIDTH


@dataclass(slots=True)
class Runner:
    """Runs tasks of one job on one executor."""

    executor: Executor | None
    reporter: Reporter
    attempts: int = 3
    pause_s: float = 0.2
    """Before a task that failed is tried again; it doubles, and is spread so that many do not come back at once."""

    async def run(self, order: Order, tasks: AsyncIterator[Task], finished: Finished) -> None:
        """Run all tasks; the first failure that stays ends the run, after those under way have ended.

        A cancellation ends it at once: what can be stopped is stopped, and what is not noted is done again later.
        """
        room = asyncio.Semaphore(width_of(self.executor))
        running: set[asyncio.Task[None]] = set()
        failures: list[BaseException] = []
        begun: set[Any] = set()

        async def one(task: Task) -> None:
            try:
                answer = await self._attempted(order, task, begun)
                noting = finished(task, answer)
                if noting is not None:
                    await noting
                self.reporter.done(answer if isinstance(answer, int) else 0)
            except Exception as error:  # noqa: BLE001  # raised below, once the others have ended
                failures.append(error)
            finally:
                room.release()

        try:
            async for task in tasks:
                await room.acquire()
                if failures:
                    break
                started = asyncio.ensure_future(one(task))
                running.add(started)
                started.add_done_callback(running.discard)
            if running:
                await asyncio.gather(*running, return_exceptions=True)
        except asyncio.CancelledError:
            for future in list(begun):
                future.cancel()
            for other in list(running):
                other.cancel()
            if running:
                await asyncio.wait(running, timeout=_PATIENCE_S)
            raise
        if failures:
            raise failures[0]

    async def _attempted(self, order: Order, task: Task, begun: set[Any]) -> Any:
        """Return what a task answers; a failure of a worker or a store is tried again."""
        for attempt in range(self.attempts):
            try:
                return await self._asked(order, task, begun)
            except (ArithmeticError, LookupError, TypeError):
                raise  # a mistake, which happens again
            except Exception as error:
                final = isinstance(error, ValueError) and not isinstance(error, StoreError)
                if final or attempt == self.attempts - 1:
                    raise
                self.reporter.retried()
            await asyncio.sleep(self.pause_s * 2**attempt * (0.5 + random.random()))
        raise AssertionError  # the last attempt returns or raises

    async def _asked(self, order: Order, task: Task, begun: set[Any]) -> Any:
        if self.executor is None:
            return await do(order, task.kind, task.payload)
        told = order.name, task.kind, task.payload
        if isinstance(self.executor, ThreadPoolExecutor):
            return await asyncio.wrap_future(self.executor.submit(run_task, *told, order, begun))
        answer = await asyncio.wrap_future(self.executor.submit(run_task, *told, None))
        if answer == UNKNOWN_JOB:
            answer = await asyncio.wrap_future(self.executor.submit(run_task, *told, order))
        return answer
