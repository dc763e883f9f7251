"""The tables of the whole: one table of references for files that are encoded alike, layers of pieces for others."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fsstore.combine.agreement import OF_PACKED, Compared, decoding_of, stored_types
from fsstore.combine.facts import NONE, CombineError, FileBatch, Form, Ints, VariableColumns
from fsstore.combine.mosaic import HIDDEN, CellAxis, Decoding, Layered, Pieces, PieceSource, plain_document
from fsstore.errors import StoreError
from fsstore.format.attributes import MARK, mark_of, plain_mark
from fsstore.reference.table.keys import Family, grid_of
from fsstore.reference.table.refset import TableSet
from fsstore.reference.table.table import INLINE, Block, Row, Rows, Table
from fsstore.runtime.tuning import DENSE_PLACES
from fsstore.values.json_value import Json

# Making the tables of the whole: documents, values and references put where they belong.

_LABELS = "_ARRAY_DIMENSIONS"


class WholeTables:
    """Collects what the whole consists of.  URLs and inline values of the batch keep their numbers."""

    def __init__(self, batch: FileBatch, version: int) -> None:
        self.version = version
        self.layered: dict[str, Layered] = {}
        self._urls = list(batch.urls)
        self._inline = list(batch.inline)
        self._loose: dict[str, Row] = {}
        self._blocks: dict[Family, Block] = {}

    def put(self, key: str, value: bytes) -> None:
        """Put an inline value."""
        self._loose[key] = Row(INLINE, len(self._inline), len(value))
        self._inline.append(value)

    def put_group(self, path: str, attributes: Mapping[str, Any]) -> None:
        """Put the documents of a group."""
        head = f"{path}/" if path else ""
        if self.version == 3:
            said = {"zarr_format": 3, "node_type": "group", "attributes": dict(attributes)}
            self.put(f"{head}zarr.json", _json(said))
            return
        self.put(f"{head}.zgroup", b'{"zarr_format":2}')
        self.put(f"{head}.zattrs", _json(attributes))

    def put_array(self, path: str, form: Form, shape: Sequence[int], changes: Mapping[str, Any]) -> None:
        """Put the documents of an array of references; `changes` replace members of its document."""
        document = {**json.loads(form.document_for(shape)), **changes}
        head = f"{path}/" if path else ""
        if form.version == 3:
            self.put(f"{head}zarr.json", _json(document))
            return
        self.put(f"{head}.zarray", _json(document))
        self.put(f"{head}.zattrs", form.attributes.encode())

    def put_chunks(self, path: str, document: Mapping[str, Any], number: Ints, rows: Rows) -> None:
        """Put the references of an array: chunks by their numbers in the grid of its document."""
        grid = grid_of(path, document)
        assert grid is not None
        if not len(number):
            return
        if grid.family is None:
            self._loose[grid.key(())] = rows.row(0)
            return
        order = np.argsort(number, kind="stable")
        number, rows = number[order], rows.take(order)
        if grid.count <= len(number) * DENSE_PLACES:
            dense = Rows.absent(grid.count)
            dense.put(number, rows)
            self._blocks[grid.family] = Block(grid.family, grid.shape, None, dense)
        else:
            self._blocks[grid.family] = Block(grid.family, grid.shape, number, rows)

    def put_values(self, path: str, values: Any, dims: Sequence[str], attributes: Mapping[str, Any]) -> None:
        """Put an array by value, in one chunk."""
        values = np.asarray(values)
        if values.dtype.kind == "O":
            values = values.astype(str)
        plain = np.ascontiguousarray(values.astype(values.dtype.newbyteorder("<"), copy=False))
        said = attributes_in(self.version, attributes, plain.dtype, dims)
        shape = list(values.shape)
        chunks = [max(1, size) for size in shape]
        head = f"{path}/" if path else ""
        if self.version == 3:
            shown = plain_document(plain.dtype, shape, chunks, dims)
            self.put(f"{head}zarr.json", _json({**shown, "attributes": said}))
            key = "/".join(["c", *("0" for _ in shape)])
        else:
            self.put(f"{head}.zarray", _json({
                "zarr_format": 2, "shape": shape, "chunks": chunks, "dtype": plain.dtype.str, "fill_value": None,
                "order": "C", "filters": None, "compressor": None,
            }))  # fmt: skip
            self.put(f"{head}.zattrs", _json(said))
            key = ".".join("0" for _ in shape) or "0"
        if values.size:
            self.put(head + key, plain.tobytes())

    def finish(self) -> TableSet:
        """Return the references."""
        rows = Rows.of(list(self._loose.values()))
        names = {key: number for number, key in enumerate(self._loose)}
        return TableSet(Table(self._urls, self._inline, names, rows, self._blocks))


def attributes_in(
    version: int, attributes: Mapping[str, Any], dtype: np.dtype[Any], dims: Sequence[str]
) -> dict[str, Any]:
    """Return attributes of an array in a version of zarr: version 2 has the dimensions, and marks that are plain."""
    said = {name: value for name, value in attributes.items() if name != _LABELS}
    if version == 3:
        return said
    mark = plain_mark(mark_of(said, dtype, 3), dtype) if isinstance(said.get(MARK), str) else None
    if isinstance(mark, int | float):
        said[MARK] = mark if math.isfinite(mark) else {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[repr(mark)]
    return {**said, _LABELS: list(dims)}


def placed_rows(
    forms: Sequence[Form],
    form: Ints,
    count: Ints,
    number: Ints,
    starts: Sequence[tuple[int, Ints]],
    grid: Sequence[int],
) -> Ints:
    """Return the numbers in the grid of the whole of the chunks of files.

    `form`, `count` and the starts are by file, `number` by chunk.  `starts` say for an axis at which chunk of the whole
    the first of a file stands.  Chunks outside the grid get -1.
    """
    out = np.full(len(number), -1, np.int64)
    of_file = np.repeat(np.arange(len(count)), count)
    own, grid_of_form = _own_grids(forms)  # thousands of forms have a few grids
    grid_of_row = grid_of_form[form[of_file]]
    for each in np.unique(grid_of_row).tolist():  # a file without the variable has no rows, and any form
        here = np.flatnonzero(grid_of_row == each)
        coords = [np.asarray(one, np.int64) for one in np.unravel_index(number[here], own[each])]
        for axis, start in starts:
            coords[axis] = coords[axis] + start[of_file[here]]
        linear = np.zeros(len(here), np.int64)
        inside = np.ones(len(here), np.bool_)
        for size, coord in zip(tuple(grid) or (1,), coords, strict=True):
            inside &= (coord >= 0) & (coord < size)
            linear = linear * size + coord
        out[here] = np.where(inside, linear, -1)
    return out


def _own_grids(forms: Sequence[Form]) -> tuple[list[tuple[int, ...]], Ints]:
    """Return the chunk grids that files have, and which of them each form has."""
    known: dict[tuple[int, ...], int] = {}
    column = np.zeros(len(forms), np.int64)
    for at, form in enumerate(forms):
        counts = [-(-size // step) for size, step in zip(form.shape, form.chunks, strict=True)]
        column[at] = known.setdefault(tuple(counts) or (1,), len(known))
    return list(known), column


def _json(value: Any) -> bytes:
    return json.dumps(dict(value), separators=(",", ":")).encode()


_LARGEST = 64 * 2**20  # bytes of a chunk that is shown


@dataclass(frozen=True, slots=True)
class FilePlaces:
    """Where files lie along the axes of a variable that grow.

    `axes` have the number of the axis, its blocks (start and size), the block of each file, and how many of the first
    elements of each file are not used.
    """

    axes: tuple[tuple[int, Ints, Ints, Ints, Ints], ...]
    shape: tuple[int, ...]

    @property
    def cells(self) -> int:
        """How many places for files there are."""
        return math.prod(len(start) for _, start, _, _, _ in self.axes)

    def cell(self) -> Ints:
        """Return the place of each file."""
        out: Any = 0
        for _, start, _, block, _ in self.axes:
            out = out * len(start) + block
        return np.asarray(out, np.int64)


def put_layered(
    tables: WholeTables,
    path: str,
    forms: Sequence[Form],
    columns: VariableColumns,
    compared: Compared,
    places: FilePlaces,
) -> Layered:
    """Put an array of pieces, and the sources it reads."""
    have = np.flatnonzero(columns.form != NONE)
    decodings, dtype, attributes = _values(path, forms, compared, incomplete=len(have) < places.cells)
    encoding_of = dict(zip(compared.forms, compared.encodings, strict=True))
    encoding = np.array([encoding_of.get(form, NONE) for form in columns.form.tolist()], np.int64)
    origin = np.zeros((len(columns.form), len(places.axes)), np.int64)
    arrays: dict[int, tuple[str, tuple[int, ...], int]] = {}
    for each in sorted(set(encoding[have].tolist())):
        files = np.flatnonzero(encoding == each)
        name = f"{HIDDEN}array-{len(tables.layered)}-encoding-{each}-"
        arrays[each] = _put_source(tables, name, forms, columns, (files, places, origin))
    listed, number_of = _sources({form: (encoding_of[form], decodings[form]) for form in compared.forms}, arrays)
    cell = places.cell()[have]
    order = np.argsort(cell, kind="stable")
    have, cell = have[order], cell[order]
    source = np.array([number_of[form] for form in columns.form[have].tolist()], np.int64)
    axes = tuple(CellAxis(axis, start, start + size) for axis, start, size, _, _ in places.axes)
    everywhere = len(have) == places.cells
    pieces = Pieces(places.shape, axes, source, origin[have], None if everywhere else cell)
    first = forms[compared.forms[0]]
    fill = _fill(dtype, attributes, first.version)
    attributes = attributes_in(tables.version, attributes, dtype, first.dims)
    chunks = _chunks(forms, columns, dtype)
    shown = Layered(
        path, dtype.str, places.shape, chunks, fill, attributes, tuple(listed), pieces, tables.version, first.dims
    )
    shown.check()
    tables.layered[path] = shown
    return shown


def _sources(
    keys: Mapping[int, tuple[int, Decoding]], arrays: Mapping[int, tuple[str, tuple[int, ...], int]]
) -> tuple[list[PieceSource], dict[int, int]]:
    """Return the sources of forms, by their encoding and decoding, and which of them each form has."""
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys.values()))}
    listed = [PieceSource(*arrays[encoding], decoding) for encoding, decoding in numbers]
    return listed, {form: numbers[key] for form, key in keys.items()}


def _put_source(
    tables: WholeTables,
    name: str,
    forms: Sequence[Form],
    columns: VariableColumns,
    where: tuple[Ints, FilePlaces, Ints],
) -> tuple[str, tuple[int, ...], int]:
    """Put the hidden array of some files; `origin` learns where each begins in it."""
    files, places, origin = where
    form = forms[int(columns.form[files[0]])]
    lead = places.axes[0][0] if places.axes else 0
    sizes = np.array([forms[number].shape for number in columns.form[files].tolist()], np.int64).reshape(len(files), -1)
    shape = sizes.max(axis=0) if sizes.shape[1] else np.zeros(0, np.int64)
    starts: list[tuple[int, Ints]] = []
    if places.axes:
        step = form.chunks[lead]
        slots = -(-sizes[:, lead] // step)
        first = np.cumsum(slots) - slots
        shape[lead] = int(slots.sum()) * step
        starts = [(lead, first)]
        for at, (axis, _, _, _, skipped) in enumerate(places.axes):
            origin[files, at] = skipped[files] + (first * step if axis == lead else 0)
    whole = tuple(int(size) for size in shape)
    document = form.document_for(whole)
    own = columns.taken(files)
    grid = tuple(-(-size // step) for size, step in zip(whole, form.chunks, strict=True))
    number = placed_rows(forms, own.form, own.count, own.number, starts, grid)
    head = f"{name}/"
    tables.put(head + (".zarray" if form.version == 2 else "zarr.json"), document)
    tables.put_chunks(name, {**form.parsed, "shape": list(whole)}, number, own.rows)
    return name, whole, form.version


def _values(
    path: str, forms: Sequence[Form], compared: Compared, *, incomplete: bool
) -> tuple[dict[int, Decoding], np.dtype[Any], dict[str, Any]]:
    """Return how each form is decoded, the type of the whole, and its attributes."""
    listed = {number: forms[number] for number in compared.forms}
    first = listed[compared.forms[0]]
    types, wanted = stored_types(listed), str(first.attrs.get("units", ""))
    if any(kind.kind not in "biufcSmM" for kind in types.values()):
        raise CombineError(f'"{path}" differs between files, and its type {first.parsed.get("dtype")} has no layers')
    attributes = dict(first.attrs)
    try:
        decodings = {number: decoding_of(form, types[number], wanted) for number, form in listed.items()}
        common = np.result_type(*types.values())
    except (StoreError, TypeError) as error:
        raise CombineError(f'The values of "{path}" have no common type: {error}') from error
    kinds = {kind.newbyteorder("=").str for kind in types.values()}
    packed = any(not each.is_plain for each in decodings.values())
    has_fill = "_FillValue" in attributes or common.kind in "fcSmM"
    same = len(set(decodings.values())) == 1 and (len(kinds) == 1 or not packed)
    if same and common.kind in "mM" and incomplete:
        attributes.setdefault("_FillValue", None)
    if same and (has_fill or not incomplete):
        plain = dict.fromkeys(listed, Decoding())
        return plain, common.newbyteorder("<"), attributes
    if common.kind not in "iuf":
        raise CombineError(f'"{path}" of type {common} lacks in some files, and has no value that says so')
    if incomplete:
        decodings = {number: _as_floats(each, types[number]) for number, each in decodings.items()}
    whole = np.result_type(*(decodings[number].result_type(types[number]) for number in listed))
    return decodings, whole.newbyteorder("<"), {k: v for k, v in attributes.items() if k not in OF_PACKED}


def _as_floats(decoding: Decoding, stored: np.dtype[Any]) -> Decoding:
    if decoding.floats or stored.kind == "f":
        return decoding
    floats = "<f4" if stored.itemsize <= 2 else "<f8"
    return Decoding(floats, decoding.unsigned, decoding.missing)


def _fill(dtype: np.dtype[Any], attributes: Mapping[str, Any], version: int) -> Json:
    mark = plain_mark(mark_of(attributes, dtype, version), dtype)
    if mark is None and dtype.kind in "fc":
        return "nan"
    return repr(mark) if isinstance(mark, float) and not math.isfinite(mark) else mark


def _chunks(forms: Sequence[Form], columns: VariableColumns, dtype: np.dtype[Any]) -> tuple[int, ...]:
    """Return the shape of chunks that are shown: that of most files, but not larger than a file."""
    usual = forms[Counter(form for form in columns.form.tolist() if form != NONE).most_common(1)[0][0]]
    chunks = [max(1, min(step, size)) for step, size in zip(usual.chunks, usual.shape, strict=True)]
    for axis in range(len(chunks)):
        while math.prod(chunks) * dtype.itemsize > _LARGEST and chunks[axis] > 1:
            chunks[axis] = -(-chunks[axis] // 2)
    return tuple(chunks)
