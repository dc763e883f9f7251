"""The contract of scanners, and the values that cross it.

A scanner knows one file format.  `scan` reads the structure of a file, and nothing that grows with the number of
chunks; the `ScannedFile` it returns answers the chunk tables of arrays when they are first read.  Registered by name in
`fsstore.values.registry.scanners` (entry points: `fsstore.scanners`), beside a `Detection` of the same name.

Every scanner promises this, and `fsstore.testing` checks it:

* It reads through the `ScanSource` only, and asks for what it needs in few rounds: spans of one call are one round.
* It never answers a chunk that it cannot locate or decode as absent: absent chunks read as the fill value.
* An object it cannot show is left out and named in `ScanHierarchy.notes`; it does not cost the rest of the file.
  Users see these notes wherever they look: in listings, trees and warnings, and in the error when they open the object.
  Missing parts of an object that is shown, such as an attribute, are named in `ScanHierarchy.lacking`.
* Damaged files raise errors of ours that name object and offset, within bounded time and memory: every count and
  length read from the file is checked against the size of the file before it is believed.
* It keeps no state outside the `ScannedFile`; one `ScannedFile` may be asked from several threads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, TypeAlias

import numpy as np

from fsstore.kvstore.contract.driver import Buffer
from fsstore.reference.table.keys import Grid
from fsstore.reference.table.table import Rows
from fsstore.scan.source import ScanSource
from fsstore.values.json_value import Fields, Json

__all__ = ["MADE", "SELF", "ChunkTable", "FileScanner", "Numbers", "ScanHierarchy", "ScannedFile"]

SELF = ""
"""The URL of the scanned file itself, in the `urls` of a chunk table."""

MADE = -3
"""In the `url` column: the scanner makes the value of this chunk (`ScannedFile.make`)."""

Numbers: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
"""Numbers of chunks in C order of the chunk grid."""


@dataclass(frozen=True, slots=True)
class ScanHierarchy:
    """The structure of a file.

    `documents` are zarr documents by key (`hierarchy` makes those of version 2); `grids` say by path which chunks an
    array may have.  `notes` say why an object is left out, by its path, and `lacking` what one that is shown lacks.
    """

    documents: Mapping[str, bytes] = field(default_factory=dict)
    grids: Mapping[str, Grid] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)
    lacking: Mapping[str, str] = field(default_factory=dict)

    @property
    def shortcomings(self) -> dict[str, str]:
        """Notes for readers of the file, by path: why objects are left out, and what others lack."""
        return {**self.lacking, **self.notes}

    @property
    def nbytes(self) -> int:
        """Roughly the memory it takes."""
        return sum(len(key) + len(value) + 100 for key, value in self.documents.items()) + 500 * len(
            self.grids
        )


class ChunkTable(Protocol):
    """Where the chunks of one array are.  `chunk_table` has the usual implementations.

    Rows are those of reference tables: `url` is an index into `urls`, `ABSENT`, `INLINE` (the value is
    `inline[offset]`), or `MADE`, whose `length` may be 0 when it is unknown.
    URLs are `SELF`, relative to the place of the file, or absolute; all but `SELF` are subject to the policy of
    reference sets.
    """

    @property
    def urls(self) -> Sequence[str]:
        """The URLs that the numbers in `url` stand for."""
        ...

    @property
    def inline(self) -> Sequence[bytes]:
        """Values that the table itself holds."""
        ...

    @property
    def nbytes(self) -> int:
        """The memory of the table."""
        ...

    def find(self, numbers: Numbers) -> Rows:
        """Return the rows of chunks, in order."""
        ...

    def present(self, start: int, stop: int) -> Numbers:
        """Return which of the chunks `[start, stop)` exist, ascending."""
        ...


class ScannedFile(Protocol):
    """One generation of a file."""

    @property
    def hierarchy(self) -> ScanHierarchy:
        """The structure."""
        ...

    async def tables(self, paths: Sequence[str]) -> Sequence[ChunkTable]:
        """Return the chunk tables of arrays, all of them in shared rounds; they are kept by the caller."""
        ...

    async def make(self, path: str, numbers: Numbers) -> Sequence[Buffer]:
        """Return the values of `MADE` chunks of an array, encoded as its document says."""
        ...


class FileScanner(Protocol):
    """A file format.  Implementations are plain frozen objects, called `SCANNER` in their module.

    A class that names this one among its bases has no members of its own unless it says otherwise.
    """

    name: ClassVar[str]
    """The JSON name and URL scheme of the adapter."""
    title: ClassVar[str]
    """The words for a file of the format in messages: `an HDF5 file`."""

    def members(self, fields: Fields) -> dict[str, Json]:
        """Take the JSON members of its own from `fields`, and return them without defaults."""
        return {}

    async def scan(self, source: ScanSource, members: Mapping[str, Json]) -> ScannedFile:
        """Return the structure of the file; raises `StoreError` if it is none of the format."""
        ...
