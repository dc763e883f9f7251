"""When cached data are asked for again: the recheck options."""

from __future__ import annotations

import math
from typing import Any

from fsstore._json import expected, number
from fsstore.errors import JsonError

__all__ = ["MEMBERS", "fresh_after", "recheck"]

MEMBERS = ("recheck_cached_metadata", "recheck_cached_data")
"""The members of specs that say it."""


def recheck(value: Any) -> Any:
    """Parse a recheck option: true, false, "open", or seconds since the epoch."""
    if isinstance(value, bool) or (isinstance(value, str) and value == "open"):
        return value
    try:
        return number(value)
    except JsonError:
        raise expected('boolean, number, or "open"', value) from None


def fresh_after(recheck: bool | str | float, opened: float) -> float:
    """Return from which time on cached data need no recheck.

    True rechecks always, False never, "open" what is older than the opening, a number what is older than that time.
    """
    if isinstance(recheck, bool):
        return math.inf if recheck else -math.inf
    return opened if isinstance(recheck, str) else recheck
