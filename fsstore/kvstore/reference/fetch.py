"""Reading the bytes references point to: a batch becomes a few range reads per target.

`plan` (pure, columns in, spans out) groups the references of a batch by URL and merges their ranges; `fetch` asks each
root once, all roots at the same time, and cuts the answers apart without copying.

A target that is missing or too short is damage of the set, and an error that names the key and the range asked for:
it is never "missing", or the reader would see fill values in place of data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fsstore import _runtime
from fsstore._json import quote
from fsstore.errors import DataLossError, NotFoundError, OutOfRangeError, StoreError
from fsstore.kvstore.coalesce import Limits, Spans, coalesce
from fsstore.kvstore.contract import UNKNOWN, KvPrefix, Read, ReadResult
from fsstore.kvstore.reference.targets import Targets

__all__ = ["REST", "Asks", "Fetcher"]

REST = -(2**63)


class Asks(NamedTuple):
    """What to read: for each request its key, the number of its URL, and the range in the target.

    `stop` is `REST` for "to the end", and `start` may then be negative: the last bytes.  `whole`: the value that the
    range is of is all of the target.
    """

    keys: Sequence[str]
    url: np.ndarray[Any, np.dtype[np.int32]]
    start: np.ndarray[Any, np.dtype[np.int64]]
    stop: np.ndarray[Any, np.dtype[np.int64]]
    whole: np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(frozen=True, slots=True)
class _Span:
    """One request to a root, and the members of the batch it answers with their offsets in it."""

    read: Read
    members: list[int]
    offsets: list[int]


@dataclass(frozen=True, slots=True)
class Fetcher:
    """Reads targets."""

    targets: Targets
    limits: Limits
    described: str

    async def fetch(self, asks: Asks, urls: Sequence[str]) -> list[ReadResult]:
        """Return one answer to each request, in order: its state is "value", its generation that of the range."""
        if len(asks.keys) == 1:
            return [await self._fetch_one(asks, urls)]
        spans: dict[str, list[_Span]] = {}
        order = np.argsort(asks.url, kind="stable")
        numbers, firsts = np.unique(asks.url[order], return_index=True)
        bounds = [*firsts.tolist(), len(order)]
        for position, number in enumerate(numbers.tolist()):
            members = order[bounds[position] : bounds[position + 1]]
            try:
                place = self.targets.locate(urls[number])
            except StoreError as error:
                raise error.within(self._place(asks, int(members[0]))) from error
            spans.setdefault(place.root, []).extend(self._spans(place.key, asks, members))
        results: list[Any] = [None] * len(asks.keys)
        await _runtime.gather(self._read_root(root, found, asks, results) for root, found in spans.items())
        return results

    async def _fetch_one(self, asks: Asks, urls: Sequence[str]) -> ReadResult:
        """Answer a single request without the fixed cost of columns."""
        start, stop = int(asks.start[0]), int(asks.stop[0])
        try:
            place = self.targets.locate(urls[int(asks.url[0])])
        except StoreError as error:
            raise error.within(self._place(asks, 0)) from error
        span = _Span(Read(place.key, start, None if stop == REST else stop), [0], [0])
        results: list[Any] = [None]
        await self._read_root(place.root, [span], asks, results)
        result: ReadResult = results[0]
        return result

    def _spans(self, key: str, asks: Asks, members: np.ndarray[Any, np.dtype[np.int64]]) -> list[_Span]:
        starts, stops = asks.start[members], asks.stop[members]
        ranged = stops != REST
        out = [
            _Span(Read(key, int(asks.start[member]), None), [member], [0])
            for member in members[~ranged].tolist()
        ]
        if not ranged.any():
            return out
        members = members[ranged]
        found = coalesce(starts[ranged], stops[ranged], self.limits.max_gap, self.limits.max_size)
        return out + _grouped(key, found, members)

    async def _read_root(self, root: str, spans: list[_Span], asks: Asks, results: list[Any]) -> None:
        store = None
        try:
            store = await self.targets.root(root)
            answers = await store.read_many([span.read for span in spans])
        except StoreError as error:
            raise await self._explain(store, spans, asks, error) from error
        for span, answer in zip(spans, answers, strict=True):
            if answer.state != "value":
                raise self._lost(asks, span.members[0], store, span.read.key, "the target does not exist")
            self._cut(span, answer, asks, results)

    def _cut(self, span: _Span, answer: ReadResult, asks: Asks, results: list[Any]) -> None:
        """Put the answers to the members of a span into `results`, each with the generation of its range."""
        _, value, base, time, size = answer
        if len(span.members) == 1:
            member = span.members[0]
            stamp = _generation(base, int(asks.start[member]), int(asks.stop[member]))
            results[member] = ReadResult("value", value, stamp, time, size if asks.whole[member] else None)
            return
        view = memoryview(value)
        starts, stops = asks.start[span.members].tolist(), asks.stop[span.members].tolist()
        for member, offset, start, stop in zip(span.members, span.offsets, starts, stops, strict=True):
            part = view[offset : offset + stop - start]
            results[member] = ReadResult("value", part, _generation(base, start, stop), time)

    async def _explain(
        self, store: KvPrefix | None, spans: list[_Span], asks: Asks, error: StoreError
    ) -> StoreError:
        """Return the error with the reference it belongs to, found by reading one of several at a time."""
        members = [(span.read, member) for span in spans for member in span.members]
        for read, member in members if store is not None else ():
            assert store is not None
            start, stop = int(asks.start[member]), int(asks.stop[member])
            try:
                if len(members) == 1:
                    raise error
                await store.read_many([read if read.stop is None else Read(read.key, start, stop)])
            except (OutOfRangeError, NotFoundError) as found:
                return self._lost(asks, member, store, read.key, found.message)
            except StoreError as found:
                return found.within(self._place(asks, member))
        return error.within(self._place(asks, members[0][1]))

    def _place(self, asks: Asks, member: int) -> str:
        return f"Error reading {quote(asks.keys[member])} in {self.described}"

    def _lost(self, asks: Asks, member: int, store: KvPrefix | None, key: str, why: str) -> DataLossError:
        start, stop = int(asks.start[member]), int(asks.stop[member])
        target = store.describe(key) if store is not None else quote(key)
        part = "all" if stop == REST else f"{stop - start} bytes at offset {start}"
        return DataLossError(f"{self._place(asks, member)}: the reference is {part} of {target}: {why}")


def _grouped(key: str, found: Spans, members: np.ndarray[Any, np.dtype[np.int64]]) -> list[_Span]:
    """Return the merged ranges of one key with their members."""
    order = np.argsort(found.where, kind="stable")
    bounds = np.searchsorted(found.where[order], np.arange(len(found.starts) + 1)).tolist()
    sorted_members, offsets = members[order].tolist(), found.offset[order].tolist()
    return [
        _Span(Read(key, start, stop), sorted_members[low:high], offsets[low:high])
        for start, stop, low, high in zip(
            found.starts.tolist(), found.stops.tolist(), bounds[:-1], bounds[1:], strict=True
        )
    ]


def _generation(base: bytes, start: int, stop: int) -> bytes:
    """Return the generation of a range of a target, from the target's."""
    return b"%b@%d:%d" % (base, start, stop) if base != UNKNOWN else UNKNOWN
