"""Scanning NetCDF 3 with kerchunk, with the records where the header says they are.

kerchunk 0.2.10 lays record variables one behind the other in the order of the header and pads those of bytes,
characters and short integers by what NumPy would; files may hold them in any order, a single one is not padded, and a
file that is being written does not say how many records it has.  The header gives the beginning of each variable and
the size of a record: that is what the layout is made of here.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from kerchunk import netCDF3

from fsstore.errors import StoreError

__all__ = ["Netcdf3Scanner"]

_STREAMING = (-1, 2**32 - 1)  # what stands for the number of records until a file is closed


class Netcdf3Scanner(netCDF3.NetCDF3ToZarr):  # type: ignore[misc]  # a class of kerchunk has no types
    """kerchunk's scanner with the layout of records taken from the header."""

    def _read_var(self) -> Any:
        found = super()._read_var()
        name, _, shape, _, _, size, kind, begin, _ = found
        if shape and shape[0] is None:
            # an attribute of the instance would become one of the dataset
            self.__dict__.setdefault("_records", []).append((begin, name, shape[1:], size, kind))
        return found

    def _read_var_array(self) -> None:
        super()._read_var_array()
        records = sorted(self.__dict__.pop("_records", []))
        if not records:
            return
        if self._recs in _STREAMING:
            raise StoreError("its header does not say how many records it has: it was not closed")
        sizes = [math.prod(shape) * size for _, _, shape, size, _ in records]
        step = sizes[0] if len(records) == 1 else sum(-(-size // 4) * 4 for size in sizes)
        names, formats = _layout(records, sizes, step)
        self.chunks["record_array"] = [
            [records[0][0], self._recs * step, {"names": names, "formats": formats}]
        ]


def _layout(records: list[tuple[Any, ...]], sizes: list[int], step: int) -> tuple[list[str], list[Any]]:
    """Return names and formats of the fields of a record, gaps between them filled by fields that are skipped."""
    names: list[str] = []
    formats: list[Any] = []
    first = at = records[0][0]

    def skip(count: int) -> None:
        if count < 0:
            raise StoreError("its record variables lie over each other")
        if count:
            names.append(f"_padding_{len(names)}")
            formats.append(np.dtype(f"V{count}"))

    for (begin, name, shape, _, kind), size in zip(records, sizes, strict=True):
        skip(begin - at)
        names.append(name)
        formats.append(np.dtype((np.dtype(kind), shape)))
        at = begin + size
    skip(first + step - at)
    return names, formats
