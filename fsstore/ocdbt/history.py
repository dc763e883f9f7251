"""Finding one of many versions: by generation number or by commit time."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Literal, NamedTuple, TypeVar

from fsstore.ocdbt.format.manifest import Manifest
from fsstore.ocdbt.format.version import Version, VersionNodeRef
from fsstore.ocdbt.format.version_tree import node_start
from fsstore.ocdbt.source import DatabaseSource

__all__ = ["Choice", "all_versions", "find_version"]

Record = TypeVar("Record", Version, VersionNodeRef)


class Choice(NamedTuple):
    """Which version is meant: the one of a generation, or the newest committed at a time or before."""

    by: Literal["generation", "time"]
    value: int


def _generation(record: Version | VersionNodeRef) -> int:
    return record.generation


def _time(record: Version | VersionNodeRef) -> int:
    return record.commit_time


async def find_version(source: DatabaseSource, manifest: Manifest, choice: Choice) -> Version | None:
    """Return the chosen version, or None if there is no such version."""
    log2 = manifest.config.version_tree_arity_log2
    versions: Sequence[Version] = manifest.versions
    refs: Sequence[VersionNodeRef] = manifest.refs
    while True:
        version = _pick(versions, choice)
        if version is not None or not refs:
            return version
        ref = _pick_ref(refs, choice, log2)
        if ref is None:
            return None
        node = (await source.version_nodes([ref], log2))[0]
        versions, refs = node.versions, node.children


def _pick(versions: Sequence[Version], choice: Choice) -> Version | None:
    """Return the version if it is one of these."""
    measure: Callable[[Version], int] = _time if choice.by == "time" else _generation
    row = bisect_right(versions, choice.value, key=measure) - 1
    if row < 0 or (choice.by == "generation" and versions[row].generation != choice.value):
        return None
    return versions[row]


def _pick_ref(refs: Sequence[VersionNodeRef], choice: Choice, log2: int) -> VersionNodeRef | None:
    """Return the reference below which the version must be, if it exists."""
    if choice.by == "time":
        row = bisect_right(refs, choice.value, key=_time) - 1
        return refs[row] if row >= 0 else None
    for ref in refs:
        if ref.generation >= choice.value:
            return ref if choice.value >= node_start(ref.generation, ref.height, log2) else None
    return None


async def all_versions(source: DatabaseSource, manifest: Manifest) -> AsyncIterator[Sequence[Version]]:
    """Yield all versions, oldest first, a node at a time; sibling nodes are fetched together."""
    log2 = manifest.config.version_tree_arity_log2
    pending: list[list[VersionNodeRef]] = [[ref] for ref in reversed(manifest.refs)]
    while pending:
        refs = pending[-1][:64]
        del pending[-1][:64]
        if not pending[-1]:
            pending.pop()
        nodes = await source.version_nodes(refs, log2)
        below: list[VersionNodeRef] = []
        for node in nodes:
            if node.versions:
                yield node.versions
            below += node.children
        if below:
            pending.append(below)
    yield manifest.versions
