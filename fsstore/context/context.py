"""Contexts: where stores find the resources they share.

A `Context` maps keys (`cache_pool`, `cache_pool#name`) to resources, made on first use.  Keys that its spec does not
define are looked up in the parent; a default key that nobody defines gets one instance in the root.  The same context
gives the same resource; equal JSON in two contexts gives two.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, ClassVar

from fsstore.context.resource_kinds import ResourceKind, kind_of, kind_of_member
from fsstore.errors import JsonError, StoreError
from fsstore.runtime import fork
from fsstore.runtime import fork as origin
from fsstore.runtime.cache import CachePool
from fsstore.runtime.observer import Meter
from fsstore.values.json_value import (
    MISSING,
    Json,
    as_flag,
    as_text,
    combined,
    expected,
    json_like,
    pretty,
    quote,
    show,
)

# The work of the stores of a context, as numbers and as a table.


@dataclass(frozen=True, slots=True)
class StoreCounts:
    """The work of one kind of store.  Times are in seconds; those of requests that ran at once are added."""

    reads: int = 0
    bytes_read: int = 0
    writes: int = 0
    bytes_written: int = 0
    deletes: int = 0
    listings: int = 0
    batches: int = 0
    """Reads and writes that were asked for together are one batch."""
    retries: int = 0
    failures: int = 0
    """Batches, and pages of listings, that ended with an error."""
    waiting_s: float = 0.0
    decodes: int = 0
    """Chunks that were decoded."""
    decoding_s: float = 0.0

    @property
    def requests(self) -> int:
        """Reads, writes, deletions and pages of listings, what was tried again, and what failed."""
        return self.reads + self.writes + self.deletes + self.listings + self.retries + self.failures


@dataclass(frozen=True, slots=True)
class ContextStatistics:
    """The work of the stores of a context, by kind of store, and what its cache had."""

    stores: Mapping[str, StoreCounts] = field(default_factory=dict)
    hits: int = 0
    misses: int = 0

    def __getitem__(self, store: str) -> StoreCounts:
        """Return the counts of a kind of store; zeros if there was none."""
        return self.stores.get(store, StoreCounts())

    def __contains__(self, store: object) -> bool:
        """Return whether a kind of store did anything."""
        return store in self.stores

    def __iter__(self) -> Iterator[str]:
        """Yield the kinds of stores that did anything."""
        return iter(self.stores)

    def __len__(self) -> int:
        """Return how many kinds of stores did anything."""
        return len(self.stores)

    @property
    def requests(self) -> int:
        """The requests of all stores."""
        return sum(counts.requests for counts in self.stores.values())

    @property
    def bytes_read(self) -> int:
        """The bytes read from all stores."""
        return sum(counts.bytes_read for counts in self.stores.values())

    def __repr__(self) -> str:
        """Return a table."""
        if not self.stores:
            return "nothing yet"
        rows = [
            (
                store, f"{counts.requests:,}", bytes_text(counts.bytes_read), bytes_text(counts.bytes_written),
                str(counts.retries), str(counts.failures), f"{counts.waiting_s:.3f}", f"{counts.decoding_s:.3f}",
            )
            for store, counts in sorted(self.stores.items())
        ]  # fmt: skip
        text = table(("store", "requests", "read", "written", "retries", "failures", "waiting s", "decoding s"), rows)
        cache = f"\ncache: {self.hits:,} hits, {self.misses:,} misses" if self.hits + self.misses else ""
        return text + cache


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Return rows below their heads; the first column is text, the others numbers."""
    lines = [head, *rows]
    widths = [max(len(line[number]) for line in lines) for number in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if not number else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def bytes_text(count: float) -> str:
    """Return a number of bytes as people read it.

    >>> bytes_text(12), bytes_text(4096), bytes_text(2_500_000)
    ('12 bytes', '4.1 kB', '2.5 MB')
    """
    if count < 1000:
        return f"{count:.0f} bytes"
    size, unit = next(
        (count / size, unit) for size, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")) if count >= size
    )
    return f"{size:.1f} {unit}"


def statistics_of(meters: Iterable[Meter]) -> ContextStatistics:
    """Return what meters have counted; of caches, hits and misses."""
    stores: dict[str, StoreCounts] = {}
    hits = misses = 0
    for meter in meters:
        counts = meter.counts()
        hits += counts.pop("hits")
        misses += counts.pop("misses")
        waiting, decoding = counts.pop("waiting_ns") / 1e9, counts.pop("decoding_ns") / 1e9
        if any(counts.values()):
            stores[meter.store] = StoreCounts(**counts, waiting_s=waiting, decoding_s=decoding)
    return ContextStatistics(stores, hits, misses)


class ContextResource:
    """A resource of a context.  Equal only to itself; `value` is what drivers use."""

    __module__ = "fsstore"
    __qualname__ = "Context.Resource"
    __slots__ = ("__weakref__", "_home", "_lock", "_value", "config", "key", "kind")

    def __init__(self, kind: ResourceKind, config: Json, key: str = "", lock: fork.Lock | None = None) -> None:
        self.kind, self.config, self.key = kind, config, key
        self._value: Any = kind.usual if config is kind.default else MISSING
        self._home: str | None = None
        self._lock = fork.lock() if lock is None else lock

    @property
    def value(self) -> Any:
        """The object behind the resource, made on first use."""
        if self._value is MISSING:
            with self._lock:
                if self._value is MISSING:
                    self._value = self.kind.create(self.config)
        return self._value

    @property
    def made(self) -> Any:
        """The object behind the resource, or None if nothing has used it."""
        return None if self._value is MISSING else self._value

    def to_json(self, include_defaults: bool = False) -> Json:
        """Return the JSON form of the resource."""
        return self.kind.to_json(self.config, include_defaults=as_flag("include_defaults", include_defaults))

    def __repr__(self) -> str:
        """Return `Context.Resource({...})`."""
        return pretty("Context.Resource", self.config)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the configuration: contents of caches stay behind.

        A memory store that has been used is itself again in this process, and known to be elsewhere in any other.
        """
        return _unpickle_resource, (self.kind.name, self.config, self.key, self._home_name())

    def __deepcopy__(self, memo: dict[int, Any]) -> ContextResource:
        """Return a resource of its own, with nothing in it, even in this process."""
        made = ContextResource(self.kind, deepcopy(self.config, memo), self.key)
        if self._value is not MISSING and self._value is self.kind.elsewhere:
            made._home, made._value = self._home, self._value
        return made

    def _home_name(self) -> str | None:
        """Return the name by which this process finds the resource again; None if its value can be made anywhere."""
        if self.kind.elsewhere is None or self._value is MISSING:
            return None
        if self._value is not self.kind.elsewhere and (self._home is None or origin.found(self._home) is not self):
            self._home = origin.keep(self)
        return self._home


def _unpickle_resource(name: str, config: Json, key: str, home: str | None = None) -> ContextResource:
    kind = kind_of(name)
    if kind is None:
        raise StoreError(f"Invalid context resource identifier: {quote(name)}")
    found = None if home is None else origin.found(home)
    if isinstance(found, ContextResource):
        return found
    made = ContextResource(kind, config, key)
    if home is not None:
        made._home, made._value = home, kind.elsewhere
    return made


ResourceRef = str | list[str] | dict[str, Any] | bool | ContextResource
"""A resource as a spec gives it: a key to look up, inline JSON, or the resource itself."""


def parse_resource(name: str, value: Any) -> ResourceRef:
    """Return a spec member that gives a resource, checked.

    A one-element list, as bound specs print, means its element.
    """
    if isinstance(value, ContextResource):
        return value
    if isinstance(value, list) and len(value) == 1 and not isinstance(value[0], list):
        return parse_resource(name, value[0])
    kind = _member_kind(name)
    if value is None:
        return kind.name
    if isinstance(value, str):
        if value.partition("#")[0] != kind.name:
            raise JsonError(f"Invalid spec or reference to {quote(kind.name)} resource: {show(value)}")
        return value
    return kind.parse(value)  # type: ignore[return-value]  # kinds give objects and booleans


def bind_resource(name: str, reference: ResourceRef | None, context: Context) -> ContextResource:
    """Return the resource that a spec member gives in a context; None asks for the default one."""
    kind = _member_kind(name)
    if isinstance(reference, ContextResource):
        return reference
    if reference is None:
        return context.default(kind)
    return context[reference] if isinstance(reference, str) else ContextResource(kind, reference)


def is_default(name: str, reference: ResourceRef) -> bool:
    """Return whether a spec member says what leaving it out says: the default resource of its type."""
    return isinstance(reference, str) and reference == _member_kind(name).name


def _member_kind(name: str) -> ResourceKind:
    kind = kind_of_member(name)
    if kind is None:
        raise JsonError(f"Invalid context resource identifier: {quote(name)}")
    return kind


class ContextSpec:
    """The parsed JSON form of a context: inline configurations, references and null by key."""

    __module__ = "fsstore"
    __qualname__ = "Context.Spec"
    __slots__ = ("__weakref__", "_entries")

    def __init__(self, json: Any) -> None:
        if isinstance(json, ContextSpec):
            self._entries: dict[str, Any] = json._entries
            return
        json = json_like(json)
        if not isinstance(json, Mapping):
            raise expected("object", json)
        entries: dict[str, Any] = {}
        errors: list[JsonError] = []
        for key, value in json.items():
            kind = kind_of(key)
            if kind is None:
                errors.append(JsonError(f"Invalid context resource identifier: {quote(key)}"))
                continue
            try:
                entries[key] = None if value is None else parse_resource(kind.name, value)
            except JsonError as error:
                errors.append(error.within(f"Error parsing object member {quote(key)}"))
        if errors:
            raise combined(errors)
        self._entries = entries

    def to_json(self, include_defaults: bool = False) -> Json:
        """Return the JSON form, with the default members of resources on request."""
        include_defaults = as_flag("include_defaults", include_defaults)
        out: dict[str, Any] = {}
        for key in sorted(self._entries):
            value, kind = self._entries[key], kind_of(key)
            inline = kind is not None and not isinstance(value, str) and value is not None
            out[key] = kind.to_json(value, include_defaults=include_defaults) if kind and inline else value
        return out

    def __repr__(self) -> str:
        """Return `Context.Spec({...})`."""
        return pretty("Context.Spec", self.to_json())

    def __eq__(self, other: object) -> bool:
        """Return whether both say the same."""
        return isinstance(other, ContextSpec) and self._entries == other._entries

    __hash__: ClassVar[None]  # type: ignore[assignment]  # compared by value, holds dicts

    def __contains__(self, key: str) -> bool:
        """Return whether the spec defines `key`."""
        return key in self._entries

    def __getitem__(self, key: str) -> Any:
        """Return the definition of `key`: None, a reference, or a configuration."""
        return self._entries[key]

    def __bool__(self) -> bool:
        """Return whether anything is defined."""
        return bool(self._entries)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the JSON form."""
        return ContextSpec, (self.to_json(),)


class Context:
    """Resources shared by the stores opened with it.

    >>> context = Context({"cache_pool#a": {"total_bytes_limit": 10000000}})
    >>> context["cache_pool#a"].to_json()
    {'total_bytes_limit': 10000000}
    """

    __module__ = "fsstore"
    __slots__ = ("__weakref__", "_lock", "_made", "_meters", "_parent", "_shares", "_spec")

    Resource: ClassVar[type[ContextResource]] = ContextResource
    Spec: ClassVar[type[ContextSpec]] = ContextSpec

    def __init__(self, spec: Any = None, parent: Context | None = None, *, json: Any = None) -> None:
        spec = json if spec is None else spec
        if not isinstance(parent, Context | None):
            raise TypeError(f"parent must be a Context, not {type(parent).__name__}")
        given = spec is None or isinstance(spec, ContextSpec)
        self._spec: ContextSpec | None = spec if given else ContextSpec(spec)
        if parent is None and self._spec is not None:
            parent = Context()
        self._parent = parent
        self._made: dict[str, ContextResource] = {}
        self._shares = False
        self._meters: dict[str, Meter] = {}
        self._lock = fork.lock()

    def share_secrets(self) -> Context:
        """Let pickles of stores opened with this context hold their credentials; return the context.

        Without that, credentials given in specs, options, headers and URLs stay in the process, and a store that needs
        them cannot be opened from a pickle elsewhere.  With it, whoever can read a pickle can read them: use it for
        workers of the same user.

        >>> context = Context().share_secrets()
        >>> context.shares_secrets
        True
        """
        self._shares = True
        return self

    @property
    def shares_secrets(self) -> bool:
        """Whether pickles of stores opened with this context, or with one below it, hold their credentials."""
        return self._shares or (self._parent is not None and self._parent.shares_secrets)

    @property
    def spec(self) -> ContextSpec | None:
        """The spec the context was made from; None for a default context."""
        return self._spec

    @property
    def parent(self) -> Context | None:
        """The context that is asked for what this one does not define."""
        return self._parent

    def meter(self, store: str) -> Meter:
        """Return what counts the operations of a kind of store, opened with this context."""
        return self._meters.get(store) or self._meters.setdefault(store, Meter(store))

    def statistics(self) -> ContextStatistics:
        """Return what the stores opened with this context have done so far: requests, bytes, hits, retries, times.

        The stores of a context made from this one are counted there.

        >>> Context().statistics()
        nothing yet
        """
        pools = {id(each.made): each.made for each in self._made.values() if isinstance(each.made, CachePool)}
        meters = [pool.meter for pool in pools.values() if pool.meter is not None]
        return statistics_of([*self._meters.values(), *meters])

    def __repr__(self) -> str:
        """Return the spec, and what was done with the context."""
        spec = "" if self._spec is None else repr(self._spec.to_json())
        done = self.statistics()
        return f"Context({spec})" + (f"\n{done!r}" if done.stores else "")

    def __getitem__(self, key: str) -> ContextResource:
        """Return the resource of a key, made on first use.

        Raises `StoreError` for an unknown kind, an undefined name, or references that go in a circle.
        """
        kind = kind_of(as_text("the identifier of a resource", key))
        if kind is None:
            raise StoreError(f"Invalid context resource identifier: {quote(key)}")
        return self._find(key, kind, ())

    def default(self, kind: ResourceKind) -> ContextResource:
        """Return the resource of a kind that specs mean where they name none."""
        key = kind.name
        made = self._made.get(key)
        if made is not None:
            return made
        if self._spec is not None or self._parent is not None:
            return self._find(key, kind, ())
        return self._made.setdefault(key, ContextResource(kind, kind.default, key, self._lock))

    def _find(self, key: str, kind: ResourceKind, path: tuple[tuple[int, str], ...]) -> ContextResource:
        if self._spec is None and self._parent is None and key == kind.name:  # nothing to look up, mostly
            return self.default(kind)
        if (id(self), key) in path:
            chain = " -> ".join(quote(step) for _, step in (*path, (id(self), key)))
            raise StoreError(f"Context resource reference cycle: {chain}")
        path = (*path, (id(self), key))
        with self._lock:
            made = self._made.get(key)
            if made is None:
                made = self._make(key, kind, path)
                self._made[key] = made
        return made

    def _make(self, key: str, kind: ResourceKind, path: tuple[tuple[int, str], ...]) -> ContextResource:
        defined = self._spec is not None and key in self._spec
        value = self._spec[key] if defined and self._spec is not None else None
        if isinstance(value, ContextResource):
            return value
        if isinstance(value, str):
            return self._find(value, kind, path)
        if value is not None:
            return ContextResource(kind, value, key)
        if self._parent is not None and (not defined or self._parent._defines(key)):
            return self._parent._find(key, kind, path)
        if not defined and "#" in key:
            raise StoreError(f"ContextResource not defined: {quote(key)}")
        if not defined and self._parent is not None:
            return self._parent._find(key, kind, path)
        return ContextResource(kind, kind.default, key)

    def _defines(self, key: str) -> bool:
        if "#" not in key:
            return True
        if self._spec is not None and key in self._spec:
            return True
        return self._parent is not None and self._parent._defines(key)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle spec, parent and the resources made; resources pickled together stay shared."""
        return _unpickle_context, (self._spec, self._parent, dict(self._made), self._shares)


def context_of(context: Any) -> Context:
    """Return an argument as a context: one, what describes one, or None for a new one."""
    if isinstance(context, Context):
        return context
    if context is not None and not isinstance(context, ContextSpec | Mapping):
        raise TypeError(f"context must be a Context or a description of one, not {type(context).__name__}")
    return Context(context)


def caching(context: Any, place: Any) -> Context:
    """Return a context whose far stores are cached on disk at a place: a path, or one with `total_bytes_limit`."""
    if place is None:
        return context_of(context)
    cache = dict(place) if isinstance(place, Mapping) else {"path": os.fspath(place)}
    return Context({"disk_cache": cache}, context_of(context))


def _unpickle_context(
    spec: ContextSpec | None, parent: Context | None, made: dict[str, ContextResource], shares: bool
) -> Context:
    context = Context(spec, parent)
    context._made.update(made)
    context._shares = shares
    return context


# How the resources of a store are written down, so that opening the JSON again shares what was shared.


class ResourceNames:
    """Names for the resources of one printed spec, and the `context` member that defines them.

    A resource keeps its key; several with one key are numbered in the order given.  `listed` writes every reference
    as a list of one, which tells a bound resource from a name still to be looked up.
    """

    def __init__(self, resources: Iterable[ContextResource], *, listed: bool = False) -> None:
        self._listed = listed
        by_key: dict[str, list[ContextResource]] = {}
        for resource in resources:
            same = by_key.setdefault(resource.key, [])
            if resource.key and not any(other is resource for other in same):
                same.append(resource)
        self._names: dict[int, str] = {}
        self.context: dict[str, Json] = {}
        taken = set(by_key)
        for key, same in by_key.items():
            for resource in same:
                name = key if len(same) == 1 else _numbered(resource.kind.name, taken)
                self._names[id(resource)] = name
                self.context[name] = resource.to_json()

    def member(self, resource: ContextResource) -> ResourceRef | None:
        """Return the spec member that refers to `resource`, or None if the default reference does."""
        name = self._names.get(id(resource))
        if name is None:
            plain: Any = resource.to_json()
            return [plain] if self._listed else plain
        if self._listed:
            return [name]
        return None if name == resource.kind.name else name


def _numbered(kind: str, taken: set[str]) -> str:
    number = 0
    while f"{kind}#{number}" in taken:
        number += 1
    taken.add(f"{kind}#{number}")
    return f"{kind}#{number}"
