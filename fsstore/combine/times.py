"""Times of all files as those of the whole: on one scale, compared as instants, written with one unit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fsstore.combine.agreement import holds_values
from fsstore.combine.differ import OF_PACKED
from fsstore.combine.order import DimensionOrder, TimeScale, time_scale
from fsstore.combine.report import CombineError
from fsstore.combine.scan.calendar import encode_times, is_time, parse_units
from fsstore.combine.scan.facts import NONE, FileBatch, Form, Ints, VariableColumns

__all__ = ["FileTimes", "WholeTimes"]

_NO_TIME = -(2**63)


@dataclass(frozen=True, slots=True)
class FileTimes:
    """The times of a variable in the whole; `told_by` has the form that says the units of each file's."""

    scale: TimeScale
    told_by: Ints


class WholeTimes:
    """The times of variables of a batch, which are not coordinates or are their bounds."""

    def __init__(self, batch: FileBatch, orders: Mapping[str, DimensionOrder]) -> None:
        self.batch, self.orders = batch, orders

    def scale(self, path: str) -> FileTimes | None:
        """Return what times become, of a variable that tells some, or of the bounds of one, if files differ."""
        columns = self.batch.variables[path]
        have = columns.form != NONE
        numbers = dict.fromkeys(columns.form[have].tolist())
        forms = {number: self.batch.forms[number] for number in numbers}
        known = holds_values(self.batch, columns)
        name = path.rpartition("/")[2]
        for order in self.orders.values():
            said = order.attributes or {}
            if order.scale is None or name not in (said.get("bounds"), said.get("climatology")):
                continue
            if not known:
                raise CombineError(f'The bounds "{path}" are too large to be converted, as times are')
            return self._of_bounds(columns, order, order.scale)
        found = time_scale(forms) if known else None
        return None if found is None else FileTimes(found, columns.form)

    def _of_bounds(self, columns: VariableColumns, order: DimensionOrder, scale: TimeScale) -> FileTimes:
        """Return the scale of bounds, which mostly have no units: each file's are those of its times."""
        own = np.zeros(len(self.batch.forms) + 1, np.bool_)
        own[:-1] = [is_time(form.attrs) for form in self.batch.forms]
        told_by = np.where(own[columns.form], columns.form, self.batch.variables[order.path].form)
        read = dict(scale.forms)
        for number in np.unique(told_by[own[told_by]]).tolist():
            attrs = self.batch.forms[number].attrs
            read[number] = parse_units(attrs["units"], attrs.get("calendar", scale.calendar))
        return FileTimes(TimeScale(scale.like, scale.calendar, read), told_by)

    def same(self, columns: VariableColumns, times: FileTimes) -> Ints:
        """Return a number for the times that each file has: equal ones for the same instants, or NONE."""
        known: dict[bytes, int] = {}
        out = np.full(len(columns.form), NONE, np.int64)
        for at in np.flatnonzero((columns.form != NONE) & (columns.value != NONE)).tolist():
            found, there = self.instants(columns, times, at)
            out[at] = known.setdefault(found.tobytes() + there.tobytes(), len(known))
        return out

    def instants(self, columns: VariableColumns, times: FileTimes, at: int) -> tuple[Ints, Any]:
        """Return the instants of a file, and which of them are there."""
        found = self.batch.decoded(int(columns.value[at]), int(columns.form[at]))
        there = ~np.isnan(found) if found.dtype.kind == "f" else np.ones(found.shape, np.bool_)
        instants = times.scale.instants(np.where(there, found, 0), int(times.told_by[at]))
        return np.where(there, instants, 0), there

    def told(self, first: Form, out: Ints, there: Any, scale: TimeScale) -> tuple[Ints, dict[str, Any]]:
        """Return instants as numbers, and the attributes that say what they mean."""
        like = scale.like
        attributes = {name: value for name, value in first.attrs.items() if name not in OF_PACKED}
        said = next((o.attributes or {} for o in self.orders.values() if o.scale is not None), {})
        if not is_time(first.attrs):  # bounds, whose units are those of their times, if these can tell them
            like = parse_units(said.get("units"), scale.calendar)
        values, units = encode_times(np.where(there, out, like.origin), like)
        if is_time(first.attrs) or units != said.get("units"):
            attributes.update(units=units, calendar=scale.calendar)
        if not there.all():
            values[~there] = _NO_TIME
            attributes["_FillValue"] = _NO_TIME
        return values, attributes
