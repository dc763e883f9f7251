"""`fsstore://PIPELINE`: any pipeline URL as a filesystem.

The path holds everything, so one instance serves all pipelines: `fsstore://s3://b/x.zip|zip:a/b` is the key `a/b` of
the archive, `fsstore://file:///d|zarr3:` the array there as a zarr v3 store.  Keys are appended to the last component.
"""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from fsstore.errors import StoreError
from fsstore.filesystem.kv import KvFileSystem
from fsstore.filesystem.kv_place import SplitPath
from fsstore.kvstore.contract.driver import KvPrefix
from fsstore.kvstore.spec.opening import OpenKv, open_kv
from fsstore.kvstore.spec.parse import kv_spec
from fsstore.values.url import decode_path, split_pipeline
from fsstore.view.driver import open_view

__all__ = ["PipelineFileSystem"]

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
        return str(path).removeprefix("fsstore://").rstrip("/")

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
