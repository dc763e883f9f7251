"""The codecs `bitround`, `cast_value` and `scale_offset`, which change values.

Casts are exact up to one rounding in the direction of the configuration.  `scale_offset` computes
`(x - offset) * scale` in the arithmetic of the array's own type: integers that leave the range of the type are an
error, and so is a stored value that the scale does not divide.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Self, TypeAlias

import ml_dtypes
import numpy as np

from fsstore.codec.contract import Array, ByteSpec, ChunkSpec, Configured, Kind, Member, Members, Options, read_options
from fsstore.errors import DataLossError, JsonError, StoreError
from fsstore.values.dtypes import dtype_of
from fsstore.values.json_value import Fields, Json, array_of, expected, integer, one_of, quote, string

_MANTISSA = {"float16": 10, "float32": 23, "float64": 52, "bfloat16": 7}


@dataclass(frozen=True, slots=True)
class BitroundCodec(Configured):
    """Keeps `keepbits` bits: of the mantissa of floats, from the highest bit that is set of integers."""

    keepbits: int

    name: ClassVar[str] = "bitround"
    kind: ClassVar[Kind] = "array_to_array"
    members: ClassVar[Members] = {"keepbits": Member(integer(0, 64), stored=True)}
    always: ClassVar[frozenset[str]] = frozenset({"keepbits"})

    def bind(self, decoded: ChunkSpec | ByteSpec) -> BoundBitround:
        """Return the codec for chunks like `decoded`."""
        if not isinstance(decoded, ChunkSpec) or (
            decoded.dtype.kind not in "iu" and decoded.dtype.name not in _MANTISSA
        ):
            raise StoreError('"bitround" codec requires an array of integers, or of floats of 16 to 64 bits')
        return BoundBitround(decoded, self.keepbits)


class BoundBitround:
    """The codec bound to chunks of one type."""

    __slots__ = ("_keep", "_unsigned", "encoded")

    def __init__(self, decoded: ChunkSpec, keep: int) -> None:
        self.encoded, self._keep = decoded, keep
        self._unsigned = np.dtype(f"u{decoded.dtype.itemsize}")

    def encode(self, data: Array) -> Array:
        """Return rounded numbers, half to even; NaN stays as it is."""
        dtype = self.encoded.dtype
        native = np.ascontiguousarray(data, dtype)
        bits = native.view(self._unsigned).astype(np.uint64)
        if dtype.kind in "iu":
            length = np.frexp(bits.astype(np.float64))[1].astype(np.int64)
            length -= (bits >> np.maximum(length - 1, 0).astype(np.uint64)) == 0
            drop: Any = np.maximum(length - self._keep, 0)
        else:
            drop = np.full(bits.shape, max(0, _MANTISSA[dtype.name] - self._keep))
        rounded = self._rounded(bits, drop.astype(np.uint64)).astype(self._unsigned).view(dtype)
        return rounded if dtype.kind in "iu" else np.where(np.isnan(native), native, rounded)

    def _rounded(self, bits: Array, drop: Array) -> Array:
        one = np.uint64(1)
        half = np.where(drop > 0, (one << np.maximum(drop, one) - one) - one, np.uint64(0))
        add = np.where(drop > 0, ((bits >> np.minimum(drop, np.uint64(63))) & one) + half, np.uint64(0))
        largest = np.uint64(2 ** (8 * self._unsigned.itemsize) - 1)
        total = np.where(bits > largest - add, largest, bits + add)
        return (total >> drop) << drop

    def decode(self, data: Array) -> Array:
        """Return the numbers as they are."""
        return data


# Rounding numbers to another type in a given direction.

Mode: TypeAlias = Literal["nearest-even", "nearest-away", "towards-zero", "towards-positive", "towards-negative"]


def _away(x: Array) -> Array:
    whole: Array = np.trunc(x)
    rounded: Array = whole + np.copysign(np.abs(x - whole) >= 0.5, x)
    return rounded


MODES: Mapping[str, Callable[[Array], Array]] = {
    "nearest-even": np.rint,
    "nearest-away": _away,
    "towards-zero": np.trunc,
    "towards-positive": np.ceil,
    "towards-negative": np.floor,
}


def integral(x: Array, mode: str) -> Array:
    """Return finite float64 numbers rounded to integers."""
    return MODES[mode](x)


def _known(target: np.dtype[Any]) -> Any:
    """Return the properties of a float type, of ml_dtypes or of NumPy."""
    finfo: Any = ml_dtypes.finfo
    return finfo(target)


def float_max(target: np.dtype[Any]) -> float:
    """Return the largest finite number of a float type."""
    return float(_known(target).max)


def _precision(target: np.dtype[Any]) -> tuple[int, int]:
    """Return the bits of the significand of a float type, and the exponent of its smallest number."""
    known = _known(target)
    return known.nmant + 1, int(np.frexp(np.float64(known.smallest_subnormal))[1]) - 1


def rounded_float(x: Array, target: np.dtype[Any], mode: str) -> Array:
    """Return float64 numbers rounded to the precision of a float type; NaN, infinities and -0 stay."""
    if target == np.float64:
        return x
    bits, lowest = _precision(target)
    _, exponent = np.frexp(x)
    quantum = np.maximum(exponent - bits, lowest)
    with np.errstate(all="ignore"):
        scaled = np.ldexp(x, -quantum)
        return np.where(np.isfinite(x) & (x != 0), np.ldexp(MODES[mode](scaled), quantum), x)


def rounded_integer(x: Array, target: np.dtype[Any], mode: str) -> Array:
    """Return integers of 64 bits rounded to the precision of a float type, as float64."""
    bits, _ = _precision(target)
    negative = x < 0
    size = x.astype(np.uint64)
    size = np.where(negative, np.uint64(0) - size, size)
    length = np.frexp(size.astype(np.float64))[1].astype(np.int64)
    length -= (size >> np.maximum(length - 1, 0).astype(np.uint64)) == 0  # rounded up by the conversion
    drop = np.maximum(length - bits, 0).astype(np.uint64)
    kept = size >> drop
    rest = size - (kept << drop)
    half = np.where(drop > 0, np.uint64(1) << np.maximum(drop, 1).astype(np.uint64) - np.uint64(1), np.uint64(1))
    up = {
        "nearest-even": (rest > half) | ((rest == half) & (kept & np.uint64(1) == 1)),
        "nearest-away": rest >= half,
        "towards-zero": np.zeros(x.shape, bool),
        "towards-positive": (rest > 0) & ~negative,
        "towards-negative": (rest > 0) & negative,
    }[mode] & (drop > 0)
    found = np.ldexp((kept + up).astype(np.float64), drop.astype(np.int64))
    signed: Array = np.where(negative, -found, found)
    return signed


# Scalars of an array's type in configurations of codecs.

_NAMED = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf"), "+Infinity": float("inf")}
_SMALL = ("uint2", "uint4", "int2", "int4")
_SMALL_FLOATS = ("float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn")


def named_dtype(value: Any) -> np.dtype[Any]:
    """Return the type of integers or floats that a name in metadata means."""
    name = string(value)
    if name in (*_SMALL, *_SMALL_FLOATS) and hasattr(ml_dtypes, name):
        small: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return small
    try:
        found: np.dtype[Any] = dtype_of(name).numpy_dtype
    except StoreError:
        raise JsonError(f"{quote(name)} is no data type of numbers") from None
    limits(found)
    return found


def limits(dtype: np.dtype[Any]) -> tuple[int, int] | None:
    """Return the smallest and largest integer of a type, None for floats; raise for other types."""
    if dtype.kind in "iu":
        return int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    if dtype.name in _SMALL:
        iinfo: Any = ml_dtypes.iinfo
        return int(iinfo(dtype).min), int(iinfo(dtype).max)
    if dtype.kind == "f" or dtype.name.startswith(("float", "bfloat")):
        return None
    raise JsonError(f"{quote(dtype.name)} is no data type of integers or floats")


def parse_number(value: Any) -> Json:
    """Return a scalar as configured, if it can be one."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and (value in _NAMED or value.startswith("0x")):
        return value
    raise expected("number", value)


def scalar_of(value: Json, dtype: np.dtype[Any], what: str) -> Any:
    """Return a configured scalar in a type, or raise where the type cannot hold it exactly."""
    refusal = StoreError(f"{what} value {value} is not representable in dtype {dtype.name}")
    if isinstance(value, str) and value.startswith("0x"):
        try:
            bits = bytes.fromhex(value[2:])
        except ValueError:
            raise refusal from None
        if len(bits) != dtype.itemsize:
            raise refusal
        return np.frombuffer(bits[::-1], dtype.newbyteorder("<")).astype(dtype)[0]
    number: Any = _NAMED[value] if isinstance(value, str) else value
    bounds = limits(dtype)
    if bounds is None:
        return np.asarray(number).astype(dtype)[()]
    if not math.isfinite(number) or int(number) != number:
        raise refusal
    if not bounds[0] <= int(number) <= bounds[1]:
        raise refusal
    return np.asarray(int(number)).astype(dtype)[()] if dtype.kind not in "iu" else dtype.type(int(number))


# The `cast_value` codec.


def _data_type(value: Any) -> str:
    named_dtype(value)
    return string(value)


def _pairs(value: Any) -> list[list[Json]]:
    return array_of(array_of(parse_number, length=2))(value)


def _scalar_map(value: Any) -> dict[str, Json]:
    fields = Fields(value)
    out: dict[str, Json] = {name: fields.take(name, _pairs) for name in ("encode", "decode") if name in fields}
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
            decoded, scalar_of(self.offset, decoded.dtype, "offset"), scalar_of(self.scale, decoded.dtype, "scale")
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
            raise DataLossError(f'"scale_offset" codec: a stored value is no multiple of {scale}: non-zero remainder')
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
