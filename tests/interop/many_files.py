"""Collections of NetCDF files that drift: what a file is, how it is written, and what it holds when read by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import xarray as xr

__all__ = ["WIDE", "FileOf", "drifted", "expected", "series", "wide_files", "write"]

NY, NX = 3, 5
WIDE = tuple(f"v{number:02}" for number in range(20))


@dataclass(frozen=True)
class FileOf:
    """One file: steps `start` to `start + steps` of a series, and how its variable is stored."""

    start: int
    steps: int = 4
    dtype: str = "i2"
    scale: float | None = 0.5
    offset: float | None = 10.0
    fill: Any = -999
    chunks: tuple[int, ...] | None = (2, 3, 5)
    zlib: bool = True
    shuffle: bool = True
    units: str = "K"
    time_units: str = "hours since 2000-01-01"
    calendar: str = "standard"
    unlimited: bool = False
    lacks: bool = False
    endian: str = "native"
    form: str = "NETCDF4"
    extra: dict[str, Any] = field(default_factory=dict)


def series(count: int, steps: int = 4, **same: Any) -> list[FileOf]:
    """Return files that follow each other."""
    return [FileOf(start=number * steps, steps=steps, **same) for number in range(count)]


def write(path: Path, of: FileOf) -> None:
    """Write a file; raw values depend on the step alone."""
    with netCDF4.Dataset(path, "w", format=of.form) as data:
        data.set_auto_maskandscale(False)
        data.title = "a series"
        data.history = f"written as {path.name}"
        data.createDimension("time", None if of.unlimited else of.steps)
        data.createDimension("y", NY)
        data.createDimension("x", NX)
        time = data.createVariable("time", "f8", ("time",))
        time.units, time.calendar = of.time_units, of.calendar
        import cftime

        stamps = cftime.num2date(np.arange(of.start, of.start + of.steps), "hours since 2000-01-01", of.calendar)
        time[:] = cftime.date2num(stamps, of.time_units, of.calendar)
        data.createVariable("x", "f4", ("x",))[:] = np.arange(NX) / 2
        if of.lacks:
            return
        options: dict[str, Any] = {"endian": of.endian} if of.form == "NETCDF4" else {}
        if of.form == "NETCDF4" and of.chunks is not None:
            sides = [min(a, b) if not of.unlimited else a for a, b in zip(of.chunks, (of.steps, NY, NX), strict=True)]
            options |= {"zlib": of.zlib, "shuffle": of.shuffle, "chunksizes": sides}
        if of.fill is not None:
            options["fill_value"] = of.fill
        kind = np.dtype(of.dtype).newbyteorder({"big": ">", "little": "<"}.get(of.endian, "="))
        values = data.createVariable("v", kind, ("time", "y", "x"), **options)
        values.set_auto_maskandscale(False)
        if of.scale is not None:
            values.scale_factor = of.scale
        if of.offset is not None:
            values.add_offset = of.offset
        values.units = of.units
        for name, value in of.extra.items():
            values.setncattr(name, value)
        raw = raw_values(of)
        values[:] = raw


def raw_values(of: FileOf) -> np.ndarray[Any, Any]:
    """Return the stored values of a file."""
    step = np.arange(of.start, of.start + of.steps)[:, None, None]
    raw = (step * 7 + np.arange(NY)[:, None] * 3 + np.arange(NX)).astype(of.dtype)
    if of.fill is not None:
        raw[(raw.astype(int) % 11) == 0] = of.fill
    return raw


def expected(paths: Sequence[Path], files: Sequence[FileOf]) -> np.ndarray[Any, Any]:
    """Return the variable as reading file by file gives it, each decoded by its own attributes; NaN where it lacks."""
    pairs = sorted(zip(paths, files, strict=True), key=lambda pair: pair[1].start)
    parts = []
    for path, of in pairs:
        with xr.open_dataset(path, decode_times=False) as one:
            parts.append(np.full((of.steps, NY, NX), np.nan, "f4") if of.lacks else one["v"].values)
    return np.concatenate(parts)


def drifted(files: list[FileOf], at: int, **changes: Any) -> list[FileOf]:
    """Return the files, one of them changed."""
    out = list(files)
    out[at] = replace(out[at], **changes)
    return out


def wide_files(folder: Path, count: int, steps: int = 4) -> list[Path]:
    """Write files of twenty variables: one is made, and its bytes are changed for the others.

    All values of a file are its number and a hundredth of that of the variable.
    """
    import h5py

    first = folder / "00000.nc"
    with netCDF4.Dataset(first, "w") as data:
        data.createDimension("time", steps)
        data.createDimension("x", NX)
        time = data.createVariable("time", "f8", ("time",))
        time.units = "hours since 2000-01-01"
        time[:] = np.arange(steps)
        for name in WIDE:
            values = data.createVariable(name, "f4", ("time", "x"), chunksizes=(steps, NX))
            values.units = "K"
            values[:] = 0
    with h5py.File(first) as file:
        where = {name: file[name].id.get_chunk_info(0).byte_offset for name in WIDE}
        where["time"] = file["time"].id.get_offset()
    template, out = first.read_bytes(), []
    for number in range(count):
        changed = bytearray(template)
        values = {"time": np.arange(steps, dtype="f8") + steps * number}
        values |= {name: np.full(steps * NX, number + at / 100, "f4") for at, name in enumerate(WIDE)}
        for name, each in values.items():
            changed[where[name] : where[name] + each.nbytes] = each.tobytes()
        out.append(folder / f"{number:05}.nc")
        out[-1].write_bytes(changed)
    return out
