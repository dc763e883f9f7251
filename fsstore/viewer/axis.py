"""The axes of an array: the coordinates, times and latitudes along its dimensions.

Coordinates are arrays of one dimension named after it, in the group of the array or above, as CF and xarray have them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import numpy as np

from fsstore.errors import StoreError
from fsstore.viewer.number import is_number, numbers, text_of
from fsstore.viewer.picture import PictureLimits, sample, sampled
from fsstore.viewer.tuning import AXIS_VALUES

__all__ = ["axis"]

_SINCE = re.compile(
    r"\s*(\w+)\s+since\s+(\d{1,4})-(\d{1,2})-(\d{1,2})(?:[T ]+(\d{1,2}):(\d{1,2})(?::([\d.]+))?)?(.*)"
)
_ZONE = re.compile(r"\s*(?:Z|UTC|GMT|([+-])(\d{1,2}):?(\d{2})?)?\s*\Z")
_MILLISECONDS = {
    **dict.fromkeys(("milli", "ms", "msec"), 1), **dict.fromkeys(("s", "sec", "second"), 1e3),
    **dict.fromkeys(("min", "minute"), 6e4), **dict.fromkeys(("h", "hr", "hour"), 36e5),
    **dict.fromkeys(("d", "day"), 864e5), "week": 6048e5,
}  # fmt: skip
_GREGORIAN = ("standard", "gregorian", "proleptic_gregorian", "")
_LENGTHS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_LEAP = (31, 29, *_LENGTHS[2:])
_MONTHS = {
    "noleap": _LENGTHS, "365_day": _LENGTHS, "all_leap": _LEAP, "366_day": _LEAP, "360_day": (30,) * 12,
}  # fmt: skip
"""The lengths of months in calendars whose years are all alike."""
_UP = ("latitude", "projection_y_coordinate", "altitude", "height", "grid_latitude")


def axis(store: Any, attributes: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the values of a coordinate as JSON, or None if they are neither numbers, times nor text."""
    dtype = store.dtype.numpy_dtype
    (size,) = store.shape
    if not size:
        return None
    try:
        values, step, first = _values(store, size)
    except StoreError:  # an axis that cannot be read is no reason to show no picture
        return None
    found: dict[str, Any] = {
        "units": _text(attributes.get("units")), "step": step, "first": first, "up": _goes_up(attributes),
    }  # fmt: skip
    if dtype.kind == "M" or (is_number(dtype) and _SINCE.match(found["units"])):
        return found | _times(values, attributes, found["units"], is_absolute=dtype.kind == "M")
    if is_number(dtype):
        plain = numbers(values, attributes).astype("f8")
        return found | {
            "kind": "number",
            "values": [None if not np.isfinite(each) else each for each in plain.tolist()],
        }
    if step == 1 and dtype.kind in "OSUT":
        return found | {"kind": "text", "values": [text_of(each) for each in values]}
    return None


def _values(store: Any, size: int) -> tuple[Any, int, int]:
    chunk = (store.chunk_layout.read_chunk.shape or (None,))[0] or size
    each = store.dtype.numpy_dtype.itemsize
    (along,) = sampled(
        [(0, size)],
        [AXIS_VALUES],
        shape=[size],
        chunks=[chunk],
        chunk_bytes=chunk * each,
        limits=PictureLimits(64),
    )
    return sample(store, [0], [0], [along]), along.step, along.selection.start


def _text(value: Any) -> str:
    return value[:200] if isinstance(value, str) else ""


def _goes_up(attributes: Mapping[str, Any]) -> bool:
    """Return whether larger values belong further up on a map."""
    units, name = _text(attributes.get("units")).lower(), _text(attributes.get("standard_name")).lower()
    return (
        units in ("degrees_north", "degree_north", "degrees_n", "degreesn")
        or name in _UP
        or attributes.get("axis") == "Y"
    )


def _times(values: Any, attributes: Mapping[str, Any], units: str, *, is_absolute: bool) -> dict[str, Any]:
    if is_absolute:
        return {"kind": "time", "units": "", "values": _plain(numbers(values, {}))}
    found = _SINCE.match(units)
    calendar = _text(attributes.get("calendar")).lower()
    one = _MILLISECONDS.get(found[1].lower().removesuffix("s") or "s") if found else None
    zone = _ZONE.match(found[8]) if found else None
    plain = numbers(values, attributes).astype("f8")
    if found is not None and one is not None and calendar in _MONTHS:
        days = (
            _days_before(int(found[2]), int(found[3]), int(found[4]), _MONTHS[calendar]) + plain * one / 864e5
        )
        return {"kind": "text", "values": [_date(each, _MONTHS[calendar]) for each in days.tolist()]}
    if found is None or one is None or zone is None or calendar not in _GREGORIAN:
        return {"kind": "number", "values": _plain(plain)}
    try:
        start = datetime(
            int(found[2]), int(found[3]), int(found[4]), int(found[5] or 0), int(found[6] or 0), tzinfo=UTC
        )
    except ValueError:
        return {"kind": "number", "values": _plain(plain)}
    shift = 0.0
    if zone[1]:
        shift = (1 if zone[1] == "+" else -1) * (int(zone[2]) * 60 + int(zone[3] or 0)) * 6e4
    origin = (
        (start - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1e3 + float(found[7] or 0) * 1e3 - shift
    )
    return {"kind": "time", "units": "", "values": _plain(origin + plain * one)}


def _plain(values: Any) -> list[float | None]:
    return [float(each) if np.isfinite(each) else None for each in values]


def _days_before(year: int, month: int, day: int, lengths: tuple[int, ...]) -> int:
    """Return how many days of a calendar lie before a date."""
    return year * sum(lengths) + sum(lengths[: month - 1]) + day - 1


def _date(days: float, lengths: tuple[int, ...]) -> str:
    """Return the date so many days into a calendar."""
    if not np.isfinite(days):
        return ""
    year, day = divmod(int(days), sum(lengths))
    month = 0
    while day >= lengths[month]:
        day -= lengths[month]
        month += 1
    return f"{year:04}-{month + 1:02}-{day + 1:02}"
