"""A pass over images by one loader of PyTorch, whose samples come through fsstore, tensorstore and zarr-python.

`python -m benchmarks.training` needs torch (the dependency group `training`).  Each library answers the same reads of a
batch: random numbers (`random`), and those of `ChunkSampler`, which come close together (`near`).  The last row is
`BatchedArrays`, which reads each chunk once.  Times are medians of passes that take turns; all results are compared.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorstore
import torch
import zarr
from torch.utils.data import DataLoader, Dataset, RandomSampler

import fsstore as ts
from fsstore.interop.torch import BatchedArrays, ChunkSampler, IndexedArrays

COUNT, SIDE, CHUNK, BATCH, PASSES = 8192, 32, 128, 64, 5


class Samples(Dataset[Any]):
    """Samples by number through a function that reads many at once."""

    def __init__(self, read: Callable[[list[int]], Any]) -> None:
        self.read = read

    def __len__(self) -> int:
        """Return how many samples there are."""
        return COUNT

    def __getitem__(self, number: int) -> Any:
        """Return one of them."""
        return torch.from_numpy(self.read([number])[0])

    def __getitems__(self, numbers: list[int]) -> list[Any]:
        """Return several of them, as the loader asks for a batch."""
        return [torch.from_numpy(self.read(numbers))]


def _made(place: str) -> None:
    array = ts.open(
        f"{place}|zarr3:", mode="w", shape=[COUNT, SIDE, SIDE], dtype="f4", chunks=[CHUNK, SIDE, SIDE], codec="zstd"
    ).result()
    values = np.random.default_rng(0).integers(0, 255, (COUNT, SIDE, SIDE)).astype("f4")
    values[:, 0, 0] = np.arange(COUNT)
    array.write(values).result()


def _loaders(place: str) -> dict[str, DataLoader[Any]]:
    ours = ts.open(place).result()
    theirs = tensorstore.open({"driver": "zarr3", "kvstore": {"driver": "file", "path": place}}).result()
    third = zarr.open_array(place, mode="r")
    readers: dict[str, Callable[[list[int]], Any]] = {
        "fsstore": lambda numbers: ours.oindex[numbers].read().result(),
        "tensorstore": lambda numbers: theirs.oindex[numbers].read().result(),
        "zarr": lambda numbers: third.oindex[numbers],
    }
    found: dict[str, DataLoader[Any]] = {}
    indexed = IndexedArrays(ours)
    for name, read in readers.items():
        data = Samples(read)
        for order, sampler in (("random", RandomSampler(data)), ("near", ChunkSampler(indexed, memory="4MB"))):
            found[f"{order} {name}"] = DataLoader(
                data, batch_size=BATCH, sampler=sampler, collate_fn=lambda batch: batch[0]
            )
    found["BatchedArrays"] = DataLoader(BatchedArrays(ours, BATCH, shuffle=True, memory="4MB"), batch_size=None)
    return found


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as folder:
        place = f"{folder}/images.zarr"
        _made(place)
        times: dict[str, list[float]] = {}
        for _ in range(PASSES):
            for name, loader in _loaders(place).items():
                begin = time.perf_counter()
                seen = torch.cat([batch[:, 0, 0] for batch in loader])
                times.setdefault(name, []).append(time.perf_counter() - begin)
                assert sorted(seen.tolist()) == list(range(COUNT)), name
        for name, each in times.items():
            print(f"{name:20} {statistics.median(each) * 1e3:9.1f} ms a pass of {COUNT} samples")


if __name__ == "__main__":
    main()
