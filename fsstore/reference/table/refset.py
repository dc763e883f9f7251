"""Reference sets as the driver sees them: keys resolved in batches, whatever the document was.

A `ReferenceSet` answers a batch of keys with columns, the URLs and the inline values these point into.  `TableSet`
is a table, with generators in front that compute their references on demand.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from fsstore.errors import JsonError, ResourceExhaustedError
from fsstore.kvstore.contract.request import KeyRange
from fsstore.reference.table.generator import Gen, parse_gen, written_out
from fsstore.reference.table.table import ABSENT, Located, Row, Rows, Table
from fsstore.reference.table.template import Templates
from fsstore.runtime import fork
from fsstore.runtime.tuning import ROWS_AT_ONCE
from fsstore.values.json_value import Fields, Json, integer, string

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

    def __init__(
        self, table: Table, gens: tuple[Gen, ...] = (), described: Mapping[str, Any] | None = None
    ) -> None:
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

    def _pages(
        self, table: Iterable[tuple[list[str], Rows]], gens: Iterable[int], keys: KeyRange
    ) -> Iterator[Page]:
        listed = [number for number in gens if self.gens[number].may_hold(keys)]
        _check_listed([self.gens[number] for number in listed])
        for found, columns in table:
            kept = (
                [at for at, name in enumerate(found) if self._index.find(name) is None] if self.gens else None
            )
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
        raise ResourceExhaustedError(
            f"Cannot list the {count} keys of generators such as {gens[0].key.text!r}"
        )


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
            number
            for length in self._lengths
            if length <= len(key)
            for number in self._numbers.get(key[:length], ())
        ]
