"""The filesystems of the entry points, `auto::`, `zarr::`, `zarr3::`, `ocdbt::` and `fsstore://`, and `get_mapper`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar

from fsspec.mapping import FSMap

from fsstore.context.context import Context, context_of
from fsstore.driver.auto import enter
from fsstore.errors import FailedPreconditionError, StoreError, UnimplementedError
from fsstore.filesystem.kv import KvFileSystem
from fsstore.filesystem.place import SplitPath, open_target, pinned_url
from fsstore.filesystem.view import open_view
from fsstore.kvstore.contract.driver import KvPrefix, Read
from fsstore.kvstore.contract.request import KeyRange
from fsstore.kvstore.kv_store import KvStore
from fsstore.kvstore.spec_parse import OpenKv, kv_spec, open_adapter, open_kv
from fsstore.kvstore.spec_value import kv_kind
from fsstore.runtime import execution
from fsstore.values.registry import decode_path, split_pipeline


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
        return await open_view(base, self._context, zarr_format=self.zarr_format, explode_shards=self._explode)


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
        """Return False, because the store is unknown before the path."""
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


# `get_mapper`: the keys of any pipeline as a `MutableMapping`, the form old tools take stores in.


class Mapper(FSMap):  # type: ignore[misc]  # fsspec is not followed by the type checker
    """The keys below a path of a store, as the `FSMap` that zarr-python, xarray and dask take.

    Missing keys raise `KeyError`; `getitems` reads many keys as one batch and leaves missing ones out.
    """

    def __init__(self, store: KvStore) -> None:
        super().__init__("", KvFileSystem.of(store))
        self.store = store

    def __setitem__(self, key: str, value: Any) -> None:
        """Store a value: bytes, or an array, whose bytes are taken."""
        self.store[key] = value if isinstance(value, bytes | str) else bytes(memoryview(value).cast("B"))

    def __getitem__(self, key: str, default: Any = None) -> bytes:
        """Return the value of a key."""
        return self.store[key]

    def __delitem__(self, key: str) -> None:
        """Delete a key."""
        if key not in self:
            raise KeyError(key)
        del self.store[key]

    def __contains__(self, key: object) -> bool:
        """Return whether the key has a value; the value is not read."""
        return isinstance(key, str) and self.store.read(key, byte_range=slice(0, 0)).result().state == "value"

    def __iter__(self) -> Iterator[str]:
        """Yield the keys."""
        return iter([key.decode("utf-8", "surrogateescape") for key in self.store.list().result()])

    def __len__(self) -> int:
        """Return how many keys there are."""
        return len(self.store.list().result())

    def getitems(self, keys: Iterable[str], on_error: str = "omit", **_: Any) -> dict[str, bytes]:
        """Return the values of many keys, read together; missing ones are left out, or raise (`on_error="raise"`)."""
        wanted = list(keys)
        prefix = self.store.prefix
        waits = prefix.driver.features.waits
        answers = execution.call(prefix.read_many([Read(key) for key in wanted]), waits=waits)
        found = {
            key: bytes(answer.value) for key, answer in zip(wanted, answers, strict=True) if answer.state == "value"
        }
        if on_error == "raise" and len(found) < len(set(wanted)):
            raise KeyError(next(key for key in wanted if key not in found))
        return found

    def clear(self) -> None:
        """Delete every key."""
        self.store.delete_range(KeyRange()).result()

    def __repr__(self) -> str:
        """Return the class and the store."""
        return f"{type(self).__name__}({self.store!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the store."""
        return Mapper, (self.store,)


def get_mapper(url: Any, *, storage_options: Mapping[str, Any] | None = None, context: Any = None) -> Mapper:
    """Return the keys at a URL pipeline, spec, `KvStore` or live object as a mutable mapping.

    A pipeline may end with `zarr2:` or `zarr3:`, which shows any array there as a zarr store.  `storage_options` are
    those of the root, or of each protocol in a chain, and `context` holds the resources.

    >>> mapper = get_mapper("memory://")
    >>> mapper["a"] = b"value"
    >>> list(mapper)
    ['a']
    """
    from fsstore.filesystem.place import Target, open_target
    from fsstore.kvstore.spec_value import given_options

    if isinstance(url, KvStore) and not storage_options:
        return Mapper(url)
    chosen, options = context_of(context), given_options(storage_options)
    place, view = _view_of(url)
    opened = execution.call(open_target(Target(place, None, options), chosen))
    if view is not None:
        opened = execution.call(_viewed(opened, chosen, view, url))
    return Mapper(KvStore.of(opened.as_directory()))


open_mapper = get_mapper


def _view_of(url: Any) -> tuple[Any, int | None]:
    """Return the store of a pipeline, and as which version of zarr it is shown if the pipeline ends with one."""
    from fsstore.values.registry import split_pipeline

    if not isinstance(url, str) or "|" not in url:
        return url, None
    last = split_pipeline(url)[-1]
    shown = None if last.rest else _VIEWS.get(last.scheme)
    return (url, None) if shown is None else (url.rpartition("|")[0], shown)


async def _viewed(opened: OpenKv, context: Context, zarr_format: int, url: str) -> OpenKv:
    from fsstore.filesystem.view import open_view

    try:
        return await open_view(opened, context, zarr_format=zarr_format)
    except StoreError as error:
        raise error.within(f"Cannot open {url}") from error
