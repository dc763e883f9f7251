"""One parquet file of references, read into columns.

Columns `path`, `offset`, `size`, `raw`; each may be absent.  A row with `raw` is inline; else one without `path` is no
reference; else one with offset and size zero is a whole target; else a range.

Written by pandas through two engines in many versions, the files differ in how they say nothing: an empty `raw` column
may have the type null or int32, nulls may be missing altogether.  pyarrow reads them as they are, without pandas, and
keeps the dictionary of URLs; fastparquet is used when pyarrow is not installed.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fsstore.errors import DataLossError, ResourceExhaustedError, UnimplementedError
from fsstore.reference.table.table import ABSENT, INLINE, WHOLE, Rows

__all__ = ["Partition", "read_partition"]

MAX_BYTES = 2**31
UrlIds = Callable[[Sequence[str]], "np.ndarray[Any, np.dtype[np.int32]]"]


@dataclass(frozen=True, slots=True)
class Partition:
    """The rows of one file; inline rows point into `raw`."""

    rows: Rows
    raw: Sequence[bytes | None]

    @property
    def nbytes(self) -> int:
        """The memory it takes, about."""
        return self.rows.nbytes + sum(33 + len(value) for value in self.raw if value is not None)


@dataclass(frozen=True, slots=True)
class _Columns:
    """A file as any engine gives it: codes into URLs (-1 for null), numbers, and raw values or None for none."""

    codes: np.ndarray[Any, Any]
    urls: list[str]
    offset: np.ndarray[Any, Any]
    size: np.ndarray[Any, Any]
    raw: list[bytes | None] | None


def read_partition(data: Any, url_ids: UrlIds, where: str) -> Partition:
    """Return the rows of a file.  `where` names it in messages; `url_ids` numbers URLs."""
    try:
        columns = _read(data)
    except (DataLossError, ResourceExhaustedError, UnimplementedError) as error:
        raise error.within(where) from error
    except Exception as error:  # the engines raise errors of their own, and of all kinds, on damaged files
        raise DataLossError(f"{where} is not a parquet file of references: {error}") from error
    codes = columns.codes
    if len(codes) and not (codes.min() >= -1 and codes.max() < len(columns.urls)):
        raise DataLossError(f"{where} has rows whose path is none of its {len(columns.urls)} URLs")
    ids = np.append(url_ids(columns.urls), np.int32(ABSENT))
    url = ids[columns.codes].astype(np.int32)
    offset, length = columns.offset.astype(np.int64), columns.size.astype(np.int64)
    length[(offset == 0) & (length == 0)] = WHOLE
    bad = (url >= 0) & (
        (offset < 0) | (length < WHOLE) | (columns.size < 0) | (offset >= 2**62) | (length >= 2**62)
    )
    if bad.any() or "" in columns.urls:
        row = int(np.flatnonzero(bad)[0]) if bad.any() else 0
        raise DataLossError(
            f"{where} has a malformed reference in row {row}: offset {offset[row]}, size {length[row]}"
        )
    raw = columns.raw or []
    if columns.raw is not None:
        filled = [row for row, value in enumerate(raw) if value is not None]
        url[filled], offset[filled] = INLINE, filled
        length[filled] = [len(raw[row] or b"") for row in filled]
    return Partition(Rows(url, offset, length), raw)


def _read(data: Any) -> _Columns:
    try:
        import pyarrow.parquet
    except ImportError:
        return _with_fastparquet(data)
    return _with_pyarrow(pyarrow, data)


def _with_pyarrow(pyarrow: Any, data: Any) -> _Columns:
    buffer = pyarrow.py_buffer(data)
    file = pyarrow.parquet.ParquetFile(pyarrow.BufferReader(buffer))
    groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
    if sum(group.total_byte_size for group in groups) > MAX_BYTES or file.metadata.num_rows > 10**8:
        raise ResourceExhaustedError("A parquet file of references claims to be larger than 2 GiB")
    names = [name for name in ("path", "offset", "size", "raw") if name in file.schema_arrow.names]
    if not names:
        raise DataLossError("it has none of the columns path, offset, size, raw")
    if "path" in names and pyarrow.types.is_string(file.schema_arrow.field("path").type):
        source = pyarrow.BufferReader(buffer)
        file = pyarrow.parquet.ParquetFile(source, metadata=file.metadata, read_dictionary=["path"])
    table = file.read(columns=names, use_threads=False)
    count = table.num_rows

    def number(name: str) -> np.ndarray[Any, Any]:
        if name not in names:
            return np.zeros(count, np.int64)
        return _numbers(_single(table.column(name).cast(pyarrow.int64())), 0)

    codes, urls = np.full(count, -1), []
    if "path" in names and table.column("path").null_count < count:
        path = _single(table.column("path").unify_dictionaries())
        path = path if hasattr(path, "indices") else path.dictionary_encode()
        codes = _numbers(path.indices.cast(pyarrow.int64()), -1)
        urls = [_text(url) for url in path.dictionary.to_pylist()]
    raw = None
    if "raw" in names and table.column("raw").null_count < count:
        raw = [_raw(value) for value in table.column("raw").to_pylist()]
    return _Columns(codes, urls, number("offset"), number("size"), raw)


def _single(column: Any) -> Any:
    """Return a column as one array."""
    array = column.combine_chunks()
    return array.chunk(0) if hasattr(array, "chunk") else array


def _numbers(array: Any, missing: int) -> np.ndarray[Any, Any]:
    """Return an array of 64-bit integers, `missing` for nulls.

    pyarrow's own conversions import pandas, which takes ten times as long as reading a file.
    """
    count, start = len(array), array.offset
    valid, data = array.buffers()
    if data is None or array.null_count == count:
        return np.full(count, missing, np.int64)
    values = np.frombuffer(data, np.int64)[start : start + count]
    if not array.null_count:
        return values
    bits = np.unpackbits(np.frombuffer(valid, np.uint8), bitorder="little")[start : start + count]
    return np.where(bits, values, missing)


def _with_fastparquet(data: Any) -> _Columns:
    try:
        import fastparquet
        import pandas as pd
    except ImportError:
        raise UnimplementedError(
            "Reading references in parquet needs pyarrow: pip install 'fsstore[parquet]'"
        ) from None
    frame = fastparquet.ParquetFile(io.BytesIO(bytes(data))).to_pandas()
    count = len(frame)
    codes, urls = np.full(count, -1), []
    if "path" in frame:
        codes, names = pd.factorize(frame["path"])
        urls = [_text(name) for name in names]
    offset, size = (
        np.asarray(frame[name].fillna(0), np.int64) if name in frame else np.zeros(count, np.int64)
        for name in ("offset", "size")
    )
    raw = None
    if "raw" in frame and not frame["raw"].isna().all():
        raw = [None if pd.isna(value) else _raw(value) for value in frame["raw"]]
    return _Columns(np.asarray(codes), urls, offset, size, raw)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _raw(value: Any) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    raise DataLossError(f"the column raw holds {type(value).__name__}, not bytes")
