"""The changes of a commit: requests of callers, and the changes that result from those whose conditions hold."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import TypeAlias

from fsstore.kvstore.contract.driver import NO_VALUE, UNKNOWN, Buffer
from fsstore.kvstore.contract.request import KeyRange
from fsstore.ocdbt.format.data_file import Location
from fsstore.ocdbt.format.generation import value_generation

__all__ = ["NetChanges", "Request", "Stored", "rows_between"]

Stored: TypeAlias = bytes | Location
"""A value as a leaf holds it."""


@dataclass(slots=True, eq=False)
class Request:
    """The request of one caller to the next commit: ranges deleted first, then writes, which are held by column.

    A value is bytes, or where they lie already, or None, which deletes.  `conditions` are those of the writes, empty if
    there are none.  `generations` answers, one for each write, as `KvDriver.write_many` wants it.  An `atomic` request
    is applied only if every condition holds and every key of `unchanged` has the generation given; it is answered by
    `failed`, the keys whose condition does not hold, and `stale`, a key of `unchanged` that has changed.  `placed`
    remembers values already stored, for further attempts.
    """

    keys: Sequence[bytes] = ()
    values: Sequence[Buffer | Location | None] = ()
    conditions: Sequence[bytes] = ()
    deleted: Sequence[KeyRange] = ()
    unchanged: Mapping[bytes, bytes] = field(default_factory=dict)
    atomic: bool = False
    generations: list[bytes] = field(default_factory=list)
    failed: Sequence[bytes] = ()
    stale: bytes | None = None
    time: float = 0.0
    placed: dict[int, Location] = field(default_factory=dict)

    def conditional_keys(self) -> list[bytes]:
        """Return the keys whose generation decides anything."""
        return [*compress(self.keys, self.conditions), *self.unchanged]  # UNKNOWN is empty

    def forget(self) -> None:
        """Forget what a cancelled commit placed; it may not have been written."""
        self.placed.clear()

    def stored(self, number: int, limit: int, place: Callable[[Buffer], Location]) -> Stored | None:
        """Return what a leaf holds of a value: itself up to `limit` bytes, otherwise where it is or gets its place."""
        value = self.values[number]
        if value is None or isinstance(value, Location):
            return value
        if len(value) <= limit:
            return bytes(value)
        if number not in self.placed:
            self.placed[number] = place(value)
        return self.placed[number]


class NetChanges:
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
            return value_generation(self.points[key])
        if any(keys.contains(key) for keys in self.ranges):
            return NO_VALUE
        return self._current.get(key, NO_VALUE)

    def apply(self, request: Request, limit: int, place: Callable[[Buffer], Location]) -> None:
        """Apply what of `request` its conditions allow, and answer it; values over `limit` bytes are placed."""
        if request.atomic and not self._holds(request):
            return
        for keys in request.deleted:
            self._delete(keys)
        if request.conditions and not request.atomic:
            request.generations = self._apply_each(request, limit, place)
            return
        stored = [
            value
            if isinstance(value, bytes) and len(value) <= limit
            else request.stored(number, limit, place)
            for number, value in enumerate(request.values)
        ]
        self.points.update(zip(request.keys, stored, strict=True))
        if not request.atomic:
            request.generations = list(map(value_generation, stored))

    def _apply_each(self, request: Request, limit: int, place: Callable[[Buffer], Location]) -> list[bytes]:
        """Apply those writes whose condition holds, one after the other."""
        answers: list[bytes] = []
        for number, (key, if_equal) in enumerate(zip(request.keys, request.conditions, strict=True)):
            if if_equal not in (UNKNOWN, self.generation(key)):
                answers.append(UNKNOWN)
                continue
            stored = self.points[key] = request.stored(number, limit, place)
            answers.append(value_generation(stored))
        return answers

    def _holds(self, request: Request) -> bool:
        """Return whether an atomic request may be applied; say what is against it if not."""
        guarded = request.unchanged.items()
        request.stale = next((key for key, wanted in guarded if self.generation(key) != wanted), None)
        wanted = zip(
            compress(request.keys, request.conditions), filter(None, request.conditions), strict=True
        )
        request.failed = [key for key, if_equal in wanted if if_equal != self.generation(key)]
        return request.stale is None and not request.failed

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
