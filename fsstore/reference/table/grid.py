"""Chunk grids of zarr arrays, read off their metadata: which keys an array may have, and their numbers.

Parquet sets store references by the number of the chunk in C order, so keys are converted to numbers and back.  This
needs only the shape, the chunk shape and the form of keys; the rest of the metadata is ignored.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fsstore.errors import JsonError
from fsstore.kvstore.contract.request import key_bytes
from fsstore.reference.table.keys import Family
from fsstore.values.json_value import integer, show

__all__ = ["Grid", "around_others", "grid_of", "is_document"]

_DOCUMENTS = (".zarray", ".zgroup", ".zattrs", ".zmetadata", "zarr.json")
_COORDS = re.compile(r"(?:0|[1-9][0-9]{0,17})")


def is_document(key: str) -> bool:
    """Return whether a key names a metadata document."""
    return key.rpartition("/")[2] in _DOCUMENTS


def around_others(paths: Iterable[str]) -> set[str]:
    """Return the paths of arrays that have another below them, whose keys may read as chunks of both.

    Zarr has no array in an array, but a set may name some: `g/0/1` is a chunk of `g` and of `g/0`.

    >>> around_others(["g", "g/0", "h"])
    {'g'}
    """
    known = set(paths)
    inside = [(path, place) for path in known for place, letter in enumerate(path) if letter == "/"]
    found = {path[:place] for path, place in inside} & known
    return found | ({""} if "" in known and len(known) > 1 else set())


@dataclass(frozen=True, slots=True)
class Grid:
    """The chunk grid of the array at `path`: `shape` in chunks (`(1,)` for a scalar), and how keys are written.

    `chunk` is the shape of a chunk in elements.
    """

    path: str
    shape: tuple[int, ...]
    scalar: bool
    separator: str
    c_prefix: bool
    chunk: tuple[int, ...] = ()

    @property
    def count(self) -> int:
        """The number of chunks."""
        return math.prod(self.shape)

    @property
    def family(self) -> Family | None:
        """The family of its keys, or None for scalars of version 3, whose key `c` is loose."""
        path = f"/{self.path}" if self.path else ""
        separator, ndim = self.separator.encode(), len(self.shape)
        if self.c_prefix:
            return None if self.scalar else (key_bytes(f"{path}/c"), separator * ndim)
        return key_bytes(path), b"/" + separator * (ndim - 1)

    def key(self, coords: Sequence[int]) -> str:
        """Return the key of a chunk."""
        head = f"{self.path}/" if self.path else ""
        if self.c_prefix:
            return head + ("c" if self.scalar else self.separator.join(("c", *map(str, coords))))
        return head + self.separator.join(map(str, coords))

    def keys(self, numbers: np.ndarray[Any, Any]) -> list[str]:
        """Return the keys of chunks by their numbers."""
        coords = np.stack(np.unravel_index(numbers, self.shape), axis=1)
        return [self.key(row) for row in coords.tolist()]

    def number(self, name: str) -> int | None:
        """Return the number of the chunk called `name` below the path, or None if it names no chunk."""
        parts = name.split(self.separator)
        if self.c_prefix:
            if parts[0] != "c":
                return None
            parts = ["0"] if self.scalar and len(parts) == 1 else parts[1:]
        if len(parts) != len(self.shape) or not all(_COORDS.fullmatch(part) for part in parts):
            return None
        return self.number_of(list(map(int, parts)))

    def number_of(self, coords: Sequence[int]) -> int | None:
        """Return the number of coordinates, or None outside the grid."""
        number = 0
        for coord, size in zip(coords, self.shape, strict=True):
            if coord >= size:
                return None
            number = number * size + coord
        return number

    def numbers(self, coords: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return the numbers of coordinates; -1 outside the grid."""
        inside = (coords < self.shape).all(axis=1)
        paces = [math.prod(self.shape[dim + 1 :]) for dim in range(len(self.shape))]
        return np.where(inside, coords @ np.array(paces, np.int64), -1)


def _sizes(value: Any, low: int) -> list[int]:
    parse = integer(low, 2**62)
    if not isinstance(value, list):
        raise JsonError(f"Expected array, but received: {show(value)}")
    return [parse(item) for item in value]


def grid_of(path: str, metadata: Mapping[str, Any]) -> Grid | None:
    """Return the grid of an array from its `.zarray` or `zarr.json`, or None for a group."""
    if metadata.get("zarr_format") == 3:
        if metadata.get("node_type") != "array":
            return None
        grid = metadata.get("chunk_grid")
        inner = grid.get("configuration") if isinstance(grid, Mapping) else None
        chunks = inner.get("chunk_shape") if isinstance(inner, Mapping) else None
        c_prefix, separator = _encoding(path, metadata.get("chunk_key_encoding"))
    else:
        chunks, c_prefix, separator = (
            metadata.get("chunks"),
            False,
            metadata.get("dimension_separator") or ".",
        )
    shape, chunk = _sizes(metadata.get("shape"), 0), _sizes(chunks, 1)
    if len(shape) != len(chunk):
        raise JsonError(f"The array {show(path)} has {len(shape)} dimensions, but {len(chunk)} chunk sizes")
    if separator not in (".", "/"):
        raise JsonError(f"The array {show(path)} has the unknown separator {show(separator)}")
    counts = tuple(-(-size // step) for size, step in zip(shape, chunk, strict=True)) or (1,)
    if math.prod(max(count, 1) for count in counts) >= 2**62:
        raise JsonError(f"The array {show(path)} has more than 2^62 chunks")
    return Grid(path, counts, not shape, str(separator), c_prefix, tuple(chunk))


def _encoding(path: str, value: Any) -> tuple[bool, Any]:
    if isinstance(value, str):
        value = {"name": value}
    if not isinstance(value, Mapping):
        return True, "/"
    inner = value.get("configuration")
    separator = inner.get("separator") if isinstance(inner, Mapping) else None
    plain = value.get("name") == "v2"
    if not plain and value.get("name") != "default":
        raise JsonError(
            f"The array {show(path)} calls its chunks as {show(value.get('name'))} does, not by a grid"
        )
    return not plain, separator or ("." if plain else "/")
