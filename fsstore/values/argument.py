"""Arguments of callers: each function returns an argument of one kind, or raises `TypeError` that names it."""

from __future__ import annotations

from numbers import Real
from typing import Any

__all__ = ["as_callable", "as_flag", "as_seconds", "as_text", "require_kind"]


def as_flag(name: str, value: Any) -> bool:
    """Return a keyword argument as a boolean; None is not given.  Text, containers and our own values are no flags."""
    is_other = isinstance(value, str | bytes) or type(value).__module__ == "fsstore"
    if value is not None and (is_other or not hasattr(type(value), "__bool__")):
        raise TypeError(f"{name} must be a boolean, not {type(value).__name__}")
    try:
        return bool(value)
    except ValueError:  # an array of several elements is neither true nor false
        raise TypeError(f"{name} must be a boolean, not {type(value).__name__}") from None


def as_text(name: str, value: Any) -> str:
    """Return an argument that is text."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a string, not {type(value).__name__}")
    return value


def as_seconds(name: str, value: Any) -> float | None:
    """Return an argument that is a number of seconds, or None."""
    if value is not None and not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, not {type(value).__name__}")
    return value  # type: ignore[return-value]  # a number, as it was given


def as_callable(name: str, value: Any) -> Any:
    """Return an argument that can be called."""
    if not callable(value):
        raise TypeError(f"{name} must be callable, not {type(value).__name__}")
    return value


def require_kind(name: str, value: Any, kind: type) -> None:
    """Raise unless an argument is None or of a class."""
    if value is not None and not isinstance(value, kind):
        raise TypeError(f"{name} must be a {kind.__qualname__}, not {type(value).__name__}")
