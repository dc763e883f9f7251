"""Stored chunks are decoded, to be changed, and what became of them is encoded."""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np

from fsstore.chunk.plan.allocation import new_array
from fsstore.chunk.tuning import JOINED_BYTES, SHARD_AT_ONCE_BYTES
from fsstore.chunk.write.recent_chunks import is_kept, keep, taken
from fsstore.codec.buffers import missing_element
from fsstore.codec.chain import BoundChain
from fsstore.codec.contract import Array, Buffer
from fsstore.kvstore.contract.driver import ReadResult

__all__ = ["Portions", "decoded", "decoded_run", "encoded", "joined", "portions_of"]

Portions: TypeAlias = Iterator[Sequence[Buffer]]


def joined(portions: Portions, usual: int) -> Buffer:
    """Return an encoding in one piece, of about `usual` bytes at most.

    Joined parts may be large, so each is released, unless all of them are so small that there is memory for them
    twice.  The memory for all of a chunk is had at once: growing would leave behind what was outgrown.  Shards may be
    far larger than their encoding.
    """
    first: list[Buffer] = []
    left = JOINED_BYTES
    for portion in portions:
        first += portion
        left -= sum([memoryview(part).nbytes for part in portion])
        if left < 0:
            break
    else:
        return first[0] if len(first) == 1 else b"".join(first)
    second = next(portions, None)
    if second is None and len(first) == 1:
        return first[0]
    whole = io.BytesIO()
    whole.seek(min(usual + usual // 64, SHARD_AT_ONCE_BYTES))
    whole.write(b"\0")
    whole.seek(0)
    whole.writelines(itertools.chain(first, second or ()))
    del first, second, portion
    whole.writelines(itertools.chain.from_iterable(portions))
    whole.truncate()
    return whole.getvalue()


def decoded(data: Buffer | None, chain: BoundChain) -> Array:
    """Return a chunk that may be changed: what `data` encodes, or else the fill value."""
    known = None if data is None else taken(chain, data)
    if known is not None:
        return known
    if data is not None and not chain.decodes_in_place:
        borrowed = chain.decode_to_scratch(data)  # before there is memory for the chunk, which may be large
        chunk = _as_encoded(chain)
        np.copyto(chunk, borrowed, casting="equiv")
        return chunk
    chunk = _as_encoded(chain)
    if data is None:
        chunk[...] = missing_element(chain.chunk.dtype, chain.chunk.fill_value)
    else:
        chain.decode(data, chunk)
    return chunk


def decoded_run(olds: Sequence[ReadResult | None], chain: BoundChain) -> Array | None:
    """Return small chunks along a new first dimension, which may be changed, laid out as they will be encoded.

    Given is what is stored of each; the elements of one of which nothing is given are not set.  None if they cannot be
    decoded together.
    """
    chunks = _as_encoded(chain, (len(olds),))
    values = [at for at, old in enumerate(olds) if old is not None and old.state == "value"]
    if values:
        found = chain.decode_run_to_scratch(
            [old.value for old in olds if old is not None and old.state == "value"]
        )
        if found is None:
            return None
        chunks[values if len(values) < len(olds) else slice(None)] = found
    missing = [at for at, old in enumerate(olds) if old is not None and old.state != "value"]
    if missing:
        chunks[missing] = missing_element(chain.chunk.dtype, chain.chunk.fill_value)
    return chunks


def portions_of(chunk: Array, chain: BoundChain, *, elide: bool) -> Portions:
    """Return the encoding of a chunk that nobody changes any more, in portions."""
    if is_kept(chain):
        yield [encoded(chunk, chain)]
        return
    portions = chain.portions(chunk, elide=elide)
    del chunk  # which may be large
    yield from portions


def encoded(chunk: Array, chain: BoundChain) -> Buffer:
    """Return the encoding of a chunk that nobody changes any more."""
    data = chain.encode(chunk)
    keep(chain, data, chunk)
    return data


def _as_encoded(chain: BoundChain, lead: tuple[int, ...] = ()) -> Array:
    """Return a chunk, or several along `lead`, not set yet, in the order in which they will be encoded."""
    spec, order = chain.chunk, chain.order
    if order is None or sorted(order) == [*order]:
        return new_array((*lead, *spec.shape), spec.dtype, passing=True)
    laid_out = new_array((*lead, *[spec.shape[axis] for axis in order]), spec.dtype, passing=True)
    behind = len(lead)
    return laid_out.transpose([*range(behind), *[behind + order.index(axis) for axis in range(len(order))]])
