"""The layout of `repr`: JSON values printed as Python literals, at most about 80 columns wide; and text for terminals.

A value goes on one line when it fits between its column and the width left at its depth; otherwise its
bracket opens, every entry takes a line of its own, two columns further in and followed by a comma.
Scalars never break.  One column is given up for every level of nesting, for the comma that may follow.
The name in front (`Spec(`) does not count.

Knows nothing of what is printed.
"""

from __future__ import annotations

import sys
from typing import Any

from fsstore.values.json_value import quote

__all__ = ["literal", "one_line", "plain", "pretty"]

_WIDTH = 80
_DEEPEST = 100  # levels that are printed; what lies deeper is shown as three dots


def plain(text: object) -> str:
    """Return text with control characters, escape sequences included, shown as escapes; line ends stay.

    >>> plain("name\\x1b[2J")
    'name\\\\x1b[2J'
    """
    return "".join(
        each if each.isprintable() or each == "\n" else each.encode("unicode_escape").decode()
        for each in str(text)
    )


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
    text = (
        _quoted(value)
        if isinstance(value, str)
        else _number(value)
        if isinstance(value, float)
        else repr(value)
    )
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
