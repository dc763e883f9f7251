"""LZ4 as numcodecs frames it: the decoded size as a signed 32-bit little-endian number, then one block."""

from __future__ import annotations

from typing import Any

from fsstore.codec.contract import ByteSpec
from fsstore.codec.size import check_size, encoded_bound, output_limit, too_large
from fsstore.errors import FailedPreconditionError

__all__ = ["BoundLz4"]


class BoundLz4:
    """LZ4 bound to bytes of one size or of any size."""

    __slots__ = ("_acceleration", "decoded", "encoded")

    def __init__(self, decoded: ByteSpec, acceleration: int) -> None:
        self.decoded, self._acceleration = decoded, acceleration
        self.encoded = ByteSpec(itemsize=0, max_size=encoded_bound(decoded))

    def encode(self, data: Any) -> bytes:
        """Return `data` compressed."""
        from numcodecs import lz4

        return bytes(lz4.compress(data, self._acceleration))

    def decode(self, data: Any) -> Any:
        """Return the bytes decompressed; the size that the header states is checked first."""
        from numcodecs import lz4

        if len(data) < 5:
            raise FailedPreconditionError(f"Invalid lz4-compressed data; at byte {len(data)}")
        size = int.from_bytes(bytes(data[:4]), "little")
        check_size(size, self.decoded.size)
        limit = output_limit(self.decoded, len(data))
        if size > limit:
            raise too_large(limit)
        try:
            return lz4.decompress(data)
        except (RuntimeError, ValueError, SystemError) as error:
            raise FailedPreconditionError(f"Invalid lz4-compressed data: {error}") from None
