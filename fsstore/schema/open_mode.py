"""How an array is opened: whether it is made, opened or replaced, and how stale its metadata and data may be."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, TypeAlias, TypedDict

from fsstore.errors import JsonError, StoreError
from fsstore.values.argument import as_flag
from fsstore.values.json_value import Fields, boolean, expected, number

# When cached data are asked for again: the recheck options.

RecheckCacheOption: TypeAlias = bool | Literal["open"] | float
"""When cached data are asked for again: always, never, once an opening, or what is older than a time."""
MEMBERS = ("recheck_cached_metadata", "recheck_cached_data")
FILLS = "fill_missing_data_reads"
"""Whether a chunk that is missing reads as fill values."""
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


class ModeOptions(TypedDict, total=False):
    """Whether opening may create or delete, and how long what it has read is good; None is not given."""

    open_mode: OpenMode | None
    open: bool | None
    create: bool | None
    delete_existing: bool | None
    assume_metadata: bool | None
    assume_cached_metadata: bool | None
    recheck_cached: RecheckCacheOption | None
    recheck_cached_metadata: RecheckCacheOption | None
    recheck_cached_data: RecheckCacheOption | None
    fill_missing_data_reads: bool | None


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class OpenMode:
    """The permissions of `open`.  Without any flag it opens what exists.

    >>> OpenMode(create=True, open=True)
    OpenMode(open=True, create=True)
    """

    __module__ = "fsstore"

    open: bool = False
    create: bool = False
    delete_existing: bool = False
    assume_metadata: bool = False
    assume_cached_metadata: bool = False

    def __post_init__(self) -> None:
        """Raise `TypeError` for flags that are none."""
        for name in _NAMES:
            flag = getattr(self, name)
            if flag is not True and flag is not False:
                as_flag(name, flag)

    def __repr__(self) -> str:
        """Return the flags that are set."""
        return f"OpenMode({', '.join(f'{name}=True' for name in self.flags())})"

    @classmethod
    def none(cls) -> OpenMode:
        """Return the mode without any flag."""
        return _NONE

    def flags(self) -> Iterator[str]:
        """Yield the names of the flags that are set."""
        return (name for name in _NAMES if getattr(self, name))

    def __or__(self, other: OpenMode) -> OpenMode:
        """Return the flags of both."""
        return OpenMode(**{name: getattr(self, name) or getattr(other, name) for name in _NAMES})

    def __bool__(self) -> bool:
        """Return whether any flag is set."""
        return any(self.flags())

    @classmethod
    def take(cls, members: Fields) -> OpenMode:
        """Take the members of a spec.  `open` is the default unless `create` is given."""
        taken = {name: members.take(name, boolean) for name in _NAMES if name in members}
        if not taken:
            return _OPENS
        if taken.get("open") is None:
            taken["open"] = not taken.get("create")
        mode = cls(**{name: bool(value) for name, value in taken.items()})
        return mode if mode.open or mode.create else replace(mode, open=True)

    def over(self, earlier: OpenMode) -> OpenMode:
        """Return what arguments make of the mode of a spec: they replace it if they open or create, else add to it."""
        return self if self.open or self.create else self | earlier

    def to_json(self) -> dict[str, Any]:
        """Return the members that differ from the default."""
        out: dict[str, Any] = {name: True for name in self.flags() if name != "open"}
        if self.open and self.create:
            out["open"] = True
        return out

    @staticmethod
    def defaults() -> dict[str, Any]:
        """Return the members that `to_json(include_defaults=True)` prints; how `open` is meant is said elsewhere."""
        return dict.fromkeys(("delete_existing", "assume_metadata", "assume_cached_metadata"), False)

    def effective(self) -> OpenMode:
        """Return the mode with `open` set where neither `open` nor `create` is."""
        if self.open or self.create:
            return self
        return _OPENS if self is _NONE else replace(self, open=True)

    def check(self, *, writable: bool) -> None:
        """Raise `StoreError` for flags that contradict each other."""
        mode = self.effective()
        wrong = [
            (mode.delete_existing and not mode.create, "`delete_existing` without `create`"),
            (mode.delete_existing and mode.open, "`delete_existing` with `open`"),
            (mode.delete_existing and mode.assume_metadata, "`delete_existing` with `assume_metadata`"),
            (mode.delete_existing and mode.assume_cached_metadata, "`delete_existing` with `assume_cached_metadata`"),
            (mode.assume_metadata and not mode.open, "`assume_metadata` without `open`"),
            (mode.assume_cached_metadata and not mode.open, "`assume_cached_metadata` without `open`"),
            (mode.create and not writable, "`create` without `write`"),
        ]
        for is_wrong, what in wrong:
            if is_wrong:
                raise StoreError(f"Cannot specify an open mode of {what}")


_NAMES = tuple(field.name for field in fields(OpenMode))
_NONE, _OPENS = OpenMode(), OpenMode(open=True)


def mode_from_options(options: Mapping[str, Any]) -> OpenMode:
    """Return the mode of keyword arguments: `open_mode` and the single flags together."""
    given = options.get("open_mode")
    if given is not None and not isinstance(given, OpenMode):
        raise TypeError(f"open_mode must be an OpenMode, not {type(given).__name__}")
    flags = {name: as_flag(name, options[name]) for name in _NAMES if name in options}
    return (given or _NONE) | OpenMode(**flags) if flags else given or _NONE
