"""The type of whatever names a place."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from fsstore.kvstore.spec.spec_value import KvSpecValue, Specified

__all__ = ["LiveFileSystem", "PlaceLike"]


class LiveFileSystem(Protocol):
    """A filesystem object of fsspec, as far as its type tells it from other objects."""

    def cat_file(self, path: Any, start: Any = None, end: Any = None, **kwargs: Any) -> Any:
        """Return the bytes of a file."""
        ...


PlaceLike: TypeAlias = (
    str | Path | Mapping[str, Any] | MutableMapping[str, bytes] | KvSpecValue | Specified | LiveFileSystem
)
"""A URL, a path, the JSON of a spec, a spec, an open store, or a live filesystem or mapping."""
