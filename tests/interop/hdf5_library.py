"""What h5py says of the objects of an HDF5 file, in the words of our parser, which is compared with it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import h5py
import numpy as np
from h5py import h5a, h5d, h5g, h5l, h5o, h5s, h5t

from fsstore.errors import UnimplementedError
from fsstore.scan.hdf5.dataset import (
    FLOATS,
    NAMED,
    AxisSelection,
    Dataset,
    Element,
    Scale,
    VirtualPart,
    element_from,
    scale_from,
)
from fsstore.scan.hdf5.layout import External, Filter, ObjectLink
from fsstore.scan.hdf5.parsed import HIDDEN, ParsedGroup, scalar_or_array
from fsstore.scan.hierarchy import attribute_json
from fsstore.values.json_value import Json

TEXT = "utf-8"
LAYOUTS = {0: "compact", 1: "contiguous", 2: "chunked", 3: "virtual"}
ENDLESS = 2**64 - 1


def object_at(identifier: Any, path: str, address: int) -> ParsedGroup | Dataset | None:
    """Return the object at a path of a file that h5py has opened."""
    opened = h5o.open(identifier, path.encode(TEXT, "surrogateescape") or b"/")
    if isinstance(opened, h5d.DatasetID):
        return describe(opened, path, address)
    if not isinstance(opened, h5g.GroupID):
        return None
    attributes, lost = attributes_of(opened, attribute_names(opened))
    return ParsedGroup(attributes, lost, links_of(opened))


def element_of(kind: Any) -> Element:
    """Return the elements of a type identifier; raises `UnimplementedError` for those that zarr cannot hold."""
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
    if dtype.hasobject:
        nothing_of(dtype)
        return Element(np.dtype(object), as_stored=False, text=True, made="json")
    return element_from(dtype, exact=dtype.itemsize == kind.get_size() and _is_exact(kind))


def _is_exact(kind: Any) -> bool:
    """Return whether the bytes in the file are what NumPy takes such elements to be."""
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


def parts_of(plist: Any) -> tuple[VirtualPart, ...]:
    """Return the parts of a virtual dataset by its creation properties."""
    count = plist.get_virtual_count()
    found = []
    for number in range(count):
        target = _axes(plist.get_virtual_vspace(number))
        if target is None:
            target = tuple(
                AxisSelection(0, max(length, 1), 1, length)
                for length in plist.get_virtual_vspace(number).get_simple_extent_dims()
            )
        origin = _axes(plist.get_virtual_srcspace(number))
        file, dataset = plist.get_virtual_filename(number), plist.get_virtual_dsetname(number)
        if any(axis.count < 0 for axis in target) and "%b" in file + dataset:
            raise UnimplementedError("its sources are numbered, and nothing says how many there are")
        found.append(VirtualPart(file, dataset, target, origin))
    return tuple(found)


def _axes(space: Any) -> tuple[AxisSelection, ...] | None:
    """Return what a selection takes along each axis; None for all of it."""
    kind = space.get_select_type()
    if kind == h5s.SEL_ALL:
        return None
    if kind != h5s.SEL_HYPERSLABS or not space.is_regular_hyperslab():
        raise UnimplementedError("its parts are no regular boxes")
    found = []
    for start, stride, count, block in zip(*space.get_regular_hyperslab(), strict=True):
        if block == ENDLESS:
            found.append(AxisSelection(int(start), 1, -1, 1))
        elif count == ENDLESS:
            found.append(AxisSelection(int(start), int(stride), -1, int(block)))
        else:
            step = max(int(stride), int(block)) if count == 1 else int(stride)
            found.append(AxisSelection(int(start), step, int(count), int(block)))
    return tuple(found)


def attribute_names(owner: Any) -> list[bytes]:
    """Return the names of the attributes of an object."""
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


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def describe(found: Any, path: str, address: int) -> Dataset:
    """Return what a dataset is; raises `UnimplementedError` if no array of zarr can show it."""
    plist = found.get_create_plist()
    layout: Any = LAYOUTS[plist.get_layout()]
    parts = parts_of(plist) if layout == "virtual" else ()
    # for the shape of an endless dataset HDF5 would open its sources, and take this file for each of them
    endless = any(part.is_endless for part in parts)
    space = plist.get_virtual_vspace(0) if endless else found.get_space()
    if space.get_simple_extent_type() == h5s.NULL:
        raise UnimplementedError("it has no values, not even a scalar")
    element = element_of(found.get_type())
    shape: tuple[int, ...] = ()
    most: tuple[int, ...] = ()
    if space.get_simple_extent_ndims():
        shape, most = space.get_simple_extent_dims(), space.get_simple_extent_dims(True)
    names = attribute_names(found)
    attributes, lost = attributes_of(found, names)
    dataset = Dataset(
        path,
        address,
        tuple(shape),
        tuple(0 if each == h5s.UNLIMITED else each for each in most),
        element,
        layout,
        fill=_fill(plist, element, found.get_type()),
        attributes=attributes,
        lost_attributes=lost,
        scale=_scale(found, names),
        by_library=not element.as_stored,
        parts=parts,
    )
    if layout == "chunked":
        return replace(dataset, chunks=tuple(plist.get_chunk()), filters=_filters(plist))
    if layout == "contiguous":
        size = found.get_storage_size()
        # behind a block of the user h5py gives a number where there is no place
        offset = found.get_offset() if size else None
        return replace(dataset, offset=offset, external=_external(plist))
    return dataset


def _external(plist: Any) -> tuple[External, ...]:
    return tuple(
        External(name.decode(TEXT, "surrogateescape"), offset, size)
        for name, offset, size in map(plist.get_external, range(plist.get_external_count()))
    )


def _filters(plist: Any) -> tuple[Filter, ...]:
    found = []
    for number in range(plist.get_nfilters()):
        code, _, values, name = plist.get_filter(number)
        found.append(Filter(code, tuple(values), name.decode(TEXT, "replace")))
    return tuple(found)


def nothing_of(dtype: Any) -> Any:
    """Return what JSON has for an element that was never written; raises `UnimplementedError` if it has none."""
    if h5py.check_string_dtype(dtype) is not None:
        return ""
    if h5py.check_vlen_dtype(dtype) is not None and not h5py.check_vlen_dtype(dtype).hasobject:
        return []
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return np.full(shape, nothing_of(base), object).tolist()
    if dtype.names is not None:
        return {name: nothing_of(dtype[name]) for name in dtype.names}
    if dtype.kind not in "iufS" or dtype.itemsize > (8 if dtype.kind == "f" else dtype.itemsize):
        raise UnimplementedError("its elements hold references, lists of lists, or numbers that JSON has not")
    return {"S": "", "f": 0.0}.get(dtype.kind, 0)


def _fill(plist: Any, element: Element, kind: Any) -> Any:
    if element.made == "json":
        return json.dumps(nothing_of(kind.dtype.base))
    if element.text:
        return "" if element.made else _text_fill(plist)
    value = np.zeros((), element.dtype)
    if plist.fill_value_defined() == h5d.FILL_VALUE_USER_DEFINED and not element.inner:
        plist.get_fill_value(value)
    return value


def _text_fill(plist: Any) -> str:
    from h5py import h5d

    if plist.fill_value_defined() != h5d.FILL_VALUE_USER_DEFINED:
        return ""
    value = np.zeros((1,), h5py.string_dtype())
    plist.get_fill_value(value)
    found = value[0]
    return found.decode(TEXT, "replace") if isinstance(found, bytes) else ""


def _scale(found: Any, names: list[bytes]) -> Scale:
    """Return what a dataset says of dimensions."""
    known = {name.decode(TEXT, "replace"): name for name in names}
    return scale_from(known, lambda name: read_attribute(found, known[name]), lambda: _attached(found))


def _attached(found: Any) -> tuple[int, ...]:
    """Return the addresses of the scales that dimensions have."""
    from h5py import h5a

    listed = h5a.open(found, b"DIMENSION_LIST")
    dtype = h5py.check_vlen_dtype(listed.dtype)
    if dtype is None or h5py.check_ref_dtype(dtype) is not h5py.Reference or len(listed.shape) != 1:
        return ()
    value = np.empty(listed.shape, listed.dtype)
    listed.read(value)
    return tuple(address_of(each[-1]) if each is not None and len(each) else 0 for each in value)


def address_of(reference: Any) -> int:
    """Return the address of the object that a reference names.

    h5py does not say it, but converts references to how they are stored, which is that address; the alternatives
    search the file for the name of the object.
    """
    memory = np.array([id(reference), 0], np.uintp)
    h5t.convert(h5t.PYTHON_OBJECT, h5t.STD_REF_OBJ, 1, memory)
    return int(memory[0])


def links_of(group: Any) -> list[ObjectLink]:
    """Return the links of a group, in the order in which h5py lists them."""
    kinds: dict[int, Any] = {h5l.TYPE_HARD: "hard", h5l.TYPE_SOFT: "soft", h5l.TYPE_EXTERNAL: "external"}
    out = []
    for name in list(group):
        info = group.links.get_info(name)
        kind = kinds.get(info.type, "other")
        target, file = b"", b""
        if kind == "soft":
            target = group.links.get_val(name)
        elif kind == "external":
            file, target = group.links.get_val(name)
        out.append(ObjectLink(name, kind, int(info.u) if kind == "hard" else 0, target, file))
    return out
