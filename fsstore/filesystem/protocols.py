"""The protocols of the entry points: `auto::`, `zarr::`, `zarr3::`, `ocdbt::` and `fsstore://`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, ClassVar

from fsstore.driver.auto import enter
from fsstore.errors import FailedPreconditionError, StoreError, UnimplementedError
from fsstore.filesystem.kv import KvFileSystem
from fsstore.filesystem.place import SplitPath, open_target, pinned_url
from fsstore.filesystem.view import open_view
from fsstore.kvstore.contract.driver import KvPrefix
from fsstore.kvstore.spec.parse import OpenKv, kv_spec, open_adapter, open_kv
from fsstore.kvstore.spec.spec_value import kv_kind
from fsstore.values.url import decode_path, split_pipeline


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


# `fsstore://PIPELINE`: any pipeline URL as a filesystem.


_VIEWS = {"zarr": 2, "zarr2": 2, "zarr3": 3}


class PipelineFileSystem(KvFileSystem):
    """The keys of the stores that pipeline URLs name."""

    protocol: ClassVar[Any] = "fsstore"

    def __init__(self, target_protocol: str | None = None, **storage_options: Any) -> None:
        if target_protocol is not None:
            raise StoreError(
                f"fsstore::{target_protocol}://… is no URL: what follows is a pipeline, not the next of a chain; write"
                f" fsstore://{target_protocol}://…"
            )
        super().__init__(**storage_options)
        self._stores: dict[str, asyncio.Future[OpenKv]] = {}

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(each) for each in path]
        text = str(path).removeprefix("fsstore://").rstrip("/")
        if "://" not in text:
            return text
        # one name for a key: with a slash between the last component and its path, as listings write it
        last = split_pipeline(text)[-1]
        if not last.is_root and last.rest and not last.rest.startswith("/"):
            text = f"{text[: last.position]}{last.scheme}:/{last.rest}"
        return pinned_url(text)

    def _is_at_hand(self, *, blocking: bool = False) -> bool:
        """Return False: which store is meant is not known before the path."""
        return False

    async def _glob(self, path: str, maxdepth: int | None = None, **kwargs: Any) -> Any:
        """Return what fits a pattern, which may stand right behind a colon, where listings have a slash."""
        text = str(path).removeprefix("fsstore://")
        last = split_pipeline(text)[-1]
        if not last.is_root:
            text = f"{text[: last.position]}{last.scheme}:/{last.rest.lstrip('/')}"
        return await super()._glob(text, maxdepth=maxdepth, **kwargs)

    async def open_place(self, path: str) -> OpenKv:
        """Return the store that a pipeline names."""
        place = await self._locate(path)
        opened = await self._store_of(place.lead)
        return opened.at(opened.path + place.key)

    async def _locate(self, path: str) -> SplitPath:
        lead, key = _taken_apart(self._strip_protocol(path))
        opened = await self._store_of(lead)
        return SplitPath(KvPrefix(opened.driver, opened.path), key, lead)

    async def _store_of(self, lead: str) -> OpenKv:
        """Return the store of a pipeline whose last component has no path, opened once."""
        opening = self._stores.get(lead)
        if opening is None:
            opening = self._stores[lead] = asyncio.ensure_future(self._open_store(lead))
        try:
            return await asyncio.shield(opening)
        except BaseException:
            self._stores.pop(lead, None)
            raise

    async def _open_store(self, lead: str) -> OpenKv:
        pipeline = lead.rstrip("/") if "|" in lead else lead
        head, _, last = pipeline.rpartition("|")
        view = _VIEWS.get(last.partition(":")[0]) if head else None
        if view is None:
            return await open_kv(kv_spec(pipeline), self._context)
        base = await open_kv(kv_spec(head), self._context)
        return await open_view(base, self._context, zarr_format=view)


def _taken_apart(path: str) -> tuple[str, str]:
    """Return the pipeline up to its last component, with a slash or colon at the end, and the key in it."""
    if not path:
        raise StoreError("fsstore:// must be followed by a URL pipeline")
    last = split_pipeline(path)[-1]
    if not last.is_root:
        lead = f"{path[: last.position]}{last.scheme}:/"
        return lead, decode_path(last.rest.strip("/"))
    host, slash, key = last.rest.partition("/")
    if last.scheme == "memory":
        return "memory://", decode_path(last.rest)
    return f"{last.scheme}://{host}{slash}", decode_path(key.strip("/"))
