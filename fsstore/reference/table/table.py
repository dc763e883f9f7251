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

The table is immutable once built (`refset.TableBuilder`), and knows nothing of JSON, parquet, URLs or policies.
"""

from __future__ import annotations

import base64
import binascii
import bisect
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias, overload

import numpy as np

from fsstore.errors import JsonError
from fsstore.kvstore.contract.request import KeyRange
from fsstore.reference.table.keys import Family, Ints, join, split_keys, split_one, tails
from fsstore.runtime.tuning import FEW, ROWS_AT_ONCE
from fsstore.values.json_value import dumps, expected, string

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
        if len(keys) <= FEW:
            return Rows.of([self.find_one(key) or _NOTHING for key in keys])
        rows, loose = Rows.absent(len(keys)), self.loose
        groups, odd = split_keys([key.encode("utf-8", "surrogateescape") for key in keys])
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


# The value of one reference, as documents write it: checked, and made a row or bytes.

_PREFIX = "base64:"
_CONTROL = re.compile("[\\x00-\\x1f\\x7f-\\x9f\\ud800-\\udfff]")
MAX_OFFSET = 2**62


class Located(NamedTuple):
    """A reference into a target; `length` is -1 for all of it.  `url` is None for the target of the set."""

    url: str | None
    offset: int
    length: int


def decode_text(text: str) -> bytes:
    """Return the bytes that inline text stands for."""
    if not text.startswith(_PREFIX):
        try:
            return text.encode("utf-8")
        except UnicodeEncodeError:
            raise JsonError("Inline text contains half of a surrogate pair") from None
    try:
        data = text[len(_PREFIX) :].encode("ascii")
        if len(data) % 4 or data.endswith(b"==="):  # more padding than there may be, which Python 3.11 takes
            raise binascii.Error("padding is incorrect")
        return base64.b64decode(data, validate=True)
    except (binascii.Error, UnicodeEncodeError) as error:
        raise JsonError(f"Expected base64 with padding after 'base64:', but {error}") from None


def encode_text(value: bytes) -> str:
    """Return text that stands for exactly `value`: the text itself where it can be, else base64."""
    try:
        text = value.decode("utf-8")
    except UnicodeDecodeError:
        text = _PREFIX
    return _PREFIX + base64.b64encode(value).decode() if text.startswith(_PREFIX) else text


def decode_value(value: Any) -> bytes | Located | None:
    """Return inline bytes, a place in a target, or None for no reference; raise `JsonError` for anything else."""
    if isinstance(value, str):
        return decode_text(value)
    if isinstance(value, bytes | bytearray | memoryview):
        data = bytes(value)
        return decode_text(data.decode("latin-1")) if data.startswith(b"base64:") else data
    if isinstance(value, dict):
        return dumps(value, allow_nan=True).encode()
    if value is None:
        return None
    if isinstance(value, list | tuple) and len(value) in (1, 3):
        return _located(value)
    raise expected("text, an object, null, [url] or [url, offset, length]", value)


def is_url(text: str) -> bool:
    """Return whether nothing in a text keeps it from being a URL: control characters, and halves of characters.

    Spaces of all kinds are right, for names of files have them.
    """
    return text.isprintable() or _CONTROL.search(text) is None


def plain_text(value: Any) -> str:
    """Return text of which a URL can be made; raise `JsonError` for anything else."""
    text = string(value)
    if not is_url(text):
        raise expected("text without control characters", value)
    return text


def _located(value: Any) -> Located:
    url = value[0]
    if url is not None and (not isinstance(url, str) or not url):
        raise expected("a URL as first element", url)
    if url is not None and not is_url(url):
        raise expected("a URL without control characters", url)
    if len(value) == 1:
        return Located(url, 0, -1)
    problems = [
        f"Expected {name} as a non-negative integer, but received: {number!r}"
        for name, number in zip(("offset", "length"), value[1:], strict=True)
        if isinstance(number, bool) or not isinstance(number, int | np.integer) or not 0 <= number < MAX_OFFSET
    ]
    if problems:
        raise JsonError(problems)
    return Located(url, int(value[1]), int(value[2]))


# Inline values: those a document holds in bulk stay in one piece of text, encoded, until somebody asks for
# one.

_LETTERS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_PAD = b"="[0]


@dataclass(frozen=True, slots=True)
class Piece:
    """Values one behind the other: where each ends, and whether they are written in base64."""

    data: bytes
    ends: np.ndarray[tuple[int], np.dtype[np.int32]]
    encoded: bool = False

    @classmethod
    def of(cls, data: bytes, lengths: Ints, *, encoded: bool = False) -> Piece:
        """Return the piece of values of known lengths."""
        return cls(data, lengths.cumsum().astype(np.int32), encoded)

    def __len__(self) -> int:
        """Return the number of values."""
        return len(self.ends)

    def value(self, number: int) -> bytes:
        """Return a value, decoded."""
        start = int(self.ends[number - 1]) if number else 0
        found = self.data[start : int(self.ends[number])]
        return base64.b64decode(found) if self.encoded else found


def base64_sizes(data: bytes, lengths: Ints) -> Ints | None:
    """Return how many bytes values in base64, one behind the other, stand for; None if not all are strict base64."""
    codes = np.append(np.frombuffer(data, np.uint8), np.zeros(2, np.uint8))
    ends = lengths.cumsum()
    one = (codes.take(ends - 1, mode="wrap") == _PAD) & (lengths > 0)
    pads = one.astype(np.int64) + (one & (codes.take(ends - 2, mode="wrap") == _PAD))
    foreign = data.translate(None, _LETTERS)
    if (lengths % 4).any() or len(foreign) != pads.sum() or foreign.strip(b"="):
        return None
    sizes: Ints = lengths // 4 * 3 - pads
    return sizes


class Inline(Sequence[bytes]):
    """All inline values of a set, by number."""

    def __init__(self) -> None:
        self._pieces: list[Piece | list[bytes]] = []
        self._firsts: list[int] = []
        self._count = 0

    def __len__(self) -> int:
        """Return the number of values."""
        return self._count

    @overload
    def __getitem__(self, number: int) -> bytes: ...

    @overload
    def __getitem__(self, number: slice) -> list[bytes]: ...

    def __getitem__(self, number: int | slice) -> bytes | list[bytes]:
        """Return one value, or some."""
        if isinstance(number, slice):
            return [self[at] for at in range(len(self))[number]]
        at = range(self._count)[number]
        place = bisect.bisect_right(self._firsts, at) - 1
        piece, at = self._pieces[place], at - self._firsts[place]
        return piece[at] if isinstance(piece, list) else piece.value(at)

    def append(self, value: bytes) -> int:
        """Add one value; return its number."""
        last = self._pieces[-1] if self._pieces else None
        if not isinstance(last, list):
            last = []
            self._put(last)
        last.append(value)
        self._count += 1
        return self._count - 1

    def extend(self, pieces: Sequence[Piece]) -> int:
        """Add the values of pieces; return the number of the first."""
        first = self._count
        for piece in pieces:
            self._put(piece)
            self._count += len(piece)
        return first

    def _put(self, piece: Piece | list[bytes]) -> None:
        self._pieces.append(piece)
        self._firsts.append(self._count)
