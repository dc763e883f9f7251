"""The frame around manifests and nodes: magic, length, version, compression, body, CRC-32C.

`seal` and `unseal` are inverses.  The compression found in the frame decides how it is read; what the database
is configured to use decides only how it is written.  A body may unfold to at most `BODY_LIMIT` bytes, so that a few
damaged or hostile bytes cannot fill the memory.
"""

from __future__ import annotations

import struct

import google_crc32c
import zstandard

from fsstore.errors import DataLossError, ResourceExhaustedError
from fsstore.ocdbt.format.varint import U32, Cursor
from fsstore.runtime.state import OfThread

__all__ = ["BODY_LIMIT", "BTREE_NODE", "MANIFEST", "VERSION_NODE", "seal", "unseal"]

MANIFEST = bytes.fromhex("0cdb3a2a")
VERSION_NODE = bytes.fromhex("0cdb1234")
BTREE_NODE = bytes.fromhex("0cdb20de")

BODY_LIMIT = 512 * 1024 * 1024
"""The greatest decoded size of one structure."""

_STEP = 1024
"""Input is unfolded by this much: zstd makes at most 128 KiB of 4 bytes, so one step adds 32 MiB at most."""

_decompressor = OfThread(zstandard.ZstdDecompressor)


def seal(magic: bytes, body: bytes, level: int | None) -> bytes:
    """Return the structure around `body`, compressed by zstd at `level` unless that is None."""
    if level is not None:
        body = zstandard.ZstdCompressor(level=level).compress(body)
    head = magic + struct.pack("<Q", len(body) + 18) + bytes((0, level is not None))
    crc = google_crc32c.extend(google_crc32c.value(head), body)
    return b"".join((head, body, struct.pack("<I", crc)))


def unseal(magic: bytes, data: bytes, what: str) -> bytes:
    """Return the body of a structure that must begin with `magic`; `what` names it in messages."""
    cursor = Cursor(data, what)
    found = cursor.take_bytes(4) if len(data) >= 4 else data
    if found != magic:
        raise cursor.corrupt(f"Expected to start with hex bytes {magic.hex()} but received: 0x{found.hex()}")
    length = cursor.take_fixed(1, 8)[0]
    if length != len(data):
        raise cursor.corrupt(f"Length in header ({length}) does not match actual length ({len(data)})")
    if len(data) < 18:
        raise cursor.corrupt("too short for a header and a checksum")
    stored, actual = struct.unpack("<I", data[-4:])[0], google_crc32c.value(data[:-4])
    if stored != actual:
        raise cursor.corrupt(
            f"CRC-32C checksum verification failed: stored {stored:08x}, computed {actual:08x}"
        )
    version = cursor.take(U32)
    if version != 0:
        raise cursor.corrupt(f"Maximum supported version is 0 but received: {version}")
    method = cursor.take(U32)
    body = data[cursor.position : -4]
    if method == 0:
        return body
    if method != 1:
        raise cursor.corrupt(f"Unknown compression method {method}")
    return _unfold(body, what)


def _unfold(body: bytes, what: str) -> bytes:
    """Return what the one zstd frame `body` holds."""
    try:
        size = zstandard.frame_content_size(body)
        if size > BODY_LIMIT:
            raise ResourceExhaustedError(
                f"Error decoding {what}: {size} bytes exceed the limit of {BODY_LIMIT}"
            )
        if size >= 0:
            return _decompressor.now.decompress(body, allow_extra_data=False)
        return _unfold_stream(body, what)
    except zstandard.ZstdError as error:
        raise DataLossError(f"Error decoding {what}: {error}") from None


def _unfold_stream(body: bytes, what: str) -> bytes:
    """Unfold a frame that does not say how much it holds."""
    stream = _decompressor.now.decompressobj()
    parts: list[bytes] = []
    total = 0
    for start in range(0, len(body), _STEP):
        if stream.eof:
            raise DataLossError(f"Error decoding {what}: data follow the compressed frame")
        part = stream.decompress(body[start : start + _STEP])
        total += len(part)
        if total > BODY_LIMIT:
            raise ResourceExhaustedError(f"Error decoding {what}: it unfolds to more than {BODY_LIMIT} bytes")
        parts.append(part)
    if not stream.eof or stream.unused_data:
        raise DataLossError(f"Error decoding {what}: the compressed frame is cut off or followed by data")
    return b"".join(parts)
