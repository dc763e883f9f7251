"""The data types of HDF5 as those of NumPy, and which of them are stored as NumPy would store them.

h5py names a type of NumPy for nearly every type of HDF5; that does not mean that the bytes in the file are such
elements.  Integers may have less precision than bytes, floats other fields, strings padding that is cut off when they
are read, records gaps.  Values that are not stored as shown are read by HDF5 itself (`as_stored` is false).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fsstore.errors import UnimplementedError
from fsstore.values.json_value import Json

__all__ = ["FLOATS", "NAMED", "Element", "dtype_json", "element_from", "element_of", "of_objects"]

FLOATS = {  # sign, exponent and mantissa: their places and sizes
    2: (15, 10, 5, 0, 10),
    4: (31, 23, 8, 0, 23),
    8: (63, 52, 11, 0, 52),
}


@dataclass(frozen=True, slots=True)
class Element:
    """The elements of a dataset: their dtype in the array, the shape each adds to it, and how they are stored.

    `text` are strings of any length, which chunks hold as `vlen-utf8`, and `named` those that stand for references:
    the paths of the objects they are to.
    """

    dtype: np.dtype[Any]
    inner: tuple[int, ...] = ()
    as_stored: bool = True
    text: bool = False
    named: bool = False


NAMED = Element(np.dtype(object), as_stored=False, text=True, named=True)


def element_of(kind: Any) -> Element:
    """Return the elements of a type identifier; raises `UnimplementedError` for those that zarr cannot hold."""
    import h5py
    from h5py import h5t

    if kind.get_class() == h5t.ARRAY:
        found = element_of(kind.get_super())
        return replace(found, inner=(*kind.get_array_dims(), *found.inner))
    try:
        dtype = kind.dtype
    except TypeError as error:
        raise UnimplementedError(f"its type has none of NumPy: {error}") from None
    if dtype.kind == "O":
        if h5py.check_string_dtype(dtype) is not None:
            return Element(dtype, as_stored=False, text=True)
        if h5py.check_ref_dtype(dtype) is h5py.Reference:
            return NAMED
        raise of_objects(is_reference=h5py.check_ref_dtype(dtype) is not None)
    return element_from(dtype, exact=dtype.itemsize == kind.get_size() and _is_exact(kind))


def element_from(dtype: np.dtype[Any], *, exact: bool) -> Element:
    """Return the elements that a dtype shows; `exact`: the bytes in the file are such elements."""
    if dtype.hasobject:
        raise UnimplementedError("fields of its elements have any length, or are references")
    plain = _without_metadata(dtype)
    if plain.itemsize == 0:
        raise UnimplementedError("its elements have no bytes")
    if plain.kind == "f" and plain.itemsize not in FLOATS:
        raise UnimplementedError(f"its elements are {plain}, which no array of zarr holds")
    packed = _packed(plain)
    return Element(packed, as_stored=exact and packed.itemsize == plain.itemsize)


def of_objects(*, is_reference: bool) -> UnimplementedError:
    """Return the error for elements that zarr cannot hold."""
    return UnimplementedError(
        f"its elements are {'references to parts of datasets' if is_reference else 'lists of any length'}"
    )


def _without_metadata(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return a dtype without what h5py remembers of enumerations and strings."""
    if dtype.names is None:
        if dtype.subdtype is not None:
            base, shape = dtype.subdtype
            return np.dtype((_without_metadata(base), shape))
        return np.dtype(dtype.str)
    fields = [dtype.fields[name] for name in dtype.names]  # type: ignore[index]  # it has fields
    return np.dtype(
        {
            "names": list(dtype.names),
            "formats": [_without_metadata(field[0]) for field in fields],
            "offsets": [field[1] for field in fields],
            "itemsize": dtype.itemsize,
        }
    )


def _packed(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return a structure without gaps, as zarr stores it."""
    if dtype.names is None:
        if dtype.subdtype is not None:
            base, shape = dtype.subdtype
            return np.dtype((_packed(base), shape))
        return dtype
    fields: Any = dtype.fields
    return np.dtype([(name, _packed(fields[name][0])) for name in dtype.names])


def _is_exact(kind: Any) -> bool:
    """Return whether the bytes in the file are what NumPy takes such elements to be."""
    from h5py import h5t

    which = kind.get_class()
    if which == h5t.INTEGER:
        return bool(kind.get_precision() == 8 * kind.get_size() and kind.get_offset() == 0)
    if which == h5t.FLOAT:
        size = kind.get_size()
        standard = kind.get_precision() == 8 * size and kind.get_offset() == 0
        return bool(standard and FLOATS.get(size) == kind.get_fields())
    if which == h5t.STRING:
        return bool(kind.get_strpad() == h5t.STR_NULLPAD or kind.get_size() == 1)
    if which in (h5t.ENUM, h5t.ARRAY):
        return _is_exact(kind.get_super())
    if which == h5t.COMPOUND:
        members = [kind.get_member_type(number) for number in range(kind.get_nmembers())]
        ends = [0]
        for number, member in enumerate(members):
            if kind.get_member_offset(number) != ends[-1]:
                return False
            ends.append(ends[-1] + member.get_size())
        return all(map(_is_exact, members))
    return True


def dtype_json(dtype: np.dtype[Any]) -> Json:
    """Return the `dtype` member of zarr v2."""
    if dtype.kind == "O":
        return "|O"
    if dtype.names is None:
        return dtype.str
    out: list[Json] = []
    for name in dtype.names:
        part = dtype.fields[name][0]  # type: ignore[index]  # it has fields
        base, shape = part.subdtype if part.subdtype is not None else (part, ())
        out.append([name, dtype_json(base), *([list(shape)] if shape else [])])
    return out
