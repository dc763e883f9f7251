"""Samples for training: their order in each epoch, the reads that bring them, and passes that can be continued."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise, product
from typing import Any, TypeAlias

import numpy as np

from fsstore.arrays.protocols import chunk_sizes
from fsstore.arrays.store import TensorStore
from fsstore.errors import StoreError
from fsstore.index import d
from fsstore.runtime import fork
from fsstore.runtime.future import Future
from fsstore.values.json_value import quote

# The order of one pass over samples that lie in chunks: random, and yet every chunk is wanted once.

Pieces: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"
"""Ranges of samples, as rows of a begin and an end."""


@dataclass(frozen=True, slots=True)
class Share:
    """The part of a pass that one worker takes: a worker of the workers of a rank of the ranks."""

    rank: int = 0
    ranks: int = 1
    worker: int = 0
    workers: int = 1

    def __post_init__(self) -> None:
        for name, number, count in (("rank", self.rank, self.ranks), ("worker", self.worker, self.workers)):
            if not 0 <= number < count:
                raise ValueError(f"{name} is {number}, but there are {count} of them, numbered from 0")


def blocks_of(bounds: Sequence[int]) -> Pieces:
    """Return the blocks between boundaries."""
    return np.stack([np.asarray(bounds[:-1], np.int64), np.asarray(bounds[1:], np.int64)], axis=1)


def pieces_of(
    bounds: Sequence[int] | Pieces, share: Share, seed: Sequence[int] | None, *, even: bool = False
) -> Pieces:
    """Return the pieces of a share in the order of the pass: shuffled by the seed, or as they lie without one.

    `bounds` are boundaries of blocks, or blocks that leave something out.

    The shares of all ranks and workers together have every sample once; with `even` up to `ranks - 1` samples at the
    end are left out, so that all ranks have as many.

    >>> pieces_of([0, 4, 8, 10], Share(rank=1, ranks=2), None).tolist()
    [[5, 8], [8, 10]]
    """
    blocks = bounds if isinstance(bounds, np.ndarray) else blocks_of(bounds)
    total = int((blocks[:, 1] - blocks[:, 0]).sum())
    if seed is not None:
        blocks = np.random.default_rng(list(seed)).permutation(blocks, axis=0)
    if even:
        total -= total % share.ranks
    mine = _cut(blocks, total * share.rank // share.ranks, total * (share.rank + 1) // share.ranks)
    sizes = mine[:, 1] - mine[:, 0]
    middle = np.cumsum(sizes) - sizes // 2
    worker = np.minimum(middle * share.workers // max(int(sizes.sum()), 1), share.workers - 1)
    chosen: Pieces = mine[worker == share.worker]
    return chosen


def _cut(blocks: Pieces, low: int, high: int) -> Pieces:
    """Return the parts of blocks that hold the samples from `low` to `high` of the sequence that they make."""
    ends = np.cumsum(blocks[:, 1] - blocks[:, 0])
    begins = ends - (blocks[:, 1] - blocks[:, 0])
    first, last = np.maximum(begins, low), np.minimum(ends, high)
    kept = first < last
    parts: Pieces = np.stack([blocks[:, 0] + first - begins, blocks[:, 0] + last - begins], axis=1)[kept]
    return parts


def pools_of(pieces: Pieces, most: int) -> Iterator[Pieces]:
    """Yield the pieces in groups of at most `most` samples; a larger piece is a group by itself."""
    begin, held = 0, 0
    for number, size in enumerate((pieces[:, 1] - pieces[:, 0]).tolist()):
        if held and held + size > most:
            yield pieces[begin:number]
            begin, held = number, 0
        held += size
    if held:
        yield pieces[begin:]


def sample_order(
    bounds: Sequence[int] | Pieces, share: Share, seed: Sequence[int] | None, most: int, *, even: bool = False
) -> Iterator[np.ndarray[Any, np.dtype[np.int64]]]:
    """Yield the numbers of the samples of a share, pool by pool, in the order in which a pass gives them."""
    chosen = pieces_of(bounds, share, seed, even=even)
    for number, pool in enumerate(pools_of(chosen, most)):
        numbers = np.concatenate([np.arange(low, high) for low, high in pool])
        yield numbers if seed is None else numbers[permutation(len(numbers), share, seed, number)]


def permutation(count: int, share: Share, seed: Sequence[int], pool: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the order of the samples of a pool, which is another one for each worker and each pool."""
    return np.random.default_rng([*seed, share.rank, share.worker, pool, 1]).permutation(count)


Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"


class Fetching:
    """Samples that are being read: memory for each array, and what fills it."""

    def __init__(self, memory: list[Array], begun: list[Future[Any]]) -> None:
        self._memory, self._begun = memory, begun

    def result(self) -> list[Array]:
        """Wait, and return the samples of each array."""
        for future in self._begun:
            future.result()
        return self._memory


class Samples:
    """Arrays of as many samples each: one array, a mapping of names to arrays, or several in a row.

    A sample is what the arrays hold at one index of their first dimension; views count from zero whatever their domain
    says.  `bounds` are the boundaries of blocks that are read at once: those of chunks of all arrays together, so far
    as such a block has room in `memory` bytes, and otherwise those of the array with the largest samples.  An array
    whose chunks are cut by them is kept in memory after the first look, if it needs an eighth of that at most.
    """

    def __init__(self, arrays: Any, *, memory: int) -> None:
        self._form = arrays if isinstance(arrays, Mapping) else None
        self.single = isinstance(arrays, TensorStore)
        found = [arrays] if self.single else list(arrays.values() if isinstance(arrays, Mapping) else arrays)
        self.names = list(arrays) if isinstance(arrays, Mapping) else list(range(len(found)))
        _check(found, self.names)
        self.stores: list[TensorStore] = [store[d[:].translate_to[0]] for store in found]
        self.length: int = found[0].shape[0]
        self._keep = memory // 8
        self.bounds = _bounds(self.stores, memory, self._keep)
        self._whole: dict[int, Array] = {}
        self._lock = fork.lock()

    def __len__(self) -> int:
        """Return how many samples there are."""
        return self.length

    @property
    def sample_bytes(self) -> int:
        """How many bytes one sample of all arrays has."""
        return max(1, sum(map(_sample_bytes, self.stores)))

    def formed(self, parts: Sequence[Any]) -> Any:
        """Return parts, one for each array, in the form in which the arrays were given."""
        if self.single:
            return parts[0]
        return tuple(parts) if self._form is None else dict(zip(self.names, parts, strict=True))

    def read(self, numbers: Any) -> list[Array]:
        """Return the samples with these numbers, of each array, read together; each chunk is decoded once."""
        wanted = np.asarray(numbers, np.int64)
        wanted = np.where(wanted < 0, wanted + self.length, wanted)
        if wanted.size and not 0 <= int(wanted.min()) <= int(wanted.max()) < self.length:
            raise IndexError(f"A sample is not among the {self.length} that there are")
        return self._begin(wanted).result()

    def begin(self, pieces: Pieces) -> Fetching:
        """Begin to read ranges of samples, one after the other, into the same memory."""
        sizes = (pieces[:, 1] - pieces[:, 0]).tolist()
        memory, begun = [], []
        for number, store in enumerate(self.stores):
            held = np.empty((sum(sizes), *store.shape[1:]), store.dtype.numpy_dtype)
            memory.append(held)
            at = 0
            for (low, high), size in zip(pieces.tolist(), sizes, strict=True):
                part, at = held[at : at + size], at + size
                if self._is_kept(number):
                    part[...] = self._kept(number)[low:high]
                else:
                    begun.append(store[low:high].read(out=part))
        return Fetching(memory, begun)

    def _begin(self, wanted: np.ndarray[Any, np.dtype[np.int64]]) -> Fetching:
        memory, begun = [], []
        first = int(wanted[0]) if wanted.size else 0
        in_a_row = np.array_equal(wanted, np.arange(first, first + wanted.size))
        for number, store in enumerate(self.stores):
            held = np.empty((wanted.size, *store.shape[1:]), store.dtype.numpy_dtype)
            memory.append(held)
            if self._is_kept(number):
                np.take(self._kept(number), wanted, axis=0, out=held, mode="clip")
            elif in_a_row:
                begun.append(store[first : first + wanted.size].read(out=held))
            else:
                begun.append(store.oindex[wanted].read(out=held))
        return Fetching(memory, begun)

    def _is_kept(self, number: int) -> bool:
        store = self.stores[number]
        if _sample_bytes(store) * self.length > self._keep:
            return False
        return not set(self.bounds) <= set(_boundaries(store))

    def _kept(self, number: int) -> Array:
        with self._lock:
            if number not in self._whole:
                self._whole[number] = self.stores[number].read().result()
            return self._whole[number]

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the arrays; what is kept is read again."""
        return {name: value for name, value in vars(self).items() if name not in ("_whole", "_lock")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take what was pickled."""
        vars(self).update(state, _whole={}, _lock=fork.lock())


def _check(stores: list[Any], names: list[Any]) -> None:
    if not stores:
        raise StoreError("There are no arrays to take samples of")
    for name, store in zip(names, stores, strict=True):
        if not isinstance(store, TensorStore):
            raise TypeError(f"Samples are taken of fsstore.TensorStore, not of {type(store).__name__}")
        if not store.rank:
            raise StoreError(f"The array {quote(str(name))} has no dimension that could count samples")
        if store.shape[0] != stores[0].shape[0]:
            raise StoreError(
                f"The array {quote(str(name))} has {store.shape[0]} samples, but {quote(str(names[0]))} has"
                f" {stores[0].shape[0]}"
            )


def _sample_bytes(store: TensorStore) -> int:
    return int(np.prod(store.shape[1:], dtype=np.int64)) * store.dtype.numpy_dtype.itemsize


def _boundaries(store: TensorStore) -> list[int]:
    """Return the boundaries of chunks along the first dimension, the ends included."""
    return [0, *np.cumsum(chunk_sizes(store)[0]).tolist()]


def _bounds(stores: list[TensorStore], memory: int, keep: int) -> list[int]:
    """Return the boundaries of the blocks that are read at once."""
    heaviest = max(stores, key=_sample_bytes)
    large = [store for store in stores if store is heaviest or _sample_bytes(store) * store.shape[0] > keep]
    common = set(_boundaries(heaviest)).intersection(*map(_boundaries, large))
    size = sum(map(_sample_bytes, stores))
    together = sorted(common)
    largest = max((high - low for low, high in pairwise(together)), default=0)
    return together if largest * size <= memory else _boundaries(heaviest)


# A pass that is continued after it was ended, by as many ranks and workers or others.


@dataclass(frozen=True, slots=True)
class Course:
    """A pass and how far it has come: who shares it, its order, and how many samples each share has given out.

    `pool` is how many samples are mixed at a time; `blocks` are those of a pass that was continued by others than had
    begun it, None for all samples.
    """

    samples: int
    ranks: int
    workers: int
    seed: tuple[int, ...] | None
    pool: int
    even: bool
    taken: Mapping[str, int]
    """The samples that shares have given out, by `rank/worker`."""
    blocks: tuple[tuple[int, int], ...] | None = None
    turn: int = 0
    """The worker whose batch comes next."""

    def to_json(self) -> dict[str, Any]:
        """Return the course as JSON."""
        return {"version": 1, **asdict(self)}

    @classmethod
    def of(cls, states: Any) -> Course:
        """Return the course that a state tells of, or those of several ranks or workers together."""
        some = [dict(each) for each in ([states] if isinstance(states, Mapping) else states)]
        taken: dict[str, int] = {}
        for each in some:
            if each.pop("version", None) != 1:
                raise StoreError("The state is not one of this fsstore; begin the pass anew")
            taken |= each.pop("taken")
        if any(each != some[0] for each in some):
            raise StoreError("The states are of several passes; give those of one")
        seed, blocks = some[0].pop("seed"), some[0].pop("blocks")
        rows = None if blocks is None else tuple((int(low), int(high)) for low, high in blocks)
        return cls(**some[0], seed=None if seed is None else tuple(seed), taken=taken, blocks=rows)

    def shared_by(self, share: Share, own: Course, bounds: Sequence[int]) -> tuple[Share, Course]:
        """Return the share and the pass that a worker goes on with, where it would begin a pass of its own.

        The shares are those of this pass if there are as many, and else new ones of what is left.
        """
        if replace(self, taken={}, blocks=own.blocks, seed=own.seed, turn=0) != own:
            seed = None if self.seed is None else (*self.seed, 1)
            return share, replace(own, blocks=self.rest(bounds), seed=seed)
        share = replace(share, worker=(share.worker + self.turn) % self.workers)
        if f"{share.rank}/{share.worker}" not in self.taken:
            raise StoreError(f"The state says nothing of worker {share.worker} of rank {share.rank}; load that of all")
        return share, self

    def after(self, batches: int, batching: Batching, bounds: Sequence[int]) -> Course:
        """Return the course when each rank has taken so many batches more, in turns from its workers."""
        taken = dict(self.taken)
        for rank in range(self.ranks):
            names, left = [], []
            for worker in range(self.workers):
                share = Share(rank, self.ranks, worker, self.workers)
                pieces = pieces_of(self.pieces(bounds), share, self.seed, even=self.even)
                names.append(f"{rank}/{worker}")
                left.append(int((pieces[:, 1] - pieces[:, 0]).sum()) - taken.get(names[-1], 0))
            counts = _in_turns([batching.batches_in(each) for each in left], batches, self.turn)
            for name, count, most in zip(names, counts, left, strict=True):
                taken[name] = taken.get(name, 0) + min(most, count * batching.size)
        return replace(self, taken=taken, turn=(self.turn + batches) % self.workers)

    def pieces(self, bounds: Sequence[int]) -> Pieces:
        """Return the blocks of the pass."""
        return blocks_of(bounds) if self.blocks is None else np.array(self.blocks, np.int64).reshape(-1, 2)

    def rest(self, bounds: Sequence[int]) -> tuple[tuple[int, int], ...]:
        """Return the samples that no share has given out, as ranges that lie in blocks."""
        left = [np.zeros(0, np.int64)]
        for rank, worker in product(range(self.ranks), range(self.workers)):
            skip = self.taken.get(f"{rank}/{worker}")
            if skip is None:
                raise StoreError(
                    f"The state says nothing of worker {worker} of rank {rank}, and the pass had {self.ranks} ranks of"
                    f" {self.workers} workers; give the states of all, or go on with as many"
                )
            share = Share(rank, self.ranks, worker, self.workers)
            for numbers in sample_order(self.pieces(bounds), share, self.seed, self.pool, even=self.even):
                left.append(numbers[skip:])
                skip = max(0, skip - len(numbers))
        numbers = np.sort(np.concatenate(left))
        begins = np.diff(numbers, prepend=-2) != 1
        begins |= np.isin(numbers, np.asarray(bounds))
        first = numbers[begins]
        last = numbers[np.append(np.flatnonzero(begins)[1:], len(numbers)) - 1] + 1 if len(numbers) else first
        return tuple(zip(first.tolist(), last.tolist(), strict=True))


def _in_turns(most: list[int], count: int, first: int) -> list[int]:
    """Return how many of `count` things come from each of several, which give one in turn while they have any."""
    given = [0] * len(most)
    while count and given != most:
        for at in range(first, first + len(most)):
            if count and given[at % len(most)] < most[at % len(most)]:
                given[at % len(most)] += 1
                count -= 1
    return given


# One pass over a share of samples, batch by batch; the next pool is read while the batches of one are given
# out.


@dataclass(frozen=True, slots=True)
class Batching:
    """How samples become batches: how many in each, whether a last one with fewer is left out, and in which memory.

    Two pools have room in `memory` bytes: the one that is given out, and the one that is read.
    """

    size: int
    memory: int
    drop_last: bool = False
    even: bool = False

    def batches_in(self, samples: int) -> int:
        """Return how many batches a share of so many samples has."""
        return samples // self.size if self.drop_last else -(-samples // self.size)

    def pool_samples(self, samples: Samples) -> int:
        """Return how many samples a pool has."""
        return max(1, self.memory // 2 // samples.sample_bytes)


def batches(
    samples: Samples,
    batching: Batching,
    share: Share,
    seed: Sequence[int] | None,
    *,
    blocks: Pieces | None = None,
    skip: int = 0,
) -> Iterator[list[Array]]:
    """Yield the samples of a share once, as the arrays of one batch after the other; shuffled if there is a seed.

    `blocks` are others than all of the samples', and so many samples are left out at the beginning as `skip` says.
    """
    chosen = pieces_of(samples.bounds if blocks is None else blocks, share, seed, even=batching.even)
    filling = _Filling(samples, batching.size, int((chosen[:, 1] - chosen[:, 0]).sum()) - skip)
    pools = list(pools_of(chosen, batching.pool_samples(samples)))
    ends = np.cumsum([int((pool[:, 1] - pool[:, 0]).sum()) for pool in pools])
    first = int(np.searchsorted(ends, skip, side="right"))  # pools that were given out are not read again
    skip -= int(ends[first - 1]) if first else 0
    coming = samples.begin(pools[first]) if first < len(pools) else None
    for number in range(first, len(pools)):
        assert coming is not None
        held = coming.result()
        coming = samples.begin(pools[number + 1]) if number + 1 < len(pools) else None
        count = len(held[0])
        order = np.arange(count) if seed is None else permutation(count, share, seed, number)
        yield from filling.take(held, order[skip:])
        skip = 0
    if filling.count and not batching.drop_last:
        yield filling.rest()


class _Filling:
    """The batch that is being assembled, in memory of its own: it belongs to who gets it."""

    def __init__(self, samples: Samples, size: int, left: int) -> None:
        self._samples, self._size, self._left = samples, size, left
        self._made: list[Array] = []
        self.count = 0

    def take(self, held: list[Array], order: np.ndarray[Any, np.dtype[np.int64]]) -> Iterator[list[Array]]:
        """Take samples in an order; yield each batch that is full."""
        at = 0
        while at < len(order):
            if not self.count:
                size = min(self._size, self._left)
                self._made = [np.empty((size, *each.shape[1:]), each.dtype) for each in held]
            room = len(self._made[0]) - self.count
            chosen = order[at : at + room]
            for whole, into in zip(held, self._made, strict=True):
                np.take(whole, chosen, axis=0, out=into[self.count : self.count + len(chosen)], mode="clip")
            at, self.count, self._left = at + len(chosen), self.count + len(chosen), self._left - len(chosen)
            if self.count == self._size:
                self.count = 0
                yield self._made

    def rest(self) -> list[Array]:
        """Return the last batch, which is not full."""
        return self._made
