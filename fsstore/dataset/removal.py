"""Removing what lies below a path: metadata first where a reader must not see fill values in place of data.

A path is taken with its slash, so a node `l` never stands for keys that merely begin with that letter.
"""

from __future__ import annotations

from fsstore.format.attributes import DOCUMENTS, is_document
from fsstore.kvstore.contract.ability import KeepsDirectories, able
from fsstore.kvstore.contract.driver import KvPrefix, Write
from fsstore.kvstore.contract.request import KeyRange

__all__ = ["delete_documents", "delete_tree", "remove_directory", "remove_tree"]


async def delete_documents(place: KvPrefix) -> None:
    """Delete the documents of a node, and then those of everything below it.

    From the first deletion on a reader finds no array there, rather than one whose chunks are missing.
    """
    await place.write_many([Write(name, None) for name in sorted(DOCUMENTS)])
    if place.driver.features.listable:
        found = [entry.key async for batch in place.documents() for entry in batch if is_document(entry.key)]
        await place.write_many([Write(key, None) for key in sorted(found, key=lambda key: key.count("/"))])


async def delete_tree(place: KvPrefix) -> None:
    """Delete all keys below a place, documents first."""
    await delete_documents(place)
    await place.delete_range(KeyRange())


async def remove_tree(place: KvPrefix) -> None:
    """Delete all keys below a place, and the directory that it is where there are such things."""
    await delete_tree(place)
    await remove_directory(place)


async def remove_directory(place: KvPrefix) -> None:
    """Remove the directory that a place is, where there are such things and it is empty."""
    keeping = able(place.driver, KeepsDirectories)
    if keeping is not None and place.path:
        await keeping.remove_directory(place.path)
