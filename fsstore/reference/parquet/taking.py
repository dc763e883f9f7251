"""Taking a copy into a parquet set in one step: new arrays, or new references of one array in one file.

Other readers find the references of an array at `<array>/refs.<k>.parq`, and no document says otherwise: the names
cannot be changed, so several files of an array that is there cannot be replaced together, nor one and `.zmetadata`.
Readers fetch files when they need them, so even a directory that was replaced as a whole would be read half old and
half new.  Two things can be one step:

* New arrays.  Nobody looks for their files before `.zmetadata` has them, so these are written first.  `.zmetadata` is
  claimed before that, and the last write is conditional on the claim: two writers of one new array cannot write files
  for each other.  Each file is written under the condition that it is what it was after the claim, and all files of the
  array are, those without references too.  So a writer that had claimed before, and is late, fails or is overwritten.
* Other references of an array whose documents stay as they are, if all of them fit into one file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import uuid4

import numpy as np

from fsstore.errors import StoreError, UnimplementedError
from fsstore.kvstore.contract.driver import UNKNOWN, Read, Write
from fsstore.reference.parquet.files import Where, file_name
from fsstore.reference.parquet.metadata import format_metadata, is_object
from fsstore.reference.parquet.refs import ParquetSet
from fsstore.reference.parquet.write import encode_partition
from fsstore.reference.state.set_state import State, Taking
from fsstore.reference.table.table import INLINE, Rows
from fsstore.reference.tuning import PARQUET_FILES_AT_ONCE
from fsstore.runtime import execution
from fsstore.values.json_value import quote

__all__ = ["check_taking", "take"]


def check_taking(held: ParquetSet, taking: Taking) -> ParquetSet:
    """Return the set as it will be, without references; raise if that is more than one step."""
    for key, value in taking.writes.items():
        if not is_object(value):
            raise StoreError(
                f"{quote(key)} is no JSON object, so the metadata of a parquet set cannot hold it"
            )
    kept = {key: value for key, value in held.metadata.items() if not taking.deletes(key)}
    metadata = kept | {
        key: _unless_equal(held.metadata.get(key), value) for key, value in taking.writes.items()
    }
    after = ParquetSet(held.files, format_metadata(metadata, held.record_size))
    there = [path for path in held.grids if _is_deleted(path, taking)]
    if not there:
        return after
    files = sum(_count(held, path) for path in there)
    if metadata == held.metadata and files == 1:
        return after
    why = f"has its references in {files} files" if files > 1 else "gets other metadata"
    raise UnimplementedError(
        f"{quote(there[0])} is in the parquet set already and {why}, which no reader of such sets sees change in one"
        " step; copy to a path that is new, or into a set in JSON"
    )


async def take(before: State, held: ParquetSet, taking: Taking) -> State | None:
    """Return the set with what it takes, stored in one step; None if it was changed by somebody else meanwhile.

    `.zmetadata` is `before`.
    """
    after = check_taking(held, taking)
    files = _Files.of(after, taking)
    if any(path in held.grids for path in files.paths):
        return before if await files.put(before.generation) else None
    claim = format_metadata(held.metadata, held.record_size, held.scanned, claim=uuid4().hex)
    stamp = await held.base.write(".zmetadata", claim, before.generation)
    if stamp.generation == UNKNOWN or not await files.put(stamp.generation):
        return None
    data = format_metadata(after.metadata, held.record_size)
    stamp = await held.base.write(".zmetadata", data, stamp.generation)
    return None if stamp.generation == UNKNOWN else State(after, {}, stamp.generation)


def _unless_equal(old: bytes | None, new: bytes) -> bytes:
    """Return a document as it stands in the set if the new one says the same."""
    return old if old is not None and json.loads(old) == json.loads(new) else new.strip()


def _is_deleted(path: str, taking: Taking) -> bool:
    return taking.deletes(f"{path}/" if path else "")


def _count(held: ParquetSet, path: str) -> int:
    """Return how many files the references of an array are in."""
    return -(-held.grids[path].count // held.record_size)


@dataclass(frozen=True, slots=True)
class _Files:
    """All files of arrays that are taken: `rows` point into `urls`, and `places` says which rows a file has."""

    held: ParquetSet
    paths: tuple[str, ...]
    rows: Rows
    urls: Sequence[str]
    places: Mapping[Where, tuple[list[int], list[int]]]

    @classmethod
    def of(cls, after: ParquetSet, taking: Taking) -> _Files:
        """Return the files of what a set takes; `after` is the set with it."""
        paths = tuple(path for path in after.grids if _is_deleted(path, taking))
        places = after.places(list(taking.references))
        placed = sum(len(positions) for positions, _ in places.values())
        if placed != len(taking.references) or not {path for path, _ in places} <= set(paths):
            raise StoreError(f"What {after.base.describe()} is to take are not the chunks of one array each")
        rows = Rows.of(list(taking.references.values()))
        return cls(after, paths, rows, taking.urls, places)

    async def put(self, generation: bytes) -> bool:
        """Write all files while `.zmetadata` has a generation; return whether all were what they had been."""
        wanted = [(path, record) for path in self.paths for record in range(_count(self.held, path))]
        for at in range(0, len(wanted), PARQUET_FILES_AT_ONCE):
            if not await self._put(wanted[at : at + PARQUET_FILES_AT_ONCE], generation):
                return False
        return True

    async def _put(self, wanted: Sequence[Where], generation: bytes) -> bool:
        files, base = self.held.files, self.held.base
        for where in wanted:
            files.replace(where, None, None)
        basis = await files.load(wanted)
        now = await base.read_many([Read(".zmetadata", if_not_equal=generation)])
        if now[0].generation != generation:
            return False
        contents = await execution.offload(lambda: [self._encoded(where) for where in wanted], kind="compute")
        stamps = await base.write_many([
            Write(file_name(where), content, basis[where].generation)
            for where, content in zip(wanted, contents, strict=True)
        ])  # fmt: skip
        for where in wanted:
            files.replace(where, None, None)
        return all(stamp.generation != UNKNOWN for stamp in stamps)

    def _encoded(self, where: Where) -> bytes:
        """Return a file; a range of no bytes is an empty value, as in every file of a set."""
        size, (path, record) = self.held.record_size, where
        columns = Rows.absent(min(size, self.held.grids[path].count - record * size))
        positions, numbers = self.places.get(where, ([], []))
        columns.put(np.array(numbers, np.int64), self.rows.take(np.array(positions, np.int64)))
        empty = (columns.url >= 0) & (columns.length == 0)
        columns.url[empty], columns.offset[empty] = INLINE, 0
        return encode_partition(columns, self.urls, [b""])
