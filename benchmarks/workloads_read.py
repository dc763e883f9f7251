"""Reading zarr arrays from local files: large chunks, tiny chunks, shards, parts of an array, single elements."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import Contender, workload

MEBIBYTE = 1 << 20


def sample(shape: tuple[int, ...], dtype: str = "uint16") -> np.ndarray:
    """Return smooth data with some noise: it compresses, but not to nothing."""
    generator = np.random.default_rng(7)
    grid = np.add.outer(np.arange(shape[0]) * 3, np.add.outer(np.arange(shape[1]) * 5, np.arange(shape[2]) * 7))
    return (grid + generator.integers(0, 16, shape)).astype(dtype)


def zarr3_spec(folder: Path, shape: tuple[int, ...], chunk: tuple[int, ...], codecs: list[Any]) -> dict[str, Any]:
    """Return a spec that `fsstore.open` and `tensorstore.open` both take."""
    return {
        "driver": "zarr3",
        "kvstore": {"driver": "file", "path": f"{folder}/a.zarr/"},
        "metadata": {
            "shape": list(shape),
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(chunk)}},
            "data_type": "uint16",
            "codecs": codecs,
        },
    }


def prepare(folder: Path, shape: tuple[int, ...], chunk: tuple[int, ...], codecs: list[Any]) -> dict[str, Any]:
    """Write the sample with tensorstore, the neutral party, and return the spec that opens it."""
    import tensorstore

    spec = zarr3_spec(folder, shape, chunk, codecs)
    tensorstore.open(spec, create=True).result().write(sample(shape)).result()
    return spec


def readers(spec: dict[str, Any], select: Callable[[Any], Any]) -> Mapping[str, Contender]:
    """Return a reader per library; the array is opened beforehand, caches are off."""
    import tensorstore
    import zarr

    import fsstore

    def of(array: Any) -> Any:
        return select(array).read().result()

    path = spec["kvstore"]["path"]
    plain = zarr.open_array(path, mode="r")
    with zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"}):
        rust = zarr.open_array(path, mode="r")
    return {
        "fsstore": partial(of, fsstore.open(spec).result()),
        "tensorstore": partial(of, tensorstore.open(spec).result()),
        "zarr": partial(select, plain),
        "zarrs": partial(select, rust),
    }


def everything(array: Any) -> Any:
    """Select all of an array."""
    return array[...]


BYTES = {"name": "bytes", "configuration": {"endian": "little"}}
ZSTD = {"name": "zstd", "configuration": {"level": 1}}
GZIP = {"name": "gzip", "configuration": {"level": 1}}
BLOSC = {
    "name": "blosc",
    "configuration": {"cname": "lz4", "clevel": 5, "shuffle": "shuffle", "typesize": 2, "blocksize": 0},
}
LARGE = ((512, 512, 512), (128, 128, 128))
CUBE = ((256, 256, 256), (128, 128, 128))


@workload("read large chunks, raw", size=256 * MEBIBYTE)
def large_raw(folder: Path) -> Mapping[str, Contender]:
    """256 MiB in 64 chunks of 128³, not compressed."""
    return readers(prepare(folder, *LARGE, [BYTES]), everything)


@workload("read large chunks, blosc", size=256 * MEBIBYTE)
def large_blosc(folder: Path) -> Mapping[str, Contender]:
    """256 MiB in 64 chunks of 128³, blosc with lz4."""
    return readers(prepare(folder, *LARGE, [BYTES, BLOSC]), everything)


@workload("read large chunks, zstd", size=256 * MEBIBYTE)
def large_zstd(folder: Path) -> Mapping[str, Contender]:
    """256 MiB in 64 chunks of 128³, zstd."""
    return readers(prepare(folder, *LARGE, [BYTES, ZSTD]), everything)


@workload("read large chunks, gzip", size=256 * MEBIBYTE)
def large_gzip(folder: Path) -> Mapping[str, Contender]:
    """256 MiB in 64 chunks of 128³, gzip."""
    return readers(prepare(folder, *LARGE, [BYTES, GZIP]), everything)


@workload("read 4096 small chunks, zstd", size=32 * MEBIBYTE)
def small_zstd(folder: Path) -> Mapping[str, Contender]:
    """32 MiB in 4096 chunks of 16³: the cost per chunk."""
    return readers(prepare(folder, (256, 256, 256), (16, 16, 16), [BYTES, ZSTD]), everything)


@workload("read 64 chunks of 64 KB, zstd", size=4 * MEBIBYTE)
def middle_zstd(folder: Path) -> Mapping[str, Contender]:
    """4 MiB in 64 chunks of 32³: begun, made and over within a few wake-ups of a thread."""
    return readers(prepare(folder, (128, 128, 128), (32, 32, 32), [BYTES, ZSTD]), everything)


@workload("read 64 chunks of 64 KB, blosc", size=4 * MEBIBYTE)
def middle_blosc(folder: Path) -> Mapping[str, Contender]:
    """The same with blosc, whose decoding is little more than a copy."""
    return readers(prepare(folder, (128, 128, 128), (32, 32, 32), [BYTES, BLOSC]), everything)


@workload("read a part of 8 chunks of 220 KB, zstd")
def middle_part(folder: Path) -> Mapping[str, Contender]:
    """A corner of 64³ in chunks of 48³."""
    spec = prepare(folder, (128, 128, 128), (48, 48, 48), [BYTES, ZSTD])
    return readers(spec, lambda array: array[:64, :64, :64])


def sharded(sub: int, codecs: list[Any]) -> dict[str, Any]:
    """Return the codec of shards of 256³ with sub-chunks of one size."""
    return {
        "name": "sharding_indexed",
        "configuration": {"chunk_shape": [sub] * 3, "codecs": codecs, "index_codecs": [BYTES, {"name": "crc32c"}]},
    }


def shards(folder: Path, size: int, sub: int, codecs: list[Any]) -> dict[str, Any]:
    """Write shards of 256³ and return the spec."""
    return prepare(folder, (size, 256, 256), (256, 256, 256), [sharded(sub, codecs)])


@workload("read shards of 32³ sub-chunks, zstd", size=64 * MEBIBYTE)
def shard(folder: Path) -> Mapping[str, Contender]:
    """64 MiB in two shards of 512 sub-chunks."""
    return readers(shards(folder, 512, 32, [BYTES, ZSTD]), everything)


@workload("read a shard of 4096 sub-chunks, raw", size=32 * MEBIBYTE)
def shard_raw(folder: Path) -> Mapping[str, Contender]:
    """32 MiB in one shard of sub-chunks of 16³: the cost per sub-chunk."""
    return readers(shards(folder, 256, 16, [BYTES]), everything)


@workload("read 8 sub-chunks of 512 KB of a shard, zstd", size=4 * MEBIBYTE)
def shard_part(folder: Path) -> Mapping[str, Contender]:
    """A part of 128³ of a shard of 64³ sub-chunks."""
    spec = shards(folder, 256, 64, [BYTES, ZSTD])
    return readers(spec, lambda array: array[:128, :128, :128])


@workload("read a corner of a shard")
def shard_corner(folder: Path) -> Mapping[str, Contender]:
    """Eight of the 4096 sub-chunks of a shard."""
    return readers(shards(folder, 256, 16, [BYTES, ZSTD]), lambda array: array[:32, :32, :32])


def _corners(count: int) -> list[tuple[int, int, int]]:
    generator = np.random.default_rng(11)
    return [tuple(corner) for corner in generator.integers(0, 248, (count, 3)).tolist()]


def _boxes_one_by_one(array: Any) -> Any:
    found = []
    for x, y, z in _corners(10):
        box = array[x : x + 8, y : y + 8, z : z + 8]
        found.append(box.read().result() if hasattr(box, "read") else box)
    return np.stack(found)


def _boxes_at_once(array: Any) -> Any:
    boxes = [array[x : x + 8, y : y + 8, z : z + 8] for x, y, z in _corners(200)]
    if hasattr(boxes[0], "read"):
        boxes = [future.result() for future in [box.read() for box in boxes]]
    return np.stack(boxes)


def _directly(spec: dict[str, Any], compute: Callable[[Any], Any]) -> Mapping[str, Contender]:
    import tensorstore

    import fsstore

    return {
        "fsstore": partial(compute, fsstore.open(spec).result()),
        "tensorstore": partial(compute, tensorstore.open(spec).result()),
    }


@workload("read 10 random boxes of 8³, one by one")
def boxes(folder: Path) -> Mapping[str, Contender]:
    """Each box touches up to eight chunks of 128³."""
    return _directly(prepare(folder, *CUBE, [BYTES, BLOSC]), _boxes_one_by_one)


@workload("read 200 random boxes of 8³, at once")
def boxes_at_once(folder: Path) -> Mapping[str, Contender]:
    """All reads begin before the first result is asked for."""
    return _directly(prepare(folder, *CUBE, [BYTES, BLOSC]), _boxes_at_once)


@workload("read a plane")
def plane(folder: Path) -> Mapping[str, Contender]:
    """One plane across four chunks of 128³."""
    return readers(prepare(folder, *CUBE, [BYTES, ZSTD]), lambda array: array[100])


@workload("read 10,000 points")
def points(folder: Path) -> Mapping[str, Contender]:
    """Random points, listed by three index arrays."""
    where = tuple(np.random.default_rng(5).integers(0, 256, (3, 10_000)))
    return readers(prepare(folder, *CUBE, [BYTES, ZSTD]), lambda array: array.vindex[where])


@workload("read a strided part, zstd")
def strided(folder: Path) -> Mapping[str, Contender]:
    """Every fourth element of a quarter of the array: the decoded chunks are mostly thrown away."""
    return readers(prepare(folder, *CUBE, [BYTES, ZSTD]), lambda array: array[:256:4, :128:4, ::4])


@workload("read one element, raw chunk of 16³")
def element(folder: Path) -> Mapping[str, Contender]:
    """A single number: the fixed cost of a read."""
    spec = prepare(folder, (64, 64, 64), (16, 16, 16), [BYTES])
    return readers(spec, lambda array: array[33, 20, 7])


@workload("read 500 single elements, one by one")
def elements(folder: Path) -> Mapping[str, Contender]:
    """Five hundred small reads in a row, as a loop of a careless program makes them."""
    spec = prepare(folder, (64, 64, 64), (16, 16, 16), [BYTES])
    one = readers(spec, lambda array: array[33, 20, 7])
    return {library: (lambda read=read: [read() for _ in range(500)]) for library, read in one.items()}
