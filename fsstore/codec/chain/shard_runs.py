"""A shard as runs of sub-chunks: those that nobody changes and that follow each other are copied as one piece.

A change of a few sub-chunks of a shard of thousands costs what these few cost, and a copy.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from fsstore.codec.chain.shard_layout import MISSING, Entries, ShardLayout, present_in
from fsstore.codec.contract import Buffer
from fsstore.codec.tuning import SHARD_PORTION_BYTES, SHARD_PORTION_PARTS

__all__ = ["Run", "StoredParts", "in_portions", "portions_of_runs", "run_of_one"]

Run: TypeAlias = "tuple[Sequence[int], Sequence[Buffer]]"
"""The lengths of sub-chunks that follow each other, below zero for one that is missing, and their bytes in order."""


@dataclass(frozen=True, slots=True)
class StoredParts:
    """The encoded sub-chunks of a whole shard, by their numbers."""

    shard: memoryview
    entries: Entries

    @classmethod
    def of(cls, shard: Buffer | None, layout: ShardLayout) -> StoredParts:
        """Return the sub-chunks of a shard, none if there is no shard."""
        if shard is None:
            return cls(memoryview(b""), np.full((layout.count, 2), MISSING, np.uint64))
        view = memoryview(shard)
        start, stop = layout.index_span(len(view))
        return cls(view, layout.decode_index(view[start:stop], len(view)))

    def __getitem__(self, number: int) -> Buffer | None:
        """Return an encoded sub-chunk, None if it is missing."""
        offset, length = self.entries[number].tolist()
        return None if offset == MISSING else self.shard[offset : offset + length]

    def runs(self, first: int, stop: int, changed: Mapping[int, Buffer | None]) -> Iterator[Run]:
        """Yield the sub-chunks of some numbers as one run, some of them `changed`, by number in ascending order.

        Stored ones that lie one behind the other, with no changed one between, are one piece.
        """
        if len(changed) == stop - first:
            yield from map(run_of_one, changed.values())
            return
        entries = self.entries[first:stop]
        lengths = np.where(present_in(entries), entries[:, 1].view(np.int64), -1)
        places = np.array(list(changed), np.int64) - first
        kept = lengths >= 0
        kept[places] = False
        at = np.flatnonzero(kept)
        begin = entries[at, 0].astype(np.int64)
        end = begin + lengths[at]
        group = np.searchsorted(places, at)
        cuts = np.flatnonzero((begin[1:] != end[:-1]) | (group[1:] != group[:-1]))
        heads, tails = [0, *(cuts + 1).tolist()][: len(at)], [*cuts.tolist(), -1][: len(at)]
        columns = (at[heads] + first, begin[heads], end[tails])
        pieces: dict[int, Buffer] = {
            number: self.shard[low:high]
            for number, low, high in zip(*[column.tolist() for column in columns], strict=True)
        }
        lengths[places] = [-1 if part is None else memoryview(part).nbytes for part in changed.values()]
        pieces |= {number: part for number, part in changed.items() if part is not None}
        yield lengths.tolist(), [pieces[number] for number in sorted(pieces)]


def run_of_one(part: Buffer | None) -> Run:
    """Return the run of one sub-chunk."""
    return ((-1,), ()) if part is None else ((memoryview(part).nbytes,), (part,))


def in_portions(numbers: Sequence[int], layout: ShardLayout) -> Iterator[Sequence[int]]:
    """Yield the numbers of some sub-chunks, of about a megabyte at a time."""
    most = max(1, SHARD_PORTION_BYTES // layout.inner.decoded_size)
    for begin in range(0, len(numbers), most):
        yield numbers[begin : begin + most]


def portions_of_runs(layout: ShardLayout, runs: Iterable[Run]) -> Iterator[list[Buffer]]:
    """Yield the shard of some runs, about a megabyte at a time, as soon as it is there if the index comes last.

    `ShardLayout.portions` does so with single sub-chunks: small raw ones take a fifth longer as runs of one.
    """
    portion: list[Buffer] = []
    if layout.at_start:
        runs = list(runs)
        portion.append(layout.index_of(list(itertools.chain.from_iterable(run[0] for run in runs))))
    lengths: list[int] = []
    size = 0
    for run_lengths, pieces in runs:
        lengths += run_lengths
        portion += pieces
        size += sum([memoryview(piece).nbytes for piece in pieces])
        if size >= SHARD_PORTION_BYTES or len(portion) >= SHARD_PORTION_PARTS:
            yield portion
            portion, size = [], 0
    if not layout.at_start:
        portion.append(layout.index_of(lengths))
    if portion:
        yield portion
