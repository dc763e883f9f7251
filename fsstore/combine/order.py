"""Where files lie along a dimension: coordinates sorted, gaps, overlaps and doubles found, times made comparable."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from fsstore.combine.agreement import OF_PACKED, holds_values, meaning
from fsstore.combine.calendar import TimeUnits, encode_times, in_calendar, instants, is_time, parse_units, unit_change
from fsstore.combine.facts import NONE, CombineError, FileBatch, Form, Ints, VariableColumns
from fsstore.errors import StoreError
from fsstore.values.json_value import quote

OnOverlap = Literal["raise", "first", "last"]


@dataclass(frozen=True, slots=True)
class TimeScale:
    """The common form of the times of all files: units and calendar, and how each form of them is read."""

    like: TimeUnits
    calendar: str
    forms: Mapping[int, TimeUnits]

    def instants(self, values: Any, form: int) -> Ints:
        """Return times of a form as instants of the calendar of the whole."""
        own = self.forms[form]
        return in_calendar(instants(values, own), own.calendar, self.like.calendar)


@dataclass(frozen=True, slots=True)
class DimensionOrder:
    """A dimension of the whole.

    `block` says in which block each file lies; `start`, `size` and `skipped` say of blocks where they begin in the
    whole, how much of them is used, and how much of their beginning is not.
    """

    dim: str
    block: Ints
    start: Ints
    size: Ints
    skipped: Ints
    path: str = ""
    values: Any = None
    attributes: Mapping[str, Any] | None = None
    problems: tuple[str, ...] = ()
    is_new: bool = False
    scale: TimeScale | None = None

    @property
    def length(self) -> int:
        """The size of the dimension."""
        return int((self.start + self.size).max()) if len(self.start) else 0


def extents(batch: FileBatch, dim: str) -> Ints:
    """Return the size of a dimension in each file, -1 where it has none of the name."""
    out = np.full(len(batch.files), -1, np.int64)
    sizes = np.array([_size(form, dim) for form in batch.forms] or [-1], np.int64)
    sizes = np.append(sizes, -1)
    for path, columns in batch.variables.items():
        found = sizes[columns.form]
        wrong = np.flatnonzero((found >= 0) & (out >= 0) & (found != out))
        if len(wrong):
            at = int(wrong[0])
            raise CombineError(
                f"The dimension {quote(dim)} has {int(out[at])} and {int(found[at])} elements in {batch.files[at].url}"
                f" ({quote(path)})"
            )
        out = np.where(found >= 0, found, out)
    return out


def _size(form: Form, dim: str) -> int:
    return form.shape[form.dims.index(dim)] if dim in form.dims else -1


def time_scale(forms: Mapping[int, Form]) -> TimeScale | None:
    """Return what times of several forms become; None if they are no times, or all alike."""
    said = {number: (form.attrs.get("units"), form.attrs.get("calendar")) for number, form in forms.items()}
    if not all(is_time(form.attrs) for form in forms.values()) or len(set(said.values())) < 2:
        return None
    parsed = {number: parse_units(*each) for number, each in said.items()}
    first = next(iter(parsed.values()))
    calendars = {each.calendar for each in parsed.values()}
    if len(calendars) > 1:
        wanted = next(
            (name for name in ("standard", "proleptic_gregorian", "julian", "all_leap") if name in calendars),
            first.calendar,
        )
        first = next(each for each in parsed.values() if each.calendar == wanted)
    number = next(number for number, each in parsed.items() if each == first)
    return TimeScale(first, str(forms[number].attrs.get("calendar") or "standard"), parsed)


def order_along(batch: FileBatch, dim: str, on_overlap: OnOverlap, *, alone: bool) -> DimensionOrder:
    """Return where files lie along a dimension; raises `CombineError` if their coordinates leave no order.

    Coordinates that are given stand for those that files have.  A dimension that is `alone` holds a file a block.
    """
    sizes, given = extents(batch, dim), batch.given.get(dim)
    path, is_new = coordinate_path(batch, dim), bool((sizes < 0).all())
    if not is_new and (sizes < 0).any():
        at = int(np.flatnonzero(sizes < 0)[0])
        raise CombineError(f"{batch.files[at].url} has no dimension {quote(dim)}, which other files have")
    sizes = np.where(sizes < 0, 1, sizes)
    if given is None and (path is None or (batch.variables[path].value == NONE).any()):
        return _as_given(dim, sizes, is_new=is_new, alone=alone)
    scale: TimeScale | None = None
    attributes: dict[str, Any] = {}
    each: list[Any] = []
    if given is not None:
        each = [batch.values[value] for value in given.tolist()]
    else:
        assert path is not None
        scale, attributes, each = _read(batch, path)
    for value, size, fact in zip(each, sizes.tolist(), batch.files, strict=True):
        if value.ndim != 1 or len(value) != size:
            raise CombineError(f"The coordinates of {quote(dim)} in {fact.url} are not one for each of {size} steps")
    _check_there(batch, dim, each)
    found = _sorted([fact.url for fact in batch.files], dim, each, on_overlap, alone=alone)
    blocks, block, problems, skipped, kept = found
    start = np.cumsum(kept) - kept
    parts = [value[low : low + size] for value, low, size in zip(blocks, skipped, kept, strict=True)]
    values: Any = np.concatenate(parts) if parts else np.zeros(0)
    if scale is not None:
        values, units = encode_times(values, scale.like)
        attributes = {**attributes, "units": units, "calendar": scale.calendar}
    return DimensionOrder(
        dim, block, start, kept, skipped, path or dim, values, attributes, tuple(problems), is_new, scale
    )


def cells(orders: Iterable[DimensionOrder], files: int) -> Ints:
    """Return the place of each file among those that dimensions make."""
    out = np.zeros(files, np.int64)
    for order in orders:
        out = out * len(order.start) + order.block
    return out


def one_file_a_place(
    batch: FileBatch, orders: dict[str, DimensionOrder], on_overlap: OnOverlap
) -> tuple[FileBatch, dict[str, DimensionOrder], dict[str, str]]:
    """Return the files that are used: one a place, and none of which nothing is left."""
    empty = np.zeros(len(batch.files), np.bool_)
    bare = np.zeros(len(batch.files), np.bool_)
    for dim, order in orders.items():
        empty |= order.size[order.block] == 0
        bare |= extents(batch, dim) == 0
    kept: dict[int, int] = {}
    out: dict[str, str] = {}
    for at, place in enumerate(
        cells(orders.values(), len(batch.files)).tolist() if orders else range(len(batch.files))
    ):
        if empty[at]:
            out[batch.files[at].url] = "it has no steps" if bare[at] else "all of it is in other files"
            continue
        other = kept.get(place)
        if other is not None and on_overlap == "raise":
            raise CombineError(f"{batch.files[other].url} and {batch.files[at].url} have the same coordinates")
        if other is not None and on_overlap == "first":
            out[batch.files[at].url] = f"{batch.files[other].url} has the same coordinates"
            continue
        if other is not None:
            out[batch.files[other].url] = f"{batch.files[at].url} has the same coordinates"
        kept[place] = at
    if not out:
        return batch, orders, out
    used = np.array(sorted(kept.values()), np.int64)
    return (batch.only(used), {dim: _of_files(order, used) for dim, order in orders.items()}, out)


def _of_files(order: DimensionOrder, used: Ints) -> DimensionOrder:
    """Return a dimension of some files, without the blocks of which nothing is left."""
    full = order.size > 0
    block = (np.cumsum(full) - 1)[order.block[used]]
    start, size, skipped = (each[full] for each in (order.start, order.size, order.skipped))
    return replace(order, block=block, start=start, size=size, skipped=skipped)


def coordinate_path(batch: FileBatch, dim: str) -> str | None:
    """Return the path of the coordinate variable of a dimension: 1-D, or a scalar that becomes one."""
    found = [path for path in batch.variables if path.rpartition("/")[2] == dim]
    for path in sorted(found, key=lambda each: (each.count("/"), each)):
        used = np.unique(batch.variables[path].form)
        if all(batch.forms[number].dims in ((dim,), ()) for number in used.tolist() if number != NONE):
            return path
    return None


def _read(batch: FileBatch, path: str) -> tuple[TimeScale | None, dict[str, Any], list[Any]]:
    """Return the coordinates of each file, as they are stored if they all mean the same so, and else as they mean."""
    columns = batch.variables[path]
    forms = {number: batch.forms[number] for number in dict.fromkeys(columns.form.tolist())}
    scale = time_scale(forms)
    first = next(iter(forms.values()))
    pairs = list(zip(columns.value.tolist(), columns.form.tolist(), strict=True))
    if scale is None and len({meaning(form) for form in forms.values()}) == 1:
        _check_there(batch, path, [batch.decoded(*pair) for pair in pairs])
        return None, dict(first.attrs), [np.atleast_1d(batch.values[value]) for value, _ in pairs]
    attributes = {name: value for name, value in first.attrs.items() if name not in OF_PACKED}
    decoded = [np.atleast_1d(batch.decoded(*pair)) for pair in pairs]
    if scale is None:
        return None, attributes, _of_one_unit(path, decoded, [forms[form] for _, form in pairs])
    try:
        read = [scale.instants(value, form) for value, (_, form) in zip(decoded, pairs, strict=True)]
    except StoreError as error:
        raise CombineError(f"The times of {quote(path)} cannot be brought together: {error.message}") from error
    return scale, attributes, read


def _check_there(batch: FileBatch, name: str, each: Sequence[Any]) -> None:
    """Raise `CombineError` where a coordinate is missing: it has no place among the others."""
    for value, fact in zip(each, batch.files, strict=True):
        if (value.dtype.kind == "f" and np.isnan(value).any()) or (value.dtype.kind in "mM" and np.isnat(value).any()):
            raise CombineError(f"A coordinate of {quote(name)} in {fact.url} is missing; leave the file out")


def _of_one_unit(path: str, each: list[Any], forms: list[Form]) -> list[Any]:
    wanted = str(forms[0].attrs.get("units", ""))
    out = []
    for value, form in zip(each, forms, strict=True):
        own = str(form.attrs.get("units", ""))
        change = (1.0, 0.0) if own == wanted else unit_change(own, wanted)
        if change is None or (own != wanted and is_time(form.attrs)):
            raise CombineError(
                f"The coordinates {quote(path)} have units {wanted!r} and {own!r}, which cannot be brought together"
            )
        out.append(value if change == (1.0, 0.0) else value * change[0] + change[1])
    return out


def _as_given(dim: str, sizes: Ints, *, is_new: bool, alone: bool) -> DimensionOrder:
    """Return files one after the other in the order in which they were given."""
    if not alone:
        raise CombineError(f"Files have no coordinates along {quote(dim)}; give them as `coords`")
    start = np.cumsum(sizes) - sizes
    return DimensionOrder(dim, np.arange(len(sizes)), start, sizes, np.zeros_like(sizes), is_new=is_new)


def _sorted(
    urls: Sequence[str], dim: str, each: Sequence[Any], on_overlap: OnOverlap, *, alone: bool
) -> tuple[list[Any], Ints, list[str], Ints, Ints]:
    """Return blocks in order, the block of each file, problems, and what of each block is used."""
    if len({value.dtype for value in each}) > 1:
        common = np.result_type(*each)
        each = [value.astype(common) for value in each]
    known: dict[Any, int] = {}
    numbers = [known.setdefault((value.tobytes(), len(value)), len(known)) for value in each]
    distinct: list[Any] = [None] * len(known)
    names: list[list[str]] = [[] for _ in known]
    for number, value, url in zip(numbers, each, urls, strict=True):
        distinct[number] = value
        names[number].append(url)
    problems = []
    if alone:
        problems += [f"{quote(dim)} has the same values in {' and '.join(some[:4])}" for some in names if len(some) > 1]
        if problems and on_overlap == "raise":
            raise CombineError(f"Files are doubled: {problems[0]}; leave one out, or say on_overlap")
    down = _direction(distinct, names, dim)
    keys = [value[0] if len(value) else 0 for value in distinct]
    order = sorted(range(len(distinct)), key=lambda at: keys[at], reverse=down)
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    blocks, named = [distinct[at] for at in order], [names[at] for at in order]
    skipped, kept = _trimmed(blocks, named, dim, (on_overlap, down), problems)
    _find_gaps(blocks, named, dim, problems)
    return blocks, rank[np.array(numbers, np.int64)], problems, skipped, kept


def _direction(blocks: Sequence[Any], names: Sequence[Sequence[str]], dim: str) -> bool:
    """Return whether coordinates descend; raises if some do neither."""
    ways = set()
    for value, some in zip(blocks, names, strict=True):
        if value.dtype.kind in "OSU" or len(value) < 2:
            continue
        steps = value[1:] > value[:-1]
        if not steps.all() and (value[1:] >= value[:-1]).any():
            raise CombineError(f"The coordinates of {quote(dim)} in {some[0]} neither ascend nor descend")
        ways.add(bool(steps.all()))
    if len(ways) > 1:
        raise CombineError(f"The coordinates of {quote(dim)} ascend in some files and descend in others")
    return ways == {False}


def _trimmed(
    blocks: Sequence[Any], names: Sequence[Sequence[str]], dim: str, how: tuple[OnOverlap, bool], problems: list[str]
) -> tuple[Ints, Ints]:
    """Return how much of the beginning of blocks is skipped, and how much is kept, so that none overlaps."""
    on_overlap, down = how
    low = np.zeros(len(blocks), np.int64)
    high = np.array([len(value) for value in blocks], np.int64)
    last = -1
    for at in range(len(blocks)):
        if not high[at]:
            continue
        before, last = last, at
        if before < 0:
            continue
        end, begin = blocks[before][high[before] - 1], blocks[at][low[at]]
        if (end > begin) if down else (end < begin):
            continue
        said = f"{quote(dim)} overlaps between {names[before][0]} (until {end}) and {names[at][0]} (from {begin})"
        problems.append(said)
        if on_overlap == "raise":
            raise CombineError(f"Files overlap: {said}; leave one out, or say on_overlap")
        if on_overlap == "last":
            _check_covered(dim, names[before][0], names[at][0], (end, blocks[at][-1]), down)
            inside = blocks[before] > begin if down else blocks[before] < begin
            high[before] = max(low[before], min(high[before], int(inside.sum())))
        else:
            inside = blocks[at] < end if down else blocks[at] > end
            low[at] = len(blocks[at]) - int(inside.sum())
            if low[at] >= high[at]:
                low[at], last = high[at], before
    return low, np.maximum(high - low, 0)


def _check_covered(dim: str, first: str, last: str, ends: tuple[Any, Any], down: bool) -> None:
    """Raise `CombineError` where steps of the first of two files would be lost if the last won."""
    end, other = ends
    if (end < other) if down else (end > other):
        raise CombineError(
            f"{first} goes on along {quote(dim)} where {last} ends (at {other}), and its steps from there on would be "
            f'lost if the last won; leave one out, or say on_overlap="first"'
        )


def _find_gaps(blocks: Sequence[Any], names: Sequence[Sequence[str]], dim: str, problems: list[str]) -> None:
    """Say where the distance between files is more than half as much again as the steps within them."""
    steps = [np.abs(np.diff(value)) for value in blocks if len(value) > 1 and value.dtype.kind in "iufmM"]
    between = [
        (abs(b[0] - a[-1]), before, after)
        for (a, before), (b, after) in zip(
            zip(blocks[:-1], names[:-1], strict=True), zip(blocks[1:], names[1:], strict=True), strict=True
        )
        if len(a) and len(b) and a.dtype.kind in "iufmM"
    ]
    if not between:
        return
    usual = np.concatenate(steps) if steps else np.array([each for each, _, _ in between])
    step = np.sort(usual)[len(usual) // 2]
    for distance, before, after in between:
        if distance > step * 1.5 if usual.dtype.kind not in "mM" else distance > step + step // 2:
            problems.append(f"{quote(dim)} has a gap between {before[0]} and {after[0]}")


# Times of all files as those of the whole: on one scale, compared as instants, written with one unit.

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
