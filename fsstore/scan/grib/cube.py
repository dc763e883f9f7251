"""Fields as arrays: which of them stand in one, and which arrays fit into one dataset, as cfgrib groups them.

The fields of a parameter whose attributes are equal make up one array, with an axis for each of member, time, step and
level of which there are several values.  Arrays whose coordinates do not contradict each other make up a dataset: all
of the file if they can, else those of one type of level after the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fsstore.scan.grib.library import FieldKeys, GribGrid
from fsstore.scan.grib.message import GribField
from fsstore.values.json_value import Json

__all__ = ["Coordinate", "GribCube", "GribDataset", "cube_of", "datasets_of", "point_attributes"]

_DECREASING = ("isobaricInhPa", "isobaricInPa")
_TIME: dict[str, Json] = {"units": "seconds since 1970-01-01T00:00:00", "calendar": "proleptic_gregorian"}
_ATTRIBUTES: Mapping[str, dict[str, Json]] = {
    "latitude": {"units": "degrees_north", "standard_name": "latitude", "long_name": "latitude"},
    "longitude": {"units": "degrees_east", "standard_name": "longitude", "long_name": "longitude"},
    "number": {
        "units": "1",
        "standard_name": "realization",
        "long_name": "ensemble member numerical id",
    },
    "time": {**_TIME, "standard_name": "forecast_reference_time", "long_name": "initial time of forecast"},
    "valid_time": {**_TIME, "standard_name": "time", "long_name": "time"},
    "step": {
        "units": "hours",
        "standard_name": "forecast_period",
        "long_name": "time since forecast_reference_time",
        "dtype": "timedelta64[ns]",
    },
    "hybrid": {
        "units": "1",
        "positive": "down",
        "long_name": "hybrid level",
        "standard_name": "atmosphere_hybrid_sigma_pressure_coordinate",
    },
    "heightAboveGround": {
        "units": "m",
        "positive": "up",
        "long_name": "height above the surface",
        "standard_name": "height",
    },
    "isobaricLayer": {
        "units": "Pa",
        "positive": "down",
        "standard_name": "air_pressure",
        "long_name": "pressure",
    },
    **{
        name: {"units": "m", "positive": "down", "long_name": "soil depth", "standard_name": "depth"}
        for name in ("depthBelowLand", "depthBelowLandLayer")
    },
    **{
        f"isobaricIn{unit}": {
            "units": unit,
            "positive": "down",
            "stored_direction": "decreasing",
            "standard_name": "air_pressure",
            "long_name": "pressure",
        }
        for unit in ("hPa", "Pa")
    },
}


@dataclass(frozen=True, slots=True)
class Coordinate:
    """A coordinate: its dimensions, its values, its attributes."""

    dims: tuple[str, ...]
    values: Any
    attributes: Mapping[str, Json]

    def same(self, other: Coordinate) -> bool:
        """Return whether two are equal."""
        return self.dims == other.dims and bool(np.array_equal(self.values, other.values))


@dataclass(slots=True)
class GribCube:
    """The fields of one array.  `places` say which field stands where on the axes before those of the grid."""

    name: str
    attributes: dict[str, Json]
    grid: GribGrid
    fields: list[tuple[GribField, FieldKeys]]
    coordinates: dict[str, Coordinate] = field(default_factory=dict)
    dims: tuple[str, ...] = ()
    lead: tuple[int, ...] = ()
    places: dict[int, GribField] = field(default_factory=dict)
    doubles: int = 0

    @property
    def level_type(self) -> str:
        """The type of level."""
        return str(self.attributes.get("GRIB_typeOfLevel") or "undef")


@dataclass(slots=True)
class GribDataset:
    """Arrays that share coordinates."""

    arrays: dict[str, GribCube] = field(default_factory=dict)
    coordinates: dict[str, Coordinate] = field(default_factory=dict)

    def takes(self, cube: GribCube) -> bool:
        """Add an array if it contradicts nothing; return whether it was."""
        mine = self.coordinates
        lengths = {
            name: size
            for each in self.arrays.values()
            for name, size in zip(each.dims, each.lead, strict=True)
        }
        if cube.name in self.arrays:
            return False
        if any(name in mine and not mine[name].same(each) for name, each in cube.coordinates.items()):
            return False
        if any(lengths.get(name, size) != size for name, size in zip(cube.dims, cube.lead, strict=True)):
            return False
        grids = {
            name: size
            for each in self.arrays.values()
            for name, size in zip(each.grid.dims, each.grid.shape, strict=True)
        }
        pairs = zip(cube.grid.dims, cube.grid.shape, strict=True)
        if any(grids.get(name, size) != size for name, size in pairs):
            return False
        others = [each for each in self.arrays.values() if not each.grid.axes]
        if not cube.grid.axes and any(each.fields[0][0].grid != cube.fields[0][0].grid for each in others):
            return False  # points of another plane
        self.arrays[cube.name] = cube
        mine.update(cube.coordinates)
        return True


def cube_of(
    attributes: dict[str, Json], grid: GribGrid, fields: Sequence[tuple[GribField, FieldKeys]]
) -> GribCube:
    """Return the array of the fields of one parameter."""
    cube = GribCube(_called(attributes), _described(attributes), grid, list(fields))
    keys = np.array(
        [
            [np.nan if each is None else each for each in (key.number, key.time, key.step, key.level)]
            for _, key in fields
        ],
        "f8",
    )
    at = np.zeros(len(keys), np.int64)
    for column, name in enumerate(("number", "time", "step", cube.level_type)):
        found = np.unique(keys[:, column])
        if np.isnan(found).any():
            continue
        order = -1 if name in _DECREASING else 1
        values = found[::order].astype("i8" if name in ("number", "time") else "f8")
        is_axis = len(values) > 1
        if is_axis:
            place = np.searchsorted(found, keys[:, column])
            at = at * len(found) + (place if order > 0 else len(found) - 1 - place)
            cube.dims, cube.lead = (*cube.dims, name), (*cube.lead, len(values))
        said = _of_coordinate(name, "level" if column == 3 else name)
        dims = (name,) if is_axis else ()
        cube.coordinates[name] = Coordinate(dims, values if is_axis else values[0], said)
    for number, (each, _) in zip(at.tolist(), fields, strict=True):
        cube.doubles += number in cube.places
        cube.places.setdefault(number, each)
    _add_points(cube)
    _add_valid_time(cube)
    return cube


def _called(attributes: Mapping[str, Json]) -> str:
    """Return the name of an array: that of CF if there is one, else the short one."""
    for name in (attributes.get("GRIB_cfVarName"), attributes.get("GRIB_shortName")):
        if isinstance(name, str) and name not in ("undef", "unknown", "~", ""):
            return name.replace("/", "_")
    return f"paramId_{attributes.get('GRIB_paramId')}"


def _of_coordinate(name: str, key: str) -> dict[str, Json]:
    usual: dict[str, Json] = {"long_name": f"original GRIB coordinate for key: {key}({name})", "units": "1"}
    return {**usual, **_ATTRIBUTES.get(name, {})}


def _described(attributes: dict[str, Json]) -> dict[str, Json]:
    """Return the attributes of an array: those of GRIB, and those that follow from them."""
    out = dict(attributes)
    out["long_name"] = attributes.get("GRIB_name", f"original GRIB paramId: {attributes.get('GRIB_paramId')}")
    out["units"] = attributes.get("GRIB_units", "1")
    if "GRIB_cfName" in attributes:
        out["standard_name"] = attributes["GRIB_cfName"]
    return out


def _add_points(cube: GribCube) -> None:
    for name, values in cube.grid.axes.items():
        said = dict(_ATTRIBUTES[name])
        if name == "latitude" and values[0] > values[-1]:
            said["stored_direction"] = "decreasing"
        cube.coordinates[name] = Coordinate((name,), values, said)


def _add_valid_time(cube: GribCube) -> None:
    time, step = cube.coordinates.get("time"), cube.coordinates.get("step")
    if time is None or step is None:
        return
    seconds = np.asarray(step.values) * 3600
    both = bool(time.dims and step.dims)
    values = time.values[:, None] + seconds[None, :] if both else time.values + seconds
    cube.coordinates["valid_time"] = Coordinate(time.dims + step.dims, values, _ATTRIBUTES["valid_time"])


def point_attributes(name: str) -> dict[str, Json]:
    """Return the attributes of latitudes or longitudes."""
    return dict(_ATTRIBUTES[name])


def datasets_of(cubes: Sequence[GribCube]) -> dict[str, GribDataset]:
    """Return the datasets by path: one at the root if all arrays fit together, else those of each type of level."""
    whole = GribDataset()
    if all(whole.takes(cube) for cube in cubes):
        return {"": whole}
    by_type: dict[str, list[GribDataset]] = {}
    for cube in cubes:
        found = by_type.setdefault(cube.level_type, [])
        if not any(each.takes(cube) for each in found):
            fresh = GribDataset()
            fresh.takes(cube)
            found.append(fresh)
    out = {}
    for name in sorted(by_type):
        for number, each in enumerate(by_type[name]):
            out[name if not number else f"{name}_{number}"] = each
    return out
