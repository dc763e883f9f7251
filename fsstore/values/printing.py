"""The layout of `repr`: JSON values printed as Python literals, at most about 80 columns wide.

A value goes on one line when it fits between its column and the width left at its depth; otherwise its
bracket opens, every entry takes a line of its own, two columns further in and followed by a comma.
Scalars never break.  One column is given up for every level of nesting, for the comma that may follow.
The name in front (`Spec(`) does not count.

Knows nothing of what is printed.
"""

from __future__ import annotations

from typing import Any

from fsstore.values.json_value import quote

__all__ = ["literal", "pretty"]

_WIDTH = 80


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
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, dict):
        inner = ", ".join(f"{_quoted(name)}: {literal(value[name])}" for name in _names(value))
        return "{" + inner + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(literal(item) for item in value) + "]"
    if isinstance(value, float):
        return _number(value)
    return repr(value)


def _names(value: dict[str, Any]) -> list[str]:
    return sorted(value, key=lambda name: name.encode("utf-8", "surrogateescape"))


def _laid_out(value: Any, indent: int, column: int, depth: int) -> str:
    line = literal(value)
    if len(line) <= _WIDTH - depth - column or not isinstance(value, dict | list | tuple) or not value:
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
