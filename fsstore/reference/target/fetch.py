"""Reading the bytes references point to: a batch becomes a few range reads per target.

`plan` (pure, columns in, spans out) groups the references of a batch by URL and merges their ranges; `fetch` asks each
root once, all roots at the same time, and answers with columns that say which part of what came is whose.

A target that is missing or too short is damage of the set, and an error that names the key and the range asked for:
it is never "missing", or the reader would see fill values in place of data.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from fsstore.errors import DataLossError, NotFoundError, OutOfRangeError, StoreError
from fsstore.kvstore.contract.ability import DatesValues, able
from fsstore.kvstore.contract.batch import AnswerColumns, Ints, Limits, coalesce
from fsstore.kvstore.contract.driver import UNKNOWN, KvDriver, KvPrefix, Read, ReadResult, now
from fsstore.reference.target.targets import Targets
from fsstore.runtime import execution
from fsstore.values.json_value import quote

__all__ = ["REST", "Asks", "Fetcher", "Scanned"]

REST = -(2**63)
_ZERO = np.zeros(1, np.int64)


class Asks(NamedTuple):
    """A list of requests: for each request its key, the number of its URL, and the range in the target.

    `stop` is `REST` for "to the end", and `start` may then be negative: the last bytes.  `offset` and `length` say
    where in the target the value lies that the range is of.  `whole`: it is all of the target.
    """

    keys: Sequence[str]
    url: np.ndarray[Any, np.dtype[np.int32]]
    start: Ints
    stop: Ints
    whole: np.ndarray[Any, np.dtype[np.bool_]]
    offset: Ints
    length: Ints

    def take(self, places: Ints) -> Asks:
        """Return some of the requests."""
        keys = [self.keys[place] for place in places.tolist()]
        url, start, stop, whole = self.url[places], self.start[places], self.stop[places], self.whole[places]
        return Asks(keys, url, start, stop, whole, self.offset[places], self.length[places])

    def generation(self, number: int, base: bytes) -> bytes:
        """Return the generation of a value, whatever range of it is read, from that of the target."""
        where = (int(self.offset[number]), int(self.length[number]))
        return b"%b@%d:%d" % (base, *where) if base != UNKNOWN else UNKNOWN


class Scanned(NamedTuple):
    """The state of a target when it was scanned, as far as it is known: its size, or -1, and its generation."""

    size: int = -1
    generation: bytes = UNKNOWN

    def change(self, now: ReadResult, driver: KvDriver) -> str:
        """Return how a target differs from that by an answer of its driver, nothing if it does not."""
        if self.size >= 0 and now.size not in (None, self.size):
            return f"it had {self.size} bytes when it was scanned, and has {now.size}"
        before, after = self.generation, now.generation
        if before == after or UNKNOWN in (before, after):
            return ""
        dates = able(driver, DatesValues)
        if dates is not None and dates.date_of(before) == dates.date_of(after):
            return ""
        return "it was written anew since it was scanned"


_UNSCANNED = Scanned()


@dataclass(frozen=True, slots=True)
class _Requests:
    """The requests to one root, and what their targets were when they were scanned.

    Columns, in parts: members of the batch, which of `reads` answers each, and how many bytes into that its own begin.
    """

    reads: list[Read] = field(default_factory=list)
    scanned: list[Scanned] = field(default_factory=list)
    members: list[Ints] = field(default_factory=list)
    where: list[Ints] = field(default_factory=list)
    offsets: list[Ints] = field(default_factory=list)

    def add(self, members: Ints, reads: Sequence[Read], where: Ints, offsets: Ints, scanned: Scanned) -> None:
        """Ask more of a target."""
        self.members.append(members)
        self.where.append(where + len(self.reads))
        self.offsets.append(offsets)
        self.reads.extend(reads)
        self.scanned.extend([scanned] * len(reads))

    def pairs(self) -> Iterator[tuple[int, int]]:
        """Yield the number of a request and a member it answers, request by request."""
        where, members = np.concatenate(self.where), np.concatenate(self.members)
        order = np.argsort(where, kind="stable")
        yield from zip(where[order].tolist(), members[order].tolist(), strict=True)


@dataclass(frozen=True, slots=True)
class Fetcher:
    """Reads targets.  `scanned` says by URL what those were that have been scanned, and must still be."""

    targets: Targets
    limits: Limits
    described: str
    scanned: Mapping[str, Scanned] = field(default_factory=dict)

    async def fetch(self, asks: Asks, urls: Sequence[str]) -> Sequence[ReadResult]:
        """Return one answer to each request, in order: its state is "value", its generation that of the value."""
        if len(asks.keys) == 1:
            return [await self._fetch_one(asks, urls)]
        wanted: dict[str, _Requests] = {}
        for number, members in _by_url(asks.url):
            try:
                place = self.targets.locate(urls[number])
            except StoreError as error:
                raise error.within(self._place(asks, int(members[0]))) from error
            asked = wanted.setdefault(place.root, _Requests())
            self._plan(place.key, self.scanned.get(urls[number], _UNSCANNED), asks, members, asked)
        found = await execution.gather(self._read_root(root, asked, asks) for root, asked in wanted.items())
        return _answer_columns(asks, list(wanted.values()), found)

    async def _fetch_one(self, asks: Asks, urls: Sequence[str]) -> ReadResult:
        """Answer a single request without the fixed cost of columns."""
        start, stop = int(asks.start[0]), int(asks.stop[0])
        url = urls[int(asks.url[0])]
        try:
            place = self.targets.locate(url)
        except StoreError as error:
            raise error.within(self._place(asks, 0)) from error
        asked = _Requests()
        read = Read(place.key, start, None if stop == REST else stop)
        asked.add(_ZERO, [read], _ZERO, _ZERO, self.scanned.get(url, _UNSCANNED))
        answer = (await self._read_root(place.root, asked, asks))[0]
        size = answer.size if asks.whole[0] else int(asks.length[0])
        return answer._replace(generation=asks.generation(0, answer.generation), size=size)

    def _plan(self, key: str, scanned: Scanned, asks: Asks, members: Ints, out: _Requests) -> None:
        """Add what is wanted of one target to `out`: the rest of it as it is asked for, ranges merged."""
        ranged = asks.stop[members] != REST
        rest, members = members[~ranged], members[ranged]
        if len(rest):
            numbers = np.arange(len(rest))
            reads = [Read(key, start, None) for start in asks.start[rest].tolist()]
            out.add(rest, reads, numbers, np.zeros_like(numbers), scanned)
        if len(members):
            limits = self.limits
            spans = coalesce(asks.start[members], asks.stop[members], limits.max_gap, limits.max_size)
            pairs = zip(spans.starts.tolist(), spans.stops.tolist(), strict=True)
            reads = [Read(key, start, stop) for start, stop in pairs]
            out.add(members, reads, spans.where, spans.offset, scanned)

    async def _read_root(self, root: str, asked: _Requests, asks: Asks) -> Sequence[ReadResult]:
        store = None
        try:
            store = await self.targets.root(root)
            answers = await store.read_many(asked.reads)
        except StoreError as error:
            raise await self._explain(store, asked, asks, error) from error
        for number, (read, answer, scanned) in enumerate(
            zip(asked.reads, answers, asked.scanned, strict=True)
        ):
            if answer.state != "value":
                why = "the target does not exist"
            elif scanned is not _UNSCANNED and (change := scanned.change(answer, store.driver)):
                why = f"{change}; scan it again"
            elif read.stop is not None and len(answer.value) != read.stop - read.start:
                why = f"{len(answer.value)} bytes came for {read.stop - read.start}"
            else:
                continue
            member = next(member for where, member in asked.pairs() if where == number)
            raise self._lost(asks, member, store, read.key, why)
        return answers

    async def _explain(
        self, store: KvPrefix | None, asked: _Requests, asks: Asks, error: StoreError
    ) -> StoreError:
        """Return the error with the reference it belongs to, found by reading one of several at a time."""
        pairs = list(asked.pairs())
        for number, member in pairs if store is not None else ():
            assert store is not None
            read = asked.reads[number]
            start, stop = int(asks.start[member]), int(asks.stop[member])
            try:
                if len(pairs) == 1:
                    raise error
                await store.read_many([read if read.stop is None else Read(read.key, start, stop)])
            except (OutOfRangeError, NotFoundError) as found:
                return self._lost(asks, member, store, read.key, found.message)
            except StoreError as found:
                return found.within(self._place(asks, member))
        return error.within(self._place(asks, pairs[0][1]))

    def _place(self, asks: Asks, member: int) -> str:
        return f"Error reading {quote(asks.keys[member])} in {self.described}"

    def _lost(self, asks: Asks, member: int, store: KvPrefix | None, key: str, why: str) -> DataLossError:
        start, stop = int(asks.start[member]), int(asks.stop[member])
        target = store.describe(key) if store is not None else quote(key)
        part = "all" if stop == REST else f"{stop - start} bytes at offset {start}"
        return DataLossError(f"{self._place(asks, member)}: the reference is {part} of {target}: {why}")


def _by_url(url: np.ndarray[Any, np.dtype[np.int32]]) -> Iterator[tuple[int, Ints]]:
    """Yield the numbers of the URLs that are asked for, and which requests ask for each."""
    if (url == url[0]).all():  # as nearly always
        yield int(url[0]), np.arange(len(url))
        return
    order = np.argsort(url, kind="stable")
    numbers, firsts = np.unique(url[order], return_index=True)
    bounds = [*firsts.tolist(), len(order)]
    for position, number in enumerate(numbers.tolist()):
        yield number, order[bounds[position] : bounds[position + 1]]


def _answer_columns(
    asks: Asks, asked: Sequence[_Requests], found: Sequence[Sequence[ReadResult]]
) -> AnswerColumns:
    """Return the answers to requests as parts of what the roots answered."""
    sources: list[ReadResult] = []
    where, starts = np.empty_like(asks.start), np.empty_like(asks.start)
    for requests, answers in zip(asked, found, strict=True):
        members = np.concatenate(requests.members)
        where[members] = np.concatenate(requests.where) + len(sources)
        starts[members] = np.concatenate(requests.offsets)
        sources += answers
    stops = starts + asks.stop - asks.start
    for member in np.flatnonzero(asks.stop == REST).tolist():
        stops[member] = len(sources[where[member]].value)

    sizes = np.where(asks.whole, -1, asks.length)
    for member in np.flatnonzero(asks.whole).tolist():
        known = sources[where[member]].size
        sizes[member] = -1 if known is None else known

    def generation(number: int) -> bytes:
        return asks.generation(number, sources[where[number]].generation)

    return AnswerColumns(sources, where, starts, stops, sizes, np.arange(len(where)), generation, now())
