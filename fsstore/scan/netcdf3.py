"""NetCDF 3: the classic format, its 64-bit offsets and its 64-bit data (CDF 1, 2 and 5), in pure Python.

A header says where each variable begins; where a chunk is, is arithmetic.  A fixed variable is one run of bytes, which
is shown in chunks of a few MiB.  Record variables lie interleaved: record `r` of a variable begins `r` times the size
of all records behind its first, so a chunk is one record, and a variable alone in its records is a run again.  A chunk
at the edge reaches into what follows, which no reader looks at; only the last of a file is padded here.

Sizes are computed from shapes, because the sizes that a header stores are too small for large variables.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np

from fsstore.errors import DataLossError, FailedPreconditionError
from fsstore.kvstore.contract.driver import Buffer
from fsstore.scan.contract import ChunkTable, FileScanner, Numbers, ScanHierarchy, ScanSource
from fsstore.scan.hierarchy import Array, HierarchyBuilder, Strided, attribute_json, run_chunks, run_strides
from fsstore.values.json_value import Json, quote

_TYPES = {1: ">i1", 2: "S1", 3: ">i2", 4: ">i4", 5: ">f4", 6: ">f8"}
_TYPES_5 = _TYPES | {7: ">u1", 8: ">u2", 9: ">u4", 10: ">i8", 11: ">u8"}
_MOST_OFFSET = 2**62  # offsets are sums of two such numbers at most
_MOST_HEADER = 256 * 2**20
_STREAMING = -1
_MOST_CUT_OFF = 2**20  # chunks of a variable that is shown although the file ends before it


class _CutOffError(Exception):
    """The header goes on behind the bytes at hand."""


class Variable(NamedTuple):
    """A variable as the header describes it; `dims` are numbers of dimensions."""

    name: str
    dims: tuple[int, ...]
    attributes: dict[str, Json]
    dtype: np.dtype[Any]
    begin: int


@dataclass(frozen=True, slots=True)
class Header:
    """The header of a file.  A dimension of length 0 is that of records; `records` is -1 in a stream."""

    records: int
    dims: list[tuple[str, int]]
    attributes: dict[str, Json]
    variables: list[Variable] = field(default_factory=list)


class _HeaderReader:
    """The header's numbers and texts one after the other."""

    def __init__(self, data: bytes, version: int) -> None:
        self._data, self._at = data, 4
        self._count = 8 if version == 5 else 4
        self._offset = 4 if version == 1 else 8
        self.types = _TYPES_5 if version == 5 else _TYPES

    def take(self, size: int) -> bytes:
        """Return bytes, and skip what fills them to a multiple of four."""
        found = self._data[self._at : self._at + size]
        if len(found) < size:
            raise _CutOffError
        self._at += -(-size // 4) * 4
        return found

    def count(self) -> int:
        """Return a count or length."""
        return int.from_bytes(self.take(self._count), "big")

    def offset(self) -> int:
        """Return a place in the file."""
        return int.from_bytes(self.take(self._offset), "big")

    def number(self) -> int:
        """Return a number of four bytes."""
        return int.from_bytes(self.take(4), "big")

    def listed(self, tag: int) -> int:
        """Return how many items a list has; an absent one has none."""
        found, count = self.number(), self.count()
        if found not in (0, tag) or (found == 0 and count):
            raise FailedPreconditionError(f"expected list {tag} at offset {self._at}, but found {found}")
        if count > len(self._data) and count > _MOST_HEADER // 8:
            raise FailedPreconditionError(f"a list of {count} items at offset {self._at}")
        return count

    def name(self) -> str:
        """Return a name; the NetCDF library ends it at the first NUL."""
        return self.take(self.count()).partition(b"\0")[0].decode("utf-8", "replace")

    def dtype(self) -> np.dtype[Any]:
        """Return a data type."""
        code = self.number()
        if code not in self.types:
            raise FailedPreconditionError(f"unknown data type {code} at offset {self._at}")
        return np.dtype(self.types[code])

    def attributes(self) -> dict[str, Json]:
        """Return a list of attributes."""
        out: dict[str, Json] = {}
        for _ in range(self.listed(12)):
            name, dtype, count = self.name(), self.dtype(), self.count()
            data = self.take(count * dtype.itemsize)
            if dtype.kind == "S":
                out[name] = data.rstrip(b"\0").decode("utf-8", "replace")
            else:
                values = np.frombuffer(data, dtype)
                out[name] = attribute_json(values[0] if count == 1 else values)
        return out


def parse_header(data: bytes) -> Header:
    """Return the header that a file begins with; raises `FailedPreconditionError` if it is none."""
    version = data[3] if data[:3] == b"CDF" and len(data) > 3 else 0
    if version not in (1, 2, 5):
        raise FailedPreconditionError("it does not begin like a NetCDF 3 file")
    reader = _HeaderReader(data, version)
    records = reader.count()
    if records == (1 << 64) - 1 or (version != 5 and records == (1 << 32) - 1):
        records = _STREAMING
    dims = [(reader.name(), reader.count()) for _ in range(reader.listed(10))]
    header = Header(records, dims, reader.attributes())
    for _ in range(reader.listed(11)):
        name = reader.name()
        rank = reader.count()
        if rank > 1024:
            raise FailedPreconditionError(f"the variable {quote(name)} has {rank} dimensions")
        axes = tuple(reader.count() for _ in range(rank))
        if any(axis >= len(dims) for axis in axes):
            raise FailedPreconditionError(f"the variable {quote(name)} has a dimension that does not exist")
        attributes, dtype = reader.attributes(), reader.dtype()
        reader.count()
        header.variables.append(Variable(name, axes, attributes, dtype, reader.offset()))
    return header


class _Layout(NamedTuple):
    """Where a variable is: its shape, its chunks, and the distances of chunks along each axis."""

    variable: Variable
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    strides: tuple[int, ...]
    end: int

    @property
    def chunk_count(self) -> int:
        """How many chunks there are."""
        return math.prod(-(-size // side) for size, side in zip(self.shape, self.chunks, strict=True))


def _layouts(header: Header, size: int) -> list[_Layout]:
    lengths = [length for _, length in header.dims]
    rows: dict[int, int] = {}  # bytes of a record, by number of the variable
    for number, variable in enumerate(header.variables):
        if variable.dims and lengths[variable.dims[0]] == 0:
            rows[number] = variable.dtype.itemsize * math.prod(lengths[axis] for axis in variable.dims[1:])
    alone = len(rows) == 1
    step = sum(rows.values()) if alone else sum(-(-row // 4) * 4 for row in rows.values())
    records = header.records
    if records == _STREAMING:
        first = min((header.variables[number].begin for number in rows), default=size)
        records = max(0, size - first) // step if step else 0
    out = []
    for number, variable in enumerate(header.variables):
        itemsize, inner = variable.dtype.itemsize, [lengths[axis] for axis in variable.dims]
        if number not in rows or alone:
            shape = (records, *inner[1:]) if number in rows else tuple(inner)
            chunks = run_chunks(shape, itemsize)
            strides = run_strides(shape, itemsize, chunks)
            end = variable.begin + itemsize * math.prod(shape)
        else:
            shape, row = (records, *inner[1:]), inner[1:]
            chunks = (1, *run_chunks(row, itemsize))
            strides = (step, *run_strides(row, itemsize, chunks[1:]))
            end = variable.begin + max(records - 1, 0) * step + (rows[number] if records else 0)
        out.append(_Layout(variable, shape, chunks, strides, end))
    return out


class NetCdf3File:
    """One generation of a file."""

    def __init__(self, source: ScanSource, header: Header) -> None:
        self._source = source
        self._layouts: dict[str, _Layout] = {}
        builder = HierarchyBuilder()
        builder.group("", header.attributes)
        names = [name for name, _ in header.dims]
        for layout in _layouts(header, source.size):
            variable, name = layout.variable, layout.variable.name
            if "/" in name or name in ("", ".", ".."):
                builder.note(name, "its name cannot be part of a path")
                continue
            if max(variable.begin, layout.end) > _MOST_OFFSET:
                builder.note(name, f"it ends at offset {layout.end}, which no file has")
                continue
            if layout.end > source.size and layout.chunk_count > _MOST_CUT_OFF:
                builder.note(name, f"it ends at offset {layout.end}, and the file at {source.size}")
                continue
            dims = [names[axis] for axis in variable.dims]
            text = variable.dtype.newbyteorder("|").str if variable.dtype.itemsize == 1 else variable.dtype.str
            array = Array(layout.shape, layout.chunks, text, dims=dims, attributes=variable.attributes)
            builder.array(name, array)
            self._layouts[name] = layout
        self.hierarchy: ScanHierarchy = builder.finish()

    async def tables(self, paths: Sequence[str]) -> Sequence[ChunkTable]:
        """Return the chunk tables of arrays: formulas."""
        return [self._table(path) for path in paths]

    def _table(self, path: str) -> Strided:
        layout = self._layouts[path]
        itemsize = layout.variable.dtype.itemsize
        length = itemsize * math.prod(layout.chunks)
        grid = self.hierarchy.grids[path].shape
        strides = layout.strides or (0,)
        return Strided(layout.variable.begin, grid, strides, length, self._source.size)

    async def make(self, path: str, numbers: Numbers) -> Sequence[Buffer]:
        """Return the last chunks of the file, padded; raises `DataLossError` where values are cut off."""
        layout, table = self._layouts[path], self._table(path)
        source, starts = self._source, table.offsets(numbers).tolist()
        if layout.end > source.size and any(start + table.length > source.size for start in starts):
            raise DataLossError(
                f"{source.describe()} is cut off: the variable {quote(path)} ends at offset {layout.end},"
                f" the file at {source.size}"
            )
        found = await source.fetch([(start, min(start + table.length, source.size)) for start in starts])
        return [bytes(value).ljust(table.length, b"\0") for value in found]


@dataclass(frozen=True, slots=True)
class NetCdf3Scanner(FileScanner):
    """The scanner."""

    name: ClassVar[str] = "netcdf3"
    title: ClassVar[str] = "NetCDF 3 file"

    async def scan(self, source: ScanSource, members: Mapping[str, Json]) -> NetCdf3File:
        """Return the variables of a file: the header is read with the first request, nearly always."""
        wanted = 64 * 1024
        while True:
            data = (await source.read([(0, min(wanted, source.size))]))[0]
            try:
                return NetCdf3File(source, parse_header(data))
            except _CutOffError:
                if wanted >= min(source.size, _MOST_HEADER):
                    raise DataLossError(f"its header is cut off: it does not end within {len(data)} bytes") from None
                wanted *= 4


SCANNER = NetCdf3Scanner()
