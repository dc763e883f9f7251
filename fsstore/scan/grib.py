"""GRIB files of both editions: their messages put together as cubes."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from fsstore.errors import DataLossError, NotFoundError, StoreError, UnimplementedError
from fsstore.kvstore.contract.driver import Buffer, KvPrefix
from fsstore.reference.table.table import Row, Rows
from fsstore.runtime import execution
from fsstore.scan.contract import HEADER_BYTES, MADE, ChunkTable, FileScanner, Numbers, ScanHierarchy, ScanSource
from fsstore.scan.grib_message import (
    PARAMETER_NUMBERS,
    FieldKeys,
    GribField,
    GribGrid,
    GribLibrary,
    MessageWalk,
    assembled,
    idx_offsets,
)
from fsstore.scan.hierarchy import Array, Columns, HierarchyBuilder, inline, single
from fsstore.values.json_value import Json

# Fields as arrays: which of them stand in one, and which arrays fit into one dataset, as cfgrib groups
# them.
#
# The fields of a parameter whose attributes are equal make up one array, with an axis for each of member,
# time, step and level of which there are several values. Arrays whose coordinates do not contradict each
# other make up a dataset: all of the file if they can, else those of one type of level after the other.

_DECREASING = ("isobaricInhPa", "isobaricInPa")
_TIME: dict[str, Json] = {"units": "seconds since 1970-01-01T00:00:00", "calendar": "proleptic_gregorian"}
_ATTRIBUTES: Mapping[str, dict[str, Json]] = {
    "latitude": {"units": "degrees_north", "standard_name": "latitude", "long_name": "latitude"},
    "longitude": {"units": "degrees_east", "standard_name": "longitude", "long_name": "longitude"},
    "number": {"units": "1", "standard_name": "realization", "long_name": "ensemble member numerical id"},
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
    "isobaricLayer": {"units": "Pa", "positive": "down", "standard_name": "air_pressure", "long_name": "pressure"},
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
        lengths = {name: size for each in self.arrays.values() for name, size in zip(each.dims, each.lead, strict=True)}
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


def cube_of(attributes: dict[str, Json], grid: GribGrid, fields: Sequence[tuple[GribField, FieldKeys]]) -> GribCube:
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
    numbers = [attributes[f"GRIB_{name}"] for name in PARAMETER_NUMBERS if f"GRIB_{name}" in attributes]
    return "_".join(map(str, ["paramId", attributes.get("GRIB_paramId"), *numbers]))


def _of_coordinate(name: str, key: str) -> dict[str, Json]:
    usual: dict[str, Json] = {"long_name": f"original GRIB coordinate for key: {key}({name})", "units": "1"}
    return {**usual, **_ATTRIBUTES.get(name, {})}


def _described(attributes: dict[str, Json]) -> dict[str, Json]:
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


_MOST_IDX = 64 * 2**20
_GLOBAL = ("GRIB_edition", "GRIB_centre", "GRIB_centreDescription", "GRIB_subCentre")


class GribFile:
    """One generation of a file."""

    def __init__(self, source: ScanSource, datasets: Mapping[str, GribDataset], notes: Mapping[str, str]) -> None:
        self._source = source
        self._cubes: dict[str, GribCube] = {}
        self._points: dict[str, GribCube] = {}
        self._values: dict[str, bytes] = {}
        self._builder = HierarchyBuilder()
        for path, why in notes.items():
            self._builder.note(path, why)
        for path, dataset in datasets.items():
            self._add(f"{path}/" if path else "", dataset)
        self.hierarchy: ScanHierarchy = self._builder.finish()

    def _add(self, prefix: str, dataset: GribDataset) -> None:
        first = next(iter(dataset.arrays.values()))
        shared: dict[str, Json] = {name: first.attributes[name] for name in _GLOBAL if name in first.attributes}
        shared["Conventions"] = "CF-1.7"
        if "GRIB_centreDescription" in shared:
            shared["institution"] = shared["GRIB_centreDescription"]
        self._builder.group(prefix.rstrip("/"), shared)
        for name, coordinate in dataset.coordinates.items():
            if name not in dataset.arrays:
                self._coordinate(prefix + name, coordinate)
        for cube in dataset.arrays.values():
            kind = cube.attributes.get("GRIB_gridType")
            for name in () if cube.grid.axes or kind == "sh" else ("latitude", "longitude"):
                if cube.grid.located:
                    self._plane(f"{prefix}{name}", name, cube)
                else:
                    self._builder.note(prefix + name, f"ecCodes cannot compute the points of a grid {kind}")
        for cube in dataset.arrays.values():
            self._array(prefix, cube)

    def _coordinate(self, path: str, coordinate: Coordinate) -> None:
        values = np.asarray(coordinate.values)
        kind = "<f8" if values.dtype.kind == "f" else "<i8"
        shape = values.shape
        self._builder.array(
            path, Array(shape, shape, kind, None, dims=coordinate.dims, attributes=coordinate.attributes)
        )
        self._values[path] = np.ascontiguousarray(values, kind).tobytes()

    def _plane(self, path: str, name: str, cube: GribCube) -> None:
        """Add the latitudes or longitudes of all points, which ecCodes computes from a message when they are read."""
        grid = cube.grid
        codec: dict[str, Json] = {"id": "grib", "var": name, "dtype": "<f8"}
        array = Array(grid.shape, grid.shape, "<f8", "NaN", (), codec, grid.dims, point_attributes(name))
        self._builder.array(path, array)
        self._points[path] = cube

    def _array(self, prefix: str, cube: GribCube) -> None:
        grid = cube.grid
        shape = (*cube.lead, *grid.shape)
        is_plane = not grid.axes and grid.located and cube.attributes.get("GRIB_gridType") != "sh"
        points = ("latitude", "longitude") if is_plane else ()
        named = " ".join((*cube.coordinates, *points))
        attributes = {name: value for name, value in cube.attributes.items() if name not in _GLOBAL}
        codec: dict[str, Json] = {"id": "grib", "var": cube.name, "dtype": "<f4"}
        if grid.turned:
            codec["row"] = grid.shape[1]
        array = Array(
            shape,
            (*(1 for _ in cube.lead), *grid.shape),
            "<f4",
            "NaN",
            (),
            codec,
            (*cube.dims, *grid.dims),
            {**attributes, "coordinates": named},
        )
        self._builder.array(prefix + cube.name, array)
        self._cubes[prefix + cube.name] = cube
        if cube.doubles:
            self._builder.note(
                f"{prefix}{cube.name}/repeated",
                f"of messages that say the same, the first count: {cube.doubles} do not",
            )

    async def tables(self, paths: Sequence[str]) -> Sequence[ChunkTable]:
        """Return the chunk tables of arrays: where their messages are is known."""
        return [self._table(path) for path in paths]

    def _table(self, path: str) -> ChunkTable:
        if path in self._values:
            return inline([self._values[path]])
        if path in self._points:
            first = self._points[path].fields[0][0]
            if first.whole:
                return single(first.start, first.stop - first.start)
            return Columns(Rows.of([Row(MADE, first.start, 0)]))
        places = sorted(self._cubes[path].places.items())
        rows = [Row(0 if each.whole else MADE, each.start, each.stop - each.start) for _, each in places]
        return Columns(Rows.of(rows), np.array([number for number, _ in places], np.int64))

    async def make(self, path: str, numbers: Numbers) -> Sequence[Buffer]:
        """Return fields of messages that hold several, as messages of their own."""
        if path in self._points:
            fields = [self._points[path].fields[0][0]] * len(numbers)
        else:
            fields = [self._cubes[path].places[number] for number in numbers.tolist()]
        try:
            parts = iter(await self._source.fetch([span for each in fields for span in each.spans]))
        except StoreError as error:
            raise error.within(f'Error reading "{path}"') from error
        return [assembled([bytes(next(parts)) for _ in each.spans]) for each in fields]


@dataclass(frozen=True, slots=True)
class GribScanner(FileScanner):
    """The scanner."""

    name: ClassVar[str] = "grib"
    title: ClassVar[str] = "GRIB file"

    async def scan(self, source: ScanSource, members: Mapping[str, Json]) -> GribFile:
        """Return the fields of a file; the heads of all messages are read."""
        library = GribLibrary()
        walk = MessageWalk()
        if source.waits:
            walk = MessageWalk(await _heads(source))
        fields = await source.settle(walk.follow)
        return await execution.offload(_described_group, source, library, fields, walk.notes)


async def _heads(source: ScanSource) -> dict[int, bytes]:
    """Return the heads of messages by the index beside a file, nothing if there is none; wrong ones do no harm."""
    beside = KvPrefix(source.base.driver, source.base.path + ".idx")
    try:
        found = await beside.read()
    except (NotFoundError, StoreError):  # there are stores of one file
        return {}
    if found.state != "value" or len(found.value) > _MOST_IDX:
        return {}
    offsets = idx_offsets(bytes(found.value), source.size)
    spans = [(at, min(at + 2 * HEADER_BYTES, source.size)) for at in offsets]
    return dict(zip(offsets, map(bytes, await source.fetch(spans)), strict=True)) if spans else {}


def _described_group(
    source: ScanSource, library: GribLibrary, fields: Sequence[GribField], notes: Mapping[str, str]
) -> GribFile:
    """Return the arrays of fields, in the order of parameters; fields that cannot be described are noted."""
    notes = dict(notes)
    found: dict[str, tuple[dict[str, Json], list[tuple[GribField, FieldKeys]]]] = {}
    with library.lock():
        for each in fields:
            try:
                attributes, keys = library.describe(each)
            except (DataLossError, UnimplementedError) as error:
                notes[f"message at offset {each.start}"] = error.message
                continue
            alike = json.dumps([_group(attributes), each.grid.hex()])
            found.setdefault(alike, (attributes, []))[1].append((each, keys))
        cubes = []
        for attributes, members in found.values():
            try:
                cubes.append(cube_of(attributes, library.grid(members[0][0], attributes), members))
            except (DataLossError, UnimplementedError) as error:
                notes[str(attributes.get("GRIB_shortName"))] = error.message
    cubes.sort(key=lambda cube: _number(cube.attributes.get("GRIB_paramId")))
    kept = [cube for cube in cubes if math.prod(cube.lead) < 2**40]
    if not kept:
        why = next(iter(notes.values()), "it has no field")
        raise DataLossError(f"no message of it can be shown: {why}")
    return GribFile(source, datasets_of(kept), notes)


def _group(attributes: Mapping[str, Json]) -> list[Json]:
    """Return what the fields of one array have in common."""
    names = ("edition", "centre", "subCentre", "paramId", "dataType", "numberOfPoints", "typeOfLevel", "stepType")
    more = ("gridType", "uvRelativeToGrid", *PARAMETER_NUMBERS)
    return [attributes.get(f"GRIB_{name}") for name in (*names, *more)]


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


SCANNER = GribScanner()
