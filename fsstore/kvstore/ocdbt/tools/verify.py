"""Checking a version: every node's checksum and place in the tree, the sums, and that every value is there.

Problems are collected, not raised, so that one damaged node does not hide the next.  Values have no checksum; what is
checked is that each data file reaches as far as the values in it, with one small read a file.  A node that several
parents share is visited once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np

from fsstore.errors import DataLossError, StoreError
from fsstore.kvstore.ocdbt.format.data_file import DataFile, Location
from fsstore.kvstore.ocdbt.format.interior import Interior
from fsstore.kvstore.ocdbt.format.leaf import INLINE, Leaf
from fsstore.kvstore.ocdbt.format.node import Node
from fsstore.kvstore.ocdbt.format.varint import U64
from fsstore.kvstore.ocdbt.format.version import EMPTY, TreeStatistics, Version
from fsstore.kvstore.ocdbt.source import DatabaseSource, read_spans
from fsstore.kvstore.ocdbt.tree import Step, check_child
from fsstore.kvstore.tuning import VERIFIED_AT_ONCE
from fsstore.runtime.together import outcomes

__all__ = ["VerifyReport", "verify"]

_PROBLEMS = 1000  # that are reported


@dataclass(slots=True)
class VerifyReport:
    """The result: what was checked and what is wrong; `ok` if nothing is.  At most a thousand problems are listed."""

    generation: int
    num_keys: int = 0
    num_nodes: int = 0
    num_files: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether no problem was found."""
        return not self.problems

    def add(self, problem: str) -> None:
        """Remember a problem."""
        if len(self.problems) < _PROBLEMS:
            self.problems.append(problem)


class _Expected(NamedTuple):
    """A node to visit: where, below which key it ends (None: unbounded), and the sums its parent states."""

    step: Step
    high: bytes | None
    statistics: TreeStatistics


async def verify(source: DatabaseSource, version: Version) -> VerifyReport:
    """Walk the whole tree of a version and report."""
    report = VerifyReport(version.generation, num_keys=version.statistics.num_keys)
    if version.root is None:
        if version.statistics != EMPTY:
            report.add("an empty version has statistics")
        return report
    ends: dict[DataFile, int] = {}
    seen: set[tuple[Location, int]] = {(version.root, version.height)}
    pending = [_Expected(Step(version.root, version.height), None, version.statistics)]
    while pending:
        window = pending[-VERIFIED_AT_ONCE:]
        del pending[-VERIFIED_AT_ONCE:]
        for expected, node in zip(window, await _fetch(source, window, report), strict=True):
            if node is None:
                continue
            report.num_nodes += 1
            _check(source, expected, node, report)
            if isinstance(node, Interior):
                pending += _below(expected, node, seen)
            else:
                _note_ends(node, ends)
    await _check_files(source, ends, report)
    return report


async def _fetch(
    source: DatabaseSource, window: Sequence[_Expected], report: VerifyReport
) -> list[Node | None]:
    """Return the nodes; those that cannot be read are reported."""
    places = [expected.step.location for expected in window]
    found = await outcomes(source.nodes, places, StoreError)
    for error in found:
        if isinstance(error, BaseException):
            report.add(str(error))
    return [None if isinstance(node, BaseException) else node for node in found]


def _check(source: DatabaseSource, expected: _Expected, node: Node, report: VerifyReport) -> None:
    step, high, statistics = expected
    place = source.describe(step.location)
    try:
        check_child(source, step, node)
    except DataLossError as error:
        report.add(str(error))
    if high is not None and step.prefix + node.keys[-1] >= high:
        report.add(f"{place}: its last key belongs to the next node")
    actual = _statistics(node, step.location.length)
    if actual != statistics:
        report.add(f"{place}: holds {tuple(actual)} keys and bytes, but its parent says {tuple(statistics)}")


def _statistics(node: Node, node_bytes: int) -> TreeStatistics:
    if isinstance(node, Leaf):
        return node.statistics(node_bytes)
    keys, tree, values = (sum(column.tolist()) for column in node.sums)
    return TreeStatistics(min(keys, U64), min(tree + node_bytes, U64), min(values, U64))


def _below(expected: _Expected, node: Interior, seen: set[tuple[Location, int]]) -> list[_Expected]:
    """Return the children not yet visited."""
    prefix = expected.step.prefix
    out: list[_Expected] = []
    for row in range(len(node.keys)):
        child = node.child(row, prefix)
        if (child.location, node.height - 1) in seen:
            continue
        seen.add((child.location, node.height - 1))
        high = prefix + node.keys[row + 1] if row + 1 < len(node.keys) else expected.high
        step = Step(child.location, node.height - 1, child.key[: child.prefix_length], child.key)
        out.append(_Expected(step, high, child.statistics))
    return out


def _note_ends(leaf: Node, ends: dict[DataFile, int]) -> None:
    """Remember how far each data file must reach."""
    if not isinstance(leaf, Leaf):
        return
    stored = leaf.file_ids != INLINE
    stops = np.zeros(len(leaf.files), np.int64)
    np.maximum.at(stops, leaf.file_ids[stored], (leaf.offsets + leaf.lengths)[stored])
    for number in np.unique(leaf.file_ids[stored]).tolist():
        file = leaf.files[number]
        ends[file] = max(ends.get(file, 0), int(stops[number]))


async def _check_files(source: DatabaseSource, ends: dict[DataFile, int], report: VerifyReport) -> None:
    """Read the last byte that a value needs of every data file."""
    report.num_files = len(ends)
    places = [Location(file, end - 1, 1) for file, end in ends.items() if end]
    for start in range(0, len(places), VERIFIED_AT_ONCE):
        window = places[start : start + VERIFIED_AT_ONCE]
        for error in await outcomes(partial(read_spans, source.base), window, StoreError):
            if isinstance(error, BaseException):
                report.add(str(error))
