"""A message as ecCodes describes it: its parameter, its level, its times and its grid.

Names and units are tables of ecCodes; asking for them takes milliseconds, so that is done once for messages that
differ in nothing but time and step.  Messages are handed over without their data.  The library is written in C and
runs in this process; the lengths of all sections were compared before.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import numpy as np

from fsstore.errors import DataLossError, UnimplementedError
from fsstore.runtime import fork
from fsstore.scan.grib.message import GribField
from fsstore.values.json_value import Json

__all__ = ["FieldKeys", "GribGrid", "GribLibrary"]

_LOCK = fork.lock()  # for builds of ecCodes that cannot be called from several threads
_GLOBAL = ("edition", "centre", "centreDescription", "subCentre")
_DATA = ("paramId", "dataType", "numberOfPoints", "typeOfLevel", "stepType", "gridType", "uvRelativeToGrid")
_EXTRA = (
    *("shortName", "units", "name", "cfName", "cfVarName", "totalNumber"),
    *("numberOfDirections", "numberOfFrequencies", "NV", "gridDefinitionDescription"),
)
_DIRECTIONS = ("iScansNegatively", "jPointsAreConsecutive", "jScansPositively")
_ENDS = tuple(
    f"{axis}Of{end}GridPointInDegrees" for axis in ("latitude", "longitude") for end in ("First", "Last")
)
_STEPS = ("iDirectionIncrementInDegrees", "jDirectionIncrementInDegrees")
_POLE = ("angleOfRotationInDegrees", "latitudeOfSouthernPoleInDegrees", "longitudeOfSouthernPoleInDegrees")
_GRIDS: Mapping[str, tuple[str, ...]] = {
    "regular_ll": ("Nx", "Ny", *_STEPS, *_DIRECTIONS, *_ENDS),
    "rotated_ll": ("Nx", "Ny", *_STEPS, *_DIRECTIONS, *_ENDS, *_POLE),
    "regular_gg": ("N", "Ni", "Nj", _STEPS[0], *_DIRECTIONS, *_ENDS),
    "rotated_gg": ("N", "Nx", "Ny", _STEPS[0], *_DIRECTIONS, *_ENDS, *_POLE),
    "reduced_ll": ("Ny", _STEPS[1], *_DIRECTIONS[1:], *_ENDS[:2]),
    "reduced_gg": ("N",),
    "sh": ("M", "K", "J"),
    "lambert": (
        *("LaDInDegrees", "LoVInDegrees", "DxInMetres", "DyInMetres", "Latin1InDegrees", "Latin2InDegrees"),
        *("Nx", "Ny", *_DIRECTIONS, *_POLE[1:], "latitudeOfFirstGridPointInDegrees"),
        "longitudeOfFirstGridPointInDegrees",
    ),
}
_AXES = ("regular_ll", "regular_gg")
_PLANES = (
    *("rotated_ll", "rotated_gg", "lambert", "lambert_azimuthal_equal_area", "albers", "polar_stereographic"),
    *("mercator", "space_view", "transverse_mercator"),
)
_SECONDS = (60, 3600, 86400, None, None, None, None, None, None, None, 10800, 21600, 43200, 1, 900, 1800)
_MOST_POINTS = 2**28
_MISSING = float(np.finfo("f4").max)  # as cfgrib says it; missing values are NaN
_TIMES_2 = slice(12, 19)  # of section 1: year to second


class FieldKeys(NamedTuple):
    """The marks that tell fields of one parameter apart: seconds since 1970, hours, level and member."""

    time: int
    step: float
    level: float | None
    number: int | None


class GribGrid(NamedTuple):
    """The points of a grid: its axes, coordinates along them, and whether every other row is turned."""

    dims: tuple[str, ...]
    shape: tuple[int, ...]
    axes: Mapping[str, Any]
    turned: bool = False


class GribLibrary:
    """ecCodes, with what it has said of one file."""

    def __init__(self) -> None:
        try:
            import eccodes
        except (ImportError, RuntimeError):
            raise UnimplementedError("GRIB files need ecCodes: pip install 'fsstore[grib]'") from None
        self._codes = eccodes
        self._static: dict[bytes, dict[str, Json]] = {}
        self._grids: dict[bytes, GribGrid] = {}

    def lock(self) -> AbstractContextManager[Any]:
        """Return what has to be held around calls."""
        return nullcontext() if "ECCODES_THREADS" in self._codes.codes_get_features() else _LOCK

    def describe(self, field: GribField) -> tuple[dict[str, Json], FieldKeys]:
        """Return the attributes of a field, and where it stands among others; raises `DataLossError` if it cannot."""
        codes = self._codes
        try:
            handle = codes.codes_new_from_message(field.head)
        except (codes.CodesInternalError, ValueError) as error:
            raise DataLossError(f"ecCodes cannot read its head: {error}") from None
        try:
            keys = self._keys(handle)
            known = _alike(field)
            static = self._static.get(known) if known else None
            if static is None:
                static = self._attributes(handle)
                if known:
                    self._static[known] = static
            return static, keys
        finally:
            codes.codes_release(handle)

    def _keys(self, handle: Any) -> FieldKeys:
        date, time = self._get(handle, "dataDate", int), self._get(handle, "dataTime", int)
        unit, end = self._get(handle, "stepUnits", int), self._get(handle, "endStep", int)
        if not isinstance(date, int) or not isinstance(time, int):
            raise DataLossError("it says no time")
        try:
            day = np.datetime64(f"{date // 10000:04}-{date // 100 % 100:02}-{date % 100:02}", "s")
        except ValueError:
            raise DataLossError(f"its date {date} is none") from None
        seconds = _SECONDS[unit] if isinstance(unit, int) and 0 <= unit < len(_SECONDS) else None
        if seconds is None or not isinstance(end, int):
            raise UnimplementedError(f"its steps are counted in the unit {unit}")
        level, number = self._get(handle, "level", float), self._get(handle, "number", int)
        begun = int(day.astype("i8")) + time // 100 * 3600 + time % 100 * 60
        return FieldKeys(
            begun,
            end * seconds / 3600.0,
            level if isinstance(level, float) else None,
            number if isinstance(number, int) else None,
        )

    def _attributes(self, handle: Any) -> dict[str, Json]:
        grid = self._get(handle, "gridType", str)
        names = (*_GLOBAL, *_DATA, *_EXTRA, *_GRIDS.get(str(grid), ()))
        found = {name: self._get(handle, name, None) for name in names}
        out = {f"GRIB_{name}": value for name, value in found.items() if value is not None}
        if grid == "reduced_gg":
            try:
                out["GRIB_pl"] = self._codes.codes_get_array(handle, "pl").tolist()
            except self._codes.CodesInternalError as error:
                raise DataLossError(f"ecCodes cannot read its grid: {error}") from None
        return {**out, "GRIB_stepUnits": 1, "GRIB_missingValue": _MISSING}

    def _get(self, handle: Any, name: str, kind: type | None) -> Json:
        try:
            value: Json = self._codes.codes_get(handle, name, ktype=kind)
        except (self._codes.CodesInternalError, ValueError):
            return None
        return value

    def grid(self, field: GribField, attributes: Mapping[str, Json]) -> GribGrid:
        """Return the points of the grid of a field; raises `UnimplementedError` if there are too many."""
        found = self._grids.get(field.grid)
        if found is None:
            found = self._grids[field.grid] = self._read_grid(field, attributes)
        return found

    def _read_grid(self, field: GribField, attributes: Mapping[str, Json]) -> GribGrid:
        count, kind = attributes.get("GRIB_numberOfPoints"), attributes.get("GRIB_gridType")
        if not isinstance(count, int) or not 0 < count <= _MOST_POINTS:
            raise UnimplementedError(f"it has {count} points")
        codes = self._codes
        handle = codes.codes_new_from_message(field.head)
        try:
            columns, rows = self._get(handle, "Nx", int), self._get(handle, "Ny", int)
            flags = [
                bool(self._get(handle, name, int))
                for name in ("jPointsAreConsecutive", "alternativeRowScanning")
            ]
            if not isinstance(columns, int) or not isinstance(rows, int) or columns * rows != count:
                return GribGrid(("values",), (count,), {})
            if kind not in (*_AXES, *_PLANES):
                return GribGrid(("values",), (count,), {})
            down, turned = flags
            shape = (columns, rows) if down else (rows, columns)
            if kind in _PLANES:
                return GribGrid(("x", "y") if down else ("y", "x"), shape, {}, turned)
            dims = ("longitude", "latitude") if down else ("latitude", "longitude")
            axes = {}
            for axis, name in enumerate(dims):
                points = np.asarray(codes.codes_get_array(handle, f"{name}s")).reshape(shape)
                axes[name] = np.array(points[:, 0] if axis == 0 else points[0])
            return GribGrid(dims, shape, axes, turned)
        except codes.CodesInternalError as error:
            raise DataLossError(f"ecCodes cannot read its grid: {error}") from None
        finally:
            codes.codes_release(handle)


def _alike(field: GribField) -> bytes:
    """Return what fields have in common of which ecCodes says the same, but for time, step and level of pressure.

    The numbers of template 0, 1, 8 and 11 of edition 2 stand where they do; nothing of other fields.
    """
    if field.edition != 2:
        return b""
    sections = {number: (start, stop) for number, start, stop in _sections(field.head)}
    one, four = sections.get(1), sections.get(4)
    if one is None or four is None:
        return b""
    head = bytearray(field.head)
    product = head[four[0] : four[1]]
    if int.from_bytes(product[7:9], "big") not in (0, 1) or len(product) < 34:
        return b""
    head[one[0] + _TIMES_2.start : one[0] + _TIMES_2.stop] = bytes(7)
    head[four[0] + 18 : four[0] + 22] = bytes(4)  # the step
    if (
        product[22] in (100, 105) and product[28] == 255
    ):  # pressure, hybrid: the level does not name the parameter
        head[four[0] + 24 : four[0] + 28] = bytes(4)
    if product[8] == 1 and len(product) > 35:
        head[four[0] + 35] = 0  # the member
    return bytes(head)


def _sections(head: bytes) -> list[tuple[int, int, int]]:
    out, at = [], 16
    while at + 5 <= len(head) - 4:
        size = int.from_bytes(head[at : at + 4], "big")
        out.append((head[at + 4], at, at + size))
        at += max(size, 5)
    return out
