"""`Samples`: arrays side by side, of which the first dimension counts samples, and reads of many samples at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np

from fsstore.arrays.habits import chunk_sizes
from fsstore.arrays.store import TensorStore
from fsstore.errors import StoreError
from fsstore.index import d
from fsstore.runtime import fork
from fsstore.runtime.future import Future
from fsstore.training.order import Pieces
from fsstore.values.json_value import quote

__all__ = ["Fetching", "Samples"]

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
