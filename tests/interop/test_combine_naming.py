"""Variables under other names, left out and made coordinates, in what is combined and in what is added later."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

from fsstore import references


def _write(folder, number, **more):
    steps = 2 * number + np.arange(2.0)
    data = xr.Dataset(
        {
            "T": (("t", "y"), steps[:, None] + np.zeros(3), {"coordinates": "lat"}),
            "t_bnds": (("t", "nv"), np.stack([steps, steps + 1], axis=1)),
            "lat": ("y", np.arange(3.0)),
            "junk": ((), number),
            **more,
        },
        {"t": ("t", steps, {"units": "days since 2000-01-01", "bounds": "t_bnds"})},
    )
    path = folder / f"{number}.nc"
    data.to_netcdf(path, engine="netcdf4")
    return str(path)


def _read(place):
    return xr.open_dataset(str(place), engine="fsstore")


RENAMED = {"t": "time", "t_bnds": "time_bnds", "T": "temperature", "lat": "latitude", "junk": None}


def test_a_coordinate_is_renamed_with_its_dimension(tmp_path):
    """Dimensions and the attributes that name variables have the new names, also in files that are added."""
    paths = [_write(tmp_path, number) for number in range(3)]
    combined = references.combine(paths[:2], "time", variables=RENAMED, as_coordinates=["latitude"]).result()
    assert combined.report.dims == {"time": 4}
    combined.save(tmp_path / "all.mosaic")
    references.append(tmp_path / "all.mosaic", paths[2]).result()
    with _read(tmp_path / "all.mosaic") as found:
        assert found["temperature"].dims == ("time", "y")
        np.testing.assert_array_equal(found["temperature"].values[:, 0], np.arange(6.0))
        np.testing.assert_array_equal(
            found["time"].values, np.datetime64("2000-01-01") + np.arange(6) * np.timedelta64(1, "D")
        )
        np.testing.assert_array_equal(found["time_bnds"].values[:, 0], found["time"].values)
        assert set(found.coords) == {"time", "latitude"}
        assert set(found.data_vars) == {"temperature", "time_bnds"}


def test_a_file_that_lacks_a_renamed_variable_is_added(tmp_path):
    """A variable that is missing in what is added is missing there, whatever it is called."""
    paths = [_write(tmp_path, number, **({"extra": ("t", np.ones(2))} if number < 2 else {})) for number in range(3)]
    names = {**RENAMED, "extra": "more"}
    references.combine(paths[:2], "time", variables=names).result().save(tmp_path / "all.mosaic")
    references.append(tmp_path / "all.mosaic", paths[2]).result()
    with _read(tmp_path / "all.mosaic") as found:
        np.testing.assert_array_equal(found["more"].values, [1, 1, 1, 1, np.nan, np.nan])


def test_a_scalar_of_another_name_makes_the_dimension(tmp_path):
    """A scalar variable that is renamed places files along the dimension of its new name."""
    for number in range(3):
        data = xr.Dataset({"v": ("y", np.full(3, float(number))), "forecast_hour": ((), 6 * (2 - number))})
        data.to_netcdf(tmp_path / f"{number}.nc", engine="netcdf4")
    names = {"forecast_hour": "step"}
    references.combine(str(tmp_path / "?.nc"), "step", variables=names).result().save(tmp_path / "all.mosaic")
    with _read(tmp_path / "all.mosaic") as found:
        np.testing.assert_array_equal(found["step"].values, [0, 6, 12])
        np.testing.assert_array_equal(found["v"].values[:, 0], [2, 1, 0])


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"variables": {"absent": "x"}}, "no variable"),
        ({"variables": {"T": "lat"}}, "cannot be called"),
        ({"variables": {"t": "y"}}, "cannot be called"),
        ({"variables": {"T": "../up"}}, "cannot be called"),
        ({"as_coordinates": ["absent"]}, "no variable"),
    ],
)
def test_names_that_cannot_be(tmp_path, options, why):
    """A name that is not there, or is taken, is an error."""
    path = _write(tmp_path, 0)
    with pytest.raises((ValueError, FileNotFoundError), match=why):
        references.combine([path], "t", **options).result()


def _passes(folder, changes=({}, {}, {})):
    """Write passes of a satellite, whose orbit, mode and time of making are scalars."""
    for number, more in enumerate(changes):
        steps = 1 + number
        start = [0, 1, 3][number]
        variables = {
            "v": ("time", np.arange(start, start + steps) * 1.0),
            "orbit": ((), 100 + number), "made": ((), number, {"units": f"days since 2000-01-0{1 + number}"}),
            "weights": ("band", np.array([1.0, 2.0]) * (1 + number)), "mode": ((), f"m{number}"), **more,
        }  # fmt: skip
        data = xr.Dataset(
            {name: each for name, each in variables.items() if each is not None},
            {"time": np.arange(start, start + steps)},
        )
        data.to_netcdf(folder / f"{number}.nc", engine="netcdf4")
    return [str(folder / f"{number}.nc") for number in range(3)]


ALONG = dict.fromkeys(("orbit", "made", "weights", "mode"), "time")


def test_what_differs_between_files_is_repeated(tmp_path):
    """Numbers, times, texts and small arrays of each file stand for all its steps, also of files that are added."""
    paths = _passes(tmp_path)
    with pytest.raises(references.CombineError, match="other values"):
        references.combine(paths, "time").result()
    references.combine(paths[:2], "time", along=ALONG).result().save(tmp_path / "all.mosaic")
    references.append(tmp_path / "all.mosaic", paths[2]).result()
    with _read(tmp_path / "all.mosaic") as found:
        of = [0, 1, 1, 2, 2, 2]
        np.testing.assert_array_equal(found["v"].values, np.arange(6.0))
        np.testing.assert_array_equal(found["orbit"].values, 100 + np.array(of))
        np.testing.assert_array_equal(found["weights"].values, (1 + np.array(of))[:, None] * [1.0, 2.0])
        assert found["mode"].values.astype(str).tolist() == [f"m{number}" for number in of]
        days = np.datetime64("2000-01-01") + 2 * np.array(of) * np.timedelta64(1, "D")
        np.testing.assert_array_equal(found["made"].values, days)


def test_a_repeated_variable_that_some_lack_is_missing(tmp_path):
    """Without a value it is NaN; what is packed in another way is unpacked."""
    paths = _passes(tmp_path, ({}, {"orbit": None, "weights": ("band", np.array([2.0, 4.0]))}, {}))
    along = {"orbit": "time", "weights": "time"}
    names = {"mode": None, "made": None}
    references.combine(paths, "time", along=along, variables=names).result().save(tmp_path / "all.mosaic")
    with _read(tmp_path / "all.mosaic") as found:
        np.testing.assert_array_equal(found["orbit"].values, [100, np.nan, np.nan, 102, 102, 102])


@pytest.mark.parametrize("along", [{"absent": "time"}, {"orbit": "band"}])
def test_what_cannot_be_repeated_is_told(tmp_path, along):
    """A variable that is not there, and a dimension along which files are not combined, are errors."""
    with pytest.raises(references.CombineError):
        references.combine(_passes(tmp_path), "time", along=along).result()
