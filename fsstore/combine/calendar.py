"""Times of the CF conventions as integers, and changes between units.

Units of time, the dates they count from and seven calendars come first, then units that are multiples of each other
or shifted."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from fsstore.errors import StoreError, UnimplementedError
from fsstore.values.json_value import quote

# Times of the CF conventions as integers: `hours since 1950-01-01` in one of seven calendars.

Ints: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]

CALENDARS = {
    "standard": "standard",
    "gregorian": "standard",
    "": "standard",
    "proleptic_gregorian": "proleptic_gregorian",
    "julian": "julian",
    "noleap": "noleap",
    "365_day": "noleap",
    "all_leap": "all_leap",
    "366_day": "all_leap",
    "360_day": "360_day",
}
"""Every name of a calendar, and the one it is called here."""

_UNITS = {
    "days": 86_400_000_000,
    "hours": 3_600_000_000,
    "minutes": 60_000_000,
    "seconds": 1_000_000,
    "milliseconds": 1000,
    "microseconds": 1,
}
_SHORT = {
    "d": "days",
    "day": "days",
    "h": "hours",
    "hr": "hours",
    "hrs": "hours",
    "hour": "hours",
    "min": "minutes",
    "mins": "minutes",
    "minute": "minutes",
    "s": "seconds",
    "sec": "seconds",
    "secs": "seconds",
    "second": "seconds",
    "ms": "milliseconds",
    "msec": "milliseconds",
    "millisec": "milliseconds",
    "millisecond": "milliseconds",
    "us": "microseconds",
    "microsecond": "microseconds",
    "msecs": "milliseconds",
    "ns": "nanoseconds",
    "nanosecond": "nanoseconds",
}
_FINE = 1000  # nanoseconds in the finest unit here: times in nanoseconds are read where they are whole microseconds
_SINCE = re.compile(
    r"\s*(?P<unit>[A-Za-z]+)\s+since\s+(?P<y>[+-]?\d{1,6})-(?P<m>\d{1,2})-(?P<d>\d{1,2})"
    r"(?:[T\s]+(?P<H>\d{1,2})(?::(?P<M>\d{1,2}))?(?::(?P<S>\d{1,2}(?:\.\d{0,9})?))?)?"
    r"\s*(?P<zone>Z|UTC|GMT|[+-]\d{1,2}(?::?\d{2})?)?\s*\Z"
)
_REFORM = 577_736  # the day number of 1582-10-15 in the Gregorian calendar, from 0001-01-01
_DAY = _UNITS["days"]


@dataclass(frozen=True, slots=True)
class TimeUnits:
    """A unit in microseconds, and the instant that it counts from, in its calendar.

    A count of nanoseconds is divided by `divisor` first.
    """

    unit: str
    origin: int
    since: str
    calendar: str
    divisor: int = 1

    @property
    def length(self) -> int:
        """How many microseconds one has."""
        return _UNITS[self.unit]


def is_time(attributes: Any) -> bool:
    """Return whether attributes are those of times: a unit and what it counts from.

    >>> is_time({"units": "days since 2000-01-01"}), is_time({"units": "days"})
    (True, False)
    """
    units = attributes.get("units")
    return isinstance(units, str) and " since " in units


def parse_units(units: Any, calendar: Any = "standard") -> TimeUnits:
    """Return what the attributes `units` and `calendar` say; raises `StoreError` for what is not understood."""
    known = CALENDARS.get(str(calendar or "").lower())
    match = _SINCE.match(str(units))
    if known is None or match is None:
        what = f"calendar {quote(str(calendar))}" if known is None else f"units of time {quote(str(units))}"
        raise UnimplementedError(f"The {what} cannot be converted")
    unit = _SHORT.get(match["unit"].lower(), match["unit"].lower())
    divisor = _FINE if unit == "nanoseconds" else 1
    unit = "microseconds" if unit == "nanoseconds" else unit
    if unit not in _UNITS:
        raise UnimplementedError(f"The units of time {quote(str(units))} cannot be converted")
    date = tuple(int(match[part]) for part in "ymd")
    days = _days(known, *(np.array([part], np.int64) for part in date))
    clock = int(match["H"] or 0) * 3600 + int(match["M"] or 0) * 60
    micros = clock * 1_000_000 + round(float(match["S"] or 0) * 1_000_000) - _zone(match["zone"])
    since = str(units).split(" since ", 1)[1].strip()
    return TimeUnits(unit, int(days[0]) * _DAY + micros, since, known, divisor)


def _zone(text: str | None) -> int:
    if not text or text[0] not in "+-":
        return 0
    digits = text[1:].replace(":", "")
    hours, minutes = (digits, "0") if len(digits) <= 2 else (digits[:-2], digits[-2:])
    return (1 if text[0] == "+" else -1) * (int(hours) * 60 + int(minutes)) * _UNITS["minutes"]


def instants(values: Any, units: TimeUnits) -> Ints:
    """Return times as microseconds in their calendar; raises `StoreError` for what is no number."""
    values = np.asarray(values)
    if units.divisor > 1 and values.dtype.kind in "iuf":
        if (values % units.divisor).any():
            raise StoreError("A time is finer than microseconds, and cannot be converted")
        values = values // units.divisor
    if values.dtype.kind in "iu":
        limit = (2**62 - abs(units.origin)) // units.length
        if values.size and (int(values.max()) > limit or int(values.min()) < -limit):
            raise StoreError("A time is too far away to be converted")
        whole_units: Ints = values.astype(np.int64) * units.length + units.origin
        return whole_units
    if values.dtype.kind != "f" or not np.isfinite(values).all():
        raise StoreError("A time is missing, or is not a number, and cannot be converted")
    whole = np.floor(values.astype(np.float64))
    if values.size and np.abs(whole).max() * units.length > 2**62:
        raise StoreError("A time is too far away to be converted")
    part = np.round((values.astype(np.float64) - whole) * units.length)
    found: Ints = whole.astype(np.int64) * units.length + part.astype(np.int64) + units.origin
    return found


def in_calendar(times: Ints, calendar: str, wanted: str) -> Ints:
    """Return times of a calendar in another: the same date and clock; raises where a date does not exist there."""
    if calendar == wanted:
        return times
    days, clock = np.divmod(times, _DAY)
    year, month, day = _dates(calendar, days)
    found = _days(wanted, year, month, day)
    again = _dates(wanted, found)
    if not all((a == b).all() for a, b in zip(again, (year, month, day), strict=True)):
        raise StoreError(f"A date of the calendar {calendar} does not exist in the calendar {wanted}")
    return found * _DAY + clock


def encode_times(times: Ints, like: TimeUnits) -> tuple[Ints, str]:
    """Return integers and the units that hold times exactly: the unit of `like`, or the next finer that does."""
    order = list(_UNITS)
    since = times - like.origin
    for unit in order[order.index(like.unit) :]:
        if not (since % _UNITS[unit]).any():
            return since // _UNITS[unit], f"{unit} since {like.since}"
    raise AssertionError  # every integer is a number of microseconds


_BEFORE = np.array([0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334], np.int64)
_LEAP_BEFORE = _BEFORE + (np.arange(12) > 1)


def _days(calendar: str, year: Ints, month: Ints, day: Ints) -> Ints:
    before = year - 1
    if calendar == "360_day":
        return before * 360 + (month - 1) * 30 + day - 1
    if calendar in ("noleap", "all_leap"):
        table = _BEFORE if calendar == "noleap" else _LEAP_BEFORE
        return before * (365 if calendar == "noleap" else 366) + table[month - 1] + day - 1
    if calendar == "standard":
        gregorian = _days("proleptic_gregorian", year, month, day)
        # the day numbers of both parts continue each other: 1582-10-04 is followed by 1582-10-15
        return np.where(gregorian >= _REFORM, gregorian, _days("julian", year, month, day) - 2)
    leap = _is_leap(calendar, year)
    months = np.where(leap, _LEAP_BEFORE[month - 1], _BEFORE[month - 1])
    centuries = 0 if calendar == "julian" else before // 400 - before // 100
    return before * 365 + before // 4 + centuries + months + day - 1


def _is_leap(calendar: str, year: Ints) -> Any:
    if calendar == "julian":
        return year % 4 == 0
    return (year % 4 == 0) & ((year % 100 != 0) | (year % 400 == 0))


def _dates(calendar: str, days: Ints) -> tuple[Ints, Ints, Ints]:
    if calendar == "standard":
        new, old = _dates("proleptic_gregorian", days), _dates("julian", days + 2)
        late = days >= _REFORM
        return tuple(np.where(late, a, b) for a, b in zip(new, old, strict=True))  # type: ignore[return-value]  # three of them
    if calendar == "360_day":
        year, rest = np.divmod(days, 360)
        return year + 1, rest // 30 + 1, rest % 30 + 1
    if calendar in ("noleap", "all_leap"):
        length = 365 if calendar == "noleap" else 366
        year, rest = np.divmod(days, length)
        table = _BEFORE if calendar == "noleap" else _LEAP_BEFORE
        month = np.searchsorted(table, rest, side="right")
        return year + 1, month, rest - table[month - 1] + 1
    one = np.ones_like(days)
    year = np.floor_divide(days * 4, 1461) + 1  # within a year of the answer
    for _ in range(8):  # some years in a millennium at most: the estimate is that of the Julian calendar
        first, following = _days(calendar, year, one, one), _days(calendar, year + 1, one, one)
        wrong = (days < first) | (days >= following)
        if not wrong.any():
            break
        year = np.where(wrong, year + np.floor_divide(days - first, 366), year)
        year = np.where(days >= _days(calendar, year + 1, one, one), year + 1, year)
    rest = days - _days(calendar, year, one, one)
    leap = _is_leap(calendar, year)
    table_month = np.searchsorted(_BEFORE, rest, side="right")
    leap_month = np.searchsorted(_LEAP_BEFORE, rest, side="right")
    month = np.where(leap, leap_month, table_month)
    start = np.where(leap, _LEAP_BEFORE[month - 1], _BEFORE[month - 1])
    return year, month, rest - start + 1


_PREFIXES = {"": 1.0, "h": 1e2, "k": 1e3, "M": 1e6, "G": 1e9, "c": 1e-2, "m": 1e-3, "u": 1e-6, "n": 1e-9, "d": 1e-1}
_BASES = {"m": "m", "meter": "m", "metre": "m", "meters": "m", "metres": "m", "g": "g", "Pa": "Pa", "W": "W", "J": "J"}
_KNOWN: dict[str, tuple[str, float, float]] = {
    **dict.fromkeys(("K", "kelvin", "Kelvin", "degK", "deg_K", "degrees_K"), ("K", 1.0, 0.0)),
    **dict.fromkeys(
        ("degC", "deg_C", "C", "celsius", "Celsius", "degrees_C", "degree_C", "degree_Celsius", "°C"),
        ("K", 1.0, 273.15),
    ),
    **dict.fromkeys(("degF", "deg_F", "F", "fahrenheit", "degrees_F"), ("K", 5 / 9, 273.15 - 32 * 5 / 9)),
    **dict.fromkeys(("1", "", "dimensionless"), ("1", 1.0, 0.0)),
    **dict.fromkeys(("%", "percent"), ("1", 0.01, 0.0)),
    **dict.fromkeys(("mb", "mbar", "millibar", "millibars"), ("Pa", 100.0, 0.0)),
    "bar": ("Pa", 1e5, 0.0),
    "kilometer": ("m", 1e3, 0.0),
    "millimeter": ("m", 1e-3, 0.0),
    **dict.fromkeys(("s", "sec", "second", "seconds"), ("s", 1.0, 0.0)),
    **dict.fromkeys(("min", "minute", "minutes"), ("s", 60.0, 0.0)),
    **dict.fromkeys(("h", "hr", "hour", "hours"), ("s", 3600.0, 0.0)),
    **dict.fromkeys(("day", "days"), ("s", 86400.0, 0.0)),
    **dict.fromkeys(("m/s", "m s-1", "m s**-1", "m s^-1", "meter/second", "ms-1"), ("m s-1", 1.0, 0.0)),
    **dict.fromkeys(("km/h", "km h-1", "km h**-1"), ("m s-1", 1 / 3.6, 0.0)),
    **dict.fromkeys(("kg m-2", "kg m**-2", "kg/m2", "kg/m^2"), ("kg m-2", 1.0, 0.0)),
    **dict.fromkeys(("kg m-2 s-1", "kg m**-2 s**-1", "kg/m2/s", "kg/m^2/s"), ("kg m-2 s-1", 1.0, 0.0)),
    **dict.fromkeys(("kg kg-1", "kg/kg", "kg kg**-1"), ("kg kg-1", 1.0, 0.0)),
    **dict.fromkeys(("g kg-1", "g/kg", "g kg**-1"), ("kg kg-1", 0.001, 0.0)),
}
_PREFIXED = re.compile(r"(?P<prefix>[hkMGcmund]?)(?P<base>m|g|Pa|W|J)\Z")


def _meaning(unit: str) -> tuple[str, float, float] | None:
    known = _KNOWN.get(unit)
    if known is not None:
        return known
    if unit in _BASES:
        return _BASES[unit], 1.0, 0.0
    match = _PREFIXED.match(unit)
    return None if match is None else (match["base"], _PREFIXES[match["prefix"]], 0.0)


def unit_change(unit: str, wanted: str) -> tuple[float, float] | None:
    """Return the factor and the shift that take values of a unit to another, or None if that is not known.

    >>> unit_change("hPa", "Pa"), unit_change("degC", "K"), unit_change("m", "K")
    ((100.0, 0.0), (1.0, 273.15), None)
    """
    if unit.strip() == wanted.strip():
        return 1.0, 0.0
    one, other = _meaning(unit.strip()), _meaning(wanted.strip())
    if one is None or other is None or one[0] != other[0]:
        return None
    return one[1] / other[1], (one[2] - other[2]) / other[1]
