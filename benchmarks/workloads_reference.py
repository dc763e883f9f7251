"""Reading through a kerchunk reference set: many small pieces of one file, compressed chunks, generated keys."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import Contender, workload

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
        f"x/{number}": [f"file://{folder}/values.bin", number * (size + gap), size]
        for number in range(CHUNKS)
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
        "zarr": lambda: _zarr(folder)[:5000],
    }


@workload("references: read 4096 pieces of a file", size=CHUNKS * LENGTH * 4)
def read_set(folder: Path) -> Mapping[str, Contender]:
    """Read all of the array; the set is open."""
    import fsstore

    write_set(folder)
    opened = fsstore.open(f"file://{folder}/refs.json|reference:x/|zarr2:").result()
    plain = _zarr(folder)
    return {"fsstore": lambda: opened.read().result(), "zarr": lambda: plain[...]}


@workload("references: read 2000 adjacent chunks of 4 KB", size=2000 * 4096)
def read_adjacent(folder: Path) -> Mapping[str, Contender]:
    """Chunks that lie side by side in one file, beside one read of the same bytes and what others do."""
    import fsstore

    adjacent(folder)
    opened = fsstore.open(f"file://{folder}/refs.json|reference:x/|zarr2:").result()
    plain = _zarr(folder)

    return {
        "fsstore": lambda: opened.read().result(),
        "zarr": lambda: plain[...],
        "xarray kerchunk, opened": lambda: _kerchunk(folder).x.values,  # an open one keeps what it read
        "icechunk": _icechunk(folder),
        "one read": lambda: np.fromfile(folder / "values.bin", "<i4"),
    }


@workload("references: read 2000 adjacent chunks of 4 KB over HTTP", size=2000 * 4096)
def read_adjacent_http(folder: Path) -> Mapping[str, Contender]:
    """The same from a web server on this machine, beside one request for the same bytes."""
    import urllib.request

    import fsstore

    adjacent(folder)
    url = serve(folder)
    adjacent(folder, f"{url}/values.bin")
    opened = fsstore.open(f"file://{folder}/refs.json|reference:x/|zarr2:").result()
    store = fsstore.KvStore.open(f"{url}/").result()

    def one_request() -> Any:
        with urllib.request.urlopen(f"{url}/values.bin") as response:
            return np.frombuffer(response.read(), "<i4")

    return {
        "fsstore": lambda: opened.read().result(),
        "one read": lambda: np.frombuffer(store.read("values.bin").result().value, "<i4"),
        "urllib": one_request,
    }


@workload("references: read 64 MB of HDF5, zlib and shuffle", size=64 * 2**20)
def read_hdf5(folder: Path) -> Mapping[str, Contender]:
    """A whole variable, beside h5py on the file and zarr on the references."""
    import gc

    import h5py
    from kerchunk.hdf import SingleHdf5ToZarr

    import fsstore

    rng = np.random.default_rng(0)
    walk = np.cumsum(rng.normal(size=(64, 512, 512)).astype("f4"), axis=2).round(2)
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
    plain, file = _zarr(folder), h5py.File(folder / "a.h5")
    return {
        "fsstore": lambda: opened.read().result(),
        "zarr": lambda: plain[...],
        "h5py": lambda: file["x"][...],
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


def serve(folder: Path) -> str:
    """Serve the file of values on the loopback address, ranges included; the thread ends with the process."""
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    data = (folder / "values.bin").read_bytes()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1
        disable_nagle_algorithm = True

        def log_message(self, *args: object) -> None:
            """Keep quiet."""

        def do_GET(self) -> None:
            wanted = self.headers.get("Range")
            first, last = 0, len(data) - 1
            if wanted:
                low, _, high = wanted.removeprefix("bytes=").partition("-")
                first, last = int(low), min(int(high or last), last)
            self.send_response_only(206 if wanted else 200)
            if wanted:
                self.send_header("Content-Range", f"bytes {first}-{last}/{len(data)}")
            self.send_header("Content-Length", str(last - first + 1))
            self.end_headers()
            self.wfile.write(memoryview(data)[first : last + 1])

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_address[1]}"


def _kerchunk(folder: Path) -> Any:
    """Open the set with xarray's kerchunk engine, without dask."""
    import xarray

    options = {"chunks": None}
    return xarray.open_dataset(
        f"{folder}/refs.json",
        engine="kerchunk",
        storage_options={"remote_protocol": "file"},
        open_dataset_options=options,
    )


def _icechunk(folder: Path) -> Contender:
    """Return a reader of the same chunks as virtual references of an icechunk repository."""
    import icechunk
    import zarr

    place = f"file://{folder}/"
    config = icechunk.RepositoryConfig.default()
    config.set_virtual_chunk_container(
        icechunk.VirtualChunkContainer(place, icechunk.local_filesystem_store(str(folder)))
    )
    storage = icechunk.local_filesystem_storage(f"{folder}/repo")
    credentials = icechunk.containers_credentials({place: None})
    repository = icechunk.Repository.create(storage, config, authorize_virtual_chunk_access=credentials)
    session = repository.writable_session("main")
    shape = ((folder / "values.bin").stat().st_size // 4,)
    array = zarr.create_array(
        session.store, name="x", shape=shape, chunks=(1024,), dtype="<i4", compressors=None, filters=None
    )
    for number in range(shape[0] // 1024):
        session.store.set_virtual_ref(
            f"x/c/{number}", f"{place}values.bin", offset=number * 4096, length=4096
        )
    return lambda: array[...]


def _zarr(folder: Path) -> Any:
    """Open the array with zarr over fsspec's filesystem of references."""
    import fsspec
    import zarr
    from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper

    target = AsyncFileSystemWrapper(fsspec.filesystem("file"), asynchronous=True)
    files = fsspec.filesystem(
        "reference",
        fo=f"{folder}/refs.json",
        fs={"file": target},
        asynchronous=True,
        skip_instance_cache=True,
    )
    store = zarr.storage.FsspecStore(files, read_only=True, path="")
    return zarr.open_array(store, path="x", mode="r", zarr_format=2)
