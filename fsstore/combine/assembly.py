"""From a batch of files to the whole: files placed along dimensions, each variable put together as far as they agree.

A variable becomes references where all files agree in how it is stored and meant, and the ends of files fall between
chunks; values where it places files or tells times; layers where neither is so.  What cannot be told without guessing
is an error that names the files.  Nothing here reads or writes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from fsstore.combine.calendar import encode_times, is_time, parse_units
from fsstore.combine.differ import Compared, compare, minority, same_values, static_obstacle
from fsstore.combine.facts import NONE, FileBatch, Form, Ints, VariableColumns
from fsstore.combine.layers import FilePlaces, put_layered
from fsstore.combine.new_axis import with_new_axes
from fsstore.combine.order import DimensionOrder, OnOverlap, TimeScale, extents, order_along, time_scale
from fsstore.combine.report import ArrayReport, CombineError, CombineReport
from fsstore.combine.whole import WholeTables, placed_rows
from fsstore.errors import StoreError
from fsstore.mosaic.value import Mosaic
from fsstore.values.json_value import quote

__all__ = ["OnDifference", "Wishes", "assemble"]

OnDifference = Literal["layer", "raise", "skip"]
_LABELS = "_ARRAY_DIMENSIONS"


@dataclass(frozen=True, slots=True)
class Wishes:
    """How files are to be combined.  `coords` are coordinates of files, in their order, instead of their own."""

    dims: tuple[str, ...]
    on_difference: OnDifference = "layer"
    on_overlap: OnOverlap = "raise"
    coords: Mapping[str, Sequence[Any]] = field(default_factory=dict)


def assemble(batch: FileBatch, wishes: Wishes) -> tuple[Mosaic, CombineReport]:
    """Return the whole and what is to be said of it; raises `CombineError` where files cannot be combined."""
    left_out = dict(batch.failed)
    if not batch.files:
        reasons = "; ".join(f"{url}: {why}" for url, why in list(left_out.items())[:3])
        raise CombineError(
            f"None of the files could be scanned: {reasons}" if reasons else "There are no files"
        )
    new = frozenset(dim for dim in wishes.dims if (extents(batch, dim) < 0).all())
    batch = with_new_axes(batch, new)
    wishes = _checked(batch, wishes)
    if wishes.on_difference == "skip":
        batch, wishes, skipped = _without_minority(batch, wishes)
        left_out.update(skipped)
    orders = _orders(batch, wishes)
    batch, orders, doubled = _one_file_a_place(batch, orders, wishes)
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


def _checked(batch: FileBatch, wishes: Wishes) -> Wishes:
    for dim, given in wishes.coords.items():
        if dim not in wishes.dims:
            raise CombineError(f"Coordinates are given for {quote(dim)}, along which files are not combined")
        if len(given) != len(batch.files) + len(batch.failed):
            raise CombineError(
                f"There are {len(given)} coordinates of {quote(dim)} for {len(batch.files)} files"
            )
        if batch.failed:
            raise CombineError("Coordinates are given for files, some of which could not be scanned")
    return wishes


def _taken(wishes: Wishes, kept: Ints) -> Wishes:
    coords = {dim: [given[at] for at in kept.tolist()] for dim, given in wishes.coords.items()}
    return replace(wishes, coords=coords)


def _without_minority(batch: FileBatch, wishes: Wishes) -> tuple[FileBatch, Wishes, dict[str, str]]:
    growing = frozenset(wishes.dims)
    placed = {path for path in batch.variables if _places(batch, path, growing)}
    out = minority(batch, growing, placed)
    for path in batch.variables:
        columns = batch.variables[path]
        static = all(
            not growing & set(batch.forms[form].dims) for form in set(columns.form.tolist()) if form != NONE
        )
        same = same_values(batch, columns) if static else columns.value[:0]
        if (same != NONE).any():
            usual = int(np.bincount(same[same != NONE]).argmax())
            for at in np.flatnonzero((same != usual) & (same != NONE)).tolist():
                out.setdefault(batch.files[at].url, f'it has other values of "{path}"')
    if not out:
        return batch, wishes, out
    kept = np.array([at for at, fact in enumerate(batch.files) if fact.url not in out], np.int64)
    if not len(kept):
        raise CombineError(
            "No file agrees with most others in everything; combine them with on_difference='layer'"
        )
    return batch.only(kept), _taken(wishes, kept), out


def _places(batch: FileBatch, path: str, growing: frozenset[str]) -> bool:
    """Return whether a variable places files along a dimension, or tells times whose values are known."""
    columns = batch.variables[path]
    name = path.rpartition("/")[2]
    if name in growing:
        return True
    have = columns.form != NONE
    forms = [batch.forms[form] for form in set(columns.form[have].tolist())]
    known = bool((columns.value[have] != NONE).all())
    return known and all(is_time(form.attrs) and growing & set(form.dims) for form in forms)


def _orders(batch: FileBatch, wishes: Wishes) -> dict[str, DimensionOrder]:
    alone = len(wishes.dims) == 1
    return {
        dim: order_along(batch, dim, wishes.coords.get(dim), wishes.on_overlap, alone=alone)
        for dim in wishes.dims
    }


def _one_file_a_place(
    batch: FileBatch, orders: dict[str, DimensionOrder], wishes: Wishes
) -> tuple[FileBatch, dict[str, DimensionOrder], dict[str, str]]:
    """Return the files that are used: one a place, and none of which nothing is left."""
    cell: Any = np.zeros(len(batch.files), np.int64)
    empty = np.zeros(len(batch.files), np.bool_)
    for order in orders.values():
        cell = cell * len(order.start) + order.block
        empty |= order.size[order.block] == 0
    kept: dict[int, int] = {}
    out: dict[str, str] = {}
    for at, place in enumerate(cell.tolist() if orders else range(len(batch.files))):
        if empty[at]:
            out[batch.files[at].url] = "all of it is in other files"
            continue
        other = kept.get(place)
        if other is not None and wishes.on_overlap == "raise":
            raise CombineError(
                f"{batch.files[other].url} and {batch.files[at].url} have the same coordinates"
            )
        if other is not None and wishes.on_overlap == "first":
            out[batch.files[at].url] = f"{batch.files[other].url} has the same coordinates"
            continue
        if other is not None:
            out[batch.files[other].url] = f"{batch.files[at].url} has the same coordinates"
        kept[place] = at
    if not out:
        return batch, orders, out
    used = np.array(sorted(kept.values()), np.int64)
    return (
        batch.only(used),
        {dim: replace(order, block=order.block[used]) for dim, order in orders.items()},
        out,
    )


class _Assembly:
    """The whole while it is put together."""

    def __init__(self, batch: FileBatch, orders: Mapping[str, DimensionOrder], wishes: Wishes) -> None:
        self.batch, self.orders, self.wishes = batch, orders, wishes
        versions = {form.version for form in batch.forms}
        self.tables = WholeTables(batch, 3 if versions == {3} else 2)
        self._placing = {order.path for order in orders.values() if order.path}

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
        scale = self._scale(path)
        compared = compare(batch, path, growing, is_placed=scale is not None)
        first = batch.forms[compared.forms[0]]
        axes = [(axis, dim) for axis, dim in enumerate(first.dims) if dim in growing]
        if not axes:
            return self._put_first(path, compared, files)
        if scale is not None:
            return self._put_times(path, compared, scale)
        if compared.obstacle:
            raise self._refused(path, compared, f"they have {compared.obstacle}")
        return self._put_growing(path, compared, axes, files)

    def _refused(self, path: str, compared: Compared, why: str) -> CombineError:
        shown = "\n".join(str(each) for each in compared.differences)
        text = f'Files cannot be combined in "{path}": {why}' + (f"; they differ in {shown}" if shown else "")
        arrays = {path: ArrayReport(path, (), "refused", len(self.batch.files), 1, compared.differences)}
        return CombineError(text, CombineReport(len(self.batch.files), {}, arrays))

    def _put_coordinate(
        self, path: str, order: DimensionOrder, files: int, compared: Compared
    ) -> ArrayReport:
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

    def _scale(self, path: str) -> TimeScale | None:
        """Return what times become, of a variable that tells some, or of the bounds of one, if files differ."""
        columns = self.batch.variables[path]
        have = columns.form != NONE
        numbers = dict.fromkeys(columns.form[have].tolist())
        if (columns.value[have] == NONE).any():
            return None
        forms = {number: self.batch.forms[number] for number in numbers}
        name = path.rpartition("/")[2]
        for order in self.orders.values():
            said = order.attributes or {}
            if order.scale is not None and name in (said.get("bounds"), said.get("climatology")):
                return self._bounds_scale(path, order, forms)
        return time_scale(forms)

    def _bounds_scale(self, path: str, order: DimensionOrder, forms: Mapping[int, Form]) -> TimeScale | None:
        """Return the scale of bounds, which mostly have no units of their own: those of the times they belong to."""
        scale, columns, times = order.scale, self.batch.variables[path], self.batch.variables[order.path]
        assert scale is not None
        read = {}
        for number, form in forms.items():
            if is_time(form.attrs):
                read[number] = parse_units(form.attrs["units"], form.attrs.get("calendar", scale.calendar))
                continue
            of_times = {int(each) for each in times.form[columns.form == number].tolist()}
            if len({scale.forms[each] for each in of_times}) > 1:
                return None
            read[number] = scale.forms[of_times.pop()]
        return TimeScale(scale.like, scale.calendar, read)

    def _put_times(self, path: str, compared: Compared, scale: TimeScale) -> ArrayReport:
        """Put times by value, of files that count them differently."""
        columns, batch = self.batch.variables[path], self.batch
        first = batch.forms[compared.forms[0]]
        shape = self._shape(first)
        if (columns.form == NONE).any():
            raise self._refused(path, compared, "some have no times")
        out = np.zeros(shape, np.int64)
        try:
            for at, (value, form) in enumerate(
                zip(columns.value.tolist(), columns.form.tolist(), strict=True)
            ):
                where, inside = self._sides(first, at)
                out[where] = scale.instants(batch.values[value], form)[inside]
        except (StoreError, ValueError) as error:
            raise CombineError(f'The times of "{path}" cannot be brought together: {error}') from error
        values, units = encode_times(out, scale.like)
        attributes = {**first.attrs, "units": units, "calendar": scale.calendar}
        if not is_time(first.attrs):
            order = next(each for each in self.orders.values() if each.scale is not None)
            assert order.values is not None
            since = parse_units((order.attributes or {}).get("units"), scale.calendar)
            if ((out - since.origin) % since.length).any():
                attributes["units"] = units
            else:
                values = (out - since.origin) // since.length
                attributes = dict(first.attrs)
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

    def _put_growing(
        self, path: str, compared: Compared, axes: Sequence[tuple[int, str]], files: int
    ) -> ArrayReport:
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
            own = np.array(
                [forms[form].shape[axis] if form != NONE else -1 for form in columns.form.tolist()]
            )
            trimmed = (own >= 0) & (own != size[block])
            if (start[block] % first.chunks[axis]).any() or skipped.any() or trimmed.any():
                return None
        full = _chunk_counts(forms, columns)
        complete = int((columns.form != NONE).sum()) == places.cells
        all_there = bool((columns.count == full).all())
        said = first.attrs.get("_FillValue")
        said = said[0] if isinstance(said, list) and len(said) == 1 else said
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
