"""Where the elements of a raster lie on a map: the conventions `spatial` and `proj` of GeoZarr, as attributes say them.

`spatial:transform` has six numbers: `x = a * column + b * row + c` and `y = d * column + e * row + f`.  Whole
columns and rows are corners of elements where `spatial:registration` is `pixel`, and their middles where it is `node`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fsstore.arrays.store import TensorStore
from fsstore.index import OutputIndexMethod

_TRANSFORM, _SHAPE, _BOX = "spatial:transform", "spatial:shape", "spatial:bbox"
_PLACES = (_TRANSFORM, _SHAPE, _BOX)
_CENTRES = {"pixel": 0.5, "node": 0.0}
_DEGREES = re.compile(r"EPSG:(4326|4258|4269|4979)\Z|OGC:CRS84")
_METRES = re.compile(r"EPSG:(32[67]\d\d|258\d\d|3857|3395|3035|3413|3031|3995|6933)\Z")
_UNIT_IN_WORDS = re.compile(r'(?:LENGTHUNIT|ANGLEUNIT|\bUNIT)\["([^"]{1,40})"')


@dataclass(frozen=True, slots=True)
class Line:
    """The places of elements along one dimension: `start` of the first, `step` from each to the next."""

    start: float
    step: float
    unit: str
    is_north: bool
    """Whether larger values lie further up on a map."""


@dataclass(frozen=True, slots=True)
class _Grid:
    """The placement of a raster: its dimensions (down, across), the six numbers, and where in an element they point."""

    rows: str
    columns: str
    numbers: tuple[float, ...]
    centre: float

    def moved(self, rows: _Extent, columns: _Extent) -> _Grid:
        """Return the placement of a part."""
        a, b, c, d, e, f = self.numbers
        right, down = (each.first + self.centre * (1 - each.step) for each in (columns, rows))
        moved = (
            a * columns.step, b * rows.step, c + a * right + b * down,
            d * columns.step, e * rows.step, f + d * right + e * down,
        )  # fmt: skip
        return _Grid(self.rows, self.columns, moved, self.centre)

    def box(self, height: int, width: int) -> list[float]:
        """Return the least and the greatest places of a raster: in x and y, then in x and y."""
        a, b, c, d, e, f = self.numbers
        less = 1.0 - 2 * self.centre  # from middle to middle is one less than from corner to corner
        corners = [(i, j) for i in (0.0, height - less) for j in (0.0, width - less)]
        across, along = ([p * j + q * i + r for i, j in corners] for p, q, r in ((a, b, c), (d, e, f)))
        return [min(across), min(along), max(across), max(along)]


@dataclass(frozen=True, slots=True)
class _Extent:
    """The elements of a stored dimension that a view shows: each `step`, from `first` on, `count` of `whole`."""

    first: int
    step: int
    count: int
    whole: int

    @property
    def is_whole(self) -> bool:
        return (self.first, self.step, self.count) == (0, 1, self.whole)


def _grid(attributes: Mapping[str, Any]) -> _Grid | None:
    """Return the placement that attributes tell; None where they tell none, or none of a kind that is known."""
    names, numbers = attributes.get("spatial:dimensions"), attributes.get(_TRANSFORM)
    centre = _CENTRES.get(str(attributes.get("spatial:registration", "pixel")))
    is_affine = attributes.get("spatial:transform_type", "affine") == "affine"
    if not isinstance(names, list) or len(names) != 2 or not all(isinstance(name, str) for name in names):
        return None
    if not is_affine or centre is None or not isinstance(numbers, list) or len(numbers) != 6:
        return None
    if not all(type(each) in (int, float) and math.isfinite(each) for each in numbers):
        return None
    return _Grid(names[0], names[1], tuple(map(float, numbers)), centre)


def as_seen(attributes: Mapping[str, Any], store: TensorStore) -> dict[str, Any]:
    """Return the attributes of a stored array as they are for what a view shows of it.

    A view that begins elsewhere or has steps is placed by its own elements.  A view of a single row, of a list of
    elements or of blocks has no place, and its attributes say none.

    >>> import fsstore as ts
    >>> array = ts.open({"driver": "zarr3", "kvstore": "memory://"}, create=True, dtype="u1",
    ...                 domain=ts.IndexDomain(shape=[8, 8], labels=["y", "x"])).result()
    >>> said = {"spatial:dimensions": ["y", "x"], "spatial:transform": [10.0, 0.0, 500.0, 0.0, -10.0, 900.0]}
    >>> as_seen(said, array[2:, 4:])["spatial:transform"]
    [10.0, 0.0, 540.0, 0.0, -10.0, 880.0]
    """
    found = dict(attributes)
    if not any(name in found for name in _PLACES):
        return found
    parts, grid = _parts(store), _grid(attributes)
    meant: list[_Extent | None]
    meant = [parts.get(name) for name in ((grid.rows, grid.columns) if grid else parts)] if parts else [None]
    if all(each is not None and each.is_whole for each in meant):
        return found
    if grid is None or meant[0] is None or meant[1] is None:
        return {name: value for name, value in found.items() if name not in _PLACES}
    moved, sides = grid.moved(meant[0], meant[1]), [meant[0].count, meant[1].count]
    fresh = {_TRANSFORM: list(moved.numbers), _SHAPE: sides, _BOX: moved.box(*sides)}
    return found | {name: value for name, value in fresh.items() if name in found}


def _parts(store: TensorStore) -> dict[str, _Extent | None]:
    """Return which elements of each stored dimension a view shows; None where it has no even steps along one.

    A view that shows something else than elements has none.
    """
    while store._driver.kvstore is None and (base := store.base) is not None:
        if store._driver.kind.id != "cast":
            return {}
        store = base
    whole, shown = store._driver.domain(), store._transform.domain
    found: dict[str, _Extent | None] = {}
    for number, (name, output) in enumerate(zip(whole.labels, store._transform.output, strict=True)):
        found[name or str(number)] = None
        if output.method == OutputIndexMethod.single_input_dimension and output.stride is not None:
            side = shown[output.input_dimension]
            first = output.offset + output.stride * side.inclusive_min - whole.origin[number]
            found[name or str(number)] = _Extent(first, output.stride, side.size, whole.shape[number])
    return found


def of_member(group: Mapping[str, Any], name: str, own: Mapping[str, Any]) -> dict[str, Any]:
    """Return what attributes say of the places of an array: those of its group, of its level there, and its own."""
    found = {each: value for each, value in group.items() if each.startswith(("spatial:", "proj:"))}
    levels = group.get("multiscales")
    layout = levels.get("layout") if isinstance(levels, Mapping) else None
    for number, level in enumerate(layout if isinstance(layout, list) else ()):
        if isinstance(level, Mapping) and str(level.get("asset", "")).strip("/") == name:
            said = {each: value for each, value in level.items() if str(each).startswith("spatial:")}
            if number and _TRANSFORM not in said:  # a coarser level does not lie as the whole image does
                found.pop(_TRANSFORM, None)
            found |= said
    if any(each.startswith("proj:") for each in own):
        found = {each: value for each, value in found.items() if not each.startswith("proj:")}
    return found | dict(own)


def lines_of(attributes: Mapping[str, Any], names: Sequence[str], shape: Sequence[int]) -> dict[str, Line]:
    """Return where the elements lie along the two dimensions of a raster that is not turned; none of others.

    >>> said = {"spatial:dimensions": ["y", "x"], "spatial:transform": [10, 0, 500, 0, -10, 900]}
    >>> lines_of(said | {"proj:code": "EPSG:32632"}, ["y", "x"], [8, 8])["y"]
    Line(start=895.0, step=-10.0, unit='m', is_north=True)
    """
    grid = _grid(attributes)
    if grid is None or grid.rows not in names or grid.columns not in names or grid.rows == grid.columns:
        return {}
    a, b, c, d, e, f = grid.numbers
    sides = [shape[list(names).index(name)] for name in (grid.rows, grid.columns)]
    if b or d or not a or not e or attributes.get(_SHAPE, sides) != sides:
        return {}
    unit = _unit(attributes)
    east, north = ("degrees_east", "degrees_north") if unit == "degree" else (unit, unit)
    return {
        grid.rows: Line(f + e * grid.centre, e, north, is_north=True),
        grid.columns: Line(c + a * grid.centre, a, east, is_north=False),
    }


def _unit(attributes: Mapping[str, Any]) -> str:
    """Return the unit of the coordinate system: `m`, `degree` or a word of its own; nothing where it is not told."""
    code, words, json = (attributes.get(f"proj:{name}") for name in ("code", "wkt2", "projjson"))
    if isinstance(code, str) and (_DEGREES.match(code) or _METRES.match(code)):
        return "degree" if _DEGREES.match(code) else "m"
    told: Any = None
    if isinstance(json, Mapping):
        system = json.get("coordinate_system")
        axes = system.get("axis") if isinstance(system, Mapping) else None
        first = axes[0] if isinstance(axes, list) and axes else None
        told = first.get("unit") if isinstance(first, Mapping) else None
        told = told.get("name") if isinstance(told, Mapping) else told
    elif isinstance(words, str):
        _, _, system = words[:100_000].partition("CS[")  # the units before are those of the ellipsoid
        told = (_UNIT_IN_WORDS.findall(system) or [None])[0]
    return {"metre": "m", "meter": "m"}.get(told, told[:40]) if isinstance(told, str) else ""
