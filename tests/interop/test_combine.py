"""Many files as one: what is combined holds the numbers that reading file by file gives, however files drift."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

from fsstore import references

sys.path.insert(0, str(Path(__file__).parent))  # test modules are imported by path, one by one

from many_files import FileOf, drifted, expected, series, write

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore:.*:xarray.coding.common.SerializationWarning")

DRIFTS = {
    "scale and offset": {"scale": 0.25, "offset": -3.0},
    "scale alone": {"offset": None},
    "not packed": {"scale": None, "offset": None},
    "another codec": {"shuffle": False},
    "not compressed": {"zlib": False},
    "another chunk size": {"chunks": (4, 1, 5)},
    "not chunked": {"chunks": None},
    "byte order": {"endian": "big"},
    "type": {"dtype": "i4"},
    "floats": {"dtype": "f8", "scale": None, "offset": None, "fill": 1e20},
    "fill value": {"fill": -1},
    "no fill value": {"fill": None},
    "missing variable": {"lacks": True},
    "NetCDF 3": {"form": "NETCDF3_CLASSIC"},
    "time units": {"time_units": "days since 1999-01-01"},
    "seconds": {"time_units": "seconds since 2000-01-01 06:00"},
    "unlimited": {"unlimited": True},
    "attribute": {"extra": {"long_name": "another"}},
    "missing_value": {"extra": {"missing_value": np.int16(40)}},
}


def _written(folder, files):
    paths = [folder / f"{number:03d}.nc" for number in range(len(files))]
    for path, of in zip(paths, files, strict=True):
        write(path, of)
    return paths


def _read(combined, folder, name="all.mosaic"):
    combined.save(folder / name, overwrite=True)
    return xr.open_dataset(str(folder / name), engine="fsstore")


@pytest.mark.parametrize("drift", DRIFTS)
def test_a_file_that_drifts_gives_no_wrong_number(tmp_path, drift):
    """Whatever one file differs in, values and times are those of reading each file by itself."""
    files = drifted(series(4), 2, **DRIFTS[drift])
    paths = _written(tmp_path, files)
    combined = references.combine(paths[::-1], "time").result()
    found = _read(combined, tmp_path)
    want = expected(paths, files)
    np.testing.assert_array_equal(found["v"].values, want.astype(found["v"].dtype))
    hours = np.arange(16) * np.timedelta64(1, "h")
    np.testing.assert_array_equal(found["time"].values, np.datetime64("2000-01-01") + hours)
    np.testing.assert_array_equal(found["v"][3:11, 1, ::2].values, want[3:11, 1, ::2].astype(found["v"].dtype))


@pytest.mark.parametrize("drift", ["another codec", "scale and offset", "missing variable", "type"])
def test_combined_files_are_what_xarray_makes_of_them(tmp_path, drift):
    """The dataset equals that of `open_mfdataset`, by its dimensions, coordinates and values."""
    files = drifted(series(3), 1, **DRIFTS[drift])
    paths = _written(tmp_path, files)
    with xr.open_mfdataset(paths, combine="by_coords", data_vars="all", join="outer", compat="no_conflicts") as want:
        found = _read(references.combine(paths, "time").result(), tmp_path)
        assert dict(found.sizes) == dict(want.sizes)
        xr.testing.assert_equal(found.load(), want.load())
        assert found["v"].dtype == want["v"].dtype


def test_files_that_agree_become_references_that_every_tool_reads(tmp_path):
    """Without a difference the set is one of plain references, equal through zarr-python and through us."""
    files = [*series(3), FileOf(start=12, steps=3)]
    paths = _written(tmp_path, files)
    combined = references.combine(str(tmp_path / "*.nc"), "time").result()
    assert combined.is_references
    assert combined.report.arrays["v"].how == "references"
    combined.save(tmp_path / "set.json")
    with xr.open_dataset(
        "reference://", engine="zarr",
        backend_kwargs={"storage_options": {"fo": str(tmp_path / "set.json")}, "consolidated": False},
    ) as theirs:  # fmt: skip
        np.testing.assert_array_equal(theirs["v"].values, expected(paths, files))
    with xr.open_dataset(f"{(tmp_path / 'set.json').as_uri()}|reference:", engine="fsstore") as ours:
        np.testing.assert_array_equal(ours["v"].values, expected(paths, files))


def test_a_combined_set_with_layers_is_not_saved_as_a_reference_set(tmp_path):
    """What a reference set cannot hold is refused with the names of the arrays, not left out."""
    paths = _written(tmp_path, drifted(series(2), 1, scale=0.25))
    combined = references.combine(paths, "time").result()
    with pytest.raises(ValueError, match='cannot hold "v"'):
        combined.save(tmp_path / "set.json")


def test_the_report_says_which_file_differs_in_what(tmp_path):
    """A dry run names the drift, the file that has it, and what is done about it; nothing is written."""
    paths = _written(tmp_path, drifted(drifted(series(4), 2, scale=0.25), 3, lacks=True))
    report = references.combine(paths, "time", dry_run=True).result()
    found = {each.what: each for each in report.arrays["v"].differences}
    assert list(found) == ["attribute scale_factor", "missing variable"]
    assert list(found["attribute scale_factor"].groups["0.25"]) == [str(paths[2])]
    assert list(found["missing variable"].groups["missing"]) == [str(paths[3])]
    assert report.arrays["v"].how == "layers"
    assert not report.agrees
    assert "differs in attribute scale_factor: 0.5 in" in str(report)
    assert not list(tmp_path.glob("*.mosaic"))


def test_differences_can_be_an_error_or_leave_files_out(tmp_path):
    """`raise` names the difference; `skip` keeps the files that agree and says which are left out."""
    paths = _written(tmp_path, drifted(series(4), 2, scale=0.25))
    with pytest.raises(references.CombineError, match="attribute scale_factor"):
        references.combine(paths, "time", on_difference="raise").result()
    combined = references.combine(paths, "time", on_difference="skip").result()
    assert list(combined.report.left_out) == [str(paths[2])]
    assert combined.is_references
    assert combined.report.dims == {"time": 12}


@pytest.mark.parametrize(
    ("units", "want"), [("degC", 273.15), ("m", None)], ids=["that can be converted", "that cannot"]
)
def test_units_are_converted_or_refused(tmp_path, units, want):
    """Values in another unit are converted where that is known, and never put beside others where it is not."""
    paths = _written(tmp_path, drifted(series(2), 1, units=units))
    begun = references.combine(paths, "time")
    if want is None:
        with pytest.raises(references.CombineError, match="no conversion is known"):
            begun.result()
        return
    found = _read(begun.result(), tmp_path)
    with xr.open_dataset(paths[1]) as own:
        np.testing.assert_allclose(found["v"][4:].values, own["v"].values + want, rtol=1e-12)
    assert found["v"].attrs["units"] == "K"


def test_times_of_other_calendars_keep_their_dates(tmp_path):
    """A file without leap days is placed by its dates among those of the usual calendar."""
    paths = _written(tmp_path, drifted(series(3), 1, calendar="noleap", time_units="days since 1990-01-01"))
    found = _read(references.combine(paths, "time").result(), tmp_path)
    hours = np.arange(12) * np.timedelta64(1, "h")
    np.testing.assert_array_equal(found["time"].values, np.datetime64("2000-01-01") + hours)


def test_doubled_and_overlapping_files_are_named(tmp_path):
    """Files that cover the same steps are an error that names them; gaps are reported."""
    paths = _written(tmp_path, [FileOf(0), FileOf(2), FileOf(20)])
    with pytest.raises(references.CombineError, match=r"overlap.*000.nc.*001.nc"):
        references.combine(paths, "time").result()
    report = references.combine([paths[0], paths[2]], "time", dry_run=True).result()
    assert [each for each in report.problems if "gap" in each and "002.nc" in each]
    twice = _written(tmp_path, [FileOf(0), FileOf(0)])
    with pytest.raises(references.CombineError, match="doubled"):
        references.combine(twice, "time").result()


@pytest.mark.parametrize("wins", ["first", "last"])
def test_of_overlapping_files_one_wins(tmp_path, wins):
    """With `on_overlap` each step comes from one file."""
    paths = _written(tmp_path, [FileOf(0), FileOf(2, scale=0.25)])
    found = _read(references.combine(paths, "time", on_overlap=wins).result(), tmp_path)
    with xr.open_dataset(paths[0]) as a, xr.open_dataset(paths[1]) as b:
        cut = (4, 2) if wins == "first" else (2, 0)
        want = np.concatenate([a["v"].values[: cut[0]], b["v"].values[cut[1] :]])
    np.testing.assert_array_equal(found["v"].values, want)


@pytest.mark.parametrize("layered", [False, True])
def test_several_dimensions(tmp_path, layered):
    """Tiles of a grid of files land where their coordinates say; a tile that is not there is missing."""
    rng = np.random.default_rng(1)
    want = np.full((6, 8), np.nan)
    for i in range(3):
        for j in range(2):
            if (i, j) == (1, 1):
                continue
            values = rng.normal(size=(2, 4))
            want[2 * i : 2 * i + 2, 4 * j : 4 * j + 4] = values
            data = xr.Dataset({"t": (("y", "x"), values)}, {"y": np.arange(2) + 2 * i, "x": np.arange(4.0) + 4 * j})
            zlib = {"zlib": layered and i == 2, "chunksizes": (2, 4)}
            data.to_netcdf(tmp_path / f"{i}{j}.nc", engine="netcdf4", encoding={"t": zlib})
    combined = references.combine(str(tmp_path / "*.nc"), ["y", "x"]).result()
    assert combined.is_references != layered
    found = _read(combined, tmp_path)
    np.testing.assert_array_equal(found["t"].values, want)
    np.testing.assert_array_equal(found["x"].values, np.arange(8.0))


def test_a_dimension_that_no_file_has(tmp_path):
    """Files without the dimension become one step each, by a scalar of its name, or by coordinates that are given."""
    for number in range(3):
        data = xr.Dataset({"t": (("y",), np.arange(4.0) + number), "time": ((), 10.0 * number)})
        data.to_netcdf(tmp_path / f"{number}.nc", engine="netcdf4")
    found = _read(references.combine(str(tmp_path / "?.nc"), "time").result(), tmp_path)
    np.testing.assert_array_equal(found["t"].values, np.arange(4.0) + np.arange(3)[:, None])
    np.testing.assert_array_equal(found["time"].values, [0, 10, 20])
    days = [np.datetime64("2000-01-03"), np.datetime64("2000-01-01"), np.datetime64("2000-01-02")]
    given = references.combine(str(tmp_path / "?.nc"), "day", coords={"day": days}).result()
    found = _read(given, tmp_path, "days.mosaic")
    np.testing.assert_array_equal(found["day"].values, np.sort(days))
    np.testing.assert_array_equal(found["t"].values, np.arange(4.0) + np.array([1, 2, 0])[:, None])


def test_static_variables_must_be_equal(tmp_path):
    """A variable without the dimension is taken once, if it is the same everywhere; else files cannot be combined."""
    for number in range(2):
        data = xr.Dataset({"t": (("time",), np.arange(2.0)), "mask": (("y",), np.arange(3) * number)})
        data.assign_coords(time=np.arange(2) + 2 * number).to_netcdf(tmp_path / f"{number}.nc")
    with pytest.raises(references.CombineError, match='"mask".*other values'):
        references.combine(str(tmp_path / "?.nc"), "time").result()
    kept = references.combine(str(tmp_path / "?.nc"), "time", variables={"mask": None, "t": "u"}).result()
    assert list(_read(kept, tmp_path).data_vars) == ["u"]


def test_a_file_that_cannot_be_scanned_is_named_and_left_out(tmp_path):
    """Damage in one file stops nothing."""
    paths = _written(tmp_path, series(3))
    paths[1].write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(100))
    report = references.combine(paths, "time", dry_run=True).result()
    assert list(report.left_out) == [str(paths[1])]
    assert report.dims == {"time": 8}
    assert [each for each in report.problems if "gap" in each]


drifts = st.fixed_dictionaries({}, optional={
    "scale": st.sampled_from([None, 0.5, 0.25, 2.0]), "offset": st.sampled_from([None, 10.0, -1.0]),
    "fill": st.sampled_from([None, -999, -1]), "dtype": st.sampled_from(["i2", "i4", "i1", "f4", "f8"]),
    "chunks": st.sampled_from([None, (2, 3, 5), (1, 3, 5), (3, 2, 2), (4, 3, 5)]), "zlib": st.booleans(),
    "shuffle": st.booleans(), "lacks": st.booleans(), "unlimited": st.booleans(),
    "steps": st.integers(1, 6), "endian": st.sampled_from(["big", "little"]),
    "time_units": st.sampled_from(["hours since 2000-01-01", "days since 1990-06-01", "minutes since 2001-01-01"]),
})  # fmt: skip


def _random_collection(folder, changes, data):
    """Combine random files and compare a random box with what each file holds."""
    files, start = [], 0
    for change in changes:
        of = FileOf(start=start, **change)
        if of.dtype == "i1":
            of = FileOf(start=start, **{**change, "fill": -1})
        files.append(of)
        start += of.steps
    if all(of.lacks for of in files):
        return
    paths = _written(folder, files)
    found = _read(references.combine(paths, "time").result(), folder)
    want = expected(paths, files)
    low = data.draw(st.integers(0, start - 1))
    high = data.draw(st.integers(low + 1, start))
    step = data.draw(st.integers(1, 3))
    y = data.draw(st.integers(0, 2))
    got = found["v"][low:high:step, y:, ::2].values
    np.testing.assert_array_equal(got.astype("f8"), want[low:high:step, y:, ::2].astype("f8"))


@given(st.lists(drifts, min_size=1, max_size=5), st.data())
@settings(max_examples=6, deadline=None)
def test_random_collections(tmp_path_factory, changes, data):
    """Random files with random drifts, read in random boxes, hold what each file holds."""
    _random_collection(tmp_path_factory.mktemp("many"), changes, data)


@pytest.mark.long
@given(st.lists(drifts, min_size=1, max_size=5), st.data())
@settings(max_examples=200, deadline=None)
def test_many_random_collections(tmp_path_factory, changes, data):
    """The same, more often."""
    _random_collection(tmp_path_factory.mktemp("many"), changes, data)
