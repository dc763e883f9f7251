"""The codecs of an array, one after the other: array codecs, one codec that makes bytes, bytes codecs.

`CodecChain` is the chain as stored in zarr v3 metadata.  `BoundChain` is a chain bound to the chunks of one array: the
chunk engine calls it.  At the end stand functions for several small chunks at once and for parts of raw chunks.
"""

from __future__ import annotations

import itertools
import math
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self, TypeAlias

import numpy as np

from fsstore.codec.buffers import DIRECT_BYTES, copy_elements, scratch
from fsstore.codec.contract import (
    Abilities,
    Array,
    BoundCodec,
    Buffer,
    ByteSpec,
    ChunkSpec,
    Codec,
    CodecFactory,
    Kind,
    Span,
    abilities_of,
)
from fsstore.codec.zarr3 import BoundBytes, BoundTranspose
from fsstore.errors import JsonError, StoreError
from fsstore.runtime.tuning import BATCH_BYTES, CACHE_BYTES, PIECE_BYTES
from fsstore.values import registry
from fsstore.values.json_value import Fields, Json, array_of, boolean, expected, obj, quote, string

Steps: TypeAlias = tuple[Callable[[Any], Any], ...]
"""Functions of which each takes what the one before it has given."""


def through(steps: Steps, data: Any) -> Any:
    """Return the result of all steps."""
    for step in steps:
        data = step(data)
    return data


def decoders(stages: Sequence[BoundCodec]) -> Steps:
    """Return how what stages have encoded is decoded."""
    return tuple(stage.decode for stage in reversed(stages))


def scratch_decoders(pack: BoundCodec, stages: Sequence[BoundCodec]) -> Steps:
    """Return decoders into memory of the thread where codecs can, but not of shards: their parts are decoded there."""
    if abilities_of(pack).shard is not None:
        return decoders(stages)
    made = (_scratch_decoder(*pair, step) for step, pair in enumerate(itertools.pairwise((pack, *stages)), 1))
    return tuple(made)[::-1]


def _scratch_decoder(before: BoundCodec, stage: BoundCodec, step: int) -> Callable[[Any], Any]:
    into = abilities_of(stage).decode_into
    size = before.encoded.size if isinstance(before.encoded, ByteSpec) else None
    if into is None or size is None or size < DIRECT_BYTES:
        return stage.decode

    def decode(data: Any) -> Any:
        out = scratch(size, step)
        return out.data if into(data, out) else stage.decode(data)

    return decode


def in_pieces(stages: Sequence[BoundCodec]) -> Steps:
    """Return how a chunk is encoded in pieces: the last step gives an iterator of them."""
    passing: list[Callable[[Any], Any]] = []
    *before, last = stages
    while before and (passes := abilities_of(last).pass_pieces) is not None:
        passing.insert(0, passes)
        last = before.pop()
    begin = abilities_of(last).encode_pieces or (lambda data: iter((last.encode(data),)))
    return (*[stage.encode for stage in before], begin, *passing)


# How much memory the chunks of a chain take on their way, which limits how many threads may work at once.


def working_size(chunk: ChunkSpec, steps: Sequence[BoundCodec]) -> int:
    """Return how many bytes a chunk takes with what `steps` make of it one after the other, at least 1."""
    size = total = chunk.dtype.itemsize * math.prod(chunk.shape)
    before: ChunkSpec | ByteSpec = chunk
    for step in steps:
        size = _size(step.encoded, size)
        able = abilities_of(step)
        is_view = able.order is not None or (isinstance(before, ChunkSpec) and able.flat_dtype == before.dtype)
        total += (0 if is_view else size) + able.scratch_size
        before = step.encoded
    return max(1, total)


def _size(spec: ChunkSpec | ByteSpec, otherwise: int) -> int:
    if isinstance(spec, ChunkSpec):
        return spec.dtype.itemsize * math.prod(spec.shape)
    return otherwise if spec.size is None else spec.size


# A chain of codecs bound to the chunks of one array.


class Shard(Protocol):
    """The part of `ShardLayout` that a chain uses."""

    @property
    def count(self) -> int:
        """How many parts a shard has."""
        ...

    @property
    def inner(self) -> BoundChain:
        """The chain that encodes and decodes a part."""
        ...

    def encode_parts(self, array: Array, *, elide: bool = True) -> Iterator[Buffer | None]:
        """Yield the encoded parts, None for those that equal the fill value if these are left out (`elide`)."""
        ...

    def portions(self, parts: Iterable[Buffer | None]) -> Iterator[list[Buffer]]:
        """Yield the encoding as lists of buffers that follow each other, the parts drawn one by one."""
        ...


class BoundChain:
    """Encodes and decodes the chunks that `chunk` describes.

    `names` are what errors call `pack` and the stages.
    `encoded_size` is the size of every encoded chunk when it is fixed, else None.  `order` is the permutation that
    the array codecs amount to (encoded dimension i is dimension `order[i]` of the chunk), None when they do more than
    transpose.  `shard` is the layout of the encoding when the chunk is a shard whose parts can be reached one by one,
    else None; its shapes are those after `order`.  `flat_dtype` is set when the encoding is nothing but the elements in
    C order, of that dtype, any of which are valid: many chunks that follow each other can then be decoded as one.
    `decoded_size` is the number of bytes of a decoded chunk, at least 1.
    `decodes_in_place`: `decode` may write into what it is given, and not only copy to it.
    `spans_from_start`: to decode a part of a chunk, all before it is decoded too.
    `packed`: the type of elements whose bytes are what the codecs `after_packing` are given, None if these are others.
    `is_in_one_piece`: `portions` yields the encoding in one piece, which `encode` returns sooner.
    `is_exact`: decoding gives back every bit of a chunk that is encoded, whatever its elements are.
    `effort` is how long decoding a chunk takes beside copying it, as bytes that zstd decodes meanwhile.
    `working_size` is how much memory a thread takes that decodes or encodes a chunk.
    """

    __slots__ = (
        "_arrays", "_decode_array", "_decode_into", "_decode_joined", "_decode_run", "_decode_span", "_from_array",
        "_in_pieces", "_is_plain", "_size", "_steps", "_stored", "_undo_arrays", "_undo_bytes",
        "_undo_bytes_to_scratch", "_verify", "_view", "after_packing", "chunk", "decoded_size", "decodes_in_place",
        "effort", "encoded_size", "flat_dtype", "is_exact", "is_in_one_piece", "names", "order", "packed",
        "run_length", "shard", "spans_from_start", "working_size",
    )  # fmt: skip

    def __init__(
        self,
        chunk: ChunkSpec,
        arrays: Sequence[BoundCodec],
        pack: BoundCodec,
        stages: Sequence[BoundCodec],
        names: Sequence[str] = (),
    ) -> None:
        self.chunk, self.names = chunk, tuple(names)
        steps = (*arrays, pack, *stages)
        self._steps = tuple(step.encode for step in steps)
        self._arrays = self._steps[: len(arrays)]
        self._in_pieces = in_pieces(steps)
        self._undo_arrays = decoders(arrays)
        self._undo_bytes = decoders(stages)
        self._undo_bytes_to_scratch = scratch_decoders(pack, stages)
        self._from_array = pack.decode
        encoded = (stages[-1] if stages else pack).encoded
        self.encoded_size: int | None = encoded.size if isinstance(encoded, ByteSpec) else None
        self.order = _order(chunk, arrays)
        plain = self.order is not None
        packs, able = abilities_of(pack), list(map(abilities_of, stages))
        self._view: Callable[[Any], Array] = (packs.view if plain else None) or pack.decode
        self.shard: Shard | None = packs.shard if plain and not stages else None
        self._decode_array = packs.decode_array if plain else None
        self._verify, flat = packs.verify, packs.flat_dtype
        natural = self.order == tuple(range(len(chunk.shape))) and not stages and self._verify is None
        self.flat_dtype: np.dtype[Any] | None = flat if natural else None
        self._stored = flat if plain and not chunk.dtype.hasobject else None
        self.packed = self._stored if packs.mask is None and self.shard is None else None
        self.is_exact: bool = (
            self._stored is not None
            and self._verify is None
            and packs.mask is None
            and all(stage.is_exact for stage in able)
        )
        self._size = chunk.dtype.itemsize * math.prod(chunk.shape)
        self.effort: float = self._size * sum([stage.effort for stage in able])
        if self.shard is not None:
            self.effort += self.shard.count * self.shard.inner.effort
        elif flat is None:
            self.effort += self._size * packs.array_effort
        self.working_size = working_size(chunk, steps)
        self._decode_run = packs.decode_run if plain and not stages else None
        self._find_fast_ways(able)
        if self._decode_run is not None:
            self.run_length = packs.run_length
        self.decodes_in_place = self._decode_into is not None or self._decode_array is not None

    def _find_fast_ways(self, stages: Sequence[Abilities]) -> None:
        """Set the ways of the first bytes codec, the last to be undone, into memory that is there already."""
        self._decode_into: Callable[[Any, Array], bool] | None = None
        self._decode_joined: Callable[[Sequence[Any], Array], bool] | None = None
        self._is_plain = False
        self.decoded_size = max(1, self._size)
        self._decode_span: Callable[[Any, Array, Span], bool] | None = None
        self.run_length = 1
        self.after_packing = self._steps[len(self._arrays) + 1 :]
        self.is_in_one_piece = self.shard is None and self._size < BATCH_BYTES
        self.spans_from_start: bool = bool(stages) and stages[0].spans_from_start
        if self._stored is None or not self._size:
            return
        self._is_plain = not stages
        self._decode_joined = stages[0].decode_joined if stages else None
        if stages and self._size >= DIRECT_BYTES:
            self._decode_into = stages[0].decode_into
            self._decode_span = stages[0].decode_span
        if (self._is_plain or self._decode_joined is not None) and self._size <= (
            CACHE_BYTES if stages else CACHE_BYTES // 2
        ):
            self.run_length = max(1, PIECE_BYTES // self._size)

    def decode(self, data: Buffer, out: Array | None = None) -> Array:
        """Return the chunk that `data` encodes; with `out`, the chunk is written there and `out` is returned.

        `out` has the shape of the chunk and its dtype in any byte order, and may be strided; after an error its
        contents are undefined.  Without `out` the result may be a read-only view of `data`.
        Raises `DataLossError` or `FailedPreconditionError` when the bytes are damaged.
        """
        try:
            if out is None:
                return self._decode_new(data)
            if self._decode_array is not None:
                return self._decode_placed(data, out)
            if self._decode_into is None or not self._decode_direct(data, out):
                copy_elements(out, self._borrow(data))
        except StoreError as error:
            self._blame(error, data)
            raise
        return out

    def _blame(self, error: StoreError, data: Any) -> None:
        """Say in the error which codec cannot decode `data`: the first, backwards, that fails again.

        The part of a shard that is damaged has said it before.
        The result of the first attempt is released first: a bomb at its limit would take as much again.
        """
        if error.culprit:
            return
        traceback.clear_frames(error.__traceback__)
        name = next(iter(self.names), None)
        for stage, undo in zip(self.names[:0:-1], self._undo_bytes, strict=False):
            try:
                data = undo(data)
            except StoreError:
                name = stage
                break
        if name is not None:
            error.blame(name)

    def _decode_new(self, data: Any) -> Array:
        array: Array = through(self._undo_arrays, self._from_array(through(self._undo_bytes, data)))
        return array

    def _decode_placed(self, data: Any, out: Array) -> Array:
        """Decode through a codec that places its own parts in the destination (shards)."""
        assert self._decode_array is not None
        self._decode_array(through(self._undo_bytes, data), out.transpose(self.order))
        return out

    def _decode_direct(self, data: Any, out: Array) -> bool:
        """Decompress straight into `out` when its memory is laid out as the encoding is."""
        view = out.transpose(self.order)
        return view.flags.c_contiguous and out.dtype == self._stored and self._inflate(data, view)

    def _inflate(self, data: Any, view: Array, span: Span | None = None) -> bool:
        """Decompress into an array that is contiguous and shaped as the encoding is."""
        data = through(self._undo_bytes_to_scratch[:-1], data)
        flat = view.reshape(-1)
        octets = flat.view(np.uint8)
        if span is None:
            assert self._decode_into is not None
            done = self._decode_into(data, octets)
        else:
            assert self._decode_span is not None
            flat, size = flat[slice(*span)], flat.itemsize
            done = self._decode_span(data, octets, (span[0] * size, span[1] * size))
        if done and self._verify is not None:
            self._verify(flat)
        return done

    @property
    def decodes_spans(self) -> bool:
        """Whether `decode_to_scratch` may decode less than a chunk."""
        return self._decode_span is not None

    def decode_to_scratch(self, data: Any, span: Span | None = None) -> Array:
        """Return the chunk in the byte order in which it is stored, good until the thread decodes the next one.

        With a `span`, only the elements `[first, stop)` of the encoding are set, if the chain `decodes_spans`.
        """
        try:
            return self._borrow(data, span)
        except StoreError as error:
            self._blame(error, data)
            raise

    def _borrow(self, data: Any, span: Span | None = None) -> Array:
        array = None
        if self._decode_into is not None:
            array = self._shaped(scratch(self._size), ())
            array = array if self._inflate(data, array, span) else None
        if array is None:
            array = self._view(through(self._undo_bytes_to_scratch, data))
        undone: Array = through(self._undo_arrays, array)
        return undone

    def decode_run_to_scratch(self, parts: Sequence[Any] | Array) -> Array | None:
        """Return several chunks along a new first dimension, in scratch memory; None if they must be taken one by one.

        The parts are buffers, or the rows of an array, which are not copied unless they are encoded.
        More than `run_length` chunks at once gain nothing.  Damage gives None too, so that it is located one by one.
        """
        try:
            if self._decode_run is not None:
                return self._decode_run(parts)
            if self._decode_joined is None and not self._is_plain:
                return None
            octets = self._joined(parts)
            if octets is None:
                return None
            array = self._shaped(octets, (len(parts),))
            if self._verify is not None:
                self._verify(array)
        except Exception:  # noqa: BLE001  # one by one it is seen which chunk it is, and what its codec raises
            return None
        assert self.order is not None
        return array.transpose([0, *[1 + self.order.index(axis) for axis in range(len(self.order))]])

    def _joined(self, parts: Sequence[Any] | Array) -> Array | None:
        if isinstance(parts, np.ndarray):
            if self._is_plain:
                return parts if parts.shape[1] == self._size else None
            parts = [memoryview(row) for row in parts]
        if outer := self._undo_bytes[:-1]:
            parts = [through(outer, part) for part in parts]
        if self._decode_joined is None and set(map(len, parts)) != {self._size}:
            return None
        octets = scratch(len(parts) * self._size)
        if self._decode_joined is not None:
            return octets if self._decode_joined(parts, octets) else None
        room, begins = octets.data, range(0, len(octets), self._size)
        for begin, part in zip(begins, parts, strict=True):  # into memory that is there: joining asks for new
            room[begin : begin + self._size] = part
        return octets

    def _shaped(self, octets: Array, lead: tuple[int, ...]) -> Array:
        """Return bytes as elements, shaped as the encoding is."""
        assert self.order is not None
        assert self._stored is not None
        shape = self.chunk.shape
        return octets.view(self._stored).reshape((*lead, *[shape[axis] for axis in self.order]))

    def encode(self, array: Array) -> Buffer:
        """Return the encoding of a chunk.

        `array` has the shape and dtype of the chunk, any strides and byte order.  The result may be a view of
        `array`: to be kept for longer than the array stays unchanged, it has to be copied.
        """
        return through(self._steps, array)  # type: ignore[no-any-return]  # the last stage gives a buffer

    def encode_all(self, array: Array) -> Buffer:
        """Return the encoding with every part of a shard stored, also those that equal the fill value."""
        if self.shard is None:
            return self.encode(array)
        return b"".join(itertools.chain.from_iterable(self.portions(array, elide=False)))

    def portions(self, array: Array, *, elide: bool = True) -> Iterator[list[Buffer]]:
        """Yield the encoding of a chunk as lists of pieces; those of a shard are made when they are asked for.

        Parts of a shard that equal the fill value are stored unless `elide`.
        """
        data: Any = array
        del array  # a large chunk and its forms are freed step by step, unless the caller keeps them
        if self.shard is not None:
            data = through(self._arrays, data)
            yield from self.shard.portions(self.shard.encode_parts(data, elide=elide))
        elif self._size < BATCH_BYTES:
            yield [through(self._steps, data)]
        else:
            for step in self._in_pieces:
                data = step(data)
            yield from ([piece] for piece in data)

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
        step = abilities_of(stage).order
        if step is None:
            return None
        order = tuple(order[axis] for axis in step)
    return order


# A chain of codecs as stored in zarr v3 metadata.


def find_codec(name: Any) -> CodecFactory:
    """Return the codec registered as `name`, or raise an error that says why there is none."""
    found: CodecFactory | None = registry.codecs.get(string(name))
    for prefix in registry.codec_families.names() if found is None else ():
        if name.startswith(prefix) and (find := registry.codec_families.get(prefix)) is not None:
            found = find(name)
    if found is None:
        found = _without_prefix(name)
    if found is None:
        raise JsonError(f"{quote(name)} is not registered")
    return found


def _without_prefix(name: str) -> CodecFactory | None:
    """Return the codec of numcodecs that is called so there; its names are also known without a prefix."""
    find = registry.codec_families.get("numcodecs.")
    try:
        return None if find is None else find(name)
    except JsonError:  # numcodecs has no such codec either
        return None


def parse_entry(value: Any) -> tuple[CodecFactory, dict[str, Any]]:
    """Return the codec that one element of a chain names, and its raw configuration."""
    fields = Fields(value)
    factory = fields.require("name", find_codec)
    configuration = fields.take("configuration", obj, default={})
    fields.take("must_understand", boolean)  # a codec that is known is understood
    fields.finish()
    return factory, configuration


def codec_json(name: str, configuration: Mapping[str, Any]) -> dict[str, Json]:
    """Return one element of a chain; an empty configuration is left out, except where zarr-python demands it."""
    if configuration or name.startswith("numcodecs."):
        return {"name": name, "configuration": dict(configuration)}
    return {"name": name}


def misplaced(kinds: Iterable[Kind]) -> int | None:
    """Return the position of the first codec that is given bytes and wants an array, or None."""
    are_bytes = False
    for position, kind in enumerate(kinds):
        if are_bytes and kind != "bytes_to_bytes":
            return position
        are_bytes = kind != "array_to_array"
    return None


def _parse_stored(value: Any) -> Codec:
    factory, configuration = parse_entry(value)
    try:
        return factory.from_json(configuration)
    except JsonError as error:
        raise error.within('Error parsing object member "configuration"') from None


@dataclass(frozen=True, slots=True)
class CodecChain:
    """The codecs of a stored array, complete and in order."""

    codecs: tuple[Codec, ...]

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Return the chain of a stored document.  Raises `JsonError` with every problem in it."""
        try:
            codecs = array_of(_parse_stored)(value)
        except RecursionError:
            raise JsonError("Codecs are nested too deeply") from None
        wrong = misplaced(codec.kind for codec in codecs)
        if wrong is not None:
            raise expected("bytes -> bytes codec", value[wrong])
        if not any(codec.kind == "array_to_bytes" for codec in codecs):
            raise JsonError("array -> bytes codec must be specified")
        return cls(tuple(codecs))

    def to_json(self) -> list[Json]:
        """Return the chain as stored."""
        return [codec_json(codec.name, codec.to_json()) for codec in self.codecs]

    @property
    def arrays(self) -> tuple[Codec, ...]:
        """The array-to-array codecs."""
        return tuple(codec for codec in self.codecs if codec.kind == "array_to_array")

    @property
    def pack(self) -> Codec:
        """The array-to-bytes codec."""
        return next(codec for codec in self.codecs if codec.kind == "array_to_bytes")

    @property
    def stages(self) -> tuple[Codec, ...]:
        """The bytes-to-bytes codecs."""
        return tuple(codec for codec in self.codecs if codec.kind == "bytes_to_bytes")

    def bind(self, chunk: ChunkSpec) -> BoundChain:
        """Return the chain for chunks like `chunk`, or raise a `StoreError` that says why it does not fit."""
        spec: ChunkSpec | ByteSpec = chunk
        bound: list[BoundCodec] = []
        for codec in self.codecs:
            try:
                bound.append(codec.bind(spec))
            except StoreError as error:
                error.add_note(f"in codec {quote(codec.name)}")
                raise
            spec = bound[-1].encoded
        at = len(self.arrays)
        names = [f"codec {quote(codec.name)}" for codec in self.codecs[at:]]
        return BoundChain(chunk, bound[:at], bound[at], bound[at + 1 :], names)


# Several small chunks encoded together.


def rows_together(chain: BoundChain) -> int:
    """Return how many chunks are best encoded together; it may be none."""
    return CACHE_BYTES // chain.decoded_size


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


# Parts of encoded chunks that are nothing but the bytes of their elements.


def is_raw(chain: BoundChain) -> bool:
    """Return whether an encoded chunk is the bytes of its elements, in some order of dimensions."""
    return chain.packed is not None and not chain.after_packing and chain.encoded_size == chain.decoded_size


def part_of(chain: BoundChain, shape: tuple[int, ...]) -> BoundChain:
    """Return the chain that decodes a box of raw chunks, whose bytes follow each other."""
    assert chain.order is not None
    assert chain.packed is not None
    spec = ChunkSpec(chain.chunk.dtype, shape, chain.chunk.fill_value)
    turned = BoundTranspose(spec, chain.order)
    pack = BoundBytes(spec.dtype, chain.packed, turned.encoded.shape)
    arrays = [] if chain.order == tuple(range(len(shape))) else [turned]
    return BoundChain(spec, arrays, pack, (), chain.names[:1])
