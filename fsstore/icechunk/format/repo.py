"""The root document of format version 2: branches, tags, all snapshots, and the configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fsstore.icechunk.format.config import containers_of_flexbuffer
from fsstore.icechunk.format.envelope import open_envelope
from fsstore.icechunk.format.flatbuffer import FlatTable, Vector, damaged, root_table
from fsstore.icechunk.format.identifier import OBJECT_BYTES

__all__ = ["Repo", "decode_repo"]


@dataclass(frozen=True, slots=True)
class Repo:
    """Identifiers of snapshots by the names of branches and tags, and URL prefixes by the names of containers."""

    branches: Mapping[str, bytes]
    tags: Mapping[str, bytes]
    containers: Mapping[str, str]


def decode_repo(data: bytes) -> Repo:
    """Return what an object `repo` says."""
    root = root_table(open_envelope(data, "repository").payload)
    snapshots = root.need(4, 4)
    config = root.vector(9, 1)
    containers = {} if config is None else containers_of_flexbuffer(bytes(config.view()))
    return Repo(_refs(root, 2, snapshots), _refs(root, 1, snapshots), containers)


def _refs(root: FlatTable, field: int, snapshots: Vector) -> dict[str, bytes]:
    out: dict[str, bytes] = {}
    for ref in root.need(field, 4).tables():
        name, number = ref.text(0), ref.u32(1)
        if name is None or number >= snapshots.count or name in out:
            raise damaged("A branch or tag has no name, the name of another, or no snapshot", ref.at)
        identifier = snapshots.table(number).raw(0, OBJECT_BYTES)
        if identifier is None:
            raise damaged("A snapshot has no identifier", ref.at)
        out[name] = identifier
    return out
