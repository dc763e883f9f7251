"""Copying between open stores: which dimension of the source goes where, and which data types convert unasked.

Dimensions match from the last, or by label where both stores have labels; unlabeled ones then match each other.
Matching dimensions have the same size, and may begin elsewhere; those of size 1 stretch; others of the source must
have size 1, and others of the target repeat the source.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from fsstore.chunk.regions import Region, Regions, covered, cut
from fsstore.driver.contract import Array, OpenArray
from fsstore.driver.convert import conversion, is_lossless
from fsstore.errors import StoreError
from fsstore.index import Dim, IndexDomain, IndexTransform, OutputIndexMap
from fsstore.runtime import execution
from fsstore.runtime import future as futures
from fsstore.runtime.future import Future

__all__ = ["align", "copy_between"]

# A copy takes 64 MB, or what one chunk takes on its way, both layouts counted.  Either two small pieces are under way,
# so that one is read while the other is written, or, where small ones would read chunks again and again, a large one.
_PIECE_BYTES = 12 * 1024 * 1024
_LARGE_PIECE_BYTES = 32 * 1024 * 1024
_WASTE = 1.25


def copy_between(source: OpenArray, target: OpenArray) -> Future[None]:
    """Begin to copy one open array to another, piece by piece."""
    kinds = source.driver.dtype, target.driver.dtype
    names = [kind.name for kind in kinds]
    convert = conversion(*kinds)
    if convert is None:
        raise StoreError("Cannot convert {} -> {}".format(*names))
    if not is_lossless(*kinds):
        raise StoreError("Explicit data type conversion required to convert {} -> {}".format(*names))
    aligned = source._replace(
        transform=source.transform[align(source.transform.domain, target.transform.domain)]
    )
    direct = source.driver.reads_directly and names[0] == names[1]
    memory = target.driver.memory(target.transform) if direct else None
    if memory is not None and memory.dtype == kinds[0].numpy_dtype:
        return _read_there(aligned, memory)
    regions = _regions(aligned, target, _PIECE_BYTES)
    if covered(regions, _read_chunk(aligned)) > _WASTE * target.transform.size:
        regions = _regions(aligned, target, _LARGE_PIECE_BYTES)
    overlapped = math.prod(regions.step) * _itemsize(source, target) <= _PIECE_BYTES

    async def run() -> None:
        writing: Future[None] | None = None
        for number in range(len(regions)):
            piece = regions[number].slices
            values = await source.driver.read(aligned.transform[piece])
            if writing is not None:
                await writing
            writing = target.driver.write(target.transform[piece], convert(values))
            del values
            if not overlapped:
                await writing
                writing = None
        if writing is not None:
            await writing

    return execution.start(run())


def _read_there(source: OpenArray, memory: Array) -> Future[None]:
    """Begin to read an array to where it is copied to, at once, as any other read."""
    reading = source.driver.read_into(source.transform, memory)
    reading.force()  # nobody may wait for the end of a copy
    return futures.mapped(reading, None)


def _regions(source: OpenArray, target: OpenArray, most_bytes: int) -> Regions:
    """Return the boxes in which an array is copied to another over the same domain: whole chunks of the target.

    None has more than `most_bytes`, except where a single chunk has.
    """
    domain = target.transform.domain
    layout = target.driver.schema().through(target.transform).chunk_layout
    chunk = [side or 1 for side in layout.write_chunk.shape or (None,) * domain.rank]
    anchor = [at or 0 for at in layout.grid_origin or (None,) * domain.rank]
    whole = Region(domain.inclusive_min, domain.exclusive_max)
    return cut(whole, chunk, _read_chunk(source), anchor, most_bytes // _itemsize(source, target))


def _read_chunk(source: OpenArray) -> Sequence[int]:
    """Return the sides of chunks; a dimension that says nothing has no boundaries to keep to."""
    layout = source.driver.schema().through(source.transform).chunk_layout
    return [side or 1 for side in layout.read_chunk.shape or (None,) * source.transform.input_rank]


def _itemsize(*arrays: OpenArray) -> int:
    return max(1, *(array.driver.dtype.numpy_dtype.itemsize for array in arrays))


def align(source: IndexDomain, target: IndexDomain) -> IndexTransform:
    """Return the transform from the target to the source.  Raises `StoreError` that lists what does not fit."""
    matches = _matches(source.labels, target.labels)
    output, problems = [], []
    begins, sizes, sizes_there = source.inclusive_min, source.shape, target.shape
    for dimension, match in enumerate(matches):
        begin, size = begins[dimension], sizes[dimension]
        if match is not None and size == sizes_there[match]:
            output.append(OutputIndexMap(offset=begin - target.inclusive_min[match], input_dimension=match))
        elif size == 1:
            output.append(OutputIndexMap(offset=begin))
        elif match is None:
            here = _shown(dimension, source[dimension])
            problems.append(f"unmatched source dimension {here} does not have a size of 1")
        else:
            here, there = _shown(dimension, source[dimension]), _shown(match, target[match])
            problems.append(f"source dimension {here} mismatch with target dimension {there}")
    if problems:
        raise StoreError(f"Error aligning dimensions: {', '.join(problems)}")
    is_explicit = True not in (*target.implicit_lower_bounds, *target.implicit_upper_bounds)
    return IndexTransform(domain=target if is_explicit else target.mark_bounds_implicit[False], output=output)


def _matches(source: tuple[str, ...], target: tuple[str, ...]) -> list[int | None]:
    """Return the dimension of the target that each of the source matches."""
    if not (any(source) and any(target)):
        extra = len(target) - len(source)
        return [dimension + extra if dimension + extra >= 0 else None for dimension in range(len(source))]
    matches: list[int | None] = [target.index(label) if label in target else None for label in source]
    plain = [dimension for dimension, label in enumerate(target) if not label]
    for dimension in reversed(range(len(source))):
        if not source[dimension]:
            matches[dimension] = plain.pop() if plain else None
    return matches


def _shown(dimension: int | None, dim: Dim) -> str:
    label = f'"{dim.label}": ' if dim.label else ""
    return f"{dimension} {label}[{dim.inclusive_min}, {dim.exclusive_max})"
