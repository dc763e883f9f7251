"""Values that may be written to a store: arrays that cast safely, and Python values that convert.

Elements that are Python objects are checked one by one before anything is written, so that a value of a wrong type
changes nothing: text is `str`, octets are `bytes`, and JSON is what `json` makes of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from fsstore.values.dtypes import dtype, dtype_of

__all__ = ["source_array"]

# the kinds of NumPy types that are not taken for text or bytes, though NumPy would convert them
_NO_NUMBERS = {"char": "biufcmM", "byte": "biufcmM"}


def source_array(source: Any, target: dtype, rank: int = 32) -> Any:
    """Return `source` as an array of the target's type.

    An array must cast safely (`TypeError` otherwise); Python values convert, and raise `OverflowError` where they do
    not fit.  Lists of JSON, text and octets are arrays of at most `rank` dimensions; what is inside is an element.
    """
    native = target.numpy_dtype
    check = _CHECKS.get(target.name)
    if check is not None:
        return check(_objects(source, rank))
    if target.name in _NO_NUMBERS:
        found = np.asarray(source).dtype
        if found.kind in _NO_NUMBERS[target.name]:
            raise TypeError(f"expected {target.name}, {found} found")
    if isinstance(source, np.ndarray) or (
        hasattr(source, "__array__") and not isinstance(source, np.generic)
    ):
        array = np.asarray(source)
        if array.dtype == native:
            return array
        if not np.can_cast(array.dtype, native, "safe"):
            raise TypeError(
                f"Cannot cast array data from {array.dtype!r} to {native!r} according to the rule 'safe'"
            )
        return array.astype(native)
    return np.asarray(source, dtype=native)


def _objects(source: Any, rank: int) -> np.ndarray[Any, np.dtype[Any]]:
    """Return Python objects as an array of them."""
    if hasattr(source, "__array__") and not isinstance(source, np.generic):
        array = np.asarray(source)
        if rank or not array.ndim:
            return array if array.dtype.kind == "O" else array.astype(object)
        source = array.tolist()  # one element, which is a list
    shape: list[int] = []
    level: Sequence[Any] = [source]
    while len(shape) < rank and all(isinstance(each, list | tuple) for each in level):
        lengths = {len(each) for each in level}
        if len(lengths) != 1:
            break
        shape += lengths
        level = [item for each in level for item in each]
    elements = np.empty(len(level), object)
    for place, item in enumerate(level):
        elements[place] = item.item() if isinstance(item, np.generic) else item
    return elements.reshape(shape)


def _text(values: Any) -> Any:
    """Return an array of text, none of which holds half a character."""
    values = _of_type(values, str, "ustring")
    for text in values.flat:
        if not text.isascii():
            text.encode()
    return values


def _octets(values: Any) -> Any:
    return _of_type(values, bytes, "string")


def _of_type(values: Any, kind: type, name: str) -> Any:
    """Return an array of objects that are all exactly of one type; those of classes derived from it are converted."""
    found = set(map(type, values.flat))
    for wrong in sorted(each.__name__ for each in found if not issubclass(each, kind)):
        raise TypeError(f"expected {kind.__name__} in an array of {name}, {wrong} found")
    return values if found <= {kind} else _mapped(values, kind)


def _json(values: Any) -> Any:
    return _mapped(values, dtype_of("json")) if values.size else values


def _mapped(values: Any, convert: Callable[[Any], Any]) -> Any:
    converted = np.empty(values.size, object)
    for place, item in enumerate(values.flat):
        converted[place] = convert(item)
    return converted.reshape(values.shape)


_CHECKS: Mapping[str, Callable[[Any], Any]] = MappingProxyType(
    {"json": _json, "ustring": _text, "string": _octets}
)
