"""Reading values out of Neuroglancer shards: entries, indexes and values, each step one batch for all files.

Indexes are kept as long as their file has the generation they were read with, so that the next look-up needs the value
only.  If the value then comes with another generation, everything is read again.  Entries are read and kept by blocks
of many, so that a look-up in another minishard of the same file needs its index and the value.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np

from fsstore.errors import AbortedError, OutOfRangeError, StoreError
from fsstore.kvstore.contract.driver import UNKNOWN, Buffer, KvPrefix, Read, ReadResult
from fsstore.kvstore.shard.uint64_layout import Minishard, Sharding, decode_entry, decode_index
from fsstore.kvstore.tuning import (
    CHANGED_SHARD_ATTEMPTS,
    MINISHARDS_KEPT_BYTES,
    SHARD_INDEX_BLOCK,
    SHARD_INDEX_BLOCKS,
)
from fsstore.runtime import fork

__all__ = ["Index", "Indexes", "Place", "missing"]

T = TypeVar("T")
_EMPTY = Minishard(np.zeros(0, np.uint64), np.zeros(0, np.uint64), np.zeros(0, np.uint64))

Place: TypeAlias = tuple[int, int]
"""The numbers of a file and of a minishard."""


class Index(NamedTuple):
    """An index as read: its generation is that of the file."""

    minishard: Minishard
    generation: bytes
    time: float
    is_kept: bool = False


class Indexes:
    """The indexes of the files below `base`.  Thread-safe."""

    def __init__(self, base: KvPrefix, sharding: Sharding) -> None:
        self.base, self.sharding = base, sharding
        self._kept: OrderedDict[Place, Index] = OrderedDict()
        self._bytes = 0
        self._blocks: OrderedDict[Place, ReadResult] = OrderedDict()
        self._lock = fork.lock()

    async def find(self, places: Iterable[Place], *, fresh: bool) -> dict[Place, Index]:
        """Return the indexes at some places; unless `fresh`, those that are kept are not looked at again."""
        found: dict[Place, Index] = {}
        wanted = []
        for place in dict.fromkeys(places):
            kept = self._known(place)
            if kept is not None and not fresh:
                found[place] = kept._replace(is_kept=True)
            else:
                wanted.append((place, kept))
        if wanted:
            found |= await self._read(wanted)
        return found

    async def _read(self, wanted: Sequence[tuple[Place, Index | None]]) -> dict[Place, Index]:
        for _ in range(CHANGED_SHARD_ATTEMPTS):
            found = await self._attempt(wanted)
            if found is not None:
                return found
        where = self.base.describe(self.sharding.file_name(wanted[0][0][0]))
        raise AbortedError(f"{where} was changed by other writers at every attempt")

    async def _attempt(self, wanted: Sequence[tuple[Place, Index | None]]) -> dict[Place, Index] | None:
        """Return the indexes, None if a file changed between the steps."""
        entries, kept = await self._entries(wanted)
        found: dict[Place, Index] = {}
        spans: dict[Place, tuple[int, int]] = {}
        for place, known in wanted:
            answer = entries[place]
            if answer.state == "unspecified" and known is not None:
                found[place] = known._replace(time=answer.time)
                continue
            found[place] = Index(_EMPTY, answer.generation, answer.time)
            if answer.state == "value":
                span = self._located(place, decode_entry, answer.value)
                if span[0] < span[1]:
                    spans[place] = span
        reads = [Read(self._file(place), *span) for place, span in spans.items()]
        try:
            answers = await self.base.read_many(reads) if reads else []
        except StoreError as error:
            if kept:  # entries that were kept may be of a file that is gone
                self._forget_blocks(kept)
                return None
            raise error.within(f"Error reading minishard {next(iter(spans))[1]}") from None
        for (place, _), answer in zip(spans.items(), answers, strict=True):
            if answer.state != "value" or answer.generation != found[place].generation:
                self._forget_blocks(kept)
                return None
            index = self._located(place, decode_index, answer.value)
            found[place] = Index(index, answer.generation, answer.time)
        for place, read in found.items():
            self._keep(place, read)
        return found

    async def _entries(
        self, wanted: Sequence[tuple[Place, Index | None]]
    ) -> tuple[dict[Place, ReadResult], set[Place]]:
        """Return the entries of places, and the blocks that were known before; what comes after looks at their file."""
        entries: dict[Place, ReadResult] = {}
        kept: set[Place] = set()
        left: dict[Place, Read] = {}
        for place, known in wanted:
            block = place[0], place[1] // SHARD_INDEX_BLOCK
            entry = None if known is not None else self._kept_entry(block, place[1] % SHARD_INDEX_BLOCK)
            if entry is not None:
                entries[place] = entry
                kept.add(block)
            elif known is None:
                low = 16 * SHARD_INDEX_BLOCK * block[1]
                left[place] = Read(
                    self._file(place), low, min(low + 16 * SHARD_INDEX_BLOCK, self.sharding.index_size)
                )
            else:
                left[place] = self._entry(place, known.generation)
        reads = dict.fromkeys(left.values())
        try:
            answers = dict(zip(reads, await self.base.read_many(list(reads)), strict=True)) if reads else {}
        except OutOfRangeError:  # a file whose index is cut off: what is left of it may be asked for
            found = await self.base.read_many([self._entry(place, UNKNOWN) for place in left])
            return entries | dict(zip(left, found, strict=True)), kept
        for place, read in left.items():
            answer = answers[read]
            if answer.state == "value" and read.if_not_equal == UNKNOWN:
                block = place[0], place[1] // SHARD_INDEX_BLOCK
                self._keep_block(block, answer)
                answer = _part(answer, place[1] % SHARD_INDEX_BLOCK)
            entries[place] = answer
        return entries, kept

    def _kept_entry(self, block: Place, number: int) -> ReadResult | None:
        """Return an entry that is known, unless it points nowhere: then nothing that is read next would confirm it."""
        with self._lock:
            answer = self._blocks.get(block)
        if answer is None:
            return None
        entry = _part(answer, number)
        low, high = (int.from_bytes(entry.value[at : at + 8], "little") for at in (0, 8))
        return entry if low < high else None

    def _keep_block(self, block: Place, answer: ReadResult) -> None:
        if answer.generation == UNKNOWN:
            return
        with self._lock:
            self._blocks[block] = answer._replace(value=bytes(answer.value))
            while len(self._blocks) > SHARD_INDEX_BLOCKS:
                self._blocks.popitem(last=False)

    def _forget_blocks(self, blocks: Iterable[Place]) -> None:
        with self._lock:
            for block in blocks:
                self._blocks.pop(block, None)

    def _file(self, place: Place) -> str:
        return self.sharding.file_name(place[0])

    def _entry(self, place: Place, known: bytes) -> Read:
        return Read(self._file(place), 16 * place[1], 16 * place[1] + 16, known)

    def _located(self, place: Place, decode: Callable[[Sharding, Buffer], T], data: Buffer) -> T:
        try:
            return decode(self.sharding, data)
        except StoreError as error:
            where = f"Error reading minishard {place[1]} in {self.base.describe(self._file(place))}"
            raise error.within(where) from None

    def _known(self, place: Place) -> Index | None:
        with self._lock:
            found = self._kept.get(place)
            if found is not None:
                self._kept.move_to_end(place)
            return found

    def _keep(self, place: Place, index: Index) -> None:
        if index.generation == UNKNOWN or not len(index.minishard.ids):
            return
        with self._lock:
            old = self._kept.pop(place, None)
            self._bytes += _size(index) - (0 if old is None else _size(old))
            self._kept[place] = index
            while self._bytes > MINISHARDS_KEPT_BYTES and len(self._kept) > 1:
                self._bytes -= _size(self._kept.popitem(last=False)[1])


def _part(answer: ReadResult, number: int) -> ReadResult:
    """Return the answer for one entry out of that for a block."""
    return answer._replace(value=answer.value[16 * number : 16 * number + 16])


def _size(index: Index) -> int:
    return 24 * len(index.minishard.ids) + 200


def missing(index: Index) -> ReadResult:
    """Return the answer for a value that an index has not: with the generation of the file."""
    return ReadResult("missing", b"", index.generation, index.time)
