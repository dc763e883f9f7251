"""What the reader of each format, which its users take, finds in a file: the values that ours are compared with."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

Values = Callable[[], Any]

MOST_BYTES = 2**27  # of one array: larger ones are not compared


@dataclass(frozen=True)
class Expected:
    """An array that a file holds: its name, how to read it, and the names of its dimensions if the reader has some.

    `within` says that ours may be longer, as NetCDF makes variables along a dimension without limit.
    """

    name: str
    read: Values
    dims: tuple[str, ...] | None = None
    within: bool = False
    field: str | None = None


def kind_of(path: Path) -> str | None:
    """Return the format of a file by its bytes, as its own library would look for them."""
    with path.open("rb") as file:
        head = file.read(2**16)
    if head[:2] == b"\x1f\x8b" and path.name.lower().endswith((".fits.gz", ".fit.gz", ".fts.gz")):
        return "fits"
    if head[:3] == b"CDF" and head[3:4] in (b"\x01", b"\x02", b"\x05"):
        return "netcdf3"
    if head[:4] in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"):
        return "tiff"
    if head[:9] == b"SIMPLE  =":
        return "fits"
    if any(head[at : at + 8] == b"\x89HDF\r\n\x1a\n" for at in (0, *(512 << n for n in range(7)))):
        return "hdf5"
    is_other = path.suffix.lower() in (".py", ".json", ".tar")
    return "grib" if b"GRIB" in head[:4096] and not is_other else None


def expected_of(kind: str, path: Path) -> list[Expected]:
    """Return what the reader of a format finds; raises what that raises for a file it cannot read."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list({"hdf5": _hdf5, "netcdf3": _netcdf, "tiff": _tiff, "grib": _grib, "fits": _fits}[kind](path))


# HDF5 by h5py; the dimensions of NetCDF 4 by netCDF4.


def _hdf5(path: Path) -> Iterator[Expected]:
    import h5py

    dims = _netcdf_dims(path) if path.suffix.lower() in (".nc", ".nc4") else {}
    file = h5py.File(path, "r")

    def walk(group: Any, prefix: str, above: tuple[Any, ...]) -> Iterator[Expected]:
        for name in group:
            at = f"{prefix}/{name}" if prefix else name
            try:
                if isinstance(group.get(name, getlink=True), h5py.ExternalLink):
                    continue
                found = group[name]
            except (KeyError, OSError, RuntimeError, ValueError, UnicodeError):
                continue  # a link that leads nowhere, or an object that the library cannot open
            if isinstance(found, h5py.Group):
                mark = h5py.h5o.get_info(found.id).addr
                if mark not in above:
                    yield from walk(found, at, (*above, mark))
            elif isinstance(found, h5py.Dataset) and not _is_hidden(found):
                yield Expected(at, _reader(found), dims.get(at), within=True)

    yield from walk(file, "", ())


def _is_hidden(found: Any) -> bool:
    try:
        name = found.attrs.get("NAME", b"")
    except (OSError, TypeError, RuntimeError):
        return False
    return isinstance(name, bytes | np.bytes_) and bytes(name).startswith(b"This is a netCDF dimension but not")


def _reader(found: Any) -> Values:
    import h5py

    def read() -> Any:
        if found.shape is not None and found.size * found.dtype.itemsize > MOST_BYTES:
            raise MemoryError
        value = found[()]
        if found.id.get_create_plist().get_fill_time() == h5py.h5d.FILL_TIME_NEVER and value.dtype.kind in "iuf":
            other = np.full_like(value, 1)
            found.read_direct(other)  # what is in memory stays where nothing was written
            value = np.ma.masked_where(value != other, value)
        if h5py.check_ref_dtype(found.dtype) is h5py.Reference:  # shown as the names of what they lead to
            names = [found.file[each].name if each else "" for each in np.ravel(value)]
            value = np.array(names, object).reshape(found.shape)
        return value

    return read


def _netcdf_dims(path: Path) -> dict[str, tuple[str, ...]]:
    import netCDF4

    try:
        file = netCDF4.Dataset(path)
    except (OSError, RuntimeError, UnicodeError):
        return {}
    out: dict[str, tuple[str, ...]] = {}

    def walk(group: Any) -> None:
        for name, variable in group.variables.items():
            out[f"{group.path}/{name}".lstrip("/")] = variable.dimensions
        for inner in group.groups.values():
            walk(inner)

    walk(file)
    return out


# NetCDF 3 by netCDF4.


def _netcdf(path: Path) -> Iterator[Expected]:
    import netCDF4

    file = netCDF4.Dataset(path)
    file.set_auto_maskandscale(False)
    file.set_auto_chartostring(False)
    for name, variable in file.variables.items():
        yield Expected(name, lambda variable=variable: np.asarray(variable[...]), variable.dimensions)


# TIFF by tifffile, and by GDAL what that cannot decode; LogLuv by libtiff, as GDAL shows codes of its own.


def _tiff(path: Path) -> Iterator[Expected]:
    import imagecodecs
    import rasterio
    import tifffile

    file = tifffile.TiffFile(path)
    for number, series in enumerate(file.series):
        for level, each in enumerate(series.levels):
            read = _first_of(each.asarray, rasterio.open, path, number + level)
            if each.keyframe.compression in (34676, 34677) and not number + level:
                read = partial(imagecodecs.tiff_decode, path.read_bytes())
            yield Expected(f"{number}/{level}", _too_large if each.size > MOST_BYTES else read)


def _too_large() -> Any:
    raise MemoryError


def _first_of(read: Values, opened: Callable[..., Any], path: Path, number: int) -> Values:
    def values() -> Any:
        try:
            return read()
        except Exception:
            if number:
                raise
            with opened(path) as file:
                return file.read()

    return values


# GRIB by ecCodes: each field.


def _grib(path: Path) -> Iterator[Expected]:
    import eccodes

    eccodes.codes_grib_multi_support_on()
    count = 0
    with path.open("rb") as file:
        while True:
            handle = eccodes.codes_grib_new_from_file(file)
            if handle is None:
                break
            yield Expected(str(count), lambda handle=handle: _field(handle))
            count += 1


def _field(handle: Any) -> Any:
    import eccodes

    eccodes.codes_set(handle, "missingValue", 1e34)
    values = eccodes.codes_get_values(handle)
    values = np.where(values == 1e34, np.nan, values)
    if eccodes.codes_is_defined(handle, "alternativeRowScanning") and eccodes.codes_get(
        handle, "alternativeRowScanning"
    ):
        values = values.reshape(eccodes.codes_get(handle, "Ny"), -1)
        values[1::2] = values[1::2, ::-1].copy()
    return values.ravel().astype("f4")


# FITS by astropy: an image is an array, a table one with a field for each column.


def _fits(path: Path) -> Iterator[Expected]:
    from astropy.io import fits

    file = fits.open(path, memmap=False)
    for number, unit in enumerate(file):
        if isinstance(unit, fits.GroupsHDU):
            yield from _columns(number, unit, unit.data.dtype.names or ())
        elif isinstance(unit, fits.BinTableHDU | fits.TableHDU) and not isinstance(unit, fits.CompImageHDU):
            yield from _columns(number, unit, unit.columns.names)
        elif isinstance(unit, fits.PrimaryHDU | fits.ImageHDU | fits.CompImageHDU):
            if unit.shape and all(unit.shape):
                yield Expected(str(number), lambda unit=unit: unit.data)
        elif unit.header.get("NAXIS", 0):
            yield Expected(str(number), lambda unit=unit: unit.data)


def _columns(number: int, unit: Any, names: Any) -> Iterator[Expected]:
    for name in names:
        yield Expected(str(number), lambda unit=unit, name=name: _cells(unit, name), field=name)


def _cells(unit: Any, name: str) -> Any:
    """Return a column; undefined whole numbers of a text table, which astropy shows as 0, are masked."""
    from astropy.io import fits

    values = unit.data.field(name)
    column = unit.columns[name] if isinstance(unit, fits.TableHDU) else None
    if column is None or column.null in (None, "") or values.dtype.kind not in "iu":
        return values
    texts = np.char.strip(np.asarray(unit.data)[name])
    return np.ma.masked_where(np.isin(texts, (column.null.strip().encode(), b"")), values)
