"""Writers wait here while a commit runs, and go into the next one together.

The first caller leads: it takes everything that waits and commits it.  When it is done it hands the lead to one of
those who came meanwhile.  So a hundred concurrent writes make two commits, and nobody works for others longer than
for one round.  Callers wait on a thread event where coroutines never suspend, and on an asyncio future otherwise.

Ctrl-C may come between any two steps of a caller.  So what others wait for is one assignment, and leaving the queue,
which comes last, is done again if it was interrupted.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from fsstore.errors import FailedPreconditionError
from fsstore.runtime import fork
from fsstore.runtime.together import Moment

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
