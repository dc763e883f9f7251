"""Chunk-like keys: a prefix and trailing integers, taken apart in bulk.

`temp/0.12.3` is the prefix `temp`, the separators `/..` and the coordinates `(0, 12, 3)`; `temp/c/4/5` is `temp/c`,
`//`, `(4, 5)`.  Keys with the same prefix and separators form a *family*.  The rule looks at the text alone: as
many trailing components as are canonical integers, after the last component that is not.  Whether an array of that
name exists does not matter, so no metadata is needed and it may come in any order; a family of pyramid levels
`level/0/3.4` simply has one more dimension.

Every other key is *loose*.  Splitting is deterministic and exact, so looking up is splitting again.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from fsstore.errors import JsonError
from fsstore.kvstore.contract.request import key_bytes
from fsstore.runtime.tuning import COLUMNS_FROM
from fsstore.values.json_value import integer, show

_LINE = re.compile(rb"^(?:(.*[^0-9./\n][0-9]*+|)((?:[./](?:0|[1-9][0-9]{0,17}))++)|.*)$", re.MULTILINE)
_ODD = re.compile(rb"[^0-9](?:[^0-9]|0[0-9]|\Z)|[0-9]{19}")
_NUMBER = re.compile(rb"0|[1-9][0-9]{0,17}")
_DIGITS = b"0123456789"
NUMBERS_ONLY = bytes(code if 48 <= code < 58 else 32 for code in range(256))
"""Translation table that leaves digits and turns every other byte into a space."""

Family = tuple[bytes, bytes]
"""Prefix with a slash put before it (empty for keys that are coordinates alone), and separators."""


@dataclass(frozen=True, slots=True)
class KeyGroup:
    """Keys of one family among the keys split: their positions there, and coordinates, a row each."""

    family: Family
    positions: np.ndarray[Any, np.dtype[np.int64]] | slice
    coords: np.ndarray[Any, np.dtype[np.int64]]


def check_key(key: str) -> str | None:
    """Return what forbids `key` in a set, or None.

    Keys that climb out of a directory, or that no file system can hold, are refused wherever they come from.
    """
    if len(key) > 4096:
        return "the key is longer than 4096 characters"
    if "\0" in key:
        return "the key contains a zero byte"
    if ".." in key and ".." in key.replace("\\", "/").split("/"):
        return "the key contains the component '..'"
    return "the key starts with a slash" if key.startswith("/") else None


def split_keys(keys: Sequence[bytes]) -> tuple[list[KeyGroup], list[int]]:
    """Return the groups of `keys` by family, and the positions of the loose keys."""
    text = b"/" + b"\n/".join(keys)
    if text.count(b"\n") >= len(keys):
        return _split_with_newlines(keys)
    group = _one_family(text, keys)
    if group is not None:
        return [group], []
    pairs = _LINE.findall(text)
    return _by_family([pair[0] for pair in pairs], [pair[1] for pair in pairs])


def _one_family(text: bytes, keys: Sequence[bytes]) -> KeyGroup | None:
    """Return the group of keys that are of the family of the first, as nearly always; None otherwise.

    `text` is the keys in lines.  Without the prefix at the start of each, all that is left must be canonical integers
    between the same separators.
    """
    first = split_one(keys[0])
    if first is None:
        return None
    (prefix, seps), _ = first
    lines = b"\n" + text
    rest = lines.replace(b"\n" + prefix + seps[:1], b"\n")
    removed = len(lines) - len(rest)
    if removed != len(keys) * len(prefix + seps[:1]) or _ODD.search(rest):
        return None
    if rest.translate(None, _DIGITS) != (b"\n" + seps[1:]) * len(keys):
        return None
    return KeyGroup((prefix, seps), slice(0, len(keys)), _coords(rest, len(seps)))


def split_one(key: bytes) -> tuple[Family, list[int]] | None:
    """Return the family and coordinates of one key, or None for a loose one."""
    if b"\n" in key:
        return None
    match = _LINE.match(b"/" + key)
    if match is None or match[2] is None:
        return None
    return (match[1], match[2].translate(None, _DIGITS)), [
        int(text) for text in match[2].translate(NUMBERS_ONLY).split()
    ]


def tails(key: bytes, most: int) -> Iterator[tuple[Family, list[int]]]:
    """Yield every way to take up to `most` trailing integers of a key for coordinates, the fewest first.

    `split_one` takes all that there are; here some of them may belong to the path of an array instead.
    """
    text, seps, coords = b"/" + key, b"", list[int]()
    end = len(text)
    while len(seps) < most:
        cut = max(text.rfind(b"/", 0, end), text.rfind(b".", 0, end))
        if cut < 0 or not _NUMBER.fullmatch(text, cut + 1, end):
            return
        seps, coords = text[cut : cut + 1] + seps, [int(text[cut + 1 : end]), *coords]
        yield (text[:cut], seps), coords
        end = cut


def _by_family(prefixes: list[bytes], suffixes: list[bytes]) -> tuple[list[KeyGroup], list[int]]:
    members: dict[Family, list[int]] = {}
    for position, (prefix, suffix) in enumerate(zip(prefixes, suffixes, strict=True)):
        members.setdefault((prefix, suffix.translate(None, _DIGITS)), []).append(position)
    loose: list[int] = []
    groups = []
    for family, positions in members.items():
        if not family[1]:
            loose += positions
            continue
        coords = _coords(b" ".join([suffixes[position] for position in positions]), len(family[1]))
        groups.append(KeyGroup(family, np.array(positions, np.int64), coords))
    return groups, sorted(loose)


def _split_with_newlines(keys: Sequence[bytes]) -> tuple[list[KeyGroup], list[int]]:
    plain = [position for position, key in enumerate(keys) if b"\n" not in key]
    groups, loose = split_keys([keys[position] for position in plain]) if plain else ([], [])
    where = np.array(plain, np.int64)
    moved = [KeyGroup(group.family, where[group.positions], group.coords) for group in groups]
    odd = [position for position, key in enumerate(keys) if b"\n" in key]
    return moved, sorted(odd + [plain[position] for position in loose])


def _coords(text: bytes, ndim: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.fromstring(text.translate(NUMBERS_ONLY), np.int64, sep=" ").reshape(-1, ndim)


def join(family: Family, coords: np.ndarray[Any, np.dtype[np.int64]]) -> Iterator[str]:
    """Yield the keys of coordinates of a family: the inverse of `split`."""
    prefix, seps = family
    pattern = prefix.decode().replace("%", "%%") + "".join(f"{chr(sep)}%d" for sep in seps)
    pattern = pattern[1:]
    if "\0" in pattern or not len(coords):
        return (pattern % tuple(row) for row in coords.tolist())
    text = "\0".join([pattern] * len(coords)) % tuple(coords.ravel().tolist())
    return iter(text.split("\0"))


# A text read at many places at once.

Ints: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
Mask: TypeAlias = np.ndarray[Any, np.dtype[np.bool_]]
Words: TypeAlias = np.ndarray[Any, np.dtype[np.uint64]]

LONGEST = 24
"""The greatest number of digits that is looked at; where longer numbers begin is not known."""
_DIGITS_OF_64_BITS = 18  # that fit 64 bits
_MARGIN = bytes(8)
_LEAST = np.array(
    [2**62, 0, *(10**power for power in range(1, _DIGITS_OF_64_BITS)), *[2**62] * (LONGEST - _DIGITS_OF_64_BITS)]
)


def _word(byte: int) -> np.uint64:
    return np.uint64(byte * 0x0101010101010101)


_ZEROS, _LOW, _HIGH, _ABOVE_NINE, _ONES = map(_word, (0x30, 0x7F, 0x80, 0x76, 0x01))
_FF, _7, _8, _16, _32, _56 = map(np.uint64, (0xFF, 7, 8, 16, 32, 56))
_PAIRS, _FOURS = np.uint64(0x00FF00FF00FF00FF), np.uint64(0x0000FFFF0000FFFF)
_TIMES = tuple(map(np.uint64, (10 * 2**8 + 1, 100 * 2**16 + 1, 10**4 * 2**32 + 1)))
_KEPT = np.array([2 ** (8 * count) - 1 for count in range(9)], np.uint64)


class Text:
    """The bytes of a text; a place is the number of a byte."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        padded = b"".join((_MARGIN, data, _MARGIN))
        self._padded = np.frombuffer(padded, np.uint8)
        self.codes = self._padded[8:-8]
        self._before: Words = np.ndarray(len(data) + 9, np.dtype("<u8"), padded, 0, (1,))

    def has(self, at: Ints, part: bytes) -> Mask:
        """Return where `part` stands; nothing stands outside of the text."""
        good = np.ones(len(at), np.bool_)
        for offset, code in enumerate(part):
            good &= self._padded.take(at + (8 + offset), mode="clip") == code
        return good

    def words(self, start: Ints, length: Ints) -> Iterator[Words]:
        """Yield strings eight bytes at a time; behind its end a string is zeros."""
        for first in range(0, int(length.max(initial=0)), 8):
            found = self._before[np.minimum(start + (first + 8), len(self.data) + 8)]
            yield found & _KEPT.take(length - first, mode="clip")

    def parts(self, start: Ints, stop: Ints) -> bytes:
        """Return parts of the text that do not overlap, in order, one behind the other."""
        edges = np.zeros(2 * len(start) + 1, np.int64)
        edges[1::2], edges[2::2] = start, stop
        inside = np.repeat(np.arange(2 * len(start)) % 2 == 1, np.diff(edges))
        found: bytes = self.codes[: len(inside)][inside].tobytes()
        return found

    def number(self, end: Ints) -> tuple[Ints, Ints, Mask]:
        """Return the integers that end before `end`, where they begin, and which are canonical: no zero in front.

        One of more than 18 digits is not, and no digits are no integer.
        """
        value, digits = self._eight(end)
        more, power = np.flatnonzero(digits == 8), 10**8
        while len(more) and power < 10**LONGEST:
            higher, count = self._eight(end[more] - digits[more])
            value[more] += higher * power
            digits[more] += count
            more, power = more[count == 8], power * 10**8
        return value, end - digits, (value >= _LEAST.take(digits)) & (digits <= _DIGITS_OF_64_BITS)

    def _eight(self, end: Ints) -> tuple[Ints, Ints]:
        """Return the values of the last digits before `end`, at most eight, and their number."""
        word = self._before[np.maximum(end, 0)] ^ _ZEROS
        other = (((word & _LOW) + _ABOVE_NINE) | word) & _HIGH  # a bit in each byte that is no digit
        for shift in (_8, _16, _32):
            other |= other >> shift  # and in those before it
        other >>= _7
        digits = 8 - ((other * _ONES) >> _56).astype(np.int64)
        word &= ~(other * _FF)
        word = (word * _TIMES[0]) >> _8 & _PAIRS
        word = (word * _TIMES[1]) >> _16 & _FOURS
        return ((word * _TIMES[2]) >> _32).astype(np.int64), digits


# The families of keys that stand in a text, found in bulk: `keys.split_one` for thousands at once.

"""The number of keys in the group of a family."""

_DOT, _ZERO = b".0"
_MOST_DIMS = 40  # numbers in a key: their separators are the bits of one
_SEPARATES = np.isin(np.arange(256), list(b'./"'))
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_FOLD, _MIDDLE, _UPPER, _ONE = map(np.uint64, (29, 32, 48, 1))


class _Split(NamedTuple):
    """Keys taken apart: where prefixes end; separators as binary digits behind a one; numbers; which are loose.

    Separators and numbers are those of the last component first; a separator is 1 for a dot.
    """

    end: Ints
    seps: Ints
    numbers: list[Ints]
    loose: Mask


class FoundFamilies(NamedTuple):
    """The families of keys.

    The groups lie side by side in the order; behind them stand, in their own order, loose keys and those of families of
    few, each with the hash of its family, which is zero for a loose key.  `read` is how many keys were read.
    """

    groups: list[KeyGroup]
    order: Ints
    hashes: Words
    read: int

    @property
    def grouped(self) -> int:
        """How many keys are in groups."""
        return len(self.order) - len(self.hashes)


def families(text: Text, start: Ints, stop: Ints) -> FoundFamilies:
    """Return the families of keys: of one family all are in groups, or none is.

    A key stands behind the quote at `start` and ends before `stop`.  It is not read, nor are those behind it, if its
    numbers are longer than any a set holds.
    """
    split, count = _split(text, start, stop)
    chained = np.flatnonzero(~split.loose[:count])
    columns = _columns(text, start[chained], split.end[chained], split.seps[chained])
    hashes, behind = np.zeros(count, np.uint64), np.ones(count, np.bool_)
    hashes[chained] = _hashes(columns)
    order = _sorted(hashes[chained])
    differs = np.zeros(len(order), np.bool_)
    for column in columns:
        differs[1:] |= column[order[1:]] != column[order[:-1]]
    differs[:1] = True
    heads = np.flatnonzero(differs)
    order = chained[order]
    behind[order] = False
    groups = _groups(text, start, split, order, heads) if len(heads) else []
    return FoundFamilies(groups, np.append(order, np.flatnonzero(behind)), hashes[behind], count)


def families_of(keys: Sequence[bytes]) -> FoundFamilies:
    """Return the families of keys."""
    text = b'"%b"' % b'""'.join(keys)
    if b"\n" not in text and text.count(b'"') == 2 * len(keys):
        stop = np.fromiter(map(len, keys), np.int64, len(keys)).cumsum() + 2 * np.arange(len(keys)) + 1
        found = families(Text(text), np.append(0, stop[:-1] + 1), stop)
        if found.read == len(keys):
            return found
    split, loose = split_keys(keys)
    order, at, groups = [np.array(loose, np.int64)], 0, []
    for group in split:
        order.append(np.arange(len(keys))[group.positions])
        groups.append(KeyGroup(group.family, slice(at, at + len(order[-1])), group.coords))
        at += len(order[-1])
    return FoundFamilies(groups, np.concatenate((*order[1:], order[0])), np.zeros(len(loose), np.uint64), len(keys))


def hashes_of(names: Collection[Family]) -> Words:
    """Return the hashes of families; those of more numbers than `families` reads have none."""
    prefixes = [prefix for prefix, signs in names if len(signs) <= _MOST_DIMS]
    stop = np.fromiter(map(len, prefixes), np.int64, len(prefixes)).cumsum()
    start = np.append(0, stop[:-1])[: len(stop)]
    seps = np.array(
        [int(b"1" + sign[::-1].translate(_SIGN_BITS), 2) for _, sign in names if len(sign) <= _MOST_DIMS], np.int64
    )
    return _hashes(_columns(Text(b"".join(prefixes)), start, stop, seps))


def _groups(text: Text, start: Ints, split: _Split, order: Ints, heads: Ints) -> list[KeyGroup]:
    """Return the groups of keys in an order, in which each begins at a head."""
    numbers = np.stack(split.numbers, axis=1)[order]
    if numbers.max() < 2**31:
        numbers = numbers.astype(np.int32)
    firsts = order[heads]
    prefixes = zip(start[firsts].tolist(), split.end[firsts].tolist(), split.seps[firsts].tolist(), strict=True)
    bounds = zip(heads.tolist(), [*heads[1:].tolist(), len(order)], strict=True)
    groups, signs = [], dict[int, bytes]()
    for (begin, end, seps), (low, high) in zip(prefixes, bounds, strict=True):
        if seps not in signs:
            signs[seps] = f"{seps:b}"[:0:-1].translate(_SIGNS).encode()
        family = b"/" + text.data[begin + 1 : end] if end > begin else b"", signs[seps]
        groups.append(KeyGroup(family, slice(low, high), numbers[low:high, len(family[1]) - 1 :: -1]))
    return groups


_SIGNS = {ord("0"): "/", ord("1"): "."}
_SIGN_BITS = bytes.maketrans(b"/.", b"01")


def _split(text: Text, start: Ints, stop: Ints) -> tuple[_Split, int]:
    """Take keys apart; return the parts, and how many keys these are right for."""
    count = len(start)
    end, live, loose = stop.copy(), np.ones(count, np.bool_), np.zeros(count, np.bool_)
    seps, numbers, known = np.ones(count, np.int64), [], np.ones(count, np.bool_)
    while True:
        last = text.codes.take(end - 1)
        number = live & (last - _ZERO < 10)  # unsigned: what is no digit is large
        loose |= live & ~number & (_SEPARATES.take(last) | (seps == 1))
        if not number.any():
            break
        value, first, good = text.number(end)
        before = text.codes.take(first - 1, mode="clip")
        separated = _SEPARATES.take(before)
        known &= ~(number & ((end - first >= LONGEST) | (seps >= 2**_MOST_DIMS)))
        part = number & good & separated
        loose |= number & ~part & (separated | (seps == 1))
        live = part & (first - 1 > start) & known
        end = np.where(part, first - 1, end)
        seps = np.where(part, 2 * seps + (before == _DOT), seps)
        numbers.append(np.where(part, value, 0))
    return _Split(end, seps, numbers, loose), count if known.all() else int(known.argmin())


def _columns(text: Text, start: Ints, end: Ints, seps: Ints) -> list[Words]:
    """Return families as columns of words: separators, and prefixes without what stands at `start`."""
    length = end - start
    return [(seps << 16 | length).view(np.uint64), *text.words(start + 1, length - 1)]


def _hashes(columns: list[Words]) -> Words:
    """Return a hash of each row, which is not zero.  Words of zeros, as stand behind short prefixes, add nothing."""
    mixed = columns[0] * _FACTOR
    for column in columns[1:]:
        mixed = np.where(column, (mixed ^ mixed >> _FOLD ^ column) * _FACTOR, mixed)
    return mixed | _ONE


def _sorted(hashes: Words) -> Ints:
    """Return an order of those that are not few, in which equal ones stand together, each as they stood."""
    order = np.argsort((hashes >> _MIDDLE).astype(np.uint16), kind="stable")  # by sixteen bits a time: it is quick
    order = order[np.argsort((hashes >> _UPPER).astype(np.uint16)[order], kind="stable")]
    upper = hashes[order] >> _MIDDLE
    bounds = np.concatenate(([0], np.flatnonzero(upper[1:] != upper[:-1]) + 1, [len(upper)]))
    sizes = np.diff(bounds)
    found: Ints = order[np.repeat(sizes >= COLUMNS_FROM, sizes)]
    return found


# Chunk grids of zarr arrays, read off their metadata: which keys an array may have, and their numbers.

_DOCUMENTS = (".zarray", ".zgroup", ".zattrs", ".zmetadata", "zarr.json")
_COORDS = re.compile(r"(?:0|[1-9][0-9]{0,17})")


def is_document(key: str) -> bool:
    """Return whether a key names a metadata document."""
    return key.rpartition("/")[2] in _DOCUMENTS


def around_others(paths: Iterable[str]) -> set[str]:
    """Return the paths of arrays that have another below them, whose keys may read as chunks of both.

    Zarr has no array in an array, but a set may name some: `g/0/1` is a chunk of `g` and of `g/0`.

    >>> around_others(["g", "g/0", "h"])
    {'g'}
    """
    known = set(paths)
    inside = [(path, place) for path in known for place, letter in enumerate(path) if letter == "/"]
    found = {path[:place] for path, place in inside} & known
    return found | ({""} if "" in known and len(known) > 1 else set())


@dataclass(frozen=True, slots=True)
class Grid:
    """The chunk grid of the array at `path`: `shape` in chunks (`(1,)` for a scalar), and how keys are written.

    `chunk` is the shape of a chunk in elements.
    """

    path: str
    shape: tuple[int, ...]
    scalar: bool
    separator: str
    c_prefix: bool
    chunk: tuple[int, ...] = ()

    @property
    def count(self) -> int:
        """The number of chunks."""
        return math.prod(self.shape)

    @property
    def family(self) -> Family | None:
        """The family of its keys, or None for scalars of version 3, whose key `c` is loose."""
        path = f"/{self.path}" if self.path else ""
        separator, ndim = self.separator.encode(), len(self.shape)
        if self.c_prefix:
            return None if self.scalar else (key_bytes(f"{path}/c"), separator * ndim)
        return key_bytes(path), b"/" + separator * (ndim - 1)

    def key(self, coords: Sequence[int]) -> str:
        """Return the key of a chunk."""
        head = f"{self.path}/" if self.path else ""
        if self.c_prefix:
            return head + ("c" if self.scalar else self.separator.join(("c", *map(str, coords))))
        return head + self.separator.join(map(str, coords))

    def keys(self, numbers: np.ndarray[Any, Any]) -> list[str]:
        """Return the keys of chunks by their numbers."""
        coords = np.stack(np.unravel_index(numbers, self.shape), axis=1)
        return [self.key(row) for row in coords.tolist()]

    def number(self, name: str) -> int | None:
        """Return the number of the chunk called `name` below the path, or None if it names no chunk."""
        parts = name.split(self.separator)
        if self.c_prefix:
            if parts[0] != "c":
                return None
            parts = ["0"] if self.scalar and len(parts) == 1 else parts[1:]
        if len(parts) != len(self.shape) or not all(_COORDS.fullmatch(part) for part in parts):
            return None
        return self.number_of(list(map(int, parts)))

    def number_of(self, coords: Sequence[int]) -> int | None:
        """Return the number of coordinates, or None outside the grid."""
        number = 0
        for coord, size in zip(coords, self.shape, strict=True):
            if coord >= size:
                return None
            number = number * size + coord
        return number

    def numbers(self, coords: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return the numbers of coordinates; -1 outside the grid."""
        inside = (coords < self.shape).all(axis=1)
        paces = [math.prod(self.shape[dim + 1 :]) for dim in range(len(self.shape))]
        return np.where(inside, coords @ np.array(paces, np.int64), -1)


def _sizes(value: Any, low: int) -> list[int]:
    parse = integer(low, 2**62)
    if not isinstance(value, list):
        raise JsonError(f"Expected array, but received: {show(value)}")
    return [parse(item) for item in value]


def grid_of(path: str, metadata: Mapping[str, Any]) -> Grid | None:
    """Return the grid of an array from its `.zarray` or `zarr.json`, or None for a group."""
    if metadata.get("zarr_format") == 3:
        if metadata.get("node_type") != "array":
            return None
        grid = metadata.get("chunk_grid")
        inner = grid.get("configuration") if isinstance(grid, Mapping) else None
        chunks = inner.get("chunk_shape") if isinstance(inner, Mapping) else None
        c_prefix, separator = _encoding(path, metadata.get("chunk_key_encoding"))
    else:
        chunks, c_prefix, separator = (metadata.get("chunks"), False, metadata.get("dimension_separator") or ".")
    shape, chunk = _sizes(metadata.get("shape"), 0), _sizes(chunks, 1)
    if len(shape) != len(chunk):
        raise JsonError(f"The array {show(path)} has {len(shape)} dimensions, but {len(chunk)} chunk sizes")
    if separator not in (".", "/"):
        raise JsonError(f"The array {show(path)} has the unknown separator {show(separator)}")
    counts = tuple(-(-size // step) for size, step in zip(shape, chunk, strict=True)) or (1,)
    if math.prod(max(count, 1) for count in counts) >= 2**62:
        raise JsonError(f"The array {show(path)} has more than 2^62 chunks")
    return Grid(path, counts, not shape, str(separator), c_prefix, tuple(chunk))


def _encoding(path: str, value: Any) -> tuple[bool, Any]:
    if isinstance(value, str):
        value = {"name": value}
    if not isinstance(value, Mapping):
        return True, "/"
    inner = value.get("configuration")
    separator = inner.get("separator") if isinstance(inner, Mapping) else None
    plain = value.get("name") == "v2"
    if not plain and value.get("name") != "default":
        raise JsonError(f"The array {show(path)} calls its chunks as {show(value.get('name'))} does, not by a grid")
    return not plain, separator or ("." if plain else "/")
