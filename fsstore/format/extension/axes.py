"""The chunk boundaries that the grid of metadata gives an array of a shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fsstore.chunk.plan.grid import Axis, RegularAxis, VariableAxis
from fsstore.errors import FailedPreconditionError, StoreError
from fsstore.format.extension.contract import read_extension
from fsstore.index.interval import MAX_FINITE
from fsstore.values import registry

__all__ = ["axes_of", "first_chunk", "is_same_grid"]


def axes_of(grid: Any, shape: Sequence[int]) -> tuple[Axis, ...]:
    """Return the chunk boundaries along each dimension."""
    parsed = read_extension(grid, registry.chunk_grids)
    if parsed.rank != len(shape):
        raise StoreError(f"chunk_grid has rank {parsed.rank}, but the array has rank {len(shape)}")
    sizes = parsed.sizes(shape) if parsed.chunk_shape is None else parsed.chunk_shape
    return tuple(_axis(along, extent) for along, extent in zip(sizes, shape, strict=True))


def first_chunk(axes: Sequence[Axis]) -> tuple[int, ...]:
    """Return the shape of the first chunk."""
    return tuple(axis.size(0) for axis in axes)


def is_same_grid(axes: Sequence[Axis], others: Sequence[Axis]) -> bool:
    """Return whether the first axes are those of the same regular grid as others."""
    return all(
        isinstance(axis, RegularAxis) and isinstance(other, RegularAxis) and axis.step == other.step
        for axis, other in zip(axes, others, strict=False)
    )


def _axis(sizes: int | Sequence[int], extent: int) -> Axis:
    if isinstance(sizes, int):
        return RegularAxis(sizes)
    covered = sum(sizes)
    if not len(sizes) or covered < extent:
        raise FailedPreconditionError(f"Chunk sizes of {covered} in all do not cover the extent {extent}")
    if covered > MAX_FINITE or min(sizes) < 1:
        raise FailedPreconditionError(
            f"Chunk sizes of {covered} in all, the least {min(sizes)}, make no grid"
        )
    return VariableAxis(list(sizes))
