"""A stored array as the engine knows it: its chunk boundaries, keys, codecs and fill value.

A format makes a `ChunkModel` from its documents.  For an array with fields (`component` set) the stored elements are
structures and the array is one of their fields; its sub-array dimensions follow the others and are never cut.  With
`octets` the array is the bytes of the elements, in a dimension of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product, repeat
from typing import Any

import numpy as np

from fsstore.chunk.plan.grid import Axis, IntArray
from fsstore.chunk.plan.keys import ChunkKeys
from fsstore.codec.buffers import missing_element
from fsstore.codec.chain import BoundChain
from fsstore.codec.contract import Array
from fsstore.codec.sharding import ShardLayout, shard_of

__all__ = ["ChunkModel"]


@dataclass(frozen=True, slots=True)
class ChunkModel:
    """The stored layout of one array.

    `axes` cut the array into chunks as stored (shards, if there are any); `chain` encodes one of them; `bind` gives the
    chain of a chunk of another shape, for grids that vary.  `fill_value` fills what is missing: None where the format
    has no fill value, which reads as zero (times: NaT, objects: None) and never elides a chunk.
    """

    dtype: np.dtype[Any]
    axes: tuple[Axis, ...]
    keys: ChunkKeys
    chain: BoundChain
    fill_value: Any = None
    key_rank: int | None = None
    component: str | None = None
    octets: bool = False
    bind: Callable[[tuple[int, ...]], BoundChain] | None = field(default=None, compare=False)

    @property
    def fill(self) -> Any:
        """The value of missing elements: a scalar, or an array of the trailing dimensions of a field."""
        return missing_element(self.dtype, self.fill_value)

    def key(self, numbers: Sequence[int]) -> str:
        """Return the key of a chunk; trailing field dimensions have no number."""
        return self.keys.key(numbers[: self.key_rank] if self.key_rank is not None else numbers)

    def keys_of(self, columns: Sequence[IntArray]) -> list[str]:
        """Return the keys of chunks whose numbers along each dimension are a column, of one chunk at least."""
        some = columns[: self.key_rank]
        if not len(some):
            return [self.key(())] * len(columns[0]) if len(columns) else [self.key(())]
        if not self.keys.is_joined:
            return self.keys.of_columns(some)
        texts = [self.keys.parts(each.tolist(), dimension) for dimension, each in enumerate(some)]
        return texts[0] if len(texts) == 1 else list(map("".join, zip(*texts, strict=True)))

    def keys_of_product(self, numbers: Sequence[Sequence[int]]) -> list[str]:
        """Return the keys of all chunks that have one of some numbers along each dimension, in the order of chunks."""
        some = numbers[: self.key_rank]
        if not (some and self.keys.is_joined):
            return self.keys_of([each.reshape(-1) for each in np.meshgrid(*numbers, indexing="ij")])
        texts = [self.keys.parts(each, dimension) for dimension, each in enumerate(some)]
        return texts[0] if len(texts) == 1 else list(map("".join, product(*texts)))

    def numbers(self, key: str) -> tuple[int, ...] | None:
        """Return the numbers that make a key, without those of trailing field dimensions; None for other keys."""
        return self.keys.numbers(key, len(self.axes) if self.key_rank is None else self.key_rank)

    def chunk_shape(self, numbers: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of a chunk."""
        return tuple([axis.size(number) for axis, number in zip(self.axes, numbers, strict=True)])

    def chunk_shapes(self, columns: Sequence[IntArray]) -> Iterator[tuple[int, ...]]:
        """Yield the shapes of chunks whose numbers along each dimension are a column."""
        sizes = [axis.sizes_of(numbers) for axis, numbers in zip(self.axes, columns, strict=True)]
        count = len(columns[0])
        return zip(
            *[
                repeat(axis.size(0), count) if some is None else some.tolist()
                for axis, some in zip(self.axes, sizes, strict=True)
            ],
            strict=True,
        )

    def chain_of(self, numbers: Sequence[int]) -> BoundChain:
        """Return the codecs of a chunk."""
        if self.bind is None:
            return self.chain
        return self.bind(self.chunk_shape(numbers))

    def view(self, chunk: Array) -> Array:
        """Return the array's elements of a decoded chunk: the chunk itself, a field of it, or its bytes."""
        if self.octets:
            return chunk[..., np.newaxis].view("V1")
        return chunk if self.component is None else chunk[self.component]

    @property
    def shard(self) -> ShardLayout | None:
        """The layout of shards whose parts are read alone; in a grid of varying chunks shards are taken whole."""
        return None if self.bind is not None or self.chain.shard is None else shard_of(self.chain)

    @property
    def is_partial(self) -> bool:
        """Whether the array shows decoded chunks otherwise than they are: a field of them, or their bytes."""
        return self.octets or self.component is not None
