"""`get_mapper`: the keys of any pipeline as a `MutableMapping`, the form old tools take stores in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from fsspec.mapping import FSMap

from fsstore.context.context import Context, context_of
from fsstore.errors import StoreError
from fsstore.filesystem.kv import KvFileSystem
from fsstore.kvstore.contract.driver import Read
from fsstore.kvstore.contract.request import KeyRange
from fsstore.kvstore.spec.parse import OpenKv
from fsstore.kvstore.store.kv_store import KvStore
from fsstore.runtime import execution


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
            key: bytes(answer.value)
            for key, answer in zip(wanted, answers, strict=True)
            if answer.state == "value"
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
    from fsstore.kvstore.spec.spec_value import given_options

    if isinstance(url, KvStore) and not storage_options:
        return Mapper(url)
    chosen, options = context_of(context), given_options(storage_options)
    place, view = _view_of(url)
    opened = execution.call(open_target(Target(place, None, options), chosen))
    if view is not None:
        opened = execution.call(_viewed(opened, chosen, view, url))
    return Mapper(KvStore.of(opened.as_directory()))


open_mapper = get_mapper


_VIEWS = {"zarr": 2, "zarr2": 2, "zarr3": 3}


def _view_of(url: Any) -> tuple[Any, int | None]:
    """Return the store of a pipeline, and as which version of zarr it is shown if the pipeline ends with one."""
    from fsstore.values.url import split_pipeline

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
