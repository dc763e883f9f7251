"""The `zfp` codec: numbers by blocks of four in each dimension, as a bare stream of zfp.

Zfp looks at the shape only, and never where its data end: data are decoded with two different continuations, and where
the results differ, the data were cut off.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from fsstore.codec.contract import (
    Array,
    ByteSpec,
    ChunkSpec,
    Configured,
    Kind,
    Member,
    Members,
    Options,
    read_options,
    too_long,
)
from fsstore.errors import FailedPreconditionError, JsonError, StoreError, UnimplementedError
from fsstore.values.json_value import Json, integer, number, one_of

_MAGIC = int.from_bytes(b"zfp\x05", "little")
_KINDS = {"i4": 0, "i8": 1, "f4": 2, "f8": 3}
_SIZE_BITS = {1: 48, 2: 24, 3: 16, 4: 12}  # for each size, by the number of dimensions
_MODE_AT = 32 + 52
_LONG = 0xFFF  # the first 12 bits of a mode whose parameters follow
_WORD_BITS = 64
_BIAS = 16495  # of exponents
LEAST_BLOCK_BITS = 12  # an exponent is written, however few bits a block shall have


class ExpertMode(NamedTuple):
    """The least and the most bits of a block, the most planes of bits, and the exponent of the last plane."""

    minbits: int
    maxbits: int
    maxprec: int
    minexp: int

    def check(self, shape: tuple[int, ...]) -> None:
        """Raise `StoreError` for what zfp cannot write."""
        if self.minbits > self.maxbits or self.maxbits < LEAST_BLOCK_BITS:
            raise StoreError(
                f'"zfp" codec cannot encode: maxbits {self.maxbits} is less than minbits or {LEAST_BLOCK_BITS}'
            )
        if any(size > 1 << _SIZE_BITS[len(shape)] for size in shape):
            raise StoreError(f'"zfp" codec of mode "expert" requires sizes of at most {1 << _SIZE_BITS[len(shape)]}')

    def encode(self, array: Array) -> bytes:
        """Return the stream of an array."""
        try:
            from imagecodecs import zfp_encode
        except ImportError:
            raise UnimplementedError(
                'Encoding "zfp" of mode "expert" needs imagecodecs: pip install \'fsstore[images]\''
            ) from None
        level: Any = (self.minbits, self.maxbits, self.maxprec, self.minexp & 0xFFFFFFFF)  # it takes no sign
        headed = int.from_bytes(data := zfp_encode(array, level, mode="expert"), "little")
        is_long = headed >> _MODE_AT & _LONG == _LONG  # parameters of another mode are written shortly
        before = _MODE_AT + (64 if is_long else 12)
        words = -(-(8 * len(data) - before) // _WORD_BITS)
        return (headed >> before).to_bytes(words * _WORD_BITS // 8, "little")

    def decode(self, stream: bytes, native: np.dtype[Any], shape: tuple[int, ...]) -> Array:
        """Return the array of a stream; raises what zfpy does."""
        import zfpy

        header = _MAGIC | self._field(native, shape) << 32 | self._mode() << _MODE_AT
        whole = int.from_bytes(stream, "little") << _MODE_AT + 64 | header
        numbers: Array = zfpy.decompress_numpy(whole.to_bytes(len(stream) + 24, "little"))
        return numbers

    def _field(self, native: np.dtype[Any], shape: tuple[int, ...]) -> int:
        field = 0
        for size in shape:
            field = field << _SIZE_BITS[len(shape)] | (size - 1)
        return field << 4 | (len(shape) - 1) << 2 | _KINDS[native.str[1:]]

    def _mode(self) -> int:
        mode = self.minexp + _BIAS
        for value, bits in ((self.maxprec, 7), (self.maxbits, 15), (max(self.minbits, 1), 15)):
            mode = mode << bits | (value - 1)
        return mode << 12 | _LONG


_PARAMETERS: dict[str, tuple[str, ...]] = {
    "reversible": (),
    "fixed_accuracy": ("tolerance",),
    "fixed_rate": ("rate",),
    "fixed_precision": ("precision",),
    "expert": ExpertMode._fields,
}
"""The parameters of each mode."""
_MOST_DIMENSIONS = 4
_MOST_BITS = 1 << 15  # of a block, that zfp can say
_EXPONENTS = (-16495, 16272)  # that zfp can say
_WORD_BYTES = 8  # bytes: zfp writes words
_ZERO_BLOCK_BITS = 80  # a bit for each plane, and what leads them


@dataclass(frozen=True, slots=True)
class ZfpCodec(Configured):
    """Numbers without loss (`reversible`), or with as much as the parameter of the mode allows."""

    mode: str
    tolerance: float | None = None
    rate: float | None = None
    precision: int | None = None
    minbits: int | None = None
    maxbits: int | None = None
    maxprec: int | None = None
    minexp: int | None = None

    name: ClassVar[str] = "zfp"
    kind: ClassVar[Kind] = "array_to_bytes"
    members: ClassVar[Members] = {
        "mode": Member(one_of(*_PARAMETERS), stored=True),
        "tolerance": Member(number),
        "rate": Member(number),
        "precision": Member(integer(0, 64)),
        "minbits": Member(integer(0, _MOST_BITS)),
        "maxbits": Member(integer(0, _MOST_BITS)),
        "maxprec": Member(integer(1, 64)),
        "minexp": Member(integer(*_EXPONENTS)),
    }
    always: ClassVar[frozenset[str]] = frozenset({"mode"})

    @classmethod
    def from_json(cls, configuration: Mapping[str, Json]) -> Self:
        """Return the codec of a stored configuration."""
        codec = cls(**read_options(cls.members, configuration))
        codec._check()
        return codec

    @classmethod
    def complete(cls, options: Options, decoded: ChunkSpec) -> Self:  # noqa: ARG003  one signature for all codecs
        """Return the codec, without loss unless something else is asked for."""
        codec = cls(**{"mode": "reversible", **options})
        codec._check()
        return codec

    def _check(self) -> None:
        wanted = _PARAMETERS[self.mode]
        if self.parameters().keys() != set(wanted):
            raise JsonError(f'The mode "{self.mode}" of zfp has {", ".join(wanted) or "no"} parameter')

    def parameters(self) -> dict[str, Any]:
        """Return the parameters of the mode."""
        named = {name: getattr(self, name) for name in self.members if name != "mode"}
        return {name: value for name, value in named.items() if value is not None}

    def bind(self, decoded: ChunkSpec | ByteSpec) -> BoundZfp:
        """Return the codec for chunks like `decoded`."""
        if (
            not isinstance(decoded, ChunkSpec)
            or decoded.dtype.kind not in "if"
            or decoded.dtype.itemsize not in (4, 8)
            or len(decoded.shape) > _MOST_DIMENSIONS
        ):
            raise StoreError('"zfp" codec requires int32, int64, float32 or float64 in at most four dimensions')
        try:
            import zfpy  # noqa: F401  only whether it is there counts
        except ImportError:
            raise UnimplementedError("Codec \"zfp\" needs zfpy: pip install 'fsstore[codecs]'") from None
        return BoundZfp(decoded, self)


class BoundZfp:
    """The codec bound to chunks of one type and shape."""

    __slots__ = ("_expert", "_length", "_native", "_options", "_shape", "decoded", "encoded", "scratch_size")

    def __init__(self, decoded: ChunkSpec, codec: ZfpCodec) -> None:
        self.decoded, self.encoded = decoded, ByteSpec(itemsize=0)
        self._options = codec.parameters()
        self._expert = ExpertMode(**self._options) if codec.mode == "expert" else None
        self._native, self._shape = decoded.dtype.newbyteorder("="), decoded.shape or (1,)
        self.scratch_size = 2 * self._native.itemsize * math.prod(self._shape)  # two results
        if codec.rate is not None and codec.rate * 4 ** len(self._shape) < LEAST_BLOCK_BITS:
            raise StoreError(f'"zfp" codec cannot encode: the rate {codec.rate:g} is too small')
        if self._expert is not None:
            self._expert.check(self._shape)
        # at a fixed rate all chunks have the same length
        self._length = len(self.encode(np.zeros(self._shape, self._native))) if codec.rate is not None else None

    def encode(self, data: Array) -> bytes:
        """Return the stream."""
        import zfpy

        array = np.ascontiguousarray(data, dtype=self._native).reshape(self._shape)
        if self._expert is not None:
            return self._shortest(self._expert.encode(array))
        try:
            return bytes(zfpy.compress_numpy(array, write_header=False, **self._options))
        except (ValueError, TypeError, RuntimeError) as error:
            raise StoreError(f'"zfp" codec cannot encode: {error}') from None

    def decode(self, data: Any) -> Array:
        """Return the numbers."""
        stream = bytes(data)
        beyond, rest = self._beyond(len(stream))
        try:
            zeros, others = (self._numbers(stream + pad * beyond + rest) for pad in (b"\0", b"\xff"))
        except (ValueError, TypeError, RuntimeError) as error:
            raise FailedPreconditionError(f"Invalid zfp data: {error}") from None
        if not np.array_equal(zeros.view(np.uint8), others.view(np.uint8)):
            raise self._truncated(len(stream))
        numbers: Array = zeros.reshape(self.decoded.shape).astype(self.decoded.dtype, copy=False)
        return numbers

    def _numbers(self, stream: bytes) -> Array:
        import zfpy

        if self._expert is not None:
            return self._expert.decode(stream, self._native, self._shape)
        numbers: Array = zfpy._decompress(stream, zfpy.dtype_to_ztype(self._native), self._shape, **self._options)
        return numbers

    def _shortest(self, stream: bytes) -> bytes:
        """Return a stream without a last word that no number needs."""
        if stream.endswith(bytes(_WORD_BYTES)):
            try:
                self.decode(stream[:-_WORD_BYTES])
            except FailedPreconditionError:
                return stream
            return stream[:-_WORD_BYTES]
        return stream

    def _truncated(self, length: int) -> FailedPreconditionError:
        return FailedPreconditionError(f"Truncated zfp-compressed data; at byte {length}")

    def _beyond(self, length: int) -> tuple[int, bytes]:
        """Return the padding of a stream: a block of any contents, and all blocks of zeros."""
        if length % _WORD_BYTES or (self._length is not None and length < self._length):
            raise self._truncated(length)
        blocks = math.prod(-(-size // 4) for size in self._shape)
        # numbers are stored by planes of bits, each with a mark or more; exponents and the like lead
        block = (4 ** len(self._shape) * (8 * self._native.itemsize + 1) + 64) // 8 + _WORD_BYTES
        least = 0 if self._expert is None else self._expert.minbits  # of every block
        if 8 * length < blocks * least:
            raise self._truncated(length)
        block = max(block, least // 8 + _WORD_BYTES)
        most = blocks * block if self._length is None else self._length
        if length > most:
            raise too_long(most, length)
        return block, bytes(block + blocks * max(least, _ZERO_BLOCK_BITS) // 8 + _WORD_BYTES)
