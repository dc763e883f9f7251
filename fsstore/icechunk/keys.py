"""Which array and which chunk a key names.

Repositories hold chunks by index; how zarr writes an index into a key is said by the document of the array.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fsstore.errors import StoreError
from fsstore.icechunk.format.snapshot import SnapshotNode
from fsstore.values.json_value import loads

__all__ = ["DOCUMENT", "KeyForm", "array_of", "form_of"]

DOCUMENT = "zarr.json"
_COORDINATE = re.compile(r"0|[1-9][0-9]{0,9}")


@dataclass(frozen=True, slots=True)
class KeyForm:
    """How the chunks of an array are called below its path: `c/0/1`, `c.0.1`, `0.1` or `0/1`."""

    prefixed: bool = True
    separator: str = "/"

    def parse(self, name: str) -> tuple[int, ...] | None:
        """Return the index of a chunk by its name, or None if it is the name of none.

        >>> KeyForm().parse("c/0/12"), KeyForm().parse("c"), KeyForm().parse("c/01")
        ((0, 12), (), None)
        """
        parts = name.split(self.separator)
        if self.prefixed:
            if parts[0] != "c":
                return None
            parts = parts[1:]
        if not all(map(_COORDINATE.fullmatch, parts)):
            return None
        index = tuple(map(int, parts))
        return index if max(index, default=0) < 2**32 else None

    def name(self, index: Sequence[int]) -> str:
        """Return the name of a chunk; a scalar is `c` or `0`."""
        parts = [*("c" for _ in range(self.prefixed)), *map(str, index)]
        return self.separator.join(parts) or "0"


def form_of(document: memoryview) -> KeyForm:
    """Return how an array calls its chunks, by its document; the usual way if that does not say."""
    try:
        encoding = loads(bytes(document)).get("chunk_key_encoding")
    except (StoreError, AttributeError):
        return KeyForm()  # what is wrong with it is said when the array is opened
    if isinstance(encoding, str):
        encoding = {"name": encoding}
    if not isinstance(encoding, Mapping):
        return KeyForm()
    inner = encoding.get("configuration")
    separator = inner.get("separator") if isinstance(inner, Mapping) else None
    plain = encoding.get("name") == "v2"
    return KeyForm(not plain, separator if separator in (".", "/") else "." if plain else "/")


def array_of(key: str, nodes: Mapping[str, SnapshotNode]) -> tuple[SnapshotNode, str] | None:
    """Return the array with the longest path that a key begins with, and the rest of the key."""
    at = len(key)
    while True:
        at = key.rfind("/", 0, at)
        node = nodes.get(key[: max(at, 0)])
        if node is not None:
            return (node, key[at + 1 :]) if node.is_array else None
        if at <= 0:
            return None
