"""From entries of leaves to answers: of reads, and of listings.

A batch of thousands of reads is answered by column; only the tuples of the contract are made one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fsstore.errors import StoreError
from fsstore.kvstore.contract.driver import NO_VALUE, Buffer, Read, ReadResult
from fsstore.kvstore.contract.request import EntryColumns, resolve_range
from fsstore.ocdbt.format.data_file import Location
from fsstore.ocdbt.format.generation import value_generation
from fsstore.ocdbt.format.leaf import INLINE
from fsstore.ocdbt.tree import Hits, Slice

__all__ = ["AnswerPlan", "entries_of"]


class AnswerPlan:
    """The answers to a batch of reads: complete, but for the bytes at `places`."""

    def __init__(self, reads: Sequence[Read], time: float, describe: Callable[[str], str]) -> None:
        self.results = [ReadResult("missing", b"", NO_VALUE, time)] * len(reads)
        self.places: list[Location] = []
        self._pending: list[tuple[int, bytes]] = []
        self._reads = reads
        self._time = time
        self._describe = describe

    def add(self, hits: Hits) -> None:
        """Take the entries found in one leaf."""
        leaf, indexes, rows = hits
        columns = (leaf.file_ids[rows], leaf.offsets[rows], leaf.lengths[rows])
        entries = zip(indexes, *(column.tolist() for column in columns), strict=True)
        payload, files, time = leaf.payload, leaf.files, self._time
        for index, file_id, offset, length in entries:
            read = self._reads[index]
            value = payload[offset : offset + length] if file_id == INLINE else None
            stored = Location(files[file_id], offset, length) if value is None else value
            generation = value_generation(stored)
            if generation == read.if_not_equal:
                self.results[index] = ReadResult("unspecified", b"", generation, time)
                continue
            low, high = 0, length
            if read.start or read.stop is not None:
                low, high = self._range(read, length)
            if value is not None:
                self.results[index] = ReadResult("value", value[low:high], generation, time, length)
            elif low == high:
                self.results[index] = ReadResult("value", b"", generation, time, length)
            else:
                self.places.append(Location(files[file_id], offset + low, high - low))
                self._pending.append((index, generation))

    def _range(self, read: Read, size: int) -> tuple[int, int]:
        try:
            return resolve_range(read.start, read.stop, size)
        except StoreError as error:
            raise error.within(f"Error reading {self._describe(read.key)}") from None

    def fill(self, values: Sequence[Buffer]) -> None:
        """Complete the answers with the bytes at `places`."""
        for (index, generation), value in zip(self._pending, values, strict=True):
            self.results[index] = ReadResult("value", value, generation, self._time)


def entries_of(part: Slice) -> EntryColumns:
    """Return the listing of some entries of a leaf."""
    keys = part.leaf.keys[part.start : part.stop]
    whole = [part.prefix + key for key in keys] if part.prefix else keys
    return EntryColumns(whole, sizes=part.leaf.lengths[part.start : part.stop].tolist)
