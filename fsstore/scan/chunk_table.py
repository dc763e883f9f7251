"""Chunk tables: where the chunks of one array are, as columns or as a formula.

`Columns` takes twenty bytes a chunk, for every chunk of the grid or for those that exist; `Strided` is a formula, for
chunks at equal distances: a million records of a NetCDF file take no memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fsstore.reference.table.table import ABSENT, INLINE, Row, Rows
from fsstore.scan.contract import MADE, SELF, Numbers
from fsstore.scan.tuning import RUN_CHUNK_BYTES

__all__ = ["Columns", "Made", "Strided", "empty", "inline", "run_chunks", "run_strides", "single"]

_ITSELF = (SELF,)


@dataclass(frozen=True, slots=True)
class Columns:
    """Rows of chunks.  Without `index` they are those of the whole grid in order, else those of the chunks it names,
    ascending.
    """

    rows: Rows
    index: Numbers | None = None
    urls: Sequence[str] = _ITSELF
    inline: Sequence[bytes] = ()

    @property
    def nbytes(self) -> int:
        """The memory of the columns."""
        held = sum(map(len, self.inline))
        return self.rows.nbytes + held + (0 if self.index is None else int(self.index.nbytes))

    def find(self, numbers: Numbers) -> Rows:
        """Return the rows of chunks."""
        count = len(self.rows.url)
        if not count:
            return Rows.absent(len(numbers))
        if self.index is None:
            at = np.minimum(numbers, count - 1)
            known = numbers < count
        else:
            at = np.minimum(np.searchsorted(self.index, numbers), count - 1)
            known = self.index[at] == numbers
        rows = self.rows.take(at)
        rows.url[~known] = ABSENT
        return rows

    def present(self, start: int, stop: int) -> Numbers:
        """Return which chunks of `[start, stop)` exist."""
        if self.index is None:
            found: Numbers = np.flatnonzero(self.rows.url[start:stop] != ABSENT) + start
            return found
        low, high = np.searchsorted(self.index, [start, stop])
        kept: Numbers = self.index[low:high][self.rows.url[low:high] != ABSENT]
        return kept


@dataclass(frozen=True, slots=True)
class Strided:
    """The chunks of a `grid`, each of `length` bytes, `strides` apart along each axis, the first at `offset`.

    The scanner makes those that reach behind `limit`, the end of the file.
    """

    offset: int
    grid: tuple[int, ...]
    strides: tuple[int, ...]
    length: int
    limit: int
    urls: Sequence[str] = _ITSELF
    inline: Sequence[bytes] = ()
    nbytes: int = 200

    def offsets(self, numbers: Numbers) -> Numbers:
        """Return where chunks begin."""
        out = np.full(len(numbers), self.offset, np.int64)
        rest = numbers
        for size, stride in zip(reversed(self.grid), reversed(self.strides), strict=True):
            rest, at = np.divmod(rest, max(size, 1))
            out += at * stride
        return out

    def find(self, numbers: Numbers) -> Rows:
        """Return the rows of chunks."""
        inside = numbers < math.prod(self.grid)
        offset = self.offsets(numbers)
        url = np.where(inside, np.where(offset + self.length > self.limit, MADE, 0), ABSENT)
        return Rows(url.astype(np.int32), offset, np.full(len(numbers), self.length, np.int64))

    def present(self, start: int, stop: int) -> Numbers:
        """Return which chunks of `[start, stop)` exist."""
        return np.arange(start, min(stop, math.prod(self.grid)), dtype=np.int64)


def empty() -> Columns:
    """Return the table of an array of which nothing is stored."""
    return Columns(Rows.absent(0), np.zeros(0, np.int64))


def single(offset: int, length: int) -> Columns:
    """Return the table of an array of one chunk."""
    return Columns(Rows.of([Row(0, offset, length)]))


def inline(values: Sequence[bytes]) -> Columns:
    """Return the table of chunks whose values are known, from the first on."""
    rows = [Row(INLINE, number, len(value)) for number, value in enumerate(values)]
    return Columns(Rows.of(rows), inline=values)


@dataclass(frozen=True, slots=True)
class Made:
    """The table of `count` chunks that the scanner makes."""

    count: int
    urls: Sequence[str] = _ITSELF
    inline: Sequence[bytes] = ()
    nbytes: int = 64

    def find(self, numbers: Numbers) -> Rows:
        """Return the rows of chunks."""
        url = np.where(numbers < self.count, MADE, ABSENT).astype(np.int32)
        return Rows(url, np.zeros(len(numbers), np.int64), np.zeros(len(numbers), np.int64))

    def present(self, start: int, stop: int) -> Numbers:
        """Return which chunks of `[start, stop)` exist."""
        return np.arange(start, min(stop, self.count), dtype=np.int64)


def run_chunks(shape: Sequence[int], itemsize: int) -> tuple[int, ...]:
    """Return the shape of chunks of a run of bytes, in C order, that are runs of at most a few MiB."""
    out, size = [], itemsize
    for length in reversed(shape):
        step = max(1, min(length, RUN_CHUNK_BYTES // size))
        out.append(step)
        size *= step if step == length else RUN_CHUNK_BYTES
    return tuple(reversed(out))


def run_strides(shape: Sequence[int], itemsize: int, chunks: Sequence[int]) -> tuple[int, ...]:
    """Return how many bytes the chunks of a run are apart along each axis."""
    return tuple(itemsize * math.prod(shape[axis + 1 :]) * chunk for axis, chunk in enumerate(chunks))
