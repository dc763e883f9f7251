"""Fingerprints of values: whether large arrays of different files are equal, without keeping either.

Each element gives two numbers made of its place and its value, and the sums of these are the fingerprint.  So it does
not depend on chunks, their order, compression, byte order, or the width of a type; NaN equals NaN, and -0 equals 0.
Elements whose word is zero add nothing, which is why chunks that are not there often cost nothing.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from fsstore.mosaic.tuning import FINGERPRINT_ELEMENTS

__all__ = ["Fingerprint", "fingerprint_of"]

Words: TypeAlias = np.ndarray[Any, np.dtype[np.uint64]]

_EXACT = 2.0**53
_SEEDS = (np.uint64(0x8A5CD789635D2DFF), np.uint64(0x121FD2155C472F96))
_STEP, _ONE, _TWO = map(np.uint64, (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
_FIRST, _SECOND, _THIRD = map(np.uint64, (30, 27, 31))
_NAN = np.array(np.nan).view(np.uint64)


class Fingerprint:
    """The fingerprint of an array of this shape and type, to which parts are added in any order, each once."""

    def __init__(self, shape: Sequence[int], dtype: np.dtype[Any]) -> None:
        self._shape = tuple(shape)
        self._sums = np.zeros(2, np.uint64)
        if dtype.kind in "mM":  # their numbers mean something only with the unit
            unit = hashlib.blake2b(dtype.newbyteorder("<").str.encode(), digest_size=16).digest()
            self._sums += np.frombuffer(unit, "<u8")

    def add(self, origin: Sequence[int], values: Any) -> None:
        """Add the values that stand at `origin`."""
        flat = np.ascontiguousarray(values).reshape(-1)
        for start in range(0, flat.size, FINGERPRINT_ELEMENTS):
            words = _words(flat[start : start + FINGERPRINT_ELEMENTS])
            self._add(origin, values.shape, start, words)

    def add_fill(self, origin: Sequence[int], shape: Sequence[int], fill: Any) -> None:
        """Add a part of this shape that is all `fill`."""
        word = _words(np.asarray(fill).reshape(1))
        count = math.prod(shape)
        for start in range(0, count if word[0] else 0, FINGERPRINT_ELEMENTS):
            self._add(origin, shape, start, np.repeat(word, min(FINGERPRINT_ELEMENTS, count - start)))

    @staticmethod
    def counts(fill: Any, dtype: np.dtype[Any]) -> bool:
        """Return whether parts that are all `fill` change a fingerprint."""
        return bool(_words(np.asarray(fill, dtype).reshape(1))[0])

    def _add(self, origin: Sequence[int], shape: Sequence[int], start: int, words: Words) -> None:
        rest: Any = np.arange(start, start + len(words), dtype=np.uint64)
        place, stride = np.zeros(len(words), np.uint64), 1
        for size, whole, first in zip(reversed(shape), reversed(self._shape), reversed(origin), strict=True):
            rest, coord = np.divmod(rest, np.uint64(size))
            place += (coord + np.uint64(first)) * np.uint64(stride % 2**64)
            stride *= whole
        there = words != 0
        for number, seed in enumerate(_SEEDS):
            mixed = _mixed(_mixed(place * _STEP + seed) + words)
            self._sums[number : number + 1] += mixed[there].sum(dtype=np.uint64)  # of arrays, which wrap

    def value(self) -> Words:
        """Return the fingerprint: two numbers."""
        return self._sums.astype("<u8")


def fingerprint_of(values: Any) -> Words:
    """Return the fingerprint of values that are all there."""
    found = Fingerprint(values.shape, values.dtype)
    found.add((0,) * values.ndim, values)
    return found.value()


def _mixed(words: Words) -> Words:
    """Return words each bit of which depends on all bits of the given ones."""
    words = (words ^ words >> _FIRST) * _ONE
    words = (words ^ words >> _SECOND) * _TWO
    return words ^ words >> _THIRD


def _words(flat: Any) -> Words:
    """Return a word for each value: equal ones for equal values, whatever their type of number."""
    kind, size = flat.dtype.kind, flat.dtype.itemsize
    if kind in "biu":
        floats = flat.astype(np.float64)
        if size < 8:
            return _of_floats(floats)
        signed = np.where(flat < 0, _STEP, np.uint64(0))
        return np.where(np.abs(floats) < _EXACT, _of_floats(floats), _mixed(flat.astype(np.uint64) ^ signed))
    if kind == "f" and size <= 8:
        return _of_floats(flat.astype(np.float64))
    if kind == "c" and size <= 16:
        real, imaginary = _of_floats(flat.real.astype(np.float64)), _of_floats(flat.imag.astype(np.float64))
        return np.where(imaginary != 0, _mixed(imaginary + _STEP) + real, real)
    if kind == "O":
        return np.array([_of_object(each) for each in flat.tolist()], np.uint64)
    return _of_bytes(flat)


def _of_floats(floats: Any) -> Words:
    return np.where(np.isnan(floats), _NAN, (floats + 0.0).view(np.uint64))


def _of_object(value: Any) -> int:
    data = value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little") if data else 0


def _of_bytes(flat: Any) -> Words:
    plain = np.ascontiguousarray(flat.astype(flat.dtype.newbyteorder("<"), copy=False))
    size = plain.dtype.itemsize
    padded = np.zeros((len(plain), -(-size // 8) * 8), np.uint8)
    padded[:, :size] = np.frombuffer(plain.tobytes(), np.uint8).reshape(len(plain), size)
    out = np.zeros(len(plain), np.uint64)
    for number, column in enumerate(padded.view("<u8").T):
        word = column.astype(np.uint64)
        out = np.where(word != 0, _mixed(out + word + np.uint64(number + 1)), out)
    return out
