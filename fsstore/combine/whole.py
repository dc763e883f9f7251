"""Making the tables of the whole: documents, values and references put where they belong."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fsstore.combine.scan.facts import FileBatch, Form, Ints
from fsstore.combine.tuning import DENSE_PLACES
from fsstore.format.missing_value import MARK, mark_of, plain_mark
from fsstore.mosaic.value import Layered, plain_document
from fsstore.reference.state.refset import TableSet
from fsstore.reference.table.grid import grid_of
from fsstore.reference.table.keys import Family
from fsstore.reference.table.table import INLINE, Block, Row, Rows, Table

__all__ = ["WholeTables", "attributes_in", "placed_rows"]

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
        said[MARK] = (
            mark
            if math.isfinite(mark)
            else {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[repr(mark)]
        )
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
