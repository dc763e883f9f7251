"""When a failed request is tried again: exponential pauses with jitter, until the tries or the time run out.

Only `UnavailableError` is tried again, until the deadline.  A refused connection is tried three times in all, quickly,
because waiting seldom helps.  The logger `fsstore.kvstore` reports the first retry of an operation as a warning, so
that a server that is down does not look like silence, and later retries as information.

`Attempts` remembers that a request may have been carried out although its answer was lost: then a write must not
simply be sent again (see `lost_answer`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self, TypeVar

from fsstore.context.resource_kinds import REQUEST_DEADLINE, REQUEST_RETRIES, duration
from fsstore.errors import OutcomeUnknownError, StoreError, UnavailableError
from fsstore.kvstore.contract.driver import NO_VALUE, UNKNOWN, Stamp, Write, now
from fsstore.kvstore.tuning import CLOCKS_DIFFER_S, REFUSED_PAUSES_S
from fsstore.redaction import redact
from fsstore.runtime import fork, observer
from fsstore.runtime.fork import OfProcess

T = TypeVar("T")
_log = logging.getLogger("fsstore.kvstore")


@dataclass(frozen=True, slots=True)
class Retry:
    """How long to go on.

    `deadline_s` is when the last try may begin, `idle_s` how long a server may stay silent within one.
    """

    max_retries: int = 32
    initial_delay_s: float = 0.1
    max_delay_s: float = 32.0
    deadline_s: float = 10.0
    idle_s: float = 10.0

    def pauses(self) -> Iterator[float]:
        """Return the pauses before each further try; the deadline counts from this call, not from the first pause."""
        return self._pauses(time.monotonic())

    def _pauses(self, begun: float) -> Iterator[float]:
        for number in range(self.max_retries):
            full = min(self.max_delay_s, self.initial_delay_s * 2.0 ** min(number, 40))
            pause = random.uniform(full / 2, full)
            if time.monotonic() + pause - begun > self.deadline_s:
                return
            yield pause


def retry_from(resources: Mapping[str, Any], name: str) -> Retry:
    """Return the policy of a `*_request_retries` resource; members left out are its defaults."""
    config = resources.get(name)
    if not isinstance(config, Mapping):
        return Retry()
    full = {**REQUEST_RETRIES, "deadline": REQUEST_DEADLINE, **config}
    deadline_s = duration(full["deadline"])
    return Retry(
        max_retries=full["max_retries"],
        initial_delay_s=duration(full["initial_delay"]),
        max_delay_s=duration(full["max_delay"]),
        deadline_s=deadline_s,
        idle_s=min(deadline_s, 30.0),
    )


class Attempts:
    """The state of one operation under a policy, for callers that sleep in their own way.

    `ambiguous` says that an earlier try failed after its request may have been carried out.  `told` hears of each
    failure that may pass.
    """

    def __init__(self, policy: Retry, told: Callable[[UnavailableError], object] = bool) -> None:
        self._pauses, self._told = policy.pauses(), told
        self._quick = iter(REFUSED_PAUSES_S)
        self._logged = self.ambiguous = False
        self._tries = 0

    def pause_after(self, error: UnavailableError) -> float:
        """Return how long to wait before the next try; where there is none, raise `error` with the number of tries."""
        self._tries += 1
        self._told(error)
        self.ambiguous |= not error.refused
        pause = next(self._pauses, None)
        if error.refused:
            quick = next(self._quick, None)
            pause = None if pause is None or quick is None else min(pause, quick)
        if pause is None:
            raise error.but(f"after {self._tries} tries") if self._tries > 1 else error
        why = redact(str(error)).partition("\n")[0]
        observer.retried(pause, why)
        _log.log(logging.INFO if self._logged else logging.WARNING, "Trying again in %.2g s: %s", pause, why)
        self._logged = True
        return pause


async def persist(
    policy: Retry, call: Callable[[], Awaitable[T]], told: Callable[[UnavailableError], object] = bool
) -> T:
    """Return the result of `call()`, called again while it raises `UnavailableError` and the policy allows."""
    try:
        return await call()
    except UnavailableError as error:
        failed = error
    attempts = Attempts(policy, told)
    while True:
        await asyncio.sleep(attempts.pause_after(failed))
        try:
            return await call()
        except UnavailableError as error:
            failed = error


def persist_blocking(policy: Retry, call: Callable[[], T]) -> T:
    """Return what `persist` does, on a thread that may wait."""
    attempts = Attempts(policy)
    while True:
        try:
            return call()
        except UnavailableError as error:
            pause = attempts.pause_after(error)
        time.sleep(pause)


# Writes whose answer was lost.


MARK = "fsstorewrite"  # Azure takes names of letters and digits only


class Standing(NamedTuple):
    """An object as it stands: its generation, the mark of its write if it has one, and when it was modified."""

    generation: bytes
    mark: str | None
    modified: float


class _Writes:
    """The writes of this process: how many were begun, and those under way by their numbers."""

    def __init__(self) -> None:
        self.name = os.urandom(8).hex()
        self.begun = 0
        self.under_way: dict[int, TrackedWrite] = {}


_writes: OfProcess[_Writes] = OfProcess(_Writes)
_lock = fork.lock()


class TrackedWrite:
    """A write with a mark of its own, as a context from before its first request until its end.

    `place` is what errors call its key.
    """

    def __init__(self, write: Write, place: str) -> None:
        self._write, self._place, self._all = write, place, _writes.now
        self._deletes = write.value is None
        self._deleted = False  # by another write of this process, at the same time

    def __enter__(self) -> Self:
        with _lock:
            under_way = self._all.under_way
            for other in under_way.values():
                if other._place == self._place:
                    other._deleted |= self._deletes
                    self._deleted |= other._deletes
            self._others = frozenset(under_way)  # any other of a lower number has ended
            self._number = self._all.begun = self._all.begun + 1
            under_way[self._number] = self
        self._begun = time.time()
        return self

    def __exit__(self, *_: Any) -> None:
        with _lock:
            self._all.under_way.pop(self._number, None)

    @property
    def mark(self) -> str:
        """The mark of the object that the write makes."""
        return f"{self._all.name}-{self._number}"

    def after_loss(self, found: Standing | None) -> Stamp | None:
        """Return the stamp of a write that has nothing left to do after its answer was lost; None to send it again.

        `found` is what stands under the key, None for no object.
        """
        wanted = self._write.if_equal
        if found is None:
            if self._deletes:
                return Stamp(NO_VALUE, now())
            if self._deleted or wanted not in (UNKNOWN, NO_VALUE):
                raise outcome_unknown(self._place)
            return None
        if found.mark == self.mark:
            return Stamp(found.generation, now())
        if wanted == found.generation:
            return None
        if not self._older(found):
            raise outcome_unknown(self._place)
        return None if wanted == UNKNOWN else Stamp(UNKNOWN, now())

    def settled(self, found: Standing | None) -> Stamp:
        """Return the stamp of a write that is not sent again, or raise that nobody knows it."""
        stamp = self.after_loss(found)
        if stamp is None:
            raise outcome_unknown(self._place)
        return stamp

    def _older(self, found: Standing) -> bool:
        """Return whether an object was certainly written before this write began."""
        name, _, number = (found.mark or "").partition("-")
        if name == self._all.name and number.isdecimal():
            return int(number) < self._number and int(number) not in self._others
        return found.modified + CLOCKS_DIFFER_S <= self._begun


def outcome_unknown(place: str, cause: StoreError | None = None) -> OutcomeUnknownError:
    """Return the error of a write at `place` whose answer was lost."""
    made = OutcomeUnknownError(
        f"Error writing {place}: the answer to the write was lost, and it cannot be told whether it was carried out,"
        " since others write there too; read the key to see what it holds"
    )
    made.__cause__ = cause
    return made
