"""Names of data files, the table of them in every structure, and places in them.

A file is a pair (base path, relative path).  A structure is read in the context of a transitive path, which is
put before the base path when the table is decoded, so that the pairs of this package are always relative to the
database directory.  Files that are referred to from a file have that file's base path as their context: this is how
one database is grafted into another.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from fsstore.ocdbt.format.varint import U16, U64, Cursor, encode, encode_column

__all__ = [
    "MISSING",
    "NO_FILE",
    "DataFile",
    "Location",
    "decode_files",
    "encode_files",
    "sorted_files",
    "take_locations",
]

MISSING = U64
"""Offset and length of the root of an empty version."""


class DataFile(NamedTuple):
    """A data file, relative to the database directory: its name is `base_path + relative_path`."""

    base_path: bytes
    relative_path: bytes

    @property
    def name(self) -> bytes:
        """The whole path."""
        return self.base_path + self.relative_path


NO_FILE = DataFile(b"", b"")
"""The file that the location of a missing root refers to."""


class Location(NamedTuple):
    """The bytes `[offset, offset + length)` of a data file."""

    file: DataFile
    offset: int
    length: int


def sorted_files(files: Iterable[DataFile]) -> tuple[list[DataFile], dict[DataFile, int]]:
    """Return the distinct files in the order of a table, and the index of each."""
    table = sorted(set(files))
    return table, {file: index for index, file in enumerate(table)}


def encode_files(table: Sequence[DataFile]) -> bytes:
    """Return the encoded table."""
    prefixes = [_shared(a, b) for a, b in pairwise(table)]
    suffixes = [file.name[cut:] for file, cut in zip(table, [0, *prefixes], strict=True)] if table else []
    columns = [
        encode(len(table)),
        encode_column(prefixes),
        encode_column([len(suffix) for suffix in suffixes]),
        encode_column([len(file.base_path) for file in table]),
    ]
    return b"".join(columns + suffixes)


def _shared(a: DataFile, b: DataFile) -> int:
    """Return how much of the path of `a` that of `b` reuses: beyond the base paths only if these are equal."""
    if a.base_path == b.base_path:
        return len(a.base_path) + _common(a.relative_path, b.relative_path)
    return _common(a.base_path, b.base_path)


def _common(a: bytes, b: bytes) -> int:
    length = min(len(a), len(b))
    if a[:length] == b[:length]:
        return length
    return next(place for place in range(length) if a[place] != b[place])


def decode_files(cursor: Cursor, context: bytes) -> list[DataFile]:
    """Return the table at the cursor, `context` put before the base paths."""
    count = cursor.take()
    if count == 0:
        return []
    if count > len(cursor.data):
        raise cursor.corrupt(f"a table of {count} data files does not fit")
    prefixes = [0, *cursor.take_list(count - 1, U16)]
    sizes = cursor.take_list(count, U16)
    bases = cursor.take_list(count, U16)
    files: list[DataFile] = []
    path, previous_base = b"", 0
    room = 64 * len(cursor.data) + 2**26
    for prefix, size, base in zip(prefixes, sizes, bases, strict=True):
        if prefix > len(path) or (files and prefix > min(previous_base, base) and previous_base != base):
            raise cursor.corrupt(f"path prefix of {prefix} bytes exceeds what precedes it")
        path = path[:prefix] + cursor.take_bytes(size)
        room -= len(path)
        if base > len(path) or len(context) + len(path) > U16 or room < 0:
            raise cursor.corrupt(
                f"data file path of {len(path)} bytes with a base path of {base} bytes is invalid"
            )
        if b".." in path and b".." in (context + path).split(b"/"):
            raise cursor.corrupt("a data file path leads out of the database directory")
        files.append(DataFile(context + path[:base], path[base:]))
        previous_base = base
    return files


def take_locations(cursor: Cursor, files: Sequence[DataFile], count: int) -> list[Location | None]:
    """Return `count` locations; a missing one is None."""
    indexes, offsets, lengths = (cursor.take_list(count) for _ in range(3))
    if count and max(indexes) >= len(files):
        raise cursor.corrupt(f"data file {max(indexes)} of {len(files)} does not exist")
    out: list[Location | None] = []
    for index, offset, length in zip(indexes, offsets, lengths, strict=True):
        if offset == length == MISSING:
            out.append(None)
        elif offset + length >= 2**63:
            raise cursor.corrupt(f"byte range [{offset}, {offset + length}) is out of range")
        else:
            out.append(Location(files[index], offset, length))
    return out
