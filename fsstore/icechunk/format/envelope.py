"""The header around every document of a repository, and the single zstd frame that follows it.

39 bytes: a magic of 12, the name of the writer (24), the version of the format, the kind of the document, and how it is
compressed.  Nothing carries a checksum, so the frame is walked block by block before it is decompressed: that bounds
what comes out, and finds what is cut off or follows it.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from fsstore.errors import DataLossError, ResourceExhaustedError, UnimplementedError

__all__ = ["MAGIC", "Enveloped", "Kind", "open_envelope"]

MAGIC = "ICE🧊CHUNK".encode()
Kind = Literal["snapshot", "manifest", "repository"]

_KINDS: dict[Kind, int] = {"snapshot": 1, "manifest": 2, "repository": 6}
_HEADER = 39
_BLOCK = 128 * 1024
_LARGEST = 2**30
"""Bytes a document may have when it is decompressed; the format ends at twice that."""


class Enveloped(NamedTuple):
    """The version of the format a document is written in, and its flatbuffer."""

    version: int
    payload: bytes


def open_envelope(data: bytes, kind: Kind, largest: int = _LARGEST) -> Enveloped:
    """Return the document in an object of a repository; raises `DataLossError` if it is none of this kind."""
    if len(data) < _HEADER or data[:12] != MAGIC:
        raise DataLossError(f"The {len(data)} bytes do not begin with the header of Icechunk; at offset 0")
    version, number, compression = data[36:_HEADER]
    if version not in (1, 2):
        raise UnimplementedError(f"Version {version} of the Icechunk format is not supported; at offset 36")
    if number != _KINDS[kind]:
        raise DataLossError(f"Expected a {kind}, but found a document of type {number}; at offset 37")
    if compression != 1:
        raise DataLossError(f"Unknown compression {compression}; at offset 38")
    return Enveloped(version, _decompress(data, largest))


def _decompress(data: bytes, largest: int) -> bytes:
    import zstandard  # on first use: it takes 3 ms

    frame = data[_HEADER:]
    try:
        header = zstandard.get_frame_parameters(frame)
        begin = zstandard.frame_header_size(frame)
    except zstandard.ZstdError as error:
        raise DataLossError(f"No zstd frame follows the header; at offset {_HEADER}") from error
    bound = _bound(frame, begin, has_checksum=bool(header.has_checksum))
    known = header.content_size not in (zstandard.CONTENTSIZE_UNKNOWN, zstandard.CONTENTSIZE_ERROR)
    size = header.content_size if known else bound
    if size > largest or header.window_size > largest:
        raise ResourceExhaustedError(f"The document has more than {largest} bytes when it is decompressed")
    if size > bound:
        raise DataLossError(f"The frame claims {size} bytes, but cannot hold them; at offset {_HEADER}")
    try:
        return zstandard.ZstdDecompressor(max_window_size=largest).decompress(
            frame, max_output_size=max(size, 1)
        )
    except (zstandard.ZstdError, MemoryError) as error:
        raise DataLossError(f"The zstd frame is damaged: {error}; at offset {_HEADER}") from error


def _bound(frame: bytes, at: int, *, has_checksum: bool) -> int:
    """Return how many bytes come out of a frame at most, once its blocks are seen to fill it exactly."""
    total, last = 0, False
    while not last:
        header = int.from_bytes(frame[at : at + 3], "little")
        last, kind, size = bool(header & 1), header >> 1 & 3, header >> 3
        if at + 3 > len(frame) or kind == 3:
            raise DataLossError(f"The zstd frame is damaged or cut off; at offset {_HEADER + at}")
        total += size if kind != 2 else _BLOCK
        at += 3 + (1 if kind == 1 else size)
    at += 4 if has_checksum else 0
    if at != len(frame):
        what = "is cut off" if at > len(frame) else "is followed by other bytes"
        raise DataLossError(f"The zstd frame {what}; at offset {_HEADER + min(at, len(frame))}")
    return total
