"""The two stored forms of a virtual dataset, parquet and JSON, and how they are recognised by their first bytes."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from fsstore.errors import DataLossError, JsonError, ResourceExhaustedError, StoreError, UnimplementedError
from fsstore.values.detection import Detection
from fsstore.values.json_value import loads

# The two stored forms of a virtual dataset: a header in JSON, and named columns.

MARK = "fsstore_mosaic"
_VERSION = 1
SMALLEST_DOCUMENT = 256  # bytes that every document has, and that tell it from others
_BEGINNING = f'{{"{MARK}":'.encode()
_PARQUET = b"PAR1"
_MOST_BYTES = 2**33
_MOST_ROWS = 100_000

Column: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]] | list[str] | list[bytes]"


@dataclass(frozen=True, slots=True)
class StoredColumns:
    """The contents of a document: the header, its columns, and those for adding files."""

    header: Mapping[str, Any]
    columns: Mapping[str, Column]
    scan: Mapping[str, Column] = field(default_factory=dict)

    def ints(self, name: str, *, of_scan: bool = False) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Return a column of integers."""
        found = self._column(name, of_scan)
        if not isinstance(found, np.ndarray):
            raise JsonError(f'The column "{name}" has to be one of integers')
        return found

    def texts(self, name: str, *, of_scan: bool = False) -> list[str]:
        """Return a column of texts."""
        found = self._column(name, of_scan)
        if isinstance(found, np.ndarray) or not all(isinstance(each, str) for each in found):
            raise JsonError(f'The column "{name}" has to be one of texts')
        return found  # type: ignore[return-value]  # checked

    def values(self, name: str, *, of_scan: bool = False) -> list[bytes]:
        """Return a column of byte strings."""
        found = self._column(name, of_scan)
        if isinstance(found, np.ndarray) or not all(isinstance(each, bytes) for each in found):
            raise JsonError(f'The column "{name}" has to be one of byte strings')
        return found  # type: ignore[return-value]  # checked

    def _column(self, name: str, of_scan: bool) -> Column:
        found = (self.scan if of_scan else self.columns).get(name)
        if found is None:
            raise JsonError(f'The column "{name}" is missing')
        return found


def is_mosaic(head: bytes, tail: bytes = b"") -> bool:  # noqa: ARG001  # the contract of `Detection.matches`
    """Return whether a file begins like a virtual dataset.

    >>> is_mosaic(b'{"fsstore_mosaic": 1'), is_mosaic(b'{"version": 1')
    (True, False)
    """
    if head.startswith(_PARQUET):
        return _BEGINNING in head
    return head.lstrip().startswith(b"{") and head.lstrip()[1:].lstrip().startswith(f'"{MARK}"'.encode())


def to_bytes(stored: StoredColumns, *, as_json: bool = False) -> bytes:
    """Return the parquet form where that can be written, unless JSON is asked for."""
    if not as_json:
        try:
            return to_parquet(stored)
        except UnimplementedError:
            pass  # without pyarrow: both forms can be read everywhere
    return to_json(stored)


def to_json(stored: StoredColumns) -> bytes:
    """Return the JSON form."""
    header = {MARK: _VERSION, **stored.header}
    parts = {name: {each: _json_column(column) for each, column in group.items()} for name, group in _groups(stored)}
    lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in header.items()]
    for name, group in parts.items():
        inner = ",\n  ".join(f"{json.dumps(each)}: {json.dumps(value)}" for each, value in group.items())
        lines.append(f"{json.dumps(name)}: {{\n  {inner}\n }}")
    return ("{" + ",\n ".join(lines) + "}\n").encode()


def _groups(stored: StoredColumns) -> list[tuple[str, Mapping[str, Column]]]:
    return [("columns", stored.columns), ("scan_columns", stored.scan)]


def _json_column(column: Column) -> Any:
    if isinstance(column, np.ndarray):
        return column.tolist()
    if column and isinstance(column[0], bytes):
        return {"base64": [base64.b64encode(each).decode("ascii") for each in column]}
    return {"text": list(column)} if column else {"base64": []}


def to_parquet(stored: StoredColumns) -> bytes:
    """Return the parquet form."""
    pa, parquet = _pyarrow()
    schema = pa.schema([
        ("text", pa.string()), ("name", pa.string()), ("integers", pa.list_(pa.int64())),
        ("texts", pa.list_(pa.string())), ("values", pa.list_(pa.binary())),
    ])  # fmt: skip
    first = {"first_of_scan": 1 + len(stored.columns)}
    header = json.dumps({MARK: _VERSION, **stored.header, **first}, separators=(",", ":"))
    sink = io.BytesIO()
    compression = {"text": "NONE", **dict.fromkeys(("name", "integers", "texts", "values"), "ZSTD")}
    for nested in ("integers", "texts", "values"):
        compression[f"{nested}.list.element"] = "ZSTD"
    with parquet.ParquetWriter(
        sink, schema, compression=compression, use_dictionary=False, write_statistics=False,
        column_encoding={"integers.list.element": "DELTA_BINARY_PACKED"}, data_page_version="1.0",
    ) as writer:  # fmt: skip
        writer.write_table(pa.Table.from_pylist([{"text": header, "name": "header"}], schema))
        for _, group in _groups(stored):
            for name, column in group.items():
                writer.write_table(_row(pa, schema, name, column))
    return sink.getvalue()


def _row(pa: Any, schema: Any, name: str, column: Column) -> Any:
    kinds = {"integers": pa.int64(), "texts": pa.string(), "values": pa.binary()}
    if isinstance(column, np.ndarray):
        used = "integers"
    else:
        used = "texts" if column and isinstance(column[0], str) else "values"
    row: dict[str, Any] = {"text": [None], "name": [name]}
    for kind, inner in kinds.items():
        if kind == used:
            flat = pa.array(column, inner)
            row[kind] = pa.ListArray.from_arrays(pa.array([0, len(flat)], pa.int32()), flat)
        else:
            row[kind] = pa.nulls(1, pa.list_(inner))
    return pa.Table.from_pydict(row, schema)


def _pyarrow() -> Any:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        raise UnimplementedError("Virtual datasets in parquet need pyarrow: pip install 'fsstore[parquet]'") from None
    return pa, parquet


def from_bytes(data: Any, *, with_scan: bool = False) -> StoredColumns:
    """Return what a document holds; raises `StoreError` for what is none, within bounded memory."""
    data = bytes(data)
    if not is_mosaic(data[:4096]):
        raise JsonError(
            "This is no virtual dataset: its mark is missing.  `combine` saves one under a name such as all.mosaic; "
            "other reference sets cannot be changed in part"
        )
    try:
        return _from_parquet(data, with_scan) if data.startswith(_PARQUET) else _from_json(data, with_scan)
    except StoreError:
        raise
    except (ArithmeticError, LookupError, TypeError, ValueError, OSError, MemoryError) as error:
        raise DataLossError(f"The virtual dataset is damaged: {type(error).__name__}: {error}") from error


def _from_json(data: bytes, with_scan: bool) -> StoredColumns:
    found = loads(data, lenient=True)
    if not isinstance(found, dict) or found.pop(MARK, None) != _VERSION:
        raise JsonError(f"The virtual dataset is of another version than {_VERSION}, which is all that is known here")
    columns, scan = found.pop("columns", {}), found.pop("scan_columns", {})
    if not isinstance(columns, dict) or not isinstance(scan, dict):
        raise JsonError("The columns of a virtual dataset are an object")
    scanned = {name: _parsed(name, each) for name, each in scan.items()} if with_scan else {}
    return StoredColumns(found, {name: _parsed(name, each) for name, each in columns.items()}, scanned)


def _parsed(name: str, column: Any) -> Column:
    if isinstance(column, list):
        if not all(type(each) is int and -(2**63) <= each < 2**63 for each in column):
            raise JsonError(f'The column "{name}" has elements that are no integers')
        return np.array(column, np.int64)
    match column:
        case {"text": [*texts]} if all(isinstance(each, str) for each in texts):
            return texts
        case {"base64": [*values]} if all(isinstance(each, str) for each in values):
            return [base64.b64decode(each, validate=True) for each in values]
    raise JsonError(f'The column "{name}" is neither a list of integers, nor of texts, nor of byte strings')


def _from_parquet(data: bytes, with_scan: bool) -> StoredColumns:
    _, parquet = _pyarrow()
    file = parquet.ParquetFile(io.BytesIO(data))
    metadata = file.metadata
    if metadata.num_rows > _MOST_ROWS or metadata.num_row_groups > _MOST_ROWS:
        raise ResourceExhaustedError("The virtual dataset has too many columns")
    groups = [metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups)]
    if sum(groups) > _MOST_BYTES:
        raise ResourceExhaustedError(f"The virtual dataset takes more than {_MOST_BYTES} bytes of memory")
    header = loads(file.read_row_group(0, columns=["text"]).column("text")[0].as_py(), lenient=True)
    if not isinstance(header, dict) or header.pop(MARK, None) != _VERSION:
        raise JsonError(f"The virtual dataset is of another version than {_VERSION}, which is all that is known here")
    first = header.pop("first_of_scan", None)
    stop = metadata.num_row_groups if with_scan or not isinstance(first, int) else min(first, metadata.num_row_groups)
    found: dict[str, Column] = {}
    scan: dict[str, Column] = {}
    for number in range(1, stop):
        row = file.read_row_group(number)
        group = found if not isinstance(first, int) or number < first else scan
        group[str(row.column("name")[0].as_py())] = _column_of(row)
    return StoredColumns(header, found, scan)


def _column_of(row: Any) -> Column:
    for kind in ("integers", "texts", "values"):
        chunk = row.column(kind).combine_chunks()
        if len(chunk) and chunk[0].is_valid:
            inner = chunk.flatten()
            if inner.null_count:
                raise JsonError("A column of a virtual dataset has missing elements")
            if kind == "integers":
                numbers: np.ndarray[Any, np.dtype[np.int64]] = inner.to_numpy(zero_copy_only=False)
                return numbers.astype(np.int64)
            listed: list[str] | list[bytes] = inner.to_pylist()
            return listed
    return []


DETECT = Detection(
    "mosaic",
    "store",
    matches=is_mosaic,
    head=256,
    confirm=is_mosaic,
    confirm_head=256,
    over=("json", "reference"),
    title="a virtual dataset",
)
