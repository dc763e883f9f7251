"""Variable-length integers (unsigned LEB128), one by one and by column, and a cursor that reads them.

Every list of records in OCDBT is stored by column, so a node of 100,000 entries is a dozen long runs of
varints.  Long runs are decoded and encoded by numpy in a few passes; short ones, as in manifests, by a loop.
Everything raises `DataLossError` on malformed input; nothing here knows what the numbers mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from fsstore.errors import DataLossError
from fsstore.ocdbt.tuning import SHORT_COLUMN

__all__ = ["U16", "U32", "U64", "Cursor", "Ints", "UInts", "encode", "encode_column"]

UInts: TypeAlias = npt.NDArray[np.uint64]
Ints: TypeAlias = npt.NDArray[np.int64]

U16, U32, U64 = 2**16 - 1, 2**32 - 1, 2**64 - 1
"""The greatest values of the three widths of varints."""

"""Below this many numbers the loop is faster than numpy."""


def encode(number: int) -> bytes:
    """Return one number as a varint."""
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def encode_column(numbers: Sequence[int] | Ints | UInts) -> bytes:
    """Return the varints of `numbers`, one behind the other."""
    if len(numbers) < SHORT_COLUMN:
        return b"".join([encode(int(number)) for number in numbers])
    values = np.asarray(numbers).astype(np.uint64)
    top = int(values.max())
    if top < 128:
        return values.astype(np.uint8).tobytes()
    sizes = np.ones(len(values), np.int64)
    for step in range(7, top.bit_length(), 7):
        sizes += values >= np.uint64(1 << step)
    starts = np.cumsum(sizes) - sizes
    out = np.empty(int(sizes.sum()), np.uint8)
    for place in range(int(sizes.max())):
        chosen = np.flatnonzero(sizes > place)
        group = (values[chosen] >> np.uint64(7 * place)).astype(np.uint8) & np.uint8(127)
        out[starts[chosen] + place] = group | (sizes[chosen] > place + 1).astype(np.uint8) << np.uint8(7)
    return out.tobytes()


class Cursor:
    """A position in a buffer; every `take_*` moves it on.  `what` names the structure in messages."""

    __slots__ = ("_array", "data", "position", "what")

    def __init__(self, data: bytes, what: str, position: int = 0) -> None:
        self.data, self.what, self.position = data, what, position
        self._array = np.frombuffer(data, np.uint8)

    def corrupt(self, why: str) -> DataLossError:
        """Return the error that says what is wrong, and where."""
        return DataLossError(f"Error decoding {self.what}: {why}; at byte {self.position}")

    def take_bytes(self, count: int) -> bytes:
        """Return the next `count` bytes."""
        stop = self.position + count
        if stop > len(self.data):
            raise self.corrupt(
                f"expected {count} more bytes but only {len(self.data) - self.position} are left"
            )
        out = self.data[self.position : stop]
        self.position = stop
        return out

    def take_u8(self) -> int:
        """Return the next byte."""
        return self.take_bytes(1)[0]

    def take_fixed(self, count: int, size: int, *, signed: bool = False) -> list[int]:
        """Return `count` little-endian numbers of `size` bytes."""
        dtype = np.dtype(f"<{'i' if signed else 'u'}{size}")
        found: list[int] = np.frombuffer(self.take_bytes(count * size), dtype).tolist()
        return found

    def take(self, limit: int = U64) -> int:
        """Return the next varint, at most `limit`."""
        data, at, shift, out = self.data, self.position, 0, 0
        while True:
            if at >= len(data):
                raise self.corrupt("unexpected end of a varint")
            byte = data[at]
            at += 1
            out |= (byte & 127) << shift
            if byte < 128:
                break
            shift += 7
            if shift > 63:
                raise self.corrupt("varint of more than 10 bytes")
        if out > limit:
            raise self.corrupt(f"number {out} exceeds {limit}")
        self.position = at
        return out

    def take_list(self, count: int, limit: int = U64) -> list[int]:
        """Return `count` varints as a list."""
        if count < SHORT_COLUMN:
            return [self.take(limit) for _ in range(count)]
        found: list[int] = self.take_column(count, limit).tolist()
        return found

    def take_column(self, count: int, limit: int = U64) -> UInts:
        """Return `count` varints as an array."""
        if count < SHORT_COLUMN:
            return np.array([self.take(limit) for _ in range(count)], np.uint64)
        window = self._array[self.position : self.position + count]
        if len(window) < count:
            raise self.corrupt(f"expected {count} varints but only {len(window)} bytes are left")
        if int(window.max()) < 128:
            values = window.astype(np.uint64)
            used = count
        else:
            values, used = self._decode(self._array[self.position : self.position + 10 * count], count)
        top = int(values.max())
        if top > limit:
            raise self.corrupt(f"number {top} exceeds {limit}")
        self.position += used
        return values

    def _decode(self, window: npt.NDArray[np.uint8], count: int) -> tuple[UInts, int]:
        ends = np.flatnonzero(window < 128)[:count]
        if len(ends) < count:
            raise self.corrupt("unexpected end of a varint")
        starts = np.concatenate(([0], ends[:-1] + 1))
        sizes = ends - starts + 1
        longest = int(sizes.max())
        if longest > 10 or (longest == 10 and (window[ends[sizes == 10]] > 1).any()):
            raise self.corrupt("varint of more than 64 bits")
        values = (window[starts] & np.uint8(127)).astype(np.uint64)
        for place in range(1, longest):
            chosen = np.flatnonzero(sizes > place)
            group = (window[starts[chosen] + place] & np.uint8(127)).astype(np.uint64)
            values[chosen] |= group << np.uint64(7 * place)
        return values, int(ends[-1]) + 1

    def finish(self) -> None:
        """Raise unless everything was consumed."""
        if self.position != len(self.data):
            raise self.corrupt(f"{len(self.data) - self.position} bytes too many")
