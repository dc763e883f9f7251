"""Elements of chunks that were changed and encoded a moment ago.

Appending to an array changes the same chunks again and again.  Their stored bytes are read each time, because others
may write there too; but where they are, byte for byte, what was encoded here last, the elements are still known and
need not be decoded: a part of a chunk of zstd is written in nine tenths of the time.

Equal bytes decode to equal elements whatever their key is, so nothing has to be forgotten when something is written.
A few chunks are kept, of all arrays together, and only of codecs that give back bit by bit what they were given.
"""

from __future__ import annotations

from typing import TypeAlias

from fsstore.chunk.tuning import LARGEST_RECENT_BYTES, RECENT_BYTES, RECENT_TAIL_BYTES, SMALLEST_RECENT_BYTES
from fsstore.codec.chain import BoundChain
from fsstore.codec.contract import Array, Buffer
from fsstore.runtime.cache_pool import CachePool
from fsstore.runtime.state import OfProcess

__all__ = ["is_kept", "keep", "pool", "taken"]

_Key: TypeAlias = tuple[BoundChain, int, bytes]
pool = OfProcess(lambda: CachePool(RECENT_BYTES))
"""The chunks of this process; a forked child that writes little would keep those of its parent for ever."""


def is_kept(chain: BoundChain) -> bool:
    """Return whether chunks of a chain are kept."""
    return (
        chain.is_exact
        and chain.decoded_size <= LARGEST_RECENT_BYTES
        and chain.effort >= SMALLEST_RECENT_BYTES
    )


def keep(chain: BoundChain, data: Buffer, chunk: Array) -> None:
    """Keep what `data` decodes to, if such chunks are kept; the caller leaves `chunk` alone from now on."""
    if is_kept(chain) and isinstance(data, bytes):  # others may be views of memory that is used again
        pool.now.put(_key(chain, data), (data, chunk), len(data) + chunk.nbytes)


def taken(chain: BoundChain, data: Buffer) -> Array | None:
    """Return what `data` decodes to if that is kept; it is the caller's then, to change it if need be."""
    found = pool.now.take(_key(chain, data)) if is_kept(chain) else None
    # which compares memory, also with a view: `==` would compare its elements one by one
    return found[1] if found is not None and found[0].startswith(data) else None


def _key(chain: BoundChain, data: Buffer) -> _Key:
    return chain, len(data), bytes(data[-RECENT_TAIL_BYTES:])
