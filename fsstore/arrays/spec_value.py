"""The content of a spec of an array: the value under `Spec`.

Like `KvStore.Spec`, a spec is the same value for every driver: the kind and its members, a key-value store or a base
array, a schema, a transform, an open mode, context resources.  Its domain is the transform's; without one, that of the
schema.  An adapter keeps some constraints of the schema and hands others down to the array below.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeAlias, TypeVar

from fsstore.context.context import Context, ContextResource, ContextSpec, ResourceNames, ResourceRef, bind_resource
from fsstore.driver.contract import DriverKind
from fsstore.errors import StoreError, UnimplementedError
from fsstore.index import IndexDomain, IndexTransform
from fsstore.index.transform import identity
from fsstore.kvstore.spec_value import Engine, KvSpecValue, PlaceLike
from fsstore.schema.chunk_layout import ChunkLayout
from fsstore.schema.schema import CompositeOptions, ModeOptions, OpenMode, Schema
from fsstore.schema.value import CodecSpec
from fsstore.values import registry
from fsstore.values.json_value import Json, as_flag, pretty, quote, sorted_members
from fsstore.values.registry import join_pipeline

if TYPE_CHECKING:
    from fsstore.context.context import Context


class SpecValue:
    """A parsed specification of an array."""

    __slots__ = (
        "_kvstore", "base_schema", "base_spec", "bound_context", "context", "kind", "layers", "members", "mode",
        "resources", "shows_transform", "transform_",
    )  # fmt: skip

    kind: DriverKind
    members: Mapping[str, Any]
    base_schema: Schema
    transform_: IndexTransform | None
    mode: OpenMode
    resources: Mapping[str, ResourceRef]
    context: ContextSpec | None
    bound_context: Context | None
    """Where the resources were bound; drivers that detection finds bind theirs there too."""
    base_spec: SpecValue | None
    layers: tuple[SpecValue, ...]
    shows_transform: bool
    _kvstore: KvSpecValue | None

    @classmethod
    def of(cls, kind: DriverKind, **parts: Any) -> Self:
        """Return the spec with these parts; what is not given is empty."""
        self = object.__new__(cls)
        self.kind, self.members, self.resources = kind, {}, {}
        self._kvstore = self.base_spec = self.transform_ = self.context = self.bound_context = None
        self.layers, self.shows_transform, self.mode = (), True, OpenMode.none()
        if "base_schema" not in parts:
            self.base_schema = Schema()
        for name, value in parts.items():
            setattr(self, name, value)
        return self

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some parts changed."""
        new = object.__new__(type(self))
        new.kind, new.members, new.mode, new.resources = self.kind, self.members, self.mode, self.resources
        new._kvstore, new.base_spec, new.layers = self._kvstore, self.base_spec, self.layers
        new.base_schema, new.transform_ = self.base_schema, self.transform_
        new.context, new.bound_context = self.context, self.bound_context
        new.shows_transform = self.shows_transform
        for name, value in changes.items():
            setattr(new, name, value)
        return new

    # --- what it says of the array

    def _below(self) -> Schema:
        """Return the known statistics of the array below the transform."""
        below = [spec.schema for spec in (self.base_spec, *self.layers) if spec is not None]
        return self.kind.known(self.members, self.base_schema, below)

    @property
    def schema(self) -> Schema:
        """The constraints that describe the array, through the transform."""
        known = self._below()
        transform = self.transform_ or _identity_over(known)
        return known if transform is None else known.through(transform)

    @property
    def transform(self) -> IndexTransform | None:
        """The transform from the domain to the array's own index space; None while the domain is unknown."""
        return self.transform_ or _identity_over(self._below())

    @property
    def domain(self) -> IndexDomain | None:
        """The domain, or None if nothing is known of it."""
        transform = self.transform
        return None if transform is None else transform.domain

    @property
    def rank(self) -> int | None:
        """The number of dimensions, or None."""
        transform = self.transform
        if transform is not None:
            return transform.input_rank
        return self.kind.constrain(self.members, self.base_schema).rank

    @property
    def dtype(self) -> Any:
        """The data type, or None."""
        return self._below().dtype

    @property
    def open_mode(self) -> OpenMode:
        """How the array is opened, or the array below; drivers that only open do that."""
        if self.base_spec is not None:
            return self.base_spec.open_mode
        only_opens = self.kind.role in ("store", "live") and not self.kind.has_mode
        return OpenMode(open=True) if only_opens else self.mode

    @property
    def url(self) -> str:
        """The URL pipeline of store, driver and adapters; what else the spec says is left out."""
        if self.base_spec is not None:
            dtype = None if self.dtype is None else self.dtype.name
            return join_pipeline([self.base_spec.url, self.kind.to_url({"dtype": dtype, **self.members})])
        if self._kvstore is None:
            if self.kind.role == "store":
                raise StoreError("Invalid kvstore spec")
            raise UnimplementedError("URL representation not supported")
        return join_pipeline([self._kvstore.url, self.kind.to_url(self.members)])

    # --- JSON

    def walk_resources(self) -> Iterator[ContextResource]:
        """Yield the bound resources: of the key-value store first, then of the base, then its own."""
        if self._kvstore is not None:
            yield from self._kvstore.bound_resources()
        for below in (self.base_spec, *self.layers):
            if below is not None:
                yield from below.walk_resources()
        yield from (value for value in self.resources.values() if isinstance(value, ContextResource))

    def to_json(self, include_defaults: bool = False) -> Any:
        """Return the JSON form, members sorted by name."""
        include_defaults = as_flag("include_defaults", include_defaults)
        bound = list(self.walk_resources())
        names = ResourceNames(bound) if bound else None
        out = self.json_with(names, include_defaults=include_defaults)
        return sorted_members({**out, "context": names.context} if names is not None and names.context else out)

    def json_with(self, names: ResourceNames | None, *, include_defaults: bool = False) -> dict[str, Any]:
        """Return the JSON form without a `context` for the bound resources, which `names` calls by name."""
        if self.kind.role == "live":
            raise UnimplementedError('Error converting object member "driver": JSON representation not supported')
        out: dict[str, Any] = {"driver": self.kind.id}
        if include_defaults:
            out.update(self.kind.defaults)
        out.update(self.mode.to_json())
        out.update(self.members)
        if self._kvstore is not None:
            out["kvstore"] = self._kvstore.json_with(names, include_defaults=include_defaults)
        if self.base_spec is not None:
            out["base"] = _base_json(self.base_spec, names, include_defaults=include_defaults)
            if self.kind.role == "view":
                out["base"].pop("dtype", None)  # said once, for both
        if self.kind.role == "layered":
            out["layers"] = [each.json_with(names, include_defaults=include_defaults) for each in self.layers]
        for name in self.kind.resources:
            value: Any = self.resources.get(name)
            if isinstance(value, ContextResource):
                value = names.member(value) if names is not None else value.to_json()
            if value is not None or (include_defaults and name != "metadata_cache_pool"):
                out[name] = name if value is None else value
        out.update(self._schema_json(include_defaults=include_defaults))
        if self.context is not None or include_defaults:
            out["context"] = {} if self.context is None else self.context.to_json(include_defaults)
        return out

    def _schema_json(self, *, include_defaults: bool) -> dict[str, Json]:
        out: dict[str, Any] = {}
        schema = self.base_schema.to_json()
        kind = self.dtype
        if kind is not None:
            out["dtype"] = kind.to_json()
        transform = self.transform if self.shows_transform else self.transform_
        if transform is not None:
            out["transform"] = transform.to_json()
        elif self.kind.role != "adapter" and self.shows_transform and self.rank is not None:
            out["rank"] = self.rank
        schema = {name: value for name, value in schema.items() if name not in ("dtype", "rank")}
        if include_defaults:
            known = {"dtype": out.get("dtype"), "rank": self.rank}
            schema |= {name: value for name, value in known.items() if value is not None}
        if schema or include_defaults:
            out["schema"] = schema
        return out

    def __repr__(self) -> str:
        """Return `Spec({...})`; bound resources are shown as lists of one reference."""
        try:
            bound = list(self.walk_resources())
            names = ResourceNames(bound, listed=True) if bound else None
            shown = self.json_with(names)
            return pretty("Spec", shown if names is None else {**shown, "context": names.context})
        except UnimplementedError:
            return "Spec(...)"

    def bound(self, context: Context) -> Self:
        """Return the spec with all its resources bound in a context."""
        if self.context is not None:
            context = Context(self.context, context)
        resources = {
            name: bind_resource(name, self.resources.get(name), context)
            for name in self.kind.resources
            if name != "metadata_cache_pool" or name in self.resources  # otherwise the cache pool's
        }
        return self.replace(
            resources=resources,
            context=None,
            bound_context=self.bound_context or context,
            _kvstore=None if self._kvstore is None else self._kvstore.bound(context),
            base_spec=None if self.base_spec is None else self.base_spec.bound(context),
            layers=tuple([each.bound(context) for each in self.layers]),
        )

    def unbound(self) -> Self:
        """Return the spec without bound resources and contexts."""
        return self.replace(
            resources={},
            context=None,
            bound_context=None,
            _kvstore=None if self._kvstore is None else self._kvstore.unbound(),
            base_spec=None if self.base_spec is None else self.base_spec.unbound(),
            layers=tuple(each.unbound() for each in self.layers),
        )

    def _identity(self) -> tuple[Any, ...]:
        resources = {k: id(v) if isinstance(v, ContextResource) else v for k, v in self.resources.items()}
        return (
            *(self.kind.id, self.members, self._kvstore, self.base_spec, self.base_schema, self.transform_),
            *(self.mode, resources, self.context, self.layers),
        )

    def __eq__(self, other: object) -> bool:
        """Return whether both say the same, in JSON, and mean the same resources."""
        if not isinstance(other, SpecValue) or self._identity() == other._identity():
            return isinstance(other, SpecValue)
        if any(self.walk_resources()) or any(other.walk_resources()):
            return False
        try:
            same: bool = self.to_json() == other.to_json()
        except StoreError:  # a resource has no JSON form
            return False
        return same

    __hash__: ClassVar[None]  # type: ignore[assignment]  # mutable

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the parts; resources pickled together stay shared."""
        return _unpickle, (
            type(self),
            self.kind if self.kind.role == "live" else self.kind.id,  # such kinds are not registered
            {name: getattr(self, name) for name in SpecValue.__slots__ if name != "kind"},
        )


def _base_json(base: SpecValue, names: ResourceNames | None, *, include_defaults: bool) -> dict[str, Any]:
    try:
        return base.json_with(names, include_defaults=include_defaults)
    except UnimplementedError as error:
        raise error.within('Error converting object member "base"') from None


def driver_kind(name: str) -> DriverKind | None:
    """Return the kind of array driver with a JSON name (`zarr2` is read as `zarr`), or None."""
    kind: DriverKind | None = registry.drivers.get(name)
    return kind


def _unpickle(cls: type[SpecValue], name: str | DriverKind, parts: dict[str, Any]) -> SpecValue:
    kind = driver_kind(name) if isinstance(name, str) else name
    if kind is None:
        raise StoreError(f"{quote(str(name))} is not a registered TensorStore driver")
    return cls.of(kind, **parts)


def _identity_over(known: Schema) -> IndexTransform | None:
    """Return the identity over a known domain; None while the domain is unknown."""
    return None if known.domain is None else identity(known.domain)


# Constraints in specs.

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


# Keyword arguments of `open`, `Spec.update` and `TensorStore.spec`, as types.

SpecLike: TypeAlias = PlaceLike | SpecValue
"""Ways to name an array: a spec or its JSON, a URL, or a place whose format is to be detected."""


class OpenOptions(CompositeOptions, ModeOptions, total=False):
    """The options that `open` adds to a spec."""

    chunk_layout: ChunkLayout | None
    codec: CodecSpec | str | Mapping[str, Any] | Sequence[Any] | None
    fill_value: Any
    kvstore: PlaceLike | None
    storage_options: Mapping[str, Any] | None
    engine: Engine | None
    mode: Literal["r", "r+", "a", "w", "w-"] | None
    chunks: Sequence[int] | None
    shards: Sequence[int] | None


class ViewSpecOptions(OpenOptions, total=False):
    """The options of `TensorStore.spec`, which change the spec it returns."""

    context: Context | None
    minimal_spec: bool | None
    strip_context: bool | None


class UpdateOptions(ViewSpecOptions, total=False):
    """The options of `Spec.update`."""

    unbind_context: bool | None
