"""The virtual dataset as a value: references, arrays that are stacks of pieces, and the files they come from.

An array is either one of references, like in any reference set, or *layered*: its pieces come from sources, which are
arrays of references of their own below `.sources/`, hidden from those who list the keys.  Files that are encoded alike
share one source, so there are as many of these as there are ways in which files differ.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from fsstore.errors import JsonError, StoreError
from fsstore.format.zarr3_dtype import stored_type
from fsstore.mosaic.decoding import Decoding
from fsstore.mosaic.pieces import Pieces
from fsstore.reference.state.refset import TableSet
from fsstore.reference.table.grid import Grid, grid_of
from fsstore.values.dtypes import dtype_of
from fsstore.values.json_value import Json

__all__ = ["HIDDEN", "FileFact", "Layered", "Mosaic", "PieceSource", "plain_document"]

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
        return np.array(float(self.fill) if isinstance(self.fill, str) else self.fill).astype(
            self.numpy_dtype
        )[()]

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
            raise JsonError(
                f'The layered array "{self.path}" has no type that can be shown: {error}'
            ) from error
        if dtype.kind not in "biufcSmM" or dtype.itemsize == 0:
            raise JsonError(
                f'The layered array "{self.path}" has the type {self.dtype}, which cannot be shown'
            )
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
