"""Constraints in specs: which of them an adapter keeps, and which it hands down to the array below."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from fsstore.arrays.spec_value import SpecValue
from fsstore.schema.schema import Schema

__all__ = ["constrained_base", "handed_down", "with_schema"]

S = TypeVar("S", bound=SpecValue)


def with_schema(spec: S, given: Mapping[str, Any]) -> S:
    """Return the spec with constraints added: its own, or those of the array below an adapter."""
    added = Schema(**given)
    schema = spec.base_schema.copy()
    if spec.base_spec is None:
        below = added.beneath(spec.transform_) if spec.transform_ is not None else added
        schema = schema.merged(below)
        spec.kind.constrain(spec.members, schema)
        return spec.replace(base_schema=schema)
    known = spec.kind.constrain(spec.members, schema)
    if added.dtype is not None:
        known.merged(Schema(dtype=added.dtype))
        schema = schema.merged(Schema(dtype=added.dtype))
    spec = spec.replace(base_schema=schema)
    rest = {name: value for name, value in given.items() if name not in ("dtype", "schema")}
    if added.dtype is not None or "schema" in given:
        rest = _parts(added.retyped(None))
    if not rest:
        return spec
    wanted = Schema(**rest)
    return handed_down(spec, wanted if spec.transform_ is None else wanted.beneath(spec.transform_))


def handed_down(spec: S, schema: Schema) -> S:
    """Return the spec with constraints on the array that an adapter shows, but for the dtype, put on its base.

    The domain of a view stays with it too: that of the base does not follow from it.
    """
    base = spec.base_spec
    assert base is not None
    parts = _parts(spec.kind.beneath(spec.members, schema))
    if spec.kind.role == "view":
        parts.pop("rank", None)  # which the view tells
        spec = spec.replace(base_schema=spec.base_schema.merged(Schema(domain=schema.domain)))
    return spec.replace(base_spec=with_schema(base, parts))


def constrained_base(spec: SpecValue) -> SpecValue:
    """Return the spec below another with the constraints of an adapter's own schema, but for the dtype."""
    base = spec.base_spec
    assert base is not None
    rest = _parts(spec.base_schema.retyped(None)) if spec.kind.role == "adapter" else {}
    return with_schema(base, rest) if rest else base


def _parts(schema: Schema) -> dict[str, Any]:
    """Return the constraints of a schema by name, so that a conflict names the one it is about."""
    layout = schema.chunk_layout
    parts = {
        "rank": schema.rank,
        "dtype": schema.dtype,
        "domain": schema.domain,
        "chunk_layout": layout if layout.to_json() else None,
        "codec": schema.codec,
        "fill_value": schema.fill_value,
        "dimension_units": schema._value.units,
    }
    return {name: value for name, value in parts.items() if value is not None}
