"""The part of a stored element that an array shows: all of it, one field of a structure, or its bytes.

A field that is an array itself, and the bytes, add dimensions at the end; they are never cut and cannot be resized.
The options of a spec say what is shown: `field` names one, `open_as_void` wants the bytes as they are stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fsstore.errors import FailedPreconditionError, StoreError
from fsstore.values.dtypes import dtype, dtype_of
from fsstore.values.json_value import quote, show

__all__ = ["FIELD", "OCTETS", "WHOLE", "Field", "is_chosen", "require_type", "select_field"]

FIELD = "field"
OCTETS = "open_as_void"
WHOLE = "whole"
"""Shows structures of one field as such.  Specs have no such member: only tools that show groups want it."""


@dataclass(frozen=True, slots=True)
class Field:
    """The part of an element that an array shows: its type, the shape it adds, and the name of a field if it is one."""

    dtype: dtype
    native: np.dtype[Any]
    shape: tuple[int, ...] = ()
    name: str | None = None
    octets: bool = False

    @property
    def options(self) -> dict[str, Any]:
        """The members of a spec that show the same again."""
        if self.octets:
            return {OCTETS: True}
        return {} if self.name is None else {FIELD: self.name}

    def of(self, element: Any, native: np.dtype[Any]) -> Any:
        """Return the part of an element, a scalar of the stored type `native`; None stays None."""
        if element is None:
            return None
        if self.octets:
            return np.asarray(element, native).reshape(1).view("V1")
        return element if self.name is None else element[self.name]

    def shown(self, element: Any, native: np.dtype[Any]) -> np.ndarray[Any, Any] | None:
        """Return the part of an element as an array; None stays None."""
        part = self.of(element, native)
        if part is None or self.native.kind != "O":
            return None if part is None else np.asarray(part, self.native)
        out = np.empty((), self.native)
        out[()] = part  # a list of JSON is one element too
        return out


def select_field(native: np.dtype[Any], options: Mapping[str, Any]) -> Field:
    """Return what is shown of elements of a stored type; of a structure with several fields, all of them.

    That is more than TensorStore shows, but what zarr-python does.  The only field of a structure is shown by itself.
    """
    name = options.get(FIELD)
    if options.get(OCTETS):
        if native.hasobject:
            raise StoreError(f'"{OCTETS}" requires elements of a fixed size')
        return Field(dtype_of("byte"), np.dtype("V1"), (native.itemsize,), octets=True)
    names = list(native.names or ())
    if not name and len(names) == 1 and not options.get(WHOLE):
        name = names[0]
    if not name:
        native = native.newbyteorder("=")
        return Field(dtype_of(native), native)
    if not names:
        raise FailedPreconditionError(
            f"Requested field {quote(str(name))} but dtype does not have named fields"
        )
    if name not in names:
        raise FailedPreconditionError(f"Requested field {quote(name)} is not one of: {show(names)}")
    part = native[name]
    base, shape = part.subdtype or (part, ())
    base = base.newbyteorder("=")
    return Field(dtype_of(base), base, tuple(shape), name)


def is_chosen(options: Mapping[str, Any]) -> bool:
    """Return whether the options of a spec choose a part of the elements."""
    return bool(options.get(FIELD) or options.get(OCTETS))


def require_type(options: Mapping[str, Any]) -> None:
    """Raise if what is to be shown is chosen, but the stored type was left open."""
    for name in (FIELD, OCTETS):
        if options.get(name):
            raise StoreError(f'"dtype" must be specified in "metadata" if "{name}" is specified')
