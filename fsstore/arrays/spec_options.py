"""The keyword arguments of `open` and `Spec.update`: what they change in a spec."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from fsstore.arrays.options import OpenOptions, UpdateOptions
from fsstore.arrays.spec_parse import array_spec
from fsstore.arrays.spec_schema import with_schema
from fsstore.arrays.spec_value import SpecValue
from fsstore.context.context import context_of
from fsstore.errors import StoreError, UnimplementedError
from fsstore.kvstore.spec.parse import kv_spec, live_spec
from fsstore.kvstore.spec.spec_value import KvSpecValue
from fsstore.kvstore.spec.storage_option import given_options, with_storage_options
from fsstore.kvstore.store.kv_store import KvStore
from fsstore.runtime.close_word import meant
from fsstore.schema.open_mode import MEMBERS, OpenMode, differs, mode_from_options, recheck_argument
from fsstore.schema.schema import CONSTRAINTS, Schema, in_our_words
from fsstore.values.argument import as_flag
from fsstore.values.json_value import quote

__all__ = [
    "OPEN_OPTIONS",
    "UPDATE_OPTIONS",
    "apply_options",
    "with_mode",
    "written_down",
]

S = TypeVar("S", bound=SpecValue)
_RECHECK = (*MEMBERS, "recheck_cached")
OPEN_OPTIONS = OpenOptions.__optional_keys__
"""Options of both `open` and `Spec.update`."""
UPDATE_OPTIONS = UpdateOptions.__optional_keys__
"""The options of `Spec.update`."""


_FLAGS = ("minimal_spec", "strip_context", "unbind_context")


def apply_options(spec: S, options: Mapping[str, object]) -> S:
    """Return the spec with the keyword arguments applied; None is the same as not given."""
    unknown = sorted(set(options) - UPDATE_OPTIONS)
    if unknown:
        raise TypeError(
            f"unexpected keyword argument: {', '.join(unknown)}{meant(unknown[0], UPDATE_OPTIONS)}"
        )
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    if not given:
        return spec
    given = in_our_words(given, _format(spec))
    flags = {name: as_flag(name, given.get(name)) for name in _FLAGS}
    if flags["minimal_spec"]:
        spec = _minimal(spec)
    mode = mode_from_options(given)
    if mode:
        spec = with_mode(spec, mode)
    if "kvstore" in given:
        spec = _with_kvstore(spec, given["kvstore"])
    if "storage_options" in given:
        spec = _with_storage_options(spec, given["storage_options"])
    spec = _with_recheck(spec, given)
    constraints = {name: given[name] for name in CONSTRAINTS if name in given}
    if constraints:
        spec = with_schema(spec, constraints)
    if flags["strip_context"]:
        spec = spec.unbound()
    elif flags["unbind_context"]:
        spec = written_down(spec)
    context = given.get("context")
    if context is not None:
        spec = spec.bound(context_of(context))
    return spec


def written_down(spec: S) -> S:
    """Return the spec with its bound resources as a `context`; of what has no JSON, without them."""
    try:
        plain = array_spec(spec.to_json())
    except UnimplementedError:
        return spec.unbound()
    if plain.base_spec is not None and spec.base_spec is not None:
        base = plain.base_spec.replace(shows_transform=spec.base_spec.shows_transform)
        plain = plain.replace(base_spec=base)
    return spec.replace(**{name: getattr(plain, name) for name in SpecValue.__slots__})


def with_mode(spec: S, mode: OpenMode) -> S:
    """Return the spec, or that of the array below, with a mode added to its own."""
    if spec.base_spec is not None:
        return spec.replace(base_spec=with_mode(spec.base_spec, mode))
    # `auto` has no members for the mode in JSON, but has to refuse one that does not open
    has_mode = spec.kind.has_mode or spec.kind.id == "auto"
    return spec.replace(mode=mode.over(spec.mode)) if has_mode else spec


def _minimal(spec: S) -> S:
    """Return the spec without `metadata`; type, rank and domain that it tells stay."""
    base = None if spec.base_spec is None else _minimal(spec.base_spec)
    members = {name: value for name, value in spec.members.items() if name != "metadata"}
    if base is spec.base_spec and "metadata" not in spec.members:
        return spec
    told = spec.kind.constrain(spec.members, spec.base_schema)
    kept = spec.base_schema.merged(Schema(dtype=told.dtype, rank=told.rank))
    shown = spec.transform if spec.shows_transform else spec.transform_
    return spec.replace(members=members, base_spec=base, base_schema=kept, transform_=shown)


def _format(spec: SpecValue) -> str:
    """Return the driver whose codecs a short name means: that of the innermost array."""
    while spec.base_spec is not None:
        spec = spec.base_spec
    return str(spec.kind.id)


def _with_storage_options(spec: S, options: Any) -> S:
    """Return the spec with options for the roots of its stores."""
    if not given_options(options):
        return spec
    if spec._kvstore is None and spec.base_spec is None and not spec.layers:
        raise StoreError(f"storage_options belong to a store, and a {quote(spec.kind.id)} array has none")
    return spec.replace(
        _kvstore=None if spec._kvstore is None else with_storage_options(spec._kvstore, options),
        base_spec=None if spec.base_spec is None else _with_storage_options(spec.base_spec, options),
        layers=tuple(_with_storage_options(each, options) for each in spec.layers),
    )


def _with_kvstore(spec: S, kvstore: Any) -> S:
    new = _kvstore_spec(kvstore)
    if spec.base_spec is not None:
        return spec.replace(base_spec=_with_kvstore(spec.base_spec, kvstore))
    if spec.kind.role != "store":
        raise StoreError(f'"kvstore" is not supported by the {spec.kind.id} driver')
    if spec._kvstore is not None:
        raise StoreError('"kvstore" is already specified')
    return spec.replace(_kvstore=new.replace(_path=spec.kind.kvstore_path(new.path)))


def _kvstore_spec(kvstore: Any) -> KvSpecValue:
    """Return the spec of a store given as an argument, where a dictionary without a driver is a store itself."""
    if isinstance(kvstore, KvStore):
        return kvstore.spec(retain_context=True)
    if isinstance(kvstore, bool | int | float | list):
        raise TypeError(f"kvstore is a store, a spec, a URL or a path, not {type(kvstore).__name__}")
    return live_spec(kvstore) if isinstance(kvstore, dict) and "driver" not in kvstore else kv_spec(kvstore)


def _with_recheck(spec: S, given: Mapping[str, Any]) -> S:
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
