"""One byte budget shared by every cache of a context.

Whoever caches asks for values by a key of its own (a tuple that starts with the owner) and says how many bytes a
value takes.  The least recently used values go first.  A limit of zero keeps nothing.  Values that become stale
together, such as the parts of one shard, are of one group, a tuple that starts with the owner, and forgotten by it.
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

    __slots__ = ("_entries", "_groups", "_lock", "_shared", "_used", "total_bytes_limit")

    def __init__(self, total_bytes_limit: int = 0) -> None:
        self.total_bytes_limit = total_bytes_limit
        self._entries: OrderedDict[Hashable, tuple[Any, int, Hashable]] = OrderedDict()
        self._groups: dict[Hashable, set[Hashable]] = {}
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

    def put(self, key: Hashable, value: Any, size_bytes: int, group: Hashable = None) -> None:
        """Keep `value`, in place of older ones if need be; a value larger than the budget is not kept."""
        if not self.total_bytes_limit:
            return
        with self._lock:
            self._discard(key)
            if size_bytes > self.total_bytes_limit:
                return
            self._entries[key] = (value, size_bytes, group)
            if group is not None:
                self._groups.setdefault(group, set()).add(key)
            self._used += size_bytes
            while self._used > self.total_bytes_limit:
                self._discard(next(iter(self._entries)))

    def discard_group(self, group: Hashable) -> None:
        """Forget the values of a group."""
        if self.total_bytes_limit:
            with self._lock:
                for key in tuple(self._groups.get(group, ())):
                    self._discard(key)

    def discard_groups(self, owner: Hashable) -> None:
        """Forget the values of all groups of an owner."""
        with self._lock:
            groups = [group for group in self._groups if isinstance(group, tuple) and group[0] == owner]
        for group in groups:
            self.discard_group(group)

    def _discard(self, key: Hashable) -> None:
        found = self._entries.pop(key, None)
        if found is None:
            return
        _, size, group = found
        self._used -= size
        if group is not None:
            members = self._groups[group]
            members.discard(key)
            if not members:
                del self._groups[group]

    @property
    def used_bytes(self) -> int:
        """How much of the budget is used."""
        return self._used
