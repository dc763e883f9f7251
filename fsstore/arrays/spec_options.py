"""The keyword arguments of `open` and `Spec.update`: what they change in a spec."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fsstore.arrays.spec import Spec
from fsstore.context.context import context_of
from fsstore.errors import StoreError, UnimplementedError
from fsstore.kvstore.spec.kv_spec import KvSpec
from fsstore.kvstore.spec.parse import kv_spec, live_spec
from fsstore.schema.open_mode import OpenMode, mode_from_options
from fsstore.schema.schema import Schema
from fsstore.schema.staleness import MEMBERS, differs, recheck_argument

__all__ = [
    "OPEN_OPTIONS",
    "UPDATE_OPTIONS",
    "apply_options",
    "constrained_base",
    "handed_down",
    "with_mode",
    "written_down",
]

_SCHEMA = (
    *("rank", "dtype", "domain", "shape", "chunk_layout", "codec", "fill_value", "dimension_units", "schema"),
)
_RECHECK = (*MEMBERS, "recheck_cached")
_MODE = ("open_mode", "open", "create", "delete_existing", "assume_metadata", "assume_cached_metadata")
OPEN_OPTIONS = frozenset((*_SCHEMA, *_RECHECK, *_MODE, "context", "kvstore"))
"""What both `open` and `Spec.update` take."""
UPDATE_OPTIONS = OPEN_OPTIONS | {"minimal_spec", "unbind_context", "strip_context"}
"""What `Spec.update` takes."""


def apply_options(spec: Spec, options: Mapping[str, Any]) -> Spec:
    """Return the spec with the keyword arguments applied; None is the same as not given."""
    unknown = sorted(set(options) - UPDATE_OPTIONS)
    if unknown:
        raise TypeError(f"unexpected keyword argument: {', '.join(unknown)}")
    given = {name: value for name, value in options.items() if value is not None}
    if given.get("minimal_spec"):
        spec = _minimal(spec)
    mode = mode_from_options(given)
    if mode:
        spec = with_mode(spec, mode)
    if "kvstore" in given:
        spec = _with_kvstore(spec, given["kvstore"])
    spec = _with_recheck(spec, given)
    if any(name in given for name in _SCHEMA):
        spec = _with_schema(spec, {name: given[name] for name in _SCHEMA if name in given})
    if given.get("strip_context"):
        spec = spec.unbound()
    elif given.get("unbind_context"):
        spec = written_down(spec)
    context = given.get("context")
    if context is not None:
        spec = spec.bound(context_of(context))
    return spec


def written_down(spec: Spec) -> Spec:
    """Return the spec with its bound resources as a `context`; of what has no JSON, without them."""
    try:
        plain = Spec(spec.to_json())
    except UnimplementedError:
        return spec.unbound()
    if plain.base_spec is None or spec.base_spec is None:
        return plain
    return plain.replace(base_spec=plain.base_spec.replace(shows_transform=spec.base_spec.shows_transform))


def with_mode(spec: Spec, mode: OpenMode) -> Spec:
    """Return the spec, or that of the array below, with a mode added to its own."""
    if spec.base_spec is not None:
        return spec.replace(base_spec=with_mode(spec.base_spec, mode))
    # `auto` has no members for the mode in JSON, but has to refuse one that does not open
    has_mode = spec.kind.has_mode or spec.kind.id == "auto"
    return spec.replace(mode=mode.over(spec.mode)) if has_mode else spec


def _minimal(spec: Spec) -> Spec:
    """Return the spec without `metadata`; type, rank and domain that it tells stay."""
    base = None if spec.base_spec is None else _minimal(spec.base_spec)
    members = {name: value for name, value in spec.members.items() if name != "metadata"}
    if base is spec.base_spec and "metadata" not in spec.members:
        return spec
    told = spec.kind.constrain(spec.members, spec.base_schema)
    kept = spec.base_schema.merged(Schema(dtype=told.dtype, rank=told.rank))
    shown = spec.transform if spec.shows_transform else spec.transform_
    return spec.replace(members=members, base_spec=base, base_schema=kept, transform_=shown)


def _with_kvstore(spec: Spec, kvstore: Any) -> Spec:
    if spec.base_spec is not None:
        return spec.replace(base_spec=_with_kvstore(spec.base_spec, kvstore))
    if spec.kind.role != "store":
        raise StoreError(f'"kvstore" is not supported by the {spec.kind.id} driver')
    if spec._kvstore is not None:
        raise StoreError('"kvstore" is already specified')
    new = _kvstore_spec(kvstore)
    return spec.replace(_kvstore=new.replace(_path=spec.kind.kvstore_path(new.path)))


def _kvstore_spec(kvstore: Any) -> KvSpec:
    """Return the spec of a store given as an argument, where a dictionary without a driver is a store itself."""
    if hasattr(kvstore, "with_transaction"):
        spec: KvSpec = kvstore.spec(retain_context=True)
        return spec
    return live_spec(kvstore) if isinstance(kvstore, dict) and "driver" not in kvstore else kv_spec(kvstore)


def _with_recheck(spec: Spec, given: Mapping[str, Any]) -> Spec:
    names = {name: recheck_argument(name, given[name]) for name in _RECHECK if name in given}
    if not names:
        return spec
    if spec.base_spec is not None:
        return spec.replace(base_spec=_with_recheck(spec.base_spec, given))
    known = MEMBERS if spec.kind.id == "auto" else spec.kind.defaults  # it hands them on
    if "recheck_cached_data" not in known:
        return spec
    both = names.pop("recheck_cached", None)
    if both is not None:
        names = {"recheck_cached_metadata": both, "recheck_cached_data": both, **names}
    members = {**spec.members, **{name: value for name, value in names.items() if name in known}}
    kept = {
        name: value
        for name, value in members.items()
        if name not in names or differs(value, spec.kind.defaults.get(name))
    }
    return spec.replace(members=kept)


def _with_schema(spec: Spec, given: Mapping[str, Any]) -> Spec:
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


def handed_down(spec: Spec, schema: Schema) -> Spec:
    """Return the spec with constraints on the array that an adapter shows, but for the dtype, put on its base.

    The domain of a view stays with it too: that of the base does not follow from it.
    """
    base = spec.base_spec
    assert base is not None
    parts = _parts(spec.kind.beneath(spec.members, schema))
    if spec.kind.role == "view":
        parts.pop("rank", None)  # which the view tells
        spec = spec.replace(base_schema=spec.base_schema.merged(Schema(domain=schema.domain)))
    return spec.replace(base_spec=_with_schema(base, parts))


def constrained_base(spec: Spec) -> Spec:
    """Return the spec below another with the constraints of an adapter's own schema, but for the dtype."""
    base = spec.base_spec
    assert base is not None
    rest = _parts(spec.base_schema.retyped(None)) if spec.kind.role == "adapter" else {}
    return _with_schema(base, rest) if rest else base


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
