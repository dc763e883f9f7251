"""How chunks of a precomputed scale are called: by the box of voxels they hold, or, in shards, by a number.

The number of a chunk interleaves the bits of its coordinates, x first, as far as each has bits (a compressed Morton
code).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fsstore.chunk.plan.keys import WholeKeys
from fsstore.kvstore.contract.key_range import key_bytes, key_text

__all__ = ["MortonKeys", "VoxelKeys", "folder_of"]

_KEY = re.compile(r"(-?\d{1,20})-(-?\d{1,20})_(-?\d{1,20})-(-?\d{1,20})_(-?\d{1,20})-(-?\d{1,20})", re.ASCII)


@dataclass(frozen=True, slots=True)
class VoxelKeys:
    """Keys such as `0-64_64-128_0-10`, with absolute bounds; `lead` is the directory."""

    offset: tuple[int, ...]
    chunk: tuple[int, ...]
    size: tuple[int, ...]

    @property
    def is_joined(self) -> bool:
        """Keys are parts, one a dimension, joined."""
        return True

    def of_columns(self, columns: Sequence[Any]) -> list[str]:
        """Return the keys of many chunks."""
        return [self.key(numbers) for numbers in zip(*columns, strict=True)]

    def parts(self, numbers: Iterable[int], dimension: int) -> list[str]:
        """Return the bounds along one dimension; channels are never cut and have none."""
        if dimension > 2:
            return ["" for _ in numbers]
        lead = "_" if dimension else ""
        offset, step, size = self.offset[dimension], self.chunk[dimension], self.size[dimension]
        end = offset + size
        begins = [offset + number * step for number in numbers]
        return [f"{lead}{begin}-{min(end, begin + step)}" for begin in begins]

    def key(self, chunk: Iterable[int]) -> str:
        """Return the key of a chunk."""
        parts = []
        for number, offset, step, size in zip(chunk, self.offset, self.chunk, self.size, strict=False):
            low = int(number) * step
            high = min(size, low + step)
            parts.append(f"{offset + low}-{offset + high}")
        return "_".join(parts)  # channels are never cut and have none

    def numbers(self, key: str, rank: int) -> tuple[int, ...] | None:
        """Return the numbers of the chunk whose key this is, or None if it is none."""
        found = _KEY.fullmatch(key)
        if found is None:
            return None
        begins = map(int, found.groups()[::2])
        numbers = [
            (begin - offset) // step
            for begin, offset, step in zip(begins, self.offset, self.chunk, strict=True)
        ]
        return (*numbers, 0) if min(numbers) >= 0 and self.key(numbers) == key else None


@dataclass(frozen=True, slots=True)
class MortonKeys(WholeKeys):
    """Keys of eight bytes; `bits` is how many bits the number of a chunk has along x, y and z."""

    bits: tuple[int, ...]

    @property
    def order(self) -> list[tuple[int, int]]:
        """The dimension, and the bit of its number, that each bit of the key is, lowest first."""
        return [(axis, bit) for bit in range(64) for axis in range(3) if bit < self.bits[axis]]

    def of_columns(self, columns: Sequence[Any]) -> list[str]:
        """Return the keys of many chunks."""
        numbers = [np.asarray(column, np.uint64) for column in columns[:3]]
        codes = np.zeros(len(numbers[0]), np.uint64)
        for place, (axis, bit) in enumerate(self.order):
            codes |= ((numbers[axis] >> np.uint64(bit)) & np.uint64(1)) << np.uint64(place)
        octets = codes.astype(">u8").tobytes()
        return [key_text(octets[begin : begin + 8]) for begin in range(0, len(octets), 8)]

    def key(self, chunk: Iterable[int]) -> str:
        """Return the key of a chunk."""
        numbers, code = [int(number) for number in chunk], 0
        for place, (axis, bit) in enumerate(self.order):
            code |= (numbers[axis] >> bit & 1) << place
        return key_text(code.to_bytes(8, "big"))

    def numbers(self, key: str, rank: int) -> tuple[int, ...] | None:
        """Return the numbers of the chunk whose key this is, or None if it is none."""
        data = key_bytes(key)
        code, order = int.from_bytes(data, "big"), self.order
        if len(data) != 8 or code >> len(order):
            return None
        numbers = [0, 0, 0]
        for place, (axis, bit) in enumerate(order):
            numbers[axis] |= (code >> place & 1) << bit
        return (*numbers, 0)


def folder_of(path: str, key: str) -> str:
    """Return what the keys of the chunks of a scale begin with, given the path of the volume and the scale's key.

    >>> folder_of("p/q/", "../x"), folder_of("p/", "k"), folder_of("", "")
    ('p/x/', 'p/k/', '')
    """
    path = path.removesuffix("/")
    if not path:
        return key + "/" if key else ""
    parts = path.split("/")
    for part in key.split("/"):
        if part == ".." and parts:
            parts.pop()
        else:
            parts.append(part)
    return "/".join(parts) + "/"
