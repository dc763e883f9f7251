"""Reference sets: making the table of their references, and a set as the driver sees it, whatever the document was.

A `ReferenceSet` answers a batch of keys with columns, the URLs and the inline values these point into.  `TableSet`
is a table, with generators in front that compute their references on demand.
"""

from __future__ import annotations

import bisect
import itertools
import math
import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, compress
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from fsstore.errors import JsonError, ResourceExhaustedError
from fsstore.kvstore.contract.request import KeyRange
from fsstore.reference.table.generator import Gen, parse_gen, written_out
from fsstore.reference.table.keys import (
    Family,
    FoundFamilies,
    Ints,
    Mask,
    Words,
    families_of,
    hashes_of,
    join,
    split_keys,
)
from fsstore.reference.table.table import ABSENT, INLINE, Block, Inline, Int32, Int64, Located, Piece, Row, Rows, Table
from fsstore.reference.table.template import Templates
from fsstore.runtime import fork
from fsstore.runtime.tuning import COLUMNS_FROM, DENSE_PLACES, ROWS_AT_ONCE
from fsstore.values.json_value import Fields, Json, integer, string

# Keys arrive in batches, and the families of a batch are found in bulk. A family with several keys in a
# batch becomes a piece. All other keys (nearly all, in a set of thousands of small arrays) stay loose keys,
# each with the hash of its family. At the end, only loose keys whose hash occurs again, or belongs to a
# piece, are taken apart, all together. So an array of one chunk costs no more than a name: 0.8 µs, compared
# with 10 or more for a block of its own.


class Run(NamedTuple):
    """References taken together: their keys sorted by family, rows in that order, and what these point into.

    Rows count URLs and values from the first of the run.
    """

    found: FoundFamilies
    loose: list[str]
    rows: Rows
    urls: list[bytes]
    values: list[Piece]


class _Part(NamedTuple):
    """References of one family in a batch."""

    batch: int
    coords: Int64
    rows: Rows


_SPENT = _Part(0, np.zeros((0, 0), np.int64), Rows.absent(0))


class _Loose(NamedTuple):
    """The loose keys of a batch, and the hashes of their families."""

    batch: int
    keys: list[str]
    hashes: Words
    rows: Rows

    def at(self, where: Mask) -> _Loose:
        """Return some of the references."""
        keys = list(compress(self.keys, where.tolist()))
        return _Loose(self.batch, keys, self.hashes[where], self.rows.take(where))


class TableBuilder:
    """Collects references in document order; of equal keys the last wins."""

    def __init__(self) -> None:
        self.urls: list[str] = []
        self.inline = Inline()
        self._ids: dict[bytes, int] = {}
        self._loose: list[_Loose] = []
        self._parts: dict[Family, list[_Part]] = {}
        self._waiting: list[tuple[bytes, Row]] = []
        self._batch = 0

    def url_ids(self, urls: Sequence[bytes]) -> Int32:
        """Return the numbers of `urls`, new ones included."""
        ids = self._ids
        try:
            return np.fromiter(map(ids.__getitem__, urls), np.int32, len(urls))
        except KeyError:
            for url in dict.fromkeys(urls):
                if url not in ids:
                    self.urls.append(url.decode())
                    ids[url] = len(ids)
            return np.fromiter(map(ids.__getitem__, urls), np.int32, len(urls))

    def add(self, key: bytes, row: Row) -> None:
        """Add one reference."""
        self._waiting.append((key, row))
        if len(self._waiting) >= ROWS_AT_ONCE:
            self._flush()

    def add_inline(self, key: bytes, value: bytes) -> None:
        """Add one inline value."""
        self.add(key, Row(INLINE, self.inline.append(value), len(value)))

    def add_rows(self, keys: Sequence[bytes], rows: Rows) -> None:
        """Add many references at once."""
        self._flush()
        self._add(keys, rows)

    def add_numbered(self, family: Family, coords: Any, rows: Rows) -> None:
        """Add references whose keys are known by their family and their numbers, a row each."""
        self._flush()
        self._batch += 1
        self._keep(family, _Part(self._batch, coords, rows))

    def add_run(self, run: Run) -> None:
        """Add references whose keys are sorted, and whose rows count URLs and inline values of their own."""
        self._flush()
        url, offset, length = run.rows
        ids, first = self.url_ids(run.urls), self.inline.extend(run.values)
        if run.values:
            offset = np.where(url == INLINE, offset + first, offset)
        url = np.where(url >= 0, ids.take(url, mode="clip"), url) if len(ids) else url
        self._put(run.found, run.loose, Rows(url, offset, length))

    def _flush(self) -> None:
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            self._add([key for key, _ in waiting], Rows.of([row for _, row in waiting]))

    def _add(self, keys: Sequence[bytes], rows: Rows) -> None:
        found = families_of(keys)
        loose = [keys[position].decode() for position in found.order[found.grouped :].tolist()]
        self._put(found, loose, rows.take(found.order))

    def _put(self, found: FoundFamilies, loose: list[str], rows: Rows) -> None:
        """Keep a batch of references in the order of what was found of its keys."""
        self._batch += 1
        for group in found.groups:
            self._keep(group.family, _Part(self._batch, group.coords, rows.take(group.positions)))
        if loose:
            behind = rows.take(slice(found.grouped, None))
            self._loose.append(_Loose(self._batch, loose, found.hashes, behind))

    def _keep(self, family: Family, part: _Part) -> None:
        coords: Any = part.coords
        if coords.dtype == np.int64 and coords.max() < 2**31:
            part = part._replace(coords=coords.astype(np.int32))
        self._parts.setdefault(family, []).append(part)

    def finish(self) -> Table:
        """Return the table; the builder is spent."""
        self._flush()
        self._gather()
        loose: list[tuple[Iterable[str], Rows]] = [(part.keys, part.rows) for part in self._loose]
        blocks = {}
        while self._parts:
            family, parts = self._parts.popitem()
            count = sum(len(part.coords) for part in parts)
            block = _block(family, parts) if count >= COLUMNS_FROM else None
            if block is None:
                loose += [(join(family, part.coords), part.rows) for part in parts]
            else:
                blocks[family] = block
        names = dict(zip(chain.from_iterable(keys for keys, _ in loose), itertools.count(), strict=False))
        return Table(self.urls, self.inline, names, _joined([rows for _, rows in loose]), blocks)

    def _gather(self) -> None:
        """Make parts of the loose keys whose family has more keys, in their batch or elsewhere."""
        shared = _shared([part.hashes for part in self._loose], hashes_of(self._parts))
        if not shared.any():
            return
        bounds = np.cumsum([len(part.keys) for part in self._loose])[:-1]
        chosen = [part.at(here) for part, here in zip(self._loose, np.split(shared, bounds), strict=True)]
        self._loose = [part.at(here) for part, here in zip(self._loose, np.split(~shared, bounds), strict=True)]
        keys = [key.encode() for part in chosen for key in part.keys]
        rows = _joined([part.rows for part in chosen])
        batches = np.repeat([part.batch for part in chosen], [len(part.keys) for part in chosen])
        found = families_of(keys)
        behind = found.order[found.grouped :]
        for order, groups in (
            (found.order, found.groups),
            (behind, split_keys([keys[at] for at in behind.tolist()])[0]),
        ):
            for group in groups:
                at = order[group.positions]
                self._merge(group.family, group.coords, rows.take(at), batches[at])

    def _merge(self, family: Family, coords: Int64, rows: Rows, batches: Ints) -> None:
        """Keep references of a family from several batches; each behind what came before its batch."""
        if family not in self._parts:
            self._keep(family, _Part(0, coords, rows))
            return
        for batch in np.unique(batches).tolist():
            here = batches == batch
            self._keep(family, _Part(batch, coords[here], rows.take(here)))
        self._parts[family].sort(key=lambda part: part.batch)


def _shared(hashes: Sequence[Words], known: Words) -> Mask:
    """Return which hashes come several times or are known; zero is none."""
    found = np.concatenate([*hashes, np.zeros(0, np.uint64)])
    ordered = np.sort(found[found != 0])
    last = ordered[COLUMNS_FROM - 1 :]
    return np.isin(found, np.append(known, last[last == ordered[: len(last)]]))


def _block(family: Family, parts: list[_Part]) -> Block | None:
    """Return the block of rows in document order, or None when its grid is too large to number.

    The parts are spent: each is dropped as soon as its rows are in their place.
    """
    count = sum(len(part.coords) for part in parts)
    if count < ROWS_AT_ONCE and len(parts) > 1:  # many small parts would cost more than what is in them
        coords = np.concatenate([part.coords for part in parts])
        parts[:] = [_Part(0, coords, _joined([part.rows for part in parts]))]
    grid = tuple(int(size) + 1 for size in np.max([part.coords.max(axis=0) for part in parts], axis=0))
    total = math.prod(grid)
    if total >= 2**62:
        return None
    if total <= count * DENSE_PLACES:
        dense = Rows.absent(total)
        for number, part in enumerate(parts):
            dense.put(_linear(part.coords, grid), part.rows)
            parts[number] = _SPENT
        return Block(family, grid, None, dense)
    linear = np.concatenate([_linear(part.coords, grid) for part in parts])
    columns = _joined([part.rows for part in parts])
    parts.clear()
    order = np.argsort(linear, kind="stable")
    linear = linear[order]
    last = np.append(linear[1:] != linear[:-1], True)  # a mask, not a flag
    return Block(family, grid, linear[last], columns.take(order[last]))


def _joined(parts: Sequence[Rows]) -> Rows:
    return Rows(*map(np.concatenate, zip(*parts, strict=True))) if parts else Rows.absent(0)


def _linear(coords: Int64, grid: tuple[int, ...]) -> Int64:
    linear = np.zeros(len(coords), np.int64)
    for dim, size in enumerate(grid):
        linear *= size
        linear += coords[:, dim]
    return linear


# Which file a set was scanned from: enough to tell, later and elsewhere, whether it still is that file;
# and the member `origins`: the hosts that it came from, so that it reads no more wherever it is saved.

MEMBER = "scanned"
ORIGINS = "origins"
Origins: TypeAlias = tuple[str, ...] | None
"""The hosts that a set from remote places came from, as prefixes of URLs; None for a set of this machine."""


def common_origins(first: Origins, second: Origins) -> Origins:
    """Return the origins of what two sets become: it may read what both may, from hosts that both came from."""
    if first is None or second is None:
        return second if first is None else first
    return tuple(each for each in first if each in second)


def saved_origins(origins: Origins) -> dict[str, Json]:
    """Return the member of a document, none for a set of this machine."""
    return {} if origins is None else {ORIGINS: list(origins)}


def parse_origins(value: Any) -> Origins:
    """Return the origins that a document holds; a member of another form is that of an unknown place."""
    if value is None:
        return None
    return tuple(each for each in value if isinstance(each, str)) if isinstance(value, list) else ()


@dataclass(frozen=True, slots=True)
class ScanRecord:
    """A scanned file: its format, what the references call it, its size, and what its store says of its version.

    `stamp` is empty where the store says nothing.
    """

    format: str
    url: str
    size: int
    stamp: str

    def json(self) -> dict[str, Json]:
        """Return the member."""
        return {"format": self.format, "url": self.url, "size": self.size, "stamp": self.stamp}

    def moved(self, move: Callable[[str], str]) -> ScanRecord:
        """Return the record of a set that calls its targets otherwise."""
        return replace(self, url=move(self.url))

    @classmethod
    def parse(cls, value: Any) -> ScanRecord | None:
        """Return the record that a document holds; None for a member that is none, which other programs may write."""
        if not isinstance(value, dict):
            return None
        fields = Fields(value)
        try:
            found = cls(
                fields.require("format", string),
                fields.require("url", string),
                fields.require("size", integer(0, 2**63)),
                fields.require("stamp", string),
            )
            fields.finish()
        except JsonError:
            return None
        return found


MAX_LISTED = 50_000_000
MAX_TEXT = 2**30
"""Characters that the URLs of generated references may have together."""
_ORIGIN = re.compile(r"(.*?)(?:^|/)(?:c/)?(?:0[./])*[0c]\Z", re.DOTALL)


class Resolved(NamedTuple):
    """References of a batch of keys, and what they point into."""

    rows: Rows
    urls: Sequence[str]
    inline: Sequence[bytes]

    def value(self, position: int) -> bytes | Located | None:
        """Return one reference: inline bytes, a place, or None."""
        url, offset, length = (int(column[position]) for column in self.rows)
        if url >= 0:
            return Located(self.urls[url], offset, length)
        return None if url == ABSENT else self.inline[offset]


Page: TypeAlias = tuple[list[str], Resolved]
"""Keys, and their references as columns."""


class ReferenceSet(Protocol):
    """An opened set."""

    waits: bool
    """Whether resolving may suspend."""

    @property
    def scanned(self) -> ScanRecord | None:
        """The file that the set was scanned from, if it says so."""
        ...

    @property
    def origins(self) -> Origins:
        """The remote places that it was saved from, if it says so."""
        ...

    async def resolve(self, keys: Sequence[str]) -> Resolved:
        """Return the references of `keys`, in order."""
        ...

    def scan(self, keys: KeyRange) -> AsyncIterator[Page]:
        """Yield the keys in a range with their references, in batches."""
        ...

    def documents(self, keys: KeyRange) -> AsyncIterator[Page]:
        """Yield the same without chunks that are easily left out, so that no set is too large for it."""
        ...


class TableSet:
    """A table of references with symbolic generators in front of it.

    `described` holds the members `templates` and `gen` as the document wrote them, to be written again.
    """

    waits: bool = False
    scanned: ScanRecord | None = None
    origins: Origins = None

    def __init__(self, table: Table, gens: tuple[Gen, ...] = (), described: Mapping[str, Any] | None = None) -> None:
        self.table, self.gens, self.described = table, gens, dict(described or {})
        self._index = GenIndex(gens)
        self._ids: dict[str, int] = {}
        self._text = 0
        self._lock = fork.lock()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the table, and the text of the generators."""
        return _again, (self.table, self.described, self.origins)

    async def resolve(self, keys: Sequence[str]) -> Resolved:
        """Return the references of `keys`."""
        return self.find(keys)

    def find(self, keys: Sequence[str]) -> Resolved:
        """Return the references of `keys` without waiting."""
        rows = self.table.find(keys)
        if self.gens:
            for position, key in enumerate(keys):
                found = self._index.find(key)
                if found is not None:
                    rows.url[position], rows.offset[position], rows.length[position] = self._row(found[1])
        for position in np.flatnonzero(rows.url == ABSENT).tolist():
            row = self._elsewhere(keys[position])
            if row is not None:
                rows.url[position], rows.offset[position], rows.length[position] = row
        return Resolved(rows, self.table.urls, self.table.inline)

    def _row(self, found: Located) -> Row:
        return Row(self._number(str(found.url)), found.offset, found.length)

    def _number(self, url: str) -> int:
        number = self._ids.get(url)
        if number is None:
            with self._lock:
                number = self._ids.setdefault(url, len(self.table.urls))
                if number == len(self.table.urls):
                    self.table.urls.append(url)
                    self._text += len(url)
        if self._text > MAX_TEXT:
            raise ResourceExhaustedError("The URLs of generated references are too long to be kept in memory")
        return number

    def _elsewhere(self, key: str) -> Row | None:
        """Return the only chunk of an array under the key some writers give it.

        VirtualiZarr writes scalars under `name/`; kerchunk's GRIB scan inlines `name/0.0` under `name/0`.
        """
        match = _ORIGIN.match(key)
        if match is None:
            return None
        prefix = match[1] + "/" if match[1] else ""
        for other in (prefix, prefix + "0"):
            row = self.table.find_one(other) if other != key else None
            if row is not None and row.url != ABSENT:
                return row
        return None

    async def scan(self, keys: KeyRange) -> AsyncIterator[Page]:
        """Yield the keys in a range: the table's, then the generated ones."""
        for page in self.batches(keys):
            yield page

    def batches(self, keys: KeyRange) -> Iterator[Page]:
        """Yield the same without waiting."""
        return self._pages(self.table.scan(keys), range(len(self.gens)), keys)

    async def documents(self, keys: KeyRange) -> AsyncIterator[Page]:
        """Yield the loose keys, and those of generators whose keys may end in anything but a number."""
        gens = [number for number, gen in enumerate(self.gens) if not gen.is_numbered]
        for page in self._pages(self.table.loose_in(keys), gens, keys):
            yield page

    def _pages(self, table: Iterable[tuple[list[str], Rows]], gens: Iterable[int], keys: KeyRange) -> Iterator[Page]:
        listed = [number for number in gens if self.gens[number].may_hold(keys)]
        _check_listed([self.gens[number] for number in listed])
        for found, columns in table:
            kept = [at for at, name in enumerate(found) if self._index.find(name) is None] if self.gens else None
            names = found if kept is None else [found[at] for at in kept]
            rows = columns if kept is None else columns.take(kept)
            yield names, Resolved(rows, self.table.urls, self.table.inline)
        for number in listed:
            gen = self.gens[number]
            if gen.is_distinct and self._index.is_alone(number):
                yield from self._expanded(gen, keys)
                continue
            for names in self._named(number, keys):
                yield names, self.find(names)

    def _named(self, number: int, keys: KeyRange) -> Iterator[list[str]]:
        """Yield the keys of a generator in a range, each once, without those that a later one describes too."""
        batch: list[str] = []
        seen: set[str] = set()
        for key in self.gens[number].names():
            if key in seen or not keys.contains(key):
                continue
            seen.add(key)
            found = self._index.find(key)
            if found is not None and found[0] == number:
                batch.append(key)
            if len(batch) >= ROWS_AT_ONCE:
                yield batch
                batch = []
        if batch:
            yield batch

    def _expanded(self, gen: Gen, keys: KeyRange) -> Iterator[Page]:
        """Yield what a generator describes whose keys are all different, without reading the keys back."""
        for batch in written_out(gen, None if keys == KeyRange() else keys.contains):
            numbers = np.array([self._number(url) for url in batch.urls], np.int32)
            rows = Rows(numbers[batch.where], batch.offset, batch.length)
            yield batch.names, Resolved(rows, self.table.urls, self.table.inline)


def _check_listed(gens: Sequence[Gen]) -> None:
    count = sum(gen.count for gen in gens)
    if count > MAX_LISTED:
        raise ResourceExhaustedError(f"Cannot list the {count} keys of generators such as {gens[0].key.text!r}")


def _again(table: Table, described: Mapping[str, Any], origins: Origins = None) -> TableSet:
    """Return a set whose generators are made of their text once more: they are compiled."""
    named = Templates(described.get("templates", {}))
    found = TableSet(table, tuple(parse_gen(gen, named) for gen in described.get("gen", ())), described)
    found.origins = origins
    return found


class GenIndex:
    """The generators of a set; of those that describe a key the last wins."""

    def __init__(self, gens: Sequence[Gen]) -> None:
        self._gens = gens
        self._numbers: dict[str, list[int]] = {}
        for number, gen in enumerate(gens):
            self._numbers.setdefault(gen.prefix, []).append(number)
        self._prefixes = sorted(self._numbers)
        self._lengths = sorted({len(prefix) for prefix in self._prefixes})

    def find(self, key: str) -> tuple[int, Located] | None:
        """Return the number of the generator that describes a key, and the reference."""
        for number in sorted(self._beginning(key), reverse=True):
            found = self._gens[number].find(key)
            if found is not None:
                return number, found
        return None

    def is_alone(self, number: int) -> bool:
        """Return whether the keys of a generator certainly differ from all others."""
        prefix = self._gens[number].prefix
        after = bisect.bisect_right(self._prefixes, prefix)
        longer = after < len(self._prefixes) and self._prefixes[after].startswith(prefix)
        return not longer and self._beginning(prefix) == [number]

    def _beginning(self, key: str) -> list[int]:
        """Return the generators whose keys begin as `key` does."""
        return [
            number for length in self._lengths if length <= len(key) for number in self._numbers.get(key[:length], ())
        ]
