"""The version tree: nodes that hold older versions, and the arithmetic that says where a generation belongs.

Generations are grouped in blocks of A (the arity).  The manifest holds the newest block; below it hangs at most one
node of each height, and a node of height h covers generations k*A**(h+1)+1 to (k+1)*A**(h+1).  So a database of n
versions has log_A(n) references in its manifest, and a commit rewrites a node only once in A commits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from fsstore.ocdbt.format.data_file import DataFile, Location, decode_files, encode_files, sorted_files
from fsstore.ocdbt.format.envelope import VERSION_NODE, seal, unseal
from fsstore.ocdbt.format.varint import Cursor
from fsstore.ocdbt.format.version import (
    Version,
    VersionNodeRef,
    encode_refs,
    encode_versions,
    take_refs,
    take_versions,
)

__all__ = [
    "VersionNode",
    "advance",
    "check_refs",
    "decode_version_node",
    "encode_version_node",
    "files_of",
    "needed",
    "node_start",
    "ranges_below",
]


@dataclass(frozen=True, slots=True)
class VersionNode:
    """A node: `versions` if its height is 0, `children` otherwise."""

    arity_log2: int
    height: int
    versions: tuple[Version, ...] = ()
    children: tuple[VersionNodeRef, ...] = ()

    @property
    def newest(self) -> int:
        """The newest generation in or below the node."""
        return self.versions[-1].generation if self.versions else self.children[-1].generation

    def reference(self, location: Location) -> VersionNodeRef:
        """Return the reference to the node stored at `location`."""
        if self.versions:
            count, time = len(self.versions), self.versions[0].commit_time
        else:
            count = sum(child.num_generations for child in self.children)
            time = self.children[0].commit_time
        return VersionNodeRef(self.newest, location, count, time, self.height)


def node_start(generation: int, height: int, arity_log2: int) -> int:
    """Return the first generation that the node of that height which covers `generation` covers."""
    shift = arity_log2 * (height + 1)
    return ((generation - 1) >> shift << shift) + 1


def ranges_below(newest: int, arity_log2: int) -> Iterator[tuple[int, int, int]]:
    """Yield (height, first, last) of the references a manifest may have, height 1 first."""
    last = (newest - 1) >> arity_log2 << arity_log2
    height = 1
    while last > 0:
        first = node_start(last, height, arity_log2)
        yield height, first, last
        last = first - 1
        height += 1


def files_of(versions: tuple[Version, ...], refs: tuple[VersionNodeRef, ...]) -> list[DataFile]:
    """Return the data files that records mention; a missing root mentions the empty one."""
    roots = [version.root.file if version.root else DataFile(b"", b"") for version in versions]
    return roots + [ref.location.file for ref in refs]


def encode_version_node(node: VersionNode, level: int | None) -> bytes:
    """Return the stored form."""
    table, index = sorted_files(files_of(node.versions, node.children))
    head = bytes((node.arity_log2, node.height)) + encode_files(table)
    if node.height == 0:
        return seal(VERSION_NODE, head + encode_versions(node.versions, index), level)
    return seal(VERSION_NODE, head + encode_refs(node.children, index, heights=False), level)


def decode_version_node(data: bytes, context: bytes, what: str) -> VersionNode:
    """Return the node stored as `data`, read in the context of a base path."""
    cursor = Cursor(unseal(VERSION_NODE, data, what), what)
    arity_log2, height = cursor.take_u8(), cursor.take_u8()
    if not 1 <= arity_log2 <= 16 or height > 63 // arity_log2 - 1:
        raise cursor.corrupt(f"A node of arity 2**{arity_log2} and height {height} is not possible")
    files = decode_files(cursor, context)
    if height == 0:
        node = VersionNode(arity_log2, 0, tuple(take_versions(cursor, files, arity_log2)))
    else:
        children = take_refs(cursor, files, 1 << arity_log2, height - 1)
        if not children:
            raise cursor.corrupt("A version tree node must have children")
        check_refs(cursor, children, arity_log2)
        if node_start(children[0].generation, height, arity_log2) != node_start(
            children[-1].generation, height, arity_log2
        ):
            raise cursor.corrupt("The children do not belong to one node")
        for child in children:
            if child.generation % (1 << arity_log2 * height):
                raise cursor.corrupt(f"The child of generation {child.generation} is not full")
        node = VersionNode(arity_log2, height, (), tuple(children))
    cursor.finish()
    return node


def check_refs(cursor: Cursor, refs: list[VersionNodeRef], arity_log2: int) -> None:
    """Raise unless each reference can hold as many versions as it says."""
    for ref in refs:
        if ref.num_generations > ref.generation - node_start(ref.generation, ref.height, arity_log2) + 1:
            raise cursor.corrupt(f"A node cannot hold {ref.num_generations} versions up to {ref.generation}")


def advance(
    versions: tuple[Version, ...],
    refs: tuple[VersionNodeRef, ...],
    new: Version,
    arity_log2: int,
    store: Callable[[VersionNode], VersionNodeRef],
    children_of: Callable[[VersionNodeRef], tuple[VersionNodeRef, ...]],
) -> tuple[tuple[Version, ...], tuple[VersionNodeRef, ...]]:
    """Return the inline versions and references of the manifest that follows, `new` being its newest version.

    `store` puts a node among the data to be written; `children_of` gives the children of a referenced node,
    which `needed` has named before.
    """
    if (new.generation - 1) >> arity_log2 == (versions[-1].generation - 1) >> arity_log2:
        return (*versions, new), refs
    by_height = {ref.height: ref for ref in refs}
    carry: VersionNodeRef | None = store(VersionNode(arity_log2, 0, versions))
    kept: list[VersionNodeRef] = []
    for height, first, last in ranges_below(new.generation, arity_log2):
        old = by_height.get(height)
        inside = old is not None and first <= old.generation <= last
        if carry is not None and first <= carry.generation <= last:
            siblings = children_of(old) if old is not None and inside else ()
            kept.append(store(VersionNode(arity_log2, height, (), (*siblings, carry))))
        elif old is not None and inside:
            kept.append(old)
        carry = old
    return (new,), tuple(reversed(kept))


def needed(
    newest: int, refs: tuple[VersionNodeRef, ...], generation: int, arity_log2: int
) -> list[VersionNodeRef]:
    """Return the references whose children `advance` will ask for when `generation` follows `newest`."""
    if (generation - 1) >> arity_log2 == (newest - 1) >> arity_log2:
        return []
    by_height = {ref.height: ref for ref in refs}
    carried = newest
    out: list[VersionNodeRef] = []
    for height, first, last in ranges_below(generation, arity_log2):
        old = by_height.get(height)
        if old is not None and first <= carried <= last and first <= old.generation <= last:
            out.append(old)
        carried = 0 if old is None else old.generation
    return out
