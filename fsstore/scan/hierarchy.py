"""The description of a file: the zarr documents of its arrays, and tables of where their chunks lie.

A chunk table is columns of places, or a formula."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fsstore.reference.table.keys import Family, Grid, grid_of, split_one
from fsstore.reference.table.table import ABSENT, INLINE, Row, Rows
from fsstore.runtime.tuning import REQUEST_BYTES
from fsstore.scan.contract import MADE, SELF, Numbers, ScanHierarchy
from fsstore.values.dtypes import Single, with_types
from fsstore.values.json_value import Json, quote

# Chunk tables: where the chunks of one array are, as columns or as a formula.
#
# `Columns` takes twenty bytes a chunk, for every chunk of the grid or for those that exist; `Strided` is a
# formula, for chunks at equal distances: a million records of a NetCDF file take no memory.

_ITSELF = (SELF,)


@dataclass(frozen=True, slots=True)
class Columns:
    """Rows of chunks.  Without `index` they are those of the whole grid in order, else those of the chunks it names,
    ascending.
    """

    rows: Rows
    index: Numbers | None = None
    urls: Sequence[str] = _ITSELF
    inline: Sequence[bytes] = ()

    @property
    def nbytes(self) -> int:
        """The memory of the columns."""
        held = sum(map(len, self.inline))
        return self.rows.nbytes + held + (0 if self.index is None else int(self.index.nbytes))

    def find(self, numbers: Numbers) -> Rows:
        """Return the rows of chunks."""
        count = len(self.rows.url)
        if not count:
            return Rows.absent(len(numbers))
        if self.index is None:
            at = np.minimum(numbers, count - 1)
            known = numbers < count
        else:
            at = np.minimum(np.searchsorted(self.index, numbers), count - 1)
            known = self.index[at] == numbers
        rows = self.rows.take(at)
        rows.url[~known] = ABSENT
        return rows

    def present(self, start: int, stop: int) -> Numbers:
        """Return which chunks of `[start, stop)` exist."""
        if self.index is None:
            found: Numbers = np.flatnonzero(self.rows.url[start:stop] != ABSENT) + start
            return found
        low, high = np.searchsorted(self.index, [start, stop])
        kept: Numbers = self.index[low:high][self.rows.url[low:high] != ABSENT]
        return kept


@dataclass(frozen=True, slots=True)
class Strided:
    """The chunks of a `grid`, each of `length` bytes, `strides` apart along each axis, the first at `offset`.

    The scanner makes those that reach behind `limit`, the end of the file.
    """

    offset: int
    grid: tuple[int, ...]
    strides: tuple[int, ...]
    length: int
    limit: int
    urls: Sequence[str] = _ITSELF
    inline: Sequence[bytes] = ()
    nbytes: int = 200

    def offsets(self, numbers: Numbers) -> Numbers:
        """Return where chunks begin."""
        out = np.full(len(numbers), self.offset, np.int64)
        rest = numbers
        for size, stride in zip(reversed(self.grid), reversed(self.strides), strict=True):
            rest, at = np.divmod(rest, max(size, 1))
            out += at * stride
        return out

    def find(self, numbers: Numbers) -> Rows:
        """Return the rows of chunks."""
        inside = numbers < math.prod(self.grid)
        offset = self.offsets(numbers)
        url = np.where(inside, np.where(offset + self.length > self.limit, MADE, 0), ABSENT)
        return Rows(url.astype(np.int32), offset, np.full(len(numbers), self.length, np.int64))

    def present(self, start: int, stop: int) -> Numbers:
        """Return which chunks of `[start, stop)` exist."""
        return np.arange(start, min(stop, math.prod(self.grid)), dtype=np.int64)


def empty() -> Columns:
    """Return the table of an array of which nothing is stored."""
    return Columns(Rows.absent(0), np.zeros(0, np.int64))


def single(offset: int, length: int) -> Columns:
    """Return the table of an array of one chunk."""
    return Columns(Rows.of([Row(0, offset, length)]))


def inline(values: Sequence[bytes]) -> Columns:
    """Return the table of chunks whose values are known, from the first on."""
    rows = [Row(INLINE, number, len(value)) for number, value in enumerate(values)]
    return Columns(Rows.of(rows), inline=values)


@dataclass(frozen=True, slots=True)
class Made:
    """The table of `count` chunks that the scanner makes."""

    count: int
    urls: Sequence[str] = _ITSELF
    inline: Sequence[bytes] = ()
    nbytes: int = 64

    def find(self, numbers: Numbers) -> Rows:
        """Return the rows of chunks."""
        url = np.where(numbers < self.count, MADE, ABSENT).astype(np.int32)
        return Rows(url, np.zeros(len(numbers), np.int64), np.zeros(len(numbers), np.int64))

    def present(self, start: int, stop: int) -> Numbers:
        """Return which chunks of `[start, stop)` exist."""
        return np.arange(start, min(stop, self.count), dtype=np.int64)


def run_chunks(shape: Sequence[int], itemsize: int) -> tuple[int, ...]:
    """Return the shape of chunks of a run of bytes, in C order, that are runs of at most a few MiB."""
    out, size = [], itemsize
    for length in reversed(shape):
        step = max(1, min(length, REQUEST_BYTES // size))
        out.append(step)
        size *= step if step == length else REQUEST_BYTES
    return tuple(reversed(out))


def run_strides(shape: Sequence[int], itemsize: int, chunks: Sequence[int]) -> tuple[int, ...]:
    """Return how many bytes the chunks of a run are apart along each axis."""
    return tuple(itemsize * math.prod(shape[axis + 1 :]) * chunk for axis, chunk in enumerate(chunks))


_ENCODER = json.JSONEncoder(separators=(",", ":"))  # making one takes as long as encoding a document


@dataclass(frozen=True, slots=True)
class Array:
    """An array as zarr v2 describes it.  `dims` become `_ARRAY_DIMENSIONS`.

    Tools take `fill_value` for the mark of missing data, so a scanner leaves it out where missing chunks are zeros.
    """

    shape: Sequence[int]
    chunks: Sequence[int]
    dtype: Json
    fill_value: Json = None
    filters: Sequence[Mapping[str, Json]] = ()
    compressor: Mapping[str, Json] | None = None
    dims: Sequence[str] | None = None
    attributes: Mapping[str, Json] = field(default_factory=dict)
    order: str = "C"

    def document(self) -> dict[str, Any]:
        """Return the document `.zarray`."""
        return {
            "zarr_format": 2,
            "shape": list(self.shape),
            "chunks": list(self.chunks),
            "dtype": self.dtype,
            "fill_value": self.fill_value,
            "order": self.order,
            "filters": [dict(each) for each in self.filters] or None,
            "compressor": None if self.compressor is None else dict(self.compressor),
        }


class HierarchyBuilder:
    """Collects groups and arrays by path."""

    def __init__(self) -> None:
        self._documents: dict[str, bytes] = {}
        self._grids: dict[str, Grid] = {}
        self.notes: dict[str, str] = {}
        self._lacking: dict[str, str] = {}

    def group(self, path: str, attributes: Mapping[str, Json]) -> None:
        """Add a group."""
        self._put(path, ".zgroup", {"zarr_format": 2})
        self._put(path, ".zattrs", dict(attributes))

    def array(self, path: str, array: Array) -> None:
        """Add an array; raises `JsonError` if it has more chunks than can be counted."""
        if "\n" in path:
            self.note(path, "its name has a line break, which keys of chunks cannot have")
            return
        document = array.document()
        grid = grid_of(path, document)
        assert grid is not None
        attributes = with_types(array.attributes)
        if array.dims is not None:
            attributes["_ARRAY_DIMENSIONS"] = list(array.dims)
        self._put(path, ".zarray", document)
        self._put(path, ".zattrs", attributes)
        self._grids[path] = grid

    def note(self, path: str, why: str) -> None:
        """Say that an object is left out."""
        self.notes[path] = why

    def lacks_attributes(self, path: str, names: Sequence[str]) -> None:
        """Say that attributes of an object that is shown are left out; without effect if there are none."""
        if names:
            listed = ", ".join(map(quote, names))
            self._lacking[path] = f"it is without its attributes {listed}, which JSON cannot hold"

    def _put(self, path: str, name: str, document: Mapping[str, Any]) -> None:
        key = f"{path}/{name}" if path else name
        self._documents[key] = _ENCODER.encode(document).encode("ascii")

    def finish(self, *, refers: bool = False) -> ScanHierarchy:
        """Return the hierarchy, of a file that `refers` to others or not; a root group is added where there is none."""
        if ".zgroup" not in self._documents and ".zarray" not in self._documents:
            self.group("", {})
        return ScanHierarchy(self._documents, self._grids, self.notes, self._lacking, refers)


class Families:
    """The arrays of a structure by the families of their keys, those whose paths end with numbers by these too."""

    def __init__(self, grids: Mapping[str, Grid]) -> None:
        self.arrays: dict[Family, dict[int, dict[tuple[int, ...], str]]] = {}
        for path, grid in grids.items():
            if grid.family is not None:
                family, lead = family_of(grid) or (grid.family, ())
                self.arrays.setdefault(family, {}).setdefault(len(lead), {})[lead] = path
        # scalars of version 3
        self.loose = {grid.key(()): path for path, grid in grids.items() if grid.family is None}


def family_of(grid: Grid) -> tuple[Family, tuple[int, ...]] | None:
    """Return the family of an array's keys, and the numbers that its path ends with: they read as coordinates too.

    None for keys that are none of numbers: those of scalars of version 3, and names with a line break.
    """
    ndim = len(grid.shape)
    found = split_one(grid.key((0,) * ndim).encode("utf-8", "surrogateescape"))
    if grid.family is None or found is None:
        return None
    family, coords = found
    return family, tuple(coords[: len(coords) - ndim])


def fill_json(value: Any, dtype: np.dtype[Any]) -> Json:
    """Return the member `fill_value` for a value of a dtype, as zarr v2 writes it."""
    value = np.asarray(value, dtype)[()]
    if dtype.kind == "f":
        return _float_json(float(value))
    if dtype.kind == "c":
        return [_float_json(float(value.real)), _float_json(float(value.imag))]
    if dtype.kind in "iu":
        return int(value)
    if dtype.kind == "b":
        return bool(value)
    if dtype.kind in "mM":
        return int(value.view("i8"))
    return base64.b64encode(np.asarray(value, dtype).tobytes()).decode("ascii")


def _float_json(value: float) -> Json:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value


def attribute_json(value: Any) -> Json:
    """Return an attribute as JSON: numbers keep their value, bytes become text; raises `TypeError` for what it cannot.

    Floats that JSON has no number for stay bare `NaN` and `Infinity`, as every zarr library writes them.
    """
    if isinstance(value, np.ndarray):
        return attribute_json(value.tolist()) if value.dtype.kind in "biufSUO" else _other(value)
    if isinstance(value, np.float32):
        return Single(value)
    if isinstance(value, np.generic):
        return attribute_json(value.item())
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, list | tuple):
        return [attribute_json(each) for each in value]
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, complex):
        return [value.real, value.imag]
    raise TypeError(f"JSON cannot say a value of type {type(value).__name__}")


def _other(value: np.ndarray[Any, Any]) -> Json:
    if value.dtype.kind == "c":
        return attribute_json(value.tolist())
    raise TypeError(f"JSON cannot say values of type {value.dtype}")
