"""Making the table: references in document order, sorted into blocks and loose keys.

Keys arrive in batches, and the families of a batch are found in bulk.  A family with several keys in a batch becomes a
piece.  All other keys (nearly all, in a set of thousands of small arrays) stay loose keys, each with the hash of its
family.  At the end, only loose keys whose hash occurs again, or belongs to a piece, are taken apart, all together.
So an array of one chunk costs no more than a name: 0.8 µs, compared with 10 or more for a block of its own.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from itertools import chain, compress
from typing import Any, NamedTuple

import numpy as np

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
from fsstore.reference.table.table import INLINE, Block, Inline, Int32, Int64, Piece, Row, Rows, Table
from fsstore.runtime.tuning import COLUMNS_FROM, DENSE_PLACES, ROWS_AT_ONCE


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
        self._loose = [
            part.at(here) for part, here in zip(self._loose, np.split(~shared, bounds), strict=True)
        ]
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
