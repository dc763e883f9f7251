"""Running tasks on an executor: a bounded number under way, failures tried again, finished ones noted.

Any `concurrent.futures.Executor` will do; without one, tasks run on threads of this process.  Doing a task twice does
no harm, but a task is never begun a second time while the first may still run: a straggler that ends late could
otherwise write over what a user has changed since.  A worker gives up a task that takes far longer than others, and
then it is handed out again.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import random
import sys
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor
from dataclasses import dataclass, replace
from html import escape
from importlib.util import find_spec
from typing import Any, TypeAlias
from uuid import uuid4

from fsstore.errors import StoreError, UnavailableError
from fsstore.redaction import plain
from fsstore.runtime import execution, fork
from fsstore.runtime.tuning import (
    AT_ONCE,
    FEWER,
    MORE,
    PACE_MEMORY,
    PROGRESS_S,
    QUEUED,
    SLOW,
    TASK_PAUSE_S,
    TASK_S,
    TASK_THREADS,
    TASKS_AHEAD,
    TRIES,
)

# How progress is shown to people: by tqdm if it is installed, as a bar in a notebook, or as a line of text.


def display(what: str, total_bytes: int) -> Callable[[Any], Any]:
    """Return what shows the progress of an operation here."""
    if find_spec("tqdm") is not None:
        return _Tqdm(plain(what), total_bytes)
    if "IPython" in sys.modules and sys.modules["IPython"].get_ipython() is not None:
        return _Notebook()
    return _printed


class _Tqdm:
    """A bar of tqdm, which chooses between a terminal and a widget by itself."""

    def __init__(self, what: str, total_bytes: int) -> None:
        self._what, self._total = what, total_bytes
        self._bar: Any = None

    def __call__(self, state: Any) -> None:
        if self._bar is None:
            self._bar = self._made(state)
        done = state.nbytes + state.resumed_bytes if self._total else state.tasks + state.resumed
        if state.ended and self._total and state.share < 1 and state.total == state.tasks + state.resumed:
            self._bar.total = done  # the total was an estimate
        self._bar.n = done
        if state.retries:
            self._bar.set_postfix(retries=state.retries, refresh=False)
        self._bar.refresh()
        if state.ended:
            self._bar.close()

    def _made(self, state: Any) -> Any:
        from tqdm.auto import tqdm

        if not self._total:
            return tqdm(desc=self._what, total=state.total or None, unit="task")
        before = state.resumed_bytes
        return tqdm(desc=self._what, total=self._total, initial=before, unit="B", unit_scale=True)


class _Notebook:
    """A bar of the browser, replaced as it grows."""

    def __init__(self) -> None:
        self._handle: Any = None

    def __call__(self, state: Any) -> None:
        from IPython.display import HTML, display

        shown = HTML(f"<progress value='{state.share:.4f}' max='1'></progress> {escape(str(state))}")
        if self._handle is None:
            self._handle = display(shown, display_id=True)
        else:
            self._handle.update(shown)


def _printed(state: Any) -> None:
    is_terminal = sys.stderr.isatty()
    end = "\n" if state.ended or not is_terminal else ""
    sys.stderr.write(f"{chr(13) if is_terminal else ''}{plain(state)}{end}")
    sys.stderr.flush()


# Progress of a long operation: how much is done, how fast, and how long the rest takes.


@dataclass(frozen=True, slots=True)
class Progress:
    """How far an operation is.  `tasks` of `total` are done, which are `nbytes` of about `total_bytes`.

    The work of an earlier run of the same job is counted in `resumed`, and does not make the rate better.  `ended` is
    true the last time that it is told.
    """

    what: str
    tasks: int = 0
    total: int = 0
    nbytes: int = 0
    total_bytes: int = 0
    retries: int = 0
    elapsed_s: float = 0.0
    resumed: int = 0
    resumed_bytes: int = 0
    ended: bool = False

    @property
    def rate(self) -> float:
        """Bytes a second so far."""
        return self.nbytes / self.elapsed_s if self.elapsed_s > 0 else 0.0

    @property
    def share(self) -> float:
        """How much is done, between 0 and 1."""
        if self.total_bytes:
            return min(1.0, (self.nbytes + self.resumed_bytes) / self.total_bytes)
        return min(1.0, (self.tasks + self.resumed) / self.total) if self.total else float(self.ended)

    @property
    def remaining_s(self) -> float | None:
        """How long the rest takes at the rate so far; None before anything was done."""
        share = self.share
        before = self.resumed_bytes / self.total_bytes if self.total_bytes else self.resumed / max(1, self.total)
        return self.elapsed_s * (1 - share) / (share - before) if share > before else None

    def __str__(self) -> str:
        """Return one line of text."""
        left = self.remaining_s
        parts = [f"{bytes_text(int(self.rate))}/s"] if self.total_bytes else []
        parts += [] if left is None or self.ended else [f"{left:.0f} s left"]
        parts += [f"{self.retries} retries"] if self.retries else []
        done = f"{self.tasks + self.resumed} of {self.total}"
        if self.total_bytes:
            done = f"{bytes_text(self.nbytes + self.resumed_bytes)} of {bytes_text(self.total_bytes)}"
        return ", ".join([f"{self.what}: {self.share:4.0%}  {done}", *parts])


Told: TypeAlias = Callable[[Progress], Any]


class Reporter:
    """Counts what workers finish, and tells one callback, at most twice a second and at the end."""

    def __init__(self, what: str, total: int, total_bytes: int, told: Told | None) -> None:
        self._told, self._lock = told, fork.lock()
        self._began = time.monotonic()
        self._last = float("-inf")
        self.state = Progress(what, total=total, total_bytes=total_bytes)

    def done(self, nbytes: int, *, tasks: int = 1) -> None:
        """Count finished tasks."""
        with self._lock:
            elapsed = time.monotonic() - self._began
            self.state = replace(
                self.state, tasks=self.state.tasks + tasks, nbytes=self.state.nbytes + nbytes, elapsed_s=elapsed
            )
            state = self.state
            due = elapsed - self._last >= PROGRESS_S or state.tasks + state.resumed == state.total
            if due:
                self._last = elapsed
        if due and self._told is not None:
            self._told(state)

    def resumed(self, tasks: int, nbytes: int) -> None:
        """Count what an earlier run has done; it says nothing about how fast this one is."""
        with self._lock:
            state = self.state
            self.state = replace(state, resumed=state.resumed + tasks, resumed_bytes=state.resumed_bytes + nbytes)

    def retried(self) -> None:
        """Count a task that is done again."""
        with self._lock:
            self.state = replace(self.state, retries=self.state.retries + 1)

    def ended(self) -> None:
        """Tell that nothing more will be done, whether everything was or not."""
        with self._lock:
            self.state = replace(self.state, elapsed_s=time.monotonic() - self._began, ended=True)
        if self._told is not None:
            self._told(self.state)


def reporter_of(progress: Any, what: str, total: int, total_bytes: int) -> Reporter:
    """Return the reporter for what a caller gave as `progress`.

    True shows a bar of tqdm if that is installed, a bar in notebooks, and otherwise a line on standard error; a
    function is called with a `Progress`, and a `Callback` of fsspec is told bytes.  None and False tell nobody.
    """
    told: Told | None = None
    if progress is True:
        told = display(what, total_bytes)
    elif hasattr(progress, "absolute_update"):
        progress.set_size(total_bytes)

        def told(state: Progress) -> None:
            progress.absolute_update(state.nbytes + state.resumed_bytes)

    elif callable(progress):
        told = progress
    elif progress:
        raise TypeError(f"progress is True, a function or a Callback of fsspec, not {type(progress).__name__}")
    return Reporter(what, total, total_bytes, told)


def bytes_text(count: int) -> str:
    """Return a number of bytes as people write it: `1.5 GB`."""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(size) < 1000 or unit == "TB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    raise AssertionError  # the last unit takes everything


# How many pieces of work make a task: as many as take a few seconds, by how long those before them took.
#
# Neither what a store moves in a second nor what a worker decodes is known beforehand, so nothing is
# believed of them. The first tasks are a piece each; workers say how long they took, and from then on a
# task is as many pieces as fill its time. A run ends evenly: no task takes more than its share of what is
# left.


class Pace:
    """The pace of workers that do `pieces` of about one size."""

    def __init__(self, pieces: int, workers: int) -> None:
        self._left, self._workers = pieces, max(1, workers)
        self._done = self._seconds = 0.0

    def length(self) -> int:
        """Return of how many pieces the next task is made."""
        if not self._done:
            return 1
        fair = -(-self._left // self._workers)
        fills = TASK_S * self._done / self._seconds if self._seconds > 0 else fair
        return max(1, min(fair, int(fills)))

    def taken(self, pieces: int) -> None:
        """Count pieces that were handed out."""
        self._left -= pieces

    def limit_s(self, pieces: int, times: int) -> float:
        """Return when a worker gives up a task of so many pieces, since such tasks take far less.

        There is none while nothing is known, and for a task that was given up several `times`.
        """
        if self._done < 1 or times >= TRIES - 1:
            return math.inf
        each = max(TASK_S, self._seconds / self._done * pieces)
        return float(each * SLOW ** (times + 1))

    def took(self, pieces: int, seconds: float) -> None:
        """Learn how long a task took; what was learnt earlier counts less and less, since a store may change."""
        self._done = PACE_MEMORY * self._done + pieces
        self._seconds = PACE_MEMORY * self._seconds + seconds


MISTAKES = (ArithmeticError, LookupError, TypeError)
"""Errors that happen again when the same is tried again."""


class TaskSlowError(UnavailableError):
    """A worker has given up a task that took far longer than others do; nothing of it is being written any more."""


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
    return max(1, min(QUEUED, TASKS_AHEAD * workers)) if workers else AT_ONCE


def workers_of(executor: Executor | None) -> int:
    """Return how many workers there are; of an executor that does not say so, how many it may have."""
    return TASK_THREADS if executor is None else _known_workers(executor) or AT_ONCE


def _known_workers(executor: Executor) -> int:
    workers = getattr(executor, "_max_workers", None)  # what ThreadPoolExecutor and ProcessPoolExecutor keep
    client = getattr(executor, "_client", None)  # of dask.distributed
    if workers is None and client is not None:
        workers = sum(client.nthreads().values())
    return int(workers or 0)


class Room:
    """Room for tasks under way: less once a store wants fewer requests, and more again as tasks end well.

    Tasks that were refused together make it smaller once.  Those beyond one for each of `workers` wait there and do not
    count for the store.
    """

    def __init__(self, most: int, workers: int) -> None:
        self._most, self._workers, self._inside = most, workers, 0
        self.width = float(most)
        self._slowed_at = -math.inf
        self._changed = asyncio.Event()

    async def enter(self) -> None:
        """Return when there is room, which is then taken."""
        while self._inside >= max(1, int(self.width)):
            self._changed.clear()
            await self._changed.wait()
        self._inside += 1

    def leave(self) -> None:
        """Give room back."""
        self._inside -= 1
        self._changed.set()

    def refused(self, begun: float, now: float) -> None:
        """Learn that a store wanted fewer requests than those of a task that was begun at some time."""
        if begun >= self._slowed_at:
            self.width = max(1.0, FEWER * min(self.width, self._workers))
            self._slowed_at = now

    def went_well(self) -> None:
        """Learn that a task has ended well."""
        if self.width < self._most:
            self.width += MORE
            if self.width >= self._workers:
                self.width = float(self._most)
            self._changed.set()


async def run_tasks(
    tasks: Iterator[Task] | AsyncIterator[Task],
    executor: Executor | None,
    reporter: Reporter,
    finished: Finished,
    *,
    most: int | None = None,
    ask: Ask | None = None,
) -> None:
    """Run all tasks; a failure that stays ends the run, after those under way have ended.

    Tasks are begun in their order, so of several failures the one of the first task is raised, whichever came first.

    At most `most` are under way at once, or as many as suit the executor, and fewer where a store wants fewer requests.
    An answer that is a number, or begins with one, counts as bytes, and a list of answers as all of theirs.
    A cancellation ends the run at once: what can be stopped is stopped, and what is not noted is done again later.
    """
    width = width_of(executor)
    room = Room(width if most is None else max(1, min(width, most)), workers_of(executor))
    running: set[asyncio.Task[None]] = set()
    failures: dict[int, BaseException] = {}
    asked = ask or _asking(executor)

    async def one(number: int, task: Task) -> None:
        try:
            await _done(task, asked, (reporter, room), finished)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  # raised below, once the others have ended
            failures[number] = error
        finally:
            room.leave()

    try:
        drawn = _drawn(tasks)
        for number in itertools.count():
            await room.enter()
            if failures or (task := await anext(drawn, None)) is None:
                break
            started = asyncio.ensure_future(one(number, task))
            running.add(started)
            started.add_done_callback(running.discard)
        await asyncio.gather(*running, return_exceptions=True)
    except BaseException:
        for other in list(running):
            other.cancel()
        if running:
            await asyncio.wait(running, timeout=PROGRESS_S)
        raise
    if failures:
        raise failures[min(failures)]


async def _done(task: Task, ask: Ask, seen: tuple[Reporter, Room], finished: Finished) -> None:
    """Return when a task is done and noted, in parts where its worker fails on the way."""
    left: Task | None = task
    reporter, room = seen
    while left is not None:
        answer = await _attempted(left, ask, reporter, room)
        room.went_well()
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


async def _attempted(task: Task, ask: Ask, reporter: Reporter, room: Room) -> Any:
    """Return what a task answers; a failure of a worker or a store is tried again.

    Failures by accident are tried more often where other tasks succeed meanwhile.  A task that was refused by a busy
    store is tried again when there is room for it.
    """
    before = reporter.state.tasks
    for attempt in itertools.count():
        begun, is_busy = asyncio.get_running_loop().time(), False
        try:
            return await ask(task)
        except (*MISTAKES, TaskCancelledError):
            raise
        except Exception as error:
            is_store = isinstance(error, StoreError)
            by_accident = not is_store or isinstance(error, UnavailableError)
            tries = TRIES * TRIES if by_accident and reporter.state.tasks > before else TRIES
            if (isinstance(error, ValueError) and not is_store) or attempt >= tries - 1:
                raise
            is_busy = isinstance(error, UnavailableError) and error.busy
        if is_busy:
            room.refused(begun, asyncio.get_running_loop().time())
            room.leave()
        await _pause(min(attempt, TRIES), reporter)
        if is_busy:
            await room.enter()
    raise AssertionError  # attempts return or raise


async def _pause(attempt: int, reporter: Reporter) -> None:
    """Count a failure and wait; spread, so that tasks that failed together do not come back together."""
    reporter.retried()
    await asyncio.sleep(TASK_PAUSE_S * 2**attempt * (0.5 + random.random()))
