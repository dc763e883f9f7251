"""What one dataset is: its type, its layout, its filters, and where its values are.

Only what the header of the dataset says is read.  HDF5 is never asked how many chunks there are or how many bytes they
take: it reads the whole index to say so.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from fsstore.errors import UnimplementedError
from fsstore.kvstore.scan.hdf5.attribute import attribute_names, attributes_of, read_attribute
from fsstore.kvstore.scan.hdf5.datatype import Element, element_of
from fsstore.kvstore.scan.hdf5.mapping import VirtualPart, parts_of
from fsstore.values.json_value import Json

__all__ = ["Dataset", "External", "Filter", "Scale", "describe", "described_at", "scale_of"]

_TEXT = "utf-8"
_LAYOUTS = {0: "compact", 1: "contiguous", 2: "chunked", 3: "virtual"}
_NO_VARIABLE = "This is a netCDF dimension but not a netCDF variable."


class Filter(NamedTuple):
    """A filter of the pipeline, in the order of writing."""

    id: int
    values: tuple[int, ...]
    name: str


class External(NamedTuple):
    """A part of a dataset's values in another file."""

    name: str
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Scale:
    """What a dataset says of dimensions.

    `attached` are the addresses of the scales of each dimension, the last attached one; 0 is none.  `hidden`: it is a
    dimension without a variable.
    """

    is_scale: bool = False
    hidden: bool = False
    attached: tuple[int, ...] = ()
    dimid: int | None = None
    coordinates: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Dataset:
    """A dataset.  `address` is that of its header; `shape` and `maxshape` (0: unlimited) are those of HDF5.

    `by_library`: its values are read by HDF5 itself.
    """

    path: str
    address: int
    shape: tuple[int, ...]
    maxshape: tuple[int, ...]
    element: Element
    layout: Literal["compact", "contiguous", "chunked", "virtual"]
    chunks: tuple[int, ...] = ()
    filters: tuple[Filter, ...] = ()
    fill: Any = 0
    offset: int | None = None
    size: int = 0
    external: tuple[External, ...] = ()
    parts: tuple[VirtualPart, ...] = ()
    attributes: dict[str, Json] = field(default_factory=dict)
    lost_attributes: tuple[str, ...] = ()
    scale: Scale = field(default_factory=Scale)
    by_library: bool = False

    def at(self, path: str) -> Dataset:
        """Return the same dataset under another path."""
        return replace(self, path=path)

    def stacked(self, shape: tuple[int, ...], parts: tuple[VirtualPart, ...]) -> Dataset:
        """Return a virtual dataset whose shape and parts are known."""
        return replace(self, shape=shape, parts=parts)


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
        scale=scale_of(found, names),
        by_library=not element.as_stored,
        parts=parts,
    )
    if layout == "chunked":
        return replace(dataset, chunks=tuple(plist.get_chunk()), filters=_filters(plist))
    if layout == "contiguous":
        size = found.get_storage_size()
        return replace(dataset, offset=found.get_offset(), size=size, external=_external(plist))
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
        return _text_fill(plist)
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


def scale_of(found: Any, names: list[bytes]) -> Scale:
    """Return what a dataset says of dimensions."""
    is_scale = b"CLASS" in names and _matches(read_attribute(found, b"CLASS"), "DIMENSION_SCALE")
    hidden = is_scale and b"NAME" in names and _matches(read_attribute(found, b"NAME"), _NO_VARIABLE)
    attached = _attached(found) if b"DIMENSION_LIST" in names else ()
    dimid = read_attribute(found, b"_Netcdf4Dimid") if b"_Netcdf4Dimid" in names else None
    coordinates = read_attribute(found, b"_Netcdf4Coordinates") if b"_Netcdf4Coordinates" in names else ()
    return Scale(
        is_scale,
        hidden,
        attached,
        None if dimid is None else int(dimid),
        tuple(np.atleast_1d(np.asarray(coordinates)).astype(int).tolist())
        if b"_Netcdf4Coordinates" in names
        else (),
    )


def _matches(value: Any, text: str) -> bool:
    return isinstance(value, str) and value.startswith(text)


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
