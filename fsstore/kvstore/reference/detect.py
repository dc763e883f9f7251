"""Telling a reference document by its first bytes, for automatic detection.

A document is JSON, plain or compressed, whose beginning holds a member that only reference sets have: `refs`, `gen` or
`templates` beside `version`, or a key of zarr metadata.  The beginning alone is looked at.
"""

from __future__ import annotations

import bz2
import lzma
import re
import zlib
from typing import Any

from fsstore.detection import Detection, is_text_of_json

__all__ = ["DETECT", "is_parquet_index", "looks_like_references"]

HEAD = 2**17 + 64
"""How many first bytes are enough: a whole block of zstd, without which nothing can be decompressed."""

_SIGN = re.compile(
    rb'"(?:refs|gen|templates)"\s*:\s*[\[{]|"(?:[^"\\]*/)?(?:\.zgroup|\.zarray|\.zattrs|zarr\.json)"\s*:'
    rb'|"(?:[^"\\]*/)?(?:c[./])?[0-9][0-9./]*"\s*:\s*\[\s*"[^"]+"\s*[\],]'
)


def looks_like_references(head: bytes) -> bool:
    """Return whether a value that starts with `head` (`HEAD` bytes, or all of it) looks like a reference document.

    >>> looks_like_references(b'{"version": 1, "refs": {}}')
    True
    >>> looks_like_references(b'{"zarr_format": 2}')
    False
    """
    text = _decompressed(bytes(head[:HEAD])).removeprefix(b"\xef\xbb\xbf").lstrip()
    return text.startswith(b"{") and _SIGN.search(text[: 2 * HEAD]) is not None


def _decompressed(head: bytes) -> bytes:
    """Return what the beginning of a document decompresses to, as far as it goes."""
    machine: Any
    if head.startswith(b"\x1f\x8b"):
        machine = zlib.decompressobj(31)
    elif head.startswith(b"BZh"):
        machine = bz2.BZ2Decompressor()
    elif head.startswith(b"\xfd7zXZ\x00"):
        machine = lzma.LZMADecompressor(memlimit=2**28)
    elif head.startswith(b"\x28\xb5\x2f\xfd"):
        return _zstd(head)
    else:
        return head
    try:
        return bytes(machine.decompress(head, 2 * HEAD))
    except (zlib.error, OSError, lzma.LZMAError, EOFError):
        return b""


def _zstd(head: bytes) -> bytes:
    import zstandard

    out = bytearray()
    try:
        with zstandard.ZstdDecompressor(max_window_size=2**31).stream_reader(head) as stream:
            while len(out) < 2 * HEAD and (piece := stream.read(4096)):
                out += piece
    except zstandard.ZstdError:
        return bytes(out)
    return bytes(out)


_MAGIC = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ\x00", b"\x28\xb5\x2f\xfd")

DETECT = Detection(
    "reference",
    "store",
    signatures=tuple(((0, magic),) for magic in _MAGIC),
    matches=is_text_of_json,
    head=32,
    confirm=looks_like_references,
    confirm_head=HEAD,
    over=("json", "gzip", "zstd", "xz", "bz2"),
)
"""How a document is recognised, plain or compressed."""


def is_parquet_index(document: object) -> bool:
    """Return whether the document `.zmetadata` is that of a parquet directory, not consolidated zarr metadata."""
    return (
        isinstance(document, dict)
        and "record_size" in document
        and isinstance(document.get("metadata"), dict)
    )
