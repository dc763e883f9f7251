"""How the stored values of a source become those of the whole: by the conventions that xarray and netCDF follow.

`_Unsigned` says how bits are read, `_FillValue` and `missing_value` which values mean none, `scale_factor` and
`add_offset` what was packed; then another unit may be taken.  The type that unpacked values have is the one that xarray
chooses, so that a file read alone and as a piece of a whole has the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fsstore.errors import JsonError
from fsstore.values.attribute_types import PACKING_NUMBERS, single_numbers
from fsstore.values.json_value import Fields, Json, array_of, boolean, number, optional, string

__all__ = ["Decoding", "attributes_decoding"]


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
    missing = tuple(
        _numbers(attributes.get("_FillValue"), stored) + _numbers(attributes.get("missing_value"), stored)
    )
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
