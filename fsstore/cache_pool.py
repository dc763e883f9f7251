"""One byte budget shared by every cache of a context.

Whoever caches asks for values by a key of its own (a tuple that starts with the owner) and says how many bytes a
value takes.  The least recently used values go first.  A limit of zero keeps nothing.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Any, TypeVar
from weakref import WeakValueDictionary

__all__ = ["CachePool"]

T = TypeVar("T")


class CachePool:
    """A least-recently-used cache of at most `total_bytes_limit` bytes.  Thread-safe."""

    __slots__ = ("_entries", "_lock", "_shared", "_used", "total_bytes_limit")

    def __init__(self, total_bytes_limit: int = 0) -> None:
        self.total_bytes_limit = total_bytes_limit
        self._entries: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._used = 0
        self._lock = threading.Lock()
        self._shared: WeakValueDictionary[Hashable, Any] = WeakValueDictionary()

    def share(self, key: Hashable, made: T) -> T:
        """Return the object shared under `key`: `made`, unless another one is alive."""
        with self._lock:
            found: T = self._shared.setdefault(key, made)
            return found

    def shared(self, key: Hashable) -> Any:
        """Return the object shared under `key`, or None if none is alive."""
        with self._lock:
            return self._shared.get(key)

    def get(self, key: Hashable) -> Any:
        """Return the cached value and mark it as used, or return None."""
        if not self.total_bytes_limit:
            return None
        with self._lock:
            found = self._entries.get(key)
            if found is None:
                return None
            self._entries.move_to_end(key)
            return found[0]

    def put(self, key: Hashable, value: Any, size_bytes: int) -> None:
        """Keep `value`, in place of older ones if need be; a value larger than the budget is not kept."""
        if not self.total_bytes_limit:
            return
        with self._lock:
            self._discard(key)
            if size_bytes > self.total_bytes_limit:
                return
            self._entries[key] = (value, size_bytes)
            self._used += size_bytes
            while self._used > self.total_bytes_limit:
                _, (_, size) = self._entries.popitem(last=False)
                self._used -= size

    def discard(self, key: Hashable) -> None:
        """Forget a value."""
        if self.total_bytes_limit:
            with self._lock:
                self._discard(key)

    def discard_all(self, owner: Hashable) -> None:
        """Forget the values whose key starts with `owner`."""
        with self._lock:
            for key in [key for key in self._entries if isinstance(key, tuple) and key[0] == owner]:
                self._discard(key)

    def _discard(self, key: Hashable) -> None:
        found = self._entries.pop(key, None)
        if found is not None:
            self._used -= found[1]

    @property
    def used_bytes(self) -> int:
        """How much of the budget is used."""
        return self._used
