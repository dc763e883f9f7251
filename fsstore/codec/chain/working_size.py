"""How much memory the chunks of a chain take on their way, which limits how many threads may work at once.

It is the chunk and what becomes of it step by step, as if compressing gained nothing; a step that is a view of the one
before takes nothing.  For a shard it is the encoding and what one of its parts takes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from fsstore.codec.ability import abilities_of
from fsstore.codec.contract import BoundCodec, ByteSpec, ChunkSpec

__all__ = ["working_size"]


def working_size(chunk: ChunkSpec, steps: Sequence[BoundCodec]) -> int:
    """Return how many bytes a chunk takes with what `steps` make of it one after the other, at least 1."""
    size = total = chunk.dtype.itemsize * math.prod(chunk.shape)
    before: ChunkSpec | ByteSpec = chunk
    for step in steps:
        size = _size(step.encoded, size)
        able = abilities_of(step)
        is_view = able.order is not None or (
            isinstance(before, ChunkSpec) and able.flat_dtype == before.dtype
        )
        total += (0 if is_view else size) + able.scratch_size
        before = step.encoded
    return max(1, total)


def _size(spec: ChunkSpec | ByteSpec, otherwise: int) -> int:
    if isinstance(spec, ChunkSpec):
        return spec.dtype.itemsize * math.prod(spec.shape)
    return otherwise if spec.size is None else spec.size
