"""The columnar table: every reference of a set in about twenty bytes.

A reference is a row of three numbers: `url` (an index into the table's URLs, or a marker), `offset`, `length`.

    url >= 0, length >= 0    the bytes [offset, offset + length) of the URL
    url >= 0, length == -1   all of the URL
    url == INLINE            the value is `inline[offset]`, of `length` bytes
    url == ABSENT            there is no such key

Keys of one family (see `keys`) form a *block*: a dense grid over their coordinates when most of it is filled, else
rows sorted by the linear index.  Coordinates are relative to the block's own grid, made from the keys seen, so a
sparse array with 2^50 chunks costs what its references cost.  Loose keys, and families of a few keys, are the names of
rows of their own.

A block may also be one array's, whose path ends in a number (`level/0`).  Splitting takes that number for a coordinate
and so never names the family of such a block; these are found by trying to leave numbers to the path.

The table is immutable once built (`table_builder`), and knows nothing of JSON, parquet, URLs or policies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from fsstore.kvstore.contract.request import KeyRange
from fsstore.reference.table.keys import Family, join, split, split_one, tails
from fsstore.reference.tuning import FEW_KEYS, ROWS_AT_ONCE

__all__ = ["ABSENT", "INLINE", "WHOLE", "Block", "Int32", "Int64", "Row", "Rows", "Table"]

ABSENT = -1
INLINE = -2
WHOLE = -1


Int64: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
Int32: TypeAlias = np.ndarray[Any, np.dtype[np.int32]]


class Row(NamedTuple):
    """One reference."""

    url: int
    offset: int
    length: int


_NOTHING = Row(ABSENT, 0, 0)


class Rows(NamedTuple):
    """References as columns."""

    url: Int32
    offset: Int64
    length: Int64

    @classmethod
    def absent(cls, count: int) -> Rows:
        """Return `count` rows of no reference."""
        return cls(np.full(count, ABSENT, np.int32), np.zeros(count, np.int64), np.zeros(count, np.int64))

    @classmethod
    def of(cls, rows: Sequence[Row]) -> Rows:
        """Return single rows as columns."""
        urls, offsets, lengths = zip(*rows, strict=True) if rows else ((), (), ())
        return cls(np.array(urls, np.int32), np.array(offsets, np.int64), np.array(lengths, np.int64))

    def take(self, where: Any) -> Rows:
        """Return the rows a NumPy index selects."""
        return Rows(self.url[where], self.offset[where], self.length[where])

    def put(self, where: Any, rows: Rows) -> None:
        """Replace the rows a NumPy index selects."""
        self.url[where], self.offset[where], self.length[where] = rows

    def row(self, at: int) -> Row:
        """Return one row."""
        return Row(int(self.url[at]), int(self.offset[at]), int(self.length[at]))

    @property
    def nbytes(self) -> int:
        """The memory the columns take."""
        return int(self.url.nbytes + self.offset.nbytes + self.length.nbytes)


@dataclass(frozen=True, slots=True)
class Block:
    """The rows of one family.  `index` is None when the rows are the whole grid in C order."""

    family: Family
    grid: tuple[int, ...]
    index: Int64 | None
    rows: Rows

    def find(self, coords: Int64) -> Rows:
        """Return the rows of `coords`."""
        inside = (coords < np.array(self.grid, np.int64)).all(axis=1)
        linear = np.zeros(len(coords), np.int64)
        for dim, size in enumerate(self.grid):
            linear = linear * size + np.where(inside, coords[:, dim], 0)
        if self.index is None:
            found, known = linear, inside
        else:
            found = np.minimum(np.searchsorted(self.index, linear), len(self.index) - 1)
            known = inside & (self.index[found] == linear)
        rows = self.rows.take(found)
        rows.url[~known] = ABSENT
        return rows

    def find_one(self, coords: Sequence[int]) -> Row | None:
        """Return the row of one chunk, or None."""
        at = 0
        for number, size in zip(coords, self.grid, strict=True):
            if number >= size:
                return None
            at = at * size + number
        if self.index is not None:
            linear, at = at, int(np.searchsorted(self.index, at))
            if at >= len(self.index) or self.index[at] != linear:
                return None
        return self.rows.row(at)

    def keys(self, start: int, stop: int) -> tuple[list[str], Rows]:
        """Return the keys and rows that exist among the stored rows `[start, stop)`."""
        rows = self.rows.take(slice(start, stop))
        present = np.flatnonzero(rows.url != ABSENT)
        linear = present + start if self.index is None else self.index[start:stop][present]
        coords = np.stack(np.unravel_index(linear, self.grid), axis=1)
        return list(join(self.family, coords)), rows.take(present)

    @property
    def splits(self) -> bool:
        """Whether splitting one of its keys gives its family: not if the path of its array ends in a number."""
        prefix, seps = self.family
        found = split_one((prefix + b"".join(b"%c0" % sep for sep in seps))[1:])
        return found is not None and found[0] == self.family

    @property
    def prefix(self) -> str:
        """The common start of all keys of the block."""
        return (self.family[0] + self.family[1][:1])[1:].decode()


@dataclass(frozen=True, slots=True)
class Table:
    """References by key: `rows`, which loose keys number, and blocks.  `urls` and `inline` are what rows point into."""

    urls: list[str] = field(default_factory=list)
    inline: Sequence[bytes] = ()
    loose: dict[str, int] = field(default_factory=dict)
    rows: Rows = field(default_factory=lambda: Rows.absent(0))
    blocks: dict[Family, Block] = field(default_factory=dict)
    _numbered: dict[Family, Block] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Note the blocks that splitting does not find."""
        numbered = {family: block for family, block in self.blocks.items() if not block.splits}
        object.__setattr__(self, "_numbered", numbered)

    def __len__(self) -> int:
        """Return the number of keys that exist."""
        present = sum(int((block.rows.url != ABSENT).sum()) for block in self.blocks.values())
        return present + int((self.rows.url[list(self.loose.values())] != ABSENT).sum())

    @property
    def nbytes(self) -> int:
        """The memory of the columns; URLs, inline values and loose keys are aside."""
        index = sum(block.index.nbytes for block in self.blocks.values() if block.index is not None)
        return self.rows.nbytes + index + sum(block.rows.nbytes for block in self.blocks.values())

    def find(self, keys: Sequence[str]) -> Rows:
        """Return the rows of `keys`, in order."""
        if len(keys) <= FEW_KEYS:
            return Rows.of([self.find_one(key) or _NOTHING for key in keys])
        rows, loose = Rows.absent(len(keys)), self.loose
        groups, odd = split([key.encode("utf-8", "surrogateescape") for key in keys])
        for group in groups:
            block = self.blocks.get(group.family)
            if block is not None:
                rows.put(group.positions, block.find(group.coords))
            elif loose:
                odd.extend(np.arange(len(keys))[group.positions].tolist())
        numbers = [loose.get(keys[position], -1) for position in odd]
        known = [position for position, number in zip(odd, numbers, strict=True) if number >= 0]
        rows.put(known, self.rows.take([number for number in numbers if number >= 0]))
        if self._numbered:
            for position in np.flatnonzero(rows.url == ABSENT).tolist():
                row = self._find_numbered(keys[position])
                if row is not None:
                    rows.url[position], rows.offset[position], rows.length[position] = row
        return rows

    def find_one(self, key: str) -> Row | None:
        """Return the row of one key, or None; without the fixed cost of columns."""
        number = self.loose.get(key)
        if number is not None or not self.blocks:
            return None if number is None else self.rows.row(number)
        found = split_one(key.encode("utf-8", "surrogateescape"))
        block = None if found is None else self.blocks.get(found[0])
        row = None if found is None or block is None else block.find_one(found[1])
        if self._numbered and (row is None or row.url == ABSENT):
            return self._find_numbered(key) or row
        return row

    def _find_numbered(self, key: str) -> Row | None:
        """Return the row of a key in the block of an array whose path ends in a number, or None."""
        most = max(len(seps) for _, seps in self._numbered)
        for family, coords in tails(key.encode("utf-8", "surrogateescape"), most):
            block = self._numbered.get(family)
            row = None if block is None else block.find_one(coords)
            if row is not None and row.url != ABSENT:
                return row
        return None

    def loose_in(self, keys: KeyRange) -> Iterator[tuple[list[str], Rows]]:
        """Yield the loose keys of a range with their rows: those that end in no number, and few others."""
        names = sorted(name for name in self.loose if keys.contains(name))
        rows = self.rows.take([self.loose[name] for name in names])
        present = np.flatnonzero(rows.url != ABSENT)
        if len(present):
            yield [names[position] for position in present.tolist()], rows.take(present)

    def scan(self, keys: KeyRange) -> Iterator[tuple[list[str], Rows]]:
        """Yield the keys of a range with their rows, in batches; loose keys first, then block by block."""
        yield from self.loose_in(keys)
        for block in sorted(self.blocks.values(), key=lambda block: block.family):
            inside = KeyRange.prefix(block.prefix)
            if not _overlap(inside, keys):
                continue
            whole = keys.contains(inside.inclusive_min) and _covers(keys, inside)
            for start in range(0, len(block.rows.url), ROWS_AT_ONCE):
                found, rows = block.keys(start, start + ROWS_AT_ONCE)
                if not whole:
                    chosen = [position for position, key in enumerate(found) if keys.contains(key)]
                    found, rows = [found[position] for position in chosen], rows.take(chosen)
                if found:
                    yield found, rows


def _overlap(a: KeyRange, b: KeyRange) -> bool:
    low = max(a.inclusive_min, b.inclusive_min)
    return all(not end or low < end for end in (a.exclusive_max, b.exclusive_max))


def _covers(outer: KeyRange, inner: KeyRange) -> bool:
    if not outer.exclusive_max:
        return True
    return bool(inner.exclusive_max) and inner.exclusive_max <= outer.exclusive_max
