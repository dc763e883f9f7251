"""Neuroglancer precomputed: raw chunks large and small, sharded and not, labels, and look-ups in large shards."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from benchmarks.harness import Contender, workload
from benchmarks.workloads_store import both

_SHARDING = {
    "@type": "neuroglancer_uint64_sharded_v1",
    "preshift_bits": 6,
    "hash": "identity",
    "minishard_bits": 3,
    "shard_bits": 6,
    "data_encoding": "raw",
    "minishard_index_encoding": "raw",
}
_BLOCKS = {
    "encoding": "compressed_segmentation",
    "chunk_size": [64, 64, 64],
    "compressed_segmentation_block_size": [8, 8, 8],
}
_LARGE = (256, 256, 256)
_SMALL = (352, 352, 320)  # 22 * 22 * 20 chunks
_LOOK_UPS = 2000


def _labels(shape: tuple[int, ...]) -> Any:
    """Return labels that are alike in places, as segments are, a few to a block."""
    grid = np.indices(shape)
    wobble = np.random.default_rng(3).integers(0, 3, (3, *shape))
    segments = ((grid + wobble) // 12).astype(np.uint64)
    return (segments[0] * 977 + segments[1] * 31 + segments[2] + 1)[..., None]


def _prepare(folder: Path, values: Any, scale: Mapping[str, Any]) -> dict[str, Any]:
    """Write a volume with tensorstore, the neutral party, and return the spec that opens it."""
    import tensorstore

    spec = {"driver": "neuroglancer_precomputed", "kvstore": {"driver": "file", "path": f"{folder}/v/"}}
    kind = "segmentation" if values.dtype.itemsize >= 4 else "image"
    made = {
        **spec,
        "multiscale_metadata": {"type": kind, "data_type": values.dtype.name, "num_channels": 1},
        "scale_metadata": {"size": list(values.shape[:3]), "resolution": [4, 4, 40], **scale},
    }
    tensorstore.open(made, create=True).result().write(values).result()
    return spec


def _readers(folder: Path, values: Any, scale: Mapping[str, Any]) -> Mapping[str, Contender]:
    spec = _prepare(folder, values, scale)

    def make(ts: ModuleType) -> Contender:
        store = ts.open(spec).result()
        return lambda: store.read().result()

    return both(make)


def _noise(shape: tuple[int, ...]) -> Any:
    return np.random.default_rng(5).integers(1, 256, (*shape, 1), dtype=np.uint8)


@workload("precomputed: raw chunks of 2 MB", size=np.prod(_LARGE))
def raw_large(folder: Path) -> Mapping[str, Contender]:
    """Read a volume of large raw chunks."""
    return _readers(folder, _noise(_LARGE), {"encoding": "raw", "chunk_size": [128, 128, 128]})


@workload("precomputed: raw chunks of 2 MB in shards", size=np.prod(_LARGE))
def raw_large_sharded(folder: Path) -> Mapping[str, Contender]:
    """Read a volume of large raw chunks in shards."""
    scale = {
        "encoding": "raw",
        "chunk_size": [128, 128, 128],
        "sharding": {**_SHARDING, "preshift_bits": 1, "minishard_bits": 1},
    }
    return _readers(folder, _noise(_LARGE), scale)


@workload("precomputed: 9,680 raw chunks of 4 KB in shards", size=np.prod(_SMALL))
def raw_small_sharded(folder: Path) -> Mapping[str, Contender]:
    """Read a volume of small raw chunks in shards."""
    return _readers(folder, _noise(_SMALL), {"encoding": "raw", "chunk_size": [16, 16, 16], "sharding": _SHARDING})


@workload("precomputed: compressed_segmentation", size=128**3 * 8)
def segmentation(folder: Path) -> Mapping[str, Contender]:
    """Decode labels of 64 bits in blocks of 8."""
    scale = {
        "encoding": "compressed_segmentation",
        "chunk_size": [64, 64, 64],
        "compressed_segmentation_block_size": [8, 8, 8],
    }
    return _readers(folder, _labels((128, 128, 128)), scale)


@workload("precomputed: write compressed_segmentation", size=128**3 * 8)
def write_segmentation(folder: Path) -> Mapping[str, Contender]:
    """Encode labels of 64 bits in blocks of 8."""
    values = _labels((128, 128, 128))
    scale = {
        "encoding": "compressed_segmentation",
        "chunk_size": [64, 64, 64],
        "compressed_segmentation_block_size": [8, 8, 8],
    }
    spec = _prepare(folder, values, scale)

    def make(ts: ModuleType) -> Contender:
        store = ts.open({**spec, "kvstore": "memory://"}, create=True, schema=ts.open(spec).result().schema).result()

        def write() -> Any:
            store.write(values).result()
            return store[0, 0, 0, 0].read().result()

        return write

    return both(make)


@workload("neuroglancer_uint64_sharded: 2,000 look-ups in a million values", in_a_row=3)
def look_ups(folder: Path) -> Mapping[str, Contender]:
    """Look values up, one after the other, in one shard of a million."""
    numbers = np.arange(1_000_000, dtype="<u8")
    head, parts, at = [], [], 0
    for minishard in range(64):
        mine = numbers[minishard::64]
        index = np.zeros((3, len(mine)), "<u8")
        index[0], index[1, 0], index[2] = np.diff(mine, prepend=np.uint64(0)), at, 8
        parts += [mine.tobytes(), index.tobytes()]
        head += [at + mine.nbytes, at + mine.nbytes + index.nbytes]
        at = head[-1]
    (folder / "0.shard").write_bytes(np.array(head, "<u8").tobytes() + b"".join(parts))
    metadata = {**_SHARDING, "preshift_bits": 0, "minishard_bits": 6, "shard_bits": 0}
    spec = {"driver": "neuroglancer_uint64_sharded", "base": f"file://{folder}/", "metadata": metadata}
    keys = [struct.pack(">Q", number) for number in np.random.default_rng(1).integers(0, 10**6, _LOOK_UPS).tolist()]

    def make(ts: ModuleType) -> Contender:
        store = ts.KvStore.open(spec).result()
        return lambda: b"".join(store.read(key).result().value for key in keys)

    return both(make)
