"""JSON text with its escapes put out of the way, so that every quote in it is the boundary of a string.

A slash loses its backslash, as it may be written either way.  An escaped backslash or quote becomes two bytes that
UTF-8 never holds, and comes back when a string is parsed.  Other escapes stay.  All is done by replacing bytes, from
left to right like a parser: 1 ns a byte, and nothing where there is no backslash.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fsstore.kvstore.reference.text import Ints

__all__ = ["Plain"]

_BACKSLASH, _SLASH, _SPACE = b"\\/ "
_PAIR, _QUOTE = (b"\\\\", b"\xff\xff"), (b'\\"', b"\xfe\xfe")
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
        if b"\xfe" in text or b"\xff" in text:
            return None
        codes = np.frombuffer(text, np.uint8)
        escapes = np.flatnonzero(codes == _BACKSLASH)
        if (codes.take(escapes + 1, mode="clip") == _SLASH).all():
            return cls(text, text.translate(None, b"\\"), escapes)
        data = text.replace(*_PAIR).replace(*_QUOTE)
        codes = np.frombuffer(data, np.uint8)
        gone = np.flatnonzero((codes[:-1] == _BACKSLASH) & (codes[1:] == _SLASH))
        return cls(text, data.replace(b"\\/", b"/"), gone)

    def odd(self) -> Ints:
        """Return the places of bytes that do not stand for themselves in a string."""
        codes = np.frombuffer(self.data, np.uint8)
        return np.flatnonzero((codes < _SPACE) | (codes == _BACKSLASH) | (codes >= _QUOTE[1][0]))

    def place(self, at: int) -> int:
        """Return where a place of `data` is in the text as it stood."""
        return at + int(np.searchsorted(self.gone - np.arange(len(self.gone)), at))

    def is_text(self, stop: int) -> bool:
        """Return whether what stands before a place of `data` is UTF-8."""
        if self.text.isascii():
            return True
        try:
            self.text[: self.place(stop)].decode()
        except UnicodeDecodeError:
            return False
        return True

    def parse(self, strings: Sequence[bytes]) -> list[str]:
        """Return what strings of this text stand for, quotes included; raises `ValueError`."""
        text = b"[%b]" % b",".join(strings)
        for pair in (_QUOTE, _PAIR):
            text = text.replace(pair[1], pair[0])
        found: list[str] = _DECODER.decode(text.decode())
        return found
