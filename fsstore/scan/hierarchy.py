"""The documents of zarr v2 for what a scanner found.

Version 2, because it can say what files hold: structured elements, byte strings of a fixed size, big-endian numbers,
and the filters of other formats, which numcodecs names.  Reference sets are written with it too, so a scanned file can
be saved as one.  Scanners of formats that are zarr v3 inside hand over their own documents instead.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fsstore.reference.table.keys import Grid, grid_of
from fsstore.scan.contract import ScanHierarchy
from fsstore.values.dtypes import Single, with_types
from fsstore.values.json_value import Json, quote

_ENCODER = json.JSONEncoder(separators=(",", ":"))  # making one takes as long as encoding a document

__all__ = ["Array", "HierarchyBuilder", "attribute_json", "fill_json"]


@dataclass(frozen=True, slots=True)
class Array:
    """An array as zarr v2 describes it.  `dims` become `_ARRAY_DIMENSIONS`.

    Tools take `fill_value` for the mark of missing data, so a scanner leaves it out where missing chunks are zeros.
    """

    shape: Sequence[int]
    chunks: Sequence[int]
    dtype: Json
    fill_value: Json = None
    filters: Sequence[Mapping[str, Json]] = ()
    compressor: Mapping[str, Json] | None = None
    dims: Sequence[str] | None = None
    attributes: Mapping[str, Json] = field(default_factory=dict)
    order: str = "C"

    def document(self) -> dict[str, Any]:
        """Return the document `.zarray`."""
        return {
            "zarr_format": 2,
            "shape": list(self.shape),
            "chunks": list(self.chunks),
            "dtype": self.dtype,
            "fill_value": self.fill_value,
            "order": self.order,
            "filters": [dict(each) for each in self.filters] or None,
            "compressor": None if self.compressor is None else dict(self.compressor),
        }


class HierarchyBuilder:
    """Collects groups and arrays by path."""

    def __init__(self) -> None:
        self._documents: dict[str, bytes] = {}
        self._grids: dict[str, Grid] = {}
        self.notes: dict[str, str] = {}
        self._lacking: dict[str, str] = {}

    def group(self, path: str, attributes: Mapping[str, Json]) -> None:
        """Add a group."""
        self._put(path, ".zgroup", {"zarr_format": 2})
        self._put(path, ".zattrs", dict(attributes))

    def array(self, path: str, array: Array) -> None:
        """Add an array; raises `JsonError` if it has more chunks than can be counted."""
        document = array.document()
        grid = grid_of(path, document)
        assert grid is not None
        attributes = with_types(array.attributes)
        if array.dims is not None:
            attributes["_ARRAY_DIMENSIONS"] = list(array.dims)
        self._put(path, ".zarray", document)
        self._put(path, ".zattrs", attributes)
        self._grids[path] = grid

    def note(self, path: str, why: str) -> None:
        """Say that an object is left out."""
        self.notes[path] = why

    def lacks_attributes(self, path: str, names: Sequence[str]) -> None:
        """Say that attributes of an object that is shown are left out; without effect if there are none."""
        if names:
            listed = ", ".join(map(quote, names))
            self._lacking[path] = f"it is without its attributes {listed}, which JSON cannot hold"

    def _put(self, path: str, name: str, document: Mapping[str, Any]) -> None:
        key = f"{path}/{name}" if path else name
        self._documents[key] = _ENCODER.encode(document).encode("ascii")

    def finish(self) -> ScanHierarchy:
        """Return the hierarchy; a root group is added where there is none."""
        if ".zgroup" not in self._documents and ".zarray" not in self._documents:
            self.group("", {})
        return ScanHierarchy(self._documents, self._grids, self.notes, self._lacking)


def fill_json(value: Any, dtype: np.dtype[Any]) -> Json:
    """Return the member `fill_value` for a value of a dtype, as zarr v2 writes it."""
    value = np.asarray(value, dtype)[()]
    if dtype.kind == "f":
        return _float_json(float(value))
    if dtype.kind == "c":
        return [_float_json(float(value.real)), _float_json(float(value.imag))]
    if dtype.kind in "iu":
        return int(value)
    if dtype.kind == "b":
        return bool(value)
    if dtype.kind in "mM":
        return int(value.view("i8"))
    return base64.b64encode(np.asarray(value, dtype).tobytes()).decode("ascii")


def _float_json(value: float) -> Json:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value


def attribute_json(value: Any) -> Json:
    """Return an attribute as JSON: numbers keep their value, bytes become text; raises `TypeError` for what it cannot.

    Floats that JSON has no number for stay bare `NaN` and `Infinity`, as every zarr library writes them.
    """
    if isinstance(value, np.ndarray):
        return attribute_json(value.tolist()) if value.dtype.kind in "biufSUO" else _other(value)
    if isinstance(value, np.float32):
        return Single(value)
    if isinstance(value, np.generic):
        return attribute_json(value.item())
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, list | tuple):
        return [attribute_json(each) for each in value]
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, complex):
        return [value.real, value.imag]
    raise TypeError(f"JSON cannot say a value of type {type(value).__name__}")


def _other(value: np.ndarray[Any, Any]) -> Json:
    if value.dtype.kind == "c":
        return attribute_json(value.tolist())
    raise TypeError(f"JSON cannot say values of type {value.dtype}")
