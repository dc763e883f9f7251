"""The key-value store that a place of a dataset means, whatever people name it by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fsstore.errors import StoreError
from fsstore.kvstore.spec.parse import holds_values, kv_spec, place_spec
from fsstore.kvstore.spec.spec_value import KvSpecValue
from fsstore.values.json_value import quote
from fsstore.values.url import decode_path, split_pipeline

__all__ = ["store_spec", "with_url"]

_ARRAY_SCHEMES = ("zarr", "zarr2", "zarr3", "n5", "auto")


def store_spec(source: Any, storage_options: Mapping[str, Any] | None = None) -> KvSpecValue:
    """Return the key-value store of a group; an array scheme at the end of a URL only names the format.

    A dictionary that is neither a spec nor holds values is the JSON of a reference set.  `storage_options` are those
    of the fsspec filesystem at the root of a URL.
    """
    if isinstance(source, str):
        source = with_url(source)
    if isinstance(source, str) and "|" in source:
        last = split_pipeline(source)[-1]
        if last.scheme in _ARRAY_SCHEMES:
            spec = store_spec(source[: source.rindex("|")], storage_options)
            return spec / decode_path(last.rest) if last.rest else spec
    if storage_options:
        return _with_options(source, storage_options)
    if isinstance(source, dict) and source and "driver" not in source and not holds_values(source):
        from fsstore import references

        source = references.store(source)
    return place_spec(source)


def with_url(place: str) -> str:
    """Return a pipeline whose root is a path with a URL in its place; everything else as it is."""
    root, bar, rest = place.partition("|")
    if not bar or "://" in root or "::" in root:
        return place
    return f"{place_spec(root).url}|{rest}"


def _with_options(source: Any, options: Mapping[str, Any]) -> KvSpecValue:
    """Return the spec of a URL whose root is the fsspec filesystem with the options."""
    if not isinstance(source, str) or "://" not in source:
        raise StoreError(
            f"storage_options belong to a URL with a protocol, not to {quote(str(source))[:200]}"
        )
    root, bar, rest = source.partition("|")
    base = kv_spec({"driver": "fsspec", "url": root, "storage_options": dict(options)})
    if not bar:
        return base
    json: Any = base
    for segment in split_pipeline(source)[1:]:
        json = {
            "driver": segment.scheme,
            "base": json,
            **({"path": decode_path(segment.rest)} if segment.rest else {}),
        }
    del rest
    return kv_spec(json)
