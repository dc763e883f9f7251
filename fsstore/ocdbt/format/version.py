"""Versions: which tree, of which generation, committed when; and references to nodes of older versions.

Both kinds of record appear in manifests and in version tree nodes, stored by column.  This module encodes and
decodes the columns and checks what holds for them anywhere; what depends on the place is checked by the owner.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from fsstore.ocdbt.format.data_file import MISSING, NO_FILE, DataFile, Location, take_locations
from fsstore.ocdbt.format.varint import Cursor, encode, encode_column

__all__ = [
    "EMPTY",
    "TreeStatistics",
    "Version",
    "VersionNodeRef",
    "encode_refs",
    "encode_versions",
    "take_refs",
    "take_versions",
]


class TreeStatistics(NamedTuple):
    """Sums over a subtree; they saturate at 2**64 - 1."""

    num_keys: int
    num_tree_bytes: int
    num_indirect_value_bytes: int


EMPTY = TreeStatistics(0, 0, 0)


class Version(NamedTuple):
    """One state of the database.  `root` is None when it is empty; `commit_time` is in ns since the epoch."""

    generation: int
    height: int
    root: Location | None
    statistics: TreeStatistics
    commit_time: int


class VersionNodeRef(NamedTuple):
    """A node of the version tree: `generation` is the newest below it, `commit_time` the earliest."""

    generation: int
    location: Location
    num_generations: int
    commit_time: int
    height: int


def encode_versions(versions: Sequence[Version], index: dict[DataFile, int]) -> bytes:
    """Return the encoded records; `index` numbers the data files."""
    roots = [version.root or Location(NO_FILE, MISSING, MISSING) for version in versions]
    columns = [
        encode(len(versions)),
        encode_column([version.generation for version in versions]),
        bytes([version.height for version in versions]),
        _encode_locations(roots, index),
        *(encode_column([version.statistics[i] for version in versions]) for i in range(3)),
        np.array([version.commit_time for version in versions], "<u8").tobytes(),
    ]
    return b"".join(columns)


def encode_refs(refs: Sequence[VersionNodeRef], index: dict[DataFile, int], *, heights: bool) -> bytes:
    """Return the encoded records, with the column of heights if asked."""
    columns = [
        encode(len(refs)),
        encode_column([ref.generation for ref in refs]),
        _encode_locations([ref.location for ref in refs], index),
        encode_column([ref.num_generations for ref in refs]),
        np.array([ref.commit_time for ref in refs], "<u8").tobytes(),
        bytes([ref.height for ref in refs]) if heights else b"",
    ]
    return b"".join(columns)


def _encode_locations(places: Sequence[Location], index: dict[DataFile, int]) -> bytes:
    return b"".join(
        (
            encode_column([index[place.file] for place in places]),
            encode_column([place.offset for place in places]),
            encode_column([place.length for place in places]),
        )
    )


def take_versions(cursor: Cursor, files: Sequence[DataFile], arity_log2: int) -> list[Version]:
    """Return the version records at the cursor."""
    count = cursor.take()
    if not 1 <= count <= 1 << arity_log2:
        raise cursor.corrupt(f"Expected 1 to {1 << arity_log2} versions but received: {count}")
    generations = cursor.take_list(count)
    heights = cursor.take_bytes(count)
    roots = take_locations(cursor, files, count)
    sums = [cursor.take_list(count) for _ in range(3)]
    statistics = [TreeStatistics(*row) for row in zip(*sums, strict=True)]
    times = cursor.take_fixed(count, 8)
    if generations[0] == 0:
        raise cursor.corrupt("Generation number must not be 0")
    _check_rising(cursor, generations, "Generation numbers")
    _check_rising(cursor, times, "Commit times")
    if (generations[0] - 1) >> arity_log2 != (generations[-1] - 1) >> arity_log2:
        raise cursor.corrupt(f"Generations {generations[0]} and {generations[-1]} do not belong to one node")
    for height, root, sum_ in zip(heights, roots, statistics, strict=True):
        if root is None and (height or sum_ != EMPTY):
            raise cursor.corrupt("A version without a root must have height 0 and zero statistics")
    rows = zip(generations, heights, roots, statistics, times, strict=True)
    return [Version(*row) for row in rows]


def take_refs(
    cursor: Cursor, files: Sequence[DataFile], limit: int, height: int | None
) -> list[VersionNodeRef]:
    """Return at most `limit` records at the cursor; all have `height` unless a column gives it."""
    count = cursor.take()
    if count > limit:
        raise cursor.corrupt(f"Expected at most {limit} version tree nodes but received: {count}")
    generations = cursor.take_list(count)
    places = take_locations(cursor, files, count)
    counts = cursor.take_list(count)
    times = cursor.take_fixed(count, 8)
    heights = cursor.take_bytes(count) if height is None else bytes([height]) * count
    _check_rising(cursor, generations, "Generation numbers")
    _check_rising(cursor, times, "Commit times")
    refs: list[VersionNodeRef] = []
    for generation, place, number, time, level in zip(
        generations, places, counts, times, heights, strict=True
    ):
        if place is None:
            raise cursor.corrupt("A version tree node reference must not be missing")
        if generation == 0 or number == 0:
            raise cursor.corrupt("A version tree node must hold a generation")
        refs.append(VersionNodeRef(generation, place, number, time, level))
    return refs


def _check_rising(cursor: Cursor, numbers: Sequence[int], what: str) -> None:
    for low, high in pairwise(numbers):
        if low >= high:
            raise cursor.corrupt(f"{what} are not strictly increasing")
