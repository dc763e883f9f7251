"""Applying changes to a tree: copy on write, from the leaves up.

`rebuild` fetches the nodes that changes touch, level by level, then makes new ones bottom-up.  Untouched nodes are
shared with the old version; a child whose whole interval is deleted is dropped unread.  Nodes are divided when they
grow but never merged, as TensorStore does.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fsstore.errors import DataLossError
from fsstore.kvstore.contract.request import KeyRange
from fsstore.ocdbt.format.interior import Child, Interior
from fsstore.ocdbt.format.leaf import Leaf
from fsstore.ocdbt.format.node import Node
from fsstore.ocdbt.format.version import Version
from fsstore.ocdbt.leaf_merge import leaf_of, merge
from fsstore.ocdbt.mutation import NetChanges, Stored
from fsstore.ocdbt.source import DatabaseSource
from fsstore.ocdbt.split import Builder, Root
from fsstore.ocdbt.tree import Step, check_child

__all__ = ["rebuild"]


@dataclass(slots=True, eq=False)
class _Touched:
    """A node that changes, the interval `[low, high)` it answers for, and what changes in it."""

    step: Step
    low: bytes
    high: bytes
    points: Sequence[bytes]
    ranges: Sequence[KeyRange]
    node: Node | None = None
    children: dict[int, _Touched] = field(default_factory=dict)
    dropped: set[int] = field(default_factory=set)


async def rebuild(
    source: DatabaseSource, version: Version, changes: NetChanges, builder: Builder
) -> Root | None:
    """Return the root after `changes`, or None if they change nothing."""
    points, ranges = changes.sorted_points(), changes.merged_ranges()
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
    """Say which children the changes of a node fall to, and which children vanish."""
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
        touched.children[row] = _Touched(
            step, lows[row], highs[row], points.get(row, ()), ranges.get(row, ())
        )


def _covers(keys: KeyRange, low: bytes, high: bytes) -> bool:
    """Return whether a range holds the whole interval `[low, high)`; an empty `high` is no bound."""
    if keys.inclusive_min > low:
        return False
    return not keys.exclusive_max or (bool(high) and high <= keys.exclusive_max)


def _apply(
    touched: _Touched, points: Mapping[bytes, Stored | None], builder: Builder, *, is_root: bool
) -> list[Child] | None:
    """Return the nodes that take the place of a node, or None if it stays as it is."""
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
