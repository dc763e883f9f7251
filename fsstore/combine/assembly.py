"""From a batch of files to the whole: each variable is put together as far as the files agree.

Variables without the dimension become steps of a new one; those that differ between files are repeated along it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from fsstore.combine.agreement import (
    OF_PACKED,
    Compared,
    Sharing,
    compare,
    holds_values,
    meaning,
    minority,
    said_of,
    same_values,
    shared_obstacle,
    sharing,
    static_obstacle,
)
from fsstore.combine.calendar import encode_times, is_time, parse_units
from fsstore.combine.facts import NONE, ArrayReport, CombineError, CombineReport, FileBatch, Form, Ints, VariableColumns
from fsstore.combine.layers import FilePlaces, WholeTables, placed_rows, put_layered
from fsstore.combine.mosaic import Mosaic
from fsstore.combine.order import (
    DimensionOrder,
    FileTimes,
    OnOverlap,
    WholeTimes,
    cells,
    coordinate_path,
    extents,
    one_file_a_place,
    order_along,
)
from fsstore.errors import StoreError
from fsstore.values.json_value import quote

# Variables of files that have no dimension of the name: each file becomes one step of a new one.

_BOUND_TO_AXES = ("transpose", "sharding_indexed", "reshape", "vlen-utf8", "vlen-bytes")
_LABELS = "_ARRAY_DIMENSIONS"


def with_new_axes(batch: FileBatch, dims: Set[str]) -> FileBatch:
    """Return the batch with `dims`, which no file has, as first dimensions of what differs between files.

    Coordinates of other dimensions stay, and so does what is equal in all files, as far as its values are known.
    """
    if not dims:
        return batch
    forms, values = list(batch.forms), list(batch.values)
    variables, placing = dict(batch.variables), {coordinate_path(batch, dim) for dim in dims}
    for path, columns in batch.variables.items():
        name = path.rpartition("/")[2]
        used = [number for number in dict.fromkeys(columns.form.tolist()) if number != NONE]
        if path in placing or any(forms[number].dims == (name,) for number in used):
            continue
        known = columns.value[columns.form != NONE]
        meanings = {meaning(forms[number]) for number in used}
        if (known != NONE).all() and len(set(known.tolist())) == 1 and len(meanings) == 1:
            continue
        table = np.full(len(forms) + 1, NONE, np.int64)
        for number in used:
            forms.append(_extended(path, forms[number], sorted(dims)))
            table[number] = len(forms) - 1
        table[-1] = NONE
        value = _with_values(batch, columns, values, len(dims))
        variables[path] = replace(columns, form=table[columns.form], value=value)
    return replace(batch, forms=forms, values=values, variables=variables)


def _with_values(batch: FileBatch, columns: VariableColumns, values: list[Any], more: int) -> Ints:
    """Return the column of values of a variable that has more dimensions; `values` gets them, or their fingerprints."""
    known: dict[tuple[int, int], int] = {}
    out = columns.value.copy()
    for at in np.flatnonzero((columns.value != NONE) & (columns.form != NONE)).tolist():
        pair = int(columns.value[at]), int(columns.form[at])
        if pair not in known:
            value, shape = batch.values[pair[0]], batch.forms[pair[1]].shape
            known[pair] = len(values)
            values.append(value.reshape((1,) * more + shape) if value.shape == shape else value)
        out[at] = known[pair]
    return out


def _extended(path: str, form: Form, dims: list[str]) -> Form:
    parsed = json.loads(form.document)
    ones = [1] * len(dims)
    if form.version == 3:
        if any(each.get("name") in _BOUND_TO_AXES for each in parsed.get("codecs", ())):
            raise CombineError(f'The codecs of "{path}" do not allow a new dimension')
        inner = parsed["chunk_grid"]["configuration"]
        inner["chunk_shape"] = [*ones, *inner["chunk_shape"]]
        parsed["dimension_names"] = [*dims, *form.dims]
    else:
        parsed["chunks"] = [*ones, *parsed["chunks"]]
    attributes = json.loads(form.attributes)
    if _LABELS in attributes or form.version == 2:
        attributes[_LABELS] = [*dims, *form.dims]
    text = json.dumps(parsed, sort_keys=True, separators=(",", ":"))
    said = json.dumps(attributes, separators=(",", ":"))
    return Form(form.version, text, (*ones, *form.shape), (*dims, *form.dims), said)


# Variables that do not grow and differ between files, such as when each was made: repeated along a
# dimension.


def with_repeated(batch: FileBatch, along: Mapping[str, str]) -> FileBatch:
    """Return the batch in which variables have a dimension more, each file's value repeated for its steps of it."""
    forms, values, variables = list(batch.forms), list(batch.values), dict(batch.variables)
    for path, dim in along.items():
        columns = variables.get(path)
        if columns is None:
            raise CombineError(f"There is no variable {quote(path)}; there are {', '.join(map(quote, variables))}")
        used = {forms[number] for number in set(columns.form.tolist()) if number != NONE}
        if all(dim in form.dims for form in used):
            continue
        if not holds_values(batch, columns):
            raise CombineError(f"The variable {quote(path)} is too large to be repeated along {quote(dim)}")
        sizes = np.maximum(extents(batch, dim), 1)
        form, value = columns.form.copy(), columns.value.copy()
        known: dict[tuple[int, int, int], tuple[int, int]] = {}
        for at in np.flatnonzero(columns.form != NONE).tolist():
            key = int(form[at]), int(value[at]), int(sizes[at])
            if key not in known:
                known[key] = len(forms), len(values)
                forms.append(_repeated_form(forms[key[0]], dim, key[2]))
                values.append(np.repeat(values[key[1]][None], key[2], axis=0))
            form[at], value[at] = known[key]
        variables[path] = replace(columns, form=form, value=value)
    return replace(batch, forms=forms, values=values, variables=variables) if along else batch


def _repeated_form(form: Form, dim: str, size: int) -> Form:
    document, attributes = json.loads(form.document), json.loads(form.attributes)
    dims = (dim, *form.dims)
    if form.version == 3:
        inner = document["chunk_grid"]["configuration"]
        inner["chunk_shape"], document["dimension_names"] = [1, *inner["chunk_shape"]], list(dims)
    else:
        document["chunks"], attributes[_LABELS] = [1, *document["chunks"]], list(dims)
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return Form(form.version, text, (size, *form.shape), dims, json.dumps(attributes, separators=(",", ":")))


def attributes_and_values(batch: FileBatch, path: str, compared: Compared) -> tuple[dict[str, Any], dict[int, Any]]:
    """Return the attributes of a variable whose values are known, and these by file, as they are stored or meant."""
    columns, attributes = batch.variables[path], dict(batch.forms[compared.forms[0]].attrs)
    have = np.flatnonzero(columns.form != NONE).tolist()
    pairs = {at: (int(columns.value[at]), int(columns.form[at])) for at in have}
    if len(set(compared.meanings)) == 1 and len(have) == len(columns.form):
        return attributes, {at: batch.values[value] for at, (value, _) in pairs.items()}
    if len({str(batch.forms[form].attrs.get("units", "")) for _, form in pairs.values()}) > 1:
        raise CombineError(f"The variable {quote(path)} has several units, and is not repeated")
    plain = {name: value for name, value in attributes.items() if name not in OF_PACKED}
    return plain, {at: batch.decoded(*pair) for at, pair in pairs.items()}


OnDifference = Literal["layer", "raise", "skip"]


@dataclass(frozen=True, slots=True)
class Wishes:
    """How files are to be combined.  `along` names variables that are repeated, and the dimensions that they get."""

    dims: tuple[str, ...]
    on_difference: OnDifference = "layer"
    on_overlap: OnOverlap = "raise"
    along: Mapping[str, str] = field(default_factory=dict)


def assemble(batch: FileBatch, wishes: Wishes) -> tuple[Mosaic, CombineReport]:
    """Return the whole and what is to be said of it; raises `CombineError` where files cannot be combined."""
    left_out = dict(batch.failed)
    if not batch.files:
        why = batch.failures
        raise CombineError(f"None of the files could be scanned: {why}" if why else "There are no files")
    new = frozenset(dim for dim in wishes.dims if (extents(batch, dim) < 0).all())
    batch = with_repeated(with_new_axes(batch, new), wishes.along)
    if wishes.on_difference == "skip":
        batch, skipped = _without_minority(batch, wishes)
        left_out.update(skipped)
    orders = _orders(batch, wishes)
    if wishes.on_difference == "skip":
        batch, orders, skipped = _without_outvoted(batch, wishes, orders)
        left_out.update(skipped)
    batch, orders, doubled = one_file_a_place(batch, orders, wishes.on_overlap)
    left_out.update(doubled)
    work = _Assembly(batch, orders, wishes)
    arrays = {path: work.add(path) for path in batch.variables}
    work.add_new_coordinates(arrays)
    for path, attributes in (batch.groups or {"": {}}).items():
        work.tables.put_group(path, attributes)
    problems = tuple(each for order in orders.values() for each in order.problems)
    sizes = {dim: order.length for dim, order in orders.items()}
    report = CombineReport(len(batch.files), sizes, arrays, problems, left_out, dict(batch.notes))
    facts = {"dims": sizes, "report": report.to_json()}
    return Mosaic(work.tables.finish(), work.tables.layered, list(batch.files), facts), report


def _without_minority(batch: FileBatch, wishes: Wishes) -> tuple[FileBatch, dict[str, str]]:
    growing = frozenset(wishes.dims)
    placed = {path for path in batch.variables if _places(batch, path, growing)}
    out = minority(batch, growing, placed)
    for path in batch.variables:
        columns = batch.variables[path]
        static = all(not growing & set(batch.forms[form].dims) for form in set(columns.form.tolist()) if form != NONE)
        same = same_values(batch, columns) if static else columns.value[:0]
        if (same != NONE).any():
            usual = int(np.bincount(same[same != NONE]).argmax())
            for at in np.flatnonzero((same != usual) & (same != NONE)).tolist():
                out.setdefault(batch.files[at].url, f'it has other values of "{path}"')
    if not out:
        return batch, out
    kept = np.array([at for at, fact in enumerate(batch.files) if fact.url not in out], np.int64)
    if not len(kept):
        raise CombineError("No file agrees with most others in everything; combine them with on_difference='layer'")
    return batch.only(kept), out


def _without_outvoted(
    batch: FileBatch, wishes: Wishes, orders: dict[str, DimensionOrder]
) -> tuple[FileBatch, dict[str, DimensionOrder], dict[str, str]]:
    """Return the files that have the values of most others of their place, of variables that lack a dimension."""
    out: dict[int, str] = {}
    work = _Assembly(batch, orders, wishes)
    for path in batch.variables:
        found = work.sharing(path, work.times.scale(path))
        for at in found.outvoted if found else ():
            out.setdefault(at, f'it has other values of "{path}" than most files of its place')
    if not out:
        return batch, orders, {}
    kept = np.array([at for at in range(len(batch.files)) if at not in out], np.int64)
    named = {batch.files[at].url: why for at, why in sorted(out.items())}
    batch = batch.only(kept)
    return batch, _orders(batch, wishes), named


def _places(batch: FileBatch, path: str, growing: frozenset[str]) -> bool:
    """Return whether a variable places files along a dimension, or tells times whose values are known."""
    columns = batch.variables[path]
    name = path.rpartition("/")[2]
    if name in growing:
        return True
    have = columns.form != NONE
    forms = [batch.forms[form] for form in set(columns.form[have].tolist())]
    return holds_values(batch, columns) and all(is_time(form.attrs) and growing & set(form.dims) for form in forms)


def _orders(batch: FileBatch, wishes: Wishes) -> dict[str, DimensionOrder]:
    alone = len(wishes.dims) == 1
    return {dim: order_along(batch, dim, wishes.on_overlap, alone=alone) for dim in wishes.dims}


class _Assembly:
    """The whole while it is put together."""

    def __init__(self, batch: FileBatch, orders: Mapping[str, DimensionOrder], wishes: Wishes) -> None:
        self.batch, self.orders, self.wishes = batch, orders, wishes
        self.times = WholeTimes(batch, orders)
        versions = {form.version for form in batch.forms}
        self.tables = WholeTables(batch, 3 if versions == {3} else 2)

    def add(self, path: str) -> ArrayReport:
        """Put one variable."""
        batch = self.batch
        columns = batch.variables[path]
        growing = frozenset(self.orders)
        files = int((columns.form != NONE).sum())
        for order in self.orders.values():
            if order.path == path and order.values is not None:
                compared = compare(batch, path, growing, is_placed=True)
                return self._put_coordinate(path, order, files, compared)
        times = self.times.scale(path)
        compared = compare(batch, path, growing, is_placed=times is not None)
        first = batch.forms[compared.forms[0]]
        axes = [(axis, dim) for axis, dim in enumerate(first.dims) if dim in growing]
        if not axes:
            return self._put_first(path, compared, files)
        if compared.obstacle and times is None:
            raise self._refused(path, compared, f"they have {compared.obstacle}")
        compared = self._share(path, compared, times)
        if times is not None:
            return self._put_times(path, compared, times)
        if path in self.wishes.along:
            return self._put_held(path, compared, files)
        return self._put_growing(path, compared, axes, files)

    def sharing(self, path: str, times: FileTimes | None) -> Sharing | None:
        """Return how files agree that hold the same part of a variable; None where each holds its own."""
        columns = self.batch.variables[path]
        forms = [self.batch.forms[form] for form in set(columns.form.tolist()) if form != NONE]
        held = [order for dim, order in self.orders.items() if any(dim in form.dims for form in forms)]
        if len(held) in (0, len(self.orders)):
            return None
        same = same_values(self.batch, columns) if times is None else self.times.same(columns, times)
        return sharing(columns, cells(held, len(self.batch.files)), same)

    def _share(self, path: str, compared: Compared, times: FileTimes | None) -> Compared:
        """Leave one file for each part of a variable that several hold, if these agree; return how the rest differ."""
        found = self.sharing(path, times)
        if found is None:
            return compared
        is_placed = times is not None
        why, compared = shared_obstacle(self.batch, path, compared, found, is_placed=is_placed)
        if why:
            raise self._refused(path, compared, why)
        variables = {**self.batch.variables, path: self.batch.variables[path].of_files(found.kept)}
        self.batch = replace(self.batch, variables=variables)
        rest = compare(self.batch, path, frozenset(self.orders), is_placed=is_placed)
        return replace(rest, differences=compared.differences, missing=compared.missing)

    def _refused(self, path: str, compared: Compared, why: str) -> CombineError:
        shown = "\n".join(str(each) for each in compared.differences)
        text = f'Files cannot be combined in "{path}": {why}' + (f"; they differ in {shown}" if shown else "")
        arrays = {path: ArrayReport(path, (), "refused", len(self.batch.files), 1, compared.differences)}
        return CombineError(text, CombineReport(len(self.batch.files), {}, arrays))

    def _put_coordinate(self, path: str, order: DimensionOrder, files: int, compared: Compared) -> ArrayReport:
        values, attributes = _plain_times(order.values, dict(order.attributes or {}))
        self.tables.put_values(path, values, [order.dim], attributes)
        return ArrayReport(path, (order.length,), "values", files, 1, compared.differences)

    def add_new_coordinates(self, arrays: dict[str, ArrayReport]) -> None:
        """Put coordinates that were given for files that have none."""
        for order in self.orders.values():
            if order.values is not None and order.path not in self.batch.variables:
                values, attributes = _plain_times(order.values, dict(order.attributes or {}))
                self.tables.put_values(order.path, values, [order.dim], attributes)
                arrays[order.path] = ArrayReport(order.path, (order.length,), "values", len(self.batch.files))

    def _put_first(self, path: str, compared: Compared, files: int) -> ArrayReport:
        """Put a variable that does not grow: that of the first file, if others do not have other values."""
        columns = self.batch.variables[path]
        have = np.flatnonzero(columns.form != NONE)
        why, compared = static_obstacle(self.batch, path, compared)
        if not why and self.wishes.on_difference == "raise" and (not compared.agrees or compared.missing):
            why = 'they differ, and on_difference is "raise"'
        if why:
            raise self._refused(path, compared, why)
        own = self.batch.only(have[:1]).variables[path]
        form = self.batch.forms[int(own.form[0])]
        self.tables.put_array(path, form, form.shape, {})
        self.tables.put_chunks(path, {**form.parsed, "shape": list(form.shape)}, own.number, own.rows)
        return ArrayReport(path, form.shape, "first file", files, 1, compared.differences)

    def _put_held(self, path: str, compared: Compared, files: int) -> ArrayReport:
        attributes, each = attributes_and_values(self.batch, path, compared)
        first = self.batch.forms[compared.forms[0]]
        shape, common = self._shape(first), np.result_type(*each.values())
        incomplete = len(each) < len(self.batch.files)
        if incomplete and common.kind not in "iuf":
            raise self._refused(path, compared, "it lacks in some files, and has no value that says so")
        out = np.full(shape, np.nan, np.result_type(common, "f4")) if incomplete else np.zeros(shape, common)
        for at, values in each.items():
            where, inside = self._sides(first, at)
            out[where] = values[inside]
        self.tables.put_values(path, out, first.dims, attributes)
        return ArrayReport(path, shape, "values", files, 1, compared.differences)

    def _put_times(self, path: str, compared: Compared, times: FileTimes) -> ArrayReport:
        """Put times by value, of files that count them differently; those that no file has are missing."""
        columns, batch = self.batch.variables[path], self.batch
        first = batch.forms[compared.forms[0]]
        shape = self._shape(first)
        out, there = np.zeros(shape, np.int64), np.zeros(shape, np.bool_)
        try:
            for at in np.flatnonzero(columns.form != NONE).tolist():
                where, inside = self._sides(first, at)
                found, known = self.times.instants(columns, times, at)
                out[where], there[where] = found[inside], known[inside]
        except (StoreError, ValueError) as error:
            raise CombineError(f'The times of "{path}" cannot be brought together: {error}') from error
        values, attributes = self.times.told(first, out, there, times.scale)
        self.tables.put_values(path, values, first.dims, attributes)
        return ArrayReport(path, shape, "values", len(batch.files), 1, compared.differences)

    def _sides(self, form: Form, at: int) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
        """Return where a file lies in the whole, and which part of it that is."""
        where, inside = [], []
        for dim, size in zip(form.dims, form.shape, strict=True):
            order = self.orders.get(dim)
            if order is None:
                where.append(slice(0, size))
                inside.append(slice(0, size))
                continue
            block = int(order.block[at])
            start, length, skipped = (int(each[block]) for each in (order.start, order.size, order.skipped))
            where.append(slice(start, start + length))
            inside.append(slice(skipped, skipped + length))
        return tuple(where), tuple(inside)

    def _shape(self, form: Form) -> tuple[int, ...]:
        pairs = zip(form.dims, form.shape, strict=True)
        return tuple(self.orders[dim].length if dim in self.orders else size for dim, size in pairs)

    def _put_growing(self, path: str, compared: Compared, axes: Sequence[tuple[int, str]], files: int) -> ArrayReport:
        columns, batch = self.batch.variables[path], self.batch
        first = batch.forms[compared.forms[0]]
        shape = self._shape(first)
        places = FilePlaces(tuple(
            (axis, self.orders[dim].start, self.orders[dim].size, self.orders[dim].block,
             self.orders[dim].skipped[self.orders[dim].block])
            for axis, dim in axes
        ), shape)  # fmt: skip
        if self.wishes.on_difference == "raise" and (not compared.agrees or compared.missing):
            raise self._refused(path, compared, 'they differ, and on_difference is "raise"')
        changes = self._reference_changes(columns, compared, places) if compared.agrees else None
        if changes is None:
            shown = put_layered(self.tables, path, batch.forms, columns, compared, places)
            return ArrayReport(path, shape, "layers", files, len(shown.sources), compared.differences)
        starts = [(axis, start[block] // first.chunks[axis]) for axis, start, _, block, _ in places.axes]
        grid = tuple(-(-size // step) for size, step in zip(shape, first.chunks, strict=True))
        number = placed_rows(batch.forms, columns.form, columns.count, columns.number, starts, grid)
        self.tables.put_array(path, first, shape, changes)
        self.tables.put_chunks(path, {**first.parsed, "shape": list(shape)}, number, columns.rows)
        return ArrayReport(path, shape, "references", files, 1, compared.differences)

    def _reference_changes(
        self, columns: VariableColumns, compared: Compared, places: FilePlaces
    ) -> dict[str, Any] | None:
        """Return what an array of references has other than its files in its document; None if there can be none."""
        forms = self.batch.forms
        first = forms[compared.forms[0]]
        for axis, start, size, block, skipped in places.axes:
            own = np.array([forms[form].shape[axis] if form != NONE else -1 for form in columns.form.tolist()])
            trimmed = (own >= 0) & (own != size[block])
            if (start[block] % first.chunks[axis]).any() or skipped.any() or trimmed.any():
                return None
        full = _chunk_counts(forms, columns)
        complete = int((columns.form != NONE).sum()) == places.cells
        all_there = bool((columns.count == full).all())
        said = first.attrs.get("_FillValue")
        said = said[0] if isinstance(said, list) and len(said) == 1 else said
        if first.version == 3 and isinstance(said, str):  # in base64
            plain = said_of(first, "_FillValue")
            said = math.nan if plain is None else plain
        if complete:
            return {"fill_value": None} if all_there and said is None and first.version == 2 else {}
        kind = str(first.parsed.get("dtype") or first.parsed.get("data_type"))
        if said is not None and not isinstance(said, list | dict):
            said = "NaN" if isinstance(said, float) and math.isnan(said) else said
            return {"fill_value": said} if all_there or said == first.parsed.get("fill_value") else None
        return {"fill_value": "NaN"} if all_there and ("f" in kind[:2] or kind.startswith("float")) else None


def _chunk_counts(forms: Sequence[Form], columns: VariableColumns) -> Ints:
    """Return how many chunks each file has if all are there."""
    counts = [
        int(np.prod([-(-size // step) for size, step in zip(form.shape, form.chunks, strict=True)] or [1]))
        for form in forms
    ]
    return np.array([*counts, 0], np.int64)[columns.form]


def _plain_times(values: Any, attributes: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return coordinates as numbers: those of NumPy's times with the units that say what they are."""
    if values.dtype.kind != "M":
        return values, attributes
    like = parse_units("days since 1970-01-01", "proleptic_gregorian")
    found, units = encode_times(values.astype("M8[us]").astype(np.int64) + like.origin, like)
    return found, {**attributes, "units": units, "calendar": "proleptic_gregorian"}
