"""The `gzip` codec, and deflate with gzip, zlib or no framing for zarr v2.

The first half compresses and decompresses in bounded steps, for every library with stream objects (zlib, bz2, lzma).

The quickest library present decodes: libdeflate through imagecodecs when the size is known, which inflates straight
into the destination; zlib-ng, then the standard library, for everything else and to say what is wrong with bytes
that libdeflate refuses.  It does not say where a stream ends, which a checksum tells: raw streams have none.
All write the same format with modification time zero, so encoding is reproducible.
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, ClassVar, Literal, Self

import numpy as np

from fsstore.codec.buffers import DIRECT_BYTES, passing
from fsstore.codec.contract import (
    Array,
    Buffer,
    ByteSpec,
    ChunkSpec,
    Configured,
    Kind,
    Member,
    Members,
    Options,
    encoded_bound,
    output_limit,
    too_large,
    too_long,
    too_short,
)
from fsstore.errors import FailedPreconditionError, ResourceExhaustedError, StoreError
from fsstore.runtime.tuning import CACHE_BYTES, PIECE_BYTES
from fsstore.values.json_value import integer

_LZMA_MEMORY = 256 << 20  # bytes of a dictionary


@dataclass(frozen=True, slots=True)
class Inflater:
    """How one library inflates: `start` makes the object for one member, `failures` are what it raises.

    `label` is the name of the function in messages, `noun` that of the stream.  `keeps_tail` says that input left
    over by a size limit is handed back (zlib) instead of kept inside (bz2, lzma).
    """

    start: Callable[[], Any]
    failures: tuple[type[BaseException], ...]
    label: str
    noun: str
    keeps_tail: bool = False


def deflated(data: Any, stream: Any) -> Iterator[Buffer]:
    """Yield `data` compressed by an object of a library."""
    view = memoryview(data).cast("B")
    for begin in range(0, len(view), CACHE_BYTES):
        if piece := stream.compress(view[begin : begin + CACHE_BYTES]):
            yield piece
    yield stream.flush()


class _Room:
    """Where parts come one behind the other: in memory that is there, or in memory that grows.

    There is room for `bound` bytes and one more, which tells that something follows.
    """

    def __init__(self, bound: int, out: Array | None) -> None:
        self.bound, self.total = bound, 0
        self._out = out
        self._whole: bytes | bytearray = b""

    @property
    def is_over(self) -> bool:
        """Whether there is more than may be."""
        return self.total > self.bound

    def add(self, part: bytes) -> None:
        """Put a part behind the others."""
        if self._out is not None:
            fits = self.bound - self.total
            self._out[self.total : self.total + len(part)] = np.frombuffer(part, np.uint8)[:fits]
        elif not self._whole:
            self._whole = part
        elif part:
            if isinstance(self._whole, bytes):
                self._whole = bytearray(self._whole)
            self._whole += part
        self.total += len(part)

    def whole(self) -> Buffer:
        """Return all of it."""
        if self._out is not None:
            return self._out.data
        return self._whole if isinstance(self._whole, bytes) else memoryview(self._whole)


def inflate(data: Any, inflater: Inflater, size: int | None, limit: int, out: Array | None = None) -> Buffer:
    """Return the bytes that `data` holds: exactly `size` if that is known, else at most `limit`.

    With `out`, of that size, they are there.
    """
    view = memoryview(data).cast("B")
    failures: tuple[type[BaseException], ...] = (*inflater.failures, FailedPreconditionError)
    if out is None and size is not None and size > PIECE_BYTES:
        out = passing(size)
    room = _Room(limit if size is None else size, out)
    total = at = 0  # of members that have come to their end
    is_first = True
    while is_first or at < len(view):
        try:
            at = _add_member(room, view, at, inflater)
        except failures as error:
            if not is_first and (size is None or total == size):
                raise too_long(total, total + len(view) - at) from None
            raise _failure(error, inflater, len(view), total) from None
        if room.is_over:
            raise too_large(limit) if size is None else too_long(size)
        total, is_first = room.total, False
    if size is not None and total < size:
        raise too_short(size, total)
    return room.whole()


def _add_member(room: _Room, data: memoryview, at: int, inflater: Inflater) -> int:
    """Add what the member at `at` holds, up to a byte past the bound, and return where it ends.

    Libraries copy the input that they do not need yet, so they are given it bit by bit, and of members behind the
    first little more than these.
    """
    stream = inflater.start()
    feed = DIRECT_BYTES // 8 if at else CACHE_BYTES
    while not stream.eof and not room.is_over:
        given = stream.unconsumed_tail if inflater.keeps_tail else b""
        wants_more = not given if inflater.keeps_tail else stream.needs_input
        if wants_more:
            given = data[at : at + feed]
            at, feed = at + len(given), min(2 * feed, CACHE_BYTES)
        part: bytes = stream.decompress(given, min(PIECE_BYTES, room.bound + 1 - room.total))
        if not part and not given and not stream.eof:
            raise FailedPreconditionError(f"Truncated {inflater.noun}-compressed stream; at byte {len(data)}")
        room.add(part)
    return at - len(stream.unused_data)


def _failure(error: BaseException, inflater: Inflater, length: int, total: int) -> FailedPreconditionError:
    if isinstance(error, FailedPreconditionError):
        return error
    if isinstance(error, EOFError):
        return FailedPreconditionError(f"Truncated {inflater.noun}-compressed stream; at byte {length}")
    reason = str(error).rpartition(": ")[2] or type(error).__name__
    if "header check" in reason:
        length = min(2, length)
    return FailedPreconditionError(
        f"{inflater.label}() failed: {reason}; at byte {length}; at uncompressed byte {total}"
    )


class BoundStream:
    """A compressor of one library, bound to bytes of one size or of any size; `start` makes what compresses them."""

    __slots__ = ("_inflater", "_start", "decoded", "encoded")

    def __init__(self, decoded: ByteSpec, inflater: Inflater, start: Callable[[], Any]) -> None:
        self.decoded, self._inflater, self._start = decoded, inflater, start
        self.encoded = ByteSpec(itemsize=0, max_size=encoded_bound(decoded))

    def encode(self, data: Any) -> bytes:
        """Return `data` compressed."""
        return b"".join(self.encode_pieces(data))

    def encode_pieces(self, data: Any) -> Iterator[Buffer]:
        """Yield `data` compressed: libraries would join all of it, and take twice the memory."""
        return deflated(data, self._start())

    def decode(self, data: Any) -> Buffer:
        """Return the bytes inflated."""
        return inflate(data, self._inflater, self.decoded.size, output_limit(self.decoded, len(data)))

    def decode_into(self, data: Any, out: Array) -> bool:
        """Inflate into `out`, which has the exact size."""
        inflate(data, self._inflater, len(out), len(out), out)
        return True


def bz2_stream(decoded: ByteSpec, level: int) -> BoundStream:
    """Return bzip2 for bytes like `decoded`."""
    inflater = Inflater(bz2.BZ2Decompressor, (OSError, EOFError), "BZ2_bzDecompress", "Bzip2")
    return BoundStream(decoded, inflater, partial(bz2.BZ2Compressor, level))


def lzma_stream(decoded: ByteSpec, options: Mapping[str, Any]) -> BoundStream:
    """Return xz, lzma or raw lzma for bytes like `decoded`; `options` are those that numcodecs stores.

    Decoding refuses streams that need more than 256 MiB for their dictionary.
    """
    form = options.get("format", lzma.FORMAT_XZ)
    filters = options.get("filters")
    memory = None if form == lzma.FORMAT_RAW else _LZMA_MEMORY
    for entry in filters or ():
        if int(entry.get("dict_size", 0)) > _LZMA_MEMORY:
            raise ResourceExhaustedError(
                f"lzma dictionary of {entry['dict_size']} bytes is more than the {_LZMA_MEMORY} that are allowed"
            )
    container = form if form in (lzma.FORMAT_RAW, lzma.FORMAT_XZ, lzma.FORMAT_ALONE) else lzma.FORMAT_AUTO
    start = partial(lzma.LZMADecompressor, container, memory, filters if form == lzma.FORMAT_RAW else None)
    start()  # says what is wrong with the options
    inflater = Inflater(start, (lzma.LZMAError, EOFError), "lzma_code", "Lzma")
    check, preset = options.get("check", -1), options.get("preset")
    return BoundStream(decoded, inflater, partial(lzma.LZMACompressor, form, check, preset, filters))


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
        return inflate(data, _inflater(self.framing), self.decoded.size, output_limit(self.decoded, len(data)))

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
