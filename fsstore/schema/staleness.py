"""When cached data are asked for again: the recheck options."""

from __future__ import annotations

import math
from typing import Any, Literal, TypeAlias

from fsstore.errors import JsonError
from fsstore.values.json_value import expected, number

__all__ = ["MEMBERS", "RecheckCacheOption", "differs", "fresh_after", "recheck", "recheck_argument"]

RecheckCacheOption: TypeAlias = bool | Literal["open"] | float
"""When cached data are asked for again: always, never, once an opening, or what is older than a time."""
MEMBERS = ("recheck_cached_metadata", "recheck_cached_data")
"""The members of specs that say it."""


_END = 2.0**63  # seconds on either side of 1970, beyond which every time is past or to come


def recheck(value: Any) -> Any:
    """Parse a recheck option: true, false, "open", or seconds since the epoch."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value == "open":
        return "open"
    try:
        return _time(number(value))
    except JsonError:
        raise expected('boolean, number, or "open"', value) from None


def recheck_argument(name: str, value: Any) -> Any:
    """Return the recheck option that an argument called `name` means: numbers of any kind, infinite ones too.

    Raises `TypeError` for anything else.
    """
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value == "open":
        return "open"
    if isinstance(value, str | bytes) or not (hasattr(value, "__float__") or hasattr(value, "__index__")):
        raise TypeError(f"Invalid {name}")
    try:
        return _time(float(value))
    except (TypeError, ValueError, OverflowError):
        raise TypeError(f"Invalid {name}") from None


def _time(seconds: float) -> bool | float:
    """Return a time; true for one that is always to come, false for one that is always past, or none at all."""
    if -_END < seconds < _END:
        return seconds
    return seconds > 0


def differs(value: Any, usual: Any) -> bool:
    """Return whether a member says something else than its default: the time 1.0 is not true."""
    return (type(value), value) != (type(usual), usual)


def fresh_after(recheck: bool | str | float, opened: float) -> float:
    """Return from which time on cached data need no recheck.

    True rechecks always, False never, "open" what is older than the opening, a number what is older than that time.
    """
    if isinstance(recheck, bool):
        return math.inf if recheck else -math.inf
    return opened if isinstance(recheck, str) else recheck
