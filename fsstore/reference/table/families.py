"""The families of keys that stand in a text, found in bulk: `keys.split_one` for thousands at once.

Every key is read backwards, a number and its separator at a time, until something else ends its prefix.  Keys whose
prefixes and separators are equal have equal hashes, and sorting by these brings them together; where two families share
a hash they come as more groups than there are families, which does no harm.  A group, and what becomes of it, costs as
much as the names of forty keys, so families of few keys are not grouped, but known by their hashes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np

from fsstore.reference.table.keys import Family, KeyGroup
from fsstore.reference.table.keys import split as split_keys
from fsstore.reference.table.text import LONGEST, Ints, Mask, Text, Words
from fsstore.reference.tuning import FAMILY_FROM

__all__ = ["FoundFamilies", "families", "families_of", "hashes_of"]

"""The number of keys in the group of a family."""

_DOT, _ZERO = b".0"
_MOST_DIMS = 40  # numbers in a key: their separators are the bits of one
_SEPARATES = np.isin(np.arange(256), list(b'./"'))
_ODD = np.uint64(0x9E3779B97F4A7C15)
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
    return FoundFamilies(
        groups, np.concatenate((*order[1:], order[0])), np.zeros(len(loose), np.uint64), len(keys)
    )


def hashes_of(names: Collection[Family]) -> Words:
    """Return the hashes of families; those of more numbers than `families` reads have none."""
    prefixes = [prefix for prefix, signs in names if len(signs) <= _MOST_DIMS]
    stop = np.fromiter(map(len, prefixes), np.int64, len(prefixes)).cumsum()
    start = np.append(0, stop[:-1])[: len(stop)]
    seps = np.array(
        [int(b"1" + sign[::-1].translate(_DIGITS), 2) for _, sign in names if len(sign) <= _MOST_DIMS],
        np.int64,
    )
    return _hashes(_columns(Text(b"".join(prefixes)), start, stop, seps))


def _groups(text: Text, start: Ints, split: _Split, order: Ints, heads: Ints) -> list[KeyGroup]:
    """Return the groups of keys in an order, in which each begins at a head."""
    numbers = np.stack(split.numbers, axis=1)[order]
    if numbers.max() < 2**31:
        numbers = numbers.astype(np.int32)
    firsts = order[heads]
    prefixes = zip(
        start[firsts].tolist(), split.end[firsts].tolist(), split.seps[firsts].tolist(), strict=True
    )
    bounds = zip(heads.tolist(), [*heads[1:].tolist(), len(order)], strict=True)
    groups, signs = [], dict[int, bytes]()
    for (begin, end, seps), (low, high) in zip(prefixes, bounds, strict=True):
        if seps not in signs:
            signs[seps] = f"{seps:b}"[:0:-1].translate(_SIGNS).encode()
        family = b"/" + text.data[begin + 1 : end] if end > begin else b"", signs[seps]
        groups.append(KeyGroup(family, slice(low, high), numbers[low:high, len(family[1]) - 1 :: -1]))
    return groups


_SIGNS = {ord("0"): "/", ord("1"): "."}
_DIGITS = bytes.maketrans(b"/.", b"01")


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
    mixed = columns[0] * _ODD
    for column in columns[1:]:
        mixed = np.where(column, (mixed ^ mixed >> _FOLD ^ column) * _ODD, mixed)
    return mixed | _ONE


def _sorted(hashes: Words) -> Ints:
    """Return an order of those that are not few, in which equal ones stand together, each as they stood."""
    order = np.argsort(
        (hashes >> _MIDDLE).astype(np.uint16), kind="stable"
    )  # by sixteen bits a time: it is quick
    order = order[np.argsort((hashes >> _UPPER).astype(np.uint16)[order], kind="stable")]
    upper = hashes[order] >> _MIDDLE
    bounds = np.concatenate(([0], np.flatnonzero(upper[1:] != upper[:-1]) + 1, [len(upper)]))
    sizes = np.diff(bounds)
    found: Ints = order[np.repeat(sizes >= FAMILY_FROM, sizes)]
    return found
