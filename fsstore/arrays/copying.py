"""Copying between open stores: which dimension of the source goes where, and which data types convert unasked.

Dimensions match from the last, or by label where both stores have labels; unlabeled ones then match each other.
Matching dimensions have the same size, and may begin elsewhere; those of size 1 stretch; others of the source must
have size 1, and others of the target repeat the source.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from fsstore.driver.convert import conversion, is_lossless
from fsstore.errors import StoreError
from fsstore.index import Dim, IndexDomain, IndexTransform, OutputIndexMap
from fsstore.runtime import execution
from fsstore.runtime.future import Future

if TYPE_CHECKING:
    from fsstore.arrays.store import TensorStore

__all__ = ["align", "copy_between"]

_PIECE_BYTES = 64 * 1024 * 1024  # of a copy that are in memory at a time


def copy_between(source: TensorStore, target: TensorStore) -> Future[None]:
    """Begin to copy one store to another, piece by piece."""
    names = source.dtype.name, target.dtype.name
    convert = conversion(source.dtype, target.dtype)
    if convert is None:
        raise StoreError("Cannot convert {} -> {}".format(*names))
    if not is_lossless(source.dtype, target.dtype):
        raise StoreError("Explicit data type conversion required to convert {} -> {}".format(*names))
    aligned = source[align(source.domain, target.domain)]

    async def run() -> None:
        for piece in _pieces(target):
            part = target if piece is None else target[piece]
            values = await (aligned if piece is None else aligned[piece]).read()
            await part._driver.write(part._transform, convert(values))

    return execution.start(run())


def align(source: IndexDomain, target: IndexDomain) -> IndexTransform:
    """Return the transform from the target to the source.  Raises `StoreError` that lists what does not fit."""
    matches = _matches(source.labels, target.labels)
    output, problems = [], []
    for dimension, match in enumerate(matches):
        here = source[dimension]
        there = None if match is None else target[match]
        if there is not None and here.size == there.size:
            offset = here.inclusive_min - there.inclusive_min
            output.append(OutputIndexMap(offset=offset, input_dimension=match))
        elif here.size == 1:
            output.append(OutputIndexMap(offset=here.inclusive_min))
        elif there is None:
            problems.append(f"unmatched source dimension {_shown(dimension, here)} does not have a size of 1")
        else:
            both = f"{_shown(dimension, here)} mismatch with target dimension {_shown(match, there)}"
            problems.append(f"source dimension {both}")
    if problems:
        raise StoreError(f"Error aligning dimensions: {', '.join(problems)}")
    return IndexTransform(domain=target.mark_bounds_implicit[False], output=output)


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


def _pieces(target: TensorStore) -> Iterator[slice | None]:
    """Yield sub-domains of the target that are whole chunks and of bounded size; None for all at once."""
    itemsize = max(1, target.dtype.numpy_dtype.itemsize)
    if target.size * itemsize <= _PIECE_BYTES or not target.rank:
        yield None
        return
    try:
        step = target.chunk_layout.write_chunk.shape[0] or 1
    except (TypeError, IndexError):
        step = 1
    row = max(1, target.size // max(1, target.shape[0]) * itemsize)
    step *= max(1, _PIECE_BYTES // (row * step))
    low, high = target.domain.inclusive_min[0], target.domain.exclusive_max[0]
    begin = low
    while begin < high:
        end = min(high, (begin // step + 1) * step)
        yield slice(begin, end)
        begin = end
