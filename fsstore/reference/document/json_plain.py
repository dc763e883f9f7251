"""JSON text with its escapes put out of the way, so that every quote in it is the boundary of a string.

A slash loses its backslash, as it may be written either way.  An escaped backslash or quote becomes two bytes that
UTF-8 never holds, a mark and what it marks, and comes back when a string is read.  Other escapes stay.  Which backslash
escapes what follows is told by its place in a run of backslashes, of all at once: 5 ns an escape, and nothing where
there is no backslash.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np

from fsstore.reference.table.text import Ints

__all__ = ["Plain", "meant"]

_BACKSLASH, _SLASH, _QUOTE, _SPACE = b'\\/" '
_MARKED = {_BACKSLASH: b"\xfc\xfd", _QUOTE: b"\xfe\xff"}
_FIRST = 0xFC
_MARKS = b"\xfc\xfe"
_BETWEEN = _MARKS[0] ^ _MARKS[1]
_MEANT = bytes.maketrans(b"\xfd\xff", b'\\"')
_DECODER = json.JSONDecoder(strict=False)


@dataclass(frozen=True, slots=True)
class Plain:
    """A text as it stood, and `data` without escaped slashes, backslashes and quotes.

    `gone` are the places of the backslashes that slashes lost.
    """

    text: bytes
    data: bytes
    gone: Ints

    @classmethod
    def of(cls, text: bytes) -> Plain | None:
        """Return the text; None if it holds bytes that are not UTF-8 where that matters."""
        if b"\\" not in text:
            return cls(text, text, np.zeros(0, np.int64))
        codes = np.frombuffer(text, np.uint8)
        if codes.max() >= _FIRST:
            return None
        escapes = _escapes(codes)
        escaped = codes[escapes + 1]
        data = codes.copy()
        for code, (mark, meant) in _MARKED.items():
            places = escapes[escaped == code]
            data[places], data[places + 1] = mark, meant
        gone = escapes[escaped == _SLASH]
        return cls(text, (np.delete(data, gone) if len(gone) else data).tobytes(), gone)

    def odd(self) -> tuple[Ints, Ints]:
        """Return the places of bytes that do not stand for themselves in a string, and of those that are no marks."""
        codes = np.frombuffer(self.data, np.uint8)
        places = np.flatnonzero((codes < _SPACE) | (codes == _BACKSLASH) | (codes >= _FIRST))
        return places, places[codes[places] < _FIRST]

    def place(self, at: Ints) -> Ints:
        """Return where places of `data` are in the text as it stood."""
        found: Ints = at + np.searchsorted(self.gone - np.arange(len(self.gone)), at)
        return found

    def is_text(self, stop: int) -> bool:
        """Return whether what stands before a place of `data` is UTF-8."""
        if self.text.isascii():
            return True
        try:
            self.text[: int(self.place(np.array(stop)))].decode()
        except UnicodeDecodeError:
            return False
        return True

    def parse(self, start: Ints, stop: Ints) -> list[str]:
        """Return what the strings at places of `data` stand for, quotes included; raises `ValueError`."""
        places = zip(self.place(start).tolist(), self.place(stop).tolist(), strict=True)
        text = b"[%b]" % b",".join([self.text[low:high] for low, high in places])
        found: list[str] = _DECODER.decode(text.decode())
        return found


def meant(data: bytes, lengths: Ints) -> tuple[bytes, Ints]:
    """Return what strings of `Plain`, one behind the other, stand for, and how long each is; they hold no escapes."""
    marks = np.flatnonzero(np.frombuffer(data, np.uint8) | _BETWEEN == _MARKS[1])
    if not len(marks):
        return data, lengths
    gone = np.diff(np.searchsorted(marks, np.append(0, lengths.cumsum())))
    return data.translate(_MEANT, _MARKS), lengths - gone


def _escapes(codes: np.ndarray[tuple[int], np.dtype[np.uint8]]) -> Ints:
    """Return the places of backslashes that escape what follows: the first, third and so on of those in a row."""
    places = np.flatnonzero(codes == _BACKSLASH)
    follows = places[1:] == places[:-1] + 1
    if follows.any():
        number = np.arange(len(places))
        first = np.maximum.accumulate(np.where(np.append(False, follows), 0, number))
        places = places[(number - first) % 2 == 0]
    return places[: -1 if places[-1] + 1 == len(codes) else None]
