"""GeoZarr's conventions `spatial` and `proj`: kept by copies, moved with views, and shown as axes of the viewer."""

from __future__ import annotations

import numpy as np
import pytest

import fsstore as ts
from fsstore.viewer.door import describe
from fsstore.viewer.subject import Subject

AFFINE = [10.0, 0.0, 500.0, 0.0, -20.0, 900.0]
SAID = {
    "zarr_conventions": [{"name": "spatial", "uuid": "689b58e2-cf7b-45e0-9fff-9cfc0883d6b4"}, {"name": "proj"}],
    "spatial:dimensions": ["y", "x"], "spatial:transform": AFFINE, "spatial:shape": [6, 8],
    "spatial:bbox": [500.0, 780.0, 580.0, 900.0], "proj:code": "EPSG:32632",
}  # fmt: skip


def raster(place, version=3, *, attributes=SAID, shape=(3, 6, 8), names=("t", "y", "x")):
    group = ts.open_group(place, mode="w", zarr_format=version).result()
    array = group.create_array("r", shape=shape, dtype="u2", dimension_names=names, attributes=attributes).result()
    array[:] = np.arange(np.prod(shape), dtype="u2").reshape(shape)
    return group


def copied(view, tmp_path):
    ts.copy(view, f"{tmp_path}/copy.zarr").result()
    return ts.open(f"{tmp_path}/copy.zarr", read=True).result()


@pytest.mark.parametrize("version", [3, 2])
def test_copies_keep_the_conventions(tmp_path, version):
    """A copy of an array, and one of a group into the other version of zarr, say of places what the source says."""
    group = raster(tmp_path / "a.zarr", version)
    group.attrs.update({"spatial:dimensions": ["y", "x"], "proj:wkt2": 'GEOGCRS["x"]'})
    assert SAID.items() <= copied(group["r"], tmp_path).attrs.asdict().items()
    ts.copy(group, f"{tmp_path}/b.zarr", schema={"zarr_format": 5 - version}).result()
    other = ts.open_group(tmp_path / "b.zarr").result()
    assert other.attrs.asdict() == group.attrs.asdict()
    assert SAID.items() <= other["r"].attrs.asdict().items()
    assert ts.verify(other, group).result()


@pytest.mark.parametrize("registration", ["pixel", "node"])
@pytest.mark.parametrize("rotation", [0.0, 3.0])
def test_a_copy_of_a_part_lies_where_the_part_does(tmp_path, registration, rotation):
    """Each element of a copied part has the place that it has in the source, whatever its steps and its conversion."""
    numbers = [10.0, rotation, 500.0, -rotation, -20.0, 900.0]
    said = {**SAID, "spatial:transform": numbers, "spatial:registration": registration}
    whole = raster(tmp_path / "a.zarr", attributes=said)["r"]
    for view in (whole[1, 2:5, 3:], whole[:, 5:0:-2, ::3], ts.cast(whole[:, 1:], "float32"), whole.T[2:7]):
        made = copied(view, tmp_path)
        moved, (height, width) = made.attrs["spatial:transform"], made.attrs["spatial:shape"]
        labels = list(view.domain.labels)
        assert [view.shape[labels.index(name)] for name in "yx"] == [height, width]
        shift = 0.5 if registration == "pixel" else 0.0
        flat = made if made.rank == 2 else made[ts.d["t"][made.domain[labels.index("t")].inclusive_min]]
        values = np.asarray(flat.read().result(), "i8")
        values = values if list(flat.domain.labels) == ["y", "x"] else values.T
        for (i, j), value in np.ndenumerate(values):
            _, row, column = np.unravel_index(value, (3, 6, 8))
            a, b, c, d, e, f = numbers
            s, t = column + shift, row + shift
            wanted = (a * s + b * t + c, d * s + e * t + f)
            a, b, c, d, e, f = moved
            s, t = j + shift, i + shift
            assert (a * s + b * t + c, d * s + e * t + f) == pytest.approx(wanted)
        assert made.attrs["proj:code"] == "EPSG:32632"
        ts.KvStore.open(f"file://{tmp_path}/copy.zarr/").result().delete_range(ts.KvStore.KeyRange()).result()


def test_the_box_of_a_part(tmp_path):
    """The box of a copied part is that of its corners."""
    whole = raster(tmp_path / "a.zarr")["r"]
    assert copied(whole[0, 2:5, 3:], tmp_path).attrs["spatial:bbox"] == [530.0, 800.0, 580.0, 860.0]


@pytest.mark.parametrize("of", [
    lambda whole: whole[:, 3], lambda whole: whole[:, [0, 2, 3]], lambda whole: ts.downsample(whole, [1, 2, 2], "mean"),
], ids=["a row", "a list", "blocks"])  # fmt: skip
def test_what_has_no_place_says_none(tmp_path, of):
    """A row, a list of rows and blocks of elements are copied without a place, and keep the coordinate system."""
    made = copied(of(raster(tmp_path / "a.zarr")["r"]), tmp_path).attrs.asdict()
    assert not {"spatial:transform", "spatial:shape", "spatial:bbox"} & made.keys()
    assert made["proj:code"] == "EPSG:32632"


def axes(opened, path):
    return describe(Subject(opened).array(path))


@pytest.mark.parametrize(
    ("said", "units"),
    [
        ({"proj:code": "EPSG:32632"}, ("m", "m")),
        ({"proj:code": "EPSG:4326"}, ("degrees_north", "degrees_east")),
        ({"proj:code": "EPSG:9"}, ("", "")),
        ({"proj:wkt2": 'PROJCRS["a",BASEGEOGCRS["b",LENGTHUNIT["metre",1]],CS[Cartesian,2],LENGTHUNIT["foot",0.3048]]'}, ("foot",) * 2),
        ({"proj:projjson": {"coordinate_system": {"axis": [{"unit": "degree"}]}}}, ("degrees_north", "degrees_east")),
        ({"proj:projjson": {"coordinate_system": {"axis": [{"unit": {"name": "metre"}}]}}}, ("m", "m")),
        ({"proj:projjson": 7, "proj:wkt2": 7, "proj:code": 7}, ("", "")),
    ],
)  # fmt: skip
def test_axes_of_the_viewer(tmp_path, said, units):
    """The middles of elements are the values of the axes, in the units of the coordinate system, with north up."""
    own = {name: value for name, value in SAID.items() if not name.startswith("proj:")}
    group = raster(tmp_path, attributes={**own, **said})
    found = axes(group, "r")
    assert (found["rows"], found["columns"]) == (1, 2)
    time, y, x = found["axes"]
    assert time is None
    assert (y["values"][:2], y["units"], y["up"]) == ([890.0, 870.0], units[0], True)
    assert (x["values"][-1], x["units"], x["up"]) == (575.0, units[1], False)
    part = axes(group["r"][:, 2:, ::2], "")["axes"]
    assert (part[1]["values"][0], part[2]["values"]) == (850.0, [505.0, 525.0, 545.0, 565.0])


def test_groups_place_their_arrays(tmp_path):
    """What the group says is for its arrays, and its layout for their levels; an array of another shape is not placed."""
    inner = {name: value for name, value in SAID.items() if name.startswith("spatial:")}
    group = raster(tmp_path, attributes={})
    group.attrs.update(inner)
    assert axes(group, "r")["axes"][1]["values"][0] == 890.0
    group.create_array("half", shape=[3, 3, 4], dtype="u2", dimension_names=["t", "y", "x"]).result()
    assert axes(group, "half")["axes"] == [None] * 3
    group.attrs["multiscales"] = {"layout": [
        {"asset": "r"},
        {"asset": "half", "spatial:shape": [3, 4], "spatial:transform": [20.0, 0.0, 500.0, 0.0, -40.0, 900.0]},
    ]}  # fmt: skip
    assert axes(group, "half")["axes"][1]["values"] == [880.0, 840.0, 800.0]
    assert axes(group, "")["axes"][1]["values"][0] == 890.0


@pytest.mark.parametrize("changed", [
    {"spatial:transform": AFFINE[:5]}, {"spatial:transform": ["a"] * 6}, {"spatial:transform": [1.0, 1.0, 0.0, 0.0, 1.0, 0.0]},
    {"spatial:transform": [float("nan"), *AFFINE[1:]]}, {"spatial:dimensions": ["y"]}, {"spatial:dimensions": ["q", "x"]},
    {"spatial:registration": "corner"}, {"spatial:transform_type": "rpc"}, {"spatial:dimensions": ["y", "y"]},
    {"spatial:transform": [0.0, 0.0, 0.0, 0.0, 0.0, 0.0]}, {"spatial:shape": [1, 1]},
])  # fmt: skip
def test_what_is_not_understood_has_no_axes(tmp_path, changed):
    """A placement that is turned, of another kind or wrong leaves the axes as indices."""
    assert axes(raster(tmp_path, attributes={**SAID, **changed}), "r")["axes"] == [None] * 3


def test_coordinates_come_first(tmp_path):
    """An array of coordinates says more than the convention does."""
    group = raster(tmp_path)
    group.create_array("y", shape=[6], dtype="f8", attributes={"units": "km"}).result()[:] = 7.0
    y, x = axes(group, "r")["axes"][1:]
    assert (y["units"], x["units"]) == ("km", "m")
