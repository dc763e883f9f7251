"""Looking keys up in a version, and listing them.

A batch of look-ups descends the tree together: one call of the base store fetches all nodes of a level.
A listing descends depth first, one window of sibling nodes at a time, so that the window limits its memory, and not the
size of the database.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

from fsstore.errors import DataLossError
from fsstore.kvstore.contract.request import KeyRange
from fsstore.ocdbt.format.data_file import Location
from fsstore.ocdbt.format.interior import Interior
from fsstore.ocdbt.format.leaf import Leaf
from fsstore.ocdbt.format.node import Node
from fsstore.ocdbt.format.version import Version
from fsstore.ocdbt.source import DatabaseSource
from fsstore.ocdbt.tuning import TREE_WINDOW_BYTES, TREE_WINDOW_NODES

__all__ = ["Hits", "Slice", "Step", "check_child", "find", "walk"]


class Hits(NamedTuple):
    """Which entries of a leaf answer which requests: request `indexes[i]` is answered by row `rows[i]`."""

    leaf: Leaf
    indexes: list[int]
    rows: list[int]


class Step(NamedTuple):
    """A node yet to be visited: what its parent says about it.

    `low` is the whole key the parent holds, `prefix` what keys below leave out.
    """

    location: Location
    height: int
    prefix: bytes = b""
    low: bytes = b""


class Slice(NamedTuple):
    """The entries `[start, stop)` of a leaf, whose whole keys are `prefix + key`."""

    leaf: Leaf
    prefix: bytes
    start: int
    stop: int


def check_child(source: DatabaseSource, step: Step, node: Node) -> None:
    """Raise unless `node` is what its parent announced."""
    if node.height != step.height:
        raise DataLossError(
            f"Error decoding {source.describe(step.location)}: Expected height of {step.height}"
            f" but received: {node.height}"
        )
    if step.prefix + node.keys[0] < step.low:
        raise DataLossError(
            f"Error decoding {source.describe(step.location)}: its first key comes before the key its parent has"
        )


async def _visit(source: DatabaseSource, steps: Sequence[Step]) -> list[Node]:
    nodes = await source.nodes([step.location for step in steps])
    for step, node in zip(steps, nodes, strict=True):
        check_child(source, step, node)
    return nodes


async def find(source: DatabaseSource, version: Version, keys: Sequence[bytes]) -> list[Hits]:
    """Return the entries with these keys, by leaf; absent keys appear nowhere."""
    if version.root is None:
        return []
    rest = list(keys)
    level: list[tuple[Step, list[int]]] = [(Step(version.root, version.height), list(range(len(keys))))]
    for _ in range(version.height):
        nodes = await _visit(source, [step for step, _ in level])
        below: list[tuple[Step, list[int]]] = []
        for (step, indexes), node in zip(level, nodes, strict=True):
            if isinstance(node, Interior):
                below += _descend(node, step, indexes, rest)
        level = below
    leaves = await _visit(source, [step for step, _ in level])
    pairs = zip(leaves, level, strict=True)
    return [_match(leaf, indexes, rest) for leaf, (_, indexes) in pairs if isinstance(leaf, Leaf)]


def _descend(
    node: Interior, step: Step, indexes: list[int], rest: list[bytes]
) -> Iterator[tuple[Step, list[int]]]:
    """Divide requests over the children; `rest` loses what the children leave out."""
    groups: dict[int, list[int]] = {}
    keys = node.keys
    cuts = node.omitted.tolist()
    for index in indexes:
        key = rest[index]
        row = bisect_right(keys, key) - 1
        if row >= 0 and key.startswith(keys[row][: cuts[row]]):
            groups.setdefault(row, []).append(index)
            rest[index] = key[cuts[row] :]
    for row, members in groups.items():
        low = step.prefix + keys[row]
        prefix = low[: len(step.prefix) + cuts[row]]
        yield Step(node.location(row), node.height - 1, prefix, low), members


def _match(leaf: Leaf, indexes: list[int], rest: list[bytes]) -> Hits:
    keys = leaf.keys
    count = len(keys)
    found: list[int] = []
    rows: list[int] = []
    for index in indexes:
        key = rest[index]
        row = bisect_left(keys, key)
        if row < count and keys[row] == key:
            found.append(index)
            rows.append(row)
    return Hits(leaf, found, rows)


async def walk(source: DatabaseSource, version: Version, keys: KeyRange) -> AsyncIterator[list[Slice]]:
    """Yield the entries in a range in the order of their keys, some leaves at a time."""
    if version.root is None or keys.empty:
        return
    last: bytes | None = None
    pending: list[Iterator[Step]] = [iter([Step(version.root, version.height)])]
    while pending:
        window = _take_window(pending[-1])
        if not window:
            pending.pop()
            continue
        nodes = await _visit(source, window)
        if window[0].height:
            below = [_children(node, step, keys) for step, node in zip(window, nodes, strict=True)]
            pending.append(chain.from_iterable(below))
            continue
        slices = [_slice(leaf, step, keys) for leaf, step in zip(nodes, window, strict=True)]
        found = [part for part in slices if part.start < part.stop]
        for part in found:
            if last is not None and part.prefix + part.leaf.keys[part.start] <= last:
                raise DataLossError("The leaves of an OCDBT database are not in the order of their keys")
            last = part.prefix + part.leaf.keys[part.stop - 1]
        if found:
            yield found


def _take_window(steps: Iterator[Step]) -> list[Step]:
    """Return the next nodes of one level, not too many."""
    window: list[Step] = []
    total = 0
    for step in steps:
        window.append(step)
        total += step.location.length
        if len(window) == TREE_WINDOW_NODES or total >= TREE_WINDOW_BYTES:
            break
    return window


def _children(node: Node, step: Step, keys: KeyRange) -> Iterator[Step]:
    """Yield the children whose interval meets the range, in order."""
    if not isinstance(node, Interior):
        return
    full = [step.prefix + key for key in node.keys]
    start = max(0, bisect_right(full, keys.inclusive_min) - 1)
    stop = bisect_left(full, keys.exclusive_max) if keys.exclusive_max else len(full)
    omitted = node.omitted.tolist()
    cut = len(step.prefix)
    for row in range(start, stop):
        yield Step(node.location(row), node.height - 1, full[row][: cut + omitted[row]], full[row])


def _slice(node: Node, step: Step, keys: KeyRange) -> Slice:
    if not isinstance(node, Leaf):
        raise DataLossError("expected a leaf")
    count = len(node.keys)
    if keys.unbounded:
        return Slice(node, step.prefix, 0, count)
    full = [step.prefix + key for key in node.keys] if step.prefix else node.keys
    start = bisect_left(full, keys.inclusive_min)
    stop = bisect_left(full, keys.exclusive_max) if keys.exclusive_max else count
    return Slice(node, step.prefix, start, stop)
