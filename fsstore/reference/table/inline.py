"""Inline values: those a document holds in bulk stay in one piece of text, encoded, until somebody asks for one.

A value of its own costs 33 bytes beside its data and 0.5 µs to make; in a piece it costs the four bytes of its end.
Base64 is checked when it is put into a piece, by what is left when its letters are taken away, and decoded when it is
read.
"""

from __future__ import annotations

import base64
import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np

from fsstore.reference.table.text import Ints

__all__ = ["Inline", "Piece", "base64_sizes"]

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
