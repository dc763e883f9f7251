"""Chunk layouts and units seen through an index transform.

A dimension is the same in both spaces where one output dimension, and no other and no index array, comes from one
input dimension: `output = offset + stride * input`.

`forward` takes a layout of the output space to the input space: what a view of an array shows.  Chunk sizes are
divided by their common divisor with the stride, aspect ratios by the stride; the grid origin is the first position
whose cell begins at or after it.  Dimensions that are not the same say nothing.

`backward` takes constraints on a view to constraints on the array below.  Sizes and ratios are multiplied by the
stride.  A requirement on a dimension that the array does not have is an error.

The order of elements follows the dimensions; those that do not exist on the other side come last.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from fsstore.errors import OutOfRangeError, StoreError
from fsstore.index.transform import IndexTransform
from fsstore.schema.constraint import Bound, Vector
from fsstore.schema.layout_grid import MAX_SIZE, GridValue
from fsstore.schema.layout_value import GRIDS, LayoutValue
from fsstore.values.units import Unit, Units

__all__ = ["LayoutAxis", "backward", "forward", "units_backward", "units_forward"]


class LayoutAxis(NamedTuple):
    """One dimension of both spaces: `output = offset + stride * input`."""

    input: int
    output: int
    offset: int
    stride: int


def _axes(transform: IndexTransform) -> list[LayoutAxis]:
    """Return the output dimensions that come from a single input dimension, in order."""
    axes = []
    for dimension in range(transform.output_rank):
        output = transform.output[dimension]
        if output.input_dimension is not None and output.stride:
            axes.append(LayoutAxis(output.input_dimension, dimension, output.offset, output.stride))
    return axes


def _shared(transform: IndexTransform, axes: list[LayoutAxis]) -> list[LayoutAxis]:
    """Return the axes that are the same dimension in both spaces."""
    uses = [0] * transform.input_rank
    for axis in axes:
        uses[axis.input] += 1
    for dimension in range(transform.output_rank):
        array = transform.output[dimension].index_array
        if array is not None:
            for used, size in enumerate(array.shape):
                uses[used] += size != 1
    return [axis for axis in axes if uses[axis.input] == 1]


def forward(layout: LayoutValue, transform: IndexTransform) -> LayoutValue:
    """Return the layout of the input space of `transform`, given that of its output space."""
    if layout.rank < 0:
        return layout
    axes = _axes(transform)
    shared = _shared(transform, axes)
    rank = transform.input_rank

    def moved(vector: Vector[Any], change: Callable[[Any, LayoutAxis], Any]) -> Vector[Any]:
        out: list[Bound[Any]] = [None] * rank
        for axis in shared:
            bound = vector and vector[axis.output]
            if bound:
                out[axis.input] = (change(bound[0], axis), bound[1])
        return tuple(out) if any(bound is not None for bound in out) else None

    order = layout.inner_order
    if order is not None:
        place = {output: position for position, output in enumerate(order[0])}
        order = (_sorted([(axis.input, place[axis.output]) for axis in axes], rank), order[1])
    grids: dict[str, Any] = {
        name: GridValue(
            rank,
            moved(
                layout.grid(name).shape,
                lambda size, axis: size // math.gcd(size, axis.stride) if size > 0 else size,
            ),
            moved(layout.grid(name).aspect_ratio, lambda ratio, axis: ratio / abs(axis.stride)),
            layout.grid(name).elements,
        )
        for name in GRIDS
    }
    origin = moved(layout.grid_origin, _origin_forward)
    return replace(layout, rank=rank, inner_order=order, grid_origin=origin, **grids)


def backward(layout: LayoutValue, transform: IndexTransform) -> LayoutValue:
    """Return the layout of the output space of `transform` that is asked for by one of its input space.

    Raises `StoreError` where something required has no place there.
    """
    if layout.rank < 0:
        return layout
    axes = _axes(transform)
    rank = transform.output_rank

    def moved(what: str, vector: Vector[Any], change: Callable[[Any, LayoutAxis], Any]) -> Vector[Any]:
        if vector is None:
            return None
        _nothing_lost(what, vector, axes)
        out: list[Bound[Any]] = [None] * rank
        for axis in axes:
            bound = vector[axis.input]
            if bound:
                out[axis.output] = (_within_range(change(bound[0], axis), what, axis), bound[1])
        return tuple(out) if any(bound is not None for bound in out) else None

    order = layout.inner_order
    if order is not None:
        place = {dimension: position for position, dimension in enumerate(order[0])}
        order = (_sorted([(axis.output, place[axis.input]) for axis in axes], rank), order[1])
    origin = moved("grid_origin", layout.grid_origin, _origin_backward)
    grids: dict[str, Any] = {}
    for name in GRIDS:
        grid, place_name = layout.grid(name), f"{name}: Error transforming"
        shape = moved(
            f"{place_name} shape",
            grid.shape,
            lambda size, axis: size * abs(axis.stride) if size > 0 else size,
        )
        ratio = moved(
            f"{place_name} aspect_ratio", grid.aspect_ratio, lambda ratio, axis: ratio * abs(axis.stride)
        )
        grids[name] = GridValue(rank, shape, ratio, grid.elements)
    return replace(layout, rank=rank, inner_order=order, grid_origin=origin, **grids)


def _sorted(places: list[tuple[int, int]], rank: int) -> tuple[int, ...]:
    """Return the dimensions by the first place given to each, those without a place last."""
    first = [rank + len(places)] * rank
    for dimension, position in places:
        first[dimension] = min(first[dimension], position)
    return tuple(sorted(range(rank), key=lambda dimension: (first[dimension], dimension)))


def _nothing_lost(what: str, vector: Vector[Any], axes: list[LayoutAxis]) -> None:
    kept = {axis.input for axis in axes}
    for dimension, bound in enumerate(vector or ()):
        if bound is not None and bound[1] and dimension not in kept:
            raise StoreError(
                f"Error transforming {what}: No output dimension corresponds to input dimension {dimension}"
            )


def _within_range(value: Any, what: str, axis: LayoutAxis) -> Any:
    if isinstance(value, int) and abs(value) > MAX_SIZE:
        raise OutOfRangeError(
            f"Error transforming {what}: Error transforming input dimension {axis.input} -> output dimension "
            f"{axis.output}: Integer overflow with offset {axis.offset} and stride {axis.stride}"
        )
    return value


def _origin_forward(origin: int, axis: LayoutAxis) -> int:
    # A reversed dimension begins its cells where they ended: the boundary lies before `origin`.
    return -((axis.offset + (axis.stride < 0) - origin) // axis.stride)


def _origin_backward(origin: int, axis: LayoutAxis) -> int:
    return axis.offset + axis.stride * (origin - (axis.stride < 0))


def units_forward(units: Units, transform: IndexTransform) -> Units:
    """Return the units of the input space: a stride of k makes steps of k units."""
    out: list[Unit | None] = [None] * transform.input_rank
    for axis in _shared(transform, _axes(transform)):
        unit = units[axis.output]
        out[axis.input] = unit and unit * abs(axis.stride)
    return tuple(out)


def units_backward(units: Units, transform: IndexTransform) -> Units:
    """Return the units of the output space, or raise `StoreError` where one has no place there."""
    axes = _axes(transform)
    kept = {axis.input for axis in axes}
    for dimension, unit in enumerate(units):
        if unit is not None and dimension not in kept:
            raise StoreError(
                "Error transforming dimension_units: No output dimension corresponds to "
                f"input dimension {dimension} with unit {unit}"
            )
    out: list[Unit | None] = [None] * transform.output_rank
    for axis in axes:
        unit = units[axis.input]
        out[axis.output] = unit and unit / abs(axis.stride)
    return tuple(out)
