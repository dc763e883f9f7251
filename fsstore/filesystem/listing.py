"""Directories of a store that has only keys.

Sizes come from listings, and for single keys from the answer to an empty read; neither costs a request a key.  A size
that a listing does not know (of a compressed value) is None in it, unless asking waits for nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from operator import attrgetter
from typing import Any

from fsstore.errors import OutOfRangeError, StoreError
from fsstore.kvstore.contract.driver import Entry, KvPrefix, known_size
from fsstore.kvstore.contract.key_range import KeyRange, key_bytes, prefix_end

__all__ = ["Listing", "children"]

_KEY = attrgetter("key")


def _file(key: str, size: int | None) -> dict[str, Any]:
    return {"name": key, "size": size, "type": "file"}


def _directory(key: str) -> dict[str, Any]:
    return {"name": key, "size": 0, "type": "directory"}


class Listing:
    """Files and directories of a store, as fsspec describes them."""

    def __init__(self, store: KvPrefix) -> None:
        self.store = store

    @property
    def may_be_file(self) -> bool:
        """Whether there may be a value where the store begins."""
        path = self.store.path
        return self.store.driver.features.empty_key or bool(path and not path.endswith("/"))

    async def info(self, key: str) -> dict[str, Any] | None:
        """Return the description of a key or directory, or None; a value is read if nothing else tells its size."""
        if key or self.may_be_file:
            known = await known_size(self.store, key)
            if known is not None:
                return _file(key, known)
            answer = await self.store.read(key, 0, 0)
            if answer.state != "missing":
                return _file(key, await self._size(key) if answer.size is None else answer.size)
        if await self.is_directory(key):
            return _directory(key)
        return None

    async def _size(self, key: str) -> int:
        """Return the size of a value that is there: its first byte may come with it, where asking for none did not."""
        try:
            answer = await self.store.read(key, 0, 1)
        except OutOfRangeError:
            return 0
        return len((await self.store.read(key)).value) if answer.size is None else answer.size

    async def is_directory(self, key: str) -> bool:
        """Return whether there are keys below; the root is a directory always."""
        if not key:
            return True
        if not self.store.driver.features.listable:
            return False
        async for batch in self.entries(KeyRange.prefix(f"{key}/")):
            if batch:
                return True
        return False

    async def entries(self, keys: KeyRange) -> AsyncIterator[Sequence[Entry]]:
        """Yield the entries of a range; below a file there are none, where local files fail."""
        try:
            async for batch in self.store.scan(keys):
                yield batch
        except StoreError as error:
            if not isinstance(error.__cause__, NotADirectoryError):
                raise

    async def below(self, key: str) -> list[dict[str, Any]]:
        """Return all files below a directory, in order; a file is below itself."""
        found = [
            entry
            async for batch in self.entries(KeyRange.prefix(f"{key}/" if key else ""))
            for entry in batch
            if not entry.key.endswith("/")
        ]
        listed = [_file(entry.key, entry.size) for entry in sorted(found, key=_KEY)]
        if key and not listed:
            alone = await self.info(key)
            return [alone] if alone is not None and alone["type"] == "file" else []
        return listed

    async def sized(self, files: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the files with sizes that the listing did not know, where asking does not wait; others stay None."""
        if self.store.driver.features.waits:
            return files
        for each in files:
            if each["size"] is None:
                with suppress(StoreError):  # what may not be read is listed all the same
                    each["size"] = (await self.store.read(each["name"], 0, 0)).size
        return files


async def children(listing: Listing, key: str) -> list[dict[str, Any]]:
    """Return the files and directories in a directory, in order.

    A store that lists in order is asked to go on after each directory that is found.
    """
    prefix = f"{key}/" if key else ""
    everything = KeyRange.prefix(prefix)
    found: dict[str, dict[str, Any]] = {}
    skips = listing.store.driver.features.sorted_scan
    begin = everything.inclusive_min
    while True:
        jump = b""
        async for batch in listing.entries(KeyRange(begin, everything.exclusive_max)):
            jump = _note(batch, prefix, found)
            if jump and skips:
                break
        if not (jump and skips):
            return [found[name] for name in sorted(found)]
        begin = jump


def _note(batch: Sequence[Entry], prefix: str, found: dict[str, dict[str, Any]]) -> bytes:
    """Note what a batch says; return the key after the directory that the last entry is in, or nothing."""
    last = ""
    for entry in batch:
        name, slash, _ = entry.key[len(prefix) :].partition("/")
        last = prefix + name + slash if slash else ""
        if slash and name:
            found[prefix + name] = _directory(prefix + name)
        elif name:
            found.setdefault(prefix + name, _file(entry.key, entry.size))
    return prefix_end(key_bytes(last)) if last else b""
