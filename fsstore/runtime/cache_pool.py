"""One byte budget shared by every cache of a context.

A cache asks for values by a key of its own (a tuple that starts with the owner) and says how many bytes a
value takes.  The least recently used values go first.  A limit of zero keeps nothing.  Values that become stale
together, such as the parts of one shard, are of one group, a tuple that starts with the owner, and forgotten by it.

A value read before its group was forgotten must not come in later: a reader takes the `epoch` first and puts
what it read with it.  The pool remembers when the latest groups were forgotten; of more than that it takes what was
read since, and nothing older.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from functools import cache
from typing import Any, TypeAlias, TypeVar
from weakref import WeakValueDictionary

from fsstore.runtime import fork
from fsstore.runtime.observer import Meter
from fsstore.runtime.tuning import ENTRIES_KEPT, KEPT_BYTES

T = TypeVar("T")
Group: TypeAlias = tuple[Hashable, Hashable]


class CachePool:
    """A least-recently-used cache of at most `total_bytes_limit` bytes.  Thread-safe.

    `read_ahead` is how many chunks are read for the next ones of reads that follow each other.
    `epoch` counts how often something was forgotten.  `meter` counts hits and misses; a pool without memory has none.
    """

    __slots__ = (
        "_entries",
        "_forgotten",
        "_groups",
        "_lock",
        "_oldest",
        "_shared",
        "_used",
        "epoch",
        "meter",
        "read_ahead",
        "total_bytes_limit",
    )

    def __init__(self, total_bytes_limit: int = 0, read_ahead: int = 0, called: str = "cache_pool") -> None:
        self.total_bytes_limit, self.read_ahead = total_bytes_limit, read_ahead
        self.epoch = 0
        self._entries: OrderedDict[Hashable, tuple[Any, int, Group | None]] = OrderedDict()
        self._groups: dict[Group, set[Hashable]] = {}
        self._forgotten: dict[Hashable, int] = {}  # the epochs of groups and owners
        self._oldest = 0
        self._used = 0
        self._lock = fork.lock()
        self.meter = Meter(called) if total_bytes_limit else None
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
        meter = self.meter
        if meter is None:
            return None
        with self._lock:
            found = self._entries.get(key)
            if found is None:
                meter.misses += 1
                return None
            meter.hits += 1
            self._entries.move_to_end(key)
            return found[0]

    def take(self, key: Hashable) -> Any:
        """Return the cached value, which nobody else gets any more, or None."""
        if not self.total_bytes_limit:
            return None
        with self._lock:
            found = self._entries.get(key)
            self._discard(key)
            return None if found is None else found[0]

    def put(self, key: Hashable, value: Any, size_bytes: int, *, group: Group | None = None, epoch: int = 0) -> None:
        """Keep `value`, in place of older ones if need be; a value larger than the budget is not kept.

        `epoch` is that of the group before the value was read; if the group was forgotten since, it is not kept.
        """
        if not self.total_bytes_limit:
            return
        with self._lock:
            if group is not None and self._forgotten_at(group) > epoch:
                return
            self._discard(key)
            if size_bytes > self.total_bytes_limit:
                return
            self._entries[key] = (value, size_bytes, group)
            if group is not None:
                self._groups.setdefault(group, set()).add(key)
            self._used += size_bytes
            while self._used > self.total_bytes_limit:
                self._discard(next(iter(self._entries)))

    def discard_group(self, group: Group) -> None:
        """Forget the values of a group."""
        if self.total_bytes_limit:
            with self._lock:
                self._forget(group, [group])

    def discard_groups(self, owner: Hashable) -> None:
        """Forget the values of all groups of an owner."""
        if self.total_bytes_limit:
            with self._lock:
                self._forget(owner, [group for group in self._groups if group[0] == owner])

    def _forget(self, what: Hashable, groups: list[Group]) -> None:
        self.epoch += 1
        if len(self._forgotten) >= ENTRIES_KEPT:
            self._forgotten.clear()
            self._oldest = self.epoch
        self._forgotten[what] = self.epoch
        for group in groups:
            for key in tuple(self._groups.get(group, ())):
                self._discard(key)

    def _forgotten_at(self, group: Group) -> int:
        known = self._forgotten
        return max(self._oldest, known.get(group, 0), known.get(group[0], 0))

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


@cache
def descriptions() -> CachePool:
    """Return what this process remembers of local files, whatever the context: their structure, by their generation."""
    return CachePool(KEPT_BYTES, called="descriptions")
