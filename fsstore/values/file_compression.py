"""Files compressed as a whole: gzip, zstd, bzip2, xz.  Pure: bytes in, bytes out, and never more than a limit.

How a file is compressed is told by its first bytes; its name says only how it is to be written.

A file may consist of several members (gzip), frames (zstd) or streams (bzip2, xz), as parallel compressors write them;
together they are one value.  Everything is produced in bounded pieces, so that a few bytes that promise gigabytes
cost no more than the limit.  Input that is cut off, damaged, or followed by something else is an error; only padding
with zeros, which the formats or their tools allow, may follow gzip and xz.
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable, Generator, Mapping
from typing import Any, Literal, Protocol, TypeAlias

from fsstore.errors import DataLossError, ResourceExhaustedError
from fsstore.values.detection import Detection

__all__ = [
    "DETECT",
    "MAGIC",
    "Compressor",
    "Method",
    "beginning",
    "compressor",
    "expand",
    "frame_end",
    "method_named",
    "method_of",
    "pieces",
    "usual_limit",
]

Method: TypeAlias = Literal["gzip", "zstd", "bz2", "xz"]

MAGIC: Mapping[Method, bytes] = {
    "gzip": b"\x1f\x8b",
    "zstd": b"\x28\xb5\x2f\xfd",
    "bz2": b"BZh",
    "xz": b"\xfd7zXZ\0",
}
"""How files of each method begin."""

DETECT = tuple(Detection(name, "store", signatures=(((0, magic),),)) for name, magic in MAGIC.items())
"""How they are recognised."""

_SUFFIXES: Mapping[str, Method] = {
    ".gz": "gzip",
    ".zst": "zstd",
    ".zstd": "zstd",
    ".bz2": "bz2",
    ".xz": "xz",
}
_PADDED = ("gzip", "xz")
_FEED = 1 << 17  # bytes given to a decompressor at a time
_STEP = 1 << 20  # bytes taken from it at a time
_LEAST = 1 << 25  # bytes that any file may decompress to: some hundred bytes may promise as much as they like
_LARGEST = 8 << 30  # bytes that a file may decompress to, if its reader does not allow more
_MEMORY = 1 << 30  # for the dictionary of xz; that of zstd is allowed 2 GiB, as its command allows at most
_SKIPPABLE = range(0x184D2A50, 0x184D2A60)


def method_of(head: bytes) -> Method | None:
    """Return how a file that begins with `head` is compressed, or None.

    >>> method_of(b"BZh91AY")
    'bz2'
    """
    return next((name for name, magic in MAGIC.items() if head.startswith(magic)), None)


def method_named(path: str) -> Method | None:
    """Return how a file of this name is to be compressed, or None.

    >>> method_named("refs.json.zst")
    'zstd'
    """
    return next((name for suffix, name in _SUFFIXES.items() if path.endswith(suffix)), None)


class Compressor(Protocol):
    """Compresses what it is given bit by bit."""

    def compress(self, data: bytes, /) -> bytes:
        """Take more data; return what is ready."""
        ...

    def flush(self) -> bytes:
        """Return the rest."""
        ...


def compressor(method: Method) -> Compressor:
    """Return what writes a file."""
    match method:
        case "zstd":
            import zstandard

            return zstandard.ZstdCompressor(level=9).compressobj()
        case "gzip":
            return zlib.compressobj(6, zlib.DEFLATED, 31)
        case "bz2":
            return bz2.BZ2Compressor()
        case "xz":
            return lzma.LZMACompressor()


def usual_limit(size: int) -> int:
    """Return how much a file of `size` bytes may decompress to, unless its reader says otherwise."""
    return min(_LARGEST, max(_LEAST, 1000 * size))


def expand(method: Method, data: Any, limit: int) -> bytes:
    """Return what a whole file decompresses to: at most `limit` bytes, or `ResourceExhaustedError`."""
    parts = list(pieces(method, data, limit))
    return parts[0] if len(parts) == 1 else b"".join(parts)


def pieces(method: Method, data: Any, limit: int) -> Generator[bytes]:
    """Yield the same piece by piece, so that it need not be in memory as a whole."""
    size = 0
    for piece in _pieces(method, data):
        size += len(piece)
        if size > limit:
            raise ResourceExhaustedError(
                f"{len(data)} bytes compressed by {method} decompress to more than the limit of {limit} bytes"
            )
        yield piece


def beginning(method: Method, data: Any, size: int) -> bytes:
    """Return the first `size` bytes that the beginning of a file decompresses to, or as many as can be had."""
    out = bytearray()
    try:
        for piece in _pieces(method, data):
            out += piece
            if len(out) >= size:
                break
    except DataLossError:
        pass  # the beginning of a file is cut off by nature
    return bytes(out[:size])


def _pieces(method: Method, data: Any) -> Generator[bytes]:
    """Yield what a file decompresses to, piece by piece."""
    view = memoryview(data).cast("B")
    at = 0
    while not at or at < len(view):
        if at and view[at] == 0 and method in _PADDED:
            at = len(view) - len(bytes(view[at:]).lstrip(b"\0"))
        elif bytes(view[at : at + 6]).startswith(MAGIC[method]):
            at = yield from (_frame(view, at) if method == "zstd" else _member(method, view, at))
        elif method == "zstd" and _word(view, at) in _SKIPPABLE:
            at = frame_end(view, at)
        else:
            what = f"Data compressed by {method} end at byte {at}, but something follows"
            raise DataLossError(what if at else f"Data are not compressed by {method}")
    if at > len(view):
        raise _cut_off(method, len(view))


def _member(method: Method, view: memoryview, at: int) -> Generator[bytes, None, int]:
    """Yield what a member or stream decompresses to; return where it ends."""
    machine = _MACHINES[method]()
    while not machine.eof:
        fed = view[at : at + _FEED] if machine.needs_input else view[:0]
        if machine.needs_input and not fed:
            raise _cut_off(method, len(view))
        at += len(fed)
        try:
            piece = machine.decompress(fed, _STEP)
        except (zlib.error, OSError, EOFError, lzma.LZMAError) as error:
            raise _damaged(method, at, error) from error
        yield piece
    return at - len(machine.unused_data)


def _frame(view: memoryview, at: int) -> Generator[bytes, None, int]:
    """Yield what a frame of zstd decompresses to; return where it ends."""
    import zstandard

    try:
        end = frame_end(view, at)
        decompressor = zstandard.ZstdDecompressor(max_window_size=1 << 31)
        with decompressor.stream_reader(view[at:end], closefd=False) as stream:
            while piece := stream.read(_STEP):
                yield piece
    except zstandard.ZstdError as error:
        raise _damaged("zstd", at, error) from error
    return end


def frame_end(view: memoryview | bytes, at: int = 0) -> int:
    """Return where the frame of zstd at `at` ends by the headers of its blocks; beyond the data if it is cut off."""
    import zstandard

    if _word(view, at) in _SKIPPABLE:
        return at + 8 + _word(view, at + 4)
    header = bytes(view[at : at + 18])
    position, last = at + zstandard.frame_header_size(header), False
    while not last:
        if position + 3 > len(view):
            return len(view) + 1
        block = int.from_bytes(view[position : position + 3], "little")
        last, run_length = bool(block & 1), block >> 1 & 3 == 1
        position += 3 + (1 if run_length else block >> 3)
    return position + (4 if zstandard.get_frame_parameters(header).has_checksum else 0)


def _word(view: memoryview | bytes, at: int) -> int:
    return int.from_bytes(view[at : at + 4], "little")


def _cut_off(method: Method, size: int) -> DataLossError:
    return DataLossError(f"Data compressed by {method} are cut off after {size} bytes")


def _damaged(method: Method, at: int, error: Exception) -> DataLossError:
    return DataLossError(f"Data compressed by {method} are damaged near byte {at}: {error}")


class _Deflate:
    """The decompressor of `zlib` with the manners of those of `bz2` and `lzma`."""

    def __init__(self) -> None:
        self._machine = zlib.decompressobj(31)

    def decompress(self, data: memoryview, limit: int) -> bytes:
        return self._machine.decompress(self._machine.unconsumed_tail + data, limit)

    @property
    def eof(self) -> bool:
        return self._machine.eof

    @property
    def needs_input(self) -> bool:
        return not self._machine.unconsumed_tail

    @property
    def unused_data(self) -> bytes:
        return self._machine.unused_data


_MACHINES: Mapping[str, Callable[[], Any]] = {
    "gzip": _Deflate,
    "bz2": bz2.BZ2Decompressor,
    "xz": lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MEMORY),
}
