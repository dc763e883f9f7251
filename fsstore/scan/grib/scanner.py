"""The scanner of GRIB."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fsstore.errors import DataLossError, NotFoundError, StoreError, UnimplementedError
from fsstore.kvstore.contract.driver import Buffer, KvPrefix
from fsstore.reference.table.table import Row, Rows
from fsstore.runtime import execution
from fsstore.scan.chunk_table import Columns, inline, single
from fsstore.scan.contract import MADE, ChunkTable, FileScanner, Numbers, ScanHierarchy
from fsstore.scan.grib.cube import Coordinate, GribCube, GribDataset, cube_of, datasets_of, point_attributes
from fsstore.scan.grib.library import FieldKeys, GribLibrary
from fsstore.scan.grib.message import GribField, MessageWalk, assembled, idx_offsets
from fsstore.scan.hierarchy import Array, HierarchyBuilder
from fsstore.scan.source import ScanSource
from fsstore.scan.tuning import GRIB_HEAD_BYTES
from fsstore.values.json_value import Json

__all__ = ["SCANNER", "GribFile", "GribScanner"]

_MOST_IDX = 64 * 2**20
_GLOBAL = ("GRIB_edition", "GRIB_centre", "GRIB_centreDescription", "GRIB_subCentre")


class GribFile:
    """One generation of a file."""

    def __init__(
        self, source: ScanSource, datasets: Mapping[str, GribDataset], notes: Mapping[str, str]
    ) -> None:
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
        shared: dict[str, Json] = {
            name: first.attributes[name] for name in _GLOBAL if name in first.attributes
        }
        shared["Conventions"] = "CF-1.7"
        if "GRIB_centreDescription" in shared:
            shared["institution"] = shared["GRIB_centreDescription"]
        self._builder.group(prefix.rstrip("/"), shared)
        for name, coordinate in dataset.coordinates.items():
            if name not in dataset.arrays:
                self._coordinate(prefix + name, coordinate)
        for cube in dataset.arrays.values():
            if not cube.grid.axes and cube.attributes.get("GRIB_gridType") != "sh":
                for name in ("latitude", "longitude"):
                    self._plane(f"{prefix}{name}", name, cube)
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
        points = (
            () if grid.axes or cube.attributes.get("GRIB_gridType") == "sh" else ("latitude", "longitude")
        )
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
                f"{prefix}{cube.name}",
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
        return await execution.offload(_described, source, library, fields, walk.notes)


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
    spans = [(at, min(at + GRIB_HEAD_BYTES, source.size)) for at in offsets]
    return dict(zip(offsets, map(bytes, await source.fetch(spans)), strict=True)) if spans else {}


def _described(
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
    names = (
        "edition",
        "centre",
        "subCentre",
        "paramId",
        "dataType",
        "numberOfPoints",
        "typeOfLevel",
        "stepType",
    )
    return [attributes.get(f"GRIB_{name}") for name in (*names, "gridType", "uvRelativeToGrid")]


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


SCANNER = GribScanner()
