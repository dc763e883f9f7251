"""Coordinates that files do not have: given by value, told by names, attributes and functions; files are added later."""

from __future__ import annotations

import re

import numpy as np
import pytest
import xarray as xr

from fsstore import references

DAYS = [np.datetime64("2000-01-03"), np.datetime64("2000-01-01"), np.datetime64("2000-01-02")]
DATED = re.compile(r"run_(?P<year>\d{4})(?P<month>\d\d)(?P<day>\d\d)")


def _write(folder, day, value):
    text = str(day).replace("-", "")
    data = xr.Dataset(
        {"t": ("y", np.full(4, float(value)))},
        attrs={"made": f"{day}T00:00:00Z", "run": int(value), "tag": f"r{value}"},
    )
    path = folder / f"run_{text}_{value}.nc"
    data.to_netcdf(path, engine="netcdf4")
    return str(path)


@pytest.fixture
def paths(tmp_path):
    """Give three files without a time, whose names and attributes tell it."""
    return [_write(tmp_path, day, value) for value, day in enumerate(DAYS)]


def _read(place):
    return xr.open_dataset(str(place), engine="fsstore")


RULES = {
    "values": (DAYS, "2000"),
    "pattern of a date": (DATED, "2000"),
    "pattern of a number": (re.compile(r"_(\d)\.nc"), "number"),
    "attribute of a date": ("attr:made", "2000"),
    "attribute of a number": ("attr:run", "number"),
    "attribute of a text": ("attr:tag", "text"),
    "function": (lambda url: np.datetime64(DATED.search(url)[0].removeprefix("run_").replace("200001", "2000-01-")), "2000"),
}  # fmt: skip


@pytest.mark.parametrize("name", RULES)
def test_rules(tmp_path, paths, name):
    """However it is told, a file lies where its coordinate says, as a time, a number or a text."""
    rule, kind = RULES[name]
    references.combine(paths, "day", coords={"day": rule}).result().save(tmp_path / "all.mosaic")
    with _read(tmp_path / "all.mosaic") as found:
        order = [1, 2, 0] if kind == "2000" else [0, 1, 2]
        np.testing.assert_array_equal(found["t"].values[:, 0], order)
        want = {"2000": np.sort(DAYS), "number": [0, 1, 2], "text": ["r0", "r1", "r2"]}[kind]
        np.testing.assert_array_equal(found["day"].values, want)


@pytest.mark.parametrize("name", RULES)
def test_files_are_added_dropped_and_scanned_again(tmp_path, paths, name):
    """A dataset whose coordinates were given is added to; rules that can be written down are known."""
    rule, kind = RULES[name]
    place = tmp_path / "all.mosaic"
    references.combine(paths, "day", coords={"day": rule}).result().save(place)
    new = _write(tmp_path, np.datetime64("2000-01-04"), 3)
    if name in ("values", "function"):
        with pytest.raises(references.CombineError, match="give those of the new files as `coords`"):
            references.append(place, new).result()
        given = {"day": [np.datetime64("2000-01-04")] if name == "values" else rule}
        references.append(place, new, coords=given).result()
    else:
        references.append(place, new).result()
    order = [1, 2, 0, 3] if kind == "2000" else [0, 1, 2, 3]
    with _read(place) as found:
        np.testing.assert_array_equal(found["t"].values[:, 0], order)
        assert found["day"].values[-1] == {"2000": np.datetime64("2000-01-04"), "number": 3, "text": "r3"}[kind]
    xr.load_dataset(paths[1]).assign(t=("y", np.full(4, 9.0))).to_netcdf(paths[1], engine="netcdf4")
    references.replace(place, paths[1]).result()
    references.drop(place, paths[0]).result()
    with _read(place) as found:
        assert sorted(found["t"].values[:, 0].tolist()) == [2, 3, 9]


@pytest.mark.parametrize(
    ("coords", "why"),
    [
        ({"day": DAYS[:2]}, "2 coordinates .* for 3 files"),
        ({"hour": DAYS}, "are not combined"),
        ({"day": re.compile("x(y)z")}, "does not fit"),
        ({"day": re.compile("run")}, "has no group"),
        ({"day": "attr:absent"}, "no attribute"),
        ({"day": "made"}, "attr:name"),
        ({"day": [object(), 1, 2]}, "no number"),
        ({"day": re.compile(r"run_(?P<year>\d{4})(?P<month>\d\d)\d(?P<day>\d)(?P<hour>.)")}, "could not|no number|does not|invalid"),
    ],
    ids=["too few", "another dimension", "no match", "no group", "no attribute", "a text", "an object", "no date"],
)  # fmt: skip
def test_what_cannot_be_is_refused(paths, coords, why):
    """Rules that tell nothing are errors that say which and where."""
    with pytest.raises(ValueError, match=why):
        references.combine(paths, "day", coords=coords, dry_run=True).result()


def test_a_file_that_fails_keeps_the_others_in_place(tmp_path, paths):
    """Coordinates belong to their files, also where one of them cannot be scanned."""
    (tmp_path / "damaged.nc").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(100))
    given = [DAYS[0], np.datetime64("2000-02-01"), *DAYS[1:]]
    listed = [paths[0], str(tmp_path / "damaged.nc"), *paths[1:]]
    with pytest.warns(UserWarning, match="1 of 4 files cannot be scanned and are left out"):
        combined = references.combine(listed, "day", coords={"day": given}).result()
    assert list(combined.report.left_out) == [listed[1]]
    combined.save(tmp_path / "all.mosaic")
    with _read(tmp_path / "all.mosaic") as found:
        np.testing.assert_array_equal(found["day"].values, np.sort(DAYS))


@pytest.mark.filterwarnings("ignore")  # zarr-python warns of texts of fixed length
@pytest.mark.parametrize("version", [2, 3])
def test_hierarchies_of_both_versions(tmp_path, version):
    """Texts that tell where hierarchies lie, and times that each counts from its own day, are written in their version."""
    places = []
    for number, day in enumerate(DAYS):
        data = xr.Dataset({"t": ("y", np.full(4, float(number))), "made": ((), day), "mode": ((), f"m{number}")})
        places.append(str(tmp_path / f"{number}.zarr"))
        data.assign_attrs(tag=f"r{number}").to_zarr(places[-1], zarr_format=version, consolidated=False)
    combined = references.combine(places, "run", coords={"run": "attr:tag"}).result()
    combined.save(tmp_path / "all.json")
    found = {key.rpartition("/")[2] for key in references.open(tmp_path / "all.json")}
    assert (".zarray" in found, "zarr.json" in found) == (version == 2, version == 3)
    with xr.open_dataset(str(tmp_path / "all.json"), engine="fsstore") as found:
        assert found["run"].values.tolist() == ["r0", "r1", "r2"]
        np.testing.assert_array_equal(found["made"].values, DAYS)
        assert found["mode"].values.astype(str).tolist() == ["m0", "m1", "m2"]
