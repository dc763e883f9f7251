"""Streams of zfp in its mode `expert`, by packages that know this mode only with a header before the stream.

zfpy decodes such a stream if its header says the mode, and imagecodecs encodes one.  A stream is a number whose lowest
bits come first, so a header is what the number is shifted by: 32 bits of magic, 52 of type and shape, 64 of the mode.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fsstore.codec.contract import Array
from fsstore.errors import StoreError, UnimplementedError

__all__ = ["LEAST_BLOCK_BITS", "ExpertMode"]

_MAGIC = int.from_bytes(b"zfp\x05", "little")
_KINDS = {"i4": 0, "i8": 1, "f4": 2, "f8": 3}
_SIZE_BITS = {1: 48, 2: 24, 3: 16, 4: 12}  # for each size, by the number of dimensions
_MODE_AT = 32 + 52
_LONG = 0xFFF  # the first 12 bits of a mode whose parameters follow
_WORD = 64
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
            raise StoreError(
                f'"zfp" codec of mode "expert" requires sizes of at most {1 << _SIZE_BITS[len(shape)]}'
            )

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
        words = -(-(8 * len(data) - before) // _WORD)
        return (headed >> before).to_bytes(words * _WORD // 8, "little")

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
