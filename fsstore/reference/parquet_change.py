"""Writing to a parquet set: every file is replaced as a whole, and only if no other writer replaced it.

A set is `.zmetadata` and many files of references, and other readers find the files by their names alone.  So no step
could replace several of them at once; what makes a set consistent at any moment, for readers that know nothing of
writers, is the order:

* One file holds all there is to know of one key, so every key has its old or its new value, never another chunk's.
* Metadata is written before the chunks of the same batch.  An array that appears has no references yet; an array that
  goes takes its references along.
* Rows never move.  Where a grid grows or shrinks so that its chunks keep their numbers, rows that only the new grid
  reaches are cleared before `.zmetadata` is written, and rows that it no longer reaches afterwards: whoever reads
  between sees the old or the new grid over rows that both agree on.  A change of the grid that would give chunks other
  numbers is refused while there are references.

Two writers meet in the condition of a write; the second one reads the file again and applies its changes to that.
`.zmetadata` is looked at after the files are read and before they are written, so no row is numbered by a grid that is
gone.

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
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias
from uuid import uuid4

import numpy as np

from fsstore.errors import AbortedError, FailedPreconditionError, StoreError, UnimplementedError
from fsstore.kvstore.contract.driver import UNKNOWN, Read, Write
from fsstore.reference.parquet_file import (
    Loaded,
    Partition,
    PartitionFiles,
    Where,
    file_name,
    format_metadata,
    is_object,
)
from fsstore.reference.parquet_set import ParquetSet, encode_partition
from fsstore.reference.table.keys import Grid, is_document
from fsstore.reference.table.set_state import Changes, Saved, State, Taking
from fsstore.reference.table.table import ABSENT, INLINE, Rows
from fsstore.runtime import execution
from fsstore.runtime.together import ChangedError, until_unchanged
from fsstore.runtime.tuning import AT_ONCE
from fsstore.values.json_value import quote

# Taking a copy into a parquet set in one step: new arrays, or new references of one array in one file.


def check_taking(held: ParquetSet, taking: Taking) -> ParquetSet:
    """Return the set as it will be, without references; raise if that is more than one step."""
    for key, value in taking.writes.items():
        if not is_object(value):
            raise StoreError(f"{quote(key)} is no JSON object, so the metadata of a parquet set cannot hold it")
    kept = {key: value for key, value in held.metadata.items() if not taking.deletes(key)}
    metadata = kept | {key: _unless_equal(held.metadata.get(key), value) for key, value in taking.writes.items()}
    after = ParquetSet(held.files, format_metadata(metadata, held.record_size, origins=held.origins))
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
    claim = format_metadata(held.metadata, held.record_size, held.scanned, origins=held.origins, claim=uuid4().hex)
    stamp = await held.base.write(".zmetadata", claim, before.generation)
    if stamp.generation == UNKNOWN or not await files.put(stamp.generation):
        return None
    data = format_metadata(after.metadata, held.record_size, origins=held.origins)
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
        for at in range(0, len(wanted), AT_ONCE):
            if not await self._put(wanted[at : at + AT_ONCE], generation):
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


"""Files that one round of a batch replaces: all of them are in memory at once."""

Basis: TypeAlias = Mapping[Where, Loaded]


@dataclass(frozen=True, slots=True)
class ParquetDocument:
    """A parquet set as a document; `load` reads its state."""

    load: Callable[[], Awaitable[State]]

    async def basis(self, state: State, keys: Sequence[str]) -> Basis:
        """Return the files of chunks, up to a number; of a batch with metadata none, for that is a round by itself."""
        held = _set_of(state)
        if any(_is_metadata(held, key) for key in keys):
            return {}
        return await held.files.load(list(held.places(keys))[:AT_ONCE])

    async def reload(self, state: State, keys: Sequence[str]) -> State | None:
        """Return the state that is stored, or None if `keys` are as they were."""
        held = _set_of(state)
        if not await _is_current(state):
            return await self.load()
        known = await held.files.load(list(held.places(keys)))
        for where, file in known.items():
            held.files.replace(where, file, None)
        found = await held.files.load(list(known))
        changed = any(found[where].generation != file.generation for where, file in known.items())
        return State(held, {}, state.generation) if changed else None

    async def check(self, state: State, taking: Taking) -> None:
        """Raise if what is taken is more than one step."""
        check_taking(_set_of(state), taking)

    async def take(self, before: State, taking: Taking) -> State | None:
        """Return the set with what it takes, stored in one step; None if it was changed by somebody else."""
        held = _set_of(before)
        return await take(before, held, taking) if await _is_current(before) else None

    async def save(self, state: State, changes: Changes, basis: Basis) -> Saved:
        """Save the metadata among changes, or else the files that stand in the basis."""
        if not await _is_current(state):
            return Saved(await self.load(), {})
        held = _set_of(state)
        documents = {key: value for key, value in changes.items() if _is_metadata(held, key)}
        if documents:
            return await self._save_metadata(state, documents, changes)
        _check_places(held, changes)
        return Saved(state, await _save_chunks(held, changes, basis))

    async def _save_metadata(self, state: State, documents: Changes, changes: Changes) -> Saved:
        held = _set_of(state)
        for key, value in documents.items():
            if value is not None and not is_object(value):
                raise StoreError(f"{quote(key)} is no JSON object, so the metadata of a parquet set cannot hold it")
        kept = {key: None if value is None else value.strip() for key, value in documents.items()}
        merged = {**held.metadata, **kept}
        metadata = {key: value for key, value in merged.items() if value is not None}
        data = format_metadata(metadata, held.record_size, origins=held.origins)
        after = ParquetSet(held.files, data)
        _check_places(after, {key: value for key, value in changes.items() if key not in documents})
        if metadata == held.metadata:
            return Saved(state, kept)
        for path, grid in after.grids.items():
            await _before(held.files, after.record_size, held.grids.get(path), grid)
        stamp = await held.base.write(".zmetadata", data, state.generation)
        if stamp.generation == UNKNOWN:
            return Saved(await self.load(), {})
        for path, grid in held.grids.items():
            await _afterwards(held.files, after.record_size, grid, after.grids.get(path))
        return Saved(State(after, {}, stamp.generation), kept)


def _set_of(state: State) -> ParquetSet:
    if not isinstance(state.base, ParquetSet):
        raise AbortedError("The parquet set was replaced by a document while it was open")
    return state.base


def _is_metadata(held: ParquetSet, key: str) -> bool:
    return is_document(key) or key in held.metadata


async def _is_current(state: State) -> bool:
    base = _set_of(state).base
    found = await base.read_many([Read(".zmetadata", if_not_equal=state.generation)])
    return found[0].generation == state.generation


def _check_places(held: ParquetSet, changes: Changes) -> None:
    """Raise if values are given to keys that are no chunks; such keys can only be deleted, for they do not exist.

    A key that is a chunk of two arrays is not changed: it may have to go from two files, which is no single step.
    """
    keys = list(changes)
    placed = Counter(position for positions, _ in held.places(keys).values() for position in positions)
    doubtful = [quote(keys[position]) for position, count in placed.items() if count > 1]
    if doubtful:
        raise StoreError(
            f"{', '.join(doubtful[:20])} is a chunk of an array and of another within it, which a parquet set can hold "
            "but not change: save it as JSON, change it there, and save that as parquet"
        )
    homeless = [quote(key) for position, key in enumerate(keys) if changes[key] is not None and not placed[position]]
    if homeless:
        raise StoreError(
            f"{', '.join(homeless[:20])} is no chunk of an array of the set, so a parquet set cannot hold it"
        )


async def _save_chunks(held: ParquetSet, changes: Changes, basis: Basis) -> Changes:
    """Write the files of the basis with changes applied; return the changes of those that nobody else had changed."""
    keys = list(changes)
    places = held.places(keys)
    placed = {position for positions, _ in places.values() for position in positions}
    kept: dict[str, bytes | None] = {key: None for position, key in enumerate(keys) if position not in placed}
    edits: dict[Where, Partition] = {}
    for where, old in basis.items():
        positions, rows = places.get(where, ([], []))
        size = min(held.record_size, held.grids[where[0]].count - where[1] * held.record_size)
        new = _edited(old.partition, size, rows, [changes[keys[position]] for position in positions])
        if new is not None:
            edits[where] = new
    replaced = await _replace(held.files, basis, edits)
    for where in basis:
        if where not in edits or where in replaced:
            kept.update((keys[position], changes[keys[position]]) for position in places.get(where, ([], []))[0])
    return kept


def _edited(old: Partition | None, size: int, rows: Sequence[int], values: Sequence[bytes | None]) -> Partition | None:
    """Return a file of at least `size` rows, values (None: no reference) in some; None if that changes nothing."""
    count = max(size, 0 if old is None else len(old.rows.url))
    columns = Rows.absent(count)
    raw: list[bytes | None] = [None] * count
    if old is not None:
        columns.put(slice(0, len(old.rows.url)), old.rows)
        raw[: len(old.raw)] = old.raw
    gone = [row for row, value in zip(rows, values, strict=True) if value is None]
    if len(gone) == len(rows) and (columns.url[gone] == ABSENT).all() and count == len(old.rows.url if old else ()):
        return None
    for row, value in zip(rows, values, strict=True):
        raw[row] = value
        columns.url[row] = ABSENT if value is None else INLINE
        columns.offset[row], columns.length[row] = row, len(value or b"")
    return Partition(columns, raw)


async def _replace(files: PartitionFiles, basis: Basis, edits: Mapping[Where, Partition]) -> set[Where]:
    """Write files where the basis still holds, and return which; a file without references is removed."""
    if not edits:
        return set()

    def encoded() -> list[bytes | None]:
        return [_content(files, partition) for partition in edits.values()]

    contents = await execution.offload(encoded, kind="compute")
    writes = [
        Write(file_name(where), content, basis[where].generation)
        for where, content in zip(edits, contents, strict=True)
    ]
    replaced = set()
    stamps = await files.base.write_many(writes)
    for (where, partition), write, stamp in zip(edits.items(), writes, stamps, strict=True):
        if stamp.generation == UNKNOWN:
            files.replace(where, basis[where], None)
            continue
        files.replace(where, basis[where], Loaded(None if write.value is None else partition, stamp.generation))
        replaced.add(where)
    return replaced


def _content(files: PartitionFiles, partition: Partition) -> bytes | None:
    """Return the bytes of a file, or None for one without references where a condition can guard its deletion."""
    if files.base.driver.features.conditional_delete and (partition.rows.url == ABSENT).all():
        return None
    return encode_partition(partition.rows, files.urls, partition.raw)


def _numbers_stay(old: Grid, new: Grid) -> bool:
    """Return whether chunks that both grids have, and no others, share their numbers.

    >>> grow = [Grid("x", shape, False, ".", False) for shape in ((2, 3), (4, 3), (2, 4), (1, 3), (1, 4))]
    >>> [_numbers_stay(grow[a], grow[b]) for a, b in ((0, 1), (0, 2), (3, 4), (0, 3))]
    [True, False, True, True]
    """
    common = min(old.count, new.count)
    if common == 0 or len(old.shape) != len(new.shape):
        return common == 0
    for dim in range(1, len(old.shape) + 1):
        before, after = (int(np.prod(grid.shape[dim:], dtype=object)) for grid in (old, new))
        if before != after and min(before, after) < common:
            return False
    return True


async def _before(files: PartitionFiles, record_size: int, old: Grid | None, new: Grid) -> None:
    """Clear the rows that an array is about to reach."""
    if old is not None and old.shape == new.shape:
        return
    stays = old is None or _numbers_stay(old, new)
    if not stays and await _is_used(files, record_size, new.path):
        raise FailedPreconditionError(
            f"The new shape gives chunks of {quote(new.path)} other rows, and a parquet set cannot move references "
            "in one step: save it as JSON, change it there, and save that as parquet"
        )
    first = old.count if old is not None and stays else 0
    if first < new.count:
        await _clear(files, record_size, new.path, (first, new.count))


async def _afterwards(files: PartitionFiles, record_size: int, old: Grid, new: Grid | None) -> None:
    """Clear the rows that an array no longer reaches."""
    count = 0 if new is None else new.count
    if count < old.count:
        await _clear(files, record_size, old.path, (count, count))


async def _is_used(files: PartitionFiles, record_size: int, path: str) -> bool:
    for record in await files.listed(path):
        file = (await files.load([(path, record)]))[path, record].partition
        if file is not None and (file.rows.url[:record_size] != ABSENT).any():
            return True
    return False


async def _clear(files: PartitionFiles, record_size: int, path: str, rows: tuple[int, int]) -> None:
    """Clear the rows of an array from the first of `rows` on, and let its files be long enough for the second."""
    first, count = rows
    for record in await files.listed(path):
        start = record * record_size
        if first < start + record_size:
            size = min(record_size, max(count - start, 0))
            await _clear_file(files, (path, record), max(first - start, 0), size)


async def _clear_file(files: PartitionFiles, where: Where, first: int, size: int) -> None:
    async def attempt() -> None:
        basis = await files.load([where])
        file = basis[where].partition
        if file is None:
            return
        rows = range(first, len(file.rows.url))
        edit = _edited(file, size, rows, [None] * len(rows))
        if edit is not None and not await _replace(files, basis, {where: edit}):
            raise ChangedError

    await until_unchanged(attempt, partial(files.base.describe, file_name(where)))
