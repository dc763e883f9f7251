"""Changes between units of a quantity that are multiples of each other, or shifted: `hPa` to `Pa`, `degC` to `K`.

Only units whose meaning is beyond doubt are known.  For all others combining files is refused rather than guessed.
"""

from __future__ import annotations

import re

__all__ = ["unit_change"]

_PREFIXES = {
    "": 1.0,
    "h": 1e2,
    "k": 1e3,
    "M": 1e6,
    "G": 1e9,
    "c": 1e-2,
    "m": 1e-3,
    "u": 1e-6,
    "n": 1e-9,
    "d": 1e-1,
}
_BASES = {
    "m": "m",
    "meter": "m",
    "metre": "m",
    "meters": "m",
    "metres": "m",
    "g": "g",
    "Pa": "Pa",
    "W": "W",
    "J": "J",
}
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
