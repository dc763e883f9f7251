"""The array of a cell as it is stored, and every library that opens it there.

tensorstore, the neutral party, writes the array into a local folder; other stores are made of its files.  Cells that
write have a copy of the folder for each library.
"""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.far_server import FarServer
from benchmarks.harness import Contender, same
from benchmarks.reference_peers import zarr_array
from benchmarks.space.access import access_of, sample
from benchmarks.space.bucket import bucket
from benchmarks.space.cell import Cell

__all__ = ["contenders"]

_DRIVERS = {"zarr3": "zarr3", "zarr2": "zarr", "n5": "n5", "precomputed": "neuroglancer_precomputed"}
_ENDIAN = {"name": "bytes", "configuration": {"endian": "little"}}
_V3: dict[str, list[dict[str, Any]]] = {
    "raw": [],
    "zstd": [{"name": "zstd", "configuration": {"level": 1}}],
    "gzip": [{"name": "gzip", "configuration": {"level": 1}}],
}
_V2: dict[str, dict[str, Any] | None] = {
    "raw": None,
    "zstd": {"id": "zstd", "level": 1},
    "gzip": {"id": "gzip", "level": 1},
    "blosc": {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0},
}
_N5: dict[str, dict[str, Any]] = {
    "raw": {"type": "raw"},
    "gzip": {"type": "gzip", "level": 1},
    "blosc": {"type": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0},
}


def contenders(cell: Cell, folder: Path) -> Mapping[str, Contender]:
    """Return what does the access of a cell, by library, each on an array that is open."""
    access = access_of(cell)
    made = folder / "made"
    _write(cell, made)
    expected = access.numpy(sample(cell))
    found: dict[str, Contender] = {}
    ground = Ground(cell, made, folder, [])
    for library, open_array in _openers(ground):
        say = access.tensorstore if library in ("fsstore", "tensorstore") else None
        opened = open_array()
        run = partial(say, _module(library), opened) if say is not None else partial(access.zarr, opened)
        if cell.access == "ahead":  # what was fetched by the run before is gone
            run = partial(_anew, open_array, run.func, run.args[:-1])
        read = partial(np.asarray, opened) if cell.writes else None
        found[library] = _Checked(run, read, expected, ground.servers)
    return found


class _Checked:
    """A contender whose first result is compared with NumPy's; of one that writes, all that stands there then."""

    def __init__(
        self, run: Callable[[], Any], read: Callable[[], Any] | None, expected: Any, servers: list[FarServer]
    ) -> None:
        self._run, self._read, self._servers = run, read, servers
        self._expected: Any = expected

    def __call__(self) -> Any:
        """Do it."""
        result = self._run()
        if self._expected is not None:
            expected, self._expected = self._expected, None
            if not same(result if self._read is None else self._read(), expected):
                raise AssertionError("the result is not NumPy's")
        return result


def _anew(open_array: Callable[[], Any], run: Callable[..., Any], first: tuple[Any, ...]) -> Any:
    return run(*first, open_array())


def _module(library: str) -> Any:
    import tensorstore

    import fsstore

    return fsstore if library == "fsstore" else tensorstore


def _metadata(cell: Cell) -> dict[str, Any]:
    kind = np.dtype(cell.dtype)
    if cell.format == "zarr3":
        blosc = {"cname": "lz4", "clevel": 5, "shuffle": "shuffle", "typesize": kind.itemsize, "blocksize": 0}
        steps = [_ENDIAN, *(_V3 | {"blosc": [{"name": "blosc", "configuration": blosc}]})[cell.codec]]
        outer = cell.shards or cell.chunks
        if cell.shards is not None:
            inner = {"chunk_shape": list(cell.chunks), "codecs": steps, "index_codecs": [_ENDIAN, {"name": "crc32c"}]}
            steps = [{"name": "sharding_indexed", "configuration": inner}]
        grid = {"name": "regular", "configuration": {"chunk_shape": list(outer)}}
        return {"shape": list(cell.shape), "chunk_grid": grid, "data_type": cell.dtype, "codecs": steps}
    if cell.format == "n5":
        sizes = {"dimensions": list(cell.shape), "blockSize": list(cell.chunks), "dataType": cell.dtype}
        return {**sizes, "compression": _N5[cell.codec]}
    sizes = {"shape": list(cell.shape), "chunks": list(cell.chunks), "dtype": kind.str}
    return {**sizes, "compressor": _V2[cell.codec]}


def _spec(cell: Cell, kvstore: dict[str, Any]) -> dict[str, Any]:
    if cell.format != "precomputed":
        return {"driver": _DRIVERS[cell.format], "kvstore": kvstore, "metadata": _metadata(cell)}
    scale = {
        "size": list(cell.shape[:3]),
        "encoding": "raw",
        "chunk_size": list(cell.chunks[:3]),
        "resolution": [1, 1, 1],
    }
    volume = {"data_type": cell.dtype, "num_channels": cell.shape[3], "type": "image"}
    return {
        "driver": _DRIVERS["precomputed"],
        "kvstore": kvstore,
        "multiscale_metadata": volume,
        "scale_metadata": scale,
    }


def _write(cell: Cell, made: Path) -> None:
    """Write the array into a folder; references and HDF5 have a file beside it."""
    import tensorstore

    made.mkdir()
    if cell.format == "hdf5":
        import h5py

        filters = {"compression": "gzip", "compression_opts": 1, "shuffle": True} if cell.codec == "gzip" else {}
        with h5py.File(made / "a.h5", "w") as file:
            chunks = tuple(map(min, cell.chunks, cell.shape))
            file.create_dataset("x", data=sample(cell), chunks=chunks, **filters)
        return
    where = made / ("x" if cell.format == "references" else "")
    spec = _spec(_as_v2(cell), {"driver": "file", "path": f"{where}/"})
    tensorstore.open(spec, create=True).result().write(sample(cell)).result()
    if cell.format == "references":
        _refer(made)


def _as_v2(cell: Cell) -> Cell:
    from dataclasses import replace

    return replace(cell, format="zarr2") if cell.format == "references" else cell


def _refer(made: Path) -> None:
    """Put the chunks of the array `x` into one file, and a reference set of them beside it."""
    refs: dict[str, Any] = {".zgroup": json.dumps({"zarr_format": 2})}
    with (made / "blob").open("wb") as blob:
        for path in sorted((made / "x").iterdir()):
            data, key = path.read_bytes(), f"x/{path.name}"
            if path.name.startswith("."):
                refs[key] = data.decode()
                continue
            refs[key] = [f"file://{made}/blob", blob.tell(), len(data)]
            blob.write(data)
    (made / "refs.json").write_text(json.dumps({"version": 1, "refs": refs}), encoding="utf-8")


Opener = tuple[str, Callable[[], Any]]


class Ground(NamedTuple):
    """Where the array of a cell is: in files of the folder `made`, below the cell's own, and behind servers."""

    cell: Cell
    made: Path
    folder: Path
    servers: list[FarServer]

    def served(self, delay: float) -> FarServer:
        """Return a server of the files, which ends with the last who knows the list."""
        self.servers.append(FarServer(self.made, delay))
        return self.servers[-1]


def _openers(ground: Ground) -> Iterator[Opener]:
    """Yield each library that opens the array, and how."""
    if ground.cell.format == "hdf5":
        yield from _hdf5(ground)
    elif ground.cell.format == "references":
        yield from _references(ground)
    else:
        yield from _STORES[ground.cell.store](ground)


def _both(cell: Cell, ours: Callable[[str], dict[str, Any]]) -> Iterator[Opener]:
    """Yield the two libraries that take one spec; each opens the store that `ours` names for it."""
    import tensorstore

    import fsstore

    for library, module in (("fsstore", fsstore), ("tensorstore", tensorstore)):
        spec = {name: value for name, value in _spec(cell, ours(library)).items() if not name.endswith("metadata")}
        if cell.writes and cell.store == "local":
            spec["context"] = {"file_io_sync": cell.synced}
        if cell.access == "ahead":
            ahead = {"read_ahead": 8} if library == "fsstore" else {}
            spec |= {"recheck_cached_data": "open", "recheck_cached_metadata": "open"}
            spec["context"] = {"cache_pool": {"total_bytes_limit": 1 << 26, **ahead}}
        yield library, lambda module=module, spec=spec: module.open(spec).result()


def _zarrs(cell: Cell, store: Any) -> Iterator[Opener]:
    """Yield zarr-python over a store, with its own pipeline and, for version 3, with that of zarrs; it never syncs."""
    import zarr

    if cell.format not in ("zarr2", "zarr3") or cell.synced:
        return
    mode = "r+" if cell.writes else "r"
    yield "zarr", lambda: zarr.open_array(store("zarr"), mode=mode)
    if cell.format == "zarr3" and cell.store == "local":
        yield "zarrs", lambda: _with_zarrs(store("zarrs"), mode)


def _with_zarrs(store: Any, mode: str) -> Any:
    import zarr

    with zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"}):
        return zarr.open_array(store, mode=mode)


def _local(ground: Ground) -> Iterator[Opener]:
    cell, made, folder, _ = ground

    def place(library: str) -> Path:
        if not cell.writes:
            return made
        own = folder / library
        if not own.exists():
            shutil.copytree(made, own)
        return own

    yield from _both(cell, lambda library: {"driver": "file", "path": f"{place(library)}/"})
    yield from _zarrs(cell, lambda library: str(place(library)))


def _memory(ground: Ground) -> Iterator[Opener]:
    cell, made, folder, _ = ground
    import tensorstore
    import zarr
    from zarr.core.buffer import default_buffer_prototype

    import fsstore

    values = {str(path.relative_to(made)): path.read_bytes() for path in made.rglob("*") if path.is_file()}
    spec = {
        name: value
        for name, value in _spec(cell, {"driver": "memory", "path": "a/"}).items()
        if not name.endswith("metadata")
    }
    for library, module in (("fsstore", fsstore), ("tensorstore", tensorstore)):
        context = module.Context()
        store = module.KvStore.open({"driver": "memory", "path": "a/"}, context=context).result()
        for key, value in values.items():
            store[key] = value
        yield library, lambda module=module, context=context: module.open(spec, context=context).result()
    make = default_buffer_prototype().buffer.from_bytes
    held = zarr.storage.MemoryStore({key: make(value) for key, value in values.items()})
    yield from _zarrs(cell, lambda library: held)


def _zip(ground: Ground) -> Iterator[Opener]:
    cell, made, folder, _ = ground
    import zarr

    path = folder / "a.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for each in made.rglob("*"):
            if each.is_file():
                archive.write(each, str(each.relative_to(made)))
    base = {"driver": "file", "path": str(path)}
    yield from _both(cell, lambda library: {"driver": "zip", "base": base})
    yield from _zarrs(cell, lambda library: zarr.storage.ZipStore(path, mode="r"))


def _ocdbt(ground: Ground) -> Iterator[Opener]:
    cell, made, folder, _ = ground
    import tensorstore

    def place(library: str) -> dict[str, Any]:
        own = folder / (library if cell.writes else "database")
        database = {"driver": "ocdbt", "base": {"driver": "file", "path": f"{own}/"}, "path": "a/"}
        if not own.exists():
            store = tensorstore.KvStore.open(database).result()
            with tensorstore.Transaction() as transaction:
                bound = store.with_transaction(transaction)
                for each in made.rglob("*"):
                    if each.is_file():
                        bound[str(each.relative_to(made))] = each.read_bytes()
        return database

    yield from _both(cell, place)


def _web(ground: Ground, delay: float) -> Iterator[Opener]:
    cell = ground.cell
    import zarr

    server = ground.served(delay)
    yield from _both(cell, lambda library: {"driver": "http", "base_url": f"{server.url}/"})
    yield from _zarrs(cell, lambda library: zarr.storage.FsspecStore.from_url(server.url, read_only=True))


def _s3(ground: Ground) -> Iterator[Opener]:
    cell, made, folder, _ = ground

    def prefix(library: str) -> str:
        own = f"{folder.name}-{library if cell.writes else 'all'}"
        if own not in filled:
            filled.add(own)
            bucket().fill(made, own)
        return own

    filled: set[str] = set()
    yield from _both(cell, lambda library: bucket().spec(prefix(library)))
    yield from _zarrs(cell, lambda library: bucket().obstore(prefix(library)))


_STORES: dict[str, Callable[[Ground], Iterator[Opener]]] = {
    "local": _local,
    "memory": _memory,
    "zip": _zip,
    "ocdbt": _ocdbt,
    "http": partial(_web, delay=0.0),
    "far": partial(_web, delay=0.03),
    "s3": _s3,
}


def _references(ground: Ground) -> Iterator[Opener]:
    import fsstore

    cell, made = ground.cell, ground.made
    protocol = "file"
    if cell.store != "local":
        server = ground.served(0.03 if cell.store == "far" else 0.0)
        text = (made / "refs.json").read_text(encoding="utf-8").replace(f"file://{made}", server.url)
        (made / "refs.json").write_text(text, encoding="utf-8")
        protocol = "http"
    url = f"file://{made}/refs.json|reference:x|zarr2:"
    allowed = {"driver": "zarr", "kvstore": _set(made, protocol)}
    yield "fsstore", lambda: fsstore.open(allowed if protocol == "http" else url).result()
    yield "zarr", lambda: zarr_array(made, protocol)


def _set(made: Path, protocol: str) -> dict[str, Any]:
    base = {"driver": "file", "path": f"{made}/refs.json"}
    return {"driver": "reference", "base": base, "path": "x/", "allow": [f"{protocol}://"]}


def _hdf5(ground: Ground) -> Iterator[Opener]:
    import fsspec
    import h5py

    import fsstore

    cell, made = ground.cell, ground.made
    server = ground.served(0.0) if cell.store == "http" else None
    place = f"file://{made}" if server is None else server.url

    def opened(**cached: str) -> Any:
        file = made / "a.h5" if server is None else fsspec.open(f"{place}/a.h5", **cached).open()
        return h5py.File(file, rdcc_nbytes=0)["x"]

    yield "fsstore", lambda: fsstore.open(f"{place}/a.h5|hdf5:x").result()
    if access_of(cell).plain:  # fsspec keeps blocks that it has read, and never asks for them again
        yield "h5py", opened
        if server is not None:
            yield "h5py without cache", partial(opened, cache_type="none")
