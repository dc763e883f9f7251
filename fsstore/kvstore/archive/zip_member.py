"""One member of a ZIP archive: its local header, and its data decompressed.

Sizes, method and checksum come from the central directory, never from the local header, which streaming writers leave
empty; the name must be the same in both.  Decompression is bounded by the declared size, and the declared size by
what the compressed bytes can honestly hold: a bomb is refused before memory is allocated for it.
"""

from __future__ import annotations

import bz2
import lzma
import struct
import zlib
from collections.abc import Callable
from typing import Any

from fsstore.errors import DataLossError, ResourceExhaustedError, UnimplementedError
from fsstore.kvstore.archive.zip_directory import OVERLAPS, ArchiveMember, misnamed
from fsstore.kvstore.contract.driver import Buffer
from fsstore.kvstore.contract.request import key_bytes

__all__ = ["STORED", "check_readable", "data_start", "header_size", "unpack"]

STORED = 0
_ENCRYPTED = 1 << 0 | 1 << 6 | 1 << 13
_MAX_SIZE = 2**32  # bytes of any member
_TRUSTED_SIZE = 64 << 20  # bytes of a member that are never questioned
_MAX_RATIO = 4096  # times its packed size that a larger one may have
_MAX_WINDOW_LOG = 27
_LOCAL = struct.Struct("<4s22x2H")


def check_readable(member: ArchiveMember) -> None:
    """Raise if the member cannot be read: it is encrypted, overlaps another one, has an unknown method, or declares a
    size beyond all reason.
    """
    if member.slack == OVERLAPS:
        raise DataLossError(
            "the ZIP member overlaps another member or the directory, so the archive is damaged or hostile; "
            "get an intact copy"
        )
    if member.flags & _ENCRYPTED:
        raise UnimplementedError("the ZIP member is encrypted")
    if member.method == STORED:
        if member.packed != member.size:
            raise DataLossError(f"stored ZIP member has {member.packed} bytes for a size of {member.size}")
        return
    if member.method not in _METHODS:
        raise UnimplementedError(f"ZIP compression method {member.method} is not supported")
    if member.size > _MAX_SIZE or (member.size > _TRUSTED_SIZE and member.size > member.packed * _MAX_RATIO):
        raise ResourceExhaustedError(f"ZIP member of {member.packed} bytes claims to hold {member.size}")


def data_start(member: ArchiveMember, header: Buffer) -> int:
    """Return how long the local header is that `header` starts with; raises unless it is that of the member.

    `header` must hold as many bytes as the fixed part and the name take (`header_size`).
    """
    if len(header) < _LOCAL.size or bytes(header[:4]) != b"PK\3\4":
        raise DataLossError("ZIP local header is missing")
    _, length, extra = _LOCAL.unpack_from(header)
    name = bytes(header[_LOCAL.size : _LOCAL.size + length])
    if name != key_bytes(member.name):
        raise misnamed(member.name, name)
    return int(_LOCAL.size + length + extra)


def header_size(member: ArchiveMember) -> int:
    """Return the bytes of a local header up to the end of the name."""
    return _LOCAL.size + len(key_bytes(member.name))


def unpack(member: ArchiveMember, packed: Buffer, start: int, stop: int) -> Buffer:
    """Return the bytes `[start, stop)` of a member; the checksum is verified when that is all of it."""
    whole = start == 0 and stop == member.size
    if member.method == STORED:
        value: Buffer = memoryview(packed)[start:stop]
    else:
        value = memoryview(_decompress(member, packed, stop, whole=whole))[start:stop]
    if len(value) != stop - start:
        raise DataLossError(f"ZIP member ends after {len(value) + start} of {member.size} bytes")
    if whole and zlib.crc32(value) != member.crc:
        raise DataLossError("ZIP member has a wrong CRC-32")
    return value


def _decompress(member: ArchiveMember, packed: Buffer, stop: int, *, whole: bool) -> Buffer:
    """Return the first `stop` bytes; when they are all, the data must end there."""
    try:
        value = _METHODS[member.method](packed, stop + 1 if whole else stop)
    except (zlib.error, OSError, ValueError, EOFError, lzma.LZMAError, struct.error, _zstd_error()) as error:
        raise DataLossError(f"ZIP member cannot be decompressed: {error}") from error
    except MemoryError as error:
        raise ResourceExhaustedError("ZIP member needs more memory than there is") from error
    if len(value) > stop:
        raise DataLossError(f"ZIP member is longer than its {member.size} bytes")
    return value


def _zstd_error() -> type[Exception]:
    from zstandard import ZstdError

    error: type[Exception] = ZstdError
    return error


def _deflate(packed: Buffer, limit: int) -> Buffer:
    return zlib.decompressobj(-15).decompress(packed, limit) if limit else b""


def _streams(make: Callable[[], Any], packed: Buffer, limit: int) -> Buffer:
    """Return up to `limit` bytes of the streams that follow each other in `packed`."""
    out, left = bytearray(), bytes(packed)
    while left and len(out) < limit:
        stream = make()
        before = len(left)
        out += stream.decompress(left, limit - len(out))
        while not stream.eof and not stream.needs_input and len(out) < limit:
            out += stream.decompress(b"", limit - len(out))
        if not stream.eof:
            break
        left = stream.unused_data
        if len(left) >= before:
            break
    return out


def _bzip2(packed: Buffer, limit: int) -> Buffer:
    return _streams(bz2.BZ2Decompressor, packed, limit)


def _xz(packed: Buffer, limit: int) -> Buffer:
    return _streams(lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=1 << 29), packed, limit)


def _lzma(packed: Buffer, limit: int) -> Buffer:
    _, length = struct.unpack_from("<2H", packed)
    properties, window = struct.unpack_from("<BL", packed, 4)
    if length != 5 or properties >= 225 or window > 1 << 29:
        raise ValueError("unreasonable LZMA properties")
    choice = {"lc": properties % 9, "lp": properties // 9 % 5, "pb": properties // 45}
    filters = [{"id": lzma.FILTER_LZMA1, "dict_size": window, **choice}]
    stream = lzma.LZMADecompressor(lzma.FORMAT_RAW, filters=filters)
    return stream.decompress(bytes(packed[9:]), limit)


def _zstd(packed: Buffer, limit: int) -> Buffer:
    import zstandard

    decompressor = zstandard.ZstdDecompressor(max_window_size=1 << _MAX_WINDOW_LOG)
    value: bytes = decompressor.stream_reader(packed, read_across_frames=True).read(limit)
    return value


_METHODS: dict[int, Callable[[Buffer, int], Buffer]] = {
    8: _deflate,
    12: _bzip2,
    14: _lzma,
    20: _zstd,
    93: _zstd,
    95: _xz,
}
