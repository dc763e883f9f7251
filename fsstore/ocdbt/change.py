"""The changes of a commit, and their application to a tree: copy on write, from the leaves up.

`rebuild` fetches the nodes that changes touch, level by level, then makes new ones bottom-up.  Untouched nodes are
shared with the old version; a child whose whole interval is deleted is dropped unread.  Nodes are divided when they
grow but never merged, as TensorStore does.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import TypeAlias

import numpy as np

from fsstore.errors import DataLossError
from fsstore.kvstore.contract.driver import NO_VALUE, UNKNOWN, Buffer
from fsstore.kvstore.contract.request import KeyRange
from fsstore.ocdbt.encoding import DataFile, Location, value_generation
from fsstore.ocdbt.manifest import Version
from fsstore.ocdbt.node import INLINE, Builder, Child, Interior, Leaf, Node, Root
from fsstore.ocdbt.source import DatabaseSource, Step, check_child

# The changes of a commit: the requests of callers, and the changes that remain where conditions hold.

Stored: TypeAlias = bytes | Location
"""A value as a leaf holds it."""


@dataclass(slots=True, eq=False)
class Request:
    """The request of one caller to the next commit: ranges to delete first, then writes, held by column.

    A value is bytes, the location of stored bytes, or None, which deletes.  `conditions` belong to the writes; empty
    means none.  `generations` is the answer, one for each write, as in `KvDriver.write_many`.  An `atomic` request is
    applied only if every condition holds and every key of `unchanged` has the given generation; its answer is `failed`,
    the keys whose condition does not hold, and `stale`, a key of `unchanged` that has changed.  `placed` holds the
    locations of values already stored, for further attempts.
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
        """Return the keys whose generation the request depends on."""
        return [*compress(self.keys, self.conditions), *self.unchanged]  # UNKNOWN is empty

    def forget(self) -> None:
        """Forget the locations that a cancelled commit assigned; their bytes may not have been written."""
        self.placed.clear()

    def stored(self, number: int, limit: int, place: Callable[[Buffer], Location]) -> Stored | None:
        """Return the form of a value in a leaf: the value itself up to `limit` bytes, otherwise its location."""
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
        """Whether there is nothing to do."""
        return not self.points and not self.ranges

    def generation(self, key: bytes) -> bytes:
        """Return the generation a key has after the requests applied so far."""
        if key in self.points:
            return value_generation(self.points[key])
        if any(keys.contains(key) for keys in self.ranges):
            return NO_VALUE
        return self._current.get(key, NO_VALUE)

    def apply(self, request: Request, limit: int, place: Callable[[Buffer], Location]) -> None:
        """Apply the part of `request` that its conditions allow, and answer it; place values over `limit` bytes."""
        if request.atomic and not self._holds(request):
            return
        for keys in request.deleted:
            self._delete(keys)
        if request.conditions and not request.atomic:
            request.generations = self._apply_each(request, limit, place)
            return
        stored = [
            value if isinstance(value, bytes) and len(value) <= limit else request.stored(number, limit, place)
            for number, value in enumerate(request.values)
        ]
        self.points.update(zip(request.keys, stored, strict=True))
        if not request.atomic:
            request.generations = list(map(value_generation, stored))

    def _apply_each(self, request: Request, limit: int, place: Callable[[Buffer], Location]) -> list[bytes]:
        """Apply the writes whose condition holds, in order."""
        answers: list[bytes] = []
        for number, (key, if_equal) in enumerate(zip(request.keys, request.conditions, strict=True)):
            if if_equal not in (UNKNOWN, self.generation(key)):
                answers.append(UNKNOWN)
                continue
            stored = self.points[key] = request.stored(number, limit, place)
            answers.append(value_generation(stored))
        return answers

    def _holds(self, request: Request) -> bool:
        """Return whether an atomic request may be applied; if not, note the keys that prevent it."""
        guarded = request.unchanged.items()
        request.stale = next((key for key, wanted in guarded if self.generation(key) != wanted), None)
        wanted = zip(compress(request.keys, request.conditions), filter(None, request.conditions), strict=True)
        request.failed = [key for key, if_equal in wanted if if_equal != self.generation(key)]
        return request.stale is None and not request.failed

    def _delete(self, keys: KeyRange) -> None:
        if keys.empty:
            return
        for key in [key for key in self.points if keys.contains(key)]:
            del self.points[key]
        self.ranges.append(keys)

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


# Merging changes into a leaf, by column: 10,000 writes into 100,000 entries are a few array operations.


def leaf_of(keys: Sequence[bytes], values: Sequence[Stored]) -> Leaf:
    """Return the leaf with these sorted keys and their values."""
    count = len(keys)
    inline = np.fromiter((isinstance(value, bytes) for value in values), bool, count)
    lengths, ids, offsets = np.empty(count, np.int64), np.full(count, INLINE), np.empty(count, np.int64)
    held = [value for value in values if isinstance(value, bytes)]
    sizes = np.fromiter(map(len, held), np.int64, len(held))
    lengths[inline], offsets[inline] = sizes, np.cumsum(sizes) - sizes
    files: dict[DataFile, int] = {}
    places = [value for value in values if not isinstance(value, bytes)]
    if places:
        ids[~inline] = [files.setdefault(place.file, len(files)) for place in places]
        offsets[~inline], lengths[~inline] = zip(*((place.offset, place.length) for place in places), strict=True)
    return Leaf(list(keys), lengths, ids, offsets, list(files), b"".join(held))


def merge(
    old: Leaf,
    prefix: bytes,
    keys: Sequence[bytes],
    values: Sequence[Stored | None],
    *,
    deleted: Sequence[KeyRange] = (),
) -> Leaf | None:
    """Return the entries after the changes, with whole keys, or None if nothing changes.

    Ranges are `deleted`, then the sorted `keys` get `values`; None deletes.

    Deleting an absent key counts as a change: TensorStore makes a new version then, too.
    """
    full = [prefix + key for key in old.keys] if prefix else old.keys
    keep = np.ones(len(full), bool)
    for span in deleted:
        start, stop = rows_between(full, span.inclusive_min, span.exclusive_max)
        keep[start:stop] = False
    if not keys and keep.all():
        return None
    rows = [bisect_left(full, key) for key in keys]
    replaced = [row for row, key in zip(rows, keys, strict=True) if full[row : row + 1] == [key]]
    keep[np.array(replaced, np.int64)] = False
    kept = np.flatnonzero(keep)
    written = [value is not None for value in values]
    new = leaf_of(list(compress(keys, written)), [value for value in values if value is not None])
    before = np.array(list(compress(rows, written)), np.int64)
    # old row i sorts at 2 i + 1, and rows inserted before it at 2 i; equal places keep their order
    places = np.concatenate((2 * kept + 1, 2 * before))
    order = np.argsort(places, kind="stable")
    return _joined(old, full, kept, new, order)


def _joined(old: Leaf, full: list[bytes], kept: np.ndarray, new: Leaf, order: np.ndarray) -> Leaf:
    """Return the rows `kept` of `old` and all of `new`, in `order`."""
    shift_ids, shift_bytes = len(old.files), len(old.payload)
    inline = new.file_ids == INLINE
    ids = np.where(inline, INLINE, new.file_ids + shift_ids)
    offsets = np.where(inline, new.offsets + shift_bytes, new.offsets)
    keys = np.empty(len(full) + len(new.keys), object)
    keys[:] = full + new.keys
    rows = np.concatenate((kept, np.arange(len(full), len(keys))))[order]
    return Leaf(
        keys[rows].tolist(),
        np.concatenate((old.lengths, new.lengths))[rows],
        np.concatenate((old.file_ids, ids))[rows],
        np.concatenate((old.offsets, offsets))[rows],
        [*old.files, *new.files],
        old.payload + new.payload if new.payload else old.payload,
    )


@dataclass(slots=True, eq=False)
class _Touched:
    """A node that changes, the interval `[low, high)` that it covers, and the changes inside."""

    step: Step
    low: bytes
    high: bytes
    points: Sequence[bytes]
    ranges: Sequence[KeyRange]
    node: Node | None = None
    children: dict[int, _Touched] = field(default_factory=dict)
    dropped: set[int] = field(default_factory=set)


async def rebuild(source: DatabaseSource, version: Version, changes: NetChanges, builder: Builder) -> Root | None:
    """Return the root after `changes`, or None if they change nothing."""
    points, ranges = sorted(changes.points), changes.merged_ranges()
    if version.root is None:
        if not points:
            return None
        pairs = [(key, value) for key in points if (value := changes.points[key]) is not None]
        if not pairs:
            return builder.root([], 0)
        return builder.root(builder.leaves(leaf_of(*zip(*pairs, strict=True)), may_be_root=True), 0)
    if not points and len(ranges) == 1 and ranges[0].unbounded:
        return builder.root([], 0)
    root = _Touched(Step(version.root, version.height), b"", b"", points, ranges)
    level = [root]
    while level:
        nodes = await source.nodes([touched.step.location for touched in level])
        below: list[_Touched] = []
        for touched, node in zip(level, nodes, strict=True):
            check_child(source, touched.step, node)
            touched.node = node
            if isinstance(node, Interior):
                _divide(touched, node)
                below += touched.children.values()
        level = below
    found = _apply(root, changes.points, builder, is_root=True)
    return None if found is None else builder.root(found, version.height)


def _divide(touched: _Touched, node: Interior) -> None:
    """Assign the changes of a node to its children, and find the children that vanish."""
    prefix = touched.step.prefix
    full = [prefix + key for key in node.keys] if prefix else node.keys
    lows, highs = [touched.low, *full[1:]], [*full[1:], touched.high]
    points: dict[int, list[bytes]] = {}
    for key in touched.points:
        points.setdefault(max(0, bisect_right(full, key) - 1), []).append(key)
    ranges: dict[int, list[KeyRange]] = {}
    for keys in touched.ranges:
        start = max(0, bisect_right(full, keys.inclusive_min) - 1)
        stop = bisect_left(full, keys.exclusive_max) if keys.exclusive_max else len(full)
        for row in range(start, max(stop, start + 1)):
            if row not in points and _covers(keys, lows[row], highs[row]):
                touched.dropped.add(row)
            else:
                ranges.setdefault(row, []).append(keys)
    for row in sorted({*points, *ranges} - touched.dropped):
        size = len(prefix) + int(node.omitted[row])
        step = Step(node.location(row), node.height - 1, full[row][:size], full[row])
        touched.children[row] = _Touched(step, lows[row], highs[row], points.get(row, ()), ranges.get(row, ()))


def _covers(keys: KeyRange, low: bytes, high: bytes) -> bool:
    """Return whether a range holds the whole interval `[low, high)`; an empty `high` is no bound."""
    if keys.inclusive_min > low:
        return False
    return not keys.exclusive_max or (bool(high) and high <= keys.exclusive_max)


def _apply(
    touched: _Touched, points: Mapping[bytes, Stored | None], builder: Builder, *, is_root: bool
) -> list[Child] | None:
    """Return the nodes that replace a node, or None if it stays as it is."""
    node = touched.node
    if isinstance(node, Leaf):
        values = [points[key] for key in touched.points]
        leaf = merge(node, touched.step.prefix, touched.points, values, deleted=touched.ranges)
        if leaf is None:
            return None
        return builder.leaves(leaf, may_be_root=is_root) if leaf.keys else []
    if node is None:
        raise DataLossError("a node of the tree was not read")
    replaced: dict[int, list[Child]] = {row: [] for row in touched.dropped}
    for row, child in touched.children.items():
        found = _apply(child, points, builder, is_root=False)
        if found is not None:
            replaced[row] = found
    if not replaced:
        return None
    prefix = touched.step.prefix
    entries: list[Child] = []
    for row in range(len(node.keys)):
        entries += replaced[row] if row in replaced else [node.child(row, prefix)]
    return builder.interiors(entries, node.height, may_be_root=is_root) if entries else []
