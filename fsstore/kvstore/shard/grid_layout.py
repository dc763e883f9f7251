"""The shard of zarr v3 as a file of values: an index of offsets and lengths, in C order of a grid, and the values.

The index is stored through its own codecs, which must be of fixed size: transposes, `bytes`, `crc32c`.  Pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from fsstore.errors import DataLossError, JsonError, StoreError
from fsstore.kvstore.contract.driver import Buffer
from fsstore.values.json_value import Fields, Json, array_of, integer, obj, one_of, string

__all__ = ["GridShard", "parse_index_codecs"]

_ABSENT = np.uint64(2**64 - 1)
_FIXED = "Invalid index_codecs specified: only fixed-size encodings are supported"


def parse_index_codecs(value: Any) -> list[Json]:
    """Return the codecs of an index, complete and checked but for the rank."""
    out: list[Json] = []
    stage = 0  # transposes, then bytes, then checksums
    for item in array_of(obj)(value):
        fields = Fields(item)
        name = fields.require("name", string)
        configuration = Fields(fields.take("configuration", obj, default={}))
        fields.finish()
        if name == "transpose" and stage == 0:
            order = configuration.require("order", array_of(integer(0, 31)))
            made: dict[str, Json] = {"name": name, "configuration": {"order": order}}
        elif name == "bytes" and stage == 0:
            stage = 1
            endian = configuration.require("endian", one_of("little", "big"))
            made = {"name": name, "configuration": {"endian": endian}}
        elif name == "crc32c" and stage == 1:
            made = {"name": name}
        else:
            raise JsonError(_FIXED)
        configuration.finish()
        out.append(made)
    if stage != 1:
        raise JsonError('"bytes" codec is missing in "index_codecs"')
    return out


@dataclass(frozen=True, slots=True)
class GridShard:
    """The layout of a shard; the fields are the JSON members, made hashable."""

    grid: tuple[int, ...]
    orders: tuple[tuple[int, ...], ...]
    endian: str
    checksums: int
    at_end: bool

    @classmethod
    def of(cls, members: Mapping[str, Any]) -> Self:
        """Return the layout that parsed members say."""
        codecs, grid = members["index_codecs"], tuple(members["grid_shape"])
        orders = tuple(tuple(c["configuration"]["order"]) for c in codecs if c["name"] == "transpose")
        for order in orders:
            if sorted(order) != list(range(len(grid) + 1)):
                raise StoreError(
                    f"Invalid index_codecs: {list(order)} is no order of {len(grid) + 1} dimensions"
                )
        endian = next(c["configuration"]["endian"] for c in codecs if c["name"] == "bytes")
        checksums = sum(c["name"] == "crc32c" for c in codecs)
        return cls(grid, orders, endian, checksums, members.get("index_location", "end") == "end")

    @property
    def count(self) -> int:
        """The number of entries."""
        return math.prod(self.grid)

    @property
    def index_size(self) -> int:
        """How many bytes the index takes."""
        return 16 * self.count + 4 * self.checksums

    def decode_index(self, data: Buffer) -> np.ndarray[Any, np.dtype[np.uint64]]:
        """Return the offset and length of each entry, all ones where there is none."""
        data = memoryview(data)
        for _ in range(self.checksums):
            stored, actual = int.from_bytes(data[-4:], "little"), _crc32c(data[:-4])
            if stored != actual:
                raise DataLossError(
                    f"Digest mismatch, stored digest is {stored}, but computed digest is {actual}"
                )
            data = data[:-4]
        shape = (*self.grid, 2)
        shapes = [shape]
        for order in self.orders:
            shapes.append(tuple(shapes[-1][axis] for axis in order))
        index = np.frombuffer(data, "<u8" if self.endian == "little" else ">u8").reshape(shapes[-1])
        for order in reversed(self.orders):
            index = index.transpose(np.argsort(order))
        return np.ascontiguousarray(index, np.uint64).reshape(-1, 2)

    def span(self, index: Any, entry: int, size: int | None) -> tuple[int, int] | None:
        """Return where an entry begins and ends, None if it is absent; with `size` it must lie in the file."""
        offset, length = int(index[entry, 0]), int(index[entry, 1])
        if offset == length == int(_ABSENT):
            return None
        if int(_ABSENT) in (offset, length) or offset + length >= 1 << 63:
            raise DataLossError(f"Invalid shard index entry {entry}: offset={offset}, length={length}")
        if size is not None and offset + length > size:
            raise DataLossError(
                f"Shard index entry {entry} with byte range [{offset}, {offset + length}) is invalid for shard of size"
                f" {size}"
            )
        return offset, offset + length

    def split(self, data: Buffer) -> dict[int, Buffer]:
        """Return the values of a whole shard, by number of entry."""
        size = len(data)
        if size < self.index_size:
            raise DataLossError(
                f"Existing shard has size of {size} bytes, but expected at least {self.index_size} bytes"
            )
        view = memoryview(data)
        at = size - self.index_size if self.at_end else 0
        index = self.decode_index(view[at : at + self.index_size])
        present = np.flatnonzero(~(index == _ABSENT).all(axis=1)).tolist()
        spans = {entry: self.span(index, entry, size) for entry in present}
        return {entry: view[span[0] : span[1]] for entry, span in spans.items() if span is not None}

    def join(self, values: Mapping[int, Buffer]) -> bytes:
        """Return a shard of values by number of entry."""
        index = np.full((self.count, 2), _ABSENT, np.uint64)
        end = 0 if self.at_end else self.index_size
        parts = [values[entry] for entry in sorted(values)]
        for entry, part in zip(sorted(values), parts, strict=True):
            index[entry] = end, len(part)
            end += len(part)
        stored = self._encode_index(index)
        return b"".join([*parts, stored] if self.at_end else [stored, *parts])

    def _encode_index(self, index: Any) -> bytes:
        array = index.reshape(*self.grid, 2)
        for order in self.orders:
            array = array.transpose(order)
        data: bytes = array.astype("<u8" if self.endian == "little" else ">u8").tobytes()
        for _ in range(self.checksums):
            data += _crc32c(data).to_bytes(4, "little")
        return data

    def entry_of(self, numbers: Sequence[int]) -> int | None:
        """Return the number of the entry at a place of the grid, None outside of it."""
        if len(numbers) != len(self.grid):
            return None
        entry = 0
        for number, size in zip(numbers, self.grid, strict=True):
            if number >= size:
                return None
            entry = entry * size + number
        return entry


def _crc32c(data: Buffer) -> int:
    import google_crc32c  # costs more than opening an array

    return int(google_crc32c.value(bytes(data)))
