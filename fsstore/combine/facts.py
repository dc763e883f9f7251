"""The facts of many files as columns, and the report of how the files agree, differ and follow each other."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from fsstore.combine.mosaic import FileFact, attributes_decoding
from fsstore.combine.mosaic_stored import Column, StoredColumns
from fsstore.errors import JsonError, StoreError
from fsstore.redaction import plain
from fsstore.reference.table.table import INLINE, Rows

_SHOWN = 3
_KEPT = 20  # names of files that a report keeps of each group


def _files(count: int) -> str:
    return "1 file" if count == 1 else f"{count} files"


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference between files: `groups` says which have which value, the first group that of the first file.

    `count` has how many files are in each group, of which `groups` names the first.
    """

    what: str
    groups: Mapping[str, Sequence[str]]
    count: Mapping[str, int]

    def __str__(self) -> str:
        """Return one line."""
        parts = []
        for value, names in self.groups.items():
            more = self.count[value] - min(_SHOWN, len(names))
            listed = ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
            parts.append(f"{value} in {listed}")
        return plain(f"{self.what}: {'; '.join(parts)}")


@dataclass(frozen=True, slots=True)
class ArrayReport:
    """One array of the whole.

    `how` is `references`, `layers` (a stack of `pieces` from `sources`), `values` (it stands in the document) or
    `first file` (a variable that does not grow).
    """

    path: str
    shape: tuple[int, ...]
    how: str
    files: int
    sources: int = 1
    differences: tuple[Difference, ...] = ()

    def __str__(self) -> str:
        """Return a line, and one for each difference."""
        many = f" from {self.sources} sources" if self.how == "layers" else ""
        head = f"{self.path} {self.shape}: {self.how}{many}, {_files(self.files)}"
        return plain("\n".join([head, *(f"    differs in {each}" for each in self.differences)]))


@dataclass(frozen=True, slots=True)
class CombineReport:
    """The findings of combining.  `problems` name files that double, overlap, or leave a gap; `left_out` says why."""

    files: int
    dims: Mapping[str, int]
    arrays: Mapping[str, ArrayReport] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)
    notes: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def agrees(self) -> bool:
        """Whether all files were taken, and none differs from the others."""
        return not self.problems and not self.left_out and not any(each.differences for each in self.arrays.values())

    def __str__(self) -> str:
        """Return the report as text."""
        sizes = ", ".join(f"{dim}: {size}" for dim, size in self.dims.items())
        lines = [f"{_files(self.files)} along {sizes or 'no dimension'}"]
        lines += [str(each) for each in self.arrays.values()]
        lines += [f"problem: {each}" for each in self.problems]
        lines += [f"left out: {url}: {why}" for url, why in self.left_out.items()]
        lines += [f"note: {url} lacks {'; '.join(parts)}" for url, parts in list(self.notes.items())[:_SHOWN]]
        return plain("\n".join(lines))

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON keeps it."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Any) -> CombineReport | None:
        """Return a report that was kept, or None where there is none that is understood."""
        try:
            arrays = {
                path: ArrayReport(
                    each["path"], tuple(each["shape"]), each["how"], each["files"], each["sources"],
                    tuple(Difference(**one) for one in each["differences"]),
                )
                for path, each in value["arrays"].items()
            }  # fmt: skip
            return cls(
                value["files"], value["dims"], arrays, tuple(value["problems"]), value["left_out"], value["notes"]
            )
        except (AttributeError, KeyError, TypeError):
            return None


class CombineError(StoreError):
    """Files cannot be combined as asked for; `report` says what is known of them."""

    def __init__(self, message: str, report: CombineReport | None = None) -> None:
        super().__init__(message)
        self.report = report


def grouped(what: str, names: Sequence[str], values: Sequence[str]) -> Difference:
    """Return the difference between files that have these values."""
    groups: dict[str, list[str]] = {}
    count: dict[str, int] = {}
    for name, value in zip(names, values, strict=True):
        count[value] = count.get(value, 0) + 1
        if len(groups.setdefault(value, [])) < _KEPT:
            groups[value].append(name)
    return Difference(what, groups, count)


# Facts about many files: a batch of them, and how batches become one.

Ints: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]

NONE = -1
"""In the columns `form` and `value`: the file has no such variable, or its values were not read."""


@dataclass(frozen=True)
class Form:
    """One form of a variable in files.  `document` is its zarr document without shape and attributes, as JSON."""

    version: int
    document: str
    shape: tuple[int, ...]
    dims: tuple[str, ...]
    attributes: str

    @cached_property
    def parsed(self) -> Mapping[str, Any]:
        """The document."""
        found: Mapping[str, Any] = json.loads(self.document)
        return found

    @cached_property
    def attrs(self) -> Mapping[str, Any]:
        """The attributes."""
        found: Mapping[str, Any] = json.loads(self.attributes)
        return found

    @cached_property
    def chunks(self) -> tuple[int, ...]:
        """The shape of a chunk."""
        if self.version == 2:
            return tuple(self.parsed["chunks"])
        return tuple(self.parsed["chunk_grid"]["configuration"]["chunk_shape"])

    def document_for(self, shape: Sequence[int]) -> bytes:
        """Return the document of an array that is encoded like this one, of another shape."""
        whole = {**self.parsed, "shape": list(shape)}
        if self.version == 3:
            whole["attributes"] = dict(self.attrs)
        return json.dumps(whole, separators=(",", ":")).encode()


@dataclass(frozen=True, slots=True)
class VariableColumns:
    """One variable in all files of a batch.

    `form` and `value` have an entry a file; `count` says how many of the references are a file's.  `number` is that of
    the chunk in the grid of its file.  URLs count `FileBatch.urls`, inline values `FileBatch.inline`.
    """

    form: Ints
    value: Ints
    count: Ints
    number: Ints
    rows: Rows

    @classmethod
    def absent(cls, files: int) -> VariableColumns:
        """Return the columns of a variable that no file has."""
        nothing, none = np.zeros(0, np.int64), np.full(files, NONE, np.int64)
        return cls(none, none, np.zeros(files, np.int64), nothing, Rows.absent(0))

    def taken(self, files: Ints) -> VariableColumns:
        """Return the columns of some files, by their numbers."""
        first = np.cumsum(self.count) - self.count
        count = self.count[files]
        at = np.repeat(first[files] - (np.cumsum(count) - count), count) + np.arange(int(count.sum()))
        return VariableColumns(self.form[files], self.value[files], count, self.number[at], self.rows.take(at))

    def of_files(self, kept: Ints) -> VariableColumns:
        """Return the columns as if only some files had the variable."""
        out = np.ones(len(self.form), np.bool_)
        out[kept] = False
        rows = np.flatnonzero(~np.repeat(out, self.count))
        form, value, count = (
            np.where(out, other, column) for column, other in ((self.form, NONE), (self.value, NONE), (self.count, 0))
        )
        return VariableColumns(form, value, count, self.number[rows], self.rows.take(rows))

    @property
    def nbytes(self) -> int:
        """The memory of the columns."""
        each = self.form.nbytes + self.value.nbytes + self.count.nbytes + self.number.nbytes
        return int(each) + self.rows.nbytes


@dataclass(frozen=True, slots=True)
class FileBatch:
    """The facts found in some files.

    `groups` has the attributes of groups by path, of the first file that has each.  `failed` says why files
    could not be scanned, `notes` what others lack.
    `given` are columns of values that stand in no variable: coordinates of dimensions, or attributes.
    """

    files: Sequence[FileFact] = ()
    forms: Sequence[Form] = ()
    variables: Mapping[str, VariableColumns] = field(default_factory=dict)
    urls: Sequence[str] = ()
    inline: Sequence[bytes] = ()
    values: Sequence[Any] = ()
    groups: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)
    notes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    given: Mapping[str, Ints] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """The memory of the columns."""
        return sum(each.nbytes for each in self.variables.values())

    @property
    def failures(self) -> str:
        """The first files that could not be scanned, and why, for a message."""
        return "; ".join(f"{url}: {why}" for url, why in list(self.failed.items())[:3])

    def decoded(self, value: int, form: int) -> Any:
        """Return values as the attributes of a form say they are meant, NaN where there is none."""
        stored = self.values[value]
        try:
            found = attributes_decoding(self.forms[form].attrs, stored.dtype)
        except ValueError as error:
            raise StoreError(f"An attribute for unpacking is no number: {error}") from error
        if found.unsigned and not found.floats:
            return stored.view(stored.dtype.str.replace("i", "u"))
        if not found.floats or (found.scale is None and found.offset is None and stored.dtype.kind != "f"):
            absent = np.isin(stored, [each for each in found.missing if float(each).is_integer()])
            if not absent.any():
                return stored  # integers stay exact
        return found.apply(stored, found.result_type(stored.dtype))

    def only(self, kept: Ints) -> FileBatch:
        """Return the batch of some of its files, in the order asked for."""
        variables = {path: each.taken(kept) for path, each in self.variables.items()}
        used = {path: each for path, each in variables.items() if (each.form != NONE).any()}
        given = {name: column[kept] for name, column in self.given.items()}
        files = [self.files[at] for at in kept.tolist()]
        return replace(self, files=files, variables=used, given=given)


def joined(batches: Sequence[FileBatch]) -> FileBatch:
    """Return one batch of the files of all, in their order."""
    if len(batches) == 1:
        return batches[0]
    forms, form_maps = _interned([each.forms for each in batches])
    values, value_maps = _interned_values([each.values for each in batches])
    urls, url_maps = _interned([each.urls for each in batches])
    inline_first = np.cumsum([0, *(len(each.inline) for each in batches)])
    paths = dict.fromkeys(path for each in batches for path in each.variables)
    variables = {}
    for path in paths:
        parts = []
        for number, each in enumerate(batches):
            found = each.variables.get(path) or VariableColumns.absent(len(each.files))
            maps = (form_maps[number], value_maps[number], url_maps[number])
            parts.append(_renumbered(found, maps, int(inline_first[number])))
        form, value, count, chunk = (np.concatenate([part[at] for part in parts]) for at in range(4))
        rows = Rows(*map(np.concatenate, zip(*(part[4] for part in parts), strict=True)))
        variables[path] = VariableColumns(form, value, count, chunk, rows)
    groups: dict[str, Mapping[str, Any]] = {}
    for each in batches:
        for path, attributes in each.groups.items():
            groups.setdefault(path, attributes)
    return FileBatch(
        [fact for each in batches for fact in each.files],
        forms,
        variables,
        urls,
        [value for each in batches for value in each.inline],
        values,
        groups,
        {url: why for each in batches for url, why in each.failed.items()},
        {url: why for each in batches for url, why in each.notes.items()},
        _given(batches, value_maps),
    )


def _given(batches: Sequence[FileBatch], maps: Sequence[Ints]) -> dict[str, Ints]:
    names = dict.fromkeys(name for each in batches for name in each.given)
    absent = [np.full(len(each.files), NONE, np.int64) for each in batches]
    return {
        name: np.concatenate([
            _mapped(value, each.given.get(name, none))
            for each, value, none in zip(batches, maps, absent, strict=True)
        ])
        for name in names
    }  # fmt: skip


def _renumbered(found: VariableColumns, maps: tuple[Ints, Ints, Ints], first_inline: int) -> tuple[Any, ...]:
    form, value, url = maps
    number, offset, length = found.rows
    here = number >= 0
    urls = number.copy()
    urls[here] = url[number[here]]
    offsets = np.where(number == INLINE, offset + first_inline, offset)
    rows = Rows(urls, offsets, length)
    return _mapped(form, found.form), _mapped(value, found.value), found.count, found.number, rows


def _mapped(table: Ints, column: Ints) -> Ints:
    found: Ints = np.append(table, NONE)[column]
    return found


def _interned(lists: Sequence[Sequence[Any]]) -> tuple[list[Any], list[Ints]]:
    """Return the distinct items of all lists, and for each list which of them its own are."""
    known: dict[Any, int] = {}
    maps = [np.array([known.setdefault(item, len(known)) for item in each], np.int64) for each in lists]
    return list(known), maps


def _interned_values(lists: Sequence[Sequence[Any]]) -> tuple[list[Any], list[Ints]]:
    known: dict[Any, int] = {}
    kept: list[Any] = []
    maps = []
    for each in lists:
        numbers = []
        for value in each:
            key = value_key(value)
            if key not in known:
                known[key] = len(kept)
                kept.append(value)
            numbers.append(known[key])
        maps.append(np.array(numbers, np.int64))
    return kept, maps


def value_key(value: Any) -> tuple[Any, ...]:
    """Return what is equal for arrays of equal bytes."""
    return value.dtype.str, value.shape, value.tobytes() if value.dtype.kind != "O" else tuple(value.ravel())


_MOST_VALUES = 2**31
_BY_FILE = ("form", "value", "count")
_BY_CHUNK = ("number", "url", "offset", "length")


def batch_columns(batch: FileBatch) -> tuple[dict[str, Any], dict[str, Column]]:
    """Return a header and columns."""
    kinds: dict[tuple[str, tuple[int, ...]], int] = {}
    kind = [kinds.setdefault((value.dtype.str, value.shape), len(kinds)) for value in batch.values]
    header = {
        "forms": [
            [form.version, form.document, list(form.shape), list(form.dims), form.attributes] for form in batch.forms
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
        _stored_given(header["given"], stored, len(files), len(values)),
    )


def _values(listed: Any, stored: StoredColumns) -> list[Any]:
    kinds = [(np.dtype(str(dtype)), tuple(map(int, shape))) for dtype, shape in listed]
    data, kind = stored.values("scan/values", of_scan=True), stored.ints("scan/kind", of_scan=True)
    _check_within("kind", kind, len(kinds), 0)
    if any(dtype.hasobject for dtype, _ in kinds) or any(len(each) > _MOST_VALUES for each in data):
        raise JsonError("A value that is kept for adding files cannot be used")
    pairs = zip(data, (kinds[at] for at in kind.tolist()), strict=True)
    return [np.frombuffer(each, dtype).reshape(shape) for each, (dtype, shape) in pairs]


def _stored_given(names: Any, stored: StoredColumns, files: int, values: int) -> dict[str, Ints]:
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
        VariableColumns(form[at], value[at], count[at], number[part], rows.take(part)) for at, part in enumerate(parts)
    ]


def _check_within(name: str, column: Ints, stop: int, least: int) -> None:
    """Raise `JsonError` if a column has numbers of things that are not there."""
    if column.size and not least <= int(column.min()) <= int(column.max()) < stop:
        raise JsonError(f'The column "{name}" kept for adding files names what is not there')
