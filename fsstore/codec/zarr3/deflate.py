"""The `gzip` codec, and deflate with gzip, zlib or no framing for zarr v2.

The quickest library present decodes: libdeflate through imagecodecs when the size is known, which inflates straight
into the destination; zlib-ng, then the standard library, for everything else and to say what is wrong with bytes
that libdeflate refuses.  It does not say where a stream ends, which a checksum tells: raw streams have none.
All write the same format with modification time zero, so encoding is reproducible.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, ClassVar, Literal, Self

from fsstore.codec.configuration import Configured, Member, Members, Options
from fsstore.codec.contract import Array, Buffer, ByteSpec, ChunkSpec, Kind
from fsstore.codec.scratch import passing
from fsstore.codec.size import encoded_bound, output_limit
from fsstore.codec.stream import Inflater, deflated, inflate
from fsstore.errors import StoreError
from fsstore.values.json_value import integer

__all__ = ["BoundDeflate", "Framing", "GzipCodec"]

Framing = Literal["gzip", "zlib", "raw"]
_WINDOW: dict[str, int] = {"gzip": 31, "zlib": 15, "raw": -15}


@cache
def _library() -> Any:
    """Return zlib-ng if it is installed, else zlib."""
    try:
        from zlib_ng import zlib_ng
    except ImportError:
        return zlib
    return zlib_ng


@cache
def _inflater(framing: Framing) -> Inflater:
    library = _library()
    start = partial(library.decompressobj, _WINDOW[framing])
    return Inflater(start, (library.error, zlib.error), "inflate", "Zlib", keeps_tail=True)


@cache
def _fast(framing: Framing) -> tuple[Callable[..., Any], tuple[type[Exception], ...]] | None:
    """Return libdeflate's decoder and its errors, if imagecodecs brings it."""
    try:
        import imagecodecs

        if not imagecodecs.DEFLATE.available:
            return None
        decode = imagecodecs.gzip_decode if framing == "gzip" else imagecodecs.deflate_decode
    except (ImportError, AttributeError):
        return None
    return decode, (imagecodecs.DeflateError, ValueError)


class BoundDeflate:
    """Deflate with one framing, bound to bytes of one size or of any size."""

    effort: ClassVar[float] = 2.5
    is_exact: ClassVar[bool] = True

    __slots__ = ("_fast", "_level", "_window", "decoded", "encoded", "framing")

    def __init__(self, decoded: ByteSpec, framing: Framing, level: int) -> None:
        self.decoded, self.framing, self._level = decoded, framing, level
        self._window = _WINDOW[framing]
        self._fast = _fast(framing) if decoded.size and framing != "raw" else None
        self.encoded = ByteSpec(itemsize=0, max_size=encoded_bound(decoded))

    def encode(self, data: Any) -> bytes:
        """Return `data` compressed."""
        return b"".join(self.encode_pieces(data))

    def encode_pieces(self, data: Any) -> Iterator[Buffer]:
        """Yield `data` compressed: the library would join all of it, and take twice the memory."""
        return deflated(data, _library().compressobj(self._level, zlib.DEFLATED, self._window))

    def decode(self, data: Any) -> Any:
        """Return the bytes inflated."""
        if self._fast is not None:
            out = passing(self.decoded.size or 0)
            self.decode_into(data, out)
            return out.data
        return inflate(
            data, _inflater(self.framing), self.decoded.size, output_limit(self.decoded, len(data))
        )

    def decode_into(self, data: Any, out: Array) -> bool:
        """Inflate into `out`, which has the exact size."""
        if not self._decode_fast(data, out):
            inflate(data, _inflater(self.framing), len(out), len(out), out)
        return True

    def decode_joined(self, parts: Sequence[Any], out: Array) -> bool:
        """Inflate buffers of the bound size one after the other into `out`: what is done beside it is done once."""
        size = len(out) // len(parts)
        for number, part in enumerate(parts):
            self.decode_into(part, out[number * size : (number + 1) * size])
        return True

    def _decode_fast(self, data: Any, out: Array) -> bool:
        """Inflate into `out`; return False if that takes the patient way."""
        if self._fast is None:
            return False
        decode, failures = self._fast
        try:
            filled = len(decode(data, out=out)) == len(out)
        except failures:
            return False
        return filled and self._ends_with_checksum(data, out) and not _repeats(data)

    def _ends_with_checksum(self, data: Any, out: Array) -> bool:
        """Return whether nothing follows the stream: libdeflate checks it, but does not say where it ends."""
        if self.framing == "gzip":
            tail = _library().crc32(out) | (len(out) & 0xFFFFFFFF) << 32
            return bool(bytes(data[-8:]) == tail.to_bytes(8, "little"))
        return bool(bytes(data[-4:]) == _library().adler32(out).to_bytes(4, "big"))


def _repeats(data: Any) -> bool:
    """Return whether data are the same twice or three times in a row, which end with the checksum as well."""
    view, size = memoryview(data), len(data)
    return (not size % 2 and view[size // 2 :] == view[: size // 2]) or (
        not size % 3 and view[size // 3 :] == view[: -(size // 3)]
    )


@dataclass(frozen=True, slots=True)
class GzipCodec(Configured):
    """Deflate with gzip framing.  `level` 0 stores, 9 compresses hardest."""

    level: int

    name: ClassVar[str] = "gzip"
    kind: ClassVar[Kind] = "bytes_to_bytes"
    members: ClassVar[Members] = {"level": Member(integer(0, 9), stored=True)}

    @classmethod
    def complete(cls, options: Options, decoded: ByteSpec) -> Self:  # noqa: ARG003  one signature for all codecs
        """Return the codec with level 6 unless another is asked for."""
        return cls(options.get("level", 6))

    def bind(self, decoded: ChunkSpec | ByteSpec) -> BoundDeflate:
        """Return the codec for bytes like `decoded`."""
        if not isinstance(decoded, ByteSpec):
            raise StoreError('"gzip" codec requires bytes')
        return BoundDeflate(decoded, "gzip", self.level)
