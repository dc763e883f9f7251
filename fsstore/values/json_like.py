"""Values that may stand for JSON: mappings, tuples, NumPy's numbers, and objects that are written as JSON.

So `{"dtype": ts.int32, "schema": {"chunk_layout": layout}}` means what the JSON of its parts means.  Everything else,
open stores among it, is left for the parsers, which know what they take.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import is_
from typing import Any

import numpy as np

from fsstore.errors import JsonError

__all__ = ["WrittenAsJson", "json_like"]


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
