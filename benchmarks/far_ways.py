"""The ways in which libraries reach arrays on a far server: by HTTP, and by S3 through one client or another.

Every way opens anew each time, over connections that it has kept where its library keeps them: what is measured is
neither a cache nor the setting up of connections.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

__all__ = ["BUCKET", "Way", "ways"]

BUCKET = "bucket"
Box = tuple[slice, ...]
_REGION = "us-east-1"
_ANONYMOUS = {"type": "anonymous"}


class Way(NamedTuple):
    """A library and its client: opens an array, or a dataset, of a bucket on a server; and lists keys."""

    name: str
    array: Callable[[str, str], Any]
    """Opens `(url of the server, name of the array)`; what it returns has a shape, and is read by `[box]`."""
    dataset: Callable[[str, str], Any] | None = None
    keys: Callable[[str, str], int] | None = None
    """Returns how many keys are below a prefix."""
    limited: Callable[..., Any] | None = None
    """Opens an array with `count` requests under way at once, where that can be said."""


@dataclass(frozen=True)
class Eager:
    """An array of TensorStore's API, read by indexing as those of NumPy are: dask takes it, too."""

    store: Any

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape."""
        return tuple(self.store.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type, as NumPy's."""
        found: np.dtype[Any] = self.store.dtype.numpy_dtype
        return found

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    def __getitem__(self, box: Any) -> Any:
        """Return what is in a box."""
        return self.store[box].read().result()


def _web(url: str, name: str) -> str:
    return f"{url}/{BUCKET}/{name}/"


def _s3(url: str, name: str) -> dict[str, Any]:
    return {
        "driver": "s3",
        "bucket": BUCKET,
        "path": f"{name}/",
        "endpoint": url,
        "aws_region": _REGION,
        "aws_credentials": _ANONYMOUS,
    }


Kvstore = Callable[[str, str], Any]


def _s3fs(url: str, name: str) -> dict[str, Any]:
    return {**_s3(url, name), "engine": "fsspec"}


def _options(url: str) -> dict[str, Any]:
    return {"anon": True, "endpoint_url": url, "client_kwargs": {"region_name": _REGION}}


def at_once(count: int | None) -> dict[str, Any]:
    """Return resources under which so many requests are under way at once; None for as many as by default."""
    names = ("http_request_concurrency", "s3_request_concurrency")
    return {} if count is None else {name: {"limit": count} for name in names}


def opened(library: Any, kvstore: Any, count: int | None = None) -> Eager:
    """Open an array with fsstore or tensorstore, in a context of its own."""
    context = library.Context(at_once(count))
    return Eager(library.open({"driver": "zarr3", "kvstore": kvstore}, context=context).result())


def _fsstore(name: str, kvstore: Kvstore, more: Mapping[str, Any] | None = None) -> Way:
    """Return a way of fsstore; datasets on S3 are opened by URL, with `more` options that choose the client."""
    import fsstore

    is_web = isinstance(kvstore("", ""), str)

    def dataset(url: str, path: str) -> Any:
        import xarray

        if is_web:
            return xarray.open_dataset(_web(url, path), engine="fsstore")
        options = {**_options(url), **(more or {})}
        return xarray.open_dataset(f"s3://{BUCKET}/{path}/", engine="fsstore", storage_options=options)

    def keys(url: str, prefix: str) -> int:
        place = kvstore(url, prefix)
        return len(fsstore.KvStore.open(place, context=fsstore.Context()).result().list().result())

    def array(url: str, path: str, count: int | None = None) -> Eager:
        return opened(fsstore, kvstore(url, path), count)

    return Way(name, array, dataset, None if is_web else keys, array)


def _tensorstore(name: str, kvstore: Kvstore) -> Way:
    import tensorstore

    def keys(url: str, prefix: str) -> int:
        place = kvstore(url, prefix)
        return len(tensorstore.KvStore.open(place, context=tensorstore.Context()).result().list().result())

    listing = keys if isinstance(kvstore("", ""), dict) else None

    def array(url: str, path: str, count: int | None = None) -> Eager:
        return opened(tensorstore, kvstore(url, path), count)

    return Way(name, array, None, listing, array)


def _obstore(url: str, name: str) -> Any:
    from obstore.store import S3Store
    from zarr.storage import ObjectStore

    options = {"allow_http": True}
    place = S3Store(
        BUCKET,
        prefix=name,
        endpoint=url,
        region=_REGION,
        skip_signature=True,
        virtual_hosted_style_request=False,
        client_options=options,
    )
    return ObjectStore(place, read_only=True)


def _by_s3fs(url: str, name: str) -> Any:
    from zarr.storage import FsspecStore

    options = {"anon": True, "endpoint_url": url, "use_listings_cache": False}
    return FsspecStore.from_url(f"s3://{BUCKET}/{name}", storage_options=options, read_only=True)


def _by_web(url: str, name: str) -> Any:
    from zarr.storage import FsspecStore

    return FsspecStore.from_url(_web(url, name).rstrip("/"), read_only=True)


def _zarr(name: str, store: Kvstore, keys: Callable[[str, str], int] | None = None) -> Way:
    def array(url: str, path: str) -> Any:
        import zarr

        return zarr.open_array(store(url, path), mode="r")

    def dataset(url: str, path: str) -> Any:
        import xarray

        return xarray.open_dataset(store(url, path), engine="zarr")

    return Way(name, array, dataset, keys)


def _keys_by_obstore(url: str, prefix: str) -> int:
    return sum(len(page) for page in _obstore(url, prefix).store.list())


def _keys_by_s3fs(url: str, prefix: str) -> int:
    import s3fs  # type: ignore[import-untyped]  # it has no types

    files = s3fs.S3FileSystem(anon=True, endpoint_url=url, use_listings_cache=False)
    return len(files.find(f"{BUCKET}/{prefix}/"))


os.environ.setdefault("AWS_EC2_METADATA_DISABLED", "true")  # no client asks a machine's service for credentials


def ways() -> Mapping[str, Way]:
    """Return the ways by name; ours first."""
    found = (
        _fsstore("fsstore, HTTP", _web),
        _fsstore("fsstore, S3 by obstore", _s3),
        _fsstore("fsstore, S3 by s3fs", _s3fs, {"config_kwargs": {}}),
        _tensorstore("tensorstore, HTTP", _web),
        _tensorstore("tensorstore, S3", _s3),
        _zarr("zarr, HTTP by fsspec", _by_web),
        _zarr("zarr, S3 by obstore", _obstore, _keys_by_obstore),
        _zarr("zarr, S3 by s3fs", _by_s3fs, _keys_by_s3fs),
    )
    return {way.name: way for way in found}
