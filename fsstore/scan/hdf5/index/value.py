"""The values around a chunk index: what reading it takes, and the chunks it lists, as columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fsstore.errors import DataLossError
from fsstore.scan.contract import Numbers
from fsstore.scan.hdf5.format.reader import checksum
from fsstore.scan.source import ScanSource, Span

__all__ = ["Chunked", "Chunks", "check_sum", "elements", "nodes", "verified"]


@dataclass(frozen=True, slots=True)
class Chunked:
    """The facts needed to read an index: the shape, the largest shape (0: no limit), the chunk, and its bytes."""

    shape: tuple[int, ...]
    maxshape: tuple[int, ...]
    chunks: tuple[int, ...]
    nbytes: int
    filtered: bool

    @property
    def grid(self) -> tuple[int, ...]:
        """The shape in chunks."""
        return _grid(self.shape, self.chunks)

    @property
    def largest(self) -> tuple[int, ...]:
        """The largest shape in chunks; 0 where there is no limit."""
        return _grid(self.maxshape, self.chunks)


def _grid(shape: Sequence[int], chunks: Sequence[int]) -> tuple[int, ...]:
    return tuple(-(-size // step) for size, step in zip(shape, chunks, strict=True))


class Chunks(NamedTuple):
    """Chunks as columns: their places in the grid, a row each; addresses relative to the base; sizes; masks."""

    coords: Numbers
    address: Any
    size: Any
    mask: Any

    @classmethod
    def none(cls, rank: int) -> Chunks:
        """Return no chunks."""
        nothing = np.zeros(0, np.uint64)
        return cls(np.zeros((0, rank), np.int64), nothing, nothing, nothing)


async def nodes(source: ScanSource, spans: Sequence[Span]) -> list[bytes]:
    """Return the bytes of nodes: those that are cached, and the others in one round, which are not cached."""
    for span in spans:
        source.check(*span)
    found: list[Any] = [source.cached(*span) for span in spans]
    missing = [number for number, each in enumerate(found) if each is None]
    fetched = await source.fetch([spans[number] for number in missing]) if missing else []
    for number, data in zip(missing, fetched, strict=True):
        found[number] = bytes(data)
    return found


def verified(source: ScanSource, data: bytes, signature: bytes, offset: int, size: int = 0) -> bytes:
    """Return the bytes of a part of an index, which has a signature and ends, after `size` bytes or all of them, with
    its checksum.
    """
    data = data[:size] if size else data
    if data[:4] != signature:
        raise DataLossError(
            f"{source.describe(offset)}: expected {signature.decode()} of a chunk index, but found {data[:4]!r}"
        )
    check_sum(source, data, offset, size)
    return data


def check_sum(source: ScanSource, data: bytes, offset: int, size: int = 0) -> None:
    """Raise unless data of `size` bytes, or of any length, end with their checksum."""
    if len(data) < max(size, 4) or checksum(data[:-4]) != int.from_bytes(data[-4:], "little"):
        raise DataLossError(
            f"{source.describe(offset)}: the checksum of a part of a chunk index is not that of its bytes; "
            "the file is damaged: get an intact copy"
        )


def elements(source: ScanSource, data: bytes, width: int, chunked: Chunked) -> tuple[Any, Any, Any]:
    """Return addresses, sizes and masks of the elements of an array index: the address, and what filters made of it."""
    if width < 8 or width > 20 or (chunked.filtered and width < 13):
        raise DataLossError(f"{source.describe()} is damaged: a chunk index with elements of {width} bytes")
    rows = np.frombuffer(data, np.uint8)[: len(data) // width * width].reshape(-1, width)
    address = _number(rows[:, :8])
    if not chunked.filtered:
        return address, np.full(len(rows), chunked.nbytes, np.uint64), np.zeros(len(rows), np.uint64)
    return address, _number(rows[:, 8 : width - 4]), _number(rows[:, width - 4 :])


def _number(octets: Any) -> Any:
    """Return little-endian numbers of any width up to eight bytes, a row each."""
    wide = np.zeros((len(octets), 8), np.uint8)
    wide[:, : octets.shape[1]] = octets
    return wide.view("<u8").reshape(-1)
