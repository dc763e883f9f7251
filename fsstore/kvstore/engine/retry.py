"""When a failed request is tried again: exponential pauses with jitter, until the tries or the time run out.

Only `UnavailableError` is tried again.  A conditional write is special: when its reply is lost, the retry
finds the condition broken by the write itself.  `Attempts` remembers that a reply may have been lost, so
that the caller looks at the object before it reports a conflict: its metadata hold the `MARK` of the write that made
it.  The value would not tell, for another writer may have written the same.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from fsstore.context.resource_kinds import REQUEST_RETRIES, duration
from fsstore.errors import UnavailableError

__all__ = ["MARK", "Attempts", "Retry", "new_mark", "persist", "persist_blocking", "retry_from"]

T = TypeVar("T")
MARK = "fsstorewrite"  # Azure takes names of letters and digits only


@dataclass(frozen=True, slots=True)
class Retry:
    """How long to go on.  `idle_s` is how long a server may stay silent within one request."""

    max_retries: int = 32
    initial_delay_s: float = 0.1
    max_delay_s: float = 32.0
    deadline_s: float = 60.0
    idle_s: float = 30.0

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
    full = {**REQUEST_RETRIES, **config}
    return Retry(
        max_retries=full["max_retries"],
        initial_delay_s=duration(full["initial_delay"]),
        max_delay_s=duration(full["max_delay"]),
    )


def new_mark() -> str:
    """Return a mark that no other write has."""
    return os.urandom(8).hex()


class Attempts:
    """The state of one operation under a policy, for callers that sleep in their own way.

    `ambiguous` says that an earlier try failed after its request may have been carried out.
    """

    def __init__(self, policy: Retry) -> None:
        self._pauses = policy.pauses()
        self.ambiguous = False

    def pause_after(self, error: UnavailableError) -> float:
        """Return how long to wait before the next try, or raise `error` when there is none."""
        self.ambiguous = True
        pause = next(self._pauses, None)
        if pause is None:
            raise error
        return pause


async def persist(policy: Retry, call: Callable[[], Awaitable[T]]) -> T:
    """Return the result of `call()`, called again while it raises `UnavailableError` and the policy
    allows."""
    try:
        return await call()
    except UnavailableError as error:
        failed = error
    attempts = Attempts(policy)
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
