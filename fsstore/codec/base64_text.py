"""The numcodecs `base64` codec: bytes as text of 64 letters, four for every three bytes.

Written out here because numcodecs leaves out letters that do not belong there, and so reads damaged text as something.
"""

from __future__ import annotations

import binascii
import math
from typing import Any

from fsstore.codec.contract import ByteSpec
from fsstore.codec.size import check_size
from fsstore.errors import FailedPreconditionError

__all__ = ["BoundBase64"]


def _length(size: int | None) -> int | None:
    """Return the length of the text of so many bytes."""
    return None if size is None else 4 * math.ceil(size / 3)


class BoundBase64:
    """The codec bound to bytes of one size or of any size."""

    __slots__ = ("decoded", "encoded")

    def __init__(self, decoded: ByteSpec) -> None:
        self.decoded = decoded
        self.encoded = ByteSpec(_length(decoded.size), 0, _length(decoded.max_size))

    def encode(self, data: Any) -> bytes:
        """Return `data` as text."""
        return binascii.b2a_base64(data, newline=False)

    def decode(self, data: Any) -> bytes:
        """Return the bytes of the text."""
        check_size(len(data), self.encoded.size)
        try:
            out = binascii.a2b_base64(data, strict_mode=True)
        except binascii.Error as error:
            raise FailedPreconditionError(f"Invalid base64 data: {error}") from None
        check_size(len(out), self.decoded.size)
        return out
