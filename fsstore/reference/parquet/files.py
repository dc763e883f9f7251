"""The files `<array>/refs.<k>.parq` of a parquet set, loaded when they are asked for and kept up to a budget.

A kept table knows the generation of its file, so it can be replaced under the condition that nobody else did.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from fsstore.kvstore.contract.driver import KvPrefix, Read
from fsstore.kvstore.contract.request import KeyRange
from fsstore.reference.parquet.read import Partition, read_partition
from fsstore.reference.tuning import PARQUET_KEPT_BYTES
from fsstore.runtime import fork

__all__ = ["Loaded", "PartitionFiles", "Where", "file_name", "where_of"]

_NAME = re.compile(r"(?:(.*)/)?refs\.(0|[1-9][0-9]{0,17})\.parq", re.DOTALL)

Where: TypeAlias = tuple[str, int]
"""The path of an array, and the number of a file."""


class Loaded(NamedTuple):
    """A file as it was read: its rows, or None if there is none, and its generation."""

    partition: Partition | None
    generation: bytes


def file_name(where: Where) -> str:
    """Return the name of a file below the directory of the set."""
    path, record = where
    return f"{path}/refs.{record}.parq" if path else f"refs.{record}.parq"


def where_of(name: str) -> Where | None:
    """Return which file of a set has a name, None if it is no such name: the inverse of `file_name`."""
    match = _NAME.fullmatch(name)
    return None if match is None else (match[1] or "", int(match[2]))


class PartitionFiles:
    """The files below `base`, a directory; its path ends with a slash.  Their rows point into `urls`."""

    def __init__(self, base: KvPrefix) -> None:
        self.base = base
        self.urls: list[str] = []
        self._ids: dict[str, int] = {}
        self._kept: OrderedDict[Where, Loaded] = OrderedDict()
        self._size = 0
        self._changes = 0
        self._lock = fork.lock()

    async def load(self, files: Sequence[Where]) -> dict[Where, Loaded]:
        """Return files; those that are not kept are read together."""
        with self._lock:
            found = {where: self._kept[where] for where in files if where in self._kept}
            for where in found:
                self._kept.move_to_end(where)
            changes = self._changes
        absent = [where for where in files if where not in found]
        if not absent:
            return found
        results = await self.base.read_many([Read(file_name(where)) for where in absent])
        for where, result in zip(absent, results, strict=True):
            file = None
            if result.state == "value":
                file = read_partition(result.value, self._url_ids, self.base.describe(file_name(where)))
            found[where] = Loaded(file, result.generation)
            self._keep(where, found[where], changes)
        return found

    def _keep(self, where: Where, file: Loaded, changes: int) -> None:
        """Keep what was read, unless files were replaced while it was."""
        with self._lock:
            if where not in self._kept and changes == self._changes:
                self._kept[where] = file
                self._size += _cost(file)
            while self._size > PARQUET_KEPT_BYTES and len(self._kept) > 1:
                self._size -= _cost(self._kept.popitem(last=False)[1])

    def replace(self, where: Where, old: Loaded | None, new: Loaded | None) -> None:
        """Keep `new` in place of `old` (None: of whatever is kept), or forget it."""
        with self._lock:
            self._changes += 1
            kept = self._kept.get(where)
            if kept is None or (old is not None and kept is not old):
                return
            self._size -= _cost(self._kept.pop(where))
            if new is not None:
                self._kept[where] = new
                self._size += _cost(new)

    async def listed(self, path: str) -> list[int]:
        """Return the numbers of the files of an array."""
        prefix = f"{path}/refs." if path else "refs."
        found = []
        async for batch in self.base.scan(KeyRange.prefix(prefix)):
            found += [where[1] for entry in batch if (where := where_of(entry.key)) and where[0] == path]
        return sorted(found)

    def _url_ids(self, urls: Sequence[str]) -> np.ndarray[Any, np.dtype[np.int32]]:
        with self._lock:
            for url in urls:
                if url not in self._ids:
                    self.urls.append(url)
                    self._ids[url] = len(self._ids)
            return np.array([self._ids[url] for url in urls], np.int32)


def _cost(file: Loaded) -> int:
    return 64 if file.partition is None else file.partition.nbytes
