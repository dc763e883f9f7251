"""A text read at many places at once.

NumPy compares and reads eight bytes at a time: a word that starts or ends at any byte is one number, little end first.
Numbers are read as 64-bit words too, their digits multiplied together in three steps, however many numbers there are:
20 ns for one of up to eight digits, where a loop over its digits needs 6 ns for each.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np

__all__ = ["LONGEST", "Ints", "Mask", "Text", "Words"]

Ints: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
Mask: TypeAlias = np.ndarray[Any, np.dtype[np.bool_]]
Words: TypeAlias = np.ndarray[Any, np.dtype[np.uint64]]

LONGEST = 24
"""The greatest number of digits that is looked at; where longer numbers begin is not known."""
_DIGITS = 18  # that fit 64 bits
_MARGIN = bytes(8)
_LEAST = np.array([2**62, 0, *(10**power for power in range(1, _DIGITS)), *[2**62] * (LONGEST - _DIGITS)])


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
        return value, end - digits, (value >= _LEAST.take(digits)) & (digits <= _DIGITS)

    def _eight(self, end: Ints) -> tuple[Ints, Ints]:
        """Return the values of the last digits before `end`, at most eight, and how many they are."""
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
