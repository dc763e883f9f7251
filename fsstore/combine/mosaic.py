"""A virtual dataset as a value: many files shown as one hierarchy, also where they differ.

First how the stored values of a source become those of the whole, then which piece of an array holds what, then the
dataset itself."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import product
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from fsstore.errors import JsonError, StoreError
from fsstore.format.zarr3_document import stored_type
from fsstore.reference.table.keys import Grid, grid_of
from fsstore.reference.table.refset import TableSet
from fsstore.values.dtypes import PACKING_NUMBERS, dtype_of, single_numbers
from fsstore.values.json_value import Fields, Json, array_of, boolean, number, optional, string

# Which piece of an array holds what: a grid of cells of any sizes, and a piece, or none, in each.

Ints: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]


class CellAxis(NamedTuple):
    """The cells along a dimension: ascending intervals that do not overlap."""

    dimension: int
    start: Ints
    stop: Ints

    def check(self, shape: Sequence[int]) -> None:
        """Raise `JsonError` for cells that are empty, overlap or lie outside the array."""
        start, stop = self.start, self.stop
        if not 0 <= self.dimension < len(shape):
            raise JsonError(f"There is no dimension {self.dimension} to be cut into pieces")
        inside = not len(start) or (start[0] >= 0 and stop[-1] <= shape[self.dimension])
        if len(start) != len(stop) or not inside or (start >= stop).any() or (start[1:] < stop[:-1]).any():
            raise JsonError(f"The pieces along dimension {self.dimension} overlap, are empty or lie outside")

    def within(self, low: int, high: int) -> tuple[int, int]:
        """Return which cells touch `[low, high)`."""
        first = int(np.searchsorted(self.stop, low, side="right"))
        last = int(np.searchsorted(self.start, high, side="left"))
        return first, max(first, last)


class PiecePart(NamedTuple):
    """A part of a box that one source serves: where its values lie in the source, and in the box."""

    source: int
    inside: tuple[slice, ...]
    box: tuple[slice, ...]


@dataclass(frozen=True, slots=True)
class Pieces:
    """The pieces of an array of `shape`.

    `cell` numbers the cells that have a piece in C order, ascending; None means all of them.  `origin` has, for each
    piece and axis, the coordinate in its source where the cell begins.
    """

    shape: tuple[int, ...]
    axes: tuple[CellAxis, ...]
    source: Ints
    origin: Ints
    cell: Ints | None = None

    @property
    def grid(self) -> tuple[int, ...]:
        """How many cells there are along each axis."""
        return tuple(len(axis.start) for axis in self.axes)

    @property
    def nbytes(self) -> int:
        """The memory of the columns."""
        cells = sum(axis.start.nbytes + axis.stop.nbytes for axis in self.axes)
        return int(self.source.nbytes + self.origin.nbytes + (0 if self.cell is None else self.cell.nbytes) + cells)

    def check(self, sources: Sequence[Sequence[int]]) -> None:
        """Raise `JsonError` unless pieces are of known sources (of these shapes), in distinct cells, and inside."""
        for axis in self.axes:
            axis.check(self.shape)
        if len({axis.dimension for axis in self.axes}) != len(self.axes):
            raise JsonError("A dimension is cut into pieces twice")
        count, total = len(self.source), math.prod(self.grid)
        if self.origin.shape != (count, len(self.axes)):
            raise JsonError("The pieces of an array have columns of several lengths")
        cell = np.arange(count) if self.cell is None else self.cell
        if len(cell) != count or (self.cell is None and count != total):
            raise JsonError("The pieces of an array have columns of several lengths")
        if count and (cell[0] < 0 or cell[-1] >= total or (cell[1:] <= cell[:-1]).any()):
            raise JsonError("Two pieces of an array are in one place, or one is outside")
        if count and not (int(self.source.min()) >= 0 and int(self.source.max()) < len(sources)):
            raise JsonError("A piece names a source that is not there")
        self._check_inside(cell, sources)

    def _check_inside(self, cell: Ints, sources: Sequence[Sequence[int]]) -> None:
        for shape in sources:
            if len(shape) != len(self.shape):
                raise JsonError("A source has another number of dimensions than its array")
            if any(
                size != own
                for at, (size, own) in enumerate(zip(shape, self.shape, strict=True))
                if at not in {axis.dimension for axis in self.axes}
            ):
                raise JsonError("A source has another size than its array")
        places = np.unravel_index(cell, self.grid) if self.axes and len(cell) else ()
        for at, (axis, place) in enumerate(zip(self.axes, places, strict=False)):
            limits = np.array([shape[axis.dimension] for shape in sources], np.int64)[self.source]
            begin = self.origin[:, at]
            if ((begin < 0) | (begin > limits) | (axis.stop[place] - axis.start[place] > limits - begin)).any():
                raise JsonError("A piece lies outside its source")

    def find(self, box: Sequence[slice]) -> Iterator[PiecePart]:
        """Yield the parts of a box (slices with both ends, step 1) that pieces serve, in C order."""
        spans = [axis.within(box[axis.dimension].start, box[axis.dimension].stop) for axis in self.axes]
        for place in product(*(range(*span) for span in spans)):
            number = self._number(place)
            if number is None:
                continue
            inside, where = list(box), [slice(0, side.stop - side.start) for side in box]
            for at, (axis, cell) in enumerate(zip(self.axes, place, strict=True)):
                side = box[axis.dimension]
                start, stop = int(axis.start[cell]), int(axis.stop[cell])
                low, high = max(side.start, start), min(side.stop, stop)
                begin = int(self.origin[number, at]) - start
                inside[axis.dimension] = slice(low + begin, high + begin)
                where[axis.dimension] = slice(low - side.start, high - side.start)
            yield PiecePart(int(self.source[number]), tuple(inside), tuple(where))

    def _number(self, place: Sequence[int]) -> int | None:
        """Return the piece in a cell."""
        linear = 0
        for at, count in zip(place, self.grid, strict=True):
            linear = linear * count + at
        if self.cell is None:
            return linear
        found = int(np.searchsorted(self.cell, linear))
        return found if found < len(self.cell) and self.cell[found] == linear else None


# How the stored values of a source become those of the whole: by the conventions that xarray and netCDF
# follow.


@dataclass(frozen=True, slots=True)
class Decoding:
    """How values are decoded: bits, missing values, packing, and the change of units, in this order.

    `floats` is the type of decoded values; the empty text leaves them as they are stored.
    """

    floats: str = ""
    unsigned: bool = False
    missing: tuple[float, ...] = ()
    scale: float | None = None
    offset: float | None = None
    factor: float = 1.0
    shift: float = 0.0

    @property
    def is_plain(self) -> bool:
        """Whether values stay as they are stored."""
        return self == Decoding()

    def result_type(self, stored: np.dtype[Any]) -> np.dtype[Any]:
        """Return the type of decoded values."""
        if self.floats:
            return np.dtype(self.floats)
        return np.dtype(f"u{stored.itemsize}") if self.unsigned else stored.newbyteorder("=")

    def apply(self, values: np.ndarray[Any, Any], wanted: np.dtype[Any]) -> np.ndarray[Any, Any]:
        """Return decoded values as the type of the whole."""
        if self.unsigned and values.dtype.kind == "i":
            values = values.view(values.dtype.str.replace("i", "u"))
        if not self.floats:
            return values.astype(wanted, copy=False)
        missing = np.zeros(values.shape, np.bool_)
        for each in self.missing:
            missing |= np.isnan(values) if math.isnan(each) else values == _as_stored(each, values.dtype)
        found = values.astype(self.floats)
        with np.errstate(all="ignore"):  # what is masked may overflow
            if self.scale is not None:
                found *= self.scale
            if self.offset is not None:
                found += self.offset
            if (self.factor, self.shift) != (1.0, 0.0):
                found = (found.astype(np.float64) * self.factor + self.shift).astype(self.floats)
        found[missing] = np.nan
        return found.astype(wanted, copy=False)

    def to_json(self) -> dict[str, Json]:
        """Return the members that say something; NaN is text."""
        usual = asdict(Decoding())
        found = {name: value for name, value in asdict(self).items() if value != usual[name]}
        if "missing" in found:
            found["missing"] = [each if type(each) is int else repr(each) for each in self.missing]
        return found

    @classmethod
    def from_json(cls, value: Any) -> Decoding:
        """Return what JSON says; raises `JsonError`."""
        fields = Fields(value)
        floats = fields.take("floats", string, default="")
        missing = fields.take("missing", array_of(_number), default=[])
        found = cls(
            floats,
            fields.take("unsigned", boolean, default=False),
            tuple(missing),
            fields.take("scale", optional(number)),
            fields.take("offset", optional(number)),
            fields.take("factor", number, default=1.0),
            fields.take("shift", number, default=0.0),
        )
        if floats not in ("", "<f4", "<f8", "<f2"):
            raise JsonError(f"Decoded values are <f2, <f4 or <f8, not {floats[:20]!r}")
        fields.finish()
        return found


def _number(value: Any) -> float:
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            raise JsonError(f"Expected a number, but received: {value[:40]!r}") from None
    return value if type(value) is int else number(value)


def _as_stored(value: float, dtype: np.dtype[Any]) -> Any:
    """Return a missing value as an element of the stored type, so that a float32 finds its own rounding."""
    if dtype.kind == "f":
        return np.array(value).astype(dtype)
    if value != int(value) if math.isfinite(value) else True:
        return np.nan  # no integer equals it
    limits = np.iinfo(dtype) if dtype.kind in "iu" else None
    whole = int(value)
    if limits is not None and not limits.min <= whole <= limits.max:
        wrapped = whole % (1 << (8 * dtype.itemsize))  # -1 of a signed type that is read as unsigned
        return dtype.type(wrapped) if dtype.kind == "u" and wrapped <= limits.max else np.nan
    return whole


def attributes_decoding(attributes: Mapping[str, Any], stored: np.dtype[Any]) -> Decoding:
    """Return how an array with these attributes is decoded; raises `ValueError` for attributes that are no numbers."""
    said = attributes.get("_Unsigned")
    unsigned = stored.kind == "i" and str(said).lower() == "true"
    scale, offset = _single(attributes.get("scale_factor")), _single(attributes.get("add_offset"))
    missing = tuple(_numbers(attributes.get("_FillValue"), stored) + _numbers(attributes.get("missing_value"), stored))
    if stored.kind not in "iuf" or (scale is None and offset is None and not missing):
        return Decoding(unsigned=unsigned)
    kind = np.dtype(f"u{stored.itemsize}") if unsigned else stored
    if scale is not None or offset is not None:
        floats = _unpacked_type(attributes, kind)
    elif kind.kind == "f":
        floats = kind.newbyteorder("<").str
    else:
        floats = "<f4" if kind.itemsize <= 2 else "<f8"
    return Decoding(floats, unsigned, tuple(dict.fromkeys(missing)), scale, offset)


def _unpacked_type(attributes: Mapping[str, Any], kind: np.dtype[Any]) -> str:
    """Return the type that xarray unpacks to: single precision where all numbers for it are of single precision.

    It takes double precision for an offset without a scale, and for a pair of them and integers of 32 bits.
    """
    given = {name for name in PACKING_NUMBERS if attributes.get(name) is not None}
    if given == {"add_offset"} or not given <= single_numbers(attributes):
        return "<f8"
    return "<f8" if len(given) == len(PACKING_NUMBERS) and kind.kind in "iu" and kind.itemsize == 4 else "<f4"


def _single(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, list):
        value = value[0] if len(value) == 1 else value
    return float(value)


def _numbers(value: Any, stored: np.dtype[Any]) -> list[float]:
    """Return the numbers of an attribute; xarray writes floats as text."""
    if value is None or stored.kind not in "iuf":
        return []
    out: list[float] = []
    for each in value if isinstance(value, list) else [value]:
        if isinstance(each, str):
            out.append(_text_number(each))
        else:
            out.append(each if isinstance(each, int) else float(each))
    return out


def _text_number(text: str) -> float:
    import base64
    import struct

    try:
        return float(text)
    except ValueError:
        return float(struct.unpack("<d", base64.b64decode(text, validate=True))[0])


HIDDEN = ".sources/"
"""The beginning of the keys of sources."""

_LARGEST_CHUNK = 2**31


class FileFact(NamedTuple):
    """A file: how references call it, how large it was, and its generation (an ETag, say) as text."""

    url: str
    size: int = -1
    generation: str = ""


@dataclass(frozen=True, slots=True)
class PieceSource:
    """An array of references below `.sources/`, its shape, and how its values are decoded."""

    path: str
    shape: tuple[int, ...]
    version: int
    decoding: Decoding = field(default_factory=Decoding)


@dataclass(frozen=True, slots=True)
class Layered:
    """An array that is a stack of pieces.  `fill` is the value where there is none.

    It is shown with chunks of `chunks` elements, not compressed, in the version of zarr of the groups around it; `dims`
    names its dimensions in version 3, as an attribute does in version 2.
    """

    path: str
    dtype: str
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    fill: Json
    attributes: Mapping[str, Any]
    sources: tuple[PieceSource, ...]
    pieces: Pieces
    version: int = 2
    dims: tuple[str, ...] = ()

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """The type of its elements."""
        return np.dtype(self.dtype)

    @property
    def fill_value(self) -> Any:
        """The value where there is no piece."""
        if self.fill is None:
            return np.zeros((), self.numpy_dtype)[()]
        if isinstance(self.fill, str) and self.numpy_dtype.kind == "S":
            return np.array(self.fill.encode(), self.numpy_dtype)[()]
        return np.array(float(self.fill) if isinstance(self.fill, str) else self.fill).astype(self.numpy_dtype)[()]

    @property
    def document(self) -> dict[str, Any]:
        """The document that it is shown with, without attributes."""
        if self.version == 3:
            return plain_document(self.numpy_dtype, self.shape, self.chunks, self.dims)
        return {
            "zarr_format": 2,
            "shape": list(self.shape),
            "chunks": list(self.chunks),
            "dtype": self.dtype,
            "fill_value": None,
            "order": "C",
            "filters": None,
            "compressor": None,
        }

    @property
    def grid(self) -> Grid:
        """The chunk grid that is shown."""
        found = grid_of(self.path, self.document)
        assert found is not None
        return found

    def documents(self) -> dict[str, bytes]:
        """Return the documents that it is shown with, by key."""
        head = f"{self.path}/" if self.path else ""
        if self.version == 3:
            return {head + "zarr.json": _json({**self.document, "attributes": dict(self.attributes)})}
        return {head + ".zarray": _json(self.document), head + ".zattrs": _json(dict(self.attributes))}

    def check(self) -> None:
        """Raise `JsonError` if it cannot be read as it is described."""
        try:
            dtype = self.numpy_dtype
            fill, document = self.fill_value, self.document
        except (StoreError, TypeError, ValueError) as error:
            raise JsonError(f'The layered array "{self.path}" has no type that can be shown: {error}') from error
        if dtype.kind not in "biufcSmM" or dtype.itemsize == 0:
            raise JsonError(f'The layered array "{self.path}" has the type {self.dtype}, which cannot be shown')
        if math.prod(self.chunks) * dtype.itemsize > _LARGEST_CHUNK:
            raise JsonError(f'The layered array "{self.path}" has chunks that are too large')
        assert self.grid is not None
        del fill, document
        self.pieces.check([source.shape for source in self.sources])


@dataclass(frozen=True, slots=True)
class Mosaic:
    """A virtual dataset.

    `references` has the documents and chunks of arrays of references, and of sources.  `files` are what it was combined
    from, `facts` what else is kept with it (a report, options), `scan` what combining knows of the files, as columns,
    for those who add more.  `as_scanned`: the files are those that were scanned, and no copies, which may have other
    generations.
    """

    references: TableSet
    layered: Mapping[str, Layered] = field(default_factory=dict)
    files: Sequence[FileFact] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    scan: Any = None
    as_scanned: bool = True

    def check(self) -> None:
        """Raise `JsonError` for what cannot be read."""
        for each in self.layered.values():
            each.check()


def plain_document(
    dtype: np.dtype[Any], shape: Sequence[int], chunks: Sequence[int], dims: Sequence[str]
) -> dict[str, Any]:
    """Return the document of zarr v3 of an array whose chunks are its elements, little-endian."""
    endian = {"configuration": {"endian": "little"}} if dtype.itemsize > 1 else {}
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(shape),
        "data_type": stored_type(dtype_of(dtype)).json,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(chunks)}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": {"b": False, "U": "", "S": "", "c": [0, 0]}.get(dtype.kind, 0),
        "codecs": [{"name": "bytes", **endian}],
        "dimension_names": list(dims),
    }


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
