"""Reference sets: keys that point into bytes stored elsewhere.

A set is one table of columns, whatever document it comes from, and answers keys in batches.  A policy decides what it
may fetch, because a set is untrusted input.

* `kind`: the JSON members of the store, its URL (<base>|reference:<path>), and how a stored set is opened
* `driver`: the reference key-value store, and taking copies into a set in one step
* `mapping`: `References`: an opened set as a mapping, and sets made of it: with smaller chunks, or saved elsewhere
* `report`: the cost of reading a set, and checking a set against its targets
* `table`: the columnar table of a set, templates and generators, and changes that are not yet saved

The documents of sets:

* `json_document`: a JSON document to a table and back; `json_scan` reads long ones piece by piece, `json_run` many
  equal entries at a time
* `parquet_set`: the parquet directory as a set, `parquet_file` its files, `parquet_change` changing it

The targets of references:

* `policy`: which targets may be read, and roots on web servers that are held to it
* `targets`: reading them: many ranges, few requests
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
