"""Parsing array specs: JSON objects, URL pipelines, and key-value stores whose format is to be detected.

The keyword arguments of `open` and `Spec.update` change a parsed spec.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, TypeVar

import numpy as np

from fsstore.arrays.spec_value import OpenOptions, SpecValue, UpdateOptions, driver_kind, handed_down, with_schema
from fsstore.context.context import ContextSpec, context_of, parse_resource
from fsstore.driver.contract import DriverKind
from fsstore.errors import JsonError, StoreError, UnimplementedError
from fsstore.index import IndexTransform
from fsstore.kvstore.kv_store import KvStore
from fsstore.kvstore.spec_parse import (
    cannot_be_first,
    is_described,
    kv_from_components,
    kv_json,
    kv_spec,
    live_spec,
    unsupported,
    with_root,
)
from fsstore.kvstore.spec_value import KvSpecValue, given_options, join_path, kv_kind, with_engine, with_storage_options
from fsstore.schema.schema import (
    CONSTRAINTS,
    FILLS,
    RECHECK,
    OpenMode,
    Schema,
    differs,
    in_our_words,
    known_instead,
    mode_from_options,
    recheck_argument,
)
from fsstore.values import registry
from fsstore.values.dtypes import dtype_of
from fsstore.values.json_value import (
    DEEPEST_SPEC,
    MISSING,
    Fields,
    array_of,
    as_flag,
    check_depth,
    close_names,
    expected,
    integer,
    json_like,
    meant,
    quote,
    string,
)
from fsstore.values.registry import Component, split_pipeline

_MAX_ADAPTERS = 64  # each is a level of nesting


def _scheme_kind(scheme: str) -> DriverKind | None:
    kind: DriverKind | None = registry.drivers.get(scheme)
    return kind if kind is not None and scheme in kind.schemes else None


def _auto(kvstore: KvSpecValue) -> SpecValue:
    kind = driver_kind("auto")
    if kind is None:
        raise StoreError("format detection is not available")
    return SpecValue.of(kind, _kvstore=kvstore)


def array_spec(json: Any) -> SpecValue:
    """Return the spec that `json` means."""
    if isinstance(json, SpecValue):
        return json.replace()
    if isinstance(json, KvSpecValue):
        return _auto(json.replace())
    if isinstance(json, str):
        return _from_url(json)
    if is_described(json):
        return _from_json(json)
    if json is None or isinstance(json, bool | int | float | list | tuple):
        error = expected("object", json)
        raise type(error)(f"{error.message}; a place is a URL, a path, JSON, or an open store")
    return _auto(kv_spec(json))


# --- URLs.


def _from_url(url: str) -> SpecValue:
    url = with_root(url)
    try:
        return _from_components(split_pipeline(url))
    except StoreError as error:
        raise (error.within(f"Parsing spec from url: {quote(url)}") if url else error) from None


def _from_components(components: list[Component]) -> SpecValue:
    first = components[0]
    kind = _scheme_kind(first.scheme)
    if kind is not None and not first.is_root:
        raise cannot_be_first(first, _what(kind))
    at = _last_store(components)
    try:
        kvstore, rest = kv_from_components(components[:at])
        rest += components[at:]
    except StoreError as error:
        if error.message.startswith("unsupported URL scheme"):
            raise unsupported(first) from None
        raise
    if len(rest) > _MAX_ADAPTERS:
        raise rest[_MAX_ADAPTERS].error(f"more than {_MAX_ADAPTERS} array components in one URL")
    spec: SpecValue | None = None
    for component in rest:
        spec = _with_component(component, kvstore, spec)
    return _auto(kvstore) if spec is None else spec


def _last_store(components: list[Component]) -> int:
    """Return how many components may be those of a store.

    `x.tif|tiff:` is an image, and `x.tif|tiff:0` an array in the store of that name: the last component that means
    both is the driver if nothing but adapters of arrays follows, and it has no path.
    """
    for at in range(len(components) - 1, 0, -1):
        component = components[at]
        kind = _scheme_kind(component.scheme)
        if kind is None or (kind.role != "adapter" and component.rest):
            break
        if kind.role != "adapter":
            return at if kv_kind(component.scheme) is not None else len(components)
    return len(components)


def _what(kind: DriverKind) -> str:
    return "TensorStore adapter" if kind.role == "adapter" else "kvstore-based TensorStore"


def _with_component(component: Component, kvstore: KvSpecValue, spec: SpecValue | None) -> SpecValue:
    kind = _scheme_kind(component.scheme)
    if kind is None:
        kv = kv_kind(component.scheme)
        if kv is not None and spec is not None:
            role = "kvstore adapter" if kv.role == "adapter" else "root kvstore"
            raise component.error(
                f"{role} URL scheme in {quote(component.text)} is not valid following a TensorStore URL"
                " pipeline component"
            )
        raise unsupported(component)
    if kind.role != "adapter" and spec is not None:
        raise component.error(
            f"{_what(kind)} URL scheme in {quote(component.text)} is not valid following a TensorStore URL"
            " pipeline component"
        )
    try:
        path, members = kind.from_url(component.rest)
    except StoreError as error:
        text = component.text if ":" in component.text else component.text + ":"
        raise component.error(f"Invalid TensorStore URL component {quote(text)}: {error.message}") from None
    if kind.role == "adapter":
        return SpecValue.of(kind, members=members, base_spec=spec or _auto(kvstore))
    return SpecValue.of(kind, members=members, _kvstore=_placed(kind, kvstore, path))


def _placed(kind: DriverKind, kvstore: KvSpecValue, path: str) -> KvSpecValue:
    """Return the key-value store at the driver's path, in the form the driver keeps."""
    joined = join_url_path(kvstore.path, path) if path else kvstore.path
    return kvstore.replace(_path=kind.kvstore_path(joined))


def join_url_path(path: str, component: str) -> str:
    """Return `path` and `component` with a slash between, unless the path is empty or ends in one."""
    return path + component if not path or path.endswith("/") else f"{path}/{component}"


# --- JSON.


def _driver_name(value: Any) -> str:
    name = string(value)
    if driver_kind(name) is None and kv_kind(name) is None:
        near = close_names(name, registry.drivers.names())
        hint = f"; did you mean {quote(near[0])}?" if near else ""
        raise JsonError(f"{quote(name)} is not a registered TensorStore driver{hint}")
    return name


def _dtype(value: Any) -> Any:
    try:
        return dtype_of(string(value))
    except JsonError:
        raise
    except (StoreError, TypeError) as error:
        raise JsonError(getattr(error, "message", str(error))) from None


def _nested(parse: Any, value: Any) -> Any:
    """Read a member whose parser raises plain store errors."""
    try:
        return parse(value)
    except JsonError:
        raise
    except StoreError as error:
        raise JsonError(error.message) from None


def _object_spec(parse: Any, value: Any) -> Any:
    if value is None or value is MISSING or isinstance(value, bool | int | float | list):
        raise expected("object", value)
    return _nested(parse, value)


def _resource(name: str, value: Any) -> Any:
    if value is None:
        raise JsonError("Expected non-null value, but received: null")
    return parse_resource(name, value)


def _from_json(json: Mapping[str, Any]) -> SpecValue:
    check_depth(json, DEEPEST_SPEC)
    json = json_like(json)
    head = Fields({name: value for name, value in json.items() if name == "driver"})
    name = head.require("driver", _driver_name)
    head.finish()
    kind = driver_kind(name)
    if kind is None:
        return _auto(kv_spec(json))
    fields = Fields({name: value for name, value in json.items() if name != "driver"})
    parts: dict[str, Any] = {"context": fields.take("context", ContextSpec)}
    if kind.role == "store":
        parts["_kvstore"] = _kvstore_member(kind, fields)
    if kind.role in ("adapter", "view"):
        parts["base_spec"] = fields.require("base", partial(_object_spec, array_spec))
    if kind.role == "layered":
        parts["layers"] = tuple(fields.require("layers", array_of(partial(_object_spec, array_spec))) or ())
    if kind.has_mode:
        parts["mode"] = OpenMode.take(fields)
    resources = {name: fields.take(name, partial(_resource, name)) for name in kind.resources if name in fields}
    parts["resources"] = {name: value for name, value in resources.items() if value != name}
    transform = fields.take("transform", partial(_nested, lambda value: IndexTransform(json=value)))
    schema = _schema_members(fields, transform)
    parts["members"] = kind.members(fields)
    fields.finish()
    return completed(kind, parts, schema, transform)


def _kvstore_member(kind: DriverKind, fields: Fields) -> KvSpecValue | None:
    kvstore: KvSpecValue | None = fields.take("kvstore", _kvstore_spec)
    path = fields.take("path", string, default="")
    if kvstore is None:
        return None
    return kvstore.replace(_path=kind.kvstore_path(join_path(kvstore.path, path)))


def _kvstore_spec(value: Any) -> KvSpecValue:
    """Return the spec of the store in JSON that has been looked through."""
    found: KvSpecValue = _nested(kv_json, value) if is_described(value) else _object_spec(kv_spec, value)
    return found


def _schema_members(fields: Fields, transform: IndexTransform | None) -> Schema:
    schema: Schema = fields.take("schema", partial(_nested, lambda value: Schema(json=value)), default=None) or Schema()
    kind = fields.take("dtype", _dtype)
    rank = fields.take("rank", integer(0, 32))
    try:
        if kind is not None:
            schema.update(dtype=kind)
        if rank is not None and transform is None:
            schema.update(rank=rank)
        elif transform is not None and rank not in (None, transform.input_rank):
            fields.problem(f"Rank of transform ({transform.input_rank}) does not match specified rank ({rank})")
    except StoreError as error:
        fields.problem(error.message)
    return schema


def completed(
    kind: DriverKind, parts: Mapping[str, Any], schema: Schema, transform: IndexTransform | None
) -> SpecValue:
    """Return the spec of parsed members, after checking that they agree."""
    constrained = kind.constrain(parts["members"], schema)
    if transform is not None and constrained.rank is not None and transform.output_rank != constrained.rank:
        raise StoreError(
            f"Rank specified by transform ({transform.output_rank}) does not match rank specified by schema"
            f" ({constrained.rank})"
        )
    if transform is not None and schema.rank is None:
        schema = schema.copy()
        schema.update(rank=transform.output_rank)
    spec = SpecValue.of(kind, **parts, base_schema=schema, transform_=transform)
    if kind.role == "view":
        own = Schema(dtype=schema.dtype, rank=constrained.rank)
        spec = handed_down(spec.replace(base_schema=own), schema.retyped(None))
    if spec.layers or kind.role == "view":
        spec._below()  # says whether the arrays below fit together
    return spec


# The keyword arguments of `open` and `Spec.update`.

S = TypeVar("S", bound=SpecValue)
_RECHECK = (*RECHECK, "recheck_cached")
OPEN_OPTIONS = OpenOptions.__optional_keys__
"""Options of both `open` and `Spec.update`."""
UPDATE_OPTIONS = UpdateOptions.__optional_keys__
"""The options of `Spec.update`."""

_FLAGS = ("minimal_spec", "strip_context", "unbind_context")


def apply_options(spec: S, options: Mapping[str, object]) -> S:
    """Return the spec with the keyword arguments applied; None is the same as not given."""
    unknown = sorted(set(options) - UPDATE_OPTIONS)
    if unknown:
        raise TypeError(f"unexpected keyword argument: {', '.join(unknown)}{meant(unknown[0], UPDATE_OPTIONS)}")
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
    if "engine" in given:
        spec = _with_engine(spec, given["engine"])
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
    """Return the spec with its bound resources as a `context`, except resources without JSON."""
    try:
        plain = array_spec(spec.to_json())
    except UnimplementedError:
        return spec.unbound()
    if plain.base_spec is not None and spec.base_spec is not None:
        base = plain.base_spec.replace(shows_transform=spec.base_spec.shows_transform)
        plain = plain.replace(base_spec=base)
    return spec.replace(**{name: getattr(plain, name) for name in SpecValue.__slots__})


def like(data: Any) -> dict[str, Any]:
    """Return the shape and the type of values as options of a new array."""
    values = data if hasattr(data, "shape") and hasattr(data, "dtype") else np.asarray(data)
    return {"shape": values.shape, "dtype": values.dtype}


def requested(spec: Any, options: Mapping[str, Any], data: Any) -> SpecValue:
    """Return the spec of `open` with its options; `data` are the values of a new array.

    A new array by a mode in zarr's words is one of zarr version 3 where no format is named.
    """
    unknown = sorted(set(options) - OPEN_OPTIONS)
    if unknown:
        hint = known_instead(unknown[0], OPEN_OPTIONS | {"read", "write", "transaction", "batch", "data"})
        raise TypeError(f"open() got an unexpected keyword argument: {', '.join(unknown)}{hint}")
    wanted = dict(options)
    if data is not None:
        is_told = any(options.get(name) for name in ("mode", "create", "open"))
        wanted = {**like(data), **({} if is_told else {"mode": "w-"}), **options}
    found = array_spec(spec)
    if wanted.get("mode") in ("w", "w-") and found.kind.id == "auto" and not found.members:
        found = array_spec({"driver": "zarr3", "kvstore": found._kvstore})
    return apply_options(found, wanted)


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


def _with_engine(spec: S, engine: str) -> S:
    return spec.replace(
        _kvstore=None if spec._kvstore is None else with_engine(spec._kvstore, engine),
        base_spec=None if spec.base_spec is None else _with_engine(spec.base_spec, engine),
        layers=tuple(_with_engine(each, engine) for each in spec.layers),
    )


def _with_storage_options(spec: S, options: Any) -> S:
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
    new = _given_kvstore(kvstore)
    if spec.base_spec is not None:
        return spec.replace(base_spec=_with_kvstore(spec.base_spec, kvstore))
    if spec.kind.role != "store":
        raise StoreError(f'"kvstore" is not supported by the {spec.kind.id} driver')
    if spec._kvstore is not None:
        raise StoreError('"kvstore" is already specified')
    return spec.replace(_kvstore=new.replace(_path=spec.kind.kvstore_path(new.path)))


def _given_kvstore(kvstore: Any) -> KvSpecValue:
    """Return the spec of a store given as an argument, where a dictionary without a driver is a store itself."""
    if isinstance(kvstore, KvStore):
        return kvstore.spec(retain_context=True)
    if isinstance(kvstore, bool | int | float | list):
        raise TypeError(f"kvstore is a store, a spec, a URL or a path, not {type(kvstore).__name__}")
    return live_spec(kvstore) if isinstance(kvstore, dict) and "driver" not in kvstore else kv_spec(kvstore)


def _with_recheck(spec: S, given: Mapping[str, Any]) -> S:
    names = {name: recheck_argument(name, given[name]) for name in _RECHECK if name in given}
    if given.get(FILLS) is not None:
        names[FILLS] = as_flag(FILLS, given[FILLS])
    if not names:
        return spec
    if spec.base_spec is not None:
        return spec.replace(base_spec=_with_recheck(spec.base_spec, given))
    known = (*RECHECK, FILLS) if spec.kind.id == "auto" else spec.kind.defaults  # it hands them on
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
