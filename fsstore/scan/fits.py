"""FITS files, parsed here without another library: images, tables, and images compressed tile by tile."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fsstore.errors import DataLossError, FailedPreconditionError, JsonError, StoreError, UnimplementedError
from fsstore.kvstore.contract.driver import Buffer
from fsstore.reference.table.table import Rows
from fsstore.runtime.tuning import KEPT_BYTES, REQUEST_BYTES
from fsstore.scan.contract import MADE, ChunkTable, FileScanner, Numbers, ScanHierarchy, ScanSource
from fsstore.scan.fits_header import FitsColumn, FitsUnit, UnitWalk, columns_of, groups_of, rows_dtype, unsigned_offset
from fsstore.scan.hierarchy import Array, Columns, HierarchyBuilder, Made, Strided, run_chunks, run_strides
from fsstore.values.json_value import Fields, Json, boolean

# Images of FITS files: those that are one run of bytes, and those that a table holds tile by tile.

_TYPES = {8: "|u1", 16: ">i2", 32: ">i4", 64: ">i8", -32: ">f4", -64: ">f8"}
_METHODS = {
    "GZIP_1": 1, "GZIP_2": 2, "RICE_1": 3, "RICE_ONE": 3, "NOCOMPRESS": 4, "PLIO_1": 5, "HCOMPRESS_1": 6,
}  # fmt: skip
_AS_FLOATS = 16
_DITHERS = {"NO_DITHER": 0, "NONE": 0, "": 0, "SUBTRACTIVE_DITHER_1": 1, "SUBTRACTIVE_DITHER_2": 2}
_NO_VALUE = -2147483648


@dataclass(frozen=True, slots=True)
class FitsValues:
    """The data type of stored numbers, that of what they stand for, and the filters between them."""

    stored: str
    shown: str
    filters: tuple[dict[str, Json], ...] = ()


def values_of(unit: FitsUnit, bits: int) -> FitsValues:
    """Return what the numbers of an image of `bits` (negative: floats) stand for; as astropy does it."""
    stored = _TYPES.get(bits)
    if stored is None:
        raise UnimplementedError(f"numbers of {bits} bits are none of FITS")
    scale, zero = unit.real("BSCALE", 1.0), unit.real("BZERO", 0.0)
    blank = unit.cards.get("BLANK") if bits > 0 else None
    blank = blank if isinstance(blank, int) and not isinstance(blank, bool) else None
    if scale == 1 and zero == 0 and blank is None:
        return FitsValues(stored, stored)
    if bits > 0 and scale == 1 and zero == unsigned_offset(bits):
        shown = "|i1" if bits == 8 else stored.replace("i", "u")
        return FitsValues(stored, shown, ({"id": "fits_numbers", "dtype": stored, "sign": True},))
    shown = stored if bits < 0 else ("<f8" if bits > 16 else "<f4")
    step: dict[str, Json] = {"id": "fits_numbers", "dtype": stored, "scale": scale, "offset": zero}
    return FitsValues(stored, shown, ({**step, "blank": blank} if blank is not None else step,))


@dataclass(frozen=True, slots=True)
class FitsRun:
    """Values that are one run of bytes, or rows of one: cut into chunks of a few MiB."""

    source: ScanSource
    start: int
    shape: tuple[int, ...]
    itemsize: int

    @property
    def chunks(self) -> tuple[int, ...]:
        """The shape of chunks."""
        return run_chunks(self.shape, self.itemsize)

    async def table(self) -> ChunkTable:
        """Return where the chunks are: a formula."""
        grid = tuple(-(-length // chunk) for length, chunk in zip(self.shape, self.chunks, strict=True))
        strides = run_strides(self.shape, self.itemsize, self.chunks)
        return Strided(self.start, grid, strides, self.itemsize * math.prod(self.chunks), self.source.size)

    async def make(self, table: ChunkTable, numbers: Numbers) -> list[Buffer]:
        """Return the last chunks of the file, padded; raises `DataLossError` where values are cut off."""
        rows, size = table.find(numbers), self.source.size
        end = self.start + self.itemsize * math.prod(self.shape)
        if end > size:
            raise DataLossError(f"{self.source.describe(self.start)} is cut off: its values end at {end}, it at {size}")
        spans = [
            (at, min(at + length, size)) for at, length in zip(rows.offset.tolist(), rows.length.tolist(), strict=True)
        ]
        found = await self.source.fetch(spans)
        lengths = rows.length.tolist()
        return [bytes(data).ljust(length, b"\0") for data, length in zip(found, lengths, strict=True)]


class FitsTiles:
    """An image that a table holds: a row for each tile, with the place of its bytes in the heap, scale and zero."""

    def __init__(self, source: ScanSource, unit: FitsUnit) -> None:
        self.source, self.unit = source, unit
        self.shape = unit.shape("Z")
        rank = len(self.shape)
        if not rank or min(self.shape) < 1:
            raise UnimplementedError("it has no pixels")
        tile = [unit.integer(f"ZTILE{axis}", self.shape[-1] if axis == 1 else 1) for axis in range(rank, 0, -1)]
        self.chunks = tuple(max(1, min(each, length)) for each, length in zip(tile, self.shape, strict=True))
        self.bits = unit.integer("ZBITPIX")
        self.values = values_of(unit, self.bits)
        method = unit.text("ZCMPTYPE")
        if method not in _METHODS:
            raise UnimplementedError(f"images compressed by {method or 'nothing known'} are not decoded")
        self.method = _METHODS[method]
        self._rows, self._width = unit.table()
        columns = {column.name: column for column in columns_of(unit, self._width)}
        self._columns = columns
        if "COMPRESSED_DATA" not in columns:
            raise UnimplementedError("it has no compressed data")
        self._heads: tuple[Any, Any, Any] | None = None
        self._table: ChunkTable | None = None

    @property
    def count(self) -> int:
        """How many tiles there are."""
        return math.prod(-(-length // chunk) for length, chunk in zip(self.shape, self.chunks, strict=True))

    def option(self) -> dict[str, Json]:
        """Return the codec of tiles."""
        unit, quantized = self.unit, self.bits < 0 and "ZSCALE" in self._columns
        named = {unit.text(f"ZNAME{number}"): unit.cards.get(f"ZVAL{number}") for number in range(1, 17)}
        if named.get("SMOOTH"):
            raise UnimplementedError("images that are smoothed after decoding are not decoded")
        dither = unit.text("ZQUANTIZ").upper()
        if dither not in _DITHERS:
            raise UnimplementedError(f"floats rounded by {dither} are not decoded")
        out: dict[str, Json] = {
            "id": "fits_tile",
            "shape": list(self.chunks),
            "dtype": ">i4" if quantized else self.values.stored,
            "blocksize": named.get("BLOCKSIZE") or 32,
            "bytepix": named.get("BYTEPIX") or 4,
        }
        if quantized:
            out |= {"quantized": True, "dither": _DITHERS[dither], "seed": unit.integer("ZDITHER0", 1)}
            blank = unit.cards.get("ZBLANK", _NO_VALUE)
            out["blank"] = blank if isinstance(blank, int) else _NO_VALUE
        return out

    async def table(self) -> ChunkTable:
        """Return the table: every tile has to be put together."""
        if self._table is not None:
            return self._table
        count = self.count
        if self._rows != count:
            raise DataLossError(f"{self.source.describe(self.unit.start)} has {self._rows} rows for {count} tiles")
        end = self.unit.start + self._rows * self._width
        data = (await self.source.read([(self.unit.start, end)]))[0]
        rows = np.frombuffer(data, "u1").reshape(self._rows, self._width)
        methods, at, length = np.zeros(count, "i8"), np.zeros(count, "i8"), np.zeros(count, "i8")
        floats = _AS_FLOATS if self.bits < 0 else 0
        for name, method in {
            "UNCOMPRESSED_DATA": _METHODS["NOCOMPRESS"] + floats,
            "GZIP_COMPRESSED_DATA": _METHODS["GZIP_1"] + floats,
            "COMPRESSED_DATA": self.method + (0 if "ZSCALE" in self._columns else floats),
        }.items():
            column = self._columns.get(name)
            if column is None or not column.heap:
                continue
            found = _cells(rows, column)
            some = found[:, 0] > 0
            methods[some], at[some] = method, found[some, 1]
            length[some] = found[some, 0] * _item(column)
        heap = self.unit.start + self.unit.integer("THEAP", self._rows * self._width)
        self._heads = methods, self._scaling(rows, "ZSCALE", 1.0), self._scaling(rows, "ZZERO", 0.0)
        self._table = Columns(Rows(np.full(count, MADE, np.int32), at + heap, length))
        return self._table

    def _scaling(self, rows: Any, name: str, default: float) -> Any:
        column = self._columns.get(name)
        if column is None:
            return np.full(len(rows), self.unit.real(name, default), "f8")
        return _cells(rows, column)[:, 0].astype("f8")

    async def make(self, table: ChunkTable, numbers: Numbers) -> list[Buffer]:
        """Return tiles with what the codec has to know of them in front."""
        assert self._heads is not None, "the table is read first"
        methods, scales, zeros = self._heads
        found = table.find(numbers)
        spans = []
        for number, at, length in zip(numbers.tolist(), found.offset.tolist(), found.length.tolist(), strict=True):
            if length <= 0 or at < 0 or at + length > self.source.size:
                raise DataLossError(
                    f"{self.source.describe(at)} is cut off or damaged: tile {number} has {length} bytes there"
                )
            spans.append((at, at + length))
        grid = [-(-length // chunk) for length, chunk in zip(self.shape, self.chunks, strict=True)]
        out: list[Buffer] = []
        for number, data in zip(numbers.tolist(), await self.source.fetch(spans), strict=True):
            place = np.unravel_index(number, grid)
            pairs = zip(place, self.chunks, self.shape, strict=True)
            shape = [min(chunk, length - int(at) * chunk) for at, chunk, length in pairs]
            head = struct.pack("<BBxxqdd", methods[number], len(shape), number + 1, scales[number], zeros[number])
            out.append(head + struct.pack(f"<{len(shape)}q", *shape) + bytes(data))
        return out


_ELEMENTS = {
    "L": "|b1",
    "A": "|S1",
    "B": "|u1",
    "I": ">i2",
    "J": ">i4",
    "K": ">i8",
    "E": ">f4",
    "D": ">f8",
    "C": ">c8",
    "M": ">c16",
}


class FitsLists:
    """A column of arrays of any length: a row for each, as long as the longest may be; behind its end stands NaN, or 0.

    Texts are one element each.
    """

    def __init__(self, source: ScanSource, unit: FitsUnit, column: FitsColumn) -> None:
        self._source, self._unit, self._column = source, unit, column
        self._count, self._width = unit.table()
        said = re.findall(r"\((\d+)\)", column.heap)[-1:]
        if column.heap[:1] not in _ELEMENTS or not said or column.times != 2 or column.how != "copy":
            raise UnimplementedError("arrays of any length without a bound, of bits, or scaled are not shown")
        kind = _ELEMENTS[column.heap[0]]
        self._most = max(1, min(int(said[0]), source.size))
        if self._most * np.dtype(kind).itemsize > KEPT_BYTES:
            raise UnimplementedError(f"arrays of up to {self._most} elements are not shown")
        is_text = column.heap[:1] == "A"
        self.dtype = np.dtype(f"S{self._most}") if is_text else np.dtype(kind)
        self.shape = (self._count,) if is_text else (self._count, self._most)
        self._items = 1 if is_text else self._most
        rows = REQUEST_BYTES // (self.dtype.itemsize * self._items)
        self.chunks = (max(1, min(rows, self._count)), *self.shape[1:])

    async def table(self) -> ChunkTable:
        """Return that all chunks are made."""
        return Made(-(-self._count // self.chunks[0]))

    async def make(self, table: ChunkTable, numbers: Numbers) -> list[Buffer]:
        """Return rows, each put together of what the heap holds of it."""
        return [await self._rows(number * self.chunks[0]) for number in numbers.tolist()]

    async def _rows(self, first: int) -> bytes:
        unit, column = self._unit, self._column
        last = min(first + self.chunks[0], self._count)
        start = unit.start
        (data,) = await self._source.fetch([(start + first * self._width, start + last * self._width)])
        rows = np.frombuffer(data, "u1").reshape(-1, self._width)
        lengths, places = _cells(rows, column).T
        places = np.where(lengths > 0, places, 0)
        if (lengths < 0).any() or (lengths > self._most).any() or (places < 0).any():
            raise DataLossError(f"{self._source.describe(start)} has arrays longer than the {self._most} it says")
        step = _item(column)
        heap = start + unit.integer("THEAP", self._count * self._width)
        spans = [
            (heap + at, heap + at + length * step) for at, length in zip(places.tolist(), lengths.tolist(), strict=True)
        ]
        fill = np.nan if self.dtype.kind in "fc" else np.zeros((), self.dtype)
        out = np.full((self.chunks[0], self._items), fill, self.dtype)
        for row, value in enumerate(await self._source.fetch(spans)):
            found = np.frombuffer(value, np.dtype(_ELEMENTS[column.heap[0]]))
            if column.heap[0] == "A":
                out[row] = bytes(value)
            elif column.heap[0] == "L":
                out[row, : len(found)] = np.isin(
                    np.frombuffer(value, "S1"), (b"T", b"\1")
                )  # old writers of astropy stored 1
            else:
                out[row, : len(found)] = found
        return bytes(out.tobytes())


def _cells(rows: Any, column: FitsColumn) -> Any:
    cells = np.ascontiguousarray(rows[:, column.at : column.at + column.times * column.stored.itemsize])
    return cells.view(column.stored).astype("i8" if column.heap else "f8")


def _item(column: FitsColumn) -> int:
    sizes = {"L": 1, "A": 1, "B": 1, "I": 2, "J": 4, "K": 8, "E": 4, "D": 8, "C": 8, "M": 16}
    found = sizes.get(column.heap[:1])
    if found is None:
        raise FailedPreconditionError(f"the column {column.name} holds elements of type {column.heap[:1]!r}")
    return found


def _shown(column: FitsColumn) -> FitsColumn:
    """Return a column as the table shows it: of arrays of any length, how long they are."""
    if not column.heap or not column.times:
        return column
    name = f"{column.name}_length"
    return column._replace(name=name, times=1, shown=column.stored.str, how="copy", heap="")


_AXES = ("x", "y", "z")
_NOTHING: Mapping[int, str] = {}


class FitsFile:
    """One generation of a file."""

    def __init__(self, source: ScanSource, units: Sequence[FitsUnit], damaged: Mapping[int, str] = _NOTHING) -> None:
        self._source = source
        self._arrays: dict[str, FitsRun | FitsTiles | FitsLists] = {}
        self._lengths: dict[str, int] = {}
        self._builder = HierarchyBuilder()
        names = _names(units)
        for unit, name in zip(units, names, strict=True):
            try:
                if unit.number in damaged:
                    raise DataLossError(damaged[unit.number])
                self._add(unit, name)
            except (StoreError, JsonError) as error:
                self._builder.note(name, error.message)
        first = units[0]
        self._builder.group("", {} if names[0] in self._arrays else first.attributes)
        self.hierarchy: ScanHierarchy = self._builder.finish()

    def _add(self, unit: FitsUnit, name: str) -> None:
        if unit.cards.get("GROUPS") is True and unit.shape()[-1:] == (0,):
            self._rows(unit, name, unit.integer("GCOUNT", 1), *groups_of(unit))
        elif unit.cards.get("ZIMAGE") is True and unit.kind == "BINTABLE":
            self._compressed(unit, name)
        elif unit.kind in ("BINTABLE", "TABLE"):
            rows, width = unit.table()
            self._rows(unit, name, rows, columns_of(unit, width), width)
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
        array = Array(tiles.shape, tiles.chunks, values.shown, None, values.filters, option, dims, unit.attributes)
        self._builder.array(name, array)
        self._arrays[name] = tiles

    def _rows(self, unit: FitsUnit, name: str, rows: int, every: list[FitsColumn], width: int) -> None:
        shown = [column for column in map(_shown, every) if column.times]
        for column in every:
            if not column.times:
                self._builder.note(f"{name}/{column.name}", "its cells are empty")
            elif column.heap:
                self._lists(unit, f"{name}_{column.name}".replace("/", "_"), column)
        if not shown or not width:
            raise UnimplementedError("it has no columns that can be shown")
        run = FitsRun(self._source, unit.start, (rows,), width)
        option: dict[str, Json] = {"id": "fits_rows", "row": width, "columns": [each.option() for each in shown]}
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

    def _lists(self, unit: FitsUnit, path: str, column: FitsColumn) -> None:
        """Add a column of arrays of any length."""
        try:
            if path in self._arrays:
                raise UnimplementedError("another array is called so")
            lists = FitsLists(self._source, unit, column)
        except UnimplementedError as error:
            self._builder.note(path, error.message)
            return
        dims = [*self._dims(lists.shape[:1], unit.number, "row"), f"{column.name}_element"][: len(lists.shape)]
        self._builder.array(path, Array(lists.shape, lists.chunks, lists.dtype.str, None, dims=dims))
        self._arrays[path] = lists

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


async def _sum(source: ScanSource, start: int, stop: int) -> int:
    """Return the sum of the bytes of a file as FITS takes it: of words of four, what is carried added again."""
    total = 0
    for at in range(start, stop, REQUEST_BYTES):
        (data,) = await source.fetch([(at, min(at + REQUEST_BYTES, stop))])
        total += int(np.frombuffer(data, ">u4").sum(dtype="u8"))
    while total >> 32:
        total = (total & _ALL_ONES) + (total >> 32)
    return total


async def _wrong_sum(source: ScanSource, unit: FitsUnit) -> str:
    """Return which sum in the header of a unit is not that of its bytes; nothing if none is wrong."""
    said = unit.text("DATASUM")
    if not said and "CHECKSUM" not in unit.cards:
        return ""
    if unit.end > source.size:
        return f"its data end at offset {unit.end}, and the file at {source.size}"
    data = await _sum(source, unit.start, unit.end)
    if said.isdigit() and int(said) != data:
        return f"its DATASUM is {said}, and the sum of its data {data}"
    if "CHECKSUM" in unit.cards and (data + await _sum(source, unit.head, unit.start)) % _ALL_ONES:
        return "its CHECKSUM is not that of its header and its data"
    return ""


_ALL_ONES = 2**32 - 1


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

    def members(self, fields: Fields) -> dict[str, Json]:
        """Take `checksums`: whether all data are read, and compared with the sums in the headers."""
        found = fields.take("checksums", boolean)
        return {"checksums": True} if found else {}

    async def scan(self, source: ScanSource, members: Mapping[str, Json]) -> FitsFile:
        """Return the units of a file: their headers are read one after the other, and no data without `checksums`."""
        units = await source.settle(UnitWalk().follow)
        if not members.get("checksums"):
            return FitsFile(source, units)
        wrong = {unit.number: await _wrong_sum(source, unit) for unit in units}
        return FitsFile(source, units, {number: why for number, why in wrong.items() if why})


SCANNER = FitsScanner()
