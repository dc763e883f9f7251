"""The order of one pass over samples that lie in chunks: random, and yet every chunk is wanted once.

Samples are numbered from zero, and *blocks* are the ranges between the boundaries of chunks.  Blocks are shuffled; each
rank takes as many samples as every other of the sequence that this makes, so at most one block is cut between two
ranks; workers of a rank take whole pieces.  A *pool* of pieces, as many as a worker holds in memory at a time, is
shuffled again, sample by sample.  All of it follows from a seed, so ranks that do not speak to each other agree.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

__all__ = ["Pieces", "Share", "permutation", "pieces_of", "pools_of", "sample_order"]

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


def pieces_of(
    bounds: Sequence[int], share: Share, seed: Sequence[int] | None, *, even: bool = False
) -> Pieces:
    """Return the pieces of a share in the order of the pass: shuffled by the seed, or as they lie without one.

    The shares of all ranks and workers together have every sample once; with `even` up to `ranks - 1` samples at the
    end are left out, so that all ranks have as many.

    >>> pieces_of([0, 4, 8, 10], Share(rank=1, ranks=2), None).tolist()
    [[5, 8], [8, 10]]
    """
    blocks = np.stack([np.asarray(bounds[:-1], np.int64), np.asarray(bounds[1:], np.int64)], axis=1)
    if seed is not None:
        blocks = np.random.default_rng(list(seed)).permutation(blocks, axis=0)
    total = int(bounds[-1]) if len(bounds) else 0
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
    bounds: Sequence[int], share: Share, seed: Sequence[int] | None, most: int, *, even: bool = False
) -> Iterator[np.ndarray[Any, np.dtype[np.int64]]]:
    """Yield the numbers of the samples of a share, pool by pool, in the order in which a pass gives them."""
    chosen = pieces_of(bounds, share, seed, even=even)
    for number, pool in enumerate(pools_of(chosen, most)):
        numbers = np.concatenate([np.arange(low, high) for low, high in pool])
        yield numbers if seed is None else numbers[permutation(len(numbers), share, seed, number)]


def permutation(
    count: int, share: Share, seed: Sequence[int], pool: int
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the order of the samples of a pool, which is another one for each worker and each pool."""
    return np.random.default_rng([*seed, share.rank, share.worker, pool, 1]).permutation(count)
