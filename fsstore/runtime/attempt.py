"""Changes that several writers make at once: each is tried again until no other writer comes between.

Stores have no locks over several requests.  A value is read, changed, and written under the condition that it is still
the one that was read; several requests that read one value take it from one generation, or begin again.
`until_settled` and `until_unchanged` repeat such attempts.  Readers begin again at once, and give up soon.  Writers do
not give up, for whenever one of them fails another has succeeded; they pause at random, for as long as an attempt takes
and no longer: those who have just succeeded do not pause, and would leave no room to one who waits longer and longer.

In a `CommitQueue`, writers of one process wait while a commit runs, and go into the next one together.  The first
caller leads: it takes everything that waits and commits it.  When it is done it hands the lead to one of those who came
meanwhile.  So a hundred concurrent writes make two commits, and no caller works for others longer than for one round.
Callers wait on a thread event where coroutines never suspend, and on an asyncio future otherwise.

Ctrl-C may come between any two steps of a caller.  So what others wait for is one assignment, and leaving the queue,
which comes last, is done again if it was interrupted.
"""

from __future__ import annotations

import copy
import random
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, TypeVar

from fsstore.errors import AbortedError, FailedPreconditionError
from fsstore.runtime import execution, fork
from fsstore.runtime import future as futures
from fsstore.runtime.future import Future
from fsstore.runtime.together import Moment
from fsstore.runtime.tuning import MOMENT_S, READ_ATTEMPTS, WRITE_ATTEMPTS

L = TypeVar("L")
T = TypeVar("T")


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


R = TypeVar("R")
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
