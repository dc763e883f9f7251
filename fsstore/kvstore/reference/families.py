"""The families of keys that stand in a text, found in bulk: `keys.split_one` for thousands at once.

Every key is read backwards, a number and its separator at a time, until something else ends its prefix.  Keys whose
prefixes and separators are equal have equal hashes, and sorting by these brings them together; where two families share
a hash they come as more groups than there are families, which does no harm.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fsstore.kvstore.reference.keys import Group
from fsstore.kvstore.reference.text import LONGEST, Ints, Mask, Text, Words

__all__ = ["families"]

_DOT, _ZERO = b".0"
_MOST_DIMS = 40
_SEPARATES = np.isin(np.arange(256), list(b'./"'))
_ODD = np.uint64(0x9E3779B97F4A7C15)
_FOLD, _UPPER = np.uint64(29), np.uint64(48)


class _Split(NamedTuple):
    """Keys taken apart: where prefixes end; separators as binary digits behind a one; numbers; which are loose.

    Separators and numbers are those of the last component first; a separator is 1 for a dot.
    """

    end: Ints
    seps: Ints
    numbers: list[Ints]
    loose: Mask


def families(text: Text, start: Ints, stop: Ints) -> tuple[list[Group], Ints, int]:
    """Return the groups of keys by family, an order of the keys, and how many keys were read.

    A key stands behind the quote at `start` and ends before `stop`.  It is not read, nor are those behind it, if its
    numbers are longer than any a set holds.  The groups lie side by side in the order, and behind them the loose keys.
    """
    split, count = _split(text, start, stop)
    chained, loose = np.flatnonzero(~split.loose[:count]), np.flatnonzero(split.loose[:count])
    if not len(chained):
        return [], loose, count
    order, heads = _sorted(text, start[chained], split.end[chained], split.seps[chained])
    order = chained[order]
    numbers = np.stack(split.numbers, axis=1)[order]
    if numbers.max() < 2**31:
        numbers = numbers.astype(np.int32)
    firsts = order[heads]
    prefixes = zip(
        start[firsts].tolist(), split.end[firsts].tolist(), split.seps[firsts].tolist(), strict=True
    )
    bounds = zip(heads.tolist(), [*heads[1:].tolist(), len(order)], strict=True)
    groups, signs = [], {}
    for (begin, end, seps), (low, high) in zip(prefixes, bounds, strict=True):
        if seps not in signs:
            signs[seps] = f"{seps:b}"[:0:-1].translate(_SIGNS).encode()
        family = b"/" + text.data[begin + 1 : end] if end > begin else b"", signs[seps]
        groups.append(Group(family, slice(low, high), numbers[low:high, len(family[1]) - 1 :: -1]))
    return groups, np.concatenate((order, loose)), count


_SIGNS = {ord("0"): "/", ord("1"): "."}


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


def _sorted(text: Text, start: Ints, end: Ints, seps: Ints) -> tuple[Ints, Ints]:
    """Return an order in which keys of one family stand together, each as they stood, and where families begin."""
    length = end - start
    columns: list[Words] = [(seps << 16 | length).view(np.uint64), *text.words(start + 1, length - 1)]
    mixed = columns[0] * _ODD
    for column in columns[1:]:
        mixed ^= mixed >> _FOLD
        mixed = (mixed ^ column) * _ODD
    order = np.argsort(
        (mixed >> _UPPER).astype(np.uint16), kind="stable"
    )  # of sixteen bits: three times as quick
    differs = np.zeros(len(order), np.bool_)
    for column in columns:
        differs[1:] |= column[order[1:]] != column[order[:-1]]
    differs[0] = True
    return order, np.flatnonzero(differs)
