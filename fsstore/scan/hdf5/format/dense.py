"""Attributes and links outside of the header of their object: in a heap, found by a tree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fsstore.scan.hdf5.format.fractal_heap import ahead_of_heap, heap_at
from fsstore.scan.hdf5.format.object_header import Message
from fsstore.scan.hdf5.format.reader import Reader, UnknownError
from fsstore.scan.hdf5.format.tree2 import ahead_of_tree, tree_records

__all__ = ["ATTRIBUTES", "LINKS", "Dense", "ahead_of_dense", "dense_messages", "dense_of"]

ATTRIBUTES, LINKS = 8, 5
"""The kinds of records of the trees."""

_SHARED = 2


class Dense(NamedTuple):
    """Where messages are; `tracked`: the order of creation is known."""

    heap: int
    tree: int
    tracked: bool


def dense_of(reader: Reader, message: Message) -> Dense:
    """Return what an information message says of attributes (0x15) or links (0x02)."""
    body = message.body
    if len(body) < 2 or body[0]:
        raise UnknownError
    tracked = bool(body[1] & 1)
    at = 2 + ((2 if message.kind == 0x15 else 8) if tracked else 0)
    if len(body) < at + 2 * reader.width:
        raise reader.damaged(message.address, "where attributes or links are is cut off")
    return Dense(reader.address(body, at), reader.address(body, at + reader.width), tracked)


def ahead_of_dense(reader: Reader, place: Dense) -> None:
    """Say that the messages of an object will be read."""
    if reader.undefined not in (place.heap, place.tree):
        ahead_of_heap(reader, place.heap)
        ahead_of_tree(reader, place.tree)


def dense_messages(reader: Reader, place: Dense, kind: int) -> Sequence[tuple[bytes, int]]:
    """Return messages and the address of the heap that holds them."""
    if reader.undefined in (place.heap, place.tree):
        return ()
    ahead_of_dense(reader, place)
    heap = heap_at(reader, place.heap)
    heap.ahead()
    records = tree_records(reader, place.tree, kind)
    if kind == ATTRIBUTES:
        if any(record[8] & _SHARED for record in records):
            raise UnknownError
        ids = [record[:8] for record in records]
    else:
        ids = [record[4:11] for record in records]
    return [(each, place.heap) for each in heap.objects(ids)]
