"""How others read the array `x` of a reference set in a folder: each function returns what reads all of it.

zarr-python over fsspec's `ReferenceFileSystem`, the xarray engine of kerchunk, the `ManifestStore` of VirtualiZarr, and
virtual references of icechunk.
"""

from __future__ import annotations

import atexit
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.harness import Contender

__all__ = ["icechunk", "kerchunk", "manifest", "zarr", "zarr_array"]


def zarr(folder: Path, protocol: str = "file") -> Contender:
    """Read with zarr-python over `ReferenceFileSystem`."""
    array = zarr_array(folder, protocol)
    return lambda: array[...]


def zarr_array(folder: Path, protocol: str = "file") -> Any:
    """Open the array with zarr-python over `ReferenceFileSystem`."""
    import fsspec
    import zarr
    from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper
    from zarr.core.sync import sync

    target = fsspec.filesystem(protocol, asynchronous=True, skip_instance_cache=True)
    if target.async_impl:
        session = sync(target.set_session())
        atexit.register(lambda: sync(session.close()))
    else:
        target = AsyncFileSystemWrapper(fsspec.filesystem(protocol), asynchronous=True)
    files = fsspec.filesystem(
        "reference", fo=f"{folder}/refs.json", fs={protocol: target}, asynchronous=True, skip_instance_cache=True
    )
    store = zarr.storage.FsspecStore(files, read_only=True, path="")
    return zarr.open_array(store, path="x", mode="r", zarr_format=2)


def kerchunk(folder: Path, protocol: str = "file") -> Contender:
    """Read with the xarray engine, without dask; the set is opened each time: an open one keeps what it read."""
    import xarray

    def read() -> Any:
        opened = xarray.open_dataset(
            f"{folder}/refs.json",
            engine="kerchunk",
            storage_options={"remote_protocol": protocol},
            open_dataset_options={"chunks": None, "mask_and_scale": False},
        )
        return opened.x.values

    return read


def manifest(folder: Path, url: str | None = None) -> Contender:
    """Read with zarr-python over VirtualiZarr's `ManifestStore`; targets are local, or on the web server at `url`."""
    import zarr
    from obspec_utils.registry import ObjectStoreRegistry
    from obstore.store import HTTPStore, LocalStore
    from virtualizarr.parsers import KerchunkJSONParser

    stores: dict[str, Any] = {"file://": LocalStore()}
    if url is not None:
        stores[url] = HTTPStore.from_url(url, client_options={"allow_http": True})
    store = KerchunkJSONParser()(url=f"file://{folder}/refs.json", registry=ObjectStoreRegistry(stores))
    array = zarr.open_array(store, path="x", mode="r", zarr_format=3)
    return lambda: array[...]


def icechunk(folder: Path) -> Contender:
    """Read with zarr-python over the same references in an icechunk repository.

    It drops the port of web servers, so targets have to be local.
    """
    import icechunk as ice
    import zarr

    place = f"file://{folder}/"
    config = ice.RepositoryConfig.default()
    local = ice.local_filesystem_store(str(folder))
    config.set_virtual_chunk_container(ice.VirtualChunkContainer(place, local))
    granted = ice.containers_credentials({place: None})
    repository = ice.Repository.create(ice.in_memory_storage(), config, authorize_virtual_chunk_access=granted)
    store = repository.writable_session("main").store
    refs = json.loads((folder / "refs.json").read_text(encoding="utf-8"))["refs"]
    array = zarr.create_array(store, name="x", filters=None, **_layout(json.loads(refs["x/.zarray"])))
    for key, value in refs.items():
        if isinstance(value, list):
            chunk = key.removeprefix("x/").replace(".", "/")
            store.set_virtual_ref(f"x/c/{chunk}", value[0], offset=value[1], length=value[2])
    return lambda: array[...]


def _layout(zarray: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `create_array` for the metadata of zarr version 2."""
    from numcodecs import zarr3

    made = {"shuffle": lambda options: zarr3.Shuffle(**options), "zlib": lambda options: zarr3.Zlib(**options)}
    filters = zarray["filters"] or []
    compressors = [made[step["id"]]({k: v for k, v in step.items() if k != "id"}) for step in filters]
    return {
        "shape": tuple(zarray["shape"]),
        "chunks": tuple(zarray["chunks"]),
        "dtype": zarray["dtype"],
        "compressors": compressors or None,
    }
