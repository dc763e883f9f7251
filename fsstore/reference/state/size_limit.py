"""How many bytes a reference may sensibly have, so that no set makes its reader fetch without end.

An encoded chunk is hardly larger than the chunk: twice its bytes and a little are allowed.  Metadata documents are
small.  Small values are never looked at, so ordinary sets pay nothing; values that belong to no array known to the
set are not bounded.

The size of a whole target is asked for, not fetched: reading no bytes at an offset succeeds if the target reaches it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fsstore.errors import ResourceExhaustedError, StoreError
from fsstore.kvstore.contract.driver import KvPrefix, Read
from fsstore.reference.state.set_state import Overlay
from fsstore.reference.table.grid import is_document
from fsstore.reference.table.table import INLINE

__all__ = ["FREE", "check_length", "chunk_bytes", "limits_of", "refuse_larger"]

FREE = 64 * 2**20
"""References of up to this many bytes are never questioned."""
_OBJECTS = 2**30  # bytes of a chunk of objects, whose size its metadata do not say
_MOST = 2**34  # bytes of any chunk
_MORE = "more than the {} bytes that a chunk of the array can need; refused"


def chunk_bytes(metadata: Mapping[str, Any]) -> int | None:
    """Return the bytes of a decoded chunk of the array with this metadata, or None if that is unknown.

    >>> chunk_bytes({"zarr_format": 2, "chunks": [10, 10], "dtype": "<f8"})
    800
    """
    if metadata.get("zarr_format") == 3:
        grid = metadata.get("chunk_grid")
        inner = grid.get("configuration") if isinstance(grid, Mapping) else None
        sizes = inner.get("chunk_shape") if isinstance(inner, Mapping) else None
        kind = metadata.get("data_type")
    else:
        sizes, kind = metadata.get("chunks"), metadata.get("dtype")
    if not isinstance(sizes, list) or not all(type(size) is int and size > 0 for size in sizes):
        return None
    try:
        dtype = np.dtype([tuple(field) for field in kind] if isinstance(kind, list) else kind)
    except (TypeError, ValueError, SyntaxError):  # opening the array tells what is wrong with it
        return None
    if kind is None or dtype.hasobject:
        return None
    return math.prod(sizes) * dtype.itemsize


async def limits_of(overlay: Overlay, keys: Sequence[str]) -> list[int | None]:
    """Return for each key the largest number of bytes its reference may have; None: any."""
    known: dict[str, int | None] = {}
    out: list[int | None] = []
    for key in keys:
        if is_document(key):
            out.append(FREE)
            continue
        path = key.rpartition("/")[0]
        if path not in known:
            known[path] = await _limit_below(overlay, path)
        out.append(known[path])
    return out


async def _limit_below(overlay: Overlay, path: str) -> int | None:
    """Return the limit for chunks of the nearest array at or above a path."""
    while True:
        head = f"{path}/" if path else ""
        found = await overlay.resolve([f"{head}.zarray", f"{head}zarr.json"])
        for position in np.flatnonzero(found.rows.url == INLINE).tolist():
            size = _chunk_bytes_of(found.inline[int(found.rows.offset[position])])
            if size is not None:
                return size
        if not path:
            return None
        path = path.rpartition("/")[0]


def _chunk_bytes_of(document: bytes) -> int | None:
    """Return the limit that a metadata document sets; None for groups."""
    try:
        metadata = json.loads(document)
    except (ValueError, RecursionError):
        return None
    if not isinstance(metadata, dict) or not {"chunks", "chunk_grid"} & set(metadata):
        return None
    size = chunk_bytes(metadata)
    return _OBJECTS if size is None else min(_MOST, max(FREE, 2 * size + 2**20))


async def refuse_larger(store: KvPrefix, key: str, limit: int) -> None:
    """Raise if a value has more bytes than its limit.  Missing values and failures are left to who reads them."""
    try:
        answer = (await store.read_many([Read(key, limit + 1, limit + 1)]))[0]
    except StoreError:
        return
    if answer.state == "value":
        raise ResourceExhaustedError(f"{store.describe(key)} has {_MORE.format(limit)}")


def check_length(length: int, limit: int | None) -> None:
    """Raise if a range has more bytes than its limit."""
    if limit is not None and length > limit:
        raise ResourceExhaustedError(f"{length} bytes are {_MORE.format(limit)}")
