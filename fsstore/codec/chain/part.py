"""Parts of encoded chunks that are nothing but the bytes of their elements.

Such a chunk is raw: no codec between bytes has changed it, so a range of its bytes is a run of its elements.
"""

from __future__ import annotations

from fsstore.codec.chain.bound_chain import BoundChain
from fsstore.codec.contract import ChunkSpec
from fsstore.codec.zarr3.endian import BoundBytes
from fsstore.codec.zarr3.transpose import BoundTranspose

__all__ = ["is_raw", "part_of"]


def is_raw(chain: BoundChain) -> bool:
    """Return whether an encoded chunk is the bytes of its elements, in some order of dimensions."""
    return chain.packed is not None and not chain.after_packing and chain.encoded_size == chain.decoded_size


def part_of(chain: BoundChain, shape: tuple[int, ...]) -> BoundChain:
    """Return what decodes a box of raw chunks, whose bytes follow each other."""
    assert chain.order is not None
    assert chain.packed is not None
    spec = ChunkSpec(chain.chunk.dtype, shape, chain.chunk.fill_value)
    turned = BoundTranspose(spec, chain.order)
    pack = BoundBytes(spec.dtype, chain.packed, turned.encoded.shape)
    arrays = [] if chain.order == tuple(range(len(shape))) else [turned]
    return BoundChain(spec, arrays, pack, (), chain.names[:1])
