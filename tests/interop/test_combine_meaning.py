"""Coordinates, bounds and times of files that mean the same by other numbers: what is written is what they mean."""

from __future__ import annotations

import cftime
import netCDF4
import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

from fsstore import references
from fsstore.combine.calendar import encode_times, instants, parse_units

DAY = np.timedelta64(1, "D")


def _combined(folder, dim="time", **options):
    combined = references.combine(str(folder / "?.nc"), dim, **options).result()
    combined.save(folder / "all.mosaic", overwrite=True)
    return xr.open_dataset(str(folder / "all.mosaic"), engine="fsstore")


def test_bounds_are_told_by_the_units_of_their_own_file(tmp_path):
    """Bounds have no units: each file's count from where its times count from, though they look alike in all."""
    for number in range(3):
        steps = np.arange(2.0)
        data = xr.Dataset(
            {"time_bnds": (("time", "nv"), np.stack([steps, steps + 1], axis=1))},
            {"time": ("time", steps + 0.5, {"units": f"days since 2000-01-0{1 + 2 * number}", "bounds": "time_bnds"})},
        )  # fmt: skip
        data.to_netcdf(tmp_path / f"{number}.nc")
    with _combined(tmp_path) as found:
        first = np.datetime64("2000-01-01") + np.arange(6) * DAY
        np.testing.assert_array_equal(found["time"].values, first + np.timedelta64(12, "h"))
        np.testing.assert_array_equal(found["time_bnds"].values, np.stack([first, first + DAY], axis=1))


def test_times_that_are_missing_stay_missing(tmp_path):
    """A time that is the fill value of its file is no time in the whole, in whatever units files count."""
    for number, units in enumerate(["days since 2000-01-01", "hours since 1999-01-01", "days since 1999-01-01"]):
        data = xr.Dataset(
            {"t": ("time", [1.0, 2.0]), "seen": ("time", [24, -999])}, {"time": [2 * number, 2 * number + 1]}
        )
        data["seen"].attrs.update(units=units, _FillValue=-999)
        data.to_netcdf(tmp_path / f"{number}.nc")
    with _combined(tmp_path) as found:
        days = np.array(["2000-01-25", "NaT", "1999-01-02", "NaT", "1999-01-25", "NaT"], "M8[ns]")
        np.testing.assert_array_equal(found["seen"].values, days)


def test_a_file_without_times_has_none(tmp_path):
    """Times that are no coordinates may lack in a file."""
    for number in range(3):
        data = xr.Dataset({"t": ("time", [1.0, 2.0])}, {"time": [2 * number, 2 * number + 1]})
        if number != 1:
            data["seen"] = ("time", [0, 1], {"units": f"days since 2000-01-0{1 + number}"})
        data.to_netcdf(tmp_path / f"{number}.nc")
    with _combined(tmp_path) as found:
        days = np.array(["2000-01-01", "2000-01-02", "NaT", "NaT", "2000-01-03", "2000-01-04"], "M8[ns]")
        np.testing.assert_array_equal(found["seen"].values, days)


@pytest.mark.parametrize("packed", [False, True])
def test_coordinates_are_compared_by_what_they_mean(tmp_path, packed):
    """Coordinates in other units, or packed by another scale, are ordered and written as what they mean."""
    for number in range(3):
        x = np.arange(2.0) + 4 - 2 * number
        units, factor = ("km", 1e-3) if number == 1 and not packed else ("m", 1.0)
        data = xr.Dataset({"v": ("x", x * 10)}, {"x": ("x", x * factor, {"units": units})})
        scale = {"dtype": "i2", "scale_factor": [0.5, 0.25, 0.5][number]}
        data.to_netcdf(tmp_path / f"{number}.nc", encoding={"x": scale if packed else {}})
    with _combined(tmp_path, "x") as found:
        np.testing.assert_allclose(found["x"].values, np.arange(6.0))
        np.testing.assert_array_equal(found["v"].values, np.arange(6.0) * 10)
        assert found["x"].attrs["units"] == "m"


def test_coordinates_without_a_common_unit_are_refused(tmp_path):
    """Between metres and degrees there is no conversion."""
    for number, units in enumerate(["m", "degrees_east"]):
        xr.Dataset({"v": ("x", [1.0])}, {"x": ("x", [float(number)], {"units": units})}).to_netcdf(
            tmp_path / f"{number}.nc"
        )
    with pytest.raises(references.CombineError, match="degrees_east"):
        references.combine(str(tmp_path / "?.nc"), "x").result()


def test_tiles_whose_coordinates_have_other_types_are_one_grid(tmp_path):
    """Equal coordinates of another type are the same place."""
    for number in range(4):
        i, j = divmod(number, 2)
        kind = "f4" if number == 2 else "f8"
        data = xr.Dataset(
            {"t": (("y", "x"), np.full((2, 2), float(number)))},
            {"y": np.arange(2.0) + 2 * i, "x": (np.arange(2) + 2.0 * j).astype(kind)},
        )
        data.to_netcdf(tmp_path / f"{number}.nc")
    with _combined(tmp_path, ["y", "x"]) as found:
        want = np.kron([[0, 1], [2, 3]], np.ones((2, 2)))
        np.testing.assert_array_equal(found["t"].values, want)


@pytest.mark.parametrize("missing", [{"_FillValue": 1.0}, {}], ids=["by the fill value", "not a number"])
def test_a_coordinate_that_is_missing_is_told(tmp_path, missing):
    """A coordinate without a value has no place; the file is named."""
    for number in range(2):
        x = np.array([2.0 * number, 1.0 if missing else np.nan]) if number else np.array([-2.0, -1.0])
        xr.Dataset({"v": ("x", [1.0, 2.0])}, {"x": ("x", x, missing)}).to_netcdf(tmp_path / f"{number}.nc")
    with pytest.raises(references.CombineError, match=r"1.nc is missing"):
        references.combine(str(tmp_path / "?.nc"), "x").result()


def test_a_file_without_steps_is_left_out(tmp_path):
    """A file that was begun and never written to holds nothing; the report says so."""
    for number in range(2):
        steps = np.arange(2.0 * number)
        xr.Dataset({"v": ("time", steps)}, {"time": steps}).to_netcdf(tmp_path / f"{number}.nc", unlimited_dims="time")
    report = references.combine(str(tmp_path / "?.nc"), "time", dry_run=True).result()
    assert report.left_out == {str(tmp_path / "0.nc"): "it has no steps"}
    assert report.dims == {"time": 2}


def test_files_of_which_nothing_is_left_leave_no_piece(tmp_path):
    """Layers hold what files have; a file without steps among them, or one that another covers, is left out."""
    paths, steps = [], [(0, 4), (4, 0), (4, 3), (5, 1)]
    for number, (start, count) in enumerate(steps):
        times = np.arange(float(start), start + count)
        packed = {"v": {"dtype": "i2", "scale_factor": 0.5 * (1 + number % 3), "_FillValue": -1}}
        paths.append(tmp_path / f"{number}.nc")
        xr.Dataset({"v": ("time", times * 3)}, {"time": times}).to_netcdf(
            paths[-1], unlimited_dims="time", encoding=packed
        )
    combined = references.combine(paths, "time", on_overlap="first").result()
    assert combined.report.left_out == {
        str(paths[1]): "it has no steps", str(paths[3]): "all of it is in other files"
    }  # fmt: skip
    assert combined.report.arrays["v"].how == "layers"
    combined.save(tmp_path / "all.mosaic")
    with xr.open_dataset(str(tmp_path / "all.mosaic"), engine="fsstore") as found:
        np.testing.assert_array_equal(found["v"].values, np.arange(7) * 3.0)


@given(
    st.lists(st.tuples(st.integers(0, 12), st.integers(0, 5)), min_size=2, max_size=5, unique_by=lambda one: one[0]),
    st.sampled_from(["first", "last"]),
)
@settings(max_examples=15, deadline=None)
def test_overlaps_of_files_that_drift(tmp_path_factory, spans, wins):
    """Each step comes from the first or the last file that has it, unpacked as that file says, and none is twice."""
    folder = tmp_path_factory.mktemp("overlaps")
    want: dict[float, float] = {}
    paths, loses = [], False
    for number, (start, count) in enumerate(sorted(spans)):
        times = np.arange(float(start), start + count)
        packed = {"v": {"dtype": "i2", "scale_factor": 0.5 * (1 + number % 2), "_FillValue": -1}}
        paths.append(folder / f"{number}.nc")
        xr.Dataset({"v": ("time", times * 2 + 100 * number)}, {"time": times}).to_netcdf(
            paths[-1], unlimited_dims="time", encoding=packed
        )
        with xr.open_dataset(paths[-1]) as one:
            pairs = dict(zip(times.tolist(), one["v"].values.tolist(), strict=True))
        loses |= wins == "last" and bool(pairs) and max(want, default=-1) > max(pairs)
        want = {**pairs, **want} if wins == "first" else {**want, **pairs}
    if not want:
        return
    if loses:
        with pytest.raises(references.CombineError, match="would be lost"):
            references.combine(paths, "time", on_overlap=wins).result()
        return
    references.combine(paths, "time", on_overlap=wins).result().save(folder / "all.mosaic")
    with xr.open_dataset(str(folder / "all.mosaic"), engine="fsstore") as found:
        assert found["time"].values.tolist() == sorted(want)
        assert found["v"].values.tolist() == [want[at] for at in sorted(want)]


@pytest.mark.parametrize("kind", ["i8", "f8"])
def test_nanoseconds_are_times(tmp_path, kind):
    """Times in nanoseconds are brought together with others where they are whole microseconds, and else refused."""
    units = ["nanoseconds since 2001-01-01", "milliseconds since 2001-01-01", "ns since 2001-01-01 00:00:01"]
    values = [[0, 5_000_000], [20.5, 30], [1000, 123_456_000]]
    for number, (unit, each) in enumerate(zip(units, values, strict=True)):
        with netCDF4.Dataset(tmp_path / f"{number}.nc", "w") as file:
            file.createDimension("time", 2)
            time = file.createVariable("time", "f8" if number == 1 else kind, ("time",))
            time.units = unit
            time[:] = each
            file.createVariable("v", "f4", ("time",))[:] = [number, number + 0.5]
    want = [0, 5_000_000, 20_500_000, 30_000_000, 1_000_001_000, 1_123_456_000]
    with _combined(tmp_path) as found:
        start = np.datetime64("2001-01-01", "ns")
        assert found["time"].values.tolist() == [(start + np.timedelta64(at, "ns")).astype(int) for at in want]
    with netCDF4.Dataset(tmp_path / "2.nc", "a") as file:
        file["time"][:] = [1000, 123_456_001]
    with pytest.raises(references.CombineError, match="finer than microseconds"):
        references.combine(str(tmp_path / "?.nc"), "time").result()


CALENDARS = [
    "standard",
    "proleptic_gregorian",
    "julian",
    "noleap",
    "all_leap",
    "360_day",
    "gregorian",
    "365_day",
    "366_day",
]


@given(
    st.sampled_from(CALENDARS),
    st.sampled_from(["days", "hours", "minutes", "seconds", "milliseconds", "microseconds"]),
    st.integers(1, 3000), st.integers(1, 12), st.integers(1, 28),
    st.lists(st.integers(-(10**9), 10**9), min_size=1, max_size=8),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_dates_are_those_of_cftime(calendar, unit, year, month, day, values):
    """Times of every calendar and unit are the instants that cftime makes of them."""
    days = {"days": 1, "hours": 24}.get(unit, 24 * 60)
    times = np.array(values) % (1000 * 365 * days)
    units = parse_units(f"{unit} since {year:04}-{month:02}-{day:02}", calendar)
    found = instants(times, units)
    stamps = cftime.num2date(times, f"{unit} since {year:04}-{month:02}-{day:02}", calendar)
    first = cftime.datetime(2000, 1, 1, calendar=calendar)
    origin = parse_units("days since 2000-01-01", calendar).origin
    told = [stamp - first for stamp in np.atleast_1d(stamps)]
    assert (found - origin).tolist() == [
        each.days * 86_400_000_000 + each.seconds * 1_000_000 + each.microseconds for each in told
    ]
    again, said = encode_times(found, units)
    assert (instants(again, parse_units(said, calendar)) == found).all()
