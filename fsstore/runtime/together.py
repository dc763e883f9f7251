"""Work that several callers begin at a time: carried out together, or tried again until no other writer comes between.

Queues of work that is begun one by one differ in when they make what waits: when somebody asks for a result, when a
batch is submitted, when a job of the pool is free, when the commit before is over, at the next turn of an event loop.
The rest is here.  A batch that fails as a whole is made again item by item, so each item has its own error.  Futures
are told all at once.  Callers wait for a moment in the same way whether they may suspend or not.

Stores have no locks over several requests.  A value is read, changed, and written under the condition that it is still
the one that was read; several requests that read one value take it from one generation, or begin again.
`until_settled` and `until_unchanged` repeat such attempts.  Readers begin again at once, and give up soon.  Writers do
not give up, for whenever one of them fails another has succeeded; they pause at random, for as long as an attempt takes
and no longer: those who have just succeeded do not pause, and would leave no room to one who waits longer and longer.
"""

from __future__ import annotations

import asyncio
import copy
import random
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Mapping, Sequence
from time import monotonic
from typing import Any, Generic, TypeAlias, TypeVar

from fsstore.errors import AbortedError, FailedPreconditionError
from fsstore.runtime import execution, fork
from fsstore.runtime import future as futures
from fsstore.runtime.execution import must_not_wait
from fsstore.runtime.fork import OfThread
from fsstore.runtime.future import Flag, Future
from fsstore.runtime.tuning import ASKED_SOON_S, MOMENT_S, READ_ATTEMPTS, WRITE_ATTEMPTS

T = TypeVar("T")
R = TypeVar("R")
Outcome: TypeAlias = R | BaseException
"""A result, or the error in its place."""


async def outcomes(
    make: Callable[[Sequence[T]], Awaitable[Sequence[R]]], items: Sequence[T], caught: type[Exception] = Exception
) -> Sequence[Outcome[R]]:
    """Return the result of each item: of all made together or, if that fails, each alone with its own error.

    Making an item again must do no harm.  Where nothing suspends, they are made in their order.  Errors of other kinds
    than `caught` are raised.
    """
    try:
        return await make(items)
    except caught as error:
        if len(items) == 1:
            return [error]
    return await each_outcome(make, items, caught)


async def each_outcome(
    make: Callable[[Sequence[T]], Awaitable[Sequence[R]]], items: Sequence[T], caught: type[Exception] = Exception
) -> Sequence[Outcome[R]]:
    """Return the result of each item, or its error, each made alone."""
    alone = await execution.gather(outcomes(make, [item], caught) for item in items)
    return [outcome for (outcome,) in alone]


def tell(waiting: Sequence[Future[Any]], found: Sequence[Outcome[Any]]) -> None:
    """Give each future its result or its error; those that were done before stay as they are."""
    good = [not isinstance(outcome, BaseException) for outcome in found]
    if all(good):
        futures.resolve_all(waiting, found)
        return
    for future, outcome in zip(waiting, found, strict=True):
        if isinstance(outcome, BaseException):
            futures.fail(future, outcome)
        else:
            futures.resolve(future, outcome)


class Moment:
    """Something that happens once, for those who may suspend, on any event loop, and those who may not.

    It has happened by one assignment, and a waiter is listed before it looks: no Ctrl-C comes between.
    """

    __slots__ = ("_flag", "_waiting")

    def __init__(self) -> None:
        self._flag = Flag()
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []

    async def wait(self) -> None:
        """Return when it has happened."""
        if execution.must_not_wait():
            self._flag.wait()
            return
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._waiting.append((loop, future))
        if not self._flag.is_set():
            await future

    def come(self) -> None:
        """Say that it has happened."""
        self._flag.set()
        for loop, future in self._waiting:
            if not loop.is_closed():
                loop.call_soon_threadsafe(_finish, future)


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class _Habit:
    """The habit of a thread: when it began something last, and whether it asked for that result at once."""

    begun_s = 0.0
    at_once = False


_habit = OfThread(_Habit)


def asks_at_once() -> bool:
    """Return whether this thread, which begins something, asked at once for the result of what it began before."""
    now = _habit.now
    at_once, now.at_once, now.begun_s = now.at_once, False, monotonic()
    return at_once


def has_asked() -> None:
    """Hear that this thread asks for a result."""
    now = _habit.now
    now.at_once = monotonic() - now.begun_s < ASKED_SOON_S


def start_or_drive(make: Callable[[], Coroutine[Any, Any, T]]) -> Future[T]:
    """Begin a coroutine that may be driven without an event loop, or raises `MayWait` there before it changes anything.

    A thread that has asked at once for its results so far will drive it itself when it asks for this one: to wake the
    event loop, and be woken by it, costs more than a near server.  For all others it is begun on the loop.
    """
    makes = [make]  # taken by who begins it
    future: Future[T] = futures.pending(start=lambda: _begin(makes, future), here=lambda: _drive(makes, future))
    if not asks_at_once():
        future.force()
    return future


def _begin(makes: list[Callable[[], Coroutine[Any, Any, T]]], future: Future[T]) -> None:
    """Begin on the event loop what nobody has begun."""
    make = _taken(makes)
    if make is not None and not future.done():
        futures.follow(future, execution.start(make()))


def _drive(makes: list[Callable[[], Coroutine[Any, Any, T]]], future: Future[T]) -> None:
    """Make here what nobody has begun, unless that would wait."""
    has_asked()
    make = _taken(makes)
    if make is None or future.done():
        return
    try:
        futures.resolve(future, execution.drive(make()))
    except execution.MayWait:
        futures.follow(future, execution.start(make()))
    except Exception as error:  # noqa: BLE001  # the future carries it
        futures.fail(future, error)


def _taken(makes: list[R]) -> R | None:
    """Return what is to be made to the one thread that comes first, and None to all others."""
    try:
        return makes.pop()
    except IndexError:
        return None


# Callers that want the same thing for the first time, at the same time, share one read of it.

K = TypeVar("K", bound=Hashable)


class _UnderWay(Generic[T]):
    """A read under way, and those who wait for it."""

    def __init__(self) -> None:
        self.values: list[T] = []
        self.error: Exception | None = None
        self.over = Moment()
        self.thread = threading.get_ident() if must_not_wait() else 0


class FirstTouch(Generic[K, T]):
    """Reads by key, of which one is under way at most."""

    def __init__(self) -> None:
        self._lock = fork.lock()
        self._under_way: dict[K, _UnderWay[T]] = {}
        fork.tell_child(self)

    def after_fork(self) -> None:
        """Forget the reads of the parent's threads."""
        self._under_way = {}

    async def all(self, keys: Sequence[K], load: Callable[[Sequence[K]], Awaitable[Sequence[T]]]) -> Mapping[K, T]:
        """Return values by key: `load` reads those that nobody reads at the moment, together and in order."""
        found: dict[K, T] = {}
        left = list(dict.fromkeys(keys))
        while left:
            mine, others = self._claim(left)
            if mine:
                found.update(await self._load(list(mine), mine, load))
            for key, read in others.items():
                await read.over.wait()
                if read.error is not None:
                    raise copy.copy(read.error)
                if read.values:
                    found[key] = read.values[0]
            left = [key for key in left if key not in found]
        return found

    def _claim(self, keys: Sequence[K]) -> tuple[dict[K, _UnderWay[T]], dict[K, _UnderWay[T]]]:
        """Return the reads that are the caller's to make, and those under way."""
        mine: dict[K, _UnderWay[T]] = {}
        others: dict[K, _UnderWay[T]] = {}
        with self._lock:
            for key in keys:
                known = self._under_way.get(key)
                if known is None:
                    mine[key] = self._under_way[key] = _UnderWay()
                elif known.thread == threading.get_ident() and must_not_wait():
                    mine[key] = known  # a finalizer or signal handler: its own thread would wait for ever
                else:
                    others[key] = known
        return mine, others

    async def _load(
        self, keys: Sequence[K], mine: Mapping[K, _UnderWay[T]], load: Callable[[Sequence[K]], Awaitable[Sequence[T]]]
    ) -> dict[K, T]:
        try:
            values = dict(zip(keys, await load(keys), strict=True))
            for key, value in values.items():
                mine[key].values.append(value)
        except Exception as error:
            for read in mine.values():
                read.error = error
            raise
        finally:
            self._end(mine)
        return values

    def _end(self, mine: Mapping[K, _UnderWay[T]]) -> None:
        with self._lock:
            over = [key for key, read in mine.items() if self._under_way.get(key) is read]
            for key in over:
                del self._under_way[key]
        for read in mine.values():
            read.over.come()


L = TypeVar("L")


class ChangedError(Exception):
    """Another writer came between: what was read is not what is stored any more."""


async def until_settled(
    attempt: Callable[[L], Awaitable[L]], left: L, describe: Callable[[L], str], *, reads: bool = False
) -> None:
    """Make attempts at what the one before left, until nothing is left.

    `describe` names what is left for the error after the last attempt; `reads` says that nothing is written.
    """
    spent = 0.0
    for number in range(READ_ATTEMPTS if reads else WRITE_ATTEMPTS):
        if number > 1 and not reads:
            await execution.pause(random.uniform(0, min(MOMENT_S, spent)))
        begun = time.monotonic()
        left = await attempt(left)
        if not left:
            return
        spent = time.monotonic() - begun
    raise _changed(describe(left))


async def until_unchanged(
    attempt: Callable[[], Awaitable[T]],
    describe: Callable[[], str],
    *,
    changed: type[Exception] = ChangedError,
    reads: bool = False,
) -> T:
    """Return the answer of the first attempt that does not raise `changed`."""
    answers: list[T] = []

    async def once(_: bool) -> bool:
        try:
            answers.append(await attempt())
        except changed:
            return True
        return False

    await until_settled(once, True, lambda _: describe(), reads=reads)
    return answers[0]


def read_until_unchanged(
    begin: Callable[[], tuple[Future[T], Callable[[], Future[bool] | None]]],
    describe: Callable[[], str],
    attempts: int = READ_ATTEMPTS,
) -> Future[T]:
    """Begin a read, and begin it again if it turns out that something was changed meanwhile.

    `begin` returns the read, and a function that is called when it is done: it returns None if nothing was changed,
    else a future of whether nothing was.
    """
    read, ask = begin()

    def settled(answer: Future[bool]) -> Future[Any] | None:
        if futures.error_of(answer) is not None:
            return None
        if answer.result():
            return read
        if attempts == 1:
            return futures.failed(_changed(describe()))
        again = read_until_unchanged(begin, describe, attempts - 1)
        again.force()
        return again

    def checked() -> Future[Any] | None:
        answer: Future[Any] | None = ask()
        return None if answer is None else futures.unless(answer, lambda: settled(answer))

    return futures.unless(read, checked)


def _changed(described: str) -> AbortedError:
    return AbortedError(f"{described} was changed by other writers at every attempt; try again later")


_NESTED = (
    "A finalizer or a signal handler writes to the store that its own thread is committing to, which could not go on;"
    " have another thread write"
)


class _Outcome:
    """How a commit ended, for all who were in it."""

    error: Exception | None = None


class _Ticket(Generic[R]):
    """A request in the queue, and the moment for which its caller waits.

    The leader has `led` those whom the outcome answers, and leaves the lead to the `following` one.
    """

    def __init__(self, request: R) -> None:
        self.request = request
        self.chosen = self.gone = False
        self.outcome = _Outcome()
        self.led: Sequence[_Ticket[R]] = ()
        self.following: _Ticket[R] | None = None
        self.moment = Moment()  # when the request is answered, or chosen to lead


class CommitQueue(Generic[R]):
    """Runs `commit` over batches of requests, one batch at a time.

    Writers of one process wait while a commit runs, and go into the next one together.  The first caller leads: it
    takes everything that waits and commits it.  When it is done it hands the lead to one of those who came meanwhile.
    So a hundred concurrent writes make two commits, and no caller works for others longer than for one round.  Callers
    wait on a thread event where coroutines never suspend, and on an asyncio future otherwise.

    Ctrl-C may come between any two steps of a caller.  So what others wait for is one assignment, and leaving the
    queue, which comes last, is done again if it was interrupted.

    `again` is told of requests that go into another batch, because theirs was cancelled.
    """

    def __init__(
        self,
        commit: Callable[[Sequence[R]], Awaitable[None]],
        *,
        waits: bool,
        again: Callable[[R], None] = lambda _: None,
    ) -> None:
        self._commit = commit
        self._again = again
        self._waits = waits
        self._lock = fork.lock()
        self._waiting: list[_Ticket[R]] = []
        self._busy = False
        self._leader = 0
        fork.tell_child(self)

    def after_fork(self) -> None:
        """Forget those who wait and who leads: none of them is in a forked child."""
        self._waiting, self._busy, self._leader = [], False, 0

    async def submit(self, request: R) -> None:
        """Return when a commit has answered `request`; raise what the commit raised."""
        if self._leader == threading.get_ident() and not self._waits:
            raise FailedPreconditionError(_NESTED)
        ticket = _Ticket(request)
        try:
            with self._lock:
                self._waiting.append(ticket)
                ticket.chosen = not self._busy
                self._busy = True
            if not ticket.chosen:
                await ticket.moment.wait()
            if ticket.chosen:
                await self._lead(ticket)
                self._leave(ticket)
        except BaseException:
            self._leave(ticket)
            raise
        if ticket.outcome.error is not None:
            raise ticket.outcome.error if ticket.led else copy.copy(ticket.outcome.error)

    async def _lead(self, ticket: _Ticket[R]) -> None:
        batch: list[_Ticket[R]] = []
        try:
            with self._lock:
                batch, self._waiting = self._waiting, []
            for one in batch:
                one.outcome = ticket.outcome
            self._leader = threading.get_ident()
            if batch:  # a finalizer may have come between, and committed it with what it writes itself
                await self._commit([one.request for one in batch])
        except Exception as error:  # noqa: BLE001  # the outcome carries it
            ticket.outcome.error = error
        except BaseException:
            # the leader was cancelled: those of the others who were not try again
            with self._lock:
                left = [one for one in batch if one is not ticket and not one.gone]
                self._waiting[:0] = left
            for one in left:
                self._again(one.request)
            raise
        finally:
            self._leader = 0
        ticket.led = batch

    def _leave(self, ticket: _Ticket[R]) -> None:
        """Wake those who have their answer, and give the lead to the first who waits, if any."""
        with self._lock:
            ticket.gone = True
            if ticket in self._waiting:
                self._waiting.remove(ticket)
            if ticket.chosen:
                ticket.following = self._waiting[0] if self._waiting else None
                if ticket.following is None:
                    self._busy = False
                else:
                    ticket.following.chosen = True
                ticket.chosen = False
        for one in ticket.led:
            if one is not ticket:
                one.moment.come()
        if ticket.following is not None:
            ticket.following.moment.come()
