"""The key-value store that a place of a dataset means, whatever people name it by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fsstore.kvstore.spec.parse import holds_values, kv_spec, place_spec, with_root
from fsstore.kvstore.spec.spec_value import KvSpecValue, with_storage_options
from fsstore.reference.mapping import References
from fsstore.values.url import decode_path, split_pipeline

__all__ = ["allowing", "store_spec"]

_ARRAY_SCHEMES = ("zarr", "zarr2", "zarr3", "n5", "auto")


def store_spec(source: Any, storage_options: Mapping[str, Any] | None = None) -> KvSpecValue:
    """Return the key-value store of a group; an array scheme at the end of a URL only names the format.

    A dictionary that is neither a spec nor holds values is the JSON of a reference set.  `storage_options` are those
    of the root.
    """
    if isinstance(source, str):
        source = with_root(source)
    if isinstance(source, str) and "|" in source:
        last = split_pipeline(source)[-1]
        if last.scheme in _ARRAY_SCHEMES:
            spec = store_spec(source[: source.rindex("|")], storage_options)
            return spec / decode_path(last.rest) if last.rest else spec
    if isinstance(source, References):
        from fsstore import references

        source = references.store(source)
    source = _shown(source)
    if isinstance(source, dict) and source and "driver" not in source and not holds_values(source):
        from fsstore import references

        source = references.store(source)
    return with_storage_options(place_spec(source), storage_options)


def _shown(source: Any) -> Any:
    """Return the store that shows a dataset of many files, and anything else as it is."""
    if isinstance(source, str | dict):
        return source
    from fsstore.combine.combined import Combined

    return source.store if isinstance(source, Combined) else source


def allowing(source: KvSpecValue, prefixes: Sequence[str]) -> KvSpecValue:
    """Return the place of a reference set such that nothing is read but what stands below prefixes of URLs.

    A source that is not said to be anything else is taken for one.
    """
    named = kv_spec({"driver": "reference", "base": {"driver": "memory"}, "allow": [*prefixes]})
    at: KvSpecValue | None = source
    above = []
    while at is not None and at.kind.id != named.kind.id:
        above.append(at)
        at = at.base
    if at is None:
        return named.replace(base=source)
    found = at.replace(members={**at.members, **named.members})
    for each in reversed(above):
        found = each.replace(base=found)
    return found
