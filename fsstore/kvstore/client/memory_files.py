"""fsspec's memory filesystem, asked without walks over all its files and while others change it.

These stand in for its own verbs: `insert` is the creation that only one of several writers succeeds in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fsstore.errors import AbortedError
from fsstore.kvstore.tuning import MEMORY_FILE_ATTEMPTS

__all__ = ["VERBS"]


def _info(filesystem: Any, path: str) -> dict[str, Any]:
    """Return what fsspec's `info` does for a file, without its walk over all files in search of a directory."""
    file = filesystem.store.get(path)
    if file is None:
        raise FileNotFoundError(path)
    return {"size": file.size, "created": (id(file), file.created), "modified": file.modified}


def _insert(filesystem: Any, path: str, value: bytes) -> bool:
    """Store a value unless the path exists; the dictionary decides who is first."""
    from fsspec.implementations.memory import MemoryFile

    mine = MemoryFile(filesystem, path, value)
    return filesystem.store.setdefault(path, mine) is mine


def _files(filesystem: Any, _directory: str) -> dict[str, Any]:
    """Return the files that are there, while others write.

    Copying the names makes no object that the garbage collector counts: where something hooks into that, as dask does,
    a listing of pairs may see the dictionary change.
    """
    store = filesystem.store
    for _ in range(MEMORY_FILE_ATTEMPTS):
        try:
            paths = list(store)
        except RuntimeError:  # it grew all the same
            continue
        found = ((path, store.get(path)) for path in paths)
        return {path: {"size": file.size} for path, file in found if file is not None}
    raise AbortedError(f"The memory of fsspec changed during {MEMORY_FILE_ATTEMPTS} attempts to list it")


VERBS: Mapping[str, Callable[..., Any]] = {"info": _info, "insert": _insert, "find": _files}
