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
    array = zarr.create_array(
        path, shape=shape, chunks=chunks, dtype="uint16", zarr_format=2, compressors=compressor
    )
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

    return {
        "fsstore": lambda: write("zarr3::file://", storage_options={"zarr3": options}),
        "zarr": lambda: write(""),
    }


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


@workload("2000 ranges of a file through fsspec, and of the native way", size=2000 * 4096)
def plain_ranges(folder: Path) -> Mapping[str, Contender]:
    """`engine="fsspec"` beside `cat_ranges` of the same filesystem, which joins nothing."""
    return _plain(folder, [("big", n * 4096, (n + 1) * 4096) for n in range(2000)])


@workload("200 files of 64 KB through fsspec, and by the native way", size=200 * 65536)
def plain_files(folder: Path) -> Mapping[str, Contender]:
    """Whole values: each is asked first which version it is, which fsspec does not know."""
    return _plain(folder, [(f"f{n}", 0, 65536) for n in range(200)])


def _plain(folder: Path, spans: list[tuple[str, int, int]]) -> Mapping[str, Contender]:
    import fsspec

    import fsstore
    from fsstore.kvstore.contract.driver import Read
    from fsstore.runtime import execution

    (folder / "big").write_bytes(bytes(2000 * 4096))
    for number in range(200):
        (folder / f"f{number}").write_bytes(bytes(65536))
    reads = [Read(*span) for span in spans]
    plain = fsstore.KvStore.open(f"file://{folder}/", engine="fsspec").result().prefix
    native = fsstore.KvStore.open(f"file://{folder}/").result().prefix
    names, starts, ends = (
        [f"{folder}/{span[0]}" for span in spans],
        *zip(*[span[1:] for span in spans], strict=True),
    )
    files = fsspec.filesystem("file")
    return {
        "fsstore": lambda: sum(len(each.value) for each in execution.call(plain.read_many(reads))),
        "native": lambda: sum(
            len(each.value) for each in execution.call(native.read_many(reads), waits=False)
        ),
        "fsspec": lambda: sum(map(len, files.cat_ranges(names, list(starts), list(ends)))),
    }
