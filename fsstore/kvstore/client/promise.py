"""The promises of the filesystems of fsspec, by protocol, beyond the verbs that all of them have.

A protocol that is not in the table promises nothing: its values have no generations, a write that fails may leave a
part of the value, and no condition can be checked.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from posixpath import dirname
from typing import Any, TypeAlias, TypeVar

from fsstore.errors import AbortedError
from fsstore.kvstore.client import login_files
from fsstore.kvstore.contract.driver import UNKNOWN, Features
from fsstore.runtime.tuning import READ_ATTEMPTS

T = TypeVar("T")
Steps: TypeAlias = Generator[tuple[Any, ...], Any, T]
"""Yields `(verb, *arguments)`, is sent what the verb returned or thrown what it raised, and returns the outcome."""

# fsspec's memory filesystem, without walks over all its files.


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
    for _ in range(READ_ATTEMPTS):
        try:
            paths = list(store)
        except RuntimeError:  # it grew all the same
            continue
        found = ((path, store.get(path)) for path in paths)
        return {path: {"size": file.size} for path, file in found if file is not None}
    raise AbortedError(f"The memory of fsspec changed during {READ_ATTEMPTS} attempts to list it")


@dataclass(frozen=True, slots=True)
class FilesystemPromise:
    """The facts that are known of a protocol."""

    traits: tuple[str, ...] = ()
    """The members of `info` that change with every write and make a generation; none without them."""
    renames: bool = False
    """Whether values are written under another name and then renamed: a write that fails leaves the old value."""
    creates: bool = False
    """Whether a value can be created where none may be, whoever else writes."""
    coarse: bool = False
    """Whether two writes in one moment may leave the same generation."""
    writes: bool = True
    """Whether there is anything to write to; archives are read, and written by drivers of fsstore."""
    verbs: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    """Functions that stand in the place of verbs of the filesystem."""

    @property
    def features(self) -> Features:
        """The abilities of a store that is served so."""
        return Features(
            waits=True, writable=self.writes, create_only=self.creates, coarse_generations=self.coarse
        )


_CLOUD = FilesystemPromise(("generation", "etag"))
_AZURE = FilesystemPromise(("etag",))
_READ = FilesystemPromise(writes=False)
_LOGIN = FilesystemPromise(renames=True, verbs=login_files.SFTP)

PROMISES: Mapping[str, FilesystemPromise] = {
    "file": FilesystemPromise(("ino", "mtime", "size"), renames=True, coarse=True),
    "memory": FilesystemPromise(
        ("created", "modified", "size"),
        creates=True,
        verbs={"info": _info, "insert": _insert, "find": _files},
    ),
    "gs": _CLOUD,
    "gcs": _CLOUD,
    "abfs": _AZURE,
    "az": _AZURE,
    "abfss": _AZURE,
    "ftp": FilesystemPromise(renames=True, verbs=login_files.FTP),
    "sftp": _LOGIN,
    "ssh": _LOGIN,
    **dict.fromkeys(("git", "github", "libarchive", "tar", "zip"), _READ),
}
"""The promises by protocol."""
NOTHING = FilesystemPromise()


# Values without a promise, or with the one that they are renamed.


UNFINISHED = ".__lock"  # the suffix of local files that are being written, as `kvstore/local` has it


def generation_of(info: dict[str, Any], traits: tuple[str, ...]) -> bytes:
    """Return the generation in what `info` said, or `UNKNOWN`."""
    parts = [f"{name}={info[name]!r}" for name in traits if info.get(name) is not None]
    return b"\0" + hashlib.blake2b("\n".join(parts).encode(), digest_size=16).digest() if parts else UNKNOWN


def renamed(path: str, value: bytes, protocol: str) -> Steps[None]:
    """Store a value under another name, and rename it."""
    target = f"{path}_{os.urandom(8).hex()}{UNFINISHED}"
    try:
        yield from stored(target, value, protocol)
        if protocol == "file":
            Path(target).replace(path)
        else:
            yield "mv", target, path
    except BaseException as error:
        if protocol == "file":
            Path(target).unlink(missing_ok=True)
        elif isinstance(error, Exception):  # generators must not go on after they were closed
            yield from _forgotten(target)
        raise


def _forgotten(path: str) -> Steps[None]:
    """Delete what a write left behind, if that can be done."""
    try:
        yield "rm_file", path
    except Exception:  # noqa: BLE001  # the failure of the write is told; listings hide what stays
        return


def stored(path: str, value: bytes, _protocol: str) -> Steps[None]:
    """Store a value; directories on the way are made when the filesystem asks for them."""
    try:
        yield "pipe_file", path, value
    except FileNotFoundError:
        yield "makedirs", dirname(path), True
        yield "pipe_file", path, value
