"""The `cast_value` codec: elements as another type of numbers, with a chosen rounding and a chosen way out of range."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np

from fsstore.codec.configuration import Member, Members, Options, read_options
from fsstore.codec.contract import Array, ByteSpec, ChunkSpec, Kind
from fsstore.codec.extension.rounding import MODES, float_max, integral, rounded_float, rounded_integer
from fsstore.codec.extension.scalar import limits, named_dtype, parse_number, scalar_of
from fsstore.errors import JsonError, StoreError
from fsstore.values.json_value import Fields, Json, array_of, one_of, string

__all__ = ["BoundCast", "CastValueCodec"]


def _data_type(value: Any) -> str:
    named_dtype(value)
    return string(value)


def _pairs(value: Any) -> list[list[Json]]:
    return array_of(array_of(parse_number, length=2))(value)


def _scalar_map(value: Any) -> dict[str, Json]:
    fields = Fields(value)
    out: dict[str, Json] = {
        name: fields.take(name, _pairs) for name in ("encode", "decode") if name in fields
    }
    fields.finish()
    return out


@dataclass(frozen=True, slots=True)
class CastValueCodec:
    """Casts to `data_type`.  Without `out_of_range` a number that does not fit is an error."""

    data_type: str
    rounding: str = "nearest-even"
    out_of_range: str | None = None
    scalar_map: dict[str, Any] = field(default_factory=dict, hash=False)

    name: ClassVar[str] = "cast_value"
    kind: ClassVar[Kind] = "array_to_array"
    members: ClassVar[Members] = {
        "data_type": Member(_data_type, stored=True),
        "rounding": Member(one_of(*MODES)),
        "out_of_range": Member(one_of("clamp", "wrap")),
        "scalar_map": Member(_scalar_map),
    }
    always: ClassVar[frozenset[str]] = frozenset({"data_type"})

    @classmethod
    def from_json(cls, configuration: Mapping[str, Json]) -> Self:
        """Return the codec of a stored configuration."""
        made = cls(**read_options(cls.members, configuration))
        if made.out_of_range == "wrap" and limits(named_dtype(made.data_type)) is None:
            raise JsonError('"out_of_range" of "wrap" requires a data type of integers')
        return made

    @classmethod
    def complete(cls, options: Options, decoded: ChunkSpec) -> Self:  # noqa: ARG003  one signature for all codecs
        """Return the codec."""
        return cls.from_json(options)

    def to_json(self) -> dict[str, Json]:
        """Return the configuration without what is usual."""
        out: dict[str, Json] = {"data_type": self.data_type}
        out |= {"rounding": self.rounding} if self.rounding != "nearest-even" else {}
        out |= {"out_of_range": self.out_of_range} if self.out_of_range is not None else {}
        return out | ({"scalar_map": self.scalar_map} if self.scalar_map else {})

    def bind(self, decoded: ChunkSpec | ByteSpec) -> BoundCast:
        """Return the codec for chunks like `decoded`."""
        if not isinstance(decoded, ChunkSpec):
            raise StoreError('"cast_value" codec requires an array')
        try:
            limits(decoded.dtype)
        except JsonError as error:
            raise StoreError(f'"cast_value" codec: {error.message}') from None
        return BoundCast(decoded, self)


class BoundCast:
    """The codec bound to chunks of one type."""

    __slots__ = ("_codec", "_maps", "decoded", "encoded")

    def __init__(self, decoded: ChunkSpec, codec: CastValueCodec) -> None:
        target = named_dtype(codec.data_type)
        self.decoded, self._codec = decoded, codec
        self._maps = tuple(
            [(scalar_of(a, source, way), scalar_of(b, result, way)) for a, b in codec.scalar_map.get(way, ())]
            for way, source, result in (("encode", decoded.dtype, target), ("decode", target, decoded.dtype))
        )
        self.encoded = ChunkSpec(target, decoded.shape)
        if decoded.fill_value is not None:
            fill = self.encode(np.asarray(decoded.fill_value, decoded.dtype).reshape(1))[0]
            self.encoded = ChunkSpec(target, decoded.shape, fill)

    def encode(self, data: Array) -> Array:
        """Return the elements as the stored type."""
        return self._cast(data, self.encoded.dtype, self._maps[0])

    def decode(self, data: Array) -> Array:
        """Return the elements as the array's type."""
        return self._cast(data, self.decoded.dtype, self._maps[1])

    def _cast(self, data: Array, target: np.dtype[Any], pairs: Sequence[tuple[Any, Any]]) -> Array:
        mapped = np.zeros(data.shape, bool)
        found = np.zeros(data.shape, target)
        for key, value in pairs:
            same = np.isnan(data) if np.isnan(key) else data == key
            found[same & ~mapped] = value
            mapped |= same
        rest = data[~mapped] if pairs else data.reshape(-1)
        made = self._numbers(rest, target)
        if not pairs:
            return made.reshape(data.shape)
        found[~mapped] = made
        return found

    def _numbers(self, data: Array, target: np.dtype[Any]) -> Array:
        """Return flat elements cast, none of them mapped."""
        source, bounds = limits(data.dtype), limits(target)
        if source is not None:
            wide = data.astype(np.uint64 if data.dtype == np.uint64 else np.int64)
            if bounds is not None:
                return self._into_range(wide, target, bounds)
            return self._into_floats(rounded_integer(wide, target, self._codec.rounding), target)
        numbers = data.astype(np.float64)
        if bounds is None:
            return self._into_floats(rounded_float(numbers, target, self._codec.rounding), target)
        if not np.isfinite(numbers).all():
            raise StoreError(f'"cast_value" codec: NaN and infinity have no value in {target.name}')
        return self._whole(integral(numbers, self._codec.rounding), target, bounds)

    def _into_floats(self, numbers: Array, target: np.dtype[Any]) -> Array:
        """Return float64 numbers, already rounded, as a float type."""
        largest = float_max(target)
        outside = np.isfinite(numbers) & (np.abs(numbers) > largest)
        if outside.any():
            if self._codec.out_of_range != "clamp":
                raise self._refusal(numbers[outside][0], target)
            numbers = np.where(outside, np.copysign(np.inf, numbers), numbers)
        with np.errstate(all="ignore"):
            return numbers.astype(target)

    def _into_range(self, numbers: Array, target: np.dtype[Any], bounds: tuple[int, int]) -> Array:
        """Return integers of 64 bits as an integer type."""
        low, high = bounds
        outside = (numbers < low) | (numbers > high)
        if outside.any():
            if self._codec.out_of_range is None:
                raise self._refusal(numbers[outside][0], target)
            if self._codec.out_of_range == "clamp":
                info = np.iinfo(numbers.dtype)
                numbers = np.clip(numbers, max(low, int(info.min)), min(high, int(info.max)))
            else:
                return _wrapped(numbers.astype(np.uint64), target, bounds)
        return numbers.astype(target)

    def _whole(self, numbers: Array, target: np.dtype[Any], bounds: tuple[int, int]) -> Array:
        """Return float64 numbers without fractions as an integer type."""
        low, high = bounds
        below, above = numbers < float(low), numbers >= float(high + 1)
        if (below | above).any():
            if self._codec.out_of_range is None:
                raise self._refusal(numbers[below | above][0], target)
            if self._codec.out_of_range == "wrap":
                rest = np.fmod(numbers, 2.0**64)
                size = np.abs(rest).astype(np.uint64)
                return _wrapped(np.where(rest < 0, np.uint64(0) - size, size), target, bounds)
        inside = np.where(below | above, 0.0, numbers)
        wide = inside.astype(np.uint64 if low == 0 else np.int64)
        wide[below], wide[above] = low, high
        return wide.astype(target)

    def _refusal(self, value: Any, target: np.dtype[Any]) -> StoreError:
        return StoreError(f'"cast_value" codec: {value} is out of range for {target.name}')


def _wrapped(numbers: Array, target: np.dtype[Any], bounds: tuple[int, int]) -> Array:
    """Return numbers modulo 2^64 as an integer type, modulo its own size."""
    low, high = bounds
    bits = (high - low).bit_length()
    kept = numbers & np.uint64((1 << bits) - 1)
    if low == 0:
        return kept.astype(target)
    shift = np.uint64(64 - bits)
    signed: Array = (kept << shift).view(np.int64) >> np.int64(64 - bits)
    return signed.astype(target)
