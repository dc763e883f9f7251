"""Decoding of B+tree nodes of either sort."""

from __future__ import annotations

from typing import TypeAlias

from fsstore.ocdbt.format.data_file import decode_files
from fsstore.ocdbt.format.envelope import BTREE_NODE, unseal
from fsstore.ocdbt.format.interior import Interior, take_interior
from fsstore.ocdbt.format.key_column import take_keys
from fsstore.ocdbt.format.leaf import Leaf, take_leaf
from fsstore.ocdbt.format.varint import U32, Cursor

__all__ = ["MAX_ENTRIES", "Node", "decode_node"]

Node: TypeAlias = Leaf | Interior

MAX_ENTRIES = 2**20
"""How many entries a node may have."""


def decode_node(data: bytes, context: bytes, what: str) -> Node:
    """Return the node stored as `data`, read in the context of a base path; `what` names it in messages."""
    cursor = Cursor(unseal(BTREE_NODE, data, what), what)
    height = cursor.take_u8()
    files = decode_files(cursor, context)
    count = cursor.take(U32)
    if not 1 <= count <= MAX_ENTRIES:
        raise cursor.corrupt(f"Expected 1 to {MAX_ENTRIES} entries but received: {count}")
    keys, omitted = take_keys(cursor, count, subtrees=height > 0)
    node = take_interior(cursor, height, keys, omitted, files) if height else take_leaf(cursor, keys, files)
    cursor.finish()
    return node
