"""A chain of codecs bound to the chunks of one array: what the chunk engine calls.

Decoding runs the bytes codecs backwards, makes an array of the bytes, and undoes the array codecs, of which
transposes are views.  Where the caller gives the destination, the last decoder writes into it directly if it is
contiguous in the order of the encoding and large enough to pay; otherwise the result is copied once.

It knows nothing of JSON, keys or stores.  It has no state and may be called from any number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from fsstore.codec.contract import BoundCodec, Buffer, ByteSpec, ChunkSpec
from fsstore.errors import StoreError

if TYPE_CHECKING:
    from fsstore.codec.sharding import ShardLayout

__all__ = ["Array", "BoundArrayCodec", "BoundChain"]

Array = np.ndarray[Any, np.dtype[Any]]
_DIRECT_BYTES = 1 << 15


class BoundArrayCodec(BoundCodec, Protocol):
    """What an array-to-bytes codec may offer beyond the contract.  Each is optional.

    * `flat_dtype`: the encoding is the elements of this dtype in C order and nothing else;
    * `view(data)`: like `decode`, but elements may keep the byte order in which they are stored;
    * `verify(array)`: raise when decoded elements hold values that the type forbids;
    * `decode_array(data, out)`: decode into a chunk-shaped array;
    * `shard`: the layout of the encoding, when it is a shard.
    """


def _reversed_decoders(stages: Sequence[BoundCodec]) -> tuple[Callable[[Any], Any], ...]:
    return tuple(stage.decode for stage in reversed(stages))


class BoundChain:
    """Encodes and decodes the chunks that `chunk` describes.

    `encoded_size` is the size of every encoded chunk when it is fixed, else None.  `order` is the permutation that
    the array codecs amount to (encoded dimension i is dimension `order[i]` of the chunk), None when they do more than
    transpose.  `shard` is the layout of the encoding when the chunk is a shard whose parts can be reached one by one,
    else None; its shapes are those after `order`.  `flat_dtype` is set when the encoding is nothing but the elements in
    C order, of that dtype, any of which are valid: many chunks that follow each other can then be decoded as one.
    """

    __slots__ = (
        "_arrays",
        "_bytes",
        "_decode_array",
        "_decode_into",
        "_from_array",
        "_to_bytes",
        "_undo_arrays",
        "_undo_bytes",
        "_verify",
        "_view",
        "chunk",
        "encoded_size",
        "flat_dtype",
        "order",
        "shard",
    )

    def __init__(
        self, chunk: ChunkSpec, arrays: Sequence[BoundCodec], pack: BoundCodec, stages: Sequence[BoundCodec]
    ) -> None:
        self.chunk = chunk
        self._arrays = tuple(stage.encode for stage in arrays)
        self._bytes = tuple(stage.encode for stage in stages)
        self._undo_arrays = _reversed_decoders(arrays)
        self._undo_bytes = _reversed_decoders(stages)
        self._to_bytes, self._from_array = pack.encode, pack.decode
        encoded = (stages[-1] if stages else pack).encoded
        self.encoded_size: int | None = encoded.size if isinstance(encoded, ByteSpec) else None
        self.order = _order(chunk, arrays)
        plain = self.order is not None
        self._view: Callable[[Any], Array] = getattr(pack, "view", pack.decode) if plain else pack.decode
        self.shard: ShardLayout | None = getattr(pack, "shard", None) if plain and not stages else None
        self._decode_array: Callable[[Any, Array], None] | None = (
            getattr(pack, "decode_array", None) if plain else None
        )
        self._verify: Callable[[Array], None] | None = getattr(pack, "verify", None)
        self._decode_into = self._find_into(chunk, pack, stages)
        natural = self.order == tuple(range(len(chunk.shape))) and not stages and self._verify is None
        self.flat_dtype: np.dtype[Any] | None = getattr(pack, "flat_dtype", None) if natural else None

    def _find_into(
        self, chunk: ChunkSpec, pack: BoundCodec, stages: Sequence[BoundCodec]
    ) -> Callable[[Any, Array], bool] | None:
        flat: np.dtype[Any] | None = getattr(pack, "flat_dtype", None)
        if self.order is None or not stages or flat != chunk.dtype or chunk.dtype.hasobject:
            return None
        if chunk.dtype.itemsize * int(np.prod(chunk.shape, dtype=object)) < _DIRECT_BYTES:
            return None
        return getattr(stages[0], "decode_into", None)

    @property
    def decodes_in_place(self) -> bool:
        """Whether `decode` writes straight into a contiguous `out` of C order, without an array of its own."""
        natural = self.order == tuple(range(len(self.chunk.shape)))
        return natural and (self._decode_into is not None or self._decode_array is not None)

    def decode(self, data: Buffer, out: Array | None = None) -> Array:
        """Return the chunk that `data` encodes; with `out`, the chunk is written there and `out` is returned.

        `out` has the shape of the chunk and its dtype in any byte order, and may be strided; after an error its
        contents are undefined.  Without `out` the result may be a read-only view of `data`.
        Raises `DataLossError` or `FailedPreconditionError` when the bytes are damaged.
        """
        if out is None:
            return self._decode_new(data)
        if self._decode_array is not None:
            return self._decode_placed(data, out)
        if self._decode_into is not None and self._decode_direct(data, out):
            return out
        for undo in self._undo_bytes:
            data = undo(data)
        array = self._view(data)
        for undo in self._undo_arrays:
            array = undo(array)
        np.copyto(out, array, casting="equiv")
        return out

    def _decode_new(self, data: Any) -> Array:
        for undo in self._undo_bytes:
            data = undo(data)
        array: Array = self._from_array(data)
        for undo in self._undo_arrays:
            array = undo(array)
        return array

    def _decode_placed(self, data: Any, out: Array) -> Array:
        """Decode through a codec that places its own parts in the destination (shards)."""
        for undo in self._undo_bytes:
            data = undo(data)
        assert self._decode_array is not None
        self._decode_array(data, out.transpose(self.order))
        return out

    def _decode_direct(self, data: Any, out: Array) -> bool:
        """Decompress straight into `out` when its memory is laid out as the encoding is."""
        view = out.transpose(self.order)
        if not view.flags.c_contiguous or out.dtype != self.chunk.dtype:
            return False
        for undo in self._undo_bytes[:-1]:
            data = undo(data)
        assert self._decode_into is not None
        if not self._decode_into(data, view.reshape(-1).view(np.uint8)):
            return False
        if self._verify is not None:
            self._verify(view)
        return True

    def encode(self, array: Array) -> Buffer:
        """Return the encoding of a chunk.

        `array` has the shape and dtype of the chunk, any strides and byte order.  The result may be a view of
        `array`: who keeps it longer than the array stays unchanged copies it.
        """
        data: Any = array
        for step in self._arrays:
            data = step(data)
        data = self._to_bytes(data)
        for step in self._bytes:
            data = step(data)
        return data  # type: ignore[no-any-return]  # the last stage gives a buffer

    def encode_all(self, array: Array) -> Buffer:
        """Return the encoding with every part of a shard stored, also those that equal the fill value."""
        if self.shard is None:
            return self.encode(array)
        data: Any = array
        for step in self._arrays:
            data = step(data)
        return self.shard.assemble(self.shard.encode_parts(data, elide=False))

    def decode_many(self, buffers: Iterable[Buffer], outs: Iterable[Array]) -> None:
        """Decode each of `buffers` into the array beside it in `outs`.

        An error is raised for the first that fails, with its position noted.
        """
        for position, (data, out) in enumerate(zip(buffers, outs, strict=True)):
            try:
                self.decode(data, out)
            except StoreError as error:
                error.add_note(f"in chunk {position} of the batch")
                raise

    @property
    def inner_order(self) -> tuple[int, ...]:
        """The order of the chunk's dimensions in the bytes of the smallest part, outermost first."""
        order = self.order or tuple(range(len(self.chunk.shape)))
        return order if self.shard is None else tuple(order[axis] for axis in self.shard.inner.inner_order)

    @property
    def read_shape(self) -> tuple[int, ...]:
        """The shape of the smallest part that can be decoded alone, in dimensions of the chunk."""
        if self.shard is None or self.order is None:
            return self.chunk.shape
        sizes = dict(zip(self.order, self.shard.inner.read_shape, strict=True))
        return tuple(sizes[axis] for axis in range(len(sizes)))


def _order(chunk: ChunkSpec, arrays: Sequence[BoundCodec]) -> tuple[int, ...] | None:
    """Return the permutation that the array codecs amount to, or None when they do more than transpose."""
    order: tuple[int, ...] = tuple(range(len(chunk.shape)))
    for stage in arrays:
        step: tuple[int, ...] | None = getattr(stage, "order", None)
        if step is None:
            return None
        order = tuple(order[axis] for axis in step)
    return order
