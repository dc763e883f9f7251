"""Arrays of ours as data sets of PyTorch.

    from torch.utils.data import DataLoader
    from fsstore.interop.torch import BatchedArrays

    data = BatchedArrays({"image": images, "label": labels}, 32, shuffle=True)
    loader = DataLoader(data, batch_size=None, num_workers=4)

`BatchedArrays` yields whole batches and is the quick one: chunks are read once a pass, in an order that is random all
the same.  `IndexedArrays` has samples by number, for samplers that choose; `ChunkSampler` is one that lets neighbours
of a chunk come soon after each other.  All of them are shared out over the workers of a loader and the ranks of a run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import distributed
from torch.utils.data import Dataset, IterableDataset, Sampler, get_worker_info

from fsstore.interop.training import Batching, Course, Samples, Share, batches, sample_order
from fsstore.job.plan import parse_bytes

_MOST_WORKERS = 4096  # of a loader, each of which counts its passes
_VIEWED = {
    "bfloat16": (np.int16, torch.bfloat16),
    "float8_e4m3fn": (np.uint8, torch.float8_e4m3fn),
    "float8_e4m3fnuz": (np.uint8, torch.float8_e4m3fnuz),
    "float8_e5m2": (np.uint8, torch.float8_e5m2),
    "float8_e5m2fnuz": (np.uint8, torch.float8_e5m2fnuz),
}
"""Types of ml_dtypes, which PyTorch takes as integers of the same bits and then knows by its own names."""


def _tensor(array: np.ndarray[Any, np.dtype[Any]]) -> Any:
    """Return an array as a tensor that shares its memory; text and times, which are none, stay arrays."""
    seen = _VIEWED.get(array.dtype.name)
    if seen is not None:
        return torch.from_numpy(array.view(seen[0])).view(seen[1])
    return torch.from_numpy(array) if array.dtype.kind in "biufc" else array


class _Epoch:
    """The number of the pass and the seed of its order, the same for all workers of a loader, persistent ones too."""

    def __init__(self, seed: int | None, ranks: int) -> None:
        if seed is None and ranks > 1:
            raise ValueError("Ranks that shuffle together need the same seed; give seed=, and call set_epoch")
        self.seed = seed
        self._number = torch.zeros((), dtype=torch.int64).share_memory_()
        self._passes = 0

    def set(self, number: int) -> None:
        """Begin the pass with a number."""
        self._number.fill_(number)

    def drawn(self, worker: Any) -> list[int]:
        """Return the seed of a pass that begins now."""
        if self.seed is not None:
            return [self.seed, int(self._number)]
        if worker is None:
            return [int(torch.empty((), dtype=torch.int64).random_().item())]
        self._passes += 1  # a persistent worker begins again with the seed that it had
        return [worker.seed - worker.id, self._passes]


def _ranks(rank: int | None, ranks: int | None) -> tuple[int, int]:
    """Return which rank of how many this is: as given, or as `torch.distributed` says, or the only one."""
    running = distributed.is_available() and distributed.is_initialized()
    if ranks is None:
        ranks = distributed.get_world_size() if running else 1
    if rank is None:
        rank = distributed.get_rank() if running else 0
    return Share(rank, ranks).rank, ranks


class BatchedArrays(IterableDataset[Any]):  # type: ignore[misc]  # torch is untyped here
    """The samples of arrays in batches: every sample once a pass, every chunk read and decoded once.

    A sample is what the arrays hold at one index of their first dimension.  `arrays` is one array, a mapping or a
    sequence; a batch has the same form and the samples along its first dimension, in memory of its own.  With `shuffle`
    blocks of chunks come in random order, and samples are mixed within as many of them as half of `memory` holds, which
    each worker needs.  `seed` fixes the order, together with `set_epoch`; without one each pass has another order.

    `rank` and `ranks` are those of `torch.distributed` unless given; each rank yields as many samples as the others, or
    one more, which `even=True` leaves out.
    """

    def __init__(
        self,
        arrays: Any,
        batch_size: int,
        *,
        shuffle: bool = False,
        seed: int | None = None,
        drop_last: bool = False,
        even: bool = False,
        memory: int | str = "256MB",
        rank: int | None = None,
        ranks: int | None = None,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"A batch has at least one sample, not {batch_size}")
        size = parse_bytes(memory)
        self.samples = Samples(arrays, memory=size // 2)
        self._batching = Batching(batch_size, size, drop_last=drop_last, even=even)
        self._rank, self._ranks = _ranks(rank, ranks)
        self._epoch = _Epoch(seed, self._ranks if shuffle else 1)
        self._shuffle = shuffle
        self._now: Course | None = None
        self._course: Course | None = None
        self._passes = torch.zeros(_MOST_WORKERS, dtype=torch.int64).share_memory_()
        """The passes that workers have begun since a state was loaded."""

    def set_epoch(self, number: int) -> None:
        """Say which pass comes next: with a seed, each number has its own order."""
        self._epoch.set(number)

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the batches of this rank and, in a worker of a loader, of this worker."""
        worker = get_worker_info()
        number, count = (0, 1) if worker is None else (worker.id, worker.num_workers)
        share, self._now = self._begun(number, count, worker, self._passes[number] == 0)
        self._passes[number] += 1
        name, bounds, seed = f"{share.rank}/{share.worker}", self.samples.bounds, self._now.seed
        taken = self._now.taken[name]
        blocks = self._now.pieces(bounds)
        for parts in batches(self.samples, self._batching, share, seed, blocks=blocks, skip=taken):
            taken += len(parts[0])
            self._now = replace(self._now, taken={name: taken})
            yield self.samples.formed([_tensor(part) for part in parts])

    def _begun(self, number: int, count: int, worker: Any, is_next: Any) -> tuple[Share, Course]:
        """Return the share and the pass of a worker: a new one, or the rest of the one that was loaded."""
        share = Share(self._rank, self._ranks, number, count)
        seed = tuple(self._epoch.drawn(worker)) if self._shuffle else None
        pool = self._batching.pool_samples(self.samples)
        own = Course(len(self.samples), share.ranks, count, seed, pool, self._batching.even, {})
        if self._course is None or not is_next:
            return share, replace(own, taken={f"{share.rank}/{number}": 0})
        share, course = self._course.shared_by(share, own, self.samples.bounds)
        return share, course if course.taken else replace(course, taken={f"{share.rank}/{share.worker}": 0})

    def state_dict(self, batches: int | None = None, workers: int = 0) -> dict[str, Any]:
        """Return how far the pass is, as JSON: in this process, or where a loader has given out some batches.

        Without arguments it is what `StatefulDataLoader` of torchdata asks each worker for.  For other loaders say how
        many `batches` each rank has taken since the pass began or a state was loaded, and from how many `workers`: the
        state is then that of all ranks.
        """
        if self._shuffle and self._epoch.seed is None:
            raise ValueError("A pass that is shuffled without a seed cannot be gone on with; give seed=")
        worker = get_worker_info()
        number, count = (0, max(1, workers)) if worker is None else (worker.id, worker.num_workers)
        if batches is None and self._now is not None:
            return self._now.to_json()
        begun = self._begun(number, count, worker, self._passes[0] <= (batches is not None))[1]
        course = begun if batches is None else begun.after(batches, self._batching, self.samples.bounds)
        return course.to_json()

    def load_state_dict(self, state: Any) -> None:
        """Go on with a pass where a state says, in the next iteration; `state` may be those of several ranks.

        With as many ranks and workers the batches are those that would have followed.  With others the samples that
        were not given out are shared anew, each once.
        """
        course = Course.of(state)
        if course.samples != len(self.samples):
            raise ValueError(
                f"The state is of {course.samples} samples, and these are {len(self.samples)}; load one of these"
            )
        self._course = course
        self._passes.zero_()


class _Assembled(list[Any]):
    """Samples as a loader wants them, one by one, and the batch that they are parts of."""

    def __init__(self, batch: Any, samples: Sequence[Any]) -> None:
        super().__init__(samples)
        self.batch = batch


class IndexedArrays(Dataset[Any]):  # type: ignore[misc]  # as above
    """The samples of arrays by number; a loader gets all samples of a batch in one read.

    `collate` as the loader's `collate_fn` hands the memory on into which the samples were read; without it the loader
    copies them together again.  Give the arrays a cache (`context={"cache_pool": …}`) where several batches take from
    the same chunks.
    """

    def __init__(self, arrays: Any, *, memory: int | str = "256MB") -> None:
        self.samples = Samples(arrays, memory=parse_bytes(memory))

    def __len__(self) -> int:
        """Return how many samples there are."""
        return len(self.samples)

    def __getitem__(self, number: int) -> Any:
        """Return one sample."""
        return self.__getitems__([number])[0]

    def __getitems__(self, numbers: Sequence[int]) -> list[Any]:
        """Return several samples, read together."""
        parts = [_tensor(part) for part in self.samples.read(numbers)]
        formed = self.samples.formed
        return _Assembled(formed(parts), [formed([part[at] for part in parts]) for at in range(len(numbers))])

    @staticmethod
    def collate(samples: list[Any]) -> Any:
        """Return the batch that samples are parts of."""
        if isinstance(samples, _Assembled):
            return samples.batch
        return torch.utils.data.default_collate(samples)


class ChunkSampler(Sampler[int]):  # type: ignore[misc]  # as above
    """The numbers of the samples of `IndexedArrays` in random order, in which those of a chunk come close together.

    The order is that of `BatchedArrays` with the same seed, without workers.  Each rank gets as many as the others.
    """

    def __init__(
        self,
        data: IndexedArrays,
        *,
        seed: int | None = None,
        memory: int | str = "256MB",
        rank: int | None = None,
        ranks: int | None = None,
    ) -> None:
        rank, ranks = _ranks(rank, ranks)
        self._samples, self._share = data.samples, Share(rank, ranks)
        self._most = Batching(1, parse_bytes(memory)).pool_samples(data.samples)
        self._epoch = _Epoch(seed, ranks)

    def set_epoch(self, number: int) -> None:
        """Say which pass comes next."""
        self._epoch.set(number)

    def __len__(self) -> int:
        """Return how many samples this rank gets."""
        return len(self._samples) // self._share.ranks

    def __iter__(self) -> Iterator[int]:
        """Iterate over the numbers."""
        seed = self._epoch.drawn(None)
        for numbers in sample_order(self._samples.bounds, self._share, seed, self._most, even=True):
            yield from numbers.tolist()
