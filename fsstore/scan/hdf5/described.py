"""Datasets described by h5py, where their headers hold what is not parsed here.

HDF5 is never asked how many chunks there are or how many bytes they take: it reads the whole index to say so.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from fsstore.errors import UnimplementedError
from fsstore.scan.hdf5.attribute import attribute_names, attributes_of, read_attribute
from fsstore.scan.hdf5.dataset import Dataset, External, Scale, scale_from
from fsstore.scan.hdf5.datatype import Element, element_of
from fsstore.scan.hdf5.format.filter import Filter
from fsstore.scan.hdf5.format.link import ObjectLink
from fsstore.scan.hdf5.mapping import parts_of

__all__ = ["describe", "described_at", "links_of"]

_TEXT = "utf-8"
_LAYOUTS = {0: "compact", 1: "contiguous", 2: "chunked", 3: "virtual"}


def describe(found: Any, path: str, address: int) -> Dataset:
    """Return what a dataset is; raises `UnimplementedError` if no array of zarr can show it."""
    from h5py import h5s

    plist = found.get_create_plist()
    layout: Any = _LAYOUTS[plist.get_layout()]
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
        fill=_fill(plist, element),
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
        return replace(dataset, offset=offset, size=size, external=_external(plist))
    return dataset


def described_at(identifier: Any, path: str) -> Dataset:
    """Return what the dataset at a path of a file is; raises `KeyError` if nothing is there."""
    from h5py import h5d, h5g, h5o

    opened = h5o.open(identifier, path.encode(_TEXT, "surrogateescape"))
    if not isinstance(opened, h5d.DatasetID):
        raise UnimplementedError(f"{path!r} is no dataset")
    return describe(opened, path, int(h5g.get_objinfo(opened).objno[0]))


def _external(plist: Any) -> tuple[External, ...]:
    return tuple(
        External(name.decode(_TEXT, "surrogateescape"), offset, size)
        for name, offset, size in map(plist.get_external, range(plist.get_external_count()))
    )


def _filters(plist: Any) -> tuple[Filter, ...]:
    found = []
    for number in range(plist.get_nfilters()):
        code, _, values, name = plist.get_filter(number)
        found.append(Filter(code, tuple(values), name.decode(_TEXT, "replace")))
    return tuple(found)


def _fill(plist: Any, element: Element) -> Any:
    """Return what stands where nothing was written."""
    from h5py import h5d

    if element.text:
        return "" if element.named else _text_fill(plist)
    value = np.zeros((), element.dtype)
    if plist.fill_value_defined() == h5d.FILL_VALUE_USER_DEFINED and not element.inner:
        plist.get_fill_value(value)
    return value


def _text_fill(plist: Any) -> str:
    import h5py
    from h5py import h5d

    if plist.fill_value_defined() != h5d.FILL_VALUE_USER_DEFINED:
        return ""
    value = np.zeros((1,), h5py.string_dtype())
    plist.get_fill_value(value)
    found = value[0]
    return found.decode(_TEXT, "replace") if isinstance(found, bytes) else ""


def _scale(found: Any, names: list[bytes]) -> Scale:
    """Return what a dataset says of dimensions."""
    known = {name.decode(_TEXT, "replace"): name for name in names}
    return scale_from(known, lambda name: read_attribute(found, known[name]), lambda: _attached(found))


def _attached(found: Any) -> tuple[int, ...]:
    """Return the addresses of the scales that dimensions have."""
    import h5py
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
    from h5py import h5t

    memory = np.array([id(reference), 0], np.uintp)
    h5t.convert(h5t.PYTHON_OBJECT, h5t.STD_REF_OBJ, 1, memory)
    return int(memory[0])


def links_of(group: Any) -> list[ObjectLink]:
    """Return the links of a group, in the order in which h5py lists them."""
    from h5py import h5l

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
