"""The data types of HDF5 as those of NumPy, by their descriptions in the file: what h5py names them.

A type that h5py converts in a way of its own is unknown here.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from fsstore.scan.hdf5.datatype import FLOATS, NAMED, Element, element_from, of_objects
from fsstore.scan.hdf5.format import datatype
from fsstore.scan.hdf5.format.datatype import Datatype
from fsstore.scan.hdf5.format.reader import UnknownError

__all__ = ["is_exact", "numpy_of", "parsed_element"]

_BIASES = {2: 15, 4: 127, 8: 1023}
_IMPLIED = 0x20  # the first bit of a mantissa is not stored
_NULL_PADDED = 1
_TO_OBJECTS = 0
_TRUTH = {b"FALSE": 0, b"TRUE": 1}
_PARTS = [b"r", b"i"]


@lru_cache(maxsize=64)
def parsed_element(kind: Datatype) -> Element:
    """Return the elements of a type; raises `UnimplementedError` for those that zarr cannot hold."""
    if kind.kind == datatype.ARRAY and kind.base is not None:
        found = parsed_element(kind.base)
        return replace(found, inner=(*kind.shape, *found.inner))
    if kind.is_text:
        return Element(np.dtype(object), as_stored=False, text=True)
    if kind.kind == datatype.REFERENCE and kind.flags & 0xF == _TO_OBJECTS:
        return NAMED
    if kind.kind in (datatype.VLEN, datatype.REFERENCE):
        raise of_objects(is_reference=kind.kind == datatype.REFERENCE)
    dtype = numpy_of(kind)
    return element_from(dtype, exact=dtype.itemsize == kind.size and is_exact(kind))


@lru_cache(maxsize=64)
def numpy_of(kind: Datatype) -> np.dtype[Any]:
    """Return the dtype that h5py has for a type, or raise `UnknownError`."""
    which = kind.kind
    if which == datatype.FIXED:
        return _number("i" if kind.flags & 8 else "u", kind)
    if which == datatype.BITFIELD:
        return _number("u", kind)
    if which == datatype.FLOAT:
        return _float(kind)
    if which == datatype.STRING and kind.size:
        return np.dtype(f"S{kind.size}")
    if which == datatype.OPAQUE and kind.size and not kind.tag.startswith(b"NUMPY"):
        return np.dtype(f"V{kind.size}")
    if which == datatype.ENUM and kind.base is not None:
        return _enumeration(kind, kind.base)
    if which == datatype.ARRAY and kind.base is not None:
        return np.dtype((numpy_of(kind.base), kind.shape))
    if which == datatype.COMPOUND:
        return _record(kind)
    if which in (datatype.VLEN, datatype.REFERENCE):
        return np.dtype(object)
    raise UnknownError


def _number(letter: str, kind: Datatype) -> np.dtype[Any]:
    if kind.size not in (1, 2, 4, 8):
        raise UnknownError
    return np.dtype(f"{_order(kind)}{letter}{kind.size}")


def _order(kind: Datatype) -> str:
    return ">" if kind.flags & 1 else "<"


def _float(kind: Datatype) -> np.dtype[Any]:
    offset, precision, *places, bias = kind.fields
    size, sign = kind.size, kind.flags >> 8 & 0xFF
    usual = size in FLOATS and FLOATS[size] == (sign, *places) and _BIASES[size] == bias
    if not usual or offset or precision != 8 * size or kind.flags & 0x7E != _IMPLIED:
        raise UnknownError
    return np.dtype(f"{_order(kind)}f{size}")


def _enumeration(kind: Datatype, base: Datatype) -> np.dtype[Any]:
    if base.kind != datatype.FIXED:
        raise UnknownError
    order = "big" if base.flags & 1 else "little"
    numbers = {name: int.from_bytes(value, order) for name, value in kind.values.items()}  # type: ignore[arg-type]  # one of two
    return np.dtype(bool) if numbers == _TRUTH else numpy_of(base)


def _record(kind: Datatype) -> np.dtype[Any]:
    """Return a structure, or a complex number if its parts are those of one."""
    members = kind.members
    types = [numpy_of(each.type) for each in members]
    if [each.name for each in members] == _PARTS and types[0] == types[1] and types[0].kind == "f":
        if types[0].itemsize < 4:
            raise UnknownError
        return np.dtype(f"{types[0].str[0]}c{2 * types[0].itemsize}")
    fields = sorted(zip(members, types, strict=True), key=lambda each: each[0].offset)
    try:
        names = [member.name.decode("utf-8") for member, _ in fields]
        return np.dtype(
            {
                "names": names,
                "formats": [each for _, each in fields],
                "offsets": [member.offset for member, _ in fields],
                "itemsize": kind.size,
            }
        )
    except (UnicodeDecodeError, ValueError, TypeError):
        raise UnknownError from None


def is_exact(kind: Datatype) -> bool:
    """Return whether the bytes in the file are what NumPy takes such elements to be."""
    which = kind.kind
    if which == datatype.FIXED:
        return kind.fields == (0, 8 * kind.size)
    if which == datatype.STRING:
        return kind.flags & 0xF == _NULL_PADDED or kind.size == 1
    if which in (datatype.ENUM, datatype.ARRAY):
        return kind.base is not None and is_exact(kind.base)
    if which == datatype.COMPOUND:
        end = 0
        for member in kind.members:
            if member.offset != end or not is_exact(member.type):
                return False
            end += member.type.size
    return True
