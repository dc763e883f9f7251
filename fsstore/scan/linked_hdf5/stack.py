"""A virtual dataset as a stack of its sources.

The first source determines the chunks and filters of the stack.  Where the chunks of the sources are chunks of the
stack, they are read as stored, and nothing is decoded here.  Elsewhere (interleaved rows, boxes that cut through
chunks, other filters or types) chunks of the stack are assembled from values that HDF5 reads from the sources.

A missing source is an error, whereas HDF5 shows fill values in place of its data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fsstore.errors import DataLossError, StoreError, UnimplementedError
from fsstore.kvstore.contract.driver import Buffer
from fsstore.reference.table.keys import Grid
from fsstore.runtime import execution
from fsstore.scan.chunk_table import run_chunks
from fsstore.scan.contract import ChunkTable
from fsstore.scan.hdf5.dataset import Dataset
from fsstore.scan.hdf5.filter_pipeline import encoded_plainly
from fsstore.scan.hdf5.library import encoded, read_box
from fsstore.scan.hdf5.mapping import VirtualPart, paired, places
from fsstore.scan.hdf5.open_file import OpenHdf5, refused
from fsstore.scan.linked_hdf5.external_storage import ExternalStorage
from fsstore.scan.linked_hdf5.other_file import OtherFiles
from fsstore.scan.linked_hdf5.stack_table import Pattern, pattern_of, table_of
from fsstore.values.json_value import Json

__all__ = ["StackStorage", "ended"]

_DEEPEST = 8  # virtual datasets of virtual datasets
_MOST_HELD = 2**31  # bytes of a box that are read of one source at once


async def ended(files: OtherFiles, file: OpenHdf5, dataset: Dataset) -> Dataset:
    """Return a virtual dataset as long as its sources are, if it is as long as these."""
    parts, shape = list(dataset.parts), list(dataset.shape)
    for number, part in enumerate(dataset.parts):
        if part.is_endless:
            _, source = await files.dataset(file, part.file, part.dataset)
            parts[number] = part.within(source.shape)
            shape = [
                max(pair) for pair in zip(shape, (axis.end for axis in parts[number].target), strict=True)
            ]
    return dataset.stacked(tuple(shape), tuple(parts))


class StackStorage:
    """The chunks of a virtual dataset.  `first` is its first source, if that can be had."""

    def __init__(
        self, files: OtherFiles, file: OpenHdf5, dataset: Dataset, first: tuple[OpenHdf5, Dataset] | None
    ) -> None:
        self._files, self._file, self._dataset = files, file, dataset
        self.shape = dataset.shape
        self._pattern: Pattern | None = None
        if first is not None and dataset.parts:
            self._pattern = pattern_of(dataset, dataset.parts[0], *first)
        self.chunks = self._boxes() if self._pattern is None else self._pattern.chunks
        self.codecs: Sequence[Mapping[str, Json]] = () if self._pattern is None else self._pattern.codecs

    def _boxes(self) -> tuple[int, ...]:
        """Return chunks that are put together here: the box of the first part, in pieces if it is large."""
        itemsize = 64 if self._dataset.element.text else self._dataset.element.dtype.itemsize
        itemsize *= max(1, math.prod(self._dataset.element.inner))
        if not self._dataset.parts:
            return run_chunks(self.shape, itemsize)
        target = self._dataset.parts[0].target
        box = [
            min(each.size, size) if each.is_run else size
            for each, size in zip(target, self.shape, strict=True)
        ]
        return run_chunks([max(1, each) for each in box], itemsize)

    async def table(self, grid: Grid) -> ChunkTable:
        """Return where the chunks are."""
        return await table_of(self._files, self._file, self._dataset, self.chunks, self._pattern)

    async def make(self, coords: Sequence[Sequence[int]]) -> Sequence[Buffer]:
        """Return chunks, put together."""
        rank = len(self.shape)
        return await execution.gather(self._made(place[:rank]) for place in coords)

    async def _made(self, place: Sequence[int]) -> Buffer:
        start = [at * step for at, step in zip(place, self.chunks, strict=True)]
        stop = [min(low + step, size) for low, step, size in zip(start, self.chunks, self.shape, strict=True)]
        values = await _stacked(self._files, self._file, self._dataset, start, stop, 0)
        data = encoded(values, self._dataset, self.chunks)
        return data if self._pattern is None else encoded_plainly(data, self._pattern.filters)


async def _stacked(
    files: OtherFiles, file: OpenHdf5, dataset: Dataset, start: Sequence[int], stop: Sequence[int], depth: int
) -> Any:
    """Return the values in a box of a virtual dataset."""
    element = dataset.element
    shape = [high - low for low, high in zip(start, stop, strict=True)]
    out = np.full((*shape, *element.inner), dataset.fill, object if element.text else element.dtype)
    touched = [each for each in dataset.parts if _overlaps(each, start, stop)]
    for part, found in zip(
        touched,
        await execution.gather(_piece(files, file, part, start, stop, depth) for part in touched),
        strict=True,
    ):
        index, values = found
        if not element.text and not np.can_cast(values.dtype, out.dtype, "same_kind"):
            raise UnimplementedError(f"its source {part.dataset!r} has elements of {values.dtype}")
        out[index] = values
    return out


def _overlaps(part: VirtualPart, start: Sequence[int], stop: Sequence[int]) -> bool:
    return all(
        axis.before(high) > axis.before(low) for axis, low, high in zip(part.target, start, stop, strict=True)
    )


async def _piece(
    files: OtherFiles,
    file: OpenHdf5,
    part: VirtualPart,
    start: Sequence[int],
    stop: Sequence[int],
    depth: int,
) -> tuple[Any, Any]:
    """Return what a part has in a box: where it belongs, and its values."""
    if depth >= _DEEPEST:
        raise DataLossError("it is put together from itself, or from too many others")
    try:
        other, source = await files.dataset(file, part.file, part.dataset)
        await other.source.confirm()
    except StoreError as error:
        raise error.within(f"Error reading its source {part.dataset!r}") from error
    part = part.within(source.shape)
    assert part.origin is not None
    spans = [
        (axis.before(low), axis.before(high))
        for axis, low, high in zip(part.target, start, stop, strict=True)
    ]
    target = [places(axis, *span) - low for axis, span, low in zip(part.target, spans, start, strict=True)]
    origin = [places(axis, 0, 1) for axis in part.origin]
    for own, theirs in paired(part):
        origin[theirs] = places(part.origin[theirs], *spans[own])
    low, high = [int(each[0]) for each in origin], [int(each[-1]) + 1 for each in origin]
    if any(end > size for end, size in zip(high, source.shape, strict=True)):
        raise DataLossError(f"its source {part.dataset!r} is smaller than it says")
    if math.prod(b - a for a, b in zip(low, high, strict=True)) * source.element.dtype.itemsize > _MOST_HELD:
        raise UnimplementedError(f"its source {part.dataset!r} is taken apart too finely to be read")
    box = await values_of(files, other, source, low, high, depth + 1)
    taken = box[np.ix_(*(each - first for each, first in zip(origin, low, strict=True)))] if origin else box
    sizes = [len(each) for each in target]
    return (np.ix_(*target) if target else ()), taken.reshape([*sizes, *source.element.inner])


async def values_of(
    files: OtherFiles,
    file: OpenHdf5,
    dataset: Dataset,
    start: Sequence[int],
    stop: Sequence[int],
    depth: int = 0,
) -> Any:
    """Return the values in a box of a dataset, wherever they lie."""
    if dataset.layout == "virtual":
        whole = await ended(files, file, dataset)
        return await _stacked(files, file, whole, start, stop, depth)
    if not dataset.external:
        try:
            return await file.run(lambda: read_box(file.library(), file.reader, dataset, (start, stop)))
        except (OSError, RuntimeError, ValueError, KeyError) as error:
            raise refused(error) from error
    if dataset.by_library:
        raise UnimplementedError("its values lie in other files, and only HDF5 knows their type")
    storage = ExternalStorage(file, dataset)
    row = math.prod(dataset.shape[1:]) * dataset.element.dtype.itemsize * math.prod(dataset.element.inner)
    first, last = (start[0], stop[0]) if start else (0, 1)
    data = np.frombuffer(await storage.read(first * row, last * row), dataset.element.dtype)
    if not start:
        return data.reshape(dataset.element.inner)
    rows = data.reshape([last - first, *dataset.shape[1:], *dataset.element.inner])
    return rows[(slice(None), *map(slice, start[1:], stop[1:]))]
