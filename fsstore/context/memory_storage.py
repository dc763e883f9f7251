"""The contents of an in-memory store, which live as long as the context that holds them.

The `memory` key-value store puts its contract over it.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Mapping, Sequence

from fsstore.runtime import fork

__all__ = ["MemoryStorage"]

_NO_VALUE = b"\x02"  # the generation of a missing key, as the contract of key-value stores has it


class MemoryStorage:
    """The contents of one in-memory store: the value of the context resource `memory_key_value_store`.

    `lock` guards everything.  Values are never changed in place, so readers hold it only to look them up.
    """

    __slots__ = ("_counter", "_sorted", "lock", "values")

    def __init__(self) -> None:
        self.values: dict[str, tuple[bytes | memoryview, bytes]] = {}
        self.lock = fork.lock()
        self._counter = itertools.count()
        self._sorted: list[bytes] | None = None

    def apply(self, changes: Mapping[str, bytes | memoryview | None]) -> None:
        """Store values, and delete keys that have none; Ctrl-C comes before all of it or after all."""
        new = {key: (value, self._next_generation()) for key, value in changes.items() if value is not None}
        gone = [key for key, value in changes.items() if value is None and key in self.values]
        if gone or not new.keys() <= self.values.keys():
            self._sorted = None
        try:
            self._replace(new, gone)
        except BaseException:
            self._replace(new, gone)
            raise

    def _replace(self, new: Mapping[str, tuple[bytes | memoryview, bytes]], gone: Sequence[str]) -> None:
        self.values.update(new)
        for key in gone:
            self.values.pop(key, None)

    def _next_generation(self) -> bytes:
        return b"\0" + next(self._counter).to_bytes(8, "little")

    def generation(self, key: str) -> bytes:
        """Return the current generation of a key."""
        found = self.values.get(key)
        return _NO_VALUE if found is None else found[1]

    def put(self, key: str, value: bytes | memoryview | None) -> bytes:
        """Store a value, or delete the key; return the new generation."""
        values = self.values
        if (key in values) == (value is None):
            self._sorted = None  # first: Ctrl-C may come between any two steps
        if value is None:
            values.pop(key, None)
            return _NO_VALUE
        generation = self._next_generation()
        values[key] = (value, generation)
        return generation

    def keys_in(self, inclusive_min: bytes, exclusive_max: bytes) -> list[bytes]:
        """Return the keys of a range, sorted as bytes; an empty `exclusive_max` is no bound."""
        if self._sorted is None:
            self._sorted = sorted(key.encode("utf-8", "surrogateescape") for key in self.values)
        ordered = self._sorted
        low = bisect_left(ordered, inclusive_min)
        high = bisect_left(ordered, exclusive_max) if exclusive_max else len(ordered)
        return ordered[low:high]
