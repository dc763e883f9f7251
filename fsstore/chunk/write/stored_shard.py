"""A stored shard of which a part is rewritten, read little by little: memory for all of it may not be there.

The new shard is made in the order of its sub-chunks, and so the old one is read, in blocks of a few megabytes; of these
only the latest are remembered.  All must be of the generation of the index.  They are where the store holds a lock
meanwhile; where somebody writes without, the write is begun again.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import Self

import numpy as np

from fsstore.chunk.tuning import STORED_BLOCK_BYTES, STORED_BLOCKS_KEPT
from fsstore.codec.contract import Buffer
from fsstore.codec.sharding import MISSING, Run, ShardLayout, present_in, run_of_one
from fsstore.errors import AbortedError, OutOfRangeError
from fsstore.kvstore.contract.driver import KvDriver, Read, ReadResult
from fsstore.runtime import execution, fork

__all__ = ["ShardChangedError", "StoredShard"]


class ShardChangedError(AbortedError):
    """The shard was rewritten while a part of it was written; writing that part again sees the new one."""


class StoredShard:
    """The encoded sub-chunks of a shard by their numbers, None where one is missing; `generation` is its own.

    It may be used by several threads at once, and only over stores that never wait.
    """

    state = "value"

    def __init__(self, driver: KvDriver, key: str, layout: ShardLayout, index: ReadResult) -> None:
        self._driver, self._key, self.generation = driver, key, index.generation
        entries = layout.decode_index(index.value, index.size)
        self._entries: list[list[int]] = entries.tolist()
        length = np.where(present_in(entries), entries[:, 1], 0).astype(np.int64)
        self._blocks: list[int] = (np.cumsum(length) // STORED_BLOCK_BYTES).tolist()
        self._kept: dict[int, dict[int, Buffer]] = {}
        self._lock = fork.brief_lock()

    @classmethod
    def read(cls, driver: KvDriver, key: str, layout: ShardLayout) -> Self | ReadResult:
        """Return a shard whose index is read; or what is stored, if that is nothing, or too little for an index."""
        size = layout.index_size
        first = Read(key, 0, size) if layout.at_start else Read(key, -size)
        try:
            [index] = execution.drive(driver.read_many([first]))
        except OutOfRangeError:
            [index] = execution.drive(driver.read_many([Read(key)]))
            return index
        return index if index.state == "missing" else cls(driver, key, layout, index)

    def __getitem__(self, number: int) -> Buffer | None:
        """Return an encoded sub-chunk."""
        if self._entries[number][0] == MISSING:
            return None
        block = self._blocks[number]
        kept = self._kept.get(block)
        return (self._taken(block) if kept is None else kept)[number]

    def runs(self, first: int, stop: int, changed: Mapping[int, Buffer | None]) -> Iterator[Run]:
        """Yield the encoded sub-chunks of some numbers, some of them `changed`, the others read when asked for."""
        for number in range(first, stop):
            yield run_of_one(changed[number] if number in changed else self[number])

    def _taken(self, block: int) -> dict[int, Buffer]:
        """Return the sub-chunks of a block by their numbers, and remember them."""
        with self._lock:
            if block not in self._kept:
                self._kept[block] = self._read(block)
                if len(self._kept) > STORED_BLOCKS_KEPT:
                    del self._kept[next(iter(self._kept))]
            return self._kept[block]

    def _read(self, block: int) -> dict[int, Buffer]:
        first, stop = bisect_left(self._blocks, block), bisect_right(self._blocks, block)
        numbers = [each for each in range(first, stop) if self._entries[each][0] != MISSING]
        entries = [self._entries[number] for number in numbers]
        low, high = min(offset for offset, _ in entries), max(sum(entry) for entry in entries)
        if high - low > 2 * STORED_BLOCK_BYTES + max(length for _, length in entries):  # they lie far apart
            values = self._values([Read(self._key, offset, offset + length) for offset, length in entries])
            return dict(zip(numbers, values, strict=True))
        view = memoryview(self._values([Read(self._key, low, high)])[0])
        return {
            number: view[offset - low : offset - low + length]
            for number, (offset, length) in zip(numbers, entries, strict=True)
        }

    def _values(self, reads: Sequence[Read]) -> list[Buffer]:
        try:
            answers = execution.drive(self._driver.read_many(reads))
        except OutOfRangeError:  # the new one may be shorter
            if execution.drive(self._driver.read_many([Read(self._key)]))[0].generation == self.generation:
                raise
            raise self._changed() from None
        if any(answer.generation != self.generation for answer in answers):
            raise self._changed()
        return [answer.value for answer in answers]

    def _changed(self) -> ShardChangedError:
        name = self._driver.describe_key(self._key)
        return ShardChangedError(f"{name} was rewritten, without its lock, while a part of it was written")
