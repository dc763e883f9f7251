"""Telling a reference document by its first bytes, for automatic detection.

A document is JSON, plain or compressed, whose beginning holds a member that only reference sets have: `refs`, `gen` or
`templates` beside `version`, or a key of zarr metadata.  The beginning alone is looked at.
"""

from __future__ import annotations

import re

from fsstore.values.detection import MAGIC, Detection, beginning, is_text_of_json, method_of

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
    method = method_of(head)
    text = head[:HEAD] if method is None else beginning(method, head[:HEAD], 2 * HEAD)
    text = text.removeprefix(b"\xef\xbb\xbf").lstrip()
    return text.startswith(b"{") and _SIGN.search(text[: 2 * HEAD]) is not None


DETECT = Detection(
    "reference",
    "store",
    signatures=tuple(((0, magic),) for magic in MAGIC.values()),
    matches=is_text_of_json,
    head=32,
    confirm=looks_like_references,
    confirm_head=HEAD,
    over=("json", *MAGIC),
)
"""How a document is recognised, plain or compressed."""
