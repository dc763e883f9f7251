"""Thirty jobs of everyday that take one to three lines each, as a user of NumPy, zarr or xarray would type them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import fsstore as ts
import fsstore.sync as fs
from fsstore import references

V = np.arange(24, dtype="f4").reshape(4, 6)

# A job, and an expression that is true when it is done.
JOBS = {
    "make an array": ('n = fs.open("n.zarr", mode="w", shape=(4, 6), dtype="f4")', "n.shape == (4, 6) and n[-1, 0] == 0"),
    "make it of values": ('fs.open("n.zarr", data=V)', 'same(fs.open("n.zarr"), V)'),
    "make a member of values": ('g["n"] = V', 'same(g["n"], V)'),
    "choose chunks and codec": ('n = g.create_array("n", data=V, chunks=(2, 3), codec="gzip")', "n.chunks == (2, 3)"),
    "use shards": ('n = g.create_array("n", data=V, chunks=(1, 3), shards=(2, 6))', "n.tensorstore.shards == (2, 6)"),
    "read the last row": ("got = a[-1]", "same(got, V[-1])"),
    "leave out the last": ("got = a[:-1, :-1]", "same(got, V[:-1, :-1])"),
    "slice beyond the end": ("got = a[2:99]", "same(got, V[2:99])"),
    "turn rows round": ("got = a[::-1]", "same(got, V[::-1])"),
    "select by a mask": ("got = a[V > 5]", "same(got, V[V > 5])"),
    "select rows by a list": ("got = a[[0, -1]]", "same(got, V[[0, -1]])"),
    "calculate": ("got = a[:] + 1", "same(got, V + 1)"),
    "take a mean": ("got = float(a[:].mean())", "got == V.mean()"),
    "go through the rows": ("got = [float(row.sum()) for row in a]", "got == V.sum(1).tolist()"),
    "change a row": ("a[-1] = 0", "not fs.open('a.zarr')[-1].any()"),
    "add rows": ("a.append(V, axis=0)", "same(fs.open('a.zarr')[4:], V)"),
    "give another shape": ("a.resize((8, 10))", "fs.open('a.zarr').shape == (8, 10)"),
    "write an attribute": ('a.attrs["units"] = "K"', 'fs.open("a.zarr").attrs["units"] == "K"'),
    "list a group": ("got = list(g)", 'got == ["t"]'),
    "see what is below": ("got = g.tree()", '"t" in got'),
    "rename a member": ('g.move("t", "s")', 'list(g) == ["s"]'),
    "delete a member": ('del g["t"]', "list(g) == []"),
    "delete all": ('ts.delete("g.zarr").result()', '"g.zarr" not in listed()'),
    "write consolidated metadata": ("g.consolidate()", '"consolidated_metadata" in Path("g.zarr/zarr.json").read_text()'),
    "take missing chunks for errors": (
        'got = fails(lambda: fs.open("holes.zarr", fill_missing_data_reads=False)[:])', "got",
    ),
    "rechunk": ('ts.copy("a.zarr", "n.zarr", schema={"chunks": (4, 2)}).result()', 'fs.open("n.zarr").chunks == (4, 2)'),
    "convert v2 to v3": (
        'ts.copy("two.zarr", "n.zarr", schema={"zarr_format": 3}).result()', '"zarr.json" in listed("n.zarr")',
    ),
    "check a copy": (
        'ts.copy("a.zarr", "n.zarr").result()\ngot = ts.verify("n.zarr", "a.zarr").result()', "bool(got)",
    ),
    "copy into an archive": ('ts.copy("g.zarr", "n.zip|zip:").result()', 'same(fs.open("n.zip|zip:t"), V)'),
    "read a NetCDF file": ('got = xr.open_dataset("d.nc", engine="fsstore")', "same(got.t, V)"),
    "read one array of it": ('got = fs.open_group("d.nc", mode="r")["t"][-1]', "same(got, V[-1])"),
    "refer to it": (
        'references.scan("d.nc").save("refs.json")\ngot = xr.open_dataset("refs.json", engine="fsstore")', "same(got.t, V)",
    ),
    "write a dataset": ('ts.write_dataset(d, "n.zarr")', 'xr.open_zarr("n.zarr").load().identical(d)'),
    "write it in blocks that do not align": (
        'ts.write_dataset(d.chunk(y=3, x=4), "n.zarr", schema={"chunks": {"y": 2, "x": 3}})', 'same(xr.open_zarr("n.zarr").t, V)',
    ),
    "make it longer": (
        'for first in (0, 2):\n    ts.write_dataset(d.isel(y=slice(first, first + 2)), "n.zarr", append="y")',
        'same(xr.open_zarr("n.zarr").t, V)',
    ),
    "write a region": (
        'ts.write_dataset(d, "n.zarr")\nts.write_dataset(d.isel(y=[1, 2]) + 1, "n.zarr", region="auto")',
        'same(xr.open_zarr("n.zarr").t[:, 0], [0, 7, 13, 18])',
    ),
    "put another in its place": (
        'ts.write_dataset(d, "n.zarr")\nts.write_dataset(d.isel(y=[0]), "n.zarr", mode="w")', 'same(xr.open_zarr("n.zarr").t, V[:1])',
    ),
}  # fmt: skip


def fails(action):
    """Return whether a chunk that is missing is an error."""
    try:
        action()
    except ts.errors.NotFoundError:
        return True
    return False


@pytest.fixture
def names(tmp_path, monkeypatch):
    """Give arrays, a group, files and a dataset in a directory of its own, and the names that jobs use."""
    monkeypatch.chdir(tmp_path)
    a, g = fs.open("a.zarr", data=V), fs.open_group("g.zarr", mode="a")
    g["t"] = V
    fs.open("two.zarr|zarr2:", data=V)
    fs.open("holes.zarr", mode="w", shape=(3,), dtype="f4")
    d = xr.Dataset({"t": (("y", "x"), V)}, coords={"y": np.arange(4)})
    d.to_netcdf("d.nc", engine="scipy", encoding={"t": {"_FillValue": None}})

    def listed(place="."):
        return [path.name for path in (tmp_path / place).iterdir()]

    return {
        "V": V, "a": a, "d": d, "fails": fails, "fs": fs, "g": g, "listed": listed, "np": np, "Path": Path, "references": references,
        "same": np.array_equal, "ts": ts, "xr": xr,
    }  # fmt: skip


@pytest.mark.filterwarnings("ignore:Consolidated metadata:UserWarning")
@pytest.mark.parametrize("what", JOBS)
def test_a_job_takes_three_lines_at_most(what, names):
    """The lines run as they stand, and do what the job is."""
    lines, is_done = JOBS[what]
    assert len(lines.splitlines()) <= 3
    exec(lines, names)
    assert eval(is_done, names), names.get("got")


def test_there_are_thirty():
    """The jobs are thirty at least."""
    assert len(JOBS) >= 30
