"""Variables that have some of several dimensions: files of one place must agree in them, or they are not combined."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

from fsstore import references

SIZES = pytest.mark.parametrize("size", [3, 40_000], ids=["small", "large"])
LEVELS = {3: np.arange(3.0), 40_000: np.random.default_rng(3).normal(size=40_000)}


def _tile(folder, i, j, size, *, other=0.0, lacks=False, encoding=None, **attrs):
    """Write the tile of a grid of two by three files, whose `p` has the dimension `y` alone."""
    rows = 2 * i + np.arange(2.0)
    variables = {"t": (("y", "x"), np.full((2, 4), 10.0 * i + j))}
    if not lacks:
        variables["p"] = (("y", "z"), rows[:, None] + LEVELS[size] + other, attrs)
    data = xr.Dataset(variables, {"y": rows, "x": np.arange(4.0) + 4 * j})
    path = folder / f"{i}{j}.nc"
    data.to_netcdf(path, engine="netcdf4", encoding={} if lacks else {"p": encoding or {}})
    return str(path)


def _tiles(folder, size, **other):
    return [_tile(folder, i, j, size, **other.get(f"of{i}{j}", {})) for i in range(2) for j in range(3)]


def _read(combined, folder):
    combined.save(folder / "all.mosaic", overwrite=True)
    return xr.open_dataset(str(folder / "all.mosaic"), engine="fsstore")


def _want(size):
    return np.arange(4.0)[:, None] + LEVELS[size]


@SIZES
def test_files_that_agree_give_it_once(tmp_path, size):
    """Of the files of a place one is used, and nothing is filled where files are complete."""
    combined = references.combine(_tiles(tmp_path, size), ["y", "x"]).result()
    assert combined.report.arrays["p"].how == "references"
    assert combined.report.agrees
    with _read(combined, tmp_path) as found:
        np.testing.assert_array_equal(found["p"].values, _want(size))
        assert found["t"].shape == (4, 12)


@SIZES
@pytest.mark.parametrize("wish", ["layer", "raise"])
def test_files_that_disagree_are_named(tmp_path, size, wish):
    """Other values in one file of a place are an error that says which file has them, whatever the size."""
    paths = _tiles(tmp_path, size, of11={"other": 1e-3})
    with pytest.raises(references.CombineError, match='"p".*other values') as caught:
        references.combine(paths, ["y", "x"], on_difference=wish).result()
    (values,) = (each for each in caught.value.report.arrays["p"].differences if each.what == "values")
    assert values.groups["others"] == [paths[4]]


@SIZES
def test_files_that_disagree_can_be_left_out(tmp_path, size):
    """With `skip` those that differ from most of their place are left out, and their tile is missing."""
    paths = _tiles(tmp_path, size, of11={"other": 1e-3})
    combined = references.combine(paths, ["y", "x"], on_difference="skip").result()
    assert list(combined.report.left_out) == [paths[4]]
    with _read(combined, tmp_path) as found:
        np.testing.assert_array_equal(found["p"].values, _want(size))
        assert np.isnan(found["t"].values[2:, 4:8]).all()
        assert not np.isnan(found["t"].values[:2]).any()


def test_equal_bytes_of_other_meaning_are_told(tmp_path):
    """The same stored values in another unit are other values."""
    paths = _tiles(tmp_path, 3, of01={"units": "km"}, of00={"units": "m"}, of02={"units": "m"})
    with pytest.raises(references.CombineError, match='"p".*units'):
        references.combine(paths, ["y", "x"]).result()


@SIZES
@pytest.mark.parametrize("what", ["zlib", "lacks", "scale", "layers"])
def test_what_may_differ(tmp_path, size, what):
    """Another codec, a file without the variable, and places that are packed otherwise do not change values."""
    packed = {"dtype": "f8", "scale_factor": 0.5, "add_offset": 1.0}
    other = {
        "zlib": {"of01": {"encoding": {"zlib": True}}},
        "lacks": {"of10": {"lacks": True}, "of12": {"lacks": True}},
        "scale": {f"of1{j}": {"encoding": packed} for j in range(3)},
        "layers": {"of00": {"encoding": {"zlib": True}}, "of12": {"encoding": {"dtype": "f8", "chunksizes": (1, 3)}}},
    }[what]  # fmt: skip
    with _read(references.combine(_tiles(tmp_path, size, **other), ["y", "x"]).result(), tmp_path) as found:
        np.testing.assert_allclose(found["p"].values, _want(size), rtol=1e-15)


def test_a_place_where_all_lack_it_is_missing(tmp_path):
    """Where no file of a place has the variable its values are missing."""
    other = {f"of1{j}": {"lacks": True} for j in range(3)}
    with _read(references.combine(_tiles(tmp_path, 3, **other), ["y", "x"]).result(), tmp_path) as found:
        np.testing.assert_array_equal(found["p"].values[:2], _want(3)[:2])
        assert np.isnan(found["p"].values[2:]).all()


def _runs(folder, shifts, units="days since 2000-01-01"):
    """Write files of two times and two members; each tells when its steps were made, by `made`."""
    paths = []
    for number, shift in enumerate(shifts):
        time, member = divmod(number, 2)
        data = xr.Dataset(
            {
                "t": (("time", "member"), np.full((2, 1), float(number))),
                "made": ("time", 2.0 * time + np.arange(2) + shift, {"units": units[number]}),
            },
            {"time": 2 * time + np.arange(2), "member": [member]},
        )
        paths.append(str(folder / f"{number}.nc"))
        data.to_netcdf(paths[-1], engine="netcdf4")
    return paths


def test_times_that_are_no_coordinates_are_compared(tmp_path):
    """Times of one place may be counted otherwise, but must be the same times."""
    units = ["days since 2000-01-01", "hours since 2000-01-01", "days since 2000-01-01", "days since 1999-12-31"]
    with pytest.raises(references.CombineError, match=r'"made".*other values'):
        references.combine(_runs(tmp_path, [0, 0, 0, 0], units), ["time", "member"]).result()
    units[1] = units[0]
    paths = _runs(tmp_path, [0, 0, 0, 1], units)
    with _read(references.combine(paths, ["time", "member"]).result(), tmp_path) as found:
        days = np.datetime64("2000-01-01") + np.arange(4) * np.timedelta64(1, "D")
        np.testing.assert_array_equal(found["made"].values, days)


def test_an_added_file_is_compared_too(tmp_path):
    """Appending a member whose pressure differs from that of the others is refused, without reading these."""
    paths = _tiles(tmp_path, 3, of12={"other": 1.0})
    references.combine(paths[:5], ["y", "x"]).result().save(tmp_path / "all.mosaic")
    with pytest.raises(references.CombineError, match="other values"):
        references.append(tmp_path / "all.mosaic", paths[5]).result()
    _tile(tmp_path, 1, 2, 3)
    assert references.append(tmp_path / "all.mosaic", paths[5]).result().dims == {"y": 4, "x": 12}


@SIZES
def test_a_new_dimension_and_one_that_is_there(tmp_path, size):
    """Orography of a member is one for all its times; what differs between members gets their dimension."""
    for number in range(4):
        time, member = divmod(number, 2)
        steps = 2 * time + np.arange(2)
        data = xr.Dataset(
            {
                "t": ("time", steps + 10.0 * member),
                "oro": ("z", LEVELS[size] + member),
                "mask": ("z", LEVELS[size]),
                "time_bnds": (("time", "nv"), np.stack([np.arange(2.0), np.arange(2.0) + 1], axis=1)),
            },
            {
                "time": ("time", np.arange(2), {"units": f"days since 2000-01-0{1 + 2 * time}", "bounds": "time_bnds"}),
                "member": member,
            },
        )
        data.to_netcdf(tmp_path / f"{number}.nc", engine="netcdf4")
    paths = [str(tmp_path / f"{number}.nc") for number in range(4)]
    with _read(references.combine(paths, ["time", "member"]).result(), tmp_path) as found:
        assert found["mask"].dims == ("z",)
        np.testing.assert_array_equal(found["oro"].transpose("member", "z").values, [LEVELS[size], LEVELS[size] + 1])
        np.testing.assert_array_equal(found["t"].transpose("member", "time").values, [np.arange(4), np.arange(4) + 10])
        bounds = found["time_bnds"].isel(member=1, missing_dims="ignore").values
        np.testing.assert_array_equal(bounds[:, 0], found["time"].values)
    data = xr.load_dataset(paths[3])
    data["oro"][1] += 1
    data.to_netcdf(paths[3], engine="netcdf4")
    with pytest.raises(references.CombineError, match='"oro".*other values'):
        references.combine(paths, ["time", "member"]).result()


grids = st.fixed_dictionaries({
    "rows": st.lists(st.integers(1, 3), min_size=1, max_size=3), "columns": st.lists(st.integers(1, 3), min_size=1, max_size=3),
    "absent": st.sets(st.integers(0, 8), max_size=2), "zlib": st.sets(st.integers(0, 8)), "packed": st.sets(st.integers(0, 2)),
    "lacking": st.sets(st.integers(0, 8)), "wrong": st.none() | st.integers(0, 8), "down": st.booleans(),
})  # fmt: skip


def _grid_of_tiles(folder, grid):
    """Write tiles of `t(y, x)`, `row(y)` and `column(x, z)`, and return their paths and what they hold together."""
    rows, columns = grid["rows"], grid["columns"]
    y, x = np.arange(float(sum(rows))), np.arange(float(sum(columns)))
    if grid["down"]:
        y = y[::-1]
    want = {
        "t": np.full((len(y), len(x)), np.nan),
        "row": np.full(len(y), np.nan),
        "column": np.full((len(x), 2), np.nan),
    }
    paths, top = {}, 0
    for i, high in enumerate(rows):
        left = 0
        for j, wide in enumerate(columns):
            number = 3 * i + j
            ys, xs = slice(top, top + high), slice(left, left + wide)
            left += wide
            if number in grid["absent"]:
                continue
            t = y[ys, None] * 10 + x[None, xs]
            row, column = y[ys] * 2, x[xs, None] + np.array([0.0, 0.5])
            variables = {"t": (("y", "x"), t), "column": (("x", "z"), column)}
            want["t"][ys, xs], want["column"][xs] = t, column
            if number not in grid["lacking"]:
                variables["row"] = ("y", row + (number == grid["wrong"]))
                want["row"][ys] = row
            encoding = {name: {"zlib": number in grid["zlib"]} for name in variables}
            if j in grid["packed"]:
                encoding["column"].update(dtype="i4", scale_factor=0.5, _FillValue=-1)
            paths[number] = str(folder / f"{number}.nc")
            xr.Dataset(variables, {"y": y[ys], "x": x[xs]}).to_netcdf(
                paths[number], encoding=encoding, engine="netcdf4"
            )
        top += high
    return paths, want, y, x


def _random_tiles(folder, grid):
    paths, want, y, x = _grid_of_tiles(folder, grid)
    if not paths:
        return
    wrong = grid["wrong"]
    beside = [n for n in paths if n // 3 == (wrong or 0) // 3 and n not in grid["lacking"]]
    listed = list(paths.values())[::-1]
    begun = references.combine(listed, ["y", "x"])
    if wrong in paths and wrong not in grid["lacking"]:
        if len(beside) > 1:
            with pytest.raises(references.CombineError, match='"row".*other values'):
                begun.result()
            return
        want["row"][np.isin(y, xr.open_dataset(paths[wrong])["y"].values)] += 1
    combined = begun.result()
    references.combine(listed[:1], ["y", "x"]).result().save(folder / "grown.mosaic", overwrite=True)
    for each in listed[1:]:
        references.append(folder / "grown.mosaic", each).result()
    with _read(combined, folder) as found, xr.open_dataset(str(folder / "grown.mosaic"), engine="fsstore") as grown:
        xr.testing.assert_equal(found.load(), grown.load())
        # tiles of one row do not tell that rows descend
        at_y = [int(np.flatnonzero(y == each)[0]) for each in found["y"].values]
        at_x = [int(np.flatnonzero(x == each)[0]) for each in found["x"].values]
        np.testing.assert_array_equal(found["t"].values, want["t"][at_y][:, at_x])
        np.testing.assert_array_equal(found["column"].values, want["column"][at_x])
        if "row" in found:
            np.testing.assert_array_equal(found["row"].values, want["row"][at_y])


@given(grids)
@settings(max_examples=4, deadline=None)
def test_random_tiles(tmp_path_factory, grid):
    """Random grids of tiles, with differences, gaps and lacking variables, hold what each tile holds, or are refused."""
    _random_tiles(tmp_path_factory.mktemp("tiles"), grid)


@pytest.mark.long
@given(grids)
@settings(max_examples=200, deadline=None)
def test_many_random_tiles(tmp_path_factory, grid):
    """The same, more often."""
    _random_tiles(tmp_path_factory.mktemp("tiles"), grid)
