"""Constraints given for a view, as constraints on the array below it.

`Spec.update` and `open` take constraints in the coordinates of the spec's transform; the schema of a spec speaks of the
array.  Layout and units move with their dimensions (`layout_transform`), a domain through the inverse of the
transform.  Constraints that a transform cannot carry are refused, never dropped.
"""

from __future__ import annotations

from dataclasses import replace

from fsstore.errors import StoreError
from fsstore.index.domain import IndexDomain
from fsstore.index.interval import inverse_affine
from fsstore.index.transform import IndexTransform
from fsstore.schema.fill import Fill
from fsstore.schema.layout_transform import backward, units_backward
from fsstore.schema.value import SchemaValue

__all__ = ["beneath"]


def beneath(value: SchemaValue, transform: IndexTransform) -> SchemaValue:
    """Return `value`, constraints on the input space of `transform`, as constraints on its output space."""
    if value.rank not in (-1, transform.input_rank):
        raise StoreError(
            f"Cannot inverse transform schema of rank {value.rank} by index transform of rank"
            f" {transform.input_rank} -> {transform.output_rank}"
        )
    return replace(
        value,
        rank=-1 if value.rank < 0 else transform.output_rank,
        domain=None if value.domain is None else _domain(value.domain, transform),
        layout=backward(value.layout, transform),
        fill=None if value.fill is None else _fill(value.fill, transform),
        units=None if value.units is None else units_backward(value.units, transform),
    )


def _domain(domain: IndexDomain, transform: IndexTransform) -> IndexDomain:
    where = "Error transforming domain: Cannot specify domain through a transform with"
    bounds, labels = [], []
    used: set[int] = set()
    for number in range(transform.output_rank):
        output = transform.output[number]
        dimension = output.input_dimension
        if dimension is None:
            raise StoreError(
                f"{where} a {'constant' if output.index_array is None else 'array'} output index map"
            )
        stride = output.stride or 1
        if abs(stride) != 1:
            raise StoreError(f"{where} a non-unit-stride output index map")
        if dimension in used:
            raise StoreError(f"{where} several output dimensions of input dimension {dimension}")
        used.add(dimension)
        bounds.append(inverse_affine(domain.bounds(dimension), -output.offset * stride, stride))
        labels.append(domain.labels[dimension])
    if len(used) != transform.input_rank:
        raise StoreError(f"{where} an input dimension without output dimension")
    return IndexDomain._of_bounds(bounds, labels)


def _fill(fill: Fill, transform: IndexTransform) -> Fill:
    where = "Error transforming fill_value: Cannot transform input array through"
    rank, array = transform.input_rank, fill.array
    full = array.reshape((1,) * (rank - array.ndim) + array.shape)
    kept: list[int | None] = []
    for number in range(transform.output_rank):
        output = transform.output[number]
        if output.index_array is not None:
            raise StoreError(f"{where} array output index map")
        if output.input_dimension is not None and output.stride != 1:
            raise StoreError(f"{where} non-unit-stride output index map")
        kept.append(output.input_dimension)
    lost = [dimension for dimension in range(rank) if dimension not in kept and full.shape[dimension] != 1]
    if lost or any(kept.count(dimension) > 1 for dimension in kept if dimension is not None):
        raise StoreError(f"{where} a transform that is not one to one")
    order = [dimension for dimension in kept if dimension is not None]
    rest = [dimension for dimension in range(rank) if dimension not in order]
    sizes = [1 if dimension is None else full.shape[dimension] for dimension in kept]
    moved = full.transpose(order + rest).reshape(sizes)
    while moved.ndim and moved.shape[0] == 1:
        moved = moved[0]
    return Fill(moved, fill.dtype)
