"""The `scale_offset` codec: `(x - offset) * scale`, in the arithmetic of the array's own type.

Integers that leave the range of the type are an error, and so is a stored value that the scale does not divide.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fsstore.codec.configuration import Configured, Member, Members
from fsstore.codec.contract import Array, ByteSpec, ChunkSpec, Kind
from fsstore.codec.extension.scalar import limits, parse_number, scalar_of
from fsstore.errors import DataLossError, StoreError
from fsstore.values.json_value import Json

__all__ = ["BoundScaleOffset", "ScaleOffsetCodec"]


@dataclass(frozen=True, slots=True)
class ScaleOffsetCodec(Configured):
    """Subtracts `offset`, then multiplies by `scale`."""

    offset: Json = 0
    scale: Json = 1

    name: ClassVar[str] = "scale_offset"
    kind: ClassVar[Kind] = "array_to_array"
    members: ClassVar[Members] = {"offset": Member(parse_number), "scale": Member(parse_number)}

    def to_json(self) -> dict[str, Json]:
        """Return the configuration without what changes nothing."""
        given = {"offset": (self.offset, 0), "scale": (self.scale, 1)}
        return {name: value for name, (value, usual) in given.items() if value != usual}

    def bind(self, decoded: ChunkSpec | ByteSpec) -> BoundScaleOffset:
        """Return the codec for chunks like `decoded`."""
        if not isinstance(decoded, ChunkSpec) or decoded.dtype.kind not in "iuf":
            raise StoreError('"scale_offset" codec requires an array of integers or floats')
        bound = BoundScaleOffset(
            decoded,
            scalar_of(self.offset, decoded.dtype, "offset"),
            scalar_of(self.scale, decoded.dtype, "scale"),
        )
        if decoded.fill_value is not None:
            fill = bound.encode(np.asarray(decoded.fill_value, decoded.dtype).reshape(1))[0]
            bound.encoded = ChunkSpec(decoded.dtype, decoded.shape, fill)
        return bound


class BoundScaleOffset:
    """The codec bound to chunks of one type."""

    __slots__ = ("bounds", "encoded", "offset", "scale")

    def __init__(self, decoded: ChunkSpec, offset: Any, scale: Any) -> None:
        if not scale:
            raise StoreError('"scale_offset" codec requires a scale other than 0')
        self.encoded, self.offset, self.scale = decoded, offset, scale
        self.bounds = limits(decoded.dtype)

    def encode(self, data: Array) -> Array:
        """Return the scaled values."""
        if self.bounds is None:
            with np.errstate(all="ignore"):
                return self._scaled(data)
        offset, scale = int(self.offset), int(self.scale)
        ends = [int(end) - offset for end in (data.min(), data.max())] if data.size else []
        self._check([*ends, *[end * scale for end in ends]], StoreError)
        return self._scaled(data)

    def _scaled(self, data: Array) -> Array:
        scaled: Array = (data - self.offset) * self.scale
        return scaled

    def decode(self, data: Array) -> Array:
        """Return the values before scaling."""
        if self.bounds is None:
            with np.errstate(all="ignore"):
                real: Array = data / self.scale + self.offset
            return real
        offset, scale = int(self.offset), int(self.scale)
        if scale not in (1, -1) and (data % self.scale).any():
            raise DataLossError(
                f'"scale_offset" codec: a stored value is no multiple of {scale}: non-zero remainder'
            )
        ends = [int(end) // scale for end in (data.min(), data.max())] if data.size else []
        self._check([*ends, *[end + offset for end in ends]], DataLossError)
        whole: Array = data // self.scale + self.offset
        return whole

    def _check(self, values: list[int], error: type[StoreError]) -> None:
        low, high = self.bounds or (0, 0)
        for value in values:
            if not low <= value <= high:
                raise error(
                    f'"scale_offset" codec: {value} is outside the range [{low}, {high}] of {self.encoded.dtype.name}'
                )
