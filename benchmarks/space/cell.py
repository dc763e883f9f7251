"""A cell: one array at one place and one access to it, drawn from a seed."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace

import numpy as np

__all__ = ["ACCESSES", "STORES", "Cell", "draw"]

READS = ("all", "box", "plane", "row", "strided", "points", "outer", "mask", "one", "many", "out", "in order")
WRITES = ("write all", "write box", "write plane", "write one", "write many", "write tail")
MORE = ("ahead", "list", "write append")
"""Drawn by a second throw, so that the others are what their seeds say in older reports."""
ACCESSES = (*READS, *WRITES, *MORE)
STORES: dict[str, tuple[str, ...]] = {
    "zarr3": ("local", "local", "memory", "zip", "ocdbt", "http", "far", "s3"),
    "zarr2": ("local", "local", "memory", "zip", "http", "far", "s3"),
    "n5": ("local", "http"),
    "precomputed": ("local", "http"),
    "references": ("local", "http", "far"),
    "hdf5": ("local", "http"),
}
"""The stores each format is measured on; one that stands twice is drawn twice as often."""

_FORMATS = ("zarr3",) * 5 + ("zarr2",) * 3 + ("n5", "precomputed", "references", "hdf5")
_READ_ONLY = {"zip", "http", "far"}
_CODECS = {
    "zarr3": ("raw", "zstd", "gzip", "blosc"),
    "zarr2": ("raw", "zstd", "gzip", "blosc"),
    "n5": ("raw", "gzip", "blosc"),
    "precomputed": ("raw",),
    "references": ("raw", "gzip", "zstd"),
    "hdf5": ("raw", "gzip"),
}
_DTYPES = ("uint8", "int16", "uint16", "int32", "float32", "float64")
_CHUNK_BYTES = 2 << 10, 11 << 20
_ARRAY_BYTES = 1 << 20, 96 << 20
_MOST_CHUNKS = 4096
_FAR_STORES, _FAR_CHUNKS = ("far", "s3"), 64  # each costs a wait, and a round has to end


@dataclass(frozen=True)
class Cell:
    """One array, where it is, and what is done with it; `synced` if what is written has to be on the disk."""

    seed: int
    format: str
    store: str
    dtype: str
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    shards: tuple[int, ...] | None
    codec: str
    access: str
    synced: bool = False

    @property
    def nbytes(self) -> int:
        """The size of the array."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    @property
    def writes(self) -> bool:
        """Whether the access changes the array."""
        return self.access.startswith("write ")

    def generator(self) -> np.random.Generator:
        """Return the source of what is random within the cell."""
        return np.random.default_rng(self.seed)

    def __str__(self) -> str:
        """Return the cell on one line; the seed draws it again."""
        shards = "" if self.shards is None else f" shards {'x'.join(map(str, self.shards))}"
        shape, chunks = ("x".join(map(str, sizes)) for sizes in (self.shape, self.chunks))
        where = f"{self.format}/{self.store}"
        access = f"{self.access}, synced" if self.synced else self.access
        return f"{self.seed}: {access}, {where}, {self.dtype} {shape} by {chunks}{shards}, {self.codec}"


def draw(seed: int) -> Cell:
    """Return the cell of a seed."""
    dice = random.Random(seed)
    access = dice.choice((*READS, *WRITES))
    array_format = dice.choice(_FORMATS)
    store = dice.choice(STORES[array_format])
    if access in WRITES and (store in _READ_ONLY or array_format in ("references", "hdf5")):
        array_format, store = dice.choice((("zarr3", "local"), ("zarr2", "local"), ("zarr3", "memory")))
    rank = 4 if array_format == "precomputed" else dice.randint(1, 4)
    kind = np.dtype(dice.choice(_DTYPES[:5] if array_format == "precomputed" else _DTYPES))
    chunks = _sides(dice, rank, _between(dice, *_CHUNK_BYTES) // kind.itemsize)
    wanted = _between(dice, *_ARRAY_BYTES) // kind.itemsize
    most = _FAR_CHUNKS if store in _FAR_STORES else _MOST_CHUNKS
    count = max(1, min(most, wanted // max(1, math.prod(chunks))))
    grid = _sides(dice, rank, count)
    if array_format == "precomputed":  # its last dimension are channels, which chunks do not cut
        chunks, grid = (*chunks[:3], 1), (*grid[:3], 1)
    shape = tuple(
        max(1, side * number - dice.choice((0, 0, side // 3))) for side, number in zip(chunks, grid, strict=False)
    )
    shards = None
    if array_format == "zarr3" and dice.random() < 0.4 and max(grid) > 1:
        shards = tuple(
            side * dice.randint(1, max(1, min(8, number))) for side, number in zip(chunks, grid, strict=False)
        )
    codec = dice.choice(_CODECS[array_format])
    synced = access in WRITES and store == "local" and dice.random() < 0.5
    cell = Cell(seed, array_format, store, kind.name, shape, chunks, shards, codec, access, synced)
    again = random.Random(f"more {seed}")
    other = again.choice(ACCESSES)
    if other not in MORE or not _fits(other, cell):
        return cell
    return replace(cell, access=other, synced=other == "write append" and store == "local" and again.random() < 0.5)


def _fits(access: str, cell: Cell) -> bool:
    """Return whether an access makes sense where a cell is: chunks of local files are not read ahead."""
    if access == "ahead":
        return cell.store in ("http", *_FAR_STORES) and cell.format != "hdf5"
    if cell.format in ("references", "hdf5") or cell.store in ("http", "far"):
        return False
    return access == "list" or (cell.format != "precomputed" and cell.store not in ("zip", "s3"))


def _between(dice: random.Random, low: int, high: int) -> int:
    """Return a size between two, each order of magnitude as likely as another."""
    return int(math.exp(dice.uniform(math.log(low), math.log(high))))


def _sides(dice: random.Random, rank: int, product: int) -> tuple[int, ...]:
    """Return as many sides, whose product is about as given, in any proportion."""
    weights = [dice.uniform(0.2, 1.0) for _ in range(rank)]
    total = sum(weights)
    return tuple(max(1, round(product ** (weight / total))) for weight in weights)
