"""The data files of one commit: values as they come, then B+tree nodes, then version tree nodes, back to back.

Everything under one prefix goes into one file with a random name, and into a further one when it reaches the target
size.  Where a thing will lie is known when it is added, before anything is written.
"""

from __future__ import annotations

import os
from typing import Literal, NamedTuple, TypeAlias

from fsstore.kvstore.contract.driver import Buffer, KvPrefix, Write
from fsstore.kvstore.contract.request import key_text
from fsstore.ocdbt.format.data_file import DataFile, Location
from fsstore.ocdbt.tuning import PADDED_FROM_BYTES

__all__ = ["DATA_NAME", "NodeLayout", "Sink"]

Sort: TypeAlias = Literal["value", "btree_node", "version_tree_node"]

DATA_NAME = "[0-9a-f]{32}"
"""The pattern of names of data files behind their prefix, those of TensorStore too."""
_PAGE = 4096


class NodeLayout(NamedTuple):
    """Where the three sorts of data go, and the size at which a file is closed (0: never)."""

    value: bytes = b"d/"
    btree_node: bytes = b"d/"
    version_tree_node: bytes = b"d/"
    target_size: int = 2**31

    def prefixes(self) -> set[bytes]:
        """Return all prefixes of names of files."""
        return {self.value, self.btree_node, self.version_tree_node}

    def prefix(self, sort: Sort) -> bytes:
        """Return the prefix of the names of files with such data."""
        if sort == "value":
            return self.value
        return self.btree_node if sort == "btree_node" else self.version_tree_node


class _Buffer:
    def __init__(self, prefix: bytes) -> None:
        self.file = DataFile(b"", prefix + os.urandom(16).hex().encode())
        self.parts: list[Buffer] = []
        self.size = 0

    def content(self) -> bytes:
        """Return the file, padded to whole pages if it is large."""
        padding = -self.size % _PAGE if self.size > PADDED_FROM_BYTES else 0
        return b"".join([*self.parts, b"\0" * padding])


class Sink:
    """Collects data and writes the files."""

    def __init__(self, layout: NodeLayout) -> None:
        self._layout = layout
        self._open: dict[bytes, _Buffer] = {}
        self._full: list[_Buffer] = []

    def place(self, sort: Sort, data: Buffer) -> Location:
        """Add data and return where they will lie."""
        prefix = self._layout.prefix(sort)
        buffer = self._open.get(prefix)
        if buffer is None:
            buffer = self._open[prefix] = _Buffer(prefix)
        location = Location(buffer.file, buffer.size, len(data))
        buffer.parts.append(data)
        buffer.size += len(data)
        if 0 < self._layout.target_size <= buffer.size:
            self._full.append(self._open.pop(prefix))
        return location

    async def flush(self, base: KvPrefix) -> None:
        """Write all files; when this returns they are durable."""
        buffers = [*self._full, *self._open.values()]
        self._full, self._open = [], {}
        if buffers:
            await base.write_many([Write(key_text(one.file.name), one.content()) for one in buffers])
