"""The columns of FITS tables: where each stands in a row, and what it is turned into."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fsstore.errors import DataLossError, UnimplementedError
from fsstore.scan.fits.header import FitsUnit
from fsstore.values.json_value import Json

__all__ = ["FitsColumn", "columns_of", "rows_dtype", "unsigned_offset"]

_BINARY = re.compile(r"(\d*)([LXBIJKAEDCMPQ])(.*)\Z", re.DOTALL)
_ASCII = re.compile(r"([AIFED])(\d+)(?:\.\d+)?\Z")
_TYPES = {
    "L": "S1", "B": "u1", "I": ">i2", "J": ">i4", "K": ">i8", "E": ">f4", "D": ">f8", "C": ">c8", "M": ">c16",
}  # fmt: skip
_MOST_COLUMNS = 999


class FitsColumn(NamedTuple):
    """A column: its name, where it begins in a row, how it is stored there, and what is shown of it.

    `how` is `copy`, `sign` (numbers stored with the sign turned), `bool` (letters), `bits`, `scale` or `text`;
    columns of arrays of any length have `heap` instead of a shown type.  `null` is the text of an undefined number.
    """

    name: str
    at: int
    stored: np.dtype[Any]
    times: int
    shown: str
    shape: tuple[int, ...] = ()
    how: str = "copy"
    scale: float = 1.0
    offset: float = 0.0
    heap: str = ""
    null: str = ""

    def option(self) -> dict[str, Json]:
        """Return what the codec has to know."""
        out: dict[str, Json] = {"at": self.at, "dtype": self.stored.str, "count": self.times, "how": self.how}
        if self.null:
            return {**out, "null": self.null}
        return {**out, "scale": self.scale, "offset": self.offset} if self.how == "scale" else out

    def field(self) -> list[Json]:
        """Return the field of the data type of rows."""
        return [self.name, self.shown, list(self.shape)] if self.shape else [self.name, self.shown]


def unsigned_offset(bits: int) -> float:
    """Return the number that is added to whole numbers with signs to make them such without one, or the other way."""
    return -128.0 if bits == 8 else 2.0 ** (bits - 1)


def columns_of(unit: FitsUnit, width: int) -> list[FitsColumn]:
    """Return the columns of a table whose rows have `width` bytes."""
    count = unit.integer("TFIELDS")
    if not 0 <= count <= _MOST_COLUMNS:
        raise DataLossError(f"unit {unit.number} claims {count} columns")
    out, at = [], 0
    names: set[str] = set()
    for number in range(1, count + 1):
        name = unit.text(f"TTYPE{number}") or f"col{number}"
        if name in names:
            name = f"{name}_{number}"
        names.add(name)
        form = unit.text(f"TFORM{number}")
        if unit.kind == "TABLE":
            found = _text_column(unit, number, name, form)
        else:
            found = _column(unit, number, (name, at), form)
        at = found.at + found.stored.itemsize * found.times
        if found.at < 0 or at > width:
            raise DataLossError(f"column {number} of unit {unit.number} ends behind its row of {width} bytes")
        out.append(found)
    return out


def _text_column(unit: FitsUnit, number: int, name: str, form: str) -> FitsColumn:
    found = _ASCII.match(form)
    if found is None:
        raise UnimplementedError(f"column {number} has the unknown form {form!r}")
    size, at = int(found[2]), unit.integer(f"TBCOL{number}", 1) - 1
    if not 0 < size <= 2**20:
        raise DataLossError(f"column {number} has {size} letters")
    stored = np.dtype(f"S{size}")
    if found[1] == "A":
        return FitsColumn(name, at, stored, 1, stored.str)
    null = unit.text(f"TNULL{number}").strip()
    shown = (
        "<i8" if found[1] == "I" and not null else "<f8"
    )  # whole numbers have no value for an undefined one
    return FitsColumn(name, at, stored, 1, shown, how="text", null=null)


def _column(unit: FitsUnit, number: int, place: tuple[str, int], form: str) -> FitsColumn:
    name, at = place
    found = _BINARY.match(form)
    if found is None:
        raise UnimplementedError(f"column {number} has the unknown form {form!r}")
    count, letter = int(found[1] or 1), found[2]
    if count >= 2**40:
        raise DataLossError(f"column {number} has {count} elements")
    if letter in "PQ":
        return FitsColumn(name, at, np.dtype(">i4" if letter == "P" else ">i8"), 2 * count, "", heap=found[3])
    if letter == "A":
        return FitsColumn(name, at, np.dtype(f"S{max(count, 1)}"), min(count, 1), f"|S{count}")
    shape = _shape(unit, number, count)
    if letter == "X":
        return FitsColumn(name, at, np.dtype("u1"), -(-count // 8), "|b1", shape or (count,), "bits")
    stored = np.dtype(_TYPES[letter])
    if letter == "L":
        return FitsColumn(name, at, stored, count, "|b1", shape, "bool")
    scale, zero = unit.real(f"TSCAL{number}", 1.0), unit.real(f"TZERO{number}", 0.0)
    if (scale, zero) == (1.0, 0.0):
        return FitsColumn(name, at, stored, count, stored.str, shape)
    if stored.kind in "iu" and scale == 1.0 and zero == unsigned_offset(stored.itemsize * 8):
        turned = "|i1" if letter == "B" else stored.str.replace("i", "u")
        return FitsColumn(name, at, stored, count, turned, shape, "sign")
    if stored.kind == "c":
        raise UnimplementedError(f"column {number} has scaled complex numbers")
    return FitsColumn(name, at, stored, count, "<f8", shape, "scale", scale, zero)


def _shape(unit: FitsUnit, number: int, count: int) -> tuple[int, ...]:
    """Return the shape of a cell; that of TDIM is turned round, and only taken if it fits."""
    sizes = re.findall(r"\d+", unit.text(f"TDIM{number}"))
    if sizes and math.prod(map(int, sizes)) == count:
        return tuple(int(each) for each in reversed(sizes))
    return () if count == 1 else (count,)


def rows_dtype(columns: Sequence[FitsColumn]) -> list[Json]:
    """Return the data type of rows in the words of zarr."""
    out: list[Json] = []
    out.extend(column.field() for column in columns)
    return out
