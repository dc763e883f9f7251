"""Reading through a kerchunk reference set: many small pieces of one file, compressed chunks, generated keys."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import reference_peers
from benchmarks.harness import Contender, workload
from benchmarks.loopback import LoopbackServer

CHUNKS, LENGTH = 4096, 1000


def write_set(folder: Path) -> None:
    """Write a file of numbers, and references that cut it into chunks with gaps between them."""
    gap = 24
    values = np.arange(CHUNKS * LENGTH, dtype="<i4").reshape(CHUNKS, LENGTH)
    padded = np.pad(values.view("u1"), ((0, 0), (0, gap)))
    (folder / "values.bin").write_bytes(padded.tobytes())
    size = LENGTH * 4
    zarray = {
        "zarr_format": 2,
        "shape": [CHUNKS * LENGTH],
        "chunks": [LENGTH],
        "dtype": "<i4",
        "order": "C",
        "compressor": None,
        "filters": None,
        "fill_value": 0,
    }
    refs: dict[str, object] = {
        f"x/{number}": [f"file://{folder}/values.bin", number * (size + gap), size] for number in range(CHUNKS)
    }
    refs |= {".zgroup": '{"zarr_format": 2}', "x/.zarray": json.dumps(zarray), "x/.zattrs": "{}"}
    (folder / "refs.json").write_text(json.dumps({"version": 1, "refs": refs}), encoding="utf-8")


@workload("references: open a set of 4096, read a piece")
def open_set(folder: Path) -> Mapping[str, Contender]:
    """Open the set and read the first chunks: what a user waits for at the start."""
    import fsstore

    write_set(folder)
    url = f"file://{folder}/refs.json|reference:x/|zarr2:"
    return {
        "fsstore": lambda: fsstore.open(url).result()[:5000].read().result(),
        "zarr": lambda: reference_peers.zarr_array(folder)[:5000],
    }


@workload("references: open a set of 200,000 as a filesystem, read 2000 parts")
def read_as_filesystem(folder: Path) -> Mapping[str, Contender]:
    """`ReferenceFileSystem` of fsstore beside fsspec's, as zarr-python asks: one coroutine a chunk."""
    import asyncio

    from fsspec.implementations.reference import ReferenceFileSystem as Theirs

    from fsstore.filesystem.reference import ReferenceFileSystem

    (folder / "values.bin").write_bytes(bytes(200_000 * 8))
    refs = {f"x/{n}": [f"{folder}/values.bin", n * 8, 8] for n in range(200_000)}
    (folder / "many.json").write_text(json.dumps({"version": 1, "refs": refs}), encoding="utf-8")
    keys = [f"x/{n}" for n in range(0, 200_000, 100)]

    def reading(kind: Any) -> Contender:
        async def together(filesystem: Any) -> int:
            return len(b"".join(await asyncio.gather(*map(filesystem._cat_file, keys))))

        def run() -> int:
            filesystem = kind(f"{folder}/many.json", remote_protocol="file", skip_instance_cache=True)
            return asyncio.run(together(filesystem))

        return run

    return {"fsstore": reading(ReferenceFileSystem), "fsspec": reading(Theirs)}


def _opened_filesystem(folder: Path, ask: Callable[[Any, list[str]], Any]) -> Mapping[str, Contender]:
    """Return asking an opened filesystem about 1000 keys out of 50,000, which lie in one file."""
    from fsspec.implementations.reference import ReferenceFileSystem as Theirs

    from fsstore.filesystem.reference import ReferenceFileSystem

    (folder / "values.bin").write_bytes(bytes(50_000 * 8))
    refs = {f"x/{n}": [f"{folder}/values.bin", n * 8, 8] for n in range(50_000)}
    (folder / "many.json").write_text(json.dumps({"version": 1, "refs": refs}), encoding="utf-8")
    options: dict[str, Any] = {"remote_protocol": "file", "skip_instance_cache": True}
    opened = {
        name: kind(f"{folder}/many.json", **options)
        for name, kind in (("fsstore", ReferenceFileSystem), ("fsspec", Theirs))
    }
    keys = list(refs)[:1000]
    return {name: partial(ask, filesystem, keys) for name, filesystem in opened.items()}


@workload("references: cat of 1000 keys of an opened filesystem")
def cat_filesystem(folder: Path) -> Mapping[str, Contender]:
    """Whole values by their keys."""
    return _opened_filesystem(folder, lambda filesystem, keys: sorted(filesystem.cat(keys)))


@workload("references: cat_ranges of 1000 keys of an opened filesystem")
def ranges_filesystem(folder: Path) -> Mapping[str, Contender]:
    """The first half of each value."""
    return _opened_filesystem(
        folder, lambda filesystem, keys: filesystem.cat_ranges(keys, [0] * len(keys), [4] * len(keys))
    )


@workload("references: find in an opened filesystem of 50,000")
def find_filesystem(folder: Path) -> Mapping[str, Contender]:
    """What is below a directory."""
    return _opened_filesystem(folder, lambda filesystem, _keys: len(filesystem.find("x")))


def _document(refs: dict[str, Any]) -> Mapping[str, Contender]:
    """Return scanning a document into columns, and parsing it into dictionaries and lists."""
    import ujson

    from fsstore.reference.json_document import from_json

    data = ujson.dumps({"version": 1, "refs": refs}).encode()
    return {"fsstore": lambda: len(from_json(data).table), "ujson": lambda: len(ujson.loads(data)["refs"])}


@workload("references: scan a document of 100,000, beside ujson")
def scan(folder: Path) -> Mapping[str, Contender]:
    """References of one variable, each to another file than the one before."""
    return _document({f"x/{n}": [f"s3://b/{n % 1000}.nc", n * 7919, 1000] for n in range(100_000)})


def _interleaved(count: int, inline: str) -> dict[str, Any]:
    """Return references of five variables in the order of the files they come from, some variables inline."""
    return {
        f"{name}/{n}.0": f"base64:{n:06d}==" if name in inline else [f"s3://b/{n}.nc", n * 7919, 1000]
        for n in range(count // 5)
        for name in "tuvwx"
    }


@workload("references: scan a document of 100,000, interleaved, beside ujson")
def scan_interleaved(folder: Path) -> Mapping[str, Contender]:
    """Five variables whose references take turns."""
    return _document(_interleaved(100_000, ""))


@workload("references: scan a document of 100,000, a fifth inline, beside ujson")
def scan_mixed(folder: Path) -> Mapping[str, Contender]:
    """Five variables that take turns, of which one is inline."""
    return _document(_interleaved(100_000, "t"))


@workload("references: scan a document of 100,000, all inline, beside ujson")
def scan_inline(folder: Path) -> Mapping[str, Contender]:
    """Five variables that take turns, all of them inline."""
    return _document(_interleaved(100_000, "tuvwx"))


def _small_arrays(count: int) -> dict[str, Any]:
    """Return references of many arrays of one chunk, with their metadata."""
    zarray = {"zarr_format": 2, "shape": [100], "chunks": [100], "dtype": "<f4", "order": "C"}
    text = json.dumps({**zarray, "compressor": None, "filters": None, "fill_value": None})
    return {
        key: value
        for n in range(count)
        for key, value in ((f"v{n}/.zarray", text), (f"v{n}/0", ["s3://b/a.nc", n * 400, 400]))
    }


@workload("references: scan a document of 20,000 arrays of one chunk, beside ujson")
def scan_small(folder: Path) -> Mapping[str, Contender]:
    """Every key is of an array of its own."""
    return _document(_small_arrays(20_000))


@workload("references: open a set of 20,000 arrays of one chunk")
def open_small(folder: Path) -> Mapping[str, Contender]:
    """Every key is of an array of its own."""
    return _opened(folder, _small_arrays(20_000), "v7777/.zarray")


def _opened(folder: Path, refs: dict[str, Any], key: str = "t/7777.0") -> Mapping[str, Contender]:
    """Return opening a set from a local file, and reading one value of it."""
    import fsspec
    import ujson

    import fsstore

    (folder / "refs.json").write_text(ujson.dumps({"version": 1, "refs": refs}), encoding="utf-8")
    options = {"remote_protocol": "file", "skip_instance_cache": True}
    return {
        "fsstore": lambda: bytes(
            fsstore.KvStore.open(f"file://{folder}/refs.json|reference:").result().read(key).result().value
        ),
        "fsspec": lambda: fsspec.filesystem("reference", fo=f"{folder}/refs.json", **options).cat_file(key),
    }


@workload("references: open a set of 200,000, a fifth inline")
def open_mixed(folder: Path) -> Mapping[str, Contender]:
    """Five variables that take turns, of which one is inline."""
    return _opened(folder, _interleaved(200_000, "t"))


@workload("references: open a set of 200,000, all inline")
def open_inline(folder: Path) -> Mapping[str, Contender]:
    """Five variables that take turns, all of them inline."""
    return _opened(folder, _interleaved(200_000, "tuvwx"))


@workload("references: read 4096 pieces of a file", size=CHUNKS * LENGTH * 4)
def read_set(folder: Path) -> Mapping[str, Contender]:
    """Read all of the array; the set is open."""
    import fsstore

    write_set(folder)
    opened = fsstore.open(f"file://{folder}/refs.json|reference:x/|zarr2:").result()
    return {"fsstore": lambda: opened.read().result(), "zarr": reference_peers.zarr(folder)}


@workload("references: read 2000 adjacent chunks of 4 KB", size=2000 * 4096)
def read_adjacent(folder: Path) -> Mapping[str, Contender]:
    """Chunks that lie side by side in one file, beside one read of the same bytes and what others do."""
    import fsstore

    adjacent(folder)
    opened = fsstore.open(f"file://{folder}/refs.json|reference:x/|zarr2:").result()
    return {
        "fsstore": lambda: opened.read().result(),
        **_peers(folder),
        "one read": lambda: np.fromfile(folder / "values.bin", "<i4"),
    }


@workload("references: read 2000 adjacent chunks of 4 KB over HTTP", size=2000 * 4096)
def read_adjacent_http(folder: Path) -> Mapping[str, Contender]:
    """The same from a web server in another process, beside one request for the same bytes."""
    import urllib.request

    import fsstore

    server = LoopbackServer(2000 * 4096)
    adjacent(folder, f"{server.url}/values.bin")
    opened = fsstore.open(f"file://{folder}/refs.json|reference:x/|zarr2:").result()
    store = fsstore.KvStore.open(f"{server.url}/").result()

    def one_request() -> Any:
        with urllib.request.urlopen(f"{server.url}/values.bin") as response:
            return np.frombuffer(response.read(), "<i4")

    return {
        "fsstore": lambda: opened.read().result(),
        "zarr": reference_peers.zarr(folder, "http"),
        "xarray kerchunk": reference_peers.kerchunk(folder, "http"),
        "ManifestStore": reference_peers.manifest(folder, server.url),
        "one read": lambda: np.frombuffer(store.read("values.bin").result().value, "<i4"),
        "urllib": one_request,
    }


@workload("references: read 256 MB of HDF5, zlib and shuffle", size=256 * 2**20)
def read_hdf5(folder: Path) -> Mapping[str, Contender]:
    """A whole variable, beside h5py on the file and others on the references."""
    import gc

    import h5py
    from kerchunk.hdf import SingleHdf5ToZarr

    import fsstore

    rng = np.random.default_rng(0)
    walk = np.cumsum(rng.normal(size=(256, 512, 512)).astype("f4"), axis=2).round(2)
    with h5py.File(folder / "a.h5", "w") as file:
        file.create_dataset("x", data=walk, chunks=(4, 256, 256), compression="gzip", shuffle=True)
    gc.disable()
    document = SingleHdf5ToZarr(f"{folder}/a.h5", inline_threshold=0).translate()
    gc.enable()
    for reference in document["refs"].values():
        if isinstance(reference, list):
            reference[0] = f"file://{folder}/a.h5"
    (folder / "refs.json").write_text(json.dumps(document), encoding="utf-8")
    opened = fsstore.open(f"file://{folder}/refs.json|reference:x/|zarr2:").result()
    original = h5py.File(folder / "a.h5")
    return {"fsstore": lambda: opened.read().result(), **_peers(folder), "h5py": lambda: original["x"][...]}


def _peers(folder: Path) -> dict[str, Contender]:
    """Return what others do with the local set in a folder."""
    return {
        "zarr": reference_peers.zarr(folder),
        "xarray kerchunk": reference_peers.kerchunk(folder),
        "ManifestStore": reference_peers.manifest(folder),
        "icechunk": reference_peers.icechunk(folder),
    }


@workload("references: expand 10,000 generated keys")
def expand(folder: Path) -> Mapping[str, Contender]:
    """List and resolve what a generator describes.  fsspec needs 11 s for it and is left out."""
    from fsstore import references

    del folder
    gen = {
        "key": "x/{{i}}.{{j}}",
        "url": "s3://{{u}}/file_{{i}}.nc",
        "offset": "{{(i * 100 + j) * 1000}}",
        "length": "1000",
        "dimensions": {"i": {"stop": 100}, "j": {"stop": 100}},
    }
    document = {"version": 1, "templates": {"u": "bucket"}, "gen": [gen], "refs": {}}
    return {"fsstore": lambda: len(references.open(document).expand())}


def adjacent(folder: Path, url: str = "") -> None:
    """Write a file of 2000 chunks without gaps, and references to it."""
    count, size = 2000, 4096
    np.arange(count * size // 4, dtype="<i4").tofile(folder / "values.bin")
    zarray = {
        "zarr_format": 2,
        "shape": [count * size // 4],
        "chunks": [size // 4],
        "dtype": "<i4",
        "order": "C",
        "compressor": None,
        "filters": None,
        "fill_value": None,
    }
    target = url or f"file://{folder}/values.bin"
    refs: dict[str, object] = {f"x/{number}": [target, number * size, size] for number in range(count)}
    refs |= {
        ".zgroup": '{"zarr_format": 2}',
        "x/.zarray": json.dumps(zarray),
        "x/.zattrs": '{"_ARRAY_DIMENSIONS": ["i"]}',
    }
    (folder / "refs.json").write_text(json.dumps({"version": 1, "refs": refs}), encoding="utf-8")
