"""`KvFileSystem`: any key-value store as a plain fsspec filesystem.

Paths are keys, directories are what keys have in common.  The store is opened on first use, because a filesystem may be
made inside a running event loop; its operations run where stores run (`runtime.execution`), and are awaited on
whichever loop fsspec uses, its own or the caller's.  Reads of many keys are one batch.

Refused operations (writing to an archive) raise fsstore's errors, which are Python's too: a missing key is a
`FileNotFoundError`.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any, ClassVar

from fsspec.asyn import sync
from fsspec.spec import AbstractBufferedFile

from fsstore.errors import NotFoundError, UnimplementedError
from fsstore.filesystem.kv_read import KvReading, found_value
from fsstore.kvstore.contract.driver import NO_VALUE, UNKNOWN
from fsstore.kvstore.contract.key_range import KeyRange
from fsstore.runtime import execution

__all__ = ["KvFileSystem"]


class KvFileSystem(KvReading):
    """The keys of a store as a filesystem.

    `fo` is a pipeline URL or kvstore spec (live objects go through `of`); in a chain (`ocdbt::s3://bucket/db`) fsspec
    gives the path, `target_protocol` and `target_options` of the next protocol.
    """

    protocol: ClassVar[Any] = "kvstore"

    # --- writing

    async def _pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        await self._run(self._store(path, value, create=mode == "create"))

    async def _store(self, path: str, value: Any, *, create: bool) -> None:
        place = await self._locate(path)
        stamp = await place.store.write(place.key, bytes(value), NO_VALUE if create else UNKNOWN)
        if create and stamp.generation == UNKNOWN:
            raise FileExistsError(path)

    async def _rm_file(self, path: str, **_: Any) -> None:
        await self._run(self._delete(path))

    async def _delete(self, path: str) -> None:
        place = await self._locate(path)
        await place.store.write(place.key, None)

    async def _rm(self, path: Any, recursive: bool = False, batch_size: int | None = None, **_: Any) -> None:
        paths = await self._expand_path(path, recursive=False)
        for each in paths:
            await self._run(self._remove(each, recursive=recursive))

    async def _remove(self, path: str, *, recursive: bool) -> None:
        place = await self._locate(path)
        below = KeyRange.prefix(f"{place.key}/" if place.key else "")
        if recursive:
            with contextlib.suppress(NotFoundError):  # local files refuse to list what is a file
                await place.store.delete_range(below)
        if place.key and (await place.store.read(place.key, 0, 0)).state != "missing":
            await place.store.write(place.key, None)
        elif not recursive:
            raise FileNotFoundError(path)

    async def _put_file(self, lpath: str, rpath: str, mode: str = "overwrite", **kwargs: Any) -> None:
        value = await execution.start(execution.offload(_contents, lpath))
        if value is not None:
            await self._pipe_file(rpath, value, mode=mode)

    async def _get_file(self, rpath: str, lpath: Any, **_: Any) -> None:
        value = None if await self._isdir(rpath) else await self._cat_file(rpath)
        await execution.start(execution.offload(_keep, lpath, value))

    async def _cp_file(self, path1: str, path2: str, **_: Any) -> None:
        if not await self._isdir(path1):
            await self._pipe_file(path2, await self._cat_file(path1))

    async def _mkdir(self, path: str, create_parents: bool = True, **_: Any) -> None:
        """Do nothing: directories are there when keys are."""

    async def _makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Do nothing: directories are there when keys are."""

    # --- files

    def _open(self, path: str, mode: str = "rb", block_size: Any = None, **kwargs: Any) -> Any:
        if "x" in mode and self.exists(path):  # created atomically when closed; said early where it is known
            raise FileExistsError(path)
        if "r" not in mode:
            sync(self.loop, self._check_writable, path)
        return KvFile(self, path, mode, block_size or "default", **kwargs)

    async def _check_writable(self, path: str) -> None:
        """Refuse to write where nothing can be stored, before anything is written."""
        place = await self._run(self._locate(path))
        if not place.store.driver.features.writable:
            raise UnimplementedError(
                f"KeyValueStore does not support writing: {place.store.describe(place.key)}"
            )

    def ukey(self, path: str) -> str:
        """Return a text that changes with the contents of a file."""
        return str(sync(self.loop, self._ukey, path))

    async def _ukey(self, path: str) -> str:
        async def generation() -> bytes:
            place = await self._locate(path)
            answer = await place.store.read(place.key, 0, 0)
            found_value(answer, path)
            return answer.generation

        return (await self._run(generation())).hex() or str(await self._info(path))


def _contents(path: str) -> bytes | None:
    return None if Path(path).is_dir() else Path(path).read_bytes()


def _keep(path: Any, value: bytes | None) -> None:
    """Store a value, or make a directory; files that are open already are written to."""
    if hasattr(path, "write"):
        path.write(value)
        return
    if value is None:
        Path(path).mkdir(parents=True, exist_ok=True)
        return
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_bytes(value)


class KvFile(AbstractBufferedFile):  # type: ignore[misc]  # fsspec is untyped
    """A file.  Written bytes become visible as a whole, when the file is closed."""

    def _fetch_range(self, start: int, end: int) -> bytes:
        value: bytes = self.fs.cat_file(self.path, start=start, end=end)
        return value

    def _initiate_upload(self) -> None:
        self._parts: list[bytes] = []
        if "a" in self.mode and self.fs.exists(self.path):
            self._parts.append(self.fs.cat_file(self.path))

    def _upload_chunk(self, final: bool = False) -> bool:
        self._parts.append(self.buffer.getvalue())
        if final and self.autocommit:
            self.commit()
        return True

    def commit(self) -> None:
        """Store what was written."""
        mode = "create" if "x" in self.mode else "overwrite"
        self.fs.pipe_file(self.path, b"".join(self._parts), mode=mode)

    def discard(self) -> None:
        """Forget what was written."""
        self._parts = []
