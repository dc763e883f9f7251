"""Copies that an object store makes by itself, inside one bucket, for a request each.

Their bytes never come here: a terabyte of chunks is copied at the speed of requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fsstore.kvstore.contract.ability import TakesValues
from fsstore.kvstore.contract.driver import NO_VALUE, UNKNOWN, Features, ReadResult, now
from fsstore.kvstore.engine.contract import located, offload_whole
from fsstore.kvstore.engine.fault import is_missing
from fsstore.kvstore.engine.retry import Retry, persist_blocking
from fsstore.kvstore.engine.turns import Turns, each_by_threads

__all__ = ["CopiesObjects"]


class CopiesObjects(TakesValues):
    """An engine over obstore, with what `TakesValues` promises."""

    __slots__ = ()
    retry: Retry
    shown: str
    features: Features
    turns: Turns
    _writer: Any

    def takes_from(self, other: object) -> bool:
        """Return whether `other` is this bucket, reached with these credentials."""
        return self is other and self.features.writable

    async def take_values(
        self, other: object, pairs: Sequence[tuple[str, str]], *, unseen: bool = False
    ) -> list[ReadResult]:
        """Have the storage copy objects, one request each."""

        return await each_by_threads(self._take, pairs, self.turns, offload=offload_whole)

    def _take(self, pair: tuple[str, str]) -> ReadResult:
        import obstore

        def copy() -> ReadResult:
            try:
                obstore.copy(self._writer(0), pair[0], pair[1])
            except Exception as error:  # noqa: BLE001  # the boundary: every foreign error is translated here
                if is_missing(error):
                    return ReadResult("missing", b"", NO_VALUE, now())
                failure = located(error, "copying", self.shown + pair[0])
            else:
                return ReadResult("value", b"", UNKNOWN, now())
            raise failure

        return persist_blocking(self.retry, copy)
