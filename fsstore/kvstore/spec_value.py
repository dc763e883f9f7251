"""The value behind `KvStore.Spec`: the parts of a spec of a key-value store.

A spec has the same parts for every kind of store: the kind, a path, the kind's own members in canonical JSON, context
resources (as references, inline, or bound), a base below an adapter, and a context of its own.  Each kind checks its
own members (`KvKind`).  `spec_parse` makes specs of JSON and URLs, opens them, and has the public class.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, MutableMapping
from copy import deepcopy
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, Self, TypeAlias, TypeVar

from fsstore.context.context import Context, ContextResource, ContextSpec, ResourceNames, ResourceRef, bind_resource
from fsstore.context.resource_kinds import kind_of_member
from fsstore.errors import StoreError, UnimplementedError
from fsstore.kvstore.contract.driver import ENGINES, KvDriver, KvKind
from fsstore.kvstore.contract.request import key_text
from fsstore.kvstore.engine.secret import entire, is_concealed, reveal
from fsstore.kvstore.local.file import absolute
from fsstore.kvstore.memory import ElsewhereDriver
from fsstore.runtime.fork import process_name
from fsstore.values import registry
from fsstore.values.json_value import Json, as_flag, pretty, quote
from fsstore.values.registry import join_pipeline


def join_path(path: str, component: str) -> str:
    """Return `path` and `component` joined by exactly one slash, unless one of them is empty."""
    if not path or not component or path.endswith("/") or component.startswith("/"):
        return path + component
    return f"{path}/{component}"


class Specified:
    """An open object that can be given in place of a spec."""

    __slots__ = ()

    def standing_spec(self) -> KvSpecValue:
        """Return the spec that opens the same place, its resources bound."""
        raise NotImplementedError  # each open store and array defines it


class KvSpecValue:
    """A parsed specification of a key-value store."""

    __slots__ = ("_path", "base", "bound_context", "context", "kind", "live", "members", "resources")

    kind: KvKind
    members: Mapping[str, Json]
    resources: Mapping[str, ResourceRef]
    base: KvSpecValue | None
    context: ContextSpec | None
    live: KvDriver | None
    """A driver over a live object, for specs without a JSON form."""
    bound_context: Context | None
    """The context of a bound spec's resources; stores that open others later use it."""

    @classmethod
    def of(  # one value with the parts of a spec
        cls,
        kind: KvKind,
        path: str,
        *,
        members: Mapping[str, Json] | None = None,
        resources: Mapping[str, ResourceRef] | None = None,
        base: KvSpecValue | None = None,
        context: ContextSpec | None = None,
    ) -> Self:
        """Return the spec with these parts; each kind puts its path into canonical form."""
        self = object.__new__(cls)
        self.kind, self.members = kind, dict(members or {})
        self.resources, self.context, self.live = dict(resources or {}), context, None
        self.bound_context = None
        self._path = kind.check_path(path)
        if base is not None:
            base = base.replace(path=kind.base_path(base.path))
        self.base = base
        return self

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some parts changed."""
        other = object.__new__(type(self))
        other.kind, other._path, other.members, other.base = self.kind, self._path, self.members, self.base
        other.resources, other.context, other.bound_context = self.resources, self.context, self.bound_context
        other.live = self.live
        for name, value in changes.items():
            setattr(other, name, value)
        return other

    @property
    def path(self) -> str:
        """The prefix of all keys."""
        return self._path

    @path.setter
    def path(self, path: str | bytes) -> None:
        self._path = self.kind.check_path(key_text(path))

    @property
    def url(self) -> str:
        """The equivalent URL pipeline; raises `UnimplementedError` if there is none."""
        parts = [] if self.base is None else [self.base.url]
        if self.live is not None:
            raise UnimplementedError("A live object has no URL")
        return join_pipeline([*parts, self.kind.to_url(self._path, self.members)])

    def copy(self) -> Self:
        """Return a copy."""
        return self.replace()

    __copy__ = copy

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return a copy with resources of its own, such as caches and memory."""
        base, context = deepcopy((self.base, self.bound_context), memo)
        return self.replace(resources=deepcopy(dict(self.resources), memo), base=base, bound_context=context)

    def __truediv__(self, component: str | bytes) -> Self:
        """Return the spec with `component` joined to its path by one slash."""
        other = self.replace()
        other.path = join_path(self._path, key_text(component))
        return other

    def __add__(self, suffix: str | bytes) -> Self:
        """Return the spec with `suffix` appended to its path without a slash."""
        other = self.replace()
        other.path = self._path + key_text(suffix)
        return other

    def walk(self) -> Iterator[KvSpecValue]:
        """Yield this spec and the specs below, base first: the order in which resources are numbered."""
        if self.base is not None:
            yield from self.base.walk()
        yield self

    def bound_resources(self) -> Iterator[ContextResource]:
        """Yield the bound resources of this spec and the specs below."""
        for spec in self.walk():
            yield from (value for value in spec.resources.values() if isinstance(value, ContextResource))

    def to_json(self, include_defaults: bool = False) -> Any:
        """Return the JSON form."""
        include_defaults = as_flag("include_defaults", include_defaults)
        bound = list(self.bound_resources())
        if not bound:
            return self.json_with(None, include_defaults=include_defaults)
        names = ResourceNames(bound)
        out = self.json_with(names, include_defaults=include_defaults)
        return {**out, "context": names.context} if names.context else out

    def json_with(self, names: ResourceNames | None, *, include_defaults: bool = False) -> dict[str, Any]:
        """Return the JSON form without a `context`; bound resources appear under their `names`."""
        if self.live is not None:
            raise UnimplementedError(f"{self.live.describe_key(self._path)} has no JSON form: it is a live object")
        defaults = self.kind.defaults if include_defaults else {}
        shown = {name: value for name, value in self.members.items() if not is_concealed(value)}
        out: dict[str, Any] = {"driver": self.kind.id, **defaults, **shown}
        if self._path or include_defaults:
            out["path"] = self._path
        if self.base is not None:
            out["base"] = self.base.json_with(names, include_defaults=include_defaults)
        for name in self.kind.resources:
            value: Any = self.resources.get(name)
            if isinstance(value, ContextResource):
                value = names.member(value) if names is not None else value.to_json()
            if value is not None or include_defaults:
                out[name] = _default_reference(name) if value is None else value
        if self.context is not None or include_defaults:
            out["context"] = {} if self.context is None else self.context.to_json(include_defaults)
        return out

    def bound(self, context: Context) -> Self:
        """Return the spec with all its resources bound in a context."""
        if self.context is not None:
            context = Context(self.context, context)
        base = None if self.base is None else self.base.bound(context)
        resources = {name: bind_resource(name, self.resources.get(name), context) for name in self.kind.resources}
        kept = self.bound_context or context
        return self.replace(resources=resources, base=base, context=None, bound_context=kept)

    def unbound(self) -> Self:
        """Return the spec without bound resources and contexts."""
        base = None if self.base is None else self.base.unbound()
        return self.replace(resources={}, context=None, base=base, bound_context=None)

    def _identity(self) -> tuple[Any, ...]:
        resources = {k: id(v) if isinstance(v, ContextResource) else v for k, v in self.resources.items()}
        return self.kind.id, self._path, self.members, resources, self.base, self.context, id(self.live)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KvSpecValue) and self._identity() == other._identity()

    __hash__: ClassVar[None]  # type: ignore[assignment]  # mutable

    def __repr__(self) -> str:
        """Return `KvStore.Spec({...})`; bound resources appear as lists of one reference."""
        try:
            bound = list(self.bound_resources())
            names = ResourceNames(bound, listed=True) if bound else None
            shown = self.json_with(names)
            return pretty("KvStore.Spec", shown if names is None else {**shown, "context": names.context})
        except UnimplementedError:
            return "KvStore.Spec(...)"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the parts; resources pickled together stay shared.

        A pickle refers to the same place everywhere: relative paths become absolute, and fsspec's memory belongs to
        this process.  Credentials are left out unless the context shares them.  Live objects may hold credentials and
        files, so only drivers with their own `__reduce__` are pickled.
        """
        parts = {name: getattr(self, name) for name in ("members", "resources", "base", "context")}
        if isinstance(self.live, ElsewhereDriver):
            return _unpickle, (type(self), self.kind.id, self._path, parts, None, self.live.home)
        if self.live is not None and type(self.live).__reduce__ is object.__reduce__:
            raise UnimplementedError(
                f"{self.live.describe_key(self._path)} cannot be pickled: it is a live object, and only stores"
                " opened by URL or JSON go to other processes"
            )
        path = absolute(self._path) if self.kind.id == "file" else self._path
        home = process_name() if self.live is None and _is_fsspec_memory(self) else ""
        parts["members"] = _absolute_url(self.members)
        shares = self.bound_context is not None and self.bound_context.shares_secrets
        if shares:
            parts |= {"members": entire(parts["members"]), "shares": True}
        return _unpickle, (type(self), self.kind.id, path, parts, self.live, home)


def _is_fsspec_memory(spec: KvSpecValue) -> bool:
    """Return whether a store is in fsspec's memory, which each process has for itself."""
    if spec.kind.id == "memory":
        return engine_of(spec) == "fsspec"
    url = reveal(spec.members.get("url"))
    return isinstance(url, str) and any(part.startswith("memory:") for part in url.split("::"))


def _absolute_url(members: Mapping[str, Json]) -> Mapping[str, Json]:
    """Return members with an absolute URL for local files at the end of a chain."""
    url = reveal(members.get("url"))
    head, colons, last = url.rpartition("::") if isinstance(url, str) else ("", "", "")
    for scheme in ("file://", "local://"):
        if last.startswith(scheme) and not last.startswith(f"{scheme}/"):
            return {**members, "url": f"{head}{colons}{scheme}{absolute(last.removeprefix(scheme))}"}
    return members


def _default_reference(name: str) -> str:
    kind = kind_of_member(name)
    return name if kind is None else kind.name


def kv_kind(name: str) -> KvKind | None:
    """Return the kind of key-value store with a JSON name, or None."""
    kind: KvKind | None = registry.kvstores.get(name)
    return None if kind is None or kind.id != name else kind


def _unpickle(
    cls: type[KvSpecValue], name: str, path: str, parts: dict[str, Any], live: KvDriver | None = None, home: str = ""
) -> KvSpecValue:
    kind = kv_kind(name)
    if kind is None:
        raise StoreError(f"{quote(name)} is not a registered KvStore driver")
    if home not in ("", process_name()):
        live = ElsewhereDriver(f"{quote(str(parts['members'].get('url')))}, a store in memory,", home)
    context = Context().share_secrets() if parts.pop("shares", False) else None
    return cls.of(kind, path, **parts).replace(live=live, bound_context=context)


# `storage_options` belong to the root of a spec.

S = TypeVar("S", bound=KvSpecValue)
_OF_NOBODY = frozenset(("auto_mkdir", "asynchronous", "skip_instance_cache", "use_listings_cache"))
"""Options without effect here: directories are created on demand, and no listings are cached."""


def given_options(options: Any) -> Mapping[str, Any]:
    """Return the argument `storage_options`, checked; None is no options."""
    if options is None:
        return {}
    if not isinstance(options, Mapping) or not all(isinstance(name, str) for name in options):
        raise TypeError(f"storage_options must be a mapping of names to values, not {type(options).__name__}")
    return options


def with_storage_options(spec: S, options: Any) -> S:
    """Return the spec with storage options for its root."""
    given = given_options(options)
    if not given:
        return spec
    if spec.live is not None:
        raise StoreError(
            "storage_options belong to a place that is named by a URL or JSON; this one is open already, with options"
            " of its own"
        )
    if spec.base is not None:
        return spec.replace(base=with_storage_options(spec.base, given))
    kind = spec.kind
    chained = "::" in str(spec.members.get("url", ""))
    for name in () if chained else (*kind.schemes, kind.id):
        if isinstance(given.get(name), Mapping):
            given = {**given, **given[name]}
            given.pop(name)
    if kind.id in ("file", "memory"):
        given = {name: value for name, value in given.items() if name not in _OF_NOBODY}
    if not given:
        return spec
    try:
        return spec.replace(members=kind.with_options(spec.members, given))
    except UnimplementedError:
        named = ", ".join(map(quote, sorted(given)))
        raise StoreError(f"The store {quote(kind.id)} has no storage options, but received: {named}") from None


# `engine`: the library that serves the root.

ENGINE_VARIABLE = "FSSTORE_ENGINE"
Engine: TypeAlias = Literal["fsstore", "obstore", "fsspec"]
"""The library that serves a root: the client of fsstore itself, obstore, or the filesystem of fsspec."""


def with_engine(spec: S, engine: str | None) -> S:
    """Return the spec with an engine for its root; None leaves the choice to the store."""
    if engine is None:
        return spec
    if spec.live is not None:
        raise StoreError("engine belongs to a place that is named by a URL or JSON; this one is open already")
    if spec.base is not None:
        return spec.replace(base=with_engine(spec.base, engine))
    engines = ENGINES.get(spec.kind.id, ())
    if engine not in engines:
        known = ", ".join(map(quote, engines)) or "it has no choice"
        raise StoreError(f"The store {quote(spec.kind.id)} has no engine {quote(engine)}: {known}")
    return spec.replace(members={**spec.members, "engine": engine})


def engine_of(spec: KvSpecValue) -> str | None:
    """Return the engine that a root or the environment selects; None leaves the choice to the store."""
    named = spec.members.get("engine")
    if named is not None:
        return str(named)
    engine = os.environ.get(ENGINE_VARIABLE, "")
    if engine not in ("", "fsspec"):
        raise StoreError(f'{ENGINE_VARIABLE} is "fsspec" or not set, and not {quote(engine)}')
    return engine if engine in ENGINES.get(spec.kind.id, ()) else None


class LiveFileSystem(Protocol):
    """A filesystem object of fsspec, recognised by its type."""

    def cat_file(self, path: Any, start: Any = None, end: Any = None, **kwargs: Any) -> Any:
        """Return the bytes of a file."""
        ...


PlaceLike: TypeAlias = (
    str | Path | Mapping[str, Any] | MutableMapping[str, bytes] | KvSpecValue | Specified | LiveFileSystem
)
"""A URL, a path, the JSON of a spec, a spec, an open store, or a live filesystem or mapping."""
