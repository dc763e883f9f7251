"""The columns of FITS tables: where each stands in a row, and what it is turned into."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fsstore.errors import DataLossError, FailedPreconditionError, ResourceExhaustedError, UnimplementedError
from fsstore.scan.contract import Blocks
from fsstore.values.json_value import Json

# The headers of a FITS file: cards of eighty letters, and where the data of each unit lie.

_BLOCK, _CARD = 2880, 80
_MOST_HEADER = 16 * 2**20
_MOST_HEADERS = 128 * 2**20
_MOST_UNITS = 100_000
_STRING = re.compile(r"\s*'((?:[^']|'')*)'")
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[EeDd][+-]?\d+)?\Z")
_TEXTS = ("COMMENT", "HISTORY", "")


@dataclass(frozen=True, slots=True)
class FitsUnit:
    """A header at `head`, and the bytes `[start, start + size)` of its data."""

    number: int
    cards: Mapping[str, Json]
    texts: Mapping[str, str]
    start: int
    size: int
    head: int = 0

    @property
    def end(self) -> int:
        """Where the blocks of its data end."""
        return self.start + -(-self.size // _BLOCK) * _BLOCK

    def integer(self, name: str, default: int = 0) -> int:
        """Return a card that is a whole number; raises `FailedPreconditionError` if it is something else."""
        found = self.cards.get(name, default)
        if isinstance(found, float) and found.is_integer():
            found = int(found)
        if not isinstance(found, int) or isinstance(found, bool):
            raise FailedPreconditionError(f"{name} of unit {self.number} is no whole number")
        return found

    def real(self, name: str, default: float) -> float:
        """Return a card that is a number."""
        found = self.cards.get(name, default)
        if not isinstance(found, int | float) or isinstance(found, bool):
            raise FailedPreconditionError(f"{name} of unit {self.number} is no number")
        return float(found)

    def text(self, name: str, default: str = "") -> str:
        """Return a card that is a text; a default for everything else."""
        found = self.cards.get(name, default)
        return found.strip() if isinstance(found, str) else default

    def shape(self, prefix: str = "") -> tuple[int, ...]:
        """Return the lengths of the axes, the slowest first."""
        rank = self.integer(f"{prefix}NAXIS")
        if not 0 <= rank <= 999:
            raise FailedPreconditionError(f"unit {self.number} has {rank} axes")
        return tuple(self.integer(f"{prefix}NAXIS{axis}") for axis in range(rank, 0, -1))

    def table(self) -> tuple[int, int]:
        """Return how many rows a table has, and of how many bytes; raises `FailedPreconditionError` if it is none."""
        shape = self.shape()
        if len(shape) != 2:
            raise FailedPreconditionError(f"unit {self.number} is a table of {len(shape)} axes instead of 2")
        return shape[0], shape[1]

    @property
    def kind(self) -> str:
        """The kind of unit: IMAGE, BINTABLE, TABLE, or another."""
        return self.text("XTENSION", "IMAGE" if self.number == 0 else "").upper()

    @property
    def attributes(self) -> dict[str, Json]:
        """All cards as attributes."""
        return {**self.cards, **{name: text for name, text in self.texts.items() if name}}


class UnitWalk:
    """Follows the units of a file one behind the other; those that are done are kept when blocks are missing."""

    def __init__(self) -> None:
        self.units: list[FitsUnit] = []
        self._next = 0
        self._read = 0

    def follow(self, blocks: Blocks) -> list[FitsUnit]:
        """Return the units."""
        while self._next + _BLOCK <= blocks.size:
            head = blocks.read(self._next, self._next + _BLOCK)
            if not head.startswith(b"XTENSION=" if self.units else b"SIMPLE  ="):
                break  # what follows the last unit is nobody's
            unit = self._unit(blocks)
            self.units.append(unit)
            if len(self.units) > _MOST_UNITS:
                raise ResourceExhaustedError(f"it has more than {_MOST_UNITS} units")
            self._next = unit.end
        if not self.units:
            raise FailedPreconditionError("it does not begin like a FITS file")
        return self.units

    def _unit(self, blocks: Blocks) -> FitsUnit:
        at, cards = self._next, list[bytes]()
        while True:
            if at + _BLOCK > blocks.size or at - self._next > _MOST_HEADER:
                raise DataLossError(f"the header at offset {self._next} does not end")
            data = blocks.read(at, at + _BLOCK)
            at += _BLOCK
            found = [data[card : card + _CARD] for card in range(0, _BLOCK, _CARD)]
            ends = [number for number, card in enumerate(found) if card[:8] == b"END     "]
            cards += found[: ends[0]] if ends else found
            if ends:
                break
        self._read += at - self._next
        if self._read > _MOST_HEADERS:
            raise ResourceExhaustedError(f"its headers have more than {_MOST_HEADERS} bytes")
        values, texts = _parsed(cards)
        unit = FitsUnit(len(self.units), values, texts, at, 0)
        return FitsUnit(unit.number, values, texts, at, _size(unit), self._next)


def _size(unit: FitsUnit) -> int:
    """Return how many bytes of data follow a header."""
    shape = unit.shape()
    if any(length < 0 for length in shape):
        raise DataLossError(f"an axis of unit {unit.number} has a negative length")
    if not shape:
        return 0
    groups = unit.cards.get("GROUPS") is True and shape[-1] == 0
    count = math.prod(shape[:-1] if groups else shape)
    more, times = unit.integer("PCOUNT"), unit.integer("GCOUNT", 1)
    if more < 0 or times < 0:
        raise DataLossError(f"unit {unit.number} has negative counts")
    size = abs(unit.integer("BITPIX", 8)) // 8 * times * (more + count)
    if size >= 2**62:
        raise DataLossError(f"unit {unit.number} claims {size} bytes")
    return size


def _parsed(cards: list[bytes]) -> tuple[dict[str, Json], dict[str, str]]:
    values: dict[str, Json] = {}
    texts: dict[str, list[str]] = {}
    last = ""
    for raw in cards:
        card = raw.decode("latin-1")
        name = card[:8].rstrip()
        if name == "CONTINUE" and last and isinstance(values[last], str):
            values[last] = str(values[last]).removesuffix("&") + str(_value(card[8:]) or "")
            continue
        last = ""
        if name in _TEXTS:
            texts.setdefault(name, []).append(card[8:].rstrip())
            continue
        body = card[8:]
        if name == "HIERARCH":
            name, equals, body = card[9:].partition("=")
            name, body = name.strip(), "= " + body
            if not equals:
                continue
        if not body.startswith("= ") or name in values:
            continue
        values[name] = _value(body[2:])
        last = name
    return values, {name: "\n".join(lines) for name, lines in texts.items()}


def _value(text: str) -> Json:
    """Return a value; what is none of a number, a truth value and a text stays as it is written."""
    found = _STRING.match(text)
    if found:
        return found[1].replace("''", "'").rstrip()
    bare = text.partition("/")[0].strip()
    if bare in ("T", "F"):
        return bare == "T"
    if not _NUMBER.match(bare):
        return bare or None
    if len(bare) < 40 and re.fullmatch(r"[+-]?\d+", bare):
        return int(bare)
    number = float(bare.upper().replace("D", "E"))
    return number if math.isfinite(number) else bare


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


def groups_of(unit: FitsUnit) -> tuple[list[FitsColumn], int]:
    """Return the columns that random groups are, their parameters and their array, and the bytes of a group."""
    bits, shape, count = unit.integer("BITPIX"), unit.shape()[:-1], unit.integer("PCOUNT")
    letter = {8: "B", 16: "I", 32: "J", 64: "K", -32: "E", -64: "D"}.get(bits)
    if letter is None or not 0 <= count <= _MOST_COLUMNS:
        raise DataLossError(f"unit {unit.number} claims groups of {count} parameters of {bits} bits")
    out: list[FitsColumn] = []
    width = abs(bits) // 8
    for number in range(1, count + 1):
        name = unit.text(f"PTYPE{number}") or f"col{number}"
        while any(each.name.casefold() == name.casefold() for each in out):
            name = f"_{name}"  # as astropy calls it: such parameters are to be added
        scaling = unit.real(f"PSCAL{number}", 1.0), unit.real(f"PZERO{number}", 0.0)
        out.append(_numbers(name, (number - 1) * width, letter, scaling))
    name = "DATA"
    while any(each.name.casefold() == name.casefold() for each in out):
        name = f"_{name}"
    scaling = unit.real("BSCALE", 1.0), unit.real("BZERO", 0.0)
    times = math.prod(shape)
    out.append(_numbers(name, count * width, letter, scaling, (times, shape)))
    return out, (count + times) * width


def _numbers(
    name: str, at: int, letter: str, scaling: tuple[float, float], cell: tuple[int, tuple[int, ...]] = (1, ())
) -> FitsColumn:
    """Return a column of numbers that are to be scaled."""
    stored, (count, shape), (scale, zero) = np.dtype(_TYPES[letter]), cell, scaling
    if scaling == (1.0, 0.0):
        return FitsColumn(name, at, stored, count, stored.str, shape)
    if stored.kind in "iu" and scale == 1.0 and zero == unsigned_offset(stored.itemsize * 8):
        turned = "|i1" if letter == "B" else stored.str.replace("i", "u")
        return FitsColumn(name, at, stored, count, turned, shape, "sign")
    shown = "<c16" if stored.kind == "c" else "<f8"
    return FitsColumn(name, at, stored, count, shown, shape, "scale", scale, zero)


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
    shown = "<i8" if found[1] == "I" and not null else "<f8"  # whole numbers have no value for an undefined one
    return FitsColumn(name, at, stored, 1, shown, how="text", null=null)


def _column(unit: FitsUnit, number: int, place: tuple[str, int], form: str) -> FitsColumn:
    name, at = place
    found = _BINARY.match(form)
    if found is None:
        raise UnimplementedError(f"column {number} has the unknown form {form!r}")
    count, letter = int(found[1] or 1), found[2]
    if count >= 2**40:
        raise DataLossError(f"column {number} has {count} elements")
    scale, zero = unit.real(f"TSCAL{number}", 1.0), unit.real(f"TZERO{number}", 0.0)
    if letter in "PQ":
        how = "copy" if (scale, zero) == (1.0, 0.0) else "scale"
        stored = np.dtype(">i4" if letter == "P" else ">i8")
        return FitsColumn(name, at, stored, 2 * count, "", how=how, heap=found[3])
    sizes = [int(each) for each in re.findall(r"\d+", unit.text(f"TDIM{number}"))]
    if letter == "A" and len(sizes) > 1 and 0 < math.prod(sizes) == count:  # several texts, each of the first size
        kind = f"S{sizes[0]}"
        return FitsColumn(name, at, np.dtype(kind), count // sizes[0], f"|{kind}", tuple(sizes[:0:-1]))
    if letter == "A":
        return FitsColumn(name, at, np.dtype(f"S{max(count, 1)}"), min(count, 1), f"|S{count}")
    shape = _shape(unit, number, count)
    if letter == "X":
        return FitsColumn(name, at, np.dtype("u1"), -(-count // 8), "|b1", shape or (count,), "bits")
    if letter == "L":
        return FitsColumn(name, at, np.dtype("S1"), count, "|b1", shape, "bool")
    return _numbers(name, at, letter, (scale, zero), (count, shape))


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
