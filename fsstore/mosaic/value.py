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

from fsstore.errors import JsonError
from fsstore.kvstore.reference.state.refset import TableSet
from fsstore.kvstore.reference.table.grid import Grid, grid_of
from fsstore.mosaic.decoding import Decoding
from fsstore.mosaic.pieces import Pieces
from fsstore.values.json_value import Json

__all__ = ["HIDDEN", "FileFact", "Layered", "Mosaic", "PieceSource"]

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

    It is shown with chunks of `chunks` elements, not compressed.
    """

    path: str
    dtype: str
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    fill: Json
    attributes: Mapping[str, Any]
    sources: tuple[PieceSource, ...]
    pieces: Pieces

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
    def grid(self) -> Grid:
        """The chunk grid that is shown."""
        found = grid_of(self.path, {"zarr_format": 2, "shape": list(self.shape), "chunks": list(self.chunks)})
        assert found is not None
        return found

    def documents(self) -> dict[str, bytes]:
        """Return the documents of zarr v2 that it is shown with."""
        head = f"{self.path}/" if self.path else ""
        shown = {
            "zarr_format": 2,
            "shape": list(self.shape),
            "chunks": list(self.chunks),
            "dtype": self.dtype,
            "fill_value": None,
            "order": "C",
            "filters": None,
            "compressor": None,
        }
        return {
            head + ".zarray": json.dumps(shown, separators=(",", ":")).encode(),
            head + ".zattrs": json.dumps(dict(self.attributes), separators=(",", ":")).encode(),
        }

    def check(self) -> None:
        """Raise `JsonError` if it cannot be read as it is described."""
        try:
            dtype = self.numpy_dtype
            fill = self.fill_value
        except (TypeError, ValueError) as error:
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
        del fill
        self.pieces.check([source.shape for source in self.sources])


@dataclass(frozen=True, slots=True)
class Mosaic:
    """A virtual dataset.

    `references` has the documents and chunks of arrays of references, and of sources.  `files` are what it was combined
    from, `facts` what else is kept with it (a report, options), `scan` what combining knows of the files, as columns,
    for those who add more.
    """

    references: TableSet
    layered: Mapping[str, Layered] = field(default_factory=dict)
    files: Sequence[FileFact] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    scan: Any = None

    def check(self) -> None:
        """Raise `JsonError` for what cannot be read."""
        for each in self.layered.values():
            each.check()
