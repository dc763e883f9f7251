"""The file of a ZIP archive: ranges of it, and its directory, kept as long as the file has the same generation.

Every range is checked to come from the generation of the directory; otherwise `ChangedError` tells the caller to plan
anew.  A base store without generations cannot be checked, so there the directory is read for every batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fsstore.errors import DataLossError, OutOfRangeError, StoreError
from fsstore.kvstore.archive.zip_directory import (
    TAIL,
    Directory,
    RawDirectory,
    find_end,
    parse_directory,
)
from fsstore.kvstore.contract.driver import UNKNOWN, Buffer, KvPrefix, Read, now
from fsstore.runtime import execution
from fsstore.runtime.attempt import ChangedError, until_unchanged

__all__ = ["Archive", "ZipSource"]

"""How often a batch starts over while the archive is being replaced."""


@dataclass(frozen=True, slots=True, eq=False)
class Archive:
    """The directory of one generation of the archive.  `starts` collects where data of members were found to start."""

    directory: Directory
    generation: bytes
    time: float
    starts: dict[str, int]


class ZipSource:
    """The archive file at `base`, and its directory as last read (`archive`)."""

    def __init__(self, base: KvPrefix) -> None:
        self.base = base
        self.archive: Archive | None = None

    async def ranges(self, archive: Archive, spans: list[tuple[int, int]]) -> list[Buffer]:
        """Return ranges of the archive, if it still has the generation of the directory."""
        if not spans:
            return []
        try:
            results = await self.base.read_many([Read("", low, high) for low, high in spans])
        except OutOfRangeError as error:
            if not await self.is_current(archive, ()):
                raise ChangedError from None
            raise self._damaged(error) from error
        if any(result.generation != archive.generation for result in results):
            raise ChangedError
        return [result.value for result in results]

    def _damaged(self, error: StoreError) -> StoreError:
        return DataLossError(f"{self.base.describe()} is cut off: {error.message}")

    async def is_current(self, archive: Archive, reads: Sequence[Read]) -> bool:
        """Return whether the archive still has the directory's generation, or had it recently enough for `reads`."""
        if reads and max(read.staleness_bound for read in reads) <= archive.time:
            return True
        if archive.generation == UNKNOWN:
            return False
        found = (await self.base.read_many([Read("", 0, 1, archive.generation)]))[0]
        if found.state != "unspecified":
            return False
        if self.archive is archive:
            self.archive = Archive(archive.directory, archive.generation, now(), archive.starts)
        return True

    async def load(self, archive: Archive | None) -> Archive | None:
        """Return the archive as it is now: `archive` if it is still current; None if there is none."""
        if archive is not None and await self.is_current(archive, ()):
            return archive
        self.archive = await until_unchanged(self._load_once, self.base.describe, reads=True)
        return self.archive

    async def _load_once(self) -> Archive | None:
        stamped = now()
        tail = await self.base.read_up_to(-TAIL)
        whole = len(tail.value) < TAIL
        if tail.state == "missing":
            return None
        try:
            raw = await self._raw(bytes(tail.value), tail.generation, whole=whole)
            directory = await execution.offload(
                lambda: parse_directory(
                    raw.data, raw.entries, shift=raw.shift, limit=raw.start, known=raw.known
                )
            )
        except StoreError as error:
            raise error.within(f"Error reading {self.base.describe()}") from error
        return Archive(directory, tail.generation, stamped, {})

    async def raw(self, archive: Archive) -> RawDirectory:
        """Return the directory of an archive as bytes, if that is still stored."""
        tail = await self.base.read_up_to(-TAIL)
        whole = len(tail.value) < TAIL
        if tail.generation != archive.generation:
            raise ChangedError
        return await self._raw(bytes(tail.value), tail.generation, whole=whole)

    async def _raw(self, tail: bytes, generation: bytes, *, whole: bool) -> RawDirectory:
        end = find_end(tail)
        size = len(tail)
        if not whole:  # an archive that does not start the file shows in what follows its expected end
            size = end.expected_size + len(await self._bytes(generation, end.expected_size, None))
        shift = size - end.expected_size
        start = size - end.trailer - end.directory_size
        if shift < 0 or start < 0:
            raise OutOfRangeError(f"ZIP directory at {end.directory_offset} does not fit into {size} bytes")
        first = start - (size - len(tail))
        if first >= 0:
            data = tail[first : first + end.directory_size]
        else:
            data = bytes(await self._bytes(generation, start, start + end.directory_size))
        return RawDirectory(data, end.entries, shift, start, end.comment, tail[: max(first, 0)])

    async def _bytes(self, generation: bytes, start: int, stop: int | None) -> Buffer:
        found = await self.base.read("", start, stop)
        if found.generation not in (UNKNOWN, generation):
            raise ChangedError
        return found.value
