"""Entries of shards as columns: which shard each lies in, and its number there.

A request may touch thousands of sub-chunks in hundreds of shards.  An `EntryRun` is the sequence of their identities,
pairs of a shard's and a number, without a pair for each.  `RunAnswers` takes what is read of them, in any order and in
several attempts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from fsstore.kvstore.contract.batch import AnswerColumns, Ints, Spans, coalesce
from fsstore.kvstore.contract.driver import ReadResult, now

__all__ = ["EntryParts", "EntryRun", "RunAnswers"]

_NEAR = 2**62  # the sum of two such numbers is a number


class EntryRun(Sequence[tuple[Any, int]]):
    """Identities of many entries: entry `i` is number `numbers[i]` of the shard `shards[owners[i]]`."""

    __slots__ = ("numbers", "owners", "shards")

    def __init__(self, shards: Sequence[Any], owners: Ints, numbers: Ints) -> None:
        self.shards, self.owners, self.numbers = shards, owners, numbers

    @classmethod
    def within(cls, shard: Any, numbers: Ints) -> EntryRun:
        """Return entries of one shard."""
        return cls([shard], np.zeros_like(numbers), numbers)

    @classmethod
    def of(cls, identities: Sequence[tuple[Any, int]]) -> EntryRun:
        """Return the run of some identities."""
        places: dict[Any, int] = {}
        owners = [places.setdefault(shard, len(places)) for shard, _ in identities]
        numbers = [number for _, number in identities]
        return cls(list(places), np.array(owners, np.int64), np.array(numbers, np.int64))

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self.numbers)

    @overload
    def __getitem__(self, place: int) -> tuple[Any, int]: ...

    @overload
    def __getitem__(self, place: slice) -> EntryRun: ...

    def __getitem__(self, place: int | slice) -> tuple[Any, int] | EntryRun:
        """Return one identity, or a run of some."""
        if isinstance(place, slice):
            return EntryRun(self.shards, self.owners[place], self.numbers[place])
        return self.shards[self.owners[place]], int(self.numbers[place])

    def __iter__(self) -> Iterator[tuple[Any, int]]:
        """Yield the identities."""
        return zip(map(self.shards.__getitem__, self.owners.tolist()), self.numbers.tolist(), strict=True)

    def by_shard(self) -> dict[Any, Ints]:
        """Return the places of the entries in the run by shard."""
        owners = self.owners
        if len(self.shards) == 1:
            return {self.shards[0]: np.arange(len(owners))} if len(owners) else {}
        order = np.argsort(owners, kind="stable")
        ordered = owners[order]
        edges = [0, *(np.flatnonzero(ordered[1:] != ordered[:-1]) + 1).tolist(), len(order)]
        begins = edges[:-1] if len(order) else []
        shards = map(self.shards.__getitem__, ordered[begins].tolist())
        return {shard: order[begin:end] for shard, begin, end in zip(shards, begins, edges[1:], strict=False)}


class EntryParts(NamedTuple):
    """Parts of larger pieces of bytes, as columns: for which place of a run, of which piece, from where, how long."""

    places: Ints
    owners: Ints
    starts: Ints
    lengths: Ints

    def among(self, chosen: npt.NDArray[np.bool_]) -> EntryParts:
        """Return those that are chosen."""
        return self if chosen.all() else EntryParts(*[column[chosen] for column in self])

    def spans(self, count: int, limit: int) -> tuple[Spans, Ints]:
        """Return spans that cover the parts of `count` pieces, those that touch as one, and the piece of each span.

        The pieces are laid one behind the other, so that one sort serves them all.
        """
        owners, starts, stops = self.owners, self.starts, self.starts + self.lengths
        if count == 1:
            spans = coalesce(starts, stops, 0, limit)
            return spans, np.zeros_like(spans.starts)
        sizes = np.zeros(count, np.int64)
        np.maximum.at(sizes, owners, stops + 1)  # parts of two pieces never touch
        if (
            float(sizes.sum(dtype=np.float64)) >= _NEAR
        ):  # some lie so far out that there is no room behind them
            return Spans(starts, stops, np.arange(len(starts)), np.zeros_like(starts)), owners
        base = np.cumsum(sizes) - sizes
        shift = base[owners]
        spans = coalesce(starts + shift, stops + shift, 0, limit)
        whose = np.searchsorted(base, spans.starts, side="right") - 1
        shift = base[whose]
        return spans._replace(starts=spans.starts - shift, stops=spans.stops - shift), whose


class RunAnswers:
    """The answers to a run of entries; those that nobody gives are missing."""

    __slots__ = ("_sources", "_starts", "_stops", "_where")

    def __init__(self, count: int) -> None:
        self._sources: list[ReadResult] = []
        self._where = np.full(count, -1)
        self._starts, self._stops = np.zeros((2, count), np.int64)

    def give(self, sources: Sequence[ReadResult], pieces: EntryParts) -> None:
        """Answer some entries: each is a part of one of the sources."""
        places, owners, starts, lengths = pieces
        self._where[places] = owners + len(self._sources)
        self._starts[places], self._stops[places] = starts, starts + lengths
        self._sources += sources

    def columns(self) -> AnswerColumns:
        """Return the answers."""
        sources, where = self._sources, self._where

        def generation(number: int) -> bytes:
            return sources[number].generation

        sizes = np.full(len(where), -1)
        time = sources[0].time if sources else now()
        return AnswerColumns(sources, where, self._starts, self._stops, sizes, where, generation, time)
