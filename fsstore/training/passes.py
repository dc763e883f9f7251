"""One pass over a share of samples, batch by batch; the next pool is read while the batches of one are given out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from fsstore.training.order import Share, permutation, pieces_of, pools_of
from fsstore.training.samples import Samples

__all__ = ["Batching", "batches"]

Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"


@dataclass(frozen=True, slots=True)
class Batching:
    """How samples become batches: how many in each, whether a last one with fewer is left out, and in which memory.

    Two pools have room in `memory` bytes: the one that is given out, and the one that is read.
    """

    size: int
    memory: int
    drop_last: bool = False
    even: bool = False

    def pool_samples(self, samples: Samples) -> int:
        """Return how many samples a pool has."""
        return max(1, self.memory // 2 // samples.sample_bytes)


def batches(
    samples: Samples, batching: Batching, share: Share, seed: Sequence[int] | None
) -> Iterator[list[Array]]:
    """Yield the samples of a share once, as the arrays of one batch after the other; shuffled if there is a seed."""
    chosen = pieces_of(samples.bounds, share, seed, even=batching.even)
    filling = _Filling(samples, batching.size, int((chosen[:, 1] - chosen[:, 0]).sum()))
    pools = list(pools_of(chosen, batching.pool_samples(samples)))
    coming = samples.begin(pools[0]) if pools else None
    for number in range(len(pools)):
        assert coming is not None
        held = coming.result()
        coming = samples.begin(pools[number + 1]) if number + 1 < len(pools) else None
        count = len(held[0])
        order = np.arange(count) if seed is None else permutation(count, share, seed, number)
        yield from filling.take(held, order)
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
