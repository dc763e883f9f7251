"""Removing and moving what lies below a path: metadata first where a reader must not see fill values in place of data.

A path is taken with its slash, so a node `l` never stands for keys that merely begin with that letter.
"""

from __future__ import annotations

from fsstore.dataset.tuning import MOVED_AT_ONCE
from fsstore.errors import NotFoundError, StoreError
from fsstore.format.attributes import DOCUMENTS, is_document
from fsstore.kvstore.contract.ability import KeepsDirectories, able
from fsstore.kvstore.contract.driver import KvPrefix, Read, Write
from fsstore.kvstore.contract.request import KeyRange

__all__ = ["delete_tree", "move_tree", "remove_directory", "remove_tree"]


async def delete_tree(place: KvPrefix) -> None:
    """Delete all keys below a place: the documents of the node itself first, then everything.

    From the first deletion on a reader finds no array there, rather than one whose chunks are missing.
    """
    await place.write_many([Write(name, None) for name in sorted(DOCUMENTS)])
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


async def move_tree(root: KvPrefix, source: str, target: str) -> None:
    """Copy all keys below one path to another, chunks first and documents last, then delete the first.

    A reader sees the new node whole or not at all; where the process ends on the way the source is still there.
    """
    old, new = root.join(f"{source}/"), root.join(f"{target}/")
    keys = [entry.key async for batch in old.scan() for entry in batch]
    if not keys:
        raise NotFoundError(f"There is nothing at {old.describe()}")
    keys.sort(key=lambda key: (is_document(key), -key.count("/") if is_document(key) else 0, key))
    for begin in range(0, len(keys), MOVED_AT_ONCE):
        part = keys[begin : begin + MOVED_AT_ONCE]
        answers = await old.read_many([Read(key) for key in part])
        gone = [key for key, answer in zip(part, answers, strict=True) if answer.state != "value"]
        if gone:
            raise StoreError(
                f"{old.describe(gone[0])} was deleted while it was moved; both places are left as they are"
            )
        await new.write_many(
            [Write(key, bytes(answer.value)) for key, answer in zip(part, answers, strict=True)]
        )
    await remove_tree(old)
