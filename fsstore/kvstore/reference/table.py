"""The columnar table: every reference of a set in about twenty bytes.

A reference is a row of three numbers: `url` (an index into the table's URLs, or a marker), `offset`, `length`.

    url >= 0, length >= 0    the bytes [offset, offset + length) of the URL
    url >= 0, length == -1   all of the URL
    url == INLINE            the value is `inline[offset]`, of `length` bytes
    url == ABSENT            there is no such key

Keys of one family (see `keys`) form a *block*: a dense grid over their coordinates when most of it is filled, else
rows sorted by the linear index.  Coordinates are relative to the block's own grid, made from the keys seen, so a
sparse array with 2^50 chunks costs what its references cost.  Loose keys, and families of a few keys, are a dict.

The table is immutable once built, and knows nothing of JSON, parquet, URLs or policies.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from fsstore.kvstore.key_range import KeyRange
from fsstore.kvstore.reference.inline import Inline, Piece
from fsstore.kvstore.reference.keys import Family, Group, join, split, split_one

__all__ = ["ABSENT", "INLINE", "WHOLE", "Block", "Row", "Rows", "Run", "Table", "TableBuilder"]

ABSENT = -1
INLINE = -2
WHOLE = -1

_SMALL = 4
_DENSE = 1.5
_BATCH = 16384
_FEW = 8

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


class Run(NamedTuple):
    """References taken together: groups of keys and the loose keys, rows, and what these point into.

    The rows of the loose keys are the last; all count URLs and values from the first of the run.
    """

    groups: list[Group]
    loose: list[bytes]
    rows: Rows
    urls: list[bytes]
    values: list[Piece]


_Piece: TypeAlias = tuple[Int64, Rows]
_SPENT: _Piece = (np.zeros((0, 0), np.int64), Rows.absent(0))


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
    def prefix(self) -> str:
        """What all keys of the block start with."""
        return (self.family[0] + self.family[1][:1])[1:].decode()


@dataclass(frozen=True, slots=True)
class Table:
    """References by key.  `urls` and `inline` are what rows point into."""

    urls: list[str] = field(default_factory=list)
    inline: Sequence[bytes] = ()
    loose: dict[str, Row] = field(default_factory=dict)
    blocks: dict[Family, Block] = field(default_factory=dict)

    def __len__(self) -> int:
        """Return the number of keys that exist."""
        present = sum(int((block.rows.url != ABSENT).sum()) for block in self.blocks.values())
        return present + sum(row.url != ABSENT for row in self.loose.values())

    @property
    def nbytes(self) -> int:
        """The memory of the columns; URLs, inline values and loose keys are aside."""
        index = sum(block.index.nbytes for block in self.blocks.values() if block.index is not None)
        return index + sum(block.rows.nbytes for block in self.blocks.values())

    def find(self, keys: Sequence[str]) -> Rows:
        """Return the rows of `keys`, in order."""
        if len(keys) <= _FEW:
            return Rows.of([self.find_one(key) or _NOTHING for key in keys])
        rows, loose = Rows.absent(len(keys)), self.loose
        groups, odd = split([key.encode("utf-8", "surrogateescape") for key in keys])
        for group in groups:
            block = self.blocks.get(group.family)
            if block is not None:
                rows.put(group.positions, block.find(group.coords))
            elif loose:
                odd.extend(np.arange(len(keys))[group.positions].tolist())
        for position in odd:
            row = loose.get(keys[position])
            if row is not None:
                rows.url[position], rows.offset[position], rows.length[position] = row
        return rows

    def find_one(self, key: str) -> Row | None:
        """Return the row of one key, or None; without the fixed cost of columns."""
        row = self.loose.get(key)
        if row is not None or not self.blocks:
            return row
        found = split_one(key.encode("utf-8", "surrogateescape"))
        block = None if found is None else self.blocks.get(found[0])
        return None if found is None or block is None else block.find_one(found[1])

    def loose_in(self, keys: KeyRange) -> Iterator[tuple[list[str], Rows]]:
        """Yield the loose keys of a range with their rows: those that end in no number, and few others."""
        names = [name for name, row in self.loose.items() if row.url != ABSENT and keys.contains(name)]
        names.sort()
        if names:
            yield names, Rows.of([self.loose[name] for name in names])

    def scan(self, keys: KeyRange) -> Iterator[tuple[list[str], Rows]]:
        """Yield the keys of a range with their rows, in batches; loose keys first, then block by block."""
        yield from self.loose_in(keys)
        for block in sorted(self.blocks.values(), key=lambda block: block.family):
            inside = KeyRange.prefix(block.prefix)
            if not _overlap(inside, keys):
                continue
            whole = keys.contains(inside.inclusive_min) and _covers(keys, inside)
            for start in range(0, len(block.rows.url), _BATCH):
                found, rows = block.keys(start, start + _BATCH)
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


class TableBuilder:
    """Collects references in document order; of equal keys the last wins."""

    def __init__(self) -> None:
        self.urls: list[str] = []
        self.inline = Inline()
        self._ids: dict[bytes, int] = {}
        self._loose: dict[str, Row] = {}
        self._pieces: dict[Family, list[_Piece]] = {}
        self._waiting: list[tuple[bytes, Row]] = []

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
        if len(self._waiting) >= _BATCH:
            self._flush()

    def add_inline(self, key: bytes, value: bytes) -> None:
        """Add one inline value."""
        self.add(key, Row(INLINE, self.inline.append(value), len(value)))

    def add_rows(self, keys: Sequence[bytes] | Group, rows: Rows) -> None:
        """Add many references at once."""
        self._flush()
        if isinstance(keys, Group):
            self._add_group(keys, rows)
        else:
            self._add(keys, rows)

    def add_run(self, run: Run) -> None:
        """Add references whose keys are split, and whose rows count URLs and inline values of their own."""
        self._flush()
        url, offset, length = run.rows
        ids, first = self.url_ids(run.urls), self.inline.extend(run.values)
        if run.values:
            offset = np.where(url == INLINE, offset + first, offset)
        url = np.where(url >= 0, ids.take(url, mode="clip"), url) if len(ids) else url
        rows = Rows(url, offset, length)
        for group in run.groups:
            self._add_group(group, rows.take(group.positions))
        loose = rows.take(slice(len(url) - len(run.loose), None))
        self._spill([key.decode() for key in run.loose], loose)

    def _flush(self) -> None:
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            self._add([key for key, _ in waiting], Rows.of([row for _, row in waiting]))

    def _add(self, keys: Sequence[bytes], rows: Rows) -> None:
        groups, loose = split(keys)
        for group in groups:
            self._add_group(group, rows.take(group.positions))
        self._spill([keys[position].decode() for position in loose], rows.take(loose))

    def _add_group(self, group: Group, rows: Rows) -> None:
        coords: Any = group.coords
        if coords.dtype == np.int64 and coords.max() < 2**31:
            coords = coords.astype(np.int32)
        self._pieces.setdefault(group.family, []).append((coords, rows))

    def finish(self) -> Table:
        """Return the table; the builder is spent."""
        self._flush()
        blocks = {}
        while self._pieces:
            family, pieces = self._pieces.popitem()
            count = sum(len(coords) for coords, _ in pieces)
            block = _block(family, pieces) if count >= _SMALL else None
            if block is not None:
                blocks[family] = block
                continue
            for coords, rows in pieces:
                self._spill(join(family, coords), rows)
        return Table(self.urls, self.inline, self._loose, blocks)

    def _spill(self, keys: Iterable[str], rows: Rows) -> None:
        columns = (column.tolist() for column in rows)
        self._loose.update(zip(keys, map(Row._make, zip(*columns, strict=True)), strict=True))


def _block(family: Family, pieces: list[_Piece]) -> Block | None:
    """Return the block of rows in document order, or None when its grid is too large to number.

    The pieces are spent: each is dropped as soon as its rows are in their place.
    """
    count = sum(len(coords) for coords, _ in pieces)
    if count < _BATCH and len(pieces) > 1:  # many small pieces would cost more than what is in them
        pieces[:] = [(np.concatenate([coords for coords, _ in pieces]), _joined(pieces))]
    grid = tuple(int(size) + 1 for size in np.max([coords.max(axis=0) for coords, _ in pieces], axis=0))
    total = math.prod(grid)
    if total >= 2**62:
        return None
    if total <= count * _DENSE:
        dense = Rows.absent(total)
        for number, (coords, rows) in enumerate(pieces):
            dense.put(_linear(coords, grid), rows)
            pieces[number] = _SPENT
        return Block(family, grid, None, dense)
    linear = np.concatenate([_linear(coords, grid) for coords, _ in pieces])
    columns = _joined(pieces)
    pieces.clear()
    order = np.argsort(linear, kind="stable")
    linear = linear[order]
    last = np.append(linear[1:] != linear[:-1], True)  # a mask, not a flag
    return Block(family, grid, linear[last], columns.take(order[last]))


def _joined(pieces: list[_Piece]) -> Rows:
    """Return the rows of all pieces."""
    return Rows(*(np.concatenate(parts) for parts in zip(*(rows for _, rows in pieces), strict=True)))


def _linear(coords: Int64, grid: tuple[int, ...]) -> Int64:
    """Return the numbers of chunks in C order of a grid."""
    linear = np.zeros(len(coords), np.int64)
    for dim, size in enumerate(grid):
        linear *= size
        linear += coords[:, dim]
    return linear
