"""Arguments of callers, values that may stand for JSON, and the layout of `repr`.

A function returns an argument of one kind, or raises `TypeError` that names it.  Mappings, tuples, NumPy's numbers and
objects that are written as JSON may stand for JSON.  `repr` prints JSON values as Python literals, at most about 80
columns wide.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from numbers import Real
from operator import is_
from typing import Any

import numpy as np

from fsstore.errors import JsonError
from fsstore.redaction import plain
from fsstore.values.json_value import quote


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


# Words that people mean: what an error says of a name that is none, such as an attribute or a keyword.


def meant(word: str, known: Iterable[str]) -> str:
    """Return `; did you mean ...?` for a word that is close to a known one, else nothing.

    >>> meant("chunk", ["chunks", "codec"])
    "; did you mean 'chunks'?"
    """
    near = get_close_matches(word, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def close_names(word: str, *known: Iterable[str]) -> list[str]:
    """Return the name that is closest to a word, if any is close; of short names, one letter may differ.

    >>> close_names("s4", ["s3", "gcs"]), close_names("frob", ["file"])
    (['s3'], [])
    """
    names = sorted({name for each in known for name in each})
    return get_close_matches(word, names, n=1, cutoff=0.6 if len(word) > 2 else 0.5)


# Values that may stand for JSON.


class WrittenAsJson:
    """A value that means its JSON form where it stands inside other JSON."""

    __slots__ = ()

    def to_json(self) -> Any:
        """Return the JSON form."""
        raise NotImplementedError  # each class that is written as JSON has one


def json_like(value: Any) -> Any:
    """Return `value` with the parts that stand for JSON written as JSON."""
    try:
        return _written(value)
    except RecursionError:
        raise JsonError("JSON is nested too deeply") from None


_PLAIN = frozenset((str, int, float, bool, type(None)))


def _written(value: Any) -> Any:
    if type(value) in _PLAIN:
        return value
    if isinstance(value, WrittenAsJson):
        return value.to_json()
    if isinstance(value, np.generic) and value.dtype.kind in "biuf":
        return value.item()
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        return value.tolist()
    if type(value) is dict or (isinstance(value, Mapping) and "driver" in value):
        parts = {name if isinstance(name, str) else str(name): _written(part) for name, part in value.items()}
        is_same = parts.keys() == value.keys() and all(map(is_, parts.values(), value.values()))
        return value if is_same and type(value) is dict else parts  # it may be a store, which others change
    return [_written(part) for part in value] if isinstance(value, list | tuple) else value


# The layout of `repr`.

_WIDTH = 80
_DEEPEST = 100  # levels that are printed; what lies deeper is shown as three dots


def one_line(text: object) -> str:
    """Return text as `plain` does, line ends escaped too: a name that contains one must not look like two."""
    return plain(text).replace("\n", "\\n")


def _quoted(text: str) -> str:
    return "'" + quote(text)[1:-1] + "'"


def _number(value: float) -> str:
    if value != value:  # noqa: PLR0124  # NaN is the only value that differs from itself
        return "nan"
    text = repr(value)
    if not 1e15 <= abs(value) < 1e16:
        return text
    # TensorStore goes over to exponents one digit earlier than Python.
    sign, digits = text[: text[0] == "-"], text.lstrip("-").replace(".", "").rstrip("0")
    return f"{sign}{digits[0]}{'.' * (len(digits) > 1)}{digits[1:]}e+15"


def literal(value: Any) -> str:
    """Return the JSON value as a Python literal on one line, members sorted by the bytes of their names."""
    return _literal(value, sys.maxsize, 0) or ""


def _literal(value: Any, room: int, depth: int) -> str | None:
    """Return the literal, or None as soon as it is known to be longer than `room`."""
    if isinstance(value, dict | list | tuple):
        return _bracketed(value, room, depth)
    text = _quoted(value) if isinstance(value, str) else _number(value) if isinstance(value, float) else repr(value)
    return text if len(text) <= room else None


def _bracketed(value: Any, room: int, depth: int) -> str | None:
    left, right = "{}" if isinstance(value, dict) else "[]"
    if depth >= _DEEPEST:
        return f"{left}...{right}"
    if 3 * len(value) > room:  # no entry takes less, the last of them two
        return None
    parts: list[str] = []
    left_over = room - 2
    for name in _names(value) if isinstance(value, dict) else range(len(value)):
        head = f"{_quoted(str(name))}: " if isinstance(value, dict) else ""
        inner = _literal(value[name], left_over - len(head), depth + 1)
        if inner is None:
            return None
        parts.append(head + inner)
        left_over -= len(parts[-1]) + 2
    text = left + ", ".join(parts) + right
    return text if len(text) <= room else None


def _names(value: dict[str, Any]) -> list[str]:
    return sorted(value, key=lambda name: name.encode("utf-8", "surrogateescape"))


def _laid_out(value: Any, indent: int, column: int, depth: int) -> str:
    is_open = isinstance(value, dict | list | tuple) and value and depth < _DEEPEST
    line = _literal(value, _WIDTH - depth - column if is_open else sys.maxsize, depth)
    if line is not None:
        return line
    inner, pad = indent + 2, " " * (indent + 2)
    if isinstance(value, dict):
        entries = [(f"{_quoted(name)}: ", value[name]) for name in _names(value)]
        brackets = "{}"
    else:
        entries = [("", item) for item in value]
        brackets = "[]"
    lines = [f"{pad}{key}{_laid_out(item, inner, inner + len(key), depth + 1)},\n" for key, item in entries]
    return f"{brackets[0]}\n{''.join(lines)}{' ' * indent}{brackets[1]}"


def pretty(prefix: str, value: Any) -> str:
    """Return `prefix(value)` as specs and stores are shown: `pretty("Schema", {})` is `Schema({})`."""
    return f"{prefix}({_laid_out(value, 0, 0, 0)})"
