"""The output of commands: text in which names cannot steer the terminal, JSON, and columns."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from math import isfinite
from typing import Any

from fsstore.values.argument import plain

__all__ = ["columns", "put", "put_json"]


def put(text: object) -> None:
    """Print text on standard output."""
    sys.stdout.write(f"{plain(text)}\n")


def put_json(value: Any) -> None:
    """Print JSON on standard output."""
    try:
        text = json.dumps(value, indent=2, default=_converted, allow_nan=False)
    except ValueError:  # numbers that JSON does not have
        text = json.dumps(_named(json.loads(json.dumps(value, default=_converted))), indent=2)
    sys.stdout.write(f"{text}\n")


def _named(value: Any) -> Any:
    """Return a value in which the numbers that are not finite have the names that zarr gives them."""
    if isinstance(value, dict):
        return {name: _named(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_named(inner) for inner in value]
    return json.dumps(value) if isinstance(value, float) and not isfinite(value) else value


def _converted(value: Any) -> Any:
    """Return what JSON has instead of a value: numbers for those of NumPy, lists for tuples, else text."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return str(value)


def columns(rows: Sequence[tuple[str, object]]) -> str:
    """Return names and values as two columns."""
    width = max((len(name) for name, _ in rows), default=0)
    lines = []
    for name, value in rows:
        first, *rest = str(value).split("\n")
        lines.append(f"{name:<{width}}  {first}")
        lines += [f"{'':<{width}}  {line}" for line in rest]
    return "\n".join(lines)
