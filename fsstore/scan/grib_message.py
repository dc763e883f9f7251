"""Messages of GRIB, found here, described and decoded by ecCodes."""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from fsstore.errors import DataLossError, FailedPreconditionError, ResourceExhaustedError, UnimplementedError
from fsstore.runtime import fork
from fsstore.runtime.tuning import CACHE_BYTES
from fsstore.scan.contract import Blocks
from fsstore.values.json_value import Json

# The messages of a GRIB file: where each begins and ends, and where its sections are; no data is read.
#
# A message says how long it is, so messages are a chain. Far away each is a round of its own, unless a file
# `….idx` beside it says where all of them begin; then the heads of all come in one round, and the chain is
# still followed.

_MOST_MESSAGES = 2_000_000
_MOST_SECTION = 16 * 2**20  # bytes of a section that describes, such as one with the lengths of rows
_MOST_JUNK = 64 * 2**20
_IDX = re.compile(rb"^\d+(?:\.\d+)?:(\d+):", re.MULTILINE)


class GribField(NamedTuple):
    """One field: the bytes of its message, how it is described, and the spans of its sections in the message.

    `head` is a message without data that says the same of it.  `whole` tells that it is alone in its message.
    """

    start: int
    stop: int
    edition: int
    head: bytes
    grid: bytes
    spans: tuple[tuple[int, int], ...]
    whole: bool


@dataclass(slots=True)
class MessageWalk:
    """Follows the messages of a file; those that are done are kept when blocks are missing."""

    heads: Mapping[int, bytes] = field(default_factory=dict)
    fields: list[GribField] = field(default_factory=list)
    notes: dict[str, str] = field(default_factory=dict)
    _next: int = 0
    _junk: int = 0

    def follow(self, blocks: Blocks) -> list[GribField]:
        """Return the fields of all messages; what is no message between them is noted."""
        while self._next + 8 <= blocks.size:
            head = self._read(blocks, self._next, min(self._next + 16, blocks.size))
            if head[:4] != b"GRIB" or head[7] not in (1, 2):
                self._skip(blocks)
                continue
            try:
                found, stop = self._message(blocks, head)
            except (DataLossError, struct.error) as error:
                why = getattr(error, "message", "a section is cut off")
                self.notes[f"message at offset {self._next}"] = why
                self._next += 4
                continue
            self.fields.extend(found)
            if len(self.fields) > _MOST_MESSAGES:
                raise ResourceExhaustedError(f"it has more than {_MOST_MESSAGES} messages")
            self._next = stop
        if not self.fields:
            why = next(iter(self.notes.values()), "")
            raise FailedPreconditionError(f"it has no GRIB message{f': {why}' if why else ''}")
        return self.fields

    def _read(self, blocks: Blocks, start: int, stop: int) -> bytes:
        head = self.heads.get(self._next)
        if head is not None and self._next <= start and stop <= self._next + len(head):
            return head[start - self._next : stop - self._next]
        return blocks.read(start, stop)

    def _skip(self, blocks: Blocks) -> None:
        """Go on at the next place that looks like a message."""
        stop = min(self._next + CACHE_BYTES, blocks.size)
        at = blocks.read(self._next, stop).find(b"GRIB", 1)
        after = self._next + at if at >= 0 else max(stop - 3, self._next + 1) if stop < blocks.size else stop
        self._junk += after - self._next
        if self._junk > _MOST_JUNK:
            raise DataLossError(f"more than {_MOST_JUNK} bytes up to offset {after} are no GRIB message")
        self._next = after

    def _message(self, blocks: Blocks, head: bytes) -> tuple[list[GribField], int]:
        start = self._next
        if head[7] == 1:
            return self._first_edition(blocks, head)
        (length,) = struct.unpack_from(">Q", head, 8)
        stop = start + length
        if length < 32 or stop > blocks.size:
            raise DataLossError(f"it claims {length} bytes at offset {start}, and the file ends at {blocks.size}")
        found: list[GribField] = []
        sections: dict[int, tuple[int, int]] = {0: (start, start + 16)}
        at = start + 16
        while at + 4 < stop:
            size, number = struct.unpack(">IB", self._read(blocks, at, at + 5))
            if size < 5 or at + size > stop - 4 or not 1 <= number <= 7:
                raise DataLossError(f"the section at offset {at} claims {size} bytes and number {number}")
            sections[number] = (at, at + size)
            at += size
            if number == 7:
                found.append(self._field(blocks, (start, stop), sections))
        if not found:
            raise DataLossError(f"it has no data before its end at offset {stop}")
        alone = len(found) == 1
        return [each._replace(whole=alone) for each in found], stop

    def _field(self, blocks: Blocks, span: tuple[int, int], sections: Mapping[int, tuple[int, int]]) -> GribField:
        missing = [number for number in (1, 3, 4, 5, 6, 7) if number not in sections]
        if missing:
            raise DataLossError(f"the message at offset {span[0]} has no section {missing[0]}")
        kept = [sections[number] for number in (0, 1, 2, 3, 4, 5) if number in sections]
        if any(stop - start > _MOST_SECTION for start, stop in kept):
            raise DataLossError(f"the message at offset {span[0]} describes itself in too many bytes")
        parts = [self._read(blocks, start, stop) for start, stop in kept]
        body = b"".join(parts[1:]) + _EMPTY
        head = parts[0][:8] + struct.pack(">Q", 16 + len(body)) + body
        grid = self._read(blocks, *sections[3])
        spans = tuple(sections[number] for number in (0, 1, 2, 3, 4, 5, 6, 7) if number in sections)
        return GribField(*span, 2, head, grid, spans, whole=True)

    def _first_edition(self, blocks: Blocks, head: bytes) -> tuple[list[GribField], int]:
        start = self._next
        length = int.from_bytes(head[4:7], "big")
        product = self._section_1(blocks, start + 8)
        flags = product[7] if len(product) > 7 else 0
        parts, at = [product], start + 8 + len(product)
        grid = b""
        if flags & 0x80:
            grid = self._section_1(blocks, at)
            count, place = grid[3:5]
            if count and (place == 255 or place - 1 + 4 * count > len(grid)):  # ecCodes 2.50 crashes there
                raise DataLossError(f"its grid of {len(grid)} bytes lacks {count} vertical coordinates")
            parts.append(grid)
            at += len(grid)
        if length & 0x800000:  # of a large message: units of 120 bytes
            data_at = at + (int.from_bytes(self._read(blocks, at, at + 3), "big") if flags & 0x40 else 0)
            short = int.from_bytes(self._read(blocks, data_at, data_at + 3), "big")
            length = (length & 0x7FFFFF) * 120 - short + 4 if short < 120 else length
        stop = start + length
        if length < 40 or stop > blocks.size or at + 11 > stop:
            raise DataLossError(f"it claims {length} bytes at offset {start}, and the file ends at {blocks.size}")
        parts[0] = product[:7] + bytes([flags & 0x80]) + product[8:]
        body = b"".join(parts) + _EMPTY_1
        shown = b"GRIB" + (8 + len(body)).to_bytes(3, "big") + b"\1" + body
        return [GribField(start, stop, 1, shown, grid or product, (), whole=True)], stop

    def _section_1(self, blocks: Blocks, at: int) -> bytes:
        size = int.from_bytes(self._read(blocks, at, min(at + 3, blocks.size)), "big")
        if not 8 <= size <= _MOST_SECTION or at + size > blocks.size:
            raise DataLossError(f"the section at offset {at} claims {size} bytes")
        return self._read(blocks, at, at + size)


_EMPTY = struct.pack(">IBB", 6, 6, 255) + struct.pack(">IB", 5, 7) + b"7777"
_EMPTY_1 = (12).to_bytes(3, "big") + bytes(9) + b"7777"


def idx_offsets(text: bytes, size: int) -> list[int]:
    """Return where messages begin by the lines of an index beside a file; nothing if it is none.

    >>> idx_offsets(b"1:0:d=2020010100:TMP:2 m above ground:anl:\\n2:90:d=2020010100:RH:2 m:anl:\\n", 200)
    [0, 90]
    """
    found = sorted({int(each) for each in _IDX.findall(text)})
    return found if found and found[-1] < size and found[0] == 0 else []


def assembled(parts: Sequence[bytes]) -> bytes:
    """Return a message of edition 2 made of sections, the first of which is section 0; its length is written anew."""
    body = b"".join(parts[1:]) + b"7777"
    return parts[0][:8] + struct.pack(">Q", 16 + len(body)) + body


_LOCK = fork.lock()  # for builds of ecCodes that cannot be called from several threads
_GLOBAL = ("edition", "centre", "centreDescription", "subCentre")
_DATA = ("paramId", "dataType", "numberOfPoints", "typeOfLevel", "stepType", "gridType", "uvRelativeToGrid")
PARAMETER_NUMBERS = (
    *("discipline", "parameterCategory", "parameterNumber"),
    *("table2Version", "indicatorOfParameter"),
)
_EXTRA = (
    *("shortName", "units", "name", "cfName", "cfVarName", "totalNumber"),
    *("numberOfDirections", "numberOfFrequencies", "NV", "gridDefinitionDescription"),
)
_DIRECTIONS = ("iScansNegatively", "jPointsAreConsecutive", "jScansPositively")
_ENDS = tuple(f"{axis}Of{end}GridPointInDegrees" for axis in ("latitude", "longitude") for end in ("First", "Last"))
_STEPS = ("iDirectionIncrementInDegrees", "jDirectionIncrementInDegrees")
_POLE = ("angleOfRotationInDegrees", "latitudeOfSouthernPoleInDegrees", "longitudeOfSouthernPoleInDegrees")
_GRIDS: Mapping[str, tuple[str, ...]] = {
    "regular_ll": ("Nx", "Ny", *_STEPS, *_DIRECTIONS, *_ENDS),
    "rotated_ll": ("Nx", "Ny", *_STEPS, *_DIRECTIONS, *_ENDS, *_POLE),
    "regular_gg": ("N", "Ni", "Nj", _STEPS[0], *_DIRECTIONS, *_ENDS),
    "rotated_gg": ("N", "Nx", "Ny", _STEPS[0], *_DIRECTIONS, *_ENDS, *_POLE),
    "reduced_ll": ("Ny", _STEPS[1], *_DIRECTIONS[1:], *_ENDS[:2]),
    "reduced_gg": ("N",),
    "sh": ("M", "K", "J"),
    "lambert": (
        *("LaDInDegrees", "LoVInDegrees", "DxInMetres", "DyInMetres", "Latin1InDegrees", "Latin2InDegrees"),
        *("Nx", "Ny", *_DIRECTIONS, *_POLE[1:], "latitudeOfFirstGridPointInDegrees"),
        "longitudeOfFirstGridPointInDegrees",
    ),
}
_AXES = ("regular_ll", "regular_gg")
_PLANES = (
    *("rotated_ll", "rotated_gg", "lambert", "lambert_azimuthal_equal_area", "albers", "polar_stereographic"),
    *("mercator", "space_view", "transverse_mercator"),
)
_SECONDS = (60, 3600, 86400, None, None, None, None, None, None, None, 10800, 21600, 43200, 1, 900, 1800)
_MOST_POINTS = 2**28
_MISSING = float(np.finfo("f4").max)  # as cfgrib says it; missing values are NaN
_TIMES_2 = slice(12, 19)  # of section 1: year to second


class FieldKeys(NamedTuple):
    """The marks that tell fields of one parameter apart: seconds since 1970, hours, level and member.

    A step is None if it is counted in a unit that nobody knows.
    """

    time: int
    step: float | None
    level: float | None
    number: int | None


class GribGrid(NamedTuple):
    """The points of a grid: its axes, coordinates along them, and whether every other row is turned.

    Where it has no axes, `located` says whether ecCodes knows where its points are.
    """

    dims: tuple[str, ...]
    shape: tuple[int, ...]
    axes: Mapping[str, Any]
    turned: bool = False
    located: bool = True


class GribLibrary:
    """ecCodes, with what it has said of one file."""

    def __init__(self) -> None:
        try:
            import eccodes
        except (ImportError, RuntimeError):
            raise UnimplementedError("GRIB files need ecCodes: pip install 'fsstore[grib]'") from None
        self._codes = eccodes
        self._static: dict[bytes, dict[str, Json]] = {}
        self._grids: dict[bytes, GribGrid] = {}

    def lock(self) -> AbstractContextManager[Any]:
        """Return the lock that guards calls of ecCodes."""
        return nullcontext() if "ECCODES_THREADS" in self._codes.codes_get_features() else _LOCK

    def describe(self, field: GribField) -> tuple[dict[str, Json], FieldKeys]:
        """Return the attributes of a field, and where it stands among others; raises `DataLossError` if it cannot."""
        codes = self._codes
        try:
            handle = codes.codes_new_from_message(field.head)
        except (codes.CodesInternalError, ValueError) as error:
            raise DataLossError(f"ecCodes cannot read its head: {error}") from None
        try:
            keys = self._keys(handle)
            known = _alike(field)
            static = self._static.get(known) if known else None
            if static is None:
                static = self._attributes(handle)
                if known:
                    self._static[known] = static
            return static, keys
        finally:
            codes.codes_release(handle)

    def _keys(self, handle: Any) -> FieldKeys:
        date, time = self._get(handle, "dataDate", int), self._get(handle, "dataTime", int)
        unit, end = self._get(handle, "stepUnits", int), self._get(handle, "endStep", int)
        if not isinstance(date, int) or not isinstance(time, int):
            raise DataLossError("it says no time")
        try:
            day = np.datetime64(f"{date // 10000:04}-{date // 100 % 100:02}-{date % 100:02}", "s")
        except ValueError:
            raise DataLossError(f"its date {date} is none") from None
        seconds = _SECONDS[unit] if isinstance(unit, int) and 0 <= unit < len(_SECONDS) else None
        level, number = self._get(handle, "level", float), self._get(handle, "number", int)
        begun = int(day.astype("i8")) + time // 100 * 3600 + time % 100 * 60
        return FieldKeys(
            begun,
            None if seconds is None or not isinstance(end, int) else end * seconds / 3600.0,
            level if isinstance(level, float) else None,
            number if isinstance(number, int) else None,
        )

    def _attributes(self, handle: Any) -> dict[str, Json]:
        grid = self._get(handle, "gridType", str)
        names = (*_GLOBAL, *_DATA, *_EXTRA, *_GRIDS.get(str(grid), ()))
        found = {name: self._get(handle, name, None) for name in names}
        if not found["paramId"]:  # ecCodes does not know the parameter: its numbers tell it from others
            found |= {name: self._get(handle, name, int) for name in PARAMETER_NUMBERS}
        out = {f"GRIB_{name}": value for name, value in found.items() if value is not None}
        if grid == "reduced_gg":
            try:
                out["GRIB_pl"] = self._codes.codes_get_array(handle, "pl").tolist()
            except self._codes.CodesInternalError as error:
                raise DataLossError(f"ecCodes cannot read its grid: {error}") from None
        return {**out, "GRIB_stepUnits": 1, "GRIB_missingValue": _MISSING}

    def _get(self, handle: Any, name: str, kind: type | None) -> Json:
        try:
            value: Json = self._codes.codes_get(handle, name, ktype=kind)
        except (self._codes.CodesInternalError, ValueError):
            return None
        return value

    def grid(self, field: GribField, attributes: Mapping[str, Json]) -> GribGrid:
        """Return the points of the grid of a field; raises `UnimplementedError` if there are too many."""
        found = self._grids.get(field.grid)
        if found is None:
            found = self._grids[field.grid] = self._read_grid(field, attributes)
        return found

    def _read_grid(self, field: GribField, attributes: Mapping[str, Json]) -> GribGrid:
        count, kind = attributes.get("GRIB_numberOfPoints"), attributes.get("GRIB_gridType")
        if not isinstance(count, int) or not 0 < count <= _MOST_POINTS:
            raise UnimplementedError(f"it has {count} points")
        codes = self._codes
        handle = codes.codes_new_from_message(field.head)
        try:
            columns, rows = self._get(handle, "Nx", int), self._get(handle, "Ny", int)
            flags = [bool(self._get(handle, name, int)) for name in ("jPointsAreConsecutive", "alternativeRowScanning")]
            if not isinstance(columns, int) or not isinstance(rows, int) or columns * rows != count:
                return GribGrid(("values",), (count,), {}, located=self._locates(handle, kind))
            if kind not in (*_AXES, *_PLANES):
                return GribGrid(("values",), (count,), {}, located=self._locates(handle, kind))
            down, turned = flags
            shape = (columns, rows) if down else (rows, columns)
            if kind in _PLANES:
                located = self._locates(handle, kind)
                return GribGrid(("x", "y") if down else ("y", "x"), shape, {}, turned, located)
            return self._with_axes(handle, shape, down=down, turned=turned)
        finally:
            codes.codes_release(handle)

    def _with_axes(self, handle: Any, shape: tuple[int, int], *, down: bool, turned: bool) -> GribGrid:
        """Return a grid whose points are those of two axes, or without them if its numbers contradict each other."""
        dims = ("longitude", "latitude") if down else ("latitude", "longitude")
        axes = {}
        try:
            for axis, name in enumerate(dims):
                points = np.asarray(self._codes.codes_get_array(handle, f"{name}s")).reshape(shape)
                axes[name] = np.array(points[:, 0] if axis == 0 else points[0])
        except (self._codes.CodesInternalError, ValueError):
            return GribGrid(("x", "y") if down else ("y", "x"), shape, {}, turned, located=False)
        return GribGrid(dims, shape, axes, turned)

    def _locates(self, handle: Any, kind: Json) -> bool:
        """Return whether ecCodes can compute the points of a grid; of a plane four of them are tried."""
        codes = self._codes
        if kind in ("reduced_gg", "reduced_ll"):
            return True
        tried = codes.codes_clone(handle)
        try:
            for name in ("Nx", "Ny") if kind in _PLANES else ():
                codes.codes_set(tried, name, 2)
            if kind in _PLANES and self._get(tried, "edition", int) == 2:
                codes.codes_set(tried, "numberOfDataPoints", 4)
            return len(codes.codes_get_array(tried, "latitudes")) > 0
        except (codes.CodesInternalError, ValueError):
            return False
        finally:
            codes.codes_release(tried)


def _alike(field: GribField) -> bytes:
    """Return what fields have in common of which ecCodes says the same, but for time, step and level of pressure.

    The numbers of template 0, 1, 8 and 11 of edition 2 stand where they do; nothing of other fields.
    """
    if field.edition != 2:
        return b""
    sections = {number: (start, stop) for number, start, stop in _sections(field.head)}
    one, four = sections.get(1), sections.get(4)
    if one is None or four is None:
        return b""
    head = bytearray(field.head)
    product = head[four[0] : four[1]]
    if int.from_bytes(product[7:9], "big") not in (0, 1) or len(product) < 34:
        return b""
    head[one[0] + _TIMES_2.start : one[0] + _TIMES_2.stop] = bytes(7)
    head[four[0] + 18 : four[0] + 22] = bytes(4)  # the step
    if product[22] in (100, 105) and product[28] == 255:  # pressure, hybrid: the level does not name the parameter
        head[four[0] + 24 : four[0] + 28] = bytes(4)
    if product[8] == 1 and len(product) > 35:
        head[four[0] + 35] = 0  # the member
    return bytes(head)


def _sections(head: bytes) -> list[tuple[int, int, int]]:
    out, at = [], 16
    while at + 5 <= len(head) - 4:
        size = int.from_bytes(head[at : at + 4], "big")
        out.append((head[at + 4], at, at + size))
        at += max(size, 5)
    return out
