"""Arrays of ours as dask arrays, and dask arrays written into ours.

    from fsstore.interop.dask import from_tensorstore, to_tensorstore

    array = from_tensorstore(fsstore.open(url).result()[:, ::2])
    to_tensorstore(array.mean(axis=0), fsstore.open(other).result())

Blocks follow the chunks that are stored, also where a view begins inside one.  An array is pickled by its spec, so it
goes to processes and machines as a few hundred bytes; the name of a dask array is made of the spec, so equal graphs are
computed once.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Mapping
from typing import Any

import dask
import dask.array
import numpy as np
from dask.array.core import normalize_chunks
from dask.base import tokenize
from dask.utils import parse_bytes

from fsstore.arrays.protocols import chunk_sizes, read_outer
from fsstore.arrays.store import TensorStore
from fsstore.errors import StoreError
from fsstore.index import d
from fsstore.runtime.tuning import REQUEST_BYTES
from fsstore.values.json_value import dumps

DASK_BLOCKS = 16  # blocks of a large array at least: for a few workers with a few turns each


class _FromZero:
    """An array whose domain begins at zero, indexed as dask indexes: by positions, slices and a list of positions."""

    def __init__(self, store: TensorStore) -> None:
        self.store = store[d[:].translate_to[0]] if store.rank else store
        self.shape, self.ndim = store.shape, store.rank
        self.dtype: np.dtype[Any] = store.dtype.numpy_dtype

    def __getitem__(self, key: Any) -> Any:
        """Return the selected values."""
        return read_outer(key, self.shape, lambda wanted: self.store.oindex[wanted].read().result())

    def __setitem__(self, key: Any, values: Any) -> None:
        """Write values to a region."""
        self.store[key].write(values).result()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the store."""
        return _FromZero, (self.store,)


def from_tensorstore(store: TensorStore, chunks: Any = "auto", *, name: str | None = None) -> Any:
    """Return the dask array of a store or view; nothing is read.

    `chunks` is what dask takes; "auto" makes blocks out of whole stored chunks, of at most dask's `array.chunk-size`
    and so that a large array has at least 16 of them, and None makes one block per stored chunk.  Indices count from
    zero, whatever the domain of the view.
    """
    _check(store)
    stored = chunk_sizes(store)
    source = _FromZero(store)
    blocks = stored if chunks is None else _blocks(store, chunks, stored)
    if name is None:
        name = f"fsstore-{tokenize(_identity(store), blocks)}"
    return dask.array.from_array(
        source, blocks, name=name, asarray=False, fancy=False, meta=np.empty((0,) * store.rank, source.dtype)
    )


def to_tensorstore(array: Any, store: TensorStore, **options: Any) -> Any:
    """Write a dask array into a store or view of the same shape, block by block, and wait for it.

    Blocks need no lock and may share stored chunks; they are quickest where they do not.  `options` go to
    `dask.array.store`: with `compute=False` it returns what remains to be computed.
    """
    _check(store)
    if array.shape != store.shape:
        raise StoreError(f"A dask array of shape {array.shape} does not fit a store of shape {store.shape}")
    return dask.array.store(array, _FromZero(store), lock=False, **options)


def _blocks(store: TensorStore, chunks: Any, stored: tuple[tuple[int, ...], ...]) -> Any:
    """Return the sizes of blocks: whole stored chunks, unless one is larger than a block may be."""
    dtype, limit = store.dtype.numpy_dtype, _limit(store, stored)
    found = normalize_chunks(chunks, store.shape, limit=limit, dtype=dtype, previous_chunks=stored)
    largest = math.prod(max(sizes, default=0) for sizes in found) * dtype.itemsize
    if largest <= limit or "auto" not in str(chunks):
        return found
    return normalize_chunks(chunks, store.shape, limit=limit, dtype=dtype)


def _limit(store: TensorStore, stored: tuple[tuple[int, ...], ...]) -> int:
    """Return the bytes of a block: as dask is configured, or less where that leaves workers idle.

    A stored chunk is not cut for that: each block would decode it again.
    """
    item = store.dtype.numpy_dtype.itemsize
    chunk = math.prod(max(sizes, default=1) for sizes in stored) * item
    wanted = max(REQUEST_BYTES, chunk, store.size * item // DASK_BLOCKS)
    return min(int(parse_bytes(dask.config.get("array.chunk-size"))), wanted)


def _check(store: object) -> None:
    if not isinstance(store, TensorStore):
        raise TypeError(f"Expected an fsstore.TensorStore, but received: {type(store).__name__}")


def _identity(store: TensorStore) -> Any:
    """Return what tells a store from others: its spec, unless that does not say where the data are."""
    try:
        spec = store.spec(unbind_context=True).to_json()
    except StoreError:
        spec = {"driver": "memory"}
    return uuid.uuid4().hex if _in_memory(spec) else dumps(spec)


def _in_memory(spec: Any) -> bool:
    """Return whether a spec names a memory store, of which each context has its own."""
    if isinstance(spec, Mapping):
        return spec.get("driver") == "memory" or any(map(_in_memory, spec.values()))
    return isinstance(spec, list) and any(map(_in_memory, spec))
