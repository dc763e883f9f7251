"""The `reference` key-value store: an adapter that shows the keys of a reference set.

The set is read when the store is opened and resolved in batches (`refset`); targets are fetched by `fetch`.  Writing is
copy-on-write: new values stand inline in the set, and every batch of writes is saved to its document or its parquet
files, under the condition that nobody else changed them, before it is answered (`overlay`).
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any, ClassVar, Literal

import numpy as np

from fsstore.errors import AbortedError, StoreError, UnimplementedError
from fsstore.kvstore.contract.ability import KnowsSizes, ListsDocuments, MayBeMissing, ReadsWhole, TakesAllAtOnce
from fsstore.kvstore.contract.batch import AnswerColumns, Ints, Limits
from fsstore.kvstore.contract.driver import (
    NO_VALUE,
    UNKNOWN,
    Buffer,
    Entry,
    Features,
    KvDriver,
    KvPrefix,
    Read,
    ReadResult,
    Stamp,
    Write,
    now,
    values_up_to,
)
from fsstore.kvstore.contract.request import EntryColumns, KeyRange, resolve_range
from fsstore.kvstore.engine.secret import reveal
from fsstore.reference.parquet_set import ParquetSet
from fsstore.reference.table.refset import Resolved, TableSet
from fsstore.reference.table.set_state import (
    FREE,
    Overlay,
    State,
    Taking,
    check_length,
    inline_generation,
    limits_of,
    refuse_larger,
)
from fsstore.reference.table.table import INLINE, WHOLE, Row
from fsstore.reference.targets import (
    REST,
    Asks,
    Fetcher,
    OpenTarget,
    Scanned,
    Targets,
    check_prefixes,
    open_with_spec,
    policy_of,
)
from fsstore.runtime import execution
from fsstore.runtime.tuning import FEW
from fsstore.values.json_value import Json, quote

# Taking copies into a reference set in one step: references to files beside it, with their documents.


class TakesFiles(TakesAllAtOnce):
    """A driver over a set, with what `TakesAllAtOnce` promises."""

    overlay: Overlay
    fetcher: Fetcher

    @property
    def takes_stores(self) -> Literal["own", "files"] | None:
        """Files: references to values that lie below the directory of the set."""
        return "files" if self.overlay.is_stored and self.overlay.writable else None

    @property
    def only_takes(self) -> bool:
        """Whether it is a parquet set: that has a place only for chunks of arrays that it knows."""
        return isinstance(self.overlay.state.base, ParquetSet)

    async def check_taking(self, writes: Mapping[str, Buffer], deleted: Sequence[KeyRange]) -> None:
        """Raise if the set is stored in files that cannot be replaced together."""
        await self.overlay.check_taking(Taking({}, (), _inline_values(writes), deleted))

    async def take_all(
        self,
        others: Sequence[KvPrefix],
        writes: Mapping[str, Buffer],
        *,
        unchanged: Mapping[str, bytes],
        deleted: Sequence[KeyRange],
    ) -> None:
        """Delete the ranges, refer to all values below other prefixes, and write, in one step."""
        taking = await self.taking(others, writes, deleted)
        driver: Any = self  # which names this ability among its bases
        await self.overlay.take(taking, lambda: check_unchanged(driver, unchanged), driver)

    async def taking(
        self, others: Sequence[KvPrefix], writes: Mapping[str, Buffer], deleted: Sequence[KeyRange]
    ) -> Taking:
        """Return what a set takes that is to refer to all values below other prefixes."""
        home = self.fetcher.targets.base
        found: dict[str, Row] = {}
        urls: list[str] = []
        for other in others:
            if home is None or other.driver != home.driver or not other.path.startswith(home.path):
                raise StoreError(f"{other.describe()} does not lie beside {self.fetcher.described}")
            async for batch in other.scan():
                for entry in batch:
                    size = WHOLE if entry.size is None else entry.size
                    found[entry.key] = Row(len(urls), 0, size)
                    urls.append(other.path[len(home.path) :] + entry.key)
        return Taking(found, urls, _inline_values(writes), deleted)


async def check_unchanged(driver: KvDriver, generations: Mapping[str, bytes]) -> None:
    """Raise `AbortedError` if a key has another generation than it had."""
    answers = await driver.read_many([Read(key, 0, 0) for key in generations])
    for (key, generation), answer in zip(generations.items(), answers, strict=True):
        if answer.generation != generation:
            raise AbortedError(f"Error reading {driver.describe_key(key)}: Generation mismatch")


def _inline_values(writes: Mapping[str, Buffer]) -> dict[str, bytes]:
    return {key: bytes(value) for key, value in writes.items()}


class ReferenceDriver(KnowsSizes, ListsDocuments, MayBeMissing, ReadsWhole, TakesFiles):
    """The keys of a reference set.  `described` is how messages call the set."""

    id: ClassVar[str] = "reference"

    def __init__(self, overlay: Overlay, fetcher: Fetcher, *, waits: bool, members: Mapping[str, Json]) -> None:
        self.overlay, self.fetcher = overlay, fetcher
        self._members = dict(members)
        self._features = Features(
            waits=waits,
            writable=overlay.writable,
            listable=True,
            create_only=overlay.conditional,
            conditional_write=overlay.conditional,
            reads_parts=True,
        )

    def __eq__(self, other: object) -> bool:
        """Return whether `other` is a driver of the same stored set, opened in the same way."""
        return self is other or (isinstance(other, ReferenceDriver) and _identity(self) == _identity(other))

    def __hash__(self) -> int:
        """Return a hash that agrees with equality."""
        return hash(self.fetcher.described)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle a set in memory as it is now; one that lies somewhere is opened again by its spec."""
        if self.overlay.is_stored or self.fetcher.targets.base is not None:
            raise UnimplementedError(f"{self.fetcher.described} cannot be pickled")
        state = self.overlay.state
        return driver_in_memory, (replace(state, changes=dict(state.changes)), self._members)

    @property
    def features(self) -> Features:
        """The abilities of the store."""
        return self._features

    async def read_many(self, reads: Sequence[Read]) -> Sequence[ReadResult]:
        """Return one result for each of `reads`: a few range reads a target, whatever the number of keys."""
        return await self._answer([read.key for read in reads], reads)

    async def read_whole(self, keys: Sequence[str]) -> Sequence[ReadResult]:
        """Return one result for each of `keys`, whose whole values are wanted."""
        return await self._answer(keys, None)

    async def _answer(self, keys: Sequence[str], reads: Sequence[Read] | None) -> Sequence[ReadResult]:
        """Answer `reads`, which have these `keys`; without them, whole values are wanted."""
        time = now()
        resolved = await self.overlay.resolve(keys)
        rows = resolved.rows
        if len(keys) == 1 and rows.url[0] >= 0:
            answer = (await self._read_targets(keys, reads, resolved, _FIRST))[0]
            return [answer if reads is None else _unless_known(reads[0], answer)]
        wanted, inline = np.flatnonzero(rows.url >= 0), np.flatnonzero(rows.url == INLINE)
        found = await self._read_targets(keys, reads, resolved, wanted) if len(wanted) else []
        if isinstance(found, AnswerColumns) and not len(inline) and not (reads and any(map(_if_not_equal, reads))):
            return found.among(wanted, len(keys))
        results = [ReadResult("missing", b"", NO_VALUE, time)] * len(keys)
        asked = reads or list(map(Read, keys))
        for position in inline.tolist():
            results[position] = _inline(
                asked[position], resolved.inline[int(rows.offset[position])], time, self.describe_key
            )
        for position, result in zip(wanted.tolist(), found, strict=True):
            results[position] = _unless_known(asked[position], result)
        return results

    async def _read_targets(
        self, keys: Sequence[str], reads: Sequence[Read] | None, resolved: Resolved, wanted: Ints
    ) -> Sequence[ReadResult]:
        """Return the answers to the requests at the places `wanted`, whose values lie in targets."""
        asks = _asks(keys, resolved, wanted)
        if reads is not None:
            asks = _narrowed(asks, [reads[position] for position in wanted.tolist()], self.describe_key)
        empty = asks.length == 0
        if not empty.any():
            return await self._fetch(asks, resolved, wanted)
        kept, time = np.flatnonzero(~empty), now()
        found = iter(await self._fetch(asks.take(kept), resolved, wanted[kept]) if len(kept) else [])
        sizes = [None if size == WHOLE else size for size in resolved.rows.length[wanted].tolist()]
        return [
            ReadResult("value", b"", b"empty", time, size) if nothing else next(found)
            for nothing, size in zip(empty.tolist(), sizes, strict=True)
        ]

    async def _fetch(self, asks: Asks, resolved: Resolved, wanted: Ints) -> Sequence[ReadResult]:
        lengths = resolved.rows.length[wanted]
        large = np.flatnonzero((lengths == WHOLE) | (lengths > FREE)).tolist()
        most = await _bound(self, asks, resolved, wanted, large) if large else None
        with values_up_to(most):
            return await self.fetcher.fetch(asks, resolved.urls)

    async def known_size(self, key: str) -> int | None:
        """Return the length that a reference states, or None; whether the target is there, reading it shows."""
        rows = (await self.overlay.resolve([key])).rows
        length = int(rows.length[0])
        return length if rows.url[0] >= 0 and length != WHOLE else None

    def begin_creating(self) -> None:
        """Let a set that does not exist read as an empty one, because it is about to be written."""
        self.overlay.begin_creating()

    async def write_many(self, writes: Sequence[Write]) -> list[Stamp]:
        """Store values inline, or delete keys, and save the set."""
        return await self.overlay.write(writes, self)

    async def delete_range(self, keys: KeyRange) -> None:
        """Delete every key in the range from the set; targets stay."""
        self.begin_creating()
        doomed = [Write(entry.key, None) async for batch in self.scan(keys) for entry in batch]
        if doomed:
            await self.overlay.write(doomed, self)

    async def scan(self, keys: KeyRange) -> AsyncIterator[Sequence[Entry]]:
        """Yield the keys in the range with their sizes; whole targets have none."""
        async for page in self.overlay.scan(keys):
            yield _entries(*page)

    async def documents(self, keys: KeyRange) -> AsyncIterator[Sequence[Entry]]:
        """Yield the same without most of the chunks, which are not looked at."""
        async for page in self.overlay.documents(keys):
            yield _entries(*page)

    def describe_key(self, key: str) -> str:
        """Return `"key" in reference set ...`."""
        return f"{quote(key)} in {self.fetcher.described}"

    def spec(self) -> Mapping[str, Json]:
        """Return the members the store was opened with, credentials left out."""
        return self._members


async def _bound(driver: ReferenceDriver, asks: Asks, resolved: Resolved, wanted: Ints, large: list[int]) -> int | None:
    """Refuse values that are larger than the chunks of their arrays can need, before they are fetched.

    Returns how many bytes whole targets may have, for stores that learn their size on the way.
    """
    limits = await limits_of(driver.overlay, [asks.keys[number] for number in large])
    probes, whole = [], []
    for number, limit in zip(large, limits, strict=True):
        length = int(resolved.rows.length[wanted[number]])
        with within(f"Error reading {driver.describe_key(asks.keys[number])}"):
            if length != WHOLE:
                check_length(length, limit)
                continue
            whole.append(limit)
            if limit is not None and asks.start[number] == 0 and asks.stop[number] == REST:
                probes.append(_probe(driver, asks.keys[number], resolved.urls[int(asks.url[number])], limit))
    await execution.gather(probes)
    known = [limit for limit in whole if limit is not None]
    return max(known) if known and len(known) == len(whole) else None


async def _probe(driver: ReferenceDriver, key: str, url: str, limit: int) -> None:
    """Ask how large a whole target is, where that is cheap or nobody vouches for the set."""
    targets = driver.fetcher.targets
    with within(f"Error reading {driver.describe_key(key)}"):
        place = targets.locate(url)
        store = await targets.root(place.root)
        if not store.driver.features.waits or targets.policy.restricts:
            await refuse_larger(store, place.key, limit)


def _identity(driver: ReferenceDriver) -> tuple[Any, ...]:
    owner = None if driver.overlay.is_stored else id(driver.overlay)
    return owner, driver.fetcher.described, driver.fetcher.targets.base, driver.spec()


def _entries(names: list[str], resolved: Resolved) -> EntryColumns:
    def sizes() -> list[int | None]:
        return [None if size == WHOLE else size for size in resolved.rows.length.tolist()]

    return EntryColumns(names=names, sizes=sizes)


_FIRST = np.zeros(1, np.int64)
_if_not_equal = attrgetter("if_not_equal")


def _unless_known(read: Read, result: ReadResult) -> ReadResult:
    """Return the answer without its value if the caller has it."""
    stamp, known = result.generation, read.if_not_equal
    unchanged = known == stamp and known != UNKNOWN
    return ReadResult("unspecified", b"", stamp, result.time) if unchanged else result


def _inline(read: Read, value: bytes, time: float, describe: Callable[[str], str]) -> ReadResult:
    stamp = inline_generation(value)
    if read.if_not_equal == stamp:
        return ReadResult("unspecified", b"", stamp, time)
    start, stop = _range(read, len(value), describe)
    return ReadResult("value", value[start:stop], stamp, time, len(value))


@contextlib.contextmanager
def within(place: str) -> Iterator[None]:
    """Put the place in front of errors."""
    try:
        yield
    except StoreError as error:
        raise error.within(place) from error


def _range(read: Read, size: int, describe: Callable[[str], str]) -> tuple[int, int]:
    with within(f"Error reading {describe(read.key)}"):
        return resolve_range(read.start, read.stop, size)


def _asks(keys: Sequence[str], resolved: Resolved, wanted: Ints) -> Asks:
    """Return what to read in targets for the whole values at the places `wanted`."""
    rows = resolved.rows
    if len(wanted) < len(keys):
        rows, keys = rows.take(wanted), [keys[position] for position in wanted.tolist()]
    whole = rows.length == WHOLE
    stop = np.where(whole, REST, rows.offset + rows.length)
    return Asks(keys, rows.url, rows.offset, stop, whole, rows.offset, rows.length)


def _narrowed(asks: Asks, reads: Sequence[Read], describe: Callable[[str], str]) -> Asks:
    """Return what to ask for the parts of values that `reads` want."""
    start, stop = asks.start.copy(), asks.stop
    inside = _inside(asks, reads)
    if inside is not None:
        return asks._replace(start=start + inside[0], stop=start + inside[1])
    for number, read in enumerate(reads):
        if not read.start and read.stop is None:
            continue
        if stop[number] == REST:
            start[number], stop[number] = read.start, REST if read.stop is None else read.stop
        else:
            first, last = _range(read, int(stop[number] - start[number]), describe)
            start[number], stop[number] = start[number] + first, start[number] + last
    return asks._replace(start=start)


def _inside(asks: Asks, reads: Sequence[Read]) -> tuple[Ints, Ints] | None:
    """Return which bytes of values `reads` want, if they are given by both ends and lie within known lengths."""
    firsts, stops = [read.start for read in reads], [read.stop for read in reads]
    if len(reads) < FEW or None in stops:
        return None
    low, high = np.array(firsts, np.int64), np.array(stops, np.int64)
    lengths = np.where(asks.stop == REST, -1, asks.stop - asks.start)
    return (low, high) if ((low >= 0) & (low <= high) & (high <= lengths)).all() else None


def driver_in_memory(state: State, members: Mapping[str, Any], base: KvPrefix | None = None) -> KvDriver:
    """Return the key-value store over a set in memory; what is written changes this store only."""
    overlay = Overlay(state, None, writable=True)
    return reference_driver(overlay, members, base=base, described="reference set in memory")


def reference_driver(
    overlay: Overlay,
    members: Mapping[str, Any],
    *,
    base: KvPrefix | None,
    described: str,
    means: tuple[Limits, OpenTarget] | None = None,
    scanned: Mapping[str, Scanned] | None = None,
) -> KvDriver:
    """Return the key-value store over an opened set; `base` is the directory it lies in.

    `scanned` says by URL what targets were that must still be the same.
    """
    limits, open_target = means or (Limits(), open_with_spec)
    targets = Targets(
        open_target,
        policy_of(base, members, overlay.state.base.origins),
        base,
        check_prefixes(members.get("targets") or {}),
        reveal(members.get("rewrite")) or {},
    )
    waits = _waits(overlay, targets)
    fetcher = Fetcher(targets, limits if waits else limits.near, described, scanned or {})
    return ReferenceDriver(overlay, fetcher, waits=waits, members=members)


def _waits(overlay: Overlay, targets: Targets) -> bool:
    """Return whether reading may suspend: not if all is known to lie in local files."""
    base = overlay.state.base
    document = targets.base
    if base.waits or not isinstance(base, TableSet) or base.gens:
        return True
    if document is not None and document.driver.features.waits and overlay.writable:
        return True
    try:
        return not all(targets.local(url) for url in base.table.urls)
    except StoreError:
        return True
