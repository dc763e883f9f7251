"""Specs of key-value stores from JSON, URLs and live objects; opening them; and the public class of specs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fsstore.context.context import Context, ContextResource, ContextSpec, context_of, is_default, parse_resource
from fsstore.errors import JsonError, PermissionDeniedError, StoreError, UrlError
from fsstore.kvstore.contract.ability import CachesReads, IsMetered, able
from fsstore.kvstore.contract.driver import KvDriver, KvKind, KvOpening, KvPrefix
from fsstore.kvstore.engine.secret import guard, lacks
from fsstore.kvstore.root.chain_url import is_chain, split_chain
from fsstore.kvstore.spec_value import KvSpecValue, Specified, engine_of, kv_kind
from fsstore.kvstore.transaction import TransactionalDriver
from fsstore.runtime.observer import Meter, counts
from fsstore.values import registry
from fsstore.values.json_value import (
    DEEPEST_SPEC,
    Fields,
    as_flag,
    check_depth,
    close_names,
    expected,
    json_like,
    obj,
    quote,
    string,
)
from fsstore.values.registry import Component, encode_path, split_pipeline

if TYPE_CHECKING:
    from fsstore.kvstore.ledger import Ledger


def kv_scheme(scheme: str) -> KvKind | None:
    """Return the kind of a URL scheme: a registered one, or any protocol that fsspec knows."""
    kind: KvKind | None = registry.kvstores.get(scheme)
    if kind is not None and scheme in kind.schemes:
        return kind
    from fsstore.kvstore.root.cloud import fsspec_scheme

    found: KvKind | None = fsspec_scheme(scheme)
    return found


def kv_spec(json: Any, *, single_writer: bool = False) -> KvSpecValue:
    """Return the spec of a place: a spec, a URL, a JSON object, a `Path`, an open store, or a live filesystem or
    mapping.

    `single_writer` promises that only this process writes to a live object; other stores have a member for that.
    """
    found = _from_text(json)
    if found is not None:
        if single_writer:
            raise StoreError('single_writer is for live objects: give "single_writer": true in the spec instead')
        return found
    if isinstance(json, Specified):
        return json.standing_spec()
    if json is not None and not isinstance(json, bool | int | float | list):
        return live_spec(json, single_writer=single_writer)
    raise expected("object", json)


def place_spec(place: Any) -> KvSpecValue:
    """Return the spec of a place, like `kv_spec`, but text that is not a URL is a local path."""
    if isinstance(place, str) and not any(mark in place for mark in ("://", "|", "::")):
        return path_spec(place)
    return kv_spec(place)


def path_spec(path: str | os.PathLike[str]) -> KvSpecValue:
    """Return the spec of a path of the local filesystem; a trailing slash stays."""
    slash = "/" if os.fspath(path).endswith("/") else ""
    absolute = Path.cwd() / path
    if ".." in absolute.parts:  # no key may hold `..`; links on the way are followed, as the system would
        absolute = absolute.resolve()
    return kv_spec({"driver": "file", "path": str(absolute).rstrip("/") + slash})


def _from_text(json: Any) -> KvSpecValue | None:
    """Return the spec of a place that is not a live object, otherwise None."""
    if isinstance(json, KvSpecValue):
        return json.copy()
    if isinstance(json, str):
        return _from_url(json)
    if isinstance(json, Path):
        return path_spec(json)
    if not is_described(json):
        return None
    check_depth(json, DEEPEST_SPEC)
    return kv_json(json_like(json))


_BYTES = (bytes, bytearray, memoryview)


def is_described(json: Any) -> bool:
    """Return whether a value is the JSON of a spec, and not a mapping that is a store itself."""
    is_object = type(json) is dict or (isinstance(json, Mapping) and "driver" in json)
    return is_object and not holds_values(json)


def holds_values(json: Any) -> bool:
    """Return whether a dictionary is a store of keys with bytes, and not the JSON of a spec; an empty one is not."""
    return isinstance(json, dict) and isinstance(next(iter(json.values()), None), _BYTES)


def live_spec(source: Any, *, single_writer: bool = False) -> KvSpecValue:
    """Return the spec of a live object."""
    from fsstore.kvstore.root.live import from_live

    prefix = from_live(source, single_writer=single_writer)
    kind = kv_kind("memory")
    if kind is None:
        raise StoreError("the memory key-value store is not registered")
    return KvSpecValue.of(kind, "").replace(live=prefix.driver, _path=prefix.path)


def with_root(place: str) -> str:
    """Return a URL, pipeline or path as a URL; a local path at its start becomes a `file://` URL."""
    root, bar, rest = place.partition("|")
    if not root or ":" in root.replace("\\", "/").partition("/")[0] or "::" in root:
        return place
    if root in registry.kvstores.names() or root in registry.drivers.names():  # a scheme without its `://`
        return place
    return f"{path_spec(root).url}{bar}{rest}"


def _from_url(url: str) -> KvSpecValue:
    url = with_root(url)
    try:
        components = split_pipeline(url)
        spec, rest = kv_from_components(components)
        if rest:
            raise unsupported(rest[0], for_kvstore=True)
    except StoreError as error:
        raise error.within(f"Parsing spec from url: {quote(url)}") from None if url else error
    return spec


def kv_from_components(components: list[Component]) -> tuple[KvSpecValue, list[Component]]:
    """Return the spec of the key-value part of a pipeline, and the remaining components."""
    spec = _root_spec(components[0])
    for number, component in enumerate(components[1:], 1):
        kind = registry.kvstores.get(component.scheme)
        if kind is None or component.scheme not in kind.schemes:
            return spec, components[number:]
        if kind.role == "root":
            raise component.error(
                f"root kvstore URL scheme in {quote(component.text)} is not valid following a KvStore URL"
                " pipeline component"
            )
        spec = _component_spec(kind, component, spec)
    return spec, []


def _root_spec(first: Component) -> KvSpecValue:
    kind = kv_scheme(first.scheme)
    if is_chain(first.text) and not (kind and kind.role == "root" and first.scheme in kind.schemes):
        from fsstore.kvstore.root.cloud import FSSPEC

        url, path = split_chain(first.text)
        return KvSpecValue.of(FSSPEC, path, members={"url": guard(url)})
    if kind is None:
        raise unsupported(first, for_kvstore=True)
    if kind.role != "root":
        raise cannot_be_first(first, "kvstore adapter")
    if not first.is_root:
        if ":" not in first.text:
            raise first.error(f"URL scheme must be specified in {quote(first.text)}")
        raise first.error(
            f"Invalid kvstore URL component {quote(first.text)}: Scheme {quote(first.scheme + '://')}"
            " not present in url"
        )
    return _component_spec(kind, first, None)


def _component_spec(kind: KvKind, component: Component, base: KvSpecValue | None) -> KvSpecValue:
    try:
        path, members = kind.from_url(component.scheme, component.rest)
        return KvSpecValue.of(kind, path, members=members, base=base)
    except UrlError as error:
        raise component.error(f"Invalid kvstore URL component {quote(component.text)}: {error.message}") from None
    except StoreError as error:
        raise error.within(f"Invalid kvstore URL component {quote(component.text)}") from None


def cannot_be_first(first: Component, what: str) -> UrlError:
    """Return the error for a URL that begins with an adapter or a format."""
    _, chained, place = first.text.partition("::")
    meant = f"Did you mean {quote(f'{_local_url(place)}|{first.scheme}:')}?" if chained else ""
    return first.error(
        f"{what} URL scheme in {quote(first.text)} is not valid as the first URL pipeline component", meant
    )


def _local_url(place: str) -> str:
    return place if "://" in place else f"file://{encode_path(str(Path(place).absolute()))}"


def unsupported(component: Component, *, for_kvstore: bool = False) -> UrlError:
    """Return the error for a component with an unknown scheme, or with an array's scheme in a store's place."""
    what = f"unsupported URL scheme: {quote(component.scheme)}"
    if for_kvstore:
        what = f"unsupported URL scheme {quote(component.scheme)} in {quote(component.text)}"
        if component.scheme != "array" and registry.drivers.get(component.scheme) is not None:
            what += f": {quote(component.scheme)} is a kvstore-based TensorStore URL scheme"
    return component.error(what, _meant(component))


def _meant(component: Component) -> str:
    """Return a suggestion for a component with an unknown scheme, or an empty text."""
    if component.position == 0 and ":" not in component.text:
        return f"A place is named by a URL; for a local file or directory: {_local_url(component.text)}"
    kind = registry.drivers.get(component.scheme)
    if kind is None:
        near = close_names(component.scheme, registry.kvstores.names(), registry.drivers.names())
    elif component.position == 0 and component.scheme in kind.schemes:  # a format, with its place as if it were a store
        near = [f"{component.rest.lstrip('/')}|{component.scheme}:"]
    else:  # a JSON name that differs from the URL scheme
        near = [scheme for scheme in kind.schemes if scheme != component.scheme]
    return f"Did you mean {quote(near[0])}?" if near else ""


def _kind_of(value: Any) -> KvKind:
    name = string(value)
    kind = kv_kind(name)
    if kind is not None:
        return kind
    if registry.drivers.get(name) is not None:
        raise JsonError(f"{quote(name)} is a TensorStore driver, not a KvStore driver")
    near = close_names(name, registry.kvstores.names())
    hint = f"; did you mean {quote(near[0])}?" if near else ""
    raise JsonError(f"{quote(name)} is not a registered KvStore driver{hint}")


def _base_spec(value: Any) -> KvSpecValue:
    try:
        return kv_spec(value if isinstance(value, KvSpecValue | str) else obj(value))
    except JsonError:
        raise
    except StoreError as error:
        raise JsonError(str(error)) from None


def kv_json(json: Mapping[str, Any]) -> KvSpecValue:
    """Return the spec of a JSON object that is shallow and holds nothing but JSON."""
    head = Fields({name: value for name, value in json.items() if name == "driver"})
    kind: KvKind = head.require("driver", _kind_of)
    head.finish()
    fields = Fields({name: value for name, value in json.items() if name != "driver"})
    path = fields.take("path", string, default="")
    context = fields.take("context", ContextSpec)
    resources = {name: fields.take(name, partial(parse_resource, name)) for name in kind.resources if name in fields}
    base = fields.require("base", _base_spec) if kind.role == "adapter" else None
    members = kind.members(fields)
    fields.finish()
    given = {name: value for name, value in resources.items() if not is_default(name, value)}
    return KvSpecValue.of(kind, path, members=members, resources=given, base=base, context=context)


# `KvStore.Spec`, the public class.


class KvSpec(KvSpecValue):
    """A parsed key-value store specification: from JSON, a URL, another spec or a live object.

    >>> KvSpec("memory://a/b").to_json()
    {'driver': 'memory', 'path': 'a/b'}
    """

    __module__ = "fsstore"
    __qualname__ = "KvStore.Spec"
    __slots__ = ("__weakref__",)

    def __new__(cls, json: Any) -> KvSpec:
        return cls.showing(kv_spec(json))

    @classmethod
    def showing(cls, value: KvSpecValue) -> KvSpec:
        """Return a mutable spec with the content of a value, which stays as it is."""
        self = object.__new__(cls)
        for name in KvSpecValue.__slots__:
            setattr(self, name, getattr(value, name))
        if value.base is not None:
            self.base = cls.showing(value.base)
        return self

    def update(
        self, *, unbind_context: bool = False, strip_context: bool = False, context: Context | None = None
    ) -> None:
        """Change how the spec refers to context resources, in place.

        `strip_context` removes all; `unbind_context` writes bound resources as a `context`; `context` binds.
        """
        new = self
        written_down = as_flag("unbind_context", unbind_context)
        if as_flag("strip_context", strip_context):
            new = new.unbound()
        elif written_down:
            new = KvSpec(self.to_json())
        if context is not None:
            new = new.bound(context_of(context))
        for name in KvSpecValue.__slots__:
            setattr(self, name, getattr(new, name))


# Opening: resources are bound, bases opened first.

_LOCAL = frozenset(("file", "memory"))
_KEEP_TO_THEIR_BASE = frozenset(("ocdbt", "zip"))
_NOTHING: Mapping[str, Any] = {}


def as_directory(path: str) -> str:
    """Return a path with a trailing slash, unless it is empty."""
    return path + "/" if path and not path.endswith("/") else path


class OpenKv(NamedTuple):
    """An opened key-value store: the driver, the path, and the spec with all resources bound."""

    driver: KvDriver
    path: str
    spec: KvSpecValue
    base: OpenKv | None = None

    @property
    def prefix(self) -> KvPrefix:
        """The driver and the path."""
        return KvPrefix(self.driver, self.path)

    def effective_spec(self) -> KvSpecValue:
        """Return the spec with the effective members of the drivers."""
        base = None if self.base is None else self.base.effective_spec()
        if self.spec.live is not None:
            return self.spec.replace(_path=self.path)
        return self.spec.replace(members=dict(self.driver.spec()), base=base, _path=self.path)

    def within(self, transaction: Any) -> OpenKv:
        """Return the store inside `transaction` instead of its present one; None is no transaction."""
        driver = self.driver.base if isinstance(self.driver, TransactionalDriver) else self.driver
        if transaction is not None:
            driver = TransactionalDriver(driver, transaction.ledger)
        return self._replace(driver=driver)

    @property
    def meter(self) -> Meter | None:
        """The meter of the store that holds the bytes, or None."""
        root = self.within(None)
        while root.base is not None:
            root = root.base
        counting = able(root.driver, IsMetered)
        return None if counting is None else counting.meter

    @property
    def ledger(self) -> Ledger | None:
        """The ledger of the transaction that the store is bound to, or None."""
        return self.driver.ledger if isinstance(self.driver, TransactionalDriver) else None

    def at(self, path: str) -> OpenKv:
        """Return the same store at another path."""
        return OpenKv(self.driver, path, self.spec, self.base)

    def as_directory(self) -> OpenKv:
        """Return the same store at its path with a trailing slash, unless that is empty."""
        return self.at(as_directory(self.path))


def leads_elsewhere(members: Mapping[str, Any]) -> bool:
    """Return whether the members of a scanned file let it refer to other stores."""
    return any(members.get(name) for name in ("targets", "rewrite", "index"))


def keeps_to_base(kind: str, members: Mapping[str, Any] = _NOTHING, *, scans: bool = False) -> bool:
    """Return whether an adapter reads nothing but its base: over a store that never waits, it never does.

    Files of other formats read only their base, too, but scanning takes a while; they count with `scans`.
    """
    if registry.scanners.get(kind) is not None:
        return scans and not leads_elsewhere(members)
    return kind in _KEEP_TO_THEIR_BASE and "manifest" not in members


def opening_waits(spec: KvSpecValue, *, scans: bool = False) -> bool:
    """Return whether opening a store may have to wait: not for roots of this machine, nor for archives in them.

    With `scans`, neither for scanned files in them, for callers that wait for the scan anyway.  A database in files
    opens in 60 µs here, against 170 µs on the event loop.
    """
    if spec.live is not None:
        return spec.live.features.waits
    if spec.base is None:
        return spec.kind.id not in _LOCAL or engine_of(spec) == "fsspec"
    keeps = keeps_to_base(spec.kind.id, spec.members, scans=scans)
    return not keeps or opening_waits(spec.base, scans=scans)


async def open_kv(spec: KvSpecValue, context: Context) -> OpenKv:
    """Open a key-value store; resources that the spec does not name come from `context`."""
    return await open_bound(spec.bound(context))


async def open_bound(spec: KvSpecValue) -> OpenKv:
    """Open a spec whose resources are bound."""
    if spec.live is not None:
        return OpenKv(_metered(spec.live, spec), spec.path, spec)
    return await _open_over(None if spec.base is None else await open_bound(spec.base), spec)


async def open_adapter(kind: KvKind, base: OpenKv, context: Context) -> OpenKv:
    """Open an adapter without members over an open store."""
    path = kind.base_path(base.path)
    base = base._replace(path=path, spec=base.spec.replace(_path=path))
    return await _open_over(base, KvSpecValue.of(kind, "", base=base.spec).bound(context))


async def _open_over(base: OpenKv | None, spec: KvSpecValue) -> OpenKv:
    """Open a spec whose resources are bound, over its base."""
    if spec.members and lacks(spec.members):
        raise PermissionDeniedError(
            f"The credentials of a store of the kind {quote(spec.kind.id)} stayed in the process that pickled it; open"
            " the store with a context that shares them (ts.Context().share_secrets()), or leave them out of specs and"
            " let each process find its own"
        )
    values = {name: value.value for name, value in spec.resources.items() if isinstance(value, ContextResource)}
    prefix = None if base is None else base.prefix
    opening = KvOpening(spec.members, values, prefix, spec.path, spec.bound_context)
    driver = _metered(await _opened(spec, opening), spec)
    disk, caching = values.get("disk_cache"), able(driver, CachesReads)
    if disk and caching is not None:
        caching.cache_in(disk)
    return OpenKv(driver, spec.path, spec, base)


async def _opened(spec: KvSpecValue, opening: KvOpening) -> KvDriver:
    """Return the driver of a store, over the engine that its spec or the environment selects."""
    engine = engine_of(spec)
    if engine == "fsspec" and spec.kind.id in _LOCAL:
        from fsstore.kvstore.root.open_engine import plain_driver

        return plain_driver(opening, spec.kind.id)
    if engine is not None and engine != spec.members.get("engine"):
        opening = replace(opening, members={**opening.members, "engine": engine})
    return await spec.kind.open(opening)


def _metered(driver: KvDriver, spec: KvSpecValue) -> KvDriver:
    """Return a driver, with a meter of its context if it counts its requests."""
    counting = able(driver, IsMetered)
    if counting is not None and counting.meter is None and spec.bound_context is not None and counts():
        counting.meter = spec.bound_context.meter(driver.id)
    return driver
