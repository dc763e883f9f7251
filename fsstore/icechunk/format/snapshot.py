"""Snapshots: the groups and arrays of a hierarchy, their documents, and which manifests hold the chunks of each array.

The description of an array is read when the array is touched; until then a node is its path, its document as a view,
and where the rest lies.  Shapes are only good for refusing keys outside the grid: what an array is, its document says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from fsstore.icechunk.format.envelope import open_envelope
from fsstore.icechunk.format.flatbuffer import FlatTable, Vector, damaged, root_table
from fsstore.icechunk.format.identifier import OBJECT_BYTES, encode_identifier

__all__ = ["NODE_BYTES", "ArrayChunks", "HierarchySnapshot", "ManifestRef", "SnapshotNode", "decode_snapshot"]

NODE_BYTES = 8
_ARRAY, _GROUP = 1, 2


@dataclass(frozen=True, slots=True)
class ManifestRef:
    """A manifest and the box of chunks it covers: where it begins and ends along each axis."""

    id: bytes
    start: tuple[int, ...]
    stop: tuple[int, ...]

    def covers(self, index: tuple[int, ...]) -> bool:
        """Return whether a chunk lies in the box; one of another rank never does."""
        return len(index) == len(self.start) and all(
            low <= at < high for low, at, high in zip(self.start, index, self.stop, strict=True)
        )


@dataclass(frozen=True, slots=True)
class ArrayChunks:
    """How many chunks an array may have along each axis, and the manifests that hold them."""

    counts: tuple[int, ...]
    manifests: tuple[ManifestRef, ...]

    def inside(self, index: tuple[int, ...]) -> bool:
        """Return whether an index is one of the grid; that of an empty axis has one chunk, which is missing."""
        return len(index) == len(self.counts) and all(
            at < max(count, 1) for at, count in zip(index, self.counts, strict=True)
        )

    def manifest(self, index: tuple[int, ...]) -> ManifestRef | None:
        """Return the manifest whose box holds a chunk; boxes do not overlap, and come in any order."""
        return next((each for each in self.manifests if each.covers(index)), None)


@dataclass(frozen=True, slots=True)
class SnapshotNode:
    """A group or an array.  `path` has no slash at its ends."""

    path: str
    id: bytes
    is_array: bool
    document: memoryview
    _table: FlatTable = field(repr=False)

    def chunks(self) -> ArrayChunks:
        """Return where the chunks of an array are found."""
        data = self._table.table(4)
        if data is None:
            raise damaged("An array does not say where its chunks are", self._table.at)
        counts = _counts(data)
        manifests = tuple(_manifest_ref(each) for each in data.need(2, 4).tables())
        return ArrayChunks(counts, manifests)


@dataclass(frozen=True, slots=True)
class HierarchySnapshot:
    """The nodes by path, in the order of their paths."""

    id: bytes
    nodes: Mapping[str, SnapshotNode]
    nbytes: int

    @property
    def name(self) -> str:
        """The name of the object."""
        return encode_identifier(self.id)


def decode_snapshot(data: bytes, expected: bytes) -> HierarchySnapshot:
    """Return the snapshot in an object `snapshots/...`, which must say that it is the one expected."""
    payload = open_envelope(data, "snapshot").payload
    root = root_table(payload)
    found = root.raw(0, OBJECT_BYTES)
    if found != expected:
        other = "none" if found is None else encode_identifier(found)
        raise damaged(f"The object holds another snapshot, {other}", root.at)
    nodes: dict[str, SnapshotNode] = {}
    last = b""
    for table in root.need(2, 4).tables():
        node, raw = _node(table)
        if raw <= last:  # also bounds how often offsets may lead to the same node
            raise damaged("The nodes are not in the order of their paths", table.at)
        last = raw
        nodes[node.path] = node
    return HierarchySnapshot(expected, nodes, len(payload) + 500 * len(nodes))


def _node(table: FlatTable) -> tuple[SnapshotNode, bytes]:
    path, identifier, kind = table.text(1), table.raw(0, NODE_BYTES), table.u8(3)
    if path is None or identifier is None or kind not in (_ARRAY, _GROUP):
        raise damaged("A node has no path, no identifier, or an unknown type", table.at)
    parts = path[1:].split("/") if path != "/" else []
    if path[:1] != "/" or any(part in ("", ".", "..") for part in parts) or "\0" in path:
        raise damaged(f"{path[:100]!r} is no path", table.at)
    document = table.need(2, 1).view()
    return SnapshotNode(path[1:], identifier, kind == _ARRAY, document, table), path.encode()


def _counts(data: FlatTable) -> tuple[int, ...]:
    newer = data.vector(3, 4)
    if newer is not None:
        return tuple(each.u32(1) for each in newer.tables())
    older = data.need(0, 16)
    pairs = np.frombuffer(older.view(), "<u8").reshape(-1, 2).tolist()
    return tuple(-(-length // chunk) if chunk else 0 for length, chunk in pairs)


def _manifest_ref(table: FlatTable) -> ManifestRef:
    identifier = table.raw(0, OBJECT_BYTES)
    extents: Vector = table.need(1, 8)
    if identifier is None:
        raise damaged("A manifest is referred to without its identifier", table.at)
    box = np.frombuffer(extents.view(), "<u4").reshape(-1, 2)
    return ManifestRef(identifier, tuple(box[:, 0].tolist()), tuple(box[:, 1].tolist()))
