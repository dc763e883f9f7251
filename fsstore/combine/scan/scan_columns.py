"""A batch of files as a header and columns, and back: what is kept for adding files, noted in journals, and sent.

All variables share a few columns, so that a batch of many variables takes as few as one of a single variable.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from fsstore.combine.scan.facts import NONE, FileBatch, Form, Ints, VariableColumns
from fsstore.errors import JsonError
from fsstore.mosaic.stored import Column, StoredColumns
from fsstore.mosaic.value import FileFact
from fsstore.reference.table.table import INLINE, Rows

__all__ = ["batch_columns", "batch_of"]

_MOST_VALUES = 2**31
_BY_FILE = ("form", "value", "count")
_BY_CHUNK = ("number", "url", "offset", "length")


def batch_columns(batch: FileBatch) -> tuple[dict[str, Any], dict[str, Column]]:
    """Return a header and columns."""
    kinds: dict[tuple[str, tuple[int, ...]], int] = {}
    kind = [kinds.setdefault((value.dtype.str, value.shape), len(kinds)) for value in batch.values]
    header = {
        "forms": [
            [form.version, form.document, list(form.shape), list(form.dims), form.attributes]
            for form in batch.forms
        ],
        "variables": list(batch.variables),
        "kinds": [[dtype, list(shape)] for dtype, shape in kinds],
        "groups": {path: dict(each) for path, each in batch.groups.items()},
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
        "scan/kind": np.array(kind, np.int64),
        "scan/given": _end_to_end(list(batch.given.values())),
    }
    each = batch.variables.values()
    columns |= {
        "scan/form": _end_to_end([one.form for one in each]),
        "scan/value": _end_to_end([one.value for one in each]),
        "scan/count": _end_to_end([one.count for one in each]),
        "scan/number": _end_to_end([one.number for one in each]),
        "scan/url": _end_to_end([one.rows.url for one in each]),
        "scan/offset": _end_to_end([one.rows.offset for one in each]),
        "scan/length": _end_to_end([one.rows.length for one in each]),
    }
    return header, columns


def _end_to_end(columns: list[Any]) -> Ints:
    return np.concatenate(columns, dtype=np.int64) if columns else np.zeros(0, np.int64)


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
    values = _values(header["kinds"], stored)
    urls, inline = stored.texts("scan/urls", of_scan=True), stored.values("scan/inline", of_scan=True)
    paths = [str(path) for path in header["variables"]]
    found = _variables(stored, (len(paths), len(files)), (len(forms), len(values), len(urls), len(inline)))
    return FileBatch(
        files,
        forms,
        dict(zip(paths, found, strict=True)),
        urls,
        inline,
        values,
        {path: dict(each) for path, each in header["groups"].items()},
        dict(header["failed"]),
        {url: list(each) for url, each in header["notes"].items()},
        _given(header["given"], stored, len(files), len(values)),
    )


def _values(listed: Any, stored: StoredColumns) -> list[Any]:
    """Return the values that place files."""
    kinds = [(np.dtype(str(dtype)), tuple(map(int, shape))) for dtype, shape in listed]
    data, kind = stored.values("scan/values", of_scan=True), stored.ints("scan/kind", of_scan=True)
    _check_within("kind", kind, len(kinds), 0)
    if any(dtype.hasobject for dtype, _ in kinds) or any(len(each) > _MOST_VALUES for each in data):
        raise JsonError("A value that is kept for adding files cannot be used")
    pairs = zip(data, (kinds[at] for at in kind.tolist()), strict=True)
    return [np.frombuffer(each, dtype).reshape(shape) for each, (dtype, shape) in pairs]


def _given(names: Any, stored: StoredColumns, files: int, values: int) -> dict[str, Ints]:
    column = stored.ints("scan/given", of_scan=True)
    _check_within("given", column, values, NONE)
    return {str(name): each for name, each in zip(names, column.reshape(len(names), files), strict=True)}


def _variables(
    stored: StoredColumns, size: tuple[int, int], limits: tuple[int, int, int, int]
) -> list[VariableColumns]:
    """Return the columns of so many variables of so many files."""
    forms, values, urls, inline = limits
    form, value, count = (stored.ints(f"scan/{name}", of_scan=True).reshape(size) for name in _BY_FILE)
    number, url, offset, length = (stored.ints(f"scan/{name}", of_scan=True) for name in _BY_CHUNK)
    _check_within("count", count, len(number) + 1, 0)
    last = np.cumsum(count.sum(axis=1)).tolist()
    if {len(url), len(offset), len(length), last[-1] if last else 0} != {len(number)}:
        raise JsonError("The columns kept for adding files have several lengths")
    _check_within("form", form, forms, NONE)
    _check_within("value", value, values, NONE)
    _check_within("url", url, urls, INLINE)
    _check_within("offset", offset[url == INLINE], inline, 0)
    if (number < 0).any() or (offset < 0).any():
        raise JsonError("The columns kept for adding files name what is not there")
    rows = Rows(url.astype(np.int32), offset, length)
    parts = [slice(first, stop) for first, stop in zip([0, *last], last, strict=False)]
    return [
        VariableColumns(form[at], value[at], count[at], number[part], rows.take(part))
        for at, part in enumerate(parts)
    ]


def _check_within(name: str, column: Ints, stop: int, least: int) -> None:
    """Raise `JsonError` if a column has numbers of things that are not there."""
    if column.size and not least <= int(column.min()) <= int(column.max()) < stop:
        raise JsonError(f'The column "{name}" kept for adding files names what is not there')
