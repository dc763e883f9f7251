"""A batch of files as a header and columns, and back: what is kept with a dataset for adding files, and in journals."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from fsstore.combine.scan.facts import NONE, FileBatch, Form, Ints, VariableColumns
from fsstore.errors import JsonError
from fsstore.kvstore.reference.table.table import INLINE, Rows
from fsstore.mosaic.stored import Column, StoredColumns
from fsstore.mosaic.value import FileFact

__all__ = ["batch_columns", "batch_of"]

_MOST_VALUES = 2**31


def batch_columns(batch: FileBatch) -> tuple[dict[str, Any], dict[str, Column]]:
    """Return a header and columns."""
    header = {
        "forms": [
            [form.version, form.document, list(form.shape), list(form.dims), form.attributes]
            for form in batch.forms
        ],
        "variables": list(batch.variables),
        "values": [[value.dtype.str, list(value.shape)] for value in batch.values],
        "groups": {path: dict(each) for path, each in batch.groups.items()},
        "varying": {path: sorted(each) for path, each in batch.varying.items()},
        "failed": dict(batch.failed),
        "notes": {url: list(each) for url, each in batch.notes.items()},
        "given": list(batch.given),
    }
    columns: dict[str, Column] = {
        "scan/file/url": [fact.url for fact in batch.files],
        "scan/file/size": np.array([fact.size for fact in batch.files], np.int64),
        "scan/file/generation": [fact.generation for fact in batch.files],
        "scan/urls": list(batch.urls),
        "scan/inline": list(batch.inline),
        "scan/values": [np.ascontiguousarray(value).tobytes() for value in batch.values],
    }
    for number, each in enumerate(batch.variables.values()):
        for name, column in zip(_NAMES, (*each_of(each), *each.rows), strict=True):
            columns[f"scan/{number}/{name}"] = np.asarray(column, np.int64)
    for number, column in enumerate(batch.given.values()):
        columns[f"scan/given/{number}"] = column
    return header, columns


_NAMES = ("form", "value", "count", "number", "url", "offset", "length")


def each_of(columns: VariableColumns) -> tuple[Any, ...]:
    """Return the columns that are no references."""
    return columns.form, columns.value, columns.count, columns.number


def batch_of(header: Mapping[str, Any], stored: StoredColumns) -> FileBatch:
    """Return the batch of a header and columns; raises `JsonError` for what cannot be right."""
    try:
        return _batch(header, stored)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, JsonError):
            raise
        raise JsonError(f"What is kept for adding files is damaged: {error}") from error


def _batch(header: Mapping[str, Any], stored: StoredColumns) -> FileBatch:
    names = stored.texts("scan/file/url", of_scan=True)
    sizes = stored.ints("scan/file/size", of_scan=True).tolist()
    tags = stored.texts("scan/file/generation", of_scan=True)
    files = [FileFact(*each) for each in zip(names, sizes, tags, strict=True)]
    forms = [
        Form(int(version), str(document), tuple(map(int, shape)), tuple(map(str, dims)), str(attributes))
        for version, document, shape, dims, attributes in header["forms"]
    ]
    for form in forms:
        json.loads(form.document)
    values = []
    for data, (kind, shape) in zip(stored.values("scan/values", of_scan=True), header["values"], strict=True):
        dtype = np.dtype(str(kind))
        if dtype.hasobject or len(data) > _MOST_VALUES:
            raise JsonError("A value that is kept for adding files cannot be used")
        values.append(np.frombuffer(data, dtype).reshape([int(size) for size in shape]))
    urls, inline = stored.texts("scan/urls", of_scan=True), stored.values("scan/inline", of_scan=True)
    limits = (len(forms), len(values), len(urls), len(inline))
    variables = {
        str(path): _variable(stored, number, len(files), limits)
        for number, path in enumerate(header["variables"])
    }
    given = _given(header["given"], stored, len(files), len(values))
    return FileBatch(
        files,
        forms,
        variables,
        urls,
        inline,
        values,
        {path: dict(each) for path, each in header["groups"].items()},
        {path: frozenset(each) for path, each in header["varying"].items()},
        dict(header["failed"]),
        {url: list(each) for url, each in header["notes"].items()},
        given,
    )


def _given(names: Any, stored: StoredColumns, files: int, values: int) -> dict[str, Ints]:
    given = {
        str(name): stored.ints(f"scan/given/{number}", of_scan=True) for number, name in enumerate(names)
    }
    for column in given.values():
        if len(column) != files or (files and not NONE <= column.min() <= column.max() < values):
            raise JsonError("The coordinates kept for adding files are not one for each")
    return given


def _variable(
    stored: StoredColumns, number: int, files: int, limits: tuple[int, int, int, int]
) -> VariableColumns:
    found = [stored.ints(f"scan/{number}/{name}", of_scan=True) for name in _NAMES]
    form, value, count, chunk, url, offset, length = found
    forms, values, urls, inline = limits
    by_file, by_chunk = {len(form), len(value), len(count)}, {len(chunk), len(url), len(offset), len(length)}
    if by_file != {files} or len(by_chunk) != 1 or (count < 0).any() or int(count.sum()) != len(chunk):
        raise JsonError("The columns kept for adding files have several lengths")
    for column, limit in ((form, forms), (value, values)):
        if len(column) and (int(column.min()) < NONE or int(column.max()) >= limit):
            raise JsonError("The columns kept for adding files name what is not there")
    held = url == INLINE
    if len(url) and (int(url.min()) < INLINE or int(url.max()) >= urls or (offset[held] >= inline).any()):
        raise JsonError("The columns kept for adding files name what is not there")
    if len(chunk) and (int(chunk.min()) < 0 or (offset < 0).any()):
        raise JsonError("The columns kept for adding files name what is not there")
    return VariableColumns(form, value, count, chunk, Rows(url.astype(np.int32), offset, length))
