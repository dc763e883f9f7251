"""Where the mistakes of `docs/reference/mistakes.md` are made: a directory with a few places, and the names they use."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
from scipy.io import netcdf_file

import fsstore as ts
from fsstore import references

__all__ = ["made", "place"]


def place(directory: Path) -> dict[str, object]:
    """Make the places in a directory, which has to be the current one; return the names for mistakes."""
    options = {"mode": "w", "dtype": "f4", "shape": [4, 6], "chunks": [2, 3]}
    array = ts.open("a.zarr|zarr3:", **options).result()
    array.write(np.arange(24, dtype="f4").reshape(4, 6)).result()
    group = ts.open_group("g", mode="w").result()
    group.create_array("t", shape=[4], dtype="i2", dimension_names=["time"]).result()
    group.create_group("deep").result()
    (directory / "refs.json").write_text(json.dumps({"version": 1, "refs": {"k": "inline"}}))
    (directory / "cut.json").write_text('{"version": 1, "refs": {"k": "inl')
    (directory / "cut.zip").write_bytes(b"PK\3\4" + bytes(20))
    (directory / "empty").mkdir()
    (directory / "notes.txt").write_text("no array")
    (directory / "old").mkdir()
    (directory / "old" / "zarr.json").write_text('{"zarr_format": 4, "node_type": "array"}')
    ts.open_group("g2", mode="w", zarr_format=2).result()
    (directory / "nothing.bin").touch()
    with netcdf_file("d.nc", "w") as file:
        file.createDimension("x", 2)
        file.createVariable("t", "i2", ("x",))[:] = [1, 2]
    (directory / "cut.nc").write_bytes((directory / "d.nc").read_bytes()[:60])
    read_only = ts.open_group("g", mode="r").result()
    names = {"ts": ts, "np": np, "references": references, "a": array, "g": group, "r": read_only, "os": os}
    return names


def made(code: str, names: dict[str, object]) -> str:
    """Return what the error of a mistake says, or an empty text if there is none."""
    try:
        value = eval(code, dict(names))
        if isinstance(value, ts.Future):
            value.result()
    except Exception as error:
        text = str(error.args[0]) if isinstance(error, KeyError) else str(error)
        return " ".join(text.replace(os.getcwd(), "…").split())
    return ""
