"""Attributes as JSON: what xarray's NetCDF engines show of them, where JSON can hold it.

References, records, opaque values and complex numbers are left out; arrays of one element are scalars, as NetCDF has it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from fsstore.kvstore.scan.hierarchy import attribute_json
from fsstore.values.json_value import Json

__all__ = ["HIDDEN", "attribute_names", "attributes_of", "read_attribute"]

HIDDEN = frozenset(
    {
        *("CLASS", "NAME", "DIMENSION_LIST", "REFERENCE_LIST"),
        *("_Netcdf4Dimid", "_Netcdf4Coordinates", "_nc3_strict", "_NCProperties"),
    }
)
"""What the libraries write for themselves."""


def attribute_names(owner: Any) -> list[bytes]:
    """Return the names of the attributes of an object."""
    from h5py import h5a

    found: list[bytes] = []
    h5a.iterate(owner, lambda name: found.append(name))
    return found


def attributes_of(owner: Any, names: Iterable[bytes]) -> dict[str, Json]:
    """Return the attributes of an object that users see."""
    out: dict[str, Json] = {}
    for name in names:
        text = name.decode("utf-8", "replace")
        if text in HIDDEN:
            continue
        try:
            value = read_attribute(owner, name)
            if value is not None:
                out[text] = attribute_json(value)
        except TypeError:  # JSON cannot say it, or h5py has no type for it
            continue
    return out


def read_attribute(owner: Any, name: bytes) -> Any:
    """Return the value of an attribute, or None if it is of a kind that is left out."""
    import h5py
    from h5py import h5a, h5s

    found = h5a.open(owner, name)
    dtype = found.dtype
    text = h5py.check_string_dtype(dtype)
    if found.get_space().get_simple_extent_type() == h5s.NULL:
        return "" if text is not None else []
    if dtype.kind in "Vc" or (dtype.kind == "O" and text is None) or dtype.subdtype is not None:
        return None
    value = np.empty(found.shape, dtype)
    found.read(value)
    if text is not None:
        strings = np.empty(value.shape, object)
        strings[...] = _text(value) if not value.ndim else np.frompyfunc(_text, 1, 1)(value)
        value = strings
    return value.reshape(())[()] if value.size == 1 else value


def _text(value: Any) -> str:
    found = value if isinstance(value, str | bytes) else value[()]
    return found.decode("utf-8", "replace") if isinstance(found, bytes) else str(found)
