"""How a chunked array is used once it is open: caching, missing chunks, concurrency."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fsstore.context.context import ContextResource
from fsstore.runtime.cache_pool import CachePool
from fsstore.schema.open_mode import MEMBERS as RECHECK
from fsstore.schema.open_mode import differs, fresh_after, recheck
from fsstore.values.json_value import Fields, Json, boolean

__all__ = ["ChunkedOptions"]


@dataclass(frozen=True, slots=True)
class ChunkedOptions:
    """The options in effect, the resources behind them, and when the array was opened."""

    recheck_cached_metadata: Any = "open"
    recheck_cached_data: Any = True
    fill_missing_data_reads: bool = True
    store_data_equal_to_fill_value: bool = False
    resources: Mapping[str, ContextResource] = field(default_factory=dict)
    opened: float = 0.0

    @classmethod
    def defaults(cls) -> dict[str, Json]:
        """Return the members with their default values."""
        return {
            "recheck_cached_metadata": "open",
            "recheck_cached_data": True,
            "fill_missing_data_reads": True,
            "store_data_equal_to_fill_value": False,
        }

    @classmethod
    def taken(cls, fields: Fields) -> dict[str, Json]:
        """Take the members from JSON, and return those that differ from the default."""
        out = {}
        for name, usual in cls.defaults().items():
            value = fields.take(name, recheck if name in RECHECK else boolean)
            if value is not None and differs(value, usual):
                out[name] = value
        return out

    @classmethod
    def of(cls, members: Mapping[str, Any], resources: Mapping[str, ContextResource]) -> ChunkedOptions:
        """Return the options that spec members give."""
        given = {name: members[name] for name in cls.defaults() if name in members} if members else {}
        return cls(**given, resources=resources, opened=time.time())

    def to_json(self) -> dict[str, Json]:
        """Return the members that differ from the default."""
        return {
            name: getattr(self, name)
            for name, value in self.defaults().items()
            if differs(getattr(self, name), value)
        }

    def _value(self, name: str) -> Any:
        resource = self.resources.get(name)
        return None if resource is None else resource.value

    @property
    def pool(self) -> CachePool:
        """Where decoded chunks are kept."""
        return self._value("cache_pool") or CachePool()

    @property
    def metadata_pool(self) -> CachePool:
        """Where metadata are shared."""
        return self._value("metadata_cache_pool") or self.pool

    @property
    def threads(self) -> int | None:
        """How many workers decode, or None for one a core."""
        concurrency = self._value("data_copy_concurrency")
        return None if concurrency is None else concurrency.threads

    def metadata_fresh_after(self) -> float:
        """Return from which time on cached metadata need no recheck at open."""
        return fresh_after(self.recheck_cached_metadata, self.opened)

    def data_fresh_after(self) -> float:
        """Return from which time on cached chunks need no recheck."""
        return fresh_after(self.recheck_cached_data, self.opened)
