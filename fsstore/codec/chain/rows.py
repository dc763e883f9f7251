"""Several small chunks encoded together: copied and compared in one step each, and given to the codecs one by one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from fsstore.codec.chain.bound_chain import BoundChain
from fsstore.codec.contract import Array, Buffer
from fsstore.codec.tuning import ENCODED_RUN_BYTES

__all__ = ["encode_rows", "in_rows", "rows_together"]


def rows_together(chain: BoundChain) -> int:
    """Return how many chunks are best encoded together; it may be none."""
    return ENCODED_RUN_BYTES // chain.decoded_size


def in_rows(chain: BoundChain, blocks: Array) -> Array:
    """Return several chunks, which are the last dimensions of `blocks`, along one first dimension.

    They lie one behind the other in memory as `encode_rows` takes them.
    """
    shape, lead = chain.chunk.shape, blocks.ndim - len(chain.chunk.shape)
    if chain.packed is not None and chain.order is not None:
        blocks = blocks.transpose([*range(lead), *[lead + axis for axis in chain.order]])
        shape = tuple([shape[axis] for axis in chain.order])
    return np.ascontiguousarray(blocks, chain.chunk.dtype).reshape((-1, *shape))


def encode_rows(chain: BoundChain, rows: Array, *, elide: bool = True) -> Iterator[Buffer]:
    """Return the encodings of several chunks one after the other; they may be views of `rows`.

    Parts of shards that equal the fill value are stored unless `elide`.
    """
    if chain.packed is None:
        encode = chain.encode if elide else chain.encode_all
        return (encode(rows[at, ...]) for at in range(len(rows)))
    octets, size = rows.astype(chain.packed, copy=False).reshape(-1).view(np.uint8).data, chain.decoded_size
    encoded: Iterator[Any] = (octets[begin : begin + size] for begin in range(0, len(octets), size))
    for stage in chain.after_packing:
        encoded = map(stage, encoded)
    return encoded
