"""Other tools reading through fsstore's filesystems, against the same tools by themselves; and opening by detection."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import Contender, workload
from benchmarks.loopback import LoopbackServer, ServerProcess
from benchmarks.workloads_read import BYTES, MEBIBYTE, ZSTD, everything, prepare, sample

_LARGE = ((256, 256, 256), (64, 64, 64))
_SMALL = ((256, 256, 64), (16, 16, 16))


def _through_view(folder: Path, codecs: list[Any], shapes: tuple[Any, Any]) -> Mapping[str, Contender]:
    """Return zarr-python reading a v3 array by the filesystem that shows it, and by its own store."""
    import zarr

    path = prepare(folder, *shapes, codecs)["kvstore"]["path"]
    return {
        "fsstore": partial(everything, zarr.open_array(f"zarr3::file://{path}", mode="r")),
        "zarr": partial(everything, zarr.open_array(path, mode="r")),
    }


@workload("zarr-python reads 64 chunks of zarr v3 through zarr3::", size=32 * MEBIBYTE)
def view_large(folder: Path) -> Mapping[str, Contender]:
    """32 MiB in chunks of 64³."""
    return _through_view(folder, [BYTES, ZSTD], _LARGE)


@workload("zarr-python reads 1024 small chunks of zarr v3 through zarr3::", size=8 * MEBIBYTE)
def view_small(folder: Path) -> Mapping[str, Contender]:
    """8 MiB in chunks of 16³."""
    return _through_view(folder, [BYTES, ZSTD], _SMALL)


@workload("zarr-python opens zarr v3 through zarr3::")
def view_open(folder: Path) -> Mapping[str, Contender]:
    """Open an array whose place the filesystem has not seen before."""
    import fsspec
    import zarr

    path = prepare(folder, *_SMALL, [BYTES])["kvstore"]["path"]

    def through() -> Any:
        fsspec.get_filesystem_class("zarr3").clear_instance_cache()
        return zarr.open_array(f"zarr3::file://{path}", mode="r").shape

    return {"fsstore": through, "zarr": lambda: zarr.open_array(path, mode="r").shape}


def _from_v2(folder: Path, compressor: Any, shapes: tuple[Any, Any]) -> Mapping[str, Contender]:
    """Return zarr-python reading a v2 array shown as v3, and as what it is."""
    import zarr

    shape, chunks = shapes
    path = folder / "v2"
    array = zarr.create_array(path, shape=shape, chunks=chunks, dtype="uint16", zarr_format=2, compressors=compressor)
    array[...] = sample(shape)
    return {
        "fsstore": partial(everything, zarr.open_array(f"zarr3::file://{path}", mode="r")),
        "zarr": partial(everything, zarr.open_array(path, mode="r")),
    }


@workload("zarr-python reads 64 chunks of zarr v2 as v3 through zarr3::, zstd", size=32 * MEBIBYTE)
def converted_large(folder: Path) -> Mapping[str, Contender]:
    """32 MiB in chunks of 64³, shown as they are stored."""
    import numcodecs

    return _from_v2(folder, numcodecs.Zstd(1), _LARGE)


@workload("zarr-python reads 64 chunks of zarr v2 as v3 through zarr3::, raw", size=32 * MEBIBYTE)
def converted_raw(folder: Path) -> Mapping[str, Contender]:
    """32 MiB in chunks of 64³, not compressed."""
    return _from_v2(folder, None, _LARGE)


@workload("zarr-python reads 64 chunks of zarr v2 as v3 through zarr3::, zlib", size=32 * MEBIBYTE)
def recoded_large(folder: Path) -> Mapping[str, Contender]:
    """32 MiB in chunks of 64³ of a compressor that v3 has not: decoded by fsstore and handed on plainly."""
    import numcodecs

    return _from_v2(folder, numcodecs.Zlib(1), _LARGE)


@workload("zarr-python reads 1024 small chunks of zarr v2 as v3 through zarr3::", size=8 * MEBIBYTE)
def converted_small(folder: Path) -> Mapping[str, Contender]:
    """8 MiB in chunks of 16³."""
    import numcodecs

    return _from_v2(folder, numcodecs.Zstd(1), _SMALL)


@workload("open by detection, or explicitly after one batch of requests")
def detected(folder: Path) -> Mapping[str, Contender]:
    """Find out that a directory is a zarr v3 array; the other way is told, and asks one batch for nothing."""
    import fsstore as ts

    url = f"file://{prepare(folder, *_SMALL, [BYTES])['kvstore']['path']}"
    names = [".zarray", "attributes.json", "info", "manifest.ocdbt", "zarr.json"]

    def explicit() -> Any:
        store = ts.KvStore.open(url).result()
        batch = ts.Batch()
        futures = [store.read(name, byte_range=slice(0, 0), batch=batch) for name in names]
        batch.submit()
        for future in futures:
            future.result()
        return ts.open(f"{url}|zarr3:").result().shape

    return {"fsstore": lambda: ts.open(url).result().shape, "explicit": explicit}


def _archive(folder: Path, count: int, size: int) -> Path:
    """Return the path of an archive of members of one size."""
    path = folder / "x.zip"
    with zipfile.ZipFile(path, "w") as file:
        for number in range(count):
            file.writestr(f"d{number % 10}/{number}", os.urandom(size))
    return path


@workload("auto:: reads 2000 members of an archive")
def archive(folder: Path) -> Mapping[str, Contender]:
    """Read many small members by detection, and by fsspec's own filesystem for archives."""
    import fsspec

    path = _archive(folder, 2000, 1000)

    def read(protocol: str) -> Any:
        filesystem = fsspec.filesystem(protocol, fo=str(path), skip_instance_cache=True)
        return sorted(filesystem.cat(filesystem.find("")).values())

    return {"fsstore": partial(read, "auto"), "fsspec zip": partial(read, "zip")}


def _found(folder: Path, count: int, *, opened: bool) -> Mapping[str, Contender]:
    """Return finding all members of an archive, by detection and by fsspec's own filesystem."""
    import fsspec

    path = _archive(folder, count, 100)

    def make(protocol: str) -> Any:
        return fsspec.filesystem(protocol, fo=str(path), skip_instance_cache=True)

    def contender(protocol: str) -> Contender:
        filesystem = make(protocol)
        return (lambda: filesystem.find("")) if opened else (lambda: make(protocol).find(""))

    return {"fsstore": contender("auto"), "fsspec zip": contender("zip")}


@workload("auto:: opens an archive of 100 members and finds them")
def find_small(folder: Path) -> Mapping[str, Contender]:
    """A small archive: what is paid once."""
    return _found(folder, 100, opened=False)


@workload("auto:: opens an archive of 2000 members and finds them")
def find_large(folder: Path) -> Mapping[str, Contender]:
    """A large archive: what is paid for each member."""
    return _found(folder, 2000, opened=False)


@workload("auto:: finds the 100 members of an open archive")
def find_opened(folder: Path) -> Mapping[str, Contender]:
    """What a listing costs that is known already."""
    return _found(folder, 100, opened=True)


def _written(folder: Path, *, synced: bool) -> Mapping[str, Contender]:
    """Return writing a small dataset of xarray through zarr3::, and by zarr-python's own store."""
    from itertools import count

    import xarray as xr

    axes = {name: (name, np.arange(size)) for name, size in (("t", 4), ("y", 32), ("x", 32))}
    values = np.random.default_rng(1).normal(size=(4, 32, 32)).astype("float32")
    dataset = xr.Dataset({**axes, "a": (tuple("tyx"), values), "b": (tuple("tyx"), values)})
    numbers = count()
    options = {"context": {"file_io_sync": synced}}

    def write(place: str, **keywords: Any) -> None:
        target = f"{place}{folder}/{next(numbers)}"
        dataset.to_zarr(target, mode="w", zarr_format=3, consolidated=False, **keywords)

    return {"fsstore": lambda: write("zarr3::file://", storage_options={"zarr3": options}), "zarr": lambda: write("")}


@workload("xarray writes a small dataset through zarr3::, not synced either")
def write_alike(folder: Path) -> Mapping[str, Contender]:
    """Both leave it to the system when data reach the disk."""
    return _written(folder, synced=False)


@workload("xarray writes a small dataset through zarr3::, synced by fsstore alone")
def write_synced(folder: Path) -> Mapping[str, Contender]:
    """What fsstore promises by itself: it survives a power failure."""
    return _written(folder, synced=True)


@workload("auto:: reads a range of a large file in 1000 pieces", size=8 * MEBIBYTE)
def ranges(folder: Path) -> Mapping[str, Contender]:
    """Read ranges by `cat_ranges`, and by fsspec's own local filesystem."""
    import fsspec

    (folder / "d").mkdir()
    (folder / "d" / "x").write_bytes(np.random.default_rng(1).bytes(16 * MEBIBYTE))
    starts = [number * 16 * 1024 for number in range(1000)]
    ends = [start + 8 * 1024 for start in starts]
    ours = fsspec.filesystem("auto", fo=str(folder / "d"), skip_instance_cache=True)
    theirs = fsspec.filesystem("file")
    return {
        "fsstore": lambda: ours.cat_ranges(["x"] * 1000, starts, ends)[-1],
        "fsspec file": lambda: theirs.cat_ranges([str(folder / "d" / "x")] * 1000, starts, ends)[-1],
    }


_RANGES = [("big", n * 4096, (n + 1) * 4096) for n in range(2000)]
_VALUES = [(f"f{n}", 0, 65536) for n in range(200)]
_PARTS = [(f"f{n}", 4096, 8192) for n in range(200)]


@workload("2000 ranges of a file through fsspec, and of the native way", size=2000 * 4096)
def plain_ranges(folder: Path) -> Mapping[str, Contender]:
    """`engine="fsspec"` beside `cat_ranges` of the same filesystem, which joins nothing."""
    return _plain("file", folder, _RANGES)


@workload("200 files of 64 KB through fsspec, and by the native way", size=200 * 65536)
def plain_files(folder: Path) -> Mapping[str, Contender]:
    """Whole values, each with its version, which fsspec does not give."""
    return _plain("file", folder, _VALUES)


@workload("4 KB of each of 200 files through fsspec, and by the native way", size=200 * 4096)
def plain_parts(folder: Path) -> Mapping[str, Contender]:
    """Parts, each with its version."""
    return _plain("file", folder, _PARTS)


@workload("2000 ranges of a value in memory through fsspec, and by the native way", size=2000 * 4096)
def plain_memory_ranges(folder: Path) -> Mapping[str, Contender]:
    """The memory of fsspec."""
    return _plain("memory", folder, _RANGES)


@workload("200 values of 64 KB in memory through fsspec, and by the native way", size=200 * 65536)
def plain_memory(folder: Path) -> Mapping[str, Contender]:
    """Whole values, which fsspec copies."""
    return _plain("memory", folder, _VALUES)


@workload("4 KB of each of 200 values in memory through fsspec, and by the native way", size=200 * 4096)
def plain_memory_parts(folder: Path) -> Mapping[str, Contender]:
    """The smallest reads there are: what is measured is what a read costs apart from its bytes."""
    return _plain("memory", folder, _PARTS)


@workload("200 ranges of a file over HTTP through fsspec, and by the native way", size=200 * 4096)
def plain_web(folder: Path) -> Mapping[str, Contender]:
    """Ranges too far apart to be joined, from a server in another process."""
    server = LoopbackServer(64 * MEBIBYTE)
    spans = [("values.bin", n * 300_000, n * 300_000 + 4096) for n in range(200)]
    return _kept(server, _opened(f"{server.url}/", {}, f"{server.url}/", spans))


@workload("4 KB of each of 200 objects through s3fs, and by the native way", size=200 * 4096)
def plain_s3(folder: Path) -> Mapping[str, Contender]:
    """Objects of moto."""
    server = ServerProcess("tests.servers.process", "s3")
    options = {"key": "key", "secret": "secret", "endpoint_url": server.url}
    return _kept(server, _opened("s3://bucket/", options, "bucket/", _PARTS, make=True))


@workload("4 KB of each of 200 objects through gcsfs", size=200 * 4096)
def plain_gcs(folder: Path) -> Mapping[str, Contender]:
    """Objects of gcp-storage-emulator, whose dialect no other client speaks, and which gives no kinds of buckets."""
    os.environ["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = "false"
    server = ServerProcess("tests.servers.process", "gcs")
    options = {"token": "anon", "endpoint_url": server.url}
    return _kept(server, _opened("gs://bucket/", options, "bucket/", _PARTS, native=False))


@workload("4 KB of each of 200 objects through adlfs", size=200 * 4096)
def plain_azure(folder: Path) -> Mapping[str, Contender]:
    """Objects of azurite."""
    from tests.contract.test_cloud_emulators import ACCOUNT, KEY

    server = ServerProcess("tests.servers.process", "azure")
    text = f"AccountName={ACCOUNT};AccountKey={KEY};BlobEndpoint={server.url}/{ACCOUNT};"
    options = {"connection_string": f"DefaultEndpointsProtocol=http;{text}"}
    url = f"abfs://bucket@{ACCOUNT}.dfs.core.windows.net/"
    return _kept(server, _opened(url, options, "bucket/", _PARTS, make=True, native=False))


def _kept(server: ServerProcess, ways: Mapping[str, Contender]) -> Mapping[str, Contender]:
    """Return the ways, which keep the server: it ends with its owner."""
    return {**ways, "fsspec": lambda: ways["fsspec"]() if server else 0}


def _plain(protocol: str, folder: Path, spans: list[tuple[str, int, int]]) -> Mapping[str, Contender]:
    """Write the values, and return the ways to read spans of them."""
    import fsspec

    import fsstore

    root = f"{folder}/" if protocol == "file" else f"{folder}/".lstrip("/")
    there, url = fsspec.filesystem(protocol), f"{protocol}://{root}"
    there.makedirs(root, exist_ok=True)
    native = fsstore.KvStore.open(url).result()
    for name, value in _values().items():
        there.pipe_file(f"{root}{name}", value)
        native[name] = value
    return _compared(fsstore.KvStore.open(url, engine="fsspec").result(), there, root, spans, native)


def _values() -> dict[str, bytes]:
    return {"big": bytes(2000 * 4096)} | {f"f{number}": bytes(65536) for number in range(200)}


def _opened(
    url: str,
    options: Mapping[str, Any],
    root: str,
    spans: list[tuple[str, int, int]],
    *,
    make: bool = False,
    native: bool = True,
) -> Mapping[str, Contender]:
    """Write values where there is a place for them, and return the ways to read spans of them with the same options."""
    import fsspec

    import fsstore

    there = fsspec.filesystem(url.partition(":")[0], **options)
    if make:
        there.mkdir(root.rstrip("/"))
    if options:
        there.pipe({f"{root}{name}": value for name, value in _values().items()})
    plain = fsstore.KvStore.open(url, engine="fsspec", storage_options=options).result()
    other = fsstore.KvStore.open(url, storage_options=options).result() if native else None
    return _compared(plain, there, root, spans, other)


def _compared(
    plain: Any, alone: Any, root: str, spans: list[tuple[str, int, int]], native: Any
) -> Mapping[str, Contender]:
    """Return reading spans of keys by the plain way, by the native one, and by fsspec alone."""
    from fsstore.kvstore.contract.driver import KvPrefix, Read
    from fsstore.runtime import execution

    reads = [Read(*span) for span in spans]
    names = [f"{root}{span[0]}" for span in spans]
    starts, ends = zip(*[span[1:] for span in spans], strict=True)

    def reading(place: KvPrefix) -> Contender:
        waits = place.driver.features.waits
        return lambda: sum(len(each.value) for each in execution.call(place.read_many(reads), waits=waits))

    return {
        "fsstore": reading(plain.prefix),
        **({} if native is None else {"native": reading(native.prefix)}),
        "fsspec": lambda: sum(map(len, alone.cat_ranges(names, list(starts), list(ends)))),
    }
