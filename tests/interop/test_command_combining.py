"""`refs combine` and `refs append`: what they print, write and return, on small files."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import xarray as xr

from fsstore.command.main import main


@pytest.fixture
def days(tmp_path, monkeypatch):
    """Three NetCDF files that follow each other, the last of which is packed, in the working directory."""
    monkeypatch.chdir(tmp_path)
    for number in range(3):
        time = np.arange(2.0) + 2 * number
        packed = {"t": {"dtype": "i2", "scale_factor": 0.5, "_FillValue": -999}} if number == 2 else {}
        xr.Dataset({"t": ("time", time * 10)}, {"time": time}).to_netcdf(f"day{number}.nc", encoding=packed)
    return tmp_path


def _run(capsys, *arguments):
    code = main(list(arguments))
    out, err = capsys.readouterr()
    return code, out, err


def _values(name):
    with xr.open_dataset(f"file://{name}", engine="fsstore") as found:
        return found["t"].values.tolist()


def test_a_dry_run_prints_the_report_and_writes_nothing(days, capsys):
    """The report says what would become of each array, and no file comes to be."""
    before = sorted(days.iterdir())
    code, out, err = _run(capsys, "refs", "combine", "all.mosaic", "day*.nc", "--dim", "time", "--dry-run")
    assert (code, err) == (0, "")
    assert out.startswith("3 files along time: 6\n")
    assert "t (6,): layers from 2 sources, 3 files" in out
    assert "scale_factor" in out and "day2.nc" in out
    assert sorted(days.iterdir()) == before
    code, out, _ = _run(capsys, "refs", "combine", "x.json", "day*.nc", "--dim", "time", "--dry-run", "--json")
    assert code == 0
    assert json.loads(out)["dims"] == {"time": 6}
    assert sorted(days.iterdir()) == before


def test_what_is_combined_and_appended_is_read(days, capsys):
    """The dataset holds the values of two files, then of three; a file is not added twice, nor a dataset replaced."""
    combine = ["refs", "combine", "all.mosaic", "day0.nc", "day1.nc", "--dim", "time"]
    assert _run(capsys, *combine)[0] == 0
    assert _values("all.mosaic") == [0, 10, 20, 30]
    code, out, _ = _run(capsys, "refs", "append", "all.mosaic", "day2.nc")
    assert code == 0
    assert out.startswith("3 files along time: 6\n")
    assert _values("all.mosaic") == [0, 10, 20, 30, 40, 50]
    code, _, err = _run(capsys, "refs", "append", "all.mosaic", "day2.nc")
    assert code == 3
    assert "already" in err
    code, _, err = _run(capsys, *combine)
    assert code == 3
    assert "ALREADY_EXISTS" in err
    assert _values("all.mosaic") == [0, 10, 20, 30, 40, 50]
    assert _run(capsys, *combine, "--overwrite")[0] == 0
    assert _values("all.mosaic") == [0, 10, 20, 30]


def test_files_are_replaced_and_dropped(days, capsys):
    """A file that was written anew is an error until it is scanned again, and one that is dropped is gone."""
    combine = ["refs", "combine", "all.mosaic", "day0.nc", "day1.nc", "--dim", "time"]
    assert _run(capsys, *combine)[0] == 0
    (days / "day1.nc").write_bytes((days / "day1.nc").read_bytes())
    code, _, err = _run(capsys, "cat", "all.mosaic|mosaic:t")
    assert code == 3
    assert "day1.nc" in err
    assert "scan it again" in err
    code, out, _ = _run(capsys, "refs", "replace", "all.mosaic", "day1.nc")
    assert code == 0
    assert out.startswith("2 files along time: 4\n")
    assert _values("all.mosaic") == [0, 10, 20, 30]
    code, out, _ = _run(capsys, "refs", "drop", "all.mosaic", "*1.nc", "--json")
    assert code == 0
    assert json.loads(out)["dims"] == {"time": 2}
    assert _values("all.mosaic") == [0, 10]
    code, _, err = _run(capsys, "refs", "replace", "all.mosaic", "day1.nc")
    assert code == 3
    assert "`append` adds it" in err


def test_what_cannot_be_combined_is_told(days, capsys):
    """A text file, and one that is not there, are named with the reason."""
    (days / "note.txt").write_text("hello")
    code, out, _ = _run(capsys, "refs", "combine", "all.mosaic", "day0.nc", "note.txt", "none.nc", "--dim", "time")
    assert code == 1
    assert out.startswith("1 file along time: 2\n")
    assert re.search(r"left out: note\.txt: .*begins like no format that can be combined", out)
    assert re.search(r"left out: none\.nc: There is no file and no zarr hierarchy at .*none\.nc", out)


def test_files_that_are_left_out_make_the_answer_no(days, capsys):
    """A damaged file is named, the others are combined, and the exit code is 1; so it is when it is added."""
    (days / "day1.nc").write_bytes((days / "day1.nc").read_bytes()[:600])
    code, out, _ = _run(capsys, "refs", "combine", "all.mosaic", "day0.nc", "day1.nc", "--dim", "time")
    assert code == 1
    assert "left out: day1.nc" in out
    assert _values("all.mosaic") == [0, 10]
    code, out, _ = _run(capsys, "refs", "append", "all.mosaic", "day1.nc", "day2.nc")
    assert code == 1
    assert "left out: day1.nc" in out
    assert _values("all.mosaic") == [0, 10, 40, 50]


def test_differences_and_overlaps_as_asked_for(days, capsys):
    """`--on-difference` and `--on-overlap` reach combining; an error ends with 3 and leaves nothing behind."""
    head = ["refs", "combine", "all.mosaic"]
    code, _, err = _run(capsys, *head, "day*.nc", "--dim", "time", "--on-difference", "raise")
    assert (code, "differ" in err) == (3, True)
    (days / "again.nc").write_bytes((days / "day0.nc").read_bytes())
    assert _run(capsys, *head, "day0.nc", "again.nc", "--dim", "time")[0] == 3
    assert not (days / "all.mosaic").exists()
    code, out, _ = _run(capsys, *head, "day0.nc", "again.nc", "--dim", "time", "--on-overlap", "last")
    assert (code, "left out: day0.nc" in out) == (1, True)
    assert _values("all.mosaic") == [0, 10]


def test_a_reference_set_is_written_by_its_name(days, capsys):
    """A target that ends in `.json` is a reference set, which layers are refused for."""
    assert _run(capsys, "refs", "combine", "all.json", "day0.nc", "day1.nc", "--dim", "time")[0] == 0
    assert json.loads((days / "all.json").read_text())["version"] == 1
    assert _values("all.json") == [0, 10, 20, 30]
    code, _, err = _run(capsys, "refs", "combine", "layers.json", "day*.nc", "--dim", "time")
    assert (code, "mosaic" in err) == (3, True)
    assert not (days / "layers.json").exists()


def test_files_without_a_time_are_placed_by_their_names(days, capsys):
    """Coordinates come from names or attributes; variables are renamed and left out, also in what is appended."""
    for day in (3, 1, 2):
        data = xr.Dataset({"w": ("x", [day, day]), "junk": ((), 0.0), "n": ((), day)}, attrs={"day": day})
        data.to_netcdf(f"w_2024010{day}.nc")
    dated = r"time=_(?P<year>\d{4})(?P<month>\d\d)(?P<day>\d\d)"
    files = ["w_20240103.nc", "w_20240101.nc"]
    names = ["--rename", "w=wind", "--leave-out", "junk", "--along", "n=time"]
    assert _run(capsys, "refs", "combine", "w.mosaic", *files, "--dim", "time", "--coord", dated, *names)[0] == 0
    assert _run(capsys, "refs", "append", "w.mosaic", "w_20240102.nc")[0] == 0
    with xr.open_dataset("file://w.mosaic", engine="fsstore") as found:
        assert set(found.data_vars) == {"wind", "n"}
        assert found["n"].values.tolist() == [1, 2, 3]
        assert found["wind"].sel(time="2024-01-02").values.tolist() == [2, 2]
    by_attribute = ["refs", "combine", "a.mosaic", "w_*.nc", "--dim", "day", "--coord", "day=attr:day"]
    assert _run(capsys, *by_attribute)[0] == 0
    for wrong in (["--coord", "n"], ["--coord", "n=("], ["--rename", "w"]):
        assert _run(capsys, *by_attribute[:6], *wrong)[0] == 2


def test_a_dataset_is_inspected_verified_and_rewritten(days, capsys):
    """The commands for sets take datasets: these stay datasets, to which files can be added."""
    assert _run(capsys, "refs", "combine", "all.mosaic", "day*.nc", "--dim", "time")[0] == 0
    assert _run(capsys, "refs", "verify", "all.mosaic", "--decode")[0] == 0
    assert "relative" in _run(capsys, "refs", "inspect", "all.mosaic")[1]
    (days / "far").mkdir()
    for number in range(3):
        (days / f"day{number}.nc").rename(days / "far" / f"day{number}.nc")
    assert _run(capsys, "refs", "verify", "all.mosaic")[0] == 1
    assert _run(capsys, "refs", "rewrite", "all.mosaic", "moved.mosaic", "day=far/day")[0] == 0
    assert _values("moved.mosaic") == [0, 10, 20, 30, 40, 50]
    assert _run(capsys, "refs", "verify", "moved.mosaic")[0] == 0
