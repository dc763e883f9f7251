"""Writing zarr arrays to local files: whole arrays, many small chunks, and parts of chunks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from benchmarks.harness import Contender, workload
from benchmarks.workloads_read import BLOSC, BYTES, MEBIBYTE, ZSTD, sample, sharded, zarr3_spec


def checked(write: Contender, read: Contender) -> Contender:
    """Return a writer whose first call also returns the array read back, to be compared; the others only write."""
    first = [True]

    def run() -> Any:
        write()
        return read() if first and first.pop() else None

    return run


def writers(
    folder: Path, shape: tuple[int, ...], chunk: tuple[int, ...], codecs: list[Any], regions: Sequence[Any] = (...,)
) -> Mapping[str, Contender]:
    """Return a writer per library, each with an array of its own; what it wrote first is compared.

    The regions, all of one shape, take turns.
    """
    import tensorstore
    import zarr

    import fsstore

    data = sample(shape)
    part = np.ascontiguousarray(data[regions[0]]) + 1

    def spec(name: str) -> dict[str, Any]:
        return zarr3_spec(folder / name, shape, chunk, codecs)

    def module(name: str, library: ModuleType) -> Contender:
        array = library.open(spec(name), create=True).result()
        array.write(data).result()
        turns = cycle(regions)

        return checked(lambda: array[next(turns)].write(part).result(), lambda: array.read().result())

    def plain() -> Contender:
        tensorstore.open(spec("zarr"), create=True).result()
        array = zarr.open_array(f"{folder}/zarr/a.zarr", mode="r+")
        array[...] = data
        turns = cycle(regions)

        def write() -> None:
            array[next(turns)] = part

        return checked(write, lambda: array[...])

    return {"fsstore": module("fsstore", fsstore), "tensorstore": module("tensorstore", tensorstore), "zarr": plain()}


WHOLE = ((512, 256, 256), (128, 128, 128))


@workload("write large chunks, raw", size=64 * MEBIBYTE, in_a_row=2)
def large_raw(folder: Path) -> Mapping[str, Contender]:
    """64 MiB in 16 chunks of 128³, not compressed."""
    return writers(folder, *WHOLE, [BYTES])


@workload("write large chunks, zstd", size=64 * MEBIBYTE, in_a_row=2)
def large(folder: Path) -> Mapping[str, Contender]:
    """64 MiB in 16 chunks of 128³."""
    return writers(folder, *WHOLE, [BYTES, ZSTD])


@workload("write large chunks, blosc", size=64 * MEBIBYTE, in_a_row=2)
def large_blosc(folder: Path) -> Mapping[str, Contender]:
    """64 MiB in 16 chunks of 128³, blosc with lz4."""
    return writers(folder, *WHOLE, [BYTES, BLOSC])


@workload("write shards of 32³ sub-chunks, zstd", size=64 * MEBIBYTE, in_a_row=2)
def shard(folder: Path) -> Mapping[str, Contender]:
    """64 MiB in two shards of 512 sub-chunks."""
    return writers(folder, (512, 256, 256), (256, 256, 256), [sharded(32, [BYTES, ZSTD])])


@workload("write 4096 small chunks, zstd", size=32 * MEBIBYTE)
def small(folder: Path) -> Mapping[str, Contender]:
    """32 MiB in 4096 chunks of 16³: the cost per file."""
    return writers(folder, (256, 256, 256), (16, 16, 16), [BYTES, ZSTD])


@workload("write parts of chunks, zstd", size=MEBIBYTE // 2, in_a_row=8)
def parts(folder: Path) -> Mapping[str, Contender]:
    """The lower half along every axis, off the chunk borders: read, modify, write."""
    return writers(folder, (128, 128, 128), (48, 48, 48), [BYTES, ZSTD], [np.s_[:64, :64, :64]])


@workload("write parts of chunks, others each time, zstd", size=MEBIBYTE // 2, in_a_row=8)
def other_parts(folder: Path) -> Mapping[str, Contender]:
    """The same of eight parts of a longer array in turns: more chunks than anybody remembers."""
    regions = [np.s_[first : first + 64, :64, :64] for first in range(0, 8 * 144, 144)]
    return writers(folder, (8 * 144, 128, 128), (48, 48, 48), [BYTES, ZSTD], regions)


def begun_together(folder: Path, step: int) -> Mapping[str, Contender]:
    """Return writers of 200 parts of an array of 200 chunks, each of `step` rows, all begun before any is awaited."""
    import tensorstore

    import fsstore

    data = sample((3200, 8, 8))

    def make(library: ModuleType) -> Contender:
        spec = zarr3_spec(folder / library.__name__, data.shape, (16, 8, 8), [BYTES])
        array = library.open(spec, create=True).result()
        array.write(data).result()

        def write() -> None:
            begun = [array[row : row + step].write(data[row : row + step] + 1) for row in range(0, 200 * step, step)]
            for future in begun:
                future.result()

        return checked(write, lambda: array.read().result())

    return {"fsstore": make(fsstore), "tensorstore": make(tensorstore)}


@workload("write 200 small chunks, all begun before any is awaited")
def small_together(folder: Path) -> Mapping[str, Contender]:
    """200 chunks of two kilobytes, one write each."""
    return begun_together(folder, 16)


@workload("write 200 parts of 50 small chunks, all begun before any is awaited")
def parts_together(folder: Path) -> Mapping[str, Contender]:
    """Four writes a chunk: read, modify, write."""
    return begun_together(folder, 4)
