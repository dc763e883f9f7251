"""Types of attributes, which JSON does not say: the numbers that packed values are multiplied with and added to.

A NetCDF file may hold `scale_factor` in single or double precision, and values are unpacked with that precision.  JSON
has one kind of numbers, so documents say it beside them, where NCZarr does: `_nczarr_attr`, which xarray's engine for
zarr leaves out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["ATTRIBUTE_TYPES", "PACKING_NUMBERS", "Single", "single_numbers", "with_types"]

ATTRIBUTE_TYPES = "_nczarr_attr"
PACKING_NUMBERS = ("scale_factor", "add_offset")
_SINGLE = "<f4"


class Single(float):
    """A number of single precision; JSON writes it as any other."""

    __slots__ = ()


def with_types(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return attributes that say which of the packing numbers are of single precision, if any is.

    >>> with_types({"scale_factor": Single(0.5), "add_offset": 1.0})
    {'scale_factor': 0.5, 'add_offset': 1.0, '_nczarr_attr': {'types': {'scale_factor': '<f4'}}}
    """
    found = [name for name in PACKING_NUMBERS if isinstance(attributes.get(name), Single)]
    if not found:
        return dict(attributes)
    return {**attributes, ATTRIBUTE_TYPES: {"types": dict.fromkeys(found, _SINGLE)}}


def single_numbers(attributes: Mapping[str, Any]) -> frozenset[str]:
    """Return the packing numbers that are of single precision, as far as attributes say so."""
    match attributes.get(ATTRIBUTE_TYPES):
        case {"types": {**types}}:
            return frozenset(name for name in PACKING_NUMBERS if types.get(name) == _SINGLE)
        case _:
            return frozenset()
