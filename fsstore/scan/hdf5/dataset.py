"""One dataset as its header describes it: its type, its layout, its filters, and where its values are."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from fsstore.scan.hdf5.datatype import Element
from fsstore.scan.hdf5.format.filter import Filter
from fsstore.scan.hdf5.format.layout import IndexPlace
from fsstore.scan.hdf5.mapping import VirtualPart
from fsstore.values.json_value import Json

__all__ = ["Dataset", "External", "Scale", "scale_from"]

_NO_VARIABLE = "This is a netCDF dimension but not a netCDF variable."


class External(NamedTuple):
    """A part of a dataset's values in another file."""

    name: str
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Scale:
    """The dimensions of a dataset, as its attributes tell them.

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

    `index` is where its chunk index is, if that is known.  `by_library`: its values are read by HDF5 itself.
    """

    path: str
    address: int
    shape: tuple[int, ...]
    maxshape: tuple[int, ...]
    element: Element
    layout: Literal["compact", "contiguous", "chunked", "virtual"]
    chunks: tuple[int, ...] = ()
    index: IndexPlace | None = field(default=None, compare=False)  # h5py does not say it
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


def scale_from(
    names: Collection[str], value: Callable[[str], Any], attached: Callable[[], tuple[int, ...]]
) -> Scale:
    """Return what a dataset says of dimensions: `value` gives that of an attribute, `attached` the scales it names."""
    is_scale = "CLASS" in names and _matches(value("CLASS"), "DIMENSION_SCALE")
    hidden = is_scale and "NAME" in names and _matches(value("NAME"), _NO_VARIABLE)
    scales = attached() if "DIMENSION_LIST" in names else ()
    dimid = value("_Netcdf4Dimid") if "_Netcdf4Dimid" in names else None
    coordinates: tuple[int, ...] = ()
    if "_Netcdf4Coordinates" in names:
        numbers = np.atleast_1d(np.asarray(value("_Netcdf4Coordinates")))
        coordinates = tuple(numbers.astype(int).tolist())
    return Scale(is_scale, hidden, scales, None if dimid is None else int(dimid), coordinates)


def _matches(value: Any, text: str) -> bool:
    return isinstance(value, str) and value.startswith(text)
