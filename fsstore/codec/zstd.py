"""The `zstd` codec, and Zstandard for zarr v2.

A decompressor costs more to make than a small frame costs to decode (10 against 0.8 µs), so every thread keeps one.
The size in the frame header is compared with the size expected before anything is allocated.  A frame that is
shorter than expected is continued by the next one; nothing but frames without content may follow the last.

Where only the front of a chunk is wanted, decoding stops behind it: the plane in the middle of a chunk takes half the
time.  A frame has no index, so what lies before has to be decoded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Self

import numpy as np
import zstandard

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
from fsstore.errors import FailedPreconditionError, StoreError
from fsstore.runtime.fork import OfThread
from fsstore.runtime.tuning import CACHE_BYTES
from fsstore.values.detection import frame_end
from fsstore.values.json_value import boolean, integer

_STEP = 64  # bytes of input, which are sixteen blocks at most
_MAGIC = zstandard.FRAME_HEADER
_SIZE = zstandard.frame_content_size
# put at the end of a destination: the library does not say how much of it it has filled
_UNSET = b"\x91not decompressed"
_DAMAGED = (zstandard.ZstdError, MemoryError)


@cache
def _numcodecs() -> Any:
    from numcodecs import zstd

    return zstd


class _Tools:
    """The (de)compressors of one thread: they keep state while they work, so threads do not share them."""

    def __init__(self) -> None:
        self.decompressor = zstandard.ZstdDecompressor()
        self.compressors: dict[tuple[int, bool], zstandard.ZstdCompressor] = {}


_local = OfThread(_Tools)


class BoundZstd:
    """Zstandard bound to bytes of one size or of any size."""

    __slots__ = ("_key", "_size", "decoded", "encoded")

    spans_from_start: ClassVar[bool] = True
    is_exact: ClassVar[bool] = True

    def __init__(self, decoded: ByteSpec, level: int, *, checksum: bool) -> None:
        self.decoded, self._key = decoded, (level, checksum)
        self._size = decoded.size
        self.encoded = ByteSpec(itemsize=0, max_size=encoded_bound(decoded))

    def encode(self, data: Any) -> bytes:
        """Return `data` as one frame that states its size."""
        compressors = _local.now.compressors
        compressor = compressors.get(self._key)
        if compressor is None:
            level, checksum = self._key
            compressor = zstandard.ZstdCompressor(level=level, write_checksum=checksum, write_content_size=True)
            compressors[self._key] = compressor
        return compressor.compress(data)

    def encode_pieces(self, data: Any) -> Iterator[Buffer]:
        """Yield `data` as one frame, in pieces: of random data it is as large as they are."""
        level, checksum = self._key
        compressor = zstandard.ZstdCompressor(level=level, write_checksum=checksum, write_content_size=True)
        chunker: Any = compressor.chunker(size=memoryview(data).nbytes, chunk_size=CACHE_BYTES)
        yield from chunker.compress(data)
        yield from chunker.finish()

    def decode(self, data: Any) -> bytes:
        """Return the bytes of the frame, or of as many frames as it takes."""
        size = self._size
        try:
            if size and _SIZE(data) in (size, -1):
                out = _local.now.decompressor.decompress(data, max_output_size=size, allow_extra_data=False)
                if len(out) == size:
                    return out
        except _DAMAGED:
            pass  # or several frames; what follows tells which
        return _decode_frames(bytes(data), size, output_limit(self.decoded, len(data)))

    def decode_into(self, data: Any, out: Array) -> bool:
        """Decode a frame of the exact size into `out`; return False if `decode` has to look at it.

        Two libraries decode into existing memory; numcodecs takes 0.86 to 0.98 of the time for
        large frames, but makes a decompressor for each, 17 µs, while the thread's own of zstandard is there.
        """
        if len(out) <= CACHE_BYTES and _read_front(data, out, len(out)):
            return True
        try:
            if _SIZE(data) != len(out):
                return False
            _numcodecs().decompress(data, out)
        except (*_DAMAGED, RuntimeError, ValueError):
            return False
        return True

    def decode_span(self, data: Any, out: Array, span: tuple[int, int]) -> bool:
        """Decode a frame of the exact size up to the end of a span; return False if `decode` has to look at it.

        All of the frame must be there, and one with a checksum is decoded to its end.
        """
        return _read_front(data, out, span[1])

    def decode_joined(self, parts: Sequence[Any], out: Array) -> bool:
        """Decode frames of the bound size one after the other into `out`; return False if `decode` has to look.

        The library takes frames that follow each other as one stream.  That each begins with its own size and all
        fill `out` exactly says that none was cut off, or it would have taken its neighbour for its own.
        """
        size = self._size
        try:
            if set(map(_SIZE, parts)) != {size}:
                return False
            out[-len(_UNSET) :] = np.frombuffer(_UNSET, np.uint8)[-len(out) :]
            _numcodecs().decompress(b"".join(parts), out)
        except (*_DAMAGED, RuntimeError, ValueError):
            return False
        return bytes(out[-len(_UNSET) :]) != _UNSET


def _read_front(data: Any, out: Array, stop: int) -> bool:
    """Decode the first `stop` bytes of a frame of the exact size; return False if that cannot be done for sure.

    To the end it is decoded in one go, which finds out whether the frame holds more than it says.
    """
    try:
        frame = zstandard.get_frame_parameters(data)
        if frame.content_size != len(out) or frame.has_checksum or frame_end(data) != len(data):
            return False
        with _local.now.decompressor.stream_reader(data, closefd=False) as reader:
            return bool(reader.readinto(out[:stop]) == stop)
    except _DAMAGED:
        return False


def _decode_frames(data: bytes, size: int | None, limit: int) -> bytes:
    """Decode frame after frame to the end, never past the limit."""
    parts: list[bytes] = []
    total, bound, at = 0, limit if size is None else size, 0
    while not parts or at < len(data):
        try:
            part, at = _frame(data, at, bound - total, too_large(limit) if size is None else too_long(bound))
        except _DAMAGED as error:
            if parts and (size is None or total == size):
                raise too_long(total, total + len(data) - at) from None
            raise _damaged(error, data, at) from None
        parts.append(part)
        total += len(part)
    if size is not None and total < size:
        raise too_short(size, total)
    return b"".join(parts)


def _damaged(error: BaseException, data: bytes, at: int) -> FailedPreconditionError:
    is_frame = data.startswith(_MAGIC, at)
    cut_off = "content size" in str(error) or "full frame" in str(error)
    if len(data) - at < 4 or (is_frame and cut_off):
        return FailedPreconditionError(f"Truncated Zstd-compressed stream; at byte {len(data)}")
    reason = str(error).rpartition(": ")[2] if is_frame else "Unknown frame descriptor"
    return FailedPreconditionError(f"ZSTD_decompressStream() failed: {reason}; at byte {at}")


def _frame(data: bytes, at: int, room: int, refusal: StoreError) -> tuple[bytes, int]:
    """Return the size of the content of the frame at `at`, and its end; raise `refusal` if it holds more than `room`.

    Where the frame does not state its size, input is fed in steps so small that none inflates to more than a few
    blocks.
    """
    rest = memoryview(data)[at:]
    size = _SIZE(rest)
    if size > room:
        raise refusal
    if size > 0:
        return _local.now.decompressor.decompress(rest, max_output_size=size), frame_end(data, at)
    stream = zstandard.ZstdDecompressor(max_window_size=1 << 27).decompressobj()
    parts = []
    while not stream.eof:
        step = data[at : at + _STEP]
        if not step:
            raise FailedPreconditionError(f"Truncated Zstd-compressed stream; at byte {len(data)}")
        part = stream.decompress(step)
        at += len(step)
        room -= len(part)
        if room < 0:
            raise refusal
        parts.append(part)
    return b"".join(parts), at - len(stream.unused_data)


@dataclass(frozen=True, slots=True)
class ZstdCodec(Configured):
    """Zstandard.  `checksum` adds four bytes of checksum to every frame."""

    level: int
    checksum: bool = False

    name: ClassVar[str] = "zstd"
    kind: ClassVar[Kind] = "bytes_to_bytes"
    members: ClassVar[Members] = {"level": Member(integer(-131072, 22), stored=True), "checksum": Member(boolean)}

    @classmethod
    def complete(cls, options: Options, decoded: ByteSpec) -> Self:  # noqa: ARG003  one signature for all codecs
        """Return the codec with level 3 and no checksum unless asked for otherwise."""
        return cls(options.get("level", 3), options.get("checksum", False))

    def bind(self, decoded: ChunkSpec | ByteSpec) -> BoundZstd:
        """Return the codec for bytes like `decoded`."""
        if not isinstance(decoded, ByteSpec):
            raise StoreError('"zstd" codec requires bytes')
        return BoundZstd(decoded, self.level, checksum=self.checksum)
