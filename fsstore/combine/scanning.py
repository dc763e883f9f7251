"""Scanning files into a batch: what each says of its variables, their references, and the values that place it.

Values are read of what orders and compares files: coordinates, times with their bounds, scalars, and small variables
that lack a dimension that grows.  They come from blocks that the scan has read anyway, mostly.  Large variables that
lack one are read through, a few chunks at a time, for a fingerprint of their values.  A file that fails is named and
does not stop the others.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from os import fspath
from typing import Any

import numpy as np

from fsstore.combine.calendar import is_time
from fsstore.combine.facts import NONE, FileBatch, Form, VariableColumns, value_key
from fsstore.combine.mosaic import FileFact
from fsstore.combine.source_file import (
    FINGERPRINT_READERS,
    ArrayReferences,
    SourceFile,
    fingerprint_in,
    open_source,
    whole_of,
)
from fsstore.driver.chunked import ZARR2, ZARR3
from fsstore.errors import StoreError
from fsstore.format.attributes import MARK, fill_marks, plain_mark
from fsstore.format.contract import WHOLE, ChunkedArray, decode_stored
from fsstore.kvstore.contract.driver import KvPrefix
from fsstore.reference.table.table import INLINE, Rows
from fsstore.runtime import execution
from fsstore.runtime.tuning import REQUESTS, SMALL_BYTES
from fsstore.values.json_value import loads

_TIMES = 2**20
_ITEM = 16  # bytes of an element of a type that does not say
_COORDINATE = 64 * 2**20
_LABELS = "_ARRAY_DIMENSIONS"
_PLAIN = frozenset("%?#|*\\")


async def place_of(url: Any) -> KvPrefix:
    """Return the store and path of a place."""
    from fsstore.context.context import Context
    from fsstore.kvstore.spec_parse import open_kv, place_spec

    return (await open_kv(place_spec(url), Context())).prefix


@dataclass(slots=True)
class FileStores:
    """Opens the places of files; those of one directory share its store."""

    known: dict[str, KvPrefix] = field(default_factory=dict)

    async def open(self, url: str) -> KvPrefix:
        """Return the store and path of a file."""
        head, slash, name = url.rpartition("/")
        if not slash or not name or _PLAIN & set(url) or head.endswith(("/", ":")):
            return await place_of(url)
        if head not in self.known:
            self.known[head] = await place_of(head + "/")
        return self.known[head].join(name)


@dataclass(frozen=True, slots=True)
class Wanted:
    """The subjects of a scan: the dimensions that grow, and attributes that tell where files lie."""

    dims: tuple[str, ...]
    attributes: tuple[str, ...] = ()


def scan_files_here(urls: Sequence[str], wanted: Wanted) -> FileBatch:
    """Return what is found in files; a worker calls it with its share of them."""
    builder = BatchBuilder(wanted)

    async def run() -> FileBatch:
        places = FileStores()
        if urls:
            await _scan(fspath(urls[0]), places, builder)
        for start in range(1, len(urls), REQUESTS // 2):
            some = urls[start : start + REQUESTS // 2]
            await execution.gather(_scan(fspath(url), places, builder) for url in some)
        return builder.finish(urls)

    may_wait = any(("://" in url and not url.startswith("file://")) or "|" in url for url in urls)
    return execution.call(run(), waits=may_wait)


async def is_unchanged(fact: FileFact, places: FileStores) -> bool:
    """Return whether a file that was scanned is what it was, as far as that is known."""
    if fact.size < 0 and not fact.generation:
        return True
    try:
        found = await (await places.open(fact.url)).read("", 0, 0)
    except StoreError:
        return False
    same_size = fact.size < 0 or found.size in (None, fact.size)
    return found.state == "value" and same_size and found.generation.hex() == fact.generation


async def _scan(url: str, places: FileStores, builder: BatchBuilder) -> None:
    try:
        source = await open_source(url, await places.open(url))
        await builder.add(url, source)
    except StoreError as error:
        builder.failed[url] = error.message
    except (ArithmeticError, LookupError, OSError, ValueError) as error:  # of a library: this file alone
        builder.failed[url] = f"{type(error).__name__}: {error}"


@dataclass(frozen=True, slots=True)
class _Variable:
    """One variable of one file."""

    form: int
    value: int
    references: ArrayReferences


class BatchBuilder:
    """Collects files; `failed` are those that could not be scanned."""

    def __init__(self, wanted: Wanted) -> None:
        self.dims, self.attributes = frozenset(wanted.dims), wanted.attributes
        self.failed: dict[str, str] = {}
        self._files: dict[str, tuple[FileFact, dict[str, _Variable]]] = {}
        self._said: dict[str, list[int]] = {}
        self._notes: dict[str, list[str]] = {}
        self._forms: dict[Form, int] = {}
        self._listed: list[Form] = []
        self._known: dict[tuple[bytes, bytes, str | None], int] = {}
        self._decoded: dict[Any, ChunkedArray] = {}
        self._values: dict[Any, int] = {}
        self._kept: list[Any] = []
        self._groups: dict[str, dict[str, Any]] = {}
        self._group_keys: set[str] = set()
        self._room = asyncio.Semaphore(FINGERPRINT_READERS)

    async def add(self, url: str, source: SourceFile) -> None:
        """Add a file."""
        paths = list(source.grids)
        found = await source.references(paths)
        forms = [self._form(path, source) for path in paths]
        bounds = {name for number in forms for name in _bounds(self._form_at(number))}
        there = self.dims & {dim for number in forms for dim in self._form_at(number).dims}
        variables = {}
        for path, form, references in zip(paths, forms, found, strict=True):
            value = NONE
            if self._is_wanted(path, self._form_at(form), bounds, there):
                value = await self._value(path, form, source, references)
            elif self._is_compared(path, self._form_at(form), there):
                value = await self._fingerprint(path, form, source, references)
            variables[path] = _Variable(form, value, references)
        self._add_groups(source)
        if source.notes:
            self._notes[url] = [f'"{path}": {why}' for path, why in sorted(source.notes.items())]
        self._said[url] = self._told(source) if self.attributes else []
        self._files[url] = (source.fact, variables)

    def _form_at(self, number: int) -> Form:
        return self._listed[number]

    def _form(self, path: str, source: SourceFile) -> int:
        head = f"{path}/" if path else ""
        document = source.documents.get(head + ".zarray")
        version = 2 if document is not None else 3
        if document is None:
            document = source.documents[head + "zarr.json"]
        attributes = source.documents.get(head + ".zattrs", b"{}") if version == 2 else b""
        key = (document, attributes, source.kind)
        number = self._known.get(key)
        if number is None:
            form = _form_of(document, attributes, version)
            if version == 2 and source.kind is not None:
                form = self._marked(form, source.kind)
            number = self._known[key] = self._forms.setdefault(form, len(self._forms))
            if number == len(self._listed):
                self._listed.append(form)
        return number

    def _marked(self, form: Form, kind: str) -> Form:
        """Return a form of zarr v2 with the fill value as an attribute, if it marks missing data."""
        array = self._decoded_array(form)
        native = array.dtype.numpy_dtype
        mark = plain_mark(array.fill_value, native) if fill_marks(kind, array.fill_value) else None
        if mark is None:
            return form
        if isinstance(mark, float) and not math.isfinite(mark):
            mark = form.parsed["fill_value"]  # NaN in the word that documents have for it
        return replace(form, attributes=json.dumps({**form.attrs, MARK: mark}, separators=(",", ":")))

    def _is_compared(self, path: str, form: Form, there: Set[str]) -> bool:
        """Return whether several files may hold the same part: it lacks a growing dimension that is `there`."""
        return not there <= set(form.dims) and form.dims != (path.rpartition("/")[2],)

    def _is_wanted(self, path: str, form: Form, bounds: set[str], there: Set[str]) -> bool:
        size = math.prod(form.shape) * _itemsize(form)
        name = path.rpartition("/")[2]
        if form.dims == (name,):
            return size <= _COORDINATE
        if is_time(form.attrs) or name in bounds:
            return size <= _TIMES
        shared = not self.dims & set(form.dims) or self._is_compared(path, form, there)
        return shared and size <= SMALL_BYTES

    def _array(self, form: int) -> ChunkedArray:
        return self._decoded_array(self._form_at(form))

    def _decoded_array(self, shown: Form) -> ChunkedArray:
        key = (shown.version, shown.document, shown.shape)  # attributes may differ in each file
        array = self._decoded.get(key)
        if array is None:
            kind = ZARR2 if shown.version == 2 else ZARR3
            array = decode_stored(kind.format, shown.document_for(shown.shape), {WHOLE: True})
            self._decoded[key] = array
        return array

    async def _value(self, path: str, form: int, source: SourceFile, found: ArrayReferences) -> int:
        return self._number(await whole_of(self._array(form), path, source, found))

    async def _fingerprint(self, path: str, form: int, source: SourceFile, found: ArrayReferences) -> int:
        """Return the number of the fingerprint of a variable; NONE where its values cannot be compared."""
        async with self._room:
            made = await fingerprint_in(self._array(form), path, source, found)
        return NONE if made is None else self._number(made)

    def _number(self, value: Any) -> int:
        key = value_key(value)
        if key not in self._values:
            self._values[key] = len(self._kept)
            self._kept.append(value)
        return self._values[key]

    def _add_groups(self, source: SourceFile) -> None:
        for key, value in source.documents.items():
            path, _, name = key.rpartition("/")
            if path in source.grids or name not in (".zattrs", ".zgroup", "zarr.json"):
                continue
            group = self._groups.setdefault(path, {})
            if name != ".zgroup" and key not in self._group_keys:
                self._group_keys.add(key)
                found = loads(value, lenient=True)
                group.update(found if name == ".zattrs" else found.get("attributes", {}))

    def _told(self, source: SourceFile) -> list[int]:
        """Return the numbers of the values of the attributes of the file that are asked for."""
        text = source.documents.get(".zattrs") or source.documents.get("zarr.json") or b"{}"
        said = dict(loads(text, lenient=True))
        said = said.get("attributes", {}) if "zarr_format" in said else said
        plain = [said.get(name) for name in self.attributes]
        return [self._number(np.asarray(value)) if isinstance(value, str | int | float) else NONE for value in plain]

    def finish(self, urls: Sequence[str]) -> FileBatch:
        """Return the batch, its files in the order of `urls`."""
        done = [url for url in urls if url in self._files]
        listed = [self._files[url] for url in done]
        given = {
            f"attr:{name}": np.array([self._said[url][at] for url in done], np.int64)
            for at, name in enumerate(self.attributes)
        }
        names: dict[str, int] = {}
        inline: list[bytes] = []
        paths = dict.fromkeys(path for _, variables in listed for path in variables)
        variables = {}
        for path in paths:
            each = [found.get(path) for _, found in listed]
            variables[path] = _columns(each, names, inline)
        return FileBatch(
            [fact for fact, _ in listed],
            self._listed,
            variables,
            list(names),
            inline,
            self._kept,
            self._groups,
            self.failed,
            self._notes,
            given,
        )


def _columns(found: Sequence[_Variable | None], names: dict[str, int], inline: list[bytes]) -> VariableColumns:
    """Return the columns of one variable; URLs and inline values become those of the batch."""
    numbers, rows = [np.zeros(0, np.int64)], [Rows.absent(0)]
    for each in found:
        if each is None:
            continue
        url, offset, length = each.references.rows
        urls = each.references.urls
        if len(urls) == 1:
            own = np.array([names.setdefault(urls[0], len(names))])
        else:
            own = np.array([names.setdefault(name, len(names)) for name in urls] or [0])
        here = url >= 0
        if not here.all():
            held = np.flatnonzero(url == INLINE)
            offset = offset.copy()
            for at in held.tolist():
                inline.append(each.references.inline[int(offset[at])])
                offset[at] = len(inline) - 1
        url = np.where(here, own[np.where(here, url, 0)], url).astype(np.int32)
        numbers.append(each.references.number)
        rows.append(Rows(url, offset, length))
    return VariableColumns(
        np.array([NONE if each is None else each.form for each in found], np.int64),
        np.array([NONE if each is None else each.value for each in found], np.int64),
        np.array([0 if each is None else len(each.references.number) for each in found], np.int64),
        np.concatenate(numbers),
        Rows(*map(np.concatenate, zip(*rows, strict=True))),
    )


def _form_of(document: bytes, attributes: bytes, version: int) -> Form:
    parsed = dict(loads(document, lenient=True))
    attrs = dict(parsed.pop("attributes", None) or {}) if version == 3 else dict(loads(attributes, lenient=True))
    shape = tuple(int(size) for size in parsed.pop("shape"))
    parsed.pop("attributes", None)
    dims = parsed.get("dimension_names") if version == 3 else attrs.get(_LABELS)
    if not isinstance(dims, list) or len(dims) != len(shape) or not all(isinstance(dim, str) for dim in dims):
        dims = [f"dim_{axis}" for axis in range(len(shape))]
    text = json.dumps(parsed, sort_keys=True, separators=(",", ":"))
    said = json.dumps(attrs, separators=(",", ":"))
    return Form(version, text, shape, tuple(dims), said)


def _bounds(form: Form) -> list[str]:
    said = form.attrs
    return [str(said[name]) for name in ("bounds", "climatology") if isinstance(said.get(name), str)]


def _itemsize(form: Form) -> int:
    found: Mapping[str, Any] = form.parsed
    kind = found.get("dtype") if form.version == 2 else found.get("data_type")
    if isinstance(kind, Mapping):  # of zarr v3, with a configuration
        inner = kind.get("configuration")
        length = inner.get("length_bytes") if isinstance(inner, Mapping) else None
        return length if isinstance(length, int) and length > 0 else _ITEM
    try:
        return max(1, np.dtype(kind).itemsize)
    except TypeError:
        return _ITEM
