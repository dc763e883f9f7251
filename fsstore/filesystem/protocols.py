"""The fsspec protocols over one store: `ocdbt::`, `auto::`, `zarr::`, `zarr2::`, `zarr3::`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from fsstore.driver.auto import enter
from fsstore.errors import FailedPreconditionError, StoreError, UnimplementedError
from fsstore.filesystem.kv import KvFileSystem
from fsstore.filesystem.place import open_target
from fsstore.kvstore.spec.opening import OpenKv, open_adapter
from fsstore.kvstore.spec.spec_value import kv_kind
from fsstore.view.driver import open_view

__all__ = ["AutoFileSystem", "OcdbtFileSystem", "Zarr2FileSystem", "Zarr3FileSystem", "ZarrFileSystem"]


def _as_directory(opened: OpenKv) -> OpenKv:
    return opened if not opened.path or opened.path.endswith("/") else opened.at(opened.path + "/")


async def _file_or_directory(opened: OpenKv) -> OpenKv:
    """Return a store of one file where there is one, which tools read as it is, else of what is below."""
    if opened.path and not opened.path.endswith("/"):
        try:
            if (await opened.prefix.read("", 0, 0)).state == "value":
                return opened
        except StoreError:  # what it is shows when it is used
            pass
    return _as_directory(opened)


class OcdbtFileSystem(KvFileSystem):
    """The keys of an OCDBT database, which is created by the first write."""

    protocol: ClassVar[Any] = "ocdbt"

    async def _make(self) -> OpenKv:
        kind = kv_kind("ocdbt")
        if kind is None:
            raise StoreError("the ocdbt key-value store is not registered")
        base = await open_target(self._target, self._context)
        return await open_adapter(kind, base, self._context)


class AutoFileSystem(KvFileSystem):
    """The keys of the innermost store that detection finds: inside archives, databases and reference sets."""

    protocol: ClassVar[Any] = "auto"

    async def _make(self) -> OpenKv:
        base = await open_target(self._target, self._context)
        try:
            opened, found = await enter(base, self._context)
        except (FailedPreconditionError, UnimplementedError):
            return await _file_or_directory(base)  # a format without an adapter
        if found.is_file:
            return opened
        return await _file_or_directory(opened) if found.detection is None else _as_directory(opened)


class Zarr3FileSystem(KvFileSystem):
    """Any array or hierarchy as the keys of a zarr v3 store; `explode_shards` shows shards as their sub-chunks."""

    protocol: ClassVar[Any] = "zarr3"
    zarr_format: ClassVar[int] = 3

    def __init__(
        self,
        fo: Any = "",
        target_protocol: str | None = None,
        target_options: Mapping[str, Any] | None = None,
        *,
        explode_shards: bool = False,
        **storage_options: Any,
    ) -> None:
        super().__init__(fo, target_protocol, target_options, **storage_options)
        self._explode = explode_shards

    async def _make(self) -> OpenKv:
        base = await open_target(self._target, self._context)
        return await open_view(
            base, self._context, zarr_format=self.zarr_format, explode_shards=self._explode
        )


class Zarr2FileSystem(Zarr3FileSystem):
    """Any array or hierarchy as the keys of a zarr v2 store."""

    protocol: ClassVar[Any] = "zarr2"
    zarr_format: ClassVar[int] = 2


class ZarrFileSystem(Zarr2FileSystem):
    """The same by the name of the driver."""

    protocol: ClassVar[Any] = "zarr"
