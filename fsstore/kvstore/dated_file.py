"""A file of a store that knows no versions: the date of its last change stands in for one.

SFTP, FTP and most filesystems of third parties know when a file was changed, and nothing else.  Adapters over such a
file (archives, scanned files) would have to read its structure anew for each access.  Here the date is the generation,
once it is so old that a later change shows another date, and it is asked for once a second at most, or when a reader
asks whether the file is still the same.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import ClassVar

from fsstore.kvstore.contract.ability import TellsModified, able
from fsstore.kvstore.contract.driver import UNKNOWN, Entry, KvPrefix, Read, ReadOnly, ReadResult, now
from fsstore.kvstore.contract.request import KeyRange
from fsstore.runtime.tuning import CLOCKS_DIFFER_S, TRUSTED_S
from fsstore.values.json_value import Json


async def dated(base: KvPrefix, asked: float) -> tuple[KvPrefix, bytes]:
    """Return `base` with dates for generations, and that of its file, which was read at `asked`.

    Where the store knows no date, or the file was changed a moment before it was read, `base` itself and `UNKNOWN`.
    """
    telling = able(base.driver, TellsModified)
    if telling is None:
        return base, UNKNOWN
    file = DatedFile(base, telling)
    generation = await file.ask(asked)
    return (KvPrefix(file, base.path), generation) if generation != UNKNOWN else (base, UNKNOWN)


class DatedFile(ReadOnly):
    """A store whose value at the path of `base` has its date for a generation."""

    id: ClassVar[str] = "dated"

    def __init__(self, base: KvPrefix, telling: TellsModified) -> None:
        self._base, self._telling = base, telling
        self.id, self.features = base.driver.id, base.driver.features  # type: ignore[misc]  # those of its base
        self._known, self._asked = UNKNOWN, 0.0

    async def ask(self, time: float) -> bytes:
        """Return the generation of the file at `time` or later; `UNKNOWN` if it was changed shortly before."""
        date = await self._telling.modified(self._base.path)
        is_settled = date is not None and time - date > CLOCKS_DIFFER_S
        self._known, self._asked = f"\0modified {date!r}".encode() if is_settled else UNKNOWN, time
        return self._known

    async def read_many(self, reads: Sequence[Read]) -> Sequence[ReadResult]:
        """Return the answers of the store, those of the file with its date."""
        path, time = self._base.path, now()
        is_asked = any(read.if_not_equal != UNKNOWN and read.key == path for read in reads)
        if is_asked or time - self._asked >= TRUSTED_S:
            await self.ask(time)
        known = self._known
        same = [read.key == path and read.if_not_equal == known != UNKNOWN for read in reads]
        rest = [read._replace(if_not_equal=UNKNOWN) for read, is_same in zip(reads, same, strict=True) if not is_same]
        found = iter(await self._base.driver.read_many(rest) if rest else ())
        return [
            ReadResult("unspecified", b"", known, time) if is_same else _with(known, next(found), read.key == path)
            for read, is_same in zip(reads, same, strict=True)
        ]

    def scan(self, keys: KeyRange) -> AsyncIterator[Sequence[Entry]]:
        """Yield the keys of the store."""
        return self._base.driver.scan(keys)

    def describe_key(self, key: str) -> str:
        """Return the name of a key in messages, as the store has it."""
        return self._base.driver.describe_key(key)

    def spec(self) -> Mapping[str, Json]:
        """Return the members of the store."""
        return self._base.driver.spec()


def _with(generation: bytes, answer: ReadResult, is_file: bool) -> ReadResult:
    return answer._replace(generation=generation) if is_file and answer.state == "value" else answer
