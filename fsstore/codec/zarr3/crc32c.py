"""The `crc32c` codec: four bytes of checksum, little endian, after the data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import google_crc32c
import numpy as np

from fsstore.codec.configuration import Configured, Members
from fsstore.codec.contract import Buffer, ByteSpec, ChunkSpec, Kind
from fsstore.codec.size import too_long, too_short
from fsstore.errors import DataLossError, StoreError

__all__ = ["BoundCrc32c", "Crc32cCodec", "checksum"]

# the checksum of anything followed by its own checksum
_RESIDUE = 0x48674BC7


def checksum(data: Any) -> int:
    """Return the CRC-32C of a buffer."""
    value: int = google_crc32c.value(_acceptable(data))
    return value


def _acceptable(data: Any) -> Any:
    """Return a buffer as the library takes it: bytes and arrays, but neither bytearray nor memoryview."""
    if isinstance(data, bytes):
        return data
    return np.frombuffer(data, np.uint8) if len(data) else b""


class BoundCrc32c:
    """The checksum bound to bytes of one size or of any size."""

    effort: ClassVar[float] = 0.1
    is_exact: ClassVar[bool] = True

    __slots__ = ("encoded", "size")

    def __init__(self, decoded: ByteSpec) -> None:
        self.size = decoded.size
        size = None if decoded.size is None else decoded.size + 4
        self.encoded = ByteSpec(size, 0, None if decoded.max_size is None else decoded.max_size + 4)

    def encode(self, data: Any) -> bytes:
        """Return `data` and its checksum."""
        return b"".join(self.pass_pieces((data,)))

    def pass_pieces(self, pieces: Iterable[Buffer]) -> Iterator[Buffer]:
        """Yield pieces and then the checksum of all."""
        value = 0
        for piece in pieces:
            value = google_crc32c.extend(value, _acceptable(piece))
            yield piece
        yield value.to_bytes(4, "little")

    def decode(self, data: Any) -> memoryview:
        """Return a view of `data` without its checksum, which must be right."""
        view = memoryview(data)
        self._check_length(len(view))
        if checksum(data) != _RESIDUE:
            stored, computed = int.from_bytes(view[-4:], "little"), checksum(view[:-4])
            raise DataLossError(
                f"Digest mismatch, stored digest is {stored:#010x} but computed digest is {computed:#010x}"
            )
        return view[:-4]

    def decode_joined(self, parts: Sequence[Buffer], out: Any) -> bool:
        """Put parts without their checksums one after the other; return False if one is not right."""
        size = len(out) // len(parts)
        if any(len(part) != size + 4 or checksum(part) != _RESIDUE for part in parts):
            return False
        rows = np.frombuffer(b"".join(parts), np.uint8).reshape(len(parts), size + 4)
        out.reshape(len(parts), size)[...] = rows[:, :-4]
        return True

    def _check_length(self, length: int) -> None:
        """Raise unless the data and their checksum are there, and no more."""
        if self.size is None:
            if length < 4:
                raise DataLossError(f"Input size of {length} is less than digest size of 4")
        elif length < self.size:
            raise too_short(self.size, length)
        elif length < self.size + 4:
            raise DataLossError(f"Unexpected end of input; at byte {self.size}")
        elif length > self.size + 4:
            raise too_long(self.size + 4, length)


@dataclass(frozen=True, slots=True)
class Crc32cCodec(Configured):
    """A CRC-32C after the data.  No configuration."""

    name: ClassVar[str] = "crc32c"
    kind: ClassVar[Kind] = "bytes_to_bytes"
    members: ClassVar[Members] = {}

    def bind(self, decoded: ChunkSpec | ByteSpec) -> BoundCrc32c:
        """Return the codec for bytes like `decoded`."""
        if not isinstance(decoded, ByteSpec):
            raise StoreError('"crc32c" codec requires bytes')
        return BoundCrc32c(decoded)
