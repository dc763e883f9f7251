"""The cache of decoded nodes.

Nodes never change, so a node is known by where it lies and may be kept for ever.  Each database keeps a small number of
bytes of its own, so that consecutive batches and commits do not decode the same nodes again, and offers
everything to the pool of the context too.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Protocol

from fsstore.ocdbt.tuning import NODES_KEPT_BYTES
from fsstore.runtime.cache_pool import CachePool

__all__ = ["NodeCache", "NodePool"]


class NodePool(Protocol):
    """A cache with a budget: the value of the context resource `cache_pool`."""

    def get(self, key: Hashable) -> Any:
        """Return the value kept under `key`, or None."""
        ...

    def put(self, key: Hashable, value: Any, size_bytes: int) -> None:
        """Keep `value`, which takes `size_bytes`, as long as the budget allows."""
        ...


class NodeCache:
    """The cache of one database: its own few megabytes first, the pool behind them."""

    def __init__(self, pool: NodePool | None, owner: Hashable) -> None:
        self._own = CachePool(NODES_KEPT_BYTES)
        self._pool = pool
        self._owner = owner

    def get(self, key: tuple[Hashable, ...]) -> Any:
        """Return a decoded node, or None."""
        found = self._own.get(key)
        if found is None and self._pool is not None:
            found = self._pool.get(("ocdbt", self._owner, *key))
        return found

    def put(self, key: tuple[Hashable, ...], node: Any, size_bytes: int) -> None:
        """Keep a decoded node."""
        self._own.put(key, node, size_bytes)
        if self._pool is not None:
            self._pool.put(("ocdbt", self._owner, *key), node, size_bytes)
