"""`storage_options`: where the options that a caller gives beside a place belong in its spec: to the root.

Whatever stands over the root (archives, databases, reference sets, array drivers) leaves them to it.  Options of
several protocols, `{"s3": {...}}`, are those of the protocol of the root, as in fsspec.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from fsstore.errors import StoreError, UnimplementedError
from fsstore.kvstore.spec.spec_value import KvSpecValue
from fsstore.values.json_value import quote

__all__ = ["given_options", "with_storage_options"]

S = TypeVar("S", bound=KvSpecValue)
_OF_NOBODY = frozenset(("auto_mkdir", "asynchronous", "skip_instance_cache", "use_listings_cache"))
"""Options that mean nothing here: directories are made when they are needed, and there are no listings to keep."""


def given_options(options: Any) -> Mapping[str, Any]:
    """Return the argument `storage_options`, checked; None is no options."""
    if options is None:
        return {}
    if not isinstance(options, Mapping) or not all(isinstance(name, str) for name in options):
        raise TypeError(f"storage_options must be a mapping of names to values, not {type(options).__name__}")
    return options


def with_storage_options(spec: S, options: Any) -> S:
    """Return the spec of a store with options for its root."""
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
        raise StoreError(
            f"The store {quote(kind.id)} has no storage options, but received: {named}"
        ) from None
