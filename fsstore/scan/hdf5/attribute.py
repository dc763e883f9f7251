"""Attributes as JSON, read by h5py: what xarray's NetCDF engines show of them, where JSON can hold it.

References, records and opaque values are left out and named; arrays of one element are scalars, as NetCDF has it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from fsstore.scan.hierarchy import attribute_json
from fsstore.values.json_value import Json

__all__ = ["HIDDEN", "attribute_names", "attributes_of", "read_attribute", "scalar_or_array"]

HIDDEN = frozenset(
    {
        *("CLASS", "NAME", "DIMENSION_LIST", "REFERENCE_LIST"),
        *("_Netcdf4Dimid", "_Netcdf4Coordinates", "_nc3_strict", "_NCProperties"),
    }
)
"""Attributes that the libraries write for their own use."""


def attribute_names(owner: Any) -> list[bytes]:
    """Return the names of the attributes of an object."""
    from h5py import h5a

    found: list[bytes] = []
    h5a.iterate(owner, found.append)
    return found


def attributes_of(owner: Any, names: Iterable[bytes]) -> tuple[dict[str, Json], tuple[str, ...]]:
    """Return the attributes of an object that users see, and the names of those that JSON cannot hold."""
    out: dict[str, Json] = {}
    left_out: list[str] = []
    for name in names:
        text = name.decode("utf-8", "replace")
        if text in HIDDEN:
            continue
        try:
            value = read_attribute(owner, name)
            if value is None:
                left_out.append(text)
            else:
                out[text] = attribute_json(value)
        except TypeError:  # JSON cannot say it, or h5py has no type for it
            left_out.append(text)
    return out, tuple(left_out)


def read_attribute(owner: Any, name: bytes) -> Any:
    """Return the value of an attribute, or None if it is of a kind that is left out."""
    from h5py import h5a, h5s, h5t

    found = h5a.open(owner, name)
    kind, space = found.get_type(), found.get_space()
    which = kind.get_class()
    is_text = which == h5t.STRING
    if space.get_simple_extent_type() == h5s.NULL:
        return "" if is_text else []
    if which not in (h5t.STRING, h5t.INTEGER, h5t.FLOAT, h5t.ENUM, h5t.BITFIELD):
        return None
    shape = space.get_simple_extent_dims() if space.get_simple_extent_ndims() else ()
    value = np.empty(shape, kind.dtype)
    if is_text and not kind.is_variable_str():
        found.read(value, kind)  # without a conversion, which takes longer than all else
    else:
        found.read(value)
    if is_text:
        texts = np.empty(shape, object)
        texts.reshape(-1)[:] = [_text(each) for each in value.reshape(-1).tolist()]
        value = texts
    return scalar_or_array(value)


def scalar_or_array(value: Any) -> Any:
    """Return the one element of an array that has no other, as NetCDF has it, or the array."""
    return value.reshape(())[()] if value.size == 1 else value


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
