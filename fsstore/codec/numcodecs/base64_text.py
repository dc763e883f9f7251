"""The numcodecs `base64` codec: bytes as text of 64 letters, four for every three bytes.

Written out here because numcodecs leaves out letters that do not belong there, and so reads damaged text as something.
"""

from __future__ import annotations

import binascii
import math
from typing import Any

import numpy as np

from fsstore.codec.contract import Array, Buffer, ByteSpec
from fsstore.codec.scratch import passing
from fsstore.codec.size import check_size
from fsstore.codec.tuning import BASE64_BLOCK_BYTES
from fsstore.errors import FailedPreconditionError

__all__ = ["BoundBase64"]


def _length(size: int) -> int:
    """Return the length of the text of so many bytes."""
    return 4 * math.ceil(size / 3)


class BoundBase64:
    """The codec bound to bytes of one size or of any size."""

    __slots__ = ("decoded", "encoded")

    def __init__(self, decoded: ByteSpec) -> None:
        self.decoded = decoded
        size, most = [None if of is None else _length(of) for of in (decoded.size, decoded.max_size)]
        self.encoded = ByteSpec(size, 0, most)

    def encode(self, data: Any) -> Buffer:
        """Return `data` as text."""
        view = memoryview(data).cast("B")
        if len(view) <= BASE64_BLOCK_BYTES:
            return binascii.b2a_base64(view, newline=False)
        text = passing(_length(len(view)))
        for at in range(0, len(view), BASE64_BLOCK_BYTES):
            _put(text, at // 3 * 4, binascii.b2a_base64(view[at : at + BASE64_BLOCK_BYTES], newline=False))
        return text.data

    def decode(self, data: Any) -> Buffer:
        """Return the bytes of the text."""
        check_size(len(data), self.encoded.size)
        size = self.decoded.size
        if size is None or size <= BASE64_BLOCK_BYTES:
            octets = _octets(data)
            check_size(len(octets), size)
            return octets
        out, view, filled = passing(size), memoryview(data).cast("B"), 0
        for at in range(0, len(view), BASE64_BLOCK_BYTES // 3 * 4):
            octets = _octets(view[at : at + BASE64_BLOCK_BYTES // 3 * 4])
            check_size(len(octets), min(BASE64_BLOCK_BYTES, size - filled))  # less is padding inside the text
            filled = _put(out, filled, octets)
        return out.data


def _octets(text: Any) -> bytes:
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except binascii.Error as error:
        raise FailedPreconditionError(f"Invalid base64 data: {error}") from None


def _put(memory: Array, at: int, piece: bytes) -> int:
    """Put a piece at a place in memory; return where it ends."""
    end = at + len(piece)
    memory[at:end] = np.frombuffer(piece, np.uint8)
    return end
