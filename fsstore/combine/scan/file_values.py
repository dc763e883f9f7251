"""Values of one variable of one file: all of them, or their fingerprint, read a few chunks at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from fsstore.combine.scan.source_file import ArrayReferences, ElsewhereError, SourceFile
from fsstore.combine.tuning import FINGERPRINT_BYTES, FINGERPRINT_CHUNKS
from fsstore.format.contract import ChunkedArray
from fsstore.mosaic.fingerprint import Fingerprint
from fsstore.runtime import execution

__all__ = ["fingerprint_in", "whole_of"]

_MOST_FILL = 2**28  # elements of chunks that are not there, of a fill value other than zero


async def whole_of(array: ChunkedArray, path: str, source: SourceFile, found: ArrayReferences) -> Any:
    """Return the values of a variable."""
    return _whole(array, source.grids[path].shape, found, await source.chunks(path, found))


async def fingerprint_in(array: ChunkedArray, path: str, source: SourceFile, found: ArrayReferences) -> Any:
    """Return the fingerprint of a variable; None where its values cannot be compared."""
    grid, out = source.grids[path].shape, Fingerprint(array.shape, array.model.dtype)
    for at in _groups(found.rows.length):
        some = ArrayReferences(found.number[at], found.rows.take(at), found.urls, found.inline)
        try:
            chunks = await source.chunks(path, some)
        except ElsewhereError:
            return None
        await execution.offload(_add_chunks, out, array, grid, (some.number, chunks))
    return out.value() if await execution.offload(_add_fill, out, array, grid, found.number) else None


def _whole(array: ChunkedArray, grid: Sequence[int], found: ArrayReferences, chunks: Sequence[Any]) -> Any:
    """Return the values of an array, from all its chunks."""
    out = np.full(array.shape, array.model.fill, array.model.dtype)
    for number, data in zip(found.number.tolist(), chunks, strict=True):
        values = array.model.chain.decode(data)
        sides = _sides(array, grid, number)
        inner = tuple(slice(0, side.stop - side.start) for side in sides)
        out[sides] = values[inner]
    return out.astype(str) if out.dtype.kind == "O" else out


def _sides(array: ChunkedArray, grid: Sequence[int], number: int) -> tuple[slice, ...]:
    """Return where a chunk lies, without what is outside the array."""
    place = np.unravel_index(number, grid) if array.shape else ()
    return tuple(
        slice(int(at) * step, min((int(at) + 1) * step, size))
        for at, step, size in zip(place, array.read_chunk, array.shape, strict=True)
    )


def _groups(lengths: Any) -> Iterator[slice]:
    """Yield chunks that are read together: few bytes, or one chunk."""
    start, held = 0, 0
    for at, length in enumerate(lengths.tolist()):
        size = max(length, FINGERPRINT_BYTES // FINGERPRINT_CHUNKS)
        if at > start and held + size > FINGERPRINT_BYTES:
            yield slice(start, at)
            start, held = at, 0
        held += size
    if start < len(lengths):
        yield slice(start, len(lengths))


def _add_chunks(out: Fingerprint, array: ChunkedArray, grid: Sequence[int], found: tuple[Any, Any]) -> None:
    numbers, chunks = found
    for number, data in zip(numbers.tolist(), chunks, strict=True):
        sides = _sides(array, grid, number)
        inner = tuple(slice(0, side.stop - side.start) for side in sides)
        out.add([side.start for side in sides], array.model.chain.decode(data)[inner])


def _add_fill(out: Fingerprint, array: ChunkedArray, grid: Sequence[int], present: Any) -> bool:
    """Add the chunks that are not there; return whether that can be done within bounds."""
    count, fill = math.prod(grid), array.model.fill
    if len(present) == count or not Fingerprint.counts(fill, array.model.dtype):
        return True
    if math.prod(array.shape) > _MOST_FILL:
        return False
    there = np.zeros(count, np.bool_)
    there[present] = True
    for number in np.flatnonzero(~there).tolist():
        sides = _sides(array, grid, number)
        shape = [side.stop - side.start for side in sides]
        out.add_fill([side.start for side in sides], shape, np.asarray(fill, array.model.dtype))
    return True
