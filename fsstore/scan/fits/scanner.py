"""The scanner of FITS."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from fsstore.errors import JsonError, StoreError, UnimplementedError
from fsstore.kvstore.contract.driver import Buffer
from fsstore.scan.contract import ChunkTable, FileScanner, Numbers, ScanHierarchy
from fsstore.scan.fits.column import columns_of, rows_dtype
from fsstore.scan.fits.header import FitsUnit, UnitWalk
from fsstore.scan.fits.image import FitsRun, FitsTiles, values_of
from fsstore.scan.hierarchy import Array, HierarchyBuilder
from fsstore.scan.source import ScanSource
from fsstore.values.json_value import Json

__all__ = ["SCANNER", "FitsFile", "FitsScanner"]

_AXES = ("x", "y", "z")


class FitsFile:
    """One generation of a file."""

    def __init__(self, source: ScanSource, units: Sequence[FitsUnit]) -> None:
        self._source = source
        self._arrays: dict[str, FitsRun | FitsTiles] = {}
        self._lengths: dict[str, int] = {}
        self._builder = HierarchyBuilder()
        names = _names(units)
        for unit, name in zip(units, names, strict=True):
            try:
                self._add(unit, name)
            except (StoreError, JsonError) as error:
                self._builder.note(name, error.message)
        first = units[0]
        self._builder.group("", {} if names[0] in self._arrays else first.attributes)
        self.hierarchy: ScanHierarchy = self._builder.finish()

    def _add(self, unit: FitsUnit, name: str) -> None:
        if unit.cards.get("GROUPS") is True and unit.shape()[-1:] == (0,):
            raise UnimplementedError("random groups are not shown")
        if unit.cards.get("ZIMAGE") is True and unit.kind == "BINTABLE":
            self._compressed(unit, name)
        elif unit.kind in ("BINTABLE", "TABLE"):
            self._rows(unit, name)
        elif unit.kind == "IMAGE" or unit.number == 0:
            self._image(unit, name)
        else:
            raise UnimplementedError(f"extensions of type {unit.kind!r} are not shown")

    def _image(self, unit: FitsUnit, name: str) -> None:
        shape = unit.shape()
        if not shape or 0 in shape:
            return  # a header alone
        bits = unit.integer("BITPIX", 8)
        values = values_of(unit, bits)
        run = FitsRun(self._source, unit.start, shape, abs(bits) // 8)
        dims = self._dims(shape, unit.number)
        array = Array(shape, run.chunks, values.shown, None, values.filters, None, dims, unit.attributes)
        self._builder.array(name, array)
        self._arrays[name] = run

    def _compressed(self, unit: FitsUnit, name: str) -> None:
        tiles = FitsTiles(self._source, unit)
        dims = self._dims(tiles.shape, unit.number)
        values, option = tiles.values, tiles.option()
        array = Array(
            tiles.shape, tiles.chunks, values.shown, None, values.filters, option, dims, unit.attributes
        )
        self._builder.array(name, array)
        self._arrays[name] = tiles

    def _rows(self, unit: FitsUnit, name: str) -> None:
        rows, width = unit.table()
        every = columns_of(unit, width)
        shown = [column for column in every if not column.heap and column.times]
        for column in every:
            if column.heap:
                self._builder.note(f"{name}/{column.name}", "arrays of any length are not shown")
        if not shown or not width:
            raise UnimplementedError("it has no columns that can be shown")
        run = FitsRun(self._source, unit.start, (rows,), width)
        option: dict[str, Json] = {
            "id": "fits_rows",
            "row": width,
            "columns": [each.option() for each in shown],
        }
        array = Array(
            (rows,),
            tuple(max(1, each) for each in run.chunks),
            rows_dtype(shown),
            None,
            (),
            option,
            self._dims((rows,), unit.number, "row"),
            unit.attributes,
        )
        self._builder.array(name, array)
        self._arrays[name] = run

    def _dims(self, shape: Sequence[int], number: int, row: str = "") -> list[str]:
        """Return the names of dimensions; those that another unit has with another length get a number."""
        out = []
        for at, length in enumerate(reversed(shape)):
            name = row or (_AXES[at] if at < len(_AXES) else f"axis{at + 1}")
            if self._lengths.setdefault(name, length) != length:
                name = f"{name}_{number}"
            out.append(name)
        return out[::-1]

    async def tables(self, paths: Sequence[str]) -> Sequence[ChunkTable]:
        """Return the chunk tables of arrays: formulas, but for compressed images."""
        out = []
        for path in paths:
            try:
                out.append(await self._arrays[path].table())
            except StoreError as error:
                raise error.within(f'Error reading the chunk index of "{path}"') from error
        return out

    async def make(self, path: str, numbers: Numbers) -> Sequence[Buffer]:
        """Return chunks that are no range of the file as it is."""
        try:
            array = self._arrays[path]
            return await array.make(await array.table(), numbers)
        except StoreError as error:
            raise error.within(f'Error reading "{path}"') from error


def _names(units: Sequence[FitsUnit]) -> list[str]:
    """Return the names of units: those of their extension, or their numbers."""
    out: list[str] = []
    for unit in units:
        name = unit.text("EXTNAME", "PRIMARY" if unit.number == 0 else "").upper()
        if name in out and "EXTVER" in unit.cards:
            name = f"{name}_{unit.cards['EXTVER']}"
        if not name or name in out or "/" in name or name.startswith("."):
            name = str(unit.number)
        out.append(name)
    return out


@dataclass(frozen=True, slots=True)
class FitsScanner(FileScanner):
    """The scanner."""

    name: ClassVar[str] = "fits"
    title: ClassVar[str] = "FITS file"

    async def scan(self, source: ScanSource, members: Mapping[str, Json]) -> FitsFile:
        """Return the units of a file: their headers are read one after the other, and no data."""
        return FitsFile(source, await source.settle(UnitWalk().follow))


SCANNER = FitsScanner()
