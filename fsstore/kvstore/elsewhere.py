"""A store in the memory of another process: everything is refused, in words that say what to do instead.

Answering would be worse: as the store is not here, every key would be missing, an array made of fill values, and what
is written would be lost.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from fsstore.errors import FailedPreconditionError
from fsstore.kvstore.contract.ability import WritesAtOnce
from fsstore.kvstore.contract.driver import Entry, Features, Read, ReadResult, Stamp, Write
from fsstore.kvstore.contract.request import KeyRange
from fsstore.values.json_value import Json, quote

__all__ = ["ElsewhereDriver"]


@dataclass(frozen=True, slots=True)
class ElsewhereDriver(WritesAtOnce):
    """The store that a pickle was made of, named by its kind; `home` is the process that has it."""

    what: str
    home: str = ""
    members: Mapping[str, Json] | None = None
    id: ClassVar[str] = "memory"

    def _refusal(self) -> FailedPreconditionError:
        return FailedPreconditionError(
            f"{self.what} was pickled in another process, or is gone since, and its contents did not come along; keep"
            " what several processes share in a store that all of them reach, such as file:// or s3://"
        )

    async def read_many(self, reads: Sequence[Read]) -> list[ReadResult]:
        """Refuse."""
        raise self._refusal()

    async def write_many(self, writes: Sequence[Write]) -> list[Stamp]:
        """Refuse."""
        raise self._refusal()

    async def write_atomic(self, writes: Sequence[Write], **_: Any) -> list[str]:
        """Refuse."""
        raise self._refusal()

    async def delete_range(self, keys: KeyRange) -> None:
        """Refuse."""
        raise self._refusal()

    async def scan(self, keys: KeyRange) -> AsyncIterator[Sequence[Entry]]:
        """Refuse."""
        raise self._refusal()
        yield []

    def describe_key(self, key: str) -> str:
        """Return the key in quotes."""
        return quote(key)

    def spec(self) -> Mapping[str, Json]:
        """Return the members of the store."""
        return self.members or {}

    @property
    def features(self) -> Features:
        """The abilities of the store in its own process."""
        return Features(
            waits=False, create_only=True, conditional_write=True, atomic_transactions=True, sorted_scan=True
        )
