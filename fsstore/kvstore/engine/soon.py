"""Single reads that the thread which waits for them makes itself, while a server answers soon.

A step between threads costs about as much as a near server takes.  An answer that does not come within a moment, or
a failure that may pass, is left to the event loop, which asks again with all the time that there is.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial

from fsstore.errors import UnavailableError
from fsstore.kvstore.contract.driver import Read, ReadResult
from fsstore.kvstore.engine.retry import Retry
from fsstore.kvstore.engine.turns import Turns
from fsstore.kvstore.tuning import MOMENT_S, SOON_S
from fsstore.runtime import execution

__all__ = ["SoonReads"]


class SoonReads:
    """How soon a server answered last, and reads that are driven in its turns, without an event loop."""

    def __init__(self, retry: Retry, turns: Turns) -> None:
        self._retry, self._turns = retry, turns
        self._took_s = math.inf

    @property
    def expected(self) -> bool:
        """Whether the last answer came so soon that a moment is enough for the next."""
        return self._took_s < SOON_S

    def answered(self, began_s: float) -> None:
        """Hear of an answer to a request that began at a time of `time.monotonic`."""
        self._took_s = time.monotonic() - began_s

    def drive(self, reads: list[Read], ask: Callable[[Read], ReadResult]) -> list[ReadResult]:
        """Return the answer to a single read by `ask`, which says that it was `answered` or raises a `StoreError`.

        Raises `MayWait` for several reads, where no turn is free, and for what is left to the event loop.
        """
        if len(reads) > 1:
            raise execution.MayWait
        return [self._turns.drive(partial(self._ask, ask, reads[0]))]

    def _ask(self, ask: Callable[[Read], ReadResult], read: Read) -> ReadResult:
        began = time.monotonic()
        try:
            return ask(read)
        except UnavailableError as error:
            self._took_s = math.inf
            is_late = time.monotonic() - began >= MOMENT_S
            if not (is_late or self._retry.max_retries):
                raise
            self._turns.failed(error)
            raise execution.MayWait from error
        except Exception:
            self._took_s = math.inf
            raise
