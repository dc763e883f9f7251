"""The contents of an in-memory store, which live as long as the context that holds them.

The `memory` key-value store puts its contract over it.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence

from fsstore.runtime import fork

__all__ = ["MemoryStorage"]

_NO_VALUE = b"\x02"  # the generation of a missing key, as the contract of key-value stores has it


class MemoryStorage:
    """The contents of one in-memory store: the value of the context resource `memory_key_value_store`.

    `lock` guards everything.  Values are never changed in place, so readers hold it only to look them up.
    """

    __slots__ = ("_counter", "_moved", "_sorted", "lock", "values")

    def __init__(self) -> None:
        self.values: dict[str, tuple[bytes | memoryview, bytes]] = {}
        self.lock = fork.lock()
        self._counter = itertools.count()
        self._sorted: list[bytes] | None = (
            None  # the keys, as they were before those in `_moved` came or went
        )
        self._moved: set[str] = set()

    def apply(self, changes: Mapping[str, bytes | memoryview | None]) -> None:
        """Store values, and delete keys that have none; Ctrl-C comes before all of it or after all."""
        new = {key: (value, self._next_generation()) for key, value in changes.items() if value is not None}
        gone = [key for key, value in changes.items() if value is None and key in self.values]
        self._note(*gone, *(new.keys() - self.values.keys()))
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
            self._note(key)  # first: Ctrl-C may come between any two steps
        if value is None:
            values.pop(key, None)
            return _NO_VALUE
        generation = self._next_generation()
        values[key] = (value, generation)
        return generation

    def keys_in(self, inclusive_min: bytes, exclusive_max: bytes) -> list[bytes]:
        """Return the keys of a range, sorted as bytes; an empty `exclusive_max` is no bound."""
        ordered = self._ordered()
        low = bisect_left(ordered, inclusive_min)
        high = bisect_left(ordered, exclusive_max) if exclusive_max else len(ordered)
        return ordered[low:high]

    def _note(self, *keys: str) -> None:
        """Remember that keys may come or go."""
        if self._sorted is not None:
            self._moved.update(keys)
            if len(self._moved) * len(self._sorted).bit_length() > len(self._sorted):
                self._sorted = None  # sorting anew takes less than finding the place of each

    def _ordered(self) -> list[bytes]:
        """Return all keys in order: sorted anew, or with the few that came or went since the last time."""
        if self._sorted is None:
            self._sorted = _in_order(self.values)
        elif self._moved:
            ordered = self._sorted.copy()
            for key in self._moved:
                data = key.encode("utf-8", "surrogateescape")
                at = bisect_left(ordered, data)
                is_listed = ordered[at : at + 1] == [data]
                if is_listed and key not in self.values:
                    del ordered[at]
                elif key in self.values and not is_listed:
                    ordered.insert(at, data)
            self._sorted = ordered
        self._moved = set()
        return self._sorted


def _in_order(keys: Iterable[str]) -> list[bytes]:
    """Return keys as bytes, sorted; the order of text is that of its UTF-8, and much faster to make."""
    try:
        return [key.encode() for key in sorted(keys)]
    except UnicodeEncodeError:  # surrogates stand for bytes that come elsewhere
        return sorted(key.encode("utf-8", "surrogateescape") for key in keys)
