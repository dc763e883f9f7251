"""What a commit changes: requests of callers, and the changes that result from those whose conditions hold."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from fsstore.kvstore.contract import NO_VALUE, UNKNOWN, Buffer
from fsstore.kvstore.key_range import KeyRange
from fsstore.kvstore.ocdbt.data_file import Location
from fsstore.kvstore.ocdbt.generation import value_generation

__all__ = ["Changes", "Mutation", "Request", "Stored"]

Stored: TypeAlias = bytes | Location
"""A value as a leaf holds it."""


class Mutation(NamedTuple):
    """One write: `value` None deletes; `if_equal` UNKNOWN is no condition."""

    key: bytes
    value: Buffer | None
    if_equal: bytes = UNKNOWN


@dataclass(slots=True, eq=False)
class Request:
    """What one caller wants of the next commit: ranges deleted first, then writes.

    An `atomic` request is applied only if every condition holds and every key of `unchanged` has the generation given.
    `generations` answers it: one for each of `writes`, as `KvDriver.write_many` and `write_atomic` want it; `stale` is
    a key of `unchanged` that has changed.  `placed` remembers values already stored, for further attempts; `references`
    are the values of writes that refer to what another key holds already, by number.
    """

    writes: Sequence[Mutation]
    deleted: Sequence[KeyRange] = ()
    unchanged: Mapping[bytes, bytes] = field(default_factory=dict)
    atomic: bool = False
    generations: list[bytes] = field(default_factory=list)
    stale: bytes | None = None
    time: float = 0.0
    placed: dict[int, Location] = field(default_factory=dict)
    references: Mapping[int, Stored] = field(default_factory=dict)

    def conditional_keys(self) -> list[bytes]:
        """Return the keys whose generation decides anything."""
        return [*(write.key for write in self.writes if write.if_equal != UNKNOWN), *self.unchanged]


class Changes:
    """The net effect of the requests of one commit: ranges to delete, then points to set or delete."""

    def __init__(self, current: Mapping[bytes, bytes]) -> None:
        self._current = current
        self.points: dict[bytes, Stored | None] = {}
        self.ranges: list[KeyRange] = []

    @property
    def empty(self) -> bool:
        """Whether nothing is to be done."""
        return not self.points and not self.ranges

    def generation(self, key: bytes) -> bytes:
        """Return the generation a key has after the requests applied so far."""
        if key in self.points:
            value = self.points[key]
            return NO_VALUE if value is None else value_generation(value)
        if any(keys.contains(key) for keys in self.ranges):
            return NO_VALUE
        return self._current.get(key, NO_VALUE)

    def apply(self, request: Request, store: Callable[[Request, int], Stored]) -> None:
        """Apply what of `request` its conditions allow, and answer it; `store` places the value of a write."""
        if request.atomic and not self._holds(request):
            return
        for keys in request.deleted:
            self._delete(keys)
        answers: list[bytes] = []
        points = self.points
        for number, (key, value, if_equal) in enumerate(request.writes):
            if not request.atomic and if_equal != UNKNOWN and self.generation(key) != if_equal:
                answers.append(UNKNOWN)
            elif value is None:
                points[key] = None
                answers.append(NO_VALUE)
            else:
                stored = points[key] = store(request, number)
                answers.append(value_generation(stored))
        request.generations = answers

    def _holds(self, request: Request) -> bool:
        """Return whether an atomic request may be applied; answer it if not."""
        writes = request.writes
        stale = [key for key, want in request.unchanged.items() if self.generation(key) != want]
        request.stale = stale[0] if stale else None
        if stale:
            return False
        have = [UNKNOWN if write.if_equal == UNKNOWN else self.generation(write.key) for write in writes]
        held = [write.if_equal in (UNKNOWN, found) for write, found in zip(writes, have, strict=True)]
        if all(held):
            return True
        # a condition that held answers what is there now; one that did not answers UNKNOWN
        request.generations = [
            (found or NO_VALUE) if ok else UNKNOWN for ok, found in zip(held, have, strict=True)
        ]
        return False

    def _delete(self, keys: KeyRange) -> None:
        if keys.empty:
            return
        for key in [key for key in self.points if keys.contains(key)]:
            del self.points[key]
        self.ranges.append(keys)

    def sorted_points(self) -> list[bytes]:
        """Return the keys of the points in order."""
        return sorted(self.points)

    def merged_ranges(self) -> list[KeyRange]:
        """Return the ranges to delete, disjoint and in order."""
        out: list[KeyRange] = []
        for keys in sorted(self.ranges, key=lambda keys: keys.inclusive_min):
            if out and (not out[-1].exclusive_max or keys.inclusive_min <= out[-1].exclusive_max):
                low, high = out[-1].inclusive_min, out[-1].exclusive_max
                high = max(high, keys.exclusive_max) if high and keys.exclusive_max else b""
                out[-1] = KeyRange(low, high)
            else:
                out.append(keys)
        return out


def rows_between(keys: Sequence[bytes], low: bytes, high: bytes) -> tuple[int, int]:
    """Return the rows of sorted `keys` that lie in `[low, high)`; an empty `high` is no bound."""
    return bisect_left(keys, low), bisect_left(keys, high) if high else len(keys)
