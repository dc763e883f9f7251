"""Physical units of dimensions: a multiplier and a base unit, such as 4 nm.

The base unit is opaque text.  Where a unit is given as text, a leading number is the multiplier and the
rest, stripped of blanks, is the base unit.

`str` and `repr` show six digits as TensorStore does; `text` loses nothing and is what formats store.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from fsstore.errors import JsonError, StoreError
from fsstore.values.json_value import WrittenAsJson, array_of, expected, number, quote, string

_BLANKS: Final = " \t\n\r\v\f"
_NUMBER: Final = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
_SMALLEST: Final = 2.2250738585072014e-308
_MAX_RANK: Final = 32  # that of index domains, of which nothing is known here
_UNSET: Any = object()

Units = tuple["Unit | None", ...]


class Unit(WrittenAsJson):
    """An immutable quantity: `Unit("4nm")`, `Unit(4, "nm")`, `Unit((4, "nm"))`, `Unit(4)`, `Unit(json=[4, "nm"])`.

    >>> Unit("7nm") / 2
    Unit(3.5, "nm")
    """

    __module__ = "fsstore"
    __slots__ = ("__weakref__", "_base_unit", "_multiplier")

    _multiplier: float
    _base_unit: str

    def __init__(
        self, multiplier: Any = _UNSET, base_unit: Any = _UNSET, *, unit: Any = _UNSET, json: Any = _UNSET
    ) -> None:
        """Take the parts, text, a pair, or JSON; nothing means the dimensionless 1."""
        given = [value for value in (multiplier, unit, json) if value is not _UNSET]
        if len(given) > 1 or (base_unit is not _UNSET and multiplier is _UNSET):
            raise TypeError("Unit takes a multiplier with an optional base_unit, or a unit, or json")
        if json is not _UNSET:
            self._multiplier, self._base_unit = _from_json(json)
        elif base_unit is not _UNSET:
            self._multiplier, self._base_unit = _as_float(multiplier), _as_text(base_unit)
        else:
            self._multiplier, self._base_unit = _from_value(given[0] if given else 1)

    @property
    def multiplier(self) -> float:
        """How many base units the quantity is."""
        return self._multiplier

    @property
    def base_unit(self) -> str:
        """The base unit, empty for a dimensionless quantity."""
        return self._base_unit

    def to_json(self) -> list[Any]:
        """Return `[multiplier, base_unit]`."""
        return [self._multiplier, self._base_unit]

    def text(self) -> str:
        """Return text from which `Unit` gives exactly this unit back: `4 nm`, `nm`, `1`."""
        digits = repr(self._multiplier).removesuffix(".0")
        if self._multiplier == 1 and self._base_unit and _split(self._base_unit) == (1.0, self._base_unit):
            return self._base_unit
        return f"{digits} {self._base_unit}" if self._base_unit else digits

    def __mul__(self, multiplier: float) -> Unit:
        """Return the unit times a number."""
        return Unit(self._multiplier * _as_float(multiplier), self._base_unit)

    def __truediv__(self, divisor: float) -> Unit:
        """Return the unit divided by a number; division by zero gives infinity."""
        divisor = _as_float(divisor)
        if divisor == 0:
            return Unit(self._multiplier * float("inf"), self._base_unit)
        return Unit(self._multiplier / divisor, self._base_unit)

    def __eq__(self, other: object) -> bool:
        """Return whether multiplier and base unit are the same."""
        if not isinstance(other, Unit):
            return NotImplemented
        return self._multiplier == other._multiplier and self._base_unit == other._base_unit

    def __hash__(self) -> int:
        """Return a hash that agrees with equality."""
        return hash((self._multiplier, self._base_unit))

    def __str__(self) -> str:
        """Return `4 nm`, `nm` or `1`, the number with six digits."""
        if not self._base_unit:
            return f"{self._multiplier:g}"
        return self._base_unit if self._multiplier == 1 else f"{self._multiplier:g} {self._base_unit}"

    def __repr__(self) -> str:
        """Return `Unit(4, "nm")`."""
        return f"Unit({self._multiplier:g}, {quote(self._base_unit)})"

    def __reduce__(self) -> tuple[type[Unit], tuple[float, str]]:
        """Pickle by parts."""
        return (Unit, (self._multiplier, self._base_unit))


def _split(text: str) -> tuple[float, str]:
    found = _NUMBER.match(text)
    if found is None:
        return 1.0, text
    digits = found.group()
    value = float(digits)
    zero = not re.search("[1-9]", re.split("[eE]", digits)[0])
    if abs(value) == float("inf") or (abs(value) < _SMALLEST and not zero):
        return 1.0, text
    return value, text[found.end() :].strip(_BLANKS)


def _as_float(value: Any) -> float:
    if isinstance(value, str | bytes | Unit) or not hasattr(value, "__float__"):
        raise TypeError(f"Expected a number, but received: {value!r}")
    return float(value)


def _as_text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"Expected a base unit, but received: {value!r}")
    return value


def _from_value(value: Any) -> tuple[float, str]:
    if isinstance(value, str):
        return _split(value.strip(_BLANKS))
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        if len(value) != 2:
            raise TypeError(f"Expected a pair of multiplier and base unit, but received: {value!r}")
        return _as_float(value[0]), _as_text(value[1])
    return _as_float(value), ""


def _from_json(value: Any) -> tuple[float, str]:
    if isinstance(value, str):
        return _split(value.strip(_BLANKS))
    if isinstance(value, int | float) and not isinstance(value, bool):
        return number(value), ""
    if not isinstance(value, Sequence):
        raise expected("array", value)
    if len(value) != 2:
        raise JsonError(f"Array has length {len(value)} but should have length 2")
    multiplier, base_unit = value
    problems: list[str] = []
    for position, (parse, item) in enumerate([(number, multiplier), (string, base_unit)]):
        try:
            parse(item)
        except JsonError as error:
            problems += error.within(f"Error parsing value at position {position}").problems
    if problems:
        raise JsonError(problems)
    return float(multiplier), base_unit


def unit_of(value: Any) -> Unit:
    """Return the unit that text, a number, a pair or a `Unit` says."""
    return value if isinstance(value, Unit) else Unit(value)


def units_of(values: Any) -> Units:
    """Return one unit or None per dimension from a sequence of arguments of `unit_of`.

    Raises `TypeError` for anything else, `StoreError` for more than 32 dimensions.
    """
    if isinstance(values, str | bytes) or not isinstance(values, Sequence):
        raise TypeError("Invalid dimension_units")
    if len(values) > _MAX_RANK:
        raise StoreError(f"Invalid dimension_units: Rank {len(values)} is outside valid range [0, {_MAX_RANK}]")
    try:
        return tuple(None if value is None else unit_of(value) for value in values)
    except TypeError:
        raise TypeError("Invalid dimension_units") from None


def units_from_json(value: Any) -> Units:
    """Parse an array of units and nulls; every bad position is reported."""
    units = array_of(lambda item: None if item is None else Unit(json=item))(value)
    if len(units) > _MAX_RANK:
        raise JsonError(f"Rank {len(units)} is outside valid range [0, {_MAX_RANK}]")
    return tuple(units)


def show_units(units: Units) -> str:
    """Return the units as messages print them: `["4 nm", null]`."""
    return "[" + ", ".join("null" if unit is None else quote(str(unit)) for unit in units) + "]"


def merge_units(existing: Units, new: Units) -> Units:
    """Return the units of both, entry by entry; None takes the other side.

    Raises `StoreError` where both say different units.  The lengths must be equal.
    """
    if any(a is not None and b is not None and a != b for a, b in zip(existing, new, strict=True)):
        raise StoreError(f"Cannot merge dimension units {show_units(existing)} and {show_units(new)}")
    return tuple(b if a is None else a for a, b in zip(existing, new, strict=True))
