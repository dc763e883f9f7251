"""A batch of files in one compressed string: what tasks answer with, and what is noted in journals.

A header in JSON, which has the texts, then the columns of integers and the bytes of values, one behind the other, all
deflated.  A reference takes some three bytes, and packing takes no longer than pickling does.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from fsstore.combine.scan.facts import FileBatch
from fsstore.combine.scan.scan_columns import batch_columns, batch_of
from fsstore.combine.tuning import PACKED_BYTES, PACKING_LEVEL
from fsstore.errors import DataLossError, JsonError, StoreError
from fsstore.mosaic.stored import Column, StoredColumns

__all__ = ["packed", "unpacked"]

_SIZES = struct.Struct("<4sQQ")  # mark, size of the header, size of everything
_MARK = b"fsb1"


def packed(batch: FileBatch, urls: Sequence[str]) -> bytes:
    """Return a batch as one string, with the URLs by which its files were asked for."""
    header, columns = batch_columns(batch)
    texts: dict[str, list[str]] = {"asked": list(urls)}
    listed: list[list[Any]] = []
    body: list[Any] = []
    for name, column in columns.items():
        if isinstance(column, np.ndarray):
            listed.append([name, len(column)])
            body.append(column.astype("<i8", copy=False).tobytes())
        elif column and isinstance(column[0], str):
            texts[name] = [*map(str, column)]
        else:
            listed.append([name, [len(value) for value in column]])
            body.append(b"".join(map(bytes, column)))  # type: ignore[arg-type]  # no texts here
    head = json.dumps({"scan": header, "texts": texts, "columns": listed}, separators=(",", ":")).encode()
    whole = b"".join([head, *body])
    return _SIZES.pack(_MARK, len(head), len(whole)) + zlib.compress(whole, PACKING_LEVEL)


def unpacked(data: Any) -> tuple[FileBatch, list[str]]:
    """Return a batch, and the URLs by which its files were asked for; raises `StoreError` for what is none."""
    try:
        header, columns = _parsed(bytes(data))
        batch, asked = batch_of(header, StoredColumns({}, {}, columns)), columns["asked"]
    except StoreError:
        raise
    except (
        ArithmeticError,
        LookupError,
        RecursionError,
        TypeError,
        ValueError,
        struct.error,
        zlib.error,
    ) as error:
        raise DataLossError(f"The packed batch is damaged: {type(error).__name__}: {error}") from error
    if len(asked) != len(batch.files):
        raise JsonError("A packed batch does not say by which URLs its files were asked for")
    return batch, [str(url) for url in asked]


def _parsed(data: bytes) -> tuple[dict[str, Any], dict[str, Column]]:
    mark, head, size = _SIZES.unpack_from(data)
    if mark != _MARK or not head <= size <= PACKED_BYTES:
        raise JsonError("This is no packed batch")
    engine = zlib.decompressobj()
    whole = memoryview(engine.decompress(data[_SIZES.size :], size + 1))
    if len(whole) != size or not engine.eof or engine.unused_data:
        raise DataLossError("The packed batch is not whole")
    header = json.loads(bytes(whole[:head]))
    columns: dict[str, Column] = {name: list(map(str, texts)) for name, texts in header["texts"].items()}
    at = head
    for name, lengths in header["columns"]:
        if isinstance(lengths, int):
            columns[name] = np.frombuffer(whole, "<i8", lengths, at).astype(np.int64)
            at += 8 * lengths
            continue
        if any(length < 0 for length in lengths):
            raise JsonError("A packed batch has values of less than no bytes")
        ends = (at + np.cumsum([0, *lengths])).tolist()
        columns[name] = [bytes(whole[start:stop]) for start, stop in pairwise(ends)]
        at = ends[-1]
    if at != size:
        raise DataLossError("The packed batch is not whole")
    return dict(header["scan"]), columns
